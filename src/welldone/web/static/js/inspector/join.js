// Maps each frame sent to the client to the steps it came from. The concatenated output of all steps equals the bytes
// sent, except for keep-alive comments: so one pass over both is enough.

/** @import { Frame } from "../sse.js" */

/**
 * Steps of a frame: `from` up to, excluding, `to`. Steps before `own` are shared with an earlier frame.
 *
 * @typedef {{from: number, own: number, to: number}} Range
 */

/** Incremental: `advance` continues when there are more frames or steps. */
export class Join {
  /** @type {(Range | null)[]} */
  #ranges = [];
  #step = 0;
  #offset = 0;
  /** Steps before it are assigned. */
  #taken = 0;

  /**
   * Assign as many frames as possible.
   *
   * @param {Frame[]} frames
   * @param {Step[]} steps
   */
  advance(frames, steps) {
    while (this.#ranges.length < frames.length) {
      const frame = frames[this.#ranges.length];
      const found = this.#match(frame.raw, steps);
      if (found === "unknown") return;
      if (found === "other") this.#ranges.push(null);
      else this.#take(found, steps);
    }
  }

  /**
   * The steps of the frame at an index; null if it has none, or is not assigned yet.
   *
   * @param {number} index
   */
  of(index) {
    return this.#ranges[index] ?? null;
  }

  /**
   * Where the text ends in the output of the steps, if it comes next. "other": something else comes next, so it is a
   * keep-alive of the server. "unknown": the next step has not arrived.
   *
   * @param {string} raw
   * @param {Step[]} steps
   * @returns {{step: number, offset: number} | "other" | "unknown"}
   */
  #match(raw, steps) {
    let [step, offset, done] = [this.#step, this.#offset, 0];
    while (done < raw.length) {
      const sent = steps[step]?.sent;
      if (sent === undefined) return "unknown";
      const size = Math.min(sent.length - offset, raw.length - done);
      if (sent.slice(offset, offset + size) !== raw.slice(done, done + size)) return "other";
      done += size;
      offset += size;
      if (offset === sent.length && done < raw.length) [step, offset] = [step + 1, 0];
    }
    return { step, offset };
  }

  /**
   * @param {{step: number, offset: number}} end
   * @param {Step[]} steps
   */
  #take({ step, offset }, steps) {
    this.#ranges.push({ from: Math.min(this.#step, step), own: this.#taken, to: step + 1 });
    this.#taken = step + 1;
    const isStepDone = offset === steps[step].sent.length;
    this.#step = isStepDone ? step + 1 : step;
    this.#offset = isStepDone ? 0 : offset;
  }
}
