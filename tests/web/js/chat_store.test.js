// Conversations in memory, as in a browser that keeps nothing.

import assert from "node:assert/strict";
import { test } from "node:test";

import { newConversation, newMessage } from "../../../src/welldone/web/static/js/chat/conversation.js";
import { MemoryStore, openStore } from "../../../src/welldone/web/static/js/chat/store.js";

/** @param {string} text @param {number} at */
function said(text, at) {
  return { ...newConversation(at), messages: [newMessage("user", text)] };
}

test("without IndexedDB conversations are kept in memory", async () => {
  assert.equal((await openStore()).isLasting, false);
});

test("the newest stands first, under its title", async () => {
  const store = new MemoryStore();
  await store.save([said("old", 1), said("new", 2)]);
  assert.deepEqual((await store.heads()).map(({ title }) => title), ["new", "old"]);
});

test("what is removed is gone", async () => {
  const store = new MemoryStore();
  const one = said("one", 1);
  await store.save([one]);
  assert.equal(await store.load(one.id), one);
  await store.remove(one.id);
  assert.equal(await store.load(one.id), undefined);
});

test("a search looks into the text, whatever its case", async () => {
  const store = new MemoryStore();
  const one = said(`${"a ".repeat(100)}Needle`, 1);
  await store.save([one, said("hay", 2)]);
  assert.deepEqual(await store.search("needle"), new Set([one.id]));
});
