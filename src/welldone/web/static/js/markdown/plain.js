// Text too long for Markdown: shown as plain text in pieces, and only its start and end if it is huge.

import { copy } from "../clipboard.js";
import { h } from "../dom.js";
import { save } from "../files.js";
import { count } from "../format.js";
import { firstPiece, PIECE, visible } from "../text.js";

/** Characters shown at once; a browser needs about ten bytes for each. */
const MAX_SHOWN = 1.5 * 2 ** 20;
const TAIL = 4; // pieces at the end

/** Growing plain text. */
export class Plain {
  #shown = 0;
  #last = "";
  #piece = makePiece();
  /** Hidden pieces, except the newest. @type {string[]} */
  #hidden = [];
  #hiddenLength = 0;
  #isAll = false;
  #tail = h("div");
  #label = h("span");
  #all = h("button", { class: "mini" });

  /** @param {() => string} whole returns the complete text */
  constructor(whole) {
    const buttons = [
      this.#all,
      h("button", { class: "mini", on: { click: () => void copy(whole()) } }, "Copy"),
      h("button", { class: "mini", on: { click: () => save("answer.txt", whole(), "text/plain") } }, "Save"),
    ];
    this.#all.addEventListener("click", () => this.#showAll());
    this.whole = whole;
    this.bar = h("div", { class: "md-hidden", role: "group", "aria-label": "Long text" }, this.#label, buttons);
    this.bar.hidden = true;
    this.head = h("div", {}, this.#piece);
    this.element = h("div", { class: "md-plain" }, this.head, this.bar, this.#tail);
  }

  /** @param {string} text */
  append(text) {
    this.#last += text;
    while (this.#last.length > PIECE) {
      const first = firstPiece(this.#last, PIECE);
      this.#settle(first);
      this.#last = this.#last.slice(first.length);
    }
    this.#piece.textContent = visible(this.#last);
    if (!this.bar.hidden) this.#showBar();
  }

  /** @param {string} text */
  #settle(text) {
    if (this.#isAll || this.#shown < MAX_SHOWN) {
      this.#shown += text.length;
      this.#piece.textContent = visible(text);
      const next = makePiece();
      this.#piece.after(next);
      this.#piece = next;
      return;
    }
    if (this.bar.hidden) {
      this.bar.hidden = false;
      this.#tail.append(this.#piece);
    }
    this.#tail.insertBefore(makePiece(text), this.#piece);
    this.#hidden.push(text);
    this.#hiddenLength += text.length;
    if (this.#tail.childElementCount > TAIL + 1) this.#tail.firstElementChild?.remove();
  }

  #showBar() {
    const gone = this.#hidden.slice(0, Math.max(0, this.#hidden.length - TAIL));
    const hidden = this.#hiddenLength - this.#hidden.slice(gone.length).reduce((sum, text) => sum + text.length, 0);
    this.#label.textContent = `${count(hidden)} characters are hidden.`;
    this.#all.textContent = `Show all (${(this.whole().length / 1e6).toFixed(1)} MB)`;
  }

  /** A few pieces per frame, so that the page stays responsive. */
  #showAll() {
    this.#isAll = true;
    this.bar.hidden = true;
    const waiting = this.#hidden.slice(0, Math.max(0, this.#hidden.length - TAIL));
    this.#hidden = [];
    let at = 0;
    const more = () => {
      for (const text of waiting.slice(at, at + TAIL)) this.head.append(makePiece(text));
      at += TAIL;
      if (at < waiting.length) requestAnimationFrame(more);
    };
    more();
  }
}

/** @param {string} [text] */
function makePiece(text = "") {
  // dir="auto" per piece: the browser scans for the first letter at each change.
  return h("div", { class: "md-settled", dir: "auto" }, visible(text));
}
