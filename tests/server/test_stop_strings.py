"""Stop strings of a local model: matched across tokens, then the engine request is closed."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.http.aio import run
from tests.server.running_server import CHAT, DONE, ROLE, RecordedReply, RunningServer, run_server
from welldone.mock.script import MockChunk, MockReply

COUNTED: dict[str, Any] = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
ENVELOPE = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}


def chunk(delta: dict[str, Any], finish: str | None = None, **members: object) -> MockChunk:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return MockChunk(f"data: {json.dumps({**ENVELOPE, 'choices': [choice], **members})}\n\n")


NO_REASONING = {"completion_tokens_details": {"reasoning_tokens": 0}}


def token(number: int, text: str) -> MockChunk:
    """Return a chunk of llama.cpp with `timings_per_token`."""
    return chunk({"content": text}, timings={"prompt_n": 1, "cache_n": 2, "predicted_n": number})


def tokens(*texts: str) -> tuple[MockChunk, ...]:
    return (ROLE, *(token(number, text) for number, text in enumerate(texts, 1)))


LENGTH = chunk({}, "length")
USAGE = MockChunk(
    f"data: {json.dumps({**ENVELOPE, 'choices': [], 'usage': {'prompt_tokens': 3, 'completion_tokens': 4}})}\n\n"
)


def as_llama(serving: RunningServer) -> None:
    """Make the mock engine count as llama.cpp: for commands the server does not match stop strings."""
    model = serving.server.supervisor.models[0]
    assert model.capabilities is not None
    model.capabilities = msgspec.structs.replace(model.capabilities, kind="llama")


async def ended(serving: RunningServer) -> list[dict[str, Any]]:
    """Return the engine's requests when all have ended."""
    seen = await serving.engine_requests()
    while any(one["end"] == "running" for one in seen):
        seen = await serving.engine_requests()
    return seen


def send(
    folder: Path,
    *posts: MockReply,
    bodies: Sequence[dict[str, Any]] = (COUNTED, CHAT),
    **request: Any,  # noqa: ANN401 - fields of a request
) -> list[tuple[RecordedReply, list[dict[str, Any]]]]:
    """Return the response to each body with these fields, and its requests to the engine, which get these replies."""

    async def work() -> list[tuple[RecordedReply, list[dict[str, Any]]]]:
        async with run_server(folder, *posts * len(bodies)) as serving:
            as_llama(serving)
            exchanges, count = [], 0
            for body in bodies:
                response = await serving.post(body | request)
                seen = await ended(serving)
                exchanges.append((response, seen[count:]))
                count = len(seen)
            return exchanges

    return run(work())


def read(response: RecordedReply) -> tuple[list[str], list[str | None], dict[str, Any] | None]:
    """Return the texts, finish reasons and usage."""
    if not response.request.get("stream"):
        choices = response.json["choices"]
        return (
            [one["message"]["content"] for one in choices],
            [one["finish_reason"] for one in choices],
            response.json["usage"],
        )
    chunks = [json.loads(line[6:]) for line in response.body.decode().splitlines() if line.startswith("data: {")]
    texts: dict[int, str] = {}
    reasons: dict[int, str | None] = {}
    for one in (one for each in chunks for one in each["choices"]):
        texts[one["index"]] = texts.get(one["index"], "") + (one["delta"].get("content") or "")
        reasons[one["index"]] = one["finish_reason"]
    return [texts[index] for index in sorted(texts)], [reasons[index] for index in sorted(reasons)], chunks[-1]["usage"]


def test_a_stop_string_ends_the_engine_request_and_completes_the_response(tmp_path: Path) -> None:
    endless = MockReply((*tokens("a", " fi", "ve", " b"), token(5, " more")), end="endless")
    for response, seen in send(tmp_path, endless, stop=["never", "five"]):
        assert response.findings() == []
        usage = {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6, **NO_REASONING}
        assert read(response) == (["a "], ["stop"], {**usage, "prompt_tokens_details": {"cached_tokens": 2}})
        assert [one["end"] for one in seen] == ["left"]
        body = json.loads(seen[0]["body"])
        assert "stop" not in body
        assert body["timings_per_token"] is True


def test_a_partial_stop_string_is_sent_as_text(tmp_path: Path) -> None:
    whole = MockReply((*tokens("a", " fi", "ne", " fi"), LENGTH, USAGE, DONE))
    for response, seen in send(tmp_path, whole, stop="five"):
        assert response.findings() == []
        usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7, **NO_REASONING}
        assert read(response) == (["a fine fi"], ["length"], usage)
        assert [one["end"] for one in seen] == ["whole"]
        assert response.body.count(b'"timings"') <= 1


def test_each_choice_ends_at_its_own_stop_string(tmp_path: Path) -> None:
    cut = MockReply(tokens("x", "five"), end="hang")
    whole = MockReply((*tokens("y", " f"), LENGTH, USAGE, DONE))
    for response, seen in send(tmp_path, cut, whole, stop="five", n=2):
        assert response.findings() == []
        texts, reasons, usage = read(response)
        assert sorted(zip(texts, reasons, strict=True), key=str) == [("x", "stop"), ("y f", "length")]
        assert usage is not None
        assert usage["completion_tokens"] == 6
        assert sorted(one["end"] for one in seen) == ["left", "whole"]


def test_held_back_text_is_sent_before_an_error(tmp_path: Path) -> None:
    async def work() -> RecordedReply:
        async with run_server(tmp_path, MockReply(tokens("a", " fi"), end="cut")) as serving:
            as_llama(serving)
            return await serving.post(COUNTED | {"stop": "five"})

    response = run(work())
    assert response.findings() == []
    assert b'"a"' in response.body
    assert b'" fi"' in response.body
    assert response.error["code"] == "engine_died"


def test_a_command_gets_the_stop_strings(tmp_path: Path) -> None:
    async def work() -> list[dict[str, Any]]:
        async with run_server(tmp_path) as serving:
            await serving.post({**CHAT, "stop": "five"})
            return await ended(serving)

    body = json.loads(run(work())[0]["body"])
    assert body["stop"] == ["five"]
    assert "timings_per_token" not in body
