"""What goes wrong on purpose: engines that stand still or die, clients that leave, and what the server counts of it."""

import json
import os
import re
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import pytest

from tests.live.raw import CHAT, LIMIT_S, Json, Line, Reply, Said, ask, judged
from tests.live.server import KEY, Running, serving
from welldone.rules.judge import judge

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked at as Linux shows them")
PROCESSING = "llamacpp:requests_processing"
WAITING = "llamacpp:requests_deferred"
RESTARTS = "welldone_engine_restarts_total"
LONG = 2000
"""Tokens of an answer that is not over soon: all that the tiny model's context holds."""
ENGINE = "welldone.engines.llama_child"


@contextmanager
def small(
    model: Path,
    *options: str,
    key: str | None = KEY,
    environment: Mapping[str, str] | None = None,
    is_awaited: bool = True,
) -> Iterator[Running]:
    """A server of its own for a test, with one slot unless it asks for more."""
    words = ["-m", str(model), "--alias", "tiny", "-t", "1", "-np", "1", *options]
    with serving(words, model="tiny", key=key, environment=environment, is_awaited=is_awaited) as running:
        yield running


def request(server: Running, content: str = "Hello", **fields: object) -> Json:
    """The body of a chat request. Nothing is left to chance: else the tiny model breaks a character now and then."""
    messages = [{"role": "user", "content": content}]
    return {"model": server.model, "messages": messages, "temperature": 0, **fields}


def begin(server: Running, content: str = "Hello", *, name: str | None = None, **fields: object) -> Line:
    """A chat request that was sent, and whose reply nobody has read yet. By its name the log knows it."""
    body = request(server, content, **{"max_tokens": 16, "stream": True, **fields})
    return Line(server, CHAT, body, headers={} if name is None else {"x-request-id": name})


def answer(server: Running, content: str = "Hello", **fields: object) -> Said:
    """A judged answer, short unless asked otherwise."""
    with begin(server, content, name=None, **fields) as line:
        return judged(line.reply())


def broken_off(reply: Reply) -> Json:
    """The error of a stream that ended with one: told once, then `[DONE]`, then the end of the HTTP body."""
    assert reply.status == 200, reply.trace.body
    *said, last = chunks = reply.chunks()
    # Who waited has the head of the reply already, so that a status is out of reach.
    known = [] if said else ["err-status-before-stream"]
    findings = judge(reply.trace).findings
    assert [finding.rule for finding in findings] == known, findings
    assert reply.trace.body.endswith(b"\n\ndata: [DONE]\n\n")
    assert reply.trace.complete
    assert [place for place, chunk in enumerate(chunks) if "error" in chunk] == [len(chunks) - 1]
    error = last["error"]
    assert isinstance(error, dict)
    return error


# What the server counts.


def metric(server: Running, name: str) -> float:
    """The sum over all labels; 0 where nothing was counted yet."""
    reply = ask(server, "/metrics")
    assert reply.status == 200, reply.trace.body
    rows = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", reply.trace.body.decode(), re.MULTILINE)
    return sum(float(value) for value in rows)


def until(server: Running, name: str, wanted: float) -> None:
    """Ask until the number is there: each question takes its time, so nothing else need wait."""
    deadline = time.monotonic() + LIMIT_S
    while (value := metric(server, name)) != wanted:
        assert time.monotonic() < deadline, f"{name} is {value}, not {wanted}"


def queued(server: Running, line: Line) -> None:
    """Wait until a request is past the door. A stream shows that by its head, if its engine says nothing yet."""
    if line.body is not None and line.body["stream"]:
        line.wait(b"HTTP/1.1 200 OK")
    else:
        ask(server, "/metrics")  # this one came later, and waits a while for the engine that stands still


def until_refused(server: Running) -> None:
    """Knock until nobody listens any more."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", server.port), LIMIT_S).close()
        except ConnectionRefusedError:
            return
        except ConnectionResetError:
            pass  # it was taken and dropped in the same moment
        assert time.monotonic() < deadline, "it still listens"


# Processes.


class Child:
    """A process that this one did not start, held by a handle that stays true when its number is used again."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._handle = os.pidfd_open(pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            self.go()
        os.close(self._handle)

    def hold(self) -> None:
        """Let it stand still, as a machine does that is too busy."""
        signal.pidfd_send_signal(self._handle, signal.SIGSTOP)

    def go(self) -> None:
        """Let it go on."""
        signal.pidfd_send_signal(self._handle, signal.SIGCONT)

    def kill(self) -> None:
        """What a crash in native code does."""
        signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def wait(self) -> None:
        """Wait until it is gone."""
        readable, _, _ = select.select([self._handle], [], [], LIMIT_S)
        assert readable, f"process {self.pid} is still there"


def engine_of(server: Running) -> Child:
    """The engine of a server with one model."""
    (pid,) = children(server.process.pid)
    assert ENGINE in command_line(pid)
    return Child(pid)


def children(parent: int) -> list[int]:
    """The processes that a process has started, without those that are dead."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                state, above = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if int(above) == parent and state not in "ZX":
                    found.append(int(entry.name))
    return found


def descendants(parent: int) -> list[int]:
    """The same, and those that they have started."""
    direct = children(parent)
    return [*direct, *(pid for child in direct for pid in descendants(child))]


def command_line(pid: int) -> list[str]:
    """The words of a process's command."""
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def files_of(pid: int) -> int:
    """How many files and connections a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def memory_of(pid: int, name: str = "VmRSS") -> int:
    """Bytes of memory that a process holds; as `VmHWM`, the most that it held."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def cpu_of(pid: int) -> float:
    """Seconds of a processor that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# Connections.


def leave(line: Line, *, is_rude: bool = False) -> None:
    """Hang up: with a farewell, or as a machine does that lost its network."""
    if is_rude:
        line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.socket.close()


def speak(server: Running, said: bytes) -> bytes:
    """All that comes back for these bytes, until the server hangs up."""
    with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as connection:
        with suppress(ConnectionError):  # the server may reply and close before it has read all; the reply can be read
            connection.sendall(said)
        heard = b""
        with suppress(ConnectionResetError):
            while data := connection.recv(65536):
                heard += data
        return heard


def post(server: Running, body: Json, *headers: str, version: str = "1.1", path: str = CHAT) -> bytes:
    """A POST as bytes, with the key, on a connection that stays."""
    data = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/{version}",
        f"Host: 127.0.0.1:{server.port}",
        f"Authorization: Bearer {server.key}",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + data


def replies(heard: bytes) -> list[bytes]:
    """The bytes of each whole reply that came on one connection."""
    found = []
    while b"\r\n\r\n" in heard:
        end = heard.index(b"\r\n\r\n") + 4
        if length := re.search(rb"(?i)\r\ncontent-length: (\d+)\r\n", heard[:end]):
            end += int(length[1])
        elif (last := heard.find(b"\r\n0\r\n\r\n", end)) >= 0:
            end = last + 7
        else:
            break
        if len(heard) < end:
            break
        found.append(heard[:end])
        heard = heard[end:]
    return found
