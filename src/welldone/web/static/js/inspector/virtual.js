// Virtual list: only visible rows are in the document.

import { h } from "../dom.js";

/** Height of a row, as in the style sheet; higher for touch. */
const ROW_PX = 24;
const TOUCH_ROW_PX = 36;
/** Extra rows above and below the viewport, so that fast scrolling shows no gaps. */
const SPARE = 8;
/** More rows than fit any screen. */
const MAX_ROWS = 150;

let lists = 0;

/**
 * @typedef {object} ListOptions
 * @property {string} label
 * @property {string[]} columns
 * @property {(cells: HTMLElement[], index: number, row: HTMLElement) => void} paint fills the cells of a
 *   row, which are reused
 * @property {(index: number) => void} choose called when a row is selected
 * @property {() => void} open called when Enter is pressed on the selected row
 */

export class VirtualList {
  #options;
  #grid;
  #space;
  /** @type {{row: HTMLElement, cells: HTMLElement[]}[]} */
  #pool = [];
  #count = 0;
  #chosen = -1;
  #ownScrollTop = 0;
  #height = 0;
  #id = `list-${++lists}`;
  #rowPx = matchMedia("(pointer: coarse)").matches ? TOUCH_ROW_PX : ROW_PX;

  /** @param {ListOptions} options */
  constructor(options) {
    this.#options = options;
    /** Whether to keep the end in view: until the user scrolls away from it. */
    this.isFollowing = true;
    this.#space = h("div", { class: "virtual-space", role: "rowgroup" });
    const titles = options.columns.map((title, slot) =>
      h("span", { class: `cell cell-${slot}`, role: "columnheader" }, title),
    );
    this.#grid = h(
      "div",
      { class: "virtual", role: "grid", tabIndex: 0, "aria-label": options.label, "aria-rowcount": "1" },
      h("div", { class: "virtual-head", role: "rowgroup" },
        h("div", { class: "virtual-titles", role: "row", "aria-rowindex": "1" }, titles)),
      this.#space,
    );
    this.element = this.#grid;
    this.#grid.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    this.#grid.addEventListener("keydown", (event) => this.#key(event));
    this.#space.addEventListener("click", (event) => this.#click(event));
    new ResizeObserver(() => this.#resized()).observe(this.#grid);
  }

  get chosen() {
    return this.#chosen;
  }

  /** Set the number of rows, and scroll to the end if `isFollowing`. @param {number} count */
  show(count) {
    if (count !== this.#count) {
      this.#count = count;
      this.#grid.setAttribute("aria-rowcount", String(count + 1));
      this.#space.style.height = `${count * this.#rowPx}px`;
    }
    if (this.isFollowing) this.#scrollTo(this.#grid.scrollHeight);
    this.paint();
  }

  /** Clear the selection, and follow the end again. */
  reset() {
    this.#chosen = -1;
    this.isFollowing = true;
    this.#grid.removeAttribute("aria-activedescendant");
  }

  /** @param {number} index */
  choose(index) {
    if (this.#count === 0) return;
    this.#chosen = Math.max(0, Math.min(index, this.#count - 1));
    this.isFollowing = false;
    this.#reveal(this.#chosen);
    this.paint();
    this.#options.choose(this.#chosen);
  }

  focus() {
    this.#grid.focus();
  }

  /** Paint the visible rows. */
  paint() {
    const first = Math.max(0, Math.floor(this.#grid.scrollTop / this.#rowPx) - SPARE);
    const fitting = Math.ceil(this.#grid.clientHeight / this.#rowPx);
    const visibleRows = Math.min(fitting + 2 * SPARE, MAX_ROWS, this.#count - first);
    while (this.#pool.length < visibleRows) this.#addRow();
    this.#pool.forEach(({ row, cells }, slot) => {
      row.hidden = slot >= visibleRows;
      if (!row.hidden) this.#paintRow(row, cells, first + slot);
    });
    const active = this.#chosen >= first && this.#chosen < first + visibleRows ? this.#rowId(this.#chosen) : "";
    if (active) this.#grid.setAttribute("aria-activedescendant", active);
    else this.#grid.removeAttribute("aria-activedescendant");
  }

  #addRow() {
    const cells = this.#options.columns.map((_, slot) => h("span", { class: `cell cell-${slot}`, role: "gridcell" }));
    const row = h("div", { class: "virtual-row", role: "row" }, cells);
    this.#pool.push({ row, cells });
    this.#space.append(row);
  }

  /**
   * @param {HTMLElement} row
   * @param {HTMLElement[]} cells
   * @param {number} index
   */
  #paintRow(row, cells, index) {
    row.id = this.#rowId(index);
    row.dataset.index = String(index);
    row.setAttribute("aria-rowindex", String(index + 2));
    row.setAttribute("aria-selected", String(index === this.#chosen));
    row.style.transform = `translateY(${index * this.#rowPx}px)`;
    this.#options.paint(cells, index, row);
  }

  /** @param {number} index */
  #rowId(index) {
    return `${this.#id}-${index}`;
  }

  /** The details of the selected row open below the list and make it smaller: keep the row in view. */
  #resized() {
    const { scrollTop, clientHeight } = this.#grid;
    const top = this.#chosen * this.#rowPx;
    const wasVisible = this.#chosen >= 0 && top + this.#rowPx > scrollTop && top < scrollTop + this.#height;
    this.#height = clientHeight;
    if (wasVisible) this.#reveal(this.#chosen);
    this.paint();
  }

  #scrolled() {
    const { scrollTop, clientHeight, scrollHeight } = this.#grid;
    const isAtEnd = scrollTop + clientHeight > scrollHeight - this.#rowPx;
    // Ignore our own scrolling.
    if (Math.abs(scrollTop - this.#ownScrollTop) > 1) this.isFollowing = isAtEnd;
    this.#ownScrollTop = scrollTop;
    this.paint();
  }

  /** @param {number} top */
  #scrollTo(top) {
    this.#grid.scrollTop = top;
    this.#ownScrollTop = this.#grid.scrollTop;
  }

  /** @param {number} index */
  #reveal(index) {
    const { scrollTop, clientHeight } = this.#grid;
    const top = index * this.#rowPx;
    // The sticky header takes the height of one row.
    const room = clientHeight - this.#rowPx;
    if (top < scrollTop) this.#scrollTo(top);
    else if (top + this.#rowPx > scrollTop + room) this.#scrollTo(top + this.#rowPx - room);
  }

  /** @param {MouseEvent} event */
  #click(event) {
    const row = event.target instanceof Element ? event.target.closest(".virtual-row") : null;
    if (row instanceof HTMLElement) this.choose(Number(row.dataset.index));
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.target !== this.#grid || event.altKey || event.ctrlKey || event.metaKey) return;
    const page = Math.max(1, Math.floor(this.#grid.clientHeight / this.#rowPx) - 2);
    const at = this.#chosen;
    /** @type {Record<string, () => void>} */
    const keys = {
      ArrowDown: () => this.choose(at + 1),
      ArrowUp: () => this.choose(at < 0 ? this.#count - 1 : at - 1),
      PageDown: () => this.choose(at + page),
      PageUp: () => this.choose(at - page),
      Home: () => this.choose(0),
      End: () => this.choose(this.#count - 1),
      Enter: () => (at < 0 ? this.choose(0) : this.#options.open()),
    };
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }
}
