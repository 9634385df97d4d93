// A block of code: its language, a button that copies it, and a box of its own to scroll in.

import { copy } from "../clipboard.js";
import { toast } from "../dialog.js";
import { h } from "../dom.js";
import { PIECE, isLow, visible } from "../text.js";

const LONGEST_INFO = 64; // what fits above the code

/** Code that may still grow. It is shown in pieces, so that a browser can lay them out one by one. */
export class CodeBlock {
  #code = h("code", { dir: "ltr" });
  #piece = h("span", { class: "md-piece" });
  /** What stands in the last piece as it was written. */
  #last = "";
  #text = "";
  #tail = "";

  /** @param {string} info what stands behind the fence: a language, mostly */
  constructor(info) {
    const box = h("pre", { tabIndex: 0, role: "group", "aria-label": "Code" }, this.#code);
    const button = h("button", { type: "button", class: "mini quiet", "aria-label": "Copy code" }, "Copy");
    button.addEventListener("click", () => void this.#copy());
    const label = h("span", { class: "md-info" }, visible(info.slice(0, LONGEST_INFO)));
    this.element = h("div", { class: "md-code" }, h("div", { class: "md-code-bar" }, label, button), box);
    this.#code.append(this.#piece);
  }

  /** @param {string} text */
  append(text) {
    this.#tail = "";
    this.#text += text;
    this.#last += text;
    while (this.#last.length > PIECE) this.#settle(this.#cut());
    this.#piece.textContent = visible(this.#last);
  }

  /**
   * Show what may yet change behind it.
   *
   * @param {string} tail
   */
  showTail(tail) {
    this.#tail = tail;
    this.#piece.textContent = visible(this.#last + tail);
  }

  /** Behind a line if there is one, and never within a character. */
  #cut() {
    const line = this.#last.lastIndexOf("\n", PIECE - 1) + 1;
    return line || (isLow(this.#last.charCodeAt(PIECE)) ? PIECE - 1 : PIECE);
  }

  /** @param {number} length */
  #settle(length) {
    this.#piece.textContent = visible(this.#last.slice(0, length));
    this.#piece.classList.add("md-settled");
    this.#last = this.#last.slice(length);
    this.#piece = h("span", { class: "md-piece" });
    this.#code.append(this.#piece);
  }

  async #copy() {
    if (await copy((this.#text + this.#tail).replace(/\n$/, ""))) toast("Copied.");
    else toast("The browser does not let this page copy.", "error");
  }
}
