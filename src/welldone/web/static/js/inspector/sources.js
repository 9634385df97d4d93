// Sources of a frame list: the frames sent to the client, or those of the upstream.

import { Frame, sizeOf } from "../sse.js";
import { isBreaking } from "./repairs.js";

/** @import { Exchange } from "../exchange.js" */
/** @import { Join } from "./join.js" */

/**
 * One frame with its steps and the bytes sent for it. `repairs`: the number of repairs. `breaking`: those of rules that
 * break clients.
 *
 * @typedef {{frame: Frame, hasTime: boolean, steps: Step[], repairs: number, breaking: number, sent: string}} Item
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
    // Repairs of a step count at the first frame that it caused.
    const own = range ? steps().slice(range.own, range.to) : [];
    return { frame, hasTime: true, steps: all, ...countRepairs(own), sent: frame.raw };
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
    return { frame, hasTime: step.at_s !== null, steps: [step], ...countRepairs([step]), sent: step.sent };
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
  const size = step.received_base64 === undefined ? sizeOf(step.received) : atob(step.received_base64).length;
  return new Frame({ n: step.n + 1, at, gap, byte: step.byte, size, raw: step.received });
}

/** @param {Step[]} steps */
function countRepairs(steps) {
  const all = steps.flatMap((step) => step.repairs);
  /** @param {StepRepair[]} some */
  const sum = (some) => some.reduce((total, repair) => total + repair.count, 0);
  return { repairs: sum(all), breaking: sum(all.filter(isBreaking)) };
}
