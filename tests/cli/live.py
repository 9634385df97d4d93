"""A `welldone` that is still running: write a piece, read what it gives back, and only then write the next."""

import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import IO

from tests.cli.run import COMMAND, ENVIRONMENT, LIMIT_S, Ran


@contextmanager
def watched(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kills a process that is stuck, so that reads which block end as well; and every process in the end."""
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
    """A running command. Reads block until it says something."""

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
        """Send bytes to its standard input, now."""
        _there(self.process.stdin).write(data)

    def read_frame(self) -> bytes:
        """The next frame of its standard output, with its blank line."""
        frame = b""
        while not frame.endswith(b"\n\n"):
            byte = _there(self.process.stdout).read(1)
            assert byte, f"the output ended within a frame: {frame!r}"
            frame += byte
        return frame

    def end(self) -> Ran:
        """End its standard input, and take what is left of the output."""
        out, err = self.process.communicate()
        return Ran(self.process.returncode, out, err)


def run_in_pieces(pieces: Iterable[bytes], *arguments: str, cwd: Path) -> Ran:
    """Run `welldone` so that each of its reads gets exactly one of these pieces.

    A pipe would join them. A socket that keeps packets apart does not, and nobody has to wait or to guess.
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
        return Ran(code, _all(out), _all(err))


def bytes_of(data: bytes) -> list[bytes]:
    """The data in pieces of one byte."""
    return [data[place : place + 1] for place in range(len(data))]


def _all(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _there(file: IO[bytes] | None) -> IO[bytes]:
    assert file is not None
    return file
