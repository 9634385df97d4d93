"""The rules of /v1/messages: what is said of right streams, of junk, and how much each fault costs."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.rules.streams import texts
from tests.table import table
from welldone.protocol.catalog.rule import Severity
from welldone.rules.checks.anthropic import ANTHROPIC_CHECKS
from welldone.rules.judge import Judgement, judge
from welldone.rules.trace import Trace

Json = dict[str, Any]

MESSAGE: Json = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": {"input_tokens": 5, "output_tokens": 0},
}
TEXT: Json = {"type": "text", "text": ""}
THINKING: Json = {"type": "thinking", "thinking": "", "signature": ""}
TOOL: Json = {"type": "tool_use", "id": "toolu_1", "name": "get", "input": {}}
STOP: Json = {"type": "message_stop"}
PING: Json = {"type": "ping"}
ERROR: Json = {"type": "error", "error": {"type": "api_error", "message": "It broke."}}
WHOLE: Json = {**MESSAGE, "content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn"}


# ---- streams


def frame(value: object, name: str | None = None) -> bytes:
    """One event, under the name that its type is unless another is given."""
    called = value.get("type") if name is None and isinstance(value, dict) else name
    head = f"event: {called}\n" if called else ""
    return f"{head}data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def stream(*events: Json | bytes) -> bytes:
    return b"".join(event if isinstance(event, bytes) else frame(event) for event in events)


def start(**members: object) -> Json:
    return {"type": "message_start", "message": {**MESSAGE, **members}}


def began(block: object = TEXT, index: object = 0) -> Json:
    return {"type": "content_block_start", "index": index, "content_block": block}


def more(delta: object, index: object = 0) -> Json:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def text(said: object = "Hi", index: object = 0) -> Json:
    return more({"type": "text_delta", "text": said}, index)


def piece(said: object, index: object = 0) -> Json:
    return more({"type": "input_json_delta", "partial_json": said}, index)


def ended(index: object = 0) -> Json:
    return {"type": "content_block_stop", "index": index}


def why(reason: object = "end_turn", **members: object) -> Json:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 3}, **members}


def without(value: Json, *keys: str) -> Json:
    return {key: member for key, member in value.items() if key not in keys}


def said(*events: Json | bytes) -> bytes:
    """A stream of one text block, with these events in its place."""
    return stream(start(), *events, why(), STOP)


def called(*events: Json | bytes, reason: str = "tool_use") -> bytes:
    return stream(start(), *events, why(reason), STOP)


HI = (began(), text(), ended())


def judged(body: bytes, **known: Any) -> Judgement:  # noqa: ANN401  # any field of a trace
    return judge(Trace(body=body, endpoint="messages", **known))


def severities(body: bytes, **known: Any) -> dict[str, set[str]]:  # noqa: ANN401  # any field of a trace
    """The rules that are broken, each with what its findings cost."""
    found: dict[str, set[str]] = {}
    for finding in judged(body, **known).findings:
        found.setdefault(finding.rule, set()).add(finding.severity)
    return found


# ---- what is right


@st.composite
def right_streams(draw: st.DrawFn) -> bytes:
    """A right stream: blocks of all kinds, pings and comments between, and one of its ends."""
    events: list[Json | bytes] = [start(usage={"input_tokens": 0, "output_tokens": 0, "cache_read_input_tokens": 2})]
    kinds = draw(st.lists(st.sampled_from(("text", "thinking", "tool_use", "web_search_tool_result")), max_size=4))
    for index, kind in enumerate(kinds):
        words = draw(st.lists(texts, max_size=3))
        events += [began(_block(kind, index), index), *(_delta(kind, word, index) for word in words)]
        if kind == "tool_use":
            events += [piece(part, index) for part in ("", '{"x"', ":", f"{index}}}")]
        events.append(ended(index))
    reason = "tool_use" if "tool_use" in kinds else draw(st.sampled_from(("end_turn", "max_tokens", "refusal")))
    gap = draw(st.sampled_from((b"", b": still here\n\n", frame(PING))))
    if draw(st.booleans()):
        return gap.join([b"", *map(frame, events[: draw(st.integers(1, len(events)))]), frame(ERROR)])
    return gap.join([b"", *map(frame, [*events, why(reason), STOP])])


def _block(kind: str, index: int) -> Json:
    blocks: dict[str, Json] = {"text": TEXT, "thinking": THINKING, "tool_use": {**TOOL, "id": f"toolu_{index}"}}
    return blocks.get(kind, {"type": kind, "tool_use_id": "srvtoolu_1", "content": []})


def _delta(kind: str, word: str, index: int) -> Json:
    if kind == "thinking":
        return more({"type": "thinking_delta", "thinking": word}, index)
    if kind == "text":
        return text(word, index)
    return PING


@given(right_streams())
def test_a_right_stream_breaks_no_rule(body: bytes) -> None:
    assert judged(body, request={"stream": True}).findings == ()


@table(
    "body",
    [
        said(),
        said(*HI, why(None)),
        said(began(), more({"type": "citations_delta", "citation": {"type": "char_location"}}), ended()),
        said(began({"type": "server_tool_use", "id": "srv_1", "name": "search", "input": {}}), piece("{}"), ended()),
        said(began({"type": "mcp_tool_use", "id": "mcp_1", "name": "get", "input": {"a": 1}}), ended()),
        said(began({"type": "compaction"}), more({"type": "compaction_delta", "content": "so far"}), ended()),
        stream(start(content=[{**TOOL, "input": {"a": 1}}]), *HI, why("tool_use"), STOP),
        called(began(TOOL), piece('{"a":'), ended(), reason="max_tokens"),
        stream(
            start(), *HI, why("stop_sequence", delta={"stop_reason": "stop_sequence", "stop_sequence": "END"}), STOP
        ),
        stream(PING, start(), *HI, why(), STOP),
    ],
)
def test_what_the_api_allows_breaks_no_rule(body: bytes) -> None:
    assert judged(body).findings == ()


@table(
    "reply",
    [
        WHOLE,
        {**WHOLE, "content": []},
        {**WHOLE, "content": [{**TOOL, "input": {"a": 1}}], "stop_reason": "tool_use"},
        {**WHOLE, "content": [{"type": "redacted_thinking", "data": "x"}]},
        {**WHOLE, "stop_reason": "stop_sequence", "stop_sequence": "END"},
    ],
)
def test_a_right_reply_breaks_no_rule(reply: Json) -> None:
    assert judged(json.dumps(reply).encode(), request={}, status=200).findings == ()


# ---- what is wrong, and what it costs

BREAKS, TOLERATED = {Severity.BREAKS.value}, {Severity.TOLERATED.value}


@table(
    ("body", "rule", "cost"),
    [
        (said(began(), frame(text(), ""), ended()), "msg-event-name", BREAKS),
        (said(began(), frame(text(), "ping"), ended()), "msg-event-name", BREAKS),
        (said(began(), frame(text(), "message"), ended()), "msg-event-name", TOLERATED),
        (said(began(), frame(without(text(), "type"), "content_block_delta"), ended()), "msg-event-name", BREAKS),
        (stream(start(), *HI, why(), frame({}, "message_stop")), "msg-event-name", BREAKS),
        (said(frame(PING, ""), *HI), "msg-event-name", TOLERATED),
        (stream(*HI, start(), why(), STOP), "msg-start-first", BREAKS),
        (said(start(), *HI), "msg-start-once", BREAKS),
        (stream({"type": "message_start"}, *HI, why(), STOP), "msg-start-full", BREAKS),
        (stream(start(content=None), *HI, why(), STOP), "msg-start-full", BREAKS),
        (stream(start(content=["x"]), *HI, why(), STOP), "msg-start-full", BREAKS),
        (stream(start(id=7), *HI, why(), STOP), "msg-start-full", BREAKS),
        (stream(start(id=None), *HI, why(), STOP), "msg-start-full", TOLERATED),
        (stream(start(role="user", stop_reason="end_turn"), *HI, why(), STOP), "msg-start-full", TOLERATED),
        (stream(start(usage=None), *HI, why(), STOP), "msg-usage-start", BREAKS),
        (stream(start(usage={"input_tokens": 5}), *HI, why(), STOP), "msg-usage-start", TOLERATED),
        (stream(start(usage={"input_tokens": -1, "output_tokens": 0}), *HI, why(), STOP), "msg-usage-start", BREAKS),
        (said(began(TEXT, 1), text("Hi", 1), ended(1)), "msg-block-index", BREAKS),
        (said(began(TEXT, "0"), text("Hi", "0"), ended("0")), "msg-block-index", BREAKS),
        (said(began(TEXT, True), text(), ended()), "msg-block-index", BREAKS),
        (said(began(), without(text(), "index"), ended()), "msg-block-index", BREAKS),
        (said(text(), ended()), "msg-block-start-first", BREAKS),
        (said(without(text(), "index")), "msg-block-start-first", BREAKS),
        (said(*HI, text()), "msg-block-start-first", BREAKS),
        (said(*HI, ended(1)), "msg-block-start-first", BREAKS),
        (said(*HI, ended()), "msg-block-start-first", TOLERATED),
        (said(began(None), text(), ended()), "msg-block-start-full", BREAKS),
        (said(began({"type": "text", "text": None}), text(), ended()), "msg-block-start-full", BREAKS),
        (said(began(without(THINKING, "signature")), ended()), "msg-block-start-full", TOLERATED),
        (called(began({**TOOL, "input": None}), piece("{}"), ended()), "msg-block-start-full", BREAKS),
        (called(began(without(TOOL, "input")), ended()), "msg-block-start-full", BREAKS),
        (called(began(without(TOOL, "input")), piece("{}"), ended()), "msg-block-start-full", TOLERATED),
        (said(began({**TEXT, "text": "H"}), text("i"), ended()), "msg-block-start-empty", BREAKS),
        (called(began({**TOOL, "input": {"a": 1}}), ended()), "msg-block-start-empty", TOLERATED),
        (called(began({**TOOL, "input": {"a": 1}}), piece('{"a":1}'), ended()), "msg-block-start-empty", BREAKS),
        (said(began(), began(TEXT, 1), ended(), ended(1)), "msg-block-sequential", BREAKS),
        (said(began(), began(TEXT, 0), ended()), "msg-block-sequential", BREAKS),
        (said(began(), text()), "msg-block-stop", BREAKS),
        (said(began({"type": "hologram"}), more({"type": "depth_delta"}), ended()), "msg-block-known", BREAKS),
        (said(began(), piece("{}"), ended()), "msg-delta-type", BREAKS),
        (said(began(), text(None), ended()), "msg-delta-type", BREAKS),
        (said(began(), more(None), ended()), "msg-delta-type", BREAKS),
        (said(began(), more({"type": 1}), ended()), "msg-delta-type", BREAKS),
        (called(began({**TOOL, "id": ""}), ended()), "msg-tool-ids", BREAKS),
        (called(began(TOOL), ended(), began(TOOL, 1), ended(1)), "msg-tool-ids", BREAKS),
        (called(began(TOOL), piece('{"a":'), ended()), "msg-tool-input-json", BREAKS),
        (called(began(TOOL), piece("[1]"), ended()), "msg-tool-input-json", TOLERATED),
        (stream(start(), *HI, STOP), "msg-delta-sent", BREAKS),
        (stream(start(), *HI, why(), why(None), STOP), "msg-delta-sent", BREAKS),
        (stream(start(), *HI, without(why(), "delta"), STOP), "msg-delta-sent", BREAKS),
        (stream(start(), why(), *HI, STOP), "msg-delta-sent", TOLERATED),
        (stream(start(), *HI, why("stop"), STOP), "msg-stop-reason", BREAKS),
        (stream(start(), *HI, why({"deep": []}), STOP), "msg-stop-reason", BREAKS),
        (called(*HI), "msg-stop-reason-tool-use", BREAKS),
        (called(began(TOOL), ended(), reason="end_turn"), "msg-stop-reason-tool-use", BREAKS),
        (called(began(TOOL), ended(), reason="stop_sequence"), "msg-stop-reason-tool-use", BREAKS),
        (called(*HI, reason="stop_sequence"), "msg-stop-sequence", TOLERATED),
        (stream(start(), *HI, why(usage=None), STOP), "msg-usage-delta", BREAKS),
        (stream(start(), *HI, why(usage={"output_tokens": 1.5}), STOP), "msg-usage-delta", BREAKS),
        (said(*HI) + stream(text()), "msg-stop-last", BREAKS),
        (said(*HI) + stream(STOP, PING), "msg-stop-last", TOLERATED),
        (said(*HI) + b"data: [DONE]\n\n", "msg-no-done", TOLERATED),
        (said(*HI) + b"event: done\ndata: [DONE]\n\n", "msg-no-done", BREAKS),
        (stream(start(), *HI, why()), "msg-no-early-eof", BREAKS),
        (stream(PING), "msg-no-early-eof", BREAKS),
        (said({"type": "hologram"}, *HI), "msg-no-unknown-events", BREAKS),
        (said(b'data: {"choices":[]}\n\n', *HI), "msg-no-unknown-events", BREAKS),
        (said(b"event: ping\ndata: {}\n\n", *HI), "msg-ping-form", BREAKS),
        (said(b"event: ping\ndata: ping\n\n", *HI), "msg-ping-form", BREAKS),
        (stream(start(), frame(ERROR, "")), "msg-error-event", BREAKS),
        (stream(start(), b"event: error\ndata: It broke.\n\n"), "msg-error-event", BREAKS),
        (stream(start(), b'data: {"error":{"message":"It broke."}}\n\n'), "msg-error-event", BREAKS),
        (stream(start(), ERROR, STOP), "msg-error-last", BREAKS),
        (stream(start(), {**ERROR, "error": {"type": "server_error", "message": "x"}}), "msg-error-type", TOLERATED),
    ],
)
def test_a_fault_is_heard_and_costs_what_clients_made_of_it(body: bytes, rule: str, cost: set[str]) -> None:
    assert severities(body)[rule] == cost


@table(
    ("reply", "rule", "cost"),
    [
        (without(WHOLE, "usage"), "msg-whole-shape", BREAKS),
        (without(WHOLE, "content"), "msg-whole-shape", BREAKS),
        ({**WHOLE, "stop_reason": None}, "msg-whole-shape", BREAKS),
        (without(WHOLE, "id", "model", "role"), "msg-whole-shape", TOLERATED),
        ({**WHOLE, "content": "Hi"}, "msg-whole-content", BREAKS),
        ({**WHOLE, "content": ["Hi"]}, "msg-whole-content", BREAKS),
        ({**WHOLE, "content": [without(THINKING, "signature")]}, "msg-whole-content", BREAKS),
        ({**WHOLE, "content": [{**TOOL, "input": "{}"}], "stop_reason": "tool_use"}, "msg-whole-content", BREAKS),
        ({**WHOLE, "content": [{"type": "hologram"}]}, "msg-block-known", BREAKS),
        ({**WHOLE, "content": [without(TOOL, "id")], "stop_reason": "tool_use"}, "msg-tool-ids", BREAKS),
        ({**WHOLE, "content": [TOOL]}, "msg-stop-reason-tool-use", BREAKS),
        ({**WHOLE, "stop_reason": "length"}, "msg-stop-reason", BREAKS),
        ({**WHOLE, "stop_reason": "stop_sequence"}, "msg-stop-sequence", TOLERATED),
    ],
)
def test_a_fault_of_a_whole_reply_is_heard(reply: Json, rule: str, cost: set[str]) -> None:
    assert severities(json.dumps(reply).encode(), request={}, status=200) == {rule: cost}


@table(
    ("body", "rules"),
    [
        (ERROR, set()),
        ({"error": {"message": "no", "type": "invalid_request_error"}}, {"msg-error-body"}),
        ({"type": "error", "error": {"type": "BadRequest", "message": "no"}}, {"msg-error-type"}),
        ({"detail": "no"}, {"msg-error-body"}),
        ("no", {"msg-error-body"}),
    ],
)
def test_the_body_of_a_failed_request_has_anthropics_shape(body: object, rules: set[str]) -> None:
    assert set(severities(json.dumps(body).encode(), status=400)) == rules


def test_an_error_in_place_of_a_whole_reply_is_judged_as_one() -> None:
    found = severities(b'{"error":{"message":"no","type":"server_error"}}', request={}, status=200)
    assert {rule for rule in found if rule.startswith("msg-")} == {"msg-error-body"}


def test_a_stream_that_was_left_is_not_blamed_for_its_end() -> None:
    assert judged(stream(start(), began(), text()), end=None).findings == ()


# ---- junk

_SCALARS: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers(-1, 2) | st.text(max_size=2)
_TYPES = st.sampled_from(
    ("message_start", "message_delta", "message_stop", "ping", "error", "hologram")
    + ("content_block_start", "content_block_delta", "content_block_stop") * 3
)
_PARTS = st.dictionaries(
    st.sampled_from(("type", "text", "thinking", "id", "name", "input", "stop_reason", "content", "usage", "message")),
    _SCALARS | st.sampled_from(("text", "tool_use", "text_delta", "input_json_delta", "end_turn")) | st.lists(_SCALARS),
)
_EVENTS = st.fixed_dictionaries(
    {},
    optional={
        "type": _TYPES | _SCALARS,
        "index": _SCALARS,
        **dict.fromkeys(("message", "delta", "content_block", "usage", "error"), _PARTS | _SCALARS),
    },
)


@given(st.lists(st.tuples(_EVENTS | _SCALARS, st.none() | _TYPES | st.just("")), max_size=8))
def test_no_events_make_the_judge_raise(events: list[tuple[object, str | None]]) -> None:
    body = b"".join(frame(value, name) for value, name in events)
    judged(body, status=200, request={"stream": True})
    judged(json.dumps([value for value, _ in events][:1]).strip("[]").encode(), status=500)


@given(_PARTS)
def test_no_reply_makes_the_judge_raise(reply: Json) -> None:
    judged(json.dumps(reply).encode(), request={}, status=200)


def test_every_rule_is_about_messages() -> None:
    assert {rule.rule.endpoints for rule in ANTHROPIC_CHECKS} == {("messages",)}
    assert all(rule.rule.id.startswith("msg-") for rule in ANTHROPIC_CHECKS)
