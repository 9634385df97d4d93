// Table of upstreams: health, latency, attempts and repairs.

import { badge } from "../badge.js";
import { h } from "../dom.js";
import { count, NOTHING, seconds } from "../format.js";
import { ruleLink, severityBadge } from "../rules.js";
import { bar, textOrDash, table } from "./parts.js";

/** @import { Child } from "../dom.js" */
/** @import { Column } from "./parts.js" */

const RULES_SHOWN = 5; // the rest is collapsed
const MODELS_SHOWN = 3;
const MANY_FAILURES = 3; // one or two may be chance

const BREAKER = /** @type {const} */ ({
  closed: ["closed", ""],
  open: ["open", "bad"],
  "half-open": ["half-open: probing", "warn"],
});

/**
 * @param {ServerState} state
 * @returns {Node[]}
 */
export function drawUpstreams({ upstreams }) {
  if (upstreams.length === 0) return [h("p", { class: "soft" }, "No upstreams are configured.")];
  return [table("Upstreams", COLUMNS, upstreams, ({ name }) => name)];
}

/** @type {Column<UpstreamState>[]} */
const COLUMNS = [
  { title: "Upstream", cell: ({ name, kind, models }) => [textOrDash(name), about(kind, models)] },
  { title: "Health", cell: drawHealth },
  { title: "Breaker", cell: drawBreaker },
  { title: "Running", cell: ({ running, limit }) => bar(running, limit, `${count(running)} of ${count(limit)}`) },
  { title: "Waiting", isNumber: true, cell: ({ waiting }) => count(waiting) },
  {
    title: "TTFT p50, p95",
    isNumber: true,
    cell: ({ ttft_s: { p50, p95, count: n } }) => (n ? [p50, p95].map((one) => h("div", {}, seconds(one))) : NOTHING),
  },
  { title: "Errors, 5 min", cell: ({ window: { failures, requests } }) => drawRate(failures, requests, "bad") },
  { title: "Repaired, 5 min", cell: drawRepaired },
  { title: "Attempts", cell: ({ attempts }) => drawAttempts(attempts) },
  { title: "Repairs", cell: ({ findings }) => drawFindings(findings) },
];

/**
 * @param {string | null} kind
 * @param {string[]} models
 */
function about(kind, models) {
  const shown = models.slice(0, MODELS_SHOWN).map(textOrDash).join(", ");
  const more = models.length > MODELS_SHOWN ? ` and ${models.length - MODELS_SHOWN} more` : "";
  const words = [kind === null ? "" : textOrDash(kind), shown + more].filter((word) => word !== "").join(": ");
  return words !== "" && h("div", { class: "soft small about" }, words);
}

/**
 * @param {UpstreamState} upstream
 * @returns {Child[]}
 */
function drawHealth({ is_healthy: isHealthy, failing, trouble, window: { failures, requests } }) {
  // `failing` is of one worker, the window of all.
  const isFailing = failing !== null || (failures >= MANY_FAILURES && failures === requests);
  return [
    isHealthy && badge(isFailing ? "requests fail" : "healthy", isFailing ? "bad" : "good"),
    !isHealthy && badge("unreachable", "bad"),
    isHealthy && isFailing && h("div", { class: "reason" },
      `All recent requests failed${failing === null ? "." : `; the last: ${textOrDash(failing)}`}`),
    trouble !== null && h("div", { class: "reason" }, textOrDash(trouble)),
  ];
}

/**
 * @param {UpstreamState} upstream
 * @returns {Child[]}
 */
function drawBreaker({ breaker, retry_after_s: wait }) {
  const [word, kind] = BREAKER[breaker];
  return [
    badge(word, kind),
    breaker === "open" && wait > 0 && h("div", { class: "soft small" }, `next try in ${Math.ceil(wait)} s`),
  ];
}

/**
 * A share of the requests, with a tone if it is not 0.
 *
 * @param {number} part
 * @param {number} requests
 * @param {"bad" | "warn" | "info"} tone
 */
function drawRate(part, requests, tone) {
  if (requests === 0) return NOTHING;
  return [badge(percent(part, requests), part > 0 ? tone : "good"),
    h("div", { class: "soft small" }, `${count(part)} of ${count(requests)}`)];
}

/**
 * @param {UpstreamState} upstream
 * @returns {Child | Child[]}
 */
function drawRepaired({ window: { repaired, breaking, requests, failures } }) {
  // An answer that failed half-way may have been repaired before.
  const answers = Math.max(repaired, requests - failures);
  const drawn = drawRate(repaired, answers, breaking > 0 ? "warn" : "info");
  const harm = h("div", { class: "soft small" }, `${count(breaking)} would break clients`);
  return breaking === 0 ? drawn : [...drawn, harm];
}

/**
 * @param {number} part
 * @param {number} whole
 */
function percent(part, whole) {
  const share = (100 * part) / whole;
  // Neither "0 %" nor "100 %" unless it is exact.
  if (part > 0 && share < 1) return "< 1 %";
  return `${part < whole ? Math.min(99, Math.round(share)) : 100} %`;
}

/** @param {Record<string, number>} attempts */
function drawAttempts(attempts) {
  const all = Object.entries(attempts).sort(([, one], [, other]) => other - one);
  if (all.length === 0) return NOTHING;
  return h("ul", { class: "facts" }, all.map(([outcome, n]) => h("li", {}, outcomeBadge(outcome), ` ${count(n)}`)));
}

/** @param {string} outcome */
function outcomeBadge(outcome) {
  if (/^[23]/.test(outcome)) return badge(outcome, "good");
  return badge(outcome, /^4/.test(outcome) || outcome === "left" ? "warn" : "bad");
}

/** @param {UpstreamState["findings"]} findings */
function drawFindings(findings) {
  if (findings.length === 0) return NOTHING;
  /** @param {UpstreamState["findings"]} some */
  const list = (some) =>
    h("ul", { class: "facts" }, some.map(({ rule, severity, count: n }) =>
      h("li", {}, ruleLink(rule), ` ×\u00a0${count(n)} `, severity && severityBadge(severity))));
  const rest = findings.slice(RULES_SHOWN);
  return [
    list(findings.slice(0, RULES_SHOWN)),
    rest.length > 0 && h("details", {}, h("summary", {}, `${rest.length} more`), list(rest)),
  ];
}
