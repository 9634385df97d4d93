"""Probes of tools, shapes of answers, odd requests and mistakes: against a right server, and against wrong ones."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.check.serving import HASTY, IMPATIENT, found, outcome, serving
from tests.http.aio import run
from tests.table import table
from welldone.check.probe import Probe
from welldone.check.probe_client import ProbeClient, ServerFacts
from welldone.check.probes import errors, text, tools
from welldone.check.probes.tools import find_tool_markup
from welldone.check.session import Session, UnsupportedError
from welldone.check.settings import CheckSettings
from welldone.http import recording_client
from welldone.mock.faults import FAULT_REPLIES
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import HELLO_REPLY, MockReply, json_reply
from welldone.mock.server import MockHttpRequest
from welldone.protocol.catalog import RULES_BY_ID

Choose = Callable[[MockHttpRequest], MockReply]

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


def ask(name: str, choose: Choose, facts: ServerFacts | None = None) -> tuple[Session, str]:
    """What a probe heard from such a server, and why it ended early."""

    async def work() -> tuple[Session, str]:
        async with serving(choose) as url:
            return await outcome(name, url, facts=facts)

    return run(work())


def refused(status: int = 400, **more: object) -> MockReply:
    """A refusal in the right form."""
    error = {"message": "no", "type": "invalid_request_error", "param": None, "code": None}
    return json_reply({"error": error | more}, status)


def body_of(seen: MockHttpRequest) -> dict[str, Any]:
    """The members of a request."""
    value = json.loads(seen.body) if seen.body else {}
    return value if isinstance(value, dict) else {}


def with_members(seen: MockHttpRequest, **members: object) -> MockHttpRequest:
    """The request with other members; one that is `...` is left out."""
    body = {name: value for name, value in (body_of(seen) | members).items() if value is not ...}
    return msgspec.structs.replace(seen, body=json.dumps(body))


# ---- right servers


@table("name", [name for name in NAMES if name not in ("reasoning", "mistakes-key")])
def test_a_right_server_has_no_findings_and_each_rule_of_a_probe_has_its_say(name: str) -> None:
    talk, why = ask(name, ReferenceServer().answer)
    rules = next(probe.rules for probe in ALL if probe.name == name)
    assert (found(talk), why) == (set(), "")
    assert set(rules) <= talk.judged | set(talk.inapplicable)
    assert name in ("tools-none", "tools-result") or not talk.inapplicable


def test_thoughts_are_heard_where_a_model_has_some() -> None:
    talk, why = ask(
        "reasoning", ReferenceServer(models=("ideal-thinking",)).answer, ServerFacts(model="ideal-thinking")
    )
    assert (found(talk), why) == (set(), "")
    assert {"ext-reasoning-field", "ext-reasoning-before-content"} <= talk.judged


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Bob.", "the model does not think aloud"),
        ("<think>Well...</think>Bob.", "the model thinks in its text, and the server has no field for it"),
    ],
)
def test_a_model_without_thoughts_of_their_own_is_no_finding(text: str, why: str) -> None:
    talk, said = ask("reasoning", ReferenceServer(text=text).answer)
    assert (found(talk), said) == (set(), why)


# ---- tools


def deaf(text: str) -> Choose:
    """A server that knows nothing of tools, and says a text."""
    ideal = ReferenceServer(text=text)

    def choose(seen: MockHttpRequest) -> MockReply:
        talk = [{"role": "user", "content": "Hi."}]
        return ideal.answer(with_members(seen, messages=talk, tools=..., tool_choice=..., parallel_tool_calls=...))

    return choose


@table("name", TOOLS)
def test_the_markup_of_a_call_in_the_text_is_found(name: str) -> None:
    talk, _ = ask(name, deaf(CALL))
    assert found(talk) == {tools.NO_MARKUP_LEAK}


@table(
    ("name", "why"),
    [
        ("tools-auto", "the model chose to call no tool"),
        ("tools-required", "no tool was called although one had to be"),
        ("tools-required-whole", "no tool was called although one had to be"),
        ("tools-named", "no tool was called although one had to be"),
        ("tools-no-arguments", "no tool was called although one had to be"),
        ("tools-parallel", "the model did not make two calls"),
    ],
)
def test_a_model_that_calls_no_tool_is_not_heard(name: str, why: str) -> None:
    talk, said = ask(name, deaf("I cannot know that."))
    assert said.endswith(why)
    assert found(talk) == set()
    assert talk.inapplicable == {tools.NO_MARKUP_LEAK: "no tool was called"}


def test_a_call_in_spite_of_tool_choice_none_is_told() -> None:
    ideal = ReferenceServer()
    talk, said = ask("tools-none", lambda seen: ideal.answer(with_members(seen, tool_choice="required")))
    assert (found(talk), said) == (set(), "a tool was called although tool_choice was none")


@table(
    "text",
    [
        CALL,
        "Let me see. " + CALL,
        "[TOOL_CALLS][]",
        "<function=get_weather>",
        '{"name": "get_weather", "arguments": {}}',
        '[{"name": "get_weather", "arguments": "{}"}]',
        '{"name": "get_weather", "parameters": {"city": "Paris"}}',
        'I call it:\n```json\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n```\nDone.',
        '```\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n```',
    ],
)
def test_markup_is_known(text: str) -> None:
    assert find_tool_markup(text, "get_weather")


@table(
    "text",
    [
        "",
        "It is sunny in Paris.",
        '{"city": "Paris"}',
        "[]",
        '{"name": "another", "arguments": {}}',
        '{"name": "get_weather"}',
        '{"name": ["get_weather"], "arguments": {}}',
        '{"name": "get_weather", "parameters": {"type": "object", "properties": {}}}',
        "```json\n{\n```",
        "[" * 9_000,
    ],
)
def test_other_text_is_no_markup(text: str) -> None:
    assert find_tool_markup(text, "get_weather") is None


# ---- answers that must be JSON


@table("name", [probe.name for probe in text.SCHEMA_PROBES])
def test_an_answer_that_is_no_json_is_not_heard(name: str) -> None:
    ideal = ReferenceServer(text="A red cat, three years old.")
    talk, why = ask(name, lambda seen: ideal.answer(with_members(seen, response_format=...)))
    assert found(talk) == set()
    assert why.endswith("the answer is no JSON object: the server seems to ignore it")


@table("name", [probe.name for probe in text.SCHEMA_PROBES])
def test_json_that_is_cut_at_the_limit_is_no_matter(name: str) -> None:
    ideal = ReferenceServer()
    talk, why = ask(name, lambda seen: ideal.answer(with_members(seen, max_tokens=2)))
    assert (found(talk), why) == (set(), "")


# ---- odd requests


def _refuses_member(seen: MockHttpRequest) -> MockReply:
    return refused() if "x_unknown_to_all" in body_of(seen) else ReferenceServer().answer(seen)


def _refuses_header(seen: MockHttpRequest) -> MockReply:
    return refused() if "x-stainless-lang" in seen.headers else ReferenceServer().answer(seen)


def _refuses_parts(seen: MockHttpRequest) -> MockReply:
    is_odd = any(isinstance(message["content"], list) for message in body_of(seen)["messages"])
    return refused() if is_odd else ReferenceServer().answer(seen)


def _refuses_developer(seen: MockHttpRequest) -> MockReply:
    is_odd = any(message["role"] == "developer" for message in body_of(seen)["messages"])
    return refused() if is_odd else ReferenceServer().answer(seen)


def _obeys_json(seen: MockHttpRequest) -> MockReply:
    is_json = "json" in seen.headers["accept"]
    return ReferenceServer().answer(with_members(seen, stream=not is_json and body_of(seen).get("stream") is True))


def _obeys_events(seen: MockHttpRequest) -> MockReply:
    is_stream = "event-stream" in seen.headers["accept"] or body_of(seen).get("stream") is True
    return ReferenceServer().answer(with_members(seen, stream=is_stream))


def _not_acceptable(seen: MockHttpRequest) -> MockReply:
    is_stream = body_of(seen).get("stream") is True
    return ReferenceServer().answer(seen) if is_stream or "json" in seen.headers["accept"] else refused(406)


def _streams_by_default(seen: MockHttpRequest) -> MockReply:
    return ReferenceServer().answer(with_members(seen, stream=body_of(seen).get("stream", True)))


def _streams_where_false(seen: MockHttpRequest) -> MockReply:
    return ReferenceServer().answer(with_members(seen, stream="stream" in body_of(seen)))


def _streams_always(seen: MockHttpRequest) -> MockReply:
    return ReferenceServer().answer(with_members(seen, stream=True))


WRONG: tuple[tuple[str, str, Choose], ...] = (
    ("requests-unknown", errors.UNKNOWN_IGNORED, _refuses_member),
    ("requests-unknown", errors.UNKNOWN_IGNORED, _refuses_header),
    ("requests-parts", errors.CONTENT_PARTS, _refuses_parts),
    ("requests-parts", errors.CONTENT_PARTS, _refuses_developer),
    ("requests-accept", errors.ACCEPT_IGNORED, _obeys_events),
    ("requests-accept", errors.ACCEPT_IGNORED, _not_acceptable),
    ("requests-default", errors.STREAM_DEFAULT_FALSE, _streams_by_default),
    ("requests-default", errors.STREAM_DEFAULT_FALSE, _streams_where_false),
    ("requests-default", errors.STREAM_DEFAULT_FALSE, _streams_always),
)


@table(("name", "rule", "choose"), WRONG)
def test_a_server_that_does_not_take_what_clients_send_is_found(name: str, rule: str, choose: Choose) -> None:
    talk, why = ask(name, choose)
    assert (found(talk), why) == ({rule}, "")


def test_a_server_that_streams_only_where_accept_says_so_is_found() -> None:
    talk, _ = ask("requests-accept", _obeys_json)
    # JSON in the place of a stream breaks rules of its own.
    assert errors.ACCEPT_IGNORED in found(talk)


@table("name", [probe.name for probe in errors.REQUEST_PROBES])
def test_a_server_that_refuses_everything_breaks_no_rule_about_what_is_odd(name: str) -> None:
    talk, why = ask(name, lambda seen: refused())
    assert (found(talk), why) == (set(), "400: no")


@table("name", [probe.name for probe in errors.REQUEST_PROBES])
def test_a_server_that_is_busy_is_not_heard(name: str) -> None:
    busy = refused(429)
    talk, why = ask(name, lambda seen: msgspec.structs.replace(busy, headers=busy.headers | {"Retry-After": "1"}))
    assert (found(talk), why) == (set(), "429: no")


@pytest.mark.parametrize("choose", [_streams_always, lambda seen: HELLO_REPLY], ids=["right", "bare"])
def test_accept_is_not_to_blame_where_a_server_always_streams(choose: Choose) -> None:
    talk, why = ask("requests-accept", choose)
    assert errors.ACCEPT_IGNORED not in found(talk)
    assert why == "the reply is not what the field stream asks for, whatever Accept says"


# ---- mistakes


def _fails(seen: MockHttpRequest) -> MockReply:
    """Refuses with a 500 what it should refuse with a 4xx."""
    reply = ReferenceServer().answer(seen)
    return msgspec.structs.replace(reply, status=500) if reply.status >= 400 else reply


def _speaks_otherwise(seen: MockHttpRequest) -> MockReply:
    """Has errors of a form of its own."""
    reply = ReferenceServer().answer(seen)
    return json_reply({"detail": "no"}, reply.status) if reply.status >= 400 else reply


def _numbers(seen: MockHttpRequest) -> MockReply:
    """Has numbers for codes."""
    reply = ReferenceServer().answer(seen)
    return refused(reply.status, code=reply.status) if reply.status >= 400 else reply


def _hangs_up(seen: MockHttpRequest) -> MockReply:
    """Ends the connection where it should refuse."""
    reply = ReferenceServer().answer(seen)
    return MockReply(end="cut", raw=True) if reply.status >= 400 else reply


@table("name", MISTAKES)
@table(
    ("choose", "rule"),
    [(_fails, "err-refused-4xx"), (_speaks_otherwise, "err-body-shape"), (_numbers, "err-code-string")],
)
def test_a_wrong_refusal_is_found(name: str, choose: Choose, rule: str) -> None:
    talk, why = ask(name, choose)
    assert (found(talk), why) == ({rule}, "")


@table("name", [name for name in MISTAKES if name != "mistakes-path"])
def test_silence_is_found(name: str) -> None:
    talk, why = ask(name, _hangs_up)
    assert found(talk) == {"err-refused-4xx"}
    assert "connection" in why


@table("name", MISTAKES)
def test_a_server_that_takes_everything_is_right_in_that(name: str) -> None:
    ideal = ReferenceServer()

    def takes(seen: MockHttpRequest) -> MockReply:
        if seen.path.endswith("/models"):
            return ideal.answer(seen)
        wants_stream = '"stream":true' in seen.body.replace(" ", "")
        body = {"model": "ideal", "messages": [{"role": "user", "content": "Hi."}], "stream": wants_stream}
        return ideal.answer(MockHttpRequest("POST", "/v1/chat/completions", {}, json.dumps(body)))

    talk, why = ask(name, takes)
    assert (found(talk), why) == (set(), "")
    assert talk.inapplicable == {"err-refused-4xx": "the server refused nothing"}


@pytest.mark.parametrize("reply", [json_reply({"object": "list", "data": []}), FAULT_REPLIES["redirect-308"]])
def test_a_path_that_leads_elsewhere_is_no_failure(reply: MockReply) -> None:
    talk, why = ask("mistakes-path", lambda seen: reply)
    assert (found(talk), why) == (set(), "")


def test_a_server_that_knows_no_limit_is_left_soon() -> None:
    def chatters(seen: MockHttpRequest) -> MockReply:
        return msgspec.structs.replace(HELLO_REPLY, pieces=HELLO_REPLY.pieces[:2], end="endless")

    talk, _ = ask("mistakes-model", chatters)
    assert [reply.recording.is_aborted for reply in talk.replies] == [True, True]


def _with_key(key: str | None, choose: Choose) -> Session:
    async def work() -> Session:
        async with serving(choose) as url:
            desk = ProbeClient(CheckSettings(url=url, key=key, timeouts=IMPATIENT), recording_client.record_response)
            talk = Session(desk, ServerFacts(model="ideal"), "mistakes-key", frozenset(RULES_BY_ID))
            await next(probe.run for probe in ALL if probe.name == "mistakes-key")(talk)
            return talk

    return run(work())


def test_a_key_that_is_missing_or_wrong_is_refused() -> None:
    talk = _with_key(KEY, ReferenceServer(key=KEY).answer)
    assert [reply.status for reply in talk.replies] == [401, 401]
    assert found(talk) == set()
    assert "err-refused-4xx" in talk.judged


def test_the_right_key_is_in_no_request_that_should_fail() -> None:
    keys = []

    def choose(seen: MockHttpRequest) -> MockReply:
        keys.append(seen.headers.get("authorization"))
        return ReferenceServer(key=KEY).answer(seen)

    _with_key(KEY, choose)
    assert keys == [None, "Bearer wrong-key-of-welldone-check"]


def test_a_server_that_answers_without_the_key_offers_none() -> None:
    with pytest.raises(UnsupportedError, match="without the right key"):
        _with_key(KEY, ReferenceServer().answer)


def test_without_a_key_there_is_no_wrong_one() -> None:
    talk, why = ask("mistakes-key", ReferenceServer().answer)
    assert (talk.replies, why) == ([], "no key was given")


@table(
    ("listed", "why"),
    [
        ({"id": "ideal"}, "the server does not say how long a prompt may be"),
        ({"id": "another", "max_model_len": 8}, "the server does not say how long a prompt may be"),
        ({"id": "ideal", "max_model_len": "long"}, "the server does not say how long a prompt may be"),
        ({"id": "ideal", "max_model_len": -1}, "the server does not say how long a prompt may be"),
        ({"id": "ideal", "context_length": 10**6}, "a context of 1000000 tokens is too long to fill"),
    ],
)
def test_a_context_that_is_unknown_or_large_is_not_filled(listed: dict[str, Any], why: str) -> None:
    talk, said = ask("mistakes-length", lambda seen: json_reply({"object": "list", "data": [listed]}))
    assert (len(talk.replies), said) == (1, why)


def test_the_longest_context_that_is_told_counts() -> None:
    listed = {"id": "ideal", "max_model_len": 100, "meta": {"n_ctx_train": 300}}
    lengths = []

    def choose(seen: MockHttpRequest) -> MockReply:
        if seen.method == "GET":
            return json_reply({"object": "list", "data": [listed]})
        lengths.append(len(body_of(seen)["messages"][0]["content"].split()))
        return refused()

    ask("mistakes-length", choose)
    assert lengths == [600]


def test_a_stream_that_begins_and_then_fails_is_judged() -> None:
    def fails(seen: MockHttpRequest) -> MockReply:
        return ReferenceServer().answer(seen) if seen.method == "GET" else FAULT_REPLIES["error-event"]

    talk, _ = ask("mistakes-length", fails)
    assert {"err-body-shape", "err-then-done"} <= found(talk)
    assert "err-midstream-event" in talk.judged


# ---- servers that mean ill


WAITING = ("hang", "hang-first", "slow", "endless")
"""Faults that take all the time that they are given."""
LARGE = ("gzip-bomb", "long-line", "endless")
"""Faults that take a while to read: for one probe of each file, and those of requests."""
SOME = ("tools-parallel", "schema", "reasoning", *(probe.name for probe in errors.REQUEST_PROBES), "mistakes-length")


@pytest.mark.tier3
@pytest.mark.parametrize("fault", FAULT_REPLIES)
def test_no_probe_fails_whatever_a_server_says(fault: str) -> None:
    patience = msgspec.structs.replace(HASTY, reply_s=0.05) if fault in WAITING else HASTY

    async def work() -> None:
        async with serving(lambda seen: FAULT_REPLIES[fault]) as url:
            for name in SOME if fault in LARGE else NAMES:
                await outcome(name, url, patience)  # another exception than the two that it knows would pass

    run(work())
