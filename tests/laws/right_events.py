"""Generator of legal streams and replies of Responses and Messages.

Like `right_chunks`, it draws the Response or message first, then its events. It imports nothing of welldone.
"""

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias

from tests.laws.right_chunks import ALL, Contents, arguments, cut, texts, value

Json: TypeAlias = dict[str, Any]


@dataclass
class DrawnEvents:
    """Answer, its events and their bytes."""

    request: Json
    reply_object: Json
    events: list[Json]
    stream: bytes

    @property
    def reply(self) -> bytes:
        """The answer as a non-streaming reply."""
        return json.dumps(self.reply_object).encode()


def stream_of(draw: Random, events: list[Json]) -> bytes:
    is_ascii = draw.random() < 0.5
    frames = []
    for event in events:
        if draw.random() < 0.05:
            frames.append(b": keep-alive\n\n")
        written = json.dumps(event, ensure_ascii=is_ascii)
        for letter in "\u0085\u2028\u2029":
            written = written.replace(letter, f"\\u{ord(letter):04x}")
        frames.append(f"event: {event['type']}\ndata: {written}\n\n".encode())
    return b"".join(frames)


def _unknown(draw: Random, name: str, chance: float = 0.15) -> Json:
    return {name: value(draw)} if draw.random() < chance else {}


# Responses.


def responses(draw: Random, contents: Contents = ALL) -> DrawnEvents:
    """Draw a legal Responses answer."""
    events: list[Json] = []
    response = _response(draw)

    def emit(kind: str, **members: object) -> None:
        # A copy, since later events modify these objects.
        extra = _unknown(draw, "x_event", 0.05)
        events.append(copy.deepcopy({"type": kind, "sequence_number": len(events), **members, **extra}))

    emit("response.created", response=response)
    if draw.random() < 0.1:
        emit("response.queued", response=response | {"status": "queued"})
    if draw.random() < 0.8:
        emit("response.in_progress", response=response)
    items = [_item(draw, contents, position) for position in range(draw.randint(1, 4))]
    status = draw.choice(("completed", "completed", "completed", "incomplete"))
    if status == "incomplete" and "status" in items[-1]:
        items[-1]["status"] = "incomplete"
    queues = [list(_item_events(draw, position, item)) for position, item in enumerate(items)]
    is_mixed = draw.random() < 0.3
    begun = 0
    while any(queues):
        # Items start in order; later events may interleave.
        ready = [position for position, queue in enumerate(queues) if queue and (position <= begun or not is_mixed)]
        position = draw.choice(ready) if is_mixed else ready[0]
        kind, members = queues[position].pop(0)
        emit(kind, **members)
        begun = max(begun, position + 1)
    response |= {"status": status, "output": items, "usage": _responses_usage(draw)}
    if status == "incomplete":
        response["incomplete_details"] = {"reason": draw.choice(("max_output_tokens", "content_filter"))}
    else:
        response["completed_at"] = 1700000009
    emit(f"response.{status}", response=response)
    request = {"model": "m", "input": "x", "stream": True}
    return DrawnEvents(request, events[-1]["response"], events, stream_of(draw, events))


def _response(draw: Random) -> Json:
    """Draw a Response in progress with all members that OpenAI sends."""
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1700000000,
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "frequency_penalty": 0.0,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "model": "m",
        "output": [],
        "parallel_tool_calls": True,
        "presence_penalty": 0.0,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": None,
        "user": None,
        "metadata": {},
    } | _unknown(draw, "x_response")


def _responses_usage(draw: Random) -> Json:
    read, written = draw.randint(1, 9000), draw.randint(0, 9000)
    usage: Json = {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": draw.randint(0, read)} | _unknown(draw, "x_details"),
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": draw.randint(0, written)},
        "total_tokens": read + written + draw.choice((0, 0, 0, 7)),
    }
    return usage | _unknown(draw, "cost_details", 0.3) | ({"cost": 0.5} if draw.random() < 0.3 else {})


def _item(draw: Random, contents: Contents, position: int) -> Json:
    """Draw a complete output item."""
    kinds = ["message", "message", "reasoning", "function_call", "function_call", "x_item"]
    kinds += ["web_search_call", "image_generation_call", "mcp_call", "code_interpreter_call"]
    kind = draw.choice([*kinds, *["custom_tool_call"] * contents.custom_calls])
    item: Json = {"type": kind, "id": f"{kind}_{position}", "status": "completed"}
    match kind:
        case "message":
            count = draw.choice((1, 1, 1, 2))
            item |= {"role": "assistant", "content": [_part(draw, contents) for _ in range(count)]}
        case "reasoning":
            del item["status"]
            thoughts = [
                {"type": "summary_text", "text": texts(draw, contents, 3).full} for _ in range(draw.randint(0, 2))
            ]
            item["summary"] = thoughts
            if draw.random() < 0.4:
                item["content"] = [{"type": "reasoning_text", "text": texts(draw, contents, 3).full}]
            item |= {"encrypted_content": "b64"} if draw.random() < 0.4 else {}
        case "function_call":
            # Names and arguments may repeat.
            item |= {"call_id": f"call_{position}", "name": draw.choice(("f", "f", "g")), "arguments": arguments(draw)}
        case "custom_tool_call":
            emitted = draw.choice(("ls", '{"a":', "*** Begin Patch\n", "é"))
            item |= {"call_id": f"call_{position}", "name": "sh", "input": emitted}
        case "web_search_call":
            item["action"] = {"type": "search", "query": "x", "sources": None}
        case "image_generation_call":
            item["result"] = "b64"
        case "mcp_call":
            item |= {"server_label": "s", "name": "f", "arguments": arguments(draw), "output": "o", "error": None}
        case "code_interpreter_call":
            item |= {"code": "print(1)\n", "container_id": "c", "outputs": None}
        case _:
            item["x_payload"] = value(draw)
    return item | _unknown(draw, "x_item_member")


def _part(draw: Random, contents: Contents) -> Json:
    emitted = texts(draw, contents).full
    if draw.random() < 0.2:
        return {"type": "refusal", "refusal": emitted}
    annotations: list[Json] = []
    if draw.random() < 0.2:
        annotations = [
            {"type": "url_citation", "start_index": 0, "end_index": 1, "url": "u", "title": f"t{position}"}
            for position in range(draw.randint(1, 2))
        ]
    logprobs: list[Json] = []
    if draw.random() < 0.2:
        entry = {"logprob": -0.5, "top_logprobs": []}
        logprobs = [{"token": piece, "bytes": list(piece.encode()), **entry} for piece in cut(draw, emitted)]
    return {"type": "output_text", "annotations": annotations, "logprobs": logprobs, "text": emitted}


_STEPS: dict[str, tuple[tuple[str, ...], tuple[str, str] | None, tuple[str, ...]]] = {
    "function_call": ((), ("function_call_arguments", "arguments"), ()),
    "custom_tool_call": ((), ("custom_tool_call_input", "input"), ()),
    "mcp_call": (("in_progress",), ("mcp_call_arguments", "arguments"), ("completed",)),
    "code_interpreter_call": (
        ("in_progress",),
        ("code_interpreter_call_code", "code"),
        ("interpreting", "completed"),
    ),
    "image_generation_call": (("in_progress", "generating"), None, ("partial_image", "completed")),
    "web_search_call": (("in_progress", "searching"), None, ("completed",)),
}
"""By item type: events before the text, prefix of the text events and text member, events after the text."""


def _item_events(draw: Random, position: int, item: Json) -> Iterator[tuple[str, Json]]:
    """Events of an item as type and members."""
    emitted: list[tuple[str, Json]] = []

    def emit(kind: str, **members: object) -> None:
        emitted.append((kind, members))

    _emit_item(draw, emit, position, item)
    yield from emitted


def _emit_item(draw: Random, emit: Callable[..., None], position: int, item: Json) -> None:
    location: Json = {"item_id": item["id"], "output_index": position}
    begun = dict(item)
    begun |= {"status": "in_progress"} if "status" in item else {}
    begun |= {name: [] for name in ("content", "summary") if name in item}
    begun |= {name: "" for name in ("arguments", "input", "code") if name in item}
    emit("response.output_item.added", output_index=position, item=begun)
    for number, part in enumerate(item.get("summary", [])):
        _emit_part(draw, emit, location | {"summary_index": number}, part)
    for number, part in enumerate(item.get("content", [])):
        _emit_part(draw, emit, location | {"content_index": number}, part)
    before, text, after = _STEPS.get(item["type"], ((), None, ()))
    for step in before:
        emit(f"response.{item['type']}.{step}", **location)
    if text is not None:
        stem, name = text
        for piece in cut(draw, item[name]):
            emit(f"response.{stem}.delta", **location, delta=piece)
        named = {"name": item["name"]} if item["type"] == "function_call" else {}
        emit(f"response.{stem}.done", **location, **named, **{name: item[name]})
    for step in after:
        partial = {"partial_image_index": 0, "partial_image_b64": "b64"} if step == "partial_image" else {}
        emit(f"response.{item['type']}.{step}", **location, **partial)
    emit("response.output_item.done", output_index=position, item=item)


def _emit_part(draw: Random, emit: Callable[..., None], location: Json, part: Json) -> None:
    kind = part["type"]
    name = "refusal" if kind == "refusal" else "text"
    stem = {"summary_text": "reasoning_summary_text"}.get(kind, kind)
    holder = "reasoning_summary_part" if kind == "summary_text" else "content_part"
    begun = {**part, name: ""} | {member: [] for member in ("annotations", "logprobs") if member in part}
    emit(f"response.{holder}.added", **location, part=begun)
    is_text = kind == "output_text"
    pieces = [entry["token"] for entry in part.get("logprobs", [])] or cut(draw, part[name])
    has_padding = draw.random() < 0.2
    for number, piece in enumerate(pieces):
        logprobs_field = {"logprobs": part["logprobs"][number : number + 1]} if is_text else {}
        padding = {"obfuscation": "abc"} if has_padding else {}
        emit(f"response.{stem}.delta", **location, delta=piece, **logprobs_field, **padding)
    for number, annotation in enumerate(part.get("annotations", [])):
        emit("response.output_text.annotation.added", **location, annotation_index=number, annotation=annotation)
    emit(
        f"response.{stem}.done", **location, **{name: part[name]}, **({"logprobs": part["logprobs"]} if is_text else {})
    )
    emit(f"response.{holder}.done", **location, part=part)


# Messages.


def messages(draw: Random, contents: Contents = ALL) -> DrawnEvents:
    """Draw a legal Messages answer."""
    blocks = [_block(draw, contents, position) for position in range(draw.randint(0, 4))]
    read = draw.randint(0, 9000)
    begun: Json = {"input_tokens": read, "cache_creation_input_tokens": 3, "cache_read_input_tokens": 4}
    begun |= {"output_tokens": 1, "service_tier": "standard"} | _unknown(draw, "x_usage")
    begun |= {"cache_creation": {"ephemeral_5m_input_tokens": 3}} if draw.random() < 0.3 else {}
    message: Json = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": begun,
    } | _unknown(draw, "x_message")
    events: list[Json] = [{"type": "message_start", "message": copy.deepcopy(message)}]
    if draw.random() < 0.5:
        events.append({"type": "ping"})
    for position, block in enumerate(blocks):
        events += _block_events(draw, position, block)
        if draw.random() < 0.1:
            events.append({"type": "ping"})
    has_calls = any(block["type"] == "tool_use" for block in blocks)
    reasons = ("end_turn", "max_tokens", "stop_sequence", "refusal", "pause_turn", "model_context_window_exceeded")
    reason = "tool_use" if has_calls else draw.choice(reasons)
    stopped = {"stop_reason": reason, "stop_sequence": "STOP" if reason == "stop_sequence" else None}
    stopped |= _unknown(draw, "x_delta")
    counted: Json = {"output_tokens": draw.randint(1, 9000)} | _unknown(draw, "x_counted")
    counted |= (
        {"input_tokens": read, "cache_creation_input_tokens": 3, "cache_read_input_tokens": 4}
        if draw.random() < 0.5
        else {}
    )
    counted |= {"server_tool_use": {"web_search_requests": 1}} if draw.random() < 0.2 else {}
    beside: Json = {"context_management": {"applied_edits": []}} if draw.random() < 0.2 else {}
    events.append({"type": "message_delta", "delta": stopped, "usage": counted, **beside})
    events.append({"type": "message_stop"} | _unknown(draw, "x_stop"))
    reply_object = message | {"content": blocks} | stopped | {"usage": begun | counted} | beside
    request = {"model": "m", "max_tokens": 9, "messages": [], "stream": True, "stop_sequences": ["STOP"]}
    return DrawnEvents(request, reply_object, events, stream_of(draw, events))


def _block(draw: Random, contents: Contents, position: int) -> Json:
    kinds = ("text", "text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "web_search_tool_result")
    kind = draw.choice(kinds)
    block: Json = {"type": kind}
    match kind:
        case "text":
            block |= {"text": texts(draw, contents).full}
            if draw.random() < 0.2:
                cited = {"type": "char_location", "cited_text": "x", "document_index": 0, "start_char_index": 0}
                block["citations"] = [cited | {"end_char_index": 1, "document_title": None}] * draw.randint(1, 2)
        case "thinking":
            block |= {"thinking": texts(draw, contents, 3).full, "signature": "s1g=="}
        case "redacted_thinking":
            block["data"] = "b64"
        case "tool_use" | "server_tool_use":
            ids = "toolu" if kind == "tool_use" else "srvtoolu"
            block |= {
                "id": f"{ids}_{position}",
                "name": draw.choice(("f", "f", "g")),
                "input": json.loads(arguments(draw)),
            }
        case _:
            block |= {"tool_use_id": "srvtoolu_0", "content": [{"type": "web_search_result", "url": "u", "title": "t"}]}
    return block | _unknown(draw, "x_block")


def _block_events(draw: Random, position: int, block: Json) -> Iterator[Json]:
    begun = dict(block)
    deltas: list[Json] = []
    match block["type"]:
        case "text":
            begun["text"] = ""
            deltas = [{"type": "text_delta", "text": piece} for piece in cut(draw, block["text"])]
            if "citations" in block:
                begun["citations"] = []
                deltas += [{"type": "citations_delta", "citation": one} for one in block["citations"]]
        case "thinking":
            begun |= {"thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in cut(draw, block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        case "tool_use" | "server_tool_use":
            begun["input"] = {}
            written = json.dumps(block["input"], ensure_ascii=draw.random() < 0.5)
            pieces = cut(draw, written) if block["input"] or draw.random() < 0.5 else [""]
            deltas = [
                {"type": "input_json_delta", "partial_json": piece}
                for piece in [*[""] * (draw.random() < 0.5), *pieces]
            ]
        case _:
            pass
    yield {"type": "content_block_start", "index": position, "content_block": begun} | _unknown(draw, "x_event", 0.05)
    for delta in deltas:
        yield {"type": "content_block_delta", "index": position, "delta": delta} | _unknown(draw, "x_event", 0.05)
    yield {"type": "content_block_stop", "index": position}
