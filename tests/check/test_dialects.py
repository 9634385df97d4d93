"""Checks of /v1/responses, /v1/messages and Gemini: requests, discovery, rules and printed commands."""

import json
from typing import Any

import pytest

from tests.check.serving import SHORT_TIMEOUTS, TEST_TIMEOUTS, Handler, no_pause, request_json, serving
from tests.http.aio import run
from tests.table import table
from welldone.check.api import check_server, parse_probe_names
from welldone.check.discovery import CheckUnreachableError, discover
from welldone.check.probe_client import ProbeClient, ServerFacts
from welldone.check.reply import ProbeRequest
from welldone.check.report import Report, Verdict
from welldone.check.reports import text
from welldone.check.repro import repro_command, repro_curl
from welldone.check.run import NothingToCheckError, check, select_rules
from welldone.check.settings import CheckSettings
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockReply, json_reply
from welldone.mock.server import MockHttpRequest
from welldone.mock.variants import error_reply

KEY = "a-key-of-some-length"
URL = "http://127.0.0.1:8000/v1"
EACH_ENDPOINT = table("endpoint", ["responses", "messages"])
NOT_FOUND = json_reply({"detail": "Not Found"}, 404)


def _report(handler: Handler, endpoint: str, **settings: Any) -> Report:  # noqa: ANN401 - any setting
    async def work() -> Report:
        async with serving(handler) as url:
            return await check(CheckSettings(url=url, endpoint=endpoint, timeouts=TEST_TIMEOUTS, **settings))

    return run(work())


def _recording(handler: Handler) -> tuple[Handler, list[MockHttpRequest]]:
    """A handler that records its requests, and the list of them."""
    requests: list[MockHttpRequest] = []

    def answer(http_request: MockHttpRequest) -> MockReply:
        requests.append(http_request)
        return handler(http_request)

    return answer, requests


def _except(path: str, reply: MockReply) -> Handler:
    """A correct server that sends `reply` for one path."""
    ideal = ReferenceServer()
    return lambda http_request: reply if http_request.path == path else ideal.answer(http_request)


# ---- requests


@EACH_ENDPOINT
def test_a_run_sends_requests_only_to_its_endpoint(endpoint: str) -> None:
    handler, requests = _recording(ReferenceServer(key=KEY).answer)
    report = _report(handler, endpoint, key=KEY)
    assert report.findings == ()
    assert report.endpoint == endpoint
    paths = {http_request.path for http_request in requests if http_request.method == "POST"}
    assert paths <= {f"/v1/{endpoint}", "/v1/messages/count_tokens", "/v1/responses/compact", "/v1/no-such-path"}


def test_requests_to_messages_have_the_headers_of_anthropic_clients() -> None:
    handler, requests = _recording(ReferenceServer(key=KEY).answer)
    _report(handler, "messages", key=KEY, only=("text",))
    assert {http_request.headers.get("anthropic-version") for http_request in requests} == {"2023-06-01"}
    assert {http_request.headers.get("x-api-key") for http_request in requests} == {KEY}


def test_gemini_requests_have_the_model_in_their_path_and_the_key_in_googles_header() -> None:
    handler, requests = _recording(ReferenceServer(key=KEY).answer)
    report = _report(handler, "gemini", key=KEY)
    assert report.findings == ()
    posts = [http_request for http_request in requests if http_request.method == "POST"]
    methods = {http_request.path.rpartition("/")[2] for http_request in posts}
    streams = {"ideal:streamGenerateContent?alt=sse", "ideal:streamGenerateContent"}
    unknown = {
        f"no-such-model-of-welldone-check:{method}" for method in ("generateContent", "streamGenerateContent?alt=sse")
    }
    assert methods == {"ideal:generateContent", "ideal:countTokens", *streams, *unknown}
    assert KEY in {http_request.headers.get("x-goog-api-key") for http_request in requests}
    bodies = [request_json(http_request) for http_request in posts]
    assert {name for body in bodies for name in body} == {
        *("contents", "generationConfig", "systemInstruction", "tools", "toolConfig")
    }


def test_gemini_is_checked_below_v1beta_with_googles_list_of_models() -> None:
    ideal = ReferenceServer()
    models = json_reply({"models": [{"name": "models/ideal", "inputTokenLimit": 4096}]})

    async def work() -> Report:
        async with serving(
            lambda http_request: models if http_request.path == "/v1beta/models" else ideal.answer(http_request)
        ) as url:
            settings = CheckSettings(url=f"{url}beta", endpoint="gemini", timeouts=TEST_TIMEOUTS)
            return await check(settings)

    report = run(work())
    assert (report.model, report.findings) == ("ideal", ())
    assert {probe.name for probe in report.probes if probe.verdict is not Verdict.PASS} <= {
        *("reasoning", "mistakes-key", "flush", "long", "leaving")
    }
    assert text.render_terminal(report, lambda text, _: text)[1].endswith(", Gemini")


@table(
    ("reply", "message"),
    [
        (NOT_FOUND, r"^not offered: .* has no /models/MODEL:generateContent \(404"),
        (error_reply(404, "Unknown path '/v1/models/ideal:generateContent'."), "^not offered: "),
        (
            json_reply({"error": {"code": 404, "message": "no model ideal", "status": "NOT_FOUND"}}, 404),
            "does not answer for 'ideal'",
        ),
    ],
)
def test_a_server_without_geminis_api_is_reported_as_such(reply: MockReply, message: str) -> None:
    with pytest.raises(CheckUnreachableError, match=message):
        _report(_except("/v1/models/ideal:generateContent", reply), "gemini")


@pytest.mark.parametrize(
    ("reply", "verdict"), [(NOT_FOUND, Verdict.FAIL), (error_reply(500, "no"), Verdict.NOT_APPLICABLE)]
)
def test_a_missing_count_of_gemini_breaks_its_rule(reply: MockReply, verdict: Verdict) -> None:
    report = _report(_except("/v1/models/ideal:countTokens", reply), "gemini", only=("text", "count"))
    assert next(rule.verdict for rule in report.rules if rule.id == "gem-count-tokens") is verdict


def test_probes_of_gemini_need_several_candidates_and_stop_sequences() -> None:
    def ignore(http_request: MockHttpRequest) -> MockReply:
        body = request_json(http_request)
        for name in ("candidateCount", "stopSequences"):
            body.get("generationConfig", {}).pop(name, None)
        return ReferenceServer().answer(
            MockHttpRequest(
                http_request.method, http_request.path, http_request.headers, json.dumps(body) if body else ""
            )
        )

    report = _report(ignore, "gemini", only=("candidates", "stops"))
    assert [probe.reason for probe in report.probes] == [
        *("the server gives one candidate", "the server does not stop at stopSequences")
    ]


def test_requests_to_other_endpoints_have_no_anthropic_headers() -> None:
    handler, requests = _recording(ReferenceServer(key=KEY).answer)
    _report(handler, "responses", key=KEY, only=("text",))
    assert not any({"anthropic-version", "x-api-key"} & http_request.headers.keys() for http_request in requests)


def test_responses_requests_have_at_least_16_output_tokens() -> None:
    handler, requests = _recording(ReferenceServer().answer)
    _report(handler, "responses")
    limits = [
        request_json(http_request).get("max_output_tokens")
        for http_request in requests
        if http_request.path == "/v1/responses"
    ]
    assert min(limit for limit in limits if isinstance(limit, int) and limit > 0) >= 16
    assert not any("seed" in request_json(http_request) for http_request in requests)


def test_a_server_that_refuses_temperature_gets_requests_without_it() -> None:
    ideal = ReferenceServer()
    facts = _discover(
        lambda http_request: (
            error_reply(400, "no") if "temperature" in request_json(http_request) else ideal.answer(http_request)
        ),
        "responses",
    )
    assert facts.members == {}


@EACH_ENDPOINT
def test_a_reasoning_model_gets_more_tokens(endpoint: str) -> None:
    assert _discover(ReferenceServer(models=("deep-thinking",)).answer, endpoint).reasoning_allowance > 0


def _discover(handler: Handler, endpoint: str) -> ServerFacts:
    async def work() -> ServerFacts:
        async with serving(handler) as url:
            settings = CheckSettings(url=url, endpoint=endpoint, timeouts=TEST_TIMEOUTS)
            return await discover(ProbeClient(settings, no_pause))

    return run(work())


# ---- discovery and probes


@EACH_ENDPOINT
@table(
    "reply",
    [
        NOT_FOUND,
        json_reply({"error": {"message": "File Not Found", "type": "not_found_error", "code": 404}}, 404),
        error_reply(405, "Method Not Allowed"),
        error_reply(501, "This server does not support it."),
    ],
)
def test_a_missing_endpoint_is_reported_as_not_offered(endpoint: str, reply: MockReply) -> None:
    with pytest.raises(CheckUnreachableError, match=f"^not offered: http://.*/v1 has no /{endpoint} "):
        _report(_except(f"/v1/{endpoint}", reply), endpoint)


@EACH_ENDPOINT
def test_an_unknown_model_is_reported_as_such(endpoint: str) -> None:
    with pytest.raises(CheckUnreachableError, match=r"does not answer for 'three' .*; it lists ideal"):
        _report(ReferenceServer().answer, endpoint, model="three")


@table(
    ("count", "is_correct"),
    [
        (lambda _, body: {"input_tokens": len(json.dumps(body))}, True),
        (lambda *_: {"input_tokens": 7}, False),
        (lambda *_: {"input_tokens": "7"}, False),
        (lambda *_: {"tokens": 7}, False),
    ],
)
def test_a_longer_text_must_have_more_tokens(count: Any, is_correct: bool) -> None:  # noqa: ANN401
    ideal = ReferenceServer()

    def answer(http_request: MockHttpRequest) -> MockReply:
        is_count = http_request.path.endswith("/count_tokens")
        return json_reply(count(http_request, request_json(http_request))) if is_count else ideal.answer(http_request)

    report = _report(answer, "messages", only=("count",))
    assert ("msg-count-tokens" not in report.findings_by_rule) is is_correct


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        (NOT_FOUND, Verdict.FAIL),
        (error_reply(500, "no"), Verdict.NOT_APPLICABLE),
        (error_reply(403, "no"), Verdict.UNSUPPORTED),
    ],
)
def test_a_missing_count_tokens_breaks_the_rule_and_a_failing_one_does_not(reply: MockReply, verdict: Verdict) -> None:
    handler = _except("/v1/messages/count_tokens", reply)
    report = _report(handler, "messages", only=("text", "count"))
    assert next(rule.verdict for rule in report.rules if rule.id == "msg-count-tokens") is verdict


def test_stops_is_not_applicable_if_the_server_ignores_stop_sequences() -> None:
    def ignore(http_request: MockHttpRequest) -> MockReply:
        body = {name: value for name, value in request_json(http_request).items() if name != "stop_sequences"}
        return ReferenceServer().answer(
            MockHttpRequest(
                http_request.method, http_request.path, http_request.headers, json.dumps(body) if body else ""
            )
        )

    report = _report(ignore, "messages", only=("stops",))
    assert report.probes[0].reason == "the server does not stop at stop_sequences"


def test_an_answer_that_ends_before_its_limit_is_not_truncated() -> None:
    class Short(ReferenceServer):
        def text_for(self, prompt: str) -> str:
            return "No."

    rules = (("responses", "resp-incomplete"), ("messages", "msg-max-tokens"), ("gemini", "gem-max-tokens"))
    for endpoint, rule in rules:
        report = _report(Short().answer, endpoint, only=("limits",))
        assert rule not in report.findings_by_rule
        assert (
            next(result.reason for result in report.rules if result.id == rule) == "the answer ended before its limit"
        )


def test_reasoning_is_requested_where_the_model_does_not_send_it_by_default() -> None:
    class ReasoningOnRequest(ReferenceServer):
        """Reasons only if the request enables it."""

        def answer(self, http_request: MockHttpRequest) -> MockReply:
            body = request_json(http_request)
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
        report = _report(ReasoningOnRequest(models=("ideal", "ideal-thinking")).answer, endpoint, only=("reasoning",))
        assert report.probes[0].verdict is Verdict.PASS


# ---- rules


@pytest.mark.parametrize(
    ("endpoint", "included", "excluded"),
    [
        ("chat", {"delta-role-once", "cmpl-echo", "sse-lf-only"}, {"resp-usage", "msg-ping-form"}),
        ("responses", {"resp-usage", "sse-lf-only", "ns-models-list"}, {"delta-role-once", "msg-ping-form"}),
        ("messages", {"msg-ping-form", "sse-lf-only"}, {"resp-usage", "err-body-shape", "end-done-sent"}),
        ("gemini", {"gem-parts", "sse-data-space"}, {"sse-lf-only", "sse-no-id-field", "err-retry-after"}),
    ],
)
def test_only_the_rules_of_the_endpoint_are_judged(endpoint: str, included: set[str], excluded: set[str]) -> None:
    selected = select_rules(CheckSettings(url=URL, endpoint=endpoint))
    assert included <= selected
    assert not excluded & selected


def test_selecting_only_rules_of_another_endpoint_is_an_error() -> None:
    with pytest.raises(NothingToCheckError, match="the rules given with --rule do not apply to responses"):
        select_rules(CheckSettings(url=URL, endpoint="responses", rules=("msg-ping-form",)))


def test_a_profile_selects_the_rules_that_affect_its_client() -> None:
    assert "msg-start-first" in select_rules(CheckSettings(url=URL, endpoint="messages", profile="claude-code"))


@EACH_ENDPOINT
def test_a_special_token_is_reported_with_its_frame(endpoint: str) -> None:
    class Leaking(ReferenceServer):
        def text_for(self, prompt: str) -> str:
            return "Hello<|im_end|>"

    report = _report(Leaking().answer, endpoint, only=("text",))
    findings = report.findings_by_rule["live-no-special-tokens"]
    assert {finding.frame is None for finding in findings} == {True, False}


# ---- names and commands


def test_probe_names_depend_on_the_endpoint() -> None:
    assert parse_probe_names(["count"], "messages") == ("count",)
    with pytest.raises(ValueError, match="there is no probe 'count' of responses"):
        parse_probe_names(["count"], "responses")
    with pytest.raises(ValueError, match=r"there is no endpoint 'message'.*did you mean 'messages'"):
        check_server(URL, endpoint="message")


def test_printed_commands_have_the_endpoint_and_no_key() -> None:
    settings = CheckSettings(url=URL, endpoint="messages", key=KEY, env_variables={"Authorization": "MY_KEY"})
    command = repro_command(settings, "m", "text", "msg-ping-form")
    assert "--endpoint messages --only text" in command
    assert "--endpoint" not in repro_command(CheckSettings(url=URL), "m", "text", "end-done-sent")
    line = repro_curl(settings, ProbeRequest(method="POST", path="/messages", body=b"{}", endpoint="messages"))
    assert line is not None
    assert "-H 'anthropic-version: 2023-06-01'" in line
    assert '-H "x-api-key: $MY_KEY"' in line
    assert KEY not in line


def test_a_header_that_a_probe_overrides_is_printed_as_sent() -> None:
    settings = CheckSettings(url=URL, endpoint="messages", key=KEY)
    request = ProbeRequest(
        method="POST", path="/messages", body=b"{}", headers=(("x-api-key", None), ("Authorization", "Bearer x"))
    )
    line = repro_curl(settings, request)
    assert line is not None
    assert "-H x-api-key:" in line
    assert "$" not in line


@EACH_ENDPOINT
def test_the_endpoint_is_printed_in_the_heading(endpoint: str) -> None:
    report = _report(ReferenceServer().answer, endpoint, only=("text",))
    assert text.render_terminal(report, lambda text, _: text)[1].endswith(f", /v1/{endpoint}")


@EACH_ENDPOINT
def test_a_silent_server_does_not_pass(endpoint: str) -> None:
    ideal = ReferenceServer()
    silent = MockReply(end="hang", raw=True)

    async def work() -> None:
        async with serving(
            lambda http_request: silent if http_request.method == "POST" else ideal.answer(http_request)
        ) as url:
            await check(CheckSettings(url=url, endpoint=endpoint, timeouts=SHORT_TIMEOUTS))

    with pytest.raises(CheckUnreachableError, match=f"a {endpoint} request timed out"):
        run(work())
