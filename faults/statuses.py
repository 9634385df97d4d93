"""Upstream error responses, and what the client receives for each."""

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

from faults.case import Case, CaseContext, Figure, Outcome
from faults.client import CHAT, ClientReply, chat, connect, post, run_concurrently, send_request
from faults.failing import ATTEMPTS_LIMIT
from faults.matrix import ENDLESS, EXPECTED, fault
from tests.support.faults import memory_of
from tests.support.server import Running
from tests.support.upstream import Upstream, gateway, upstream
from welldone.mock.script import MockReply
from welldone.mock.server import MockHttpRequest
from welldone.mock.variants import redirect

TEXT = "Hello"
BOMB = "gzip-bomb"
BOMB_LIMIT_MB = 16.0
"""1/64 of the decompressed size: enough for the compressed bytes and the allocator."""
FORMS = (True, False)
"""Streamed and not streamed."""
AT_ONCE = 8
KEY = "sk-upstream-canary-0123456789"


class Setup(msgspec.Struct):
    """Gateway with one upstream per fault, so that circuit breakers do not interact."""

    server: Running
    upstream: Upstream
    elsewhere: socket.socket
    """Target of redirects."""
    attempts: Counter[str]
    """Attempts per request, by its content."""

    @property
    def was_followed(self) -> bool:
        """Whether a redirect was followed."""
        return bool(select.select([self.elsewhere], [], [], 0)[0])


@contextmanager
def gateway_setup(context: CaseContext) -> Iterator[Setup]:
    """Run the gateway and its upstreams."""
    attempts: Counter[str] = Counter()
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        target = f"http://127.0.0.1:{elsewhere.getsockname()[1]}{CHAT}"

        def choose(seen: MockHttpRequest) -> MockReply:
            body = json.loads(seen.body)
            attempts[body["messages"][0]["content"]] += 1
            name: str = body["model"]
            if name.startswith("redirect-"):
                return redirect(int(name.removeprefix("redirect-")), target)
            return fault(name, is_short=context.is_short)

        with upstream(choose) as one:
            limit_s = 0.3 if context.is_short else 1.0
            tables = "\n".join(_table(name, one.url, limit_s) for name in (*EXPECTED, ENDLESS))
            with gateway(context.folder, options=["--early", "30", "--continue", "off"], more=tables) as server:
                yield Setup(server, one, elsewhere, attempts)


def _table(name: str, url: str, limit_s: float) -> str:
    limits = f"first_byte_s = {limit_s}\nidle_s = {limit_s}" if name.startswith("hang") else ""
    return f'[upstreams."{name}"]\nurl = "{url}"\nkey = "{KEY}"\nmodels = ["{name}"]\nprobe_s = 0\n{limits}\n'


def answer(context: CaseContext) -> Outcome:
    """Run every fault, streamed and not streamed."""
    with gateway_setup(context) as setup:
        names = [name for name in EXPECTED if name != BOMB] * context.times(5, 1)
        results = asyncio.run(_send_all(context, setup, [(name, is_stream) for name in names for is_stream in FORMS]))
        before = _restart_peak(setup.server)
        results += asyncio.run(_send_all(context, setup, [(BOMB, is_stream) for is_stream in FORMS]))
        grown_mb = (memory_of(setup.server.process.pid, "VmHWM") - before) / 1e6
        for is_stream in FORMS:
            asyncio.run(_leave_endless(setup, is_stream=is_stream))
        setup.upstream.wait_until(lambda one: all(seen.end != "running" for seen in one.requests))
        wrong = [one for one in results if not one.is_right]
        kinds = Counter(one.outcome for one in results)
        return Outcome(
            len(results) + len(FORMS),
            f"{len(EXPECTED) + 1} faults gave " + ", ".join(f"{what} ({kinds[what]})" for what in sorted(kinds)),
            (
                Figure("unexpected results", len(wrong), most=0),
                Figure("redirects followed", int(setup.was_followed), most=0),
                Figure("memory growth for 1 GB in 1 MB of gzip", grown_mb, "MB", most=BOMB_LIMIT_MB),
                Figure("most attempts per request", max(setup.attempts.values()), most=ATTEMPTS_LIMIT),
            ),
            tuple(map(str, wrong)),
        )


class FaultResult(msgspec.Struct, frozen=True):
    """What a client received for a fault."""

    name: str
    is_stream: bool
    outcome: str

    @property
    def expected(self) -> str:
        """Expected reply."""
        return EXPECTED[self.name].for_form(is_stream=self.is_stream)

    @property
    def is_right(self) -> bool:
        """Whether the reply is as expected; before the first byte of a stream, a status is correct, too."""
        return self.outcome in (self.expected, EXPECTED[self.name].whole if self.expected == "error event" else "")

    def __str__(self) -> str:
        return f"{self.name}, {'streamed' if self.is_stream else 'whole'}: {self.outcome}, not {self.expected}"


async def _send_all(context: CaseContext, setup: Setup, requests: list[tuple[str, bool]]) -> list[FaultResult]:
    numbers = itertools.count()

    async def send_one(one: tuple[str, bool]) -> FaultResult:
        name, is_stream = one
        received = await send_request(setup.server, chat(name, f"{name} {next(numbers)}", stream=is_stream))
        return FaultResult(name, is_stream, _outcome(received))

    return await run_concurrently(context, requests, AT_ONCE, send_one)


def _outcome(received: ClientReply) -> str:
    """Classify the reply; an answer is whole if it has its text."""
    if received.ending == "refused":
        return str(received.status)
    if received.ending != "whole":
        return received.ending
    outcome = received.texts if received.is_stream else [json.loads(received.body)["choices"][0]["message"]["content"]]
    return "whole" if "".join(outcome) == TEXT else "truncated"


async def _leave_endless(setup: Setup, *, is_stream: bool) -> None:
    """Disconnect after some data, or, without streaming, after the upstream has started."""
    content = f"endless, {is_stream}"
    body = chat(ENDLESS, content, stream=is_stream)
    connection = await connect(setup.server.port, post(body, setup.server.port, key=setup.server.key))
    if is_stream:
        await connection.read_until(TEXT.encode())
    setup.upstream.wait_until(lambda one: any(content in seen.body for seen in one.requests))
    connection.disconnect()


def _restart_peak(server: Running) -> int:
    """Reset the peak memory; return the current value."""
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
