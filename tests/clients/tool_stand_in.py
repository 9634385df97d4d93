"""An upstream that stands in for a model with tools: calls what it is offered, with arguments from the prompt."""

import json
import re
from typing import Any

from welldone.mock.script import CHUNK_TEMPLATE, HELLO_REPLY, MockChunk, MockReply
from welldone.mock.server import MockHttpRequest

Json = dict[str, Any]
WORDS = ("It is ", "a fine ", "day: ", "21 ", "degrees.")


def reply_with_tools(seen: MockHttpRequest) -> MockReply:
    """Answer with JSON if the request wants it, with a call if it has tools and no result yet, or else with text."""
    body = json.loads(seen.body)
    last = body["messages"][-1]
    prompt = last["content"] if isinstance(last["content"], str) else json.dumps(last["content"])
    form = body.get("response_format", {})
    if form.get("type") == "json_schema":
        return _text(json.dumps(_value(form["json_schema"]["schema"], form["json_schema"]["schema"], prompt)))
    if form.get("type") == "json_object":
        return _text(json.dumps(dict.fromkeys(re.findall(r"'(\w+)'", prompt), "why")))
    choice = body.get("tool_choice", "auto")
    if not body.get("tools") or choice == "none" or last["role"] == "tool":
        return _text(*WORDS)
    name = choice["function"]["name"] if isinstance(choice, dict) else body["tools"][0]["function"]["name"]
    function = next(tool["function"] for tool in body["tools"] if tool["function"]["name"] == name)
    schema = function.get("parameters") or {"type": "object"}
    arguments = json.dumps(_value(schema, schema, prompt), ensure_ascii=False)
    start = {"index": 0, "id": f"call_{len(body['messages'])}", "type": "function"}
    pieces = [{"index": 0, "function": {"arguments": arguments[at : at + 5]}} for at in range(0, len(arguments), 5)]
    calls = [start | {"function": {"name": name, "arguments": ""}}, *pieces]
    return _reply([{"tool_calls": [call]} for call in calls], "tool_calls")


def _value(schema: Json, root: Json, prompt: str) -> Any:  # noqa: ANN401 - any JSON
    """A value of a schema, with the first number or the first quoted text of the prompt."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    for name in ("enum", "anyOf"):
        if name in schema:
            first = schema[name][0]
            return first if name == "enum" else _value(first, root, prompt)
    match schema.get("type", "string"):
        case "object":
            properties = schema.get("properties", {})
            return {name: _value(properties[name], root, prompt) for name in schema.get("required", ())}
        case "array":
            return []
        case "integer" | "number":
            return int((re.findall(r"\d+", prompt) or ["3"])[0])
        case "boolean":
            return True
        case _:
            return (re.findall(r"['\"「]([^'\"」]+)['\"」]", prompt) or ["cats"])[0]


def _text(*words: str) -> MockReply:
    return _reply([{"content": word} for word in words], "stop")


def _reply(deltas: list[Json], reason: str) -> MockReply:
    role, _, _, done = HELLO_REPLY.pieces
    counts = {"prompt_tokens": 9, "completion_tokens": len(deltas), "total_tokens": 9 + len(deltas)}
    chunks = [CHUNK_TEMPLATE % (json.dumps(delta), "null") for delta in deltas]
    chunks += [CHUNK_TEMPLATE % ("{}", json.dumps(reason)), f"data: {json.dumps({'choices': [], 'usage': counts})}\n\n"]
    return MockReply((role, *map(MockChunk, chunks), done))
