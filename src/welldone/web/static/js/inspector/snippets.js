// The same request, as people would write it by hand. The key is never in it: it is taken from the environment.

/** @typedef {{path: string, body: Record<string, unknown>, base: URL}} Asked */

const JSON_INDENT = 2;

/** How Python's package calls each endpoint, and how the text of a chunk is had. */
const CALLS = [
  { path: "v1/chat/completions", call: "chat.completions.create", part: "delta.content", whole: "message.content" },
  { path: "v1/completions", call: "completions.create", part: "text", whole: "text" },
];

/**
 * What the method of Python's package takes by name. All else is said in `extra_body`, or it would refuse it.
 */
const NAMED = new Set(
  (
    "model messages prompt audio best_of echo frequency_penalty function_call functions logit_bias logprobs " +
    "max_completion_tokens max_tokens metadata modalities n parallel_tool_calls prediction presence_penalty " +
    "reasoning_effort response_format seed service_tier stop store stream stream_options suffix temperature " +
    "tool_choice tools top_logprobs top_p user"
  ).split(" "),
);

/** @param {Asked} asked */
export function curl({ path, body, base }) {
  return [
    `curl -N ${quoted(new URL(path, base).href)}`,
    `-H "Authorization: Bearer $OPENAI_API_KEY"`,
    `-H "Content-Type: application/json"`,
    `-d ${quoted(literal(body))}`,
  ].join(" \\\n  ");
}

/** @param {Asked} asked */
export function python({ path, body, base }) {
  const known = CALLS.find((call) => call.path === path);
  const url = literal(new URL("v1", base).href);
  const start = [
    "import os",
    "",
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${url}, api_key=os.environ.get("OPENAI_API_KEY", "none"))`,
  ];
  if (!known) {
    const rest = literal(path.replace(/^v1/, ""));
    const call = `client.post(${rest}, body=${pythonLiteral(body, 0)}, cast_to=object)`;
    return [...start, `print(${call})`, ""].join("\n");
  }
  const named = Object.entries(body).filter(([name]) => NAMED.has(name));
  const extra = Object.entries(body).filter(([name]) => !NAMED.has(name));
  const lines = named.map(([name, value]) => `    ${name}=${pythonLiteral(value, 1)},`);
  if (extra.length) lines.push(`    extra_body=${pythonLiteral(Object.fromEntries(extra), 1)},`);
  const call = [`client.${known.call}(`, ...lines, ")"].join("\n");
  const end = body.stream
    ? [
        `stream = ${call}`,
        "for chunk in stream:",
        "    if chunk.choices:",
        `        print(chunk.choices[0].${known.part} or "", end="", flush=True)`,
        "print()",
      ]
    : [`reply = ${call}`, `print(reply.choices[0].${known.whole})`];
  return [...start, ...end, ""].join("\n");
}

/** @param {Asked} asked */
export function javascript({ path, body, base }) {
  const known = CALLS.find((call) => call.path === path);
  const url = literal(new URL("v1", base).href);
  const start = [
    'import OpenAI from "openai";',
    "",
    `const client = new OpenAI({ baseURL: ${url}, apiKey: process.env.OPENAI_API_KEY ?? "none" });`,
  ];
  if (!known) {
    const rest = literal(path.replace(/^v1/, ""));
    return [...start, `console.log(await client.post(${rest}, { body: ${literal(body)} }));`, ""].join("\n");
  }
  const call = `await client.${known.call}(${literal(body)});`;
  const end = body.stream
    ? [
        `const stream = ${call}`,
        "for await (const chunk of stream) {",
        `  process.stdout.write(chunk.choices[0]?.${known.part} ?? "");`,
        "}",
        "console.log();",
      ]
    : [`const reply = ${call}`, `console.log(reply.choices[0].${known.whole});`];
  return [...start, ...end, ""].join("\n");
}

/**
 * A value as JSON, which JavaScript reads too. What cannot be seen is escaped: nothing hides in what is pasted.
 *
 * @param {unknown} value
 */
export function literal(value) {
  return JSON.stringify(value, null, JSON_INDENT).replace(
    /[\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb]/g,
    (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`,
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
  // Python's strings and numbers may be written as JSON writes them.
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
 * A word of a shell: within single quotes all is as it stands, but for themselves.
 *
 * @param {string} text
 */
function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
