// Details of one frame: bytes, JSON, events, repairs.

import { badge } from "../badge.js";
import { copyButton } from "../clipboard.js";
import { h } from "../dom.js";
import { bytes, count, duration } from "../format.js";
import { jsonText } from "../json.js";
import { isRecord } from "../record.js";
import { visible } from "../text.js";
import { changes } from "./changes.js";
import { rawHex, rawText } from "./raw.js";
import { jsonOf, read } from "./reading.js";
import { repairLine, ruleItem, shorten } from "./ruleitem.js";
import { frameOf } from "./sources.js";
import { bytesOf } from "./trace.js";
import { tree } from "./tree.js";

/** @import { Item } from "./sources.js" */

/** @typedef {{isHex: boolean}} ViewState display options, kept between frames */

/** Kind of a step without a frame of the upstream. */
export const NO_FRAME = "no frame";
const MAX_STEPS = 20;
const MAX_EVENTS = 50;

/**
 * @param {Item} item
 * @param {ViewState} view
 * @param {() => void} close
 */
export function makeDetail(item, view, close) {
  const { frame } = item;
  const json = jsonOf(frame);
  return [
    head(item, close),
    item.repairs > 0 && repairList(item.steps),
    bytesPart(item, view),
    changesPart(item),
    json !== undefined && h("section", {}, title("JSON", copyButton("Copy JSON", () => pretty(json))), tree(json)),
    events(item.steps),
  ];
}

/**
 * @param {Item} item
 * @param {() => void} close
 */
function head({ frame, hasTime }, close) {
  const when = hasTime ? ` at ${duration(frame.at)}, ${duration(frame.gap)} after the previous frame` : "";
  return h(
    "div",
    { class: "detail-head" },
    h("h3", { tabIndex: -1 }, `Frame ${count(frame.n)}: ${frame.raw === "" ? NO_FRAME : visible(read(frame).kind)}`),
    h("button", { class: "quiet mini", "aria-label": "Close the frame", on: { click: close } }, "✕"),
    h("p", { class: "soft small" }, `${bytes(frame.size)} from byte ${count(frame.byte)}${when}`),
  );
}

/**
 * @param {string} text
 * @param {...HTMLElement} tools
 */
function title(text, ...tools) {
  return h("div", { class: "detail-title" }, h("h4", {}, text), tools);
}

/**
 * The bytes of the upstream beside the bytes sent to the client.
 *
 * @param {Item} item
 * @param {ViewState} view
 */
function bytesPart({ frame, steps, sent }, view) {
  const received = steps.map((step) => step.received).join("");
  const receivedBytes = () => concatenate(steps.map(bytesOf));
  const sentBytes = () => new TextEncoder().encode(sent);
  const columns = h("div", { class: "detail-columns" });
  const fill = () => {
    const left = bytesView(received, "Nothing: sent from held-back or missing data.", receivedBytes, view);
    const right = bytesView(sent, "Nothing: held back or dropped.", sentBytes, view);
    const sentColumn = column("Sent to you", right);
    columns.replaceChildren(...(steps.length ? [column("Upstream", left), sentColumn] : [sentColumn]));
    toggle.setAttribute("aria-pressed", String(view.isHex));
  };
  const toggle = h("button", { class: "quiet mini", on: {
    click: () => {
      view.isHex = !view.isHex;
      fill();
    },
  } }, "Hex");
  fill();
  return h("section", {}, title("Bytes", toggle, copyButton("Copy frame", () => frame.raw)), columns);
}

/**
 * @param {string} text
 * @param {string} emptyText shown if there are no bytes
 * @param {() => Uint8Array} data
 * @param {ViewState} view
 */
function bytesView(text, emptyText, data, view) {
  if (text === "") return h("p", { class: "soft small" }, emptyText);
  return view.isHex ? rawHex(data()) : rawText(text);
}

/**
 * @param {string} name
 * @param {HTMLElement} content
 */
function column(name, content) {
  return h("div", { class: "detail-column" }, h("h5", {}, name), content);
}

/** @param {Uint8Array[]} parts */
function concatenate(parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** @param {Step[]} steps */
function repairList(steps) {
  /** @type {Map<string, {repair: StepRepair, times: number}>} */
  const byRule = new Map();
  for (const repair of steps.slice(0, MAX_STEPS).flatMap((step) => step.repairs)) {
    const known = byRule.get(repair.rule);
    if (known) known.times += repair.count;
    else byRule.set(repair.rule, { repair, times: repair.count });
  }
  const items = [...byRule.values()].map(({ repair, times }) => ruleItem(repair, times, repairLine(repair)));
  return h("section", {}, title("Repairs"), h("ul", { class: "repairs" }, items));
}

/**
 * Fields that differ between the chunk received and the chunk sent, if there is exactly one of each.
 *
 * @param {Item} item
 */
function changesPart({ steps, sent }) {
  const sentSteps = steps.filter((step) => step.sent !== "");
  const [step] = sentSteps;
  if (!step || sentSteps.length > 1 || step.repairs.length === 0) return null;
  const before = jsonOf(frameOf(step));
  const after = jsonOf(frameOf({ ...step, received: sent }));
  if (!isRecord(before) || !isRecord(after)) return null;
  const rows = changes(before, after).map((change) =>
    h("tr", {}, h("th", { scope: "row", class: "mono" }, visible(change.path)),
      h("td", {}, h("code", { class: "was" }, value(change.before))),
      h("td", {}, h("code", { class: "now" }, value(change.after)))),
  );
  if (rows.length === 0) return null;
  const titles = ["Field", "Before", "After"].map((name) => h("th", { scope: "col" }, name));
  return h("section", {}, title("Changed fields"),
    h("table", {}, h("thead", {}, h("tr", {}, titles)), h("tbody", {}, rows)));
}

/** @param {unknown} field */
function value(field) {
  return field === undefined ? "(none)" : shorten(jsonText(field));
}

/** @param {Step[]} steps */
function events(steps) {
  const found = steps.slice(0, MAX_STEPS).flatMap((step) => step.events).slice(0, MAX_EVENTS);
  if (found.length === 0) return null;
  const rows = found.map(({ type, ...fields }) =>
    h("li", {}, badge(visible(type)), " ", h("code", {}, shorten(jsonText(fields)))),
  );
  return h("section", {}, title("Events"), h("ul", { class: "events" }, rows));
}

/** @param {unknown} json */
function pretty(json) {
  return jsonText(json, 2);
}
