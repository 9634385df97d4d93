// What the upstream of one exchange said, asked of the server while it answers.

import { ApiError } from "../api.js";

/** @import { Exchange } from "../exchange.js" */

/** As often as a person can follow. */
const PAUSE_MS = 300;
/** How often it is asked after the end: the server may still have to hear the last of the upstream. */
const LAST_ASKS = 10;

/** Tells of "change". It asks only while somebody looks at it: `watch` and `leave`. */
export class Tape extends EventTarget {
  #page;
  #exchange;
  #isWatched = false;
  #isAsking = false;
  #asksAfterEnd = 0;
  #next = 0;

  /**
   * @param {Page} page
   * @param {Exchange} exchange
   */
  constructor(page, exchange) {
    super();
    this.#page = page;
    this.#exchange = exchange;
    /** @type {Step[]} */
    this.steps = [];
    /** @type {Attempt[]} */
    this.attempts = [];
    this.request = {};
    /** How many characters its steps have. */
    this.size = 0;
    this.isKnown = false;
    /** The server has told all of it. */
    this.isDone = false;
    /** A limit was met: the rest was not kept. */
    this.isCut = false;
    /** Nothing more will come. */
    this.isOver = false;
  }

  watch() {
    this.#isWatched = true;
    if (!this.#isAsking) void this.#follow();
  }

  leave() {
    this.#isWatched = false;
  }

  /** Keep nothing. */
  drop() {
    this.leave();
    this.isOver = true;
    this.steps = [];
  }

  async #follow() {
    this.#isAsking = true;
    await this.#begun();
    // Who was never answered has no tape.
    if (this.#exchange.status === null) this.#end();
    while (this.#isWatched && !this.isOver) {
      const hasMore = await this.#ask();
      if (!hasMore && !this.isOver) await this.#pause();
    }
    this.#isAsking = false;
  }

  /** Ask once; whether there is more to be had at once. */
  async #ask() {
    const hasEnded = this.#exchange.outcome !== "running";
    this.#asksAfterEnd += hasEnded ? 1 : 0;
    try {
      const taped = /** @type {Taped} */ (
        await this.#page.json(`page/api/tapes/${this.#exchange.tape}?from=${this.#next}`)
      );
      return this.#take(taped, hasEnded);
    } catch (error) {
      // Before the end there may be nothing yet.
      const isGone = error instanceof ApiError && error.status !== 404;
      if (hasEnded || isGone) this.#end();
      return false;
    }
  }

  /**
   * @param {Taped} taped
   * @param {boolean} hasEnded
   */
  #take(taped, hasEnded) {
    if (this.isOver) return false;
    const hasMore = taped.next > this.#next;
    this.isKnown = true;
    this.#next = taped.next;
    for (const step of taped.steps) {
      this.steps.push(step);
      this.size += step.heard.length + step.said.length;
    }
    this.attempts = taped.attempts;
    this.request = taped.request;
    this.isDone = taped.is_done;
    this.isCut = taped.is_cut;
    this.isOver = taped.is_done || (hasEnded && !hasMore && this.#asksAfterEnd >= LAST_ASKS);
    this.#tell();
    return hasMore && hasEnded;
  }

  #end() {
    this.isOver = true;
    this.#tell();
  }

  #tell() {
    this.dispatchEvent(new Event("change"));
  }

  /** Wait for the head of the reply: before it there may be nothing to be told. */
  #begun() {
    const exchange = this.#exchange;
    /** @type {Promise<void>} */
    const begun = new Promise((resolve) => {
      if (exchange.status !== null || exchange.outcome !== "running") resolve();
      for (const news of ["head", "end"]) exchange.addEventListener(news, () => resolve(), { once: true });
    });
    return begun;
  }

  /** Wait a while, but not beyond the end of the stream. */
  #pause() {
    /** @type {Promise<void>} */
    const paused = new Promise((resolve) => {
      const go = () => {
        clearTimeout(timer);
        this.#exchange.removeEventListener("end", go);
        resolve();
      };
      const timer = setTimeout(go, PAUSE_MS);
      this.#exchange.addEventListener("end", go);
    });
    return paused;
  }
}
