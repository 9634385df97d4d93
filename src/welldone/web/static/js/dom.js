// Builds elements without markup: text stays text, even if it is untrusted.

/** @typedef {Node | string | number | null | undefined | false} Child */
/** @typedef {Record<string, unknown>} Props */

/**
 * Create an element. Props: `class`, `dataset`, `on` (listeners by event), properties of the element (`value`, `hidden`,
 * `disabled`), and attributes otherwise (`aria-label`, `role`, `for`). Null, undefined and false are skipped.
 *
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Props} [props]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  if (element instanceof HTMLButtonElement) element.type = "button"; // the default is "submit"
  for (const [name, value] of Object.entries(props)) setProp(element, name, value);
  append(element, children);
  return element;
}

/**
 * Create an SVG element. Props are attributes, except `class` and `on`.
 *
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Props} [props]
 * @param {...(Child | Child[])} children
 * @returns {SVGElementTagNameMap[Tag]}
 */
export function svg(tag, props = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "on") listen(element, value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, String(value));
  }
  append(element, children);
  return element;
}

/**
 * Replace the children of an element.
 *
 * @param {Element} element
 * @param {...(Child | Child[])} children
 */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

/**
 * @param {Element} element
 * @param {(Child | Child[])[]} children
 */
function append(element, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

/**
 * @param {HTMLElement} element
 * @param {string} name
 * @param {unknown} value
 */
function setProp(element, name, value) {
  if (name === "on") listen(element, value);
  else if (name === "class") element.className = String(value ?? "");
  else if (name === "dataset") Object.assign(element.dataset, value);
  else if (value === null || value === undefined || (value === false && !(name in element))) return;
  else if (name in element && !name.includes("-") && name !== "list" && name !== "role") {
    Object.assign(element, { [name]: value });
  } else element.setAttribute(name, value === true ? "" : String(value));
}

/**
 * @param {EventTarget} element
 * @param {unknown} listeners
 */
function listen(element, listeners) {
  for (const [event, act] of Object.entries(/** @type {Record<string, EventListener>} */ (listeners))) {
    element.addEventListener(event, act);
  }
}
