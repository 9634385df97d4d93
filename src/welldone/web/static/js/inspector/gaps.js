// Statistics of the gaps between frames.

/** @typedef {{at: number, gap: number}} Dot milliseconds */

/** A gap is a stall if it is this many times the median, and long enough to be noticed. */
const STALL_TIMES = 10;
const STALL_MS = 200;

/**
 * @param {Dot[]} dots
 */
export function gapFigures(dots) {
  const sorted = Float64Array.from(dots, (dot) => dot.gap).sort();
  const p50 = quantile(sorted, 0.5);
  const limit = Math.max(STALL_MS, STALL_TIMES * (p50 ?? 0));
  return {
    p50,
    p95: quantile(sorted, 0.95),
    max: sorted.at(-1) ?? null,
    stalls: dots.filter((dot) => dot.gap >= limit),
  };
}

/**
 * @param {Float64Array} sorted
 * @param {number} share
 */
function quantile(sorted, share) {
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? null;
}

/**
 * Times and gaps of the upstream's frames.
 *
 * @param {Step[]} steps
 * @returns {Dot[]}
 */
export function upstreamDots(steps) {
  /** @type {Dot[]} */
  const dots = [];
  /** @type {number | null} */
  let before = null;
  for (const { at_s } of steps) {
    if (at_s === null) continue;
    const at = at_s * 1000;
    // The first frame has no gap: the time of the headers is not recorded.
    if (before !== null) dots.push({ at, gap: Math.max(0, at - before) });
    before = at;
  }
  return dots;
}
