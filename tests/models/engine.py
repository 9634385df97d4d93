"""Client of llama.cpp with one model over its socket, without welldone in between."""

import http.client
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

CHILD = Path(__file__).with_name("child.py")
LIMIT_S = 60.0  # a tiny model is ready in 0.1 s and answers in less than 1; the limit is for a busy machine


class Engine:
    """A running engine."""

    def __init__(self, address: str) -> None:
        self._address = address

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON of a successful reply."""
        status, data = self._post(path, body)
        assert status == http.HTTPStatus.OK, data
        answer: dict[str, Any] = json.loads(data)
        return answer

    def chat(self, content: Any, **body: Any) -> dict[str, Any]:  # noqa: ANN401 - text, or parts of a message
        """Return the only choice of a chat."""
        answer = self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], **body})
        choice: dict[str, Any] = answer["choices"][0]
        return choice

    def deltas(self, content: str, **body: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - fields of a request
        """Return the deltas of a streamed chat."""
        parameters = {"messages": [{"role": "user", "content": content}], "stream": True, **body}
        status, data = self._post("/v1/chat/completions", parameters)
        assert status == http.HTTPStatus.OK, data
        lines = [line.removeprefix(b"data: ") for line in data.split(b"\n") if line.startswith(b"data: {")]
        return [choice["delta"] for line in lines for choice in json.loads(line)["choices"]]

    def _post(self, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        with closing(_Connection(self._address)) as connection:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()


@contextmanager
def engine(model: Path, **params: Any) -> Iterator[Engine]:  # noqa: ANN401 - parameters of xllamacpp
    """Run an engine for the duration of the block."""
    # Not pytest's folder, whose path is long: the path of a socket has at most 108 bytes.
    with tempfile.TemporaryDirectory(prefix="tiny-") as folder, (Path(folder) / "log").open("w+b") as log:
        address = str(Path(folder) / "e.sock")  # llama.cpp recognises a socket by this suffix
        parameters = {"model": str(model), "socket": address, "n_parallel": 1, "n_ctx": 2048, "ui": False, **params}
        with subprocess.Popen(
            [sys.executable, str(CHILD), json.dumps(parameters)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "OMP_WAIT_POLICY": "passive"},
        ) as child:
            try:
                _await_ready(child, Path(log.name))
                yield Engine(address)
            finally:
                _end(child)


def _await_ready(child: subprocess.Popen[bytes], log: Path) -> None:
    assert child.stdout is not None
    readable, _, _ = select.select([child.stdout], [], [], LIMIT_S)
    line = child.stdout.readline() if readable else b""
    assert line == b"ready\n", log.read_text(errors="replace")[-4000:]


def _end(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    child.stdin.close()  # it ends at EOF
    try:
        child.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        raise


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, address: str) -> None:
        super().__init__("localhost", timeout=LIMIT_S)
        self._address = address

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(LIMIT_S)
        self.sock.connect(self._address)
