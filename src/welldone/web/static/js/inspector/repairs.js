// What was repaired in a stream, by rule.

import { fill, h } from "../dom.js";
import { count } from "../format.js";
import { heardWanted, mended } from "./detail.js";
import { ruleLink, severityBadge } from "./rule.js";

/** @typedef {{note: StepNote, count: number, first: number}} Repaired `first`: the first step with it */

export const NOT_KNOWN = "Nothing is known of the upstream: it was not asked, or it is too long ago.";

/** Counted while steps arrive. */
export class Repairs {
  /** @type {Map<string, Repaired>} */
  byRule = new Map();
  total = 0;
  #read = 0;

  /** @param {Step[]} steps all of them, also those that were counted */
  advance(steps) {
    for (; this.#read < steps.length; this.#read += 1) {
      for (const note of steps[this.#read]?.notes ?? []) this.#add(note, this.#read);
    }
  }

  /**
   * @param {StepNote} note
   * @param {number} step
   */
  #add(note, step) {
    const known = this.byRule.get(note.rule);
    if (known) known.count += note.count;
    else this.byRule.set(note.rule, { note, count: note.count, first: step });
    this.total += note.count;
  }
}

export class RepairsView {
  #page;
  #rules;
  #select;
  #shown = "";

  /**
   * @param {Page} page
   * @param {import("./rule.js").Rules} rules
   * @param {(step: number) => void} select shows a step of the upstream
   */
  constructor(page, rules, select) {
    this.#page = page;
    this.#rules = rules;
    this.#select = select;
    this.element = h("div", { class: "insp-scroll" });
  }

  /**
   * @param {Repairs | null} repairs
   * @param {import("./tape.js").Tape | null} tape
   */
  update(repairs, tape) {
    const state = [tape?.isKnown, tape?.isOver, ...[...(repairs?.byRule.values() ?? [])].map((one) => one.count)];
    const shown = [...(repairs?.byRule.keys() ?? []), ...state].join();
    if (shown === this.#shown) return;
    this.#shown = shown;
    if (repairs?.total) fill(this.element, h("ul", { class: "repairs" }, this.#items(repairs)));
    else fill(this.element, h("p", { class: "insp-empty" }, whyNone(tape)));
  }

  /** @param {Repairs} repairs */
  #items(repairs) {
    const sorted = [...repairs.byRule.values()].sort((one, other) => other.count - one.count);
    return sorted.map((repaired) => this.#item(repaired));
  }

  /** @param {Repaired} repaired */
  #item({ note, count: times, first }) {
    const hurts = h("div", { class: "small" });
    void this.#hurts(note.rule, hurts);
    const go = h("button", { type: "button", class: "link", on: { click: () => this.#select(first) } },
      `upstream's frame ${count(first + 1)}`);
    return h(
      "li",
      {},
      h("div", { class: "repair-head" }, ruleLink(this.#page, note.rule), severityBadge(note.severity),
        h("span", { class: "badge" }, `× ${count(times)}`)),
      heardWanted(note),
      mended(note),
      hurts,
      h("div", { class: "small" }, h("span", { class: "soft" }, "first in "), go),
    );
  }

  /**
   * @param {string} rule
   * @param {HTMLElement} room
   */
  async #hurts(rule, room) {
    try {
      const { hurts } = await this.#rules.find(rule);
      if (hurts.length) fill(room, h("span", { class: "soft" }, "hurts: "), hurts.join("; "));
    } catch {
      // The list is whole without it: the rule's own page says why it cannot be had.
    }
  }
}

/** @param {import("./tape.js").Tape | null} tape */
function whyNone(tape) {
  if (!tape) return "What is repaired in a stream is listed here, by rule.";
  if (tape.isKnown) return tape.isOver ? "Nothing to repair: the stream came right." : "Nothing to repair so far.";
  return tape.isOver ? NOT_KNOWN : "Not known yet.";
}
