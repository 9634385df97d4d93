// Renders untrusted Markdown as elements.

import { h } from "../dom.js";
import { Live } from "./live.js";
import { parse } from "./parse.js";
import { renderBlock } from "./render.js";

export { Live };

const AT_ONCE = 64 * 1024; // longer text is painted in several frames

/**
 * Render a complete text.
 *
 * @param {string} text
 * @returns {DocumentFragment}
 */
export function render(text) {
  const root = h("div");
  if (text.length <= AT_ONCE) {
    root.append(...parse(text).map(renderBlock));
  } else {
    const live = new Live(root);
    live.append(text);
    live.end();
  }
  root.className = "markdown";
  const fragment = document.createDocumentFragment();
  fragment.append(root);
  return fragment;
}
