"""A program of the benchmark that runs beside it. It takes lines of JSON and answers each with one."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

import msgspec

Message = TypeVar("Message")

_END_S = 30.0  # an engine has 15 s for its end


class ChildError(Exception):
    """It has ended before its time; its last words."""


class Child:
    """One that runs."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: IO[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input, self._output = process.stdin, process.stdout
        self._log = log

    def ask(self, question: object, kind: type[Message]) -> Message:
        """Its answer to a line."""
        try:
            self._input.write(msgspec.json.encode(question) + b"\n")
            self._input.flush()
        except BrokenPipeError:
            raise ChildError(self._last_words()) from None
        return self.hear(kind)

    def hear(self, kind: type[Message]) -> Message:
        """The next line that it says."""
        line = self._output.readline()
        if not line:
            raise ChildError(self._last_words())
        return msgspec.json.decode(line, type=kind)

    def _last_words(self) -> str:
        self._log.seek(0)
        words = self._log.read().decode(errors="replace").splitlines()
        return "\n".join(words[-5:]) or "a program of the benchmark has ended"


@contextmanager
def started(script: str, arguments: Sequence[str] = ()) -> Iterator[Child]:
    """The script beside this one, running. It ends when its input does."""
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(script)), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for the benchmark, which then ends its input
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
