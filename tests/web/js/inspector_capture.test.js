// Polling of captures.

import assert from "node:assert/strict";
import { test } from "node:test";

import { ApiError } from "../../../src/welldone/web/static/js/api.js";
import { UpstreamCapture } from "../../../src/welldone/web/static/js/inspector/capture.js";

/** A scripted exchange. */
class FakeExchange extends EventTarget {
  captureId = "name";
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
 * A capture whose server returns these replies in order; the last one is repeated.
 *
 * @param {(Partial<CaptureReply> | ApiError)[]} replies
 */
function makeCapture(replies) {
  /** @type {string[]} */
  const paths = [];
  const exchange = new FakeExchange();
  const json = async (/** @type {string} */ path) => {
    paths.push(path);
    const reply = replies[Math.min(paths.length, replies.length) - 1];
    if (reply instanceof ApiError) throw reply;
    return { attempts: [], request: {}, steps: [], next: 0, is_done: false, is_cut: false, ...reply };
  };
  const capture = new UpstreamCapture(/** @type {any} */ ({ json }), /** @type {any} */ (exchange));
  const isOver = new Promise((resolve) => capture.addEventListener("change", () => capture.isOver && resolve(undefined)));
  return { capture, exchange, paths, isOver };
}

const STEP = /** @type {any} */ ({ received: "ab", sent: "c", repairs: [] });
const NONE = new ApiError("none", { status: 404 });

test("the capture is not polled before the response starts", async () => {
  const { capture, exchange, paths, isOver } = makeCapture([{ steps: [STEP], next: 1, is_done: true }]);
  capture.watch();
  await new Promise(setImmediate);
  assert.deepEqual(paths, []);
  exchange.head();
  await isOver;
  assert.deepEqual([paths, capture.steps, capture.size, capture.isDone], [["page/api/tapes/name?from=0"], [STEP], 3, true]);
});

test("an exchange without a response has no capture", async () => {
  const { capture, exchange, paths, isOver } = makeCapture([{}]);
  capture.watch();
  exchange.end("failed");
  await isOver;
  assert.deepEqual([paths, capture.isKnown], [[], false]);
});

test("the capture is polled until it is complete, each time from the next step", async () => {
  const { capture, exchange, paths, isOver } = makeCapture([
    { steps: [STEP], next: 1 },
    { steps: [STEP, STEP], next: 3 },
    { next: 3, is_done: true },
  ]);
  exchange.head();
  exchange.end();
  capture.watch();
  await isOver;
  assert.deepEqual(paths.map((path) => path.split("=")[1]), ["0", "1", "3"]);
  assert.equal(capture.steps.length, 3);
});

test("a capture that does not exist after the end is not polled again", async () => {
  const { capture, exchange, paths, isOver } = makeCapture([NONE]);
  exchange.head();
  exchange.end();
  capture.watch();
  await isOver;
  assert.deepEqual([paths.length, capture.isKnown], [1, false]);
});

test("a capture that does not exist before the end is polled again", async () => {
  const { capture, exchange, paths, isOver } = makeCapture([NONE, { is_done: true }]);
  exchange.head();
  capture.watch();
  await isOver;
  assert.equal(paths.length, 2);
});

test("polling ends though the server never reports the end", async () => {
  const { capture, exchange, paths, isOver } = makeCapture([{}]);
  exchange.head();
  exchange.end();
  capture.watch();
  await isOver;
  assert.ok(paths.length < 50);
});

test("a hidden capture is not polled, and keeps no steps", async () => {
  const { capture, exchange, paths } = makeCapture([{ steps: [STEP], next: 1 }]);
  exchange.head();
  capture.watch();
  capture.drop();
  await new Promise(setImmediate);
  assert.deepEqual([paths.length, capture.steps], [0, []]);
});
