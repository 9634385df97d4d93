// Chart values computed from metrics pages.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Measures } from "../../../src/welldone/web/static/js/server/measures.js";
import { readMetrics } from "../../../src/welldone/web/static/js/server/prometheus.js";
import { bucketsOf, increases, quantile, Ring, sum } from "../../../src/welldone/web/static/js/server/series.js";

const BUCKET = "welldone_time_to_first_token_seconds_bucket";

/** @param {string} line */
function only(line) {
  const [[name, series]] = [...readMetrics(line)];
  const [{ labels, value }] = [...series.values()];
  return { name, labels, value };
}

const SAMPLES = {
  "a name alone": ["up 1", { name: "up", labels: {}, value: 1 }],
  "labels": ['a:b_total{x="1",y="two"} 2.5e+03', { name: "a:b_total", labels: { x: "1", y: "two" }, value: 2500 }],
  "signs in a label that stand for something outside": [
    'a{x="{,}=\\"",y="z"} 1',
    { name: "a", labels: { x: '{,}="', y: "z" }, value: 1 },
  ],
  "escapes": ['a{x="C:\\\\new\\nline"} 1', { name: "a", labels: { x: "C:\\new\nline" }, value: 1 }],
  "a time behind the value": ["a 3 1700000000000", { name: "a", labels: {}, value: 3 }],
  "infinity": ['a{le="+Inf"} +Inf', { name: "a", labels: { le: "+Inf" }, value: Infinity }],
  "less than nothing": ["a -Inf", { name: "a", labels: {}, value: -Infinity }],
  "an empty set of labels": ["a{} 1", { name: "a", labels: {}, value: 1 }],
};

for (const [name, [line, sample]] of Object.entries(SAMPLES)) {
  test(`a sample is parsed: ${name}`, () => assert.deepEqual(only(/** @type {string} */ (line)), sample));
}

test("comments, empty lines and invalid lines are skipped", () => {
  const text = "# HELP a About.\n# TYPE a counter\n\na_total 1\n{} 3\nonly_a_name\na{x=\"unclosed 1\n";
  assert.deepEqual([...readMetrics(text).keys()], ["a_total"]);
});

/** @param {number | null} was @param {number} now */
const grown = (was, now) =>
  increases(readMetrics(was === null ? "" : `a{x="1"} ${was}`), readMetrics(`a{x="1"} ${now}`), "a");

test("a counter grows by the difference", () => assert.equal(sum(grown(5, 7)), 2));
test("a new series started at zero", () => assert.equal(sum(grown(null, 7)), 7));
test("a counter that decreased started again at zero", () => assert.equal(sum(grown(100, 7)), 7));
test("a missing counter does not grow", () => {
  assert.deepEqual(increases(readMetrics("a 1"), readMetrics(""), "a"), []);
});

test("series are distinguished by labels", () => {
  const [before, now] = ['a{x="1"} 10\na{x="2"} 1', 'a{x="1"} 11\na{x="2"} 4'].map(readMetrics);
  assert.deepEqual(increases(before, now, "a").map(({ value }) => value), [1, 3]);
});

test("buckets of several series are one histogram", () => {
  const text = 'b{le="1",m="x"} 1\nb{le="+Inf",m="x"} 2\nb{le="1",m="y"} 3\nb{le="+Inf",m="y"} 3\n';
  const samples = readMetrics(text).get("b")?.values() ?? [];
  assert.deepEqual([...bucketsOf(samples)], [[1, 4], [Infinity, 5]]);
});

/** @type {[string, [number, number][], number, number | null][]} */
const QUANTILES = [
  ["nothing was counted", [[1, 0], [Infinity, 0]], 0.5, null],
  ["there are no buckets", [], 0.5, null],
  ["in the first bucket", [[1, 10], [Infinity, 10]], 0.5, 0.5],
  ["between two bounds", [[1, 0], [2, 10], [Infinity, 10]], 0.9, 1.9],
  ["empty buckets are passed over", [[1, 2], [2, 2], [4, 4], [Infinity, 4]], 0.75, 3],
  ["above the last bound", [[1, 1], [Infinity, 100]], 0.95, 1],
  ["in any order", [[Infinity, 10], [2, 10], [1, 0]], 0.9, 1.9],
];

for (const [name, buckets, q, value] of QUANTILES) {
  test(`a quantile: ${name}`, () => assert.equal(quantile(new Map(buckets), q), value));
}

test("a ring buffer keeps the latest items", () => {
  const ring = new Ring(3);
  for (const n of [1, 2, 3, 4, 5]) ring.push(n);
  assert.deepEqual(ring.items, [3, 4, 5]);
});

/**
 * @param {number} n
 * @param {string} [more]
 */
const pageOf = (n, more = "") => readMetrics(`
welldone_requests_total{endpoint="chat",model="m",status="200"} ${10 * n}
welldone_requests_total{endpoint="chat",model="m",status="404"} ${2 * n}
welldone_requests_total{endpoint="page",model="",status="200"} ${1000 * n}
welldone_completion_tokens_total{model="m"} ${100 * n}
llamacpp:requests_processing{model="m"} 2
welldone_upstream_running{upstream="u"} 3
welldone_upstream_waiting{upstream="u"} 1
${BUCKET}{le="1",model="m"} 0
${BUCKET}{le="2",model="m"} ${4 * n}
${BUCKET}{le="+Inf",model="m"} ${4 * n}
${more}`);

test("the first page gives gauges, and no rates yet", () => {
  const { values } = new Measures().add(pageOf(1), 1000);
  assert.equal(values.running, 5);
  assert.equal(values.waiting, 1);
  assert.equal(values.good, undefined);
  assert.equal(values.first50, null);
});

test("rates are per second, without requests of the page itself", () => {
  const measures = new Measures();
  measures.add(pageOf(1), 1000);
  const { values } = measures.add(pageOf(2), 3000);
  assert.equal(values.good, 5);
  assert.equal(values.refused, 1);
  assert.equal(values.broken, 0);
  assert.equal(values.completion, 50);
  assert.equal(values.first50, 1.5);
  assert.equal(values.gaps95, null);
});

test("rates are those of the last ten seconds", () => {
  const measures = new Measures();
  for (let n = 0; n <= 5; n += 1) measures.add(pageOf(n), 2000 * n);
  for (let n = 6; n <= 9; n += 1) assert.ok((measures.add(pageOf(5), 2000 * n).values.good ?? 0) > 0);
  assert.equal(measures.add(pageOf(5), 20_000).values.good, 0);
});

test("a restart of the server does not make rates negative", () => {
  const measures = new Measures();
  measures.add(pageOf(50), 1000);
  assert.equal(measures.add(pageOf(1), 3000).values.good, 5);
});

test("after a long pause rates start again", () => {
  const measures = new Measures();
  measures.add(pageOf(1), 1000);
  measures.add(pageOf(2), 3000);
  assert.equal(measures.add(pageOf(900), 60_000).values.good, undefined);
  assert.equal(measures.add(pageOf(901), 62_000).values.good, 5);
});

test("two pages of the same time do not give an infinite rate", () => {
  const measures = new Measures();
  measures.add(pageOf(1), 1000);
  assert.equal(measures.add(pageOf(2), 1000).values.good, undefined);
});
