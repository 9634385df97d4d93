// A code block: language, copy button, scrollable content.

import { copyButton } from "../clipboard.js";
import { fill, h } from "../dom.js";
import { firstPiece, PIECE, visible } from "../text.js";
import { highlighterOf } from "./highlight.js";

/** @import { Token } from "./highlight.js" */

const LONGEST_INFO = 64; // fits above the code
const MAX_TOKENS = 10_000; // elements of a block: more is shown without colours

/** Growing code, split into pieces that the browser can lay out one by one. */
export class CodeBlock {
  #code = h("code", { dir: "ltr" });
  #piece = h("span");
  /** The line that may still grow. */
  #draft = h("span");
  #highlighter;
  #tokens = 0;
  /** Characters of complete lines in the last piece. */
  #size = 0;
  /** Source of the last line, which is not complete. */
  #last = "";
  #text = "";
  #tail = "";

  /** @param {string} info info string after the fence, usually a language */
  constructor(info) {
    const box = h("pre", { tabIndex: 0, role: "group", "aria-label": "Code" }, this.#code);
    const button = copyButton("Copy code", () => (this.#text + this.#tail).replace(/\n$/, ""));
    const label = h("span", { class: "md-info" }, visible(info.slice(0, LONGEST_INFO)));
    this.element = h("div", { class: "md-code" }, h("div", { class: "md-code-bar" }, label, button), box);
    this.#highlighter = highlighterOf(info);
    this.#code.append(this.#piece, this.#draft);
  }

  /** @param {string} text */
  append(text) {
    this.#text += text;
    const whole = this.#last + text;
    const end = whole.lastIndexOf("\n") + 1;
    this.#last = whole.slice(end);
    this.#add(whole.slice(0, end));
    // A line without an end is not highlighted: it is data.
    while (this.#last.length > PIECE) {
      const piece = firstPiece(this.#last, PIECE);
      this.#put([["", piece]], piece.length);
      this.#last = this.#last.slice(piece.length);
    }
    this.showTail("");
  }

  /**
   * Show text after it that may still change.
   *
   * @param {string} tail
   */
  showTail(tail) {
    this.#tail = tail;
    const line = this.#last + tail;
    fill(this.#draft, this.#isPlain ? visible(line) : this.#highlighter?.draft(line).map(drawToken));
  }

  get #isPlain() {
    return !this.#highlighter || this.#tokens > MAX_TOKENS;
  }

  /** @param {string} text complete lines */
  #add(text) {
    for (let from = 0; from < text.length; ) {
      // Without colours, in as few pieces as possible.
      const plain = this.#isPlain ? firstPiece(text, PIECE - this.#size, from) : "";
      const to = plain ? from + plain.length : text.indexOf("\n", from) + 1;
      const line = text.slice(from, to);
      if (plain) this.#put([["", line]], line.length);
      else this.#put([...(this.#highlighter?.line(line.slice(0, -1)) ?? []), ["", "\n"]], line.length);
      from = to;
    }
  }

  /**
   * @param {Token[]} tokens
   * @param {number} size
   */
  #put(tokens, size) {
    this.#piece.append(...tokens.map(drawToken));
    this.#tokens += tokens.length;
    this.#size += size;
    if (this.#size < PIECE) return;
    this.#piece.className = "md-settled";
    this.#piece = h("span");
    this.#size = 0;
    this.#draft.before(this.#piece);
  }
}

/** @param {Token} token */
function drawToken([kind, text]) {
  return kind ? h("span", { class: `hl-${kind}` }, visible(text)) : visible(text);
}
