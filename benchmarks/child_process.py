"""Child process of a benchmark that exchanges JSON lines with it over standard input and output."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

import msgspec

Message = TypeVar("Message")

_END_S = 30.0  # an engine has 15 s to shut down


class ChildError(Exception):
    """The child process ended early; the message is the end of its log."""


class Child:
    """Running child process."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: IO[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input, self._output = process.stdin, process.stdout
        self._log = log

    def call(self, message: object, reply_type: type[Message]) -> Message:
        """Send one line and return the reply.

        Raises:
            ChildError: the process has ended.
        """
        try:
            self._input.write(msgspec.json.encode(message) + b"\n")
            self._input.flush()
        except BrokenPipeError:
            raise ChildError(self._end_of_log()) from None
        return self.receive(reply_type)

    def receive(self, message_type: type[Message]) -> Message:
        """Return the next line of output.

        Raises:
            ChildError: the process has ended.
        """
        line = self._output.readline()
        if not line:
            raise ChildError(self._end_of_log())
        return msgspec.json.decode(line, type=message_type)

    def _end_of_log(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-5:]) or "a child process of the benchmark ended without a message"


@contextmanager
def start_child(script: str, arguments: Sequence[str] = ()) -> Iterator[Child]:
    """Run a script of this folder until the context ends; it exits when its standard input closes."""
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(script)), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches the benchmark alone, which then closes the input
        ) as process,
    ):
        try:
            yield Child(process, log)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(_END_S)
            finally:
                process.kill()
