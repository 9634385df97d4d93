"""The first four laws of /v1/responses, for translation from chat and for pass-through repair."""

import json
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from tests.laws import real_responses
from tests.laws.strategies import ENVELOPES, any_bytes, legal_events
from tests.table import table
from welldone.core.catalog import RULES, Repairability
from welldone.core.collect import collect
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import Event, Failure, Logprobs, Reasoning, Refusal, Text, ToolArguments, ToolCall, Usage
from welldone.core.request_facts import RepairOptions, RequestFacts
from welldone.dialects.chat.writer import ChunkFormat
from welldone.dialects.responses.repair import ResponsesRepairer
from welldone.dialects.responses.writer import ResponsesFormat
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

Json = dict[str, Any]
RESP = Envelope("resp_1", 1700000000, "m")
FOLDER = Path(__file__).parent.parent / "recorded_dialects"
REAL = [real_responses.frames(events) for events in real_responses.STREAMS.values()]
RECORDED = [path.read_bytes() for path in sorted(FOLDER.glob("*/*responses_stream.body"))]
RECORDED_REPLIES = [path.read_bytes() for path in sorted(FOLDER.glob("*/*responses_nonstream.body"))]
STATUSES = {"stop": "completed", "tool_calls": "completed", "length": "incomplete", "content_filter": "incomplete"}
UNKNOWABLE = {"resp-usage"}
"""Missing usage is not invented."""


def write(events: list[Event], *, is_summary: bool = False) -> bytes:
    """Write a Responses stream of `events`."""
    writer = ResponsesFormat({}, is_summary=is_summary).make_writer(RESP, lambda: None)
    return b"".join([*(writer.send(event) for event in events), writer.end()])


def write_chat(events: list[Event]) -> bytes:
    """Write a chat stream of `events`."""
    writer = ChunkFormat(RequestFacts()).make_writer(ENVELOPES[Endpoint.CHAT])
    return b"".join([*(writer.send(event) for event in events), writer.end()])


def fix(data: bytes, cuts: list[int] | None = None, strict: frozenset[str] = frozenset()) -> bytes:
    """Repair `data`, split at `cuts`."""
    repairer = ResponsesRepairer(fallback=RESP)
    repairer.configure(0, RepairOptions(strict=strict))
    ends = [*sorted(cut for cut in cuts or [] if cut < len(data)), len(data)]
    pieces = [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return b"".join([*(repairer.feed(piece) for piece in pieces), repairer.close()])


def fix_reply(data: bytes) -> tuple[bytes, ResponsesRepairer]:
    """Repair a non-streaming reply."""
    repairer = ResponsesRepairer(fallback=RESP, is_stream=False)
    repairer.feed_reply(data)
    repairer.close()
    return (b"" if repairer.failure is not None else repairer.body()), repairer


def violated_rules(data: bytes) -> set[str]:
    """Rules that a reply violates, except those without a repair."""
    judged = judge(Trace(body=data, endpoint="responses"))
    return {rule for rule in judged.counts if RULES[rule].repairability is not Repairability.REPORT_ONLY}


def values(data: bytes) -> list[Json]:
    """JSON of each frame, read with a minimal parser."""
    lines = [line.removeprefix("data: ") for line in data.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def chat_content(data: bytes) -> Json:
    """Content of a chat stream."""
    content: Json = {
        "text": "",
        "thought": "",
        "refusal": "",
        "calls": [],
        "status": None,
        "usage": None,
        "error": None,
    }
    for chunk in values(data):
        content["error"] = chunk.get("error", {}).get("message", content["error"])
        if chunk.get("usage"):
            content["usage"] = [chunk["usage"][key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")]
        for choice in chunk.get("choices", []):
            content["status"] = STATUSES.get(choice["finish_reason"], content["status"])
            delta = choice["delta"]
            content["text"] += delta.get("content") or ""
            content["thought"] += delta.get("reasoning_content") or ""
            content["refusal"] += delta.get("refusal") or ""
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    content["calls"].append([call["id"], call["function"]["name"], ""])
                content["calls"][call["index"]][2] += call["function"]["arguments"]
    if content["error"]:
        content["status"] = "failed"
    return content


def responses_content(data: bytes) -> Json:
    """Content of the deltas of a Responses stream."""
    content: Json = {
        "text": "",
        "thought": "",
        "refusal": "",
        "calls": [],
        "status": None,
        "usage": None,
        "error": None,
    }
    names = {
        "output_text": "text",
        "refusal": "refusal",
        "reasoning_text": "thought",
        "reasoning_summary_text": "thought",
    }
    for value in values(data):
        _, _, kind = value["type"].partition("response.")
        if kind.removesuffix(".delta") in names and kind.endswith(".delta"):
            content[names[kind.removesuffix(".delta")]] += value["delta"]
        elif kind == "output_item.added" and value["item"]["type"] == "function_call":
            content["calls"].append([value["item"]["call_id"], value["item"]["name"], ""])
        elif kind == "function_call_arguments.delta":
            content["calls"][-1][2] += value["delta"]
        elif kind in ("completed", "incomplete", "failed"):
            response = value["response"]
            content["status"] = response["status"]
            content["error"] = (response.get("error") or {}).get("message")
            if response["usage"]:
                content["usage"] = [response["usage"][key] for key in ("input_tokens", "output_tokens", "total_tokens")]
    return content


@given(events=legal_events(Endpoint.CHAT, choices=1), is_summary=st.booleans())
def test_law_1_written_streams_are_correct(events: list[Event], is_summary: bool) -> None:
    written = write(events, is_summary=is_summary)
    unknown = UNKNOWABLE if not any(isinstance(event, Usage) for event in events) else set()
    assert set(judge(Trace(body=written, endpoint="responses")).counts) <= unknown


@given(events=legal_events(Endpoint.CHAT, choices=1), is_summary=st.booleans())
def test_the_same_events_have_the_same_content_in_chat_and_in_responses(events: list[Event], is_summary: bool) -> None:
    assert responses_content(write(events, is_summary=is_summary)) == chat_content(write_chat(events))


@given(events=legal_events(Endpoint.CHAT, choices=1))
def test_a_reply_equals_the_response_at_the_end_of_its_stream(events: list[Event]) -> None:
    reply = collect(events)
    if reply.failure is not None:
        return
    reply_object = json.loads(ResponsesFormat({}).encode_reply(RESP, reply))
    assert reply_object == values(write(events))[-1]["response"]
    assert violated_rules(json.dumps(reply_object).encode()) <= (UNKNOWABLE if reply.usage is None else set())


@given(events=legal_events(Endpoint.CHAT, choices=1), order=st.randoms(use_true_random=False))
def test_law_1_holds_for_text_between_the_pieces_of_a_call(events: list[Event], order: Random) -> None:
    calls = [position for position, event in enumerate(events) if isinstance(event, ToolCall | ToolArguments)]
    if not calls:
        return
    texts = [event for event in events if isinstance(event, Text | Reasoning | Refusal)]
    rest: list[Event] = [event for event in events if not isinstance(event, Text | Reasoning | Refusal | Logprobs)]
    first = next(position for position, event in enumerate(rest) if isinstance(event, ToolCall))
    last = max(position for position, event in enumerate(rest) if isinstance(event, ToolCall | ToolArguments))
    for text in texts:
        rest.insert(order.randint(first + 1, last + 1), text)
    written = write(rest)
    assert set(judge(Trace(body=written, endpoint="responses")).counts) <= UNKNOWABLE
    content, expected = responses_content(written), chat_content(write_chat(rest))
    assert content == expected


# Streams of servers, correct and damaged.

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
content = st.sampled_from(["", "a", "ab", "abc", "{}", '{"a":1}', "\u2028é😀", None, 3])
part_objects = st.fixed_dictionaries(
    {"type": st.sampled_from(["output_text", "refusal", "reasoning_text", "summary_text", "vendor", None])},
    optional={
        "text": content,
        "refusal": content,
        "annotations": st.sampled_from([[], None, [{"type": "url_citation"}]]),
        "logprobs": st.sampled_from([[], None, 5, [{"token": "a", "logprob": -1}]]),
    },
)
_common: dict[str, st.SearchStrategy[Any]] = {
    "id": ids,
    "status": st.sampled_from(["in_progress", "completed", "incomplete", "failed", None, 1]),
    "call_id": st.sampled_from(["call_1", "call_2", "", None]),
    "name": st.sampled_from(["get", "set", "", None]),
    "arguments": content,
    "input": content,
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
        "delta": content,
        "text": content,
        "refusal": content,
        "arguments": content,
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
    """Correctly framed event."""
    name = f"event: {value['type']}\n" if isinstance(value["type"], str) else ""
    return f"{name}data: {json.dumps(value)}\n\n".encode()


streams = st.lists(events, max_size=14).map(lambda sent: b"".join(frame(value) for value in sent))
_REPLACEMENTS = [
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
def damaged(draw: st.DrawFn) -> bytes:
    """Recorded or written stream with frames dropped, duplicated or swapped, tokens replaced, and bytes changed."""
    written = legal_events(Endpoint.CHAT, choices=1).map(lambda events: write(events, is_summary=True))
    body = draw(st.one_of(st.sampled_from(RECORDED), st.sampled_from(REAL), written))
    frames = body.split(b"\n\n")[:12] + body.split(b"\n\n")[-8:]
    for _ in range(draw(st.integers(0, 4))):
        position, other = draw(st.integers(0, len(frames) - 1)), draw(st.integers(0, len(frames) - 1))
        match draw(st.sampled_from(["drop", "double", "swap"])):
            case "drop" if len(frames) > 1:
                frames.pop(position)
            case "double":
                frames.insert(position, frames[other])
            case _:
                frames[position], frames[other] = frames[other], frames[position]
    body = b"\n\n".join(frames)
    for old, new in draw(st.lists(st.sampled_from(_REPLACEMENTS), max_size=4)):
        body = body.replace(old, new, draw(st.sampled_from([1, 2, -1])))
    for _ in range(draw(st.integers(0, 2))):
        position = draw(st.integers(0, len(body)))
        body = body[:position] + draw(st.binary(max_size=2)) + body[position + draw(st.integers(0, 2)) :]
    return body


any_stream = st.one_of(streams, damaged(), any_bytes)


@given(data=any_stream)
def test_law_2_any_bytes_give_a_correct_stream(data: bytes) -> None:
    fixed = fix(data)
    event(values(fixed)[-1]["type"])
    assert violated_rules(fixed) <= UNKNOWABLE


@given(response=st.one_of(responses, events))
def test_law_2_holds_for_replies(response: Json) -> None:
    body, repairer = fix_reply(json.dumps(response).encode())
    if repairer.failure is None and json.loads(body)["status"] in ("completed", "incomplete"):
        assert violated_rules(body) <= UNKNOWABLE


@given(data=st.one_of(st.sampled_from(RECORDED_REPLIES), responses.map(lambda value: json.dumps(value).encode())))
def test_law_2_holds_for_streams_that_are_made_of_replies(data: bytes) -> None:
    repairer = ResponsesRepairer(fallback=RESP)
    assert violated_rules(repairer.feed_reply(data) + repairer.close()) <= UNKNOWABLE


@given(sent=legal_events(Endpoint.CHAT, choices=1), is_summary=st.booleans())
def test_law_3_a_written_stream_passes_unchanged(sent: list[Event], is_summary: bool) -> None:
    written = write(sent, is_summary=is_summary)
    repairer = ResponsesRepairer(fallback=Envelope("resp_9", 1, "other"))
    assert repairer.feed(written) + repairer.close() == written
    is_counted = any(isinstance(event, Usage | Failure) for event in sent)
    assert repairer.repair_log.entries() == [] or (not is_counted and set(repairer.repair_log.counts()) <= UNKNOWABLE)


@given(data=any_stream)
def test_law_3_repair_is_idempotent(data: bytes) -> None:
    once = fix(data)
    assert fix(once) == once


@given(data=any_stream, cuts=st.lists(st.integers(1, 3000)))
def test_law_4_byte_boundaries_do_not_matter(data: bytes, cuts: list[int]) -> None:
    assert fix(data, cuts) == fix(data)


@given(
    data=any_stream,
    rules=st.one_of(st.just({"all"}), st.sets(st.sampled_from(sorted(RULES)))),
    cuts=st.lists(st.integers(1, 3000)),
)
def test_laws_2_and_4_hold_with_strict_rules(data: bytes, rules: set[str], cuts: list[int]) -> None:
    fixed = fix(data, strict=frozenset(rules))
    assert violated_rules(fixed) <= UNKNOWABLE
    assert fix(data, cuts, frozenset(rules)) == fixed


@table("body", RECORDED, ids=range(len(RECORDED)))
def test_a_recorded_stream_keeps_its_content(body: bytes) -> None:
    fixed = fix(body)
    before, after = responses_content(body), responses_content(fixed)
    # One server sends `response.completed` although its Response is incomplete.
    assert after == before
    assert violated_rules(fixed) == set()
