"""Stalls: an engine does not answer, or has requests and makes no progress, and shows no other sign of life."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pytest

from tests.http.aio import run, serving
from tests.table import table
from welldone.engines.process import has_progress
from welldone.engines.stall import CHECKS_PER_STALL, ENGINE_SHARE, WORK_SHARE, RequestProgress, StallWatch
from welldone.http.address import Address

STALL_S = 30.0
CHECK_S = STALL_S / CHECKS_PER_STALL
LIMIT = 3 * CHECKS_PER_STALL
"""Checks after which an engine that has not stalled is left alone."""

IDLE = ()
COUNTED = (b"llamacpp:n_decode_total 7",)
STILL, BUSY, LITTLE = 0.0, 1.0, 2 * WORK_SHARE
assert LITTLE < ENGINE_SHARE


class Progress(msgspec.Struct):
    """A request that has received text, unless a test changes it."""

    last_received_at: float = 0.0
    is_generating: bool = True
    survives_restart: bool = True


class Request(msgspec.Struct):
    """A request to an engine."""

    progress: RequestProgress | None = None


TEXT, PROMPT, EMBEDDING = Request(Progress(1.0)), Request(Progress(1.0, is_generating=False)), Request()


class NotStalledError(Exception):
    """The last check is over."""


@dataclass
class Engine:
    """An engine that a test describes check by check; the last state stays."""

    answers: Sequence[tuple[bytes, ...] | None]
    work: Sequence[float | None] = (BUSY,)
    """Share of the time that it was active; None: the system does not report it."""
    is_llama: bool = True
    checks: int = 0
    probes: int = 0
    active_s: float = 0.0
    arrivals: dict[int, Request] = field(default_factory=dict)
    watch: StallWatch = field(default_factory=lambda: StallWatch(STALL_S))

    async def read_progress(self) -> tuple[bytes, ...] | None:
        self.probes += 1
        while (answer := self.answers[min(self.checks, len(self.answers) - 1)]) is None:  # noqa: ASYNC110 - no time passes
            await asyncio.sleep(0)
        return answer

    def active_times(self) -> dict[str, float]:
        work = self.work[min(max(self.checks - 1, 0), len(self.work) - 1)]
        return {} if work is None else {"1": 0.0, "2": self.active_s}

    async def pause(self, seconds: float) -> None:
        assert seconds == CHECK_S
        for _ in range(3):  # the probe runs
            await asyncio.sleep(0)
        self.checks += 1
        if self.checks > LIMIT:
            raise NotStalledError
        self.active_s += CHECK_S * (self.work[min(self.checks, len(self.work)) - 1] or 0.0)
        if request := self.arrivals.get(self.checks):
            self.watch.add(request)


def stalls_after(engine: Engine, *requests: Request) -> int | None:
    """The number of checks until the engine has stalled; None: it has not."""
    for request in requests:
        engine.watch.add(request)
    try:
        asyncio.run(engine.watch.wait_until_stalled(engine, engine.pause))
    except NotStalledError:
        return None
    return engine.checks


@table(
    ("requests", "answers"),
    [
        ((), [None]),
        ((TEXT,), [None]),
        ((TEXT, PROMPT), [None]),
        ((PROMPT,), [None]),
        ((EMBEDDING,), [None]),
        ((PROMPT,), [COUNTED]),
    ],
)
def test_an_engine_that_stands_still_stalls_whatever_its_requests_do(
    requests: tuple[Request, ...], answers: list[tuple[bytes, ...] | None]
) -> None:
    has_progress = TEXT in requests or answers != [None]  # at first: earlier text, or the first counts
    assert stalls_after(Engine(answers, work=(STILL,)), *requests) == CHECKS_PER_STALL + has_progress


@table("answers", [[IDLE], [None, None, None, IDLE], [(b"1",), None, (b"2",), None, None, (b"3",), None, IDLE]])
def test_an_engine_that_answers_and_has_no_work_or_makes_progress_does_not_stall(
    answers: list[tuple[bytes, ...] | None],
) -> None:
    assert stalls_after(Engine(answers, work=(STILL,)), TEXT) is None


@pytest.mark.parametrize("answer", [COUNTED, None], ids=["newer", "older"])
def test_a_long_batch_of_a_prompt_does_not_stall(answer: tuple[bytes, ...] | None) -> None:
    assert stalls_after(Engine([answer], work=(LITTLE,)), TEXT, PROMPT) is None
    assert stalls_after(Engine([answer], work=(LITTLE,)), EMBEDDING) is None
    assert stalls_after(Engine([IDLE, answer], work=(LITTLE,)), PROMPT) is None


def test_an_engine_that_works_on_nothing_but_text_and_counts_nothing_stalls() -> None:
    assert stalls_after(Engine([COUNTED]), TEXT) == CHECKS_PER_STALL + 1


def test_a_prompt_that_arrives_in_the_silence_is_no_excuse() -> None:
    later = Request(Progress(1e12, is_generating=False))
    assert stalls_after(Engine([COUNTED], arrivals={3: later}), TEXT) == CHECKS_PER_STALL + 1
    assert stalls_after(Engine([COUNTED], arrivals={3: PROMPT}), TEXT) is None  # it may be in the batch


def test_received_text_is_a_sign_of_life() -> None:
    arrivals = {check: Request(Progress(1.0 + check)) for check in range(1, LIMIT + 1)}
    assert stalls_after(Engine([None], work=(STILL,), arrivals=arrivals)) is None
    sent = {check: Request(Progress(1.0 + check, is_generating=False)) for check in range(1, LIMIT + 1)}
    assert stalls_after(Engine([None], work=(STILL,), arrivals=sent)) == CHECKS_PER_STALL


def test_silence_counts_only_in_a_row() -> None:
    assert stalls_after(Engine([None], work=(STILL, STILL, STILL, BUSY, STILL)), PROMPT) == 4 + CHECKS_PER_STALL


def test_only_one_probe_waits_for_an_answer() -> None:
    engine = Engine([None])
    assert stalls_after(engine, PROMPT) is None
    assert engine.probes == 1


@table(
    ("work", "requests", "expected"),
    [
        ((STILL,), (), CHECKS_PER_STALL),
        ((LITTLE,), (), None),
        ((STILL,), (PROMPT,), None),  # its work may be done elsewhere
        ((LITTLE, STILL), (PROMPT,), None),
        ((BUSY, STILL), (PROMPT,), 1 + CHECKS_PER_STALL),
        ((BUSY, STILL), (TEXT,), 1 + CHECKS_PER_STALL),
        ((BUSY,), (TEXT,), None),
        ((None,), (), CHECKS_PER_STALL),
        ((None,), (PROMPT,), None),
    ],
)
def test_a_command_stalls_if_it_does_not_answer_and_is_known_to_stand_still(
    work: tuple[float | None, ...], requests: tuple[Request, ...], expected: int | None
) -> None:
    assert stalls_after(Engine([None], work=work, is_llama=False), *requests) == expected


def test_a_command_that_works_is_not_probed() -> None:
    engine = Engine([IDLE], work=(BUSY,), is_llama=False)
    assert stalls_after(engine) is None
    assert engine.probes == 0
    silent = Engine([IDLE], work=(STILL,), is_llama=False)
    assert stalls_after(silent) is None
    assert silent.probes == LIMIT // 2


@table(("requests", "expected"), [((), CHECKS_PER_STALL), ((PROMPT,), None), ((TEXT,), None)])
def test_without_figures_of_the_system_an_engine_that_does_not_answer_may_work(
    requests: tuple[Request, ...], expected: int | None
) -> None:
    assert stalls_after(Engine([None], work=(None,)), *requests) == expected


METRICS = "llamacpp:n_decode_total {}\nllamacpp:requests_processing {}\nllamacpp:requests_deferred 0\n"


@table(
    ("counts", "limit_s", "expected"),
    [
        ([(7, 1)], 0.05, False),  # it answers, but the batch does not end
        ([(7, 1), (8, 1)], 60, True),
        ([(7, 0)], 60, True),
        ([(7, 1), None, (7, 0)], 60, True),
        ([None], 0.05, False),
    ],
)
def test_after_a_timeout_llama_cpp_has_to_make_progress(
    counts: list[tuple[int, int] | None], limit_s: float, expected: bool
) -> None:
    left = iter(counts)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if (count := next(left, counts[-1])) is not None:
            body = METRICS.format(*count)
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())

    async def main() -> bool:
        async with serving(answer) as port:
            return await has_progress(Address(port=port), limit_s)

    assert run(main()) is expected


def test_an_engine_is_not_replaced_if_a_request_would_fail() -> None:
    watch = StallWatch(0.0)
    assert watch.survives_restart
    requests = [Request(Progress()), Request(None), Request(Progress(survives_restart=False))]
    for request in requests:
        watch.add(request)
    assert not watch.survives_restart
    watch.remove(requests[2])
    assert watch.survives_restart
