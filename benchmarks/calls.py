"""Calls of Python functions of the real gateway per request and per chunk, and the files that the functions are in.

They say how much code a reader must follow. They do not depend on the machine:

    python benchmarks/calls.py
    git worktree add DIR REVISION; python benchmarks/calls.py --tree DIR
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import CodeType, FrameType
from typing import Any, NamedTuple

from gateway_in_steps import Client, StepError, Upstream  # isort: skip  # same folder: a script's own is on the path
from instructions import ADDRESS, CHAT, REQUESTS_BY_NAME, STREAM  # isort: skip

FOLDER = Path(__file__).parent
_WARM_UP, _REQUESTS, _CHUNKS = 16, 9, 12
_END_S = 60.0
_CHILD = "--child"
_GEMINI = {
    "contents": [{"parts": [{"text": "Hi"}]}],
    "generationConfig": {"thinkingConfig": {"includeThoughts": True}},
}
STREAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", CHAT | STREAM),
    "Messages": (
        "/v1/messages",
        {
            "model": "m",
            "max_tokens": 2048,
            "messages": CHAT["messages"],
            "stream": True,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        },
    ),
    "Responses": ("/v1/responses", {"model": "m", "input": "Hi", "stream": True, "store": False}),
    "Gemini": ("/v1beta/models/m:streamGenerateContent?alt=sse", _GEMINI),
    "Ollama": ("/api/chat", {"model": "m", "messages": CHAT["messages"], "think": True}),
}
"""Path and request of a client of each dialect."""


class Calls(NamedTuple):
    """Calls between two marks, and the files of the functions."""

    calls: int
    files: int


class Recorder:
    """Counts the calls of the main thread."""

    def __init__(self) -> None:
        self._counts: Counter[CodeType] = Counter()

    def on_event(self, frame: FrameType, event: str, _: object) -> None:
        """Count a call; a generator or coroutine that goes on is one too."""
        if event == "call":
            self._counts[frame.f_code] += 1

    def take(self, folder: str) -> Calls:
        """Return the calls of functions of a folder since the last time."""
        counts, self._counts = self._counts, Counter()
        own = {code: count for code, count in counts.items() if code.co_filename.startswith(folder)}
        return Calls(sum(own.values()), len({code.co_filename for code in own}))


def run_child() -> None:
    """Run `welldone` with the arguments. Each line of standard input is answered by the calls since the one before."""
    import welldone.__main__

    recorder, folder = Recorder(), str(Path(welldone.__main__.__file__).parent)

    def answer_lines() -> None:
        while os.read(sys.stdin.fileno(), 1):
            print(json.dumps(recorder.take(folder)), flush=True)

    threading.Thread(target=answer_lines, daemon=True).start()
    sys.setprofile(recorder.on_event)
    sys.exit(welldone.__main__.main())


@contextmanager
def gateway(tree: Path, upstream: Upstream) -> Iterator[tuple[Callable[[], Calls], int]]:
    """Run a gateway whose calls are counted; yields a function that returns them, and the port."""
    with tempfile.TemporaryDirectory(prefix="calls-") as name:
        config = Path(name) / "welldone.toml"
        config.write_text(f'[upstreams.up]\nurl = "http://127.0.0.1:{upstream.port}/v1"\nmodels = ["m"]\nprobe_s = 0\n')
        arguments = ["serve", "--config", str(config), "--port", "0", "--no-api-key", "--quiet"]
        with subprocess.Popen(
            [sys.executable, __file__, _CHILD, *arguments],
            env={"PYTHONPATH": str(tree / "src"), "HOME": name},
            cwd=name,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                output, marks = process.stdout, process.stdin
                address = next((match for line in output if (match := ADDRESS.search(line))), None)
                if address is None:
                    raise StepError("the gateway did not start")

                def take() -> Calls:
                    marks.write(b"\n")
                    marks.flush()
                    line = next(line for line in output if line.startswith(b"["))
                    return Calls(*json.loads(line))

                yield take, int(address[1])
            finally:
                process.terminate()
                process.wait(_END_S)


def measure(tree: Path) -> dict[str, Calls]:
    """Return the calls by what was done."""
    figures: dict[str, Calls] = {}
    with Upstream() as upstream, gateway(tree, upstream) as (take, port), Client(port, upstream) as client:

        def idle() -> None:
            client.wait_until_idle()
            take()

        def middle(rows: list[Calls]) -> Calls:
            return Calls(round(median(row.calls for row in rows)), round(median(row.files for row in rows)))

        idle()
        first, *_ = [take() for _ in client.stream_in_steps(*STREAMS["chat"], 1)]
        figures["first request of the process, to its first text"] = first
        for dialect, (path, body) in STREAMS.items():
            for member, label in (("reasoning_content", "reasoning"), ("content", "text")):
                for _ in range(_WARM_UP):
                    idle()
                    rows = [take() for _ in client.stream_in_steps(path, body, _CHUNKS, member)]
                figures[f"chunk of {label}, {dialect}"] = middle(rows[1:])
            figures[f"request to its first text, {dialect}"] = rows[0]
        for name, request in REQUESTS_BY_NAME.items():
            rows = []
            for _ in range(_WARM_UP + _REQUESTS):
                idle()
                client.request(*request)
                rows.append(take())
            figures[name] = middle(rows[_WARM_UP:])
    return figures


def main() -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=FOLDER.parent, metavar="DIR", help="measure another work tree")
    try:
        figures = measure(parser.parse_args().tree.resolve())
    except (StepError, OSError) as error:
        print(error, file=sys.stderr)
        return 3
    print(f"{'':<50} {'calls':>6} {'files':>6}")
    for name, row in figures.items():
        print(f"{name:<50} {row.calls:>6} {row.files:>6}")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == [_CHILD]:
        del sys.argv[1]
        run_child()
    sys.exit(main())
