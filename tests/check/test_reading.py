"""Parsing of replies: streamed and buffered replies parse equally in every dialect."""

import json
from typing import Any

import pytest

from tests.table import table
from welldone.check.probes.tools import ProbeTool, write_tool
from welldone.check.reading import READERS, ParsedChoice
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
EACH_DIALECT = table("endpoint", DIALECTS)
EVENT_DIALECTS = table("endpoint", KINDS)


def _reply(endpoint: str, *, stream: bool, model: str = "ideal", **members: Any) -> ProbeReply:  # noqa: ANN401 - JSON
    dialect = DIALECTS[endpoint]
    prompt = dialect.prompt_members("What is the weather in Paris?")
    limits = {dialect.request_variants[0][1]: 100}
    path, fields = dialect.write_request({"model": model, "stream": stream, **prompt, **limits, **members})
    body = json.dumps(fields).encode()
    request = ProbeRequest(method="POST", path=path, body=body, endpoint=endpoint)
    sent = ReferenceServer(models=(model,)).answer(MockHttpRequest("POST", f"/v1{path}", {}, body.decode()))
    return _recorded_reply(request, sent.body)


def _recorded_reply(request: ProbeRequest, body: bytes) -> ProbeReply:
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
    return ProbeReply(request, recording, 1)


def _without_ids(choice: ParsedChoice) -> tuple[str, str, list[tuple[str, Any]], object]:
    calls = [(call.name, json.loads(call.arguments)) for call in choice.tool_calls]
    return choice.text, choice.reasoning, calls, choice.finish_reason


@EACH_DIALECT
@table("model", ["ideal", "ideal-thinking"])
@table("has_tool", [True, False])
def test_streamed_and_buffered_replies_parse_equally(endpoint: str, model: str, has_tool: bool) -> None:
    members: Json = {"tools": [write_tool(endpoint, WEATHER)]} if has_tool else {}
    if endpoint == "gemini":
        members["thinkingConfig"] = {"includeThoughts": True}
    streamed, buffered = (_reply(endpoint, stream=stream, model=model, **members) for stream in (True, False))
    assert _without_ids(streamed.first_choice) == _without_ids(buffered.first_choice)
    assert bool(buffered.first_choice.tool_calls) is has_tool
    assert bool(buffered.text) is not has_tool
    assert bool(buffered.first_choice.reasoning) is (model == "ideal-thinking")
    assert all(call.id for call in (*streamed.first_choice.tool_calls, *buffered.first_choice.tool_calls))


@pytest.mark.parametrize("stream", [True, False])
def test_a_custom_tool_call_is_parsed(stream: bool) -> None:
    shell = {"type": "custom", "custom": {"name": "shell"}}
    reply = _reply("chat", stream=stream, tools=[shell], tool_choice=shell)
    (call,) = READERS["chat"].choices(reply.view)[0].tool_calls
    assert (call.name, call.arguments) == ("shell", "Paris")


@EACH_DIALECT
def test_a_truncated_answer_has_the_length_reason_of_its_dialect(endpoint: str) -> None:
    dialect = DIALECTS[endpoint]
    prompt = dialect.prompt_members("Count to 500")
    for stream in (True, False):
        reply = _reply(endpoint, stream=stream, **{**prompt, dialect.request_variants[0][1]: 16})
        assert reply.finish_reason == dialect.length_reason


@EVENT_DIALECTS
def test_usage_has_input_and_output_tokens(endpoint: str) -> None:
    for stream in (True, False):
        reply = _reply(endpoint, stream=stream)
        assert reply.usage_count("input_tokens")
        assert reply.usage_count("output_tokens")


@EACH_DIALECT
def test_each_delta_has_its_frame_and_time(endpoint: str) -> None:
    reply = _reply(endpoint, stream=True)
    deltas = [delta for delta in reply.deltas if delta.is_generated]
    assert "".join(delta.text for delta in deltas) == reply.text
    assert reply.delta_times == [0.5] * len(deltas)
    assert frame_at_offset(reply, 0) == deltas[0].frame
    assert frame_at_offset(reply, len(reply.text)) is None
    assert _reply(endpoint, stream=False).deltas == []


@EVENT_DIALECTS
@table("body", [b"", b"data: 7\n\n", b"data: {}\n\n", b"data: [DONE]\n\n", b"[]", b'{"error":7}'])
def test_an_empty_reply_has_no_text(endpoint: str, body: bytes) -> None:
    reply = _recorded_reply(ProbeRequest(method="POST", path="/x", body=b'{"stream":true}', endpoint=endpoint), body)
    assert (reply.text, reply.first_choice.tool_calls, reply.usage) == ("", (), None)


@EVENT_DIALECTS
@table("odd", ODD, ids=repr)
def test_values_of_the_wrong_type_are_ignored(endpoint: str, odd: object) -> None:
    events: list[Json] = [{"type": kind, **dict.fromkeys(MEMBERS, odd)} for kind in KINDS[endpoint]]
    nested = [{"type": kind, **{name: dict.fromkeys(MEMBERS, odd) for name in MEMBERS}} for kind in KINDS[endpoint]]
    stream = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in (*events, *nested)).encode()
    buffered = json.dumps({"object": "response", "output": odd, "content": odd, "usage": odd, "status": odd}).encode()
    deep = json.dumps(
        {"object": "response", "output": [{"type": "message", "content": odd}], "content": [odd]}
    ).encode()
    for body, wants_stream in ((stream, b"true"), (buffered, b"false"), (deep, b"false")):
        request = ProbeRequest(method="POST", path="/x", body=b'{"stream":' + wants_stream + b"}", endpoint=endpoint)
        reply = _recorded_reply(request, body)
        reader = READERS[endpoint]
        for read in (reader.choices, reader.deltas, reader.usage):
            read(reply.view)
        assert isinstance(reply.text, str)


@table("form", ["sse", "json"])
def test_a_stream_of_gemini_is_parsed_in_both_forms(form: str) -> None:
    reply = _reply("gemini", stream=True, alt=form, candidateCount=2)
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert len({choice.text for choice in reply.choices}) == 1
    assert reply.is_stream
    assert reply.usage_count("promptTokenCount")
    assert {delta.index for delta in reply.deltas} == {0, 1}


@table("odd", ODD, ids=repr)
def test_values_of_the_wrong_type_are_ignored_in_a_reply_of_gemini(odd: object) -> None:
    parts = [{"text": odd, "thought": odd, "functionCall": odd}, {"functionCall": {"name": odd, "args": odd}}, odd]
    content = {"role": odd, "parts": parts}
    whole = {"candidates": [{"content": content, "finishReason": odd, "index": odd}, odd], "usageMetadata": odd}
    elements = (whole, {"candidates": odd}, {"candidates": [{"content": odd}]})
    for body in (*(json.dumps(one).encode() for one in elements), json.dumps(elements).encode()):
        reply = _recorded_reply(ProbeRequest(method="POST", path="/x", body=b"{}", endpoint="gemini"), body)
        assert isinstance(reply.text, str)
        assert reply.usage_count("totalTokenCount") is None
        assert isinstance(reply.deltas, list)
