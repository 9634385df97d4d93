// Markdown that grows. What is finished stays as it is; only the last block is read anew, and not more often than the
// screen is painted.

import { h } from "../dom.js";
import { firstPiece, isLow } from "../text.js";
import { CodeBlock } from "./code.js";
import { codeLine, isFenceEnd } from "./lines.js";
import { cutBlocks } from "./parse.js";
import { Plain } from "./plain.js";
import { renderBlock } from "./render.js";

/** @import { Fence } from "./lines.js" */
/** @import { Cut } from "./parse.js" */

const STEP = 4 * 1024; // of text at a time: some milliseconds of work at worst
// The last block is read and laid out anew at each paint: a long one is cut where it can be.
const LONG_BLOCK = 8 * 1024;
const LONG_LINES = 200;
const LONGEST_BLOCK = 64 * 1024; // and where it cannot be without harm, only beyond this
const BUDGET_MS = 8; // half of a frame at 60 Hz
const REST = 3; // paint a quarter of the time at most
const MOST_MARKDOWN = 512 * 1024; // a book; beyond it text is plain
const MANY_ELEMENTS = 1_000; // lay out within a frame
const MOST_ELEMENTS = 10_000; // more than the longest answers that people read
const AT_ONCE = 32 * 1024; // so much is painted at the end without waiting for frames

/** A line that may yet become something else: it is shown when more of it has come. */
const UNDECIDED = /^[ >]*(?:[-=*_#+|:`~ ]{1,8}|\d{1,3}[.)])$/;

export class Live {
  #waiting = "";
  /** What has come and is not finished. */
  #rest = "";
  /** What shows the rest, and goes when it is read anew. @type {HTMLElement[]} */
  #drafts = [];
  #read = 0;
  #elements = 0;
  /** A fence that is open. @type {{block: CodeBlock, fence: Fence, isWithinLine: boolean} | null} */
  #code = null;
  /** @type {Plain | null} */
  #plain = null;
  #isEnded = false;
  #isPlanned = false;
  #notBefore = 0;

  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    /** All that came. */
    this.text = "";
    root.classList.add("markdown", "keeps-lines");
  }

  /** @param {string} text */
  append(text) {
    this.text += text;
    this.#waiting += text;
    this.#plan();
  }

  /** It is whole. */
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

  /** Read some of what waits, and put the blocks that it finishes on the page. */
  #step() {
    this.#take();
    if (!this.#plain && this.#code) this.#grow(this.#code);
    if (!this.#plain && !this.#code) this.#blocks();
    if (this.#read > MOST_MARKDOWN || this.#elements > MOST_ELEMENTS) this.#beginPlain();
    if (!this.#plain) return;
    this.#plain.append(this.#rest);
    this.#rest = "";
  }

  #take() {
    let size = Math.min(STEP, this.#waiting.length);
    // Neither a character nor the end of a line is cut.
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
      // Blank lines; the last may be the indent of what comes.
      this.#rest = this.#rest.length > LONG_BLOCK ? "" : lines[lines.length - 1];
      return;
    }
    // A line that is not whole may become something else, and what the line before it is depends on it.
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
    this.#elements += element.getElementsByTagName("*").length + 1;
    // In a long text, what is not on the screen need not be laid out.
    if (this.#elements > MANY_ELEMENTS) element.classList.add("md-far");
    this.root.append(element);
    return element;
  }

  /** Finish the part of a long block that can be cut off; whether there was one. */
  #cutLong() {
    const at = cutAt(this.#rest);
    if (at === 0) return false;
    const lines = this.#rest.slice(0, at).split("\n");
    const cuts = cutBlocks(lines);
    // It goes on without a gap.
    for (const cut of cuts) this.#add(cut).classList.add("md-long");
    const last = cuts[cuts.length - 1];
    // The rows that come belong to the same columns.
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
   * Add the lines that are whole, up to the fence that closes.
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

  /** Show what is not finished. */
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
    // It may become the fence that closes.
    const isEnd = !isWithinLine && this.#rest.trim() !== "" && /^[`~]*$/.test(this.#rest.trim());
    const isHeld = isEnd && (!this.#isEnded || isFenceEnd(this.#rest, fence));
    block.showTail(isHeld ? "" : isWithinLine ? this.#rest : codeLine(this.#rest, fence));
  }

  #beginPlain() {
    if (this.#plain) return;
    this.#code = null;
    this.#plain = new Plain(() => this.text);
    const note = h("p", { class: "soft small" }, "Too long to be shown as Markdown: from here on it is as it came.");
    this.root.append(note, this.#plain.element);
  }
}

/**
 * Where a block that is long is best cut; 0 where it is not to be cut: before a line that is not indented, or within a
 * line that is too long. What is indented may be code in a list, which a cut would spoil.
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
 * @param {number} count of lines
 */
function endOfLine(text, count) {
  let at = -1;
  for (let n = 0; n < count; n += 1) {
    at = text.indexOf("\n", at + 1);
    if (at < 0) return text.length;
  }
  return at + 1;
}
