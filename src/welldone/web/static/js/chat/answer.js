// Accumulates the chunks of a stream into an answer.

import { isRecord } from "../record.js";
import { tokensPerSecond } from "../speed.js";

/** @import { ToolCall } from "./conversation.js" */

/**
 * @typedef {object} News what one chunk brought
 * @property {string} content
 * @property {string} reasoning
 * @property {string} refusal
 * @property {{place: number, name: string, piece: string}[]} calls which tool call it belongs to, and its new arguments
 */

const MAX_CALLS = 128; // OpenAI's limit of tools per request

export class Answer {
  content = "";
  reasoning = "";
  refusal = "";
  /** @type {ToolCall[]} */
  calls = [];
  /** @type {string | null} */
  finishReason = null;
  /** @type {string | null} what an error event said */
  error = null;
  /** @type {number | null} */
  promptTokens = null;
  /** @type {number | null} */
  completionTokens = null;
  /** @type {number | null} when the first and the last of it came, in milliseconds since the request began */
  firstAt = null;
  /** @type {number | null} */
  lastAt = null;
  /** @type {number | null} when the thoughts began and ended */
  thoughtFrom = null;
  /** @type {number | null} */
  thoughtUntil = null;
  /** Number of characters. */
  size = 0;
  /** @type {Map<number, number>} where the call with an index stands in `calls` */
  #places = new Map();

  /**
   * @param {unknown} chunk the JSON of a frame
   * @param {number} at when it arrived
   * @returns {News}
   */
  feed(chunk, at) {
    /** @type {News} */
    const news = { content: "", reasoning: "", refusal: "", calls: [] };
    if (!isRecord(chunk)) return news;
    if (chunk.error) this.error = errorText(chunk.error);
    if (isRecord(chunk.usage)) this.#count(chunk.usage);
    const choice = firstChoice(chunk.choices);
    if (!choice) return news;
    if (typeof choice.finish_reason === "string") this.finishReason = choice.finish_reason;
    if (isRecord(choice.delta)) this.#hear(choice.delta, news);
    this.#time(news, at);
    return news;
  }

  get tokensPerSecond() {
    return tokensPerSecond(this.completionTokens, this.firstAt, this.lastAt);
  }

  get thoughtMs() {
    return this.thoughtFrom === null || this.thoughtUntil === null ? null : this.thoughtUntil - this.thoughtFrom;
  }

  /**
   * @param {Record<string, unknown>} delta
   * @param {News} news
   */
  #hear(delta, news) {
    news.content = textOf(delta.content);
    // The field name differs between servers.
    news.reasoning = textOf(delta.reasoning_content) || textOf(delta.reasoning);
    news.refusal = textOf(delta.refusal);
    this.content += news.content;
    this.reasoning += news.reasoning;
    this.refusal += news.refusal;
    this.size += news.content.length + news.reasoning.length + news.refusal.length;
    if (Array.isArray(delta.tool_calls)) for (const call of delta.tool_calls) this.#call(call, news);
  }

  /**
   * @param {unknown} call
   * @param {News} news
   */
  #call(call, news) {
    if (!isRecord(call)) return;
    const index = typeof call.index === "number" ? call.index : Math.max(0, this.calls.length - 1);
    const place = this.#place(index);
    const known = this.calls[place];
    if (!known) return;
    const { name, arguments: more } = isRecord(call.function) ? call.function : {};
    known.id ||= textOf(call.id);
    known.function.name ||= textOf(name);
    const piece = textOf(more);
    known.function.arguments += piece;
    this.size += piece.length;
    news.calls.push({ place, name: known.function.name, piece });
  }

  /** @param {number} index */
  #place(index) {
    const known = this.#places.get(index);
    if (known !== undefined) return known;
    const place = this.calls.length;
    if (place === MAX_CALLS) return place;
    this.calls.push({ id: "", type: "function", function: { name: "", arguments: "" } });
    this.#places.set(index, place);
    return place;
  }

  /**
   * @param {News} news
   * @param {number} at
   */
  #time({ content, reasoning, refusal, calls }, at) {
    if (!content && !reasoning && !refusal && !calls.length) return;
    this.firstAt ??= at;
    this.lastAt = at;
    if (!reasoning) return;
    this.thoughtFrom ??= at;
    this.thoughtUntil = at;
  }

  /** @param {Record<string, unknown>} usage */
  #count({ prompt_tokens, completion_tokens }) {
    if (typeof prompt_tokens === "number") this.promptTokens = prompt_tokens;
    if (typeof completion_tokens === "number") this.completionTokens = completion_tokens;
  }
}

/**
 * @param {unknown} choices
 * @returns {Record<string, unknown> | undefined}
 */
function firstChoice(choices) {
  if (!Array.isArray(choices)) return undefined;
  return choices.find((choice) => isRecord(choice) && (choice.index ?? 0) === 0);
}

/** @param {unknown} error */
function errorText(error) {
  const message = isRecord(error) ? error.message : error;
  return typeof message === "string" && message ? message : "The server sent an error without a message.";
}

/** @param {unknown} value */
function textOf(value) {
  return typeof value === "string" ? value : "";
}
