// Table of running and queued requests per model and upstream.

import { h } from "../dom.js";
import { count, seconds } from "../format.js";
import { bar, textOrDash, table } from "./parts.js";

/** @import { Column } from "./parts.js" */

/** @typedef {{where: string, running: number, slots: number, waiting: number, wait: number | null}} Queue */

/**
 * @param {ServerState} state
 * @returns {Node[]}
 */
export function drawQueue({ models, upstreams }) {
  const queues = [
    ...models.map((model) => ({ where: model.id, slots: model.slots, wait: model.mean_wait_s, ...busy(model) })),
    ...upstreams.map((one) => ({ where: one.name, slots: one.limit, wait: null, ...busy(one) })),
  ];
  if (queues.length === 0) return [h("p", { class: "soft" }, "There are no models or upstreams.")];
  const [running, waiting] = [total(queues, "running"), total(queues, "waiting")];
  const words = `Total: ${count(running)} running, ${count(waiting)} waiting.`;
  return [h("p", { class: "soft small" }, words), table("Queue", COLUMNS, queues, ({ where }) => where, "")];
}

/** @type {Column<Queue>[]} */
const COLUMNS = [
  { title: "Where", cell: ({ where }) => textOrDash(where) },
  { title: "Running", cell: ({ running, slots }) => bar(running, slots, `${count(running)} of ${count(slots)}`) },
  { title: "Waiting", isNumber: true, cell: ({ waiting }) => count(waiting) },
  { title: "Mean wait", isNumber: true, cell: ({ wait }) => seconds(wait) },
];

/** @param {{running: number, waiting: number}} queue */
function busy({ running, waiting }) {
  return { running, waiting };
}

/**
 * @param {Queue[]} queues
 * @param {"running" | "waiting"} field
 */
function total(queues, field) {
  return queues.reduce((all, queue) => all + queue[field], 0);
}
