// Numbers of a report: as text, and as data of plots. No DOM.

export const MISSING = "-";
const BIN_COUNT = 40;
export const MIN_TIME_S = 1e-6; // the resolution of the clock

// Numbers as text.

const SHORT = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
export const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** @param {unknown} value */
export function formatNumber(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return MISSING;
  const size = Math.abs(value);
  if (size >= 1e12) return value.toExponential(2);
  return (size >= 99.95 ? WHOLE : SHORT).format(value);
}

/** @param {unknown} seconds */
export function formatSeconds(seconds) {
  if (typeof seconds !== "number" || !Number.isFinite(seconds)) return MISSING;
  const [factor, unit] = timeUnit(Math.abs(seconds));
  return `${formatNumber(seconds * factor)} ${unit}`;
}

/** @param {number} seconds @returns {[number, string]} */
function timeUnit(seconds) {
  if (seconds > 0 && seconds < 0.0009995) return [1e6, "µs"];
  return seconds < 0.9995 ? [1e3, "ms"] : [1, "s"];
}

/** Labels of ticks, all in one unit. @param {number[]} ticks @param {number} step between two of them */
export function timeTicks(ticks, step) {
  const [factor, unit] = timeUnit(Math.max(...ticks.map(Math.abs)));
  let digits = 0;
  while (digits < 6 && Math.abs(step * factor - Number((step * factor).toFixed(digits))) > 1e-6 * step * factor)
    digits++;
  return ticks.map((tick) => `${(tick * factor).toFixed(digits)} ${unit}`);
}

/** @param {unknown} share */
export function formatPercent(share) {
  const text = formatNumber(typeof share === "number" ? share * 100 : null);
  return text === MISSING ? MISSING : `${text} %`;
}

/**
 * Format a value of a metric such as `ttft.p99`, or of an assertion about it.
 *
 * @param {string} metric
 * @param {unknown} value
 */
export function formatMetric(metric, value) {
  const kind = /^\w*/.exec(metric)?.[0] ?? "";
  if (["error_rate", "success_rate", "goodput"].includes(kind)) return formatPercent(value);
  return ["token_rate", "request_rate", "rate"].includes(kind) ? `${formatNumber(value)}/s` : formatSeconds(value);
}

/** @param {number} count @param {string} noun */
export const plural = (count, noun) => `${WHOLE.format(count)} ${noun}${count === 1 ? "" : "s"}`;

/** @param {unknown} value @returns {string} */
export function formatSetting(value) {
  if (Array.isArray(value)) return value.map(formatSetting).join(", ");
  if (value === null || typeof value !== "object") return String(value ?? MISSING);
  return Object.entries(value)
    .map(([name, item]) => `${name}=${formatSetting(item)}`)
    .join(", ");
}

// Numbers of a step.

/** @param {StepResult} step */
export function requestCounts(step) {
  const sent = Object.values(step.outcomes).reduce((sum, count) => sum + count, 0);
  const ok = step.outcomes.ok ?? 0;
  return { sent, ok, failed: sent - ok - (step.outcomes.unfinished ?? 0) };
}

/** @param {StepResult} step @param {string} metric @param {string} name */
export function statistic(step, metric, name) {
  const times = step.times[metric];
  return (name === "mean" ? times?.mean : times?.percentiles[name]) ?? null;
}

/** @param {StepResult} step @param {string} metric @param {number} [each] each n-th request has all its times */
export function samples(step, metric, each = 1) {
  const good = step.records.filter((record) => record.outcome === "ok");
  const values =
    metric === "gap"
      ? good.filter((_, at) => at % each === 0).flatMap(({ times }) => times.slice(1).map((at, n) => at - times[n]))
      : good.map((record) => measure(record, metric));
  return values.filter((value) => Number.isFinite(value)).sort((one, other) => one - other);
}

/** @param {BenchRecord} record @param {string} metric */
function measure(record, metric) {
  if (metric === "e2e") return record.ended_s - record.due_s;
  if (metric === "itl") {
    const { times, tokens } = record;
    return tokens !== null && tokens > 1 && times.length > 1
      ? (times[times.length - 1] - times[0]) / (tokens - 1)
      : NaN;
  }
  const firsts = [record.reasoning_s, record.content_s, record.tool_s].filter((at) => at !== null);
  return Math.min(...firsts) - record.due_s;
}

/**
 * Count sorted samples in bins of equal width, or of equal ratio.
 *
 * @param {number[]} sorted
 * @param {boolean} isLog
 * @param {{ low: number, high: number }} ends
 */
export function countInBins(sorted, isLog, ends) {
  const low = isLog ? Math.max(ends.low, MIN_TIME_S) : ends.low;
  const high = Math.max(ends.high, low * 1.01, low + MIN_TIME_S);
  const edges = Array.from({ length: BIN_COUNT + 1 }, (_, at) =>
    isLog ? low * (high / low) ** (at / BIN_COUNT) : low + ((high - low) * at) / BIN_COUNT,
  );
  const below = edges.map((edge, at) => (at === BIN_COUNT ? sorted.length : countBelow(sorted, edge)));
  below[0] = 0;
  const counts = below.slice(1).map((count, at) => count - below[at]);
  return { edges, counts, shares: below.map((count) => (100 * count) / sorted.length) };
}

/** @param {number[]} sorted @param {number} limit */
function countBelow(sorted, limit) {
  let [from, to] = [0, sorted.length];
  while (from < to) {
    const middle = (from + to) >> 1;
    if (sorted[middle] < limit) from = middle + 1;
    else to = middle;
  }
  return from;
}

/**
 * Tokens per second over time. Tokens are distributed evenly over the chunks of an answer, and those of requests that
 * are not in the page over the others.
 *
 * @param {StepResult} step
 * @param {number} end
 * @param {number} count
 */
export function tokenRates(step, end, count) {
  const width = end / count || 1;
  const rates = new Array(count).fill(0);
  const weight = requestCounts(step).sent / step.records.length;
  for (const { times, tokens } of step.records) {
    for (const at of times) {
      const bin = Math.min(Math.max(Math.floor(at / width), 0), count - 1);
      rates[bin] += ((tokens ?? times.length) / times.length / width) * weight;
    }
  }
  return rates;
}

/** The first free row for each request, in order of their starts. @param {BenchRecord[]} records */
export function assignRows(records) {
  /** @type {number[]} */
  const busyUntil = [];
  return records.map((record) => {
    const free = busyUntil.findIndex((end) => end <= startOf(record));
    const row = free < 0 ? busyUntil.length : free;
    busyUntil[row] = Math.max(record.ended_s, startOf(record));
    return row;
  });
}

/** @param {BenchRecord} record */
export const startOf = (record) => Math.min(record.due_s, record.sent_s);

/** @param {Comparison} comparison @returns {[string, string]} the words, and the CSS class */
export function verdict(comparison) {
  if (!(comparison.low > 1 || comparison.high < 1)) return ["no difference", "quiet"];
  const isTime = splitMetric(comparison.metric)[1].includes("."); // times have statistics, rates do not
  return comparison.ratio < 1 === isTime ? ["the first is better", "pass"] : ["the second is better", "fail"];
}

/** Split `throughput ttft.p50` into step and metric. @param {string} text @returns {[string, string]} */
export function splitMetric(text) {
  const at = text.lastIndexOf(" ");
  return [text.slice(0, Math.max(at, 0)), text.slice(at + 1)];
}

/** @param {string} text @returns {BenchReport} */
export function parseReport(text) {
  const report = JSON.parse(text);
  const isReport = report?.version === 2 && Array.isArray(report.steps);
  if (
    !isReport ||
    !report.steps.every((/** @type {StepResult} */ step) => step?.times && step.outcomes && step.records)
  )
    throw new Error("not a report of welldone bench, version 2");
  return report;
}
