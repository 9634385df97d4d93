"""The client leaves, or does not read: its slot is free again, and nothing of it stays."""

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.live.faults import (
    LINUX,
    LONG,
    PROCESSING,
    WAITING,
    answer,
    begin,
    engine_of,
    files_of,
    leave,
    memory_of,
    metric,
    post,
    queued,
    request,
    small,
    until,
)
from tests.live.raw import Reply, judged
from tests.live.server import LIMIT_S, Running, serving
from welldone.mock.script import CHUNK_TEMPLATE, MockChunk, MockReply, MockScript
from welldone.rules.trace import read_capture

pytestmark = [LINUX, pytest.mark.tier2]
WAYS = pytest.mark.parametrize(
    ("stream", "is_rude"),
    [(True, False), (True, True), (False, False)],
    ids=["a stream, politely", "a stream, rudely", "a whole answer"],
)
RUDE = pytest.mark.parametrize("is_rude", [False, True], ids=["politely", "rudely"])
DISCONNECTS = "welldone_client_disconnects_total"
GONE = r"status=499 .*has_left=yes"


@pytest.fixture(scope="module")
def single(tiny_model: Path) -> Iterator[Running]:
    """A server with one slot: who holds it is in everybody's way."""
    with small(tiny_model, "--write", "1", "--early", "0.1", "--keep-alive", "0.1") as running:
        yield running
        assert running.end() == 0


def assert_free(server: Running) -> None:
    """The slot, the engine and the next in line know that the client is gone."""
    until(server, PROCESSING, 0)
    until(server, WAITING, 0)
    assert metric(server, "welldone_active_streams") == 0
    assert answer(server, "Is it free?").one.finish == "length"


@WAYS
def test_a_client_that_leaves_before_the_first_byte_frees_its_slot(
    single: Running, stream: bool, is_rude: bool
) -> None:
    seen = len(single.log.all)
    with engine_of(single) as engine:
        engine.hold()
        line = begin(single, "word " * 200, stream=stream)
        queued(single, line)
        leave(line, is_rude=is_rude)
        single.log.wait(GONE, seen=seen)
    assert_free(single)


@WAYS
def test_a_client_that_leaves_the_queue_gives_up_its_turn(single: Running, stream: bool, is_rude: bool) -> None:
    seen = len(single.log.all)
    with engine_of(single) as engine:
        engine.hold()
        with begin(single) as first:
            queued(single, first)
            second = begin(single, stream=stream)
            queued(single, second)
            leave(second, is_rude=is_rude)
            single.log.wait(GONE, seen=seen)
            engine.go()
            assert judged(first.reply()).one.finish == "length"
    assert_free(single)


@RUDE
def test_a_client_that_leaves_in_the_midst_of_its_stream_frees_its_slot(single: Running, is_rude: bool) -> None:
    before, seen = metric(single, DISCONNECTS), len(single.log.all)
    line = begin(single, max_tokens=LONG)
    line.wait(rb'(?s)("content":"[^"].*?){3}')
    leave(line, is_rude=is_rude)
    until(single, DISCONNECTS, before + 1)
    single.log.wait(GONE, seen=seen)
    assert_free(single)


@RUDE
def test_a_client_that_leaves_while_a_whole_answer_is_made_frees_its_slot(single: Running, is_rude: bool) -> None:
    before = metric(single, DISCONNECTS)
    line = begin(single, max_tokens=LONG, stream=False)
    until(single, PROCESSING, 1)
    leave(line, is_rude=is_rude)
    until(single, DISCONNECTS, before + 1)
    assert_free(single)


def test_many_clients_that_leave_at_any_time_leave_nothing_behind(single: Running) -> None:
    def open_files(engine: int) -> int:
        metric(single, PROCESSING)
        return files_of(single.process.pid) + files_of(engine)

    with engine_of(single) as engine:
        assert_free(single)
        before = open_files(engine.pid)
        for round_ in range(40):
            line = begin(single, f"Round {round_}", max_tokens=LONG, stream=round_ % 4 != 3)
            if round_ % 2 == 0:
                line.wait(b"data:" if round_ % 4 == 2 else b"HTTP/1.1 200")
            leave(line, is_rude=round_ % 3 == 0)
        assert_free(single)
        while open_files(engine.pid) > before:  # each look asks the server something: that takes its time
            pass


def unread(server: Running, body: dict[str, object]) -> socket.socket:
    """A client that asks and never reads, with room for next to nothing."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.settimeout(LIMIT_S)
    client.connect(("127.0.0.1", server.port))
    client.sendall(post(server, body, "Connection: close"))
    return client


def test_a_client_that_never_reads_loses_its_slot(single: Running) -> None:
    seen = len(single.log.all)
    # With all these log probabilities a token has some KB: more than the system's buffers hold.
    body = request(single, "Much", stream=True, max_tokens=LONG, logprobs=True, top_logprobs=20)
    with unread(single, body):
        single.log.wait("error=client_too_slow", seen=seen)
        assert_free(single)
        assert metric(single, 'welldone_stream_failures_total{reason="client_too_slow"}') == 1


def test_a_client_that_never_reads_and_leaves_frees_its_slot(single: Running) -> None:
    before = metric(single, DISCONNECTS)
    body = request(single, "Much", stream=True, max_tokens=LONG, logprobs=True, top_logprobs=20)
    with unread(single, body):
        until(single, PROCESSING, 1)
    until(single, DISCONNECTS, before + 1)
    assert_free(single)


def test_what_nobody_reads_does_not_pile_up(tmp_path: Path) -> None:
    """An engine that says 64 MB at once to a client that reads none of it."""
    words = CHUNK_TEMPLATE % (msgspec.json.encode({"content": "w" * 65536}).decode(), "null")
    pieces = (MockChunk(CHUNK_TEMPLATE % ('{"role":"assistant","content":""}', "null")), *[MockChunk(words)] * 1024)
    (tmp_path / "script.json").write_bytes(msgspec.json.encode(MockScript(posts=(MockReply(pieces, end="hang"),))))
    command = [sys.executable, "-m", "welldone.mock.server", "--port", "{port}"]
    command += ["--script", str(tmp_path / "script.json")]
    (tmp_path / "welldone.toml").write_text(f"[models.flood]\ncommand = {command}\npreload = true\n")
    with serving(["--write", "1"], folder=tmp_path, model="flood") as server:
        metric(server, PROCESSING)
        before = memory_of(server.process.pid)
        with unread(server, request(server, stream=True)):
            server.log.wait("error=client_too_slow")
            assert memory_of(server.process.pid) - before < 24 * 2**20
        until(server, PROCESSING, 0)


def test_a_client_that_reads_slowly_gets_all_of_it(single: Running) -> None:
    body = request(single, "Much", stream=True, max_tokens=LONG, logprobs=True, top_logprobs=20)
    heard = b""
    with unread(single, body) as client:
        while data := client.recv(4096):
            heard += data
    reply = Reply(msgspec.structs.replace(read_capture(heard), request=body))
    assert judged(reply).one.finish == "length"
