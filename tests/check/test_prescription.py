"""The prescription: each server gets the settings that cure it, and a check through a gateway with them shows it."""

import fnmatch
import tomllib
from collections.abc import Callable
from typing import Any

import msgspec

from tests.check.serving import TEST_TIMEOUTS, Handler, Json, request_json, rewriting_reply, serving
from tests.http.aio import run
from tests.table import table
from welldone.check.applicability import UNCOVERED
from welldone.check.prescription import KNOWLEDGE, render_lines
from welldone.check.probes import PROBES_BY_DIALECT
from welldone.check.report import Prescription, Report
from welldone.check.repro import AUTHORIZATION
from welldone.check.run import check
from welldone.check.settings import CheckSettings
from welldone.cli.check import add_prescription
from welldone.config.settings import setting_fields
from welldone.config.upstream import UpstreamSettings
from welldone.core.catalog import RULES, Repairability
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import MockReply, cut_at, json_reply
from welldone.mock.server import MockHttpRequest
from welldone.mock.violations import violating_handler

KEY = "sk-canary-of-the-server"
FEW = ("text", "limits", "tools", "models")


def prescribed(handler: Handler, **settings: Any) -> tuple[Report, Prescription, Json]:  # noqa: ANN401 - of the check
    """The report on a server, its prescription, and the table without the URL."""

    async def work() -> Report:
        async with serving(handler) as url:
            own = CheckSettings(url=url, timeouts=TEST_TIMEOUTS, **{"only": FEW, **settings})
            return await add_prescription(await check(own), own)

    report = run(work())
    assert report.prescription is not None
    ((_, upstream),) = tomllib.loads("\n".join(report.prescription.toml))["upstreams"].items()
    assert upstream.pop("url") == report.url
    return report, report.prescription, upstream


def choices_of(chunk: Json) -> list[Json]:
    return chunk.get("choices") or []


def own_words(_: Json, chunk: Json) -> Json:
    for choice in choices_of(chunk):
        reason = choice.get("finish_reason")
        choice["finish_reason"] = {"stop": "Finished", "length": 'Limit "n"'}.get(str(reason), reason)
    return chunk


def cut_arguments(_: Json, chunk: Json) -> Json:
    for choice in choices_of(chunk):
        for call in choice.get("delta", {}).get("tool_calls", ()):
            call["function"]["arguments"] = call["function"].get("arguments", "").removesuffix("}")
    return chunk


def without_finish(_: Json, chunk: Json) -> Json:
    for choice in choices_of(chunk):
        if "delta" in choice:
            choice["finish_reason"] = None
    return chunk


def is_tool_stream(http_request: MockHttpRequest) -> bool:
    body = request_json(http_request)
    return bool(body.get("stream") and body.get("tools") and body.get("tool_choice") != "none")


def cut_tool_streams(http_request: MockHttpRequest) -> MockReply:
    reply = ReferenceServer().answer(http_request)
    return cut_at(reply, len(reply.body) * 2 // 3) if is_tool_stream(http_request) else reply


def without_end(http_request: MockHttpRequest) -> MockReply:
    reply = rewriting_reply(ReferenceServer().answer, without_finish)(http_request)
    return msgspec.structs.replace(reply, pieces=tuple(one for one in reply.pieces if b"[DONE]" not in one.data))


def without_stream_options(http_request: MockHttpRequest) -> MockReply:
    if "stream_options" in request_json(http_request):
        return json_reply({"error": {"message": "stream_options?", "type": "x", "param": None, "code": None}}, 400)
    return ReferenceServer().answer(http_request)


def refusing_unknown_options(http_request: MockHttpRequest) -> MockReply:
    is_refused = "welldone_unknown" in request_json(http_request).get("stream_options", {})
    return without_stream_options(http_request) if is_refused else ReferenceServer().answer(http_request)


def violating(rule: str) -> Handler:
    return violating_handler(rule, ReferenceServer())


NO_TOOLS = {"stream": "no-tools"}


@table(
    ("handler", "only", "expected"),
    [
        (
            rewriting_reply(ReferenceServer().answer, own_words),
            (*FEW, "usage", "same", "completions"),
            {"finish_reasons": {"Finished": "stop", 'Limit "n"': "length"}},
        ),
        (rewriting_reply(ReferenceServer().answer, cut_arguments), FEW, NO_TOOLS),
        (cut_tool_streams, FEW, NO_TOOLS),
        (without_end, FEW, {"ends": "close"}),
        (violating("delta-content-incremental"), ("text", "same", "choices"), {"text": "cumulative"}),
        (violating("ext-no-think-tags"), FEW, {"think": "tags"}),
        (violating("delta-concat-equals-full"), ("text", "same"), {"stream": "false"}),
        (violating("n-refuse-if-unsupported"), ("choices",), {"n": "each"}),
    ],
    ids=["words", "arguments", "tool streams", "no end", "cumulative", "tags", "lost text", "choices"],
)
def test_a_setting_cures_the_server(handler: Handler, only: tuple[str, ...], expected: Json) -> None:
    report, prescription, settings = prescribed(handler, only=only)
    assert report.findings
    assert settings == expected
    # Without an end, nothing tells an answer that reached its limit from a whole one.
    left = ("fin-length",) if "ends" in expected else ()
    assert (prescription.problem, prescription.after, len(prescription.left)) == ("", left, len(left))
    comments = [line.partition("  # ")[2] for line in prescription.toml if "  # " in line]
    assert len(comments) == len(expected)
    for comment in comments:
        assert set(comment.partition(": ")[0].split(", ")) <= report.findings_by_rule.keys()
    assert f" → {len(left)}" in "\n".join(render_lines(report))


def refusing(status: int, *, is_refused: Callable[[MockHttpRequest], object]) -> Handler:
    refusal = json_reply({"error": {"message": "not streamed", "type": "x", "param": None, "code": None}}, status)
    return lambda one: refusal if is_refused(one) else ReferenceServer().answer(one)


@table(
    ("handler", "expected"),
    [
        (refusing(400, is_refused=is_tool_stream), "no-tools"),
        (refusing(500, is_refused=is_tool_stream), "no-tools"),
        (refusing(400, is_refused=lambda one: request_json(one).get("stream")), "false"),
    ],
)
def test_a_server_that_refuses_streams_is_asked_for_none(handler: Handler, expected: str) -> None:
    _, prescription, settings = prescribed(handler)
    assert settings == {"stream": expected}
    assert (prescription.problem, prescription.after) == ("", ())


def test_a_right_server_gets_its_address_only() -> None:
    report, prescription, settings = prescribed(ReferenceServer().answer)
    assert (settings, prescription.after) == ({}, ())
    assert "0 broken rules → 0" in render_lines(report)


def test_what_no_setting_cures_is_left_in_plain_words() -> None:
    report, prescription, settings = prescribed(violating("live-stop-not-leaked"), only=("stops",))
    assert settings == {}
    assert prescription.after == tuple(report.findings_by_rule)
    assert "left: stop strings are ignored: only the server can fix these" in render_lines(report)[-1]


def test_answers_that_end_in_an_error_are_left() -> None:
    failing = refusing(500, is_refused=lambda one: request_json(one).get("messages"))
    _, prescription, settings = prescribed(failing, only=("text",))
    assert settings == {}
    assert prescription.left == ("4 answers that ended in an error",)


def test_a_server_that_refuses_stream_options_is_asked_for_no_usage() -> None:
    report, prescription, settings = prescribed(without_stream_options, only=("text", "usage"))
    assert settings == {"usage": False}
    assert set(report.findings_by_rule) == {"req-stream-options"}
    assert "use-final-chunk" in prescription.after
    assert "usage is never sent" in prescription.left


def test_a_server_that_refuses_only_unknown_stream_options_is_asked_for_usage() -> None:
    report, prescription, settings = prescribed(refusing_unknown_options, only=("text", "usage"))
    assert settings == {}
    assert prescription.after == tuple(report.findings_by_rule) == ("req-stream-options",)


def test_a_tool_call_that_is_wrong_in_both_forms_has_no_setting() -> None:
    def cut_both(_: Json, chunk: Json) -> Json:
        for choice in choices_of(chunk):
            for call in (choice.get("message") or {}).get("tool_calls") or ():
                call["function"]["arguments"] = '{"city": "P'
        return cut_arguments(_, chunk)

    _, prescription, settings = prescribed(rewriting_reply(ReferenceServer().answer, cut_both))
    assert settings == {}
    assert "tool-args-json-object" in prescription.after


def test_secrets_are_environment_variables_and_the_gateway_needs_them_too() -> None:
    reference = ReferenceServer(key=KEY)

    def answer(http_request: MockHttpRequest) -> MockReply:
        headers = {name.lower(): value for name, value in http_request.headers.items()}
        assert headers.get("x-team") == "canary-team"
        return reference.answer(http_request)

    headers = (("X-Team", "canary-team"),)
    _, prescription, settings = prescribed(answer, key=KEY, headers=headers, only=("text", "mistakes-key"))
    assert settings == {"key": "env:UPSTREAM_KEY", "headers": {"X-Team": "env:UPSTREAM_X_TEAM"}}
    assert (prescription.problem, prescription.after) == ("", ())
    assert b"canary" not in msgspec.json.encode(prescription)
    named = {AUTHORIZATION: "MY_KEY", "X-Team": "MY_TEAM"}
    _, _, settings = prescribed(answer, key=KEY, headers=headers, env_variables=named, only=("text",))
    assert settings == {"key": "env:MY_KEY", "headers": {"X-Team": "env:MY_TEAM"}}


@table("listed", [MockReply(status=404), json_reply({"object": "list", "data": {"a": 1}})], ids=["none", "unreadable"])
def test_a_server_without_a_readable_list_gets_the_name_of_its_model(listed: MockReply) -> None:
    def answer(http_request: MockHttpRequest) -> MockReply:
        return listed if http_request.path.endswith("/models") else ReferenceServer().answer(http_request)

    _, prescription, settings = prescribed(answer, model="ideal")
    assert settings == {"models": ["ideal"]}
    assert (prescription.problem, prescription.after) == ("", ())


def test_a_call_that_is_written_as_json_text_becomes_a_call() -> None:
    def as_text(_: Json, chunk: Json) -> Json:
        for choice in choices_of(chunk):
            content: Json = choice["delta"] if "delta" in choice else choice["message"]
            if calls := content.pop("tool_calls", None):
                functions = [call["function"] for call in calls]
                texts = [f'{{"name": "{one["name"]}", "arguments": ' for one in functions if one.get("name")]
                is_whole = "message" in choice
                content["content"] = "".join(
                    [*texts, *(one.get("arguments") or "" for one in functions), "}" * is_whole]
                )
            elif choice.get("finish_reason") == "tool_calls" and not content:
                choice["delta"] = {"content": "}"}
            if choice.get("finish_reason") == "tool_calls":
                choice["finish_reason"] = "stop"
        return chunk

    report, prescription, settings = prescribed(
        rewriting_reply(ReferenceServer().answer, as_text), only=("text", "tools-required")
    )
    assert "tool-no-markup-leak" in report.findings_by_rule
    assert settings == {"json_tool_calls": True}
    assert prescription.after == ()


@table("endpoint", ["responses", "messages", "gemini"])
def test_another_dialect_goes_up_untranslated(endpoint: str) -> None:
    async def work() -> Report:
        async with serving(ReferenceServer().answer) as url:
            url = url.removesuffix("/v1") + ("/v1beta" if endpoint == "gemini" else "/v1")
            own = CheckSettings(url=url, timeouts=TEST_TIMEOUTS, endpoint=endpoint, only=("text",))
            return await add_prescription(await check(own), own)

    prescription = run(work()).prescription
    assert prescription is not None
    assert f'speaks = ["{endpoint}"]' in prescription.toml
    assert (prescription.problem, prescription.after) == ("", ())


def test_a_dialect_that_stays_wrong_is_made_from_chat() -> None:
    def without_usage(request: Json, chunk: Json) -> Json:
        if "input" in request:  # of a Response
            (chunk.get("response") or chunk).pop("usage", None)
        return chunk

    handler = rewriting_reply(ReferenceServer().answer, without_usage)
    report, prescription, settings = prescribed(handler, endpoint="responses", only=("text",))
    assert "resp-usage" in report.findings_by_rule
    assert ("speaks" in settings, prescription.after) == (False, ())


def test_rules_that_only_the_first_check_judged_are_named() -> None:
    replies = iter([True])

    def without_logprobs_later(http_request: MockHttpRequest) -> MockReply:
        is_asked = "logprobs" in request_json(http_request)
        if is_asked and not next(replies, False):
            return json_reply({"error": {"message": "no logprobs", "type": "x", "param": None, "code": None}}, 400)
        return ReferenceServer().answer(http_request)

    report, prescription, _ = prescribed(without_logprobs_later, only=("text", "logprobs"))
    assert "ext-logprobs-shape" in prescription.unjudged
    assert "ext-logprobs" in render_lines(report)[-1]


def test_settings_that_cannot_be_tried_are_printed_with_the_reason() -> None:
    async def work() -> Report:
        async with serving(ReferenceServer().answer) as url:
            own = CheckSettings(url=url, timeouts=TEST_TIMEOUTS, only=("text",))
            report = await check(own)
        return await add_prescription(report, own)  # the server is gone

    report = run(work())
    assert report.prescription is not None
    assert report.prescription.problem
    assert "could not be tried" in render_lines(report)[-1]
    assert "[upstreams." in "\n".join(render_lines(report))


def test_the_knowledge_names_rules_probes_and_settings_that_exist() -> None:
    names = [probe.name for probes in PROBES_BY_DIALECT.values() for probe in probes]
    fields = {field.name: field for field in setting_fields(UpstreamSettings)}
    for row in KNOWLEDGE.settings:
        assert row.rule in (RULES if not row.verdict else {*RULES, *names})
        assert {*row.without} <= RULES.keys()
        choices = fields[row.key].setting.choices.split()
        assert isinstance(row.value, bool | list) or row.value in choices
        assert row.comment.isprintable()
    assert KNOWLEDGE.left.keys() <= RULES.keys()
    patterns = {pattern for row in KNOWLEDGE.settings for pattern in (*row.probes, *row.right)}
    assert [pattern for pattern in patterns if not fnmatch.filter(names, pattern)] == []


def test_each_rule_that_a_gateway_only_reports_is_left_in_plain_words() -> None:
    reported = {rule.id for rule in RULES.values() if rule.repairability is Repairability.REPORT_ONLY}
    chat = {rule for rule in reported if {"chat", "completions"} & {*RULES[rule].endpoints}} - UNCOVERED.keys()
    assert chat - KNOWLEDGE.left.keys() == set()
