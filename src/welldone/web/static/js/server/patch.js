// Makes a part of the page look like a newly drawn one, and keeps the elements that are still there: so a reader keeps
// the focus, the selection, the scroll position and what was unfolded.

/**
 * Elements with a `data-key` are found again by it, others by their place. Listeners are not carried over: who draws
 * anew listens further up.
 *
 * @param {Element} parent
 * @param {Node[]} wanted
 */
export function patchChildren(parent, wanted) {
  const kept = keep(parent, wanted);
  let place = parent.firstChild;
  for (const want of wanted) {
    const key = keyOf(want);
    const have = key === null ? place : (kept.get(key) ?? null);
    if (have === null || !isAlike(have, want)) {
      parent.insertBefore(want, place);
      continue;
    }
    if (have !== place) parent.insertBefore(have, place);
    patchNode(have, want);
    place = have.nextSibling;
  }
  while (place !== null) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

/**
 * Removes what has a key that is no longer wanted, so that nothing else must move.
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
    // What a reader has unfolded stays so.
    if (name !== "open" && !want.hasAttribute(name)) have.removeAttribute(name);
  }
  for (const { name, value } of want.attributes) {
    if (have.getAttribute(name) !== value) have.setAttribute(name, value);
  }
}
