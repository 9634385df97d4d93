"""A running `welldone` command: write to its stdin and read from its stdout step by step."""

import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import IO

from tests.cli.run import COMMAND, ENVIRONMENT, LIMIT_S, CommandResult


@contextmanager
def watched(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill the process on exit, or when it is stuck, so that blocking reads return."""
    watchdog = threading.Timer(LIMIT_S, process.kill)
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()
        watchdog.join()
        process.kill()
        process.communicate()


class Live(AbstractContextManager["Live"]):
    """A running command. Reads block until it writes."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [COMMAND, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, cwd=cwd, env=ENVIRONMENT, bufsize=0
        )
        self._watch = ExitStack()
        self._watch.enter_context(watched(self.process))

    def __exit__(self, *error: object) -> None:
        self._watch.close()

    def write(self, data: bytes) -> None:
        """Write bytes to its standard input."""
        _not_none(self.process.stdin).write(data)

    def read_frame(self) -> bytes:
        """Read the next frame from its standard output, with its blank line."""
        frame = b""
        while not frame.endswith(b"\n\n"):
            byte = _not_none(self.process.stdout).read(1)
            assert byte, f"the output ended within a frame: {frame!r}"
            frame += byte
        return frame

    def end(self) -> CommandResult:
        """Close its standard input and read the rest of its output."""
        out, err = self.process.communicate()
        return CommandResult(self.process.returncode, out, err)


def run_in_pieces(pieces: Iterable[bytes], *arguments: str, cwd: Path) -> CommandResult:
    """Run `welldone` so that each of its reads returns exactly one of these pieces.

    A pipe would join them; a SOCK_SEQPACKET socket keeps packets apart.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        ours.settimeout(LIMIT_S)
        with theirs:
            process = subprocess.Popen(
                [COMMAND, *arguments], stdin=theirs.fileno(), stdout=out, stderr=err, cwd=cwd, env=ENVIRONMENT
            )
        with watched(process):
            for piece in pieces:
                ours.send(piece)
            ours.close()
            code = process.wait()
        return CommandResult(code, _read_file(out), _read_file(err))


def bytes_of(data: bytes) -> list[bytes]:
    """Split the data into pieces of one byte."""
    return [data[index : index + 1] for index in range(len(data))]


def _read_file(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _not_none(file: IO[bytes] | None) -> IO[bytes]:
    assert file is not None
    return file
