"""Whatever an upstream may answer: what the client is told of it."""

import asyncio
import itertools
import json
import select
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from faults.asking import CHAT, Heard, ask, chat, post, say, side_by_side
from faults.case import Case, Figure, Outcome, Stage
from faults.failing import ATTEMPTS_LIMIT
from faults.matrix import ENDLESS, EXPECTED, fault
from tests.live.faults import memory_of
from tests.live.server import Running
from tests.live.upstream import Upstream, gateway, upstream
from welldone.mock.faults import redirect
from welldone.mock.script import MockReply
from welldone.mock.server import MockHttpRequest

TEXT = "Hello"
BOMB = "gzip-bomb"
BOMB_LIMIT_MB = 16.0
"""It unpacks to 1,024: so a sixty-fourth, which is room for the packed bytes and what the allocator keeps."""
FORMS = (True, False)
"""Streamed, and whole."""
AT_ONCE = 8
KEY = "sk-upstream-canary-0123456789"


class Behind(msgspec.Struct):
    """A gateway with an upstream for each fault, each its own, so that none is left alone because of another."""

    server: Running
    upstream: Upstream
    elsewhere: socket.socket
    """Where redirects lead."""
    attempts: Counter[str]
    """How often each request was made, by what it says."""

    @property
    def was_followed(self) -> bool:
        """Whether anybody went where a redirect leads."""
        return bool(select.select([self.elsewhere], [], [], 0)[0])


@contextmanager
def behind(stage: Stage) -> Iterator[Behind]:
    """It listens for so long."""
    attempts: Counter[str] = Counter()
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        place = f"http://127.0.0.1:{elsewhere.getsockname()[1]}{CHAT}"

        def choose(seen: MockHttpRequest) -> MockReply:
            body = json.loads(seen.body)
            attempts[body["messages"][0]["content"]] += 1
            name: str = body["model"]
            if name.startswith("redirect-"):
                return redirect(int(name.removeprefix("redirect-")), place)
            return fault(name, is_short=stage.is_short)

        with upstream(choose) as one:
            limit_s = 0.3 if stage.is_short else 1.0
            tables = "\n".join(_table(name, one.url, limit_s) for name in (*EXPECTED, ENDLESS))
            with gateway(stage.folder, options=["--early", "30"], more=tables) as server:
                yield Behind(server, one, elsewhere, attempts)


def _table(name: str, url: str, limit_s: float) -> str:
    limits = f"first_byte_s = {limit_s}\nidle_s = {limit_s}" if name.startswith("hang") else ""
    return f'[upstreams."{name}"]\nurl = "{url}"\nkey = "{KEY}"\nmodels = ["{name}"]\nprobe_s = 0\n{limits}\n'


def answer(stage: Stage) -> Outcome:
    """Every fault, streamed and whole."""
    with behind(stage) as here:
        names = [name for name in EXPECTED if name != BOMB] * stage.times(5, 1)
        told = asyncio.run(_ask_all(stage, here, [(name, is_stream) for name in names for is_stream in FORMS]))
        before = _restart_peak(here.server)
        told += asyncio.run(_ask_all(stage, here, [(BOMB, is_stream) for is_stream in FORMS]))
        grown_mb = (memory_of(here.server.process.pid, "VmHWM") - before) / 1e6
        for is_stream in FORMS:
            asyncio.run(_leave_endless(here, is_stream=is_stream))
        here.upstream.until(lambda one: all(seen.end != "running" for seen in one.requests))
        wrong = [one for one in told if not one.is_right]
        kinds = Counter(one.said for one in told)
        return Outcome(
            len(told) + len(FORMS),
            f"{len(EXPECTED) + 1} faults were told as "
            + ", ".join(f"{what} ({kinds[what]})" for what in sorted(kinds)),
            (
                Figure("answers that were told otherwise", len(wrong), most=0),
                Figure("redirects that were followed", int(here.was_followed), most=0),
                Figure("memory for 1 GB in 1 MB of gzip", grown_mb, "MB", most=BOMB_LIMIT_MB),
                Figure("most attempts for a request", max(here.attempts.values()), most=ATTEMPTS_LIMIT),
            ),
            tuple(map(str, wrong)),
        )


class Told(msgspec.Struct, frozen=True):
    """What a client was told of a fault."""

    name: str
    is_stream: bool
    said: str

    @property
    def expected(self) -> str:
        """What it should be told."""
        return EXPECTED[self.name].to(is_stream=self.is_stream)

    @property
    def is_right(self) -> bool:
        """Whether it is that. Where not a byte of a stream had gone out, it can still be a status."""
        return self.said in (self.expected, EXPECTED[self.name].whole if self.expected == "error event" else "")

    def __str__(self) -> str:
        return f"{self.name}, {'streamed' if self.is_stream else 'whole'}: {self.said}, not {self.expected}"


async def _ask_all(stage: Stage, here: Behind, asked: list[tuple[str, bool]]) -> list[Told]:
    numbers = itertools.count()

    async def ask_one(one: tuple[str, bool]) -> Told:
        name, is_stream = one
        heard = await ask(here.server, chat(name, f"{name} {next(numbers)}", stream=is_stream))
        return Told(name, is_stream, _said(heard))

    return await side_by_side(stage, asked, AT_ONCE, ask_one)


def _said(heard: Heard) -> str:
    """What the client was told. An answer is whole if it has its text."""
    if heard.ending == "refused":
        return str(heard.status)
    if heard.ending != "whole":
        return heard.ending
    said = heard.texts if heard.is_stream else [json.loads(heard.body)["choices"][0]["message"]["content"]]
    return "whole" if "".join(said) == TEXT else "truncated"


async def _leave_endless(here: Behind, *, is_stream: bool) -> None:
    """Who has heard enough leaves; who waits for the whole does when it has begun."""
    content = f"endless, {is_stream}"
    body = chat(ENDLESS, content, stream=is_stream)
    talk = await say(here.server.port, post(body, here.server.port, key=here.server.key))
    if is_stream:
        await talk.first(TEXT.encode())
    here.upstream.until(lambda one: any(content in seen.body for seen in one.requests))
    talk.leave()


def _restart_peak(server: Running) -> int:
    """Measure the most memory from now on; what it is now."""
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")
    return memory_of(server.process.pid)


CASES = (
    Case(
        "statuses",
        "429, 500, 503, web pages, garbage, bad JSON, gzip, a gzip bomb, redirects, no HTTP, and all other faults of "
        "`welldone mock`",
        answer,
    ),
)
