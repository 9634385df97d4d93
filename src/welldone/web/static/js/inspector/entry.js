// One exchange in the inspector: its frames, its capture, and the totals and repairs computed from them.

import { clock } from "../format.js";
import { visible } from "../text.js";
import { Join } from "./join.js";
import { read } from "./reading.js";
import { Repairs } from "./repairs.js";
import { sentSource, upstreamSource } from "./sources.js";
import { UpstreamCapture } from "./capture.js";
import { Totals } from "./totals.js";

/** @import { Exchange } from "../exchange.js" */

const MAX_ENTRIES = 20;
/** Of all entries together; the oldest lose their frames first. */
const MAX_BYTES = 64 * 2 ** 20;
/** Frames read between two checks of the clock. */
const BATCH = 50;

export class Entry {
  join = new Join();
  totals = new Totals();
  repairs = new Repairs();
  /** Its frames were discarded to save memory. */
  isDiscarded = false;

  /**
   * @param {Page} page
   * @param {Exchange} exchange
   */
  constructor(page, exchange) {
    this.exchange = exchange;
    this.capture = new UpstreamCapture(page, exchange);
    this.sent = sentSource(exchange, () => this.capture.steps, this.join);
    this.upstream = upstreamSource(() => this.capture.steps);
  }

  /**
   * Process new frames and steps until the deadline. Returns whether some are left.
   *
   * @param {number} until deadline, as performance.now()
   */
  advance(until) {
    const { frames } = this.exchange;
    const { totals, capture } = this;
    while (totals.read < frames.length && performance.now() < until) {
      for (const frame of frames.slice(totals.read, totals.read + BATCH)) totals.add(frame);
    }
    this.repairs.advance(capture.steps, capture.attempts);
    this.join.advance(frames, capture.steps);
    return totals.read < frames.length;
  }

  get title() {
    const { startedAt, body, path, status, outcome } = this.exchange;
    // An error event is last, or just before [DONE]. Checked here, since the totals may lag behind.
    const lastFrames = this.exchange.frames.slice(-2);
    const isBroken = this.totals.error !== null || lastFrames.some((frame) => read(frame).kind === "error");
    const end = isBroken ? "broken" : status;
    const facts = [clock(startedAt), visible(String(body.model ?? path)), outcome === "whole" ? end : outcome];
    return facts.join(" · ") + (this.isDiscarded ? " (frames not kept)" : "");
  }

  /** Bytes held in memory. */
  get size() {
    return this.isDiscarded ? 0 : this.exchange.bytes + this.capture.size;
  }

  discard() {
    this.isDiscarded = true;
    this.exchange.frames = [];
    this.capture.drop();
  }
}

/**
 * Enforce the limits.
 *
 * @param {Entry[]} entries newest first
 */
export function trim(entries) {
  for (const oldest of entries.splice(MAX_ENTRIES)) oldest.discard();
  let size = 0;
  for (const [index, entry] of entries.entries()) {
    size += entry.size;
    if (index > 0 && size > MAX_BYTES && entry.exchange.outcome !== "running") entry.discard();
  }
}
