// Settings: parsing of user input.

import assert from "node:assert/strict";
import { test } from "node:test";

import { FIELDS, readOptions } from "../../../src/welldone/web/static/js/chat/options.js";

const TOOL = { type: "function", function: { name: "f" } };

for (const [name, typed, value] of /** @type {[string, string, unknown][]} */ ([
  ["temperature", "0", 0],
  ["temperature", " 0.7 ", 0.7],
  ["top_k", "40", 40],
  ["max_completion_tokens", "100", 100],
  ["seed", "-1", -1],
  ["stop", "a\n\n b \n", ["a", " b "]],
  ["reasoning_effort", "low", "low"],
  ["tools", JSON.stringify([TOOL]), [TOOL]],
  [
    "response_format",
    '{"type":"object"}',
    { type: "json_schema", json_schema: { name: "answer", strict: true, schema: { type: "object" } } },
  ],
])) {
  test(`${name} ${JSON.stringify(typed)} is sent`, () => {
    assert.deepEqual(readOptions({ [name]: typed }), { fields: { [name]: value }, errors: {} });
  });
}

for (const [name, typed, reason] of /** @type {[string, string, RegExp][]} */ ([
  ["temperature", "warm", /not a number/],
  ["temperature", "1e999", /not a number/],
  ["seed", "1.5", /not a whole number/],
  ["reasoning_effort", "much", /^One of: none/],
  ["tools", "[", /not JSON: ./],
  ["tools", "{}", /not a list/],
  ["tools", "[]", /empty/],
  ["tools", "[null]", /Tool 1: "type"/],
  ["tools", JSON.stringify([TOOL, { type: "function" }]), /Tool 2: "function" must/],
  ["tools", '[{"type":"function","function":{"name":"a b"}}]', /"function.name"/],
  ["tools", '[{"type":"function","function":{"name":"a","parameters":[]}}]', /"function.parameters"/],
  ["response_format", "[]", /an object/],
])) {
  test(`${name} ${JSON.stringify(typed)} is rejected with a reason`, () => {
    const { fields, errors } = readOptions({ [name]: typed });
    assert.deepEqual(fields, {});
    assert.match(errors[name] ?? "", reason);
  });
}

test("empty settings are not sent", () => {
  const empty = Object.fromEntries(FIELDS.map(({ name }) => [name, " \n"]));
  assert.deepEqual(readOptions(empty), { fields: {}, errors: {} });
});

test("tool_choice is sent only with tools", () => {
  const chosen = { tool_choice: "required", parallel_tool_calls: "false" };
  assert.deepEqual(readOptions(chosen).fields, {});
  assert.deepEqual(readOptions({ ...chosen, tools: JSON.stringify([TOOL]) }).fields, {
    tools: [TOOL],
    tool_choice: "required",
    parallel_tool_calls: false,
  });
});

test("the examples are valid", () => {
  for (const { name, example } of FIELDS) {
    if (example) assert.deepEqual(readOptions({ [name]: example }).errors, {});
  }
});
