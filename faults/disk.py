"""The disk is full: during recording, during a model download, and for the log."""

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

from faults.case import Case, CaseContext, Figure, Outcome
from faults.client import ClientReply, chat, exchange, post
from tests.cli.run import COMMAND, ENVIRONMENT
from tests.engines import files, web
from tests.engines.web import Page
from tests.support.faults import metric
from tests.support.raw import fetch as ask_for
from tests.support.server import LIMIT_S, Lines
from tests.support.upstream import eventually, gateway, upstream

SIZE_KB = 512
MODEL_BYTES = 4 * 2**20
"""More than the disk holds."""
RECORD_ROOM_KB = 8
"""Free space: enough for a few recordings."""
LOST = "welldone_recordings_dropped_total"
FULL = Path("/dev/full")


def recording(context: CaseContext) -> Outcome:
    """Record to a disk that fills up, then free space."""
    count = context.times(200, 10)
    with _small_disk(context.folder) as disk:
        if disk is None:
            return NOT_ALLOWED
        folder = disk / "recorded"
        ballast = disk / "ballast"
        with upstream() as behind, gateway(context.folder, behind.url, options=["--record", str(folder)]) as server:
            _fill(ballast)
            received = asyncio.run(_many(server.port, server.key, count))
            eventually(lambda: metric(server, LOST) >= 1)
            is_well = ask_for(server, "/health").status == 200
            recordings = [_is_whole(file) for file in folder.glob("*.json")]
            code = server.end()
            output = server.log.join()
    broken = [one.ending for one in received if one.ending != "whole"]
    return Outcome(
        count=count,
        happened=(
            f"{count - len(broken)} of {count} streams were complete; recordings stored: {len(recordings)}; "
            f"log lines about the pause: {output.count('recording is paused')}"
        ),
        figures=(
            Figure("streams affected", len(broken), most=0),
            Figure("incomplete recordings without a mark", recordings.count(False), most=0),
            Figure("log lines about it", output.count("recording is paused"), least=1, most=3),
            Figure("server crashes", int(not is_well or code != 0), most=0),
            Figure("tracebacks", output.count("Traceback"), most=0),
        ),
        problems=tuple(broken),
    )


def pulling(context: CaseContext) -> Outcome:
    """Download models that exceed the disk: with and without Content-Length, and with a full disk."""
    with _small_disk(context.folder) as disk, web.site() as site:
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
    output = [one.stderr.strip() for one in seen]
    return Outcome(
        count=len(seen),
        happened=f"exit code {seen[0].returncode}, with the message: {output[0].partition(':')[0]}",
        figures=(
            Figure("downloads reported as successful", sum(one.returncode == 0 for one in seen), most=0),
            Figure("incomplete files under the final name", len(left), most=0),
            Figure("error messages that are not one line", sum("\n" in words or not words for words in output), most=0),
        ),
        problems=tuple(words for words in output if "Traceback" in words or not re.search("room|space", words)),
    )


def logging(context: CaseContext) -> Outcome:
    """Write the log to a full disk."""
    count = context.times(200, 10)
    if not FULL.exists():
        return Outcome(not_run="there is no /dev/full here")
    with upstream() as behind, FULL.open("w") as full:
        words = [sys.executable, "-m", "welldone", "serve", "--port", "0", "--upstream", behind.url]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=full, text=True, cwd=context.folder)
        assert process.stdout is not None
        try:
            port = int(Lines(process.stdout).wait(r"on http://127\.0\.0\.1:(\d+)/v1$")[1])
            received = asyncio.run(_many(port, None, count, "scripted"))
            process.send_signal(signal.SIGTERM)
            code = process.wait(LIMIT_S)
        finally:
            process.kill()
            process.wait()
    broken = [one.ending for one in received if one.ending != "whole"]
    return Outcome(
        count=count,
        happened=f"{count - len(broken)} of {count} streams were complete; exit code {code}",
        figures=(
            Figure("streams affected", len(broken), most=0),
            Figure("exit code", code, most=0, least=0),
        ),
        problems=tuple(broken),
    )


NOT_ALLOWED = Outcome(not_run="a small disk cannot be mounted here: that takes root")


@contextmanager
def _small_disk(folder: Path) -> Iterator[Path | None]:
    """Mount a disk of half a megabyte; None without permission."""
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
    """Fill the disk up to this free space."""
    free = shutil.disk_usage(ballast.parent).free
    ballast.write_bytes(bytes(max(0, free - room_kb * 1024)))


async def _many(port: int, key: str | None, count: int, model: str = "hello") -> list[ClientReply]:
    """Run streams, ten at a time."""
    received: list[ClientReply] = []
    for _ in range(0, count, 10):
        received += await asyncio.gather(*(exchange(port, post(chat(model), port, key=key)) for _ in range(10)))
    return received


def _is_whole(file: Path) -> bool:
    """Whether a recording can be read, with its body."""
    try:
        found = json.loads(file.read_text())
        body = (file.parent / found["body"]).read_bytes()
    except (ValueError, KeyError, OSError):
        return False
    return bool(len(body) == sum(size for _, size in found["pieces"]))


def _pull(home: Path, url: str) -> "subprocess.CompletedProcess[str]":
    environment = {**ENVIRONMENT, "WELLDONE_HOME": str(home)}
    words = [COMMAND, "pull", url]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)


CASES = (
    Case("full-disk-recording", "the disk is full during recording", recording),
    Case("full-disk-pull", "the disk is full during a model download", pulling),
    Case("full-disk-log", "the log cannot be written", logging),
)
