"""Reader of Gemini streams: events for clients of other dialects."""

import json

import pytest

from tests.protocol.gemini_streams import (
    ANSWER,
    CALL,
    ERROR,
    MEMBERS,
    TEXT,
    WHOLE,
    Json,
    candidate,
    counts,
    element,
    frames,
)
from tests.table import table
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import (
    ChoiceStart,
    Event,
    Failure,
    FieldLocation,
    Finish,
    KeepAlive,
    Logprobs,
    Reasoning,
    Text,
    ToolArguments,
    ToolCall,
    UnknownFields,
    Usage,
)
from welldone.core.repair_log import RepairLog
from welldone.core.request_facts import RepairOptions, RequestFacts
from welldone.dialects.gemini import objects
from welldone.stream.dialect_reader import DialectReader, dialect_reader_for
from welldone.stream.pipeline import BufferedPipeline, StreamPipeline

CHAT, GEMINI = Endpoint.CHAT, Endpoint.GEMINI
OURS = Envelope("chatcmpl-ours", 1600000000, "ours")
NO_CACHE = {"prompt_tokens_details": {"cached_tokens": 0}}


def make_reader(endpoint: Endpoint = CHAT) -> DialectReader:
    return dialect_reader_for(GEMINI, endpoint, fallback=OURS, facts=RequestFacts(), repair_log=RepairLog(GEMINI))


def read(*elements: object, endpoint: Endpoint = CHAT) -> list[Event]:
    """Read the events of a stream, one frame at a time."""
    reader = make_reader(endpoint)
    return [one for given in elements for one in reader.feed(frames(given))] + reader.close()


def read_reply(reply: object) -> list[Event]:
    steps = make_reader().read_reply_in_steps(json.dumps(reply).encode())
    return [event for step in steps for event in step]


def pipeline(kind: type[StreamPipeline] | type[BufferedPipeline]) -> StreamPipeline | BufferedPipeline:
    facts = RequestFacts(include_usage=True, choice_count=1)
    return kind(CHAT, fallback=OURS, facts=facts, options=RepairOptions(upstream_dialect=GEMINI))


def usage(prompt: int, completion: int, thoughts: int | None = None) -> Usage:
    details = {} if thoughts is None else {"completion_tokens_details": {"reasoning_tokens": thoughts}}
    return Usage(prompt, completion, prompt + completion, NO_CACHE | details)


def sealed(data: str, index: int = 0, choice: int = 0) -> UnknownFields:
    detail = {"type": "reasoning.encrypted", "data": data, "format": "google-gemini-v1", "index": index}
    return UnknownFields(choice, FieldLocation.DELTA, {"reasoning_details": [detail]}, in_own_chunk=True)


def test_a_stream_is_read_as_events() -> None:
    assert read(*ANSWER) == [
        ChoiceStart(0),
        Reasoning(0, "hm"),
        usage(3, 0),
        Text(0, "Hel"),
        Text(0, "lo"),
        sealed("ZW5k"),
        Finish(0, "stop"),
        usage(3, 4, 2),
    ]
    assert read(*ANSWER[:2], ERROR)[-2] == usage(3, 3, 2)  # also of an answer that fails


def test_a_reply_has_the_same_content_whole_and_as_an_array() -> None:
    expected = [
        ChoiceStart(0),
        Reasoning(0, "hm"),
        Text(0, "Hello"),
        sealed("ZW5k"),
        Finish(0, "stop"),
        usage(3, 4, 2),
    ]
    assert read_reply(WHOLE) == expected
    assert read_reply(list(ANSWER)) == expected
    assert read_reply([*ANSWER[:2], ERROR])[-1] == Failure(
        "The model is overloaded.", "overloaded_error", None, None, {"status": "UNAVAILABLE"}
    )


def test_calls_keep_their_signatures_and_ids() -> None:
    signed = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
    named = {"functionCall": {"id": "own", "name": "g"}}
    assert read(element(candidate(CALL, named, {"functionCall": {"args": [1]}}, finishReason="STOP"))) == [
        ChoiceStart(0),
        ToolCall(0, 0, "", "f", signed),
        ToolArguments(0, 0, '{"a":1}'),
        ToolCall(0, 1, "own", "g"),
        ToolArguments(0, 1, "{}"),
        ToolCall(0, 2, "", ""),
        ToolArguments(0, 2, "[1]"),
        Finish(0, "tool_calls"),
    ]
    whole = pipeline(BufferedPipeline)
    whole.feed(frames(element(candidate(CALL, CALL, finishReason="STOP"))))
    whole.close()
    assert isinstance(whole, BufferedPipeline)
    (choice,) = json.loads(whole.body())["choices"]
    assert [call["id"] for call in choice["message"]["tool_calls"]] == ["call_ours1", "call_ours2"]
    assert choice["message"]["tool_calls"][0]["extra_content"] == signed["extra_content"]
    assert choice["finish_reason"] == "tool_calls"


@table(
    "word, endpoint, expected",
    [
        ("STOP", CHAT, "stop"),
        ("MAX_TOKENS", CHAT, "length"),
        *(
            (word, CHAT, "content_filter")
            for word in ("SAFETY", "RECITATION", "PROHIBITED_CONTENT", "BLOCKLIST", "SPII")
        ),
        ("SAFETY", Endpoint.COMPLETIONS, "content_filter"),
        ("STOP", Endpoint.COMPLETIONS, "stop"),
    ],
)
def test_finish_reasons_become_those_of_openai(word: str, endpoint: Endpoint, expected: str) -> None:
    assert read(element(candidate(TEXT, finishReason=word)), endpoint=endpoint)[-1] == Finish(0, expected)


@table("word", ["MALFORMED_FUNCTION_CALL", "OTHER", "NEW_REASON"])
def test_an_interrupted_answer_is_an_error(word: str) -> None:
    ended: Json = {"finishReason": word, "finishMessage": "bad call"}
    found = read(element(candidate(TEXT)), element(candidate(TEXT, **ended)), element(candidate(index=1, **ended)))
    assert [type(one) for one in found] == [ChoiceStart, Text, Text, ChoiceStart, Failure]
    assert isinstance(found[-1], Failure)
    assert word in found[-1].message
    assert found[-1].message.endswith("bad call")


def test_a_blocked_prompt_is_an_answer_that_was_filtered() -> None:
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": counts(4)}
    assert read(blocked) == [ChoiceStart(0), Finish(0, "content_filter"), usage(4, 0)]
    assert read_reply(blocked) == read(blocked)
    # Feedback on the prompt may come with an answer.
    also = element(candidate(TEXT, finishReason="STOP"), promptFeedback={"safetyRatings": []})
    assert read(also, {"promptFeedback": {"blockReason": "SAFETY"}})[-1] == Finish(0, "stop")


@table(
    "metadata, expected",
    [
        (counts(3, 2, cachedContentTokenCount=1), Usage(3, 2, 5, {"prompt_tokens_details": {"cached_tokens": 1}})),
        (counts(3, 2, thoughtsTokenCount=4), usage(3, 6, 4)),
        ({"candidatesTokenCount": 2, "totalTokenCount": 5}, usage(3, 2)),
        ({"promptTokenCount": 3, "toolUsePromptTokenCount": 4, "totalTokenCount": 7}, usage(7, 0)),
        ({"promptTokenCount": 3, "candidatesTokenCount": 2, "totalTokenCount": 1}, usage(3, 2)),
        (
            {**counts(3, 2), "trafficType": "ON_DEMAND"},
            Usage(3, 2, 5, {"trafficType": "ON_DEMAND", **NO_CACHE}),
        ),
        ({"candidatesTokenCount": 2}, None),
        ({"candidatesTokenCount": 9, "totalTokenCount": 5}, None),
        ({"promptTokenCount": "3", "totalTokenCount": True}, None),
    ],
)
def test_usage_is_converted(metadata: Json, expected: Usage | None) -> None:
    assert objects.usage_from_metadata(metadata) == expected


def test_log_probabilities_are_those_of_chat() -> None:
    chosen = [{"token": "Hel", "logProbability": -0.5, "tokenId": 7}, {"token": "lo", "logProbability": -1}]
    top = [{"candidates": [{"token": "Hel", "logProbability": -0.5}]}]
    part = candidate(TEXT, finishReason="STOP", logprobsResult={"chosenCandidates": chosen, "topCandidates": top})
    start, logprobs, text, _ = read(element(part))
    assert (start, text) == (ChoiceStart(0), Text(0, "Hello"))
    assert isinstance(logprobs, Logprobs)
    first, second = logprobs.value["content"]
    known = {"token": "Hel", "logprob": -0.5, "bytes": [72, 101, 108]}
    assert first == {**known, "top_logprobs": [known]}
    assert (second["token"], second["logprob"], second["top_logprobs"]) == ("lo", -1, [])
    assert read(element(candidate(TEXT, logprobsResult={"topCandidates": top})))[:2] == [
        ChoiceStart(0),
        Text(0, "Hello"),
    ]


@table(
    "value, kind, code",
    [
        (ERROR, "overloaded_error", None),
        ({"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED"}}, "rate_limit_error", None),
        ({"error": {"code": 400, "message": "m"}}, "invalid_request_error", None),
        ({"error": {"message": "m", "type": "rate_limit_error", "code": "slow"}}, "rate_limit_error", "slow"),
        ({"message": "m", "code": 500}, "server_error", "500"),
        ({"detail": "m"}, "server_error", None),
    ],
)
def test_errors_are_failures(value: Json, kind: str, code: str | None) -> None:
    found = read(element(candidate(TEXT)), value, element(candidate(TEXT, finishReason="STOP")))
    assert [type(one) for one in found] == [ChoiceStart, Text, Failure]
    assert isinstance(found[-1], Failure)
    assert (found[-1].type, found[-1].code) == (kind, code)
    assert [type(one) for one in read(value)] == [type(one) for one in read_reply(value)] == [Failure]


def test_a_stream_that_breaks_off_is_an_error() -> None:
    for given in ([element(candidate(TEXT))], [], [{"usageMetadata": counts(3)}], [element()]):
        found = read(*given)
        assert isinstance(found[-1], Failure)
        assert found[-1].code == "incomplete_stream"
    two = element(candidate(TEXT), candidate(TEXT, index=1))
    assert isinstance(read(two, element(candidate(index=1, finishReason="STOP")))[-1], Failure)


@table("reply", [{"choices": []}, {}, 5, [5], [{"x": 1}]])
def test_a_reply_of_another_kind_is_an_error(reply: object) -> None:
    (failure,) = read_reply(reply)
    assert isinstance(failure, Failure)
    assert failure.code == "bad_upstream_stream"


def test_data_of_other_dialects_and_keep_alives_are_no_content() -> None:
    reader = make_reader()
    given = b": hi\n\n\n\n" + frames({"choices": []}) + b"data: [DONE]\n\n" + frames(WHOLE) + b"data: [DONE]\n\n: x\n\n"
    found = reader.feed(given) + reader.close()
    assert [one for one in found if not isinstance(one, KeepAlive | Usage)] == read_reply(WHOLE)[:-1]
    assert found.count(KeepAlive()) == 2


def test_empty_parts_of_a_wrong_type_are_left_out() -> None:
    parts: list[object] = [0, {"text": []}, {"functionCall": ""}, {"executableCode": {}}, {"text": None}, TEXT]
    wrong: list[Json] = [
        {"candidates": 0, **MEMBERS},
        {"candidates": [0], **MEMBERS},
        element({"content": 0, "index": "x"}),
        element({"content": {"parts": 0}}),
        element({"content": {"parts": parts}}),
        {"candidates": None, "promptFeedback": 5, "usageMetadata": 5, "modelVersion": 5},
        element({"finishReason": "STOP"}),
    ]
    assert read(*wrong) == [ChoiceStart(0), Text(0, "Hello"), Finish(0, "stop")]
    (failure,) = read(element(candidate(TEXT, index=128)))
    assert isinstance(failure, Failure)


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_the_model_of_the_server_is_in_the_chunks(size: int) -> None:
    stream, data = pipeline(StreamPipeline), frames(*ANSWER)
    assert isinstance(stream, StreamPipeline)
    sent = b"".join(stream.feed(data[at : at + size]) for at in range(0, len(data), size)) + stream.close()
    chunks = [
        json.loads(line.removeprefix("data: ")) for line in sent.decode().splitlines() if line.startswith("data: {")
    ]
    assert {chunk["model"] for chunk in chunks} == {"gemini-up"}
    assert chunks[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
    assert stream.result.repairs == []
