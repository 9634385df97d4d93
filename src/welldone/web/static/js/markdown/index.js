// Markdown as elements.

/** @param {string} text */
export function render(text) {
  const fragment = document.createDocumentFragment();
  fragment.append(text);
  return fragment;
}

/** Markdown that grows. */
export class Live {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    this.text = "";
  }

  /** @param {string} text */
  append(text) {
    this.text += text;
    this.root.textContent = this.text;
  }

  /** It is whole. */
  end() {}
}
