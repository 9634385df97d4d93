// One request and its response, frame by frame with times. The chat reads the answer from it; the inspector shows it.

import { ApiError } from "./api.js";
import { randomName } from "./random.js";
import { Cutter, Frame, sizeOf } from "./sse.js";

/** Frames beyond these limits are counted but not kept: some 100 MB of memory. */
const MAX_FRAMES = 50_000;
const MAX_BYTES = 32 * 2 ** 20;
const BURST_MS = 15; // time to process frames before yielding: one display frame
const WAITED_MS = 1; // a longer wait for the network was a chance to paint
const BATCH = 50; // frames between two checks of the clock

/**
 * Dispatches "head", "frame" (with the frame as detail) and "end".
 */
export class Exchange extends EventTarget {
  #page;
  #abort = new AbortController();
  #cutter = new Cutter();
  #lastAt = 0;
  #restedAt = 0;

  /**
   * @param {Page} page
   * @param {string} path such as "v1/chat/completions"
   * @param {Record<string, unknown>} body
   */
  constructor(page, path, body) {
    super();
    this.#page = page;
    this.path = path;
    this.body = body;
    /** Id under which the server captures the streams of upstreams. */
    this.captureId = randomName(16);
    /** As performance.now(). */
    this.began = 0;
    this.startedAt = new Date();
    /** @type {number | null} */
    this.status = null;
    /** @type {[string, string][]} */
    this.headers = [];
    /** @type {number | null} */
    this.headAt = null;
    /** @type {Frame[]} */
    this.frames = [];
    this.frameCount = 0;
    this.bytes = 0;
    /** @type {number | null} */
    this.endedAt = null;
    /** @type {"running" | "whole" | "stopped" | "failed"} */
    this.outcome = "running";
    /** @type {string | null} */
    this.error = null;
  }

  get requestId() {
    return this.headers.find(([name]) => name === "x-request-id")?.[1] ?? null;
  }

  /** Number of frames that were received but not kept. */
  get droppedFrames() {
    return this.frameCount - this.frames.length;
  }

  /** Milliseconds since the start of the request. */
  now() {
    return performance.now() - this.began;
  }

  /** Send the request and read the response. Never throws: see `outcome` and `error`. */
  async run() {
    this.began = performance.now();
    this.startedAt = new Date();
    this.#page.bus.dispatchEvent(new CustomEvent("exchange", { detail: this }));
    try {
      const reply = await this.#page.api(this.path, {
        json: this.body,
        signal: this.#abort.signal,
        headers: { "x-welldone-tape": this.captureId },
      });
      this.#head(reply);
      await this.#readBody(reply);
      this.outcome = "whole";
    } catch (error) {
      this.#fail(error);
    }
    this.endedAt = this.now();
    this.dispatchEvent(new Event("end"));
  }

  /** Abort the request, which frees its slot on the server. */
  stop() {
    this.#abort.abort();
  }

  /** @param {Response} reply */
  #head(reply) {
    this.status = reply.status;
    this.headers = [...reply.headers.entries()];
    this.headAt = this.now();
    this.#lastAt = this.headAt;
    this.dispatchEvent(new Event("head"));
  }

  /** @param {Response} reply */
  async #readBody(reply) {
    const reader = reply.body?.getReader();
    for (let isDone = false; reader && !isDone; ) {
      const waitedFrom = this.now();
      const { done, value } = await reader.read();
      isDone = done;
      const at = this.now();
      if (at - waitedFrom > WAITED_MS) this.#restedAt = at;
      const texts = value ? this.#cutter.feed(value) : this.#cutter.close();
      // Thousands of frames may have arrived while the page was busy.
      for (let from = 0; from < texts.length; from += BATCH) {
        await this.#yieldToPage();
        this.#frames(texts.slice(from, from + BATCH), at);
      }
    }
  }

  /**
   * After a burst, yield so that the page can paint and handle input, such as the stop button. Not in a hidden page,
   * which has nothing to paint and slow timers.
   */
  async #yieldToPage() {
    if (document.hidden || this.now() - this.#restedAt < BURST_MS) return;
    await new Promise((resolve) => setTimeout(resolve));
    this.#restedAt = this.now();
    this.#abort.signal.throwIfAborted();
  }

  /**
   * @param {string[]} texts
   * @param {number} at when they arrived
   */
  #frames(texts, at) {
    for (const raw of texts) {
      const size = sizeOf(raw);
      const frame = new Frame({ n: ++this.frameCount, at, gap: at - this.#lastAt, byte: this.bytes, size, raw });
      this.#lastAt = at;
      this.bytes += size;
      if (this.frames.length < MAX_FRAMES && this.bytes <= MAX_BYTES) this.frames.push(frame);
      this.dispatchEvent(new CustomEvent("frame", { detail: frame }));
    }
  }

  /** @param {unknown} error */
  #fail(error) {
    if (this.#abort.signal.aborted) {
      this.outcome = "stopped";
      return;
    }
    this.outcome = "failed";
    if (error instanceof ApiError) {
      this.status = error.status;
      this.headers = error.headers;
      this.error = error.message;
      this.headAt = this.now();
      this.#frames([error.body], this.headAt);
    } else {
      this.error = this.status === null ? "The server cannot be reached." : "The connection was lost.";
    }
  }
}
