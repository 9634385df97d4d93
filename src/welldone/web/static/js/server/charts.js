// Charts of up to the last ten minutes, since the page was opened.

import { duration } from "../format.js";
import { Chart } from "./chart.js";
import { Measures } from "./measures.js";
import { readMetrics } from "./prometheus.js";
import { Ring } from "./series.js";

/** @import { Kind } from "./chart.js" */
/** @import { Point } from "./measures.js" */

const SPANS_MS = [60_000, 120_000, 300_000]; // used until more data is available
const MAX_SPAN_MS = 600_000;
const MAX_POINTS = 300; // one in two seconds

const large = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const small = new Intl.NumberFormat("en", { maximumSignificantDigits: 2 });

/** @param {number} value */
const number = (value) => (value < 1 ? small : large).format(value);

/** @param {number} seconds */
const time = (seconds) => (seconds === 0 ? "0" : duration(seconds * 1000).replace(/\.0+(?= )/, ""));

/** @type {Kind[]} */
const KINDS = [
  {
    title: "Requests per second",
    format: number,
    lines: [
      { key: "good", name: "2xx", colour: "good" },
      { key: "refused", name: "4xx", colour: "warn" },
      { key: "broken", name: "5xx", colour: "bad" },
    ],
  },
  {
    title: "Tokens per second",
    format: number,
    lines: [
      { key: "completion", name: "completion", colour: "accent" },
      { key: "prompt", name: "prompt", colour: "info" },
    ],
  },
  {
    title: "Time to first token",
    format: time,
    lines: [
      { key: "first50", name: "p50", colour: "info" },
      { key: "first95", name: "p95", colour: "violet" },
    ],
  },
  {
    title: "Gaps between tokens",
    format: time,
    lines: [{ key: "gaps95", name: "p95", colour: "violet" }],
  },
  {
    title: "In flight and waiting",
    format: number,
    least: 3, // so that the ticks are whole numbers
    lines: [
      { key: "running", name: "in flight", colour: "info" },
      { key: "waiting", name: "waiting", colour: "warn" },
    ],
  },
  {
    title: "Repairs per second",
    format: number,
    lines: [{ key: "repairs", name: "repairs", colour: "accent" }],
  },
  {
    title: "Errors per second",
    format: number,
    lines: [
      { key: "failed", name: "broken streams", colour: "bad" },
      { key: "broken", name: "5xx", colour: "warn" },
      { key: "left", name: "client disconnects", colour: "info" },
    ],
  },
];

/** @param {HTMLElement} root */
export function makeCharts(root) {
  const charts = KINDS.map((kind) => new Chart(kind));
  const measures = new Measures();
  /** @type {Ring<Point>} */
  const points = new Ring(MAX_POINTS);
  root.append(...charts.map(({ element }) => element));

  return {
    /** @param {string} text current metrics page */
    add(text) {
      points.push(measures.add(readMetrics(text), Date.now()));
      const span = spanOf(points.items);
      for (const chart of charts) chart.draw(points.items, span);
    },
  };
}

/**
 * Range of the x axis: grows with the data, so that the first minute fills the chart.
 *
 * @param {Point[]} points
 */
function spanOf(points) {
  const age = (points.at(-1)?.at ?? 0) - (points[0]?.at ?? 0);
  return SPANS_MS.find((span) => age <= span) ?? MAX_SPAN_MS;
}
