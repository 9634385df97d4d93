// Inline parser: emphasis, code, links. Each part of the text is scanned a bounded number of times: linear time for any
// input.

import { targetAt, withoutTail } from "./address.js";
import { flanks, matchEmphasis, Token } from "./emphasis.js";
import { entityAt } from "./entities.js";
import { MAX_DEPTH } from "./lines.js";
import { safeHref } from "./links.js";

/** @import { Pair } from "./emphasis.js" */

/**
 * @typedef {{type: "text" | "code" | "math", text: string}
 *   | {type: "break"}
 *   | {type: "emphasis" | "strong" | "strike", inlines: Inline[]}
 *   | {type: "link", href: string, title: string, inlines: Inline[]}} Inline
 */

/** @typedef {{token: number, delimiter: number, isImage: boolean}} Bracket */

const SPECIAL = /[\\`*_~[\]!<&\n$h]/g;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
// On one line, without a space inside the first `$`; `$HOME:$PATH` and `$5-$10` are text.
const DOLLARS = /\$(?![\s$])(?:[^\\$`\n]|\\[^\n`]){1,2000}\$(?![\d$A-Z_{])/y;
const PRICE = /^\$[\d.,]+\s+[a-z]{2}/i; // `$5 and 10$`
const BARE = /https?:\/\/[^\s<>[\]`"]+/iy;
const ANGLE = /<((?:https?:\/\/|mailto:)[^\s<>]*)>/iy;
const MAIL = /<([\w.+-]{1,64}@[\w.-]{1,255})>/y;

/**
 * @param {string} text
 * @returns {Inline[]}
 */
export function parseInline(text) {
  return new Scan(text).run();
}

class Scan {
  #at = 0;
  #plain = "";
  /** @type {Token[]} */
  #tokens = [];
  /** Indexes of tokens that may open or close emphasis. @type {number[]} */
  #delimiters = [];
  /** @type {Bracket[]} */
  #brackets = [];
  /** @type {Map<string, number>} */
  #found = new Map();

  /** @param {string} text */
  constructor(text) {
    this.text = text;
    this.ticks = findTicks(text);
  }

  run() {
    const { text } = this;
    while (this.#at < text.length) {
      SPECIAL.lastIndex = this.#at;
      const next = SPECIAL.exec(text)?.index ?? text.length;
      this.#plain += text.slice(this.#at, next);
      this.#at = next;
      if (next < text.length) this.#special(text[next]);
    }
    this.#flush();
    this.#emphasis(0);
    return assemble(this.#tokens);
  }

  /** @param {string} sign */
  #special(sign) {
    if (sign === "\\") this.#escape();
    else if (sign === "`") this.#code();
    else if (sign === "*" || sign === "_" || sign === "~") this.#delimiter(sign);
    else if (sign === "[") this.#open(1);
    else if (this.text.startsWith("![", this.#at)) this.#open(2);
    else if (sign === "]") this.#close();
    else if (sign === "<") this.#angle();
    else if (sign === "&") this.#entity();
    else if (sign === "\n") this.#newline();
    else if (sign === "$") this.#dollar();
    else if (sign === "h") this.#bare();
    else this.#keep(1);
  }

  /** @param {number} length of plain text */
  #keep(length) {
    this.#plain += this.text.slice(this.#at, this.#at + length);
    this.#at += length;
  }

  #flush() {
    if (this.#plain) this.#tokens.push(new Token({ type: "text", text: this.#plain }));
    this.#plain = "";
  }

  /** @param {Inline} inline */
  #add(inline) {
    this.#flush();
    this.#tokens.push(new Token(inline));
  }

  #escape() {
    const next = this.text[this.#at + 1] ?? "";
    if (next === "\n") {
      this.#add({ type: "break" });
      this.#at += 2;
      this.#skipSpaces();
    } else if (next === "(") this.#math("\\(", "\\)");
    else if (next === "[") this.#math("\\[", "\\]");
    else if (ESCAPABLE.test(next)) {
      this.#plain += next;
      this.#at += 2;
    } else this.#keep(1);
  }

  /**
   * The next place of a text. Places are kept, so that no part is searched twice.
   *
   * @param {string} what
   * @param {number} from never before that of an earlier call
   */
  #find(what, from) {
    let at = this.#found.get(what) ?? -1;
    if (at < from) at = this.text.indexOf(what, from);
    if (at < 0) at = Infinity;
    this.#found.set(what, at);
    return at;
  }

  /**
   * A formula between delimiters of two characters.
   *
   * @param {string} open
   * @param {string} close
   */
  #math(open, close) {
    const from = this.#at + 2;
    const end = this.#find(close, from);
    // Code is not a part of a formula.
    if (end === Infinity || this.#find("`", from) < end) {
      // The source, as of a formula whose end is not here yet. `\[1]` is an escaped bracket.
      const isEscape = open !== "$$" && this.#find(close[1], from) < Infinity;
      if (isEscape) this.#at += 1;
      this.#keep(isEscape ? 1 : 2);
      return;
    }
    this.#add({ type: "math", text: this.text.slice(this.#at, end + 2) });
    this.#at = end + 2;
    if (open !== "\\(") this.#skipLine();
  }

  /** `$$` opens a formula. One `$` does so only where it is hardly a price or a variable of a shell. */
  #dollar() {
    if (this.text[this.#at + 1] === "$") {
      this.#math("$$", "$$");
      return;
    }
    DOLLARS.lastIndex = this.#at;
    const isInWord = this.#at > 0 && /[\p{L}\p{N}]/u.test(this.text[this.#at - 1]);
    const found = isInWord ? null : DOLLARS.exec(this.text)?.[0];
    if (!found || /\s\$$/.test(found) || PRICE.test(found)) {
      this.#keep(1);
      return;
    }
    this.#add({ type: "math", text: found });
    this.#at += found.length;
  }

  /** Skip the line end after a formula that has lines of its own. */
  #skipLine() {
    const from = this.#at;
    this.#skipSpaces();
    if (this.text[this.#at] === "\n") this.#at += 1;
    else this.#at = from;
  }

  #code() {
    const length = runLength(this.text, this.#at);
    const from = this.#at + length;
    const close = nextTick(this.ticks, length, from);
    if (close < 0) {
      this.#keep(length);
      return;
    }
    let inner = this.text.slice(from, close).replaceAll("\n", " ");
    if (inner.startsWith(" ") && inner.endsWith(" ") && inner.trim()) inner = inner.slice(1, -1);
    this.#add({ type: "code", text: inner });
    this.#at = close + length;
  }

  /** @param {string} sign */
  #delimiter(sign) {
    const length = runLength(this.text, this.#at);
    if (sign === "~" && length !== 2) {
      this.#keep(length);
      return;
    }
    this.#flush();
    const token = new Token(null, sign, length);
    Object.assign(token, flanks(this.text, this.#at, length, sign));
    if (token.canOpen || token.canClose) this.#delimiters.push(this.#tokens.length);
    this.#tokens.push(token);
    this.#at += length;
  }

  /** @param {number} length of `[` or `![` */
  #open(length) {
    this.#flush();
    this.#brackets.push({
      token: this.#tokens.length,
      delimiter: this.#delimiters.length,
      isImage: length === 2,
    });
    this.#tokens.push(new Token({ type: "text", text: this.text.slice(this.#at, this.#at + length) }));
    this.#at += length;
  }

  #close() {
    const bracket = this.#brackets.pop();
    const target = bracket && targetAt(this.text, this.#at + 1);
    const href = target && safeHref(target.address);
    if (!bracket || !target || !href) {
      this.#keep(1);
      return;
    }
    this.#flush();
    this.#emphasis(bracket.delimiter);
    /** @type {Pair} */
    const pair = {
      make: (inlines) => ({ type: "link", href, title: target.title, inlines }),
      open: bracket.isImage ? "![" : "[",
      close: this.text.slice(this.#at, target.end),
      isLabel: bracket.isImage,
    };
    const opener = this.#tokens[bracket.token];
    opener.inline = null;
    opener.opens.push(pair);
    const closer = new Token(null);
    closer.closes.push(pair);
    this.#tokens.push(closer);
    this.#at = target.end;
    // A link contains no other link, but may contain an image.
    if (!bracket.isImage) this.#brackets.length = 0;
  }

  #angle() {
    ANGLE.lastIndex = this.#at;
    MAIL.lastIndex = this.#at;
    const found = ANGLE.exec(this.text);
    const mail = found ? null : MAIL.exec(this.text);
    const href = found ? safeHref(found[1]) : mail && safeHref(`mailto:${mail[1]}`);
    const [whole, shown] = found ?? mail ?? ["", ""];
    if (!href) {
      this.#keep(1);
      return;
    }
    this.#add({ type: "link", href, title: "", inlines: [{ type: "text", text: shown }] });
    this.#at += whole.length;
  }

  #bare() {
    BARE.lastIndex = this.#at;
    const isInWord = this.#at > 0 && /[\p{L}\p{N}]/u.test(this.text[this.#at - 1]);
    const found = isInWord ? null : BARE.exec(this.text);
    const shown = found ? withoutTail(found[0]) : "";
    const href = safeHref(shown);
    if (!href) {
      this.#keep(found?.[0].length ?? 1); // at once, so that it is not scanned again
      return;
    }
    this.#add({ type: "link", href, title: "", inlines: [{ type: "text", text: shown }] });
    this.#at += shown.length;
  }

  #entity() {
    const entity = entityAt(this.text, this.#at);
    if (!entity) {
      this.#keep(1);
      return;
    }
    this.#plain += entity.value;
    this.#at += entity.length;
  }

  #newline() {
    const isHard = this.#plain.endsWith("  ");
    this.#plain = this.#plain.trimEnd() + (isHard ? "" : "\n");
    this.#flush();
    if (isHard) this.#add({ type: "break" });
    this.#at += 1;
    this.#skipSpaces();
  }

  #skipSpaces() {
    while (this.text[this.#at] === " ") this.#at += 1;
  }

  /**
   * Match the delimiters above an index of the stack, and remove them.
   *
   * @param {number} bottom
   */
  #emphasis(bottom) {
    matchEmphasis(this.#delimiters.splice(bottom).map((n) => this.#tokens[n]));
  }
}

/**
 * Build the tree. Nesting beyond the limit, and links in links, stay as source text.
 *
 * @param {Token[]} tokens
 * @returns {Inline[]}
 */
function assemble(tokens) {
  /** @type {{inlines: Inline[], pair: Pair | null}[]} */
  const stack = [{ inlines: [], pair: null }];
  const top = () => stack[stack.length - 1];
  const isInLink = () => stack.some(({ pair }) => pair?.open === "[" || pair?.open === "![");
  for (const token of tokens) {
    for (const pair of token.closes) {
      if (pair.isText) {
        addText(top().inlines, pair.isLabel ? "" : pair.close);
        continue;
      }
      const { inlines } = top();
      stack.pop();
      top().inlines.push(pair.make(inlines));
    }
    const { inline } = token;
    if (inline?.type === "text") addText(top().inlines, inline.text);
    else if (inline?.type === "link" && isInLink()) top().inlines.push(...inline.inlines);
    else if (inline) top().inlines.push(inline);
    addText(top().inlines, token.sign.repeat(token.left));
    // The last pair found is the outermost.
    for (const pair of token.opens.reverse()) {
      const isLabel = Boolean(pair.isLabel) && isInLink();
      if (isLabel || stack.length > MAX_DEPTH) {
        pair.isText = true;
        pair.isLabel = isLabel;
        addText(top().inlines, isLabel ? "" : pair.open);
      } else stack.push({ inlines: [], pair });
    }
  }
  return stack[0].inlines;
}

/**
 * @param {Inline[]} inlines
 * @param {string} text
 */
function addText(inlines, text) {
  if (!text) return;
  const last = inlines[inlines.length - 1];
  if (last?.type === "text") last.text += text;
  else inlines.push({ type: "text", text });
}

/**
 * Length of the run of the character at an index.
 *
 * @param {string} text
 * @param {number} at
 */
function runLength(text, at) {
  let to = at + 1;
  while (text[to] === text[at]) to += 1;
  return to - at;
}

/**
 * Positions of backtick runs by length. Found in one pass, so that the time stays linear.
 *
 * @param {string} text
 */
function findTicks(text) {
  /** @type {Map<number, {starts: number[], next: number}>} */
  const ticks = new Map();
  for (let at = text.indexOf("`"); at >= 0; ) {
    const length = runLength(text, at);
    const found = ticks.get(length);
    if (found) found.starts.push(at);
    else ticks.set(length, { starts: [at], next: 0 });
    at = text.indexOf("`", at + length);
  }
  return ticks;
}

/**
 * The next run of this length; must be called from left to right.
 *
 * @param {ReturnType<typeof findTicks>} ticks
 * @param {number} length
 * @param {number} from
 */
function nextTick(ticks, length, from) {
  const found = ticks.get(length);
  if (!found) return -1;
  while (found.next < found.starts.length && found.starts[found.next] < from) found.next += 1;
  return found.starts[found.next] ?? -1;
}
