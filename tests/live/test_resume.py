"""Streams that are resumed: the documented examples with the default model, and several workers."""

import json
import os
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.clients.client import ROOT, Program
from tests.live.test_gateway_workers import slow_or_by_model, suspended, two_workers, workers
from tests.support.faults import LINUX
from tests.support.raw import CHAT, LIMIT_S, RawConnection, fetch
from tests.support.server import Running
from tests.support.upstream import Upstream, upstream
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

pytestmark = pytest.mark.tier2  # needs curl, or the packages of `make clients`

PAGE = (ROOT / "docs" / "resume.md").read_text("utf-8")
ASKS = {"x-welldone-resume": "1"}


def examples(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def run_example(server: Running, tmp_path: Path) -> Callable[..., str]:
    """Run a program with the address and the key of the server."""

    def run(*command: str) -> str:
        environment = {
            **os.environ,
            "OPENAI_BASE_URL": server.url,
            "OPENAI_API_KEY": server.key or "none",
        }
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.tier2
def test_the_documented_curl_commands_give_the_whole_stream(
    server: Running, run_example: Callable[..., str], tmp_path: Path
) -> None:
    (script,) = examples("bash")
    run_example("bash", "-e", "-c", script)
    first, rest = ((tmp_path / name).read_bytes() for name in ("first.txt", "rest.txt"))
    numbers = [int(number) for number in re.findall(rb"^id: (\d+)$", first + rest, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert re.findall(rb"^id: (\d+)$", first, re.MULTILINE) == [b"1", b"2", b"3"]
    body = re.sub(rb"^id: \d+\n", b"", first + rest, flags=re.MULTILINE)
    request = {"stream": True, "max_tokens": 40, "messages": [{"role": "user", "content": "Tell me a story."}]}
    assert not judge(Trace(body=body, endpoint="chat", request=request)).findings
    assert body.endswith(b"data: [DONE]\n\n")


@pytest.mark.tier2
@pytest.mark.parametrize("number", [0, 1], ids=["chat", "responses"])
def test_the_documented_programs_print_the_whole_answer(
    server: Running, run_example: Callable[..., str], number: int
) -> None:
    program = Program(name="examples", home="clients", file="none")
    if reason := program.why_missing():
        pytest.skip(reason)
    python = program.command()[0]
    program_text = examples("python")[number].replace("smollm2-135m-instruct", server.model)
    assert len(run_example(python, "-c", program_text).split()) > 10


class Hiccup(BaseHTTPRequestHandler):
    """Sends five events of a stream; then it does not know whether it has the stream; then it sends the others."""

    answers = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send(range(1, 6))

    def do_GET(self) -> None:
        type(self).answers += 1
        if self.answers <= 2:
            self.send_response(503)
            self.send_header("Retry-After", "0")
            self.end_headers()
        else:
            self.send(range(int(self.headers["Last-Event-ID"]) + 1, 10))

    def send(self, numbers: range) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("x-welldone-stream-id", "stream_1")
        self.end_headers()
        for number in numbers:
            data = "[DONE]" if number == 9 else json.dumps({"choices": [{"delta": {"content": f"w{number} "}}]})
            self.wfile.write(f"id: {number}\ndata: {data}\n\n".encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.tier2
def test_the_documented_client_tries_again_after_a_503() -> None:
    program = Program(name="examples", home="clients", file="none")
    if reason := program.why_missing():
        pytest.skip(reason)
    with ThreadingHTTPServer(("127.0.0.1", 0), Hiccup) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environment = {**os.environ, "OPENAI_BASE_URL": f"http://127.0.0.1:{server.server_port}/v1"}
        command = [program.command()[0], "-c", examples("python")[0]]
        text = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=True
        ).stdout
        server.shutdown()
    assert text.split() == [f"w{number}" for number in range(1, 9)]
    assert Hiccup.answers == 3


@pytest.fixture
def slow_backend() -> Iterator[Upstream]:
    with upstream(slow_or_by_model) as started:
        yield started


@LINUX
def test_a_stream_is_resumed_by_another_worker(tmp_path: Path, slow_backend: Upstream) -> None:
    """The request to resume is accepted by one worker while the other, which has the stream, is suspended."""
    body = {"model": "slow", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    with two_workers(tmp_path, slow_backend) as server, workers(server) as (one, other):
        with suspended(one), RawConnection(server, CHAT, body, headers=ASKS) as first:
            first.wait(rb"id: 3\n.*\n\n")
            stream_id = first.wait(rb"(?i)x-welldone-stream-id: (\S+)")[1].decode()
        head = f"GET /v1/streams/{stream_id} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in server.headers().items())
        with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as connection:
            with suspended(other):
                connection.sendall(head.encode())
                assert fetch(server, "/livez").status == 200  # connected later, so the first one was accepted
            connection.sendall(b"Last-Event-ID: 3\r\n\r\n")
            received = b""
            while data := connection.recv(65536):
                received += data
        assert received.startswith(b"HTTP/1.1 200 OK")
        assert received.endswith(b"0\r\n\r\n")
        numbers = [int(number) for number in re.findall(rb"^id: (\d+)\r?$", received, re.MULTILINE)]
        assert numbers == list(range(4, 45))
        assert b"data: [DONE]" in received
        with RawConnection(server, f"/v1/streams/{stream_id}", method="DELETE") as connected:
            assert connected.reply().status == 200
        assert all(fetch(server, f"/v1/streams/{stream_id}").status == 404 for _ in range(4))
        assert server.end() == 0
