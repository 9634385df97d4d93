// What was repaired in a stream, by rule.

import { fill, h } from "../dom.js";
import { count } from "../format.js";
import { line, mended, ruleItem } from "./ruleitem.js";
import { NOT_KNOWN } from "./why.js";

/** @import { Rules } from "../rules.js" */
/** @import { Tape } from "./tape.js" */

/** @typedef {{note: StepNote, count: number, first: number}} Repaired `first`: the first step with it */

/** Counted while steps arrive. */
export class Repairs {
  /** @type {Map<string, Repaired>} */
  byRule = new Map();
  total = 0;
  #read = 0;

  /** @param {Step[]} steps all of them, also those that were counted */
  advance(steps) {
    for (; this.#read < steps.length; this.#read += 1) {
      for (const note of steps[this.#read].notes) this.#add(note, this.#read);
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
  #rules;
  #select;
  #shown = "";

  /**
   * @param {Rules} rules
   * @param {(step: number) => void} select shows a step of the upstream
   */
  constructor(rules, select) {
    this.#rules = rules;
    this.#select = select;
    this.element = h("div", { class: "insp-scroll" });
  }

  /**
   * @param {Repairs | null} repairs
   * @param {Tape | null} tape
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
    const hurts = h("div");
    void this.#hurts(note.rule, hurts);
    const go = h("button", { class: "link", on: { click: () => this.#select(first) } },
      `upstream's frame ${count(first + 1)}`);
    return ruleItem(note, times, mended(note), hurts, line("first in ", go));
  }

  /**
   * @param {string} rule
   * @param {HTMLElement} room
   */
  async #hurts(rule, room) {
    try {
      const { hurts } = await this.#rules.find(rule);
      if (hurts.length) fill(room, line("hurts: ", hurts.join("; ")));
    } catch {
      // The list is whole without it: the rule's own page says why it cannot be had.
    }
  }
}

/** @param {Tape | null} tape */
function whyNone(tape) {
  if (!tape) return "What is repaired in a stream is listed here, by rule.";
  if (tape.isKnown) return tape.isOver ? "Nothing to repair: the stream came right." : "Nothing to repair so far.";
  return tape.isOver ? NOT_KNOWN : "Not known yet.";
}
