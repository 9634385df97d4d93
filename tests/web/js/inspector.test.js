// The parts of the inspector that need no document.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { test } from "node:test";

import { changes } from "../../../src/welldone/web/static/js/inspector/changes.js";
import { gapFigures, upstreamDots } from "../../../src/welldone/web/static/js/inspector/gaps.js";
import { Join } from "../../../src/welldone/web/static/js/inspector/join.js";
import { read } from "../../../src/welldone/web/static/js/inspector/reading.js";
import { curl, javascript, python } from "../../../src/welldone/web/static/js/inspector/snippets.js";
import { Totals } from "../../../src/welldone/web/static/js/inspector/totals.js";
import { ourTrace, upstreamTrace } from "../../../src/welldone/web/static/js/inspector/trace.js";
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
 * @param {string} said
 * @param {Partial<Step>} [more]
 */
function step(said, more = {}) {
  return { n: 0, part: 0, attempt: 0, at_s: null, byte: 0, heard: said, events: [], notes: [], said, ...more };
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
  ["an end of a choice", chunk({}, { finish_reason: "stop" }), "finish", "stop"],
  ["a last text", chunk({ content: "x" }, { finish_reason: "stop" }), "text", "x · finish: stop"],
  ["another choice", chunk({ content: "x" }, { index: 1 }), "text", "[1] x"],
  ["a usage", data({ choices: [], usage: { prompt_tokens: 1, completion_tokens: 2 } }), "usage", "1 + 2 tokens"],
  ["an error", data({ error: { message: "broken" } }), "error", "broken"],
  ["an error without words", data({ error: { code: 3 } }), "error", '{"code":3}'],
  ["a completion", data({ choices: [{ text: "x" }] }), "text", "x"],
  ["text of messages", data({ type: "content_block_delta", delta: { type: "text_delta", text: "x" } }), "text", "x"],
  ["reasoning of messages", data({ type: "content_block_delta", delta: { type: "thinking_delta", thinking: "x" } }),
    "reasoning", "x"],
  ["a type of messages", data({ type: "message_stop" }), "message_stop", ""],
  ["an error of messages", data({ type: "error", error: { message: "x" } }), "error", "x"],
  ["text of responses", data({ type: "response.output_text.delta", delta: "x" }), "text", "x"],
  ["arguments of responses", data({ type: "response.function_call_arguments.delta", delta: "{" }), "tool call", "{"],
  ["a type of responses", data({ type: "response.created", response: {} }), "created", ""],
  ["a reply that is no stream", JSON.stringify({ choices: [{ message: { content: "x" } }] }), "text", "x"],
  ["what is no JSON", "data: {oops\n\n", "not JSON", "{oops"],
  ["JSON that is no object", "data: 5\n\n", "not JSON", "5"],
  ["an event without data", "event: ping\n\n", "ping", "event: ping\n\n"],
  ["a chunk of nothing", chunk({}), "empty", ""],
  ["choices that are none", data({ choices: [null, 5, { delta: "x" }] }), "empty", ""],
];

for (const [name, raw, kind, text] of FRAMES) {
  test(`a frame is read: ${name}`, () => {
    const found = read(frame(raw));
    assert.deepEqual([found.kind, found.text], [kind, text]);
  });
}

test("the totals take their times from what the model said, and the newest usage", () => {
  const totals = new Totals();
  totals.add(frame(chunk({ role: "assistant" }), 10));
  totals.add(frame(chunk({ content: "a" }), 100));
  totals.add(frame(chunk({ content: "b" }), 600));
  totals.add(frame(data({ choices: [], usage: { prompt_tokens: 3, completion_tokens: 2 } }), 700));
  assert.deepEqual([totals.firstTokenAt, totals.lastTokenAt, totals.prompt, totals.rate], [100, 600, 3, 2]);
});

test("frames are joined to the steps that they come from", () => {
  const [a, b, c] = ["data: a\n\n", "data: b\n\n", "data: c\n\n"];
  // Two frames of one step, a step that was held back, and a frame of two steps.
  const steps = [step(a + b), step(""), step("data: "), step("c\n\n")];
  const frames = [a, ": keep-alive\n\n", b, c].map((raw) => frame(raw));
  const join = new Join();
  join.advance(frames, steps.slice(0, 3));
  assert.deepEqual([0, 1, 2, 3].map((place) => join.of(place)), [
    { from: 0, own: 0, to: 1 }, null, { from: 0, own: 1, to: 1 }, null,
  ]);
  join.advance(frames, steps);
  assert.deepEqual(join.of(3), { from: 1, own: 1, to: 4 });
});

test("a comment of the upstream that was sent on is joined too", () => {
  const join = new Join();
  join.advance([frame(": ping\n\n"), frame("data: a\n\n")], [step(": ping\n\n"), step("data: a\n\n")]);
  assert.deepEqual([join.of(0)?.to, join.of(1)?.to], [1, 2]);
});

test("what a repair changed is told field by field", () => {
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

test("a stall is a gap that is long beside the others", () => {
  const dots = [10, 10, 10, 10, 900].map((gap, place) => ({ at: place, gap }));
  const { p50, max, stalls } = gapFigures(dots);
  assert.deepEqual([p50, max, stalls.map((dot) => dot.at)], [10, 900, [4]]);
  assert.deepEqual(gapFigures([]), { p50: null, p95: null, max: null, stalls: [] });
  const steps = [step("", { at_s: 1 }), step(""), step("", { at_s: 1.5 })];
  assert.deepEqual(upstreamDots(steps), [{ at: 1500, gap: 500 }]);
});

const HARD = "it's \"quoted\" $HOME `id` \\n\n%s ${x} !! \u202e\u2028 ä 😀 \ud800";

/** @param {Record<string, unknown>} [more] */
function asked(more = {}) {
  const body = { model: "m'1", messages: [{ role: "user", content: HARD }], stream: true, ...more };
  return { path: "v1/chat/completions", body, base: new URL("http://127.0.0.1:9/prefix/") };
}

test("a shell reads the body of the curl command as it was", () => {
  const found = curl(asked({ temperature: 0.5 })).replace("curl -N", "printf '%s\\n'");
  const ran = spawnSync("sh", ["-c", `${found} | tail -n +6`], { encoding: "utf8", env: { OPENAI_API_KEY: "k" } });
  assert.equal(ran.status, 0, ran.stderr);
  assert.deepEqual(JSON.parse(ran.stdout.slice(ran.stdout.indexOf("{"))), asked({ temperature: 0.5 }).body);
});

test("what the curl command asks is this server, with the key from the environment", () => {
  const found = curl(asked());
  assert.match(found, /^curl -N 'http:\/\/127\.0\.0\.1:9\/prefix\/v1\/chat\/completions'/);
  assert.match(found, /Bearer \$OPENAI_API_KEY/);
});

test("a JavaScript engine reads the body of the snippet as it was", async () => {
  const source = javascript(asked({ top_k: 5 }));
  const call = /create\((\{.*?\n\})\);/s.exec(source)?.[1];
  const found = await import(`data:text/javascript,${encodeURIComponent(`export default ${call}`)}`);
  assert.deepEqual(found.default, asked({ top_k: 5 }).body);
});

test("Python reads the body of the snippet as it was", (t) => {
  const source = python(asked({ top_k: 5, logprobs: false, stop: null, tools: [], seed: 1e21 }));
  const stub = `
import json, sys
class Asked:
    def __getattr__(self, name): return self
    def __call__(self, **given): print(json.dumps(given)); return []
source = sys.stdin.read().replace("from openai import OpenAI", "OpenAI = lambda **given: Asked()")
exec(source)
`;
  const ran = spawnSync("python3", ["-c", stub], { input: source, encoding: "utf8" });
  if (ran.error) return t.skip("no Python here");
  assert.equal(ran.status, 0, ran.stderr);
  const { extra_body: extra, ...named } = JSON.parse(ran.stdout.split("\n")[0] ?? "");
  const { top_k: _, ...body } = asked({ top_k: 5, logprobs: false, stop: null, tools: [], seed: 1e21 }).body;
  assert.deepEqual([named, extra], [body, { top_k: 5 }]);
});

for (const write of [curl, python, javascript]) {
  test(`nothing hides in a snippet: ${write.name}`, () => {
    assert.doesNotMatch(write(asked()), /[\u202e\u2028\ud800]/);
    assert.ok(write({ ...asked(), path: "v1/messages" }).includes("v1"));
    assert.ok(write(asked({ stream: false })).length > 0);
  });
}

test("a trace has the bytes and the times of what came", () => {
  const raws = [chunk({ content: "ä" }), "data: [DONE]\n\n"];
  const exchange = /** @type {any} */ ({
    frames: raws.map((raw) => frame(raw, 250)), status: 200, headers: [["content-type", "text/event-stream"]],
    path: "v1/chat/completions", body: { model: "a/b c" }, outcome: "whole", error: null, requestId: "r",
    droppedFrames: 0, startedAt: new Date(0),
  });
  const { name, record } = /** @type {any} */ (ourTrace(exchange));
  assert.equal(name, "19700101T000000Z_a-b-c_sent.json");
  assert.equal(record.body_text, raws.join(""));
  assert.deepEqual(record.pieces, [[0.25, sizeOf(raws.join(""))]]);
  assert.deepEqual([record.status, record.body_complete, "error" in record], ["HTTP/1.1 200", true, false]);
});

test("the upstream's trace is that of its last attempt, byte for byte", () => {
  const steps = [step("lost", { attempt: 0 }), step("ä", { attempt: 1, at_s: 1 }),
    step("�", { attempt: 1, at_s: 2, heard_base64: "/w==" }), step("other", { part: 1, attempt: 1 })];
  const attempts = [{ server: "one" }, { server: "two", status: 200, headers: [], error: null }];
  const tape = /** @type {any} */ ({ steps, attempts, request: { a: 1 }, isDone: true, isCut: false });
  const exchange = /** @type {any} */ ({ path: "v1/x", body: {}, startedAt: new Date(0), outcome: "whole" });
  const { record } = /** @type {any} */ (upstreamTrace(exchange, tape));
  assert.deepEqual([record.server, record.request, record.body_complete], ["two", { a: 1 }, true]);
  assert.deepEqual([...Buffer.from(record.body_base64, "base64")], [0xc3, 0xa4, 0xff]);
  assert.deepEqual(record.pieces, [[1, 2], [2, 1]]);
});
