// What a list of frames can show: those we were sent, or those of the upstream.

import { Frame, sizeOf } from "../sse.js";

/** @typedef {import("../exchange.js").Exchange} Exchange */
/** @typedef {import("./join.js").Join} Join */
/**
 * One frame, the steps of the upstream that it comes from or is, and what we were sent for it.
 *
 * @typedef {{frame: Frame, hasTime: boolean, steps: Step[], repairs: number, said: string}} Item
 */
/** @typedef {{count: () => number, item: (index: number) => Item}} Source */

/**
 * @param {Exchange} exchange
 * @param {() => Step[]} steps
 * @param {Join} join
 * @returns {Source}
 */
export function sentSource(exchange, steps, join) {
  /** @param {number} index */
  const item = (index) => {
    const frame = /** @type {Frame} */ (exchange.frames[index]);
    const range = join.of(index);
    const all = range ? steps().slice(Math.min(range.from, range.own), range.to) : [];
    // What was repaired in a step counts at the first frame that came of it.
    const repairs = range ? countRepairs(steps().slice(range.own, range.to)) : 0;
    return { frame, hasTime: true, steps: all, repairs, said: frame.raw };
  };
  return { count: () => exchange.frames.length, item };
}

/**
 * @param {() => Step[]} steps
 * @returns {Source}
 */
export function upstreamSource(steps) {
  /** @param {number} index */
  const item = (index) => {
    const step = /** @type {Step} */ (steps()[index]);
    const before = steps()[index - 1]?.at_s;
    const at = (step.at_s ?? 0) * 1000;
    const gap = before === undefined || before === null ? 0 : Math.max(0, at - before * 1000);
    const frame = new Frame({ n: step.n + 1, at, gap, byte: step.byte, size: heardSize(step), raw: step.heard });
    return { frame, hasTime: step.at_s !== null, steps: [step], repairs: countRepairs([step]), said: step.said };
  };
  return { count: () => steps().length, item };
}

/** @param {Step} step */
function heardSize(step) {
  return step.heard_base64 === undefined ? sizeOf(step.heard) : atob(step.heard_base64).length;
}

/** @param {Step[]} steps */
export function countRepairs(steps) {
  return steps.reduce((sum, step) => sum + step.notes.reduce((inner, note) => inner + note.count, 0), 0);
}
