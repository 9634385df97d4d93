"""The disk is full: while answers are recorded, while a model is fetched, and where the log goes."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from faults.asking import Heard, chat, hear, post
from faults.case import Case, Figure, Outcome, Stage
from tests.cli.run import COMMAND, ENVIRONMENT
from tests.engines import files, web
from tests.engines.web import Page
from tests.live.faults import metric
from tests.live.raw import ask as ask_for
from tests.live.server import LIMIT_S, Lines
from tests.live.upstream import eventually, gateway, upstream

SIZE_KB = 512
MODEL_BYTES = 4 * 2**20
"""More than the disk holds."""
RECORD_ROOM_KB = 8
"""Left for recordings: a few of them."""
LOST = "welldone_recordings_dropped_total"
FULL = Path("/dev/full")


def recording(stage: Stage) -> Outcome:
    """Record onto a disk that gets full, and give it room again."""
    count = stage.times(200, 10)
    with _small_disk(stage.folder) as disk:
        if disk is None:
            return NOT_ALLOWED
        folder = disk / "recorded"
        ballast = disk / "ballast"
        with upstream() as behind, gateway(stage.folder, behind.url, options=["--record", str(folder)]) as server:
            _fill(ballast)
            heard = asyncio.run(_many(server.port, server.key, count))
            eventually(lambda: metric(server, LOST) >= 1)
            is_well = ask_for(server, "/health").status == 200
            kept = [_is_whole(file) for file in folder.glob("*.json")]
            code = server.end()
            said = server.log.join()
    broken = [one.ending for one in heard if one.ending != "whole"]
    return Outcome(
        count=count,
        happened=(
            f"{count - len(broken)} of {count} streams were whole while {len(kept)} recordings found room; "
            f"the log said {said.count('recording is paused')} times that recording is paused"
        ),
        figures=(
            Figure("streams touched", len(broken), most=0),
            Figure("recordings that only look whole", kept.count(False), most=0),
            Figure("times that it was told", said.count("recording is paused"), least=1, most=3),
            Figure("servers that fell", int(not is_well or code != 0), most=0),
            Figure("tracebacks", said.count("Traceback"), most=0),
        ),
        troubles=tuple(broken),
    )


def pulling(stage: Stage) -> Outcome:
    """Fetch models that the disk has no room for: their size is told, or is not, or there is no room at all."""
    with _small_disk(stage.folder) as disk, web.site() as site:
        if disk is None:
            return NOT_ALLOWED
        data = files.model(MODEL_BYTES // 4)
        site.pages["/told.gguf"] = Page(data)
        site.pages["/untold.gguf"] = Page(data, has_length=False)
        seen = [_pull(disk, site.url(f"/{name}.gguf")) for name in ("told", "untold")]
        site.pages["/small.gguf"] = Page(files.model(2000))
        _fill(disk / "ballast", 0)
        seen.append(_pull(disk, site.url("/small.gguf")))
        left = [path.name for path in disk.rglob("*.gguf")]
    said = [one.stderr.strip() for one in seen]
    return Outcome(
        count=len(seen),
        happened=f"it ended with code {seen[0].returncode} and said: {said[0].partition(':')[0]}",
        figures=(
            Figure("pulls that claim to have worked", sum(one.returncode == 0 for one in seen), most=0),
            Figure("files that look whole", len(left), most=0),
            Figure("errors that are not one line", sum("\n" in words or not words for words in said), most=0),
        ),
        troubles=tuple(words for words in said if "Traceback" in words or not re.search("room|space", words)),
    )


def logging(stage: Stage) -> Outcome:
    """The log goes where nothing can be written."""
    count = stage.times(200, 10)
    if not FULL.exists():
        return Outcome(not_run="there is no /dev/full here")
    with upstream() as behind, FULL.open("w") as full:
        words = [sys.executable, "-m", "welldone", "serve", "--port", "0", "--upstream", behind.url]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=full, text=True, cwd=stage.folder)
        assert process.stdout is not None
        try:
            port = int(Lines(process.stdout).wait(r"on http://127\.0\.0\.1:(\d+)/v1$")[1])
            heard = asyncio.run(_many(port, None, count, "scripted"))
            process.send_signal(signal.SIGTERM)
            code = process.wait(LIMIT_S)
        finally:
            process.kill()
            process.wait()
    broken = [one.ending for one in heard if one.ending != "whole"]
    return Outcome(
        count=count,
        happened=f"{count - len(broken)} of {count} streams were whole, and it ended with code {code}",
        figures=(
            Figure("streams touched", len(broken), most=0),
            Figure("exit code", code, most=0, least=0),
        ),
        troubles=tuple(broken),
    )


NOT_ALLOWED = Outcome(not_run="a small disk cannot be mounted here: that takes root")


@contextmanager
def _small_disk(folder: Path) -> Iterator[Path | None]:
    """A disk of half a megabyte; None where that is not allowed."""
    disk = folder / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    words = [mount or "mount", "-t", "tmpfs", "-o", f"size={SIZE_KB}k", "tmpfs", str(disk)]
    if mount is None or os.geteuid() != 0 or subprocess.run(words, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], capture_output=True, check=True)


def _fill(ballast: Path, room_kb: int = RECORD_ROOM_KB) -> None:
    """Leave only so much room."""
    free = shutil.disk_usage(ballast.parent).free
    ballast.write_bytes(bytes(max(0, free - room_kb * 1024)))


async def _many(port: int, key: str | None, count: int, model: str = "hello") -> list[Heard]:
    """So many streams, ten at a time."""
    heard: list[Heard] = []
    for _ in range(0, count, 10):
        heard += await asyncio.gather(*(hear(port, post(chat(model), port, key=key)) for _ in range(10)))
    return heard


def _is_whole(file: Path) -> bool:
    """Whether a recording can be read, with its body."""
    try:
        found = json.loads(file.read_text())
        body = (file.parent / found["body"]).read_bytes()
    except (ValueError, KeyError, OSError):
        return False
    return bool(len(body) == sum(size for _, size in found["pieces"]))


def _pull(home: Path, url: str) -> "subprocess.CompletedProcess[str]":
    told = {**ENVIRONMENT, "WELLDONE_HOME": str(home)}
    words = [COMMAND, "pull", url]
    return subprocess.run(words, env=told, capture_output=True, text=True, timeout=LIMIT_S, check=False)


CASES = (
    Case("full-disk-recording", "the disk is full while answers are recorded", recording),
    Case("full-disk-pull", "the disk is full while a model is fetched", pulling),
    Case("full-disk-log", "the log cannot be written", logging),
)
