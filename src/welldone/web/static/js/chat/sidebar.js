// The list of conversations; a drawer on narrow screens.

import { fill, h } from "../dom.js";
import { visible } from "../text.js";

/** @import { Head } from "./store.js" */

/**
 * @typedef {object} ListActs
 * @property {() => void} create
 * @property {(id: string) => void} open
 * @property {(head: Head) => void} rename
 * @property {(head: Head) => void} remove
 * @property {(words: string) => void} search
 * @property {(head: Head) => void} exportOne
 * @property {() => void} exportAll
 * @property {() => void} importFile
 */

const PAUSE_MS = 200; // debounce of typing

export class Sidebar {
  #acts;
  #list = h("ul", { class: "conversations", "aria-label": "Conversations" });
  #note = h("p", { class: "soft small sidebar-note", hidden: true });
  #search = h("input", { type: "search", placeholder: "Search", "aria-label": "Search the conversations" });

  #shown = "";

  /** @param {ListActs} acts */
  constructor(acts) {
    this.#acts = acts;
    this.button = h(
      "button",
      { class: "drawer-button", "aria-expanded": "false", "aria-controls": "conversations" },
      "Conversations",
    );
    this.button.addEventListener("click", () => (this.isOpen ? this.close() : this.open()));
    this.#search.addEventListener("input", paused(() => acts.search(this.#search.value.trim())));
    const veil = h("div", { class: "veil", on: { click: () => this.close() } });
    this.panel = h(
      "div",
      { id: "conversations", class: "sidebar" },
      h("button", { title: "Alt+N", on: { click: acts.create } }, "New conversation"),
      this.#search,
      this.#list,
      this.#note,
      h(
        "div",
        { class: "sidebar-foot" },
        h("button", { class: "quiet mini", on: { click: acts.exportAll } }, "Export"),
        h("button", { class: "quiet mini", on: { click: acts.importFile } }, "Import"),
      ),
    );
    this.element = h("div", { class: "drawer" }, veil, this.panel);
  }

  get isOpen() {
    return this.element.classList.contains("is-open");
  }

  open() {
    this.#setOpen(true);
    this.panel.querySelector("button")?.focus();
  }

  close() {
    if (!this.isOpen) return;
    this.#setOpen(false);
    this.button.focus();
  }

  /**
   * @param {Head[]} heads
   * @param {string} current id of the current conversation
   */
  show(heads, current) {
    const shown = JSON.stringify([heads, current]);
    if (shown === this.#shown) return; // usual: a streaming answer is saved repeatedly
    this.#shown = shown;
    const focused = this.#list.contains(document.activeElement) ? document.activeElement : null;
    fill(this.#list, heads.map((head) => this.#item(head, head.id === current)));
    // Restore the focus after the list was rebuilt.
    if (focused instanceof HTMLElement) this.#focus(focused.dataset.key ?? "");
  }

  /** @param {string} key of a button, which may not exist any more */
  #focus(key) {
    const same = this.#list.querySelector(`[data-key="${key}"]`);
    (same instanceof HTMLElement ? same : this.#search).focus();
  }

  /** @param {string} text warning about storage; empty: none */
  note(text) {
    this.#note.textContent = text;
    this.#note.hidden = !text;
  }

  /**
   * @param {Head} head
   * @param {boolean} isCurrent
   */
  #item(head, isCurrent) {
    const title = visible(head.title);
    const open = h(
      "button",
      { class: "quiet conversation", title, dataset: { key: `open-${head.id}` } },
      h("span", { dir: "auto" }, title),
    );
    if (isCurrent) open.setAttribute("aria-current", "true");
    open.addEventListener("click", () => this.#acts.open(head.id));
    return h(
      "li",
      { class: isCurrent ? "is-current" : "" },
      open,
      h(
        "div",
        { class: "conversation-buttons" },
        this.#small("✎", `Rename “${title}”`, `rename-${head.id}`, () => this.#acts.rename(head)),
        this.#small("↓", `Save “${title}” as a file`, `save-${head.id}`, () => this.#acts.exportOne(head)),
        this.#small("✕", `Delete “${title}”`, `delete-${head.id}`, () => this.#acts.remove(head)),
      ),
    );
  }

  /**
   * @param {string} sign
   * @param {string} label
   * @param {string} key
   * @param {() => void} act
   */
  #small(sign, label, key, act) {
    const props = { class: "quiet mini", "aria-label": label, title: label, dataset: { key } };
    return h("button", { ...props, on: { click: act } }, sign);
  }

  /** @param {boolean} isOpen */
  #setOpen(isOpen) {
    this.element.classList.toggle("is-open", isOpen);
    this.button.setAttribute("aria-expanded", String(isOpen));
  }
}

/** @param {() => void} act */
function paused(act) {
  let waiting = 0;
  return () => {
    clearTimeout(waiting);
    waiting = window.setTimeout(act, PAUSE_MS);
  };
}
