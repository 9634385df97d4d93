// Hidden characters become visible; legitimate ones stay.

import assert from "node:assert/strict";
import { test } from "node:test";

import { pieces, visible } from "../../../src/welldone/web/static/js/text.js";

const MARKED = {
  "an ANSI escape": ["\u001b[31mred", "␛[31mred"],
  "a zero byte": ["a\0b", "a␀b"],
  "a delete": ["a\u007fb", "a␡b"],
  "a carriage return": ["a\rb", "a␍b"],
  "a control of the second row": ["a\u0085b\u009bc", "a⟨U+0085⟩b⟨U+009B⟩c"],
  "an override of the order": ["a\u202eb\u202c", "a⟨U+202E⟩b⟨U+202C⟩"],
  "an isolate": ["\u2066a\u2069", "⟨U+2066⟩a⟨U+2069⟩"],
  "marks of direction": ["\u200e\u200f\u061c", "⟨U+200E⟩⟨U+200F⟩⟨U+061C⟩"],
  "a space without width": ["a\u200bb\ufeff", "a⟨U+200B⟩b⟨U+FEFF⟩"],
  "a joiner between Latin letters": ["a\u200db", "a⟨U+200D⟩b"],
  "a joiner at the end": ["👩\u200d", "👩⟨U+200D⟩"],
  "letters of plane 14": ["a\u{e0041}", "a⟨U+E0041⟩"],
  "letters of plane 14 behind a flag": ["🏴\u{e0041}", "🏴⟨U+E0041⟩"],
  "half a pair": ["a\ud800b", "a⟨U+D800⟩b"],
  "a separator of lines": ["a\u2028b", "a⟨U+2028⟩b"],
  "a filler": ["a\u3164b", "a⟨U+3164⟩b"],
};

for (const [name, [text, expected]] of Object.entries(MARKED)) {
  test(`${name} is shown as a mark`, () => assert.equal(visible(text), expected));
}

const KEPT = {
  "new lines and tabs": "a\n\tb",
  "a family": "👩\u200d👩\u200d👧",
  "a heart with its variant": "❤\ufe0f\u200d🔥",
  "a person with a tone": "👩🏽\u200d💻",
  "Persian": "می\u200cخواهم",
  "Hindi": "क्\u200dष",
  "Arabic and Hebrew": "مرحبا שלום",
  "the flag of Wales": "🏴\u{e0067}\u{e0062}\u{e0077}\u{e006c}\u{e0073}\u{e007f}",
  "a variant of a Han sign": "葛\u{e0100}",
};

for (const [name, text] of Object.entries(KEPT)) {
  test(`${name} stays`, () => assert.equal(visible(text), text));
}

test("pieces add up to the text, and none is too long", () => {
  const text = `${"a".repeat(40)}\n${"😀".repeat(40)} ${"b c ".repeat(30)}`;
  for (let size = 2; size < 50; size += 1) {
    const cut = pieces(text, size);
    assert.equal(cut.join(""), text);
    assert.ok(cut.every((piece) => piece.length <= size && piece.isWellFormed()));
  }
});

test("a piece ends after a line", () => assert.deepEqual(pieces("ab\ncd\nef", 7), ["ab\ncd\n", "ef"]));
