// In-memory store, used without IndexedDB.

import assert from "node:assert/strict";
import { test } from "node:test";

import { newConversation, newMessage } from "../../../src/welldone/web/static/js/chat/conversation.js";
import { MemoryStore, openStore } from "../../../src/welldone/web/static/js/chat/store.js";

/** @param {string} text @param {number} at */
function conversation(text, at) {
  return { ...newConversation(at), messages: [newMessage("user", text)] };
}

test("without IndexedDB conversations are stored in memory", async () => {
  assert.equal((await openStore()).isLasting, false);
});

test("the newest comes first, with its title", async () => {
  const store = new MemoryStore();
  await store.save([conversation("old", 1), conversation("new", 2)]);
  assert.deepEqual((await store.heads()).map(({ title }) => title), ["new", "old"]);
});

test("a removed conversation is gone", async () => {
  const store = new MemoryStore();
  const one = conversation("one", 1);
  await store.save([one]);
  assert.equal(await store.load(one.id), one);
  await store.remove(one.id);
  assert.equal(await store.load(one.id), undefined);
});

test("search is full-text and case-insensitive", async () => {
  const store = new MemoryStore();
  const one = conversation(`${"a ".repeat(100)}Needle`, 1);
  await store.save([one, conversation("hay", 2)]);
  assert.deepEqual(await store.search("needle"), new Set([one.id]));
});
