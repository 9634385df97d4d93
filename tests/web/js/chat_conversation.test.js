// Conversations: request bodies and edits.

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  keptForRetry,
  newConversation,
  newMessage,
  requestBody,
  titleOf,
  waitingCalls,
  without,
} from "../../../src/welldone/web/static/js/chat/conversation.js";

/** @typedef {import("../../../src/welldone/web/static/js/chat/conversation.js").Message} Message */

const CALL = { id: "c1", type: /** @type {const} */ ("function"), function: { name: "f", arguments: "{}" } };

/** @param {Partial<Message>} [more] @param {"whole" | "stopped" | "broken"} [outcome] */
function answered(more = {}, outcome = "whole") {
  const facts = /** @type {any} */ ({ model: "m", outcome });
  return { ...newMessage("assistant", "hi"), answer: facts, ...more };
}

/** @param {...Message} messages */
function conversationOf(...messages) {
  return { ...newConversation(), messages };
}

/** @param {...Message} messages */
const sent = (...messages) => requestBody(conversationOf(...messages), "m").messages;

test("a request has the model, streaming with usage, and only settings that are set", () => {
  assert.deepEqual(requestBody(conversationOf(newMessage("user", "Hello")), "m"), {
    model: "m",
    messages: [{ role: "user", content: "Hello" }],
    stream: true,
    stream_options: { include_usage: true },
  });
});

test("the system prompt comes first", () => {
  const conversation = { ...conversationOf(newMessage("user", "Hello")), system: "Be kind." };
  assert.deepEqual(requestBody(conversation, "m").messages, [
    { role: "system", content: "Be kind." },
    { role: "user", content: "Hello" },
  ]);
});

test("answers are sent back without fields of the page", () => {
  assert.deepEqual(sent(newMessage("user", "a"), answered({ reasoning_content: "hm" })), [
    { role: "user", content: "a" },
    { role: "assistant", content: "hi" },
  ]);
});

test("tool calls and results are sent back", () => {
  const result = { ...newMessage("tool", "42"), tool_call_id: "c1" };
  assert.deepEqual(sent(answered({ content: "", tool_calls: [CALL] }), result), [
    { role: "assistant", content: null, tool_calls: [CALL] },
    { role: "tool", content: "42", tool_call_id: "c1" },
  ]);
});

test("tool calls of an interrupted answer are not sent back", () => {
  assert.deepEqual(sent(answered({ tool_calls: [CALL] }, "stopped")), [{ role: "assistant", content: "hi" }]);
});

test("an empty answer is not sent back", () => {
  assert.deepEqual(sent(answered({ content: "" }, "broken")), []);
});

test("a refusal is sent back as text", () => {
  assert.deepEqual(sent(answered({ content: "", refusal: "No." })), [{ role: "assistant", content: "No." }]);
});

test("retrying an answer drops it and later messages; retrying a user message keeps it", () => {
  const all = [newMessage("user", "a"), answered(), newMessage("user", "b"), answered()];
  assert.deepEqual(keptForRetry(all, /** @type {Message} */ (all[1])), all.slice(0, 1));
  assert.deepEqual(keptForRetry(all, /** @type {Message} */ (all[2])), all.slice(0, 3));
});

test("deleting an answer with tool calls deletes only their results", () => {
  const result = { ...newMessage("tool", "42"), tool_call_id: "c1" };
  const later = { ...newMessage("tool", "43"), tool_call_id: "c1" };
  const calling = answered({ tool_calls: [CALL] });
  const again = answered({ tool_calls: [CALL] });
  assert.deepEqual(without([calling, result, again, later], calling), [again, later]);
  assert.deepEqual(without([calling, result], result), [calling]);
});

test("only complete tool calls at the end wait for results", () => {
  assert.deepEqual(waitingCalls([answered({ tool_calls: [CALL] })]), [CALL]);
  assert.deepEqual(waitingCalls([answered({ tool_calls: [CALL] }, "stopped")]), []);
  assert.deepEqual(waitingCalls([answered({ tool_calls: [CALL] }), newMessage("tool", "x")]), []);
  assert.deepEqual(waitingCalls([]), []);
});

for (const [text, title] of [
  ["", "New conversation"],
  ["  Hello\n there ", "Hello there"],
  ["word ".repeat(40), "word word word word word word word word word…"],
  ["x".repeat(1000), `${"x".repeat(48)}…`],
]) {
  test(`the title of ${JSON.stringify(text?.slice(0, 20))} is its first words`, () => {
    assert.equal(titleOf(conversationOf(newMessage("user", text ?? ""))), title);
  });
}

test("a title set by the user is kept", () => {
  assert.equal(titleOf({ ...conversationOf(newMessage("user", "Hello")), title: "Mine" }), "Mine");
});
