"""Pass-through repair gives the same bytes and the same log for text deltas that are not parsed."""

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.table import table
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.request_facts import RepairOptions
from welldone.core.template import EventTemplate, learn_event, split_around_text
from welldone.dialects.registry import passthrough_repairer_for

RECORDED = sorted((Path(__file__).parent.parent / "recorded_dialects").glob("*/*_stream.body"))
ENVELOPES = {Endpoint.MESSAGES: Envelope("msg_1", 1, "m"), Endpoint.RESPONSES: Envelope("resp_1", 1, "m")}
TEXTS = ["a", " the", "\n", '"', "\\", "é", "漢", "\u2028", "\ufffd", "", "aa"]


def event(kind: str, *, spaces: bool = False, **members: object) -> bytes:
    separators = (", ", ": ") if spaces else (",", ":")
    data = json.dumps({"type": kind, **members}, ensure_ascii=False, separators=separators)
    return f"event: {kind}\ndata: {data}\n\n".encode()


def repaired(endpoint: Endpoint, pieces: list[bytes], strict: frozenset[str] = frozenset()) -> tuple[object, ...]:
    repairer = passthrough_repairer_for(endpoint, fallback=ENVELOPES[endpoint])
    repairer.configure(0, RepairOptions(strict=strict))
    sent = b"".join([repairer.feed(piece) for piece in pieces]) + repairer.close()
    return sent, repairer.result, repairer.final_object


def check_same(endpoint: Endpoint, frames: list[bytes], strict: frozenset[str] = frozenset()) -> None:
    """Compare frames that come one by one with frames that come together, which are all parsed."""
    assert repaired(endpoint, frames, strict) == repaired(endpoint, [b"".join(frames)], strict)


@table("path", RECORDED, ids=[f"{path.parent.name}/{path.stem}" for path in RECORDED])
def test_a_recorded_stream_gives_the_same_bytes(path: Path) -> None:
    endpoint = Endpoint.MESSAGES if "messages" in path.name else Endpoint.RESPONSES
    frames = [frame + b"\n\n" for frame in path.read_bytes().split(b"\n\n") if frame]
    check_same(endpoint, frames)


def message_delta(text: str, index: int = 0, kind: str = "text", **more: object) -> bytes:
    return event("content_block_delta", index=index, delta={"type": f"{kind}_delta", kind: text, **more})


MESSAGE_START = event("message_start", message={"id": "msg_2", "type": "message", "role": "assistant", "content": []})
MESSAGE_EVENTS = [
    b": ping\n\n",
    event("ping"),
    event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    event("content_block_start", index=0, content_block={"type": "thinking", "thinking": "", "signature": ""}),
    event("content_block_start", index=1, content_block={"type": "text", "text": ""}),
    event("content_block_start", index=1, content_block={"type": "tool_use", "id": "t", "name": "f", "input": {}}),
    message_delta('{"a":1}', 1, "partial_json").replace(b"partial_json_delta", b"input_json_delta"),
    event("content_block_stop", index=0),
    event("content_block_stop", index=1),
    message_delta("x", 1),
    message_delta("x", kind="thinking"),
    message_delta("x", text_too="x"),
    event("content_block_delta", index=0, delta={"type": "text_delta", "text": "x"}, odd="x"),
    event("content_block_delta", index=0, delta={"type": "text_delta", "text": "y"}, spaces=True),
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    b'"delta":{"type":"text_delta","text":"\\ud83d"}}\n\n',
    event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 3}),
    event("message_stop"),
    event("error", error={"type": "overloaded_error", "message": "no"}),
    b"event: content_block_delta\ndata: {nonsense\n\n",
]
MESSAGE_TEXTS = st.sampled_from(TEXTS).map(message_delta)
STRICT = st.sampled_from([frozenset[str](), frozenset({"all"})])


@given(st.lists(st.one_of(MESSAGE_TEXTS, MESSAGE_TEXTS, st.sampled_from(MESSAGE_EVENTS)), max_size=24), STRICT)
def test_any_messages_stream_gives_the_same_bytes(events: list[bytes], strict: frozenset[str]) -> None:
    check_same(Endpoint.MESSAGES, [MESSAGE_START, MESSAGE_EVENTS[2], *events], strict)


def numbered(events: list[dict[str, Any]], *, is_number_last: bool) -> list[bytes]:
    """Encode events with their sequence numbers, except those that have one."""
    frames = []
    for number, one in enumerate(events):
        kind, members = one["type"], {key: value for key, value in one.items() if key != "type"}
        sequence = {"sequence_number": number}
        frames.append(event(kind, **(members | sequence if is_number_last else sequence | members)))
    return frames


PART = {"item_id": "m1", "output_index": 0, "content_index": 0}


def text_delta(text: str, **more: object) -> dict[str, Any]:
    return {"type": "response.output_text.delta", **PART, "delta": text, "logprobs": [], **more}


ITEM = {"id": "m1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
RESPONSE_START: list[dict[str, Any]] = [
    {"type": "response.created", "response": {"id": "resp_2", "object": "response", "output": []}},
    {"type": "response.output_item.added", "output_index": 0, "item": ITEM},
    {"type": "response.content_part.added", **PART, "part": {"type": "output_text", "text": "", "annotations": []}},
]
RESPONSE_EVENTS: list[dict[str, Any]] = [
    {"type": "keepalive"},
    text_delta("x", sequence_number=99),
    text_delta("x", logprobs=[{"token": "x", "logprob": -1.0, "top_logprobs": []}]),
    text_delta("x", content_index=1),
    text_delta("x", obfuscation="abc"),
    text_delta("x", item_id="m2"),
    {"type": "response.refusal.delta", **PART, "delta": "no"},
    {"type": "response.output_text.done", **PART, "text": "whole", "logprobs": []},
    {"type": "response.content_part.added", **PART, "content_index": 1, "part": {"type": "output_text", "text": ""}},
    {"type": "response.output_item.done", "output_index": 0, "item": {**ITEM, "status": "completed"}},
    {"type": "response.completed", "response": {"id": "resp_2", "status": "completed", "output": []}},
    {"type": "response.odd", "sequence_number": 5},
]
RESPONSE_TEXTS = st.sampled_from(TEXTS).map(text_delta)


@given(
    st.lists(st.one_of(RESPONSE_TEXTS, RESPONSE_TEXTS, st.sampled_from(RESPONSE_EVENTS)), max_size=24),
    st.booleans(),
    STRICT,
)
def test_any_responses_stream_gives_the_same_bytes(
    events: list[dict[str, Any]], is_number_last: bool, strict: frozenset[str]
) -> None:
    check_same(Endpoint.RESPONSES, numbered([*RESPONSE_START, *events], is_number_last=is_number_last), strict)


def test_text_of_a_known_form_is_not_parsed() -> None:
    repairer = passthrough_repairer_for(Endpoint.MESSAGES, fallback=ENVELOPES[Endpoint.MESSAGES])
    for frame in (MESSAGE_START, MESSAGE_EVENTS[2], message_delta("a")):
        repairer.feed(frame)
    repairer.feed_frame = None  # type: ignore[method-assign, assignment]
    assert repairer.feed(message_delta('b\n"é')) == message_delta('b\n"é')


def test_new_parts_are_learnt_a_bounded_number_of_times() -> None:
    frames = [MESSAGE_START]
    for index in range(20):
        frames.append(event("content_block_start", index=index, content_block={"type": "text", "text": ""}))
        frames += [message_delta("a", index), message_delta("b", index), event("content_block_stop", index=index)]
    check_same(Endpoint.MESSAGES, frames)


OTHER_FORMS = {
    "text of another member": (Endpoint.MESSAGES, event("content_block_delta", delta={"type": "odd", "text": "x"})),
    "another dialect": (Endpoint.MESSAGES, numbered([text_delta("x")], is_number_last=True)[0]),
    "another number": (Endpoint.RESPONSES, numbered([{"type": "odd"}, text_delta("x")], is_number_last=True)[1]),
    "no number": (Endpoint.RESPONSES, event("response.output_text.delta", delta="x")),
    "two numbers": (
        Endpoint.RESPONSES,
        numbered([text_delta("x", more={"sequence_number": 0})], is_number_last=True)[0],
    ),
    "a text that cannot be copied": (Endpoint.MESSAGES, message_delta("\u2028")),
    "a long event": (Endpoint.MESSAGES, message_delta("x" * 5000)),
    "no JSON": (Endpoint.RESPONSES, b'data: {"delta":"x"\n\n'),
}


def learn(frame: bytes, endpoint: Endpoint) -> EventTemplate | None:
    repairer = passthrough_repairer_for(endpoint, fallback=ENVELOPES[endpoint])
    return learn_event(split_around_text(frame, repairer.text_of), 0 if endpoint is Endpoint.RESPONSES else None)


@table(("endpoint", "frame"), OTHER_FORMS.values(), ids=OTHER_FORMS.keys())
def test_other_events_give_no_template(endpoint: Endpoint, frame: bytes) -> None:
    assert learn(frame, endpoint) is None


KNOWN_FORM = {
    "the same form": (numbered([text_delta("y")], is_number_last=False)[0], "y"),
    "escapes": (numbered([text_delta('"\n')], is_number_last=False)[0], '"\n'),
    "no text": (numbered([text_delta("")], is_number_last=False)[0], None),
    "another end": (numbered([text_delta("y", logprobs=None)], is_number_last=False)[0], None),
    "another item": (numbered([text_delta("y", item_id="m2")], is_number_last=False)[0], None),
    "a character to check": (numbered([text_delta("\ufffd")], is_number_last=False)[0], None),
}


@table(("frame", "text"), KNOWN_FORM.values(), ids=KNOWN_FORM.keys())
def test_a_template_reads_events_of_its_form(frame: bytes, text: str | None) -> None:
    template = learn(numbered([text_delta("x")], is_number_last=False)[0], Endpoint.RESPONSES)
    assert template is not None
    assert template.read(frame, 0) == text


def test_a_template_is_used_again_after_another_event() -> None:
    start = event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    texts = [message_delta(text) for text in ("a", "b", "c", "d")]
    check_same(Endpoint.MESSAGES, [MESSAGE_START, start, *texts[:2], event("ping"), *texts[2:]])
