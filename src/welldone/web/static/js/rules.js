// Rules: links, and the dialog with a rule page.

import { badge } from "./badge.js";
import { dialog, toast } from "./dialog.js";
import { fill, h } from "./dom.js";
import { issuesOf, withIssueLinks } from "./issues.js";
import { render } from "./markdown/index.js";
import { visible } from "./text.js";

/** @import { Tone } from "./badge.js" */

const TONES = /** @type {Record<string, Tone>} */ ({
  breaks: "bad",
  degrades: "warn",
  tolerated: "info",
});

/**
 * A link that opens the page of a rule; `Rules` handles the click.
 *
 * @param {string} rule
 */
export function ruleLink(rule) {
  return h("button", { class: "link mono", title: "Show the rule page", dataset: { rule } }, visible(rule));
}

/** @param {string} severity */
export function severityBadge(severity) {
  return badge(severity, TONES[severity]);
}

/** Rule pages, each requested once. */
export class Rules {
  #page;
  /** @type {Map<string, Promise<RulePage>>} */
  #asked = new Map();

  /** @param {Page} page */
  constructor(page) {
    this.#page = page;
    document.addEventListener("click", ({ target }) => {
      const link = target instanceof Element ? target.closest("[data-rule]") : null;
      if (link instanceof HTMLElement) void this.#show(link.dataset.rule ?? "");
    });
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
    // Do not cache a failure.
    asked.catch(() => this.#asked.delete(id));
    return asked;
  }

  /**
   * What is known of a rule: the clients that its violation affects, and issues of servers that violated it. Filled when
   * the rule's page has arrived.
   *
   * @param {string} id
   */
  facts(id) {
    const element = h("div", { class: "small" });
    this.find(id).then(
      ({ affects, page }) => {
        const issues = issuesOf(page).map(({ name, url }) =>
          h("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow" }, name));
        fill(
          element,
          affects.length > 0 && h("div", {}, h("span", { class: "soft" }, "affects: "), affects.join("; ")),
          issues.length > 0 && h("div", {}, h("span", { class: "soft" }, "issues: "),
            issues.flatMap((link, n) => [n > 0 && ", ", link])),
        );
      },
      () => {}, // Optional: the rule page itself reports the failure.
    );
    return element;
  }

  /** @param {string} id */
  async #show(id) {
    try {
      const { page } = await this.find(id);
      await dialog({ title: `Rule ${id}`, body: h("div", { class: "rule-page" }, render(withIssueLinks(withoutTitle(page)))) });
    } catch (error) {
      toast(`The rule ${id} cannot be shown: ${error instanceof Error ? error.message : error}`, "error");
    }
  }
}

/**
 * A page without its title, which the dialog shows.
 *
 * @param {string} page
 */
function withoutTitle(page) {
  return page.replace(/^# .*\n/, "");
}
