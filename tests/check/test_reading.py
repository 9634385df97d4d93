"""What a reply says, as the probes read it: the same in a stream and in one piece, in every dialect."""

import json
from typing import Any

import pytest

from tests.table import table
from welldone.check.probes.tools import TOOL_SHAPES, ProbeTool
from welldone.check.reading import READ_CHOICES, READ_DELTAS, READ_USAGE, ParsedChoice
from welldone.check.reply import ProbeReply, ProbeRequest, frame_at_offset
from welldone.check.settings import DIALECTS
from welldone.http.recording_client import RecordedResponse
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.server import MockHttpRequest

Json = dict[str, Any]
WEATHER = ProbeTool("get_weather", "Get the weather", {"type": "object", "properties": {"city": {"type": "string"}}})
ODD: tuple[object, ...] = (None, 7, "x", [], {}, [[]], {"a": []}, [7, None, "x"])
KINDS: dict[str, tuple[str, ...]] = {
    "responses": (
        "response.output_text.delta",
        "response.output_item.done",
        "response.completed",
        "response.function_call_arguments.delta",
    ),
    "messages": ("message_start", "content_block_start", "content_block_delta", "message_delta"),
}
MEMBERS = ("delta", "item", "response", "message", "content_block", "index", "usage")
EACH = table("endpoint", DIALECTS)
OTHERS = table("endpoint", KINDS)


def _reply(endpoint: str, *, stream: bool, model: str = "ideal", **members: Any) -> ProbeReply:  # noqa: ANN401 - JSON
    dialect = DIALECTS[endpoint]
    talk = dialect.prompt_members("What is the weather in Paris?")
    limits = {dialect.request_variants[0][1]: 100}
    body = json.dumps({"model": model, "stream": stream, **talk, **limits, **members}).encode()
    asked = ProbeRequest(method="POST", path=dialect.path, body=body, endpoint=endpoint)
    given = ReferenceServer(models=(model,)).answer(MockHttpRequest("POST", f"/v1{dialect.path}", {}, body.decode()))
    return _heard(asked, given.body)


def _heard(asked: ProbeRequest, body: bytes) -> ProbeReply:
    recording = RecordedResponse(
        status=200,
        headers=(),
        body=body,
        pieces=None,
        is_complete=True,
        head_s=0.0,
        arrivals=((0.5, len(body)),),
        ended_s=0.5,
        error=None,
    )
    return ProbeReply(asked, recording, 1)


def _without_ids(said: ParsedChoice) -> tuple[str, str, list[tuple[str, Any]], object]:
    calls = [(call.name, json.loads(call.arguments)) for call in said.tool_calls]
    return said.text, said.reasoning, calls, said.finish_reason


@EACH
@table("model", ["ideal", "ideal-thinking"])
@table("has_tool", [True, False])
def test_a_stream_is_read_as_the_whole_reply_is(endpoint: str, model: str, has_tool: bool) -> None:
    members = {"tools": [TOOL_SHAPES[endpoint].tool(WEATHER)]} if has_tool else {}
    streamed, whole = (_reply(endpoint, stream=stream, model=model, **members) for stream in (True, False))
    assert _without_ids(streamed.first_choice) == _without_ids(whole.first_choice)
    assert bool(whole.first_choice.tool_calls) is has_tool
    assert bool(whole.text) is not has_tool
    assert bool(whole.first_choice.reasoning) is (model == "ideal-thinking")
    assert all(call.id for call in (*streamed.first_choice.tool_calls, *whole.first_choice.tool_calls))


@pytest.mark.parametrize("stream", [True, False])
def test_a_custom_call_is_read(stream: bool) -> None:
    shell = {"type": "custom", "custom": {"name": "shell"}}
    reply = _reply("chat", stream=stream, tools=[shell], tool_choice=shell)
    (call,) = READ_CHOICES["chat"](reply.view)[0].tool_calls
    assert (call.name, call.arguments) == ("shell", "Paris")


@EACH
def test_an_answer_that_was_cut_says_so_in_the_word_of_its_dialect(endpoint: str) -> None:
    dialect = DIALECTS[endpoint]
    talk = dialect.prompt_members("Count to 500")
    for stream in (True, False):
        reply = _reply(endpoint, stream=stream, **{**talk, dialect.request_variants[0][1]: 16})
        assert reply.finish_reason == dialect.length_reason


@OTHERS
def test_usage_is_that_of_the_whole_request(endpoint: str) -> None:
    for stream in (True, False):
        reply = _reply(endpoint, stream=stream)
        assert reply.usage_count("input_tokens")
        assert reply.usage_count("output_tokens")


@EACH
def test_each_piece_has_its_frame_and_its_time(endpoint: str) -> None:
    reply = _reply(endpoint, stream=True)
    pieces = [piece for piece in reply.deltas if piece.is_generated]
    assert "".join(piece.text for piece in pieces) == reply.text
    assert reply.delta_times == [0.5] * len(pieces)
    assert frame_at_offset(reply, 0) == pieces[0].frame
    assert frame_at_offset(reply, len(reply.text)) is None
    assert _reply(endpoint, stream=False).deltas == []


@OTHERS
@table("body", [b"", b"data: 7\n\n", b"data: {}\n\n", b"data: [DONE]\n\n", b"[]", b'{"error":7}'])
def test_what_says_nothing_has_no_text(endpoint: str, body: bytes) -> None:
    reply = _heard(ProbeRequest(method="POST", path="/x", body=b'{"stream":true}', endpoint=endpoint), body)
    assert (reply.text, reply.first_choice.tool_calls, reply.usage) == ("", (), None)


@OTHERS
@table("odd", ODD, ids=repr)
def test_nothing_is_too_odd_to_be_read(endpoint: str, odd: object) -> None:
    events: list[Json] = [{"type": kind, **dict.fromkeys(MEMBERS, odd)} for kind in KINDS[endpoint]]
    nested = [{"type": kind, **{name: dict.fromkeys(MEMBERS, odd) for name in MEMBERS}} for kind in KINDS[endpoint]]
    stream = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in (*events, *nested)).encode()
    whole = json.dumps({"object": "response", "output": odd, "content": odd, "usage": odd, "status": odd}).encode()
    deep = json.dumps(
        {"object": "response", "output": [{"type": "message", "content": odd}], "content": [odd]}
    ).encode()
    for body, wants_stream in ((stream, b"true"), (whole, b"false"), (deep, b"false")):
        asked = ProbeRequest(method="POST", path="/x", body=b'{"stream":' + wants_stream + b"}", endpoint=endpoint)
        reply = _heard(asked, body)
        for read in (READ_CHOICES, READ_DELTAS, READ_USAGE):
            read[endpoint](reply.view)
        assert isinstance(reply.text, str)
