"""Stop strings of a local model: found here, in whatever tokens they come, and then the engine is left."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.http.aio import run
from tests.server.scripts import CHAT, DONE, ROLE, Heard, Serving, scripted
from welldone.mock.script import MockChunk, MockReply

COUNTED: dict[str, Any] = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
BOTH = pytest.mark.parametrize("request_body", [COUNTED, CHAT], ids=["stream", "whole"])
ENVELOPE = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}


def chunk(delta: dict[str, Any], finish: str | None = None, **members: object) -> MockChunk:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return MockChunk(f"data: {json.dumps({**ENVELOPE, 'choices': [choice], **members})}\n\n")


NO_REASONING = {"completion_tokens_details": {"reasoning_tokens": 0}}


def token(number: int, text: str) -> MockChunk:
    """A token as llama.cpp sends it where it is to count with each."""
    return chunk({"content": text}, timings={"prompt_n": 1, "cache_n": 2, "predicted_n": number})


def tokens(*texts: str) -> tuple[MockChunk, ...]:
    return (ROLE, *(token(number, text) for number, text in enumerate(texts, 1)))


LENGTH = chunk({}, "length")
USAGE = MockChunk(
    f"data: {json.dumps({**ENVELOPE, 'choices': [], 'usage': {'prompt_tokens': 3, 'completion_tokens': 4}})}\n\n"
)


def as_llama(serving: Serving) -> None:
    """The scripted engine plays llama.cpp: stop strings are looked for in what that says, and in no command's."""
    model = serving.server.fleet.models[0]
    assert model.capabilities is not None
    model.capabilities = msgspec.structs.replace(model.capabilities, kind="llama")


async def ended(serving: Serving) -> list[dict[str, Any]]:
    """What the engine was asked, when it answers no more."""
    seen = await serving.seen()
    while any(one["end"] == "running" for one in seen):
        seen = await serving.seen()
    return seen


def ask(folder: Path, *posts: MockReply, **request: Any) -> tuple[Heard, list[dict[str, Any]]]:  # noqa: ANN401 - fields of a request
    async def work() -> tuple[Heard, list[dict[str, Any]]]:
        async with scripted(folder, *posts) as serving:
            as_llama(serving)
            heard = await serving.ask(request)
            return heard, await ended(serving)

    return run(work())


def read(heard: Heard) -> tuple[list[str], list[str | None], dict[str, Any] | None]:
    """The texts, why they ended, and what was counted."""
    if not heard.request.get("stream"):
        choices = heard.json["choices"]
        return (
            [one["message"]["content"] for one in choices],
            [one["finish_reason"] for one in choices],
            heard.json["usage"],
        )
    chunks = [json.loads(line[6:]) for line in heard.body.decode().splitlines() if line.startswith("data: {")]
    texts: dict[int, str] = {}
    reasons: dict[int, str | None] = {}
    for one in (one for each in chunks for one in each["choices"]):
        texts[one["index"]] = texts.get(one["index"], "") + (one["delta"].get("content") or "")
        reasons[one["index"]] = one["finish_reason"]
    return [texts[index] for index in sorted(texts)], [reasons[index] for index in sorted(reasons)], chunks[-1]["usage"]


@BOTH
def test_the_engine_is_left_at_a_stop_string_and_the_answer_is_whole(
    tmp_path: Path, request_body: dict[str, Any]
) -> None:
    endless = MockReply((*tokens("a", " fi", "ve", " b"), token(5, " more")), end="endless")
    heard, seen = ask(tmp_path, endless, **request_body, stop=["never", "five"])
    assert heard.findings() == []
    usage = {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6, **NO_REASONING}
    assert read(heard) == (["a "], ["stop"], {**usage, "prompt_tokens_details": {"cached_tokens": 2}})
    assert [one["end"] for one in seen] == ["left"]
    body = json.loads(seen[0]["body"])
    assert "stop" not in body
    assert body["timings_per_token"] is True


@BOTH
def test_what_only_begins_like_a_stop_string_is_said(tmp_path: Path, request_body: dict[str, Any]) -> None:
    whole = MockReply((*tokens("a", " fi", "ne", " fi"), LENGTH, USAGE, DONE))
    heard, seen = ask(tmp_path, whole, **request_body, stop="five")
    assert heard.findings() == []
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7, **NO_REASONING}
    assert read(heard) == (["a fine fi"], ["length"], usage)
    assert [one["end"] for one in seen] == ["whole"]
    assert heard.body.count(b'"timings"') <= 1


@BOTH
def test_each_choice_ends_at_its_own_stop_string(tmp_path: Path, request_body: dict[str, Any]) -> None:
    cut = MockReply(tokens("x", "five"), end="hang")
    whole = MockReply((*tokens("y", " f"), LENGTH, USAGE, DONE))
    heard, seen = ask(tmp_path, cut, whole, **request_body, stop="five", n=2)
    assert heard.findings() == []
    texts, reasons, usage = read(heard)
    assert sorted(zip(texts, reasons, strict=True), key=str) == [("x", "stop"), ("y f", "length")]
    assert usage is not None
    assert usage["completion_tokens"] == 6
    assert sorted(one["end"] for one in seen) == ["left", "whole"]


def test_what_was_held_is_said_before_an_error(tmp_path: Path) -> None:
    heard, _ = ask(tmp_path, MockReply(tokens("a", " fi"), end="cut"), **COUNTED, stop="five")
    assert heard.findings() == []
    assert b'"a"' in heard.body
    assert b'" fi"' in heard.body
    assert heard.error["code"] == "engine_died"


def test_an_engine_of_another_kind_looks_for_stop_strings_itself(tmp_path: Path) -> None:
    async def work() -> list[dict[str, Any]]:
        async with scripted(tmp_path) as serving:
            await serving.ask({**CHAT, "stop": "five"})
            return await ended(serving)

    body = json.loads(run(work())[0]["body"])
    assert body["stop"] == ["five"]
    assert "timings_per_token" not in body
