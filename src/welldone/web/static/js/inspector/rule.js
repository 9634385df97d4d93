// Rules: a link to one, and its page.

import { dialog, toast } from "../dialog.js";
import { h } from "../dom.js";
import { render } from "../markdown/index.js";

const TONES = /** @type {Record<string, string>} */ ({ breaks: "bad", degrades: "warn", tolerated: "info" });

/**
 * @param {Page} page
 * @param {string} id
 */
export function ruleLink(page, id) {
  const show = () => page.bus.dispatchEvent(new CustomEvent("rule", { detail: id }));
  return h("button", { type: "button", class: "link mono", title: "Show the rule's page", on: { click: show } }, id);
}

/** @param {string} severity */
export function severityBadge(severity) {
  return h("span", { class: `badge ${TONES[severity] ?? ""}` }, severity);
}

/**
 * A page without its title, which the dialog has, and without the comments that say which part of it is generated.
 *
 * @param {string} page
 */
function withoutFrame(page) {
  return page.replace(/^# .*\n/, "").replace(/^<!--.*-->\n/gm, "\n");
}

/** The pages of rules, each asked for once. */
export class Rules {
  #page;
  /** @type {Map<string, Promise<RulePage>>} */
  #asked = new Map();

  /** @param {Page} page */
  constructor(page) {
    this.#page = page;
    page.bus.addEventListener("rule", (event) => void this.#show(/** @type {CustomEvent<string>} */ (event).detail));
  }

  /**
   * @param {string} id
   * @returns {Promise<RulePage>}
   */
  find(id) {
    const known = this.#asked.get(id);
    if (known) return known;
    const asked = /** @type {Promise<RulePage>} */ (this.#page.json(`page/api/rules/${encodeURIComponent(id)}`));
    this.#asked.set(id, asked);
    // It may be there another time.
    asked.catch(() => this.#asked.delete(id));
    return asked;
  }

  /** @param {string} id */
  async #show(id) {
    try {
      const rule = await this.find(id);
      const body = h("div", { class: "markdown rule-page" }, render(withoutFrame(rule.page)));
      await dialog({ title: `Rule ${id}`, body });
    } catch (error) {
      toast(`The rule ${id} cannot be shown: ${error instanceof Error ? error.message : error}`, "error");
    }
  }
}
