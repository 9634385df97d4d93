"""A whole run: what the probes heard becomes verdicts, findings, an exit and traces."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.check.serving import HASTY, IMPATIENT, edited, serving
from tests.http.aio import run
from tests.table import table
from welldone.check import settings
from welldone.check.discovery import CheckUnreachableError
from welldone.check.probe import Probe
from welldone.check.probe_client import ProbeClient
from welldone.check.reply import ProbeRequest
from welldone.check.report import Finding, Report, Verdict
from welldone.check.run import CheckProgress, NothingToCheckError, check
from welldone.check.session import NotApplicableError, Session, UnsupportedError
from welldone.check.settings import CheckSettings
from welldone.cli import captures
from welldone.http import recording_client
from welldone.mock.faults import FAULT_REPLIES, error_reply
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockChunk, MockReply, json_reply
from welldone.mock.server import MockHttpRequest
from welldone.protocol import sse
from welldone.protocol.catalog import ALL_RULES
from welldone.rules.judge import judge

Choose = Callable[[MockHttpRequest], MockReply]
KEY = "sk-a-key-of-some-length"


async def _text(session: Session) -> None:
    session.require_ok(await session.generate(settings.HELLO_PROMPT))


async def _whole(session: Session) -> None:
    session.require_ok(await session.generate(settings.HELLO_PROMPT, stream=False))


async def _mistake(session: Session) -> None:
    await session.post("/chat/completions", b"{")


async def _not_offered(session: Session) -> None:
    raise UnsupportedError("400: not here")


async def _not_heard(session: Session) -> None:
    session.not_applicable("fin-length", "the answer was too short")
    raise NotApplicableError("nothing to see")


TEXT = Probe(name="text", description="a text", run=_text)
WHOLE = Probe(name="text-whole", description="a whole text", run=_whole, is_exclusive=True)
MISTAKE = Probe(name="mistake", description="a mistake", run=_mistake)
NOT_OFFERED = Probe(name="offers", description="asks too much", run=_not_offered, rules=("n-each-complete",))
NOT_HEARD = Probe(name="hears", description="hears too little", run=_not_heard, rules=("fin-length",))


async def _check(choose: Choose, *probes: Probe, **settings: Any) -> Report:  # noqa: ANN401 - any setting
    async with serving(choose) as url:
        made = CheckSettings(url=url, **{"patience": IMPATIENT, **settings})
        return await check(made, probes=probes or (TEXT, WHOLE))


def _only(reply: MockReply, *, probe: str) -> Choose:
    """The ideal server, but for one probe."""
    ideal = ReferenceServer()
    return lambda seen: reply if f"({probe})" in seen.headers.get("user-agent", "") else ideal.answer(seen)


def _ideal_text(change: Callable[[bytes], bytes]) -> Choose:
    """The ideal server, whose streams are changed for the probe of texts."""
    ideal = ReferenceServer()

    def choose(seen: MockHttpRequest) -> MockReply:
        reply = ideal.answer(seen)
        if "(text)" not in seen.headers.get("user-agent", ""):
            return reply
        return MockReply((MockChunk(base64=change(reply.body)),), headers=dict(sse.HEADERS))

    return choose


NO_DONE = _ideal_text(lambda body: body.removesuffix(b"data: [DONE]\n\n"))
NO_CACHE_CONTROL = _only(
    MockReply(FAULT_REPLIES["stream"].pieces, headers={k: v for k, v in sse.HEADERS if k != "Cache-Control"}),
    probe="text",
)


def _rules(findings: Sequence[Finding]) -> list[str]:
    return [finding.rule for finding in findings]


def test_a_right_server_is_right() -> None:
    report = run(_check(ReferenceServer().answer))
    assert (report.verdict, report.passed, report.findings) == (Verdict.PASS, True, ())
    assert [(probe.name, probe.verdict) for probe in report.probes] == [
        ("text", Verdict.PASS),
        ("text-whole", Verdict.PASS),
    ]
    assert report.cost.requests == 2
    assert {rule.id for rule in report.rules} == {
        fault.id for fault in ALL_RULES if {"chat", "completions"} & {*fault.endpoints}
    }


def test_a_rule_is_right_only_where_it_had_a_say() -> None:
    rules = {rule.id: rule for rule in run(_check(ReferenceServer().answer)).rules}
    assert (rules["end-done-sent"].verdict, rules["end-done-sent"].probes) == (Verdict.PASS, ("text",))
    assert (rules["tool-id-once"].verdict, rules["tool-id-once"].reason) == (
        Verdict.NOT_APPLICABLE,
        "no tool call was heard",
    )
    assert rules["ns-leading-space-ok"].reason.startswith("it allows something")


def test_what_is_broken_is_told_with_its_place_and_how_to_see_it_again() -> None:
    report = run(_check(NO_DONE, key=KEY))
    found = next(finding for finding in report.findings if finding.rule == "end-done-sent")
    assert (report.verdict, report.passed) == (Verdict.FAIL, False)
    assert (found.probe, found.request, found.severity, found.count) == ("text", 1, "breaks", 1)
    assert f"welldone check {report.url} --model ideal --only text --rule end-done-sent" in found.reproduce
    assert found.curl is not None
    assert found.curl.startswith(f"curl -siN --raw {report.url}/chat/completions")
    assert KEY not in msgspec.json.encode(report).decode()
    assert next(rule for rule in report.rules if rule.id == "end-done-sent").verdict is Verdict.FAIL


def test_what_breaks_no_client_is_lax_and_fails_only_where_one_is_strict() -> None:
    report = run(_check(NO_CACHE_CONTROL, rules=("http-cache-control",)))
    assert (report.verdict, report.passed, _rules(report.findings)) == (Verdict.WARN, True, ["http-cache-control"])
    assert not run(_check(NO_CACHE_CONTROL, rules=("http-cache-control",), is_strict=True)).passed


def test_what_was_broken_before_does_not_fail_but_is_shown() -> None:
    known = frozenset(run(_check(NO_DONE)).findings_by_rule)
    report = run(_check(NO_DONE, known=known))
    assert (report.verdict, report.passed) == (Verdict.FAIL, True)
    assert not any(finding.is_new for finding in report.findings)
    assert not run(_check(NO_DONE, known=frozenset({"sse-no-bom"}))).passed


def test_a_profile_judges_what_hurts_its_client() -> None:
    report = run(_check(NO_DONE, profile="langchain"))
    assert "end-done-sent" not in {rule.id for rule in report.rules}
    assert not run(_check(NO_DONE, profile="org-ai")).passed
    assert {rule.id for rule in run(_check(NO_DONE, profile="opencode")).rules} == {
        rule.id for rule in run(_check(NO_DONE, profile="ai-sdk")).rules
    }


def test_what_is_not_offered_and_what_is_not_heard_are_told_apart() -> None:
    report = run(_check(ReferenceServer().answer, TEXT, NOT_OFFERED, NOT_HEARD))
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


def test_a_run_in_which_nothing_was_judged_is_no_pass() -> None:
    with pytest.raises(NothingToCheckError, match="no rule had a say: 400: not here"):
        run(_check(ReferenceServer().answer, NOT_OFFERED))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"only": ("text",), "skip": ("text",)}, "no probe is left to run"),
        ({"profile": "langchain", "rules": ("end-done-sent",)}, "no rule is left to judge"),
        ({"rules": ("tool-id-once",)}, "no rule had a say"),
    ],
)
def test_filters_that_leave_nothing_are_no_pass(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(NothingToCheckError, match=said):
        run(_check(ReferenceServer().answer, **settings))


def test_groups_of_probes_are_named_by_their_beginning() -> None:
    names = [probe.name for probe in run(_check(ReferenceServer().answer, TEXT, WHOLE, MISTAKE, only=("text",))).probes]
    assert names == ["text", "text-whole"]
    names = [probe.name for probe in run(_check(ReferenceServer().answer, TEXT, WHOLE, MISTAKE, skip=("text",))).probes]
    assert names == ["mistake"]


def test_a_mistake_that_is_answered_with_500_is_told() -> None:
    report = run(_check(_only(error_reply(500, "no JSON"), probe="mistake"), MISTAKE))
    assert _rules(report.findings) == ["err-refused-4xx"]
    assert (report.findings[0].observed, report.verdict) == ("500: no JSON", Verdict.WARN)


@pytest.mark.parametrize("fault", ["close-first", "not-http"])
def test_a_request_without_an_answer_is_wrong(fault: str) -> None:
    report = run(_check(_only(FAULT_REPLIES[fault], probe="mistake"), MISTAKE, patience=HASTY))
    assert (_rules(report.findings), report.verdict) == (["err-refused-4xx"], Verdict.FAIL)


async def _leave_after(*probes: Probe, **settings: Any) -> Report:  # noqa: ANN401 - any setting
    """What is said of a server that goes away after these probes, and before the next."""
    running = serving(ReferenceServer().answer)
    url = await running.__aenter__()

    async def ask(session: Session) -> None:
        await running.__aexit__(None, None, None)
        await session.generate(settings.HELLO_PROMPT)

    last = Probe(name="last", description="", run=ask, is_exclusive=True)
    return await check(CheckSettings(url=url, timeouts=IMPATIENT, **settings), probes=(*probes, last))


@pytest.mark.parametrize("rules", [(), ("end-done-sent",)])
def test_a_server_that_goes_away_does_not_pass(rules: tuple[str, ...]) -> None:
    report = run(_leave_after(TEXT, rules=rules))
    assert (report.verdict, report.passed, report.findings) == (Verdict.PASS, False, ())
    last = report.probes[-1]
    assert (last.verdict, last.reason, last.is_incomplete) == (
        Verdict.NOT_APPLICABLE,
        "no connection to the server",
        True,
    )


def test_a_server_that_goes_away_before_anything_is_judged_cannot_be_checked() -> None:
    with pytest.raises(CheckUnreachableError, match=r"http://127\.0\.0\.1:\d+/v1: no connection to the server"):
        run(_leave_after())


@pytest.mark.parametrize("side_by_side", [1, 4])
def test_a_server_that_hangs_is_not_asked_for_ever(side_by_side: int) -> None:
    ideal, silent = ReferenceServer(), list[MockHttpRequest]()

    def choose(seen: MockHttpRequest) -> MockReply:
        if "first look" in seen.headers["user-agent"] or "(text)" in seen.headers["user-agent"]:
            return ideal.answer(seen)
        silent.append(seen)
        return FAULT_REPLIES["hang-first"]

    many = [Probe(name=f"more-{number}", description="", run=_text) for number in range(40)]
    report = run(_check(choose, TEXT, *many, patience=HASTY, side_by_side=side_by_side, rules=("end-done-sent",)))
    assert (report.verdict, report.passed) == (Verdict.TIMED_OUT, False)
    assert 8 <= len(silent) < 8 + side_by_side
    assert sum(probe.reason.startswith("not sent: 8 requests before it") for probe in report.probes) == 40 - len(silent)


def test_who_is_always_busy_is_asked_a_few_times_and_waited_for_only_between() -> None:
    waits: list[float] = []

    async def pause(seconds: float) -> None:
        waits.append(seconds)

    async def work() -> None:
        async with serving(lambda _: error_reply(503, "later", "10")) as url:
            desk = ProbeClient(CheckSettings(url=url, timeouts=IMPATIENT), recording_client.record_response, pause)
            asked = ProbeRequest(method="GET", path="/models")
            assert len(await desk.send(asked, "text")) == 4
            assert waits == [10.0] * 3
            for _ in range(20):
                assert (await desk.send(asked, "text"))[-1].status == 503

    run(work())
    assert sum(waits) == 300


def test_a_busy_server_is_asked_again() -> None:
    ideal, busy = ReferenceServer(), iter([True, True])
    limited = error_reply(429, "later", "0")

    def choose(seen: MockHttpRequest) -> MockReply:
        return limited if "(text)" in seen.headers["user-agent"] and next(busy, False) else ideal.answer(seen)

    report = run(_check(choose, TEXT))
    assert (report.verdict, report.cost.requests) == (Verdict.PASS, 3)


def test_a_long_silence_is_told() -> None:
    slow = MockReply(
        (
            MockChunk(": hi\n\n"),
            *(MockChunk(base64=p.data, after_s=0.0) for p in ReferenceServer().answer(_asked()).pieces),
        )
    )
    pieces = (slow.pieces[0], msgspec.structs.replace(slow.pieces[1], after_s=0.5), *slow.pieces[2:])
    reply = MockReply(pieces, headers=dict(sse.HEADERS))
    patience = msgspec.structs.replace(IMPATIENT, silence_s=0.1)
    report = run(_check(_only(reply, probe="text"), TEXT, patience=patience))
    assert _rules(report.findings) == ["live-keepalive-in-silence"]


def _asked() -> MockHttpRequest:
    body = {"model": "ideal", "stream": True, "messages": [{"role": "user", "content": settings.HELLO_PROMPT}]}
    return MockHttpRequest("POST", "/v1/chat/completions", {}, json.dumps(body))


def test_traces_are_kept_and_lint_says_the_same_of_them(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    report = run(_check(NO_DONE, TEXT, WHOLE, MISTAKE, record=folder))
    assert sorted(path.name for path in folder.glob("*.json")) == ["mistake-1.json", "text-1.json", "text-whole-1.json"]
    heard = {path.name: _lint(path) for path in folder.glob("*.json")}
    told: dict[str, set[str]] = {name: set() for name in heard}
    for finding in report.findings:
        assert finding.trace is not None
        told[finding.trace].add(finding.rule)
    assert heard == told
    assert "end-done-sent" in heard["text-1.json"]


def _lint(path: Path) -> set[str]:
    name = str(path)
    return set(judge(captures.read_reply(captures.read_bytes(name), name, endpoint=None, request=None)).counts)


def test_a_key_that_the_server_repeats_is_written_nowhere(tmp_path: Path) -> None:
    ideal = ReferenceServer()

    def choose(seen: MockHttpRequest) -> MockReply:
        if "(mistake)" in seen.headers["user-agent"]:
            return error_reply(500, f"no such key: {seen.headers['authorization']}")
        return ideal.answer(seen)

    report = run(_check(choose, MISTAKE, key=KEY, record=tmp_path / "traces"))
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
def test_no_secret_is_shown_wherever_the_server_says_it(settings: dict[str, Any], before: int, tmp_path: Path) -> None:
    ideal, said = ReferenceServer(models=("ideal", f"m-{TOKEN}")), f"{'x' * before} {TOKEN}"

    def choose(seen: MockHttpRequest) -> MockReply:
        if "(mistake)" in seen.headers["user-agent"]:
            return msgspec.structs.replace(error_reply(500, said), headers={"X-Said": said})
        if "(text-whole)" in seen.headers["user-agent"]:
            return error_reply(404, said)
        reply = ideal.answer(seen)
        # A server of a kind that is not known is called what its header says.
        pieces = tuple(MockChunk(base64=piece.data.replace(b"welldone", b"somebody")) for piece in reply.pieces)
        return msgspec.structs.replace(reply, pieces=pieces, headers={**reply.headers, "Server": TOKEN, "X-Said": said})

    report = run(_check(choose, TEXT, WHOLE, MISTAKE, record=tmp_path, **settings))
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
def test_no_secret_is_shown_of_a_server_that_cannot_be_checked(settings: dict[str, Any], reply: MockReply) -> None:
    with pytest.raises(CheckUnreachableError) as caught:
        run(_check(lambda _: reply, **settings))
    assert TOKEN[:9] not in str(caught.value)


def test_what_an_earlier_run_left_of_the_same_probes_is_taken_away(tmp_path: Path) -> None:
    kept = ["text-whole-1.json", "text-1.txt", "text-x.json", "notes.json"]
    for name in ("text-1.json", "text-7.json", "text-7.body", *kept):
        (tmp_path / name).write_text("{}")
    run(_check(ReferenceServer().answer, TEXT, record=tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"text-1.json", "text-1.body", *kept}
    assert (tmp_path / "text-1.json").read_text() != "{}"


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_asked(tmp_path: Path) -> None:
    def nobody(_: MockHttpRequest) -> MockReply:
        pytest.fail("the server was asked")

    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match=r"File exists|Not a directory"):
            run(_check(nobody, record=folder))


@pytest.mark.parametrize("count", [10**30, -1, 10**4290], ids=["large", "negative", "endless"])
def test_a_count_of_tokens_that_cannot_be_true_is_not_believed(count: int) -> None:
    def change(_: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
        if said.get("usage"):
            said["usage"]["prompt_tokens"] = count
        return said

    cost = run(_check(edited(ReferenceServer().answer, change), WHOLE)).cost
    assert 0 < cost.prompt_tokens < 100


def test_progress_is_told_from_the_first_look_to_the_end() -> None:
    told: list[CheckProgress] = []

    async def work() -> None:
        async with serving(ReferenceServer().answer) as url:
            await check(CheckSettings(url=url, timeouts=IMPATIENT), probes=(TEXT, WHOLE), on_progress=told.append)

    run(work())
    assert told[0] == CheckProgress(0, 2, ("first look",))
    assert told[-1] == CheckProgress(2, 2, ())


def test_members_and_headers_of_the_user_go_with_every_request() -> None:
    ideal, seen_all = ReferenceServer(), list[MockHttpRequest]()

    def choose(seen: MockHttpRequest) -> MockReply:
        seen_all.append(seen)
        return ideal.answer(seen)

    run(_check(choose, TEXT, extra={"reasoning_effort": "low"}, headers=(("X-Team", "search"),)))
    posts = [seen for seen in seen_all if seen.method == "POST"]
    assert len(posts) == 2
    assert all(json.loads(seen.body)["reasoning_effort"] == "low" for seen in posts)
    assert all(seen.headers["x-team"] == "search" for seen in seen_all)
