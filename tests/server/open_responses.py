"""Required members of the Open Responses specification (2026-04-24), with their types, and a check of objects.

Written from the published schemas, apart from the tables of our rules and of our writer.
"""

import json
from collections.abc import Iterator
from types import NoneType
from typing import Any

from welldone.core.sse import named_frame
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

Json = dict[str, Any]
Members = dict[str, tuple[type, ...]]

NUMBER = (int, float)
NULLABLE_TEXT = (str, NoneType)
NULLABLE_COUNT = (int, NoneType)
NULLABLE_OBJECT = (dict, NoneType)
RESPONSE: Members = {
    **dict.fromkeys(("id", "object", "status", "model", "truncation", "service_tier"), (str,)),
    **dict.fromkeys(("created_at", "top_logprobs"), (int,)),
    **dict.fromkeys(("completed_at", "max_output_tokens", "max_tool_calls"), NULLABLE_COUNT),
    **dict.fromkeys(("incomplete_details", "error", "reasoning", "usage"), NULLABLE_OBJECT),
    **dict.fromkeys(("previous_response_id", "instructions", "safety_identifier", "prompt_cache_key"), NULLABLE_TEXT),
    **dict.fromkeys(("output", "tools"), (list,)),
    **dict.fromkeys(("parallel_tool_calls", "store", "background"), (bool,)),
    **dict.fromkeys(("text", "metadata"), (dict,)),
    **dict.fromkeys(("top_p", "presence_penalty", "frequency_penalty", "temperature"), NUMBER),
    "tool_choice": (str, dict),
}
COMPACTED: Members = {"id": (str,), "object": (str,), "output": (list,), "created_at": (int,), "usage": (dict,)}
USAGE: Members = {
    **dict.fromkeys(("input_tokens", "output_tokens", "total_tokens"), (int,)),
    **dict.fromkeys(("input_tokens_details", "output_tokens_details"), (dict,)),
}
FUNCTION: Members = {
    "name": (str,),
    "description": NULLABLE_TEXT,
    "parameters": NULLABLE_OBJECT,
    "strict": (bool, NoneType),
}
ITEMS: dict[str, Members] = {
    "message": {"id": (str,), "status": (str,), "role": (str,), "content": (list,)},
    "function_call": dict.fromkeys(("id", "call_id", "name", "arguments", "status"), (str,)),
    "function_call_output": {**dict.fromkeys(("id", "call_id", "status"), (str,)), "output": (str, list)},
    "reasoning": {"id": (str,), "summary": (list,)},
    "compaction": dict.fromkeys(("id", "encrypted_content"), (str,)),
}
PARTS: dict[str, Members] = {
    "output_text": {"text": (str,), "annotations": (list,)},
    "refusal": {"refusal": (str,)},
    "input_image": {"image_url": NULLABLE_TEXT, "detail": (str,)},
    **dict.fromkeys(("input_text", "text", "summary_text", "reasoning_text"), Members({"text": (str,)})),
}
_ITEM: Members = {"output_index": (int,)}
_PART: Members = {"item_id": (str,), **_ITEM, "content_index": (int,)}
EVENTS: dict[str, Members] = {
    **{
        f"response.{name}": {"response": (dict,)}
        for name in ("created", "queued", "in_progress", "completed", "failed", "incomplete")
    },
    **{f"response.output_item.{name}": {**_ITEM, "item": (dict,)} for name in ("added", "done")},
    **{f"response.content_part.{name}": {**_PART, "part": (dict,)} for name in ("added", "done")},
    "response.output_text.delta": {**_PART, "delta": (str,)},
    "response.output_text.done": {**_PART, "text": (str,)},
    "response.refusal.delta": {**_PART, "delta": (str,)},
    "response.refusal.done": {**_PART, "refusal": (str,)},
    "response.reasoning_text.delta": {**_PART, "delta": (str,)},
    "response.reasoning_text.done": {**_PART, "text": (str,)},
    "response.function_call_arguments.delta": {"item_id": (str,), **_ITEM, "delta": (str,)},
    "response.function_call_arguments.done": {"item_id": (str,), **_ITEM, "arguments": (str,)},
}
ERROR: Members = {"type": (str,), "message": (str,), "code": NULLABLE_TEXT, "param": NULLABLE_TEXT}


def wrong_in_response(response: Json) -> list[str]:
    """Return the members of a Response that are missing or have another type."""
    wrong = list(_wrong(response, RESPONSE, "response"))
    wrong += [] if response.get("usage") is None else wrong_in_usage(response["usage"])
    for index, tool in enumerate(response["tools"]):
        wrong += _wrong(tool, FUNCTION, f"tools[{index}]")
    return wrong + wrong_in_items(response["output"])


def wrong_in_compacted(compacted: Json) -> list[str]:
    """Return the members of a compacted conversation that are missing or have another type."""
    wrong = [*_wrong(compacted, COMPACTED, "compacted"), *wrong_in_usage(compacted["usage"])]
    wrong += [] if compacted["object"] == "response.compaction" else ["object"]
    return wrong + wrong_in_items(compacted["output"])


def wrong_in_usage(usage: Json) -> list[str]:
    """Return the members of a usage that are missing or have another type."""
    wrong = list(_wrong(usage, USAGE, "usage"))
    wrong += _wrong(usage["input_tokens_details"], {"cached_tokens": (int,)}, "usage.input_tokens_details")
    return [
        *wrong,
        *_wrong(usage["output_tokens_details"], {"reasoning_tokens": (int,)}, "usage.output_tokens_details"),
    ]


def wrong_in_items(items: list[Json]) -> list[str]:
    """Return the members of items and their parts that are missing or have another type."""
    wrong: list[str] = []
    for index, item in enumerate(items):
        wrong += _wrong(item, ITEMS[item["type"]], f"output[{index}]")
        for name in ("content", "summary"):
            for number, part in enumerate(item.get(name) or ()):
                wrong += _wrong(part, PARTS[part["type"]], f"output[{index}].{name}[{number}]")
    return wrong


def wrong_in_event(event: Json) -> list[str]:
    """Return the members of an event, and of what it carries, that are missing or have another type."""
    kind = event["type"]
    wrong = list(_wrong(event, {"sequence_number": (int,), **EVENTS[kind]}, kind))
    if "response" in event:
        wrong += wrong_in_response(event["response"])
    if "item" in event:
        wrong += wrong_in_items([event["item"]])
    if "part" in event:
        wrong += _wrong(event["part"], PARTS[event["part"]["type"]], kind)
    return wrong


def wrong_in_error_event(event: Json) -> list[str]:
    """Return the members of the error event of a WebSocket that are missing or have another type."""
    wrong = list(_wrong(event, {"type": (str,), "status": (int,), "error": (dict,)}, "error"))
    return [*wrong, *_wrong(event["error"], ERROR, "error.error")]


def checked_response(events: list[Json], request: Json) -> Json:
    """Return the response of a WebSocket, or its error event. Neither the schema nor a rule is broken."""
    if events[-1]["type"] == "error":
        assert wrong_in_error_event(events[-1]) == []
        return events[-1]
    assert [wrong for event in events for wrong in wrong_in_event(event)] == []
    stream = b"".join(named_frame(event["type"], json.dumps(event).encode()) for event in events)
    trace = Trace(body=stream, endpoint="responses", request={**request, "stream": True})
    assert [finding.rule for finding in judge(trace).findings] == []
    response: Json = events[-1]["response"]
    return response


def _wrong(value: Json, members: Members, place: str) -> Iterator[str]:
    for name, kinds in members.items():
        given = value.get(name, ...)
        if not isinstance(given, kinds) or (isinstance(given, bool) and bool not in kinds):
            yield f"{place}.{name}: {given!r}"
