"""The four laws on /v1/responses: of what is translated out of chat, and of what is mended within the dialect."""

import json
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from tests.laws import real_responses
from tests.laws.strategies import HEAD, any_bytes, legal
from tests.table import table
from welldone.protocol.catalog import RULES_BY_ID
from welldone.protocol.catalog.rule import Repairability
from welldone.protocol.collect import collect
from welldone.protocol.dialects.chat import ChatWriter
from welldone.protocol.dialects.responses.repair import ResponsesRepairer
from welldone.protocol.dialects.responses.writer import ResponsesDialect
from welldone.protocol.envelope import Endpoint, Envelope
from welldone.protocol.events import Event, Failure, Logprobs, Reasoning, Refusal, Text, ToolArguments, ToolCall, Usage
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

Json = dict[str, Any]
RESP = Envelope("resp_1", 1700000000, "m")
FOLDER = Path(__file__).parent.parent / "recorded_dialects"
REAL = [real_responses.frames(events) for events in real_responses.STREAMS.values()]
RECORDED = [path.read_bytes() for path in sorted(FOLDER.glob("*/*responses_stream.body"))]
WHOLE = [path.read_bytes() for path in sorted(FOLDER.glob("*/*responses_nonstream.body"))]
STATUSES = {"stop": "completed", "tool_calls": "completed", "length": "incomplete", "content_filter": "incomplete"}
UNKNOWABLE = {"resp-usage"}
"""Counts that the server never gave are not invented."""


def write(events: list[Event], *, is_summary: bool = False) -> bytes:
    """The Responses stream that events make."""
    writer = ResponsesDialect({}, is_summary=is_summary).make_writer(RESP, lambda: None)
    return b"".join([*(writer.send(event) for event in events), writer.end()])


def write_chat(events: list[Event]) -> bytes:
    """The chat stream that events make."""
    writer = ChatWriter(HEAD[Endpoint.CHAT])
    return b"".join([*(writer.send(event) for event in events), writer.end()])


def fix(data: bytes, cuts: list[int] | None = None, strict: frozenset[str] = frozenset()) -> bytes:
    """The stream that is made of `data`, fed in pieces."""
    native = ResponsesRepairer(fallback=RESP)
    native.configure(0, strict=strict)
    ends = [*sorted(cut for cut in cuts or [] if cut < len(data)), len(data)]
    pieces = [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return b"".join([*(native.feed(piece) for piece in pieces), native.close()])


def fix_whole(data: bytes) -> tuple[bytes, ResponsesRepairer]:
    """What is made of a reply that was not streamed, for a client that asked for no stream."""
    native = ResponsesRepairer(fallback=RESP, is_stream=False)
    native.feed_reply(data)
    native.close()
    return (b"" if native.failure is not None else native.body()), native


def broken(data: bytes) -> set[str]:
    """The rules that a reply breaks, less those that can only be reported."""
    judged = judge(Trace(body=data, endpoint="responses"))
    return {rule for rule in judged.counts if RULES_BY_ID[rule].repairability is not Repairability.REPORT_ONLY}


def values(data: bytes) -> list[Json]:
    """The JSON of each frame of a stream, read as plainly as can be."""
    lines = [line.removeprefix("data: ") for line in data.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def said_in_chat(data: bytes) -> Json:
    """What a chat stream says."""
    said: Json = {"text": "", "thought": "", "refusal": "", "calls": [], "status": None, "usage": None, "error": None}
    for chunk in values(data):
        said["error"] = chunk.get("error", {}).get("message", said["error"])
        if chunk.get("usage"):
            said["usage"] = [chunk["usage"][key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")]
        for choice in chunk.get("choices", []):
            said["status"] = STATUSES.get(choice["finish_reason"], said["status"])
            delta = choice["delta"]
            said["text"] += delta.get("content") or ""
            said["thought"] += delta.get("reasoning_content") or ""
            said["refusal"] += delta.get("refusal") or ""
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    said["calls"].append([call["id"], call["function"]["name"], ""])
                said["calls"][call["index"]][2] += call["function"]["arguments"]
    if said["error"]:
        said["status"] = "failed"
    return said


def said_in_responses(data: bytes) -> Json:
    """What the deltas of a Responses stream say."""
    said: Json = {"text": "", "thought": "", "refusal": "", "calls": [], "status": None, "usage": None, "error": None}
    names = {
        "output_text": "text",
        "refusal": "refusal",
        "reasoning_text": "thought",
        "reasoning_summary_text": "thought",
    }
    for value in values(data):
        _, _, kind = value["type"].partition("response.")
        if kind.removesuffix(".delta") in names and kind.endswith(".delta"):
            said[names[kind.removesuffix(".delta")]] += value["delta"]
        elif kind == "output_item.added" and value["item"]["type"] == "function_call":
            said["calls"].append([value["item"]["call_id"], value["item"]["name"], ""])
        elif kind == "function_call_arguments.delta":
            said["calls"][-1][2] += value["delta"]
        elif kind in ("completed", "incomplete", "failed"):
            response = value["response"]
            said["status"] = response["status"]
            said["error"] = (response.get("error") or {}).get("message")
            if response["usage"]:
                said["usage"] = [response["usage"][key] for key in ("input_tokens", "output_tokens", "total_tokens")]
    return said


@given(events=legal(Endpoint.CHAT, choices=1), is_summary=st.booleans())
def test_law_1_what_is_written_is_right(events: list[Event], is_summary: bool) -> None:
    written = write(events, is_summary=is_summary)
    unknown = UNKNOWABLE if not any(isinstance(event, Usage) for event in events) else set()
    assert set(judge(Trace(body=written, endpoint="responses")).counts) <= unknown


@given(events=legal(Endpoint.CHAT, choices=1), is_summary=st.booleans())
def test_the_same_events_say_the_same_in_chat_and_in_responses(events: list[Event], is_summary: bool) -> None:
    assert said_in_responses(write(events, is_summary=is_summary)) == said_in_chat(write_chat(events))


@given(events=legal(Endpoint.CHAT, choices=1))
def test_a_whole_reply_is_what_its_stream_ends_with(events: list[Event]) -> None:
    reply = collect(events)
    if reply.failure is not None:
        return
    whole = json.loads(ResponsesDialect({}).encode_reply(RESP, reply))
    assert whole == values(write(events))[-1]["response"]
    assert broken(json.dumps(whole).encode()) <= (UNKNOWABLE if reply.usage is None else set())


@given(events=legal(Endpoint.CHAT, choices=1), order=st.randoms(use_true_random=False))
def test_law_1_holds_where_text_comes_between_the_pieces_of_a_call(events: list[Event], order: Random) -> None:
    calls = [place for place, event in enumerate(events) if isinstance(event, ToolCall | ToolArguments)]
    if not calls:
        return
    texts = [event for event in events if isinstance(event, Text | Reasoning | Refusal)]
    rest: list[Event] = [event for event in events if not isinstance(event, Text | Reasoning | Refusal | Logprobs)]
    first = next(place for place, event in enumerate(rest) if isinstance(event, ToolCall))
    last = max(place for place, event in enumerate(rest) if isinstance(event, ToolCall | ToolArguments))
    for text in texts:
        rest.insert(order.randint(first + 1, last + 1), text)
    written = write(rest)
    assert set(judge(Trace(body=written, endpoint="responses")).counts) <= UNKNOWABLE
    said, meant = said_in_responses(written), said_in_chat(write_chat(rest))
    assert said == meant


# Streams of servers, right and spoiled.

MESSAGE = {"type": "message", "id": "msg_a", "status": "in_progress", "role": "assistant", "content": []}
TYPES = [
    *("response.created", "response.queued", "response.in_progress", "response.completed", "response.incomplete"),
    *("response.failed", "error", "keepalive", "response.output_item.added", "response.output_item.done"),
    *("response.content_part.added", "response.content_part.done", "response.output_text.delta"),
    *("response.output_text.done", "response.refusal.delta", "response.refusal.done"),
    *("response.reasoning_text.delta", "response.reasoning_text.done", "response.reasoning_summary_part.added"),
    *("response.reasoning_summary_part.done", "response.reasoning_summary_text.delta"),
    *("response.reasoning_summary_text.done", "response.function_call_arguments.delta"),
    *("response.function_call_arguments.done", "response.custom_tool_call_input.delta"),
    *("response.custom_tool_call_input.done", "response.mcp_call_arguments.delta"),
    *("response.web_search_call.searching", "response.output_text.annotation.added", "response.audio.delta"),
    *("response.code_interpreter_call_code.done", "response.mcp_list_tools.failed", "response.vendor", "", None),
]
ids = st.sampled_from(["msg_a", "fc_b", "rs_c", "x", "", None, 7])
indexes = st.sampled_from([0, 0, 1, 2, -1, "0", None, True])
said = st.sampled_from(["", "a", "ab", "abc", "{}", '{"a":1}', "\u2028é😀", None, 3])
part_objects = st.fixed_dictionaries(
    {"type": st.sampled_from(["output_text", "refusal", "reasoning_text", "summary_text", "vendor", None])},
    optional={
        "text": said,
        "refusal": said,
        "annotations": st.sampled_from([[], None, [{"type": "url_citation"}]]),
        "logprobs": st.sampled_from([[], None, 5, [{"token": "a", "logprob": -1}]]),
    },
)
_common: dict[str, st.SearchStrategy[Any]] = {
    "id": ids,
    "status": st.sampled_from(["in_progress", "completed", "incomplete", "failed", None, 1]),
    "call_id": st.sampled_from(["call_1", "call_2", "", None]),
    "name": st.sampled_from(["get", "set", "", None]),
    "arguments": said,
    "input": said,
    "encrypted_content": st.just("e"),
}
_parts = st.one_of(st.none(), st.lists(part_objects, max_size=2))
_tools = ["function_call", "custom_tool_call", "mcp_call", "web_search_call", "code_interpreter_call", "mcp_list_tools"]
item_objects = st.one_of(
    st.fixed_dictionaries({"type": st.just("message")}, optional=_common | {"content": _parts}),
    st.fixed_dictionaries({"type": st.just("reasoning")}, optional=_common | {"content": _parts, "summary": _parts}),
    st.fixed_dictionaries({"type": st.sampled_from([*_tools, "vendor", "", None])}, optional=_common),
)
counts = st.sampled_from([0, 3, "4", None, -1])
responses = st.fixed_dictionaries(
    {},
    optional={
        "id": ids,
        "object": st.sampled_from(["response", None]),
        "created_at": st.sampled_from([1, 1.5, "1", None, True]),
        "model": st.sampled_from(["m", "", None]),
        "status": st.sampled_from(["queued", "in_progress", "completed", "incomplete", "failed", "cancelled", None]),
        "output": st.one_of(st.none(), st.lists(item_objects, max_size=3)),
        "tools": st.sampled_from([[], None]),
        "error": st.sampled_from([None, {}, {"code": "c", "message": "m"}, "boom"]),
        "incomplete_details": st.sampled_from([None, {}, {"reason": "content_filter"}]),
        "usage": st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {},
                optional={
                    "input_tokens": counts,
                    "output_tokens": counts,
                    "prompt_tokens": counts,
                    "completion_tokens": counts,
                    "total_tokens": counts,
                    "input_tokens_details": st.sampled_from([None, {"cached_tokens": 1}, {"cached_tokens": "x"}]),
                    "output_tokens_details": st.sampled_from([{}, {"reasoning_tokens": 2, "x": [1]}]),
                },
            ),
        ),
        "x_more": st.just([1]),
    },
)
events = st.fixed_dictionaries(
    {"type": st.sampled_from(TYPES)},
    optional={
        "sequence_number": indexes,
        "item_id": ids,
        "output_index": indexes,
        "content_index": indexes,
        "summary_index": indexes,
        "delta": said,
        "text": said,
        "refusal": said,
        "arguments": said,
        "name": st.sampled_from(["get", None]),
        "logprobs": st.sampled_from([[], None, [{"token": "a", "logprob": -1}]]),
        "part": st.one_of(part_objects, st.none()),
        "item": st.one_of(item_objects, st.none()),
        "response": st.one_of(responses, st.none()),
        "annotation": st.just({"type": "url_citation"}),
        "error": st.sampled_from([None, "boom", {"message": "m", "code": 5}]),
        "obfuscation": st.just("x"),
    },
)


def frame(value: Json) -> bytes:
    """One event as a right server sends it."""
    name = f"event: {value['type']}\n" if isinstance(value["type"], str) else ""
    return f"{name}data: {json.dumps(value)}\n\n".encode()


streams = st.lists(events, max_size=14).map(lambda sent: b"".join(frame(value) for value in sent))
_SPOILS = [
    (b'"item_id":"', b'"x":"'),
    (b'"item_id":"', b'"item_id":"z'),
    (b'"output_index":0', b'"output_index":1'),
    (b'"delta":"', b'"delta":"\\ud83d'),
    (b'"delta":"', b'"delta":null,"x":"'),
    (b'"text":"', b'"text":"x'),
    (b'"text":"', b'"x":"'),
    (b'"content":[{', b'"content":[],"x":[{'),
    (b'"output":[{', b'"output":[],"x":[{'),
    (b'"call_id":"', b'"call_id":"z'),
    (b'"name":"', b'"name":"","x":"'),
    (b'"type":"response.', b'"kind":"response.'),
    (b'"type":"message"', b'"type":"reasoning"'),
    (b'"status":"completed"', b'"status":"incomplete"'),
    (b'"response":{', b'"response":null,"x":{'),
    (b"event: ", b"event: x"),
    (b"event: response", b": x"),
    (b"input_tokens", b"prompt_tokens"),
    (b"\n\n", b"\n"),
    (b"\n\n", b"\r\n\r\n"),
    (b"\n\n", b"\n\n: ping\n\n"),
    (b"\n\n", b"\n\ndata: [DONE]\n\n"),
    (b"data: {", b"data: {{"),
    (b"null", b"NaN"),
    (b'"object":"response"', b'"error":{"message":"m"}'),
]


@st.composite
def spoiled(draw: st.DrawFn) -> bytes:
    """A recorded or written stream in which frames were moved, lost or doubled, words exchanged, and bytes changed."""
    written = legal(Endpoint.CHAT, choices=1).map(lambda events: write(events, is_summary=True))
    body = draw(st.one_of(st.sampled_from(RECORDED), st.sampled_from(REAL), written))
    frames = body.split(b"\n\n")[:12] + body.split(b"\n\n")[-8:]
    for _ in range(draw(st.integers(0, 4))):
        place, other = draw(st.integers(0, len(frames) - 1)), draw(st.integers(0, len(frames) - 1))
        match draw(st.sampled_from(["drop", "double", "swap"])):
            case "drop" if len(frames) > 1:
                frames.pop(place)
            case "double":
                frames.insert(place, frames[other])
            case _:
                frames[place], frames[other] = frames[other], frames[place]
    body = b"\n\n".join(frames)
    for old, new in draw(st.lists(st.sampled_from(_SPOILS), max_size=4)):
        body = body.replace(old, new, draw(st.sampled_from([1, 2, -1])))
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(body)))
        body = body[:place] + draw(st.binary(max_size=2)) + body[place + draw(st.integers(0, 2)) :]
    return body


anything = st.one_of(streams, spoiled(), any_bytes)


@given(data=anything)
def test_law_2_whatever_the_bytes_what_is_mended_is_right(data: bytes) -> None:
    fixed = fix(data)
    event(values(fixed)[-1]["type"])
    assert broken(fixed) <= UNKNOWABLE


@given(response=st.one_of(responses, events))
def test_law_2_holds_for_replies_that_were_not_streamed(response: Json) -> None:
    body, native = fix_whole(json.dumps(response).encode())
    if native.failure is None and json.loads(body)["status"] in ("completed", "incomplete"):
        assert broken(body) <= UNKNOWABLE


@given(data=st.one_of(st.sampled_from(WHOLE), responses.map(lambda value: json.dumps(value).encode())))
def test_law_2_holds_for_streams_that_are_made_of_whole_replies(data: bytes) -> None:
    native = ResponsesRepairer(fallback=RESP)
    assert broken(native.feed_reply(data) + native.close()) <= UNKNOWABLE


@given(sent=legal(Endpoint.CHAT, choices=1), is_summary=st.booleans())
def test_law_3_a_right_stream_passes_unchanged(sent: list[Event], is_summary: bool) -> None:
    written = write(sent, is_summary=is_summary)
    native = ResponsesRepairer(fallback=Envelope("resp_9", 1, "other"))
    assert native.feed(written) + native.close() == written
    is_counted = any(isinstance(event, Usage | Failure) for event in sent)
    assert native.repair_log.entries() == [] or (not is_counted and set(native.repair_log.counts()) <= UNKNOWABLE)


@given(data=anything)
def test_law_3_mending_twice_is_mending_once(data: bytes) -> None:
    once = fix(data)
    assert fix(once) == once


@given(data=anything, cuts=st.lists(st.integers(1, 3000)))
def test_law_4_where_the_bytes_are_cut_never_matters(data: bytes, cuts: list[int]) -> None:
    assert fix(data, cuts) == fix(data)


@given(
    data=anything,
    rules=st.one_of(st.just({"all"}), st.sets(st.sampled_from(sorted(RULES_BY_ID)))),
    cuts=st.lists(st.integers(1, 3000)),
)
def test_laws_2_and_4_hold_where_rules_are_strict(data: bytes, rules: set[str], cuts: list[int]) -> None:
    fixed = fix(data, strict=frozenset(rules))
    assert broken(fixed) <= UNKNOWABLE
    assert fix(data, cuts, frozenset(rules)) == fixed


@table("body", RECORDED, ids=range(len(RECORDED)))
def test_a_recorded_stream_says_the_same_when_it_is_mended(body: bytes) -> None:
    fixed = fix(body)
    before, after = said_in_responses(body), said_in_responses(fixed)
    # One server ends with `response.completed` where its Response is incomplete.
    assert after == before
    assert broken(fixed) == set()
