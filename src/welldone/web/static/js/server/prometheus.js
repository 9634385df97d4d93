// Parser of the Prometheus text format.

/** @typedef {{labels: Record<string, string>, value: number}} Sample */
/** @typedef {Map<string, Map<string, Sample>>} Metrics samples by name, then by labels */

const LINE = /^([A-Za-z_:][\w:]*)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?[ \t]+(\S+)/;
const LABEL = /([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"/g;
const NUMBERS = /** @type {Record<string, number>} */ ({ "+Inf": Infinity, "-Inf": -Infinity });

/**
 * Comments and unknown lines are skipped.
 *
 * @param {string} text
 * @returns {Metrics}
 */
export function readMetrics(text) {
  /** @type {Metrics} */
  const metrics = new Map();
  for (const line of text.split("\n")) {
    const [, name, labels = "", number] = LINE.exec(line) ?? [];
    if (name === undefined) continue;
    const value = NUMBERS[number] ?? Number(number);
    const series = metrics.get(name) ?? new Map();
    metrics.set(name, series.set(labels, { labels: readLabels(labels), value }));
  }
  return metrics;
}

/** @param {string} text */
function readLabels(text) {
  return Object.fromEntries([...text.matchAll(LABEL)].map(([, name, value]) => [name, unescape(value)]));
}

/** @param {string} value */
function unescape(value) {
  return value.replace(/\\(.)/g, (_, letter) => (letter === "n" ? "\n" : letter));
}
