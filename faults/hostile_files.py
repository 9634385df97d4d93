"""Files of models that lie, are cut, or mean ill: read by the server itself, and loaded by its engines."""

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

from faults.asking import Heard, ask, chat
from faults.case import Case, Figure, Outcome, Stage
from tests.live.faults import Child, children, memory_of
from tests.live.server import Running, serving
from tests.models import tiny
from tests.models.gguf_writer import Gguf
from welldone.engines.models.store import GgufError, read_metadata

HUGE = (2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
START_S = 20.0
"""That an engine may take to load. A tiny model takes about one second."""
FIRST_S = 10.0
"""That it may take to its first word: some templates hang only when they are used."""
MEMORY_BYTES = 2 * 2**30
"""An engine of a tiny model has less than 200 MB. Who has ten times as much is ended here, for the machine's sake."""

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
"""Each is a chat template that a model brings along."""


class Mutant(NamedTuple):
    """A file that is not what it says."""

    name: str
    data: bytes


def mutants(chance: random.Random, model: Gguf) -> Iterator[Mutant]:
    """Wrong bytes, wrong counts and cut ends, first one of each kind, without end."""
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
                place, value = chance.choice((8, 16)), chance.choice(HUGE)
                changed[place : place + 8] = struct.pack("<Q", value % 2**64)
                yield Mutant(f"count-{number}", bytes(changed))
            case 3:
                place = chance.randrange(24, head - 8)
                changed[place : place + 8] = struct.pack("<Q", chance.choice(HUGE) % 2**64)
                yield Mutant(f"size-{number}", bytes(changed))
            case 4:
                changed[head + 4096 :] = b"\xff" * (len(data) - head - 4096)  # numbers that are none
                yield Mutant(f"nan-{number}", bytes(changed))
            case _:
                yield Mutant(
                    f"number-{number}", Gguf({**model.metadata, **_wrong_number(chance)}, model.tensors).data()
                )


def _wrong_number(chance: random.Random) -> dict[str, int]:
    """One of the numbers that the engine makes room by."""
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


def headers(stage: Stage) -> Outcome:
    """The server itself reads the head of each file, in its own process."""
    chance = random.Random(stage.seed)
    model = tiny.chat_model()
    kept: Counter[str] = Counter()
    troubles, longest_s = [], 0.0
    written = (_write(stage.folder, one) for one in islice(mutants(chance, model), stage.times(3000, 60)))
    for path in chain(written, _odd_files(stage)):
        began = time.monotonic()
        try:
            read_metadata(path)
            kept["read"] += 1
        except GgufError:
            kept["refused"] += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
            troubles.append(f"{path.name}: {error!r}")
        longest_s = max(longest_s, time.monotonic() - began)
        if path.parent == stage.folder and path.is_file():
            path.unlink()  # thousands of them would take a gigabyte
    return Outcome(
        count=kept.total() + len(troubles),
        happened=f"{kept['refused']} were refused and {kept['read']} could be read",
        figures=(
            Figure("errors of another kind", len(troubles), most=0),
            Figure("longest", round(longest_s, 2), "s", most=10, is_timing=True),
        ),
        troubles=tuple(troubles),
    )


def _write(folder: Path, one: Mutant) -> Path:
    path = folder / f"{one.name}.gguf"
    path.write_bytes(one.data)
    return path


def _odd_files(stage: Stage) -> list[Path]:
    """What is no file, or is not there."""
    folder = stage.folder
    os.mkfifo(folder / "pipe.gguf")
    (folder / "folder.gguf").mkdir()
    (folder / "ring.gguf").symlink_to(folder / "ring.gguf")
    odd = [folder / "pipe.gguf", folder / "folder.gguf", folder / "ring.gguf", Path("/dev/zero"), folder / "no"]
    return odd if stage.is_short else [*odd, _holes(folder)]


def _holes(folder: Path) -> Path:
    """A terabyte of nothing, all of which is told to be texts: what takes longest to read."""
    path = folder / "holes.gguf"
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 8) + b"\1\0\0\0\0\0\0\0a" + struct.pack("<IIQ", 9, 8, 4 * 2**20))
        file.truncate(2**40)
    return path


def hostile_files(stage: Stage) -> Outcome:
    """Engines load them one after the other, beside a model that is well.

    A server that finds such a file at its start says so and does not start. So the files are good ones until then.
    """
    chance = random.Random(stage.seed)
    model = tiny.chat_model()
    ill = [*islice(mutants(chance, model), stage.times(60, 3)), *_templates(model, stage)]
    with _serving(stage, ill) as server, _watching(server) as watched:
        before = memory_of(server.process.pid)
        heard, lost = {}, 0
        for number, one in enumerate(ill):
            stage.note(f"{number + 1} of {len(ill)}: {one.name}")
            _write(stage.folder, one)
            heard[one.name] = asyncio.run(ask(server, chat(one.name, max_tokens=2, stream=False)))
            lost += asyncio.run(ask(server, chat("well", max_tokens=2))).ending != "whole"
        grown = memory_of(server.process.pid) - before
        is_up = server.process.poll() is None
    statuses = Counter(one.status for one in heard.values())
    return Outcome(
        count=len(ill),
        happened=_told(statuses, watched),
        figures=(
            Figure("servers that fell", int(not is_up), most=0),
            Figure("requests to the other model lost", lost, most=0),
            Figure("answers without a reason", sum(not _is_clear(one) for one in heard.values()), most=0),
            Figure("memory that the server took", round(grown / 2**20, 1), "MB", most=50, is_timing=True),
            Figure("engines of more than 2 GB, which were ended", len(watched)),
        ),
        troubles=tuple(
            f"{name}: {one.status} {one.body[-200:].decode(errors='replace')}"
            for name, one in heard.items()
            if not _is_clear(one)
        ),
    )


def _told(statuses: Counter[int], watched: Sequence[int]) -> str:
    counts = ", ".join(f"{status} {count} times" for status, count in sorted(statuses.items()))
    return f"clients heard {counts}; {len(watched)} engines took too much memory"


def _is_clear(heard: Heard) -> bool:
    """An answer after all, or an error that says what is wrong."""
    return heard.status == 200 or (400 <= heard.status < 600 and b'"message":"' in heard.body)


def _templates(model: Gguf, stage: Stage) -> Iterator[Mutant]:
    for name in ("unclosed",) if stage.is_short else TEMPLATES:
        told = {**model.metadata, "tokenizer.chat_template": TEMPLATES[name]}
        yield Mutant(f"template-{name}", Gguf(told, model.tensors).data())


@contextmanager
def _serving(stage: Stage, ill: Sequence[Mutant]) -> Iterator[Running]:
    """A server that knows all of them, and has loaded the one that is well."""
    tables = [f'[models.well]\nfile = "{stage.model}"\npreload = true\nthreads = 1\n']
    for one in ill:
        path = stage.folder / f"{one.name}.gguf"
        shutil.copy(stage.model, path)
        limits = f"threads = 1\nparallel = 1\nidle_unload_s = 0.1\nstart_limit_s = {START_S}\n"
        tables.append(f'[models.{one.name}]\nfile = "{path}"\n{limits}')
    (stage.folder / "welldone.toml").write_text("".join(tables))
    with serving(["--first-byte", str(FIRST_S), "--idle", "2"], folder=stage.folder) as server:
        yield server


@contextmanager
def _watching(server: Running) -> Iterator[list[int]]:
    """Ends engines that take too much memory; the list has them."""
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
    Case("hostile-headers", "files of models that lie, read by the server itself", headers),
    Case("hostile-files", "files and chat templates that mean ill, loaded by engines", hostile_files),
)
