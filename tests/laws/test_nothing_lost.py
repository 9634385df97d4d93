"""The fifth law: a repair that deletes proves that what it deletes is empty.

Content is planted in every place of an answer, and the content of an answer gets every wrong shape: an object for a
list, a list for an object, JSON text, a value in an object. It comes out, or the answer ends with an error; it is never
deleted in silence, and never before a clean end.
"""

import copy
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest

from tests.laws import real_messages, real_responses
from tests.laws.test_malformed_values import Path, Value, paths, with_value_at
from welldone import EndpointName, Failure, StreamRepairer, repair_response

Json: TypeAlias = dict[str, Any]
Case: TypeAlias = tuple[int, Path, str, Value]
"""Position of the event, path in it, what was done there, and the event with it."""

MARKER = re.compile(rb"mk[A-Z][A-Za-z]*|91234")
"""Content is marked: a text begins with `mk`, and a count is 91234."""
PLANTS: dict[str, Value] = {"text": "mkPlanted", "an object": {"x": "mkPlanted"}, "a list": [{"text": ["mkPlanted"]}]}

# Right answers of each endpoint, in which all content is marked.

USAGE = {"prompt_tokens": 91234, "completion_tokens": 3, "total_tokens": 91237}
TOKEN = {"token": "mkToken", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
FUNCTION = {"name": "mkName", "arguments": '{"x":"mkArguments"}'}
CALL: Json = {"id": "mkId", "type": "function", "function": FUNCTION}
CUSTOM_CALL: Json = {"id": "mkId", "type": "custom", "custom": {"name": "mkName", "input": "mkInput"}}
LISTS = {"tokens": ["mkText"], "token_logprobs": [-0.5], "top_logprobs": [{"mkText": -0.5}], "text_offset": [0]}


def chunk(delta: Json, finish: str | None = None, logprobs: Json | None = None, **members: object) -> Json:
    choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish, **members}
    return {"id": "a", "object": "chat.completion.chunk", "created": 1700000000, "model": "m", "choices": [choice]}


def reply(kind: str, choice: Json) -> Json:
    return {"id": "cmpl-a", "object": kind, "created": 1700000000, "model": "m", "choices": [choice], "usage": USAGE}


START = chunk({"role": "assistant", "content": ""})
CHAT = [
    START,
    chunk({"reasoning_content": "mkThought"}),
    chunk({"content": "mkText"}, logprobs={"content": [TOKEN], "refusal": None}),
    chunk({"refusal": "mkRefusal"}),
    chunk({"tool_calls": [{"index": 0, **CALL}]}),
    chunk({}, "tool_calls"),
    {**START, "choices": [], "usage": USAGE},
]
MESSAGE = {"role": "assistant", "content": "mkText", "refusal": None, "reasoning_content": "mkThought"}
CHAT_REPLY = reply(
    "chat.completion",
    {"index": 0, "message": {**MESSAGE, "tool_calls": [CALL]}, "logprobs": None, "finish_reason": "tool_calls"},
)
WITHOUT_DELTA = {name: value for name, value in CHAT_REPLY["choices"][0].items() if name != "finish_reason"}
COMPLETION = reply("text_completion", {"index": 0, "text": "mkText", "logprobs": LISTS, "finish_reason": "stop"})
COMPLETIONS = [
    {**COMPLETION, "choices": [COMPLETION["choices"][0] | {"finish_reason": None}], "usage": None},
    {**COMPLETION, "choices": [{"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}], "usage": None},
    {**COMPLETION, "choices": []},
]
MESSAGES = [
    real_messages.start(),
    *real_messages.block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "mkThought"},
        {"type": "signature_delta", "signature": "mkSignature"},
    ),
    *real_messages.text(1, "mkText"),
    *real_messages.block(
        2,
        {"type": "tool_use", "id": "mkId", "name": "mkName", "input": {}},
        {"type": "input_json_delta", "partial_json": '{"x":"mkArguments"}'},
    ),
    {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": {"output_tokens": 91234},
    },
    {"type": "message_stop"},
]
BLOCKS: list[Json] = [
    {"type": "thinking", "thinking": "mkThought", "signature": "mkSignature"},
    {"type": "text", "text": "mkText"},
    {"type": "tool_use", "id": "mkId", "name": "mkName", "input": {"x": "mkArguments"}},
]
WHOLE_MESSAGE: Json = real_messages.start(BLOCKS)["message"] | {"stop_reason": "tool_use"}
WHOLE_MESSAGE |= {"usage": {"input_tokens": 5, "output_tokens": 91234}}
ITEMS: list[Json] = [
    {"id": "rs1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "mkThought"}]},
    {"id": "m1", "type": "message", "status": "completed", "role": "assistant"}
    | {"content": [{"type": "output_text", "text": "mkText", "annotations": [], "logprobs": []}]},
    {"id": "f1", "type": "function_call", "status": "completed", "call_id": "mkId", **FUNCTION},
]
RESPONSE: Json = real_responses.RESPONSE | {"status": "completed", "output": ITEMS, "completed_at": 1760000001}
RESPONSE |= {"usage": real_responses.USAGE | {"input_tokens": 91234, "total_tokens": 91264}}
EMPTY_ITEMS = [{**ITEMS[0], "summary": []}, {**ITEMS[1], "status": "in_progress", "content": []}]
EMPTY_ITEMS += [{**ITEMS[2], "status": "in_progress", "arguments": ""}]
THOUGHT = {"item_id": "rs1", "output_index": 0, "summary_index": 0}
TEXT = {"item_id": "m1", "output_index": 1, "content_index": 0}
ARGUMENTS = {"item_id": "f1", "output_index": 2}


def response_stream(*, has_deltas: bool) -> list[Json]:
    """A Responses stream; without deltas, the done events alone have the content."""
    event = real_responses.make_event
    added = [event("output_item.added", output_index=n, item=item) for n, item in enumerate(EMPTY_ITEMS)]
    done = [event("output_item.done", output_index=n, item=item) for n, item in enumerate(ITEMS)]
    deltas = [
        event("reasoning_summary_text.delta", **THOUGHT, delta="mkThought"),
        event("output_text.delta", **TEXT, delta="mkText", logprobs=[]),
        event("function_call_arguments.delta", **ARGUMENTS, delta='{"x":"mkArguments"}'),
    ]
    parts = [
        event("reasoning_summary_part.added", **THOUGHT, part={"type": "summary_text", "text": ""}),
        event("content_part.added", **TEXT, part=ITEMS[1]["content"][0] | {"text": ""}),
    ]
    per_item = [[added[n], *parts[n : n + 1], deltas[n], done[n]] if has_deltas else [done[n]] for n in range(3)]
    end: Json = {} if has_deltas else {"output": []}
    events = [event("created", response=real_responses.RESPONSE)]
    events += [one for of_item in per_item for one in of_item]
    events.append(event("completed", response=RESPONSE | end))
    return [{**value, "sequence_number": number} for number, value in enumerate(events)]


def element(*parts: Json, **members: object) -> Json:
    """An element of a Gemini stream."""
    candidate = {"content": {"parts": list(parts), "role": "model"}, "index": 0, **members}
    return {"candidates": [candidate], "modelVersion": "g", "responseId": "r1"}


PARTS: list[Json] = [
    {"text": "mkThought", "thought": True},
    {"text": "mkText"},
    {"functionCall": {"id": "mkId", "name": "mkName", "args": {"x": "mkArguments"}}, "thoughtSignature": "bWs="},
]
COUNTS = {"usageMetadata": {"promptTokenCount": 91234, "candidatesTokenCount": 3, "totalTokenCount": 91237}}
ANSWERS: dict[str, tuple[EndpointName, Value]] = {
    "chat": ("chat", CHAT),
    "function_call": ("chat", [START, chunk({"function_call": FUNCTION}), chunk({}, "function_call")]),
    "custom call": ("chat", [START, chunk({"tool_calls": [{"index": 0, **CUSTOM_CALL}]}), chunk({}, "tool_calls")]),
    "both calls": ("chat", [START, chunk({"tool_calls": [CALL], "function_call": FUNCTION}), chunk({}, "tool_calls")]),
    "message": ("chat", [START | {"choices": [WITHOUT_DELTA]}, chunk({}, "tool_calls")]),
    "chat reply": ("chat", CHAT_REPLY),
    "completions": ("completions", COMPLETIONS),
    "completions reply": ("completions", COMPLETION),
    "messages": ("messages", MESSAGES),
    "messages reply": ("messages", WHOLE_MESSAGE),
    "responses": ("responses", response_stream(has_deltas=True)),
    "responses without deltas": ("responses", response_stream(has_deltas=False)),
    "responses reply": ("responses", RESPONSE),
    "gemini": ("gemini", [*map(element, PARTS), element({"text": ""}, finishReason="STOP") | COUNTS]),
    "gemini reply": ("gemini", element(*PARTS, finishReason="STOP") | COUNTS),
}
"""By name: a stream is a list of events."""

# What may be deleted without a proof, and why.

NAMES = frozenset(
    {"id", "call_id", "item_id", "responseId", "object", "type", "role", "status", "created", "created_at", "model"}
    | {"modelVersion", "index", "output_index", "content_index", "summary_index", "sequence_number", "completed_at"}
)
COUNTED = frozenset(
    {"completion_tokens", "total_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"}
    | {"input_tokens_details", "output_tokens_details"}
)
ERRORS = (("error",), ("incomplete_details",))
EXCEPTIONS: dict[str, Callable[[str, Path, str, Value], bool]] = {
    "a value, or an object without a member of any answer, is a heartbeat or metrics of a gateway": (
        lambda name, path, done, event: path == () and done in ("plant text", "plant an object")
    ),
    "an object with a type of its own is an event of a vendor, and a signature or a count is no content": (
        lambda name, path, done, event: (
            name.startswith(("messages", "responses")) and path == () and done == "only values"
        )
    ),
    "a name or a position is not content: the repair writes the right one": (
        lambda name, path, done, event: not NAMES.isdisjoint(path[-1:])
    ),
    "no client can read a signature of another shape, and the thought is whole without it": (
        lambda name, path, done, event: path[-1:] == ("thoughtSignature",)
    ),
    "no client can read log probabilities of another shape, and the text is whole without them": (
        lambda name, path, done, event: "logprobs" in path
    ),
    "OpenAI has no choice that was not requested; the requested one is complete": (
        lambda name, path, done, event: path == ("choices",) and done.startswith(("append", "prepend"))
    ),
    "a count that is no number is computed from the other two, and a detail becomes 0": (
        lambda name, path, done, event: not COUNTED.isdisjoint(path) and "usage" in path
    ),
    "the stop members are written by the repair: message_delta replaces those of message_start": (
        lambda name, path, done, event: path[-1:] == ("stop_sequence",) or path[:2] == ("message", "stop_reason")
    ),
    "a Response repeats members of its request, which the client has": (
        lambda name, path, done, event: name.startswith("responses") and _is_echo(path)
    ),
    "an event or a Response repeats what the deltas before it delivered, or what the done event after it has": (
        lambda name, path, done, event: (
            (name == "responses" and not event["type"].endswith(".delta")) or event.get("type") == "response.created"
        )
    ),
    "a frame that is a string, and no chunk as JSON, is a heartbeat: OpenAI's answers are made of objects": (
        lambda name, path, done, event: path == () and done == "plant text"
    ),
    "llama-cpp-python sends each call in both forms, of which tool_calls is read": (
        lambda name, path, done, event: name == "both calls" and "function_call" in path
    ),
    "the error of a Response that did not fail, and the reason of one that is complete": (
        lambda name, path, done, event: name.startswith("responses") and path[-1:] in ERRORS
    ),
}


def _is_echo(path: Path) -> bool:
    member = path[1:2] if path[:1] == ("response",) else path[:1]
    return bool(member) and member[0] in real_responses.RESPONSE and member[0] not in ("output", "usage", "error")


def markers(value: Value) -> set[bytes]:
    return set(MARKER.findall(value if isinstance(value, bytes) else json.dumps(value).encode()))


def reshaped(value: Value) -> Iterator[tuple[str, Value]]:
    """The same content in other shapes."""
    yield "in a list", [value]
    yield "in an object", {"x": value}
    yield "by position", {"0": value}
    yield "as JSON", json.dumps(value)
    if isinstance(value, dict):
        yield "only values", list(value.values())
    if isinstance(value, list) and len(value) == 1:
        yield "only entry", value[0]
    if isinstance(value, str):
        yield "in a part", [{"type": "text", "text": value}]
        if value.startswith("{"):
            yield "parsed", json.loads(value)


def cases(events: list[Json]) -> Iterator[Case]:
    for position, event in enumerate(events):
        for path in paths(event):
            value: Value = event
            for key in path:
                value = value[key]
            wrong = list(reshaped(value)) if markers(value) else [(f"plant {n}", item) for n, item in PLANTS.items()]
            for name, item in PLANTS.items():
                if isinstance(value, dict):
                    wrong.append((f"add {name}", {**value, "planted": item}))
                elif isinstance(value, list):
                    wrong += [(f"append {name}", [*value, item]), (f"prepend {name}", [item, *value])]
            for done, item in wrong:
                yield position, path, done, with_value_at(event, path, item)


def encode(endpoint: EndpointName, events: list[Value]) -> bytes:
    frames = []
    for event in events:
        kind = event.get("type") if isinstance(event, dict) else "message"
        name = f"event: {kind}\n" if endpoint in ("messages", "responses") and isinstance(kind, str) else ""
        frames.append(f"{name}data: {json.dumps(event)}\n\n")
    return "".join([*frames, "data: [DONE]\n\n" if endpoint in ("chat", "completions") else ""]).encode()


def fix(endpoint: EndpointName, answer: Value) -> tuple[bytes, Failure | None]:
    if not isinstance(answer, list):
        repaired = repair_response(json.dumps(answer).encode(), endpoint, request={"model": "m"})
        return repaired.body, repaired.result.failure
    request: Json = {"model": "m", "stream": True}
    if endpoint in ("chat", "completions"):
        request["stream_options"] = {"include_usage": True}
    repairer = StreamRepairer(endpoint, request=request)
    return repairer.feed(encode(endpoint, answer)) + repairer.close(), repairer.result.failure


@pytest.mark.parametrize("name", ANSWERS)
def test_law_5_planted_content_comes_out_or_the_answer_is_an_error(name: str) -> None:
    endpoint, answer = ANSWERS[name]
    events = answer if isinstance(answer, list) else [answer]
    right, failure = fix(endpoint, copy.deepcopy(answer))
    assert failure is None
    assert markers(right) >= markers(answer)
    silent = []
    for position, path, done, wrong in cases(events):
        planted = [*events[:position], wrong, *events[position + 1 :]] if isinstance(answer, list) else wrong
        sent, failure = fix(endpoint, planted)
        if failure is not None:
            assert b'"error"' in sent
        elif (lost := markers(planted) - markers(sent)) and not any(
            is_excepted(name, path, done, events[position]) for is_excepted in EXCEPTIONS.values()
        ):
            silent.append((position, path, done, lost))
    assert silent == []


def other_call(name: str) -> Json:
    return {**CALL, "id": f"mk{name}", "function": {**FUNCTION, "arguments": f'{{"x":"mk{name}"}}'}}


LATER: dict[str, tuple[EndpointName, list[Json]]] = {
    "a second message with other calls": (
        "chat",
        [chunk({}, message={"tool_calls": [other_call("First")]}), chunk({}, message={"tool_calls": [CALL]}), *CHAT],
    ),
    "input that differs from that of the start, in a block that is not stopped": (
        "messages",
        [
            real_messages.start(),
            *real_messages.block(
                0,
                {"type": "tool_use", "id": "mkId", "name": "mkName", "input": {"x": "mkStart"}},
                {"type": "input_json_delta", "partial_json": '{"x":"mkArguments"}'},
            )[:-1],
            *MESSAGES[-2:],
        ],
    ),
    "a delta after the end of its part": (
        "responses",
        [
            *response_stream(has_deltas=True)[:-1],
            real_responses.make_event("output_text.delta", **TEXT, delta="mkLate", logprobs=[]),
            response_stream(has_deltas=True)[-1],
        ],
    ),
    "more deltas after the end of their part than are kept": (
        "responses",
        [
            *response_stream(has_deltas=True)[:-1],
            *[real_responses.make_event("output_text.delta", **TEXT, delta="mkLate", logprobs=[])] * 4097,
            response_stream(has_deltas=True)[-1],
        ],
    ),
}
"""Content that contradicts, or follows, what was sent before it."""


@pytest.mark.parametrize("name", LATER)
def test_content_that_has_no_place_ends_the_answer_with_an_error(name: str) -> None:
    endpoint, events = LATER[name]
    sent, failure = fix(endpoint, events)
    assert failure is not None
    assert b'"error"' in sent
