"""Entries of the golden file: a body or a generator, a dialect of clients, and what was done; each has a digest.

`python -m tests.golden.entries` wrote the file. It is written once: later output is compared with it.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.golden.answers import frame_ends, read
from tests.golden.engine import answer, clients_of, like_streams
from tests.laws import right_chunks, right_events, right_gemini
from tests.laws.right_chunks import Drawn
from tests.laws.right_events import DrawnEvents
from tests.laws.warm_streams import style, warm_streams
from welldone.rules.trace import Trace, read_trace

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "golden" / "digests.json"
CHANGES = ROOT / "golden" / "CHANGES.md"
FOLDERS = ("recorded", "recorded_dialects")
EVERY_BYTE = 4096
"""Longest body that is cut at every byte."""
RANDOM_CUTS = 200
DRAWN, BLOCK = 2_000, 100
"""Generated streams of each dialect, and those that share an entry."""
STREAMS_PER_SERVER = 10
SERVERS = "one server of chat"


class Entry(NamedTuple):
    """One comparison."""

    source: str
    """A recorded body, or a generator with its first seed."""
    client: str
    done: str
    """`whole`: content of the answer. `twice`: of its repaired output. `cut`: of the body cut at many places. `bytes`:
    the bytes of the answers to generated, legal streams."""

    @property
    def name(self) -> str:
        """Key in the file."""
        return " > ".join(self)


def _bodies() -> Iterator[tuple[str, Trace]]:
    for folder in FOLDERS:
        for path in sorted((ROOT / "tests" / folder).glob("*/*.json")):
            trace = read_trace(json.loads(path.read_text("utf-8")), path.with_suffix(".body").read_bytes())
            if trace.status in (None, 200):
                yield f"{path.parent.name}/{path.stem}", trace


BODIES: dict[str, Trace] = dict(_bodies())
"""Recorded and quoted replies."""
_GENERATORS: dict[str, Callable[[Random], Drawn | DrawnEvents]] = {
    "chat": right_chunks.chat,
    "completions": right_chunks.completions,
    "responses": right_events.responses,
    "messages": right_events.messages,
    "gemini": right_gemini.gemini,
}


def entries() -> Iterator[Entry]:
    """All entries."""
    for name, trace in BODIES.items():
        for client in clients_of(trace.endpoint):
            for done in ("whole", "twice", "cut"):
                yield Entry(name, client, done)
    for first in range(0, DRAWN, BLOCK):
        for upstream in _GENERATORS:
            for client in clients_of(upstream):
                yield Entry(f"{upstream} {first}", client, "bytes")
        yield Entry(f"{SERVERS} {first}", "chat", "bytes")


def digest(entry: Entry) -> str:
    """What today's code answers, as a short hash."""
    outputs = _generated(entry) if entry.done == "bytes" else map(str.encode, _contents(entry))
    sums = hashlib.sha256()
    for output in outputs:
        sums.update(b"%d:%b" % (len(output), output))
    return sums.hexdigest()[:12]


def _generated(entry: Entry) -> Iterator[bytes]:
    upstream, _, first = entry.source.rpartition(" ")
    if upstream == SERVERS:
        for seed in range(int(first), int(first) + BLOCK, STREAMS_PER_SERVER):
            draw = Random(f"golden {seed}")
            request = {"model": "m", "messages": [], "stream": True, "stream_options": {"include_usage": True}}
            yield from like_streams(warm_streams(draw, style(draw, "m"), STREAMS_PER_SERVER), request)
        return
    for seed in range(int(first), int(first) + BLOCK):
        drawn = _GENERATORS[upstream](Random(f"golden {seed}"))
        yield answer(upstream, entry.client, [drawn.stream], drawn.request)
        yield answer(upstream, entry.client, [drawn.reply], drawn.request, is_stream=False)


def _contents(entry: Entry) -> Iterator[str]:
    trace = BODIES[entry.source]
    upstream, body = trace.endpoint, trace.body
    is_stream = body.startswith((b"data:", b"event:", b"error:", b":"))

    def read_answer(received: bytes) -> bytes:
        return answer(upstream, entry.client, [received], trace.request, is_stream=is_stream)

    if entry.done == "whole":
        yield read(entry.client, read_answer(body))
    elif entry.done == "twice":
        again = "chat" if entry.client == "ollama" else entry.client
        once = answer(upstream, again, [body], trace.request, is_stream=is_stream)
        yield read(again, answer(again, again, [once], trace.request, is_stream=is_stream))
    else:
        for end in cuts(entry.source, body):
            yield read(entry.client, read_answer(body[:end]))


def cuts(name: str, body: bytes) -> Iterable[int]:
    """The places where a body is cut."""
    if len(body) <= EVERY_BYTE:
        return range(len(body))
    near = {end + step for end in frame_ends(body) for step in (-1, 0, 1)}
    draw = Random(f"cuts of {name}")
    return sorted({end for end in near if end < len(body)} | {draw.randrange(len(body)) for _ in range(RANDOM_CUTS)})


def all_digests() -> dict[str, str]:
    """The digests of all entries by name, computed on all cores."""
    every = list(entries())
    with ProcessPoolExecutor() as pool:
        return dict(zip((entry.name for entry in every), pool.map(digest, every, chunksize=8), strict=True))


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(all_digests(), indent=0) + "\n", "utf-8")
