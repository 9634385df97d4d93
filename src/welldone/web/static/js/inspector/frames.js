// A list of frames with the details of the selected one, for live streams and linted captures.

import { fill, h } from "../dom.js";
import { bytes, duration, NOTHING, plural } from "../format.js";
import { visible } from "../text.js";
import { NO_FRAME, makeDetail } from "./detail.js";
import { read } from "./reading.js";
import { VirtualList } from "./virtual.js";

/** @import { Frame } from "../sse.js" */
/** @import { Item, Source } from "./sources.js" */

/** Longer gaps are marked: people notice them. */
const LONG_GAP_MS = 300;
/** The bar of a gap is empty below the first value and full above the second. */
const [HEAT_FROM_MS, HEAT_TO_MS] = [5, 2_000];
const PREVIEW_CHARACTERS = 160;
const COLUMNS = ["#", "Time", "Gap", "Size", "Kind", "Fix", "Content"];

/** @type {WeakMap<Frame, {kind: string, preview: string}>} */
const skimmed = new WeakMap();

/** @type {Source} */
const NO_FRAMES = {
  count: () => 0,
  item: () => {
    throw new Error("no frames");
  },
};

export class FrameView {
  #list;
  #detail;
  /** @type {Source} */
  #source = NO_FRAMES;
  #view = { isHex: false };
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
   * Show the frames of another source.
   *
   * @param {Source} source
   */
  open(source) {
    this.#source = source;
    this.#list.reset();
    this.#hide();
    this.update();
  }

  /** Repaint after the source has grown or changed. */
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
    // Rebuild the details only if the frame has more steps than before.
    const shown = `${index}/${item.steps.length}`;
    if (shown === this.#shown) return;
    this.#shown = shown;
    const hadFocus = this.#detail.contains(document.activeElement);
    this.#detail.hidden = false;
    fill(this.#detail, ...makeDetail(item, this.#view, () => this.#close()));
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
function paintRow(cells, { frame, hasTime, repairs, breaking, sent }, row) {
  // Output without a frame of the upstream, such as held-back text, has a row too.
  const { kind, preview } = frame.raw === "" ? { kind: NO_FRAME, preview: oneLine(sent) } : skim(frame);
  const texts = [
    String(frame.n),
    hasTime ? duration(frame.at) : NOTHING,
    hasTime ? gapText(frame.gap) : NOTHING,
    bytes(frame.size),
    kind,
    breaking ? `✎ ${breaking}` : repairs ? "·" : "",
    preview,
  ];
  cells.forEach((cell, column) => {
    if (cell.textContent !== texts[column]) cell.textContent = texts[column];
  });
  row.dataset.kind = kind;
  row.classList.toggle("is-repaired", breaking > 0);
  row.classList.toggle("is-late", hasTime && frame.gap >= LONG_GAP_MS);
  row.style.setProperty("--heat", hasTime ? heat(frame.gap).toFixed(2) : "0");
  const others = repairs - breaking;
  const labels = [breaking && plural(breaking, "repair"), others && plural(others, "minor repair")];
  cells[5].setAttribute("aria-label", labels.filter(Boolean).join(", ") || "no repairs");
}

/**
 * Kind and preview of a frame. Cached: parsing at each repaint would be slow for frames of megabytes.
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
 * Frames of the same read have a gap of exactly 0.
 *
 * @param {number} gap
 */
function gapText(gap) {
  return gap === 0 ? "0" : duration(gap);
}

/** @param {string} text */
function oneLine(text) {
  return visible(text.slice(0, PREVIEW_CHARACTERS)).replace(/\r\n|\r|\n/g, "⏎");
}

/** @param {number} gap */
function heat(gap) {
  const share = Math.log(Math.max(gap, HEAT_FROM_MS) / HEAT_FROM_MS) / Math.log(HEAT_TO_MS / HEAT_FROM_MS);
  return Math.min(1, share);
}
