"""Probes of CORS, the model list, completions and timing: with a correct server and with wrong ones."""

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.check.serving import PROBES_BY_NAME, SHORT_TIMEOUTS, TEST_TIMEOUTS, broken_rules, outcome, probe, serving
from tests.http.aio import run
from tests.table import table
from welldone.check.probes import dialects, http, timing
from welldone.check.session import NotApplicableError, Session, UnsupportedError
from welldone.check.settings import Timeouts
from welldone.core.catalog import Kind, Severity
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockChunk, MockReply, json_reply
from welldone.mock.server import MockHttpRequest
from welldone.mock.variants import FAULT_REPLIES

Json = dict[str, Any]
Handler = Callable[[MockHttpRequest], MockReply]

NAMES = [
    probe.name
    for probe in (
        *dialects.COMPLETION_PROBES,
        *http.CORS_PROBES,
        *http.MODEL_LIST_PROBES,
        *timing.TIMING_PROBES,
    )
]
SLOW = {"flush": 0.01, "long": 0.1, "leaving": 0.02}
"""Seconds per token of the server, for probes that measure times."""
SOON = msgspec.structs.replace(TEST_TIMEOUTS, disconnect_s=0.3)
"""For servers that do not stop."""


def _run_probe(name: str, handler: Handler, timeouts: Timeouts = TEST_TIMEOUTS) -> Session:
    async def work() -> Session:
        async with serving(handler) as url:
            return await probe(name, url, timeouts)

    return run(work())


def _changed(reply: MockReply, **headers: str | None) -> MockReply:
    """The reply with other headers; None removes one."""
    changed = {name.replace("_", "-"): value for name, value in headers.items()}
    unchanged = {name: value for name, value in reply.headers.items() if name.lower() not in changed}
    added = {name: value for name, value in changed.items() if value is not None}
    return msgspec.structs.replace(reply, headers=unchanged | added)


def _only(seen_for: str, change: Callable[[MockReply], MockReply], ideal: ReferenceServer | None = None) -> Handler:
    """A server that changes its replies to requests of one method."""
    right = ideal or ReferenceServer()
    return lambda http_request: (
        change(right.answer(http_request)) if http_request.method == seen_for else right.answer(http_request)
    )


# ---- a correct server


@table("name", NAMES)
def test_a_correct_server_has_no_violations(name: str) -> None:
    session = _run_probe(name, ReferenceServer(gap_s=SLOW.get(name, 0.0)).answer)
    assert not session.violations
    assert not session.inapplicable
    assert set(session.judged).issuperset(PROBES_BY_NAME[name].rules)


@table("name", NAMES)
def test_a_missing_endpoint_is_unsupported(name: str) -> None:
    missing = {"error": {"message": "not found", "type": "invalid_request_error", "param": None, "code": None}}
    if name == "http-cors":
        assert broken_rules(_run_probe(name, lambda http_request: json_reply(missing, 404))) == {"http-cors-preflight"}
        return
    with pytest.raises(UnsupportedError, match="404: not found"):
        _run_probe(name, lambda http_request: json_reply(missing, 404))


# ---- CORS


@table(
    "handler",
    [
        _only("OPTIONS", lambda reply: msgspec.structs.replace(reply, status=405)),
        _only("OPTIONS", lambda reply: msgspec.structs.replace(reply, status=401)),
        _only("OPTIONS", lambda reply: _changed(reply, access_control_allow_origin=None)),
        _only("OPTIONS", lambda reply: _changed(reply, access_control_allow_origin="http://localhost")),
        _only("OPTIONS", lambda reply: _changed(reply, access_control_allow_headers=None)),
        _only("OPTIONS", lambda reply: _changed(reply, access_control_allow_headers="Authorization, Content-Type")),
        _only("POST", lambda reply: _changed(reply, access_control_allow_origin=None)),
    ],
    ids=["no OPTIONS", "a key for OPTIONS", "no origin", "another origin", "no headers", "a list", "the reply"],
)
def test_a_blocked_page_is_found(handler: Handler) -> None:
    session = _run_probe("http-cors", handler)
    assert [(finding.rule, finding.kind) for finding in session.violations] == [("http-cors-preflight", Kind.SPECIFIED)]


def test_a_wildcard_for_authorization_is_tolerated() -> None:
    session = _run_probe("http-cors", _only("OPTIONS", lambda reply: _changed(reply, access_control_allow_headers="*")))
    assert [(finding.severity, finding.kind) for finding in session.violations] == [(Severity.TOLERATED, Kind.ADVICE)]


def test_a_wildcard_with_authorization_allows_all_headers() -> None:
    session = _run_probe(
        "http-cors", _only("OPTIONS", lambda r: _changed(r, access_control_allow_headers="*, Authorization"))
    )
    assert not session.violations


@pytest.mark.parametrize(("status", "message"), [(403, "no"), (400, "Disallowed CORS origin")])
def test_a_server_that_refuses_the_origin_is_unsupported(status: int, message: str) -> None:
    refusal = MockReply((MockChunk(message),), status, {"Content-Type": "text/plain"}, framing="length")
    with pytest.raises(UnsupportedError, match=message):
        _run_probe("http-cors", _only("OPTIONS", lambda _: refusal))


@pytest.mark.parametrize("status", [429, 503])
def test_an_overloaded_preflight_is_not_applicable(status: int) -> None:
    with pytest.raises(NotApplicableError, match=str(status)):
        _run_probe("http-cors", _only("OPTIONS", lambda _: json_reply({"error": {"message": "later"}}, status)))


def test_the_preflight_has_no_key() -> None:
    requests: list[MockHttpRequest] = []

    def handler(http_request: MockHttpRequest) -> MockReply:
        requests.append(http_request)
        return ReferenceServer().answer(http_request)

    _run_probe("http-cors", handler)
    assert requests[0].method == "OPTIONS"
    assert "authorization" not in requests[0].headers
    assert requests[1].headers["origin"] == http.CORS_ORIGIN


# ---- model list

MODEL = {"id": "m", "object": "model", "created": 0, "owned_by": "me"}


@table(
    ("listed", "observed"),
    [
        ([MODEL], "object is not 'list'"),
        ({"models": [MODEL]}, "object is not 'list'"),
        ({"object": "list", "data": None}, "data is not a list"),
        ({"object": "list", "data": [MODEL, "m"]}, "data[1]: id is not a non-empty string"),
        ({"object": "list", "data": [MODEL | {"id": ""}]}, "data[0]: id is not a non-empty string"),
        ({"object": "list", "data": [MODEL | {"object": "llm"}]}, "data[0]: object is not 'model'"),
        ({"object": "list", "data": [MODEL | {"created": "now"}]}, "data[0]: created is not an integer"),
        ({"object": "list", "data": [MODEL | {"created": True}]}, "data[0]: created is not an integer"),
        ({"object": "list", "data": [MODEL | {"owned_by": None}]}, "data[0]: owned_by is not a string"),
    ],
)
def test_an_invalid_model_list_is_found(listed: object, observed: str) -> None:
    session = _run_probe("models", lambda _: json_reply(listed))
    assert [(finding.rule, finding.observed) for finding in session.violations] == [("ns-models-list", observed)]


# ---- completions


def _reading(change: Callable[[Json], Json], ideal: ReferenceServer | None = None) -> Handler:
    """A server that changes each request before it reads it."""
    right = ideal or ReferenceServer()

    def handler(http_request: MockHttpRequest) -> MockReply:
        if http_request.method != "POST":
            return right.answer(http_request)
        return right.answer(
            msgspec.structs.replace(http_request, body=json.dumps(change(json.loads(http_request.body))))
        )

    return handler


def _without(*names: str) -> Callable[[Json], Json]:
    """Removes some fields."""
    return lambda body: {name: value for name, value in body.items() if name not in names}


def _turned(body: Json) -> Json:
    """Reverses the prompts."""
    return body | {"prompt": body["prompt"][::-1]}


def _joined(body: Json) -> Json:
    """Joins the prompts."""
    return body | {"prompt": " ".join(body["prompt"])}


def _with_logprobs(change: Callable[[Json], Json]) -> Handler:
    """A server that changes the logprobs of buffered replies."""

    def changed(reply: MockReply) -> MockReply:
        if b'"text_offset"' not in reply.body:
            return reply
        data = json.loads(reply.body)
        data["choices"][0]["logprobs"] = change(data["choices"][0]["logprobs"])
        return msgspec.structs.replace(json_reply(data), headers=reply.headers)

    return _only("POST", changed)


def _moved(logprobs: Json) -> Json:
    """Shifts the offsets."""
    return logprobs | {"text_offset": [offset + 7 for offset in logprobs["text_offset"]]}


def _of_the_answer(logprobs: Json) -> Json:
    """Only the logprobs of the last four tokens."""
    return {name: values[-4:] for name, values in logprobs.items()}


def _from_the_answer(logprobs: Json) -> Json:
    """The logprobs of the last four tokens, with offsets from the first of them."""
    late = _of_the_answer(logprobs)
    return late | {"text_offset": [offset - late["text_offset"][0] for offset in late["text_offset"]]}


@table(
    ("name", "rule", "handler"),
    [
        ("completions-echo", "cmpl-echo", _reading(_without("echo"))),
        ("completions-echo", "cmpl-echo", _with_logprobs(_moved)),
        ("completions-echo", "cmpl-echo", _with_logprobs(_from_the_answer)),
        ("completions-list", "cmpl-batch-index", _reading(_turned)),
        ("completions-list", "cmpl-batch-index", _reading(_joined)),
        ("completions-suffix", "cmpl-suffix", _reading(_without("suffix"))),
    ],
)
def test_a_completion_that_ignores_its_request_is_found(name: str, rule: str, handler: Handler) -> None:
    assert broken_rules(_run_probe(name, handler)) == {rule}


@pytest.mark.parametrize(
    ("name", "handler"),
    [
        ("completions-echo", _with_logprobs(_of_the_answer)),
        ("completions-list", _reading(_without("n"))),
        ("completions-list", _reading(_without("echo"))),
    ],
)
def test_partial_support_breaks_no_rule(name: str, handler: Handler) -> None:
    session = _run_probe(name, handler)
    assert not session.violations
    assert set(session.judged).issuperset(PROBES_BY_NAME[name].rules)


@pytest.mark.parametrize(
    "prompt", ["Say: something else", "def add(a, b):\n    return after a few more words"], ids=["text", "count"]
)
def test_a_suffix_with_an_effect_on_text_or_usage_passes(prompt: str) -> None:
    session = _run_probe(
        "completions-suffix",
        _reading(lambda body: _without("suffix")(body) | ({"prompt": prompt} if "suffix" in body else {})),
    )
    assert not session.violations
    assert "cmpl-suffix" in session.judged


def test_a_suffix_with_varying_answers_is_not_applicable() -> None:
    times = itertools.count()
    varying = _reading(lambda body: _without("suffix")(body) | {"prompt": f"Say: {next(times)}"})
    with pytest.raises(NotApplicableError, match="different answers"):
        _run_probe("completions-suffix", varying)


def test_a_suffix_with_an_empty_answer_is_not_applicable() -> None:
    with pytest.raises(NotApplicableError, match="no text"):
        _run_probe("completions-suffix", _reading(_without("suffix"), ReferenceServer(text="")))


# ---- timing


def _at_once(reply: MockReply) -> MockReply:
    """The same bytes after the same time, in one piece."""
    after_s = sum(piece.after_s for piece in reply.pieces)
    return msgspec.structs.replace(reply, pieces=(MockChunk(base64=reply.body, after_s=after_s),))


def _late(reply: MockReply) -> MockReply:
    """The same reply, with a delay before its head."""
    return msgspec.structs.replace(reply, after_s=0.2)


def test_a_buffered_stream_is_found() -> None:
    session = _run_probe("flush", _only("POST", _at_once, ReferenceServer(gap_s=0.01)))
    assert broken_rules(session) == {"http-flush-each-event"}
    assert len(session.replies) == 2


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (_only("POST", _at_once), "too fast"),
        (_reading(lambda body: body | {"messages": [{"role": "user", "content": "Say: one, two"}]}), "too few"),
    ],
)
def test_flush_is_not_applicable_to_a_short_answer(handler: Handler, reason: str) -> None:
    with pytest.raises(NotApplicableError, match=reason):
        _run_probe("flush", handler, msgspec.structs.replace(TEST_TIMEOUTS, stream_s=10.0))


def test_a_head_that_waits_for_prefill_is_found() -> None:
    assert broken_rules(_run_probe("long", _only("POST", _late))) == {"http-headers-before-prefill"}


@pytest.mark.parametrize(("context", "statuses"), [(4096, [200, 200]), (1500, [200, 400])])
def test_a_fast_server_gets_a_longer_prompt(context: int, statuses: list[int]) -> None:
    async def work() -> None:
        async with serving(ReferenceServer(context=context).answer) as url:
            session, reason = await outcome("long", url, msgspec.structs.replace(TEST_TIMEOUTS, prefill_s=10.0))
            assert [reply.status for reply in session.replies] == statuses
            assert "too fast" in reason
            assert not session.violations

    run(work())


def test_a_long_prompt_without_text_is_not_applicable() -> None:
    with pytest.raises(NotApplicableError, match="no text"):
        _run_probe("long", ReferenceServer(text="").answer)


def test_long_prompts_begin_differently() -> None:
    assert timing.filler_text(3)[:20] != timing.filler_text(3)[:20]


# ---- cancellation after a disconnect


class Watched(ReferenceServer):
    """Reports its running requests in one of several ways, and cancels, or not, after a disconnect."""

    def __init__(self, show: str, *, stops: bool = True, gap_s: float = 0.02) -> None:
        super().__init__(gap_s=gap_s)
        self._show = show
        self._stops = stops
        self._long: list[MockHttpRequest] = []

    def answer(self, http_request: MockHttpRequest) -> MockReply:
        if http_request.path == "/slots" and self._show in ("is_processing", "state"):
            return json_reply([{"id": 0, self._show: self._flag(0)}, {"id": 1, self._show: self._flag(self._busy())}])
        if http_request.path == "/metrics":
            return self._metrics() if self._show in GAUGES else json_reply({}, 404)
        reply = super().answer(http_request)
        if http_request.method == "POST" and self._show == "time" and self._busy():
            reply = msgspec.structs.replace(reply, after_s=1.0)
        if "Count" in http_request.body:
            self._long.append(http_request)
        return reply

    def _busy(self) -> int:
        return sum(http_request.end == "running" or not self._stops for http_request in self._long)

    def _flag(self, number: int) -> bool | int:
        return bool(number) if self._show == "is_processing" else number

    def _metrics(self) -> MockReply:
        name = self._show
        text = f'# TYPE {name} gauge\n{name}{{model="a}}"}} {self._busy():.1f}\n{name}{{model="b"}} 0 1700000000\n'
        return MockReply((MockChunk(text),), headers={"Content-Type": "text/plain"}, framing="length")


GAUGES = ("llamacpp:requests_processing", "vllm:num_requests_running", "sglang:num_running_reqs")
SHOWN = ("is_processing", "state", *GAUGES, "time")


@table("show", SHOWN)
def test_a_server_that_cancels_passes_with_every_gauge(show: str) -> None:
    session = _run_probe("leaving", Watched(show).answer)
    assert not session.violations
    assert "live-cancel-on-disconnect" in session.judged


@table("show", SHOWN)
def test_a_server_that_does_not_cancel_is_found(show: str) -> None:
    session = _run_probe("leaving", Watched(show, stops=False).answer, SOON)
    assert broken_rules(session) == {"live-cancel-on-disconnect"}
    assert session.violations[0].reply.recording.is_aborted


@pytest.mark.parametrize(
    ("ideal", "reason"),
    [
        (Watched("nothing"), "do not wait"),
        (Watched(GAUGES[0], gap_s=0.0), "ended before|ended by itself"),
        (Watched("time", gap_s=0.0), "ended before|ended by itself|do not wait"),
    ],
    ids=["no gauge", "too fast for the gauge", "too fast to time"],
)
def test_a_server_that_cannot_be_observed_is_not_applicable(ideal: ReferenceServer, reason: str) -> None:
    with pytest.raises(NotApplicableError, match=reason):
        _run_probe("leaving", ideal.answer, SOON)


def test_a_server_with_other_requests_is_not_judged() -> None:
    busy = Watched(GAUGES[0], stops=False)
    busy.answer(MockHttpRequest("POST", "/v1/chat/completions", {}, json.dumps({"messages": "Count"})))
    with pytest.raises(NotApplicableError, match="other requests"):
        _run_probe("leaving", busy.answer, SOON)


def test_a_delayed_gauge_is_not_applicable() -> None:
    class Stale(Watched):
        """Updates its count only with the next request."""

        def answer(self, http_request: MockHttpRequest) -> MockReply:
            self._stops = "Say hello" in http_request.body or (self._stops and "Count" not in http_request.body)
            return super().answer(http_request)

    with pytest.raises(NotApplicableError, match="delay"):
        _run_probe("leaving", Stale(GAUGES[0]).answer, SOON)


# ---- injected faults


@pytest.mark.tier3
@pytest.mark.parametrize("fault", FAULT_REPLIES)
def test_every_injected_fault_ends_with_a_reason_or_a_judgement(fault: str) -> None:
    async def work() -> None:
        async with serving(lambda _: FAULT_REPLIES[fault]) as url:
            for session, reason in await asyncio.gather(*(outcome(name, url, SHORT_TIMEOUTS) for name in NAMES)):
                assert session.replies
                assert reason or session.judged

    run(work())
