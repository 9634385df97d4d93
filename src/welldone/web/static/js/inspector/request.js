// The request of an exchange: its JSON, and the same request for other programs.

import { copyButton } from "../clipboard.js";
import { fill, h } from "../dom.js";
import { visible } from "../text.js";
import { curl, javascript, literal, python } from "./snippets.js";
import { makeTabs } from "./tabs.js";

/** @import { Exchange } from "../exchange.js" */
/** @import { Asked } from "./snippets.js" */

/** What is shown of each; a picture in a request may have megabytes. All of it is copied. */
const MOST_LETTERS = 50_000;

const WRITERS = {
  JSON: (/** @type {Asked} */ asked) => literal(asked.body),
  curl,
  Python: python,
  JavaScript: javascript,
};

export class RequestView {
  #page;
  #rooms;
  /** @type {Exchange | null} */
  #exchange = null;

  /** @param {Page} page */
  constructor(page) {
    this.#page = page;
    this.#rooms = Object.fromEntries(Object.keys(WRITERS).map((name) => [name, h("div")]));
    const tabs = makeTabs("The request as", this.#rooms);
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
      const room = this.#rooms[name];
      if (this.#exchange) fill(room, ...snippet(name, write({ ...this.#exchange, base: this.#page.base })));
      else fill(room, h("p", { class: "insp-empty" }, "The request is shown here, ready to be pasted elsewhere."));
    }
  }
}

/**
 * @param {string} name
 * @param {string} text
 */
function snippet(name, text) {
  const isLong = text.length > MOST_LETTERS;
  const shown = isLong ? `${text.slice(0, MOST_LETTERS)}\n… cut here: copy it to have it all` : text;
  return [
    h("div", { class: "snippet-tools" }, copyButton(`Copy ${name}`, () => text)),
    h("pre", { class: "raw", tabIndex: 0, "aria-label": name }, visible(shown)),
  ];
}
