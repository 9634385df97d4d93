"""Nobody is accused wrongly: servers as they are out there, and what the judge alone would say of them."""

import json
from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
import pytest

from tests.check.serving import (
    IMPATIENT,
    Choose,
    Json,
    asked_as,
    body_of,
    edited,
    found,
    outcome,
    serving,
    session,
)
from tests.http.aio import run
from tests.recorded.traces import RECORDED, recorded
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

SWIFT = Timeouts(reply_s=20.0, silence_s=60.0, prefill_s=60.0, stream_s=60.0, disconnect_s=5.0, after_done_s=0.2)
"""No time that a busy machine takes is the server's fault."""


def _probe(
    name: str, choose: Choose, facts: ServerFacts | None = None, patience: Timeouts = IMPATIENT
) -> tuple[Session, str]:
    async def work() -> tuple[Session, str]:
        async with serving(choose) as url:
            return await outcome(name, url, patience, facts)

    return run(work())


def _check(choose: Choose, **settings: Any) -> Report:  # noqa: ANN401 - of CheckSettings
    async def work() -> Report:
        async with serving(choose) as url:
            return await check(CheckSettings(url=url, timeouts=SWIFT, **settings))

    return run(work())


def _refusal(status: int = 400) -> MockReply:
    error = {"message": "no", "type": "invalid_request_error", "param": None, "code": None}
    return json_reply({"error": error}, status)


def _refusing(is_refused: Callable[[Json], object], status: int = 400, choose: Choose | None = None) -> Choose:
    answer = choose or ReferenceServer().answer
    return lambda seen: _refusal(status) if is_refused(body_of(seen)) else answer(seen)


# ---- what the judge says, the check says


RECORDINGS = [reply for reply in recorded() if has_content(reply.trace)]
OF_THE_SESSION = {REFUSED_4XX_RULE, KEEPALIVE_RULE}
"""What is heard besides by who asks: the class of the status, and times."""


@table("reply", RECORDINGS, ids=lambda reply: reply.name)
def test_a_server_that_says_what_was_recorded_is_found_as_lint_finds_the_recording(reply: Any) -> None:  # noqa: ANN401
    record = json.loads((RECORDED / f"{reply.name}.json").read_text("utf-8"))
    path = "/completions" if reply.trace.endpoint == "completions" else "/chat/completions"

    async def work() -> Session:
        async with serving(lambda _: reply_from_trace(record, reply.trace.body), speed=0) as url:
            talk = session("text", url)
            await talk.post(path, b"?" if reply.trace.request is None else reply.trace.request)
            return talk

    assert found(run(work())) - OF_THE_SESSION == judge(reply.trace).counts.keys()


EXAMPLES = [example for page in sorted(PAGES.glob("*-*.md")) for example in read_page(page)]
NOT_THERE = {"env-obfuscation", "fin-function-call-legacy", "err-empty-stream"}
"""They forbid something: what their pages show as right does not have it."""


@table("example", EXAMPLES, ids=lambda example: example.name)
def test_a_rule_has_its_say_where_it_is_found_broken_and_where_its_page_shows_it_right(example: RuleExample) -> None:
    said = applicable_rules(TraceView(example.trace))
    assert judge(example.trace).counts.keys() <= said
    assert not example.is_correct or example.rule in said or example.rule in NOT_THERE


@table("reply", RECORDINGS, ids=lambda reply: reply.name)
def test_what_is_found_in_a_recording_had_its_say(reply: Any) -> None:  # noqa: ANN401
    assert judge(reply.trace).counts.keys() <= applicable_rules(TraceView(reply.trace))


# ---- whole servers


class Silent(ReferenceServer):
    """Says nothing, whatever is asked."""

    def text_for(self, prompt: str) -> str:
        return ""


def _busy() -> Choose:
    """Says to come again later, to each third request."""
    numbers, ideal = count(1), ReferenceServer()
    later = msgspec.structs.replace(_refusal(429), headers={"Content-Type": "application/json", "Retry-After": "0"})
    return lambda seen: ideal.answer(seen) if next(numbers) % 3 else later


def _out_of_credit() -> Choose:
    """Answers for a while."""
    numbers, ideal = count(), ReferenceServer()
    return lambda seen: _refusal(402) if seen.method == "POST" and next(numbers) > 60 else ideal.answer(seen)


@pytest.mark.parametrize(
    "choose", [Silent().answer, _busy(), _out_of_credit()], ids=["without words", "busy", "out of credit"]
)
def test_a_server_that_gives_little_breaks_no_rule(choose: Choose) -> None:
    report = _check(choose)
    assert [(finding.rule, finding.probe, finding.observed) for finding in report.findings] == []


def test_a_model_that_thinks_is_found_right() -> None:
    report = _check(ReferenceServer(models=("ideal-thinking",)).answer)
    assert report.findings == ()
    assert {probe.name for probe in report.probes if probe.reason} <= {"mistakes-key", "flush", "long", "leaving"}


SECRET = 20  # tokens


def _thinks_in_secret(request: Json, said: Json) -> Json:
    """Of a few tokens nothing is left for words."""
    if request.get("max_completion_tokens", 0) > SECRET:
        return said
    for choice in said["choices"]:
        holder = choice.get("delta") or choice.get("message") or {}
        if "content" in holder:
            holder["content"] = ""
        choice["finish_reason"] = choice["finish_reason"] and "length"
    return said


UNWANTED = ("temperature", "stop", "max_tokens", "logprobs")
"""What the newer models of OpenAI do not take."""


def test_a_model_that_thinks_in_secret_and_takes_little_breaks_the_one_rule() -> None:
    thinker = edited(ReferenceServer().answer, _thinks_in_secret)

    def choose(seen: MockHttpRequest) -> MockReply:
        is_plain = seen.path.endswith("/chat/completions") and seen.method == "POST"
        if not is_plain:
            return ReferenceServer().answer(seen)
        if any(body_of(seen).get(name) is not None for name in UNWANTED):
            return _refusal()
        return thinker(seen) if ReferenceServer().answer(seen).status == 200 else ReferenceServer().answer(seen)

    report = _check(choose)
    assert [finding.rule for finding in report.findings] == ["req-max-tokens-both"]
    verdicts = {probe.name: probe.verdict.value for probe in report.probes}
    assert {verdicts[name] for name in ("stops", "stops-unfinished", "logprobs")} == {"not offered"}


def test_the_first_chunk_of_azure_breaks_the_rule_about_it_alone() -> None:
    filters = [{"prompt_index": 0, "content_filter_results": {}}]
    first = {"choices": [], "created": 0, "id": "", "model": "", "object": "", "prompt_filter_results": filters}

    def choose(seen: MockHttpRequest) -> MockReply:
        reply = ReferenceServer().answer(seen)
        if reply.headers.get("Content-Type", "").startswith("text/event-stream") and "/chat/" in seen.path:
            return msgspec.structs.replace(reply, pieces=(MockChunk(f"data: {json.dumps(first)}\n\n"), *reply.pieces))
        return reply

    assert {finding.rule for finding in _check(choose).findings} == {"env-placeholder-chunk"}


# ---- single probes


def _taking_turns(*machines: ReferenceServer) -> Choose:
    """Several machines behind one address."""
    numbers = count()
    return lambda seen: machines[next(numbers) % len(machines)].answer(seen)


class Miscounting(ReferenceServer):
    """Has another tokenizer."""

    def usage(self, *args: Any) -> Any:  # noqa: ANN401 - as the one above it
        usage = super().usage(*args)
        return msgspec.structs.replace(
            usage, prompt_tokens=usage.prompt_tokens + 1, total_tokens=usage.total_tokens + 1
        )


@pytest.mark.parametrize(
    ("name", "other"),
    [("same", ReferenceServer(text="Hello? Who is there?")), ("usage-same", Miscounting())],
    ids=["text", "count"],
)
def test_two_machines_that_take_turns_are_not_compared(name: str, other: ReferenceServer) -> None:
    talk, _ = _probe(name, _taking_turns(ReferenceServer(text="Good morning to you!"), other))
    assert found(talk) == set()
    assert talk.inapplicable


def test_thoughts_in_secret_do_not_count_where_answers_are_compared() -> None:
    numbers = count()

    def change(_: Json, said: Json) -> Json:
        if usage := said.get("usage"):
            hidden = 64 * (next(numbers) % 3 + 1)
            usage["completion_tokens"] += hidden
            usage["total_tokens"] += hidden
            usage["completion_tokens_details"] = {"reasoning_tokens": hidden}
        return said

    talk, why = _probe("usage-same", edited(ReferenceServer().answer, change))
    assert (found(talk), why, talk.inapplicable) == (set(), "", {})


@pytest.mark.parametrize("name", ["choices", "choices-whole"])
def test_two_choices_without_a_word_are_no_finding(name: str) -> None:
    def change(_: Json, said: Json) -> Json:
        for choice in said["choices"]:
            holder = choice.get("delta") or choice.get("message") or {}
            if "content" in holder:
                holder["content"] = ""
        return said

    talk, _ = _probe(name, edited(ReferenceServer().answer, change))
    assert found(talk) == set()


def test_a_model_without_the_role_system_need_not_know_developer() -> None:
    talk, why = _probe("requests-parts", _refusing(lambda body: body["messages"][0]["role"] != "user"))
    assert (found(talk), why) == (set(), "400: no")


def test_one_accident_is_no_broken_rule_about_requests() -> None:
    numbers = count()
    talk, why = _probe("requests-unknown", _refusing(lambda _: next(numbers) == 0, 500))
    assert (found(talk), why) == ({REFUSED_4XX_RULE}, "")


def test_an_accident_is_not_blamed_on_accept() -> None:
    numbers = count()
    talk, why = _probe("requests-accept", _refusing(lambda _: next(numbers) == 0, 500))
    assert (found(talk), why) == ({REFUSED_4XX_RULE}, "500: no")


def test_a_suffix_that_changes_neither_text_nor_a_count_is_not_heard() -> None:
    def change(_: Json, said: Json) -> Json:
        said.pop("usage", None)
        return said

    ignoring = asked_as(edited(ReferenceServer().answer, change), lambda body: body.pop("suffix", None))
    _, why = _probe("completions-suffix", ignoring)
    assert why == "the same text as without suffix, and no count of what was read"


def test_a_head_that_waits_a_moment_for_a_refusal_is_not_judged() -> None:
    patience = msgspec.structs.replace(IMPATIENT, prefill_s=1.0)
    late = ReferenceServer()
    talk, why = _probe("long", lambda seen: msgspec.structs.replace(late.answer(seen), after_s=1.1), patience=patience)
    assert (found(talk), why) == (set(), "a long prompt was read too quickly to tell")


def test_a_burst_of_a_fast_server_is_looked_at_again_with_a_longer_answer() -> None:
    slow = ReferenceServer(gap_s=0.005)

    def choose(seen: MockHttpRequest) -> MockReply:
        reply = slow.answer(seen)
        if body_of(seen)["max_tokens"] > 48:
            return reply
        return msgspec.structs.replace(reply, pieces=(MockChunk(base64=reply.body, after_s=0.2),))

    talk, why = _probe("flush", choose)
    assert (found(talk), why, len(talk.replies)) == (set(), "", 2)


@pytest.mark.parametrize(("name", "is_found"), [("tools-none", False), ("tools-auto", True)])
def test_json_is_no_call_where_none_may_be_made(name: str, is_found: bool) -> None:
    ideal = ReferenceServer(text='{"name": "get_weather", "arguments": {"city": "Paris"}}')
    talk = [{"role": "user", "content": "Hi."}]
    said, _ = _probe(
        name, asked_as(ideal.answer, lambda body: body.update(messages=talk, tools=[], tool_choice="none"))
    )
    assert (found(said) == {"tool-no-markup-leak"}) is is_found


def test_a_limit_that_is_ignored_is_found_where_many_tokens_come_in_one_chunk() -> None:
    ideal = ReferenceServer()

    def choose(seen: MockHttpRequest) -> MockReply:
        reply = asked_as(ideal.answer, lambda body: body.pop("max_completion_tokens", None))(seen)
        return _in_few_chunks(reply) if "max_completion_tokens" in seen.body else reply

    talk, _ = _probe("limits", choose)
    assert found(talk) == {"req-max-tokens-both"}


def _in_few_chunks(reply: MockReply) -> MockReply:
    """The texts of 20 chunks in one."""
    frames = [json.loads(frame[6:]) for frame in reply.body.decode().split("\n\n") if frame.startswith("data: {")]
    texts = [frame for frame in frames if frame["choices"][0]["delta"].get("content")]
    for start in range(0, len(texts), 20):
        joined = "".join(frame["choices"][0]["delta"]["content"] for frame in texts[start : start + 20])
        texts[start]["choices"][0]["delta"]["content"] = joined
    left_out = [frame for place, frame in enumerate(texts) if place % 20]
    kept = [f"data: {json.dumps(frame)}\n\n" for frame in frames if not any(frame is other for other in left_out)]
    return msgspec.structs.replace(reply, pieces=(MockChunk("".join([*kept, "data: [DONE]\n\n"])),))


def test_what_is_added_to_every_request_is_in_those_about_limits_too() -> None:
    bodies: list[Json] = []

    async def work() -> None:
        ideal = ReferenceServer()
        async with serving(lambda seen: bodies.append(body_of(seen)) or ideal.answer(seen)) as url:  # type: ignore[func-returns-value]
            await check(CheckSettings(url=url, timeouts=SWIFT, only=("limits",), extra={"top_k": 1}))

    run(work())
    assert all(body["top_k"] == 1 for body in bodies if body)
    assert any("max_completion_tokens" in body for body in bodies)


def test_a_whole_run_stays_cheap() -> None:
    cost = _check(ReferenceServer().answer).cost
    assert len(CHAT_PROBES) <= cost.requests < 120
    assert cost.prompt_tokens + cost.completion_tokens < 7000


@pytest.mark.parametrize(
    ("name", "is_found"), [("tools-named", False), ("tools-no-arguments", False), ("tools-required", True)]
)
def test_a_call_of_a_named_tool_may_end_with_stop_as_with_openai(name: str, is_found: bool) -> None:
    def change(_: Json, said: Json) -> Json:
        for choice in said["choices"]:
            choice["finish_reason"] = choice["finish_reason"] and "stop"
        return said

    talk, why = _probe(name, edited(ReferenceServer().answer, change))
    assert (found(talk), why) == ({"fin-tool-calls"} if is_found else set(), "")
