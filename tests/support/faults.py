"""Helpers for failure tests: suspend or kill engines, disconnect clients, read metrics and process data."""

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

from tests.support.raw import CHAT, LIMIT_S, Json, ParsedReply, RawConnection, Reply, fetch, parse_valid
from tests.support.server import KEY, Running, serving
from welldone.rules.judge import judge

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and pidfd of Linux")
PROCESSING = "llamacpp:requests_processing"
DEFERRED = "llamacpp:requests_deferred"
RESTARTS = "welldone_engine_restarts_total"
LONG_ANSWER = 2000
"""Tokens of an answer that still runs when the fault is injected: nearly all of the tiny model's context."""
ENGINE = "welldone.engines.llama_child"
COMMAND_CHILD = "welldone.engines.command_child"


@contextmanager
def small_server(
    model: Path,
    *options: str,
    key: str | None = KEY,
    environment: Mapping[str, str] | None = None,
    is_awaited: bool = True,
) -> Iterator[Running]:
    """Run a server with the model, one thread and one slot; later options override these."""
    arguments = ["-m", str(model), "--alias", "tiny", "-t", "1", "-np", "1", *options]
    with serving(arguments, model="tiny", key=key, environment=environment, is_awaited=is_awaited) as running:
        yield running


def chat_body(server: Running, content: str = "Hello", **fields: object) -> Json:
    """The body of a chat request. With temperature 0 the tiny model produces only complete characters."""
    messages = [{"role": "user", "content": content}]
    return {"model": server.model, "messages": messages, "temperature": 0, **fields}


def start_chat(server: Running, content: str = "Hello", *, name: str | None = None, **fields: object) -> RawConnection:
    """Send a chat request without reading the reply. The name becomes the request id in the log."""
    body = chat_body(server, content, **{"max_tokens": 16, "stream": True, **fields})
    return RawConnection(server, CHAT, body, headers={} if name is None else {"x-request-id": name})


def chat_once(server: Running, content: str = "Hello", **fields: object) -> ParsedReply:
    """Request a short streamed chat completion and return the valid answer."""
    with start_chat(server, content, name=None, **fields) as connection:
        return parse_valid(connection.reply())


def stream_error(reply: Reply) -> Json:
    """The error of a stream that failed: one error event, then `[DONE]`, then a complete HTTP body."""
    assert reply.status == 200, reply.trace.body
    *earlier, last = chunks = reply.chunks()
    # A queued request has received the head of its response already, so the error cannot have a status.
    expected = [] if earlier else ["err-status-before-stream"]
    findings = judge(reply.trace).findings
    assert [finding.rule for finding in findings] == expected, findings
    assert reply.trace.body.endswith(b"\n\ndata: [DONE]\n\n")
    assert reply.trace.complete
    assert [index for index, chunk in enumerate(chunks) if "error" in chunk] == [len(chunks) - 1]
    error = last["error"]
    assert isinstance(error, dict)
    return error


# Metrics.


def metric(server: Running, name: str) -> float:
    """The value of a metric, summed over all labels; 0 if it has no sample yet."""
    reply = fetch(server, "/metrics")
    assert reply.status == 200, reply.trace.body
    rows = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", reply.trace.body.decode(), re.MULTILINE)
    return sum(float(value) for value in rows)


def wait_for_metric(server: Running, name: str, expected: float) -> None:
    """Poll until the metric has the value."""
    deadline = time.monotonic() + LIMIT_S
    while (value := metric(server, name)) != expected:
        assert time.monotonic() < deadline, f"{name} is {value}, not {expected}"


def wait_until_accepted(server: Running, connection: RawConnection) -> None:
    """Wait until the server has accepted a request whose engine is suspended. A stream receives its head early."""
    if connection.body is not None and connection.body["stream"]:
        connection.wait(b"HTTP/1.1 200 OK")
    else:
        fetch(server, "/metrics")  # sent later, so it is answered later: it waits for the suspended engine


def wait_until_refused(server: Running) -> None:
    """Connect until the server refuses connections."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", server.port), LIMIT_S).close()
        except ConnectionRefusedError:
            return
        except ConnectionResetError:
            pass  # accepted and closed at once
        assert time.monotonic() < deadline, "the server still accepts connections"


# Processes.


class Child:
    """A process that the test did not start, referenced by a pidfd, which is immune to reuse of the pid."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._handle = os.pidfd_open(pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            self.resume()
        os.close(self._handle)

    def suspend(self) -> None:
        """Stop the process, as on an overloaded machine, and wait until all its threads have stopped."""
        signal.pidfd_send_signal(self._handle, signal.SIGSTOP)
        deadline = time.monotonic() + LIMIT_S
        while any(_state_and_parent(task)[0] != "T" for task in Path(f"/proc/{self.pid}/task").iterdir()):
            assert time.monotonic() < deadline, f"process {self.pid} still runs"
            os.sched_yield()

    def resume(self) -> None:
        """Continue the stopped process."""
        signal.pidfd_send_signal(self._handle, signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process, as a crash in native code does."""
        signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def has_ended(self, within_s: float) -> bool:
        """Whether the process ends within the time."""
        readable, _, _ = select.select([self._handle], [], [], within_s)
        return bool(readable)

    def wait(self) -> None:
        """Wait until the process has ended."""
        assert self.has_ended(LIMIT_S), f"process {self.pid} still runs"


def engine_of(server: Running) -> Child:
    """The engine process of a server with one model; a standby engine has a higher pid."""
    return Child(min(pid for pid in descendants(server.process.pid) if _is_engine(command_line(pid))))


def _is_engine(words: list[str]) -> bool:
    is_guard = COMMAND_CHILD in words
    return ENGINE in words or (not is_guard and any(Path(word).name == "llama-server" for word in words[:8]))


def _state_and_parent(entry: Path) -> list[str]:
    """The state of a process or thread and the pid of its parent, from its folder in /proc."""
    return (entry / "stat").read_text().rpartition(")")[2].split()[:2]


def children(parent: int) -> list[int]:
    """The pids of the child processes, without zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                state, above = _state_and_parent(entry)
                if int(above) == parent and state not in "ZX":
                    found.append(int(entry.name))
    return found


def descendants(parent: int) -> list[int]:
    """The pids of the child processes and of all their descendants, without zombies."""
    direct = children(parent)
    return [*direct, *(pid for child in direct for pid in descendants(child))]


def command_line(pid: int) -> list[str]:
    """The arguments of a process."""
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def open_files_of(pid: int) -> int:
    """The number of open file descriptors of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def memory_of(pid: int, name: str = "VmRSS") -> int:
    """Resident memory of a process in bytes; `VmHWM` is the peak."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def cpu_of(pid: int) -> float:
    """CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# Connections.


def disconnect(connection: RawConnection, *, is_reset: bool = False) -> None:
    """Close the connection with FIN, or with RST."""
    if is_reset:
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.socket.close()


def send_raw(server: Running, data: bytes) -> bytes:
    """Send these bytes on a new connection and return all received bytes, until the server closes it."""
    with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as connection:
        with suppress(ConnectionError):  # the server may reply and close before it has read all
            connection.sendall(data)
        received = b""
        with suppress(ConnectionResetError):
            while piece := connection.recv(65536):
                received += piece
        return received


def post_bytes(server: Running, body: Json, *headers: str, version: str = "1.1", path: str = CHAT) -> bytes:
    """The bytes of a POST request with the API key, on a persistent connection."""
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


def split_replies(received: bytes) -> list[bytes]:
    """The complete replies that were received on one connection, as bytes."""
    found = []
    while b"\r\n\r\n" in received:
        end = received.index(b"\r\n\r\n") + 4
        if length := re.search(rb"(?i)\r\ncontent-length: (\d+)\r\n", received[:end]):
            end += int(length[1])
        elif (last := received.find(b"\r\n0\r\n\r\n", end)) >= 0:
            end = last + 7
        else:
            break
        if len(received) < end:
            break
        found.append(received[:end])
        received = received[end:]
    return found
