// A block of code: its language, a button that copies it, and a box of its own to scroll in.

import { copyButton } from "../clipboard.js";
import { h } from "../dom.js";
import { firstPiece, PIECE, visible } from "../text.js";

const LONGEST_INFO = 64; // what fits above the code

/** Code that may still grow. It is shown in pieces, so that a browser can lay them out one by one. */
export class CodeBlock {
  #code = h("code", { dir: "ltr" });
  #piece = h("span");
  /** What stands in the last piece as it was written. */
  #last = "";
  #text = "";
  #tail = "";

  /** @param {string} info what stands behind the fence: a language, mostly */
  constructor(info) {
    const box = h("pre", { tabIndex: 0, role: "group", "aria-label": "Code" }, this.#code);
    const button = copyButton("Copy code", () => (this.#text + this.#tail).replace(/\n$/, ""));
    const label = h("span", { class: "md-info" }, visible(info.slice(0, LONGEST_INFO)));
    this.element = h("div", { class: "md-code" }, h("div", { class: "md-code-bar" }, label, button), box);
    this.#code.append(this.#piece);
  }

  /** @param {string} text */
  append(text) {
    this.#tail = "";
    this.#text += text;
    this.#last += text;
    while (this.#last.length > PIECE) this.#settle(firstPiece(this.#last, PIECE));
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

  /** @param {string} piece the start of what stands in the last one */
  #settle(piece) {
    this.#piece.textContent = visible(piece);
    this.#piece.className = "md-settled";
    this.#last = this.#last.slice(piece.length);
    this.#piece = h("span");
    this.#code.append(this.#piece);
  }
}
