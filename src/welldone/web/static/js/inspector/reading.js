// What a frame is for a person who skims a list: its kind, and the text that it carries. It reads what servers really
// send, in every dialect, and gives up on nothing: what it does not know has the name that the server gave it.

import { jsonText } from "../json.js";
import { isRecord } from "../record.js";

/** @import { Frame } from "../sse.js" */

/** @typedef {{prompt: number | null, completion: number | null}} Tokens */
/**
 * `isToken`: it carries something that the model said. `tokens`: what it says of the usage, if it does.
 *
 * @typedef {{kind: string, text: string, isToken: boolean, tokens: Tokens | null}} Reading
 */
/** @typedef {{kind: string, text: string}} Said */

/** A chunk may be several things at once. The first of these is its kind. */
const RANKS = ["error", "tool call", "text", "reasoning", "refusal", "finish", "role", "usage"];
const SPOKEN = new Set(["tool call", "text", "reasoning", "refusal"]);

/**
 * @param {Frame} frame
 * @returns {Reading}
 */
export function read(frame) {
  if (frame.data?.trim() === "[DONE]") return plain("[DONE]", "");
  if (frame.isComment) return plain("comment", frame.raw.trim());
  const json = jsonOf(frame);
  if (!isRecord(json)) return plain(frame.data === null ? frame.event || "other" : "not JSON", frame.data ?? frame.raw);
  const said = readObject(json, frame.event);
  const first = said[0] ?? { kind: frame.event || "empty", text: "" };
  return {
    kind: first.kind,
    text: said.map(({ kind, text }, place) => (place === 0 ? text : `${kind}: ${text}`)).join(" · "),
    isToken: said.some(({ kind, text }) => SPOKEN.has(kind) && text !== ""),
    tokens: tokensOf(json),
  };
}

/**
 * The JSON of a frame, or of a reply that is no stream.
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
 * @returns {Said[]}
 */
function readObject(json, event) {
  const type = typeof json.type === "string" ? json.type : event;
  /** @type {Said[]} */
  const said = [];
  if (json.error) said.push({ kind: "error", text: errorText(json.error) });
  if (Array.isArray(json.choices)) said.push(...json.choices.filter(isRecord).flatMap(readChoice));
  else if (isRecord(json.message) && json.done !== undefined) said.push(...readParts(json.message));
  else if (type && !json.error) said.push(readTyped(json, type));
  const tokens = tokensOf(json);
  if (tokens) said.push({ kind: "usage", text: `${tokens.prompt ?? "?"} + ${tokens.completion ?? "?"} tokens` });
  return said.sort((one, other) => rank(one.kind) - rank(other.kind));
}

/** @param {string} kind */
function rank(kind) {
  const place = RANKS.indexOf(kind);
  // A name of the server's own says more than the usage beside it.
  return place < 0 ? RANKS.indexOf("usage") - 0.5 : place;
}

/**
 * @param {Record<string, unknown>} choice
 * @returns {Said[]}
 */
function readChoice(choice) {
  const parts = choice.delta ?? choice.message;
  const said = isRecord(parts) ? readParts(parts) : [];
  if (typeof choice.text === "string" && choice.text) said.push({ kind: "text", text: choice.text });
  if (choice.finish_reason) said.push({ kind: "finish", text: String(choice.finish_reason) });
  if (choice.index) for (const one of said) one.text = `[${choice.index}] ${one.text}`;
  return said;
}

/**
 * @param {Record<string, unknown>} parts a delta, or a whole message
 * @returns {Said[]}
 */
function readParts(parts) {
  /** @type {Said[]} */
  const said = [];
  for (const call of Array.isArray(parts.tool_calls) ? parts.tool_calls.filter(isRecord) : []) {
    said.push({ kind: "tool call", text: callText(call) });
  }
  if (parts.function_call) said.push({ kind: "tool call", text: callText({ function: parts.function_call }) });
  const texts = {
    text: parts.content,
    reasoning: parts.reasoning_content ?? parts.reasoning ?? parts.thinking,
    refusal: parts.refusal,
  };
  for (const [kind, text] of Object.entries(texts)) if (text) said.push({ kind, text: textOf(text) });
  if (parts.role && said.length === 0) said.push({ kind: "role", text: String(parts.role) });
  return said;
}

/** @param {Record<string, unknown>} call */
function callText(call) {
  const asked = [call.function, call.custom].find(isRecord) ?? {};
  const named = typeof asked.name === "string" && asked.name ? `${asked.name} ` : "";
  return named + textOf(asked.arguments ?? asked.input ?? "");
}

/**
 * A frame of a dialect whose frames name their types.
 *
 * @param {Record<string, unknown>} json
 * @param {string} type
 * @returns {Said}
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
  return { kind: type.replace(/^response\./, ""), text: briefly(json.content_block ?? json.item ?? "") };
}

/** @param {string} type */
function deltaKind(type) {
  if (/output_text|text_delta/.test(type)) return "text";
  if (/reasoning|thinking/.test(type)) return "reasoning";
  if (/arguments|input_json/.test(type)) return "tool call";
  return /refusal/.test(type) ? "refusal" : type.replace(/^response\./, "");
}

/** @param {unknown} part */
function briefly(part) {
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
