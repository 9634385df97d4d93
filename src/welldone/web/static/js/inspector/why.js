// Why there are no frames, or not all: in words, where they would stand.

import { count } from "../format.js";
import { visible } from "../text.js";

/** @import { Entry } from "./entry.js" */
/** @import { Side } from "./sides.js" */

export const NOT_KNOWN = "Nothing is known of the upstream: it was not asked, or it is too long ago.";

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
