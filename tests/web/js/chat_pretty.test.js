// Streaming pretty-printer.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Pretty } from "../../../src/welldone/web/static/js/chat/pretty.js";

/** @param {string[]} pieces */
function shown(pieces) {
  const pretty = new Pretty();
  return pieces.map((piece) => pretty.feed(piece)).join("");
}

const VALUES = [
  {},
  [],
  { a: [] },
  { a: [1, -2.5e3, true, null], b: { c: "x, {y}: [z]" } },
  [[["deep"]], {}],
  { 'qu"ote': 'back\\slash\\"', "": "\u0000\n\t😀" },
];

for (const value of VALUES) {
  test(`${JSON.stringify(value)} is indented like JSON.stringify, however it is split`, () => {
    const wanted = JSON.stringify(value, null, 2);
    for (const text of [JSON.stringify(value), wanted]) {
      assert.equal(shown([text]), wanted);
      assert.equal(shown([...text]), wanted);
    }
  });
}

test("extra closing brackets are harmless", () => {
  assert.equal(shown(["}}]]"]).replace(/\s/g, ""), "}}]]");
});

test("indents are limited", () => {
  const deepest = shown(["[".repeat(5000)]).split("\n").map((line) => line.length);
  assert.ok(Math.max(...deepest) < 100);
});
