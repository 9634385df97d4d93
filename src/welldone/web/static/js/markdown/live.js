// Incremental Markdown renderer. Finished blocks are kept; only the last block is parsed again, at most once per frame
// of the display.

import { h } from "../dom.js";
import { firstPiece, isLow } from "../text.js";
import { CodeBlock } from "./code.js";
import { codeLine, isFenceEnd } from "./lines.js";
import { cutBlocks } from "./parse.js";
import { Plain } from "./plain.js";
import { renderBlock } from "./render.js";

/** @import { Fence } from "./lines.js" */
/** @import { Cut } from "./parse.js" */

const STEP = 4 * 1024; // characters at a time: a few milliseconds at worst
// The last block is parsed and laid out at each paint: a long one is split where possible.
const LONG_BLOCK = 8 * 1024;
const LONG_LINES = 200;
const LONGEST_BLOCK = 64 * 1024; // split here even where it changes the rendering
const BUDGET_MS = 8; // half of a frame at 60 Hz
const REST = 3; // spend at most a quarter of the time painting
const MAX_MARKDOWN = 512 * 1024; // a book; longer text is shown as plain text
const MANY_ELEMENTS = 1_000; // laid out within a display frame
const MAX_ELEMENTS = 10_000; // more than any readable answer
const AT_ONCE = 32 * 1024; // characters painted at the end without waiting for frames

/** An incomplete line that may change its meaning: shown when more of it has arrived. */
const UNDECIDED = /^[ >]*(?:[-=*_#+|:`~ ]{1,8}|\d{1,3}[.)])$/;

export class Live {
  #waiting = "";
  /** Received text that is not finished. */
  #rest = "";
  /** Elements of the unfinished rest, replaced at the next paint. @type {HTMLElement[]} */
  #drafts = [];
  #read = 0;
  #elements = 0;
  /** The open fence. @type {{block: CodeBlock, fence: Fence, isWithinLine: boolean} | null} */
  #code = null;
  /** @type {Plain | null} */
  #plain = null;
  #isEnded = false;
  #isPlanned = false;
  #notBefore = 0;

  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    /** The complete source so far. */
    this.text = "";
    root.classList.add("markdown", "keeps-lines");
  }

  /** @param {string} text */
  append(text) {
    this.text += text;
    this.#waiting += text;
    this.#plan();
  }

  /** The text is complete. */
  end() {
    this.#isEnded = true;
    if (this.#waiting.length <= AT_ONCE) this.#paint(Infinity);
    else this.#plan();
  }

  #plan() {
    if (this.#isPlanned) return;
    this.#isPlanned = true;
    requestAnimationFrame(() => {
      this.#isPlanned = false;
      if (performance.now() < this.#notBefore && !this.#isEnded) this.#plan();
      else this.#paint(BUDGET_MS);
    });
  }

  /** @param {number} budget in milliseconds */
  #paint(budget) {
    const began = performance.now();
    for (const draft of this.#drafts.splice(0)) draft.remove();
    do this.#step();
    while (this.#waiting && performance.now() - began < budget);
    this.#draft();
    const now = performance.now();
    this.#notBefore = this.#waiting ? 0 : now + (now - began) * REST;
    if (this.#waiting) this.#plan();
  }

  /** Parse some pending text, and append the blocks that it finishes. */
  #step() {
    this.#take();
    if (!this.#plain && this.#code) this.#grow(this.#code);
    if (!this.#plain && !this.#code) this.#blocks();
    if (this.#read > MAX_MARKDOWN || this.#elements > MAX_ELEMENTS) this.#beginPlain();
    if (!this.#plain) return;
    this.#plain.append(this.#rest);
    this.#rest = "";
  }

  #take() {
    let size = Math.min(STEP, this.#waiting.length);
    // Do not split a character or a line end.
    const isCut = isLow(this.#waiting.charCodeAt(size)) || this.#waiting[size - 1] === "\r";
    if (isCut && (size < this.#waiting.length || !this.#isEnded)) size -= 1;
    const text = this.#waiting.slice(0, size);
    this.#waiting = this.#waiting.slice(size);
    this.#read += text.length;
    this.#rest += text.replace(/\r\n?/g, "\n");
  }

  #blocks() {
    const lines = this.#rest.split("\n");
    const cuts = cutBlocks(lines);
    const last = cuts[cuts.length - 1];
    if (!last) {
      // Blank lines; the last may be the indent of the next block.
      this.#rest = this.#rest.length > LONG_BLOCK ? "" : lines[lines.length - 1];
      return;
    }
    // An incomplete line may change its meaning, and that of the line before it.
    const isSure = last.from + 2 < lines.length;
    if (isSure && (last.from > 0 || last.fence)) {
      for (const cut of cuts.slice(0, -1)) this.#add(cut);
      this.#rest = lines.slice(last.from).join("\n");
      if (last.fence) this.#openCode(last.fence, lines[last.from]);
    }
    if (!this.#code) while (this.#cutLong());
  }

  /**
   * @param {Cut} cut
   * @returns {HTMLElement}
   */
  #add(cut) {
    const element = renderBlock(cut.block());
    const formulas = element.querySelectorAll("math *").length; // small: four count as one
    this.#elements += element.getElementsByTagName("*").length + 1 - Math.floor(formulas * 0.75);
    // In a long text, skip the layout of off-screen blocks.
    if (this.#elements > MANY_ELEMENTS) element.classList.add("md-far");
    this.root.append(element);
    return element;
  }

  /** Finish the splittable part of a long block. Returns whether there was one. */
  #cutLong() {
    const at = cutAt(this.#rest);
    if (at === 0) return false;
    const lines = this.#rest.slice(0, at).split("\n");
    const cuts = cutBlocks(lines);
    // Continue without a gap.
    for (const cut of cuts) this.#add(cut).classList.add("md-long");
    const last = cuts[cuts.length - 1];
    // Later rows belong to the same columns.
    const head = last?.isTable ? `${lines[last.from]}\n${lines[last.from + 1]}\n` : "";
    this.#rest = head.length < LONG_BLOCK / 2 ? head + this.#rest.slice(at) : this.#rest.slice(at);
    return true;
  }

  /**
   * @param {Fence} fence
   * @param {string} line that opens it
   */
  #openCode(fence, line) {
    const block = new CodeBlock(fence.info);
    this.root.append(block.element);
    this.#elements += 1;
    this.#rest = this.#rest.slice(line.length + 1);
    this.#code = { block, fence, isWithinLine: false };
    this.#grow(this.#code);
  }

  /**
   * Add complete lines, up to the closing fence.
   *
   * @param {{block: CodeBlock, fence: Fence, isWithinLine: boolean}} code
   */
  #grow(code) {
    const lines = this.#rest.split("\n");
    const tail = /** @type {string} */ (lines.pop());
    let text = "";
    for (const [n, line] of lines.entries()) {
      if (!code.isWithinLine && isFenceEnd(line, code.fence)) {
        code.block.append(text);
        this.#code = null;
        this.#rest = [...lines.slice(n + 1), tail].join("\n");
        return;
      }
      text += `${code.isWithinLine ? line : codeLine(line, code.fence)}\n`;
      code.isWithinLine = false;
    }
    this.#rest = tail;
    if (tail.length > LONG_BLOCK) {
      text += tail;
      code.isWithinLine = true;
      this.#rest = "";
    }
    code.block.append(text);
  }

  /** Show the unfinished rest. */
  #draft() {
    if (this.#code) {
      this.#draftCode(this.#code);
      return;
    }
    const lines = this.#rest.split("\n");
    if (!this.#isEnded && UNDECIDED.test(lines[lines.length - 1])) lines.pop();
    this.#drafts = cutBlocks(lines).map(({ block }) => renderBlock(block()));
    this.root.append(...this.#drafts);
  }

  /** @param {{block: CodeBlock, fence: Fence, isWithinLine: boolean}} code */
  #draftCode({ block, fence, isWithinLine }) {
    // It may become the closing fence.
    const isEnd = !isWithinLine && this.#rest.trim() !== "" && /^[`~]*$/.test(this.#rest.trim());
    const isHeld = isEnd && (!this.#isEnded || isFenceEnd(this.#rest, fence));
    block.showTail(isHeld ? "" : isWithinLine ? this.#rest : codeLine(this.#rest, fence));
  }

  #beginPlain() {
    if (this.#plain) return;
    this.#code = null;
    this.#plain = new Plain(() => this.text);
    const note = h("p", { class: "soft small" }, "Too long for Markdown: the rest is shown as plain text.");
    this.root.append(note, this.#plain.element);
  }
}

/**
 * Where to split a long block: before a line that is not indented, or within a line that is too long; 0 for nowhere.
 * Indented lines may be code in a list, which a split would break.
 *
 * @param {string} text
 */
function cutAt(text) {
  const limit = Math.min(LONG_BLOCK, endOfLine(text, LONG_LINES));
  if (text.length <= limit) return 0;
  for (let at = limit; (at = text.lastIndexOf("\n", at - 1)) > 0; ) {
    if (!/\s/.test(text[at + 1])) return at + 1;
  }
  if (endOfLine(text, 1) > LONG_BLOCK) return firstPiece(text, LONG_BLOCK).length;
  return text.length > LONGEST_BLOCK ? firstPiece(text, LONGEST_BLOCK).length : 0;
}

/**
 * @param {string} text
 * @param {number} count number of lines
 */
function endOfLine(text, count) {
  let at = -1;
  for (let n = 0; n < count; n += 1) {
    at = text.indexOf("\n", at + 1);
    if (at < 0) return text.length;
  }
  return at + 1;
}
