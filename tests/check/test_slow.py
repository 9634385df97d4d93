"""Slow and busy servers: a timeout is an outcome of its own, and what a missing end would explain is no finding."""

import asyncio
import json
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from tests.check.serving import Choose, serving
from tests.http.aio import run
from tests.rules.pages import PAGES, read_page
from tests.table import table
from welldone.check.discovery import CheckUnreachableError
from welldone.check.probe import Probe
from welldone.check.report import Report, Verdict
from welldone.check.reports import html, machine, text
from welldone.check.run import CheckProgress, InterruptedCheckError, check
from welldone.check.session import Session
from welldone.check.settings import DIALECTS, CheckSettings, Timeouts
from welldone.http.address import Address
from welldone.http.recording_client import RecordedResponse
from welldone.mock.faults import FAULT_REPLIES, error_reply
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.server import MockHttpRequest
from welldone.rules.judge import judge
from welldone.rules.trace import complete_frames

PATIENCE = Timeouts(reply_s=0.5, silence_s=60.0, prefill_s=60.0, stream_s=60.0, disconnect_s=5.0, after_done_s=0.2)
"""Only the time limit of a reply is short: no other time is the server's fault."""
SLOW = "timed out after 0.5 s; the server may be slow or busy: raise --timeout"


def _check(choose: Choose, **settings: Any) -> Report:  # noqa: ANN401 - of CheckSettings
    async def work() -> Report:
        async with serving(choose) as url:
            return await check(CheckSettings(url=url, timeouts=PATIENCE, **settings))

    return run(work())


def _hanging(*probes: str) -> Choose:
    """A right server that never ends its answers to these probes."""
    ideal = ReferenceServer()

    def choose(seen: MockHttpRequest) -> Any:  # noqa: ANN401 - a reply
        is_hanging = any(f"({probe})" in seen.headers.get("user-agent", "") for probe in probes)
        return FAULT_REPLIES["hang-first"] if is_hanging else ideal.answer(seen)

    return choose


def test_a_slow_server_times_out_and_breaks_no_rule() -> None:
    # A greeting takes a twentieth of the limit, and an answer of 400 tokens far more than all of it.
    report = _check(ReferenceServer(gap_s=0.003).answer, skip=("leaving", "flush", "long"))
    assert [(finding.rule, finding.observed) for finding in report.findings] == []


@pytest.mark.parametrize("endpoint", DIALECTS)
def test_a_probe_that_times_out_is_named_with_what_to_do(endpoint: str) -> None:
    report = _check(_hanging("mistakes-json", "text"), only=("text", "mistakes-json"), endpoint=endpoint)
    assert (report.verdict, report.passed, report.findings) == (Verdict.TIMED_OUT, False, ())
    late = {probe.name: probe for probe in report.probes if probe.is_timed_out}
    assert set(late) == {"text", "mistakes-json"}
    assert {(probe.verdict, probe.reason) for probe in late.values()} == {(Verdict.TIMED_OUT, SLOW)}


def test_every_form_of_the_report_names_the_timeout() -> None:
    report = _check(_hanging("text"), only=("text",))
    lines = text.render_terminal(report, lambda text, _: text)
    assert [line for line in lines if line.startswith("timed out  after 0.5 s: text; the server may be slow or busy")]
    assert lines[-1] == f"  not passed: text {SLOW}"
    assert f"text {SLOW}" in html.render_html(report)
    assert f"text {SLOW}" in text.render_markdown(report)
    assert "welldone: timed out" in machine.render_badge(report)
    assert json.loads(machine.render_json(report))["probes"][0]["is_timed_out"]
    invocation = json.loads(machine.render_sarif(report))["runs"][0]["invocations"][0]
    assert not invocation["executionSuccessful"]
    assert invocation["toolExecutionNotifications"][0]["message"]["text"] == f"text: {SLOW}"
    suite = ElementTree.fromstring(machine.render_junit(report)).find("testsuite")
    assert suite is not None
    assert (suite.get("errors"), suite.get("failures")) == ("1", "0")
    error = suite.find("testcase[@name='text']/error")
    assert error is not None
    assert (error.get("type"), error.get("message")) == ("timed out", SLOW)


def test_a_server_that_answers_nothing_in_time_cannot_be_checked() -> None:
    with pytest.raises(CheckUnreachableError, match=f"a chat request {SLOW}"):
        _check(lambda seen: FAULT_REPLIES["hang"] if seen.method == "POST" else ReferenceServer().answer(seen))
    with pytest.raises(CheckUnreachableError, match=SLOW):
        _check(_hanging("mistakes-json"), only=("mistakes-json",))


@table("status", [429, 503])
@table("wait", ["0", "60"], ids=["for a moment", "for long"])
def test_a_busy_server_breaks_no_rule(status: int, wait: str) -> None:
    numbers, ideal = count(1), ReferenceServer()

    def choose(seen: MockHttpRequest) -> Any:  # noqa: ANN401 - a reply
        is_first = "first look" in seen.headers.get("user-agent", "")
        return ideal.answer(seen) if is_first or next(numbers) % 3 else error_reply(status, "busy", wait)

    report = _check(choose, skip=("leaving", "flush", "long"))
    assert [(finding.rule, finding.observed) for finding in report.findings] == []


# ---- cut by the timeout


class Impatient:
    """A right server that is listened to for a random number of bytes only; it stands in for `net.ear.listen`."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._ideal = ReferenceServer()

    async def __call__(
        self,
        address: Address,
        method: str,
        path: str,
        *,
        body: bytes | None,
        headers: tuple[tuple[str, str | None], ...],
        leave: Callable[[bytes], bool] | None,
        **_: float,
    ) -> RecordedResponse:
        asked = {name.lower(): value or "" for name, value in headers}
        reply = self._ideal.answer(
            MockHttpRequest(method, address.prefix + path, asked, (body or b"").decode("utf-8", "replace"))
        )
        is_late = "first look" not in asked["user-agent"] and self._random.random() < 0.1
        heard = reply.body[: self._random.randrange(len(reply.body) + 1)] if is_late else reply.body
        is_left = leave is not None and leave(heard)
        return RecordedResponse(
            status=reply.status if heard or not is_late else None,
            headers=tuple(reply.headers.items()),
            body=heard,
            pieces=None,
            is_complete=not is_late and not is_left,
            head_s=0.0,
            arrivals=((0.0, len(heard)),),
            ended_s=0.0,
            error="nothing came for 60 s" if is_late else None,
            is_aborted=is_left and not is_late,
            is_abandoned=is_late,
            is_timed_out=is_late,
        )


@table("endpoint", DIALECTS)
@table("seed", range(3))
def test_a_right_answer_that_is_cut_by_the_timeout_breaks_no_rule(seed: int, endpoint: str) -> None:
    settings = CheckSettings(url="http://127.0.0.1:9/v1", endpoint=endpoint, timeouts=PATIENCE, skip=("leaving",))
    report = run(check(settings, record_response=Impatient(seed)))
    assert any(probe.is_timed_out for probe in report.probes)
    assert [(finding.rule, finding.observed) for finding in report.findings] == []


STREAMS = [
    example
    for page in sorted(PAGES.glob("*-*.md"))
    for example in read_page(page)
    if example.is_correct and not example.trace.body.lstrip().startswith((b"{", b"["))
]


@pytest.mark.tier3
def test_no_part_of_a_right_stream_breaks_a_rule_while_its_end_is_unknown() -> None:
    for example in STREAMS:
        body = example.trace.body
        for size in {len(complete_frames(body[:size])) for size in range(len(body))}:
            begun = msgspec.structs.replace(example.trace, body=body[:size], complete=None, end=None, chunk_sizes=None)
            assert (example.name, judge(begun).counts) == (example.name, {})


# ---- interrupted


async def _interrupted(after: int) -> Report:
    """A run that is stopped once so many probes have ended; the next one hangs."""
    stop, done = asyncio.Event(), []

    async def quick(session: Session) -> None:
        session.require_ok(await session.generate("Say hello."))

    async def endless(session: Session) -> None:
        session.require_ok(await session.generate("Say hello."))
        await asyncio.Event().wait()

    def tell(progress: CheckProgress) -> None:
        done.append(progress.done)
        if progress.done == after and progress.running:
            asyncio.get_running_loop().call_soon(stop.set)

    works = [quick] * after + [endless, quick]
    probes = [
        Probe(name=f"p{number}", description="", run=work, is_exclusive=True) for number, work in enumerate(works)
    ]
    async with serving(ReferenceServer().answer) as url:
        return await check(CheckSettings(url=url, timeouts=PATIENCE), probes=probes, on_progress=tell, stop=stop)


def test_an_interrupted_run_reports_what_was_done() -> None:
    report = run(_interrupted(2))
    assert (report.is_interrupted, report.passed, report.findings) == (True, False, ())
    verdicts = [probe.verdict for probe in report.probes]
    assert (verdicts[:2], verdicts[-1]) == ([Verdict.PASS] * 2, Verdict.NOT_APPLICABLE)
    assert report.probes[-1].reason == "not run: the check was interrupted"
    assert "interrupted" in text.render_terminal(report, lambda text, _: text)[-1]
    assert "welldone: interrupted" in machine.render_badge(report)
    assert not json.loads(machine.render_sarif(report))["runs"][0]["invocations"][0]["executionSuccessful"]


def test_a_run_that_is_interrupted_at_once_has_no_report() -> None:
    async def work() -> None:
        stop = asyncio.Event()
        stop.set()
        async with serving(_hanging("first look")) as url:
            await check(CheckSettings(url=url, timeouts=PATIENCE), stop=stop)

    with pytest.raises(InterruptedCheckError):
        run(work())
