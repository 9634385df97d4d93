// Table of upstreams: health, latency, attempts and repairs.

import { badge } from "../badge.js";
import { h } from "../dom.js";
import { count, NOTHING, seconds } from "../format.js";
import { ruleLink } from "../rules.js";
import { bar, textOrDash, table } from "./parts.js";

/** @import { Child } from "../dom.js" */
/** @import { Column } from "./parts.js" */

const RULES_SHOWN = 5; // the rest is collapsed
const MODELS_SHOWN = 3;

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
  { title: "TTFT p50", isNumber: true, cell: ({ ttft_s: { p50 } }) => seconds(p50) },
  { title: "TTFT p95", isNumber: true, cell: ({ ttft_s: { p95 } }) => seconds(p95) },
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
function drawHealth({ is_healthy: isHealthy, failing, trouble }) {
  return [
    isHealthy ? badge(failing === null ? "healthy" : "requests fail", failing === null ? "good" : "bad")
      : badge("unreachable", "bad"),
    isHealthy && failing !== null
      && h("div", { class: "reason" }, `All recent requests failed; the last: ${textOrDash(failing)}`),
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
    h("ul", { class: "facts" }, some.map(({ rule, count: n }) => h("li", {}, ruleLink(rule), ` ${count(n)}`)));
  const rest = findings.slice(RULES_SHOWN);
  return [
    list(findings.slice(0, RULES_SHOWN)),
    rest.length > 0 && h("details", {}, h("summary", {}, `${rest.length} more`), list(rest)),
  ];
}
