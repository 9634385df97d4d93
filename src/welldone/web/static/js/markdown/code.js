// A code block: language, copy button, scrollable content.

import { copyButton } from "../clipboard.js";
import { h } from "../dom.js";
import { firstPiece, PIECE, visible } from "../text.js";

const LONGEST_INFO = 64; // fits above the code

/** Growing code, split into pieces that the browser can lay out one by one. */
export class CodeBlock {
  #code = h("code", { dir: "ltr" });
  #piece = h("span");
  /** Source of the last piece. */
  #last = "";
  #text = "";
  #tail = "";

  /** @param {string} info info string after the fence, usually a language */
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
   * Show text after it that may still change.
   *
   * @param {string} tail
   */
  showTail(tail) {
    this.#tail = tail;
    this.#piece.textContent = visible(this.#last + tail);
  }

  /** @param {string} piece start of the last piece */
  #settle(piece) {
    this.#piece.textContent = visible(piece);
    this.#piece.className = "md-settled";
    this.#last = this.#last.slice(piece.length);
    this.#piece = h("span");
    this.#code.append(this.#piece);
  }
}
