"""Finished requests are freed by reference counting: no reference cycle keeps a body alive."""

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.aio import run
from tests.server.running_gateway import gateway
from welldone.gateway.errors import ApiError
from welldone.mock.script import HELLO_REPLY
from welldone.mock.variants import error_reply
from welldone.server.generation.answer import Answer
from welldone.server.generation.pipelines import GenerationRequest
from welldone.stream.pipeline import StreamPipeline

pytestmark = pytest.mark.tier3

REFUSED: dict[str, Any] = {"model": "m", "messages": 5, "max_tokens": 0, "input": [], "prompt": 5, "tokens": "x"}
PASSED: dict[str, Any] = {
    "model": "m",
    "max_tokens": 4,
    "messages": [{"role": "user", "content": "hi"}],
    "input": "hi",
    "prompt": "hi",
}
PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens", "/api/chat"]
TAKEN = {
    "/v1/chat/completions": ("model", "messages"),
    "/v1/responses": ("model", "input"),
    "/v1/messages": ("model", "messages", "max_tokens"),
    "/api/chat": ("model", "messages"),
}
"""The fields of `PASSED` that a path accepts."""
OURS = (Answer, StreamPipeline, GenerationRequest)
"""The objects of a request, each of which references its text."""


def errors() -> list[object]:
    """The errors that are still alive, with the references of their frames."""
    return [one for one in gc.get_objects() if isinstance(one, ApiError) and one.__traceback__]


@pytest.fixture
def by_counting() -> Iterator[None]:
    """Disable the garbage collector: only reference counting frees memory."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("by_counting")
@pytest.mark.parametrize("body", [REFUSED, PASSED], ids=["refused here", "refused by the upstream"])
@pytest.mark.parametrize("path", [*PATHS, "/v1/responses", "/v1/embeddings", "/tokenize"])
def test_the_error_of_a_request_is_freed_with_its_reply(tmp_path: Path, path: str, body: dict[str, Any]) -> None:
    before = {id(one) for one in errors()}

    async def main() -> int:
        async with gateway(tmp_path, [error_reply(500, "no")]) as server:
            return (await server.post(body, path)).status

    assert run(main()) >= 400
    assert [one for one in errors() if id(one) not in before] == []


@pytest.mark.usefixtures("by_counting")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("path", TAKEN)
def test_an_answer_is_freed_with_its_reply(tmp_path: Path, path: str, stream: bool) -> None:
    before = {id(one) for one in gc.get_objects() if isinstance(one, OURS)}  # of tests whose errors are parameters

    async def work() -> tuple[int, list[str]]:
        async with gateway(tmp_path, [HELLO_REPLY]) as server:
            reply = await server.post({"stream": stream, **{name: PASSED[name] for name in TAKEN[path]}}, path)
            for _ in range(20):  # loop iterations in which tasks end
                await asyncio.sleep(0)
            left = [one for one in gc.get_objects() if isinstance(one, OURS) and id(one) not in before]
            return reply.status, [type(one).__name__ for one in left]

    assert run(work()) == (200, [])
