// A tool call as a card: its name, its arguments while they stream, and an input for its result.

import { badge } from "../badge.js";
import { h } from "../dom.js";
import { visible } from "../text.js";
import { LiveJson } from "./livejson.js";

export class CallCard {
  #name = h("code");
  #arguments = h("div", { class: "call-arguments" });
  #json = new LiveJson(this.#arguments);
  #result = h("textarea", { rows: 2, placeholder: "Result of the tool", spellcheck: false });
  #field = h("label", { class: "call-result", hidden: true }, "Result", this.#result);

  constructor() {
    this.element = h(
      "section",
      { class: "call", "aria-label": "Tool call" },
      h("div", { class: "call-name" }, badge("tool call", "info"), this.#name),
      this.#arguments,
      this.#field,
    );
  }

  /** The result that the user typed. */
  get result() {
    return this.#result.value;
  }

  /**
   * @param {string} name
   * @param {string} piece
   */
  hear(name, piece) {
    if (!this.#name.textContent) this.#name.textContent = visible(name);
    if (piece) this.#json.append(piece);
  }

  end() {
    this.#json.end();
  }

  /** @param {boolean} isWaiting whether it waits for a result */
  setWaiting(isWaiting) {
    this.#field.hidden = !isWaiting;
  }

  focus() {
    this.#result.focus();
  }
}
