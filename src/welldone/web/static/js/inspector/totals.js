// The figures of one exchange, kept while its frames arrive.

import { bytes, count, duration, NOTHING, rate } from "../format.js";
import { tokensPerSecond } from "../speed.js";
import { read } from "./reading.js";

/** @import { Exchange } from "../exchange.js" */
/** @import { Frame } from "../sse.js" */

/** @typedef {{label: string, value: string, tone?: "good" | "warn" | "bad", copies?: boolean}} Figure */

const OUTCOMES = /** @type {const} */ ({
  running: { value: "streaming" },
  whole: { value: "whole", tone: "good" },
  stopped: { value: "stopped", tone: "warn" },
  failed: { value: "failed", tone: "bad" },
});
const BROKEN = /** @type {const} */ ({ value: "broken", tone: "bad" }); // the stream itself said so

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
  hasError = false;

  /** @param {Frame} frame */
  add(frame) {
    this.read += 1;
    const { kind, isToken, tokens } = read(frame);
    if (kind === "error") this.hasError = true;
    if (isToken) {
      this.firstTokenAt ??= frame.at;
      this.lastTokenAt = frame.at;
    }
    this.prompt = tokens?.prompt ?? this.prompt;
    this.completion = tokens?.completion ?? this.completion;
  }

  get rate() {
    return tokensPerSecond(this.completion, this.firstTokenAt, this.lastTokenAt);
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
  return [
    { label: "Outcome", ...(exchange.outcome === "whole" && totals.hasError ? BROKEN : OUTCOMES[exchange.outcome]) },
    { label: "Status", value: String(status ?? NOTHING), ...((status ?? 0) >= 400 ? { tone: "bad" } : {}) },
    { label: "TTFT", value: duration(totals.firstTokenAt) },
    { label: "Time", value: duration(exchange.endedAt ?? (exchange.began ? exchange.now() : null)) },
    { label: "Frames", value: count(exchange.frameCount) },
    { label: "Bytes", value: bytes(exchange.bytes) },
    { label: "Tokens in + out", value: tokens(totals) },
    { label: "Tokens/s", value: rate(totals.rate) },
    { label: "Repairs", value: count(repairs), ...(repairs ? { tone: "warn" } : {}) },
    ...(requestId === null ? [] : [{ label: "Request id", value: requestId, copies: true }]),
  ];
}

/** @param {Totals} totals */
function tokens({ prompt, completion }) {
  return prompt === null && completion === null ? NOTHING : `${count(prompt)} + ${count(completion)}`;
}
