// Status messages of the inspector: how an exchange ended, why there are no frames or repairs.

import { count } from "../format.js";
import { visible } from "../text.js";

/** @import { Entry } from "./entry.js" */
/** @import { Side } from "./sides.js" */

export const NO_CAPTURE = "There is no capture: no request was sent to an upstream, or the capture was discarded.";

/**
 * How an exchange ended, unless it succeeded or is running: a failed stream must never look like a complete one.
 *
 * @param {Entry} entry
 * @returns {{text: string, isBad: boolean} | null}
 */
export function ending({ exchange, totals, capture }) {
  const { outcome, status } = exchange;
  const error = visible(exchange.error ?? "");
  if (outcome === "stopped") return { text: "You stopped this stream before its end.", isBad: false };
  if (outcome === "failed" && (status ?? 0) >= 400) {
    return { text: `${failureText(status ?? 0, capture.attempts.at(-1))}: ${error}`, isBad: true };
  }
  if (outcome === "failed") return { text: status === null ? error : `The stream was cut off: ${error}`, isBad: true };
  if (totals.error === null) return null;
  return { text: `The stream was cut off: ${visible(totals.error) || "it ended with an error."}`, isBad: true };
}

/**
 * @param {number} status sent to the client
 * @param {Attempt} [last]
 */
function failureText(status, last) {
  if (last && (last.status ?? 0) >= 400) return `The upstream returned ${last.status}`;
  return last?.error ? `The upstream failed, and the server returned ${status}` : `The server returned ${status}`;
}

/**
 * The text shown if no repair is listed.
 *
 * @param {Entry | null} entry
 */
export function whyNoRepairs(entry) {
  if (!entry) return "Repairs are listed here, by rule.";
  const { exchange, capture } = entry;
  if (ending(entry)) return "";
  if (!capture.isKnown) return capture.isOver ? NO_CAPTURE : "Waiting for the capture …";
  if (capture.isCut) return "Nothing to repair in the captured part of this stream.";
  if (!capture.isOver || exchange.outcome === "running") return "Nothing to repair so far.";
  if (entry.repairs.expected.length) return "The stream was correct, except for known deviations of the local engine.";
  return "Nothing to repair: the stream was correct.";
}

/**
 * The text shown if frames are missing; "" if all are listed.
 *
 * @param {Entry | null} entry
 * @param {Side} side
 */
export function whyEmpty(entry, side) {
  if (!entry) return "Send a message: its frames appear here as they arrive. Or drop a captured stream here.";
  if (entry.isDiscarded) return "The frames of this exchange were discarded to save memory.";
  return side === "sent" ? whyNothingSent(entry) : whyNothingReceived(entry);
}

/** @param {Entry} entry */
function whyNothingSent({ exchange }) {
  if (exchange.error) return visible(exchange.error);
  if (exchange.droppedFrames) return `${count(exchange.droppedFrames)} more frames were received and not kept.`;
  return exchange.frames.length || exchange.outcome !== "running" ? "" : "Waiting for the first frame …";
}

/** @param {Entry} entry */
function whyNothingReceived({ capture }) {
  if (capture.isCut) return "The upstream's stream exceeds the capture limit: the rest is not listed.";
  if (capture.steps.length) return "";
  return capture.isOver ? NO_CAPTURE : "Waiting for the upstream …";
}
