// The request of an exchange as JSON, curl, Python and JavaScript.

import { copyButton } from "../clipboard.js";
import { fill, h } from "../dom.js";
import { visible } from "../text.js";
import { curl, javascript, literal, python } from "./snippets.js";
import { makeTabs } from "./tabs.js";

/** @import { Exchange } from "../exchange.js" */
/** @import { RequestSpec } from "./snippets.js" */

/** Display limit: images in a request may have megabytes. Copying has no limit. */
const MAX_CHARACTERS = 50_000;

const WRITERS = {
  JSON: (/** @type {RequestSpec} */ request) => literal(request.body),
  curl,
  Python: python,
  JavaScript: javascript,
};

export class RequestView {
  #page;
  #panels;
  /** @type {Exchange | null} */
  #exchange = null;

  /** @param {Page} page */
  constructor(page) {
    this.#page = page;
    this.#panels = Object.fromEntries(Object.keys(WRITERS).map((name) => [name, h("div")]));
    const tabs = makeTabs("The request as", this.#panels);
    tabs.show("JSON");
    this.element = h("div", { class: "insp-scroll request-view" }, tabs.bar, tabs.panels);
    this.#fill();
  }

  /** @param {Exchange | null} exchange */
  update(exchange) {
    if (exchange === this.#exchange) return;
    this.#exchange = exchange;
    this.#fill();
  }

  #fill() {
    for (const [name, write] of Object.entries(WRITERS)) {
      const room = this.#panels[name];
      if (this.#exchange) fill(room, ...snippet(name, write({ ...this.#exchange, base: this.#page.base })));
      else fill(room, h("p", { class: "insp-empty" }, "The request is shown here as JSON and as code."));
    }
  }
}

/**
 * @param {string} name
 * @param {string} text
 */
function snippet(name, text) {
  const isLong = text.length > MAX_CHARACTERS;
  const shown = isLong ? `${text.slice(0, MAX_CHARACTERS)}\n… cut here; use Copy to get all` : text;
  return [
    h("div", { class: "snippet-tools" }, copyButton(`Copy ${name}`, () => text)),
    h("pre", { class: "raw", tabIndex: 0, "aria-label": name }, visible(shown)),
  ];
}
