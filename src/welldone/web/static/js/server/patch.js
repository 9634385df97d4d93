// Patches the DOM to match newly built elements and keeps existing ones, so that focus, selection, scroll position and
// open details survive.

/**
 * Elements with a `data-key` are matched by it, others by position. Listeners are not carried over: who draws
 * anew listens further up.
 *
 * @param {Element} parent
 * @param {Node[]} wanted
 */
export function patchChildren(parent, wanted) {
  const kept = keep(parent, wanted);
  let cursor = parent.firstChild;
  for (const want of wanted) {
    const key = keyOf(want);
    const have = key === null ? cursor : (kept.get(key) ?? null);
    if (have === null || !isAlike(have, want)) {
      parent.insertBefore(want, cursor);
      continue;
    }
    if (have !== cursor) parent.insertBefore(have, cursor);
    patchNode(have, want);
    cursor = have.nextSibling;
  }
  while (cursor !== null) {
    const next = cursor.nextSibling;
    cursor.remove();
    cursor = next;
  }
}

/**
 * Remove elements whose keys are gone, so that the others need not move.
 *
 * @param {Element} parent
 * @param {Node[]} wanted
 */
function keep(parent, wanted) {
  const keys = new Set(wanted.map(keyOf));
  /** @type {Map<string, ChildNode>} */
  const kept = new Map();
  for (const child of [...parent.childNodes]) {
    const key = keyOf(child);
    if (key === null) continue;
    if (keys.has(key)) kept.set(key, child);
    else child.remove();
  }
  return kept;
}

/** @param {Node} node */
function keyOf(node) {
  return node instanceof HTMLElement ? (node.dataset.key ?? null) : null;
}

/**
 * @param {Node} have
 * @param {Node} want
 */
function isAlike(have, want) {
  return have.nodeName === want.nodeName && keyOf(have) === keyOf(want);
}

/**
 * @param {Node} have
 * @param {Node} want
 */
function patchNode(have, want) {
  if (have instanceof Element && want instanceof Element) {
    patchAttributes(have, want);
    patchChildren(have, [...want.childNodes]);
  } else if (have.nodeValue !== want.nodeValue) have.nodeValue = want.nodeValue;
}

/**
 * @param {Element} have
 * @param {Element} want
 */
function patchAttributes(have, want) {
  for (const name of have.getAttributeNames()) {
    // Keep details open that the user has opened.
    if (name !== "open" && !want.hasAttribute(name)) have.removeAttribute(name);
  }
  for (const { name, value } of want.attributes) {
    if (have.getAttribute(name) !== value) have.setAttribute(name, value);
  }
}
