// What a list of frames can show: those we were sent, or those of the upstream.

import { Frame, sizeOf } from "../sse.js";
import { isBreaking } from "./repairs.js";

/** @import { Exchange } from "../exchange.js" */
/** @import { Join } from "./join.js" */

/**
 * One frame, the steps of the upstream that it comes from or is, and what we were sent for it. `repairs`: how many there
 * are in it. `breaking`: how many of them are of rules that break clients.
 *
 * @typedef {{frame: Frame, hasTime: boolean, steps: Step[], repairs: number, breaking: number, said: string}} Item
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
    const frame = exchange.frames[index];
    const range = join.of(index);
    const all = range ? steps().slice(Math.min(range.from, range.own), range.to) : [];
    // What was repaired in a step counts at the first frame that came of it.
    const own = range ? steps().slice(range.own, range.to) : [];
    return { frame, hasTime: true, steps: all, ...countRepairs(own), said: frame.raw };
  };
  return { count: () => exchange.frames.length, item };
}

/**
 * @param {() => Step[]} steps
 * @returns {Source}
 */
export function upstreamSource(steps) {
  /** @type {WeakMap<Step, Frame>} */
  const frames = new WeakMap();
  /** @param {number} index */
  const item = (index) => {
    const step = steps()[index];
    const frame = frames.get(step) ?? frameOf(step, steps()[index - 1]);
    frames.set(step, frame);
    return { frame, hasTime: step.at_s !== null, steps: [step], ...countRepairs([step]), said: step.said };
  };
  return { count: () => steps().length, item };
}

/**
 * @param {Step} step
 * @param {Step} [before]
 */
export function frameOf(step, before) {
  const at = (step.at_s ?? 0) * 1000;
  const gap = Math.max(0, at - (before?.at_s ?? step.at_s ?? 0) * 1000);
  const size = step.heard_base64 === undefined ? sizeOf(step.heard) : atob(step.heard_base64).length;
  return new Frame({ n: step.n + 1, at, gap, byte: step.byte, size, raw: step.heard });
}

/** @param {Step[]} steps */
function countRepairs(steps) {
  const notes = steps.flatMap((step) => step.notes);
  /** @param {StepNote[]} some */
  const sum = (some) => some.reduce((total, note) => total + note.count, 0);
  return { repairs: sum(notes), breaking: sum(notes.filter(isBreaking)) };
}
