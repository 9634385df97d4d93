// Splitting of bytes into SSE frames.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Cutter, Frame, sizeOf } from "../../../src/welldone/web/static/js/sse.js";

const STREAMS = {
  "lines end with LF": "data: {\"a\":1}\n\n: ping\n\ndata: [DONE]\n\n",
  "lines end with CRLF": "event: x\r\ndata: {}\r\n\r\ndata: [DONE]\r\n\r\n",
  "lines end with CR": "data: a\r\rdata: b\r\r",
  "characters of several bytes": "data: \"ä€😀\"\n\ndata: \"\u2028\"\n\n",
  "the end is missing": "data: 1\n\ndata: 2",
  "nothing at all": "",
  "empty lines": "\n\n\n\ndata: x\n\n",
};

/**
 * @param {Uint8Array[]} pieces
 */
function cut(pieces) {
  const cutter = new Cutter();
  return [...pieces.flatMap((piece) => cutter.feed(piece)), ...cutter.close()];
}

for (const [name, text] of Object.entries(STREAMS)) {
  test(`no byte is lost, however the stream is split: ${name}`, () => {
    const bytes = new TextEncoder().encode(text);
    const whole = cut([bytes]);
    assert.equal(whole.join(""), text);
    for (let at = 0; at <= bytes.length; at++) {
      assert.deepEqual(cut([bytes.slice(0, at), bytes.slice(at)]), whole);
    }
    assert.deepEqual(cut([...bytes].map((byte) => Uint8Array.of(byte))), whole);
  });
}

/** @param {string} raw */
function frame(raw) {
  return new Frame({ n: 1, at: 0, gap: 0, byte: 0, size: sizeOf(raw), raw });
}

test("a frame has its event, data and JSON", () => {
  const one = frame('event: ping\ndata: {"a":\ndata: 1}\n\n');
  assert.equal(one.event, "ping");
  assert.equal(one.data, '{"a":\n1}');
  assert.deepEqual(one.json, { a: 1 });
  assert.equal(one.isComment, false);
});

test("a comment has no event, data or JSON", () => {
  const one = frame(": keep-alive\n\n");
  assert.equal(one.isComment, true);
  assert.equal(one.data, null);
  assert.equal(one.json, undefined);
});

test("data that is not JSON has no JSON", () => {
  assert.equal(frame("data: [DONE]\n\n").json, undefined);
  assert.equal(frame("data: {oops\n\n").json, undefined);
  assert.equal(frame("data\n\n").data, "");
});

test("sizes are in UTF-8 bytes", () => {
  assert.equal(sizeOf("aä€😀"), 1 + 2 + 3 + 4);
});
