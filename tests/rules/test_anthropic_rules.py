"""Rules of /v1/messages: correct streams, violations with their severity, and arbitrary input."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.rules.streams import texts
from tests.table import table
from welldone.core.catalog import RULES, Severity
from welldone.rules.checks.anthropic import CHECKS
from welldone.rules.judge import LintReport, judge
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


# Streams


def frame(value: object, name: str | None = None) -> bytes:
    """Encode an event; its name is its type by default."""
    called = value.get("type") if name is None and isinstance(value, dict) else name
    head = f"event: {called}\n" if called else ""
    return f"{head}data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def stream(*events: Json | bytes) -> bytes:
    return b"".join(event if isinstance(event, bytes) else frame(event) for event in events)


def message_start(**members: object) -> Json:
    return {"type": "message_start", "message": {**MESSAGE, **members}}


def block_start(block: object = TEXT, index: object = 0) -> Json:
    return {"type": "content_block_start", "index": index, "content_block": block}


def block_delta(delta: object, index: object = 0) -> Json:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def text_delta(value: object = "Hi", index: object = 0) -> Json:
    return block_delta({"type": "text_delta", "text": value}, index)


def input_delta(value: object, index: object = 0) -> Json:
    return block_delta({"type": "input_json_delta", "partial_json": value}, index)


def block_stop(index: object = 0) -> Json:
    return {"type": "content_block_stop", "index": index}


def message_delta(reason: object = "end_turn", **members: object) -> Json:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 3}, **members}


def without(value: Json, *keys: str) -> Json:
    return {key: member for key, member in value.items() if key not in keys}


def text_message(*events: Json | bytes) -> bytes:
    """Return a message with these block events."""
    return stream(message_start(), *events, message_delta(), STOP)


def tool_message(*events: Json | bytes, reason: str = "tool_use") -> bytes:
    return stream(message_start(), *events, message_delta(reason), STOP)


HI = (block_start(), text_delta(), block_stop())


def judge_messages(body: bytes, **known: Any) -> LintReport:  # noqa: ANN401 - any field of a trace
    return judge(Trace(body=body, endpoint="messages", **known))


def severities(body: bytes, **known: Any) -> dict[str, set[str]]:  # noqa: ANN401 - any field of a trace
    """Return the severities of the findings by rule."""
    found: dict[str, set[str]] = {}
    for finding in judge_messages(body, **known).findings:
        found.setdefault(finding.rule, set()).add(finding.severity)
    return found


# Correct streams and replies


@st.composite
def right_streams(draw: st.DrawFn) -> bytes:
    """A correct stream: blocks of all types, pings or comments in between, and an end."""
    events: list[Json | bytes] = [
        message_start(usage={"input_tokens": 0, "output_tokens": 0, "cache_read_input_tokens": 2})
    ]
    kinds = draw(st.lists(st.sampled_from(("text", "thinking", "tool_use", "web_search_tool_result")), max_size=4))
    for index, kind in enumerate(kinds):
        words = draw(st.lists(texts, max_size=3))
        events += [block_start(_block(kind, index), index), *(_delta(kind, word, index) for word in words)]
        if kind == "tool_use":
            events += [input_delta(part, index) for part in ("", '{"x"', ":", f"{index}}}")]
        events.append(block_stop(index))
    reason = "tool_use" if "tool_use" in kinds else draw(st.sampled_from(("end_turn", "max_tokens", "refusal")))
    gap = draw(st.sampled_from((b"", b": still here\n\n", frame(PING))))
    if draw(st.booleans()):
        return gap.join([b"", *map(frame, events[: draw(st.integers(1, len(events)))]), frame(ERROR)])
    return gap.join([b"", *map(frame, [*events, message_delta(reason), STOP])])


def _block(kind: str, index: int) -> Json:
    blocks: dict[str, Json] = {"text": TEXT, "thinking": THINKING, "tool_use": {**TOOL, "id": f"toolu_{index}"}}
    return blocks.get(kind, {"type": kind, "tool_use_id": "srvtoolu_1", "content": []})


def _delta(kind: str, word: str, index: int) -> Json:
    if kind == "thinking":
        return block_delta({"type": "thinking_delta", "thinking": word}, index)
    if kind == "text":
        return text_delta(word, index)
    return PING


@given(right_streams())
def test_a_correct_stream_violates_no_rule(body: bytes) -> None:
    assert judge_messages(body, request={"stream": True}).findings == ()


@table(
    "body",
    [
        text_message(),
        text_message(*HI, message_delta(None)),
        text_message(
            block_start(), block_delta({"type": "citations_delta", "citation": {"type": "char_location"}}), block_stop()
        ),
        text_message(
            block_start({"type": "server_tool_use", "id": "srv_1", "name": "search", "input": {}}),
            input_delta("{}"),
            block_stop(),
        ),
        text_message(
            block_start({"type": "mcp_tool_use", "id": "mcp_1", "name": "get", "input": {"a": 1}}), block_stop()
        ),
        text_message(
            block_start({"type": "compaction"}),
            block_delta({"type": "compaction_delta", "content": "so far"}),
            block_stop(),
        ),
        stream(message_start(content=[{**TOOL, "input": {"a": 1}}]), *HI, message_delta("tool_use"), STOP),
        tool_message(block_start(TOOL), input_delta('{"a":'), block_stop(), reason="max_tokens"),
        stream(
            message_start(),
            *HI,
            message_delta("stop_sequence", delta={"stop_reason": "stop_sequence", "stop_sequence": "END"}),
            STOP,
        ),
        stream(PING, message_start(), *HI, message_delta(), STOP),
    ],
)
def test_streams_that_the_api_allows_violate_no_rule(body: bytes) -> None:
    assert judge_messages(body).findings == ()


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
def test_a_correct_reply_violates_no_rule(reply: Json) -> None:
    assert judge_messages(json.dumps(reply).encode(), request={}, status=200).findings == ()


# Violations and their severity

BREAKS, TOLERATED = {Severity.BREAKS.value}, {Severity.TOLERATED.value}


@table(
    ("body", "rule", "cost"),
    [
        (text_message(block_start(), frame(text_delta(), ""), block_stop()), "msg-event-name", BREAKS),
        (text_message(block_start(), frame(text_delta(), "ping"), block_stop()), "msg-event-name", BREAKS),
        (text_message(block_start(), frame(text_delta(), "message"), block_stop()), "msg-event-name", TOLERATED),
        (
            text_message(block_start(), frame(without(text_delta(), "type"), "content_block_delta"), block_stop()),
            "msg-event-name",
            BREAKS,
        ),
        (stream(message_start(), *HI, message_delta(), frame({}, "message_stop")), "msg-event-name", BREAKS),
        (text_message(frame(PING, ""), *HI), "msg-event-name", TOLERATED),
        (stream(*HI, message_start(), message_delta(), STOP), "msg-start-first", BREAKS),
        (text_message(message_start(), *HI), "msg-start-once", BREAKS),
        (stream({"type": "message_start"}, *HI, message_delta(), STOP), "msg-start-full", BREAKS),
        (stream(message_start(content=None), *HI, message_delta(), STOP), "msg-start-full", BREAKS),
        (stream(message_start(content=["x"]), *HI, message_delta(), STOP), "msg-start-full", BREAKS),
        (stream(message_start(id=7), *HI, message_delta(), STOP), "msg-start-full", BREAKS),
        (stream(message_start(id=None), *HI, message_delta(), STOP), "msg-start-full", TOLERATED),
        (
            stream(message_start(role="user", stop_reason="end_turn"), *HI, message_delta(), STOP),
            "msg-start-full",
            TOLERATED,
        ),
        (stream(message_start(usage=None), *HI, message_delta(), STOP), "msg-usage-start", BREAKS),
        (stream(message_start(usage={"input_tokens": 5}), *HI, message_delta(), STOP), "msg-usage-start", TOLERATED),
        (
            stream(message_start(usage={"input_tokens": -1, "output_tokens": 0}), *HI, message_delta(), STOP),
            "msg-usage-start",
            BREAKS,
        ),
        (text_message(block_start(TEXT, 1), text_delta("Hi", 1), block_stop(1)), "msg-block-index", BREAKS),
        (text_message(block_start(TEXT, "0"), text_delta("Hi", "0"), block_stop("0")), "msg-block-index", BREAKS),
        (text_message(block_start(TEXT, True), text_delta(), block_stop()), "msg-block-index", BREAKS),
        (text_message(block_start(), without(text_delta(), "index"), block_stop()), "msg-block-index", BREAKS),
        (text_message(text_delta(), block_stop()), "msg-block-start-first", BREAKS),
        (text_message(without(text_delta(), "index")), "msg-block-start-first", BREAKS),
        (text_message(*HI, text_delta()), "msg-block-start-first", BREAKS),
        (text_message(*HI, block_stop(1)), "msg-block-start-first", BREAKS),
        (text_message(*HI, block_stop()), "msg-block-start-first", TOLERATED),
        (text_message(block_start(None), text_delta(), block_stop()), "msg-block-start-full", BREAKS),
        (
            text_message(block_start({"type": "text", "text": None}), text_delta(), block_stop()),
            "msg-block-start-full",
            BREAKS,
        ),
        (text_message(block_start(without(THINKING, "signature")), block_stop()), "msg-block-start-full", TOLERATED),
        (
            tool_message(block_start({**TOOL, "input": None}), input_delta("{}"), block_stop()),
            "msg-block-start-full",
            BREAKS,
        ),
        (tool_message(block_start(without(TOOL, "input")), block_stop()), "msg-block-start-full", BREAKS),
        (
            tool_message(block_start(without(TOOL, "input")), input_delta("{}"), block_stop()),
            "msg-block-start-full",
            TOLERATED,
        ),
        (
            text_message(block_start({**TEXT, "text": "H"}), text_delta("i"), block_stop()),
            "msg-block-start-empty",
            BREAKS,
        ),
        (tool_message(block_start({**TOOL, "input": {"a": 1}}), block_stop()), "msg-block-start-empty", TOLERATED),
        (
            tool_message(block_start({**TOOL, "input": {"a": 1}}), input_delta('{"a":1}'), block_stop()),
            "msg-block-start-empty",
            BREAKS,
        ),
        (
            text_message(block_start(), block_start(TEXT, 1), block_stop(), block_stop(1)),
            "msg-block-sequential",
            BREAKS,
        ),
        (text_message(block_start(), block_start(TEXT, 0), block_stop()), "msg-block-sequential", BREAKS),
        (text_message(block_start(), text_delta()), "msg-block-stop", BREAKS),
        (
            text_message(block_start({"type": "hologram"}), block_delta({"type": "depth_delta"}), block_stop()),
            "msg-block-known",
            BREAKS,
        ),
        (text_message(block_start(), input_delta("{}"), block_stop()), "msg-delta-type", BREAKS),
        (text_message(block_start(), text_delta(None), block_stop()), "msg-delta-type", BREAKS),
        (text_message(block_start(), block_delta(None), block_stop()), "msg-delta-type", BREAKS),
        (text_message(block_start(), block_delta({"type": 1}), block_stop()), "msg-delta-type", BREAKS),
        (tool_message(block_start({**TOOL, "id": ""}), block_stop()), "msg-tool-ids", BREAKS),
        (tool_message(block_start(TOOL), block_stop(), block_start(TOOL, 1), block_stop(1)), "msg-tool-ids", BREAKS),
        (tool_message(block_start(TOOL), input_delta('{"a":'), block_stop()), "msg-tool-input-json", BREAKS),
        (tool_message(block_start(TOOL), input_delta("[1]"), block_stop()), "msg-tool-input-json", TOLERATED),
        (stream(message_start(), *HI, STOP), "msg-delta-sent", BREAKS),
        (stream(message_start(), *HI, message_delta(), message_delta(None), STOP), "msg-delta-sent", BREAKS),
        (stream(message_start(), *HI, without(message_delta(), "delta"), STOP), "msg-delta-sent", BREAKS),
        (stream(message_start(), message_delta(), *HI, STOP), "msg-delta-sent", TOLERATED),
        (stream(message_start(), *HI, message_delta("stop"), STOP), "msg-stop-reason", BREAKS),
        (stream(message_start(), *HI, message_delta({"deep": []}), STOP), "msg-stop-reason", BREAKS),
        (tool_message(*HI), "msg-stop-reason-tool-use", BREAKS),
        (tool_message(block_start(TOOL), block_stop(), reason="end_turn"), "msg-stop-reason-tool-use", BREAKS),
        (tool_message(block_start(TOOL), block_stop(), reason="stop_sequence"), "msg-stop-reason-tool-use", BREAKS),
        (tool_message(*HI, reason="stop_sequence"), "msg-stop-sequence", TOLERATED),
        (stream(message_start(), *HI, message_delta(usage=None), STOP), "msg-usage-delta", BREAKS),
        (stream(message_start(), *HI, message_delta(usage={"output_tokens": 1.5}), STOP), "msg-usage-delta", BREAKS),
        (text_message(*HI) + stream(text_delta()), "msg-stop-last", BREAKS),
        (text_message(*HI) + stream(STOP, PING), "msg-stop-last", TOLERATED),
        (text_message(*HI) + b"data: [DONE]\n\n", "msg-no-done", TOLERATED),
        (text_message(*HI) + b"event: done\ndata: [DONE]\n\n", "msg-no-done", BREAKS),
        (stream(message_start(), *HI, message_delta()), "msg-no-early-eof", BREAKS),
        (stream(PING), "msg-no-early-eof", BREAKS),
        (text_message({"type": "hologram"}, *HI), "msg-no-unknown-events", BREAKS),
        (text_message(b'data: {"choices":[]}\n\n', *HI), "msg-no-unknown-events", BREAKS),
        (text_message(b"event: ping\ndata: {}\n\n", *HI), "msg-ping-form", BREAKS),
        (text_message(b"event: ping\ndata: ping\n\n", *HI), "msg-ping-form", BREAKS),
        (stream(message_start(), frame(ERROR, "")), "msg-error-event", BREAKS),
        (stream(message_start(), b"event: error\ndata: It broke.\n\n"), "msg-error-event", BREAKS),
        (stream(message_start(), b'data: {"error":{"message":"It broke."}}\n\n'), "msg-error-event", BREAKS),
        (stream(message_start(), ERROR, STOP), "msg-error-last", BREAKS),
        (
            stream(message_start(), {**ERROR, "error": {"type": "server_error", "message": "x"}}),
            "msg-error-type",
            TOLERATED,
        ),
    ],
)
def test_a_violation_is_found_with_its_severity(body: bytes, rule: str, cost: set[str]) -> None:
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
def test_a_violation_in_a_non_streamed_reply_is_found(reply: Json, rule: str, cost: set[str]) -> None:
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
def test_the_body_of_a_failed_request_has_anthropics_format(body: object, rules: set[str]) -> None:
    assert set(severities(json.dumps(body).encode(), status=400)) == rules


def test_an_error_in_place_of_a_reply_is_judged_as_an_error() -> None:
    found = severities(b'{"error":{"message":"no","type":"server_error"}}', request={}, status=200)
    assert {rule for rule in found if rule.startswith("msg-")} == {"msg-error-body"}


def test_an_abandoned_stream_has_no_findings_about_its_end() -> None:
    assert judge_messages(stream(message_start(), block_start(), text_delta()), end=None).findings == ()


# Arbitrary input

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
def test_arbitrary_events_do_not_raise(events: list[tuple[object, str | None]]) -> None:
    body = b"".join(frame(value, name) for value, name in events)
    judge_messages(body, status=200, request={"stream": True})
    judge_messages(json.dumps([value for value, _ in events][:1]).strip("[]").encode(), status=500)


@given(_PARTS)
def test_arbitrary_replies_do_not_raise(reply: Json) -> None:
    judge_messages(json.dumps(reply).encode(), request={}, status=200)


def test_every_rule_is_about_messages() -> None:
    assert {RULES[check.rule].endpoints for check in CHECKS} == {("messages",)}
    assert all(check.rule.startswith("msg-") for check in CHECKS)
