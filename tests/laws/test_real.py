"""Streams of OpenAI's and Anthropic's servers are correct and pass the repairers unchanged."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.laws import real_messages, real_responses
from tests.laws.real_responses import frames
from tests.table import table
from welldone.core.envelope import Envelope
from welldone.core.events import Failure
from welldone.core.request_facts import RepairOptions
from welldone.dialects.messages.repair import MessagesRepairer
from welldone.dialects.responses.repair import ResponsesRepairer
from welldone.dialects.same_dialect import PassthroughRepairer
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

Json = dict[str, Any]


def _read(body: bytes) -> list[Json]:
    return [json.loads(frame.partition("data: ")[2]) for frame in body.decode().split("\n\n") if "data: " in frame]


def _repaired_events(repairer: PassthroughRepairer, events: list[Json]) -> list[Json]:
    return _read(repairer.feed(frames(events)) + repairer.close())


@table("name", real_responses.STREAMS)
def test_a_stream_of_openai_has_no_findings(name: str) -> None:
    body = frames(real_responses.STREAMS[name])
    assert judge(Trace(body=body, endpoint="responses")).findings == ()


@table("name", real_responses.STREAMS)
def test_a_stream_of_openai_passes_unchanged(name: str) -> None:
    events = real_responses.STREAMS[name]
    repairer = ResponsesRepairer(fallback=Envelope("resp_ours", 1, "ours"))
    assert _repaired_events(repairer, events) == events
    assert repairer.repair_log.entries() == []


@table("name", real_messages.STREAMS)
def test_a_stream_of_anthropic_has_no_findings(name: str) -> None:
    events, request = real_messages.STREAMS[name], real_messages.REQUESTS.get(name)
    assert judge(Trace(body=frames(events), endpoint="messages", request=request)).findings == ()


@table("name", real_messages.STREAMS)
def test_a_stream_of_anthropic_passes_unchanged(name: str) -> None:
    events = real_messages.STREAMS[name]
    repairer = MessagesRepairer(fallback=Envelope("msg_ours", 1, "ours"))
    assert _repaired_events(repairer, events) == events
    assert [entry.rule for entry in repairer.repair_log.entries()] == real_messages.RECORDED_RULES.get(name, [])


def test_the_done_event_of_arguments_may_lack_the_name() -> None:
    events = [
        {key: value for key, value in event.items() if key != "name"}
        for event in real_responses.STREAMS["a function after hidden reasoning"]
    ]
    assert judge(Trace(body=frames(events), endpoint="responses")).findings == ()


@pytest.mark.parametrize("first", [0, 1])
def test_calls_in_message_start_may_count_as_blocks_or_not(first: int) -> None:
    events = [
        real_messages.start([real_messages.CALLED]),
        *real_messages.text(first, "a"),
        *real_messages.end("tool_use"),
    ]
    assert judge(Trace(body=frames(events), endpoint="messages")).findings == ()
    repairer = MessagesRepairer(fallback=Envelope("msg_ours", 1, "ours"))
    repaired = _repaired_events(repairer, events)
    assert [event["content_block"] for event in repaired if event["type"] == "content_block_start"] == [
        real_messages.CALLED | {"input": {}},
        {"type": "text", "text": ""},
    ]
    assert repairer.repair_log.entries() == []


VARIANTS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "carriage returns": ("sse-lf-only", lambda body: body.replace(b"\n", b"\r\n")),
    "a byte order mark": ("sse-no-bom", lambda body: b"\xef\xbb\xbf" + body),
    "no space": ("sse-data-space", lambda body: body.replace(b"data: ", b"data:")),
    "a repeated prefix": ("sse-data-space", lambda body: body.replace(b"data: ", b"data: data: ")),
    "no field name": ("sse-data-space", lambda body: body.replace(b"data: ", b"")),
    "ids": ("sse-no-id-field", lambda body: body.replace(b"data: ", b"id: 7\ndata: ")),
    "retry fields": ("sse-no-retry-frame", lambda body: b"retry: 7\n\n" + body),
    "several lines": ("sse-json-on-one-line", lambda body: body.replace(b"data: {", b"data: {\ndata: ")),
    "line separators": ("enc-escape-line-breaks", lambda body: body.replace(b"He", "\u2028".encode())),
    "no last line": ("end-last-event-terminated", lambda body: body.removesuffix(b"\n")),
}
PLAIN: dict[str, tuple[list[Json], Callable[[], PassthroughRepairer]]] = {
    "responses": (
        real_responses.STREAMS["reasoning with summaries"],
        lambda: ResponsesRepairer(fallback=Envelope("resp_ours", 1, "ours")),
    ),
    "messages": (
        real_messages.STREAMS["text with a ping"],
        lambda: MessagesRepairer(fallback=Envelope("msg_ours", 1, "ours")),
    ),
}


@table("kind", VARIANTS)
@table("endpoint", PLAIN)
def test_a_variant_of_the_framing_is_repaired_and_recorded(endpoint: str, kind: str) -> None:
    (rule, damage), (events, make) = VARIANTS[kind], PLAIN[endpoint]
    body, repairer = damage(frames(events)), make()
    repaired = repairer.feed(body) + repairer.close()
    assert _read(repaired) == _read(
        frames(events).replace(b"He", b"\\u2028") if "separators" in kind else frames(events)
    )
    assert [entry.rule for entry in repairer.repair_log.entries()] == [rule]
    assert rule in judge(Trace(body=body, endpoint=endpoint)).counts


@pytest.mark.parametrize("endpoint", PLAIN)
def test_a_stream_that_is_truncated_in_its_last_event_is_complete(endpoint: str) -> None:
    events, make = PLAIN[endpoint]
    repairer = make()
    body = frames(events)
    repaired = _read(repairer.feed(body[: body.rindex(b"data: ") + 12]) + repairer.close())
    assert repairer.failure is None
    assert [event["type"] for event in repaired] == [event["type"] for event in events]


@pytest.mark.parametrize("endpoint", PLAIN)
def test_errors_of_the_server_are_mapped_and_generated_errors_are_not(endpoint: str) -> None:
    events, make = PLAIN[endpoint]
    first_frame = frames(events[:1])
    reported, cut = make(), make()
    for repairer in (reported, cut):
        repairer.configure(0, RepairOptions(map_failure=lambda failure: Failure(failure.message.upper())))
    assert (
        b"BOOM" in reported.feed(first_frame + b'data: {"error":{"message":"boom","type":"x"}}\n\n') + reported.close()
    )
    assert b"the server's stream ended" in cut.feed(first_frame) + cut.close()
