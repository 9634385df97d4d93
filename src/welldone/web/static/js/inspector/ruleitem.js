// List item for a violated rule.

import { badge } from "../badge.js";
import { h } from "../dom.js";
import { count } from "../format.js";
import { ruleLink, severityBadge } from "../rules.js";
import { visible } from "../text.js";

/** @import { Child } from "../dom.js" */

/** @typedef {{rule: string, severity: string, observed: string, expected: string}} Broken */

const MAX_CHARACTERS = 300; // a few lines

/**
 * @param {Broken} broken
 * @param {number} times
 * @param {...Child} more lines
 */
export function ruleItem({ rule, severity, observed, expected }, times, ...more) {
  return h(
    "li",
    { class: severity === "breaks" ? "" : "is-quiet" },
    h("div", { class: "rule-head" }, ruleLink(rule), severityBadge(severity), badge(`× ${count(times)}`)),
    observed && line("observed ", h("code", { class: "was" }, shorten(observed))),
    expected && line("expected ", h("code", { class: "now" }, shorten(expected))),
    more,
  );
}

/**
 * A labelled line.
 *
 * @param {string} name
 * @param {...(Child | Child[])} words
 */
export function line(name, ...words) {
  return h("div", { class: "small" }, h("span", { class: "soft" }, name), words.flat());
}

/**
 * How a violation was repaired.
 *
 * @param {StepRepair} repair
 */
export function repairLine({ repairability, repair }) {
  return line("repair: ", visible([repairability, repair].filter(Boolean).join(": ")));
}

/** @param {string} text of any length */
export function shorten(text) {
  return visible(text.length > MAX_CHARACTERS ? `${text.slice(0, MAX_CHARACTERS)}…` : text);
}
