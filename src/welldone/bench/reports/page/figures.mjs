// Figures of the report: ratios, curves by load, histograms, timelines.

import {
  MIN_TIME_S,
  MISSING,
  WHOLE,
  assignRows,
  countInBins,
  formatNumber,
  formatSeconds,
  plural,
  requestCounts,
  samples,
  splitMetric,
  startOf,
  statistic,
  tokenRates,
  verdict,
} from "./numbers.mjs";
import {
  axis,
  emptyFigure,
  figure,
  h,
  ink,
  markDrawer,
  rowFigure,
  section,
  tightScale,
  timeAxis,
  xAxis,
} from "./plots.mjs";

const MARKED = ["p50", "p90", "p99"];
const RATIOS = [0.01, 0.1, 0.2, 0.5, 0.8, 0.9, 1, 1.1, 1.25, 2, 5, 10, 100];
const INKS = ["--a", "--b", "--c", "--d"];
const DASHES = [[], [10, 4], [3, 3], [10, 4, 3, 4]]; // colour is never the only distinction
export const STATISTICS = ["mean", "p50", "p90", "p99"];
/** @type {Record<string, string>} */
export const TIMES = { ttft: "first token (TTFT)", itl: "between tokens (ITL)", e2e: "complete answer (E2E)" };
/** @type {Record<string, string>} */
export const HISTOGRAMS = {
  ttft: "Time to first token",
  itl: "Time between tokens, per request",
  gap: "Time between chunks, over all requests",
  e2e: "Time of the complete answer",
};
/** @type {Record<string, string>} */
const OUTCOME_INKS = {
  ok: "--a",
  refused: "--refused",
  failed: "--fail",
  cut: "--cut",
  broken: "--broken",
  "timed out": "--timed",
  unreachable: "--gone",
  unfinished: "--left",
};

/** Ratios with their intervals. On a logarithmic axis 2 and 0.5 are equally far from 1. @param {string} title @param {Comparison[]} all */
export function ratioFigure(title, all) {
  const comparisons = all.filter(({ ratio, low, high }) => [ratio, low, high].every((value) => value > 0));
  if (!comparisons.length) return emptyFigure(title, "No data.");
  const bars = comparisons.map((one, row) => {
    const { metric, ratio, low, high } = one;
    const name = { pass: "--pass", fail: "--fail" }[verdict(one)[1]] ?? "--text";
    const words = `${metric}: ${formatNumber(ratio)}, between ${formatNumber(low)} and ${formatNumber(high)}`;
    const band = { from: low, to: high, ink: name, alpha: 0.4 };
    return { row, spans: [band, { from: ratio, to: ratio, ink: name, alpha: 1, minWidth: 3 }], words };
  });
  const values = comparisons.flatMap(({ low, high }) => [low, high]);
  const names = axis({
    size: 150,
    splits: bars.map((bar) => bar.row + 0.5),
    values: comparisons.map(({ metric }) => splitMetric(metric)[1].slice(0, 20)),
  });
  return rowFigure(title, bars, {
    low: Math.min(0.8, ...values),
    high: Math.max(1.25, ...values),
    height: 28 * bars.length,
    marks: [["", 1]],
    axes: [
      xAxis({
        label: "ratio",
        splits: (_plot, _axis, low, high) => RATIOS.filter((ratio) => ratio >= low && ratio <= high),
        filter: (_plot, splits) => splits,
      }),
      names,
    ],
    isLog: true,
    note: "An interval that contains 1 means no difference.",
  });
}

/** Curves of throughput and latency by load. @param {BenchReport} report @param {BenchReport | null} other */
export function curvesSection(report, other) {
  const isByUsers = report.kind === "concurrency";
  const loadOf = (/** @type {StepResult} */ step) => (isByUsers ? step.max_vus : step.rate);
  const sources = [report, other].flatMap((run) => {
    const steps = (run?.steps ?? []).filter((step) => step.id !== "warmup" && loadOf(step) !== null);
    const targets = [...new Set(steps.map((step) => step.target))];
    return targets.map((target) => {
      const server = targets.length > 1 ? (target === run?.url ? "first server" : "second server") : "measured";
      const name = run === report ? server : `other run${targets.length > 1 ? `, ${server}` : ""}`;
      return {
        name,
        steps: new Map(steps.filter((step) => step.target === target).map((step) => [loadOf(step), step])),
      };
    });
  });
  const loads = [...new Set(sources.flatMap(({ steps }) => [...steps.keys()].map(Number)))].sort((a, b) => a - b);
  if (loads.length < 2) return [];
  const x = { label: isByUsers ? "concurrent users" : "requests/s (target)", values: loads };
  /** @param {(step: StepResult) => number | null} value */
  const lines = (value, suffix = "", style = 0) =>
    sources.map(({ name, steps }, source) => ({
      name: suffix && sources.length === 1 ? suffix : [suffix, name].filter(Boolean).join(", "),
      style: suffix ? style : source,
      isOther: source > 0,
      values: loads.map((load) => (steps.has(load) ? value(/** @type {StepResult} */ (steps.get(load))) : null)),
    }));
  const maximum = report.steps
    .filter((step) => step.id === "throughput" && step.target === report.url)
    .map((step) => ({
      name: `maximum: ${formatNumber(step.token_rate)}`,
      style: 2,
      isOther: true,
      values: loads.map(() => step.token_rate),
    }));
  const lost = (/** @type {StepResult} */ step) =>
    step.due ? (100 * (requestCounts(step).failed + step.skipped)) / step.due : 0;
  const rates = [
    lineFigure("Tokens", x, [...lines((step) => step.token_rate), ...maximum], "tokens/s"),
    lineFigure(
      "Successful requests",
      x,
      lines((step) => step.request_rate),
      "requests/s",
    ),
    lineFigure("Failed or skipped requests", x, lines(lost), "% of those due"),
  ];
  const figures = Object.keys(TIMES).flatMap((metric, at) => {
    const all = STATISTICS.flatMap((name, style) => lines((step) => statistic(step, metric, name), name, style));
    return [rates[at], lineFigure(HISTOGRAMS[metric].replace(/,.*/, ""), x, all, "")];
  });
  return [section("Results by load", h("div", { class: "plots" }, ...figures))];
}

/**
 * @param {string} title
 * @param {{ label: string, values: number[] }} x
 * @param {{ name: string, style: number, isOther: boolean, values: (number | null)[] }[]} all
 * @param {string} unit of the values; empty: they are times
 */
function lineFigure(title, x, all, unit) {
  const lines = all.filter(({ values }) => values.some((value) => Number.isFinite(value)));
  if (!lines.length) return emptyFigure(title, "No data.");
  const format = unit ? (/** @type {unknown} */ value) => `${formatNumber(value)}` : formatSeconds;
  return figure(
    title,
    (isLog) => ({
      data: [
        x.values,
        ...lines.map(({ values }) => values.map((value) => (isLog && !(Number(value) > 0) ? null : value))),
      ],
      axes: [xAxis({ label: x.label }), axis(unit ? { label: unit } : timeAxis(isLog))],
      scales: {
        x: tightScale(false),
        y: isLog ? { distr: 3 } : { range: (_plot, _low, high) => [0, (high || 1) * 1.05] },
      },
      series: [
        { label: x.label, value: (_plot, value) => formatNumber(value) },
        ...lines.map(({ name, style, isOther }) => ({
          label: name,
          stroke: () => ink(INKS[style % 4]),
          dash: DASHES[style % 4],
          width: isOther ? 1 : 2,
          spanGaps: true,
          points: { show: true, size: 7, fill: isOther ? () => ink("--card") : undefined },
          value: (/** @type {unknown} */ _plot, /** @type {unknown} */ value) => format(value),
        })),
      ],
    }),
    { isLog: false },
  );
}

/** @param {StepResult} step @param {StepResult | null} other @param {string} metric @param {number} each */
export function histogramFigure(step, other, metric, each) {
  const title = HISTOGRAMS[metric];
  const sorted = samples(step, metric, each);
  if (!sorted.length) return emptyFigure(title, "No samples.");
  const others = other ? samples(other, metric) : [];
  const firsts = [sorted, others].filter((values) => values.length);
  const ends = {
    low: Math.min(...firsts.map((values) => values[0])),
    high: Math.max(...firsts.map((values) => values[values.length - 1])),
  };
  const marks = /** @type {[string, number][]} */ (
    MARKED.map((name) => [name, statistic(step, metric, name)]).filter(([, value]) => value !== null)
  );
  const percent = (/** @type {unknown} */ _plot, /** @type {unknown} */ value) =>
    value === null ? MISSING : `${formatNumber(value)} %`;
  const cumulative = { scale: "sum", value: percent };
  const note = `${plural(sorted.length, "sample")}${each > 1 && metric === "gap" ? `, of one request in ${each}` : ""}`;
  return figure(
    title,
    (isLog) => {
      const bins = countInBins(sorted, isLog, ends);
      const shares = bins.counts.map((count) => (100 * count) / sorted.length);
      const otherShares = others.length ? [countInBins(others, isLog, ends).shares] : [];
      return {
        data: [bins.edges, [...shares, shares[shares.length - 1]], bins.shares, ...otherShares],
        axes: [
          xAxis(timeAxis(isLog)),
          axis({ label: "%" }),
          axis({
            scale: "sum",
            side: 1,
            grid: { show: false },
            splits: [0, 50, 100],
            values: ["0 %", "50 %", "100 %"],
          }),
        ],
        scales: {
          x: tightScale(isLog),
          sum: { range: [0, 100] },
          y: { range: (_plot, _low, high) => [0, high * 1.05] },
        },
        series: [
          { label: "from", value: (_plot, value) => formatSeconds(value) },
          {
            label: "in this range",
            fill: () => ink("--a"),
            paths: uPlot.paths.stepped?.({ align: 1 }),
            points: { show: false },
            value: percent,
          },
          { ...cumulative, label: "below (right axis)", stroke: () => ink("--b"), points: { show: false } },
          ...otherShares.map(() => ({
            ...cumulative,
            label: "below, other run",
            stroke: () => ink("--c"),
            dash: DASHES[1],
            points: { show: false },
          })),
        ],
        hooks: { draw: [markDrawer(marks)] },
      };
    },
    // If the values are far apart, a linear axis would hide most of them.
    { isLog: ends.high > 20 * Math.max(ends.low, MIN_TIME_S), note },
  );
}

/** @param {StepResult} step @param {number} end */
export function timelineFigure(step, end) {
  const records = step.records
    .filter((record) => [record.due_s, record.sent_s, record.ended_s, ...record.times].every(Number.isFinite))
    .sort((one, other) => startOf(one) - startOf(other));
  if (!records.length) return emptyFigure("Requests", "No requests.");
  const rows = assignRows(records);
  const bars = records.map((record, at) => {
    const { due_s: due, sent_s: sent, ended_s: ended, times, outcome } = record;
    const first = times[0] ?? ended;
    const name = OUTCOME_INKS[outcome] ?? "--left";
    // A failed request is always visible, however soon it ended.
    const last = { from: first, to: ended, ink: name, alpha: 1, minWidth: outcome === "ok" ? 0.3 : 3 };
    const late = { from: Math.min(due, sent), to: sent, ink: "--left", alpha: 0.5 };
    const spans = [late, { from: sent, to: first, ink: name, alpha: 0.4 }, last];
    return {
      row: rows[at],
      spans: spans.filter(({ from, to }, part) => part === 2 || to > from),
      words: describeRequest(record),
    };
  });
  const { sent } = requestCounts(step);
  const drawn =
    records.length < sent ? ` Of ${WHOLE.format(sent)} requests, ${WHOLE.format(records.length)} are drawn.` : "";
  const keys = Object.entries(step.outcomes)
    .filter(([, count]) => count)
    .map(([outcome, count]) => {
      const swatch = h("span", { class: "swatch" });
      swatch.style.background = `var(${OUTCOME_INKS[outcome] ?? "--left"})`;
      return h("span", {}, swatch, `${outcome} ${WHOLE.format(count)}`);
    });
  const rowHeight = Math.min(Math.max(360 / (Math.max(...rows) + 1), 0.5), 14);
  return rowFigure("Requests", bars, {
    low: 0,
    high: end,
    height: (Math.max(...rows) + 1) * rowHeight,
    marks: [["end", step.seconds]],
    axes: [xAxis({ ...timeAxis(false), label: "since the start of the step" }), axis({ show: false })],
    note: `Pale: no token yet. Grey: due, not sent. Dashed: end of the step.${drawn}`,
    legend: h("p", { class: "legend" }, ...keys),
  });
}

/** @param {BenchRecord} record */
function describeRequest(record) {
  const { due_s: due, sent_s: sent, times, tokens } = record;
  const parts = [
    record.error ? `${record.outcome}: ${record.error}` : record.outcome,
    `due at ${formatSeconds(due)}`,
    sent - due > 0.005 && `sent ${formatSeconds(sent - due)} later`,
    times.length ? `first token after ${formatSeconds(times[0] - due)}` : "no token",
    tokens !== null && times.length > 0 && plural(tokens, "token"),
    `${formatSeconds(record.ended_s - due)} in all`,
  ];
  return parts.filter(Boolean).join(", ");
}

/** @param {StepResult} step @param {number} end */
export function tokensFigure(step, end) {
  const bars = 120;
  const rates = step.records.length ? tokenRates(step, end, bars) : [];
  if (!rates.some((rate) => rate > 0)) return emptyFigure("Tokens over time", "No data.");
  return figure(
    "Tokens over time",
    (isLog) => ({
      data: [rates.map((_, at) => (at * end) / bars), rates.map((rate) => (isLog && !rate ? null : rate))],
      axes: [xAxis({ ...timeAxis(false), label: "since the start of the step" }), axis({ label: "tokens/s" })],
      scales: { x: tightScale(false), y: isLog ? { distr: 3 } : { range: (_plot, _low, high) => [0, high * 1.05] } },
      series: [
        { label: "from", value: (_plot, value) => formatSeconds(value) },
        {
          label: "tokens/s",
          fill: () => ink("--a"),
          paths: uPlot.paths.stepped?.({ align: 1 }),
          points: { show: false },
          value: (_plot, value) => formatNumber(value),
        },
      ],
      hooks: { draw: [markDrawer([["end", step.seconds]])] },
    }),
    { isLog: false },
  );
}
