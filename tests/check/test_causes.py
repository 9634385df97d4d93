"""Causes: plain sentences on what a server does, in which replies, and what to change."""

from collections.abc import Callable
from typing import Any

import msgspec

from tests.check.serving import TEST_TIMEOUTS, Handler, Json, request_json, rewriting_reply, serving
from tests.http.aio import run
from tests.table import table
from welldone.check.causes import CAUSES
from welldone.check.report import Cause, Report
from welldone.check.reports import html, machine, text
from welldone.check.run import check
from welldone.check.settings import CheckSettings
from welldone.core.catalog import RULES
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockChunk, MockReply, json_reply
from welldone.mock.server import MockHttpRequest
from welldone.mock.variants import error_reply

ONLY = ("text", "tools", "same", "models")


def _check(handler: Handler, only: tuple[str, ...] = ONLY, **settings: Any) -> Report:  # noqa: ANN401 - of CheckSettings
    async def work() -> Report:
        async with serving(handler) as url:
            return await check(CheckSettings(url=url, timeouts=TEST_TIMEOUTS, only=only, **settings))

    return run(work())


def _sentences(handler: Handler, **settings: Any) -> list[str]:  # noqa: ANN401 - of CheckSettings
    return [cause.sentence for cause in _check(handler, **settings).causes]


def _with_cut_tool_streams(http_request: MockHttpRequest) -> MockReply:
    """Cuts every streamed tool call, as LightLLM does."""
    reply = ReferenceServer().answer(http_request)
    is_stream = str(reply.headers.get("Content-Type")).startswith("text/event-stream")
    is_call = is_stream and b"tool_calls" in reply.body
    return msgspec.structs.replace(reply, pieces=reply.pieces[:-3]) if is_call else reply


def _repeat_role(request: Json, data: Json) -> Json:
    for choice in data.get("choices", ()):
        if "content" in choice.get("delta", {}):
            choice["delta"]["role"] = "assistant"
    return data


def test_streamed_tool_calls_are_compared_with_the_same_calls_unstreamed() -> None:
    (cause,) = _check(_with_cut_tool_streams).causes
    assert cause.sentence == (
        "the stream ends in the middle of the answer, in all 5 streamed tool calls; the same calls unstreamed are right"
    )
    assert cause.change.startswith("Send the rest of the answer, with its finish reason")
    assert cause.rules == ("end-no-early-eof",)
    assert (cause.command or "").startswith("curl -siN --raw http://127.0.0.1:")


def test_without_a_right_reply_nothing_is_compared() -> None:
    def unstreamed_fails(http_request: MockHttpRequest) -> MockReply:
        request = request_json(http_request)
        if request.get("tools") and not request["stream"]:
            return error_reply(500, "no tools")
        return _with_cut_tool_streams(http_request)

    assert _sentences(unstreamed_fails) == [
        "answers end in an error, in 1 of 8 replies with tools",
        "the stream ends in the middle of the answer, in all 5 streamed tool calls",
    ]


def test_rules_that_one_mistake_breaks_are_one_cause() -> None:
    def bare(_: Json, data: Json) -> Json:
        return {name: value for name, value in data.items() if name not in ("id", "object", "created", "model")}

    def handler(http_request: MockHttpRequest) -> MockReply:
        is_chat = http_request.path.endswith("/completions") and request_json(http_request).get("stream")
        return (rewriting_reply(ReferenceServer().answer, bare) if is_chat else ReferenceServer().answer)(http_request)

    (cause,) = _check(handler, only=("text",)).causes
    assert cause.sentence == "chunks lack a right id, object, created or model, in all 2 streams"
    assert set(cause.rules) == {"env-id-present", "env-object-const", "env-created-int", "env-model-string"}


def test_the_most_frequent_cause_of_a_severity_comes_first() -> None:
    handler = rewriting_reply(_with_cut_tool_streams, _repeat_role)
    few, more = _sentences(handler, only=("tools",)), _sentences(handler)
    assert few[0].startswith("the stream ends in the middle of the answer")
    assert few[1] == "role on every chunk, in 2 of 7 streams with tools"
    assert more[0] == "role on every chunk, in 6 of 11 streams"


def test_a_wrong_answer_in_place_of_a_refusal_is_one_finding() -> None:
    wrong = MockReply((MockChunk('data: {"choices":[{"delta":{"content":7}}]}\n'),))

    def handler(http_request: MockHttpRequest) -> MockReply:
        return wrong if http_request.body == "[]" else ReferenceServer().answer(http_request)

    report = _check(handler, only=("mistakes", "text"))
    (cause,) = report.causes
    assert [finding.observed for finding in report.findings] == ["200: an answer to the body '[]'"]
    assert cause.sentence == "requests that the server cannot serve get a 5xx, an answer or no reply"
    assert (cause.command or "").endswith(" -d '[]'")


def test_causes_are_those_that_fail_the_check() -> None:
    handler = rewriting_reply(ReferenceServer().answer, _repeat_role)
    known = _check(handler, only=("text",), known=frozenset({"delta-role-once"}))
    assert [cause.rules for cause in known.causes] == [("delta-role-once",)]
    assert known.passed
    assert _check(ReferenceServer().answer, only=("text",)).causes == ()


def test_a_rule_that_is_judged_by_several_replies_has_no_place() -> None:
    def more_text(request: Json, data: Json) -> Json:
        if request.get("stream") and data["choices"] and data["choices"][0]["delta"].get("content"):
            data["choices"][0]["delta"]["content"] += "x"
        return data

    assert _sentences(rewriting_reply(ReferenceServer().answer, more_text), only=("same",)) == [
        "the streamed text differs from the text of the same answer that is not streamed"
    ]


def test_a_rule_without_a_sentence_has_its_observation_and_summary() -> None:
    rule = "gem-call"
    assert rule not in CAUSES
    call = {"functionCall": {"name": "", "args": {}}}
    reply = {
        "candidates": [{"content": {"role": "model", "parts": [call]}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2},
        "modelVersion": "ideal",
        "responseId": "one",
    }
    is_whole: Callable[[MockHttpRequest], bool] = lambda request: request.path.endswith(":generateContent")  # noqa: E731
    report = _check(
        lambda request: json_reply(reply) if is_whole(request) else ReferenceServer().answer(request),
        only=("tools-required-whole",),
        endpoint="gemini",
        rules=(rule,),
    )
    (cause,) = report.causes
    assert cause.sentence.startswith("gem-call is broken: ")
    assert cause.change == RULES[rule].summary


def test_every_sentence_belongs_to_a_rule() -> None:
    assert CAUSES.keys() <= RULES.keys()
    for cause in CAUSES.values():
        assert cause.change.endswith(".")
        assert not cause.cause.endswith(".")


@table("render", [html.render_html, text.render_markdown, machine.render_junit])
def test_reports_open_with_the_causes(render: Callable[[Report], str]) -> None:
    report = _check(_with_cut_tool_streams)
    shown, sentence = render(report), report.causes[0].sentence
    assert 0 < shown.index(sentence) < shown.index("observed")


def test_the_terminal_shows_causes_before_details() -> None:
    report = _check(_with_cut_tool_streams)
    lines = text.render_terminal(report, lambda text, _: text)
    cause = report.causes[0]
    assert lines[2:7] == [
        "",
        f"1. {cause.sentence}",
        f"   change  {cause.change}",
        "   rules   end-no-early-eof",
        f"   try     {cause.command}",
    ]


def test_a_cause_may_have_no_command() -> None:
    report = _check(_with_cut_tool_streams)
    bare = msgspec.structs.replace(report, causes=(Cause("it fails", "Mend it.", (), "breaks", None),))
    lines = text.render_terminal(bare, lambda text, _: text)
    assert lines[3:6] == ["1. it fails", "   change  Mend it.", ""]
    assert "it fails" in html.render_html(bare)
