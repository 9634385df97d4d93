// Parts of the server view: scale, filter, polling.

import assert from "node:assert/strict";
import { mock, test } from "node:test";

import { matches } from "../../../src/welldone/web/static/js/server/filter.js";
import { Poller } from "../../../src/welldone/web/static/js/server/poll.js";
import { niceTicks } from "../../../src/welldone/web/static/js/server/scale.js";

/** @type {[number, number[]][]} */
const TICKS = [
  [0, [0, 0.5, 1]],
  [1, [0, 0.5, 1]],
  [3, [0, 1, 2, 3]],
  [7, [0, 2.5, 5, 7.5]],
  [0.3, [0, 0.1, 0.2, 0.3]],
  [1234, [0, 500, 1000, 1500]],
];

for (const [most, ticks] of TICKS) {
  test(`the scale up to ${most} has round numbers`, () => assert.deepEqual(niceTicks(most), ticks));
}

test("a scale covers its values with few ticks", () => {
  for (let most = 1e-6; most < 1e9; most *= 1.37) {
    const ticks = niceTicks(most);
    assert.ok((ticks.at(-1) ?? 0) >= most * (1 - 1e-9), `${most}: ${ticks}`);
    assert.ok(ticks.length <= 4 && ticks.length >= 2, `${most}: ${ticks}`);
  }
});

const REQUEST = {
  at: 0, request_id: "req_1", principal: "ada", method: "POST", path: "/v1/chat/completions", status: 200,
  duration_ms: 1, model: "tiny", repaired: ["delta-role-once"], upstream: "gpu-a",
};
const ANY = { model: "", status: "", text: "" };

/** @type {[string, object, boolean][]} */
const FILTERS = [
  ["any", {}, true],
  ["its model", { model: "tiny" }, true],
  ["another model", { model: "tin" }, false],
  ["its status", { status: "2" }, true],
  ["another status", { status: "5" }, false],
  ["repaired", { status: "repaired" }, true],
  ["a rule in other letters", { text: "Role-Once" }, true],
  ["its upstream", { text: "gpu-a" }, true],
  ["some other text", { text: "gpu-b" }, false],
  ["its model and another text", { model: "tiny", text: "gpu-b" }, false],
];

for (const [name, filter, isShown] of FILTERS) {
  test(`a request is filtered by ${name}`, () => assert.equal(matches(REQUEST, { ...ANY, ...filter }), isShown));
}

test("a request without repairs does not match the filter for repairs", () => {
  assert.equal(matches({ ...REQUEST, repaired: [] }, { ...ANY, status: "repaired" }), false);
});

/** Lets all that waits for nothing but other promises go on. */
const settle = () => new Promise((done) => setImmediate(done));

/**
 * A poller with a fake clock.
 *
 * @param {import("node:test").TestContext} context
 * @param {(signal: AbortSignal) => Promise<void>} ask
 */
function poll(context, ask) {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const asked = mock.fn(ask);
  /** @type {number[]} */
  const pauses = [];
  const poller = new Poller({ ask: asked, onFailure: (_, pause) => pauses.push(pause), pauseMs: 2000 });
  context.after(() => poller.stop());
  /** @param {number} ms */
  const pass = async (ms) => {
    context.mock.timers.tick(ms);
    await settle();
  };
  return { poller, asked, pauses, pass, count: () => asked.mock.callCount() };
}

test("it polls at once, and after each pause", async (context) => {
  const { poller, count, pass } = poll(context, async () => {});
  poller.start();
  await settle();
  assert.equal(count(), 1);
  await pass(1999);
  assert.equal(count(), 1);
  await pass(1);
  assert.equal(count(), 2);
});

test("starting twice polls once", async (context) => {
  const { poller, count } = poll(context, async () => {});
  poller.start();
  poller.start();
  await settle();
  assert.equal(count(), 1);
});

test("one request runs at a time", async (context) => {
  const { poller, count, pass } = poll(context, () => new Promise(() => {}));
  poller.start();
  await pass(10_000);
  assert.equal(count(), 1);
});

test("stopping ends polling and aborts a running request", async (context) => {
  /** @type {AbortSignal[]} */
  const signals = [];
  const { poller, count, pass } = poll(context, (signal) => {
    signals.push(signal);
    return new Promise((_, fail) => signal.addEventListener("abort", () => fail(signal.reason)));
  });
  poller.start();
  await settle();
  poller.stop();
  await pass(60_000);
  assert.equal(count(), 1);
  assert.equal(signals[0].aborted, true);
});

test("pauses grow after each failure, up to a limit, and reset after a success", async (context) => {
  let isAway = true;
  const { poller, pauses, pass } = poll(context, async () => {
    if (isAway) throw new Error("away");
  });
  poller.start();
  await settle();
  for (let n = 0; n < 6; n += 1) await pass(30_000);
  assert.deepEqual(pauses, [2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]);
  isAway = false;
  await pass(30_000);
  isAway = true;
  await pass(2000);
  assert.equal(pauses.at(-1), 2000);
});

test("a request without a response times out", async (context) => {
  const { poller, pauses, pass } = poll(
    context,
    (signal) => new Promise((_, fail) => signal.addEventListener("abort", () => fail(signal.reason))),
  );
  poller.start();
  await settle();
  await pass(14_999);
  assert.deepEqual(pauses, []);
  await pass(1);
  assert.deepEqual(pauses, [2000]);
});

test("stopping in the failure callback ends polling", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const ask = mock.fn(async () => {
    throw new Error("no key");
  });
  const poller = new Poller({ ask, onFailure: () => poller.stop(), pauseMs: 2000 });
  poller.start();
  await settle();
  context.mock.timers.tick(60_000);
  await settle();
  assert.equal(ask.mock.callCount(), 1);
});

test("hurry polls at once, but not while stopped", async (context) => {
  const { poller, count } = poll(context, async () => {});
  poller.hurry();
  await settle();
  assert.equal(count(), 0);
  poller.start();
  await settle();
  poller.hurry();
  await settle();
  assert.equal(count(), 2);
});
