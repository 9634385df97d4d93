// The request as code, as a person would write it: a streaming chat, like all requests of this page. The key is never
// included: the code reads it from the environment.

import { jsonText } from "../json.js";

/** @typedef {{path: string, body: Record<string, unknown>, base: URL}} RequestSpec */

const JSON_INDENT = 2;

/** Keyword arguments of the method in OpenAI's Python package. It accepts other fields only in `extra_body`. */
const NAMED = new Set(
  (
    "model messages audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens " +
    "max_tokens metadata modalities n parallel_tool_calls prediction presence_penalty reasoning_effort " +
    "response_format seed service_tier stop store stream stream_options temperature tool_choice tools " +
    "top_logprobs top_p user"
  ).split(" "),
);

/** @param {RequestSpec} request */
export function curl({ path, body, base }) {
  return [
    `curl -N ${quoted(new URL(path, base).href)}`,
    `-H "Authorization: Bearer $OPENAI_API_KEY"`,
    `-H "Content-Type: application/json"`,
    `-d ${quoted(literal(body))}`,
  ].join(" \\\n  ");
}

/** @param {RequestSpec} request */
export function python({ body, base }) {
  const fields = Object.entries(body);
  const lines = fields.filter(([name]) => NAMED.has(name)).map(([name, value]) => `${name}=${pythonLiteral(value, 1)}`);
  const extra = Object.fromEntries(fields.filter(([name]) => !NAMED.has(name)));
  if (Object.keys(extra).length) lines.push(`extra_body=${pythonLiteral(extra, 1)}`);
  return `import os

from openai import OpenAI

client = OpenAI(base_url=${literal(new URL("v1", base).href)}, api_key=os.environ.get("OPENAI_API_KEY", "none"))
stream = client.chat.completions.create(
${lines.map((line) => `    ${line},\n`).join("")})
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
`;
}

/** @param {RequestSpec} request */
export function javascript({ body, base }) {
  return `import OpenAI from "openai";

const client = new OpenAI({
  baseURL: ${literal(new URL("v1", base).href)},
  apiKey: process.env.OPENAI_API_KEY ?? "none",
});
const stream = await client.chat.completions.create(${literal(body)});
for await (const chunk of stream) {
  process.stdout.write(chunk.choices[0]?.delta.content ?? "");
}
console.log();
`;
}

/**
 * A value as JSON, which is also JavaScript. Invisible characters are escaped, so that nothing hides in pasted code.
 *
 * @param {unknown} value
 */
export function literal(value) {
  return jsonText(value, JSON_INDENT).replace(
    /[\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb]/g,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

/**
 * @param {unknown} value
 * @param {number} depth
 * @returns {string}
 */
function pythonLiteral(value, depth) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  // JSON strings and numbers are valid Python.
  if (typeof value !== "object") return literal(value);
  const [open, close] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  const items = Array.isArray(value)
    ? value.map((item) => pythonLiteral(item, depth + 1))
    : Object.entries(value).map(([name, item]) => `${literal(name)}: ${pythonLiteral(item, depth + 1)}`);
  if (items.length === 0) return open + close;
  const indent = "    ".repeat(depth);
  return `${open}\n${items.map((item) => `${indent}    ${item},\n`).join("")}${indent}${close}`;
}

/**
 * Quote for a POSIX shell.
 *
 * @param {string} text
 */
function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
