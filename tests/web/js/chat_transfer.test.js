// Export and import of conversations.

import assert from "node:assert/strict";
import { test } from "node:test";

import { newConversation, newMessage } from "../../../src/welldone/web/static/js/chat/conversation.js";
import { read, TransferError, write } from "../../../src/welldone/web/static/js/chat/transfer.js";

const NOW = new Date(0);

function full() {
  const conversation = newConversation(1000);
  conversation.title = "<script>alert(1)</script>";
  conversation.system = "Be kind.";
  conversation.options = { temperature: "0.5" };
  conversation.messages = [
    newMessage("user", "Hello"),
    {
      ...newMessage("assistant", ""),
      reasoning_content: "hm",
      refusal: "no",
      tool_calls: [{ id: "c", type: "function", function: { name: "f", arguments: "{" } }],
      answer: {
        model: "m",
        outcome: "whole",
        error: null,
        finish_reason: "tool_calls",
        is_json: true,
        ttft_ms: 1.5,
        duration_ms: 2,
        thought_ms: null,
        tokens_per_s: null,
        prompt_tokens: 1,
        completion_tokens: 2,
      },
    },
    { ...newMessage("tool", "42"), tool_call_id: "c" },
  ];
  return conversation;
}

/** @param {any} conversation */
function withoutIds(conversation) {
  const messages = conversation.messages.map((/** @type {any} */ one) => ({ ...one, id: "" }));
  return { ...conversation, id: "", messages };
}

/** @param {(conversation: any) => void} change */
function changed(change) {
  const conversation = full();
  change(conversation);
  return write([conversation], NOW);
}

test("an export can be imported, with new ids", () => {
  const conversation = full();
  const [again] = read(write([conversation], NOW));
  assert.deepEqual(withoutIds(again), withoutIds(conversation));
  assert.notEqual(again?.id, conversation.id);
});

test("unknown fields are dropped", () => {
  const text = changed((one) => {
    one.options = { temperature: "1", constructor: "x", __proto__: "y" };
    one.extra = { big: true };
    one.messages[0].extra = 1;
  });
  const [again] = read(text);
  assert.deepEqual(again?.options, { temperature: "1" });
  assert.ok(again && !("extra" in again) && !("extra" in (again.messages[0] ?? {})));
});

for (const [text, message] of /** @type {[string, RegExp][]} */ ([
  ["", /not JSON/],
  ["[]", /not an export of conversations/],
  ["null", /not an export of conversations/],
  ['{"format":"welldone.conversations","version":2}', /newer version/],
  ['{"format":"welldone.conversations","version":1}', /conversations is not a list/],
  ['{"format":"welldone.conversations","version":1,"conversations":[]}', /no conversations/],
  [changed((one) => (one.messages = {})), /Conversation 1: messages is not a list/],
  [changed((one) => (one.messages.length = 1e4)), /has 10000 entries/],
  [changed((one) => (one.title = 3)), /Conversation 1: title is not text/],
  [changed((one) => (one.created_at = 1e300)), /created_at is not a time/],
  [changed((one) => (one.updated_at = "now")), /updated_at is not a number/],
  [changed((one) => (one.options = [])), /options is not an object/],
  [changed((one) => (one.messages[0].role = "root")), /message 1: role is not one of user/],
  [changed((one) => (one.messages[0].content = null)), /message 1: content is not text/],
  [changed((one) => (one.messages[1].tool_calls = [{}])), /message 2: tool_calls.id is not text/],
  [changed((one) => (one.messages[1].answer.outcome = "fine")), /answer.outcome is not one of/],
  [changed((one) => (one.messages[1].answer.ttft_ms = "1")), /answer.ttft_ms is not a number/],
])) {
  test(`an invalid file is rejected completely: ${message.source}`, () => {
    assert.throws(() => read(text), (error) => error instanceof TransferError && message.test(error.message));
  });
}
