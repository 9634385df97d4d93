"""A check run: verdicts, findings, redaction, retries, progress and trace files."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from tests.check.serving import SHORT_TIMEOUTS, TEST_TIMEOUTS, rewriting_reply, serving
from tests.http.aio import run
from tests.matrix.build import ABSENT, every
from tests.table import table
from welldone.check.discovery import CheckUnreachableError
from welldone.check.probe_client import ProbeClient
from welldone.check.reply import ExpectedReply, ProbeRequest
from welldone.check.report import Finding, Report, Verdict
from welldone.check.reports import machine, text
from welldone.check.run import CheckProgress, NothingToCheckError, check
from welldone.check.session import NotApplicableError, Probe, Session, UnsupportedError
from welldone.check.settings import HELLO_PROMPT, CheckSettings
from welldone.cli import captures
from welldone.core import sse
from welldone.core.catalog import RULES
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockChunk, MockReply, MockScript, json_reply
from welldone.mock.server import MockHttpRequest, MockServer
from welldone.mock.variants import FAULT_REPLIES, error_reply
from welldone.rules.judge import judge

Handler = Callable[[MockHttpRequest], MockReply]
HANG_TIMEOUTS = msgspec.structs.replace(TEST_TIMEOUTS, reply_s=1.0)
KEY = "sk-a-key-of-some-length"


async def _text(session: Session) -> None:
    session.require_ok(await session.generate(HELLO_PROMPT))


async def _buffered(session: Session) -> None:
    session.require_ok(await session.generate(HELLO_PROMPT, stream=False))


async def _mistake(session: Session) -> None:
    await session.post("/chat/completions", b"{")


async def _unsupported(session: Session) -> None:
    raise UnsupportedError("400: not here")


async def _not_applicable(session: Session) -> None:
    session.not_applicable("fin-length", "the answer was too short")
    raise NotApplicableError("nothing to see")


TEXT = Probe(name="text", description="a streamed text", run=_text)
BUFFERED = Probe(name="text-whole", description="a buffered text", run=_buffered, is_exclusive=True)
MISTAKE = Probe(name="mistake", description="an invalid body", run=_mistake)
UNSUPPORTED = Probe(name="unsupported", description="is unsupported", run=_unsupported, rules=("n-each-complete",))
NOT_APPLICABLE = Probe(name="inapplicable", description="is not applicable", run=_not_applicable, rules=("fin-length",))


async def _check(handler: Handler, *probes: Probe, **settings: Any) -> Report:  # noqa: ANN401 - any setting
    async with serving(handler) as url:
        check_settings = CheckSettings(url=url, **{"timeouts": TEST_TIMEOUTS, **settings})
        return await check(check_settings, probes=probes or (TEXT, BUFFERED))


def _only(reply: MockReply, *, probe: str) -> Handler:
    """A handler that sends `reply` to one probe, and is correct otherwise."""
    ideal = ReferenceServer()
    return lambda http_request: (
        reply if f"({probe})" in http_request.headers.get("user-agent", "") else ideal.answer(http_request)
    )


def _ideal_text(change: Callable[[bytes], bytes]) -> Handler:
    """A handler that changes the streams for the probe `text`."""
    ideal = ReferenceServer()

    def handler(http_request: MockHttpRequest) -> MockReply:
        reply = ideal.answer(http_request)
        if "(text)" not in http_request.headers.get("user-agent", ""):
            return reply
        return MockReply((MockChunk(base64=change(reply.body)),), headers=dict(sse.HEADERS))

    return handler


NO_DONE = _ideal_text(lambda body: body.removesuffix(b"data: [DONE]\n\n"))
NO_CACHE_CONTROL = _only(
    MockReply(FAULT_REPLIES["stream"].pieces, headers={k: v for k, v in sse.HEADERS if k != "Cache-Control"}),
    probe="text",
)


def _rules(findings: Sequence[Finding]) -> list[str]:
    return [finding.rule for finding in findings]


def test_a_correct_server_passes() -> None:
    report = run(_check(ReferenceServer().answer))
    assert (report.verdict, report.passed, report.findings) == (Verdict.PASS, True, ())
    assert [(probe.name, probe.verdict) for probe in report.probes] == [
        ("text", Verdict.PASS),
        ("text-whole", Verdict.PASS),
    ]
    assert report.cost.requests == 2
    assert {rule.id for rule in report.rules} == {
        fault.id for fault in RULES.values() if {"chat", "completions"} & {*fault.endpoints}
    }


def test_a_rule_passes_only_if_it_was_judged() -> None:
    rules = {rule.id: rule for rule in run(_check(ReferenceServer().answer)).rules}
    assert (rules["end-done-sent"].verdict, rules["end-done-sent"].probes) == (Verdict.PASS, ("text",))
    assert (rules["tool-id-once"].verdict, rules["tool-id-once"].reason) == (
        Verdict.NOT_APPLICABLE,
        "no reply had a tool call",
    )
    assert rules["ns-leading-space-ok"].reason.startswith("it permits something")


@table(
    ("created", "profile", "is_passed"),
    [
        (ABSENT, None, False),  # OpenAI's schema requires it
        (ABSENT, "ai-sdk", True),
        ("1600000000", "ai-sdk", False),
        ("1600000000", "openai-dotnet", True),
        (None, "openai-dotnet", False),
        (None, "ai-sdk", True),
    ],
)
def test_a_profile_counts_only_the_forms_that_affect_its_client(
    created: object, profile: str | None, is_passed: bool
) -> None:
    reply = MockReply((MockChunk(base64=every(created=created)),), headers=dict(sse.HEADERS))
    report = run(_check(_only(reply, probe="text"), TEXT, profile=profile, rules=("env-created-int",)))
    assert (report.passed, not report.findings) == (is_passed, is_passed)


def test_a_finding_has_its_position_and_commands_to_reproduce_it() -> None:
    report = run(_check(NO_DONE, key=KEY))
    found = next(finding for finding in report.findings if finding.rule == "end-done-sent")
    assert (report.verdict, report.passed) == (Verdict.FAIL, False)
    assert (found.probe, found.request, found.severity, found.count) == ("text", 1, "breaks", 1)
    assert f"welldone check {report.url} --model ideal --only text --rule end-done-sent" in found.reproduce
    assert found.curl is not None
    assert found.curl.startswith(f"curl -siN --raw {report.url}/chat/completions")
    assert KEY not in msgspec.json.encode(report).decode()
    assert next(rule for rule in report.rules if rule.id == "end-done-sent").verdict is Verdict.FAIL


def test_a_violation_that_breaks_no_client_warns_and_fails_only_with_strict() -> None:
    report = run(_check(NO_CACHE_CONTROL, rules=("http-cache-control",)))
    assert (report.verdict, report.passed, _rules(report.findings)) == (Verdict.WARN, True, ["http-cache-control"])
    assert not run(_check(NO_CACHE_CONTROL, rules=("http-cache-control",), is_strict=True)).passed


def test_rules_of_the_baseline_are_reported_and_do_not_fail() -> None:
    known = frozenset(run(_check(NO_DONE)).findings_by_rule)
    report = run(_check(NO_DONE, known=known))
    assert (report.verdict, report.passed, report.stale) == (Verdict.FAIL, True, ())
    assert not any(finding.is_new for finding in report.findings)
    assert not run(_check(NO_DONE, known=frozenset({"sse-no-bom"}))).passed


def test_a_rule_of_the_baseline_that_is_no_longer_broken_fails() -> None:
    report = run(_check(ReferenceServer().answer, known=frozenset({"end-done-sent", "tool-id-first"})))
    assert (report.verdict, report.passed, report.stale) == (Verdict.PASS, False, ("end-done-sent",))
    assert report.headline == "failed: no longer broken, but still listed as known: end-done-sent"
    assert text.render_terminal(report, lambda text, _: text)[0] == report.headline
    assert text.render_markdown(report).startswith(f"<h3>welldone check {report.headline}</h3>")
    suite = ElementTree.fromstring(machine.render_junit(report)).find("testsuite")
    assert suite is not None
    stale = suite.find("testcase[@name='end-done-sent']/failure")
    assert stale is not None
    assert stale.get("type") == "stale"
    notes = json.loads(machine.render_sarif(report))["runs"][0]["invocations"][0]["toolExecutionNotifications"]
    assert [note["message"]["text"] for note in notes] == [report.headline]


def test_a_rule_of_the_baseline_that_no_longer_exists_fails() -> None:
    report = run(_check(NO_DONE, known=frozenset({"end-done-sent", "end-done-missing"})))
    assert (report.passed, report.stale) == (False, ("end-done-missing",))
    machine.render_junit(report)


@table("rules", [("sse-no-bom",), ("tool-id-first", "sse-no-bom")])
def test_a_rule_of_the_baseline_that_is_not_judged_does_not_fail(rules: tuple[str, ...]) -> None:
    report = run(_check(ReferenceServer().answer, known=frozenset({"end-done-sent", "tool-id-first"}), rules=rules))
    assert (report.passed, report.stale) == (True, ())


def test_a_profile_selects_the_rules_that_affect_its_client() -> None:
    report = run(_check(NO_DONE, profile="langchain"))
    assert "end-done-sent" not in {rule.id for rule in report.rules}
    assert not run(_check(NO_DONE, profile="org-ai")).passed
    assert {rule.id for rule in run(_check(NO_DONE, profile="opencode")).rules} == {
        rule.id for rule in run(_check(NO_DONE, profile="ai-sdk")).rules
    }


def test_unsupported_and_not_applicable_are_distinguished() -> None:
    report = run(_check(ReferenceServer().answer, TEXT, UNSUPPORTED, NOT_APPLICABLE))
    rules = {rule.id: rule for rule in report.rules}
    assert [(probe.verdict, probe.reason) for probe in report.probes] == [
        (Verdict.PASS, ""),
        (Verdict.UNSUPPORTED, "400: not here"),
        (Verdict.NOT_APPLICABLE, "nothing to see"),
    ]
    assert (rules["n-each-complete"].verdict, rules["n-each-complete"].reason) == (Verdict.UNSUPPORTED, "400: not here")
    assert (rules["fin-length"].verdict, rules["fin-length"].reason) == (
        Verdict.NOT_APPLICABLE,
        "the answer was too short",
    )


def test_a_run_without_a_judged_rule_is_an_error() -> None:
    with pytest.raises(NothingToCheckError, match="no rule was judged: 400: not here"):
        run(_check(ReferenceServer().answer, UNSUPPORTED))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"only": ("text",), "skip": ("text",)}, "no probe is selected"),
        ({"profile": "langchain", "rules": ("end-done-sent",)}, "no rule is selected"),
        ({"rules": ("tool-id-once",)}, "no rule was judged"),
    ],
)
def test_filters_that_select_nothing_are_an_error(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(NothingToCheckError, match=message):
        run(_check(ReferenceServer().answer, **settings))


def test_a_group_name_selects_its_probes() -> None:
    names = [
        probe.name for probe in run(_check(ReferenceServer().answer, TEXT, BUFFERED, MISTAKE, only=("text",))).probes
    ]
    assert names == ["text", "text-whole"]
    names = [
        probe.name for probe in run(_check(ReferenceServer().answer, TEXT, BUFFERED, MISTAKE, skip=("text",))).probes
    ]
    assert names == ["mistake"]


def test_a_500_for_an_invalid_request_is_reported() -> None:
    report = run(_check(_only(error_reply(500, "no JSON"), probe="mistake"), MISTAKE))
    assert _rules(report.findings) == ["err-refused-4xx"]
    assert (report.findings[0].observed, report.verdict) == ("500: no JSON", Verdict.WARN)


@pytest.mark.parametrize("fault", ["close-first", "not-http"])
def test_a_request_without_a_reply_fails(fault: str) -> None:
    report = run(_check(_only(FAULT_REPLIES[fault], probe="mistake"), MISTAKE, timeouts=SHORT_TIMEOUTS))
    assert (_rules(report.findings), report.verdict) == (["err-refused-4xx"], Verdict.FAIL)


async def _check_disappearing_server(*probes: Probe, **settings: Any) -> Report:  # noqa: ANN401 - any setting
    """The report on a server that stops after these probes."""
    running = serving(ReferenceServer().answer)
    url = await running.__aenter__()

    async def stop_server(session: Session) -> None:
        await running.__aexit__(None, None, None)
        await session.generate(HELLO_PROMPT)

    last = Probe(name="last", description="", run=stop_server, is_exclusive=True)
    return await check(CheckSettings(url=url, timeouts=TEST_TIMEOUTS, **settings), probes=(*probes, last))


@pytest.mark.parametrize("rules", [(), ("end-done-sent",)])
def test_a_server_that_disappears_does_not_pass(rules: tuple[str, ...]) -> None:
    report = run(_check_disappearing_server(TEXT, rules=rules))
    assert (report.verdict, report.passed, report.findings) == (Verdict.PASS, False, ())
    last = report.probes[-1]
    assert (last.verdict, last.reason, last.is_incomplete) == (
        Verdict.NOT_APPLICABLE,
        "no connection to the server",
        True,
    )


def test_a_server_that_disappears_before_the_first_judgement_cannot_be_checked() -> None:
    with pytest.raises(CheckUnreachableError, match=r"http://127\.0\.0\.1:\d+/v1: no connection to the server"):
        run(_check_disappearing_server())


@pytest.mark.parametrize("jobs", [1, 4])
def test_no_more_requests_are_sent_to_a_server_that_answers_only_plain_ones(jobs: int) -> None:
    ideal, hanging = ReferenceServer(), list[MockHttpRequest]()

    def handler(http_request: MockHttpRequest) -> MockReply:
        if any(f"({name})" in http_request.headers["user-agent"] for name in ("discovery", "text", "control")):
            return ideal.answer(http_request)
        hanging.append(http_request)
        return FAULT_REPLIES["hang-first"]

    many = [Probe(name=f"more-{number}", description="", run=_text) for number in range(40)]
    report = run(_check(handler, TEXT, *many, timeouts=SHORT_TIMEOUTS, jobs=jobs, rules=("end-done-sent",)))
    assert (report.verdict, report.passed) == (Verdict.TIMED_OUT, False)
    assert 8 <= len(hanging) < 8 + jobs
    assert sum(probe.reason.startswith("not sent: 8 earlier requests") for probe in report.probes) == 40 - len(hanging)


def _hangs_after(
    is_last: Callable[[MockHttpRequest], bool],
    received: list[MockHttpRequest],
    silence: MockReply = FAULT_REPLIES["hang-first"],
) -> Handler:
    """A correct server that sends nothing any more from such a request on."""
    ideal, hung = ReferenceServer(), list[MockHttpRequest]()

    def handler(http_request: MockHttpRequest) -> MockReply:
        received.append(http_request)
        if hung or is_last(http_request):
            hung.append(http_request)
            return silence
        return ideal.answer(http_request)

    return handler


async def _check_all(handler: Handler, **settings: Any) -> Report:  # noqa: ANN401 - any setting
    async with serving(handler) as url:
        return await check(CheckSettings(url=url, timeouts=HANG_TIMEOUTS, **settings))


def _asks_for_no_choice(http_request: MockHttpRequest) -> bool:
    return '"n":0' in http_request.body


@table(
    "silence",
    [FAULT_REPLIES["hang-first"], MockReply(end="hang")],
    ids=["nothing", "only a head"],
)
def test_a_server_that_hangs_after_a_request_is_reported_with_that_request(silence: MockReply, tmp_path: Path) -> None:
    received: list[MockHttpRequest] = []
    server, only = _hangs_after(_asks_for_no_choice, received, silence), ("text", "mistakes", "models")
    report = run(_check_all(server, only=only, record=tmp_path))
    assert report.hang == (
        'the server answered until `tools: "none"` (mistakes-values), and nothing since: no reply to `n: 0` '
        "(mistakes-values), and none in 1 s to a request that took 0.0 s before; restart it before the next check"
    )
    assert report.causes[0].sentence == "the server stops answering"
    assert '"n":0' in (report.causes[0].command or "")
    assert (report.passed, report.is_partial, report.is_interrupted) == (False, True, False)
    assert report.headline == f"failed: {report.hang}"
    after = received[next(number for number, request in enumerate(received) if _asks_for_no_choice(request)) :]
    assert [request.headers["user-agent"].partition("check ")[2] for request in after] == [
        *("(mistakes-values)", "(mistakes-model)", "(control)")
    ]
    reasons = {probe.name: probe.reason for probe in report.probes}
    assert reasons["mistakes-values"] == "timed out after 1 s"
    assert reasons["mistakes-path"] == "not sent: the server no longer answers"
    rules = {rule.id: rule.reason for rule in report.rules}
    assert rules["tool-id-first"] == "no reply had a tool call; 5 probes got no complete reply"
    lines = text.render_terminal(report, lambda text, _: text)
    assert lines[0] == lines[-1] == report.headline
    assert not any("raise --timeout" in line for line in lines)
    assert "stopped answering" in machine.render_badge(report)


def test_an_answer_to_an_invalid_request_is_shown_before_the_silence() -> None:
    """As LitServe: `n: 0` gets an empty stream, and later requests get nothing."""
    ideal, asked = ReferenceServer(), list[MockHttpRequest]()

    def handler(http_request: MockHttpRequest) -> MockReply:
        if asked:
            return FAULT_REPLIES["hang-first"]
        if _asks_for_no_choice(http_request):
            asked.append(http_request)
            return FAULT_REPLIES["empty"]
        return ideal.answer(http_request)

    report = run(_check_all(handler, only=("text", "mistakes-values", "mistakes-model")))
    assert report.hang.startswith(
        "the server answered until `n: 0` (mistakes-values), and nothing since: no reply to `stop: 7` (mistakes-values)"
    )
    assert '"n":0' in (report.causes[0].command or "")


@table(
    ("is_last", "shown"),
    [
        (_asks_for_no_choice, "`n: 0` (mistakes-values)"),
        (lambda http_request: "(text)" in http_request.headers["user-agent"], "a valid request (text)"),
    ],
    ids=["invalid", "valid"],
)
def test_a_server_that_ends_after_a_request_is_reported_with_that_request(
    is_last: Callable[[MockHttpRequest], bool], shown: str
) -> None:
    closing: list[asyncio.Task[None]] = []

    def handler(http_request: MockHttpRequest) -> MockReply:
        if not is_last(http_request):
            return ReferenceServer().answer(http_request)
        closing.append(asyncio.create_task(server.close()))
        return FAULT_REPLIES["close-first"]

    async def work() -> Report:
        async with await server.listen():
            settings = CheckSettings(url=f"http://127.0.0.1:{server.port}/v1", timeouts=TEST_TIMEOUTS, jobs=1)
            return await check(msgspec.structs.replace(settings, only=("text", "mistakes")))

    server = MockServer(MockScript(), handler, handles_all=True)
    report = run(work())
    start = re.escape(f"the server answered until {shown}, and nothing since: no reply to ")
    end = r" \(.+\), and no connection for a request that took .+ s before; restart it before the next check"
    assert re.fullmatch(f"{start}.+{end}", report.hang)
    assert (report.passed, report.is_partial) == (False, True)
    assert report.causes[0].sentence == "the server stops answering"
    assert ('"n":0' in (report.causes[0].command or "")) is (is_last is _asks_for_no_choice)


async def _check_silent_probes(handler: Handler, later: Callable[[Session], Awaitable[object]]) -> Report:
    """A run in which two requests get no reply, while another probe runs."""
    probes = [Probe(name=name, description="", run=_text) for name in ("silent-1", "silent-2")]
    async with serving(handler) as url:
        settings = CheckSettings(url=url, timeouts=HANG_TIMEOUTS, rules=("end-done-sent",))
        return await check(settings, probes=[TEXT, *probes, Probe(name="later", description="", run=later)])


def _is_silent(http_request: MockHttpRequest) -> bool:
    return "(silent-" in http_request.headers["user-agent"]


def test_a_server_that_answers_the_control_request_does_not_hang() -> None:
    received: list[str] = []

    def handler(http_request: MockHttpRequest) -> MockReply:
        received.append(http_request.headers["user-agent"].partition("check ")[2])
        return FAULT_REPLIES["hang-first"] if _is_silent(http_request) else ReferenceServer().answer(http_request)

    report = run(_check_silent_probes(handler, _text))
    assert (report.hang, report.verdict, report.is_partial) == ("", Verdict.TIMED_OUT, False)
    assert received.count("(control)") == 1


def test_a_server_that_answers_another_request_meanwhile_does_not_hang() -> None:
    """It is only slow: the control request waits behind others."""
    is_control_sent = asyncio.Event()

    def handler(http_request: MockHttpRequest) -> MockReply:
        is_control = "(control)" in http_request.headers["user-agent"]
        if is_control:
            is_control_sent.set()
        is_late = is_control or _is_silent(http_request)
        return FAULT_REPLIES["hang-first"] if is_late else ReferenceServer().answer(http_request)

    async def later(session: Session) -> None:
        await is_control_sent.wait()
        await _text(session)

    report = run(_check_silent_probes(handler, later))
    assert (report.hang, report.verdict, report.is_partial) == ("", Verdict.TIMED_OUT, False)
    assert report.probes[-1].verdict is Verdict.PASS


def test_a_request_without_a_control_request_does_not_show_a_hang() -> None:
    """The first answer took so long that the others may just be slow."""
    ideal = ReferenceServer()

    def handler(http_request: MockHttpRequest) -> MockReply:
        reply = ideal.answer(http_request)
        if "(text)" in http_request.headers["user-agent"]:
            return FAULT_REPLIES["hang-first"]
        pieces = (msgspec.structs.replace(reply.pieces[0], after_s=0.2), *reply.pieces[1:])
        return msgspec.structs.replace(reply, pieces=pieces)

    report = run(_check_all(handler, only=("text", "models"), rules=("end-done-sent", "ns-models-list")))
    assert (report.hang, report.verdict) == ("", Verdict.TIMED_OUT)


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"[]", "the body '[]' (text)"),
        (b'{"stream":true}', "`no messages` (text)"),
        (None, "POST /chat/completions (text)"),
    ],
)
def test_a_request_that_stops_the_server_is_described(body: bytes | None, shown: str) -> None:
    async def send(session: Session) -> None:
        path = session.dialect.path
        await session.send(ProbeRequest(method="POST", path=path, body=body, expected=ExpectedReply.REFUSAL))

    def stop(http_request: MockHttpRequest) -> bool:
        return "(text)" in http_request.headers["user-agent"]

    async def work() -> Report:
        probes = [Probe(name=name, description="", run=send, is_exclusive=True) for name in ("text", "later")]
        async with serving(_hangs_after(stop, [])) as url:
            return await check(CheckSettings(url=url, timeouts=HANG_TIMEOUTS), probes=probes)

    assert f"and nothing since: no reply to {shown}, and none in 1 s" in run(work()).hang


def test_an_overloaded_server_is_retried_within_a_time_budget() -> None:
    waits: list[float] = []

    async def pause(seconds: float) -> None:
        waits.append(seconds)

    async def work() -> None:
        async with serving(lambda _: error_reply(503, "later", "10")) as url:
            client = ProbeClient(CheckSettings(url=url, timeouts=TEST_TIMEOUTS), pause)
            request = ProbeRequest(method="GET", path="/models")
            assert len(await client.send(request, "text")) == 4
            assert waits == [10.0] * 3
            for _ in range(20):
                assert (await client.send(request, "text"))[-1].status == 503

    run(work())
    assert sum(waits) == 300


def test_a_request_is_retried_after_429() -> None:
    ideal, busy = ReferenceServer(), iter([True, True])
    limited = error_reply(429, "later", "0")

    def handler(http_request: MockHttpRequest) -> MockReply:
        return (
            limited
            if "(text)" in http_request.headers["user-agent"] and next(busy, False)
            else ideal.answer(http_request)
        )

    report = run(_check(handler, TEXT))
    assert (report.verdict, report.cost.requests) == (Verdict.PASS, 3)


def test_a_long_silence_is_reported() -> None:
    slow = MockReply(
        (
            MockChunk(": hi\n\n"),
            *(MockChunk(base64=p.data, after_s=0.0) for p in ReferenceServer().answer(_hello_request()).pieces),
        )
    )
    pieces = (slow.pieces[0], msgspec.structs.replace(slow.pieces[1], after_s=0.5), *slow.pieces[2:])
    reply = MockReply(pieces, headers=dict(sse.HEADERS))
    timeouts = msgspec.structs.replace(TEST_TIMEOUTS, silence_s=0.1)
    report = run(_check(_only(reply, probe="text"), TEXT, timeouts=timeouts))
    assert _rules(report.findings) == ["live-keepalive-in-silence"]


def _hello_request() -> MockHttpRequest:
    body = {"model": "ideal", "stream": True, "messages": [{"role": "user", "content": HELLO_PROMPT}]}
    return MockHttpRequest("POST", "/v1/chat/completions", {}, json.dumps(body))


def test_lint_finds_the_same_rules_in_the_recorded_traces(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    report = run(_check(NO_DONE, TEXT, BUFFERED, MISTAKE, record=folder))
    assert sorted(path.name for path in folder.glob("*.json")) == ["mistake-1.json", "text-1.json", "text-whole-1.json"]
    by_lint = {path.name: _lint(path) for path in folder.glob("*.json")}
    by_check: dict[str, set[str]] = {name: set() for name in by_lint}
    for finding in report.findings:
        assert finding.trace is not None
        by_check[finding.trace].add(finding.rule)
    assert by_lint == by_check
    assert "end-done-sent" in by_lint["text-1.json"]


def _lint(path: Path) -> set[str]:
    name = str(path)
    return set(judge(captures.read_reply(captures.read_bytes(name), name, endpoint=None, request=None)).counts)


def test_a_key_that_the_server_repeats_is_redacted(tmp_path: Path) -> None:
    ideal = ReferenceServer()

    def handler(http_request: MockHttpRequest) -> MockReply:
        if "(mistake)" in http_request.headers["user-agent"]:
            return error_reply(500, f"no such key: {http_request.headers['authorization']}")
        return ideal.answer(http_request)

    report = run(_check(handler, MISTAKE, key=KEY, record=tmp_path / "traces"))
    assert report.findings[0].observed == "500: no such key: Bearer [hidden]"
    assert KEY not in msgspec.json.encode(report).decode()
    assert [path for path in tmp_path.rglob("*") if path.is_file() and KEY in path.read_text()] == []


TOKEN = "a-token-of-some-length"
SECRET_SETTINGS: list[dict[str, Any]] = [
    {"key": TOKEN},
    {"headers": (("X-Token", TOKEN),)},
    {"headers": (("Authorization", f"Bearer {TOKEN}"),)},
    {"headers": (("Cookie", f"one=two; session={TOKEN}; three=four"),)},
]


@table("settings", SECRET_SETTINGS, ids=range(len(SECRET_SETTINGS)))
@table("before", range(100, 170, 14))
def test_secrets_in_replies_are_redacted(settings: dict[str, Any], before: int, tmp_path: Path) -> None:
    ideal, text = ReferenceServer(models=("ideal", f"m-{TOKEN}")), f"{'x' * before} {TOKEN}"

    def handler(http_request: MockHttpRequest) -> MockReply:
        if "(mistake)" in http_request.headers["user-agent"]:
            return msgspec.structs.replace(error_reply(500, text), headers={"X-Text": text})
        if "(text-whole)" in http_request.headers["user-agent"]:
            return error_reply(404, text)
        reply = ideal.answer(http_request)
        # The name of an unknown kind of server comes from its Server header.
        pieces = tuple(MockChunk(base64=piece.data.replace(b"welldone", b"somebody")) for piece in reply.pieces)
        return msgspec.structs.replace(reply, pieces=pieces, headers={**reply.headers, "Server": TOKEN, "X-Text": text})

    report = run(_check(handler, TEXT, BUFFERED, MISTAKE, record=tmp_path, **settings))
    written = [msgspec.json.encode(report), *(path.read_bytes() for path in tmp_path.iterdir())]
    assert report.server == "[hidden]"
    assert len(written) > 1
    assert not any(TOKEN[:9].encode() in text for text in written)
    assert TOKEN not in repr(CheckSettings(url=report.url, **settings))


@table("settings", SECRET_SETTINGS, ids=range(len(SECRET_SETTINGS)))
@table(
    "reply",
    [
        error_reply(401, f"{'x' * 140} {TOKEN} {TOKEN}"),
        MockReply((), 302, {"Location": f"http://127.0.0.1/?key={TOKEN}"}, framing="length"),
        json_reply({"data": [{"id": TOKEN}]}),
    ],
    ids=["refusal", "redirect", "models"],
)
def test_secrets_are_redacted_in_errors(settings: dict[str, Any], reply: MockReply) -> None:
    with pytest.raises(CheckUnreachableError) as caught:
        run(_check(lambda _: reply, **settings))
    assert TOKEN[:9] not in str(caught.value)


def test_traces_of_earlier_runs_of_the_same_probes_are_deleted(tmp_path: Path) -> None:
    other_files = ["text-whole-1.json", "text-1.txt", "text-x.json", "notes.json"]
    for name in ("text-1.json", "text-7.json", "text-7.body", *other_files):
        (tmp_path / name).write_text("{}")
    run(_check(ReferenceServer().answer, TEXT, record=tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"text-1.json", "text-1.body", *other_files}
    assert (tmp_path / "text-1.json").read_text() != "{}"


def test_an_unwritable_folder_is_reported_before_the_first_request(tmp_path: Path) -> None:
    def no_request(_: MockHttpRequest) -> MockReply:
        pytest.fail("the server received a request")

    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match=r"File exists|Not a directory"):
            run(_check(no_request, record=folder))


@pytest.mark.parametrize("count", [10**30, -1, 10**4290], ids=["large", "negative", "endless"])
def test_an_implausible_token_count_is_ignored(count: int) -> None:
    def change(_: dict[str, Any], reply: dict[str, Any]) -> dict[str, Any]:
        if reply.get("usage"):
            reply["usage"]["prompt_tokens"] = count
        return reply

    cost = run(_check(rewriting_reply(ReferenceServer().answer, change), BUFFERED)).cost
    assert 0 < cost.prompt_tokens < 100


def test_progress_is_reported_from_discovery_to_the_end() -> None:
    reported: list[CheckProgress] = []

    async def work() -> None:
        async with serving(ReferenceServer().answer) as url:
            await check(
                CheckSettings(url=url, timeouts=TEST_TIMEOUTS), probes=(TEXT, BUFFERED), on_progress=reported.append
            )

    run(work())
    assert reported[0] == CheckProgress(0, 2, ("discovery",))
    assert reported[-1] == CheckProgress(2, 2, ())


def test_extra_fields_and_headers_are_in_every_request() -> None:
    ideal, received = ReferenceServer(), list[MockHttpRequest]()

    def handler(http_request: MockHttpRequest) -> MockReply:
        received.append(http_request)
        return ideal.answer(http_request)

    run(_check(handler, TEXT, extra={"reasoning_effort": "low"}, headers=(("X-Team", "search"),)))
    posts = [http_request for http_request in received if http_request.method == "POST"]
    assert len(posts) == 2
    assert all(json.loads(http_request.body)["reasoning_effort"] == "low" for http_request in posts)
    assert all(http_request.headers["x-team"] == "search" for http_request in received)
