// Inspector modules that need no DOM.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { test } from "node:test";

import { changes } from "../../../src/welldone/web/static/js/inspector/changes.js";
import { gapFigures, upstreamDots } from "../../../src/welldone/web/static/js/inspector/gaps.js";
import { Join } from "../../../src/welldone/web/static/js/inspector/join.js";
import { read } from "../../../src/welldone/web/static/js/inspector/reading.js";
import { curl, javascript, python } from "../../../src/welldone/web/static/js/inspector/snippets.js";
import { Totals } from "../../../src/welldone/web/static/js/inspector/totals.js";
import { sentTrace, upstreamTrace } from "../../../src/welldone/web/static/js/inspector/trace.js";
import { Frame, sizeOf } from "../../../src/welldone/web/static/js/sse.js";

/**
 * @param {string} raw
 * @param {number} [at]
 */
function frame(raw, at = 0) {
  return new Frame({ n: 1, at, gap: 0, byte: 0, size: sizeOf(raw), raw });
}

/** @param {object} value */
function data(value) {
  return `data: ${JSON.stringify(value)}\n\n`;
}

/**
 * @param {string} sent
 * @param {Partial<Step>} [more]
 */
function step(sent, more = {}) {
  return { n: 0, part: 0, attempt: 0, at_s: null, byte: 0, received: sent, events: [], repairs: [], sent, ...more };
}

/** @param {object} delta */
const chunk = (delta, more = {}) => data({ choices: [{ index: 0, delta, ...more }] });

/** @type {[string, string, string, string][]} */
const FRAMES = [
  ["the end", "data: [DONE]\n\n", "[DONE]", ""],
  ["a comment", ": keep-alive\n\n", "comment", ": keep-alive"],
  ["a role", chunk({ role: "assistant", content: "" }), "role", "assistant"],
  ["a text", chunk({ content: "Hi" }), "text", "Hi"],
  ["a text with a role", chunk({ role: "assistant", content: "Hi" }), "text", "Hi"],
  ["reasoning", chunk({ reasoning_content: "hm" }), "reasoning", "hm"],
  ["a refusal", chunk({ refusal: "no" }), "refusal", "no"],
  ["a tool call", chunk({ tool_calls: [{ function: { name: "f", arguments: "{}" } }] }), "tool call", "f {}"],
  ["arguments as an object", chunk({ tool_calls: [{ function: { arguments: { a: 1 } } }] }), "tool call", '{"a":1}'],
  ["a finish", chunk({}, { finish_reason: "stop" }), "finish", "stop"],
  ["text with a finish", chunk({ content: "x" }, { finish_reason: "stop" }), "text", "x · finish: stop"],
  ["another choice", chunk({ content: "x" }, { index: 1 }), "text", "[1] x"],
  ["a usage", data({ choices: [], usage: { prompt_tokens: 1, completion_tokens: 2 } }), "usage", "1 + 2 tokens"],
  ["an error", data({ error: { message: "broken" } }), "error", "broken"],
  ["an error without a message", data({ error: { code: 3 } }), "error", '{"code":3}'],
  ["a completion", data({ choices: [{ text: "x" }] }), "text", "x"],
  ["text of messages", data({ type: "content_block_delta", delta: { type: "text_delta", text: "x" } }), "text", "x"],
  ["reasoning of messages", data({ type: "content_block_delta", delta: { type: "thinking_delta", thinking: "x" } }),
    "reasoning", "x"],
  ["a type of messages", data({ type: "message_stop" }), "message_stop", ""],
  ["an error of messages", data({ type: "error", error: { message: "x" } }), "error", "x"],
  ["text of responses", data({ type: "response.output_text.delta", delta: "x" }), "text", "x"],
  ["arguments of responses", data({ type: "response.function_call_arguments.delta", delta: "{" }), "tool call", "{"],
  ["a type of responses", data({ type: "response.created", response: {} }), "created", ""],
  ["a reply that is not a stream", JSON.stringify({ choices: [{ message: { content: "x" } }] }), "text", "x"],
  ["not JSON", "data: {oops\n\n", "not JSON", "{oops"],
  ["JSON that is not an object", "data: 5\n\n", "not JSON", "5"],
  ["an event without data", "event: ping\n\n", "ping", "event: ping\n\n"],
  ["an empty chunk", chunk({}), "empty", ""],
  ["invalid choices", data({ choices: [null, 5, { delta: "x" }] }), "empty", ""],
];

for (const [name, raw, kind, text] of FRAMES) {
  test(`a frame is classified: ${name}`, () => {
    const found = read(frame(raw));
    assert.deepEqual([found.kind, found.text], [kind, text]);
  });
}

test("totals have the times of model output and the latest usage", () => {
  const totals = new Totals();
  totals.add(frame(chunk({ role: "assistant" }), 10));
  totals.add(frame(chunk({ content: "a" }), 100));
  totals.add(frame(chunk({ content: "b" }), 600));
  totals.add(frame(data({ choices: [], usage: { prompt_tokens: 3, completion_tokens: 2 } }), 700));
  assert.deepEqual([totals.firstTokenAt, totals.lastTokenAt, totals.prompt, totals.rate], [100, 600, 3, 2]);
});

test("frames are joined to their steps", () => {
  const [a, b, c] = ["data: a\n\n", "data: b\n\n", "data: c\n\n"];
  // Two frames from one step, a step without output, and a frame from two steps.
  const steps = [step(a + b), step(""), step("data: "), step("c\n\n")];
  const frames = [a, ": keep-alive\n\n", b, c].map((raw) => frame(raw));
  const join = new Join();
  join.advance(frames, steps.slice(0, 3));
  assert.deepEqual([0, 1, 2, 3].map((index) => join.of(index)), [
    { from: 0, own: 0, to: 1 }, null, { from: 0, own: 1, to: 1 }, null,
  ]);
  join.advance(frames, steps);
  assert.deepEqual(join.of(3), { from: 1, own: 1, to: 4 });
});

test("a forwarded comment of the upstream is joined", () => {
  const join = new Join();
  join.advance([frame(": ping\n\n"), frame("data: a\n\n")], [step(": ping\n\n"), step("data: a\n\n")]);
  assert.deepEqual([join.of(0)?.to, join.of(1)?.to], [1, 2]);
});

test("changes of a repair are listed by field", () => {
  const before = JSON.parse('{"a": 1, "b": {"c": [1, 2], "__proto__": 3}, "gone": true}');
  const after = { a: 1, b: { c: [1, 5] }, more: null };
  assert.deepEqual(changes(before, after), [
    { path: "b.c[1]", before: 2, after: 5 },
    { path: "b.__proto__", before: 3, after: undefined },
    { path: "gone", before: true, after: undefined },
    { path: "more", before: undefined, after: null },
  ]);
  assert.deepEqual(changes([], {}), [{ path: "(all)", before: [], after: {} }]);
});

test("a stall is a gap much longer than the median", () => {
  const dots = [10, 10, 10, 10, 900].map((gap, index) => ({ at: index, gap }));
  const { p50, max, stalls } = gapFigures(dots);
  assert.deepEqual([p50, max, stalls.map((dot) => dot.at)], [10, 900, [4]]);
  assert.deepEqual(gapFigures([]), { p50: null, p95: null, max: null, stalls: [] });
  const steps = [step("", { at_s: 1 }), step(""), step("", { at_s: 1.5 })];
  assert.deepEqual(upstreamDots(steps), [{ at: 1500, gap: 500 }]);
});

const HARD = "it's \"quoted\" $HOME `id` \\n\n%s ${x} !! \u202e\u2028 ä 😀 \ud800";

/** @param {Record<string, unknown>} [more] */
function requestSpec(more = {}) {
  const body = { model: "m'1", messages: [{ role: "user", content: HARD }], stream: true, ...more };
  return { path: "v1/chat/completions", body, base: new URL("http://127.0.0.1:9/prefix/") };
}

test("a shell parses the body of the curl command unchanged", () => {
  const found = curl(requestSpec({ temperature: 0.5 })).replace("curl -N", "printf '%s\\n'");
  const ran = spawnSync("sh", ["-c", `${found} | tail -n +6`], { encoding: "utf8", env: { OPENAI_API_KEY: "k" } });
  assert.equal(ran.status, 0, ran.stderr);
  assert.deepEqual(JSON.parse(ran.stdout.slice(ran.stdout.indexOf("{"))), requestSpec({ temperature: 0.5 }).body);
});

test("the curl command targets this server, with the key from the environment", () => {
  const found = curl(requestSpec());
  assert.match(found, /^curl -N 'http:\/\/127\.0\.0\.1:9\/prefix\/v1\/chat\/completions'/);
  assert.match(found, /Bearer \$OPENAI_API_KEY/);
});

test("JavaScript parses the body of the snippet unchanged", async () => {
  const source = javascript(requestSpec({ top_k: 5 }));
  const call = /create\((\{.*?\n\})\);/s.exec(source)?.[1];
  const found = await import(`data:text/javascript,${encodeURIComponent(`export default ${call}`)}`);
  assert.deepEqual(found.default, requestSpec({ top_k: 5 }).body);
});

test("Python parses the body of the snippet unchanged", (t) => {
  const source = python(requestSpec({ top_k: 5, logprobs: false, stop: null, tools: [], seed: 1e21 }));
  const stub = `
import json, sys
class Recorder:
    def __getattr__(self, name): return self
    def __call__(self, **given): print(json.dumps(given)); return []
source = sys.stdin.read().replace("from openai import OpenAI", "OpenAI = lambda **given: Recorder()")
exec(source)
`;
  const ran = spawnSync("python3", ["-c", stub], { input: source, encoding: "utf8" });
  if (ran.error) return t.skip("no Python here");
  assert.equal(ran.status, 0, ran.stderr);
  const { extra_body: extra, ...named } = JSON.parse(ran.stdout.split("\n")[0] ?? "");
  const { top_k: _, ...body } = requestSpec({ top_k: 5, logprobs: false, stop: null, tools: [], seed: 1e21 }).body;
  assert.deepEqual([named, extra], [body, { top_k: 5 }]);
});

for (const write of [curl, python, javascript]) {
  test(`no invisible characters in a snippet: ${write.name}`, () => {
    assert.doesNotMatch(write(requestSpec()), /[\u202e\u2028\ud800]/);
    assert.ok(write({ ...requestSpec(), path: "v1/messages" }).includes("v1"));
    assert.ok(write(requestSpec({ stream: false })).length > 0);
  });
}

test("a trace has the received bytes and times", () => {
  const raws = [chunk({ content: "ä" }), "data: [DONE]\n\n"];
  const exchange = /** @type {any} */ ({
    frames: raws.map((raw) => frame(raw, 250)), status: 200, headers: [["content-type", "text/event-stream"]],
    path: "v1/chat/completions", body: { model: "a/b c" }, outcome: "whole", error: null, requestId: "r",
    droppedFrames: 0, startedAt: new Date(0),
  });
  const { name, record } = /** @type {any} */ (sentTrace(exchange));
  assert.equal(name, "19700101T000000Z_a-b-c_sent.json");
  assert.equal(record.body_text, raws.join(""));
  assert.deepEqual(record.pieces, [[0.25, sizeOf(raws.join(""))]]);
  assert.deepEqual([record.status, record.body_complete, "error" in record], ["HTTP/1.1 200", true, false]);
});

test("the trace of the upstream is its last attempt, byte for byte", () => {
  const steps = [step("lost", { attempt: 0 }), step("ä", { attempt: 1, at_s: 1 }),
    step("�", { attempt: 1, at_s: 2, received_base64: "/w==" }), step("other", { part: 1, attempt: 1 })];
  const attempts = [{ server: "one" }, { server: "two", status: 200, headers: [], error: null }];
  const capture = /** @type {any} */ ({ steps, attempts, request: { a: 1 }, isDone: true, isCut: false });
  const exchange = /** @type {any} */ ({ path: "v1/x", body: {}, startedAt: new Date(0), outcome: "whole" });
  const { record } = /** @type {any} */ (upstreamTrace(exchange, capture));
  assert.deepEqual([record.server, record.request, record.body_complete], ["two", { a: 1 }, true]);
  assert.deepEqual([...Buffer.from(record.body_base64, "base64")], [0xc3, 0xa4, 0xff]);
  assert.deepEqual(record.pieces, [[1, 2], [2, 1]]);
});
