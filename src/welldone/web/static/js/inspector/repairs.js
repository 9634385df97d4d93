// The repairs of a stream, grouped by rule.

import { fill, h } from "../dom.js";
import { count, plural } from "../format.js";
import { line, mended, ruleItem } from "./ruleitem.js";
import { ending, whyNoRepairs } from "./why.js";

/** @import { Rules } from "../rules.js" */
/** @import { Entry } from "./entry.js" */

/** The severity of rules that break a client where they are broken. */
const BREAKS = "breaks";
/** Severities, the worst first. */
const ORDER = [BREAKS, "tolerated", "style"];

/**
 * The repairs by one rule. `first`: the first step with it. `isExpected`: a minor deviation of the engine of a local
 * model, which is in most of its answers.
 *
 * @typedef {{note: StepNote, count: number, first: number, isExpected: boolean}} Repaired
 */

/** @param {StepNote} note */
export function isBreaking({ severity }) {
  return severity === BREAKS;
}

/** Counted while steps arrive. */
export class Repairs {
  /** @type {Map<string, Repaired>} */
  byRule = new Map();
  #read = 0;

  /**
   * @param {Step[]} steps all of them, also those that were counted
   * @param {Attempt[]} attempts
   */
  advance(steps, attempts) {
    for (; this.#read < steps.length; this.#read += 1) {
      const { notes, attempt } = steps[this.#read];
      for (const note of notes) this.#add(note, this.#read, attempts[attempt]?.is_local ?? false);
    }
  }

  /** Those that are news, the worst and most frequent first. */
  get listed() {
    return sorted([...this.byRule.values()].filter(({ isExpected }) => !isExpected));
  }

  get expected() {
    return sorted([...this.byRule.values()].filter(({ isExpected }) => isExpected));
  }

  /** Whether one of them is of a rule that breaks clients. */
  get hasBreaking() {
    return this.listed.some(({ note }) => isBreaking(note));
  }

  /**
   * @param {StepNote} note
   * @param {number} step
   * @param {boolean} isLocal
   */
  #add(note, step, isLocal) {
    const known = this.byRule.get(note.rule);
    if (known) known.count += note.count;
    else this.byRule.set(note.rule, { note, count: note.count, first: step, isExpected: isLocal && !isBreaking(note) });
  }
}

/** @param {Repaired[]} repaired */
function sorted(repaired) {
  /** @param {Repaired} one */
  const rank = ({ note }) => ORDER.indexOf(note.severity);
  return repaired.sort((one, other) => rank(one) - rank(other) || other.count - one.count);
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

  /** @param {Entry | null} entry */
  update(entry) {
    const listed = entry?.repairs.listed ?? [];
    const expected = entry?.repairs.expected ?? [];
    const end = entry && ending(entry);
    const why = listed.length ? "" : whyNoRepairs(entry);
    const shown = JSON.stringify([end, why, [...listed, ...expected].map(({ note, count: times }) => [note.rule, times])]);
    if (shown === this.#shown) return;
    this.#shown = shown;
    fill(
      this.element,
      end && h("p", { class: end.isBad ? "insp-empty is-error" : "insp-empty", role: "status" }, end.text),
      why && h("p", { class: "insp-empty" }, why),
      listed.length > 0 && h("ul", { class: "repairs" }, listed.map((repaired) => this.#item(repaired))),
      expected.length > 0 && this.#expected(expected),
    );
  }

  /** @param {Repaired[]} expected */
  #expected(expected) {
    const summary = `${plural(expected.length, "known deviation")} of the local engine, repaired`;
    return h("details", { class: "insp-expected" }, h("summary", { class: "soft" }, summary),
      h("ul", { class: "repairs" }, expected.map((repaired) => this.#item(repaired))));
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
