"""Slow and overloaded servers: a timeout has its own verdict, and a missing end of a reply breaks no rule."""

import asyncio
import json
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from tests.check.serving import Handler, serving
from tests.http.aio import run
from tests.rules.pages import PAGES, read_page
from tests.table import table
from welldone.check.discovery import CheckUnreachableError
from welldone.check.report import Report, Verdict
from welldone.check.reports import html, machine, text
from welldone.check.run import CheckProgress, check
from welldone.check.session import Probe, Session
from welldone.check.settings import DIALECTS, CheckSettings, Timeouts
from welldone.http.address import Address
from welldone.http.recording_client import RecordedResponse
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.server import MockHttpRequest
from welldone.mock.variants import FAULT_REPLIES, error_reply
from welldone.rules.judge import judge
from welldone.rules.trace import complete_frames

SHORT_REPLY_TIMEOUT = Timeouts(
    reply_s=0.5, silence_s=60.0, prefill_s=60.0, stream_s=60.0, disconnect_s=5.0, after_done_s=0.2
)
"""Only the timeout of a reply is short."""
TIMEOUT_MESSAGE = "timed out after 0.5 s; the server may be slow or busy: raise --timeout"


def _check(handler: Handler, **settings: Any) -> Report:  # noqa: ANN401 - of CheckSettings
    async def work() -> Report:
        async with serving(handler) as url:
            return await check(CheckSettings(url=url, timeouts=SHORT_REPLY_TIMEOUT, **settings))

    return run(work())


def _hanging(*probes: str) -> Handler:
    """A correct server that hangs for these probes."""
    ideal = ReferenceServer()

    def handler(http_request: MockHttpRequest) -> Any:  # noqa: ANN401 - a reply
        is_hanging = any(f"({probe})" in http_request.headers.get("user-agent", "") for probe in probes)
        return FAULT_REPLIES["hang-first"] if is_hanging else ideal.answer(http_request)

    return handler


def test_a_slow_server_breaks_no_rule() -> None:
    # A greeting takes a twentieth of the timeout, and an answer of 400 tokens far longer than the timeout.
    report = _check(ReferenceServer(gap_s=0.003).answer, skip=("leaving", "flush", "long"))
    assert [(finding.rule, finding.observed) for finding in report.findings] == []


@pytest.mark.parametrize("endpoint", DIALECTS)
def test_a_timed_out_probe_is_reported_with_a_hint(endpoint: str) -> None:
    report = _check(_hanging("mistakes-json", "text"), only=("text", "mistakes-json"), endpoint=endpoint)
    assert (report.verdict, report.passed, report.findings) == (Verdict.TIMED_OUT, False, ())
    timed_out = {probe.name: probe for probe in report.probes if probe.is_timed_out}
    assert set(timed_out) == {"text", "mistakes-json"}
    assert {(probe.verdict, probe.reason) for probe in timed_out.values()} == {(Verdict.TIMED_OUT, TIMEOUT_MESSAGE)}


def test_every_report_format_names_the_timeout() -> None:
    report = _check(_hanging("text"), only=("text",))
    lines = text.render_terminal(report, lambda text, _: text)
    assert [line for line in lines if line.startswith("timed out  after 0.5 s: text; the server may be slow or busy")]
    assert lines[0] == lines[-1] == f"not passed: text {TIMEOUT_MESSAGE}"
    assert f"text {TIMEOUT_MESSAGE}" in html.render_html(report)
    assert f"text {TIMEOUT_MESSAGE}" in text.render_markdown(report)
    assert "welldone: timed out" in machine.render_badge(report)
    assert json.loads(machine.render_json(report))["probes"][0]["is_timed_out"]
    invocation = json.loads(machine.render_sarif(report))["runs"][0]["invocations"][0]
    assert not invocation["executionSuccessful"]
    assert invocation["toolExecutionNotifications"][0]["message"]["text"] == f"text: {TIMEOUT_MESSAGE}"
    suite = ElementTree.fromstring(machine.render_junit(report)).find("testsuite")
    assert suite is not None
    assert (suite.get("errors"), suite.get("failures")) == ("2", "0")
    error = suite.find("testcase[@name='text']/error")
    assert error is not None
    assert (error.get("type"), error.get("message")) == ("timed_out", TIMEOUT_MESSAGE)


def test_a_server_that_always_times_out_cannot_be_checked() -> None:
    with pytest.raises(CheckUnreachableError, match=f"a chat request {TIMEOUT_MESSAGE}"):
        _check(
            lambda http_request: (
                FAULT_REPLIES["hang"] if http_request.method == "POST" else ReferenceServer().answer(http_request)
            )
        )
    with pytest.raises(CheckUnreachableError, match=TIMEOUT_MESSAGE):
        _check(_hanging("mistakes-json"), only=("mistakes-json",))


@table(("status", "wait"), [(429, "0"), (503, "60")], ids=["for a moment", "for long"])
def test_an_overloaded_server_breaks_no_rule(status: int, wait: str) -> None:
    numbers, ideal = count(1), ReferenceServer()

    def handler(http_request: MockHttpRequest) -> Any:  # noqa: ANN401 - a reply
        is_first = "discovery" in http_request.headers.get("user-agent", "")
        return ideal.answer(http_request) if is_first or next(numbers) % 3 else error_reply(status, "busy", wait)

    report = _check(handler, skip=("leaving", "flush", "long"))
    assert [(finding.rule, finding.observed) for finding in report.findings] == []


# ---- truncated by the timeout


class TruncatingRecorder:
    """Replaces `record_response`: some replies of the reference server time out after a random number of bytes."""

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
        sent = {name.lower(): value or "" for name, value in headers}
        reply = self._ideal.answer(
            MockHttpRequest(method, address.prefix + path, sent, (body or b"").decode("utf-8", "replace"))
        )
        is_timed_out = "discovery" not in sent["user-agent"] and self._random.random() < 0.1
        received = reply.body[: self._random.randrange(len(reply.body) + 1)] if is_timed_out else reply.body
        is_aborted = leave is not None and leave(received)
        return RecordedResponse(
            status=reply.status if received or not is_timed_out else None,
            headers=tuple(reply.headers.items()),
            body=received,
            pieces=None,
            is_complete=not is_timed_out and not is_aborted,
            head_s=0.0,
            arrivals=((0.0, len(received)),),
            ended_s=0.0,
            error="no data for 60 s" if is_timed_out else None,
            is_aborted=is_aborted and not is_timed_out,
            is_abandoned=is_timed_out,
            is_timed_out=is_timed_out,
        )


@table("endpoint", DIALECTS)
@table("seed", range(2))
def test_a_correct_answer_truncated_by_the_timeout_breaks_no_rule(seed: int, endpoint: str) -> None:
    settings = CheckSettings(
        url="http://127.0.0.1:9/v1", endpoint=endpoint, timeouts=SHORT_REPLY_TIMEOUT, skip=("leaving",)
    )
    report = run(check(settings, record_response=TruncatingRecorder(seed)))
    assert any(probe.is_timed_out for probe in report.probes)
    assert [(finding.rule, finding.observed) for finding in report.findings] == []


STREAMS = [
    example
    for page in sorted(PAGES.glob("*-*.md"))
    for example in read_page(page)
    if example.is_correct and not example.trace.body.lstrip().startswith((b"{", b"["))
]


@pytest.mark.tier3
def test_no_prefix_of_a_correct_stream_breaks_a_rule_while_its_end_is_unknown() -> None:
    for example in STREAMS:
        body = example.trace.body
        for size in {len(complete_frames(body[:size])) for size in range(len(body))}:
            prefix = msgspec.structs.replace(example.trace, body=body[:size], complete=None, end=None, chunk_sizes=None)
            assert (example.name, judge(prefix).counts) == (example.name, {})


# ---- interrupted


async def _interrupted(after: int) -> Report:
    """A run that is stopped after so many probes; the next one hangs."""
    stop = asyncio.Event()

    async def quick(session: Session) -> None:
        session.require_ok(await session.generate("Say hello."))

    async def hanging(session: Session) -> None:
        session.require_ok(await session.generate("Say hello."))
        await asyncio.Event().wait()

    def stop_when_done(progress: CheckProgress) -> None:
        if progress.done == after and progress.running:
            asyncio.get_running_loop().call_soon(stop.set)

    works = [quick] * after + [hanging, quick]
    probes = [
        Probe(name=f"p{number}", description="", run=work, is_exclusive=True) for number, work in enumerate(works)
    ]
    async with serving(ReferenceServer().answer) as url:
        return await check(
            CheckSettings(url=url, timeouts=SHORT_REPLY_TIMEOUT), probes=probes, on_progress=stop_when_done, stop=stop
        )


def test_an_interrupted_run_reports_the_results_so_far() -> None:
    report = run(_interrupted(2))
    assert (report.is_interrupted, report.passed, report.findings) == (True, False, ())
    verdicts = [probe.verdict for probe in report.probes]
    assert (verdicts[:2], verdicts[-1]) == ([Verdict.PASS] * 2, Verdict.NOT_APPLICABLE)
    assert report.probes[-1].reason == "not run: the check was interrupted"
    assert "interrupted" in text.render_terminal(report, lambda text, _: text)[-1]
    assert "welldone: interrupted" in machine.render_badge(report)
    assert not json.loads(machine.render_sarif(report))["runs"][0]["invocations"][0]["executionSuccessful"]


def test_a_run_interrupted_during_discovery_has_a_report() -> None:
    async def work() -> Report:
        stop = asyncio.Event()
        stop.set()
        async with serving(_hanging("discovery")) as url:
            return await check(CheckSettings(url=url, timeouts=SHORT_REPLY_TIMEOUT), stop=stop)

    report = run(work())
    assert (report.is_partial, report.passed, report.cost.requests) == (True, False, 0)
    assert report.headline == "partial: the check was interrupted before all probes had run"
