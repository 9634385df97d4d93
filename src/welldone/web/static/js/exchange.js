// One request and all that came back of it, frame by frame with its times. The chat reads the answer out of it, the
// inspector shows it.

import { ApiError } from "./api.js";
import { randomName } from "./random.js";
import { Cutter, Frame, sizeOf } from "./sse.js";

/** Beyond these nothing more is kept of a stream, only counted: some 100 MB of a browser's memory. */
const MOST_FRAMES = 50_000;
const MOST_BYTES = 32 * 2 ** 20;
const BURST_MS = 15; // of frames in a row: as long as a frame of the screen
const WAITED_MS = 1; // who waited for the network so long has let the page work meanwhile
const BATCH = 50; // frames between two looks at the clock

/**
 * Tells of "head", of each "frame" (its detail) and of the "end".
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
    /** The name under which the server keeps what upstreams say. */
    this.tape = randomName(16);
    /** On the browser's own clock. */
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

  /** How many frames came that were not kept. */
  get droppedFrames() {
    return this.frameCount - this.frames.length;
  }

  /** Milliseconds since the request began. */
  now() {
    return performance.now() - this.began;
  }

  /** Ask, and hear all of the reply. It never throws: `outcome` and `error` say how it ended. */
  async run() {
    this.began = performance.now();
    this.startedAt = new Date();
    this.#page.bus.dispatchEvent(new CustomEvent("exchange", { detail: this }));
    try {
      const reply = await this.#page.api(this.path, {
        json: this.body,
        signal: this.#abort.signal,
        headers: { "x-welldone-tape": this.tape },
      });
      this.#head(reply);
      await this.#hear(reply);
      this.outcome = "whole";
    } catch (error) {
      this.#fail(error);
    }
    this.endedAt = this.now();
    this.dispatchEvent(new Event("end"));
  }

  /** Leave. The server hears it, and its slot is free again. */
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
  async #hear(reply) {
    const reader = reply.body?.getReader();
    for (let isDone = false; reader && !isDone; ) {
      const asked = this.now();
      const { done, value } = await reader.read();
      isDone = done;
      const at = this.now();
      if (at - asked > WAITED_MS) this.#restedAt = at;
      const texts = value ? this.#cutter.feed(value) : this.#cutter.close();
      // While the page was busy, thousands of frames may have come.
      for (let from = 0; from < texts.length; from += BATCH) {
        await this.#breathe();
        this.#frames(texts.slice(from, from + BATCH), at);
      }
    }
  }

  /**
   * After a burst, let the page paint and hear a key, which may be the one that stops. A page that is not seen has
   * nothing to paint, and its timers are slow.
   */
  async #breathe() {
    if (document.hidden || this.now() - this.#restedAt < BURST_MS) return;
    await new Promise((resolve) => setTimeout(resolve));
    this.#restedAt = this.now();
    this.#abort.signal.throwIfAborted();
  }

  /**
   * @param {string[]} texts
   * @param {number} at when they came
   */
  #frames(texts, at) {
    for (const raw of texts) {
      const size = sizeOf(raw);
      const frame = new Frame({ n: ++this.frameCount, at, gap: at - this.#lastAt, byte: this.bytes, size, raw });
      this.#lastAt = at;
      this.bytes += size;
      if (this.frames.length < MOST_FRAMES && this.bytes <= MOST_BYTES) this.frames.push(frame);
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
      this.error = this.status === null ? "The server cannot be reached." : "The connection broke off.";
    }
  }
}
