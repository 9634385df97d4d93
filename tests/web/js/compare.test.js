// The upstream's own stream in a comparison, as a plain client reads it.

import assert from "node:assert/strict";
import { test } from "node:test";

import { DirectStream } from "../../../src/welldone/web/static/js/compare/direct.js";

const ROLE = { choices: [{ index: 0, delta: { role: "assistant" }, finish_reason: null }] };
const TEXT = { choices: [{ index: 0, delta: { content: "Hi" }, finish_reason: null }] };
const END = { choices: [{ index: 0, delta: {}, finish_reason: "stop" }] };

/** A capture of frames, each with its attempt. */
function capture(frames, { attempts = [{ server: "a", status: 200, error: null, began_s: 1 }], isOver = true } = {}) {
  const steps = frames.map(({ data, attempt = 0 }, n) => {
    const received = data === null ? "" : `data: ${typeof data === "string" ? data : JSON.stringify(data)}\n\n`;
    return { n, attempt, at_s: 1 + n / 10, byte: 0, received, events: [], repairs: [], sent: "" };
  });
  return { steps, attempts, isOver };
}

function read(...args) {
  const stream = new DirectStream();
  stream.advance(capture(...args));
  return stream;
}

function figure(stream, name) {
  return stream.figures().find(({ label }) => label === name)?.value;
}

test("a whole stream has no problems, and its times start with the attempt", () => {
  const stream = read([{ data: ROLE }, { data: TEXT }, { data: END }, { data: "[DONE]" }]);
  assert.deepEqual(stream.problems(), []);
  assert.equal(stream.reader.answer.content, "Hi");
  assert.equal(figure(stream, "Outcome"), "whole");
  assert.equal(figure(stream, "TTFT"), "100 ms");
  assert.equal(figure(stream, "Time"), "300 ms");
});

test("what is missing at the end is a problem", () => {
  assert.deepEqual(read([{ data: ROLE }, { data: TEXT }]).problems(), [
    "The stream ended without a finish_reason.",
    "The stream ended without [DONE].",
  ]);
  assert.deepEqual(read([{ data: TEXT }, { data: END }]).problems(), ["The stream ended without [DONE]."]);
  assert.deepEqual(read([]).problems(), ["There was no stream."]);
  assert.match(read([{ data: { error: { message: "no memory" } } }]).problems()[0], /no memory/);
});

test("a running stream has no problems yet", () => {
  const stream = read([{ data: TEXT }], { isOver: false });
  assert.deepEqual(stream.problems(), []);
  assert.equal(figure(stream, "Outcome"), "streaming");
});

test("only the first attempt and only received frames count", () => {
  const stream = read([{ data: TEXT }, { data: null }, { data: END, attempt: 1 }], {
    attempts: [
      { server: "a", status: 200, error: "reset", began_s: 1 },
      { server: "b", status: 200, error: null, began_s: 2 },
    ],
  });
  assert.equal(stream.steps.length, 1);
  assert.match(stream.problems()[0], /cut off: reset/);
  assert.equal(stream.indexOf(2), -1);
  assert.equal(stream.indexOf(0), 0);
});

test("an error status is named", () => {
  const attempts = [{ server: "a", status: 503, error: "busy", began_s: 0 }];
  assert.deepEqual(read([], { attempts }).problems(), ["The upstream returned 503: busy"]);
});
