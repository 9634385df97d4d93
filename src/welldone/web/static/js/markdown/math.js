// Shows formulas as MathML, or as their source. Texts become text nodes and attributes are constants of the parser, so
// that a formula cannot contain a link, a script or a style.

import { h } from "../dom.js";
import { visible } from "../text.js";
import { toTree } from "./tex.js";

/** @import { MathTree } from "./tex.js" */

const NAMESPACE = "http://www.w3.org/1998/Math/MathML";
/** The body of a display formula, or that of an inline one. */
const FORMULA = /^(?:(?:\$\$|\\\[)([^]+)(?:\$\$|\\\])|(?:\$|\\\()([^]+)(?:\$|\\\)))$/;
const LONG_INLINE = 60; // characters of source that may not fit a phone

/**
 * A formula as an element: MathML, or its source.
 *
 * @param {string} source with its delimiters
 */
export function renderFormula(source) {
  const [, block, line = ""] = FORMULA.exec(source) ?? [];
  const tree = toTree(block ?? line, block !== undefined);
  if (!tree) return h("span", { class: "md-math", dir: "ltr" }, visible(source));
  const math = element(tree);
  if (line && line.length <= LONG_INLINE) return math;
  // It scrolls in a box of its own, also with the keyboard.
  const className = line ? "md-wide" : "md-display";
  return h("span", { class: className, dir: "ltr", tabIndex: 0, role: "group", "aria-label": "Formula" }, math);
}

/** @param {MathTree} tree */
function element({ tag, attributes, children }) {
  const made = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  for (const child of children) made.append(typeof child === "string" ? child : element(child));
  return made;
}
