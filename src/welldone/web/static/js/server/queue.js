// What runs and what waits, wherever it does.

import { h } from "../dom.js";
import { count, seconds } from "../format.js";
import { bar, said, table } from "./parts.js";

/** @import { Column } from "./parts.js" */

/** @typedef {{where: string, running: number, places: number, waiting: number, wait: number | null}} Place */

/**
 * @param {ServerState} state
 * @returns {Node[]}
 */
export function drawQueue({ models, upstreams }) {
  const places = [
    ...models.map((model) => ({ where: model.id, places: model.slots, wait: model.mean_wait_s, ...busy(model) })),
    ...upstreams.map((one) => ({ where: one.name, places: one.limit, wait: null, ...busy(one) })),
  ];
  if (places.length === 0) return [h("p", { class: "soft" }, "Nothing runs on this machine.")];
  const [running, waiting] = [total(places, "running"), total(places, "waiting")];
  const words = `In all ${count(running)} running, ${count(waiting)} waiting.`;
  return [h("p", { class: "soft small" }, words), table("Queue", COLUMNS, places, ({ where }) => where, "")];
}

/** @type {Column<Place>[]} */
const COLUMNS = [
  { title: "Where", cell: ({ where }) => said(where) },
  { title: "Running", cell: ({ running, places }) => bar(running, places, `${count(running)} of ${count(places)}`) },
  { title: "Waiting", isNumber: true, cell: ({ waiting }) => count(waiting) },
  { title: "Mean wait", isNumber: true, cell: ({ wait }) => seconds(wait) },
];

/** @param {{running: number, waiting: number}} gate */
function busy({ running, waiting }) {
  return { running, waiting };
}

/**
 * @param {Place[]} places
 * @param {"running" | "waiting"} what
 */
function total(places, what) {
  return places.reduce((all, place) => all + place[what], 0);
}
