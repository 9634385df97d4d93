// Makes invisible and bidirectional control characters of untrusted text visible.

/** Length of text that a browser lays out quickly even without a line break; measured in Chromium. */
export const PIECE = 16 * 1024;

// Controls except tab and newline, bidi controls, zero-width and filler characters, annotations, variation selectors,
// tags of plane 14, and lone surrogates.
const HIDDEN = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f" +
    "\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb" +
    "\\u{e0000}-\\u{e0fff}\\p{Cs}]",
  "gu",
);
// Invisible joiners between two of these characters (emoji, scripts) belong to the text.
const JOINED = /^(?:\p{Extended_Pictographic}|\p{Emoji_Modifier}|\ufe0f|(?!\p{Script=Latin})[\p{L}\p{M}])$/u;
const HAN = /^\p{Script=Han}$/u;
// Flags of subdivisions: a black flag, tag characters of plane 14, and a cancel tag.
const FLAG = /\u{1f3f4}[\u{e0030}-\u{e0039}\u{e0061}-\u{e007a}]{3,6}\u{e007f}/gu;

/**
 * Replace hidden characters by visible marks (␛, ⟨U+202E⟩).
 *
 * @param {string} text
 */
export function visible(text) {
  if (text.search(HIDDEN) < 0) return text;
  if (!text.includes("\u{1f3f4}")) return marked(text);
  // Flags stay; the text between them is checked.
  let shown = "";
  let from = 0;
  for (const flag of text.matchAll(FLAG)) {
    shown += marked(text.slice(from, flag.index)) + flag[0];
    from = flag.index + flag[0].length;
  }
  return shown + marked(text.slice(from));
}

/** @param {string} text */
function marked(text) {
  return text.replace(HIDDEN, (found, at) => (belongs(found, at, text) ? found : mark(found)));
}

/**
 * Whether a hidden character is legitimate: a joiner in emoji or a script, a variation selector of a Han character.
 *
 * @param {string} found
 * @param {number} at
 * @param {string} text
 */
function belongs(found, at, text) {
  const code = /** @type {number} */ (found.codePointAt(0));
  const isVariant = code >= 0xe0100 && code <= 0xe01ef;
  if (!isVariant && found !== "\u200c" && found !== "\u200d") return false;
  const before = characterBefore(text, at);
  if (isVariant) return HAN.test(before);
  const after = text.codePointAt(at + found.length);
  return JOINED.test(before) && after !== undefined && JOINED.test(String.fromCodePoint(after));
}

/**
 * The character that ends at an index, of one or two UTF-16 units.
 *
 * @param {string} text
 * @param {number} at
 */
export function characterBefore(text, at) {
  const isPair = at > 1 && isLow(text.charCodeAt(at - 1));
  return text.slice(at - (isPair ? 2 : 1), at);
}

/** @param {string} character */
function mark(character) {
  const code = /** @type {number} */ (character.codePointAt(0));
  if (code < 0x20) return String.fromCharCode(0x2400 + code); // symbol for the control character
  if (code === 0x7f) return "\u2421";
  return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

/**
 * Split a text into pieces of at most `size`, after a line end if possible, and never within a character.
 *
 * @param {string} text
 * @param {number} [size]
 * @returns {string[]}
 */
export function pieces(text, size = PIECE) {
  const cut = [];
  let from = 0;
  while (from < text.length) {
    const piece = firstPiece(text, size, from);
    cut.push(piece);
    from += piece.length;
  }
  return cut;
}

/**
 * The first piece.
 *
 * @param {string} text
 * @param {number} size
 * @param {number} [from] start index
 */
export function firstPiece(text, size, from = 0) {
  const piece = text.slice(from, from + size);
  if (from + size >= text.length) return piece;
  const end = piece.lastIndexOf("\n") + 1 || piece.lastIndexOf(" ") + 1;
  return piece.slice(0, end || (isLow(text.charCodeAt(from + size)) ? size - 1 : size));
}

/** @param {number} unit of UTF-16: whether it is the second half of a pair */
export function isLow(unit) {
  return unit >= 0xdc00 && unit <= 0xdfff;
}
