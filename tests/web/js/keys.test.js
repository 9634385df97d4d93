// Matching of keyboard shortcuts.

import assert from "node:assert/strict";
import { test } from "node:test";

import { capOf, matches, parse } from "../../../src/welldone/web/static/js/keys.js";

function stroke(key, code, held = "") {
  return {
    key,
    code,
    altKey: held.includes("alt"),
    ctrlKey: held.includes("ctrl"),
    metaKey: held.includes("meta"),
    shiftKey: held.includes("shift"),
  };
}

const HEARD = {
  "the letter": ["Alt+I", stroke("i", "KeyI", "alt")],
  "the place where Option makes another letter": ["Alt+I", stroke("ˆ", "KeyI", "alt")],
  "the letter on a keyboard with other places": ["Alt+Q", stroke("q", "KeyA", "alt")],
  "a digit by its place": ["Alt+1", stroke("¡", "Digit1", "alt")],
  "a sign with Shift": ["?", stroke("?", "Slash", "shift")],
  "a sign without": ["/", stroke("/", "Slash")],
  "Ctrl and Enter": ["Ctrl+Enter", stroke("Enter", "Enter", "ctrl")],
  "an arrow": ["Alt+ArrowUp", stroke("ArrowUp", "ArrowUp", "alt")],
  "Shift where it is wanted": ["Alt+Shift+O", stroke("O", "KeyO", "alt shift")],
};

for (const [name, [combo, event]] of Object.entries(HEARD)) {
  test(`a shortcut matches ${name}`, () => assert.ok(matches(event, parse(combo))));
}

const NOT_HEARD = {
  "the letter alone": ["Alt+I", stroke("i", "KeyI")],
  "more keys than its own": ["Alt+I", stroke("i", "KeyI", "alt ctrl")],
  "Shift that is not wanted": ["Alt+I", stroke("I", "KeyI", "alt shift")],
  "another letter": ["Alt+I", stroke("o", "KeyO", "alt")],
  "the place of a letter without Alt": ["q", stroke("a", "KeyQ")],
};

for (const [name, [combo, event]] of Object.entries(NOT_HEARD)) {
  test(`a shortcut does not match ${name}`, () => assert.ok(!matches(event, parse(combo))));
}

test("a Mac has its own symbols", () => {
  assert.equal(capOf("Alt", true), "⌥");
  assert.equal(capOf("Alt", false), "Alt");
  assert.equal(capOf("ArrowUp", false), "↑");
});
