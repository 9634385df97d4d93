// Elements and plots of the report. Text only ever becomes text nodes.

import { formatSeconds, timeTicks } from "./numbers.mjs";

// Elements.

/** @typedef {Node | string | false | null} Child */

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, string>} [attributes]
 * @param {...(Child | Child[])} children
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.flat().filter((child) => child !== false && child !== null));
  return element;
}

/** @param {string} title @param {...(Child | Child[])} children */
export const section = (title, ...children) => h("section", {}, h("h2", {}, title), ...children);

/** @param {Child[][]} heads cells without text are no headings @param {Child[][]} rows @param {string} [kind] */
export function table(heads, rows, kind = "scroll") {
  /** @param {"td" | "th"} tag @returns {(cell: Child) => Child} */
  const wrap = (tag) => (cell) => (cell instanceof HTMLTableCellElement ? cell : h(tag, {}, cell));
  const head = heads.map((cells) => h("tr", {}, ...cells.map((cell) => wrap(cell === "" ? "td" : "th")(cell))));
  const body = rows.map((cells) => h("tr", {}, ...cells.map(wrap("td"))));
  return h("div", { class: kind, tabindex: "0" }, h("table", {}, h("thead", {}, ...head), h("tbody", {}, ...body)));
}

/** Add contents when it is opened for the first time. @param {Child[]} summary @param {() => Child[]} makeContent */
export function fold(summary, makeContent) {
  const details = h("details", {}, h("summary", {}, ...summary));
  details.addEventListener("toggle", () => details.append(...makeContent().map((child) => child || "")), {
    once: true,
  });
  return details;
}

// Plots. A figure is drawn when it has a width, and again when the colours change.

/** @typedef {Partial<uPlot.Options> & { data: [number[], ...(number | null)[][]] }} PlotOptions */

/** @type {WeakMap<Element, (width?: number) => void>} */
export const drawings = new WeakMap();
const widths = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) if (contentRect.width) drawings.get(target)?.(contentRect.width);
});

/** @param {string} name */
export const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

/**
 * @param {string} title
 * @param {(isLog: boolean) => PlotOptions} makeOptions
 * @param {{ isLog?: boolean, note?: string, after?: Child[] }} [about] `isLog`: there is a choice, and this is its start
 */
export function figure(title, makeOptions, { isLog, note, after = [] } = {}) {
  const box = h("div", { class: "plot" });
  const isLogBox = h("input", { type: "checkbox" });
  isLogBox.checked = isLog ?? false;
  /** @type {uPlot | null} */
  let plot = null;
  const draw = (/** @type {number} */ width) => {
    plot?.destroy();
    const options = { height: 260, series: [], ...makeOptions(isLogBox.checked), width };
    plot = new uPlot({ ...options, cursor: { drag: { x: true, y: false } } }, options.data, box);
  };
  drawings.set(box, (width) => {
    if (plot && width) plot.setSize({ width, height: plot.height });
    else if (plot || width) draw(width ?? box.clientWidth);
  });
  isLogBox.addEventListener("change", () => draw(box.clientWidth));
  widths.observe(box);
  const toggle = isLog !== undefined && h("label", { class: "quiet small" }, isLogBox, " logarithmic");
  const values = isLog !== undefined && fold(["Values"], () => [valuesTable(makeOptions(isLogBox.checked))]);
  const caption = h("figcaption", {}, title, " ", toggle);
  return h("figure", {}, caption, box, ...after, note ? h("p", { class: "quiet small" }, note) : null, values);
}

/** @param {string} title @param {string} reason */
export const emptyFigure = (title, reason) =>
  h("figure", {}, h("figcaption", {}, title), h("p", { class: "quiet" }, reason));

/** The numbers of a plot. @param {PlotOptions} options */
function valuesTable({ data, series = [] }) {
  const format = (/** @type {number} */ line, /** @type {unknown} */ value) =>
    /** @type {(plot: unknown, value: unknown) => string} */ (series[line].value)(null, value);
  const rows = Array.from(data[0], (_, at) => data.map((values, line) => format(line, values[at])));
  return table([series.map(({ label }) => String(label))], rows);
}

/** @param {Partial<uPlot.Axis>} [more] @returns {uPlot.Axis} */
export function axis(more = {}) {
  const grid = { stroke: () => ink("--line"), width: 1 };
  return {
    stroke: () => ink("--text"),
    grid,
    ticks: grid,
    size: 64,
    labelSize: 20,
    labelGap: 0,
    font: "12px system-ui",
    labelFont: "12px system-ui",
    ...more,
  };
}

/** An axis below the plot. @param {Partial<uPlot.Axis>} more */
export const xAxis = (more) => axis({ size: 32, ...more });

/** @type {uPlot.Axis.DynamicValues} */
const logTimeTicks = (_plot, splits) => splits.map((split) => (split === null ? "" : formatSeconds(split)));

/** @type {uPlot.Axis.DynamicValues} */
const linearTimeTicks = (_plot, splits, _axis, _space, step) => timeTicks(splits, step);

/** Settings of an axis of times. @param {boolean} isLog */
export const timeAxis = (isLog) => ({ values: isLog ? logTimeTicks : linearTimeTicks });

/** A scale from the lowest to the highest value. @param {boolean} isLog @returns {uPlot.Scale} */
export const tightScale = (isLog) => ({ time: false, distr: isLog ? 3 : 1, range: (_plot, low, high) => [low, high] });

/** Dashed vertical lines with names. @param {[string, number][]} marks @returns {(plot: uPlot) => void} */
export function markDrawer(marks) {
  return (plot) => {
    const { ctx, bbox } = plot;
    const size = 12 * devicePixelRatio;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = ink("--text");
    ctx.lineWidth = devicePixelRatio;
    ctx.font = `${size}px system-ui`;
    ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    marks.forEach(([name, value], row) => {
      const x = plot.valToPos(value, "x", true);
      if (!(x >= bbox.left && x <= bbox.left + bbox.width)) return;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      const isRight = x > bbox.left + 0.85 * bbox.width;
      ctx.textAlign = isRight ? "right" : "left";
      ctx.fillText(name, x + (isRight ? -4 : 4) * devicePixelRatio, bbox.top + size * (row + 1));
    });
    ctx.restore();
  };
}

/**
 * A plot of rows with bars; under it, the words of the bar that the pointer is on.
 *
 * @param {string} title
 * @param {Bar[]} bars
 * @param {{ low: number, high: number, height: number, marks: [string, number][], axes: uPlot.Axis[],
 *   isLog?: boolean, note?: string, legend?: Child }} about
 */
export function rowFigure(title, bars, about) {
  const words = h("p", { class: "hover" }, "\u00a0");
  const rows = Math.max(...bars.map((bar) => bar.row)) + 1;
  /** @param {uPlot} plot */
  const draw = (plot) => {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    const colours = new Map();
    for (const { row, spans } of bars) {
      const [top, bottom] = [row + 0.1, row + 0.9].map((level) => plot.valToPos(level, "y", true));
      for (const { from, to, ink: name, alpha, minWidth = 0.3 } of spans) {
        if (!colours.has(name)) colours.set(name, ink(name));
        const [left, right] = [from, to].map((value) => plot.valToPos(value, "x", true));
        const width = Math.max(right - left, minWidth * devicePixelRatio);
        ctx.globalAlpha = alpha;
        ctx.fillStyle = colours.get(name);
        ctx.fillRect(right - width, top, width, Math.max(bottom - top, 1));
      }
    }
    ctx.restore();
  };
  /** @param {uPlot} plot */
  const describe = (plot) => {
    const { left = -1, top = -1 } = plot.cursor;
    const [at, row] = [plot.posToVal(left, "x"), Math.floor(plot.posToVal(top, "y"))];
    const isHere = (/** @type {Bar} */ bar) =>
      bar.row === row && bar.spans[0].from <= at && bar.spans.some(({ to }) => at <= to);
    words.textContent = (left >= 0 && bars.find(isHere)?.words) || "\u00a0";
  };
  return figure(
    title,
    () => ({
      data: [
        [about.low, about.high],
        [null, null],
      ],
      series: [{}, {}],
      height: about.height + 72,
      axes: about.axes,
      scales: { x: tightScale(about.isLog ?? false), y: { range: [0, rows], dir: -1 } },
      legend: { show: false },
      hooks: { draw: [draw, markDrawer(about.marks)], setCursor: [describe] },
    }),
    { note: about.note, after: [words, about.legend ?? null] },
  );
}
