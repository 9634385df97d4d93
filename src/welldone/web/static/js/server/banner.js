// Banner shown when the state is outdated, with the reason.

import { h } from "../dom.js";
import { visible } from "../text.js";

export class Banner {
  #text = h("span");
  #retry = h("button", { class: "mini", dataset: { act: "retry" } }, "Try now");

  constructor() {
    // Never removed: screen readers only announce changes of live regions that already exist.
    this.element = h("div", { class: "server-banner", role: "status" });
  }

  hide() {
    if (this.element.hasChildNodes()) this.element.replaceChildren();
  }

  /** @param {number} pauseMs until the next poll */
  unreachable(pauseMs) {
    this.#show(`The server does not respond. This state is outdated. Next try in ${Math.round(pauseMs / 1000)} s.`);
  }

  /** @param {string} message of the server */
  failed(message) {
    this.#show(`The server returned an error: ${visible(message)}`);
  }

  needsKey() {
    this.#show("The server needs a key. Enter it with the Key button above.");
    this.#retry.remove();
  }

  /** @param {string} text */
  #show(text) {
    this.#text.textContent = text;
    if (this.#retry.parentNode === null) this.element.replaceChildren(this.#text, this.#retry);
  }
}
