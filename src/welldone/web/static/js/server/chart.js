// Line chart of the last minutes, with a cursor for pointer and keyboard, and a table for screen readers.

import { h, svg } from "../dom.js";
import { clock, NOTHING } from "../format.js";
import { patchChildren } from "./patch.js";
import { niceTicks } from "./scale.js";

/** @import { Point } from "./measures.js" */

/** @typedef {{key: string, name: string, colour: string}} Line colour: a colour name of the style sheet */
/** @typedef {(value: number) => string} Format */
/** @typedef {{title: string, lines: Line[], format: Format, least?: number}} Kind least: minimum of the y scale */

const HEIGHT = 132;
const EDGE = { left: 52, right: 8, top: 8, bottom: 20 };
const DASHES = ["", "5 3", "1.5 3"]; // distinguishable without colours
const MAX_PAUSE_MS = 10_000; // a longer pause is a gap in the line
const TABLE_STEP = 15; // points per table row: half a minute

export class Chart {
  #kind;
  #svg = svg("svg", { height: HEIGHT, "aria-hidden": true });
  #legend = h("ul", { class: "chart-legend" });
  #when = h("span", { class: "soft small" });
  #rows = h("div", { class: "numbers" });
  #details = h("details", {}, h("summary", {}, "As a table"), this.#rows);
  #plot;
  #width = 0;
  /** @type {Point[]} */
  #points = [];
  #span = 1;
  /** @type {number | null} Time of the point at the cursor. */
  #cursor = null;

  /** @param {Kind} kind */
  constructor(kind) {
    this.#kind = kind;
    this.#plot = h("div", { class: "plot", role: "slider", tabIndex: 0, "aria-label": `${kind.title}: point in time` });
    this.#plot.append(this.#svg);
    const head = h("div", { class: "chart-head" }, h("h3", {}, kind.title), this.#when);
    this.element = h("figure", { class: "chart" }, head, this.#plot, this.#legend, this.#details);
    this.#listen();
  }

  /**
   * @param {Point[]} points oldest first
   * @param {number} spanMs range of the x axis
   */
  draw(points, spanMs) {
    this.#points = points;
    this.#span = spanMs;
    this.#paint();
  }

  #listen() {
    const plot = this.#plot;
    plot.addEventListener("pointermove", ({ clientX }) => this.#moveTo(clientX - plot.getBoundingClientRect().left));
    plot.addEventListener("pointerleave", () => this.#setCursor(null));
    plot.addEventListener("blur", () => this.#setCursor(null));
    plot.addEventListener("keydown", (event) => this.#onKey(event));
    this.#details.addEventListener("toggle", () => this.#paint());
    new ResizeObserver(([{ contentRect }]) => {
      this.#width = contentRect.width;
      this.#paint();
    }).observe(plot);
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    const last = this.#points.length - 1;
    const now = this.#index();
    const steps = { ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1 };
    const far = { PageDown: now - TABLE_STEP, PageUp: now + TABLE_STEP, Home: 0, End: last };
    const to = /** @type {Record<string, number>} */ ({ ...steps, ...far })[event.key];
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.#setCursor(this.#points[Math.min(last, Math.max(0, to))].at);
  }

  /** Index of the point at the cursor; the newest point if there is none. */
  #index() {
    const found = this.#cursor === null ? -1 : this.#points.findIndex(({ at }) => at === this.#cursor);
    return found < 0 ? this.#points.length - 1 : found;
  }

  /** @param {number} x */
  #moveTo(x) {
    const at = this.#end() - (1 - (x - EDGE.left) / this.#inner()) * this.#span;
    const near = this.#points.reduce(
      (best, point) => (best === null || Math.abs(point.at - at) < Math.abs(best.at - at) ? point : best),
      /** @type {Point | null} */ (null),
    );
    this.#setCursor(near?.at ?? null);
  }

  /** @param {number | null} at */
  #setCursor(at) {
    if (this.#cursor === at) return;
    this.#cursor = at;
    this.#paint();
  }

  #end() {
    return this.#points.at(-1)?.at ?? 0;
  }

  #inner() {
    return Math.max(1, this.#width - EDGE.left - EDGE.right);
  }

  /** @param {number} at */
  #x(at) {
    return EDGE.left + this.#inner() * (1 - (this.#end() - at) / this.#span);
  }

  #paint() {
    this.#paintLegend();
    if (this.#details.open) patchChildren(this.#rows, [this.#table()]);
    if (this.#width === 0) return; // hidden
    const { lines, format, least = 0 } = this.#kind;
    const most = Math.max(least, ...lines.flatMap(({ key }) => this.#points.map(({ values }) => values[key] ?? 0)));
    const ticks = niceTicks(most);
    /** @param {number} value */
    const y = (value) => HEIGHT - EDGE.bottom - ((HEIGHT - EDGE.top - EDGE.bottom) * value) / (ticks.at(-1) ?? 1);
    this.#svg.setAttribute("width", String(this.#width));
    patchChildren(this.#svg, [
      ...ticks.flatMap((tick) => this.#drawTick(y(tick), format(tick))),
      ...this.#drawTimes(),
      ...lines.map((line, n) => this.#drawLine(line, n, y)),
      ...this.#drawCursor(y),
    ]);
  }

  /** Values at the cursor, or the newest, in the legend and for screen readers. */
  #paintLegend() {
    const point = this.#points[this.#index()];
    const words = this.#kind.lines.map(({ key, name }) => `${name} ${this.#format(point?.values[key])}`);
    const when = point === undefined ? "" : clock(new Date(point.at));
    this.#when.textContent = this.#cursor === null ? "" : when;
    patchChildren(this.#legend, this.#kind.lines.map((line, n) => this.#drawName(line, n, point)));
    const facts = { valuemin: 0, valuemax: Math.max(0, this.#points.length - 1), valuenow: Math.max(0, this.#index()) };
    for (const [name, value] of Object.entries({ ...facts, valuetext: `${when} ${words.join(", ")}`.trim() })) {
      this.#plot.setAttribute(`aria-${name}`, String(value));
    }
  }

  /**
   * @param {Line} line
   * @param {number} n
   * @param {Point | undefined} point
   */
  #drawName({ key, name, colour }, n, point) {
    const sample = { class: `line ${colour}`, x1: 0, x2: 18, y1: 5, y2: 5, "stroke-dasharray": DASHES[n] };
    return h(
      "li",
      {},
      svg("svg", { width: 18, height: 10, "aria-hidden": true }, svg("line", sample)),
      ` ${name} `,
      h("b", {}, this.#format(point?.values[key])),
    );
  }

  /** @param {number | null | undefined} value */
  #format(value) {
    return value === null || value === undefined ? NOTHING : this.#kind.format(value);
  }

  /**
   * @param {number} y
   * @param {string} word
   */
  #drawTick(y, word) {
    return [
      svg("line", { class: "grid", x1: EDGE.left, x2: this.#width - EDGE.right, y1: y, y2: y }),
      svg("text", { x: EDGE.left - 6, y: y + 4, "text-anchor": "end" }, word),
    ];
  }

  #drawTimes() {
    const ticks = /** @type {const} */ ([
      [0, "start", ago(this.#span)],
      [0.5, "middle", ago(this.#span / 2)],
      [1, "end", "now"],
    ]);
    return ticks.map(([share, anchor, word]) =>
      svg("text", { x: EDGE.left + this.#inner() * share, y: HEIGHT - 4, "text-anchor": anchor }, word),
    );
  }

  /**
   * @param {Line} line
   * @param {number} n
   * @param {(value: number) => number} y
   */
  #drawLine({ key, colour }, n, y) {
    let path = "";
    let last = -Infinity;
    for (const { at, values } of this.#points) {
      const value = values[key] ?? null;
      const x = this.#x(at);
      if (value === null || x < EDGE.left) continue;
      const point = `${x.toFixed(1)} ${y(value).toFixed(1)}`;
      // A single point is a line to itself, drawn as a dot by round line caps.
      path += at - last > MAX_PAUSE_MS ? `M${point}L${point}` : `L${point}`;
      last = at;
    }
    return svg("path", { class: `line ${colour}`, d: path, "stroke-dasharray": DASHES[n] });
  }

  /** @param {(value: number) => number} y */
  #drawCursor(y) {
    const point = this.#cursor === null ? undefined : this.#points[this.#index()];
    const x = point === undefined ? 0 : this.#x(point.at);
    if (point === undefined || x < EDGE.left) return [];
    const dots = this.#kind.lines.flatMap(({ key, colour }) => {
      const value = point.values[key] ?? null;
      return value === null ? [] : [svg("circle", { class: `dot ${colour}`, cx: x, cy: y(value), r: 3.5 })];
    });
    return [svg("line", { class: "cursor", x1: x, x2: x, y1: EDGE.top, y2: HEIGHT - EDGE.bottom }), ...dots];
  }

  #table() {
    const { title, lines } = this.#kind;
    const rows = this.#points.filter((_, n) => (this.#points.length - 1 - n) % TABLE_STEP === 0).reverse();
    const heads = lines.map(({ name }) => h("th", { scope: "col", class: "number" }, name));
    /** @param {Point} point */
    const drawRow = ({ at, values }) => {
      const cells = lines.map(({ key }) => h("td", { class: "number" }, this.#format(values[key])));
      return h("tr", {}, h("th", { scope: "row" }, clock(new Date(at))), cells);
    };
    return h(
      "table",
      { "aria-label": title },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Time"), heads)),
      h("tbody", {}, rows.map(drawRow)),
    );
  }
}

/** @param {number} ms */
function ago(ms) {
  return ms < 60_000 ? `${ms / 1000} s ago` : `${ms / 60_000} min ago`;
}
