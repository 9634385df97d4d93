"""A right answer to any request."""

import json
from typing import Any

import pytest

from welldone.engines.scripts import Reply, as_raw
from welldone.engines.speech import answer, words_of
from welldone.rules.capture import read_capture
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
WORDS = ["Hello", " world"]


def _ask(path: str, **fields: Any) -> tuple[Trace, Reply]:  # noqa: ANN401 - as requests have them
    body = {"model": "m", **fields}
    reply = answer(json.dumps(body), path, WORDS, gap_s=0.5)
    heard = read_capture(as_raw(reply).body)
    trace = Trace(
        body=heard.body,
        endpoint="chat" if path == CHAT else "completions",
        request=body,
        status=heard.status,
        headers=heard.headers,
        complete=heard.complete,
        pieces=heard.pieces,
    )
    return trace, reply


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("usage", [True, False])
def test_an_answer_is_right(path: str, stream: bool, n: int, usage: bool) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if usage and stream else {}
    trace, _ = _ask(path, stream=stream, n=n, **options)
    assert judge(trace).findings == ()
    assert trace.body.count(b'"finish_reason":"stop"') == n
    assert (b'"completion_tokens":%d' % (2 * n) in trace.body) == (usage or not stream)
    assert b'"model":"m"' in trace.body


def test_a_list_of_prompts_has_an_answer_for_each() -> None:
    trace, _ = _ask(COMPLETIONS, prompt=["a", "b"], stream=True)
    assert trace.body.count(b'"finish_reason":"stop"') == 2


@pytest.mark.parametrize("stream", [True, False])
def test_pauses_are_before_words(stream: bool) -> None:
    _, reply = _ask(CHAT, stream=stream, n=2)
    assert sum(piece.after_s for piece in reply.pieces) == 1.0


def test_more_choices_than_openai_gives_are_not_given() -> None:
    assert _ask(CHAT, n=10**9)[0].body.count(b'"finish_reason":"stop"') == 128


@pytest.mark.parametrize(
    ("body", "path", "status"),
    [("", CHAT, 400), ("[]", CHAT, 400), ("[" * 100_000, CHAT, 400), ("{}", "/v1/embeddings", 404)],
)
def test_what_cannot_be_answered_is_an_error(body: str, path: str, status: int) -> None:
    reply = answer(body, path, WORDS)
    assert reply.status == status
    assert json.loads(reply.body)["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("text", ["", " ", "Hello", "Hello  big\nworld\n", " a"])
def test_words_make_the_text(text: str) -> None:
    assert "".join(words_of(text)) == text


@pytest.mark.parametrize(
    ("text", "count", "words"),
    [
        ("Hello you", 1, ["Hello"]),
        ("Hello you", 5, ["Hello", " you", " Hello", " you", " Hello"]),
        (" a", 3, [" a", " a", " a"]),
        ("", 3, []),
    ],
)
def test_words_are_said_again_until_there_are_enough(text: str, count: int, words: list[str]) -> None:
    assert words_of(text, count) == words
