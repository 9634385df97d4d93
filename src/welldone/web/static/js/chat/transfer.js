// Export and import of conversations. Files are untrusted: a file is validated completely before anything is imported,
// and only known fields are.

import { isRecord } from "../record.js";
import { newId } from "./conversation.js";
import { isImage, MAX_IMAGES } from "./images.js";
import { FIELDS } from "./options.js";

/** @import { AnswerFacts, Conversation, Message, ToolCall } from "./conversation.js" */

const FORMAT = "welldone.conversations";
const VERSION = 1;
export const MAX_BYTES = 64 * 2 ** 20; // thousands of long conversations; parsed in about a second
const MAX_CONVERSATIONS = 5_000;
const MAX_MESSAGES = 5_000; // each becomes an element
const MAX_CALLS = 1_000; // tool calls of a conversation: each becomes a card, which is slow to draw
const MAX_DEPTH = 50; // of versions within versions: a retry within each
const ROLES = /** @type {const} */ (["user", "assistant", "tool"]);
const OUTCOMES = /** @type {const} */ (["whole", "stopped", "broken"]);
const LAST_DAY = 8.64e15; // limit of Date

/** The file is invalid. */
export class TransferError extends Error {}

/**
 * @param {Conversation[]} conversations
 * @param {Date} now
 */
export function write(conversations, now) {
  return JSON.stringify({ format: FORMAT, version: VERSION, exported_at: now.toISOString(), conversations }, null, 2);
}

/**
 * The conversations of a file, with new ids: existing ones are not overwritten.
 *
 * @param {string} text
 * @returns {Conversation[]}
 */
export function read(text) {
  const file = parse(text);
  if (!isRecord(file) || file.format !== FORMAT) throw new TransferError("This is not an export of conversations.");
  if (file.version !== VERSION) throw new TransferError("This file was written by a newer version of this page.");
  const list = new Part(file, "").at("conversations").list(MAX_CONVERSATIONS);
  if (!list.length) throw new TransferError("There are no conversations in this file.");
  return list.map(({ value }, at) => readConversation(new Part(value, `Conversation ${at + 1}`)));
}

/** @param {string} text */
function parse(text) {
  try {
    return /** @type {unknown} */ (JSON.parse(text));
  } catch {
    throw new TransferError("This file is not JSON.");
  }
}

/**
 * @param {Part} one
 * @returns {Conversation}
 */
function readConversation(one) {
  const counts = { messages: 0, calls: 0 };
  const messages = readMessages(one.at("messages"), one.where, counts, 0);
  if (counts.calls > MAX_CALLS) {
    throw new TransferError(`${one.where} has ${counts.calls} tool calls; the limit is ${MAX_CALLS}.`);
  }
  return {
    id: newId(),
    title: one.at("title").textOrNull() ?? "",
    model: one.at("model").textOrNull() ?? "",
    system: one.at("system").textOrNull() ?? "",
    options: one.has("options") ? readTyped(one.at("options")) : {},
    messages,
    created_at: one.at("created_at").time(),
    updated_at: one.at("updated_at").time(),
  };
}

/**
 * @param {Part} list
 * @param {string} where
 * @param {{messages: number, calls: number}} counts of the conversation, with all versions of its answers
 * @param {number} depth of versions within versions
 */
function readMessages(list, where, counts, depth) {
  const found = list.list(MAX_MESSAGES);
  counts.messages += found.length;
  if (counts.messages > MAX_MESSAGES) throw new TransferError(`${where} has more than ${MAX_MESSAGES} messages.`);
  return found.map(({ value }, at) => {
    const one = new Part(value, `${where}, message ${at + 1}`);
    const message = readMessage(one);
    counts.calls += message.tool_calls?.length ?? 0;
    if (one.has("others") && message.role === "assistant") readVersions(one, message, counts, depth);
    return message;
  });
}

/**
 * @param {Part} one
 * @param {Message} message
 * @param {{messages: number, calls: number}} counts
 * @param {number} depth
 */
function readVersions(one, message, counts, depth) {
  if (depth > MAX_DEPTH) throw new TransferError(`${one.where} has versions within versions, too deep to read.`);
  const others = one.at("others").list(MAX_MESSAGES).map(({ value }) => {
    const version = new Part(value, `${one.where}, a version`);
    const after = readMessages(version.at("after"), version.where, counts, depth + 1);
    const [made] = readMessages(new Part([version.at("message").value], ""), version.where, counts, MAX_DEPTH + 1);
    if (made.role !== "assistant") throw new TransferError(`${version.where} is not an answer.`);
    return { message: made, after };
  });
  const place = one.at("place").number();
  if (!Number.isInteger(place) || place < 0 || place > others.length) {
    throw new TransferError(`${one.where}: place is not that of a version.`);
  }
  Object.assign(message, { others, place });
}

/** @param {Part} options */
function readTyped(options) {
  const known = FIELDS.filter(({ name }) => options.has(name));
  return Object.fromEntries(known.map(({ name }) => [name, options.at(name).text()]));
}

/**
 * @param {Part} one
 * @returns {Message}
 */
function readMessage(one) {
  /** @type {Message} */
  const message = { id: newId(), role: one.at("role").oneOf(ROLES), content: one.at("content").text() };
  for (const name of /** @type {const} */ (["reasoning_content", "refusal", "tool_call_id"])) {
    if (one.has(name)) message[name] = one.at(name).text();
  }
  if (one.has("images")) message.images = one.at("images").list(MAX_IMAGES).map((image) => image.image());
  if (one.has("tool_calls")) message.tool_calls = one.at("tool_calls").list(MAX_CALLS).map(readCall);
  if (one.has("answer")) message.answer = readFacts(one.at("answer"));
  return message;
}

/**
 * @param {Part} call
 * @returns {ToolCall}
 */
function readCall(call) {
  const called = call.at("function");
  return {
    id: call.at("id").text(),
    type: "function",
    function: { name: called.at("name").text(), arguments: called.at("arguments").text() },
  };
}

/**
 * @param {Part} facts
 * @returns {AnswerFacts}
 */
function readFacts(facts) {
  return {
    model: facts.at("model").textOrNull() ?? "",
    outcome: facts.at("outcome").oneOf(OUTCOMES),
    error: facts.at("error").textOrNull(),
    finish_reason: facts.at("finish_reason").textOrNull(),
    is_json: facts.at("is_json").value === true,
    ttft_ms: facts.at("ttft_ms").numberOrNull(),
    duration_ms: facts.at("duration_ms").numberOrNull(),
    thought_ms: facts.at("thought_ms").numberOrNull(),
    tokens_per_s: facts.at("tokens_per_s").numberOrNull(),
    prompt_tokens: facts.at("prompt_tokens").numberOrNull(),
    completion_tokens: facts.at("completion_tokens").numberOrNull(),
  };
}

/** A value in a file, with its location for error messages. */
class Part {
  /**
   * @param {unknown} value
   * @param {string} where
   */
  constructor(value, where) {
    this.value = value;
    this.where = where;
  }

  /** @param {string} name of an optional field */
  at(name) {
    if (!isRecord(this.value)) throw this.#isNot("an object");
    const joint = this.where.includes(": ") ? "." : ": ";
    return new Part(this.value[name], this.where ? this.where + joint + name : name);
  }

  /** @param {string} name */
  has(name) {
    return this.at(name).value !== undefined;
  }

  /** @param {number} limit */
  list(limit) {
    const { value, where } = this;
    if (!Array.isArray(value)) throw this.#isNot("a list");
    if (value.length <= limit) return Array.from(value, (one) => new Part(one, where));
    throw new TransferError(`${where} has ${value.length} entries; the limit is ${limit}.`);
  }

  text() {
    if (typeof this.value !== "string") throw this.#isNot("text");
    return this.value;
  }

  image() {
    if (!isImage(this.text())) throw this.#isNot("an image");
    return this.text();
  }

  textOrNull() {
    return this.value == null ? null : this.text();
  }

  number() {
    if (typeof this.value !== "number") throw this.#isNot("a number");
    return this.value;
  }

  numberOrNull() {
    return this.value == null ? null : this.number();
  }

  time() {
    if (Math.abs(this.number()) > LAST_DAY) throw this.#isNot("a time");
    return this.number();
  }

  /**
   * @template {string} Word
   * @param {readonly Word[]} words
   */
  oneOf(words) {
    const found = words.find((word) => word === this.value);
    if (found === undefined) throw this.#isNot(`one of ${words.join(", ")}`);
    return found;
  }

  /** @param {string} what */
  #isNot(what) {
    return new TransferError(`${this.where} is not ${what}.`);
  }
}
