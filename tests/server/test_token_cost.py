"""Tokens charged to the limits of a key, however a request ends."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.http.aio import run
from tests.server.running_gateway import Gateway, gateway
from tests.server.running_server import CHAT, DONE, HELLO, ROLE, STOP, USAGE, json_error
from tests.table import table
from welldone.core.events import Usage
from welldone.mock.script import MockChunk, MockReply
from welldone.server.access.limits import RateLimiter
from welldone.server.generation.token_cost import OutputTokenEstimator, TokenCost, estimate_prompt_tokens

Json = dict[str, Any]
LONG = "word " * 4000  # some 5,000 tokens by the estimate
MANY = 2000


async def spent(serving: Gateway) -> int:
    """Return the charged tokens."""
    (usage,) = (await serving.get("/page/api/state")).json["keys"]
    tokens: int = usage["spent"]["tokens"]
    return tokens


async def leave(serving: Gateway, request: Json, path: str, word: bytes) -> None:
    """Send a request, read up to a word, and disconnect."""
    reader, writer = await serving.send(request, path)
    response = b""
    while word and word not in response:
        response = response[-100:] + await reader.read(65536)
    if not word:
        await serving.upstreams[0].wait_until(lambda: bool(serving.post_counts[0]))
    writer.transport.abort()
    await serving.upstreams[0].wait_until(lambda: serving.upstreams[0].requests[-1].end == "left")


MESSAGE = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": []}
STARTED = {"type": "message_start", "message": {**MESSAGE, "usage": {"input_tokens": 3, "output_tokens": 1}}}
BLOCK = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
DELTA = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}}
LAST = {**DELTA, "delta": {"type": "text_delta", "text": "last"}}
TEXTS = (ROLE, MockChunk(HELLO.text, times=MANY), MockChunk(HELLO.text.replace("Hello", "last")))


def events(*values: Json) -> str:
    return "".join(f"event: {value['type']}\ndata: {json.dumps(value)}\n\n" for value in values)


@table(
    ("path", "request_body", "pieces", "speaks"),
    [
        ("/v1/chat/completions", CHAT, TEXTS, ()),
        (
            "/v1/messages",
            {"model": "m", "max_tokens": 9000, "messages": CHAT["messages"]},
            TEXTS,
            (),
        ),
        ("/v1/responses", {"model": "m", "input": "Hi"}, TEXTS, ()),
        ("/api/chat", CHAT, TEXTS, ()),
        (
            "/v1/messages",
            {"model": "m", "max_tokens": 9000, "messages": CHAT["messages"]},
            (MockChunk(events(STARTED, BLOCK)), MockChunk(events(DELTA), times=MANY), MockChunk(events(LAST))),
            ("messages",),
        ),
    ],
    ids=["chat", "messages", "responses", "ollama", "messages, native"],
)
def test_an_early_disconnect_is_charged_for_the_output(
    tmp_path: Path, path: str, request_body: Json, pieces: tuple[MockChunk, ...], speaks: tuple[str, ...]
) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [MockReply(pieces, end="hang")], each={"speaks": speaks}) as serving:
            await leave(serving, {**request_body, "stream": True}, path, b"last")
            assert MANY <= await spent(serving) <= 2 * MANY

    run(work())


@table(
    ("path", "request_body"),
    [
        ("/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": LONG}], "stream": True}),
        ("/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": LONG}]}),
        ("/v1/responses", {"model": "m", "input": LONG}),
        ("/v1/embeddings", {"model": "m", "input": LONG}),
    ],
    ids=["stream", "whole", "responses", "embeddings"],
)
def test_a_disconnect_before_the_first_byte_is_charged_for_the_prompt(
    tmp_path: Path, path: str, request_body: Json
) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [MockReply(after_s=1000.0)]) as serving:
            await leave(serving, request_body, path, b"")
            assert len(LONG) // 4 <= await spent(serving) <= len(LONG) // 2

    run(work())


def test_longer_chunks_count_as_more_tokens(tmp_path: Path) -> None:
    async def work() -> None:
        chunk = HELLO.text.replace("Hello", "word " * 400)
        async with gateway(tmp_path, [MockReply((ROLE, MockChunk(chunk, times=10)), end="hang")]) as serving:
            await leave(serving, {**CHAT, "stream": True}, "/v1/chat/completions", b"word")
            assert await spent(serving) >= 10 * 400

    run(work())


def test_a_complete_response_is_charged_by_its_usage(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(
            tmp_path, [MockReply((ROLE, MockChunk(HELLO.text, times=50), STOP, USAGE, DONE))]
        ) as serving:
            await serving.post()
            assert await spent(serving) == 4

    run(work())


@pytest.mark.parametrize("n", [1, 4])
def test_each_sent_prompt_is_charged(tmp_path: Path, n: int) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [MockReply((ROLE, HELLO, STOP, USAGE, DONE))], each={"n": "each"}) as serving:
            response = await serving.post({**CHAT, "n": n})
            assert response.json["usage"]["prompt_tokens"] == 3  # as OpenAI counts
            assert serving.post_counts == [n]
            assert await spent(serving) == 4 * n

    run(work())


def test_a_started_attempt_is_charged_and_a_rejected_one_is_not(tmp_path: Path) -> None:
    async def work() -> None:
        good = [MockReply((ROLE, HELLO, STOP, USAGE, DONE))]
        first = {"weight": 1000.0}
        request = {**CHAT, "messages": [{"role": "user", "content": LONG}]}
        async with gateway(tmp_path, [json_error(500, {})], good, first=first) as serving:
            await serving.post(request)
            assert (serving.post_counts, await spent(serving)) == ([1, 1], 4)
        async with gateway(tmp_path, [MockReply((ROLE,), end="cut")], good, first=first) as serving:
            await serving.post(request)
            assert serving.post_counts == [1, 1]
            assert await spent(serving) > len(LONG) // 4

    run(work())


@pytest.mark.parametrize(
    ("path", "request_body", "count"),
    [
        ("/v1/chat/completions", {**CHAT, "n": 5}, 5),
        ("/v1/completions", {"model": "m", "prompt": ["a", "b", "c"], "n": 2}, 6),
    ],
)
def test_a_request_is_charged_per_upstream_request(tmp_path: Path, path: str, request_body: Json, count: int) -> None:
    async def work() -> None:
        text = STOP.text.replace('"delta":{}', '"text":"x"').replace("chat.completion.chunk", "text_completion")
        reply = MockReply((MockChunk(text) if "prompt" in request_body else HELLO, STOP, DONE))
        async with gateway(tmp_path, [reply], each={"n": "each"}, requests_per_minute=count) as serving:
            assert (await serving.post(request_body, path)).status == 200
            assert serving.post_counts == [count]
            assert (await serving.post(CHAT)).status == 429

    run(work())


def test_a_request_debt_delays_the_next_request() -> None:
    now = [100.0]
    limits = RateLimiter(requests_per_minute=60, tokens_per_minute=0, clock=lambda: now[0])
    limits.take_request("a")
    limits.charge_requests("a", 127)
    limits.charge_requests("a", 0)
    assert limits.status("a").requests is not None
    now[0] += 68
    with pytest.raises(Exception, match="limit of 60 requests"):
        limits.take_request("a")
    now[0] += 1
    limits.take_request("a")


def test_an_image_is_not_counted_by_its_bytes() -> None:
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * 400_000}"}}
    body = {"messages": [{"role": "user", "content": [part]}]}
    assert 1000 < estimate_prompt_tokens(body, len(msgspec.json.encode(body))) < 2000
    text = {"messages": [{"role": "user", "content": "A" * 400_000 + 'url":"' + "A" * 400_000}]}
    assert estimate_prompt_tokens(text, len(msgspec.json.encode(text))) > 200_000


def test_log_probabilities_are_not_counted_as_text() -> None:
    received = OutputTokenEstimator()
    received.add(b"data: " + b"x" * 200 + b"\n\n")
    received.add((b"data: " + b"x" * 3000 + b"\n\n") * 5)
    assert received.tokens > 3000
    received.has_long_chunks = True
    assert received.tokens == 6


@table(
    ("cost", "counted", "is_whole", "tokens"),
    [
        (TokenCost(), (3, 1, 4), True, 4),
        (TokenCost(), (3, 1, 9), True, 9),  # the larger of two totals
        (TokenCost(), (3, 1, 0), True, 4),
        (TokenCost(prompt_copies=3), (3, 1, 4), True, 10),
        (TokenCost(prompt_tokens=50, completion_tokens=5), (3, 1, 4), False, 55),
        (TokenCost(prompt_tokens=5, completion_tokens=5), (30, 10, 40), False, 40),
        (TokenCost(prompt_tokens=5, completion_tokens=5), (0, 0, 0), True, 10),
        (TokenCost(wasted_tokens=7), (3, 1, 4), True, 11),
    ],
)
def test_billed_tokens(cost: TokenCost, counted: tuple[int, int, int], is_whole: bool, tokens: int) -> None:
    assert cost.billed_tokens(Usage(*counted, {}), is_complete=is_whole) == tokens
