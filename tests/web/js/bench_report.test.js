// Numbers of the load test's HTML report: formats, distributions, rows of the timeline.

import assert from "node:assert/strict";
import { test } from "node:test";

import {
    assignRows,
    countInBins,
    formatMetric,
    formatNumber,
    formatPercent,
    formatSeconds,
    parseReport,
    requestCounts,
    samples,
    timeTicks,
    tokenRates,
    verdict,
} from "../../../src/welldone/bench/reports/page/numbers.mjs";

const record = (changes) => ({
    due_s: 0,
    sent_s: 0,
    reasoning_s: null,
    content_s: 0.5,
    tool_s: null,
    times: [0.5, 0.75, 1.5],
    tokens: 3,
    ended_s: 2,
    outcome: "ok",
    error: "",
    ...changes,
});
const step = (...records) => ({ records, outcomes: { ok: records.length } });

test("numbers have three significant digits", () => {
    const numbers = [
        [null, "-"],
        [NaN, "-"],
        ["1", "-"],
        [1234.4, "1,234"],
        [12.34, "12.3"],
        [1e300, "1.00e+300"],
        [0, "0"],
    ];
    for (const [value, text] of numbers) assert.equal(formatNumber(value), text);
    const times = [
        [0.00012, "120 µs"],
        [0.1234, "123 ms"],
        [0.9996, "1 s"],
        [Infinity, "-"],
        [0, "0 ms"],
        [-0.02, "-20 ms"],
    ];
    for (const [value, text] of times) assert.equal(formatSeconds(value), text);
    assert.equal(formatPercent(0.125), "12.5 %");
    assert.equal(formatPercent(null), "-");
});

test("ticks have one unit, and as many digits as they need", () => {
    assert.deepEqual(timeTicks([0, 0.25, 0.5], 0.25), ["0 ms", "250 ms", "500 ms"]);
    assert.deepEqual(timeTicks([0, 0.25, 1], 0.25), ["0.00 s", "0.25 s", "1.00 s"]);
    assert.deepEqual(timeTicks([10, 20], 10), ["10 s", "20 s"]);
    assert.deepEqual(timeTicks([0.0001, 0.0002], 0.0001), ["100 µs", "200 µs"]);
    assert.deepEqual(timeTicks([0.0175, 0.02], 0.0025), ["17.5 ms", "20.0 ms"]);
});

test("a value has the unit of its metric", () => {
    assert.equal(formatMetric("ttft.p99<1s", 0.5), "500 ms");
    assert.equal(formatMetric("goodput>95%", 0.5), "50 %");
    assert.equal(formatMetric("token_rate>100", 3.5), "3.5/s");
    assert.equal(formatMetric("", undefined), "-");
});

test("samples are those of successful requests, sorted and finite", () => {
    const records = [
        record({ ended_s: 3 }),
        record(),
        record({ outcome: "cut" }),
        record({ ended_s: NaN, content_s: null }),
    ];
    assert.deepEqual(samples(step(...records), "e2e"), [2, 3]);
    assert.deepEqual(samples(step(...records), "ttft"), [0.5, 0.5]);
    assert.deepEqual(samples(step(...records), "itl"), [0.5, 0.5, 0.5]);
    assert.deepEqual(samples(step(record({ tokens: 1 }), record({ tokens: null })), "itl"), []);
    assert.deepEqual(samples(step(record(), record(), record()), "gap", 2), [0.25, 0.25, 0.75, 0.75]);
});

test("the first token may be of any kind", () => {
    assert.deepEqual(samples(step(record({ reasoning_s: 0.25, due_s: 0.125 })), "ttft"), [0.125]);
});

test("every sample is in one bin", () => {
    let seed = 1;
    const random = () => (seed = (seed * 48271) % 2147483647) / 2147483647;
    for (let round = 0; round < 200; round++) {
        const values = Array.from({ length: 1 + Math.floor(random() * 30) }, () => random() ** 8 * (round % 3)).sort(
            (a, b) => a - b,
        );
        for (const isLog of [false, true]) {
            const bins = countInBins(values, isLog, { low: values[0], high: values[values.length - 1] });
            assert.equal(
                bins.counts.reduce((sum, count) => sum + count),
                values.length,
            );
            assert.ok(bins.edges.every((edge, at) => Number.isFinite(edge) && (at === 0 || edge > bins.edges[at - 1])));
            assert.ok(bins.shares.every((share, at) => at === 0 || share >= bins.shares[at - 1]));
            assert.equal(bins.shares.at(-1), 100);
        }
    }
});

test("tokens over time are all tokens, also of requests that are not in the page", () => {
    const one = step(record({ tokens: 6 }), record({ tokens: null }), record({ times: [] }));
    const sum = (rates) => rates.reduce((total, rate) => total + rate) * (2 / 4);
    assert.equal(sum(tokenRates(one, 2, 4)), 9);
    assert.deepEqual(tokenRates(step(record()), 2, 4), [0, 4, 0, 2]);
    one.outcomes = { ok: 6 };
    assert.equal(sum(tokenRates(one, 2, 4)), 18);
});

test("a request keeps its row until it ends", () => {
    const spans = [
        [0, 2],
        [1, 3],
        [2.5, 4],
        [2.5, 3],
        [5, 4],
    ];
    assert.deepEqual(
        assignRows(spans.map(([start, end]) => record({ due_s: start, sent_s: start, ended_s: end }))),
        [0, 1, 0, 2, 0],
    );
});

test("unfinished requests have not failed", () => {
    assert.deepEqual(requestCounts({ outcomes: { ok: 2, cut: 1, unfinished: 4 } }), { sent: 7, ok: 2, failed: 1 });
});

test("a comparison is judged by its interval, and by what is better", () => {
    const judge = (metric, low, high) => verdict({ metric, low, high, ratio: (low + high) / 2 })[0];
    assert.equal(judge("throughput ttft.p50", 0.9, 1.1), "no difference");
    assert.equal(judge("constant@1.20req/s ttft.p50", 1.1, 1.3), "the second is better");
    assert.equal(judge("token_rate", 1.1, 1.3), "the first is better");
    assert.equal(judge("throughput ttft.p50", NaN, NaN), "no difference");
});

test("other files are not read as reports", () => {
    for (const text of ["", "null", "[]", '{"version":1,"steps":[]}', '{"version":2}', '{"version":2,"steps":[{}]}'])
        assert.throws(() => parseReport(text));
    assert.equal(parseReport('{"version":2,"steps":[]}').version, 2);
});
