// Emphasis: matching of delimiter runs, as in CommonMark.

import { characterBefore } from "../text.js";

/** @import { Inline } from "./inline.js" */

const SPACE = /^\s$/;
const SIGN = /^[\p{P}\p{S}]$/u;

/**
 * A matched pair, with its delimiters for use as text.
 *
 * @typedef {object} Pair
 * @property {(inlines: Inline[]) => Inline} make
 * @property {string} open
 * @property {string} close
 * @property {boolean} [isLabel] a picture, of which only the label is shown within a link
 * @property {boolean} [isText]
 */

/** A delimiter run such as `**`, partly used up; or a finished piece. */
export class Token {
  /** @type {Pair[]} */
  opens = [];
  /** @type {Pair[]} */
  closes = [];
  canOpen = false;
  canClose = false;

  /**
   * @param {Inline | null} inline
   * @param {string} sign
   * @param {number} left number of delimiters left
   */
  constructor(inline, sign = "", left = 0) {
    this.inline = inline;
    this.sign = sign;
    this.left = left;
    this.length = left;
  }
}

/**
 * Whether a delimiter run can open or close, from the characters around it.
 *
 * @param {string} text
 * @param {number} at
 * @param {number} length
 * @param {string} sign
 */
export function flanks(text, at, length, sign) {
  const before = at > 0 ? characterBefore(text, at) : " ";
  const after = at + length < text.length ? String.fromCodePoint(text.codePointAt(at + length) ?? 32) : " ";
  const [isSpaceBefore, isSpaceAfter] = [SPACE.test(before), SPACE.test(after)];
  const [isSignBefore, isSignAfter] = [SIGN.test(before), SIGN.test(after)];
  const isLeft = !isSpaceAfter && (!isSignAfter || isSpaceBefore || isSignBefore);
  const isRight = !isSpaceBefore && (!isSignBefore || isSpaceAfter || isSignAfter);
  // An underscore within a word is a part of the word.
  if (sign !== "_") return { canOpen: isLeft, canClose: isRight };
  return { canOpen: isLeft && (!isRight || isSignBefore), canClose: isRight && (!isLeft || isSignAfter) };
}

/**
 * Match delimiter runs into pairs.
 *
 * @param {Token[]} signs
 */
export function matchEmphasis(signs) {
  /** Openers without a closer yet. @type {Token[]} */
  const openers = [];
  /** Below this index there is no opener for such a closer. @type {Map<string, number>} */
  const floors = new Map();
  for (const token of signs) {
    if (token.canClose) closeEmphasis(token, openers, floors);
    if (token.canOpen && token.left > 0) openers.push(token);
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
  // CommonMark's rule of three: `*a**b*` is one emphasis.
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
