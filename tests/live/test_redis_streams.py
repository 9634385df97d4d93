"""Resumable streams of two front ends that share a Redis: one of them dies, is stopped for a while, or is busy."""

import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.live.redis import NEEDS_REDIS, RealRedis
from tests.support.raw import CHAT, RawConnection, fetch
from tests.support.server import Running
from tests.support.upstream import Upstream, gateway

pytestmark = [NEEDS_REDIS, pytest.mark.tier2]
ASKS = {"x-welldone-resume": "1"}
MESSAGES = [{"role": "user", "content": "Hi"}]
STALLS: dict[str, Any] = {"model": "stalls", "stream": True}
"""The upstream sends some text and then nothing."""
DIALECTS: dict[str, tuple[str, dict[str, Any], bytes]] = {
    "chat": (
        CHAT,
        {**STALLS, "messages": MESSAGES},
        rb'data: \{"error":\{.*"code":"server_gone"\}\}\n\ndata: \[DONE\]',
    ),
    "text": (
        "/v1/completions",
        {**STALLS, "prompt": "Hi"},
        rb'data: \{"error":\{.*"server_gone"\}\}\n\ndata: \[DONE\]',
    ),
    "messages": (
        "/v1/messages",
        {**STALLS, "messages": MESSAGES, "max_tokens": 9},
        rb'event: error\ndata: \{"type":"error","error":\{.*\}\}',
    ),
    "responses": (
        "/v1/responses",
        {**STALLS, "input": "Hi"},
        rb'event: response.failed\ndata: \{"type":"response.failed","sequence_number":\d+,"response":\{"id":"resp_.*\}',
    ),
    "gemini": (
        "/v1beta/models/stalls:streamGenerateContent?alt=sse",
        {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]},
        rb'data: \{"error":\{.*"reason":"server_gone".*\}\}',
    ),
}


@pytest.fixture
def fronts(tmp_path: Path, backend: Upstream, redis: RealRedis) -> Iterator[list[Running]]:
    with ExitStack() as stack:
        servers = []
        for number in range(2):
            folder = tmp_path / str(number)
            folder.mkdir()
            settings = f'[limits]\nstore = "{redis.url}"\n'
            servers.append(stack.enter_context(gateway(folder, backend.url, more=settings)))
        yield servers


def resume(server: Running, stream_id: str, after: int = 0) -> RawConnection:
    return RawConnection(server, f"/v1/streams/{stream_id}", headers={"Last-Event-ID": str(after)})


def start(server: Running, path: str = CHAT, body: dict[str, Any] = DIALECTS["chat"][1]) -> tuple[RawConnection, str]:
    """Start a stream, and read its first text."""
    connection = RawConnection(server, path, body, headers=ASKS)
    connection.wait(b"Hello|message_start")
    return connection, connection.wait(rb"x-welldone-stream-id: (\S+)")[1].decode()


def resumed(server: Running, stream_id: str) -> RawConnection:
    """Resume a stream from its start, when its first events are copied."""
    while True:
        connection = resume(server, stream_id)
        if connection.wait(rb"HTTP/1.1 (\d+)")[1] == b"200":
            connection.wait(b"Hello|message_start")
            return connection
        with connection:
            connection.reply()


def last_event(body: bytes) -> bytes:
    """What follows the last event with a number, without keep-alives."""
    last = re.split(rb"(?:^|\n)(?=id: \d+\n)", body)[-1].partition(b"\n\n")[2]
    return re.sub(rb"^:.*\n", b"", last, flags=re.MULTILINE)


def test_the_readers_of_a_dead_front_end_get_an_error_event(fronts: list[Running]) -> None:
    one, other = fronts
    with ExitStack() as stack:
        readers = {}
        for name, (path, body, _) in DIALECTS.items():
            first, stream_id = start(one, path, body)
            stack.enter_context(first)
            readers[name, stream_id] = stack.enter_context(resumed(other, stream_id))
        one.process.send_signal(signal.SIGKILL)
        for (name, stream_id), reader in readers.items():
            reply = reader.reply()
            assert reply.trace.complete, name
            assert re.fullmatch(DIALECTS[name][2] + rb"\n\n", last_event(reply.trace.body)), reply.trace.body
            if name == "chat":
                with resume(other, stream_id) as later:  # a client that comes later gets the same
                    again = later.reply()
                assert (again.status, again.trace.complete) == (200, True)
                assert last_event(again.trace.body) == last_event(reply.trace.body)
    other.log.wait("error=server_gone")


def test_a_front_end_that_was_declared_dead_may_come_back(fronts: list[Running]) -> None:
    one, other = fronts
    first, stream_id = start(one)
    with first, resumed(other, stream_id) as reader:
        one.process.send_signal(signal.SIGSTOP)
        try:
            ended = reader.reply()
        finally:
            one.process.send_signal(signal.SIGCONT)
    assert b"server_gone" in last_event(ended.trace.body)
    with resumed(other, stream_id) as reader:
        assert fetch(other, f"/v1/streams/{stream_id}", method="DELETE").status == 200
        reader.reply()  # the front end that came back has ended the stream
