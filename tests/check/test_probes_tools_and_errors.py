"""Probes of tools, JSON answers, uncommon requests and invalid requests: with a correct server and with wrong ones."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.check.serving import SHORT_TIMEOUTS, TEST_TIMEOUTS, broken_rules, outcome, serving
from tests.http.aio import run
from tests.table import table
from welldone.check.probe_client import ProbeClient, ServerFacts
from welldone.check.probes import errors, text, tools
from welldone.check.session import Probe, Session, UnsupportedError
from welldone.check.settings import CheckSettings
from welldone.core.catalog import RULES
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import HELLO_REPLY, MockChunk, MockReply, json_reply
from welldone.mock.server import MockHttpRequest
from welldone.mock.variants import FAULT_REPLIES

Handler = Callable[[MockHttpRequest], MockReply]

ALL: tuple[Probe, ...] = (
    *tools.TOOL_PROBES,
    *text.SCHEMA_PROBES,
    *text.REASONING_PROBES,
    *errors.REQUEST_PROBES,
    *errors.BAD_REQUEST_PROBES,
)
NAMES = [probe.name for probe in ALL]
MISTAKES = [probe.name for probe in errors.BAD_REQUEST_PROBES if probe.name != "mistakes-key"]
TOOLS = [probe.name for probe in tools.TOOL_PROBES]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
KEY = "the-right-key"


def run_probe(name: str, handler: Handler, facts: ServerFacts | None = None) -> tuple[Session, str]:
    """Run a probe; returns its session, and why it ended early or an empty text."""

    async def work() -> tuple[Session, str]:
        async with serving(handler) as url:
            return await outcome(name, url, facts=facts)

    return run(work())


def refused(status: int = 400, **more: object) -> MockReply:
    """A refusal with a correct body."""
    error = {"message": "no", "type": "invalid_request_error", "param": None, "code": None}
    return json_reply({"error": error | more}, status)


def request_json(http_request: MockHttpRequest) -> dict[str, Any]:
    """The JSON fields of a request."""
    value = json.loads(http_request.body) if http_request.body else {}
    return value if isinstance(value, dict) else {}


def with_fields(http_request: MockHttpRequest, **fields: object) -> MockHttpRequest:
    """The request with other fields; one whose value is `...` is removed."""
    body = {name: value for name, value in (request_json(http_request) | fields).items() if value is not ...}
    return msgspec.structs.replace(http_request, body=json.dumps(body))


# ---- correct servers


@table("name", [name for name in NAMES if name not in ("reasoning", "mistakes-key")])
def test_a_correct_server_has_no_findings_and_each_rule_is_judged(name: str) -> None:
    session, reason = run_probe(name, ReferenceServer().answer)
    rules = next(probe.rules for probe in ALL if probe.name == name)
    assert (broken_rules(session), reason) == (set(), "")
    assert set(rules) <= set(session.judged) | set(session.inapplicable)
    assert name in ("tools-none", "tools-result") or not session.inapplicable


def test_reasoning_rules_are_judged_for_a_reasoning_model() -> None:
    session, reason = run_probe(
        "reasoning", ReferenceServer(models=("ideal-thinking",)).answer, ServerFacts(model="ideal-thinking")
    )
    assert (broken_rules(session), reason) == (set(), "")
    assert {"ext-reasoning-field", "ext-reasoning-before-content"} <= set(session.judged)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Bob.", "the model sends no reasoning"),
        ("<think>Well...</think>Bob.", "the reasoning is in the text (<think>), not in a field of its own"),
    ],
)
def test_a_model_without_a_reasoning_field_breaks_no_rule(text: str, reason: str) -> None:
    session, actual = run_probe("reasoning", ReferenceServer(text=text).answer)
    assert (broken_rules(session), actual) == (set(), reason)


# ---- tools


def without_tools(text: str) -> Handler:
    """A server that ignores tools and sends a text."""
    ideal = ReferenceServer(text=text)

    def handler(http_request: MockHttpRequest) -> MockReply:
        conversation = [{"role": "user", "content": "Hi."}]
        return ideal.answer(
            with_fields(http_request, messages=conversation, tools=..., tool_choice=..., parallel_tool_calls=...)
        )

    return handler


@table("name", TOOLS)
def test_tool_call_markup_in_the_text_is_found(name: str) -> None:
    session, _ = run_probe(name, without_tools(CALL))
    assert broken_rules(session) == {tools.NO_MARKUP_LEAK}


@table(
    ("name", "reason"),
    [
        ("tools-auto", "no tool was called"),
        ("tools-required", "no tool was called, although tool_choice required it"),
        ("tools-required-whole", "no tool was called, although tool_choice required it"),
        ("tools-named", "no tool was called, although tool_choice required it"),
        ("tools-no-arguments", "no tool was called, although tool_choice required it"),
        ("tools-parallel", "the model did not make two calls"),
    ],
)
def test_a_model_that_calls_no_tool_is_not_applicable(name: str, reason: str) -> None:
    session, actual = run_probe(name, without_tools("I cannot know that."))
    assert actual.endswith(reason)
    assert broken_rules(session) == set()
    assert session.inapplicable == {tools.NO_MARKUP_LEAK: "no tool was called"}


def test_a_call_in_spite_of_tool_choice_none_is_reported() -> None:
    ideal = ReferenceServer()
    session, reason = run_probe(
        "tools-none", lambda http_request: ideal.answer(with_fields(http_request, tool_choice="required"))
    )
    assert (broken_rules(session), reason) == (set(), "a tool was called, although tool_choice was none")


# ---- answers that must be JSON


@table("name", [probe.name for probe in text.SCHEMA_PROBES])
def test_an_answer_that_is_not_json_is_not_applicable(name: str) -> None:
    ideal = ReferenceServer(text="A red cat, three years old.")
    session, reason = run_probe(name, lambda http_request: ideal.answer(with_fields(http_request, response_format=...)))
    assert broken_rules(session) == set()
    assert reason.endswith("the answer is not a JSON object")


@table("name", [probe.name for probe in text.SCHEMA_PROBES])
def test_json_truncated_at_the_limit_is_ignored(name: str) -> None:
    ideal = ReferenceServer()
    session, reason = run_probe(name, lambda http_request: ideal.answer(with_fields(http_request, max_tokens=2)))
    assert (broken_rules(session), reason) == (set(), "")


# ---- uncommon requests


def _refuses_member(http_request: MockHttpRequest) -> MockReply:
    return refused() if "x_unknown_to_all" in request_json(http_request) else ReferenceServer().answer(http_request)


def _refuses_header(http_request: MockHttpRequest) -> MockReply:
    return refused() if "x-stainless-lang" in http_request.headers else ReferenceServer().answer(http_request)


def _refuses_parts(http_request: MockHttpRequest) -> MockReply:
    is_odd = any(isinstance(message["content"], list) for message in request_json(http_request)["messages"])
    return refused() if is_odd else ReferenceServer().answer(http_request)


def _refuses_developer(http_request: MockHttpRequest) -> MockReply:
    is_odd = any(message["role"] == "developer" for message in request_json(http_request)["messages"])
    return refused() if is_odd else ReferenceServer().answer(http_request)


def _obeys_json(http_request: MockHttpRequest) -> MockReply:
    is_json = "json" in http_request.headers["accept"]
    return ReferenceServer().answer(
        with_fields(http_request, stream=not is_json and request_json(http_request).get("stream") is True)
    )


def _obeys_events(http_request: MockHttpRequest) -> MockReply:
    is_stream = "event-stream" in http_request.headers["accept"] or request_json(http_request).get("stream") is True
    return ReferenceServer().answer(with_fields(http_request, stream=is_stream))


def _not_acceptable(http_request: MockHttpRequest) -> MockReply:
    is_stream = request_json(http_request).get("stream") is True
    return (
        ReferenceServer().answer(http_request)
        if is_stream or "json" in http_request.headers["accept"]
        else refused(406)
    )


def _streams_by_default(http_request: MockHttpRequest) -> MockReply:
    return ReferenceServer().answer(with_fields(http_request, stream=request_json(http_request).get("stream", True)))


def _streams_where_false(http_request: MockHttpRequest) -> MockReply:
    return ReferenceServer().answer(with_fields(http_request, stream="stream" in request_json(http_request)))


def _streams_always(http_request: MockHttpRequest) -> MockReply:
    return ReferenceServer().answer(with_fields(http_request, stream=True))


WRONG: tuple[tuple[str, str, Handler], ...] = (
    ("requests-unknown", "req-unknown-ignored", _refuses_member),
    ("requests-unknown", "req-unknown-ignored", _refuses_header),
    ("requests-parts", "req-content-parts", _refuses_parts),
    ("requests-parts", "req-content-parts", _refuses_developer),
    ("requests-accept", "http-accept-ignored", _obeys_events),
    ("requests-accept", "http-accept-ignored", _not_acceptable),
    ("requests-default", "http-stream-default-false", _streams_by_default),
    ("requests-default", "http-stream-default-false", _streams_where_false),
    ("requests-default", "http-stream-default-false", _streams_always),
)


@table(("name", "rule", "handler"), WRONG)
def test_a_server_that_refuses_valid_requests_is_found(name: str, rule: str, handler: Handler) -> None:
    session, reason = run_probe(name, handler)
    assert (broken_rules(session), reason) == ({rule}, "")


def test_a_server_that_streams_by_accept_header_is_found() -> None:
    session, _ = run_probe("requests-accept", _obeys_json)
    # JSON instead of a stream also breaks other rules.
    assert "http-accept-ignored" in broken_rules(session)


@table("name", [probe.name for probe in errors.REQUEST_PROBES])
def test_a_server_that_refuses_everything_breaks_no_rule_about_uncommon_requests(name: str) -> None:
    session, reason = run_probe(name, lambda http_request: refused())
    assert (broken_rules(session), reason) == (set(), "400: no")


@table("name", [probe.name for probe in errors.REQUEST_PROBES])
def test_an_overloaded_server_is_not_applicable(name: str) -> None:
    busy = refused(429)
    session, reason = run_probe(
        name, lambda http_request: msgspec.structs.replace(busy, headers=busy.headers | {"Retry-After": "1"})
    )
    assert (broken_rules(session), reason) == (set(), "429: no")


@pytest.mark.parametrize("handler", [_streams_always, lambda http_request: HELLO_REPLY], ids=["right", "bare"])
def test_a_server_that_always_streams_does_not_break_the_accept_rule(handler: Handler) -> None:
    session, reason = run_probe("requests-accept", handler)
    assert "http-accept-ignored" not in broken_rules(session)
    assert reason == "the reply does not follow the field stream with any Accept header"


# ---- invalid requests


def _fails(http_request: MockHttpRequest) -> MockReply:
    """Sends 500 instead of 4xx."""
    reply = ReferenceServer().answer(http_request)
    return msgspec.structs.replace(reply, status=500) if reply.status >= 400 else reply


def _sends_other_error_shape(http_request: MockHttpRequest) -> MockReply:
    """Sends errors in another shape."""
    reply = ReferenceServer().answer(http_request)
    return json_reply({"detail": "no"}, reply.status) if reply.status >= 400 else reply


def _numbers(http_request: MockHttpRequest) -> MockReply:
    """Sends numeric error codes."""
    reply = ReferenceServer().answer(http_request)
    return refused(reply.status, code=reply.status) if reply.status >= 400 else reply


def _hangs_up(http_request: MockHttpRequest) -> MockReply:
    """Closes the connection instead of sending an error."""
    reply = ReferenceServer().answer(http_request)
    return MockReply(end="cut", raw=True) if reply.status >= 400 else reply


@table("name", MISTAKES)
@table(
    ("handler", "rule"),
    [(_fails, "err-refused-4xx"), (_sends_other_error_shape, "err-body-shape"), (_numbers, "err-code-string")],
)
def test_an_incorrect_refusal_is_found(name: str, handler: Handler, rule: str) -> None:
    session, reason = run_probe(name, handler)
    assert (broken_rules(session), reason) == ({rule}, "")


@table("name", [name for name in MISTAKES if name != "mistakes-path"])
def test_a_closed_connection_is_found(name: str) -> None:
    session, reason = run_probe(name, _hangs_up)
    assert broken_rules(session) == {"err-refused-4xx"}
    assert "connection" in reason


@table("name", MISTAKES)
def test_a_server_that_accepts_invalid_requests_breaks_no_rule(name: str) -> None:
    ideal = ReferenceServer()

    def accepts_all(http_request: MockHttpRequest) -> MockReply:
        if http_request.path.endswith("/models"):
            return ideal.answer(http_request)
        wants_stream = '"stream":true' in http_request.body.replace(" ", "")
        body = {"model": "ideal", "messages": [{"role": "user", "content": "Hi."}], "stream": wants_stream}
        return ideal.answer(MockHttpRequest("POST", "/v1/chat/completions", {}, json.dumps(body)))

    session, reason = run_probe(name, accepts_all)
    if name == "mistakes-json":  # there is no request to answer
        assert {(finding.rule, finding.severity) for finding in session.violations} == {
            ("err-refused-4xx", "tolerated")
        }
        assert session.violations[-1].observed == "200: an answer to the body '[]'"
        return
    assert (broken_rules(session), reason) == (set(), "")
    assert session.inapplicable == {"err-refused-4xx": "the server refused no request"}


@table("name", [name for name in MISTAKES if name not in ("mistakes-path", "mistakes-image", "mistakes-length")])
def test_an_answer_in_place_of_a_refusal_is_not_judged_itself(name: str) -> None:
    wrong = MockReply((MockChunk('data: {"choices":[{"delta":{"content":7}}]}\n'),))
    session, _ = run_probe(
        name,
        lambda http_request: wrong if http_request.method == "POST" else ReferenceServer(key=KEY).answer(http_request),
    )
    assert broken_rules(session) <= {"err-refused-4xx"}


def test_an_error_with_status_200_in_place_of_a_refusal_is_found() -> None:
    error = json_reply({"error": {"message": "no", "type": "invalid_request_error", "param": None, "code": None}})
    session, _ = run_probe("mistakes-messages", lambda _: error)
    assert broken_rules(session) == {"ns-error-status", "err-status-before-stream"}


@pytest.mark.parametrize("reply", [json_reply({"object": "list", "data": []}), FAULT_REPLIES["redirect-308"]])
def test_a_successful_or_redirecting_path_breaks_no_rule(reply: MockReply) -> None:
    session, reason = run_probe("mistakes-path", lambda http_request: reply)
    assert (broken_rules(session), reason) == (set(), "")


def test_a_stream_without_end_is_aborted() -> None:
    def streams_forever(http_request: MockHttpRequest) -> MockReply:
        return msgspec.structs.replace(HELLO_REPLY, pieces=HELLO_REPLY.pieces[:2], end="endless")

    session, _ = run_probe("mistakes-model", streams_forever)
    assert [reply.recording.is_aborted for reply in session.replies] == [True, True]


def _with_key(key: str | None, handler: Handler) -> Session:
    async def work() -> Session:
        async with serving(handler) as url:
            client = ProbeClient(CheckSettings(url=url, key=key, timeouts=TEST_TIMEOUTS))
            session = Session(client, ServerFacts(model="ideal"), "mistakes-key", frozenset(RULES))
            await next(probe.run for probe in ALL if probe.name == "mistakes-key")(session)
            return session

    return run(work())


def test_a_missing_or_wrong_key_is_refused() -> None:
    session = _with_key(KEY, ReferenceServer(key=KEY).answer)
    assert [reply.status for reply in session.replies] == [401, 401]
    assert broken_rules(session) == set()
    assert "err-refused-4xx" in session.judged


def test_the_real_key_is_not_sent_with_invalid_requests() -> None:
    keys = []

    def handler(http_request: MockHttpRequest) -> MockReply:
        keys.append(http_request.headers.get("authorization"))
        return ReferenceServer(key=KEY).answer(http_request)

    _with_key(KEY, handler)
    assert keys == [None, "Bearer wrong-key-of-welldone-check"]


def test_a_server_that_accepts_any_key_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="without a valid key"):
        _with_key(KEY, ReferenceServer().answer)


def test_without_a_key_the_key_probe_is_not_applicable() -> None:
    session, reason = run_probe("mistakes-key", ReferenceServer().answer)
    assert (session.replies, reason) == ([], "no key was given")


@table(
    ("listed", "reason"),
    [
        ({"id": "ideal"}, "the model list has no context length"),
        ({"id": "another", "max_model_len": 8}, "the model list has no context length"),
        ({"id": "ideal", "max_model_len": "long"}, "the model list has no context length"),
        ({"id": "ideal", "max_model_len": -1}, "the model list has no context length"),
        ({"id": "ideal", "context_length": 10**6}, "a context of 1000000 tokens is too long to fill"),
    ],
)
def test_an_unknown_or_large_context_is_not_filled(listed: dict[str, Any], reason: str) -> None:
    session, actual = run_probe(
        "mistakes-length", lambda http_request: json_reply({"object": "list", "data": [listed]})
    )
    assert (len(session.replies), actual) == (1, reason)


def test_the_longest_listed_context_is_used() -> None:
    listed = {"id": "ideal", "max_model_len": 100, "meta": {"n_ctx_train": 300}}
    lengths = []

    def handler(http_request: MockHttpRequest) -> MockReply:
        if http_request.method == "GET":
            return json_reply({"object": "list", "data": [listed]})
        lengths.append(len(request_json(http_request)["messages"][0]["content"].split()))
        return refused()

    run_probe("mistakes-length", handler)
    assert lengths == [600]


def test_a_stream_that_fails_after_its_start_is_judged() -> None:
    def fails(http_request: MockHttpRequest) -> MockReply:
        return ReferenceServer().answer(http_request) if http_request.method == "GET" else FAULT_REPLIES["error-event"]

    session, _ = run_probe("mistakes-length", fails)
    assert {"err-body-shape", "err-then-done"} <= broken_rules(session)
    assert "err-midstream-event" in session.judged


# ---- injected faults


WAITING = ("hang", "hang-first", "slow", "endless")
"""Faults that last until the timeout."""
LARGE = ("gzip-bomb", "long-line", "endless")
"""Faults that take long to read: they run with some probes only."""
SOME = ("tools-parallel", "schema", "reasoning", *(probe.name for probe in errors.REQUEST_PROBES), "mistakes-length")


@pytest.mark.tier3
@pytest.mark.parametrize("fault", FAULT_REPLIES)
def test_no_injected_fault_makes_a_tool_or_error_probe_fail(fault: str) -> None:
    timeouts = msgspec.structs.replace(SHORT_TIMEOUTS, reply_s=0.05) if fault in WAITING else SHORT_TIMEOUTS

    async def work() -> None:
        async with serving(lambda http_request: FAULT_REPLIES[fault]) as url:
            for name in SOME if fault in LARGE else NAMES:
                await outcome(name, url, timeouts)  # raises if the probe fails

    run(work())
