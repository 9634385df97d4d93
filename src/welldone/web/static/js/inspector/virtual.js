// A list of any length that has only those rows in the document which can be seen.

import { h } from "../dom.js";

/** How high a row is, as in the style sheet; a finger needs more room than a pointer. */
const ROW_PX = 24;
const FINGER_ROW_PX = 36;
/** Rows above and below what can be seen, so that fast scrolling shows no holes. */
const SPARE = 8;
/** More rows than any screen shows. */
const MOST_ROWS = 150;

let lists = 0;

/**
 * @typedef {object} Looks
 * @property {string} label
 * @property {string[]} columns
 * @property {(cells: HTMLElement[], index: number, row: HTMLElement) => void} paint puts what is known of a row into
 *   its cells, which had another row's before
 * @property {(index: number) => void} choose a row was chosen
 * @property {() => void} open Enter was pressed on the chosen row
 */

export class VirtualList {
  #looks;
  #grid;
  #space;
  /** @type {{row: HTMLElement, cells: HTMLElement[]}[]} */
  #pool = [];
  #count = 0;
  #chosen = -1;
  #putTop = 0;
  #height = 0;
  #id = `list-${++lists}`;
  #rowPx = matchMedia("(pointer: coarse)").matches ? FINGER_ROW_PX : ROW_PX;

  /** @param {Looks} looks */
  constructor(looks) {
    this.#looks = looks;
    /** Whether the end is kept in sight. It is, until a reader scrolls away from it. */
    this.isFollowing = true;
    this.#space = h("div", { class: "virtual-space", role: "rowgroup" });
    const titles = looks.columns.map((title, place) =>
      h("span", { class: `cell cell-${place}`, role: "columnheader" }, title),
    );
    this.#grid = h(
      "div",
      { class: "virtual", role: "grid", tabIndex: 0, "aria-label": looks.label, "aria-rowcount": "1" },
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

  /** Show that many rows, and follow the end if that is wanted. @param {number} count */
  show(count) {
    if (count !== this.#count) {
      this.#count = count;
      this.#grid.setAttribute("aria-rowcount", String(count + 1));
      this.#space.style.height = `${count * this.#rowPx}px`;
    }
    if (this.isFollowing) this.#scrollTo(this.#grid.scrollHeight);
    this.paint();
  }

  /** Forget what was chosen, and follow the end again. */
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
    this.#looks.choose(this.#chosen);
  }

  focus() {
    this.#grid.focus();
  }

  /** Paint the rows that can be seen. */
  paint() {
    const first = Math.max(0, Math.floor(this.#grid.scrollTop / this.#rowPx) - SPARE);
    const seen = Math.ceil(this.#grid.clientHeight / this.#rowPx);
    const wanted = Math.min(seen + 2 * SPARE, MOST_ROWS, this.#count - first);
    while (this.#pool.length < wanted) this.#addRow();
    this.#pool.forEach(({ row, cells }, place) => {
      row.hidden = place >= wanted;
      if (!row.hidden) this.#paintRow(row, cells, first + place);
    });
    const active = this.#chosen >= first && this.#chosen < first + wanted ? this.#rowId(this.#chosen) : "";
    if (active) this.#grid.setAttribute("aria-activedescendant", active);
    else this.#grid.removeAttribute("aria-activedescendant");
  }

  #addRow() {
    const cells = this.#looks.columns.map((_, place) => h("span", { class: `cell cell-${place}`, role: "gridcell" }));
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
    this.#looks.paint(cells, index, row);
  }

  /** @param {number} index */
  #rowId(index) {
    return `${this.#id}-${index}`;
  }

  /** What is known of the chosen row opens below the list, and takes some of its room: the row stays in sight. */
  #resized() {
    const { scrollTop, clientHeight } = this.#grid;
    const top = this.#chosen * this.#rowPx;
    const wasSeen = this.#chosen >= 0 && top + this.#rowPx > scrollTop && top < scrollTop + this.#height;
    this.#height = clientHeight;
    if (wasSeen) this.#reveal(this.#chosen);
    this.paint();
  }

  #scrolled() {
    const { scrollTop, clientHeight, scrollHeight } = this.#grid;
    const isAtEnd = scrollTop + clientHeight > scrollHeight - this.#rowPx;
    // What we did ourselves says nothing about the reader.
    if (Math.abs(scrollTop - this.#putTop) > 1) this.isFollowing = isAtEnd;
    this.#putTop = scrollTop;
    this.paint();
  }

  /** @param {number} top */
  #scrollTo(top) {
    this.#grid.scrollTop = top;
    this.#putTop = this.#grid.scrollTop;
  }

  /** @param {number} index */
  #reveal(index) {
    const { scrollTop, clientHeight } = this.#grid;
    const top = index * this.#rowPx;
    // The titles stay above the rows, and take the room of one.
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
      Enter: () => (at < 0 ? this.choose(0) : this.#looks.open()),
    };
    const act = keys[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }
}
