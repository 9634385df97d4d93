// Says that what is shown may be old, and why.

import { h } from "../dom.js";
import { visible } from "../text.js";

export class Banner {
  #words = h("span");
  #again = h("button", { class: "mini", dataset: { act: "again" } }, "Try now");

  constructor() {
    // It stays when it is empty: who listens hears only of what was there before.
    this.element = h("div", { class: "server-banner", role: "status" });
  }

  hide() {
    if (this.element.hasChildNodes()) this.element.replaceChildren();
  }

  /** @param {number} pauseMs until somebody asks again */
  isAway(pauseMs) {
    this.#show(`The server does not answer. What you see is old. Next try in ${Math.round(pauseMs / 1000)} s.`);
  }

  /** @param {string} message the server's own words */
  refused(message) {
    this.#show(`The server does not tell: ${visible(message)}`);
  }

  needsKey() {
    this.#show("The server needs a key. The button Key above takes it.");
    this.#again.remove();
  }

  /** @param {string} words */
  #show(words) {
    this.#words.textContent = words;
    if (this.#again.parentNode === null) this.element.replaceChildren(this.#words, this.#again);
  }
}
