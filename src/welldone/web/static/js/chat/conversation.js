// Conversations as plain values: messages, edits, and the request body. Messages have OpenAI's shape, with details of
// an answer beside it in `answer`.

import { randomName } from "../random.js";
import { readOptions } from "./options.js";

/** @import { Options } from "./options.js" */

/**
 * @typedef {{id: string, type: "function", function: {name: string, arguments: string}}} ToolCall
 *
 * @typedef {object} AnswerFacts how an answer came
 * @property {string} model
 * @property {"whole" | "stopped" | "broken"} outcome
 * @property {string | null} error in the server's words
 * @property {string | null} finish_reason
 * @property {boolean} is_json whether a JSON schema was asked for
 * @property {number | null} ttft_ms
 * @property {number | null} duration_ms
 * @property {number | null} thought_ms
 * @property {number | null} tokens_per_s
 * @property {number | null} prompt_tokens
 * @property {number | null} completion_tokens
 *
 * @typedef {object} Message
 * @property {string} id
 * @property {"user" | "assistant" | "tool"} role
 * @property {string} content
 * @property {string[]} [images] of a user, as data URLs
 * @property {string} [reasoning_content]
 * @property {string} [refusal]
 * @property {ToolCall[]} [tool_calls]
 * @property {string} [tool_call_id]
 * @property {AnswerFacts} [answer]
 * @property {Version[]} [others] other versions of an answer, in their order without this one
 * @property {number} [place] of this version among all
 *
 * @typedef {{message: Message, after: Message[]}} Version an answer, and the messages that followed it
 *
 * @typedef {object} Conversation
 * @property {string} id
 * @property {string} title empty: it is made of the first words
 * @property {string} model the one that was asked last
 * @property {string} system the system prompt
 * @property {Options} options
 * @property {Message[]} messages
 * @property {number} created_at milliseconds, as Date.now()
 * @property {number} updated_at
 */

const MAX_VERSIONS = 20; // of one answer; the oldest is dropped
const TITLE_LENGTH = 48; // about two lines in the list
const UNTITLED = "New conversation";

/** Random id of a conversation or a message. */
export function newId() {
  return randomName(12);
}

/**
 * @param {number} [now]
 * @returns {Conversation}
 */
export function newConversation(now = Date.now()) {
  return { id: newId(), title: "", model: "", system: "", options: {}, messages: [], created_at: now, updated_at: now };
}

/**
 * @param {Message["role"]} role
 * @param {string} content
 * @returns {Message}
 */
export function newMessage(role, content) {
  return { id: newId(), role, content };
}

/**
 * The title, or the first words.
 *
 * @param {Conversation} conversation
 */
export function titleOf({ title, messages }) {
  if (title) return title;
  const first = messages.find(({ role }) => role === "user")?.content ?? "";
  // Only the beginning: a message may be long.
  const words = first.slice(0, 4 * TITLE_LENGTH).replace(/\s+/g, " ").trim();
  if (words.length <= TITLE_LENGTH) return words || UNTITLED;
  const cut = words.slice(0, TITLE_LENGTH);
  const space = cut.lastIndexOf(" ");
  return `${cut.slice(0, space > TITLE_LENGTH / 2 ? space : TITLE_LENGTH)}…`;
}

/**
 * Messages to keep when an answer is regenerated: all before it; for a user message, all up to it.
 *
 * @param {Message[]} messages
 * @param {Message} message
 */
export function keptForRetry(messages, message) {
  const place = messages.indexOf(message);
  return messages.slice(0, message.role === "assistant" ? place : place + 1);
}

/**
 * The answer that a retry replaces: the message itself, or the answer to a user message.
 *
 * @param {Message[]} messages
 * @param {Message} message
 */
export function retriedAnswer(messages, message) {
  const answer = messages[messages.indexOf(message) + (message.role === "assistant" ? 0 : 1)];
  return answer?.role === "assistant" ? answer : undefined;
}

/**
 * All versions of an answer, in their order, with the messages that follow each.
 *
 * @param {Message[]} messages
 * @param {Message} message
 * @returns {Version[]}
 */
function versionsOf(messages, message) {
  const { others = [], place = 0, ...bare } = message;
  const current = { message: bare, after: messages.slice(messages.indexOf(message) + 1) };
  return [...others.slice(0, place), current, ...others.slice(place)];
}

/**
 * Make a new answer the last version of the one that it replaces. The earlier versions keep what followed them.
 *
 * @param {Message} answer
 * @param {Message[]} messages with the replaced answer
 * @param {Message} replaced
 */
export function addVersion(answer, messages, replaced) {
  answer.others = versionsOf(messages, replaced).slice(1 - MAX_VERSIONS);
  answer.place = answer.others.length;
}

/**
 * The messages with another version of an answer.
 *
 * @param {Message[]} messages
 * @param {Message} message
 * @param {number} place of the version
 * @returns {Message[]}
 */
export function withVersion(messages, message, place) {
  const versions = versionsOf(messages, message);
  const chosen = versions[place];
  if (!chosen) return messages;
  const others = versions.filter((one) => one !== chosen);
  return [...messages.slice(0, messages.indexOf(message)), { ...chosen.message, others, place }, ...chosen.after];
}

/**
 * Delete a message, and the results of its tool calls.
 *
 * @param {Message[]} messages
 * @param {Message} message
 */
export function without(messages, message) {
  const calls = new Set(message.tool_calls?.map(({ id }) => id));
  const place = messages.indexOf(message);
  const next = messages.findIndex(({ role }, at) => at > place && role !== "tool");
  const end = next < 0 ? messages.length : next;
  return messages.filter(
    (other, at) => other !== message && !(at > place && at < end && calls.has(other.tool_call_id ?? "")),
  );
}

/**
 * Tool calls at the end that wait for results.
 *
 * @param {Message[]} messages
 * @returns {ToolCall[]}
 */
export function waitingCalls(messages) {
  const last = messages.at(-1);
  return last?.answer?.outcome === "whole" ? (last.tool_calls ?? []) : [];
}

/**
 * The request body for the next answer. Contains only settings that are set.
 *
 * @param {Conversation} conversation
 * @param {string} model
 * @returns {Record<string, unknown>}
 */
export function requestBody({ system, options, messages }, model) {
  const before = system.trim() ? [{ role: "system", content: system }] : [];
  return {
    model,
    messages: [...before, ...messages.flatMap(asSent)],
    stream: true,
    stream_options: { include_usage: true },
    ...readOptions(options).fields,
  };
}

/**
 * A message as sent to the server; nothing for an empty answer.
 *
 * @param {Message} message
 * @returns {Record<string, unknown>[]}
 */
function asSent({ role, content, images = [], refusal, tool_calls, tool_call_id, answer }) {
  if (role === "tool") return [{ role, content, tool_call_id }];
  if (role === "user") return [{ role, content: images.length ? parts(content, images) : content }];
  const text = content || refusal || null;
  // Tool calls of an interrupted answer may be incomplete.
  const calls = answer && answer.outcome !== "whole" ? [] : (tool_calls ?? []);
  if (calls.length) return [{ role, content: text, tool_calls: calls }];
  return text === null ? [] : [{ role, content: text }];
}

/**
 * @param {string} text
 * @param {string[]} images
 */
function parts(text, images) {
  const before = text.trim() ? [{ type: "text", text }] : [];
  return [...before, ...images.map((url) => ({ type: "image_url", image_url: { url } }))];
}
