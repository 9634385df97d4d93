"""No false findings: correct servers with peculiarities of real ones, and agreement with the judge on recordings."""

import json
from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
import pytest

from tests.check.serving import (
    TEST_TIMEOUTS,
    Handler,
    Json,
    broken_rules,
    make_session,
    outcome,
    request_json,
    rewriting_reply,
    rewriting_request,
    serving,
)
from tests.http.aio import run
from tests.recorded.traces import RECORDED, RecordedTrace, recorded_traces
from tests.rules.pages import PAGES, read_page
from tests.table import table
from welldone.check.applicability import applicable_rules
from welldone.check.probe_client import ServerFacts
from welldone.check.probes import CHAT_PROBES
from welldone.check.report import Report
from welldone.check.run import check
from welldone.check.session import KEEPALIVE_RULE, REFUSED_4XX_RULE, Session
from welldone.check.settings import CheckSettings, Timeouts
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockChunk, MockReply, json_reply, reply_from_trace
from welldone.mock.server import MockHttpRequest
from welldone.rules.judge import has_content, judge
from welldone.rules.rule_pages import RuleExample
from welldone.rules.view.view import TraceView

LONG_TIMEOUTS = Timeouts(
    reply_s=20.0, silence_s=60.0, prefill_s=60.0, stream_s=60.0, disconnect_s=5.0, after_done_s=0.2
)
"""No time that a busy machine takes counts as a violation."""


def _probe(
    name: str, handler: Handler, facts: ServerFacts | None = None, timeouts: Timeouts = TEST_TIMEOUTS
) -> tuple[Session, str]:
    async def work() -> tuple[Session, str]:
        async with serving(handler) as url:
            return await outcome(name, url, timeouts, facts)

    return run(work())


def _check(handler: Handler, **settings: Any) -> Report:  # noqa: ANN401 - of CheckSettings
    async def work() -> Report:
        async with serving(handler) as url:
            return await check(CheckSettings(url=url, timeouts=LONG_TIMEOUTS, **settings))

    return run(work())


def _refusal(status: int = 400) -> MockReply:
    error = {"message": "no", "type": "invalid_request_error", "param": None, "code": None}
    return json_reply({"error": error}, status)


def _refusing(is_refused: Callable[[Json], object], status: int = 400, handler: Handler | None = None) -> Handler:
    answer = handler or ReferenceServer().answer
    return lambda http_request: _refusal(status) if is_refused(request_json(http_request)) else answer(http_request)


# ---- agreement with the judge


RECORDINGS = [reply for reply in recorded_traces() if has_content(reply.trace)]
SESSION_RULES = {REFUSED_4XX_RULE, KEEPALIVE_RULE}
"""Rules that the session judges itself: the class of the status, and silence."""


def test_check_and_lint_find_the_same_rules_in_a_recorded_reply() -> None:
    def handler(http_request: MockHttpRequest) -> MockReply:
        record = json.loads((RECORDED / f"{replies[-1].name}.json").read_text("utf-8"))
        return reply_from_trace(record, replies[-1].trace.body)

    async def broken_by_name() -> dict[str, set[str]]:
        broken = {}
        async with serving(handler, speed=0) as url:
            for reply in RECORDINGS:
                replies.append(reply)
                path = "/completions" if reply.trace.endpoint == "completions" else "/chat/completions"
                session = make_session("text", url)
                await session.post(path, b"?" if reply.trace.request is None else reply.trace.request)
                broken[reply.name] = broken_rules(session) - SESSION_RULES
        return broken

    replies: list[RecordedTrace] = []
    assert run(broken_by_name()) == {reply.name: set(judge(reply.trace).counts) for reply in RECORDINGS}


EXAMPLES = [example for page in sorted(PAGES.glob("*-*.md")) for example in read_page(page)]
ABSENT_IN_RIGHT_EXAMPLE = {"env-obfuscation", "fin-function-call-legacy", "err-empty-stream", "tool-no-markup-leak"}
"""Rules that forbid something, which their right examples do not contain."""


@table("example", EXAMPLES, ids=lambda example: example.name)
def test_a_rule_applies_to_every_reply_that_breaks_it_and_to_its_right_example(example: RuleExample) -> None:
    applicable = applicable_rules(TraceView(example.trace))
    assert judge(example.trace).counts.keys() <= applicable
    assert not example.is_correct or example.rule in applicable or example.rule in ABSENT_IN_RIGHT_EXAMPLE


@table("reply", RECORDINGS, ids=lambda reply: reply.name)
def test_every_rule_broken_in_a_recording_is_applicable(reply: Any) -> None:  # noqa: ANN401
    assert judge(reply.trace).counts.keys() <= applicable_rules(TraceView(reply.trace))


# ---- complete runs


class Silent(ReferenceServer):
    """Sends empty texts."""

    def text_for(self, prompt: str) -> str:
        return ""


def _overloaded() -> Handler:
    """Answers every third request with 429."""
    numbers, ideal = count(1), ReferenceServer()
    later = msgspec.structs.replace(_refusal(429), headers={"Content-Type": "application/json", "Retry-After": "0"})
    return lambda http_request: ideal.answer(http_request) if next(numbers) % 3 else later


def _out_of_credit() -> Handler:
    """Refuses requests with 402 after the first 60."""
    numbers, ideal = count(), ReferenceServer()
    return lambda http_request: (
        _refusal(402) if http_request.method == "POST" and next(numbers) > 60 else ideal.answer(http_request)
    )


@pytest.mark.parametrize(
    "handler", [Silent().answer, _overloaded(), _out_of_credit()], ids=["empty", "overloaded", "out of credit"]
)
def test_an_empty_overloaded_or_unpaid_server_breaks_no_rule(handler: Handler) -> None:
    report = _check(handler)
    assert [(finding.rule, finding.probe, finding.observed) for finding in report.findings] == []


def test_a_reasoning_model_breaks_no_rule() -> None:
    report = _check(ReferenceServer(models=("ideal-thinking",)).answer)
    assert report.findings == ()
    assert {probe.name for probe in report.probes if probe.reason} <= {"mistakes-key", "flush", "long", "leaving"}


HIDDEN_TOKENS = 20


def _hides_reasoning(request: Json, data: Json) -> Json:
    """Replaces short answers by empty ones: hidden reasoning uses up their tokens."""
    if request.get("max_completion_tokens", 0) > HIDDEN_TOKENS:
        return data
    for choice in data["choices"]:
        holder = choice.get("delta") or choice.get("message") or {}
        if "content" in holder:
            holder["content"] = ""
        choice["finish_reason"] = choice["finish_reason"] and "length"
    return data


REFUSED_FIELDS = ("temperature", "stop", "max_tokens", "logprobs")
"""Fields that OpenAI's reasoning models refuse."""


def test_a_model_with_hidden_reasoning_and_few_parameters_breaks_one_rule() -> None:
    reasoning = rewriting_reply(ReferenceServer().answer, _hides_reasoning)

    def handler(http_request: MockHttpRequest) -> MockReply:
        is_plain = http_request.path.endswith("/chat/completions") and http_request.method == "POST"
        if not is_plain:
            return ReferenceServer().answer(http_request)
        if any(request_json(http_request).get(name) is not None for name in REFUSED_FIELDS):
            return _refusal()
        return (
            reasoning(http_request)
            if ReferenceServer().answer(http_request).status == 200
            else ReferenceServer().answer(http_request)
        )

    report = _check(handler)
    assert [finding.rule for finding in report.findings] == ["req-max-tokens-both"]
    verdicts = {probe.name: probe.verdict.value for probe in report.probes}
    assert {verdicts[name] for name in ("stops", "stops-unfinished", "logprobs")} == {"unsupported"}


def test_the_first_chunk_of_azure_breaks_only_the_placeholder_rule() -> None:
    filters = [{"prompt_index": 0, "content_filter_results": {}}]
    first = {"choices": [], "created": 0, "id": "", "model": "", "object": "", "prompt_filter_results": filters}

    def handler(http_request: MockHttpRequest) -> MockReply:
        reply = ReferenceServer().answer(http_request)
        if reply.headers.get("Content-Type", "").startswith("text/event-stream") and "/chat/" in http_request.path:
            return msgspec.structs.replace(reply, pieces=(MockChunk(f"data: {json.dumps(first)}\n\n"), *reply.pieces))
        return reply

    assert {finding.rule for finding in _check(handler).findings} == {"env-placeholder-chunk"}


# ---- single probes


def _alternating(*machines: ReferenceServer) -> Handler:
    """Several servers behind one address, in turn."""
    numbers = count()
    return lambda http_request: machines[next(numbers) % len(machines)].answer(http_request)


class Miscounting(ReferenceServer):
    """Counts one prompt token more."""

    def usage(self, *args: Any) -> Any:  # noqa: ANN401 - the types of the base class
        usage = super().usage(*args)
        return msgspec.structs.replace(
            usage, prompt_tokens=usage.prompt_tokens + 1, total_tokens=usage.total_tokens + 1
        )


@pytest.mark.parametrize(
    ("name", "other"),
    [("same", ReferenceServer(text="Hello? Who is there?")), ("usage-same", Miscounting())],
    ids=["text", "count"],
)
def test_answers_of_alternating_servers_are_not_compared(name: str, other: ReferenceServer) -> None:
    session, _ = _probe(name, _alternating(ReferenceServer(text="Good morning to you!"), other))
    assert broken_rules(session) == set()
    assert session.inapplicable


def test_hidden_reasoning_tokens_are_ignored_when_usage_is_compared() -> None:
    numbers = count()

    def change(_: Json, data: Json) -> Json:
        if usage := data.get("usage"):
            hidden = 64 * (next(numbers) % 3 + 1)
            usage["completion_tokens"] += hidden
            usage["total_tokens"] += hidden
            usage["completion_tokens_details"] = {"reasoning_tokens": hidden}
        return data

    session, reason = _probe("usage-same", rewriting_reply(ReferenceServer().answer, change))
    assert (broken_rules(session), reason, session.inapplicable) == (set(), "", {})


@pytest.mark.parametrize("name", ["choices", "choices-whole"])
def test_two_empty_choices_break_no_rule(name: str) -> None:
    def change(_: Json, data: Json) -> Json:
        for choice in data["choices"]:
            holder = choice.get("delta") or choice.get("message") or {}
            if "content" in holder:
                holder["content"] = ""
        return data

    session, _ = _probe(name, rewriting_reply(ReferenceServer().answer, change))
    assert broken_rules(session) == set()


def test_a_model_without_system_prompts_may_refuse_developer() -> None:
    session, reason = _probe("requests-parts", _refusing(lambda body: body["messages"][0]["role"] != "user"))
    assert (broken_rules(session), reason) == (set(), "400: no")


def test_a_single_500_does_not_break_the_unknown_field_rule() -> None:
    numbers = count()
    session, reason = _probe("requests-unknown", _refusing(lambda _: next(numbers) == 0, 500))
    assert (broken_rules(session), reason, session.failures) == (set(), "", ["no"])


def test_a_single_500_does_not_break_the_accept_rule() -> None:
    numbers = count()
    session, reason = _probe("requests-accept", _refusing(lambda _: next(numbers) == 0, 500))
    assert (broken_rules(session), reason) == (set(), "the answer ended in an error: no")


def test_a_suffix_without_effect_and_usage_is_not_applicable() -> None:
    def change(_: Json, data: Json) -> Json:
        data.pop("usage", None)
        return data

    ignoring = rewriting_request(
        rewriting_reply(ReferenceServer().answer, change), lambda body: body.pop("suffix", None)
    )
    _, reason = _probe("completions-suffix", ignoring)
    assert reason == "the same text as without suffix, and no usage that counts the suffix"


def test_a_slightly_delayed_head_is_not_judged() -> None:
    timeouts = msgspec.structs.replace(TEST_TIMEOUTS, prefill_s=1.0)
    late = ReferenceServer()
    session, reason = _probe(
        "long", lambda http_request: msgspec.structs.replace(late.answer(http_request), after_s=1.1), timeouts=timeouts
    )
    assert (broken_rules(session), reason) == (set(), "the prefill of a long prompt was too fast to measure")


def test_a_burst_is_repeated_with_a_longer_answer() -> None:
    slow = ReferenceServer(gap_s=0.005)

    def handler(http_request: MockHttpRequest) -> MockReply:
        reply = slow.answer(http_request)
        if request_json(http_request)["max_tokens"] > 48:
            return reply
        return msgspec.structs.replace(reply, pieces=(MockChunk(base64=reply.body, after_s=0.2),))

    session, reason = _probe("flush", handler)
    assert (broken_rules(session), reason, len(session.replies)) == (set(), "", 2)


@pytest.mark.parametrize(("name", "is_found"), [("tools-none", False), ("tools-auto", True)])
def test_json_is_not_markup_with_tool_choice_none(name: str, is_found: bool) -> None:
    ideal = ReferenceServer(text='{"name": "get_weather", "arguments": {"city": "Paris"}}')
    conversation = [{"role": "user", "content": "Hi."}]
    session, _ = _probe(
        name,
        rewriting_request(ideal.answer, lambda body: body.update(messages=conversation, tools=[], tool_choice="none")),
    )
    assert (broken_rules(session) == {"tool-no-markup-leak"}) is is_found


def test_an_ignored_limit_is_found_in_large_chunks() -> None:
    ideal = ReferenceServer()

    def handler(http_request: MockHttpRequest) -> MockReply:
        reply = rewriting_request(ideal.answer, lambda body: body.pop("max_completion_tokens", None))(http_request)
        return _in_few_chunks(reply) if "max_completion_tokens" in http_request.body else reply

    session, _ = _probe("limits", handler)
    assert broken_rules(session) == {"req-max-tokens-both"}


def _in_few_chunks(reply: MockReply) -> MockReply:
    """The reply with the texts of 20 chunks joined in one."""
    frames = [json.loads(frame[6:]) for frame in reply.body.decode().split("\n\n") if frame.startswith("data: {")]
    texts = [frame for frame in frames if frame["choices"][0]["delta"].get("content")]
    for start in range(0, len(texts), 20):
        joined = "".join(frame["choices"][0]["delta"]["content"] for frame in texts[start : start + 20])
        texts[start]["choices"][0]["delta"]["content"] = joined
    removed = [frame for number, frame in enumerate(texts) if number % 20]
    sent = [f"data: {json.dumps(frame)}\n\n" for frame in frames if not any(frame is other for other in removed)]
    return msgspec.structs.replace(reply, pieces=(MockChunk("".join([*sent, "data: [DONE]\n\n"])),))


def test_extra_fields_are_in_requests_about_limits() -> None:
    ideal, bodies = ReferenceServer(), list[Json]()

    def handler(http_request: MockHttpRequest) -> MockReply:
        bodies.append(request_json(http_request))
        return ideal.answer(http_request)

    async def work() -> None:
        async with serving(handler) as url:
            await check(CheckSettings(url=url, timeouts=LONG_TIMEOUTS, only=("limits",), extra={"top_k": 1}))

    run(work())
    assert all(body["top_k"] == 1 for body in bodies if body)
    assert any("max_completion_tokens" in body for body in bodies)


def test_a_run_has_few_requests_and_tokens() -> None:
    cost = _check(ReferenceServer().answer).cost
    assert len(CHAT_PROBES) <= cost.requests < 120
    assert cost.prompt_tokens + cost.completion_tokens < 7000


@pytest.mark.parametrize(
    ("name", "is_found"), [("tools-named", False), ("tools-no-arguments", False), ("tools-required", True)]
)
def test_a_call_of_a_named_tool_may_finish_with_stop_as_openai_does(name: str, is_found: bool) -> None:
    def change(_: Json, data: Json) -> Json:
        for choice in data["choices"]:
            choice["finish_reason"] = choice["finish_reason"] and "stop"
        return data

    session, reason = _probe(name, rewriting_reply(ReferenceServer().answer, change))
    assert (broken_rules(session), reason) == ({"fin-tool-calls"} if is_found else set(), "")
