// Elements, made without markup: what is text stays text, whoever wrote it.

/** @typedef {Node | string | number | null | undefined | false} Child */
/** @typedef {Record<string, unknown>} Props */

/**
 * An element. Props: `class`, `dataset`, `on` (listeners by event), properties of the element (`value`, `disabled`,
 * `hidden`), and attributes for all else (`aria-label`, `role`, `for`). What is null, undefined or false is left out.
 *
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Props} [props]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  if (element instanceof HTMLButtonElement) element.type = "button"; // or it would send the form that it stands in
  for (const [name, value] of Object.entries(props)) setProp(element, name, value);
  append(element, children);
  return element;
}

/**
 * An element of SVG; props are attributes, but for `class` and `on`.
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
 * Put these in the place of all that is in an element.
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
