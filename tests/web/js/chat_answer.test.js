// Accumulation of chunks into an answer.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Answer } from "../../../src/welldone/web/static/js/chat/answer.js";

/** @param {object} delta @param {object} [more] */
const chunk = (delta, more = {}) => ({ choices: [{ index: 0, delta, finish_reason: null, ...more }] });

/** @param {unknown[]} chunks */
function accumulate(chunks) {
  const answer = new Answer();
  const news = chunks.map((one, at) => answer.feed(one, at * 100));
  return { answer, news };
}

test("text is concatenated, and each chunk returns what is new", () => {
  const first = chunk({ role: "assistant", content: "" });
  const { answer, news } = accumulate([first, chunk({ content: "Hel" }), chunk({ content: "lo" })]);
  assert.equal(answer.content, "Hello");
  assert.deepEqual(news.map(({ content }) => content), ["", "Hel", "lo"]);
  assert.equal(answer.size, 5);
});

for (const name of ["reasoning_content", "reasoning"]) {
  test(`reasoning is read from ${name}, with its duration`, () => {
    const { answer } = accumulate([chunk({ [name]: "I " }), chunk({ [name]: "think" }), chunk({ content: "so" })]);
    assert.equal(answer.reasoning, "I think");
    assert.equal(answer.content, "so");
    assert.equal(answer.thoughtMs, 100);
  });
}

test("reasoning sent under both names counts once", () => {
  const { answer } = accumulate([chunk({ reasoning: "a", reasoning_content: "a" })]);
  assert.equal(answer.reasoning, "a");
});

test("tool calls are distinguished by index", () => {
  const call = (/** @type {number} */ index, /** @type {object} */ more) => chunk({ tool_calls: [{ index, ...more }] });
  const { answer, news } = accumulate([
    call(0, { id: "a", function: { name: "one", arguments: "" } }),
    call(1, { id: "b", function: { name: "two", arguments: '{"x"' } }),
    call(0, { function: { arguments: "{}" } }),
    call(1, { function: { arguments: ":1}" } }),
  ]);
  assert.deepEqual(answer.calls, [
    { id: "a", type: "function", function: { name: "one", arguments: "{}" } },
    { id: "b", type: "function", function: { name: "two", arguments: '{"x":1}' } },
  ]);
  assert.deepEqual(news[3]?.calls, [{ place: 1, name: "two", piece: ":1}" }]);
});

test("the number of tool calls is limited", () => {
  const calls = Array.from({ length: 1000 }, (_, index) => ({ index, id: `${index}`, function: { name: "f" } }));
  const more = [{ index: 3, function: { arguments: "x" } }];
  const { answer } = accumulate([chunk({ tool_calls: calls }), chunk({ tool_calls: more })]);
  assert.equal(answer.calls.length, 128);
  assert.equal(answer.calls[3]?.function.arguments, "x");
});

test("only the first choice is shown", () => {
  const [other, first] = [1, 0].map((index) => ({ index, delta: { content: `${index}` } }));
  const { answer } = accumulate([{ choices: [other, first] }]);
  assert.equal(answer.content, "0");
});

test("finish, usage and speed are set at the end", () => {
  const { answer } = accumulate([
    chunk({ content: "a" }),
    chunk({ content: "b" }),
    chunk({}, { finish_reason: "length" }),
    { choices: [], usage: { prompt_tokens: 7, completion_tokens: 3 } },
  ]);
  assert.equal(answer.finishReason, "length");
  assert.equal(answer.promptTokens, 7);
  assert.equal(answer.firstAt, 0);
  assert.equal(answer.tokensPerSecond, 20);
});

test("a single token has no speed", () => {
  const { answer } = accumulate([chunk({ content: "a" }), { choices: [], usage: { completion_tokens: 1 } }]);
  assert.equal(answer.tokensPerSecond, null);
});

for (const [error, message] of [
  [{ message: "out of memory" }, "out of memory"],
  ["broken", "broken"],
  [{}, "The server sent an error without a message."],
]) {
  test(`the message of an error event is ${JSON.stringify(message)}`, () => {
    assert.equal(accumulate([{ error }]).answer.error, message);
  });
}

test("invalid values are ignored", () => {
  const { answer } = accumulate([
    undefined,
    null,
    "text",
    [],
    { choices: 3 },
    { choices: [null] },
    chunk({ content: 5, tool_calls: [null, { index: "x", function: 3 }], refusal: ["no"] }),
    { choices: [{ delta: null }] },
  ]);
  assert.equal(answer.content + answer.refusal, "");
  assert.equal(answer.error, null);
});

test("a refusal is read", () => {
  assert.equal(accumulate([chunk({ refusal: "I " }), chunk({ refusal: "will not" })]).answer.refusal, "I will not");
});
