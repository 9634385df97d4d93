"""Response tasks: behaviour of the engine, and the response of the client."""

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.http.aio import run
from tests.server.resumable import GatedUpstream, gated_gateway
from tests.server.running_server import (
    CHAT,
    DONE,
    HELLO,
    ROLE,
    STOP,
    USAGE,
    RecordedReply,
    RunningServer,
    json_error,
    run_server,
)
from tests.support.faults import LINUX, children
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import EventOrderError, Failure
from welldone.gateway.errors import ApiError
from welldone.mock.script import MockChunk, MockReply
from welldone.stream.pipeline import StreamPipeline

STREAM = {**CHAT, "stream": True}
WHOLE = MockReply((ROLE, HELLO, STOP, USAGE, DONE))

HIDDEN = MockChunk(': {"choices":[]}\n\n', after_s=0.1)
LATE = MockChunk(STOP.text, after_s=0.1)
"""Chunks that are sent separately."""

HAS_HEAD = ["err-status-before-stream"]
"""After `early_s` the headers of the stream are sent: an error is an event then."""


def send_request(folder: Path, *posts: MockReply, request: dict[str, Any] = STREAM, **settings: Any) -> RecordedReply:  # noqa: ANN401 - each its own
    async def work() -> RecordedReply:
        async with run_server(folder, *posts, **settings) as serving:
            return await serving.post(request)

    return run(work())


def send_requests(
    folder: Path,
    exchanges: Sequence[tuple[MockReply, dict[str, Any]]],
    **settings: Any,  # noqa: ANN401 - fields of ServeSettings
) -> list[RecordedReply]:
    """The responses to requests, of which each is one request to the engine, with this reply."""

    async def work() -> list[RecordedReply]:
        async with run_server(folder, *(reply for reply, _ in exchanges), **settings) as serving:
            responses = [await serving.post(request) for _, request in exchanges]
            assert len(await serving.engine_requests()) == len(exchanges)
            return responses

    return run(work())


def test_a_response_is_valid(tmp_path: Path) -> None:
    for response in send_requests(tmp_path, [(WHOLE, STREAM), (WHOLE, CHAT)]):
        assert response.status == 200
        assert response.findings() == []
        assert b"Hello" in response.body


TOO_LONG = {
    "error": {"code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": 9, "n_ctx": 8, "message": "x"}
}


ENGINE_ERRORS = [
    (json_error(400, TOO_LONG), 400, "context_length_exceeded"),
    (json_error(400, {"error": {"message": "no such thing"}}), 400, "invalid_request"),
    (json_error(422, {"detail": "no"}), 400, "invalid_request"),
    (json_error(501, {"error": {"message": "cannot"}}), 400, "unsupported_by_model"),
    (json_error(503, {"error": {"message": "Loading model"}}), 503, "model_loading"),
    (json_error(500, {"error": {"message": "at /home/me/x.cpp 0x7fffdeadbeef"}}), 502, "engine_error"),
    (json_error(401, {"error": {"message": "Invalid API Key"}}), 502, "engine_error"),
    (json_error(500, ["what"]), 502, "engine_error"),
    (MockReply((MockChunk("<html>"),), 500), 502, "engine_error"),
    (MockReply((MockChunk("x"),), 302), 502, "engine_error"),
]
"""Error responses of the engine, and status and error code for the client."""


def test_an_error_of_the_engine_gets_the_right_status(tmp_path: Path) -> None:
    exchanges = [(reply, request) for reply, _, _ in ENGINE_ERRORS for request in (STREAM, CHAT)]
    responses = send_requests(tmp_path, exchanges)
    expected = [(status, code) for _, status, code in ENGINE_ERRORS for _ in range(2)]
    assert [(response.status, response.error["code"]) for response in responses] == expected
    for response in responses:
        assert "/home" not in response.body.decode()
        assert "0x7f" not in response.body.decode()
        assert ("Retry-After: 1" in response.head) == (response.status == 503)


def test_the_error_for_a_long_prompt_has_both_numbers(tmp_path: Path) -> None:
    message = send_request(tmp_path, json_error(400, TOO_LONG)).error["message"]
    assert "8 tokens" in message
    assert "9 tokens" in message


TRUNCATED = {
    "cut": (MockReply((ROLE, HELLO), end="cut"), "engine_died"),
    "without an end": (MockReply((ROLE, HELLO)), "incomplete_stream"),
    "an error of its own": (
        MockReply((ROLE, MockChunk('data: {"error":{"message":"broken","code":500}}\n\n'))),
        "500",
    ),
    "garbage": (MockReply((ROLE, MockChunk("data: " + "x" * 100 + "\n\n"))), "bad_upstream_stream"),
    "a chunk in a comment": (MockReply((ROLE, HELLO, HIDDEN, LATE, DONE)), "bad_upstream_stream"),
    "silence": (MockReply((ROLE, HELLO), end="hang"), "timeout"),
}
"""Streams that break off, and the error code for the client."""


def test_a_truncated_response_never_looks_complete(tmp_path: Path) -> None:
    exchanges = [(reply, STREAM) for reply, _ in TRUNCATED.values()]
    responses = send_requests(tmp_path, exchanges, idle_s=0.2, keep_alive_s=0.05)
    codes = {name: response.error["code"] for name, response in zip(TRUNCATED, responses, strict=True)}
    assert codes == {name: code for name, (_, code) in TRUNCATED.items()}
    for response in responses:
        assert response.findings() == []
        assert response.body.endswith(b"data: [DONE]\n\n")
        assert response.raw.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize(
    "reply", [MockReply((ROLE, HELLO), end="cut"), MockReply((ROLE, HELLO)), MockReply((ROLE,), end="hang")]
)
def test_an_invalid_whole_reply_is_an_engine_error(tmp_path: Path, reply: MockReply) -> None:
    response = send_request(tmp_path, reply, request=CHAT, idle_s=0.2, first_byte_s=0.4, keep_alive_s=0.05)
    assert response.status in (502, 504)
    assert response.findings() == []


def test_an_engine_without_content_times_out(tmp_path: Path) -> None:
    response = send_request(tmp_path, MockReply((), end="hang"), first_byte_s=0.2, keep_alive_s=0.05, early_s=0.05)
    assert response.error["code"] == "timeout"
    assert b": keep-alive" in response.body
    assert response.findings() == HAS_HEAD


def test_an_error_after_the_headers_is_an_error_event(tmp_path: Path) -> None:
    late = MockReply(
        (MockChunk('{"error":{"message":"late"}}', after_s=0.3),), 400, {"Content-Type": "application/json"}
    )
    response = send_request(tmp_path, late, early_s=0.05, keep_alive_s=0.1)
    assert response.status == 200
    assert response.error["message"] == "late"
    assert response.findings() == HAS_HEAD


def test_a_limited_number_of_keep_alives_is_sent(tmp_path: Path) -> None:
    slow = MockReply((ROLE, MockChunk(HELLO.text, after_s=1.0), STOP, DONE))
    response = send_request(tmp_path, slow, keep_alive_s=0.01, idle_s=60.0)
    assert response.findings() == []
    assert 10 < response.body.count(b": keep-alive\n\n") <= 45


def test_an_active_stream_needs_no_keep_alives(tmp_path: Path) -> None:
    flowing = MockReply((ROLE, *[MockChunk(HELLO.text, after_s=0.02)] * 30, STOP, DONE))
    response = send_request(tmp_path, flowing, keep_alive_s=0.3, idle_s=60.0)
    assert response.body.count(b": keep-alive\n\n") <= 1  # one where the machine itself was asleep
    assert response.body.count(b"Hello") == 30


def test_a_body_that_stays_open_is_closed(tmp_path: Path) -> None:
    hanging = MockReply((ROLE, HELLO, STOP, USAGE, DONE), end="hang")
    for response in send_requests(tmp_path, [(hanging, STREAM), (hanging, CHAT)]):
        assert response.status == 200
        assert response.findings() == []


def test_open_bodies_do_not_delay_the_next_choice(tmp_path: Path) -> None:
    hanging = MockReply((ROLE, HELLO, STOP, USAGE, DONE), end="hang")

    async def work() -> RecordedReply:
        async with run_server(tmp_path, hanging, model={"parallel": 1}) as serving:
            return await serving.post({**STREAM, "n": 2})

    response = run(work())
    assert response.findings() == []
    assert response.body.count(b"Hello") == 2


@LINUX
def test_an_engine_without_a_reply_times_out(tmp_path: Path) -> None:
    async def work() -> RecordedReply:
        async with run_server(tmp_path, first_byte_s=0.3) as serving:
            process = serving.server.supervisor.models[0].process
            assert process is not None
            child = min(children(process.pid))  # the first one that it started
            os.kill(child, signal.SIGSTOP)
            try:
                return await serving.post(CHAT)
            finally:
                os.kill(child, signal.SIGCONT)

    response = run(work())
    assert (response.status, response.error["code"]) == (504, "timeout")


def test_each_choice_is_a_request(tmp_path: Path) -> None:
    async def work() -> tuple[RecordedReply, list[dict[str, Any]]]:
        async with run_server(tmp_path, WHOLE) as serving:
            response = await serving.post({**STREAM, "n": 3, "seed": 7, "stream_options": {"include_usage": True}})
            return response, await serving.engine_requests()

    response, seen = run(work())
    assert {json.loads(one["body"])["seed"] for one in seen} == {7, 8, 9}
    assert all("n" not in json.loads(one["body"]) for one in seen)
    indices = {choice["index"] for line in _data(response) for choice in line["choices"]}
    assert indices == {0, 1, 2}
    assert response.findings() == []
    assert _data(response)[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}


def test_a_failed_part_ends_the_response(tmp_path: Path) -> None:
    async def work() -> tuple[RecordedReply, list[dict[str, Any]]]:
        replies = MockReply((ROLE, HELLO), end="hang"), MockReply((ROLE, HELLO), end="cut")
        async with run_server(tmp_path, *replies, continuation="off") as serving:
            response = await serving.post({**STREAM, "n": 2})
            seen = await serving.engine_requests()
            while any(one["end"] == "running" for one in seen):
                seen = await serving.engine_requests()
            return response, seen

    response, seen = run(work())
    assert response.error["code"] == "engine_died"
    assert response.findings() == []
    assert sorted(one["end"] for one in seen) == ["cut", "left"]


def test_a_disconnected_client_cancels_the_engine_request(tmp_path: Path) -> None:
    before, midway = MockReply((), end="hang"), MockReply((ROLE, HELLO), end="hang")

    async def work() -> None:
        async with run_server(tmp_path, before, before, midway) as serving:
            for count, request in enumerate((STREAM, CHAT, STREAM, CHAT), start=1):
                _, writer = await serving.send(request)
                while len(await serving.engine_requests()) < count:
                    pass
                writer.transport.abort()
                while (await serving.engine_requests())[-1]["end"] != "left":
                    pass

    run(work())


def test_a_client_that_does_not_read_is_disconnected(tmp_path: Path) -> None:
    flood = MockReply((ROLE, *[MockChunk(HELLO.text.replace("Hello", "x" * 100_000))] * 200, STOP, DONE))

    async def work() -> None:
        async with run_server(tmp_path, flood, write_s=0.2) as serving:
            _, writer = await serving.send(STREAM)
            while not (seen := await serving.engine_requests()) or seen[0]["end"] == "running":
                pass
            assert seen[0]["end"] == "left"
            writer.close()

    run(work())


def test_a_slow_client_gets_the_whole_stream(tmp_path: Path) -> None:
    flood = MockReply((ROLE, *[MockChunk(HELLO.text.replace("Hello", "x" * 100_000))] * 50, STOP, DONE))

    async def work() -> bytes:
        async with run_server(tmp_path, flood) as serving:
            reader, writer = await serving.send(STREAM)
            while not await serving.engine_requests():
                pass
            raw = bytearray()
            while piece := await reader.read(65536):
                raw += piece
                await asyncio.sleep(0)
            writer.close()
            return bytes(raw)

    response = RecordedReply(run(work()), STREAM)
    assert response.findings() == []
    assert response.body.count(b"x" * 100_000) == 50


def test_running_responses_end_with_an_error_at_shutdown(tmp_path: Path) -> None:
    async def work() -> list[RecordedReply]:
        async with run_server(tmp_path, MockReply((ROLE, HELLO), end="hang"), drain_s=0.1) as serving:
            asks = [asyncio.create_task(serving.post(request)) for request in (STREAM, CHAT)]
            while len(await serving.engine_requests()) < 2:
                pass
            assert not await serving.server.stop()
            return list(await asyncio.gather(*asks))

    streamed, whole = run(work())
    assert streamed.error["code"] == "shutting_down"
    assert streamed.findings() == []
    assert (whole.status, whole.error["code"]) == (503, "shutting_down")


def test_a_full_queue_returns_429_with_retry_after(tmp_path: Path) -> None:
    async def work(serving: RunningServer) -> RecordedReply:
        _, writer = await serving.send(STREAM)
        while not await serving.engine_requests():
            pass
        response = await serving.post()
        writer.close()
        return response

    async def all_of_it() -> RecordedReply:
        hanging = MockReply((ROLE, HELLO), end="hang")
        async with run_server(tmp_path, hanging, model={"parallel": 1, "queue": 0}, drain_s=0.1) as serving:
            return await work(serving)

    response = run(all_of_it())
    assert (response.status, response.error["code"]) == (429, "queue_full")
    assert "Retry-After: " in response.head
    assert response.findings() == []


def test_the_idle_timeout_applies_after_the_first_content(tmp_path: Path) -> None:
    hanging = MockReply((ROLE, HELLO), end="hang")
    for response in send_requests(
        tmp_path, [(hanging, STREAM), (hanging, CHAT)], idle_s=0.2, first_byte_s=3600.0, keep_alive_s=3600.0
    ):
        assert response.error["code"] == "timeout"


def test_the_choices_of_a_request_do_not_wait_for_each_other(tmp_path: Path) -> None:
    slow = MockReply((ROLE, MockChunk(HELLO.text, after_s=0.2), STOP, USAGE, DONE))

    async def work() -> RecordedReply:
        async with run_server(tmp_path, slow, model={"parallel": 1, "queue": 0, "queue_wait_s": 0.01}) as serving:
            return await serving.post({**STREAM, "n": 4})

    response = run(work())
    assert response.findings() == []
    assert response.body.count(b"Hello") == 4


def test_the_first_byte_timeout_applies_to_each_part(tmp_path: Path) -> None:
    quick = MockReply((ROLE, HELLO, STOP, USAGE, DONE))
    slow = MockReply((MockChunk(ROLE.text, after_s=0.6), HELLO, STOP, USAGE, DONE))
    response = send_request(tmp_path, quick, slow, request={**STREAM, "n": 2}, idle_s=0.2, first_byte_s=3600.0)
    assert response.findings() == []
    assert response.body.count(b"Hello") == 2


def test_retry_after_of_a_busy_engine_is_forwarded(tmp_path: Path) -> None:
    busy = MockReply(
        (MockChunk('{"error":{"message":"busy"}}'),), 429, {"Content-Type": "application/json", "Retry-After": "7"}
    )
    response = send_request(tmp_path, busy)
    assert response.status == 429
    assert "Retry-After: 7" in response.head


def test_requests_without_streaming_end_at_shutdown_too(tmp_path: Path) -> None:
    async def work() -> RecordedReply:
        async with run_server(tmp_path, MockReply((), end="hang"), drain_s=0.1) as serving:
            request_task = asyncio.create_task(serving.post({"model": "m", "input": "x"}, "/v1/embeddings"))
            while not await serving.engine_requests():
                pass
            await serving.server.stop()
            return await request_task

    response = run(work())
    assert (response.status, response.error["code"]) == (503, "shutting_down")


class _Broken(StreamPipeline):
    """A pipeline with a bug."""

    def fail(self, failure: Failure) -> bytes:
        raise EventOrderError("Failure", "all is lost", "nothing")


def test_an_internal_error_still_ends_the_stream(tmp_path: Path) -> None:
    async def work() -> RecordedReply:
        async with run_server(tmp_path, MockReply((ROLE, HELLO), end="hang")) as serving:
            request_task = asyncio.create_task(serving.post(STREAM))
            while not any(answer.times.ttft_s is not None for answer in serving.answers()):
                await serving.engine_requests()
            await serving.engine_requests()
            (answer,) = serving.answers()
            answer.pipeline._pipeline = _Broken(Endpoint.CHAT, fallback=Envelope("chatcmpl-1", 1, "m"))
            answer.abort(ApiError(500, "broken", code="internal_error"))
            return await request_task

    response = run(work())
    assert response.body.endswith(b"data: [DONE]\n\n")
    assert response.raw.endswith(b"0\r\n\r\n")


class _Unreadable(StreamPipeline):
    """A pipeline with a bug in its reader."""

    def feed(self, data: bytes, part: int = 0) -> bytes:
        raise EventOrderError("Text", "all is lost", "nothing")


def test_an_internal_error_while_reading_ends_the_stream(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    upstream = GatedUpstream([ROLE.text, HELLO.text, HELLO.text, STOP.text, DONE.text])

    async def work() -> RecordedReply:
        async with gated_gateway(tmp_path, upstream) as serving:
            request_task = asyncio.create_task(serving.post(STREAM))
            await upstream.allow(2)
            while not any(answer.times.ttft_s is not None for answer in serving.answers()):
                await serving.get("/health")
            (answer,) = serving.answers()
            answer.pipeline._pipeline = _Unreadable(Endpoint.CHAT, fallback=Envelope("chatcmpl-1", 1, "m"))
            await upstream.allow(1)
            await upstream.disconnected.wait()
            return await request_task

    response = run(work())
    assert b'"internal_error"' in response.body
    assert response.body.endswith(b"data: [DONE]\n\n")
    assert "a response failed" in caplog.text


def _data(response: RecordedReply) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in response.body.decode().splitlines() if line.startswith("data: {")]
