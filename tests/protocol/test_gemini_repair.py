"""Pass-through repair of Gemini streams and replies."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.gemini_streams import (
    ANSWER,
    CALL,
    ERROR,
    SEALED,
    TEXT,
    THOUGHT,
    WHOLE,
    Json,
    candidate,
    counts,
    element,
    frames,
)
from tests.table import table
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import Failure
from welldone.core.state import PartState
from welldone.dialects.gemini.objects import failure_object
from welldone.dialects.gemini.repair import GeminiRepairer
from welldone.dialects.gemini.writer import GeminiArrayFormat, GeminiFormat
from welldone.dialects.registry import passthrough_repairer_for
from welldone.dialects.responses.writer import ResponsesFormat
from welldone.stream.pipeline import make_pipeline

OURS = Envelope("ours", 1600000000, "ours")


def repairer(**options: Any) -> GeminiRepairer:  # noqa: ANN401 - each its own
    return GeminiRepairer(fallback=OURS, **options)


def repair(data: bytes, **options: Any) -> list[Json]:  # noqa: ANN401 - each its own
    """Return the elements of the repaired stream."""
    stream = repairer(**options)
    return elements(stream.feed(data) + stream.close())


def elements(data: bytes) -> list[Json]:
    lines = [line for line in data.decode().splitlines() if line]
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


RICH = element(
    candidate(
        {"executableCode": {"code": "1"}},
        {"inlineData": {"mimeType": "image/png", "data": "aGk="}},
        THOUGHT,
        {"text": "a"},
        {"text": "b"},
        CALL,
        finishReason="NEW_REASON",
        avgLogprobs=-0.0012345678901234567,
        citationMetadata={"citationSources": [{"startIndex": 1}]},
        safetyRatings=[{"category": "HARM", "probability": "LOW"}],
    ),
    candidate({"text": "other"}, index=1, finishReason="STOP"),
    usageMetadata={**counts(3, 2), "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 3}]},
    newMember={"a": [None, 1.5, 2**70]},
)


def test_a_right_stream_is_not_changed() -> None:
    assert repair(frames(*ANSWER)) == list(ANSWER)
    assert repair(frames(ANSWER[0], RICH)) == [ANSWER[0], RICH]
    assert repair(frames(*ANSWER), dialect=GeminiFormat()) == list(ANSWER)
    stream = repairer()
    stream.feed(frames(*ANSWER))
    stream.close()
    result = stream.result
    assert (result.failure, result.repairs) == (None, [])
    assert result.usage is not None
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (3, 4)


def test_a_right_reply_is_not_changed() -> None:
    for reply in (WHOLE, RICH, {"promptFeedback": {"blockReason": "SAFETY"}}):
        whole = repairer(is_stream=False)
        assert whole.feed_reply(json.dumps(reply).encode()) == whole.close() == b""
        assert json.loads(whole.body()) == reply
        stream = repairer()
        assert elements(stream.feed_reply(json.dumps(reply).encode()) + stream.close()) == [reply]


def test_a_stream_becomes_a_reply() -> None:
    whole = repairer(is_stream=False)
    assert whole.feed(frames(*ANSWER)) == whole.close() == b""
    assert json.loads(whole.body()) == WHOLE
    scores = [{"token": "a", "logProbability": -1}]
    first = candidate({"text": "a"}, CALL, safetyRatings=[1], logprobsResult={"chosenCandidates": scores})
    last = candidate(
        {"text": "b"},
        {"text": "c"},
        safetyRatings=[2],
        finishReason="STOP",
        logprobsResult={"chosenCandidates": scores},
    )
    merged = repairer(is_stream=False)
    merged.feed(frames(element(first), element({"index": 1}), element({"index": 0, "content": None}), element(last)))
    merged.feed(frames(element({"index": 1, "finishReason": "STOP"})))
    merged.close()
    one, other = json.loads(merged.body())["candidates"]
    assert one["content"]["parts"] == [{"text": "a"}, CALL, {"text": "b"}, {"text": "c"}]
    assert one["safetyRatings"] == [2]
    assert one["logprobsResult"]["chosenCandidates"] == scores * 2
    assert other == {"index": 1, "finishReason": "STOP"}


def test_an_array_is_read_as_the_reply_and_written_for_clients_of_arrays() -> None:
    whole = repairer(is_stream=False)
    whole.feed_reply(json.dumps([*ANSWER, None]).encode())
    whole.close()
    assert json.loads(whole.body()) == WHOLE
    array = repairer(dialect=GeminiArrayFormat())
    assert array.headers["Content-Type"].startswith("application/json")
    assert json.loads(array.keep_alive() + array.feed(frames(*ANSWER)) + array.close()) == list(ANSWER)
    assert array.keep_alive() == b""
    failed = repairer(dialect=GeminiArrayFormat())
    assert json.loads(failed.feed(frames(ANSWER[0], ERROR)) + failed.close()) == [ANSWER[0], ERROR]


@table(
    "error",
    [
        ERROR["error"],
        {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED", "details": [{"@type": "x", "retryDelay": "3s"}]},
        {"code": 499, "message": "m", "status": "CANCELLED"},
    ],
)
def test_an_error_ends_the_stream_as_it_is(error: Json) -> None:
    assert repair(frames(ANSWER[0], {"error": error}, ANSWER[1])) == [ANSWER[0], {"error": error}]
    whole = repairer(is_stream=False)
    whole.feed_reply(json.dumps({"error": error}).encode())
    whole.close()
    assert json.loads(whole.body()) == {"error": error}


def test_an_error_of_another_form_gets_googles() -> None:
    (error,) = repair(frames({"error": {"message": "no", "type": "rate_limit_error"}}))
    assert (error["error"]["code"], error["error"]["status"]) == (429, "RESOURCE_EXHAUSTED")
    made = failure_object(Failure("no", extra_fields={"status": "WRONG"}))
    assert made["error"]["status"] == "INTERNAL"


def test_a_stream_that_breaks_off_ends_with_an_error() -> None:
    for cut in (len(frames(ANSWER[0])), len(frames(*ANSWER)) - 9):
        *before, last = repair(frames(*ANSWER)[:cut])
        assert before == list(ANSWER[: len(before)])
        assert last["error"]["details"][0]["reason"] == "incomplete_stream"
    whole = repairer(is_stream=False)
    whole.feed_reply(json.dumps(element(candidate(TEXT))).encode())
    assert whole.failure is not None


def test_each_candidate_needs_an_end() -> None:
    *_, last = repair(frames(element({"index": 0}, candidate(TEXT, index=1, finishReason="STOP"))))
    assert last["error"]["details"][0]["reason"] == "incomplete_stream"


def test_foreign_data_and_comments_are_left_out() -> None:
    data = b": hi\n\ndata: [DONE]\n\n" + frames({"choices": []}, *ANSWER) + b"data: [DONE]\n\n"
    stream = repairer()
    sent = stream.feed(data) + stream.close()
    assert sent.startswith(b"\ndata: ")  # Google's Python client fails on comments
    assert elements(sent) == list(ANSWER)


def test_the_model_has_the_name_for_clients() -> None:
    found = repair(frames(*ANSWER, {"usageMetadata": counts(3, 9)}), model="mine")
    assert [one.get("modelVersion") for one in found] == [*["mine"] * 4, None]


def test_the_state_shows_how_far_the_answer_is() -> None:
    stream = repairer()
    assert stream.part_state(0) is PartState.WAITING
    stream.feed(frames(ANSWER[0]))
    assert stream.part_state(0) is PartState.ANSWERING
    stream.feed(frames(*ANSWER[1:]))
    assert stream.part_state(0) is PartState.FINISHED
    stream.feed(frames(element(candidate(SEALED))))  # old models send a finish reason with each element
    assert stream.part_state(0) is PartState.ANSWERING
    stream.close()
    assert stream.part_state(0) is PartState.DONE
    assert stream.feed(b"") == stream.close() == b""
    failed = repairer()
    failed.feed(frames(ERROR))
    assert failed.part_state(0) is PartState.FAILED


def test_each_candidate_has_one_finish_reason() -> None:
    stream = repairer()
    stream.feed(frames(element(candidate({"text": "a"}, index=1), candidate({"text": "b"}))))
    assert not stream.finish_reasons
    finished = element(candidate(index=1, finishReason="MAX_TOKENS"), candidate(finishReason="STOP"))
    stream.feed(frames(finished, finished))
    stream.close()
    assert stream.failure is None
    assert list(stream.finish_reasons) == ["MAX_TOKENS", "STOP"]


def test_the_registry_makes_it() -> None:
    for form in (None, GeminiArrayFormat(), ResponsesFormat({})):
        made = passthrough_repairer_for(Endpoint.GEMINI, fallback=OURS, dialect=form)
        assert isinstance(made, GeminiRepairer)
        is_array = isinstance(form, GeminiArrayFormat)
        assert made.headers["Content-Type"].startswith("application/json" if is_array else "text/event-stream")
    made_for_library = make_pipeline(Endpoint.GEMINI, None, id_stem="1", created=1, is_stream=True)
    assert elements(made_for_library.feed(frames(*ANSWER)) + made_for_library.close()) == list(ANSWER)


@given(cuts=st.lists(st.integers(0, len(frames(*ANSWER)))))
def test_the_bytes_are_the_same_however_they_are_split(cuts: list[int]) -> None:
    data = frames(*ANSWER)
    ends = [*sorted(cuts), len(data)]
    stream = repairer()
    sent = b"".join(stream.feed(data[start:end]) for start, end in zip([0, *ends], ends, strict=False))
    assert elements(sent + stream.close()) == list(ANSWER)


def test_data_that_is_not_strict_json_is_read_all_the_same() -> None:
    data = frames(*ANSWER).replace(b'"Hel"', b'"Hel\\ud83d"').replace(b"true", b"True")
    found = repair(data)
    assert found[0] == ANSWER[0]
    assert found[1]["candidates"][0]["content"]["parts"] == [{"text": "Hel�"}]
    empty = element({"content": {}, "finishReason": "MAX_TOKENS"})
    whole = repairer(is_stream=False)
    whole.feed_reply(json.dumps(empty).encode())
    assert json.loads(whole.body()) == empty


@table("heartbeat", [{"cost": 1}, {"heartbeat": 17}, {"type": "ping"}, "ping", [1712345]])
def test_a_heartbeat_is_no_part_of_the_answer(heartbeat: object) -> None:
    stream = repairer()
    sent = stream.feed(frames(heartbeat, ANSWER[0], heartbeat, *ANSWER[1:], heartbeat)) + stream.close()
    assert elements(sent) == list(ANSWER)
    assert stream.repair_log.counts() == {"gem-element": 3}


def test_content_in_an_object_that_is_no_response_is_an_error() -> None:
    assert "error" in repair(frames(*ANSWER[:2], {"content": {"parts": [TEXT]}}, *ANSWER[2:]))[-1]


@table(
    ("part", "right"),
    [
        ({"text": "Hi", "thoughtSignature": 7}, [{"text": "Hi"}]),
        ({"functionCall": []}, []),
        ({}, [{}]),
    ],
)
def test_a_part_loses_only_the_value_that_is_wrong(part: Json, right: list[Json]) -> None:
    first, last = repair(frames(element(candidate(part)), ANSWER[-1]))
    assert (first, last) == (element(candidate(*right)), ANSWER[-1])
