"""Rules of /v1/responses beyond the rule pages: rare violations, non-streamed replies, and arbitrary input."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rules.pages import PAGES, read_page
from tests.table import table
from welldone.rules.judge import LintReport, LintVerdict, judge
from welldone.rules.trace import Trace
from welldone.rules.view.responses import RESPONSES_EVENT_TYPES

Event = dict[str, Any]


def _right(rule: str, position: int = 0) -> list[Event]:
    """Return the events of a right block of a page."""
    body = [block for block in read_page(PAGES / f"{rule}.md") if block.is_correct][position].trace.body.decode()
    return [json.loads(line.removeprefix("data: ")) for line in body.splitlines() if line.startswith("data: ")]


TEXT = _right("resp-deltas")
CALL = _right("resp-final-output", 1)
THOUGHTS = _right("resp-reasoning-parts")
SUMMARY = _right("resp-reasoning-parts", 1)
FAILED = _right("resp-error")
CUT = _right("resp-terminal-once", 1)
WHOLE = TEXT[-1]["response"]
KEEPALIVE: Event = {"type": "keepalive"}


def _frames(events: list[Event]) -> bytes:
    """Encode events; those of the specification get sequence numbers."""
    frames, number = list[str](), 0
    for event in events:
        is_numbered = event.get("type") in RESPONSES_EVENT_TYPES - {"keepalive"}
        body = {**event, "sequence_number": number} if is_numbered else event
        number += is_numbered
        frames.append(f"event: {event.get('type', '')}\ndata: {json.dumps(body, separators=(',', ':'))}\n\n")
    return "".join(frames).encode()


def _judged(body: bytes, **known: Any) -> LintReport:  # noqa: ANN401 - any field of a trace
    return judge(Trace(body=body, endpoint="responses", **known))


def _rules(events: list[Event], **known: Any) -> set[str]:  # noqa: ANN401 - any field of a trace
    return set(_judged(_frames(events), **known).counts)


def _at(events: list[Event], type_: str) -> int:
    return next(position for position, event in enumerate(events) if event["type"] == f"response.{type_}")


def _without(events: list[Event], *types: str) -> list[Event]:
    return [event for event in events if event["type"].removeprefix("response.") not in types]


def _changed(events: list[Event], type_: str, change: Callable[[Event], object]) -> list[Event]:
    """Change the first event of a type."""
    events = copy.deepcopy(events)
    change(events[_at(events, type_)])
    return events


def _set(**members: object) -> Callable[[Event], object]:
    return lambda event: event.update(members)


def _set_item(**members: object) -> Callable[[Event], object]:
    return lambda event: event["item"].update(members)


def _set_response(**members: object) -> Callable[[Event], object]:
    return lambda event: event["response"].update(members)


def _with(events: list[Event], position: int, *more: Event) -> list[Event]:
    return [*events[:position], *more, *events[position:]]


def _moved(event: Event) -> Event:
    """Turn an event into one of a second item."""
    text = json.dumps(event).replace('"output_index": 0', '"output_index": 1').replace("_1", "_2")
    return json.loads(text.replace('"call_a"', '"call_b"'))  # type: ignore[no-any-return]  # JSON may be anything


def _two(first: list[Event], second: list[Event]) -> list[Event]:
    """Return a stream with the items of both."""
    output = [first[-1]["response"]["output"][0], _moved(second[-1])["response"]["output"][0]]
    events = _changed(first, "completed", _set_response(output=output))
    return [*events[:-1], *map(_moved, second[2:-1]), events[-1]]


HOSTED = {"type": "response.web_search_call.searching", "item_id": "ws_1", "output_index": 0}
SHELL = {"type": "response.shell_call_command.delta", "output_index": 0, "command_index": 0, "delta": "ls"}


def _hosted(*events: Event, status: str = "completed") -> list[Event]:
    """Return a stream with the item of a server-side tool."""
    item = {"id": "ws_1", "type": "web_search_call", "status": "in_progress"}
    done = {**item, "status": status}
    added = {"type": "response.output_item.added", "output_index": 0, "item": item}
    end = {"type": "response.output_item.done", "output_index": 0, "item": done}
    last = {**TEXT[-1], "response": {**WHOLE, "output": [done]}}
    return [*TEXT[:2], added, *events, end, last]


CUSTOM = [
    event
    if "response" in event
    else json.loads(
        json.dumps(event)
        .replace("function_call_arguments", "custom_tool_call_input")
        .replace('"function_call"', '"custom_tool_call"')
        .replace('"arguments"', '"input"')
    )
    for event in CALL
]
CUSTOM[-1] = {**CALL[-1], "response": {**CALL[-1]["response"], "output": [CUSTOM[-2]["item"]]}}


@table(
    "events",
    [
        TEXT,
        CALL,
        CUSTOM,
        THOUGHTS,
        SUMMARY,
        CUT,
        FAILED,
        _two(TEXT, CALL),
        _two(THOUGHTS, TEXT),
        _two(CALL, CALL),
        _hosted(HOSTED),
        _hosted(SHELL),
        _hosted(status="failed"),
        _with(TEXT, 2, {"type": "response.audio.delta", "delta": "AA=="}),
        _with(TEXT, 5, {"type": "response.output_text.annotation.added", "annotation_index": 0, "annotation": {}}),
        _with(TEXT, 2, KEEPALIVE, TEXT[1]),
        [TEXT[0], *FAILED[-1:]],
        _changed(
            TEXT, "output_item.done", lambda event: event["item"]["content"].append({"type": "refusal", "refusal": ""})
        ),
        [*_without(TEXT, "output_text.done", "content_part.done", "output_item.done", "completed"), *FAILED[-1:]],
        [*_without(THOUGHTS, "reasoning_text.done", "content_part.done", "completed"), *FAILED[-1:]],
        _changed(_changed(SUMMARY, "output_item.added", lambda event: event["item"].pop("status")), "created", _set()),
    ],
)
def test_a_correct_stream_has_no_findings(events: list[Event]) -> None:
    about = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    events = [{**about, **event} if event["type"].endswith("annotation.added") else event for event in events]
    assert _judged(_frames(events)).findings == ()


LATE = TEXT[_at(TEXT, "output_text.delta")]


@table(
    ("events", "rules"),
    [
        (_with(TEXT, 2, TEXT[0]), {"resp-created-first"}),
        (_without(TEXT, "created", "in_progress"), {"resp-created-first"}),
        (_changed(TEXT, "created", lambda event: event["response"].pop("tools")), {"resp-object-schema"}),
        (_changed(TEXT, "created", _set(response=[])), {"resp-created-full"}),
        (_changed(TEXT, "created", _set_response(created_at=True)), {"resp-created-full"}),
        (_changed(TEXT, "created", _set_response(output=None)), {"resp-created-full"}),
        (_changed(TEXT, "created", _set_response(object="chat.completion")), {"resp-created-full"}),
        (_changed(TEXT, "created", _set_response(id="")), {"resp-created-full"}),
        (_changed(TEXT, "completed", _set_response(status=None)), {"resp-created-full"}),
        (_changed(TEXT, "output_item.added", _set(output_index="0")), {"resp-output-index"}),
        (_changed(TEXT, "output_item.added", _set(output_index=-1)), {"resp-output-index"}),
        (_changed(TEXT, "output_text.delta", _set(output_index=True)), {"resp-output-index"}),
        (_changed(_two(CALL, TEXT), "output_text.delta", _set(output_index=0)), {"resp-output-index"}),
        (_changed(SUMMARY, "reasoning_summary_text.done", _set(summary_index=1)), {"resp-content-index"}),
        (
            _changed(TEXT, "output_text.delta", _set(item_id="x", output_index=None)),
            {"resp-item-id-stable", "resp-output-index"},
        ),
        (_changed(TEXT, "output_item.added", _set_item(id=None)), {"resp-item-id-stable"}),
        (_changed(_hosted(HOSTED), "output_item.done", _set_item(id="")), {"resp-item-id-stable"}),
        (
            [json.loads(json.dumps(event).replace("_2", "_1")) for event in _two(TEXT, TEXT)],
            {"resp-item-id-stable"},
        ),
        (_with(_without(TEXT, "output_item.added"), 4, TEXT[2]), {"resp-item-added-first"}),
        (_with(_without(TEXT, "content_part.added"), 4, TEXT[3]), {"resp-part-added-first"}),
        (
            _changed(TEXT, "content_part.added", _set(part={"type": "refusal", "refusal": ""})),
            {"resp-part-added-first"},
        ),
        (_changed(TEXT, "content_part.added", _set(part=None)), {"resp-part-added-first"}),
        (
            _changed(THOUGHTS, "content_part.added", _set(part={"type": "output_text", "text": ""})),
            {"resp-part-added-first", "resp-object-schema"},
        ),
        (_without(TEXT, "output_text.delta", "output_text.done"), {"resp-deltas", "resp-done-events"}),
        (_with(TEXT, 8, LATE), {"resp-done-events"}),
        (_with(TEXT, 7, LATE), {"resp-done-events"}),
        (_with(TEXT, 9, LATE), {"resp-done-events"}),
        (_with(TEXT, 9, TEXT[8]), {"resp-done-events"}),
        (_changed(TEXT, "output_text.done", _set(text=None)), {"resp-done-events"}),
        (_changed(TEXT, "content_part.done", _set(part={})), {"resp-done-events"}),
        (_changed(TEXT, "output_item.done", _set_item(content=[])), {"resp-done-events"}),
        (_changed(CALL, "output_item.done", _set_item(arguments="")), {"resp-done-events"}),
        (_without(CALL, "output_item.done"), {"resp-done-events"}),
        (_changed(THOUGHTS, "reasoning_text.done", _set(text="")), {"resp-done-events"}),
        ([*TEXT, KEEPALIVE], {"resp-terminal-once"}),
        (TEXT[:-1], {"resp-terminal-once"}),
        (_changed(FAILED, "failed", _set_response(status="completed")), {"resp-terminal-once"}),
        (_changed(TEXT, "completed", _set_response(output=[{}])), {"resp-final-output"}),
        (_changed(CUT, "incomplete", _set_response(output=None)), {"resp-created-full", "resp-final-output"}),
        (
            _changed(CALL, "completed", lambda event: event["response"]["output"][0].update(name="x")),
            {"resp-final-output"},
        ),
        (_changed(TEXT, "completed", _set_response(usage=[])), {"resp-usage"}),
        (_changed(TEXT, "completed", _set_response(usage=None)), {"resp-usage"}),
        (_changed(CALL, "output_item.added", _set_item(arguments=None)), {"resp-function-ids"}),
        (_changed(CALL, "output_item.added", _set_item(id=7)), {"resp-function-ids"}),
        (_changed(CALL, "output_item.done", _set_item(name="put")), {"resp-function-ids", "resp-final-output"}),
        (_changed(CALL, "function_call_arguments.done", _set(arguments=None)), {"resp-args-done"}),
        (_without(CALL, "function_call_arguments.delta", "function_call_arguments.done"), {"resp-args-done"}),
        (_changed(TEXT, "output_item.added", _set_item(status="completed")), {"resp-item-status"}),
        (_changed(THOUGHTS, "output_item.done", lambda event: event["item"].pop("status")), {"resp-item-status"}),
        (_hosted(status="in_progress"), {"resp-item-status"}),
        (_with(TEXT, 2, {"type": 7}), {"resp-no-unknown-events", "resp-sequence-number"}),
        (_with(TEXT, 2, {"choices": []}), {"resp-no-unknown-events"}),
        (_with(TEXT, 2, {}), {"resp-no-unknown-events"}),
        (_with(FAILED, 2, {"type": "server_error", "message": "boom", "code": 500}), {"resp-error"}),
        (_with(FAILED, 2, {"type": "error", "code": None, "message": None, "param": None}), {"resp-error"}),
        (_changed(FAILED, "failed", _set_response(error={"message": "boom"})), {"resp-error"}),
        (_changed(TEXT, "output_text.done", _set(logprobs=None)), {"resp-logprobs-array"}),
        (_changed(CALL, "function_call_arguments.done", _set(arguments="{}")), {"resp-delta-equals-done"}),
        (
            _changed(CALL, "output_item.done", _set_item(arguments="{}")),
            {"resp-delta-equals-done", "resp-final-output"},
        ),
        ([{"type": "error", "code": None, "message": "boom", "param": None}], {"resp-created-first", "resp-error"}),
    ],
)
def test_rare_violations(events: list[Event], rules: set[str]) -> None:
    assert _rules(events) == rules


def test_an_event_without_a_type_is_one_violation() -> None:
    events = _changed(TEXT, "output_text.delta", lambda event: event.update(was=event["type"]))
    body = _frames(events).replace(
        b'{"type":"response.output_text.delta","sequence_number":4,', b'{"sequence_number":4,'
    )
    assert set(_judged(body).counts) == {"resp-no-unknown-events"}


@table(
    ("more", "rules"),
    [
        (b"data: [DONE]\n\n", {"resp-terminal-once"}),
        (b": keep-alive\n\n", set()),
        (b"event: ping\n\n", {"sse-no-empty-data", "resp-keepalive"}),
        (b"data: {\n\n", {"enc-strict-json", "resp-terminal-once"}),
        (b"id: 7\n\n", {"sse-no-id-field"}),
    ],
)
def test_events_after_the_end(more: bytes, rules: set[str]) -> None:
    assert set(_judged(_frames(TEXT) + more).counts) == rules


def test_the_sentinel_of_chat_is_tolerated() -> None:
    report = _judged(_frames(TEXT) + b"data: [DONE]\n\n")
    assert [finding.severity for finding in report.findings] == ["tolerated"]
    assert report.verdict is LintVerdict.WARN


def test_an_abandoned_stream_has_no_findings_about_its_end() -> None:
    assert _rules(TEXT[:-1], end=None) == set()


@pytest.mark.parametrize(
    ("error", "rules"),
    [
        (b'data: {"error":{"message":"boom"}}\n\n', {"resp-error"}),
        (b'event: error\ndata: {"message":"boom"}\n\n', {"resp-error"}),
        (b"error: boom\n\n", {"resp-error", "err-not-error-field"}),
    ],
)
def test_errors_in_other_formats_are_found(error: bytes, rules: set[str]) -> None:
    assert set(_judged(_frames(TEXT[:2]) + error).counts) == rules
    first = {*rules, "err-status-before-stream"}
    assert set(_judged(error, status=200).counts) == first


def _reply(**changes: object) -> bytes:
    return json.dumps({**WHOLE, **changes}).encode()


BARE = {"id": "fc_1", "type": "function_call", "call_id": "", "name": "get", "arguments": {}}


@table(
    ("body", "known", "rules"),
    [
        (_reply(), {}, set()),
        (_reply(), {"request": {"stream": True}}, {"err-empty-stream"}),
        (_reply() + b"data: [DONE]\n\n", {"request": {}}, {"ns-no-sse-tail"}),
        (_reply(usage=None), {}, {"resp-usage"}),
        (_reply(usage={"prompt_tokens": 5}), {}, {"resp-usage"}),
        (_reply(id=None), {}, {"resp-created-full"}),
        (_reply(output=[BARE]), {}, {"resp-function-ids", "resp-item-status"}),
        (_reply(output=[{"type": "reasoning", "id": "rs_1", "summary": []}]), {}, set()),
        (
            _reply(status="failed", error={"code": "server_error", "message": "boom"}, usage=None),
            {"status": 200},
            set(),
        ),
        (b'{"error":{"message":"boom","type":"t","param":null,"code":null}}', {"status": 200}, {"ns-error-status"}),
        (b'{"error":{"message":"boom"}}', {"status": 400}, {"err-body-shape"}),
        (b'{"type":"response.created"}', {}, {"sse-data-space", "resp-created-full", "resp-event-name"}),
        (b"", {}, {"err-empty-stream"}),
        (b"[DONE]", {}, {"err-empty-stream", "sse-data-space"}),
    ],
)
def test_other_kinds_of_reply(body: bytes, known: dict[str, Any], rules: set[str]) -> None:
    assert (
        set(_judged(body, **known).counts) - {"resp-sequence-number", "resp-terminal-once", "end-last-event-terminated"}
        == rules
    )


def test_a_split_character_is_found() -> None:
    events = _changed(TEXT, "output_text.delta", _set(delta="Hel\ufffd"))
    assert _rules(events) == {"enc-no-replacement-char", "resp-delta-equals-done"}
    assert _rules(_changed(TEXT, "created", _set_response(instructions="\ufffd"))) == set()


def test_an_event_of_a_known_type_may_have_a_message() -> None:
    assert _rules(_changed(TEXT, "created", _set(message="Welcome.", code=1))) == set()
    assert _rules(_changed(TEXT, "created", _set(message="Welcome.", error={"message": "no"}))) > {"resp-error"}
    assert "resp-error" in _rules([*TEXT, {"type": "server_error", "message": "no"}])


@table("status", ["queued", "in_progress", "cancelled", "failed"])
def test_an_unfinished_response_needs_no_usage(status: str) -> None:
    body = json.dumps(WHOLE | {"status": status, "usage": None, "output": []}).encode()
    assert _judged(body).findings == ()


@table(
    "error",
    [
        {"error": {"message": "no", "code": None}},
        {"error": {"message": "no", "type": "server_error", "code": 500}},
        {"error": {"message": 1, "type": "server_error"}},
        {"message": "no", "code": None},
        {"message": "no", "code": 500, "param": None},
    ],
)
def test_an_incomplete_error_event_is_found(error: Event) -> None:
    assert _rules([*FAILED[:-1], {"type": "error", **error}, FAILED[-1]]) == {"resp-error"}


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3), lambda some: st.lists(some, max_size=2)
)
texts = st.sampled_from(["", "a", "b"]) | junk
ids = st.sampled_from(["msg_1", "fc_1", ""]) | junk
indices = st.integers(-1, 3) | junk
parts = st.fixed_dictionaries({"type": st.sampled_from(["output_text", "refusal", "x"]), "text": texts}) | junk
items = junk | st.fixed_dictionaries(
    {"type": st.sampled_from(["message", "function_call", "reasoning"]) | junk, "id": ids},
    optional={"content": st.lists(parts, max_size=2) | junk, "summary": st.lists(parts, max_size=2), "status": texts}
    | dict.fromkeys(("call_id", "name", "arguments"), texts),
)
odd_events = st.fixed_dictionaries(
    {"type": st.sampled_from(sorted(RESPONSES_EVENT_TYPES)) | junk},
    optional={
        "item_id": ids,
        "item": items,
        "part": parts,
        "response": st.fixed_dictionaries({"output": st.lists(items)}),
    }
    | dict.fromkeys(("output_index", "content_index", "summary_index", "sequence_number"), indices)
    | dict.fromkeys(("delta", "text", "arguments", "logprobs", "error", "message"), texts),
)


@given(st.lists(odd_events, max_size=12))
def test_arbitrary_events_do_not_raise(events: list[Event]) -> None:
    body = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    judge(Trace(body=body, endpoint="responses"))
    judge(Trace(body=b"[" + body[6:], endpoint="responses", request={}))


def test_many_items_and_parts_are_judged() -> None:
    many = [{**event, "output_index": position} for position in range(500) for event in TEXT[2:8]]
    assert "resp-item-id-stable" in _rules([*TEXT[:2], *many, TEXT[-1]])
