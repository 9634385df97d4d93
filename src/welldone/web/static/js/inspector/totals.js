// The figures of one exchange, kept while its frames arrive.

import { bytes, count, duration, rate } from "../format.js";
import { read } from "./reading.js";

/** @typedef {import("../exchange.js").Exchange} Exchange */
/** @typedef {import("../sse.js").Frame} Frame */
/** @typedef {{label: string, value: string, tone?: "good" | "warn" | "bad", copies?: boolean}} Figure */

const OUTCOMES = /** @type {const} */ ({
  running: { value: "streaming" },
  whole: { value: "whole", tone: "good" },
  stopped: { value: "stopped", tone: "warn" },
  failed: { value: "failed", tone: "bad" },
});

/** What frames told so far. */
export class Totals {
  /** How many frames were read. */
  read = 0;
  /** @type {number | null} */
  firstTokenAt = null;
  /** @type {number | null} */
  lastTokenAt = null;
  /** @type {number | null} */
  prompt = null;
  /** @type {number | null} */
  completion = null;

  /** @param {Frame} frame */
  add(frame) {
    this.read += 1;
    const { isToken, tokens } = read(frame);
    if (isToken) {
      this.firstTokenAt ??= frame.at;
      this.lastTokenAt = frame.at;
    }
    this.prompt = tokens?.prompt ?? this.prompt;
    this.completion = tokens?.completion ?? this.completion;
  }

  /** Tokens per second, from the first to the last; null where they came at once, or nobody counted them. */
  get rate() {
    const span = (this.lastTokenAt ?? 0) - (this.firstTokenAt ?? 0);
    return this.completion && span > 0 ? this.completion / (span / 1000) : null;
  }
}

/**
 * The totals as they are shown.
 *
 * @param {Exchange} exchange
 * @param {Totals} totals
 * @param {number | null} repairs null where nobody knows
 * @returns {Figure[]}
 */
export function figures(exchange, totals, repairs) {
  const { status, requestId } = exchange;
  const tokens = [totals.prompt, totals.completion].map((value) => (value === null ? "–" : count(value)));
  return [
    { label: "Outcome", ...OUTCOMES[exchange.outcome] },
    { label: "Status", value: String(status ?? "–"), ...((status ?? 0) >= 400 ? { tone: "bad" } : {}) },
    { label: "TTFT", value: duration(totals.firstTokenAt) },
    { label: "Time", value: duration(exchange.endedAt ?? (exchange.began ? exchange.now() : null)) },
    { label: "Frames", value: count(exchange.frameCount) },
    { label: "Bytes", value: bytes(exchange.bytes) },
    { label: "Tokens in + out", value: tokens.join(" + ") },
    { label: "Tokens/s", value: rate(totals.rate) },
    { label: "Repairs", value: repairs === null ? "–" : count(repairs), ...(repairs ? { tone: "warn" } : {}) },
    ...(requestId === null ? [] : [{ label: "Request id", value: requestId, copies: true }]),
  ];
}
