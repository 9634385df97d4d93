// One exchange in the inspector's memory: its frames, the upstream's, and what is made of them.

import { clock } from "../format.js";
import { visible } from "../text.js";
import { Join } from "./join.js";
import { read } from "./reading.js";
import { Repairs } from "./repairs.js";
import { sentSource, upstreamSource } from "./sources.js";
import { Tape } from "./tape.js";
import { Totals } from "./totals.js";

/** @import { Exchange } from "../exchange.js" */

const MOST_ENTRIES = 20;
/** What all of them may have; the oldest lose their frames first. */
const MOST_BYTES = 64 * 2 ** 20;
/** Frames that are read between two looks at the clock. */
const BATCH = 50;

export class Entry {
  join = new Join();
  totals = new Totals();
  repairs = new Repairs();
  /** Its frames were given up. */
  isForgotten = false;

  /**
   * @param {Page} page
   * @param {Exchange} exchange
   */
  constructor(page, exchange) {
    this.exchange = exchange;
    this.tape = new Tape(page, exchange);
    this.sent = sentSource(exchange, () => this.tape.steps, this.join);
    this.upstream = upstreamSource(() => this.tape.steps);
  }

  /**
   * Read what is new, for as long as there is time. Whether something is left.
   *
   * @param {number} until on the browser's clock
   */
  advance(until) {
    const { frames } = this.exchange;
    const { totals, tape } = this;
    while (totals.read < frames.length && performance.now() < until) {
      for (const frame of frames.slice(totals.read, totals.read + BATCH)) totals.add(frame);
    }
    this.repairs.advance(tape.steps, tape.attempts);
    this.join.advance(frames, tape.steps);
    return totals.read < frames.length;
  }

  get title() {
    const { startedAt, body, path, status, outcome } = this.exchange;
    // An error event is the last one, or stands before [DONE]. The totals may not have come so far.
    const isBroken = this.totals.error !== null || this.exchange.frames.slice(-2).some((one) => read(one).kind === "error");
    const end = isBroken ? "broken" : status;
    const facts = [clock(startedAt), visible(String(body.model ?? path)), outcome === "whole" ? end : outcome];
    return facts.join(" · ") + (this.isForgotten ? " (frames not kept)" : "");
  }

  /** Bytes that are kept of it. */
  get size() {
    return this.isForgotten ? 0 : this.exchange.bytes + this.tape.size;
  }

  forget() {
    this.isForgotten = true;
    this.exchange.frames = [];
    this.tape.drop();
  }
}

/**
 * Keep within bounds.
 *
 * @param {Entry[]} entries the newest first
 */
export function trim(entries) {
  for (const gone of entries.splice(MOST_ENTRIES)) gone.forget();
  let size = 0;
  for (const [place, entry] of entries.entries()) {
    size += entry.size;
    if (place > 0 && size > MOST_BYTES && entry.exchange.outcome !== "running") entry.forget();
  }
}
