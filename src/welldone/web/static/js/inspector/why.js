// How an exchange ended, and why there are no frames or repairs to list.

import { count } from "../format.js";
import { visible } from "../text.js";

/** @import { Entry } from "./entry.js" */
/** @import { Side } from "./sides.js" */

export const NOT_KNOWN = "Nothing is known of the upstream: it was not asked, or it is too long ago.";

/**
 * How an exchange ended where it did not end well: never to be taken for a right stream. Null where it did, or runs.
 *
 * @param {Entry} entry
 * @returns {{text: string, isBad: boolean} | null}
 */
export function ending({ exchange, totals, tape }) {
  const { outcome, status } = exchange;
  const error = visible(exchange.error ?? "");
  if (outcome === "stopped") return { text: "You stopped this stream before its end.", isBad: false };
  if (outcome === "failed" && (status ?? 0) >= 400) {
    return { text: `${refusal(status ?? 0, tape.attempts.at(-1))}: ${error}`, isBad: true };
  }
  if (outcome === "failed") return { text: status === null ? error : `The stream was cut off: ${error}`, isBad: true };
  if (totals.error === null) return null;
  return { text: `The stream was cut off: ${visible(totals.error) || "it ended with an error."}`, isBad: true };
}

/**
 * @param {number} status that we were sent
 * @param {Attempt} [last]
 */
function refusal(status, last) {
  if (last && (last.status ?? 0) >= 400) return `The upstream returned ${last.status}`;
  return last?.error ? `The upstream failed, and the server returned ${status}` : `The server returned ${status}`;
}

/**
 * What is said where no repair is listed.
 *
 * @param {Entry | null} entry
 */
export function whyNoRepairs(entry) {
  if (!entry) return "What is repaired in a stream is listed here, by rule.";
  const { exchange, tape } = entry;
  if (ending(entry)) return "";
  if (!tape.isKnown) return tape.isOver ? NOT_KNOWN : "Not known yet.";
  if (tape.isCut) return "Nothing to repair in what the server kept of this stream.";
  if (!tape.isOver || exchange.outcome === "running") return "Nothing to repair so far.";
  if (entry.repairs.expected.length) return "The stream came right, but for known deviations of the local engine.";
  return "Nothing to repair: the stream came right.";
}

/**
 * "" where all are there.
 *
 * @param {Entry | null} entry
 * @param {Side} side
 */
export function whyEmpty(entry, side) {
  if (!entry) return "Send a message: its frames appear here as they arrive. Or drop a captured stream here.";
  if (entry.isForgotten) return "The frames of this exchange were not kept: newer ones needed the room.";
  return side === "sent" ? whyNothingSent(entry) : whyNothingHeard(entry);
}

/** @param {Entry} entry */
function whyNothingSent({ exchange }) {
  if (exchange.error) return visible(exchange.error);
  if (exchange.droppedFrames) return `${count(exchange.droppedFrames)} more frames came than the page keeps.`;
  return exchange.frames.length || exchange.outcome !== "running" ? "" : "Waiting for the first frame …";
}

/** @param {Entry} entry */
function whyNothingHeard({ tape }) {
  if (tape.isCut) return "The upstream said more than the server keeps: the rest is not listed.";
  if (tape.steps.length) return "";
  return tape.isOver ? NOT_KNOWN : "Waiting for the upstream …";
}
