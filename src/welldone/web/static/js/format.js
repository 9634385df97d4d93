// Formatting of numbers.

const plain = new Intl.NumberFormat("en");

/** Placeholder for a missing number. */
export const NOTHING = "–";

/** @param {number | null | undefined} value */
export function count(value) {
  return value === null || value === undefined ? NOTHING : plain.format(value);
}

/**
 * A number with its noun.
 *
 * @param {number} value
 * @param {string} noun
 */
export function plural(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/**
 * A duration, in a suitable unit.
 *
 * @param {number | null | undefined} ms
 */
export function duration(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return NOTHING;
  if (ms < 0.95) return `${Math.round(ms * 1000)} µs`;
  if (ms < 99.5) return `${ms.toFixed(1)} ms`;
  if (ms < 995) return `${Math.round(ms)} ms`;
  if (ms < 59_950) return `${(ms / 1000).toFixed(2)} s`;
  const minutes = Math.floor(ms / 60_000);
  if (minutes < 60) return `${minutes} min ${Math.floor((ms % 60_000) / 1000)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** @param {number | null | undefined} value seconds */
export function seconds(value) {
  return duration(value === null || value === undefined ? null : value * 1000);
}

/** @param {number | null | undefined} size */
export function bytes(size) {
  if (size === null || size === undefined) return NOTHING;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let value = size;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

/**
 * A rate such as tokens per second.
 *
 * @param {number | null | undefined} value
 */
export function rate(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  return value >= 100 ? count(Math.round(value)) : value.toFixed(1);
}

/**
 * The time of day.
 *
 * @param {Date} moment
 */
export function clock(moment) {
  return moment.toLocaleTimeString("en-GB");
}
