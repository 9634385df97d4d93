"""The check in the dialects of /v1/responses and /v1/messages: how a server is asked, and what is judged."""

import json
from typing import Any

import pytest

from tests.check.serving import HASTY, IMPATIENT, Choose, body_of, no_pause, serving
from tests.http.aio import run
from tests.table import table
from welldone.check.api import check_server
from welldone.check.discovery import CheckUnreachableError, discover
from welldone.check.probe_client import ProbeClient, ServerFacts
from welldone.check.reply import ProbeRequest
from welldone.check.report import Report, Verdict
from welldone.check.reports import text
from welldone.check.repro import repro_command, repro_curl
from welldone.check.run import NothingToCheckError, check, select_rules
from welldone.check.selection import parse_probe_names
from welldone.check.settings import CheckSettings
from welldone.http import recording_client
from welldone.mock.faults import error_reply
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockReply, json_reply
from welldone.mock.server import MockHttpRequest

KEY = "a-key-of-some-length"
URL = "http://127.0.0.1:8000/v1"
BOTH = table("endpoint", ["responses", "messages"])
NOT_FOUND = json_reply({"detail": "Not Found"}, 404)


def _report(choose: Choose, endpoint: str, **settings: Any) -> Report:  # noqa: ANN401 - any setting
    async def work() -> Report:
        async with serving(choose) as url:
            return await check(CheckSettings(url=url, endpoint=endpoint, timeouts=IMPATIENT, **settings))

    return run(work())


def _seen(choose: Choose) -> tuple[Choose, list[MockHttpRequest]]:
    """The same server, and what it was asked."""
    asked: list[MockHttpRequest] = []

    def answer(seen: MockHttpRequest) -> MockReply:
        asked.append(seen)
        return choose(seen)

    return answer, asked


def _but(path: str, reply: MockReply) -> Choose:
    """A right server but for one path."""
    ideal = ReferenceServer()
    return lambda seen: reply if seen.path == path else ideal.answer(seen)


# ---- how it is asked


@BOTH
def test_a_run_asks_its_endpoint_and_no_other(endpoint: str) -> None:
    choose, asked = _seen(ReferenceServer(key=KEY).answer)
    report = _report(choose, endpoint, key=KEY)
    assert report.findings == ()
    assert report.endpoint == endpoint
    paths = {seen.path for seen in asked if seen.method == "POST"}
    assert paths <= {f"/v1/{endpoint}", "/v1/messages/count_tokens", "/v1/no-such-path"}


def test_messages_are_asked_for_as_anthropics_clients_do() -> None:
    choose, asked = _seen(ReferenceServer(key=KEY).answer)
    _report(choose, "messages", key=KEY, only=("text",))
    assert {seen.headers.get("anthropic-version") for seen in asked} == {"2023-06-01"}
    assert {seen.headers.get("x-api-key") for seen in asked} == {KEY}


def test_other_endpoints_get_no_header_of_anthropic() -> None:
    choose, asked = _seen(ReferenceServer(key=KEY).answer)
    _report(choose, "responses", key=KEY, only=("text",))
    assert not any({"anthropic-version", "x-api-key"} & seen.headers.keys() for seen in asked)


def test_no_response_is_asked_for_that_is_shorter_than_openai_allows() -> None:
    choose, asked = _seen(ReferenceServer().answer)
    _report(choose, "responses")
    limits = [body_of(seen).get("max_output_tokens") for seen in asked if seen.path == "/v1/responses"]
    assert min(limit for limit in limits if isinstance(limit, int) and limit > 0) >= 16
    assert not any("seed" in body_of(seen) for seen in asked)


def test_who_takes_no_temperature_is_not_given_one() -> None:
    ideal = ReferenceServer()
    facts = _look(
        lambda seen: error_reply(400, "no") if "temperature" in body_of(seen) else ideal.answer(seen), "responses"
    )
    assert facts.members == {}


@BOTH
def test_a_model_that_thinks_gets_more_tokens(endpoint: str) -> None:
    assert _look(ReferenceServer(models=("deep-thinking",)).answer, endpoint).reasoning_allowance > 0


def _look(choose: Choose, endpoint: str) -> ServerFacts:
    async def work() -> ServerFacts:
        async with serving(choose) as url:
            settings = CheckSettings(url=url, endpoint=endpoint, timeouts=IMPATIENT)
            return await discover(ProbeClient(settings, recording_client.record_response, no_pause))

    return run(work())


# ---- what is there


@BOTH
@table(
    "reply",
    [
        NOT_FOUND,
        json_reply({"error": {"message": "File Not Found", "type": "not_found_error", "code": 404}}, 404),
        error_reply(405, "Method Not Allowed"),
        error_reply(501, "This server does not support it."),
    ],
)
def test_an_endpoint_that_is_not_there_is_said_to_be_not_offered(endpoint: str, reply: MockReply) -> None:
    with pytest.raises(CheckUnreachableError, match=f"^not offered: http://.*/v1 has no /{endpoint} "):
        _report(_but(f"/v1/{endpoint}", reply), endpoint)


@BOTH
def test_a_model_that_is_not_there_is_another_matter(endpoint: str) -> None:
    with pytest.raises(CheckUnreachableError, match=r"does not answer for 'three' .*; it lists ideal"):
        _report(ReferenceServer().answer, endpoint, model="three")


@table(
    ("choose", "is_kept"),
    [
        (lambda _, body: {"input_tokens": len(json.dumps(body))}, True),
        (lambda *_: {"input_tokens": 7}, False),
        (lambda *_: {"input_tokens": "7"}, False),
        (lambda *_: {"tokens": 7}, False),
    ],
)
def test_tokens_are_counted_and_more_of_a_longer_text(choose: Any, is_kept: bool) -> None:  # noqa: ANN401
    ideal = ReferenceServer()

    def answer(seen: MockHttpRequest) -> MockReply:
        is_count = seen.path.endswith("/count_tokens")
        return json_reply(choose(seen, body_of(seen))) if is_count else ideal.answer(seen)

    report = _report(answer, "messages", only=("count",))
    assert ("msg-count-tokens" not in report.findings_by_rule) is is_kept


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        (NOT_FOUND, Verdict.WARN),
        (error_reply(500, "no"), Verdict.NOT_APPLICABLE),
        (error_reply(403, "no"), Verdict.UNSUPPORTED),
    ],
)
def test_who_cannot_count_tokens_breaks_a_rule_and_who_fails_does_not(reply: MockReply, verdict: Verdict) -> None:
    choose = _but("/v1/messages/count_tokens", reply)
    report = _report(choose, "messages", only=("text", "count"))
    assert next(rule.verdict for rule in report.rules if rule.id == "msg-count-tokens") is verdict


def test_a_server_that_passes_over_stop_sequences_gives_no_occasion() -> None:
    def ignore(seen: MockHttpRequest) -> MockReply:
        body = {name: value for name, value in body_of(seen).items() if name != "stop_sequences"}
        return ReferenceServer().answer(
            MockHttpRequest(seen.method, seen.path, seen.headers, json.dumps(body) if body else "")
        )

    report = _report(ignore, "messages", only=("stops",))
    assert report.probes[0].reason == "the server does not stop at stop_sequences"


def test_an_answer_that_is_over_before_its_limit_was_not_cut() -> None:
    class Short(ReferenceServer):
        def text_for(self, prompt: str) -> str:
            return "No."

    for endpoint, rule in (("responses", "resp-incomplete"), ("messages", "msg-max-tokens")):
        report = _report(Short().answer, endpoint, only=("limits",))
        assert rule not in report.findings_by_rule
        assert next(ruled.reason for ruled in report.rules if ruled.id == rule) == "the answer ended before its limit"


def test_a_model_may_have_to_be_asked_to_think() -> None:
    class Willing(ReferenceServer):
        """Thinks where that was asked for."""

        def answer(self, http_request: MockHttpRequest) -> MockReply:
            body = body_of(http_request)
            if {"thinking", "reasoning"} & body.keys():
                body["model"] = "ideal-thinking"
            return super().answer(
                MockHttpRequest(
                    http_request.method,
                    http_request.path,
                    http_request.headers,
                    json.dumps(body) if body else http_request.body,
                )
            )

    for endpoint in ("responses", "messages"):
        report = _report(Willing(models=("ideal", "ideal-thinking")).answer, endpoint, only=("reasoning",))
        assert report.probes[0].verdict is Verdict.PASS


# ---- what is judged


@pytest.mark.parametrize(
    ("endpoint", "has", "has_not"),
    [
        ("chat", {"delta-role-once", "cmpl-echo", "sse-lf-only"}, {"resp-usage", "msg-ping-form"}),
        ("responses", {"resp-usage", "sse-lf-only", "ns-models-list"}, {"delta-role-once", "msg-ping-form"}),
        ("messages", {"msg-ping-form", "sse-lf-only"}, {"resp-usage", "err-body-shape", "end-done-sent"}),
    ],
)
def test_only_the_rules_of_the_endpoint_are_judged(endpoint: str, has: set[str], has_not: set[str]) -> None:
    wanted = select_rules(CheckSettings(url=URL, endpoint=endpoint))
    assert has <= wanted
    assert not has_not & wanted


def test_a_rule_of_another_endpoint_leaves_nothing_to_judge() -> None:
    with pytest.raises(NothingToCheckError, match="those that --rule names do not speak about responses"):
        select_rules(CheckSettings(url=URL, endpoint="responses", rules=("msg-ping-form",)))


def test_a_profile_judges_what_hurts_its_client() -> None:
    wanted = select_rules(CheckSettings(url=URL, endpoint="messages", profile="claude-code"))
    assert "msg-start-first" in wanted


@BOTH
def test_a_special_token_in_the_text_is_found_in_its_frame(endpoint: str) -> None:
    class Leaking(ReferenceServer):
        def text_for(self, prompt: str) -> str:
            return "Hello<|im_end|>"

    report = _report(Leaking().answer, endpoint, only=("text",))
    findings = report.findings_by_rule["live-no-special-tokens"]
    assert {finding.frame is None for finding in findings} == {True, False}


# ---- names and commands


def test_probes_are_named_by_their_endpoint() -> None:
    assert parse_probe_names(["count"], "messages") == ("count",)
    with pytest.raises(ValueError, match="there is no probe 'count' of responses"):
        parse_probe_names(["count"], "responses")
    with pytest.raises(ValueError, match=r"there is no endpoint 'message'.*did you mean 'messages'"):
        check_server(URL, endpoint="message")


def test_what_is_shown_can_be_run_again_and_says_no_key() -> None:
    settings = CheckSettings(url=URL, endpoint="messages", key=KEY, env_variables={"Authorization": "MY_KEY"})
    shown = repro_command(settings, "m", "text", "msg-ping-form")
    assert "--endpoint messages --only text" in shown
    assert "--endpoint" not in repro_command(CheckSettings(url=URL), "m", "text", "end-done-sent")
    line = repro_curl(settings, ProbeRequest(method="POST", path="/messages", body=b"{}", endpoint="messages"))
    assert line is not None
    assert "-H 'anthropic-version: 2023-06-01'" in line
    assert '-H "x-api-key: $MY_KEY"' in line
    assert KEY not in line


def test_a_header_that_a_probe_changes_is_shown_as_it_was_sent() -> None:
    settings = CheckSettings(url=URL, endpoint="messages", key=KEY)
    asked = ProbeRequest(
        method="POST", path="/messages", body=b"{}", headers=(("x-api-key", None), ("Authorization", "Bearer x"))
    )
    line = repro_curl(settings, asked)
    assert line is not None
    assert "-H x-api-key:" in line
    assert "$" not in line


@BOTH
def test_the_endpoint_stands_in_what_is_shown(endpoint: str) -> None:
    report = _report(ReferenceServer().answer, endpoint, only=("text",))
    assert text.render_terminal(report, lambda text, _: text)[0].endswith(f", /v1/{endpoint}")


@BOTH
def test_a_server_that_says_nothing_is_no_pass(endpoint: str) -> None:
    ideal = ReferenceServer()
    silent = MockReply(end="hang", raw=True)

    async def work() -> None:
        async with serving(lambda seen: silent if seen.method == "POST" else ideal.answer(seen)) as url:
            await check(CheckSettings(url=url, endpoint=endpoint, timeouts=HASTY))

    with pytest.raises(CheckUnreachableError, match=f"a {endpoint} request timed out"):
        run(work())
