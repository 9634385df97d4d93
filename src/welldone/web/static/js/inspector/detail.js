// All that is known of one frame: its bytes, its JSON, the events that it became, what was repaired.

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
import { mended, ruleItem, shortly } from "./ruleitem.js";
import { frameOf } from "./sources.js";
import { bytesOf } from "./trace.js";
import { tree } from "./tree.js";

/** @import { Item } from "./sources.js" */

/** @typedef {{isHex: boolean}} Looks how it was last looked at */

/** The kind of a step for which nothing came. */
export const NO_FRAME = "no frame";
const MOST_STEPS = 20;
const MOST_EVENTS = 50;

/**
 * @param {Item} item
 * @param {Looks} looks
 * @param {() => void} close
 */
export function makeDetail(item, looks, close) {
  const { frame } = item;
  const json = jsonOf(frame);
  return [
    head(item, close),
    item.repairs > 0 && notes(item.steps),
    bytesPart(item, looks),
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
  const when = hasTime ? ` at ${duration(frame.at)}, ${duration(frame.gap)} after the one before` : "";
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
 * What the upstream said beside what we were sent for it.
 *
 * @param {Item} item
 * @param {Looks} looks
 */
function bytesPart({ frame, steps, said }, looks) {
  const heard = steps.map((step) => step.heard).join("");
  const heardBytes = () => joined(steps.map(bytesOf));
  const saidBytes = () => new TextEncoder().encode(said);
  const columns = h("div", { class: "detail-columns" });
  const fill = () => {
    const upstream = column("Upstream", shown(heard, "Nothing: what was held back, or is missing.", heardBytes, looks));
    const ours = column("Sent to you", shown(said, "Nothing: it was held back, or left out.", saidBytes, looks));
    columns.replaceChildren(...(steps.length ? [upstream, ours] : [ours]));
    toggle.setAttribute("aria-pressed", String(looks.isHex));
  };
  const toggle = h("button", { class: "quiet mini", on: {
    click: () => {
      looks.isHex = !looks.isHex;
      fill();
    },
  } }, "Hex");
  fill();
  return h("section", {}, title("Bytes", toggle, copyButton("Copy frame", () => frame.raw)), columns);
}

/**
 * @param {string} text
 * @param {string} why what is said where there is none
 * @param {() => Uint8Array} data
 * @param {Looks} looks
 */
function shown(text, why, data, looks) {
  if (text === "") return h("p", { class: "soft small" }, why);
  return looks.isHex ? rawHex(data()) : rawText(text);
}

/**
 * @param {string} name
 * @param {HTMLElement} content
 */
function column(name, content) {
  return h("div", { class: "detail-column" }, h("h5", {}, name), content);
}

/** @param {Uint8Array[]} parts */
function joined(parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** @param {Step[]} steps */
function notes(steps) {
  const found = steps.slice(0, MOST_STEPS).flatMap((step) => step.notes);
  const items = found.map((note) => ruleItem(note, note.count, mended(note)));
  return h("section", {}, title("Repairs"), h("ul", { class: "repairs" }, items));
}

/**
 * The fields that differ between the upstream's chunk and ours, where both are one chunk.
 *
 * @param {Item} item
 */
function changesPart({ steps, said }) {
  const spoken = steps.filter((step) => step.said !== "");
  const [step] = spoken;
  if (!step || spoken.length > 1 || step.notes.length === 0) return null;
  const before = jsonOf(frameOf(step));
  const after = jsonOf(frameOf({ ...step, heard: said }));
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
  return field === undefined ? "(none)" : shortly(jsonText(field));
}

/** @param {Step[]} steps */
function events(steps) {
  const found = steps.slice(0, MOST_STEPS).flatMap((step) => step.events).slice(0, MOST_EVENTS);
  if (found.length === 0) return null;
  const rows = found.map(({ type, ...fields }) =>
    h("li", {}, badge(visible(type)), " ", h("code", {}, shortly(jsonText(fields)))),
  );
  return h("section", {}, title("Events"), h("ul", { class: "events" }, rows));
}

/** @param {unknown} json */
function pretty(json) {
  return jsonText(json, 2);
}
