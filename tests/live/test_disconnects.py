"""Clients that disconnect or do not read: their slots are released, and nothing remains."""

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.support.faults import (
    DEFERRED,
    LINUX,
    LONG_ANSWER,
    PROCESSING,
    chat_body,
    chat_once,
    disconnect,
    engine_of,
    memory_of,
    metric,
    open_files_of,
    post_bytes,
    small_server,
    start_chat,
    wait_for_metric,
    wait_until_accepted,
)
from tests.support.raw import Reply, parse_valid
from tests.support.server import LIMIT_S, Running, serving
from welldone.mock.script import CHUNK_TEMPLATE, MockChunk, MockReply, MockScript
from welldone.rules.trace import read_capture

pytestmark = [LINUX, pytest.mark.tier2]
DISCONNECT_KINDS = pytest.mark.parametrize(
    ("stream", "is_reset"),
    [(True, False), (True, True), (False, False)],
    ids=["a stream, FIN", "a stream, RST", "a whole answer"],
)
FIN_OR_RST = pytest.mark.parametrize("is_reset", [False, True], ids=["FIN", "RST"])
DISCONNECTS = "welldone_client_disconnects_total"
DISCONNECTED = r"status=499 .*has_left=yes"


@pytest.fixture(scope="module")
def one_slot(tiny_model: Path) -> Iterator[Running]:
    """A server with one slot, which a leak would block for all requests."""
    with small_server(tiny_model, "--write", "1", "--early", "0.1", "--keep-alive", "0.1") as running:
        yield running
        assert running.end() == 0


def assert_free(server: Running) -> None:
    """Assert that the slot and the queue are empty and that the next request is answered."""
    wait_for_metric(server, PROCESSING, 0)
    wait_for_metric(server, DEFERRED, 0)
    assert metric(server, "welldone_active_streams") == 0
    assert chat_once(server, "Is it free?").choice.finish == "length"


@DISCONNECT_KINDS
def test_a_disconnect_before_the_first_byte_releases_the_slot(one_slot: Running, stream: bool, is_reset: bool) -> None:
    seen = len(one_slot.log.all)
    with engine_of(one_slot) as engine:
        engine.suspend()
        connection = start_chat(one_slot, "word " * 200, stream=stream)
        wait_until_accepted(one_slot, connection)
        disconnect(connection, is_reset=is_reset)
        one_slot.log.wait(DISCONNECTED, seen=seen)
    assert_free(one_slot)


@DISCONNECT_KINDS
def test_a_queued_request_is_dropped_when_its_client_disconnects(
    one_slot: Running, stream: bool, is_reset: bool
) -> None:
    seen = len(one_slot.log.all)
    with engine_of(one_slot) as engine:
        engine.suspend()
        with start_chat(one_slot) as first:
            wait_until_accepted(one_slot, first)
            second = start_chat(one_slot, stream=stream)
            wait_until_accepted(one_slot, second)
            disconnect(second, is_reset=is_reset)
            one_slot.log.wait(DISCONNECTED, seen=seen)
            engine.resume()
            assert parse_valid(first.reply()).choice.finish == "length"
    assert_free(one_slot)


@FIN_OR_RST
def test_a_disconnect_during_a_stream_releases_the_slot(one_slot: Running, is_reset: bool) -> None:
    before, seen = metric(one_slot, DISCONNECTS), len(one_slot.log.all)
    connection = start_chat(one_slot, max_tokens=LONG_ANSWER)
    connection.wait(rb'(?s)("content":"[^"].*?){3}')
    disconnect(connection, is_reset=is_reset)
    wait_for_metric(one_slot, DISCONNECTS, before + 1)
    one_slot.log.wait(DISCONNECTED, seen=seen)
    assert_free(one_slot)


@FIN_OR_RST
def test_a_disconnect_during_a_whole_answer_releases_the_slot(one_slot: Running, is_reset: bool) -> None:
    before = metric(one_slot, DISCONNECTS)
    connection = start_chat(one_slot, max_tokens=LONG_ANSWER, stream=False)
    wait_for_metric(one_slot, PROCESSING, 1)
    disconnect(connection, is_reset=is_reset)
    wait_for_metric(one_slot, DISCONNECTS, before + 1)
    assert_free(one_slot)


def test_many_disconnects_at_any_time_leak_no_file_descriptors(one_slot: Running) -> None:
    def open_files(engine: int) -> int:
        metric(one_slot, PROCESSING)
        return open_files_of(one_slot.process.pid) + open_files_of(engine)

    with engine_of(one_slot) as engine:
        assert_free(one_slot)
        before = open_files(engine.pid)
        for round_ in range(40):
            connection = start_chat(one_slot, f"Round {round_}", max_tokens=LONG_ANSWER, stream=round_ % 4 != 3)
            if round_ % 2 == 0:
                connection.wait(b"data:" if round_ % 4 == 2 else b"HTTP/1.1 200")
            disconnect(connection, is_reset=round_ % 3 == 0)
        assert_free(one_slot)
        while open_files(engine.pid) > before:  # each iteration queries the server, so it needs no pause
            pass


def connect_without_reading(server: Running, body: dict[str, object]) -> socket.socket:
    """Send a request on a socket with a tiny receive buffer, without reading the reply."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.settimeout(LIMIT_S)
    client.connect(("127.0.0.1", server.port))
    client.sendall(post_bytes(server, body, "Connection: close"))
    return client


def test_a_client_that_does_not_read_is_disconnected(one_slot: Running) -> None:
    seen = len(one_slot.log.all)
    # With log probabilities a token has several KB, so the stream exceeds the socket buffers.
    body = chat_body(one_slot, "Much", stream=True, max_tokens=LONG_ANSWER, logprobs=True, top_logprobs=20)
    with connect_without_reading(one_slot, body):
        one_slot.log.wait("error=client_too_slow", seen=seen)
        assert_free(one_slot)
        assert metric(one_slot, 'welldone_stream_failures_total{reason="client_too_slow"}') == 1


def test_a_client_that_does_not_read_and_disconnects_releases_its_slot(one_slot: Running) -> None:
    before = metric(one_slot, DISCONNECTS)
    body = chat_body(one_slot, "Much", stream=True, max_tokens=LONG_ANSWER, logprobs=True, top_logprobs=20)
    with connect_without_reading(one_slot, body):
        wait_for_metric(one_slot, PROCESSING, 1)
    wait_for_metric(one_slot, DISCONNECTS, before + 1)
    assert_free(one_slot)


def test_unread_output_is_not_buffered_without_limit(tmp_path: Path) -> None:
    """The engine sends 64 MB at once to a client that reads none of it."""
    large = CHUNK_TEMPLATE % (msgspec.json.encode({"content": "w" * 65536}).decode(), "null")
    pieces = (MockChunk(CHUNK_TEMPLATE % ('{"role":"assistant","content":""}', "null")), *[MockChunk(large)] * 1024)
    (tmp_path / "script.json").write_bytes(msgspec.json.encode(MockScript(posts=(MockReply(pieces, end="hang"),))))
    command = [sys.executable, "-m", "welldone.mock.server", "--port", "{port}"]
    command += ["--script", str(tmp_path / "script.json")]
    (tmp_path / "welldone.toml").write_text(f"[models.flood]\ncommand = {command}\npreload = true\n")
    with serving(["--write", "1"], folder=tmp_path, model="flood") as server:
        metric(server, PROCESSING)
        before = memory_of(server.process.pid)
        with connect_without_reading(server, chat_body(server, stream=True)):
            server.log.wait("error=client_too_slow")
            assert memory_of(server.process.pid) - before < 24 * 2**20
        wait_for_metric(server, PROCESSING, 0)


def test_a_slow_client_receives_the_whole_stream(one_slot: Running) -> None:
    body = chat_body(one_slot, "Much", stream=True, max_tokens=LONG_ANSWER, logprobs=True, top_logprobs=20)
    received = b""
    with connect_without_reading(one_slot, body) as client:
        while data := client.recv(4096):
            received += data
    reply = Reply(msgspec.structs.replace(read_capture(received), request=body))
    assert parse_valid(reply).choice.finish == "length"
