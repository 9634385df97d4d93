// Repairs of a stream, grouped by rule.

import { fill, h } from "../dom.js";
import { count, plural } from "../format.js";
import { line, repairLine, ruleItem } from "./ruleitem.js";
import { ending, whyNoRepairs } from "./messages.js";

/** @import { Rules } from "../rules.js" */
/** @import { Entry } from "./entry.js" */

/** Severity of rules whose violation breaks clients. */
const BREAKS = "breaks";
/** Severities, worst first. */
const ORDER = [BREAKS, "tolerated", "style"];

/**
 * Repairs of one rule. `first`: the first step with one. `isExpected`: a minor deviation of a local engine, which is
 * in most of its responses.
 *
 * @typedef {{repair: StepRepair, count: number, first: number, isExpected: boolean}} RuleRepairs
 */

/** @param {StepRepair} repair */
export function isBreaking({ severity }) {
  return severity === BREAKS;
}

/** Incremental count of repairs. */
export class Repairs {
  /** @type {Map<string, RuleRepairs>} */
  byRule = new Map();
  #read = 0;

  /**
   * @param {Step[]} steps all steps, including those already counted
   * @param {Attempt[]} attempts
   */
  advance(steps, attempts) {
    for (; this.#read < steps.length; this.#read += 1) {
      const { repairs, attempt } = steps[this.#read];
      for (const repair of repairs) this.#add(repair, this.#read, attempts[attempt]?.is_local ?? false);
    }
  }

  /** Repairs except the expected ones, worst and most frequent first. */
  get listed() {
    return sorted([...this.byRule.values()].filter(({ isExpected }) => !isExpected));
  }

  get expected() {
    return sorted([...this.byRule.values()].filter(({ isExpected }) => isExpected));
  }

  /** Whether a listed repair is of a rule that breaks clients. */
  get hasBreaking() {
    return this.listed.some(({ repair }) => isBreaking(repair));
  }

  /**
   * @param {StepRepair} repair
   * @param {number} step
   * @param {boolean} isLocal
   */
  #add(repair, step, isLocal) {
    const known = this.byRule.get(repair.rule);
    if (known) known.count += repair.count;
    else {
      const isExpected = isLocal && !isBreaking(repair);
      this.byRule.set(repair.rule, { repair, count: repair.count, first: step, isExpected });
    }
  }
}

/** @param {RuleRepairs[]} repaired */
function sorted(repaired) {
  /** @param {RuleRepairs} one */
  const rank = ({ repair }) => ORDER.indexOf(repair.severity);
  return repaired.sort((one, other) => rank(one) - rank(other) || other.count - one.count);
}

export class RepairsView {
  #rules;
  #select;
  #hasEnding;
  #shown = "";

  /**
   * @param {Rules} rules
   * @param {(step: number) => void} select called with a step to show
   * @param {{hasEnding?: boolean}} [options] whether to show how the exchange ended
   */
  constructor(rules, select, { hasEnding = true } = {}) {
    this.#rules = rules;
    this.#hasEnding = hasEnding;
    this.#select = select;
    this.element = h("div", { class: "insp-scroll" });
  }

  /** @param {Entry | null} entry */
  update(entry) {
    const listed = entry?.repairs.listed ?? [];
    const expected = entry?.repairs.expected ?? [];
    const end = this.#hasEnding && entry && ending(entry);
    const message = listed.length ? "" : whyNoRepairs(entry);
    const counts = [...listed, ...expected].map(({ repair, count: times }) => [repair.rule, times]);
    const shown = JSON.stringify([end, message, counts]);
    if (shown === this.#shown) return;
    this.#shown = shown;
    fill(
      this.element,
      end && h("p", { class: end.isBad ? "insp-empty is-error" : "insp-empty", role: "status" }, end.text),
      message && h("p", { class: "insp-empty" }, message),
      listed.length > 0 && h("ul", { class: "repairs" }, listed.map((repaired) => this.#item(repaired))),
      expected.length > 0 && this.#expected(expected),
    );
  }

  /** @param {RuleRepairs[]} expected */
  #expected(expected) {
    const summary = `${plural(expected.length, "known deviation")} of the local engine, repaired`;
    return h("details", { class: "insp-expected" }, h("summary", { class: "soft" }, summary),
      h("ul", { class: "repairs" }, expected.map((repaired) => this.#item(repaired))));
  }

  /** @param {RuleRepairs} repaired */
  #item({ repair, count: times, first }) {
    const go = h("button", { class: "link", on: { click: () => this.#select(first) } },
      `upstream's frame ${count(first + 1)}`);
    return ruleItem(repair, times, repairLine(repair), this.#rules.facts(repair.rule), line("first in ", go));
  }
}
