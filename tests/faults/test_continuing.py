"""Classes of continued answers: a repeated, missing or foreign word is never right."""

import msgspec
import pytest

from faults.client import CHAT, ClientReply
from faults.continued_answers import ERROR, IDENTICAL, WHOLE, WRONG, ContinuedAnswers, classify
from faults.continuing import CutRequest
from faults.dialects import PATHS, Parts
from faults.dying import SILENT, WORDLESS
from tests.faults.test_dialects import WORDS, pieces, streamed

EACH = pytest.mark.parametrize("path", PATHS)
EXPECTED: list[Parts] = [{("text", 0): "one two "}]


@EACH
def test_a_stream_that_broke_off_has_one_class(path: str) -> None:
    right = pieces(path)
    assert classify(path, streamed(path, b"".join(right)), EXPECTED) == IDENTICAL
    assert classify(path, streamed(path, b"".join(right[:-1])), EXPECTED) == SILENT
    assert classify(path, ClientReply(200, b"", b"", is_whole=False), EXPECTED) == WORDLESS


@EACH
@pytest.mark.parametrize("expected", ["one ", "one two three ", "one one two ", "two "])
def test_repeated_and_missing_words_are_wrong(path: str, expected: str) -> None:
    received = streamed(path, b"".join(pieces(path)))
    assert classify(path, received, [{("text", 0): expected}]) == WRONG
    assert classify(path, received, [{("text", 0): expected}], may_differ=True) == WHOLE


@pytest.mark.parametrize(("expected", "found"), [("one two three ", ERROR), ("one three ", WRONG), ("one ", WRONG)])
def test_an_error_is_honest_after_the_start_of_the_answer(expected: str, found: str) -> None:
    texts = pieces(CHAT)[: 1 + len(WORDS)]
    error = b'data: {"error":{"message":"no","type":"server_error","param":null,"code":"upstream_died"}}\n\n'
    received = streamed(CHAT, b"".join(texts) + error + b"data: [DONE]\n\n")
    assert classify(CHAT, received, [{("text", 0): expected}]) == found


def test_parts_of_two_attempts_are_wrong() -> None:
    sent = CutRequest(1, "none", "reasoning", CHAT, is_stream=False)
    first, second = ({(kind, 0): text for kind, text in sent.content(attempt).items()} for attempt in (1, 2))
    message = {"role": "assistant", "content": second["text", 0], "reasoning_content": first["reasoning", 0]}
    body = msgspec.json.encode({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    received = ClientReply(200, b"content-type: application/json", body, is_whole=True)
    assert classify(CHAT, received, [first, second]) == WRONG


def test_shares_have_limits() -> None:
    answers, received = ContinuedAnswers(), ClientReply(200)
    for number in range(100):
        found = {98: ERROR, 99: WHOLE}.get(number, IDENTICAL)
        answers.add(f"{number}", found, received, has_way=True, is_repeatable=True)
    outcome = answers.outcome()
    assert outcome.broken(is_short=False) == ["of these at temperature 0 identical: 98.99 %"]
    answers.add("one more", WRONG, received, has_way=True, is_repeatable=True)
    assert len(answers.outcome().broken(is_short=False)) == 4
