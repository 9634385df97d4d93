// What is said of a rule that was broken, as an item of a list.

import { badge } from "../badge.js";
import { h } from "../dom.js";
import { count } from "../format.js";
import { ruleLink, severityBadge } from "../rules.js";
import { visible } from "../text.js";

/** @import { Child } from "../dom.js" */

/** @typedef {{rule: string, severity: string, heard: string, wanted: string}} Broken */

const MOST_LETTERS = 300; // some lines: more is not read

/**
 * @param {Broken} broken
 * @param {number} times
 * @param {...Child} more lines
 */
export function ruleItem({ rule, severity, heard, wanted }, times, ...more) {
  return h(
    "li",
    { class: severity === "breaks" ? "" : "is-quiet" },
    h("div", { class: "rule-head" }, ruleLink(rule), severityBadge(severity), badge(`× ${count(times)}`)),
    heard && line("heard ", h("code", { class: "was" }, shortly(heard))),
    wanted && line("wanted ", h("code", { class: "now" }, shortly(wanted))),
    more,
  );
}

/**
 * A small line with the name of what it says.
 *
 * @param {string} name
 * @param {...(Child | Child[])} words
 */
export function line(name, ...words) {
  return h("div", { class: "small" }, h("span", { class: "soft" }, name), words.flat());
}

/**
 * How it was repaired.
 *
 * @param {StepNote} note
 */
export function mended({ mend, how }) {
  return line("repair: ", visible([mend, how].filter(Boolean).join(": ")));
}

/** @param {string} text that may be of any length */
export function shortly(text) {
  return visible(text.length > MOST_LETTERS ? `${text.slice(0, MOST_LETTERS)}…` : text);
}
