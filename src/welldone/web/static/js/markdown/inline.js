// The inside of a paragraph: emphasis, code, links. Each part of the text is looked at a bounded number of times, so
// that no text takes longer than its length.

import { characterBefore } from "../text.js";
import { entityAt } from "./entities.js";
import { safeHref } from "./links.js";

/**
 * @typedef {{type: "text" | "code" | "math", text: string}
 *   | {type: "break"}
 *   | {type: "emphasis" | "strong" | "strike", inlines: Inline[]}
 *   | {type: "link", href: string, title: string, inlines: Inline[]}} Inline
 */

/**
 * What opens and closes, with the signs that stand for it where it is only text.
 *
 * @typedef {object} Pair
 * @property {(inlines: Inline[]) => Inline} make
 * @property {string} open
 * @property {string} close
 * @property {boolean} [isLabel] a picture, of which only the label is shown within a link
 * @property {boolean} [isText]
 */

/** A sign such as `**`, of which some may be used up; or a piece that is finished. */
class Token {
  /** @type {Pair[]} */
  opens = [];
  /** @type {Pair[]} */
  closes = [];
  canOpen = false;
  canClose = false;

  /**
   * @param {Inline | null} inline
   * @param {string} sign
   * @param {number} left how many of the sign are left
   */
  constructor(inline, sign = "", left = 0) {
    this.inline = inline;
    this.sign = sign;
    this.left = left;
    this.length = left;
  }
}

/** @typedef {{token: number, delimiter: number, isImage: boolean}} Bracket */

const DEEPEST = 16; // more than people nest
const SPECIAL = /[\\`*_~[\]!<&\n$h]/g;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const SPACE = /^\s$/;
const SIGN = /^[\p{P}\p{S}]$/u;
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
  /** Numbers of the tokens that may open or close emphasis. @type {number[]} */
  #delimiters = [];
  /** @type {Bracket[]} */
  #brackets = [];
  /** What is sought and not found once is not sought again. @type {Set<string>} */
  #missing = new Set();

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
    else if (this.text.startsWith("$$", this.#at)) this.#math("$$", "$$");
    else if (sign === "h") this.#bare();
    else this.#keep(1);
  }

  /** @param {number} length of what is text after all */
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
   * Formulas are shown as they were written.
   *
   * @param {string} open
   * @param {string} close
   */
  #math(open, close) {
    const end = this.#missing.has(close) ? -1 : this.text.indexOf(close, this.#at + open.length);
    if (end < 0) {
      this.#missing.add(close);
      // Without an end, `\(` is but a bracket that is not to count, and `$$` is text.
      if (open[0] === "\\") this.#at += 1;
      this.#keep(open[0] === "\\" ? 1 : 2);
      return;
    }
    const to = end + close.length;
    this.#add({ type: "math", text: this.text.slice(this.#at, to) });
    this.#at = to;
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
    // A link holds no other link; a picture may stand in one.
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
      this.#keep(found?.[0].length ?? 1); // whole, so that nothing in it is looked at again
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
   * Match the signs above a place in the stack, and take them from it.
   *
   * @param {number} bottom
   */
  #emphasis(bottom) {
    const stack = this.#delimiters.splice(bottom).map((n) => this.#tokens[n]);
    /** Signs that wait for what closes them. @type {Token[]} */
    const openers = [];
    /** Below this no opener was found for such a closer. @type {Map<string, number>} */
    const floors = new Map();
    for (const token of stack) {
      if (token.canClose) closeEmphasis(token, openers, floors);
      if (token.canOpen && token.left > 0) openers.push(token);
    }
  }
}

/**
 * @param {Token} closer
 * @param {Token[]} openers
 * @param {Map<string, number>} floors
 */
function closeEmphasis(closer, openers, floors) {
  while (closer.left > 0) {
    const kind = `${closer.sign}${closer.canOpen}${closer.length % 3}`;
    const floor = floors.get(kind) ?? 0;
    let at = openers.length - 1;
    while (at >= floor && !fits(openers[at], closer)) at -= 1;
    if (at < floor) {
      floors.set(kind, openers.length);
      return;
    }
    openers.length = at + 1;
    const opener = openers[at];
    const used = Math.min(opener.left, closer.left, 2);
    const pair = makePair(closer.sign, used);
    opener.opens.push(pair);
    closer.closes.push(pair);
    opener.left -= used;
    closer.left -= used;
    if (opener.left === 0) openers.pop();
    for (const [name, height] of floors) floors.set(name, Math.min(height, openers.length));
  }
}

/**
 * @param {Token} opener
 * @param {Token} closer
 */
function fits(opener, closer) {
  if (opener.sign !== closer.sign) return false;
  // CommonMark's rule of three, which keeps `*a**b*` one emphasis.
  const isMixed = opener.canClose || closer.canOpen;
  return !isMixed || (opener.length + closer.length) % 3 !== 0 || (opener.length % 3 === 0 && closer.length % 3 === 0);
}

/**
 * @param {string} sign
 * @param {number} length
 * @returns {Pair}
 */
function makePair(sign, length) {
  const type = sign === "~" ? "strike" : length === 2 ? "strong" : "emphasis";
  const signs = sign.repeat(length);
  return { make: (inlines) => ({ type, inlines }), open: signs, close: signs };
}

/**
 * The tree out of the tokens. What is nested too deep, or a link in a link, is left as it was written.
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
    // The pair that was found last is the outermost.
    for (const pair of token.opens.reverse()) {
      const isLabel = Boolean(pair.isLabel) && isInLink();
      if (isLabel || stack.length > DEEPEST) {
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
 * Whether a sign may open or close, by what stands around it.
 *
 * @param {string} text
 * @param {number} at
 * @param {number} length
 * @param {string} sign
 */
function flanks(text, at, length, sign) {
  const before = at > 0 ? characterBefore(text, at) : " ";
  const after = at + length < text.length ? String.fromCodePoint(text.codePointAt(at + length) ?? 32) : " ";
  const [isSpaceBefore, isSpaceAfter] = [SPACE.test(before), SPACE.test(after)];
  const [isSignBefore, isSignAfter] = [SIGN.test(before), SIGN.test(after)];
  const isLeft = !isSpaceAfter && (!isSignAfter || isSpaceBefore || isSignBefore);
  const isRight = !isSpaceBefore && (!isSignBefore || isSpaceAfter || isSignAfter);
  // An underscore within a word is part of the word.
  if (sign !== "_") return { canOpen: isLeft, canClose: isRight };
  return { canOpen: isLeft && (!isRight || isSignBefore), canClose: isRight && (!isLeft || isSignAfter) };
}

/**
 * How often the character at a place is repeated.
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
 * Where runs of backticks begin, by their length.
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
 * The next run of this length; asked for from left to right.
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

/**
 * The `(address "title")` behind a label. It ends at the next bracket that opens, and at a space: so this looks no
 * further than the next such target.
 *
 * @param {string} text
 * @param {number} at
 */
function targetAt(text, at) {
  if (text[at] !== "(") return null;
  const from = skipSpace(text, at + 1);
  const address = text[from] === "<" ? angleAddress(text, from) : plainAddress(text, from);
  if (!address) return null;
  let end = skipSpace(text, address.end);
  let title = "";
  if (end > address.end && (text[end] === '"' || text[end] === "'")) {
    const close = text.indexOf(text[end], end + 1);
    if (close < 0) return null;
    title = text.slice(end + 1, close);
    end = skipSpace(text, close + 1);
  }
  return text[end] === ")" ? { address: address.value, title, end: end + 1 } : null;
}

/**
 * @param {string} text
 * @param {number} from
 */
function angleAddress(text, from) {
  let at = from + 1;
  while (at < text.length && text[at] !== ">" && text[at] !== "<" && text[at] !== "\n") at += 1;
  return text[at] === ">" ? { value: text.slice(from + 1, at), end: at + 1 } : null;
}

/**
 * Brackets in the address are part of it if they close.
 *
 * @param {string} text
 * @param {number} from
 */
function plainAddress(text, from) {
  let depth = 0;
  let at = from;
  for (; at < text.length && !SPACE.test(text[at]); at += 1) {
    if (text[at] === "(" && ++depth > DEEPEST) return null;
    if (text[at] === ")" && --depth < 0) break;
  }
  return depth <= 0 ? { value: text.slice(from, at), end: at } : null;
}

/**
 * @param {string} text
 * @param {number} at
 */
function skipSpace(text, at) {
  let to = at;
  while (text[to] === " " || text[to] === "\n") to += 1;
  return to;
}

/**
 * An address in running text without the signs of the sentence behind it.
 *
 * @param {string} address
 */
function withoutTail(address) {
  let open = 0;
  let close = 0;
  for (const sign of address) {
    if (sign === "(") open += 1;
    else if (sign === ")") close += 1;
  }
  let end = address.length;
  for (; end > 0; end -= 1) {
    const last = address[end - 1];
    if (last === ")" && close > open) close -= 1;
    else if (!/[.,:;!?'"*_~`\]]/.test(last)) break;
  }
  return address.slice(0, end);
}
