"""Model files that are corrupt, truncated or malicious: parsed by the server, loaded by engines."""

import asyncio
import os
import random
import shutil
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from faults.case import Case, CaseContext, Figure, Outcome
from faults.client import ClientReply, chat, send_request
from tests.models import tiny
from tests.models.gguf_writer import Gguf
from tests.support.faults import Child, children, memory_of
from tests.support.server import Running, serving
from welldone.engines.models.gguf import GgufError, read_metadata

HUGE = (2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
START_S = 20.0
"""Load timeout; a tiny model takes about one second."""
FIRST_S = 10.0
"""Timeout of the first token: some templates hang only when used."""
MEMORY_BYTES = 2 * 2**30
"""An engine of a tiny model needs less than 200 MB; one with ten times as much is killed to protect the machine."""

TEMPLATES = {
    "endless-loop": "{% for i in range(2000000000) %}{% for j in range(2000000000) %}{% endfor %}{% endfor %}",
    "long-loop": "{% for i in range(1000000000) %}a{% endfor %}",
    "long-text": "{{ 'a' * 2000000000 }}",
    "doubling": "{% set n = namespace(a='aa') %}{% for i in range(40) %}{% set n.a = n.a + n.a %}{% endfor %}{{ n.a }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "nested": "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}",
    "deep": "{% if 1 %}" * 20000 + "{% endif %}" * 20000,
    "unclosed": "{% for m in messages %}{{ m",
    "raise": "{{ raise_exception('no') }}",
}
"""Hostile chat templates by name."""


class Mutant(NamedTuple):
    """A malformed model file."""

    name: str
    data: bytes


def mutants(chance: random.Random, model: Gguf) -> Iterator[Mutant]:
    """Yield endless mutations: wrong bytes, wrong counts and truncations, one of each kind first."""
    data = model.data()
    head = len(Gguf(model.metadata).data())
    for number in range(2**31):
        changed = bytearray(data)
        match number % 6:
            case 0:
                for _ in range(chance.choice((1, 4, 32))):
                    changed[chance.randrange(4, head)] ^= 1 << chance.randrange(8)
                yield Mutant(f"flipped-{number}", bytes(changed))
            case 1:
                yield Mutant(f"cut-{number}", data[: chance.choice((0, 3, 20, chance.randrange(head), len(data) - 4))])
            case 2:
                offset, value = chance.choice((8, 16)), chance.choice(HUGE)
                changed[offset : offset + 8] = struct.pack("<Q", value % 2**64)
                yield Mutant(f"count-{number}", bytes(changed))
            case 3:
                offset = chance.randrange(24, head - 8)
                changed[offset : offset + 8] = struct.pack("<Q", chance.choice(HUGE) % 2**64)
                yield Mutant(f"size-{number}", bytes(changed))
            case 4:
                changed[head + 4096 :] = b"\xff" * (len(data) - head - 4096)  # invalid numbers
                yield Mutant(f"nan-{number}", bytes(changed))
            case _:
                yield Mutant(
                    f"number-{number}", Gguf({**model.metadata, **_wrong_number(chance)}, model.tensors).data()
                )


def _wrong_number(chance: random.Random) -> dict[str, int]:
    """Change a number by which the engine allocates memory."""
    names = (
        "llama.vocab_size",
        "llama.context_length",
        "llama.embedding_length",
        "llama.block_count",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.head_count_kv",
        "llama.rope.dimension_count",
        "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.bos_token_id",
        "general.alignment",
    )
    return {chance.choice(names): chance.choice((0, 1, 3, 2**16, 2**31 - 1, 2**32 - 1))}


def headers(context: CaseContext) -> Outcome:
    """The server itself reads the head of each file, in its own process."""
    chance = random.Random(context.seed)
    model = tiny.chat_model()
    counts: Counter[str] = Counter()
    problems, longest_s = [], 0.0
    written = (_write(context.folder, one) for one in islice(mutants(chance, model), context.times(3000, 60)))
    for path in chain(written, _odd_files(context)):
        began = time.monotonic()
        try:
            read_metadata(path)
            counts["read"] += 1
        except GgufError:
            counts["refused"] += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
            problems.append(f"{path.name}: {error!r}")
        longest_s = max(longest_s, time.monotonic() - began)
        if path.parent == context.folder and path.is_file():
            path.unlink()  # thousands of files would take a gigabyte
    return Outcome(
        count=counts.total() + len(problems),
        happened=f"{counts['refused']} files were rejected and {counts['read']} were parsed",
        figures=(
            Figure("unexpected errors", len(problems), most=0),
            Figure("longest parse", round(longest_s, 2), "s", most=10, is_timing=True),
        ),
        problems=tuple(problems),
    )


def _write(folder: Path, one: Mutant) -> Path:
    path = folder / f"{one.name}.gguf"
    path.write_bytes(one.data)
    return path


def _odd_files(context: CaseContext) -> list[Path]:
    """Paths that are not files, or do not exist."""
    folder = context.folder
    os.mkfifo(folder / "pipe.gguf")
    (folder / "folder.gguf").mkdir()
    (folder / "ring.gguf").symlink_to(folder / "ring.gguf")
    odd = [folder / "pipe.gguf", folder / "folder.gguf", folder / "ring.gguf", Path("/dev/zero"), folder / "no"]
    return odd if context.is_short else [*odd, _holes(folder)]


def _holes(folder: Path) -> Path:
    """A sparse terabyte that claims to be strings: the slowest to parse."""
    path = folder / "holes.gguf"
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 8) + b"\1\0\0\0\0\0\0\0a" + struct.pack("<IIQ", 9, 8, 4 * 2**20))
        file.truncate(2**40)
    return path


def hostile_files(context: CaseContext) -> Outcome:
    """Load the files one after the other, next to a valid model.

    A server does not start with such a file, so the files are valid until then.
    """
    chance = random.Random(context.seed)
    model = tiny.chat_model()
    ill = [*islice(mutants(chance, model), context.times(60, 3)), *_templates(model, context)]
    with _serving(context, ill) as server, _watching(server) as watched:
        before = memory_of(server.process.pid)
        received, lost = {}, 0
        for number, one in enumerate(ill):
            context.note(f"{number + 1} of {len(ill)}: {one.name}")
            _write(context.folder, one)
            received[one.name] = asyncio.run(send_request(server, chat(one.name, max_tokens=2, stream=False)))
            lost += asyncio.run(send_request(server, chat("well", max_tokens=2))).ending != "whole"
        grown = memory_of(server.process.pid) - before
        is_up = server.process.poll() is None
    statuses = Counter(one.status for one in received.values())
    return Outcome(
        count=len(ill),
        happened=_summary(statuses, watched),
        figures=(
            Figure("server crashes", int(not is_up), most=0),
            Figure("requests to the other model lost", lost, most=0),
            Figure("errors without a reason", sum(not _is_clear(one) for one in received.values()), most=0),
            Figure("memory growth of the server", round(grown / 2**20, 1), "MB", most=50, is_timing=True),
            Figure("engines killed above 2 GB of memory", len(watched)),
        ),
        problems=tuple(
            f"{name}: {one.status} {one.body[-200:].decode(errors='replace')}"
            for name, one in received.items()
            if not _is_clear(one)
        ),
    )


def _summary(statuses: Counter[int], watched: Sequence[int]) -> str:
    counts = ", ".join(f"{status} ({count})" for status, count in sorted(statuses.items()))
    return f"statuses: {counts}; {len(watched)} engines exceeded the memory limit"


def _is_clear(received: ClientReply) -> bool:
    """An answer, or an error with a clear message."""
    return received.status == 200 or (400 <= received.status < 600 and b'"message":"' in received.body)


def _templates(model: Gguf, context: CaseContext) -> Iterator[Mutant]:
    for name in ("unclosed",) if context.is_short else TEMPLATES:
        metadata = {**model.metadata, "tokenizer.chat_template": TEMPLATES[name]}
        yield Mutant(f"template-{name}", Gguf(metadata, model.tensors).data())


@contextmanager
def _serving(context: CaseContext, ill: Sequence[Mutant]) -> Iterator[Running]:
    """A server with all files configured and the valid one loaded."""
    tables = [f'[models.well]\nfile = "{context.model}"\npreload = true\nthreads = 1\n']
    for one in ill:
        path = context.folder / f"{one.name}.gguf"
        shutil.copy(context.model, path)
        limits = f"threads = 1\nparallel = 1\nidle_unload_s = 0.1\nstart_limit_s = {START_S}\n"
        tables.append(f'[models.{one.name}]\nfile = "{path}"\n{limits}')
    (context.folder / "welldone.toml").write_text("".join(tables))
    with serving(["--first-byte", str(FIRST_S), "--idle", "2"], folder=context.folder) as server:
        yield server


@contextmanager
def _watching(server: Running) -> Iterator[list[int]]:
    """Kill engines that exceed the memory limit; yields their process ids."""
    ended: list[int] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(0.05):
            for pid in children(server.process.pid):
                if _memory_of(pid) > MEMORY_BYTES:
                    ended.append(pid)
                    with Child(pid) as child:
                        child.kill()
                        child.wait()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield ended
    finally:
        is_over.set()
        thread.join()


def _memory_of(pid: int) -> int:
    try:
        return memory_of(pid)
    except (OSError, AssertionError):  # it has just ended
        return 0


CASES = (
    Case("hostile-headers", "malicious model files, parsed by the server", headers),
    Case("hostile-files", "malicious model files and chat templates, loaded by engines", hostile_files),
)
