"""Streams that a client resumes after it lost its connection, through the gateway with a gated upstream."""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.http.aio import run
from tests.server.resumable import (
    ASKS,
    DONE,
    ROLE,
    STOP,
    USAGE,
    Connection,
    GatedUpstream,
    connect,
    findings,
    gated_gateway,
    request,
    resume,
    resume_status,
    text_chunk,
)
from tests.server.running_gateway import Gateway
from tests.server.running_server import CHAT
from tests.table import table
from welldone.config.server import ServeSettings
from welldone.gateway.errors import ApiError
from welldone.server.generation.attempt import UpstreamAttempt
from welldone.server.resume.api import run_detached
from welldone.server.resume.streams import StreamRegistry, StreamState

WORDS = ["One", " two", " three", " four", " five", " six", " seven", " eight", " nine", " ten"]
CHUNKS = [ROLE, *map(text_chunk, WORDS), STOP, USAGE, DONE]
STREAM = {**CHAT, "stream": True}
COMPLETION: dict[str, Any] = {"model": "m", "prompt": "Hi", "stream": True}
MESSAGE: dict[str, Any] = {**STREAM, "max_tokens": 64}
RESPONSE: dict[str, Any] = {"model": "m", "input": "Hi", "stream": True}
ENDPOINTS = [
    ("/v1/chat/completions", STREAM, "chat"),
    ("/v1/messages", MESSAGE, "messages"),
    ("/v1/responses", RESPONSE, "responses"),
]


async def wait_until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0.001)


async def start(gate: Gateway, headers: str = ASKS, body: dict[str, Any] = STREAM) -> Connection:
    connection = await connect(gate.server.port, "/v1/chat/completions", body, headers)
    assert connection.status == 200
    return connection


async def failed(gate: Gateway, stream_id: str, after: int | str | None = None, headers: str = "") -> tuple[int, str]:
    """The status and the code of a refused resume."""
    connection = await resume(gate, stream_id, after, headers)
    await connection.read_all()
    return connection.status, connection.json["error"]["code"]


async def metrics(gate: Gateway) -> str:
    return (await request(gate.server.port, "/metrics")).body.decode()


def without_ids(events: list[bytes]) -> bytes:
    """The events as a client without resume gets them."""
    return b"".join(re.sub(rb"^id: \d+\n", b"", event) for event in events)


@table(("path", "body", "endpoint"), ENDPOINTS)
def test_a_resumed_stream_is_exactly_the_rest(tmp_path: Path, path: str, body: dict[str, Any], endpoint: str) -> None:
    """After any event: while it runs, and after its end. The events are those of a stream without resume."""

    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        async with gated_gateway(tmp_path, upstream) as gate:
            port = gate.server.port
            await upstream.allow(4)
            first = await connect(port, path, body, ASKS)
            seen = await first.read_events(3)
            await first.lose()
            live = await resume(gate, first.stream_id, len(seen))
            await upstream.allow_all()
            rest = await live.read_all()
            assert (live.status, live.is_complete) == (200, True)
            assert live.headers["content-type"] == "text/event-stream; charset=utf-8"
            whole = seen + rest
            numbers = [int(re.findall(rb"^id: (\d+)\n", event)[0]) for event in whole]
            assert numbers == list(range(1, len(whole) + 1))
            for after in (None, 0, 1, len(whole) - 1):
                again = await resume(gate, first.stream_id, after)
                assert await again.read_all() == whole[after or 0 :]
            assert (
                await request(port, f"/v1/streams/{first.stream_id}", f"Last-Event-ID: {len(whole)}\r\n")
            ).status == 204
            assert findings(b"".join(whole), endpoint, body) == {"sse-no-id-field"}
            assert findings(without_ids(whole), endpoint, body) == set()
            plain = await connect(port, path, body)
            events = await plain.read_all()
            assert "x-welldone-stream-id" not in plain.headers
            assert b"id: " not in plain.body
            assert len(events) == len(whole)
            assert upstream.request_count == 2
            if endpoint == "chat":
                assert b"".join(events) == without_ids(whole)

    run(work())


def test_an_undisturbed_resumable_stream_is_complete(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        async with gated_gateway(tmp_path, upstream, report=True) as gate:
            await upstream.allow_all()
            first = await start(gate)
            await first.read_all()
            assert first.is_complete
            assert first.text == "".join(WORDS)
            assert "x-welldone-repairs" in first.headers["trailer"]
            assert 'welldone_resumes_total{outcome="resumed"} 0.0' in await metrics(gate)

    run(work())


def test_completions_are_resumed_too(tmp_path: Path) -> None:
    async def work() -> None:
        choice = '"choices":[{"index":0,"text":"%s",%s}]'
        chunk = 'data: {"id":"c","object":"text_completion","created":1,"model":"m",' + choice + "}\n\n"
        stopped = '"logprobs":null,"finish_reason":"stop"'
        chunks = [chunk % ("a", '"logprobs":null,"finish_reason":null'), chunk % ("b", stopped), DONE]
        upstream = GatedUpstream(chunks)
        async with gated_gateway(tmp_path, upstream) as gate:
            await upstream.allow(1)
            first = await connect(gate.server.port, "/v1/completions", COMPLETION, ASKS)
            seen = await first.read_events(1)
            await first.lose()
            await upstream.allow_all()
            rest = await (await resume(gate, first.stream_id, 1)).read_all()
            assert findings(without_ids(seen + rest), "completions", COMPLETION) == set()

    run(work())


def test_two_readers_and_the_first_client_get_the_same(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        async with gated_gateway(tmp_path, upstream) as gate:
            await upstream.allow(3)
            first = await start(gate)
            await first.read_events(2)
            readers = [await resume(gate, first.stream_id, 0), await resume(gate, first.stream_id, 1)]
            await upstream.allow_all()
            whole = await first.read_all()
            assert [await reader.read_all() for reader in readers] == [whole, whole[1:]]
            page = await metrics(gate)
            assert 'welldone_resumes_total{outcome="resumed"} 2.0' in page
            assert "welldone_resumable_streams 1.0" in page

    run(work())


def test_an_error_in_the_stream_is_resumed_like_any_event(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        caplog.set_level(logging.INFO)
        upstream = GatedUpstream(CHUNKS[:5], is_cut=True)
        async with gated_gateway(tmp_path, upstream) as gate:
            await upstream.allow(3)
            first = await start(gate)
            seen = await first.read_events(3)
            await first.lose()
            await upstream.allow_all()
            rest = await (await resume(gate, first.stream_id, 3)).read_all()
            assert rest[-1].endswith(b"data: [DONE]\n\n")
            assert b'"error"' in rest[-2]
            assert "the generation of a stream ended without its first client" in caplog.messages
            assert findings(without_ids(seen + rest), "chat", STREAM) == set()

    run(work())


def test_an_error_before_the_stream_is_a_status(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = GatedUpstream([])
        async with gated_gateway(tmp_path, upstream) as gate:
            for body, status in (({**STREAM, "n": -1}, 400), (STREAM, 502)):
                refused = await connect(gate.server.port, "/v1/chat/completions", body, ASKS)
                await refused.read_all()
                assert refused.status == status
                assert "x-welldone-stream-id" not in refused.headers
            assert "welldone_resumable_streams 0.0" in await metrics(gate)

    run(work())


def test_keep_alives_are_not_events(tmp_path: Path) -> None:
    """A blank line after a comment would be an event for openai-python, once there was an `id:`."""

    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        async with gated_gateway(tmp_path, upstream, keep_alive_s=0.1, early_s=0.05) as gate:
            first = await start(gate)
            await upstream.allow(2)
            await first.read_events(2)
            while first.body.count(b": keep-alive\n") < 3:
                assert await first.read_chunk()
            resumed = await resume(gate, first.stream_id, 2)
            while b": keep-alive\n" not in resumed.body:
                assert await resumed.read_chunk()
            await upstream.allow_all()
            whole = await first.read_all()
            assert await resumed.read_all() == whole[2:]
            assert whole[2].startswith(b"id: 3\n")
            assert b": keep-alive\n\n" not in first.body

    run(work())


def test_only_the_same_key_resumes(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        keys = ["first-key-canary", "other-key-canary"]
        mine, yours = (f"Authorization: Bearer {key}\r\n" for key in keys)
        async with gated_gateway(tmp_path, upstream, keys=keys) as gate:
            await upstream.allow_all()
            first = await start(gate, ASKS + mine)
            whole = await first.read_all()
            assert await failed(gate, first.stream_id, 0, yours) == (404, "stream_not_found")
            assert await failed(gate, first.stream_id, 0) == (401, "invalid_api_key")
            path = f"/v1/streams/{first.stream_id}"
            assert (await request(gate.server.port, path, yours, "DELETE")).status == 404
            assert await (await resume(gate, first.stream_id, 0, mine)).read_all() == whole
            assert (await request(gate.server.port, path, mine, "DELETE")).json["deleted"] is True
            assert await failed(gate, first.stream_id, 0, mine) == (404, "stream_not_found")

    run(work())


def test_wrong_event_numbers_are_refused(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        async with gated_gateway(tmp_path, upstream) as gate:
            await upstream.allow(3)
            first = await start(gate)
            await first.read_events(3)
            assert await failed(gate, "stream_unknown") == (404, "stream_not_found")
            for after in (4, "-1", "one", "9" * 20, "1.0"):
                assert await failed(gate, first.stream_id, after) == (400, "invalid_event_number"), after
            page = await metrics(gate)
            assert 'welldone_resumes_total{outcome="invalid"} 5.0' in page
            assert 'welldone_resumes_total{outcome="not_found"} 1.0' in page
            head = await request(gate.server.port, f"/v1/streams/{first.stream_id}", method="HEAD")
            assert head.status == 200

    run(work())


@pytest.mark.parametrize("header", ["", "x-welldone-resume: 0\r\n", "x-welldone-resume: false\r\n"])
def test_without_the_header_the_generation_ends_with_its_client(tmp_path: Path, header: str) -> None:
    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        async with gated_gateway(tmp_path, upstream) as gate:
            await upstream.allow(2)
            first = await start(gate, header)
            await first.read_events(2)
            assert "x-welldone-stream-id" not in first.headers
            await first.lose()
            await upstream.disconnected.wait()

    run(work())


def test_resume_can_be_switched_off(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        async with gated_gateway(tmp_path, upstream, resume_s=0.0) as gate:
            await upstream.allow_all()
            first = await start(gate)
            assert "x-welldone-stream-id" not in first.headers
            assert first.is_complete or await first.read_all()
            assert await failed(gate, "stream_0") == (404, "stream_not_found")
            body = {**RESPONSE, "background": True}
            refused = await connect(gate.server.port, "/v1/responses", body)
            await refused.read_all()
            assert (refused.status, refused.json["error"]["param"]) == (400, "background")

    run(work())


def test_a_whole_reply_ignores_the_header(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        async with gated_gateway(tmp_path, upstream) as gate:
            await upstream.allow_all()
            whole = await connect(gate.server.port, "/v1/chat/completions", CHAT, ASKS)
            await whole.read_all()
            assert whole.json["choices"][0]["message"]["content"] == "".join(WORDS)
            ollama = await connect(gate.server.port, "/api/chat", STREAM, ASKS)
            await ollama.read_all()
            assert "x-welldone-stream-id" not in ollama.headers

    run(work())


def test_a_stream_without_readers_expires_and_its_generation_ends(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        async with gated_gateway(tmp_path, upstream, resume_s=0.2) as gate:
            await upstream.allow(3)
            first = await start(gate)
            await first.read_events(3)
            await first.lose()
            await upstream.disconnected.wait()
            assert await failed(gate, first.stream_id, 3) == (404, "stream_not_found")
            assert gate.answers() == []
            upstream.disconnected.clear()
            await upstream.allow_all()
            ended = await start(gate)
            await ended.read_all()
            while "welldone_resumable_streams 0.0" not in await metrics(gate):
                pass
            assert await failed(gate, ended.stream_id, 0) == (404, "stream_not_found")
            page = await metrics(gate)
            assert "welldone_resumable_streams 0.0" in page
            assert "welldone_resumable_bytes 0.0" in page

    run(work())


def test_a_reader_keeps_a_stream_alive(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        async with gated_gateway(tmp_path, upstream, resume_s=0.2, keep_alive_s=0.1) as gate:
            await upstream.allow(3)
            first = await start(gate)
            await first.read_events(3)
            await first.lose()
            live = await resume(gate, first.stream_id, 3)
            while live.body.count(b"keep-alive") < 5:  # half a second
                assert await live.read_chunk()
            await upstream.allow_all()
            assert (await live.read_all())[-1].endswith(b"[DONE]\n\n")

    run(work())


def test_a_client_that_leaves_before_the_stream_is_open_ends_the_generation(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        async with gated_gateway(tmp_path, upstream) as gate:
            reader, writer = await gate.send(STREAM, headers=ASKS)
            await wait_until(lambda: upstream.request_count)
            writer.transport.abort()
            await upstream.disconnected.wait()
            await wait_until(lambda: not gate.answers())
            assert "welldone_resumable_streams 0.0" in await metrics(gate)
            assert await reader.read() == b""

    run(work())


def test_a_stopped_stream_ends_with_an_error_event(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        async with gated_gateway(tmp_path, upstream) as gate:
            await upstream.allow(3)
            first = await start(gate)
            await first.read_events(3)
            stopped = await request(gate.server.port, f"/v1/streams/{first.stream_id}", method="DELETE")
            assert stopped.json == {"id": first.stream_id, "object": "stream", "deleted": True}
            events = await first.read_all()
            assert first.is_complete
            assert b'"code":"stream_stopped"' in events[-2]
            await upstream.disconnected.wait()
            assert await failed(gate, first.stream_id, 3) == (404, "stream_not_found")
            assert "welldone_resumable_bytes 0.0" in await metrics(gate)

    run(work())


def test_beyond_the_limit_of_streams_a_stream_cannot_be_resumed(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        async with gated_gateway(tmp_path, upstream, resume_streams=2) as gate:
            await upstream.allow(2)
            running = [await start(gate), await start(gate)]
            for one in running:
                await one.read_events(2)
            third = await start(gate)
            await third.read_events(2)
            assert "x-welldone-stream-id" not in third.headers
            background = {**RESPONSE, "background": True}
            refused = await connect(gate.server.port, "/v1/responses", background)
            await refused.read_all()
            assert (refused.status, refused.json["error"]["param"]) == (429, "background")
            await upstream.allow_all()
            for one in (*running, third):
                await one.read_all()
            fourth = await start(gate)  # the oldest ended one is evicted
            await fourth.read_all()
            assert await failed(gate, running[0].stream_id) == (404, "stream_not_found")
            assert await resume_status(gate, running[1].stream_id) == 200

    run(work())


LONG = [ROLE, *[text_chunk("x" * 8_000)] * 40, STOP, DONE]
"""320 KB of text."""


def test_the_oldest_events_that_were_received_are_dropped_first(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = GatedUpstream(LONG)
        async with gated_gateway(tmp_path, upstream, resume_stream_bytes=2**16) as gate:
            await upstream.allow_all()
            first = await start(gate)
            whole = await first.read_all()
            assert first.is_complete
            assert len(first.text) == 320_000
            assert await failed(gate, first.stream_id, 1) == (410, "events_dropped")
            rest = await (await resume(gate, first.stream_id, len(whole) - 3)).read_all()
            assert rest == whole[-3:]
            page = await metrics(gate)
            assert 'welldone_resumes_total{outcome="gone"} 1.0' in page
            size = float(re.findall(r"^welldone_resumable_bytes (\S+)", page, re.MULTILINE)[0])
            assert 0 < size <= 2**16

    run(work())


def test_a_full_stream_without_a_reader_waits_and_ends(tmp_path: Path) -> None:
    """As a stream whose client does not read: the upstream is not read on, and is given up after a time."""

    async def work() -> None:
        upstream = GatedUpstream([ROLE, *[text_chunk("x" * 8_000)] * 4_000, STOP, DONE])
        async with gated_gateway(tmp_path, upstream, resume_stream_bytes=2**16, write_s=0.3) as gate:
            await upstream.allow(1)
            first = await start(gate)
            await first.read_events(1)
            await first.lose()
            await upstream.allow_all()
            await upstream.disconnected.wait()
            await wait_until(lambda: not gate.answers())
            rest = await resume(gate, first.stream_id, 1)
            await rest.read_all()
            assert not rest.is_complete  # the connection is reset: there was more
            assert 0 < len(rest.body) < 2**19
            registry = gate.server.routes._resume.registry
            (stream,) = registry.streams
            assert await failed(gate, first.stream_id, stream.count) == (410, "stream_incomplete")

    run(work())


def test_a_slow_reader_delays_nobody_and_takes_no_memory(tmp_path: Path) -> None:
    async def work() -> None:
        chunks = [ROLE, *[text_chunk("x" * 8_000)] * 2_000, STOP, DONE]
        upstream = GatedUpstream(chunks)
        async with gated_gateway(tmp_path, upstream, resume_stream_bytes=2**18) as gate:
            await upstream.allow(1)
            first = await start(gate)
            await first.read_events(1)
            slow = await resume(gate, first.stream_id, 1)  # reads nothing more
            await upstream.allow_all()
            await first.read_all()
            assert first.is_complete
            assert len(first.text) == 16_000_000
            await slow.read_all()
            assert not slow.is_complete  # it fell behind what is kept
            assert len(slow.body) < 12_000_000  # in the buffers of its socket

    run(work())


def test_a_client_that_reads_late_gets_everything(tmp_path: Path) -> None:
    """Beyond the limit the upstream is read no faster than the client reads, as without resume."""

    async def work() -> None:
        upstream = GatedUpstream([ROLE, *[text_chunk("x" * 8_000)] * 2_000, STOP, DONE])
        async with gated_gateway(tmp_path, upstream, resume_stream_bytes=2**18) as gate:
            await upstream.allow_all()
            first = await start(gate)
            (stream,) = gate.server.routes._resume.registry.streams
            await wait_until(lambda: stream.has_backpressure)
            assert stream.size_bytes < 2**20
            await first.read_all()
            assert first.is_complete
            assert len(first.text) == 16_000_000

    run(work())


def test_text_chunks_take_the_fast_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        counts: Counter[bool] = Counter()
        forward = UpstreamAttempt._forward_fast

        def counted(attempt: UpstreamAttempt, data: bytes) -> bool:
            is_forwarded = forward(attempt, data)
            counts[is_forwarded] += 1
            return is_forwarded

        monkeypatch.setattr(UpstreamAttempt, "_forward_fast", counted)
        texts = [f" word{number % 7}" for number in range(60)]
        upstream = GatedUpstream([ROLE, *map(text_chunk, texts), STOP, DONE])
        async with gated_gateway(tmp_path, upstream) as gate:
            await upstream.allow(1)
            first = await start(gate)
            for number in range(2, 30):
                await first.read_events(number - 1)
                await upstream.allow(1)  # one chunk at a time
            await first.lose()
            rest = await resume(gate, first.stream_id, 20)
            await upstream.allow_all()
            await rest.read_all()
            assert counts[True] > 20
            plain = await connect(gate.server.port, "/v1/chat/completions", STREAM)
            assert without_ids(first.events[:20] + rest.events) == b"".join(await plain.read_all())

    run(work())


def test_an_internal_error_is_logged_and_reported() -> None:
    async def work() -> None:
        stream = StreamRegistry(ServeSettings()).open("me", "stream_1")
        assert stream is not None

        async def fail() -> None:
            raise ZeroDivisionError

        await run_detached(stream, fail(), "req_1")
        assert stream.state is StreamState.CUT
        with pytest.raises(ApiError, match="Internal server error"):
            await stream.opened

    run(work())


def test_ended_streams_make_room_for_others(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = GatedUpstream([ROLE, *[text_chunk("x" * 8_000)] * 90, STOP, DONE])
        async with gated_gateway(tmp_path, upstream, resume_bytes=2**20) as gate:
            ids = []
            await upstream.allow_all()
            for _ in range(3):  # 720 KB each
                one = await start(gate)
                await one.read_all()
                assert one.is_complete
                ids.append(one.stream_id)
            statuses = [await resume_status(gate, name) for name in ids]
            assert statuses == [404, 404, 200]

    run(work())


def test_at_shutdown_the_generation_ends_with_an_error_event(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        async with gated_gateway(tmp_path, upstream, drain_s=0.0) as gate:
            await upstream.allow(3)
            lost = await start(gate)
            await lost.read_events(2)
            await lost.lose()
            reading = await start(gate)
            await reading.read_events(2)
            resumed = await resume(gate, lost.stream_id, 2)
            await gate.server.stop()
            for one in (reading, resumed):
                events = await one.read_all()
                assert one.is_complete
                assert b'"code":"shutting_down"' in events[-2]
            assert gate.answers() == []

    run(work())
