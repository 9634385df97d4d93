"""Google's dialect: streams as events and as an array, and replies."""

import json
from typing import Any

import pytest
from hypothesis import given

from tests.laws.strategies import legal_events
from tests.table import table
from welldone.core.collect import collect
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import (
    ChoiceStart,
    Event,
    Failure,
    FieldLocation,
    Finish,
    Json,
    KeepAlive,
    Logprobs,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    UnknownFields,
    Usage,
)
from welldone.core.request_facts import RequestFacts
from welldone.dialects.gemini.objects import error_object, failure_object, signature_fields, usage_metadata
from welldone.dialects.gemini.writer import GeminiArrayFormat, GeminiFormat
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

HEAD = Envelope("r1", 1, "m")
MEMBERS = {"modelVersion": "m", "responseId": "r1"}
START = ChoiceStart(0)
SIGNED = {"extra_content": {"google": {"thought_signature": "c2ln"}}}


def write(events: list[Event], dialect: GeminiFormat | None = None) -> bytes:
    writer = (dialect or GeminiFormat(includes_thoughts=True)).make_writer(HEAD, lambda: None)
    return b"".join([*(writer.send(event) for event in events), writer.end()])


def elements(events: list[Event], dialect: GeminiFormat | None = None) -> list[dict[str, Any]]:
    frames = write(events, dialect).decode().split("\n\n")
    assert frames.pop() == ""
    return [json.loads(frame.strip().removeprefix("data: ")) for frame in frames if frame.strip()]  # or keep-alives


def array(events: list[Event]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(write(events, GeminiArrayFormat(includes_thoughts=True)))
    return found


def candidate(part: dict[str, Any], index: int = 0, **members: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {"content": {"parts": [part], "role": "model"}, **members, "index": index}


def element(*candidates: dict[str, Any], **members: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
    return {"candidates": list(candidates), **members, **MEMBERS}


def parts(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [part for one in found for choice in one["candidates"] for part in choice["content"]["parts"]]


def test_the_last_element_has_finish_reason_and_usage() -> None:
    events: list[Event] = [START, Reasoning(0, "hm"), Text(0, "a"), Refusal(0, "no"), Finish(0, "length")]
    usage = {"promptTokenCount": 3, "candidatesTokenCount": 2, "totalTokenCount": 5}
    expected = [
        element(candidate({"text": "hm", "thought": True})),
        element(candidate({"text": "a"})),
        element(candidate({"text": "no"})),
        element(candidate({"text": ""}, finishReason="MAX_TOKENS"), usageMetadata=usage),
    ]
    assert elements([*events, Usage(3, 2, 5, {})]) == array([*events, Usage(3, 2, 5, {})]) == expected


def test_there_is_no_sentinel_and_a_keep_alive_is_an_empty_line() -> None:
    written = write([START, KeepAlive(), Text(0, "a\u2028b"), Finish(0, "stop")])
    assert written.startswith(b"\ndata: {")
    assert b"[DONE]" not in written
    assert b"a\\u2028b" in written


def test_thoughts_are_hidden_unless_they_are_requested() -> None:
    events: list[Event] = [START, Reasoning(0, "hm"), Finish(0, "stop")]
    assert parts(elements(events, GeminiFormat())) == [{"text": ""}]
    whole = json.loads(GeminiFormat().encode_reply(HEAD, collect(events)))
    assert parts([whole]) == [{"text": ""}]


def test_a_call_is_one_part_with_its_signature() -> None:
    events: list[Event] = [
        START,
        ToolCall(0, 0, "c1", "f", SIGNED),
        ToolArguments(0, 0, '{"a"'),
        ToolArguments(0, 0, ": 1}"),
        ToolCall(0, 1, "c2", "g"),
        Finish(0, "tool_calls"),
    ]
    expected = [
        {"functionCall": {"id": "c1", "name": "f", "args": {"a": 1}}, "thoughtSignature": "c2ln"},
        {"functionCall": {"id": "c2", "name": "g", "args": {}}},
    ]
    found = elements(events)
    assert parts(found)[:-1] == expected
    assert found[-1]["candidates"][0]["finishReason"] == "STOP"
    assert parts([json.loads(GeminiFormat().encode_reply(HEAD, collect(events)))]) == expected


@table(
    ("text", "reason", "finish", "message"),
    [
        ("[1]", "tool_calls", "MALFORMED_FUNCTION_CALL", "The arguments of the call of f are not a JSON object."),
        ('{"a":', "length", "MAX_TOKENS", None),
        ('{"a":', "content_filter", "SAFETY", None),
    ],
)
def test_a_call_without_an_object_is_left_out(text: str, reason: str, finish: str, message: str | None) -> None:
    events: list[Event] = [START, ToolCall(0, 0, "c1", "f"), ToolArguments(0, 0, text), Finish(0, reason)]
    for found in (elements(events)[-1], json.loads(GeminiFormat().encode_reply(HEAD, collect(events)))):
        (last,) = found["candidates"]
        assert (last["finishReason"], last.get("finishMessage")) == (finish, message)
        assert last["content"]["parts"] == [{"text": ""}]


def test_the_text_of_a_custom_call_is_its_input() -> None:
    events: list[Event] = [
        START,
        ToolCall(0, 0, "c1", "f", is_custom=True),
        ToolArguments(0, 0, "x", is_custom=True),
        ToolCall(0, 1, "c2", "g", is_custom=True),
        ToolArguments(0, 1, "y", is_custom=True),
    ]
    for reason, count in (("tool_calls", 2), ("length", 1)):
        ended = [*events, Finish(0, reason)]
        calls = [part for part in parts(elements(ended)) if "functionCall" in part]
        assert [call["functionCall"]["args"] for call in calls] == [{"input": "x"}, {"input": "y"}][:count]
        whole = json.loads(GeminiFormat().encode_reply(HEAD, collect(ended)))
        assert parts([whole]) == calls


@table(("signature", "expected"), [("c2ln", SIGNED), ("", {}), (None, {}), (5, {})])
def test_a_signature_becomes_a_field_of_chat(signature: object, expected: dict[str, Any]) -> None:
    assert signature_fields(signature) == expected


def test_candidates_are_numbered() -> None:
    events: list[Event] = [START, ChoiceStart(1), Text(1, "b"), Text(0, "a"), Finish(0, "stop"), Finish(1, "length")]
    ends = [candidate({"text": ""}, finishReason="STOP"), candidate({"text": ""}, 1, finishReason="MAX_TOKENS")]
    assert elements(events) == [element(candidate({"text": "b"}, 1)), element(candidate({"text": "a"})), element(*ends)]
    assert GeminiFormat().restrict(RequestFacts(choice_count=2), is_stream=True).choice_count == 2


def test_log_probabilities_come_with_their_text() -> None:
    def entry(token: str) -> dict[str, Any]:
        return {"token": token, "logprob": -0.5, "top_logprobs": [{"token": token, "logprob": -0.5}]}

    def result(*tokens: str) -> dict[str, Any]:
        chosen = [{"token": token, "logProbability": -0.5} for token in tokens]
        return {"topCandidates": [{"candidates": [one]} for one in chosen], "chosenCandidates": chosen}

    events: list[Event] = [START, Logprobs(0, {"content": None}), Logprobs(0, {"content": [entry("a")]})]
    events += [Logprobs(0, {"content": [entry("b")]}), Text(0, "ab"), Logprobs(0, {"content": [entry("c")]})]
    events += [Finish(0, "stop")]
    first, last = (one["candidates"][0]["logprobsResult"] for one in elements(events))
    assert (first, last) == (result("a", "b"), result("c"))
    whole = json.loads(GeminiFormat().encode_reply(HEAD, collect(events)))
    assert whole["candidates"][0]["logprobsResult"] == result("a", "b", "c")


def test_text_is_accepted_while_a_choice_is_open_and_nothing_is_pending() -> None:
    writer = GeminiFormat().make_writer(HEAD, lambda: None)
    assert not writer.accepts_text(0, Text)
    writer.send(START)
    assert writer.accepts_text(0, Text)
    writer.send(Logprobs(0, {"content": [{"token": "a"}]}))
    assert not writer.accepts_text(0, Text)


TIMINGS: Json = {"timings": {"prompt_n": 3, "cache_n": 4, "predicted_n": 2}}


@table(
    ("early", "counted", "expected", "last"),
    [
        ([], None, None, None),
        ([UnknownFields(0, FieldLocation.CHUNK, TIMINGS)], None, (7, 7), (7, 2, 9)),
        ([UnknownFields(0, FieldLocation.CHUNK, {"timings": {"prompt_n": 3}})], None, None, None),
        ([], Usage(7, 1, 8, {}), (7, 7), (7, 1, 8)),
        ([], Usage(0, 0, 0, {}), None, (0, 0, 0)),
    ],
)
def test_each_element_has_the_prompt_tokens_if_they_are_known(
    early: list[Event], counted: Usage | None, expected: tuple[int, ...] | None, last: tuple[int, ...] | None
) -> None:
    writer = GeminiFormat().make_writer(HEAD, lambda: counted)
    call: list[Event] = [ToolCall(0, 0, "c", "f"), ToolArguments(0, 0, "{}")]
    events: list[Event] = [START, *early, Text(0, "a"), Text(0, "b"), *call, Finish(0, "tool_calls")]
    written = b"".join([*(writer.send(event) for event in events), writer.end()])
    *others, end = (json.loads(frame.removeprefix("data: ")) for frame in written.decode().split("\n\n")[:-1])
    metadata = None
    if expected is not None:
        metadata = dict(zip(("promptTokenCount", "totalTokenCount"), expected, strict=True))
    assert [element.get("usageMetadata") for element in others] == [metadata] * 3
    names = ("promptTokenCount", "candidatesTokenCount", "totalTokenCount")
    found = end.get("usageMetadata", {})
    assert [found.get(name) for name in names] == list(last or [None] * 3)
    assert judge(Trace(body=written, endpoint="gemini")).findings == ()


def test_unknown_fields_are_left_out() -> None:
    assert len(elements([START, UnknownFields(0, FieldLocation.DELTA, {"a": 1}), Finish(0, "stop")])) == 1


def test_reasoning_and_cached_tokens_are_counted_separately() -> None:
    details = {"completion_tokens_details": {"reasoning_tokens": 2}, "prompt_tokens_details": {"cached_tokens": 4}}
    assert usage_metadata(Usage(5, 3, 8, details)) == {
        "promptTokenCount": 5,
        "candidatesTokenCount": 1,
        "thoughtsTokenCount": 2,
        "cachedContentTokenCount": 4,
        "totalTokenCount": 8,
    }


def test_reasoning_tokens_that_only_the_total_counts_are_thoughts() -> None:
    details = {"completion_tokens_details": {"reasoning_tokens": 4}}
    assert usage_metadata(Usage(5, 3, 12, details)) == {
        "promptTokenCount": 5,
        "candidatesTokenCount": 3,
        "thoughtsTokenCount": 4,
        "totalTokenCount": 12,
    }


@table("signature", ["", "not base64", "YQ=", "+_8=", 5])
def test_a_signature_that_clients_cannot_decode_is_left_out(signature: object) -> None:
    fields = {"extra_content": {"google": {"thought_signature": signature}}}
    events: list[Event] = [START, ToolCall(0, 0, "c1", "f", fields), ToolArguments(0, 0, "{}"), Finish(0, "tool_calls")]
    assert parts(elements(events))[0].get("thoughtSignature", "") == ""


def test_a_failure_is_the_last_element() -> None:
    events: list[Event] = [START, Text(0, "a"), Failure("gone", "rate_limit_error", "contents", "queue_full")]
    error = elements(events)[-1]["error"]
    assert (error["code"], error["message"], error["status"]) == (429, "gone", "RESOURCE_EXHAUSTED")
    assert [detail["@type"].rpartition(".")[2] for detail in error["details"]] == ["BadRequest", "ErrorInfo"]
    assert array(events)[-1] == {"error": error}
    assert list(failure_object(Failure("x"))) == ["error"]


@table(
    ("failure", "code"),
    [
        (Failure("x"), 500),
        (Failure("x", code="model_loading"), 503),
        (Failure("x", "invalid_request_error"), 400),
        (Failure("x", "timeout"), 504),
    ],
)
def test_a_failure_has_googles_code(failure: Failure, code: int) -> None:
    assert failure_object(failure)["error"]["code"] == code


@table(("code", "status"), [(404, "NOT_FOUND"), (413, "INVALID_ARGUMENT"), (507, "INTERNAL")])
def test_an_error_has_googles_status(code: int, status: str) -> None:
    assert error_object(code, "x") == {"error": {"code": code, "message": "x", "status": status}}


@pytest.mark.parametrize("dialect", [GeminiFormat, GeminiArrayFormat])
def test_an_error_without_a_writer_ends_the_stream(dialect: type[GeminiFormat]) -> None:
    written = dialect().final_error_bytes(Failure("x"))
    found = json.loads(written if dialect is GeminiArrayFormat else b"[" + written.removeprefix(b"data: ") + b"]")
    assert [one["error"]["message"] for one in found] == ["x"]


def test_an_array_without_elements_is_empty() -> None:
    assert GeminiArrayFormat().end_bytes() == b"[]"


@given(events=legal_events(Endpoint.CHAT, choices=2))
def test_stream_array_and_reply_have_the_same_content(events: list[Event]) -> None:
    streamed = elements(events)
    assert array(events) == streamed
    if isinstance(events[-1], Failure):
        assert list(streamed[-1]) == ["error"]
        return
    whole = json.loads(GeminiFormat(includes_thoughts=True).encode_reply(HEAD, collect(events)))
    assert whole.get("usageMetadata") == streamed[-1].get("usageMetadata")
    for choice in whole["candidates"]:
        mine = [
            part
            for one in streamed
            for found in one["candidates"]
            if found["index"] == choice["index"]
            for part in found["content"]["parts"]
        ]
        for name in ("functionCall", "text"):
            joined = [part[name] for part in choice["content"]["parts"] if part.get(name)]
            sent = [part[name] for part in mine if part.get(name)]
            assert sorted("".join(map(str, joined))) == sorted("".join(map(str, sent)))
        ends = [one for one in streamed[-1]["candidates"] if one["index"] == choice["index"]]
        assert [one["finishReason"] for one in ends] == [choice["finishReason"]]
