// Report of a load test, drawn from the JSON in the page.

import {
  HISTOGRAMS,
  STATISTICS,
  TIMES,
  curvesSection,
  histogramFigure,
  ratioFigure,
  timelineFigure,
  tokensFigure,
} from "./figures.mjs";
import {
  MIN_TIME_S,
  MISSING,
  WHOLE,
  formatMetric,
  formatNumber,
  formatPercent,
  formatSeconds,
  formatSetting,
  parseReport,
  plural,
  requestCounts,
  splitMetric,
  statistic,
  verdict,
} from "./numbers.mjs";
import { drawings, fold, h, section, table } from "./plots.mjs";

const MAX_OPEN_STEPS = 3; // with more steps, all but the last are closed

// Sections.

/** @param {BenchReport} report */
function header(report) {
  const { assertion_results: results } = report;
  const failed = results.filter((result) => !result.passed).length;
  const count = plural(results.length, "assertion");
  const summary = h(
    "span",
    { class: failed ? "fail" : "pass" },
    failed ? `${failed} of ${count} failed` : `${count} passed`,
  );
  const against = report.against === null ? [] : [", alternating with ", h("code", {}, report.against)];
  const servers = [h("code", {}, report.model), " at ", h("code", {}, report.url), ...against];
  const reason = report.incomplete_reason || "unknown reason";
  return h(
    "header",
    {},
    h("h1", {}, `welldone bench: ${report.kind}`, ...(results.length ? [", ", summary] : [])),
    h("p", {}, ...servers, `, endpoint ${report.endpoint}`),
    !report.is_complete && h("p", { class: "note" }, `Ended early: ${reason}.`),
    h(
      "p",
      {},
      `Tokens are counted by ${report.tokenizer}. Metrics cover successful requests only. `,
      "Percentiles need at least ten samples above them.",
    ),
    h("p", { class: "quiet" }, `${report.began} to ${report.ended}, welldone ${report.tool}`),
  );
}

/** @param {StepResult} step */
function warnings(step) {
  const { client, skipped } = step;
  const texts = [
    client.is_bottleneck &&
      `this client was the bottleneck (${formatPercent(client.cpu)} of a core, ` +
        `${plural(client.late_starts, "late start")}, the latest by ${formatSeconds(client.max_delay_s)}). ` +
        "Its numbers say more about the client than about the server.",
    skipped > 0 &&
      `${WHOLE.format(skipped)} of ${plural(step.due, "request")} were skipped, because ` +
        `${WHOLE.format(step.max_vus)} were in flight.`,
    !requestCounts(step).ok && "no request succeeded.",
  ];
  return texts.filter(Boolean).map((text) => h("p", { class: "note" }, `${step.id}: ${text}`));
}

/** @param {BenchReport} report */
function assertionSection({ assertion_results: results }) {
  const rows = results.map(({ text, step, value, passed }) => [
    h("code", {}, text),
    step,
    value === null ? "too few samples" : formatMetric(text, value),
    h("span", { class: passed ? "pass" : "fail" }, passed ? "passed" : "failed"),
  ]);
  return rows.length ? [section("Assertions", table([["assertion", "step", "value", "result"]], rows))] : [];
}

/** @param {BenchReport} report */
function comparisonSection({ comparisons, url, against }) {
  if (!comparisons.length) return [];
  const rows = comparisons.map((one) => {
    const values = [one.first, one.second].map((value) => formatMetric(splitMetric(one.metric)[1], value));
    const interval = `${formatNumber(one.low)} to ${formatNumber(one.high)}`;
    return [one.metric, ...values, formatNumber(one.ratio), interval, verdict(one)[0]];
  });
  const servers = h("p", {}, h("code", {}, url), " (first) and ", h("code", {}, against ?? ""), " (second)");
  const steps = [...new Set(comparisons.map((one) => splitMetric(one.metric)[0]))];
  const figures = steps.map((step) => {
    const title = `First / second: ${step}`;
    return ratioFigure(
      title,
      comparisons.filter((one) => splitMetric(one.metric)[0] === step),
    );
  });
  return [
    section(
      "Comparison",
      servers,
      ...figures,
      table([["metric", "first", "second", "ratio", "interval", "verdict"]], rows),
    ),
  ];
}

/** @param {BenchReport} report */
function stepsSection(report) {
  if (!report.steps.length) return section("Steps", h("p", {}, "No step ran."));
  const server = report.against === null ? [] : ["server"];
  const before = ["step", ...server, "load", "requests/s", "tokens/s", "successful"];
  const after = ["skipped", "within limits", "broke a rule", "prompt tokens", "tokens", "this client"];
  const times = Object.keys(TIMES).flatMap((metric) => STATISTICS.map((name) => [metric, name]));
  const width = String(STATISTICS.length);
  const groups = Object.values(TIMES).map((words) => h("th", { colspan: width, scope: "colgroup" }, words));
  const rows = report.steps.map((step) => {
    const { ok, sent } = requestCounts(step);
    return [
      step.id,
      ...server.map(() => (step.target === report.url ? "first" : "second")),
      describeLoad(step),
      formatNumber(step.request_rate),
      formatNumber(step.token_rate),
      `${WHOLE.format(ok)} of ${WHOLE.format(sent)}`,
      ...times.map(([metric, name]) => formatSeconds(statistic(step, metric, name))),
      WHOLE.format(step.skipped),
      step.good === null ? MISSING : WHOLE.format(step.good),
      WHOLE.format(step.invalid_streams),
      formatNumber(step.prompt_tokens),
      formatNumber(step.decoded_tokens),
      `${formatPercent(step.client.cpu)} of a core`,
    ];
  });
  const heads = [
    [...before.map(() => ""), ...groups, ...after.map(() => "")],
    [...before, ...times.map(([, name]) => name), ...after],
  ];
  return section("Steps", table(heads, rows));
}

/** @param {StepResult} step */
function describeLoad(step) {
  if (!step.is_open) return `closed, ${plural(step.max_vus, "user")}`;
  return step.rate === null ? "open" : `open, ${formatNumber(step.rate)} requests/s`;
}

/** @param {string} title @param {Record<string, number>} counts */
function countList(title, counts) {
  const items = Object.entries(counts).filter(([, count]) => count);
  const list = items.map(([words, count]) => h("li", {}, h("code", {}, words), ` ${WHOLE.format(count)}`));
  return list.length ? [h("p", {}, `${title}:`), h("ul", {}, ...list)] : [];
}

/** @param {BenchReport} report @param {BenchReport | null} other @param {number} each */
function stepSections(report, other, each) {
  return report.steps.map((step, at) => {
    const summary = [step.id, " ", h("span", { class: "quiet small" }, step.target)];
    const details = fold(summary, () => {
      const { ok, ...failed } = step.outcomes;
      const end = Math.max(
        step.seconds,
        MIN_TIME_S,
        ...step.records.map((record) => record.ended_s).filter(Number.isFinite),
      );
      const match = counterpart(report, step, other);
      return [
        ...countList("Not successful", failed),
        ...countList("Why", step.reasons),
        ...countList("Broken rules", step.rules),
        h(
          "div",
          { class: "plots" },
          ...Object.keys(HISTOGRAMS).map((metric) => histogramFigure(step, match, metric, each)),
        ),
        timelineFigure(step, end),
        tokensFigure(step, end),
      ];
    });
    details.open = report.steps.length <= MAX_OPEN_STEPS || at === report.steps.length - 1;
    return details;
  });
}

// A second report.

/** The same step of the other run. @param {BenchReport} report @param {StepResult} step @param {BenchReport | null} other */
function counterpart(report, step, other) {
  const isFirst = step.target === report.url;
  return other?.steps.find((one) => one.id === step.id && (one.target === other.url) === isFirst) ?? null;
}

/** @param {BenchReport} report @param {BenchReport | null} other */
function otherSection(report, other) {
  if (other === null) return [];
  const rows = report.steps.flatMap((step) => {
    const match = counterpart(report, step, other);
    if (match === null) return [];
    const times = Object.keys(TIMES).flatMap((metric) => STATISTICS.map((name) => `${metric}.${name}`));
    return ["request_rate", "token_rate", ...times].flatMap((metric) => {
      const [ours, theirs] = [step, match].map((one) => {
        const [name, part] = metric.split(".");
        if (part) return statistic(one, name, part);
        return name === "token_rate" ? one.token_rate : one.request_rate;
      });
      if (ours === null || theirs === null) return [];
      return [[step.id, metric, formatMetric(metric, ours), formatMetric(metric, theirs), formatNumber(ours / theirs)]];
    });
  });
  const about = [h("code", {}, other.model), " at ", h("code", {}, other.url), `, ${other.began} to ${other.ended}. `];
  const hint = "The confidence intervals of the ratios are printed by welldone bench compare.";
  const content = rows.length
    ? table([["step", "metric", "this run", "other run", "ratio"]], rows)
    : h("p", {}, "No step is the same.");
  return [section("This run and the other run", h("p", {}, "Other run: ", ...about, hint), content)];
}

// The page.

function start() {
  const data = /** @type {HTMLElement} */ (document.getElementById("report"));
  const main = /** @type {HTMLElement} */ (document.querySelector("main"));
  const asText = /** @type {HTMLElement} */ (main.firstElementChild);
  const report = parseReport(data.textContent ?? "");
  const each = Number(data.dataset.each);
  const picker = h("input", { type: "file", accept: ".json" });
  const message = h("span", { role: "status", class: "fail" });
  /** @param {BenchReport | null} other */
  const render = (other) => {
    const tables = [report.config, report.system].map((part) => {
      const rows = Object.entries(part).map(([name, value]) => [name, formatSetting(value)]);
      return rows.length ? table([], rows, "words") : null;
    });
    main.replaceChildren(
      header(report),
      ...report.steps.flatMap(warnings),
      ...assertionSection(report),
      ...comparisonSection(report),
      stepsSection(report),
      h("p", { class: "picker" }, h("label", {}, "Compare with another report (.json): ", picker), " ", message),
      ...otherSection(report, other),
      h("p", { class: "quiet small hint" }, "Drag over a plot to zoom; double-click to show all of it."),
      ...curvesSection(report, other),
      ...stepSections(report, other, each),
      fold(["Settings, and the machine of this client"], () => tables),
      fold(["As text"], () => [asText]),
    );
  };
  const redraw = () => document.querySelectorAll(".plot").forEach((box) => drawings.get(box)?.());
  picker.addEventListener("change", async () => {
    message.textContent = "";
    try {
      const file = picker.files?.[0];
      render(file ? parseReport(await file.text()) : null);
    } catch (error) {
      message.textContent = `The file cannot be shown: ${error instanceof Error ? error.message : error}`;
      render(null);
    }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  for (const event of ["beforeprint", "afterprint"]) {
    addEventListener(event, () => {
      document.documentElement.classList.toggle("print", event === "beforeprint");
      redraw();
    });
  }
  document.title = `welldone bench: ${report.model}, ${report.kind}`;
  render(null);
}

start();
