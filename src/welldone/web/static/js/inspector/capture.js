// The capture of one exchange, polled from the server while the response streams.

import { ApiError } from "../api.js";

/** @import { Exchange } from "../exchange.js" */

/** Pause between two polls: faster than a person can follow the change. */
const PAUSE_MS = 300;
/** Polls after the end of the response: the server may not have received the end of the upstream's stream yet. */
const MAX_POLLS_AFTER_END = 10;

/** Dispatches "change". Polls only while it is visible: between `watch` and `leave`. */
export class UpstreamCapture extends EventTarget {
  #page;
  #exchange;
  #isWatched = false;
  #isPolling = false;
  #pollsAfterEnd = 0;
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
    /** Characters in all steps. */
    this.size = 0;
    this.isKnown = false;
    /** The server has sent the last step. */
    this.isDone = false;
    /** The capture reached a limit: the rest is missing. */
    this.isCut = false;
    /** No more polls: it is done, or not available. */
    this.isOver = false;
  }

  watch() {
    this.#isWatched = true;
    if (!this.#isPolling) void this.#follow();
  }

  leave() {
    this.#isWatched = false;
  }

  /** Free the steps. */
  drop() {
    this.leave();
    this.steps = [];
    this.#end();
  }

  async #follow() {
    this.#isPolling = true;
    await this.#started();
    // Without a response there is no capture.
    if (this.#exchange.status === null) this.#end();
    while (this.#isWatched && !this.isOver) {
      const hasMore = await this.#poll();
      if (!hasMore && !this.isOver) await this.#pause();
    }
    this.#isPolling = false;
  }

  /** Poll once. Returns whether to poll again at once. */
  async #poll() {
    const hasEnded = this.#exchange.outcome !== "running";
    this.#pollsAfterEnd += hasEnded ? 1 : 0;
    try {
      const reply = /** @type {CaptureReply} */ (
        await this.#page.json(`page/api/tapes/${this.#exchange.captureId}?from=${this.#next}`)
      );
      return this.#take(reply, hasEnded);
    } catch (error) {
      // 404 before the end: the capture may not have started yet.
      const isGone = error instanceof ApiError && error.status !== 404;
      if (hasEnded || isGone) this.#end();
      return false;
    }
  }

  /**
   * @param {CaptureReply} reply
   * @param {boolean} hasEnded
   */
  #take(reply, hasEnded) {
    if (this.isOver) return false;
    const hasMore = reply.next > this.#next;
    this.isKnown = true;
    this.#next = reply.next;
    for (const step of reply.steps) {
      this.steps.push(step);
      this.size += step.received.length + step.sent.length;
    }
    this.attempts = reply.attempts;
    this.request = reply.request;
    this.isDone = reply.is_done;
    this.isCut = reply.is_cut;
    this.isOver = reply.is_done || (hasEnded && !hasMore && this.#pollsAfterEnd >= MAX_POLLS_AFTER_END);
    this.#notify();
    return hasMore && hasEnded;
  }

  #end() {
    this.isOver = true;
    this.#notify();
  }

  #notify() {
    this.dispatchEvent(new Event("change"));
  }

  /** Wait for the response headers: the capture may not exist before them. */
  #started() {
    const exchange = this.#exchange;
    /** @type {Promise<void>} */
    const started = new Promise((resolve) => {
      if (exchange.status !== null || exchange.outcome !== "running") resolve();
      for (const name of ["head", "end"]) exchange.addEventListener(name, () => resolve(), { once: true });
    });
    return started;
  }

  /** Wait for the next poll, or for the end of the stream. */
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
