"""Streams of the Responses API for tests of their repair."""

import json
from typing import Any

from welldone.core.envelope import Envelope
from welldone.dialects.responses.objects import RESPONSE_DEFAULTS
from welldone.dialects.responses.repair import ResponsesRepairer

Json = dict[str, Any]
HEAD = Envelope("resp_7", 1700000000, "m")
RESPONSE: Json = RESPONSE_DEFAULTS | {
    "id": "resp_a",
    "object": "response",
    "created_at": 5,
    "completed_at": None,
    "status": "in_progress",
    "model": "big",
    "output": [],
    "error": None,
    "incomplete_details": None,
    "usage": None,
    "x_region": "here",
}
USAGE: Json = {
    "input_tokens": 5,
    "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
    "output_tokens": 3,
    "output_tokens_details": {"reasoning_tokens": 1},
    "total_tokens": 8,
    "x_cost": 0.5,
}
CITED = {"type": "url_citation", "url": "https://example.com", "title": "t", "start_index": 0, "end_index": 1}
TEXT: Json = {"type": "output_text", "annotations": [], "logprobs": [], "text": ""}
MESSAGE: Json = {"id": "msg_a", "type": "message", "status": "in_progress", "role": "assistant", "content": []}
CALL: Json = {"id": "fc_a", "type": "function_call", "status": "in_progress", "call_id": "call_a", "name": "get"}
CALL |= {"arguments": ""}
SEARCH: Json = {"id": "ws_a", "type": "web_search_call", "status": "in_progress", "action": {"type": "search"}}
THOUGHT: Json = {"id": "rs_a", "type": "reasoning", "status": "in_progress", "summary": [], "encrypted_content": "e"}


def frame(value: Json) -> bytes:
    """Encode an event."""
    return f"event: {value['type']}\ndata: {json.dumps(value)}\n\n".encode()


def numbered(*values: Json) -> list[Json]:
    """Add sequence numbers, and `response.` to the types."""
    return [
        {
            "type": f"response.{value['type']}",
            "sequence_number": number,
            **{k: v for k, v in value.items() if k != "type"},
        }
        for number, value in enumerate(values)
    ]


def read(data: bytes) -> list[Json]:
    """Decode a stream; check names and sequence numbers."""
    found = []
    for block in data.decode().removesuffix("\n\n").split("\n\n"):
        name, _, line = block.partition("\n")
        value = json.loads(line.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        found.append(value)
    assert [value["sequence_number"] for value in found] == list(range(len(found)))
    return found


def repair(values: list[Json], repairer: ResponsesRepairer | None = None) -> tuple[list[Json], ResponsesRepairer]:
    """Repair a stream; return its events and the repairer."""
    repairer = repairer or ResponsesRepairer(fallback=HEAD)
    data = b"".join(frame(value) for value in values)
    return read(repairer.feed(data) + repairer.close()), repairer


def locators(item: Json, index: int, **members: object) -> Json:
    """Return the members that identify an item."""
    return {"item_id": item["id"], "output_index": index, **members}


def text_stream(*, text: str = "Hello") -> list[Json]:
    """Return a correct stream with one text."""
    part, part_done = TEXT, TEXT | {"text": text}
    done = MESSAGE | {"status": "completed", "content": [part_done]}
    address = locators(MESSAGE, 0, content_index=0)
    return numbered(
        {"type": "created", "response": RESPONSE},
        {"type": "in_progress", "response": RESPONSE},
        {"type": "output_item.added", "output_index": 0, "item": MESSAGE},
        {"type": "content_part.added", **address, "part": part},
        {"type": "output_text.delta", **address, "delta": text, "logprobs": []},
        {"type": "output_text.done", **address, "text": text, "logprobs": []},
        {"type": "content_part.done", **address, "part": part_done},
        {"type": "output_item.done", "output_index": 0, "item": done},
        {"type": "completed", "response": RESPONSE | {"status": "completed", "output": [done], "usage": USAGE}},
    )


def call_stream(arguments: str = '{"a":1}') -> list[Json]:
    """Return a correct stream with a function call."""
    done = CALL | {"status": "completed", "arguments": arguments}
    return numbered(
        {"type": "created", "response": RESPONSE},
        {"type": "output_item.added", "output_index": 0, "item": CALL},
        {"type": "function_call_arguments.delta", **locators(CALL, 0), "delta": arguments},
        {"type": "function_call_arguments.done", **locators(CALL, 0), "name": "get", "arguments": arguments},
        {"type": "output_item.done", "output_index": 0, "item": done},
        {"type": "completed", "response": RESPONSE | {"status": "completed", "output": [done], "usage": USAGE}},
    )


def reasoning_stream() -> list[Json]:
    """Return a correct stream with features of this dialect."""
    summed = {"type": "summary_text", "text": "sum"}
    thought = THOUGHT | {"status": "completed", "summary": [summed]}
    searched = SEARCH | {"status": "completed", "results": [1]}
    cited = TEXT | {"text": "Hi", "annotations": [CITED]}
    refused = {"type": "refusal", "refusal": "No"}
    message = MESSAGE | {"status": "completed", "content": [cited, refused]}
    custom = {
        "id": "ctc_a",
        "type": "custom_tool_call",
        "status": "in_progress",
        "call_id": "c",
        "name": "run",
        "input": "",
    }
    ran = custom | {"status": "completed", "input": "ls"}
    tools = {"id": "mcpl_a", "type": "mcp_list_tools", "server_label": "s", "tools": []}
    summary, first, second = (
        locators(THOUGHT, 0, summary_index=0),
        locators(MESSAGE, 2, content_index=0),
        locators(MESSAGE, 2, content_index=1),
    )
    shell = {"id": "sh_a", "type": "shell_call", "status": "in_progress", "call_id": "s", "action": {}}
    output = [thought, searched, message, ran, tools, shell | {"status": "completed"}]
    return numbered(
        {"type": "created", "response": RESPONSE | {"status": "queued"}},
        {"type": "queued", "response": RESPONSE | {"status": "queued"}},
        {"type": "in_progress", "response": RESPONSE, "x_more": True},
        {"type": "output_item.added", "output_index": 0, "item": THOUGHT, "x_more": 1},
        {"type": "reasoning_summary_part.added", **summary, "part": summed | {"text": ""}},
        {"type": "reasoning_summary_text.delta", **summary, "delta": "sum", "obfuscation": "xyz"},
        {"type": "reasoning_summary_text.done", **summary, "text": "sum"},
        {"type": "reasoning_summary_part.done", **summary, "part": summed},
        {"type": "output_item.added", "output_index": 1, "item": SEARCH},
        {"type": "output_item.done", "output_index": 0, "item": thought},
        {"type": "web_search_call.in_progress", **locators(SEARCH, 1)},
        {"type": "web_search_call.completed", **locators(SEARCH, 1), "x_more": 2},
        {"type": "output_item.done", "output_index": 1, "item": searched},
        {"type": "output_item.added", "output_index": 2, "item": MESSAGE},
        {"type": "content_part.added", **first, "part": TEXT},
        {
            "type": "output_text.delta",
            **first,
            "delta": "Hi",
            "logprobs": [{"token": "Hi", "logprob": -1, "top_logprobs": []}],
        },
        {"type": "output_text.annotation.added", **first, "annotation_index": 0, "annotation": CITED},
        {"type": "output_text.done", **first, "text": "Hi", "logprobs": []},
        {"type": "content_part.done", **first, "part": cited},
        {"type": "content_part.added", **second, "part": refused | {"refusal": ""}},
        {"type": "refusal.delta", **second, "delta": "No"},
        {"type": "refusal.done", **second, "refusal": "No"},
        {"type": "content_part.done", **second, "part": refused},
        {"type": "audio.transcript.delta", "delta": "la"},
        {"type": "output_item.done", "output_index": 2, "item": message},
        {"type": "output_item.added", "output_index": 3, "item": custom},
        {"type": "custom_tool_call_input.delta", **locators(custom, 3), "delta": "ls"},
        {"type": "custom_tool_call_input.done", **locators(custom, 3), "input": "ls"},
        {"type": "output_item.done", "output_index": 3, "item": ran},
        {"type": "output_item.added", "output_index": 4, "item": tools},
        {"type": "output_item.done", "output_index": 4, "item": tools},
        {"type": "output_item.added", "output_index": 5, "item": shell},
        {"type": "shell_call_command.added", "output_index": 5, "command": "ls", "command_index": 0},
        {"type": "output_item.done", "output_index": 5, "item": output[5]},
        {"type": "completed", "response": RESPONSE | {"status": "completed", "output": output, "usage": USAGE}, "x": 1},
    )


def changed(values: list[Json], position: int, change: Json) -> bytes:
    """Change one event of a stream."""
    out = b""
    for number, value in enumerate(values):
        if number != position:
            out += frame(value)
        elif change:
            name = change.get("name", value["type"])
            merged = {key: item for key, item in (value | change).items() if item is not None and key != "name"}
            out += frame(merged).replace(f"event: {value['type']}".encode(), f"event: {name}".encode())
    return out
