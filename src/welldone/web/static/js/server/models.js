// The local models: how they are, and buttons to load and unload them.

import { badge } from "../badge.js";
import { h } from "../dom.js";
import { bytes, count, duration, NOTHING } from "../format.js";
import { bar, said, table } from "./parts.js";

/** @import { Child } from "../dom.js" */
/** @import { Column } from "./parts.js" */

const LOOKS = /** @type {const} */ ({
  unloaded: ["unloaded", ""],
  loading: ["loading", "info"],
  ready: ["ready", "good"],
  restarting: ["restarting", "warn"],
  failed: ["failed", "bad"],
  stopped: ["stopped", ""],
});
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/**
 * @param {ServerState} state
 * @param {Set<string>} pending the models of which something was asked that is not answered yet
 * @returns {Node[]}
 */
export function drawModels(state, pending) {
  const { models, is_admin: isAdmin } = state;
  if (models.length === 0) return [h("p", { class: "soft" }, "No models run on this machine.")];
  const columns = isAdmin ? [...COLUMNS, actions(pending)] : COLUMNS;
  return [table("Models", columns, models, ({ id }) => id)];
}

/** @type {Column<ModelState>[]} */
const COLUMNS = [
  { title: "Model", cell: ({ id, capabilities }) => [said(id), about(capabilities)] },
  { title: "State", cell: drawState },
  { title: "Slots busy", cell: ({ running, slots }) => bar(running, slots, `${running} of ${slots}`) },
  { title: "Waiting", isNumber: true, cell: ({ waiting, queue }) => `${count(waiting)} of ${count(queue)}` },
  { title: "Context", isNumber: true, cell: ({ context }) => count(context) },
  { title: "Size", isNumber: true, cell: ({ size_bytes: size }) => bytes(size) },
  { title: "Parameters", isNumber: true, cell: ({ parameters: n }) => (n === null ? NOTHING : compact.format(n)) },
  { title: "Idle", isNumber: true, cell: ({ idle_s: idle }) => (idle === null ? NOTHING : whole(idle)) },
  { title: "Restarts", isNumber: true, cell: ({ restarts }) => count(restarts) },
];

/**
 * @param {Set<string>} pending
 * @returns {Column<ModelState>}
 */
function actions(pending) {
  return {
    title: "Actions",
    cell: ({ id, state }) => {
      const act = state === "unloaded" || state === "failed" || state === "stopped" ? "load" : "unload";
      const word = act === "load" ? "Load" : "Unload";
      // It is not disabled outright, which would take the focus away from it.
      const looks = { class: "mini", "aria-label": `${word} ${id}`, "aria-disabled": String(pending.has(id)) };
      return h("button", { ...looks, dataset: { act, name: id } }, word);
    },
  };
}

/**
 * @param {ModelState} model
 * @returns {Child[]}
 */
function drawState({ id, state, error }) {
  const [word, kind] = LOOKS[state];
  return [
    badge(word, kind),
    state === "loading" && h("progress", { class: "loading", "aria-label": `Loading ${id}` }),
    error !== null && h("div", { class: "reason" }, said(error)),
  ];
}

/** @param {string[]} capabilities */
function about(capabilities) {
  return capabilities.length > 0 && h("div", { class: "soft small about" }, capabilities.join(", "));
}

/**
 * Without parts of seconds, which would only flicker.
 *
 * @param {number} seconds
 */
function whole(seconds) {
  return seconds < 60 ? `${Math.floor(seconds)} s` : duration(Math.floor(seconds) * 1000);
}
