// Classifies a frame of any dialect for the list: its kind and its text. Tolerant: an unknown type becomes the kind.

import { jsonText } from "../json.js";
import { isRecord } from "../record.js";

/** @import { Frame } from "../sse.js" */

/** @typedef {{prompt: number | null, completion: number | null}} Tokens */
/**
 * `isToken`: contains output of the model. `tokens`: the usage, if the frame has one.
 *
 * @typedef {{kind: string, text: string, isToken: boolean, tokens: Tokens | null}} Reading
 */
/** @typedef {{kind: string, text: string}} Content */

/** A chunk may have several contents. The first in this order is its kind. */
const RANKS = ["error", "tool call", "text", "reasoning", "refusal", "finish", "role", "usage"];
const MODEL_OUTPUT = new Set(["tool call", "text", "reasoning", "refusal"]);

/**
 * @param {Frame} frame
 * @returns {Reading}
 */
export function read(frame) {
  if (frame.data?.trim() === "[DONE]") return plain("[DONE]", "");
  if (frame.isComment) return plain("comment", frame.raw.trim());
  const json = jsonOf(frame);
  if (!isRecord(json)) return plain(frame.data === null ? frame.event || "other" : "not JSON", frame.data ?? frame.raw);
  const contents = readObject(json, frame.event);
  const first = contents[0] ?? { kind: frame.event || "empty", text: "" };
  return {
    kind: first.kind,
    text: contents.map(({ kind, text }, index) => (index === 0 ? text : `${kind}: ${text}`)).join(" · "),
    isToken: contents.some(({ kind, text }) => MODEL_OUTPUT.has(kind) && text !== ""),
    tokens: tokensOf(json),
  };
}

/**
 * The JSON of a frame, or of a reply that is not a stream.
 *
 * @param {Frame} frame
 * @returns {unknown}
 */
export function jsonOf(frame) {
  if (frame.data !== null || !/^\s*[{[]/.test(frame.raw)) return frame.json;
  try {
    return JSON.parse(frame.raw);
  } catch {
    return undefined;
  }
}

/**
 * @param {string} kind
 * @param {string} text
 * @returns {Reading}
 */
function plain(kind, text) {
  return { kind, text, isToken: false, tokens: null };
}

/**
 * @param {Record<string, unknown>} json
 * @param {string} event
 * @returns {Content[]}
 */
function readObject(json, event) {
  const type = typeof json.type === "string" ? json.type : event;
  /** @type {Content[]} */
  const contents = [];
  if (json.error) contents.push({ kind: "error", text: errorText(json.error) });
  if (Array.isArray(json.choices)) contents.push(...json.choices.filter(isRecord).flatMap(readChoice));
  else if (isRecord(json.message) && json.done !== undefined) contents.push(...readParts(json.message));
  else if (type && !json.error) contents.push(readTyped(json, type));
  const tokens = tokensOf(json);
  if (tokens) contents.push({ kind: "usage", text: `${tokens.prompt ?? "?"} + ${tokens.completion ?? "?"} tokens` });
  return contents.sort((one, other) => rank(one.kind) - rank(other.kind));
}

/** @param {string} kind */
function rank(kind) {
  const index = RANKS.indexOf(kind);
  // An unknown type ranks just before the usage.
  return index < 0 ? RANKS.indexOf("usage") - 0.5 : index;
}

/**
 * @param {Record<string, unknown>} choice
 * @returns {Content[]}
 */
function readChoice(choice) {
  const parts = choice.delta ?? choice.message;
  const contents = isRecord(parts) ? readParts(parts) : [];
  if (typeof choice.text === "string" && choice.text) contents.push({ kind: "text", text: choice.text });
  if (choice.finish_reason) contents.push({ kind: "finish", text: String(choice.finish_reason) });
  if (choice.index) for (const one of contents) one.text = `[${choice.index}] ${one.text}`;
  return contents;
}

/**
 * @param {Record<string, unknown>} parts a delta or a message
 * @returns {Content[]}
 */
function readParts(parts) {
  /** @type {Content[]} */
  const contents = [];
  for (const call of Array.isArray(parts.tool_calls) ? parts.tool_calls.filter(isRecord) : []) {
    contents.push({ kind: "tool call", text: callText(call) });
  }
  if (parts.function_call) contents.push({ kind: "tool call", text: callText({ function: parts.function_call }) });
  const texts = {
    text: parts.content,
    reasoning: parts.reasoning_content ?? parts.reasoning ?? parts.thinking,
    refusal: parts.refusal,
  };
  for (const [kind, text] of Object.entries(texts)) if (text) contents.push({ kind, text: textOf(text) });
  if (parts.role && contents.length === 0) contents.push({ kind: "role", text: String(parts.role) });
  return contents;
}

/** @param {Record<string, unknown>} call */
function callText(call) {
  const called = [call.function, call.custom].find(isRecord) ?? {};
  const prefix = typeof called.name === "string" && called.name ? `${called.name} ` : "";
  return prefix + textOf(called.arguments ?? called.input ?? "");
}

/**
 * A frame of a dialect with a `type` in each frame (Responses, Messages).
 *
 * @param {Record<string, unknown>} json
 * @param {string} type
 * @returns {Content}
 */
function readTyped(json, type) {
  const { delta } = json;
  if (type === "response.failed" || type === "error") return { kind: "error", text: errorText(json.response ?? json) };
  if (typeof delta === "string") return { kind: deltaKind(type), text: delta };
  if (isRecord(delta)) {
    const text = delta.text ?? delta.thinking ?? delta.partial_json ?? delta.stop_reason ?? "";
    const kind = delta.stop_reason ? "finish" : deltaKind(String(delta.type ?? type));
    return { kind, text: textOf(text) };
  }
  return { kind: type.replace(/^response\./, ""), text: summarize(json.content_block ?? json.item ?? "") };
}

/** @param {string} type */
function deltaKind(type) {
  if (/output_text|text_delta/.test(type)) return "text";
  if (/reasoning|thinking/.test(type)) return "reasoning";
  if (/arguments|input_json/.test(type)) return "tool call";
  return /refusal/.test(type) ? "refusal" : type.replace(/^response\./, "");
}

/** @param {unknown} part */
function summarize(part) {
  if (!isRecord(part)) return "";
  return [part.type, part.name].filter((word) => typeof word === "string").join(" ");
}

/**
 * @param {unknown} error
 * @returns {string}
 */
function errorText(error) {
  if (!isRecord(error)) return textOf(error);
  return error.message === undefined && isRecord(error.error) ? errorText(error.error) : textOf(error.message ?? error);
}

/** @param {Record<string, unknown>} json */
function tokensOf(json) {
  const holders = [json, json.response, json.message].filter(isRecord);
  const usage = holders.map((holder) => holder.usage).find(isRecord) ?? json;
  const prompt = number(usage.prompt_tokens ?? usage.input_tokens ?? usage.prompt_eval_count);
  const completion = number(usage.completion_tokens ?? usage.output_tokens ?? usage.eval_count);
  return prompt === null && completion === null ? null : { prompt, completion };
}

/** @param {unknown} value */
function number(value) {
  return typeof value === "number" ? value : null;
}

/** @param {unknown} value */
function textOf(value) {
  return typeof value === "string" ? value : jsonText(value);
}
