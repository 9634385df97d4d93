// Character references such as &amp; and &#8364;.

const ENTITY = /&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([A-Za-z]{2,8}));/y;

// Those that models use. Others are left unchanged.
/** @type {Record<string, string>} */
const NAMED = {
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", reg: "®", trade: "™", hellip: "…",
  mdash: "—", ndash: "–", lsquo: "‘", rsquo: "’", ldquo: "“", rdquo: "”", laquo: "«", raquo: "»", times: "×",
  divide: "÷", plusmn: "±", middot: "·", bull: "•", deg: "°", para: "¶", sect: "§", euro: "€", pound: "£", yen: "¥",
  larr: "←", uarr: "↑", rarr: "→", darr: "↓", ne: "≠", le: "≤", ge: "≥", infin: "∞", micro: "µ", frac12: "½",
};

/**
 * The character reference at an index, if any.
 *
 * @param {string} text
 * @param {number} at
 */
export function entityAt(text, at) {
  ENTITY.lastIndex = at;
  const found = ENTITY.exec(text);
  if (!found) return null;
  const [{ length }, decimal, hex, name] = found;
  if (name) return Object.hasOwn(NAMED, name) ? { value: NAMED[name], length } : null;
  return { value: fromCode(decimal ? Number(decimal) : Number.parseInt(hex, 16)), length };
}

/** @param {number} code */
function fromCode(code) {
  const isCharacter = code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff);
  return isCharacter ? String.fromCodePoint(code) : "\ufffd";
}
