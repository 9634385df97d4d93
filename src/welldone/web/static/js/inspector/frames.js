// A list of frames with the detail of the chosen one. The live stream and a linted capture are both shown by it.

import { fill, h } from "../dom.js";
import { bytes, duration, NOTHING, plural } from "../format.js";
import { visible } from "../text.js";
import { NO_FRAME, makeDetail } from "./detail.js";
import { read } from "./reading.js";
import { VirtualList } from "./virtual.js";

/** @import { Frame } from "../sse.js" */
/** @import { Item, Source } from "./sources.js" */

/** Gaps from here on are marked: a person notices them. */
const LONG_GAP_MS = 300;
/** The bar of a gap is empty up to the first of these, and full from the second on. */
const [HEAT_FROM_MS, HEAT_TO_MS] = [5, 2_000];
const PREVIEW_LETTERS = 160;
const COLUMNS = ["#", "Time", "Gap", "Size", "Kind", "Fix", "Content"];

/** @type {WeakMap<Frame, {kind: string, preview: string}>} */
const skimmed = new WeakMap();

/** @type {Source} */
const NO_FRAMES = {
  count: () => 0,
  item: () => {
    throw new Error("there is no frame");
  },
};

export class FrameView {
  #list;
  #detail;
  /** @type {Source} */
  #source = NO_FRAMES;
  #looks = { isHex: false };
  #shown = "";

  /** @param {string} label */
  constructor(label) {
    this.#list = new VirtualList({
      label,
      columns: COLUMNS,
      paint: (cells, index, row) => paintRow(cells, this.#source.item(index), row),
      choose: () => this.#showDetail(),
      open: () => this.#focusDetail(),
    });
    this.#detail = h("div", { class: "detail", role: "region", "aria-label": "Frame", hidden: true });
    this.#detail.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.#close();
    });
    this.element = h("div", { class: "frame-view" }, this.#list.element, this.#detail);
  }

  /**
   * Show other frames.
   *
   * @param {Source} source
   */
  open(source) {
    this.#source = source;
    this.#list.reset();
    this.#hide();
    this.update();
  }

  /** There may be more of them, or more may be known. */
  update() {
    this.#list.show(this.#source.count());
    if (!this.#detail.hidden) this.#showDetail();
  }

  /** @param {number} index */
  choose(index) {
    if (index >= 0) this.#list.choose(index);
  }

  #showDetail() {
    const index = this.#list.chosen;
    if (index < 0 || index >= this.#source.count()) return;
    const item = this.#source.item(index);
    // While a stream goes on, only what is new of the frame makes its detail anew.
    const shown = `${index}/${item.steps.length}`;
    if (shown === this.#shown) return;
    this.#shown = shown;
    const hadFocus = this.#detail.contains(document.activeElement);
    this.#detail.hidden = false;
    fill(this.#detail, ...makeDetail(item, this.#looks, () => this.#close()));
    this.#detail.scrollTop = 0;
    if (hadFocus) this.#focusDetail();
  }

  #focusDetail() {
    this.#detail.querySelector("h3")?.focus();
  }

  #hide() {
    this.#detail.hidden = true;
    this.#shown = "";
  }

  #close() {
    this.#hide();
    this.#list.focus();
  }
}

/**
 * @param {HTMLElement[]} cells
 * @param {Item} item
 * @param {HTMLElement} row
 */
function paintRow(cells, { frame, hasTime, repairs, breaking, said }, row) {
  // What is sent without a frame of the upstream, such as what was held back until the end, has a row too.
  const { kind, preview } = frame.raw === "" ? { kind: NO_FRAME, preview: oneLine(said) } : skim(frame);
  const texts = [
    String(frame.n),
    hasTime ? duration(frame.at) : NOTHING,
    hasTime ? gapText(frame.gap) : NOTHING,
    bytes(frame.size),
    kind,
    breaking ? `✎ ${breaking}` : repairs ? "·" : "",
    preview,
  ];
  cells.forEach((cell, place) => {
    if (cell.textContent !== texts[place]) cell.textContent = texts[place];
  });
  row.dataset.kind = kind;
  row.classList.toggle("is-repaired", breaking > 0);
  row.classList.toggle("is-late", hasTime && frame.gap >= LONG_GAP_MS);
  row.style.setProperty("--heat", hasTime ? heat(frame.gap).toFixed(2) : "0");
  const others = repairs - breaking;
  const told = [breaking && plural(breaking, "repair"), others && plural(others, "minor repair")];
  cells[5].setAttribute("aria-label", told.filter(Boolean).join(", ") || "no repairs");
}

/**
 * What a row says of a frame. It is read once, not at each painting: it may have megabytes.
 *
 * @param {Frame} frame
 */
function skim(frame) {
  const known = skimmed.get(frame);
  if (known) return known;
  const { kind, text } = read(frame);
  const facts = { kind: visible(kind), preview: oneLine(text) };
  skimmed.set(frame, facts);
  return facts;
}

/**
 * Frames that came together have no gap between them.
 *
 * @param {number} gap
 */
function gapText(gap) {
  return gap === 0 ? "0" : duration(gap);
}

/** @param {string} text */
function oneLine(text) {
  return visible(text.slice(0, PREVIEW_LETTERS)).replace(/\r\n|\r|\n/g, "⏎");
}

/** @param {number} gap */
function heat(gap) {
  const share = Math.log(Math.max(gap, HEAT_FROM_MS) / HEAT_FROM_MS) / Math.log(HEAT_TO_MS / HEAT_FROM_MS);
  return Math.min(1, share);
}
