// Totals of one exchange, updated while frames arrive.

import { bytes, count, duration, NOTHING, plural, rate } from "../format.js";
import { tokensPerSecond } from "../speed.js";
import { read } from "./reading.js";

/** @import { Exchange } from "../exchange.js" */
/** @import { Frame } from "../sse.js" */
/** @import { Repairs } from "./repairs.js" */

/** @typedef {{label: string, value: string, tone?: "good" | "warn" | "bad", copies?: boolean}} Figure */

const OUTCOMES = /** @type {const} */ ({
  running: { value: "streaming" },
  whole: { value: "whole", tone: "good" },
  stopped: { value: "stopped", tone: "warn" },
  failed: { value: "failed", tone: "bad" },
});
const BROKEN = /** @type {const} */ ({ value: "broken", tone: "bad" }); // the stream contains an error event

/** Totals of the frames read so far. */
export class Totals {
  /** Number of frames read. */
  read = 0;
  /** @type {number | null} */
  firstTokenAt = null;
  /** @type {number | null} */
  lastTokenAt = null;
  /** @type {number | null} */
  prompt = null;
  /** @type {number | null} */
  completion = null;
  /** @type {string | null} message of the stream's error event */
  error = null;

  /** @param {Frame} frame */
  add(frame) {
    this.read += 1;
    const { kind, text, isToken, tokens } = read(frame);
    if (kind === "error") this.error = text;
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
 * The totals for display.
 *
 * @param {Exchange} exchange
 * @param {Totals} totals
 * @param {Repairs | null} repairs null if there is no capture
 * @returns {Figure[]}
 */
export function figures(exchange, totals, repairs) {
  const { status, requestId } = exchange;
  const isBroken = exchange.outcome === "whole" && totals.error !== null;
  return [
    { label: "Outcome", ...(isBroken ? BROKEN : OUTCOMES[exchange.outcome]) },
    { label: "Status", value: String(status ?? NOTHING), ...((status ?? 0) >= 400 ? { tone: "bad" } : {}) },
    { label: "TTFT", value: duration(totals.firstTokenAt) },
    { label: "Time", value: duration(exchange.endedAt ?? (exchange.began ? exchange.now() : null)) },
    { label: "Frames", value: count(exchange.frameCount) },
    { label: "Bytes", value: bytes(exchange.bytes) },
    { label: "Tokens in + out", value: tokens(totals) },
    { label: "Tokens/s", value: rate(totals.rate) },
    { label: "Repairs", value: rules(repairs), ...(repairs?.hasBreaking ? { tone: "warn" } : {}) },
    ...(requestId === null ? [] : [{ label: "Request id", value: requestId, copies: true }]),
  ];
}

/** @param {Repairs | null} repairs */
function rules(repairs) {
  const known = repairs?.listed.length;
  return known ? plural(known, "rule") : count(known);
}

/** @param {Totals} totals */
function tokens({ prompt, completion }) {
  return prompt === null && completion === null ? NOTHING : `${count(prompt)} + ${count(completion)}`;
}
