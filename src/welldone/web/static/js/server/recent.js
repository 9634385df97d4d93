// Table of recent requests, without their content.

import { badge } from "../badge.js";
import { h } from "../dom.js";
import { clock, count, duration, NOTHING } from "../format.js";
import { ruleLink } from "../rules.js";
import { matches } from "./filter.js";
import { textOrDash, table } from "./parts.js";
import { patchChildren } from "./patch.js";

/** @import { Child } from "../dom.js" */
/** @import { Column } from "./parts.js" */

const STATUSES = { "": "All", 2: "2xx: success", 4: "4xx: rejected", 5: "5xx: failed", repaired: "Repaired" };

/** @param {HTMLElement} root */
export function makeRecent(root) {
  /** @type {ServerState | null} */
  let state = null;
  const redraw = () => state !== null && draw(state);
  const model = h("select", { on: { change: redraw } });
  const status = h("select", { on: { change: redraw } });
  const text = h("input", { type: "search", placeholder: "path, key, rule, id…", on: { input: redraw } });
  const summary = h("p", { class: "soft small", role: "status" });
  // Scrolls on its own, so it must be reachable by keyboard.
  const box = h("div", { class: "recent", tabIndex: 0, role: "region", "aria-label": "List of recent requests" });
  status.append(...options(STATUSES));
  const filters = [field("Model", model), field("Status", status), field("Search", text)];
  root.append(h("div", { class: "filters" }, filters), summary, box);

  /** @param {ServerState} now */
  function draw(now) {
    state = now;
    const names = [...new Set(now.recent.flatMap(({ model: name }) => name ?? []))].sort();
    if (model.value !== "" && !names.includes(model.value)) names.push(model.value);
    patchChildren(model, options({ "": "All", ...Object.fromEntries(names.map((name) => [name, textOrDash(name)])) }));
    const filter = { model: model.value, status: status.value, text: text.value.trim() };
    const shown = now.recent.filter((request) => matches(request, filter));
    const counted = shown.length === now.recent.length ? "" : `${shown.length} of ${now.recent.length} shown.`;
    if (summary.textContent !== counted) summary.textContent = counted;
    patchChildren(box, drawRows(now, shown));
  }

  return { draw };
}

/**
 * @param {ServerState} state
 * @param {RecentRequest[]} shown
 * @returns {Node[]}
 */
function drawRows({ recent, is_admin: isAdmin, is_recording: isRecording }, shown) {
  if (recent.length === 0) return [h("p", { class: "soft" }, "No requests yet.")];
  if (shown.length === 0) return [h("p", { class: "soft" }, "No recent request matches the filter.")];
  const columns = isAdmin && isRecording ? [...COLUMNS, INSPECT] : COLUMNS;
  // Clients choose request ids and may repeat them.
  return [table("Recent requests", columns, shown, ({ request_id: id, at }) => `${id} ${at}`)];
}

/** @type {Column<RecentRequest>[]} */
const COLUMNS = [
  { title: "Time", cell: ({ at, request_id: id }) => h("span", { title: id }, clock(new Date(at * 1000))) },
  { title: "Request", cell: ({ method, path }) => h("span", { class: "mono" }, `${method} ${textOrDash(path)}`) },
  { title: "Model", cell: ({ model }) => textOrDash(model) },
  { title: "Status", cell: drawStatus },
  { title: "In", isNumber: true, cell: ({ prompt_tokens: n }) => count(n) },
  { title: "Out", isNumber: true, cell: ({ completion_tokens: n }) => count(n) },
  { title: "Queued", isNumber: true, cell: ({ queued_ms: ms }) => (ms ? duration(ms) : NOTHING) },
  { title: "TTFT", isNumber: true, cell: ({ ttft_ms: ms }) => duration(ms) },
  { title: "Took", isNumber: true, cell: ({ duration_ms: ms }) => duration(ms) },
  { title: "Repairs", cell: ({ repaired = [] }) => drawRepairs(repaired) },
  { title: "Upstream", cell: drawUpstream },
  { title: "Key", cell: ({ principal }) => textOrDash(principal) },
];

/** @type {Column<RecentRequest>} */
const INSPECT = {
  title: "Recording",
  cell: ({ is_recorded: isRecorded, request_id: id }) => {
    const props = { class: "mini", "aria-label": "Open in the inspector", title: "Open in the inspector" };
    return isRecorded && h("button", { ...props, dataset: { act: "open", name: id } }, "Open");
  },
};

/**
 * @param {RecentRequest} request
 * @returns {Child[]}
 */
function drawStatus({ status, error, has_left: hasLeft }) {
  const kind = status < 400 ? "good" : status < 500 ? "warn" : "bad";
  return [
    badge(String(status), error !== undefined && status < 400 ? "bad" : kind),
    hasLeft === true && badge("client disconnected", "warn"),
    error !== undefined && h("div", { class: "reason" }, textOrDash(error)),
  ];
}

/** @param {string[]} repaired */
function drawRepairs(repaired) {
  if (repaired.length <= 1) return repaired.map((rule) => ruleLink(rule));
  const list = h("ul", { class: "facts" }, repaired.map((rule) => h("li", {}, ruleLink(rule))));
  return h("details", {}, h("summary", {}, badge(`${repaired.length} rules`, "warn")), list);
}

/**
 * @param {RecentRequest} request
 * @returns {Child[]}
 */
function drawUpstream({ upstream, failed = [] }) {
  return [
    textOrDash(upstream),
    failed.length > 0 && h("div", { class: "reason" }, `after ${failed.map(textOrDash).join(", ")} failed`),
  ];
}

/** @param {Record<string, string>} words */
function options(words) {
  return Object.entries(words)
    .sort(([one], [other]) => Number(other === "") - Number(one === ""))
    .map(([value, word]) => h("option", { value, dataset: { key: `=${value}` } }, word));
}

/**
 * @param {string} label
 * @param {HTMLElement} input
 */
function field(label, input) {
  return h("label", {}, h("span", {}, label), input);
}
