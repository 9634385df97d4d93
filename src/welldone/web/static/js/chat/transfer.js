// Conversations as a file, and back. A file is untrusted: it is checked whole before any of it is taken, and only the
// fields that are known are.

import { isRecord } from "../record.js";
import { newId } from "./conversation.js";
import { FIELDS } from "./options.js";

/**
 * @typedef {import("./conversation.js").Conversation} Conversation
 * @typedef {import("./conversation.js").Message} Message
 * @typedef {import("./conversation.js").ToolCall} ToolCall
 * @typedef {import("./conversation.js").AnswerFacts} AnswerFacts
 */

const FORMAT = "welldone.conversations";
const VERSION = 1;
export const MOST_BYTES = 64 * 2 ** 20; // some thousand long conversations; a browser reads it in a second
const MOST_CONVERSATIONS = 5_000;
const MOST_MESSAGES = 5_000; // each becomes an element of the page
const ROLES = ["user", "assistant", "tool"];
const OUTCOMES = ["whole", "stopped", "broken"];
const LAST_DAY = 8.64e15; // what a Date can be

/** The file cannot be taken; its message says why. */
export class TransferError extends Error {}

/**
 * @param {Conversation[]} conversations
 * @param {Date} now
 */
export function write(conversations, now) {
  return JSON.stringify({ format: FORMAT, version: VERSION, exported_at: now.toISOString(), conversations }, null, 2);
}

/**
 * The conversations of a file, under new names: what is there already stays as it is.
 *
 * @param {string} text
 * @returns {Conversation[]}
 */
export function read(text) {
  const file = parse(text);
  if (!isRecord(file) || file.format !== FORMAT) throw new TransferError("This is not a file of conversations.");
  if (file.version !== VERSION) throw new TransferError("A newer version of this page wrote this file.");
  const list = listOf(file.conversations, "conversations", MOST_CONVERSATIONS);
  if (!list.length) throw new TransferError("There are no conversations in this file.");
  return list.map((one, at) => readConversation(one, `Conversation ${at + 1}`));
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
 * @param {unknown} value
 * @param {string} where
 * @returns {Conversation}
 */
function readConversation(value, where) {
  const one = recordOf(value, where);
  const messages = listOf(one.messages, `${where}: messages`, MOST_MESSAGES);
  return {
    id: newId(),
    title: textOf(one.title ?? "", `${where}: title`),
    model: textOf(one.model ?? "", `${where}: model`),
    system: textOf(one.system ?? "", `${where}: system`),
    options: readTyped(one.options ?? {}, `${where}: options`),
    messages: messages.map((message, at) => readMessage(message, `${where}, message ${at + 1}`)),
    created_at: timeOf(one.created_at, `${where}: created_at`),
    updated_at: timeOf(one.updated_at, `${where}: updated_at`),
  };
}

/**
 * @param {unknown} value
 * @param {string} where
 */
function readTyped(value, where) {
  const typed = recordOf(value, where);
  const known = FIELDS.filter(({ name }) => Object.hasOwn(typed, name));
  return Object.fromEntries(known.map(({ name }) => [name, textOf(typed[name], `${where}.${name}`)]));
}

/**
 * @param {unknown} value
 * @param {string} where
 * @returns {Message}
 */
function readMessage(value, where) {
  const one = recordOf(value, where);
  /** @type {Message} */
  const message = {
    id: newId(),
    role: /** @type {Message["role"]} */ (oneOf(one.role, ROLES, `${where}: role`)),
    content: textOf(one.content, `${where}: content`),
  };
  if (one.reasoning_content !== undefined) message.reasoning_content = textOf(one.reasoning_content, where);
  if (one.refusal !== undefined) message.refusal = textOf(one.refusal, `${where}: refusal`);
  if (one.tool_call_id !== undefined) message.tool_call_id = textOf(one.tool_call_id, `${where}: tool_call_id`);
  if (one.tool_calls !== undefined) message.tool_calls = readCalls(one.tool_calls, `${where}: tool_calls`);
  if (one.answer !== undefined) message.answer = readFacts(one.answer, `${where}: answer`);
  return message;
}

/**
 * @param {unknown} value
 * @param {string} where
 * @returns {ToolCall[]}
 */
function readCalls(value, where) {
  return listOf(value, where, MOST_MESSAGES).map((call) => {
    const { id, function: called } = recordOf(call, where);
    const { name, arguments: given } = recordOf(called, where);
    return {
      id: textOf(id, where),
      type: "function",
      function: { name: textOf(name, where), arguments: textOf(given, where) },
    };
  });
}

/**
 * @param {unknown} value
 * @param {string} where
 * @returns {AnswerFacts}
 */
function readFacts(value, where) {
  const facts = recordOf(value, where);
  /** @param {string} name */
  const words = (name) => (facts[name] == null ? null : textOf(facts[name], `${where}.${name}`));
  /** @param {string} name */
  const number = (name) => (facts[name] == null ? null : numberOf(facts[name], `${where}.${name}`));
  return {
    model: words("model") ?? "",
    outcome: /** @type {AnswerFacts["outcome"]} */ (oneOf(facts.outcome, OUTCOMES, `${where}.outcome`)),
    error: words("error"),
    finish_reason: words("finish_reason"),
    is_json: facts.is_json === true,
    ttft_ms: number("ttft_ms"),
    duration_ms: number("duration_ms"),
    thought_ms: number("thought_ms"),
    tokens_per_s: number("tokens_per_s"),
    prompt_tokens: number("prompt_tokens"),
    completion_tokens: number("completion_tokens"),
  };
}

/**
 * @param {unknown} value
 * @param {string} where
 */
function recordOf(value, where) {
  if (!isRecord(value)) throw new TransferError(`${where} is not an object.`);
  return value;
}

/**
 * @param {unknown} value
 * @param {string} where
 * @param {number} most
 * @returns {unknown[]}
 */
function listOf(value, where, most) {
  if (!Array.isArray(value)) throw new TransferError(`${where} is not a list.`);
  if (value.length > most) throw new TransferError(`${where} has ${value.length} entries; at most ${most} are taken.`);
  return value;
}

/**
 * @param {unknown} value
 * @param {string} where
 */
function textOf(value, where) {
  if (typeof value !== "string") throw new TransferError(`${where} is not text.`);
  return value;
}

/**
 * @param {unknown} value
 * @param {string} where
 */
function numberOf(value, where) {
  if (typeof value !== "number") throw new TransferError(`${where} is not a number.`);
  return value;
}

/**
 * @param {unknown} value
 * @param {string} where
 */
function timeOf(value, where) {
  const time = numberOf(value, where);
  if (Math.abs(time) > LAST_DAY) throw new TransferError(`${where} is not a time.`);
  return time;
}

/**
 * @param {unknown} value
 * @param {string[]} known
 * @param {string} where
 */
function oneOf(value, known, where) {
  if (typeof value !== "string" || !known.includes(value)) {
    throw new TransferError(`${where} is not one of ${known.join(", ")}.`);
  }
  return value;
}
