// Table of local models, with buttons to load and unload them.

import { badge } from "../badge.js";
import { h } from "../dom.js";
import { bytes, count, duration, NOTHING } from "../format.js";
import { bar, textOrDash, table } from "./parts.js";

/** @import { Child } from "../dom.js" */
/** @import { Column } from "./parts.js" */

const STATE_BADGES = /** @type {const} */ ({
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
 * @param {Set<string>} pending models with a pending request
 * @returns {Node[]}
 */
export function drawModels(state, pending) {
  const { models, is_admin: isAdmin } = state;
  if (models.length === 0) return [h("p", { class: "soft" }, "There are no local models.")];
  const columns = isAdmin ? [...COLUMNS, actions(pending)] : COLUMNS;
  return [table("Models", columns, models, ({ id }) => id)];
}

/** @type {Column<ModelState>[]} */
const COLUMNS = [
  { title: "Model", cell: ({ id, capabilities }) => [textOrDash(id), about(capabilities)] },
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
      // aria-disabled: `disabled` would remove the focus.
      const props = { class: "mini", "aria-label": `${word} ${id}`, "aria-disabled": String(pending.has(id)) };
      return h("button", { ...props, dataset: { act, name: id } }, word);
    },
  };
}

/**
 * @param {ModelState} model
 * @returns {Child[]}
 */
function drawState({ id, state, error }) {
  const [word, kind] = STATE_BADGES[state];
  return [
    badge(word, kind),
    state === "loading" && h("progress", { class: "loading", "aria-label": `Loading ${id}` }),
    error !== null && h("div", { class: "reason" }, textOrDash(error)),
  ];
}

/** @param {string[]} capabilities */
function about(capabilities) {
  return capabilities.length > 0 && h("div", { class: "soft small about" }, capabilities.join(", "));
}

/**
 * Whole seconds: fractions would only flicker.
 *
 * @param {number} seconds
 */
function whole(seconds) {
  return seconds < 60 ? `${Math.floor(seconds)} s` : duration(Math.floor(seconds) * 1000);
}
