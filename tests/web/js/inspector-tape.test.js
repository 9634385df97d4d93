// How the inspector asks for what the upstream said.

import assert from "node:assert/strict";
import { test } from "node:test";

import { ApiError } from "../../../src/welldone/web/static/js/api.js";
import { Tape } from "../../../src/welldone/web/static/js/inspector/tape.js";

/** An exchange that does what a test says. */
class FakeExchange extends EventTarget {
  tape = "name";
  outcome = "running";
  /** @type {number | null} */
  status = null;

  head() {
    this.status = 200;
    this.dispatchEvent(new Event("head"));
  }

  /** @param {string} [outcome] */
  end(outcome = "whole") {
    this.outcome = outcome;
    this.dispatchEvent(new Event("end"));
  }
}

/**
 * A tape whose server gives these answers, one after the other; the last one stays.
 *
 * @param {(Partial<Taped> | ApiError)[]} answers
 */
function makeTape(answers) {
  /** @type {string[]} */
  const asked = [];
  const exchange = new FakeExchange();
  const json = async (/** @type {string} */ path) => {
    asked.push(path);
    const answer = answers[Math.min(asked.length, answers.length) - 1];
    if (answer instanceof ApiError) throw answer;
    return { attempts: [], request: {}, steps: [], next: 0, is_done: false, is_cut: false, ...answer };
  };
  const tape = new Tape(/** @type {any} */ ({ json }), /** @type {any} */ (exchange));
  const isOver = new Promise((resolve) => tape.addEventListener("change", () => tape.isOver && resolve(undefined)));
  return { tape, exchange, asked, isOver };
}

const STEP = /** @type {any} */ ({ heard: "ab", said: "c", notes: [] });
const NONE = new ApiError("none", { status: 404 });

test("nothing is asked before the reply has begun", async () => {
  const { tape, exchange, asked, isOver } = makeTape([{ steps: [STEP], next: 1, is_done: true }]);
  tape.watch();
  await new Promise(setImmediate);
  assert.deepEqual(asked, []);
  exchange.head();
  await isOver;
  assert.deepEqual([asked, tape.steps, tape.size, tape.isDone], [["page/api/tapes/name?from=0"], [STEP], 3, true]);
});

test("who was never answered has no tape", async () => {
  const { tape, exchange, asked, isOver } = makeTape([{}]);
  tape.watch();
  exchange.end("failed");
  await isOver;
  assert.deepEqual([asked, tape.isKnown], [[], false]);
});

test("it is asked until all is told, from where it stopped", async () => {
  const { tape, exchange, asked, isOver } = makeTape([
    { steps: [STEP], next: 1 },
    { steps: [STEP, STEP], next: 3 },
    { next: 3, is_done: true },
  ]);
  exchange.head();
  exchange.end();
  tape.watch();
  await isOver;
  assert.deepEqual(asked.map((path) => path.split("=")[1]), ["0", "1", "3"]);
  assert.equal(tape.steps.length, 3);
});

test("a tape that is not there after the end is not asked for again", async () => {
  const { tape, exchange, asked, isOver } = makeTape([NONE]);
  exchange.head();
  exchange.end();
  tape.watch();
  await isOver;
  assert.deepEqual([asked.length, tape.isKnown], [1, false]);
});

test("before the end it may still come", async () => {
  const { tape, exchange, asked, isOver } = makeTape([NONE, { is_done: true }]);
  exchange.head();
  tape.watch();
  await isOver;
  assert.equal(asked.length, 2);
});

test("a server that never says that it is done is not asked for ever", async () => {
  const { tape, exchange, asked, isOver } = makeTape([{}]);
  exchange.head();
  exchange.end();
  tape.watch();
  await isOver;
  assert.ok(asked.length < 50);
});

test("nobody looks: nothing is asked, and what was asked for is not kept", async () => {
  const { tape, exchange, asked } = makeTape([{ steps: [STEP], next: 1 }]);
  exchange.head();
  tape.watch();
  tape.drop();
  await new Promise(setImmediate);
  assert.deepEqual([asked.length, tape.steps], [0, []]);
});
