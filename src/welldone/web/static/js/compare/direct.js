// The upstream's own stream of an exchange, as a client without welldone would receive it: the first attempt, without
// repairs.

import { Answer } from "../chat/answer.js";
import { bytes, count, duration, NOTHING, rate } from "../format.js";
import { frameOf } from "../inspector/sources.js";
import { Totals } from "../inspector/totals.js";
import { isRecord } from "../record.js";
import { visible } from "../text.js";

/** @import { News } from "../chat/answer.js" */
/** @import { UpstreamCapture } from "../inspector/capture.js" */
/** @import { Figure } from "../inspector/totals.js" */
/** @import { Frame } from "../sse.js" */

/** Reads frames as plain clients do: unknown frames are ignored, nothing is repaired. */
export class PlainReader {
  answer = new Answer();
  totals = new Totals();
  /** Whether there was a chunk of the chat format, which ends with [DONE]. */
  #isChat = false;
  #isDone = false;

  /**
   * @param {Frame} frame
   * @returns {News}
   */
  read(frame) {
    this.totals.add(frame);
    if (frame.data?.trim() === "[DONE]") this.#isDone = true;
    const { json } = frame;
    if (isRecord(json) && Array.isArray(json.choices)) this.#isChat = true;
    return this.answer.feed(json, frame.at);
  }

  /** What is missing at the end of the stream, or wrong with it. */
  problems() {
    const { error, finishReason } = this.answer;
    if (error !== null) return [`The stream has an error: ${visible(error)}`];
    if (!this.#isChat) return this.totals.read ? [] : ["There was no stream."];
    return [
      finishReason === null && "The stream ended without a finish_reason.",
      !this.#isDone && "The stream ended without [DONE].",
    ].filter((problem) => problem !== false);
  }
}

/** The frames of the first attempt, timed from its start. */
export class DirectStream {
  /** @type {Step[]} */
  steps = [];
  reader = new PlainReader();
  bytes = 0;
  #read = 0;
  /** Numbers of the steps in the capture. @type {number[]} */
  #numbers = [];
  /** @type {Attempt | undefined} */
  #attempt;
  #isEnded = false;

  /**
   * Read new steps of the capture.
   *
   * @param {UpstreamCapture} capture
   * @returns {News[]} what the new frames brought
   */
  advance(capture) {
    this.#attempt = capture.attempts[0];
    const began = this.#attempt?.began_s ?? 0;
    const news = [];
    for (; this.#read < capture.steps.length; this.#read += 1) {
      const step = capture.steps[this.#read];
      // A step without received bytes is output of welldone, such as a keep-alive.
      if (step.attempt !== 0 || step.received === "") continue;
      const at = step.at_s === null ? null : Math.max(0, step.at_s - began);
      const own = { ...step, n: this.steps.length, at_s: at };
      const frame = frameOf(own, this.steps.at(-1));
      this.steps.push(own);
      this.#numbers.push(step.n);
      this.bytes += frame.size;
      news.push(this.reader.read(frame));
    }
    this.#isEnded = capture.isOver;
    return news;
  }

  /**
   * Where a step of the capture is listed; -1 if it is not.
   *
   * @param {number} step
   */
  indexOf(step) {
    return this.#numbers.indexOf(step);
  }

  /** The name of the server; empty if it is not known or may not be seen. */
  get server() {
    return this.#attempt?.server ?? "";
  }

  /** Why the stream is not complete; empty while it runs. */
  problems() {
    const { error, status } = this.#attempt ?? {};
    if (!this.#isEnded) return [];
    if ((status ?? 0) >= 400) return [`The upstream returned ${status}${error ? `: ${visible(error)}` : "."}`];
    return [...(error ? [`The stream was cut off: ${visible(error)}.`] : []), ...this.reader.problems()];
  }

  /** @returns {Figure[]} */
  figures() {
    const { totals } = this.reader;
    const last = this.steps.at(-1)?.at_s;
    const isBroken = this.problems().length > 0;
    const status = this.#attempt?.status ?? null;
    const { prompt, completion } = totals;
    return [
      !this.#isEnded ? { label: "Outcome", value: "streaming" }
        : { label: "Outcome", value: isBroken ? "broken" : "whole", tone: isBroken ? "bad" : "good" },
      { label: "Status", value: String(status ?? NOTHING), ...((status ?? 0) >= 400 ? { tone: "bad" } : {}) },
      { label: "TTFT", value: duration(totals.firstTokenAt) },
      { label: "Time", value: duration(last === undefined || last === null ? null : last * 1000) },
      { label: "Frames", value: count(this.steps.length) },
      { label: "Bytes", value: bytes(this.bytes) },
      { label: "Tokens in + out", value: prompt === null && completion === null ? NOTHING
        : `${count(prompt)} + ${count(completion)}` },
      { label: "Tokens/s", value: rate(totals.rate) },
    ];
  }
}
