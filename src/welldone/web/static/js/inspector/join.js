// Which frames of the upstream became a frame of ours. What was said for all steps, in a row, is what we were sent, but
// for comments that keep the connection alive: so it is enough to walk along both.

/** @import { Frame } from "../sse.js" */

/**
 * The steps of a frame: from `from` to before `to`. Those before `own` belong to an earlier frame too.
 *
 * @typedef {{from: number, own: number, to: number}} Range
 */

/** Walks on when there are more frames or more steps. */
export class Join {
  /** @type {(Range | null)[]} */
  #ranges = [];
  #step = 0;
  #offset = 0;
  /** Steps before it belong to a frame already. */
  #taken = 0;

  /**
   * Join what can be joined by now.
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
   * The steps of a frame, by its place; null where there are none, or not yet.
   *
   * @param {number} place
   */
  of(place) {
    return this.#ranges[place] ?? null;
  }

  /**
   * Where a text ends in what was said, if it comes next. "other": something else comes next, so it is a comment of
   * the server itself. "unknown": it is not known yet what comes next.
   *
   * @param {string} raw
   * @param {Step[]} steps
   * @returns {{step: number, offset: number} | "other" | "unknown"}
   */
  #match(raw, steps) {
    let [step, offset, done] = [this.#step, this.#offset, 0];
    while (done < raw.length) {
      const said = steps[step]?.said;
      if (said === undefined) return "unknown";
      const size = Math.min(said.length - offset, raw.length - done);
      if (said.slice(offset, offset + size) !== raw.slice(done, done + size)) return "other";
      done += size;
      offset += size;
      if (offset === said.length && done < raw.length) [step, offset] = [step + 1, 0];
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
    const isSaid = offset === steps[step].said.length;
    this.#step = isSaid ? step + 1 : step;
    this.#offset = isSaid ? 0 : offset;
  }
}
