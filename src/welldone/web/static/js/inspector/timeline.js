// Timeline of frames: a dot for each, with its time on the x axis and its gap on the y axis, and a summary in text.

import { fill, h } from "../dom.js";
import { count, duration } from "../format.js";
import { gapFigures, upstreamDots } from "./gaps.js";

/** @import { Entry } from "./entry.js" */
/** @import { Dot } from "./gaps.js" */

/** @typedef {ReturnType<typeof gapFigures>} Figures */

/** Minimum time between redraws: drawing 50,000 dots is expensive. */
const REDRAW_MS = 250;
const HEIGHT = 220;
const LEFT = 52;
const BELOW = 24;
const ABOVE = 10;
/** Grid lines of the logarithmic gap axis. Shorter gaps are drawn on the lowest. */
const LINES_MS = [0.1, 1, 10, 100, 1_000, 10_000, 100_000];

export class TimelineView {
  #canvas = h("canvas", { class: "timeline", "aria-hidden": "true" });
  #summary = h("p", { class: "small", role: "status" });
  #figures = h("div");
  #slider = h("input", { type: "range", min: "0", max: "0", value: "0", "aria-label": "Frame on the timeline" });
  #reading = h("output", { class: "small mono" }, "Point at the timeline, or use the slider, to see a frame.");
  /** @type {Entry | null} */
  #entry = null;
  #drawnAt = 0;
  #drawn = "";
  #timer = 0;

  constructor() {
    this.element = h("div", { class: "insp-scroll timeline-view" }, this.#figures, this.#canvas,
      h("p", { class: "legend small soft" }, h("span", { class: "legend-sent" }, "▪ sent to you"),
        h("span", { class: "legend-upstream" }, "▫ upstream"), h("span", { class: "legend-stall" }, "▲ stall")),
      this.#slider, this.#reading, this.#summary);
    this.#slider.addEventListener("input", () => this.#showFrame(Number(this.#slider.value)));
    this.#canvas.addEventListener("pointermove", (event) => this.#point(event));
    new ResizeObserver(() => this.#redraw()).observe(this.#canvas);
    new MutationObserver(() => this.#redraw()).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  }

  /** @param {Entry | null} entry */
  update(entry) {
    this.#entry = entry;
    const state = entry && [entry.exchange.captureId, entry.exchange.frames.length, entry.capture.steps.length].join();
    if (state === this.#drawn) return;
    clearTimeout(this.#timer);
    const wait = this.#drawnAt + REDRAW_MS - performance.now();
    if (wait > 0) this.#timer = setTimeout(() => this.#redraw(), wait);
    else this.#redraw();
  }

  #redraw() {
    const entry = this.#entry;
    if (!entry || !this.#canvas.clientWidth) return;
    const { frames } = entry.exchange;
    this.#drawn = [entry.exchange.captureId, frames.length, entry.capture.steps.length].join();
    this.#drawnAt = performance.now();
    const upstream = upstreamDots(entry.capture.steps);
    const ours = gapFigures(frames);
    this.#showFigures(entry, ours, gapFigures(upstream));
    this.#slider.max = String(Math.max(0, frames.length - 1));
    new Plot(this.#canvas, frames, upstream).draw(entry.totals.firstTokenAt, ours.stalls);
  }

  /**
   * @param {Entry} entry
   * @param {Figures} ours
   * @param {Figures} theirs
   */
  #showFigures({ exchange, totals }, ours, theirs) {
    const names = ["Gaps", "p50", "p95", "max", "stalls"];
    const row = (/** @type {string} */ name, /** @type {Figures} */ { p50, p95, max, stalls }) =>
      h("tr", {}, h("th", { scope: "row" }, name), [duration(p50), duration(p95), duration(max), count(stalls.length)]
        .map((text) => h("td", { class: "number" }, text)));
    const titles = names.map((name) => h("th", { scope: "col", class: name === "Gaps" ? "" : "number" }, name));
    fill(this.#figures, h("table", {}, h("thead", {}, h("tr", {}, titles)),
      h("tbody", {}, row("Sent to you", ours), theirs.max !== null && row("Upstream", theirs))));
    const stalls = ours.stalls.slice(0, 5).map((dot) => `${duration(dot.gap)} before ${duration(dot.at)}`);
    this.#summary.textContent =
      `First token after ${duration(totals.firstTokenAt)}, ${count(exchange.frames.length)} frames in ` +
      `${duration(exchange.frames.at(-1)?.at)}. ` +
      (stalls.length ? `Stalls: ${stalls.join(", ")}${ours.stalls.length > 5 ? ", and more" : ""}.` : "No stalls.");
  }

  /** @param {number} index */
  #showFrame(index) {
    const frame = this.#entry?.exchange.frames[index];
    if (!frame) return;
    const text = `frame ${count(frame.n)} at ${duration(frame.at)}, gap ${duration(frame.gap)}`;
    this.#reading.textContent = text;
    this.#slider.value = String(index);
    this.#slider.setAttribute("aria-valuetext", text);
  }

  /** @param {PointerEvent} event */
  #point(event) {
    const frames = this.#entry?.exchange.frames ?? [];
    const span = frames.at(-1)?.at ?? 0;
    const at = ((event.offsetX - LEFT) / (this.#canvas.clientWidth - LEFT)) * span;
    this.#showFrame(nearest(frames, at));
  }
}

/**
 * The index of the last dot at or before a time.
 *
 * @param {Dot[]} dots sorted by time
 * @param {number} at
 */
function nearest(dots, at) {
  let [low, high] = [0, dots.length - 1];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (dots[middle].at <= at) low = middle;
    else high = middle - 1;
  }
  return Math.max(0, low);
}

class Plot {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {Dot[]} sent
   * @param {Dot[]} upstream
   */
  constructor(canvas, sent, upstream) {
    const scale = window.devicePixelRatio;
    this.width = canvas.clientWidth;
    canvas.width = this.width * scale;
    canvas.height = HEIGHT * scale;
    this.pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    this.pen.scale(scale, scale);
    this.colours = getComputedStyle(canvas);
    this.sent = sent;
    this.upstream = upstream;
    this.span = Math.max(sent.at(-1)?.at ?? 0, upstream.at(-1)?.at ?? 0, 1);
    const longest = [...sent, ...upstream].reduce((most, dot) => Math.max(most, dot.gap), 0);
    this.lines = LINES_MS.slice(0, Math.max(3, LINES_MS.findIndex((line) => line >= longest) + 1 || LINES_MS.length));
  }

  /**
   * @param {number | null} firstTokenAt
   * @param {Dot[]} stalls
   */
  draw(firstTokenAt, stalls) {
    this.axes();
    if (firstTokenAt !== null) this.mark(firstTokenAt, "TTFT");
    this.pen.strokeStyle = this.colour("--violet");
    for (const dot of this.upstream) this.pen.strokeRect(this.x(dot.at) - 1.5, this.y(dot.gap) - 1.5, 3, 3);
    this.pen.fillStyle = this.colour("--info");
    for (const dot of this.sent) this.pen.fillRect(this.x(dot.at) - 1.5, this.y(dot.gap) - 1.5, 3, 3);
    this.pen.fillStyle = this.colour("--bad");
    for (const dot of stalls) this.triangle(this.x(dot.at), this.y(dot.gap));
  }

  axes() {
    const { pen } = this;
    pen.font = "11px system-ui, sans-serif";
    pen.strokeStyle = this.colour("--line");
    pen.fillStyle = this.colour("--soft-ink");
    for (const line of this.lines) {
      pen.strokeRect(LEFT, Math.round(this.y(line)) + 0.5, this.width - LEFT, 0);
      pen.fillText(line < 1 ? "≤0.1 ms" : line < 1_000 ? `${line} ms` : `${line / 1_000} s`, 2, this.y(line) + 4);
    }
    for (const share of [0, 0.25, 0.5, 0.75, 1]) {
      pen.textAlign = share === 1 ? "right" : share === 0 ? "left" : "center";
      pen.fillText(duration(share * this.span).replace(/^0 µs$/, "0"), this.x(share * this.span), HEIGHT - 6);
    }
    pen.textAlign = "left";
  }

  /**
   * @param {number} at
   * @param {string} name
   */
  mark(at, name) {
    const isRight = this.x(at) > this.width - 50;
    this.pen.fillStyle = this.colour("--accent");
    this.pen.fillRect(this.x(at), ABOVE, 1, HEIGHT - ABOVE - BELOW);
    this.pen.fillText(name, this.x(at) + (isRight ? -34 : 4), ABOVE + 8);
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  triangle(x, y) {
    this.pen.beginPath();
    this.pen.moveTo(x, y - 6);
    this.pen.lineTo(x + 5, y + 4);
    this.pen.lineTo(x - 5, y + 4);
    this.pen.fill();
  }

  /** @param {number} at */
  x(at) {
    return LEFT + 4 + (at / this.span) * (this.width - LEFT - 8);
  }

  /** @param {number} gap */
  y(gap) {
    const [low, high] = [Math.log10(this.lines[0] ?? 1), Math.log10(this.lines.at(-1) ?? 10)];
    const share = (Math.max(low, Math.log10(Math.max(gap, 1e-9))) - low) / (high - low);
    return HEIGHT - BELOW - Math.min(1, share) * (HEIGHT - BELOW - ABOVE);
  }

  /** @param {string} name */
  colour(name) {
    return this.colours.getPropertyValue(name);
  }
}
