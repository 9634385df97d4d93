"""Probes of HTTP, of times, and of the endpoints beside chat: against a right server, and against wrong ones."""

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.check.serving import BY_NAME, HASTY, IMPATIENT, found, outcome, probe, serving
from tests.http.aio import run
from tests.table import table
from welldone.check.probes import dialects, http, timing
from welldone.check.session import NotApplicableError, Session, UnsupportedError
from welldone.check.settings import Timeouts
from welldone.mock.faults import FAULT_REPLIES
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockChunk, MockReply, json_reply
from welldone.mock.server import MockHttpRequest
from welldone.protocol.catalog.rule import Severity

Json = dict[str, Any]
Choose = Callable[[MockHttpRequest], MockReply]

NAMES = [probe.name for module in (dialects, http, http, timing, timing, timing) for probe in module.PROBES]
SLOW = {"flush": 0.01, "long": 0.1, "leaving": 0.02}
"""Probes that look at times want a server that takes some for a token."""
SOON = msgspec.structs.replace(IMPATIENT, disconnect_s=0.3)
"""For servers that do not stop: there is nothing to wait for."""


def _ask(name: str, choose: Choose, patience: Timeouts = IMPATIENT) -> Session:
    async def work() -> Session:
        async with serving(choose) as url:
            return await probe(name, url, patience)

    return run(work())


def _changed(reply: MockReply, **headers: str | None) -> MockReply:
    """The reply with other headers; None removes one."""
    changed = {name.replace("_", "-"): value for name, value in headers.items()}
    kept = {name: value for name, value in reply.headers.items() if name.lower() not in changed}
    added = {name: value for name, value in changed.items() if value is not None}
    return msgspec.structs.replace(reply, headers=kept | added)


def _only(seen_for: str, change: Callable[[MockReply], MockReply], ideal: ReferenceServer | None = None) -> Choose:
    """A server that answers requests of one method otherwise."""
    right = ideal or ReferenceServer()
    return lambda seen: change(right.answer(seen)) if seen.method == seen_for else right.answer(seen)


# ---- a right server


@table("name", NAMES)
def test_in_a_right_server_nothing_is_found(name: str) -> None:
    talk = _ask(name, ReferenceServer(gap_s=SLOW.get(name, 0.0)).answer)
    assert not talk.violations
    assert not talk.inapplicable
    assert talk.judged.issuperset(BY_NAME[name].rules)


@table("name", NAMES)
def test_what_is_not_there_is_not_offered(name: str) -> None:
    missing = {"error": {"message": "not found", "type": "invalid_request_error", "param": None, "code": None}}
    if name == "http-cors":
        assert found(_ask(name, lambda seen: json_reply(missing, 404))) == {"http-cors-preflight"}
        return
    with pytest.raises(UnsupportedError, match="404: not found"):
        _ask(name, lambda seen: json_reply(missing, 404))


# ---- CORS


@table(
    "choose",
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
def test_a_page_that_may_not_ask_is_found(choose: Choose) -> None:
    talk = _ask("http-cors", choose)
    assert [(finding.rule, finding.severity) for finding in talk.violations] == [
        ("http-cors-preflight", Severity.BREAKS)
    ]


def test_a_star_that_browsers_take_for_the_key_too_breaks_nobody() -> None:
    talk = _ask("http-cors", _only("OPTIONS", lambda reply: _changed(reply, access_control_allow_headers="*")))
    assert [finding.severity for finding in talk.violations] == [Severity.TOLERATED]


def test_a_star_and_the_name_of_the_key_allow_all() -> None:
    talk = _ask("http-cors", _only("OPTIONS", lambda r: _changed(r, access_control_allow_headers="*, Authorization")))
    assert not talk.violations


@pytest.mark.parametrize(("status", "said"), [(403, "no"), (400, "Disallowed CORS origin")])
def test_a_server_that_wants_no_pages_offers_no_cors(status: int, said: str) -> None:
    refusal = MockReply((MockChunk(said),), status, {"Content-Type": "text/plain"}, framing="length")
    with pytest.raises(UnsupportedError, match=said):
        _ask("http-cors", _only("OPTIONS", lambda _: refusal))


@pytest.mark.parametrize("status", [429, 503])
def test_of_a_server_that_is_too_busy_for_browsers_nothing_is_said(status: int) -> None:
    with pytest.raises(NotApplicableError, match=str(status)):
        _ask("http-cors", _only("OPTIONS", lambda _: json_reply({"error": {"message": "later"}}, status)))


def test_the_question_of_a_browser_carries_no_key() -> None:
    asked: list[MockHttpRequest] = []
    _ask("http-cors", lambda seen: asked.append(seen) or ReferenceServer().answer(seen))  # type: ignore[func-returns-value]
    assert asked[0].method == "OPTIONS"
    assert "authorization" not in asked[0].headers
    assert asked[1].headers["origin"] == http.CORS_ORIGIN


# ---- the list of models

MODEL = {"id": "m", "object": "model", "created": 0, "owned_by": "me"}


@table(
    ("listed", "heard"),
    [
        ([MODEL], "object is not 'list'"),
        ({"models": [MODEL]}, "object is not 'list'"),
        ({"object": "list", "data": None}, "data is no list"),
        ({"object": "list", "data": [MODEL, "m"]}, "data[1]: id is no text"),
        ({"object": "list", "data": [MODEL | {"id": ""}]}, "data[0]: id is no text"),
        ({"object": "list", "data": [MODEL | {"object": "llm"}]}, "data[0]: object is not 'model'"),
        ({"object": "list", "data": [MODEL | {"created": "now"}]}, "data[0]: created is no whole number"),
        ({"object": "list", "data": [MODEL | {"created": True}]}, "data[0]: created is no whole number"),
        ({"object": "list", "data": [MODEL | {"owned_by": None}]}, "data[0]: owned_by is no text"),
    ],
)
def test_a_list_that_is_none_is_found(listed: object, heard: str) -> None:
    talk = _ask("models", lambda _: json_reply(listed))
    assert [(finding.rule, finding.observed) for finding in talk.violations] == [("ns-models-list", heard)]


# ---- completions


def _reading(change: Callable[[Json], Json], ideal: ReferenceServer | None = None) -> Choose:
    """A server that reads something else than was asked."""
    right = ideal or ReferenceServer()

    def choose(seen: MockHttpRequest) -> MockReply:
        if seen.method != "POST":
            return right.answer(seen)
        return right.answer(msgspec.structs.replace(seen, body=json.dumps(change(json.loads(seen.body)))))

    return choose


def _without(*names: str) -> Callable[[Json], Json]:
    """Does not read some members."""
    return lambda body: {name: value for name, value in body.items() if name not in names}


def _turned(body: Json) -> Json:
    """Takes the last prompt for the first."""
    return body | {"prompt": body["prompt"][::-1]}


def _joined(body: Json) -> Json:
    """Makes one prompt of many."""
    return body | {"prompt": " ".join(body["prompt"])}


def _with_logprobs(change: Callable[[Json], Json]) -> Choose:
    """A server that writes other logprobs, where it writes some in one piece."""

    def changed(reply: MockReply) -> MockReply:
        if b'"text_offset"' not in reply.body:
            return reply
        said = json.loads(reply.body)
        said["choices"][0]["logprobs"] = change(said["choices"][0]["logprobs"])
        return msgspec.structs.replace(json_reply(said), headers=reply.headers)

    return _only("POST", changed)


def _moved(logprobs: Json) -> Json:
    """Counts from somewhere else."""
    return logprobs | {"text_offset": [offset + 7 for offset in logprobs["text_offset"]]}


def _of_the_answer(logprobs: Json) -> Json:
    """Only those of the last four tokens."""
    return {name: values[-4:] for name, values in logprobs.items()}


def _from_the_answer(logprobs: Json) -> Json:
    """The same, counted from the first of them."""
    late = _of_the_answer(logprobs)
    return late | {"text_offset": [offset - late["text_offset"][0] for offset in late["text_offset"]]}


@table(
    ("name", "rule", "choose"),
    [
        ("completions-echo", "cmpl-echo", _reading(_without("echo"))),
        ("completions-echo", "cmpl-echo", _with_logprobs(_moved)),
        ("completions-echo", "cmpl-echo", _with_logprobs(_from_the_answer)),
        ("completions-list", "cmpl-batch-index", _reading(_turned)),
        ("completions-list", "cmpl-batch-index", _reading(_joined)),
        ("completions-suffix", "cmpl-suffix", _reading(_without("suffix"))),
    ],
)
def test_a_completion_that_does_not_do_what_was_asked_is_found(name: str, rule: str, choose: Choose) -> None:
    assert found(_ask(name, choose)) == {rule}


@pytest.mark.parametrize(
    ("name", "choose"),
    [
        ("completions-echo", _with_logprobs(_of_the_answer)),
        ("completions-list", _reading(_without("n"))),
        ("completions-list", _reading(_without("echo"))),
    ],
)
def test_less_than_all_is_not_wrong(name: str, choose: Choose) -> None:
    talk = _ask(name, choose)
    assert not talk.violations
    assert talk.judged.issuperset(BY_NAME[name].rules)


@pytest.mark.parametrize(
    "prompt", ["Say: something else", "def add(a, b):\n    return after a few more words"], ids=["text", "count"]
)
def test_a_suffix_that_is_followed_shows_in_the_text_or_in_the_count(prompt: str) -> None:
    talk = _ask(
        "completions-suffix",
        _reading(lambda body: _without("suffix")(body) | ({"prompt": prompt} if "suffix" in body else {})),
    )
    assert not talk.violations
    assert "cmpl-suffix" in talk.judged


def test_of_a_suffix_that_is_read_in_another_mood_nothing_is_said() -> None:
    times = itertools.count()
    moody = _reading(lambda body: _without("suffix")(body) | {"prompt": f"Say: {next(times)}"})
    with pytest.raises(NotApplicableError, match="does not repeat itself"):
        _ask("completions-suffix", moody)


def test_of_a_suffix_to_a_text_that_is_empty_nothing_is_said() -> None:
    with pytest.raises(NotApplicableError, match="no text"):
        _ask("completions-suffix", _reading(_without("suffix"), ReferenceServer(text="")))


# ---- times


def _at_once(reply: MockReply) -> MockReply:
    """The same bytes after the same time, but all together."""
    after_s = sum(piece.after_s for piece in reply.pieces)
    return msgspec.structs.replace(reply, pieces=(MockChunk(base64=reply.body, after_s=after_s),))


def _late(reply: MockReply) -> MockReply:
    """The same, after a wait."""
    return msgspec.structs.replace(reply, after_s=0.2)


def test_text_that_was_collected_is_found() -> None:
    talk = _ask("flush", _only("POST", _at_once, ReferenceServer(gap_s=0.01)))
    assert found(talk) == {"http-flush-each-event"}
    assert len(talk.replies) == 2


@pytest.mark.parametrize(
    ("choose", "why"),
    [
        (_only("POST", _at_once), "too quickly"),
        (_reading(lambda body: body | {"messages": [{"role": "user", "content": "Say: one, two"}]}), "too few"),
    ],
)
def test_of_a_short_answer_there_is_no_telling_how_it_was_sent(choose: Choose, why: str) -> None:
    with pytest.raises(NotApplicableError, match=why):
        _ask("flush", choose, msgspec.structs.replace(IMPATIENT, stream_s=10.0))


def test_a_head_that_waits_for_the_prompt_is_found() -> None:
    assert found(_ask("long", _only("POST", _late))) == {"http-headers-before-prefill"}


@pytest.mark.parametrize(("context", "statuses"), [(4096, [200, 200]), (1500, [200, 400])])
def test_who_reads_quickly_is_given_more_to_read(context: int, statuses: list[int]) -> None:
    async def work() -> None:
        async with serving(ReferenceServer(context=context).answer) as url:
            talk, why = await outcome("long", url, msgspec.structs.replace(IMPATIENT, prefill_s=10.0))
            assert [reply.status for reply in talk.replies] == statuses
            assert "too quickly" in why
            assert not talk.violations

    run(work())


def test_of_a_long_prompt_without_an_answer_nothing_is_said() -> None:
    with pytest.raises(NotApplicableError, match="no text"):
        _ask("long", ReferenceServer(text="").answer)


def test_no_two_long_prompts_begin_alike() -> None:
    assert timing.filler_text(3)[:20] != timing.filler_text(3)[:20]


# ---- leaving


class Watched(ReferenceServer):
    """Shows its work in one way or another, and stops, or not, when its client leaves."""

    def __init__(self, show: str, *, stops: bool = True, gap_s: float = 0.02) -> None:
        super().__init__(gap_s=gap_s)
        self._show = show
        self._stops = stops
        self._long: list[MockHttpRequest] = []

    def answer(self, http_request: MockHttpRequest) -> MockReply:
        if http_request.path == "/slots" and self._show in ("is_processing", "state"):
            return json_reply([{"id": 0, self._show: self._flag(0)}, {"id": 1, self._show: self._flag(self._busy())}])
        if http_request.path == "/metrics":
            return self._count() if self._show in GAUGES else json_reply({}, 404)
        reply = super().answer(http_request)
        if http_request.method == "POST" and self._show == "time" and self._busy():
            reply = msgspec.structs.replace(reply, after_s=1.0)
        if "Count" in http_request.body:
            self._long.append(http_request)
        return reply

    def _busy(self) -> int:
        return sum(seen.end == "running" or not self._stops for seen in self._long)

    def _flag(self, number: int) -> bool | int:
        return bool(number) if self._show == "is_processing" else number

    def _count(self) -> MockReply:
        name = self._show
        said = f'# TYPE {name} gauge\n{name}{{model="a}}"}} {self._busy():.1f}\n{name}{{model="b"}} 0 1700000000\n'
        return MockReply((MockChunk(said),), headers={"Content-Type": "text/plain"}, framing="length")


GAUGES = ("llamacpp:requests_processing", "vllm:num_requests_running", "sglang:num_running_reqs")
SHOWN = ("is_processing", "state", *GAUGES, "time")


@table("show", SHOWN)
def test_a_server_that_stops_is_right_however_it_is_seen(show: str) -> None:
    talk = _ask("leaving", Watched(show).answer)
    assert not talk.violations
    assert "live-cancel-on-disconnect" in talk.judged


@table("show", SHOWN)
def test_a_server_that_goes_on_for_nobody_is_found(show: str) -> None:
    talk = _ask("leaving", Watched(show, stops=False).answer, SOON)
    assert found(talk) == {"live-cancel-on-disconnect"}
    assert talk.violations[0].reply.recording.is_aborted


@pytest.mark.parametrize(
    ("ideal", "why"),
    [
        (Watched("nothing"), "no request has to wait"),
        (Watched(GAUGES[0], gap_s=0.0), "over"),
        (Watched("time", gap_s=0.0), "over|has to wait"),
    ],
    ids=["nothing to see", "too quick to see", "too quick to time"],
)
def test_of_a_server_that_shows_nothing_nothing_is_said(ideal: ReferenceServer, why: str) -> None:
    with pytest.raises(NotApplicableError, match=why):
        _ask("leaving", ideal.answer, SOON)


def test_a_server_with_other_work_is_not_judged() -> None:
    busy = Watched(GAUGES[0], stops=False)
    busy.answer(MockHttpRequest("POST", "/v1/chat/completions", {}, json.dumps({"messages": "Count"})))
    with pytest.raises(NotApplicableError, match="other work"):
        _ask("leaving", busy.answer, SOON)


def test_a_count_that_is_late_is_not_held_against_the_server() -> None:
    class Stale(Watched):
        """Counts anew only when something is asked."""

        def answer(self, seen: MockHttpRequest) -> MockReply:
            self._stops = "Say hello" in seen.body or (self._stops and "Count" not in seen.body)
            return super().answer(seen)

    with pytest.raises(NotApplicableError, match="late"):
        _ask("leaving", Stale(GAUGES[0]).answer, SOON)


# ---- any server


@pytest.mark.tier3
@pytest.mark.parametrize("fault", FAULT_REPLIES)
def test_whatever_comes_a_probe_ends_with_a_word(fault: str) -> None:
    async def work() -> None:
        async with serving(lambda _: FAULT_REPLIES[fault]) as url:
            for talk, why in await asyncio.gather(*(outcome(name, url, HASTY) for name in NAMES)):
                assert talk.replies
                assert why or talk.judged

    run(work())
