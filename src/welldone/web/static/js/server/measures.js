// Chart values computed from successive metrics pages.

import { bucketsOf, increases, quantile, Ring, sum } from "./series.js";

/** @import { Metrics } from "./prometheus.js" */
/** @import { Buckets } from "./series.js" */

/** @typedef {{at: number, values: Record<string, number | null>}} Point at: time in ms; null: no data */
/** @typedef {{seconds: number, counts: Record<string, number>, first: Buckets, gaps: Buckets}} Step */

/** Endpoints of the page itself, left out of the charts. */
const OWN = new Set(["page", "metrics", "health"]);

/** Rates over 10 s and quantiles over 30 s: shorter windows are too noisy. */
const RATE_STEPS = 5;
const QUANTILE_STEPS = 15;

/** After a longer pause (five times the usual) the windows start again. */
const MAX_PAUSE_MS = 10_000;

const COUNTERS = {
  prompt: "welldone_prompt_tokens_total",
  completion: "welldone_completion_tokens_total",
  repairs: "welldone_findings_total",
  failed: "welldone_stream_failures_total",
  left: "welldone_client_disconnects_total",
};
const RUNNING = ["llamacpp:requests_processing", "welldone_upstream_running"];
const WAITING = ["welldone_queue_depth", "welldone_upstream_waiting"];

export class Measures {
  /** @type {{metrics: Metrics, at: number} | null} */
  #last = null;
  /** @type {Ring<Step>} */
  #steps = new Ring(QUANTILE_STEPS);

  /**
   * @param {Metrics} metrics
   * @param {number} at time of the metrics in ms
   * @returns {Point}
   */
  add(metrics, at) {
    const last = this.#last;
    this.#last = { metrics, at };
    if (last === null || at - last.at > MAX_PAUSE_MS) this.#steps = new Ring(QUANTILE_STEPS);
    else if (at > last.at) this.#steps.push(makeStep(last.metrics, metrics, (at - last.at) / 1000));
    return { at, values: { ...gauges(metrics), ...rates(this.#steps.items), ...quantiles(this.#steps.items) } };
  }
}

/**
 * @param {Metrics} before
 * @param {Metrics} now
 * @param {number} seconds
 * @returns {Step}
 */
function makeStep(before, now, seconds) {
  const requests = increases(before, now, "welldone_requests_total").filter(({ labels }) => !OWN.has(labels.endpoint));
  /** @param {string} digit */
  const ofClass = (digit) => sum(requests.filter(({ labels }) => labels.status.startsWith(digit)));
  /** @param {string} name */
  const buckets = (name) => bucketsOf(increases(before, now, `${name}_bucket`));
  const others = Object.entries(COUNTERS).map(([key, name]) => [key, sum(increases(before, now, name))]);
  return {
    seconds,
    counts: { good: ofClass("2"), refused: ofClass("4"), broken: ofClass("5"), ...Object.fromEntries(others) },
    first: buckets("welldone_time_to_first_token_seconds"),
    gaps: buckets("welldone_inter_token_seconds"),
  };
}

/** @param {Metrics} metrics */
function gauges(metrics) {
  /** @param {string[]} names */
  const all = (names) => sum(names.flatMap((name) => [...(metrics.get(name)?.values() ?? [])]));
  return { running: all(RUNNING), waiting: all(WAITING) };
}

/**
 * @param {Step[]} steps
 * @returns {Record<string, number>}
 */
function rates(steps) {
  const latest = steps.slice(-RATE_STEPS);
  const seconds = latest.reduce((total, step) => total + step.seconds, 0);
  const names = Object.keys(latest[0]?.counts ?? {});
  return Object.fromEntries(
    names.map((name) => [name, latest.reduce((total, { counts }) => total + counts[name], 0) / seconds]),
  );
}

/** @param {Step[]} steps */
function quantiles(steps) {
  const first = together(steps.map((step) => step.first));
  const gaps = together(steps.map((step) => step.gaps));
  return { first50: quantile(first, 0.5), first95: quantile(first, 0.95), gaps95: quantile(gaps, 0.95) };
}

/** @param {Buckets[]} all */
function together(all) {
  /** @type {Buckets} */
  const whole = new Map();
  for (const [bound, count] of all.flatMap((buckets) => [...buckets])) {
    whole.set(bound, (whole.get(bound) ?? 0) + count);
  }
  return whole;
}
