// Settings of a conversation: parsing of user input into request fields. Empty settings are not sent.

import { isRecord } from "../record.js";

/** @typedef {Record<string, string>} Options what was typed, by the name of its field */

/**
 * @typedef {object} Field
 * @property {string} name in the request
 * @property {string} label
 * @property {"number" | "integer" | "lines" | "choice" | "flag" | "tools" | "schema"} kind
 * @property {boolean} [isWide] whether it has a line of its own
 * @property {string} [hint]
 * @property {string[]} [choices]
 * @property {string} [example]
 */

const EXAMPLE_TOOLS = JSON.stringify(
  [
    {
      type: "function",
      function: {
        name: "get_weather",
        description: "Current weather in a city",
        parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
      },
    },
  ],
  null,
  2,
);
const EXAMPLE_SCHEMA = JSON.stringify(
  {
    type: "object",
    properties: { title: { type: "string" }, points: { type: "array", items: { type: "string" } } },
    required: ["title", "points"],
    additionalProperties: false,
  },
  null,
  2,
);

/** @type {Field[]} */
export const FIELDS = [
  { name: "temperature", label: "Temperature", kind: "number", hint: "0: always the likeliest token" },
  { name: "top_p", label: "Top p", kind: "number" },
  { name: "top_k", label: "Top k", kind: "integer" },
  { name: "min_p", label: "Min p", kind: "number" },
  { name: "max_completion_tokens", label: "Max tokens", kind: "integer" },
  { name: "seed", label: "Seed", kind: "integer" },
  { name: "presence_penalty", label: "Presence penalty", kind: "number" },
  { name: "frequency_penalty", label: "Frequency penalty", kind: "number" },
  { name: "stop", label: "Stop", kind: "lines", isWide: true, hint: "One per line" },
  {
    name: "reasoning_effort",
    label: "Reasoning effort",
    kind: "choice",
    isWide: true,
    choices: ["none", "minimal", "low", "medium", "high"],
  },
  {
    name: "tools",
    label: "Tools (JSON)",
    kind: "tools",
    isWide: true,
    hint: "A list in OpenAI's format",
    example: EXAMPLE_TOOLS,
  },
  { name: "tool_choice", label: "Tool choice", kind: "choice", choices: ["auto", "none", "required"] },
  { name: "parallel_tool_calls", label: "Parallel tool calls", kind: "flag", choices: ["true", "false"] },
  {
    name: "response_format",
    label: "JSON schema",
    kind: "schema",
    isWide: true,
    hint: "The answer follows it",
    example: EXAMPLE_SCHEMA,
  },
];

/** Servers reject these without tools. */
const NEED_TOOLS = ["tool_choice", "parallel_tool_calls"];

/** Invalid input. */
class OptionError extends Error {}

/**
 * @param {Options} options
 * @returns {{fields: Record<string, unknown>, errors: Record<string, string>}} errors by the name of their field
 */
export function readOptions(options) {
  /** @type {Record<string, unknown>} */
  const fields = {};
  /** @type {Record<string, string>} */
  const errors = {};
  for (const field of FIELDS) {
    const typed = options[field.name] ?? "";
    if (!typed.trim()) continue;
    try {
      fields[field.name] = read(field, typed);
    } catch (error) {
      if (!(error instanceof OptionError)) throw error;
      errors[field.name] = error.message;
    }
  }
  if (!("tools" in fields)) for (const name of NEED_TOOLS) delete fields[name];
  return { fields, errors };
}

/**
 * @param {Field} field
 * @param {string} typed
 * @returns {unknown}
 */
function read({ kind, choices = [] }, typed) {
  switch (kind) {
    case "number":
      return readNumber(typed);
    case "integer":
      return readInteger(typed);
    case "lines":
      return typed.split("\n").filter((line) => line !== "");
    case "tools":
      return readTools(typed);
    case "schema":
      return { type: "json_schema", json_schema: { name: "answer", strict: true, schema: readSchema(typed) } };
    case "flag":
      return typed === "true";
    case "choice":
      if (!choices.includes(typed)) throw new OptionError(`One of: ${choices.join(", ")}.`);
      return typed;
  }
}

/** @param {string} typed */
function readNumber(typed) {
  const value = Number(typed);
  if (!Number.isFinite(value)) throw new OptionError("This is not a number.");
  return value;
}

/** @param {string} typed */
function readInteger(typed) {
  const value = readNumber(typed);
  if (!Number.isSafeInteger(value)) throw new OptionError("This is not a whole number.");
  return value;
}

/** @param {string} typed */
function readTools(typed) {
  const tools = readJson(typed);
  if (!Array.isArray(tools)) throw new OptionError("This is not a list: enclose it in [ and ].");
  if (!tools.length) throw new OptionError("The list is empty.");
  tools.forEach(checkTool);
  return tools;
}

/**
 * @param {any} tool
 * @param {number} at
 */
function checkTool(tool, at) {
  const name = `Tool ${at + 1}`;
  if (tool?.type !== "function") throw new OptionError(`${name}: "type" must be "function".`);
  if (!isRecord(tool.function)) throw new OptionError(`${name}: "function" must be an object.`);
  if (typeof tool.function.name !== "string" || !/^[\w-]{1,64}$/.test(tool.function.name)) {
    throw new OptionError(`${name}: "function.name" must be 1 to 64 letters, digits, _ or -.`);
  }
  if (tool.function.parameters !== undefined && !isRecord(tool.function.parameters)) {
    throw new OptionError(`${name}: "function.parameters" must be a JSON schema.`);
  }
}

/** @param {string} typed */
function readSchema(typed) {
  const schema = readJson(typed);
  if (!isRecord(schema)) throw new OptionError("A schema must be an object: { … }.");
  return schema;
}

/**
 * @param {string} typed
 * @returns {unknown}
 */
function readJson(typed) {
  try {
    return JSON.parse(typed);
  } catch (error) {
    throw new OptionError(`This is not JSON: ${error instanceof Error ? error.message : error}`);
  }
}
