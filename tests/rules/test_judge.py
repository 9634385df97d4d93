"""The judge: correct streams, arbitrary input, and violations that the rule pages do not show."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rules.pages import PAGES, read_page
from tests.rules.streams import (
    ASKS_USAGE,
    DONE,
    USAGE,
    call,
    chat,
    choice,
    completion,
    envelope,
    frame,
    odd_streams,
    reference_streams,
)
from tests.table import table
from welldone.core.catalog import ALL_ENDPOINTS as ENDPOINTS
from welldone.core.catalog import RULES, Detection, Kind, Severity
from welldone.rules.checks import ALL_CHECKS
from welldone.rules.judge import MAX_EXCERPT_CHARACTERS, MAX_FINDINGS_PER_RULE, LintVerdict, has_content, judge
from welldone.rules.trace import Trace

STREAM = {"model": "m", "stream": True}
REPLY = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1700000000,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
    "usage": USAGE,
}
TEXT_CHOICE = {"index": 0, "text": "Hi", "logprobs": None, "finish_reason": "stop"}
ERROR = {"error": {"message": "no", "type": "server_error", "param": None, "code": None}}
HEADERS = (
    ("Content-Type", "text/event-stream"),
    ("Cache-Control", "no-cache"),
    ("X-Accel-Buffering", "no"),
    ("Transfer-Encoding", "chunked"),
)


def rules_of(body: bytes, endpoint: str = "chat", **known: Any) -> set[str]:  # noqa: ANN401 - any field of a trace
    return set(judge(Trace(body=body, endpoint=endpoint, **known)).counts)


def whole(value: object) -> bytes:
    return json.dumps(value).encode()


# Invariants


def test_every_rule_that_a_reply_can_violate_has_one_check_in_catalogue_order() -> None:
    assert [check.rule for check in ALL_CHECKS] == [
        rule.id for rule in RULES.values() if rule.detection is Detection.REPLY
    ]


@given(reference_streams())
def test_a_reference_stream_has_no_findings(stream: tuple[bytes, dict[str, Any] | None]) -> None:
    body, request = stream
    report = judge(Trace(body=body, request=request, status=200, headers=HEADERS, complete=True))
    assert report.findings == ()
    assert report.ok


def _judge_every_way(body: bytes) -> None:
    for endpoint in ENDPOINTS:
        judge(Trace(body=body, endpoint=endpoint))
        judge(Trace(body=body, endpoint=endpoint, request=ASKS_USAGE, status=200, headers=HEADERS, complete=False))
        judge(Trace(body=body, endpoint=endpoint, request={}, status=429, headers=(), chunk_sizes=(1, 2, 0, 50)))


@given(st.binary())
def test_arbitrary_bytes_do_not_raise(body: bytes) -> None:
    _judge_every_way(body)


@given(odd_streams)
def test_arbitrary_streams_do_not_raise(body: bytes) -> None:
    _judge_every_way(body)


@table("body", [b"{" * 100_000, b"[" * 100_000, b"data: " + b"[" * 100_000])
def test_deeply_nested_input_is_judged(body: bytes) -> None:
    _judge_every_way(body)


@pytest.mark.no_cover
@table(
    "body",
    [
        b'data: {"id":' + b"[" * 900 + b"]" * 900 + b"}\n\n",
        b'data: {"created":' + b"9" * 10_000 + b"}\n\n",
        b"data: " + b"x" * 1_000_000,
        b"data: " + b" " * 1_000_000,
        b'data: {"a":"\x01"} ' * 2_000,
        b"\n\n" * 50_000,
        b"data: [DONE]\n" * 5_000,
        frame(envelope([choice({"content": "\ufffd"})] * 5_000)),
        frame(envelope([choice({"tool_calls": [{"index": 0}] * 5_000})])),
        frame({"id": "x" * 1_000_000, "choices": []}) + frame({"id": "y", "choices": []}) * 2_000,
    ],
    ids=lambda body: f"{body[:20]!r} of {len(body)}",
)
def test_large_input_is_judged(body: bytes) -> None:
    # Quadratic time would take minutes.
    _judge_every_way(body)


# Findings and verdict


def test_a_finding_has_position_observed_expected_and_affected_clients() -> None:
    body = b": hello\n\n" + chat({"content": "Hi"}, {"role": "assistant", "content": " you"})
    (finding,) = judge(Trace(body=body)).findings
    assert finding.rule == "delta-role-once"
    assert finding.severity == "breaks"
    assert finding.frame == 4
    assert finding.byte is not None
    assert body[finding.byte :].startswith(b'data: {"id"')
    assert finding.observed == '{"delta":{"role":"assistant","content":" you"}}'
    assert finding.expected == "the delta without role"
    assert finding.affects


def test_only_advice_does_not_fail() -> None:
    lax = judge(Trace(body=chat({"content": "Hi"}).replace(b'"content":""', b'"content":null')))
    assert (lax.verdict, lax.counts) == (LintVerdict.WARN, {"delta-role-content-empty": 1})
    wrong = judge(Trace(body=chat({"content": "Hi"}, end=b"")))
    assert (wrong.verdict, wrong.counts) == (LintVerdict.FAIL, {"end-done-sent": 1})
    right = judge(Trace(body=chat({"content": "Hi"})))
    assert (right.verdict, right.frames, right.findings, right.counts) == (LintVerdict.PASS, 4, (), {})


@table(
    ("rule", "kind", "verdict"),
    [
        ("env-created-constant", Kind.SPECIFIED, LintVerdict.FAIL),
        ("delta-role-once", Kind.BREAKS, LintVerdict.FAIL),
        ("env-fingerprint", Kind.ADVICE, LintVerdict.WARN),
    ],
)
def test_the_kind_of_the_broken_rule_determines_the_verdict(rule: str, kind: Kind, verdict: LintVerdict) -> None:
    example = next(example for example in read_page(PAGES / f"{rule}.md") if not example.is_correct)
    report = judge(example.trace, {rule})
    assert ({finding.kind for finding in report.findings}, report.verdict) == ({kind}, verdict)


def test_findings_are_sorted_by_position_and_limited_to_100_per_rule() -> None:
    body = chat(*[{"role": "assistant", "content": str(number)} for number in range(300)], end=b"")
    report = judge(Trace(body=body, headers=()))
    assert report.counts["delta-role-once"] == 300
    listed = [finding for finding in report.findings if finding.rule == "delta-role-once"]
    assert len(listed) == MAX_FINDINGS_PER_RULE
    places = [-1 if finding.byte is None else finding.byte for finding in report.findings]
    assert places == sorted(places)


def test_the_observed_value_is_short_and_printable() -> None:
    body = chat({"content": ["@" + "x" * 1000]}).replace(b"@", b"\xe2\x80\xa8\\ud800\\u0007")
    (shown,) = [one for one in judge(Trace(body=body)).findings if one.rule == "delta-content-string"]
    assert shown.observed.isprintable()
    assert len(shown.observed) == MAX_EXCERPT_CHARACTERS + 1
    assert shown.observed.startswith('{"content":["\\u2028\\ud800\\u0007xxx')


def test_only_the_selected_rules_are_checked() -> None:
    body = chat({"role": "assistant", "content": "Hi"}, end=b"")
    report = judge(Trace(body=body), rules={"end-done-sent", "no-such-rule"})
    assert set(report.counts) == {"end-done-sent"}
    assert judge(Trace(body=body), rules=()).verdict is LintVerdict.PASS


def test_the_severity_of_a_finding_is_that_of_its_rule() -> None:
    assert {RULES[check.rule].severity for check in ALL_CHECKS} == set(Severity)


@table(("body", "has"), [(b"", False), (b" \r\n\t", False), (b":", True), (DONE, True)])
def test_a_body_of_white_space_has_no_content(body: bytes, has: bool) -> None:
    assert has_content(Trace(body=body)) is has


# Kinds of reply


@table(
    ("body", "known", "rules"),
    [
        (whole(REPLY), {}, set()),
        (b" \n" + whole(REPLY), {"request": {"model": "m"}, "status": 200}, set()),
        (whole(REPLY), {"request": STREAM}, {"err-empty-stream"}),
        (whole(ERROR), {"request": STREAM, "status": 200, "headers": ()}, {"err-status-before-stream"}),
        (whole(ERROR), {"request": STREAM, "status": 201}, set()),
        (whole(ERROR), {"status": 200}, {"ns-error-status"}),
        (whole(ERROR), {}, set()),
        (whole({"detail": "no"}), {"status": 400}, {"err-body-shape"}),
        (b"<html>", {"status": 502, "headers": ()}, {"err-body-shape"}),
        (
            whole(ERROR),
            {"status": 503, "headers": (("content-type", "text/plain"),)},
            {"err-retry-after", "ns-content-type-json"},
        ),
        (whole(REPLY) + b"\n\ndata: [DONE]\n\n", {}, {"ns-no-sse-tail"}),
        (b"[DONE]", {}, {"sse-data-space", "end-done-exact", "end-last-event-terminated", "err-empty-stream"}),
        (b"{oops", {}, {"enc-strict-json", "ns-choices", "ns-usage", "ns-object"}),
        (b'{"a":NaN}', {"rules": {"enc-strict-json"}}, {"enc-strict-json"}),
        (b'{"a":"\xff"}', {"rules": {"enc-valid-utf8"}}, {"enc-valid-utf8"}),
        (b"{oops\n\n" + chat({"content": "Hi"}), {}, {"enc-strict-json", "sse-data-space"}),
        (b"{oops", {"request": STREAM, "rules": {"err-empty-stream"}}, {"err-empty-stream"}),
        (chat({"content": "Hi"}).replace(b"data: {", b"{"), {}, {"sse-data-space"}),
        (b'{"choices":[{"delta":{}}]}', {"rules": {"sse-data-space"}}, {"sse-data-space"}),
        (b"", {}, {"err-empty-stream"}),
        (b"\xef\xbb\xbf" + whole(REPLY), {}, set()),
    ],
)
def test_rules_depend_on_the_kind_of_reply(body: bytes, known: dict[str, Any], rules: set[str]) -> None:
    selected = known.pop("rules", None)
    assert set(judge(Trace(body=body, **known), selected).counts) == rules


# Violations that the rule pages do not show

GET = {"id": "call_1", "type": "function", "function": {"name": "get", "arguments": ""}}
ARGS = {"function": {"arguments": '{"x":1}'}}


@table(
    ("body", "rules"),
    [
        # Tool calls without an index are assembled by order.
        (
            chat(
                {"tool_calls": [{**GET, "function": {"name": "get", "arguments": "{}"}}]},
                {"tool_calls": [{**GET, "id": "call_2", "function": {"name": "get", "arguments": "{}"}}]},
                finish="tool_calls",
            ),
            {"tool-index-required"},
        ),
        (
            chat(
                {"tool_calls": [{"type": "function", "function": {"name": "get", "arguments": '{"x"'}}]},
                {"tool_calls": [{"function": {"arguments": ":1}"}}]},
                {"tool_calls": [{"type": "function", "function": {"name": "get", "arguments": "{}"}}]},
                finish="tool_calls",
            ),
            {"tool-index-required", "tool-id-first"},
        ),
        (chat(call(0, **GET), call(0, id="call_2", **ARGS), finish="tool_calls"), {"tool-id-stable"}),
        (
            chat(call(0, **GET), call(0, **ARGS), call(1, **GET), call(1, **ARGS), finish="tool_calls"),
            {"tool-id-stable"},
        ),
        (
            chat(call(0, **GET), call(0, function={"name": "_it", "arguments": "{}"}), finish="tool_calls"),
            {"tool-name-whole"},
        ),
        (chat(call(0, **GET), finish="length"), set()),
        (
            chat({"tool_calls": [None]}, finish="length"),
            {"tool-index-required", "tool-id-first", "tool-type-first", "tool-function-present"},
        ),
        (
            chat({**call(0, **GET), "tool_calls": [{"index": True, **GET}]}, finish="length"),
            {"tool-index-int"},
        ),
        (chat(call(-1, **GET), finish="length"), {"tool-index-contiguous"}),
        # Several values, and none, in one frame.
        (chat({"content": "Hi"}, end=b"data: [DONE]\ndata:\n\n"), set()),
        (chat({"content": "Hi"}).replace(b"}\n\ndata: [DONE]", b"}\ndata: [DONE]"), {"sse-event-blank-line"}),
        (b"retry: 5\n" + chat({"content": "Hi"}), set()),
        (b"ready: go\n" + chat({"content": "Hi"}), set()),
        (b"data: 1 2\n\n" + chat({"content": "Hi"}), {"sse-one-object-per-event", "sse-no-foreign-json"}),
        (chat({"content": "Hi"}) + b": bye\n", set()),
        (chat({"content": "Hi"}) + b": bye\n" * 120, {"sse-keepalive-run-limit"}),
        (chat({"content": "Hi"}).replace(b'"Hi"', b'"H\ni"'), {"sse-json-on-one-line", "enc-escape-line-breaks"}),
        (chat({"content": "Hi"}).replace(b'"Hi"', b'"H\x01i"'), {"enc-escape-line-breaks"}),
        (
            b"event: x\ndata: [1,\n2]\n\n" + chat({"content": "Hi"}),
            {"sse-no-event-name", "sse-json-on-one-line", "sse-no-foreign-json"},
        ),
        (b"data: {oops\nand more\n\n" + chat({"content": "Hi"}), {"enc-strict-json"}),
        # U+FFFD: only in text, and not if the bytes themselves are invalid.
        (chat({"content": "Hi"}).replace(b'"Hi"', b'"H\xff"'), {"enc-valid-utf8"}),
        (chat({"content": "Hi"}).replace(b'"Hi"', b'"H\\uFFFD"'), {"enc-no-replacement-char"}),
        (frame(envelope([], x="\ufffd", id="")) + chat({"content": "Hi"}), {"env-placeholder-chunk"}),
        # Empty chunks without a choice.
        (frame(envelope([])) + chat({"content": "Hi"}), {"env-placeholder-chunk"}),
        (chat({"content": "Hi"}, end=frame(envelope([], usage=None)) + DONE), {"env-placeholder-chunk"}),
        (frame(envelope([], prompt_filter_results=[])) + chat({"content": "Hi"}), set()),
        (frame(envelope([], service_tier="default")) + chat({"content": "Hi"}), set()),
        (chat({"content": "Hi"}).replace(b'"Hi"', b'"\\ud83d\\ude00"'), set()),
        # Errors.
        (
            b"event: error\n" + frame({"message": "no"}) + DONE,
            {"sse-no-event-name", "err-not-object-error", "err-event-name"},
        ),
        (frame(ERROR) + DONE, set()),
        (chat({"content": "Hi"}, finish=None, end=frame(ERROR)), {"err-then-done"}),
        (
            chat({"content": "Hi"}, finish=None, end=frame(ERROR) + chat({"content": "Hi"})),
            {"err-then-done", "delta-role-once"},
        ),
        (frame(envelope([choice({}, None)])) + DONE, {"delta-role-first", "fin-always-sent"}),
        (chat({"content": "Hi"}).replace(b'"index"', b'"error":{"code":null,"message":null},"index"'), set()),
        (chat({"content": "Hi"}).replace(b'"index"', b'"error":{"code":0,"message":""},"index"'), set()),
        (chat({"content": "Hi"}).replace(b'"index"', b'"error":"","index"'), set()),
        (chat({"content": "Hi"}).replace(b'"index"', b'"error":{"code":502},"index"'), {"err-not-with-choices"}),
        (chat({"content": "Hi"}).replace(b'"index"', b'"error":"It broke.","index"'), {"err-not-with-choices"}),
        # Extensions.
        (chat({"reasoning_content": "Hm"}, {"content": "Hi"}, {"refusal": "no"}), set()),
        (chat({"annotations": "x"}), {"ext-annotations"}),
        (chat({"annotations": []}, {"annotations": []}), set()),
        (chat({"parts": [{"a": 1}]}, {"parts": [{"index": 0}]}, {"parts": ["b"]}), set()),
        (chat({"audio": "x"}, finish=None, end=frame(ERROR) + DONE), {"ext-audio"}),
        (chat({"role": "assistant"}), {"delta-role-once"}),
        (chat({"content": "Hi"}, {"content": "Hi "}), set()),
        (chat({"content": "Hi, "}, {"content": "Hi, you"}), set()),
        (chat(*({"content": "Hi, you!"[:length]} for length in (2, 4, 6, 8))), {"delta-content-incremental"}),
        (chat(*({"content": "0" * length} for length in (2, 4, 6, 8))), set()),
        (chat({"reasoning_content": "a"}, {"content": "<think>b</think>"}), {"ext-no-think-tags"}),
        (chat({"reasoning_content": "a"}, {"content": "<think> is the tag."}), set()),
    ],
)
def test_rare_violations_in_chat(body: bytes, rules: set[str]) -> None:
    assert rules_of(body) == rules


LOGPROBS: dict[str, Any] = {
    "content": [{"token": "Hi", "logprob": -1, "bytes": None, "top_logprobs": []}],
    "refusal": None,
}


@table(
    ("logprobs", "rules"),
    [
        (LOGPROBS, set()),
        ([], {"ext-logprobs-shape"}),
        ({"content": ["Hi"], "refusal": None}, {"ext-logprobs-entry", "ext-logprobs-align"}),
        ({"content": [{"token": "Hi"}], "refusal": None}, {"ext-logprobs-entry"}),
        ({**LOGPROBS, "content": [{**LOGPROBS["content"][0], "bytes": [72, 300]}]}, set()),
        (
            {**LOGPROBS, "content": [{**LOGPROBS["content"][0], "top_logprobs": [{}]}]},
            {"ext-logprobs-entry"},
        ),
        (
            {**LOGPROBS, "content": [{**LOGPROBS["content"][0], "top_logprobs": [{"logprob": float("inf")}]}]},
            {"ext-logprobs-entry", "ext-logprobs-finite", "enc-strict-json"},
        ),
    ],
)
def test_logprobs_of_chat(logprobs: object, rules: set[str]) -> None:
    entries = [
        choice({"role": "assistant", "content": ""}),
        choice({"content": "Hi"}, logprobs=logprobs),
        choice({}, "stop"),
    ]
    assert rules_of(b"".join(frame(envelope([one])) for one in entries) + DONE) == rules


@table(
    ("body", "rules"),
    [
        (completion("Hi"), set()),
        (completion("Hi", finish=None), {"cmpl-finish", "err-not-silent"}),
        (completion("Hi", finish="eos"), {"cmpl-finish"}),
        (completion("Hi", end=completion()), {"cmpl-finish"}),
        (completion("Hi", end=b""), {"end-done-sent", "cmpl-done"}),
        (completion("Error: no"), {"err-not-content"}),
        (b"", {"err-empty-stream"}),
        (whole({**REPLY, "object": "text_completion", "choices": [TEXT_CHOICE]}), set()),
        (whole({**REPLY, "choices": [{}]}), {"ns-finish", "ns-object", "ns-object-schema"}),
    ],
)
def test_rules_of_completions(body: bytes, rules: set[str]) -> None:
    assert rules_of(body, "completions") == rules


@table(
    ("body", "rules"),
    [
        (completion("Hi").replace(b"1700000000", b'"now"'), {"env-created-int"}),
        (completion("Hi").replace(b'"model":"m"', b'"model":null'), {"env-model-string"}),
        (
            completion("Hi", end=frame(envelope(None, id="cmpl-1", object="text_completion")) + DONE),
            {"env-choices-array"},
        ),
        (whole({**REPLY, "object": "text_completion", "choices": [], "usage": None}), {"ns-choices", "ns-usage"}),
        (whole({**REPLY, "choices": [{**TEXT_CHOICE, "index": None}]}), {"ns-object", "ns-object-schema"}),
        (
            whole({**REPLY, "object": "text_completion", "choices": [{**TEXT_CHOICE, "finish_reason": "eos"}]}),
            {"ns-finish"},
        ),
    ],
)
def test_rules_of_both_endpoints_are_judged_and_listed_for_completions(body: bytes, rules: set[str]) -> None:
    assert rules_of(body, "completions") == rules
    assert all(RULES[rule].endpoints == ("chat", "completions") for rule in rules)


@pytest.mark.parametrize(
    ("request_", "rules"),
    [(None, set()), (STREAM, set()), (ASKS_USAGE, {"use-final-chunk", "cmpl-usage-chunk"})],
)
def test_completions_send_usage_if_requested(request_: dict[str, Any] | None, rules: set[str]) -> None:
    assert rules_of(completion("Hi"), "completions", request=request_) == rules


def test_log_probabilities_of_completions_are_finite() -> None:
    logprobs = {"tokens": ["Hi"], "token_logprobs": [-1.0], "top_logprobs": [{"Hi": float("-inf")}], "text_offset": [0]}
    body = completion("Hi").replace(b'"logprobs":null', b'"logprobs":' + whole(logprobs), 1)
    assert rules_of(body, "completions") == {"enc-strict-json", "ext-logprobs-finite"}


NAMED = {**STREAM, "tool_choice": {"type": "function", "function": {"name": "get"}}}
CALLS = chat(call(0, **GET), call(0, **ARGS), finish="stop")
USED = chat({"content": "Hi"}, end=frame(envelope([], usage=USAGE)) + DONE)
LEGACY = chat({"function_call": {"name": "get"}}, finish="function_call")
EVERYWHERE = {**STREAM, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}


@table(
    ("body", "request_", "rules"),
    [
        (CALLS, None, {"fin-tool-calls"}),
        (CALLS, NAMED, set()),
        (USED, ASKS_USAGE, set()),
        (USED, None, set()),
        (USED, {**STREAM, "stream_options": "x"}, {"use-only-if-asked"}),
        (USED.replace(b'"stop"}]', b'"stop"}],"usage":' + whole(USAGE)), EVERYWHERE, set()),
        (USED.replace(b'"stop"}]', b'"stop"}],"usage":' + whole(USAGE)), ASKS_USAGE, {"use-null-elsewhere"}),
        (USED.replace(b'"choices":[],', b""), ASKS_USAGE, {"use-choices-empty-array", "env-choices-array"}),
        (USED.replace(whole(USAGE).replace(b" ", b""), b"[]"), None, {"use-ints"}),
        (LEGACY, None, set()),
        (LEGACY, STREAM, {"fin-function-call-legacy", "tool-legacy-function-call"}),
        (LEGACY, {**STREAM, "functions": [{}]}, set()),
    ],
)
def test_rules_depend_on_the_request(body: bytes, request_: dict[str, Any] | None, rules: set[str]) -> None:
    assert rules_of(body, request=request_) == rules


FIRST = chat().index(b"\n\n") + 2
"""Offset of the second frame."""


@table(
    ("change", "rules"),
    [
        ({}, set()),
        ({"headers": None}, set()),
        ({"headers": ()}, {"http-content-type", "http-no-proxy-buffering", "http-cache-control"}),
        ({"headers": (*HEADERS, ("Content-Encoding", "identity"))}, set()),
        ({"headers": (*HEADERS[1:], ("content-type", "Text/Event-Stream; Charset=UTF-8; x=y"))}, set()),
        ({"complete": False}, {"http-chunked-terminated", "http-body-ends-after-done"}),
        ({"chunk_sizes": (3, 5)}, {"sse-whole-event-writes"}),
        ({"chunk_sizes": (FIRST, 10_000)}, set()),
        ({"chunk_sizes": (FIRST,)}, set()),
    ],
)
def test_rules_about_http_apply_if_the_head_is_known(change: dict[str, Any], rules: set[str]) -> None:
    body = chat({"content": "Hi"})
    assert rules_of(body, **{"headers": HEADERS, "status": 200, "complete": True, **change}) == rules


@table(
    ("message", "rules"),
    [
        ({"role": "assistant", "content": None, "tool_calls": [{**GET, "index": 0}]}, {"ns-tool-calls"}),
        ({"role": "assistant", "content": None, "tool_calls": [GET]}, set()),
        ({"role": "assistant", "content": None, "tool_calls": {}}, {"ns-tool-calls"}),
        ({"content": []}, {"ns-role", "ns-content-key"}),
        (None, {"ns-role", "ns-content-key"}),
    ],
)
def test_the_message_of_a_whole_reply(message: object, rules: set[str]) -> None:
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    assert rules_of(whole({**REPLY, "choices": choices})) == rules


STREAMS = {
    "responses": next(block.trace.body for block in read_page(PAGES / "resp-deltas.md") if block.is_correct),
    "messages": next(block.trace.body for block in read_page(PAGES / "msg-start-first.md") if block.is_correct),
}
"""Event streams of rule pages."""


@table("endpoint", STREAMS)
@table(
    ("change", "rules"),
    [
        (lambda body: b"\xef\xbb\xbf" + body, {"sse-no-bom"}),
        (lambda body: body.replace(b"\n", b"\r\n"), {"sse-lf-only"}),
        (lambda body: body.replace(b"data: ", b"data:", 1), {"sse-data-space"}),
        (lambda body: body.replace(b"\ndata: {", b"\ndata: {\ndata: ", 1), {"sse-json-on-one-line"}),
        (lambda body: body.replace(b"\n\n", b"\n\nid: 7\n\n", 1), {"sse-no-id-field"}),
        (lambda body: body.replace(b"\n\n", b"\n\nretry: 7\n\n", 1), {"sse-no-retry-frame"}),
        (lambda body: body.replace(b"\n\n", b"\n\ndata: : ping\n\n", 1), {"sse-keepalive-form"}),
        (lambda body: body.replace(b"\n\n", b"\n\n: ping\n\n", 1), set()),
        (lambda body: body.replace(b"data: {", b'data: {"x":NaN,', 1), {"enc-strict-json"}),
        (lambda body: body.replace(b"data: {", b'data: {"x":"\t",', 1), {"enc-escape-line-breaks"}),
        (lambda body: body.replace(b"data: {", b'data: {"x":"\\ud83d",', 1), {"enc-no-lone-surrogate"}),
        (lambda body: body.replace(b"data: {", b'data: {"x":"\xff",', 1), {"enc-valid-utf8"}),
        (lambda body: body[:-1], {"end-last-event-terminated"}),
        (lambda body: body[:0], {"err-empty-stream"}),
    ],
)
def test_framing_rules_apply_to_event_streams(change: Callable[[bytes], bytes], rules: set[str], endpoint: str) -> None:
    generic = {rule for rule in rules_of(change(STREAMS[endpoint]), endpoint) if rule[:4] not in ("resp", "msg-")}
    assert generic == rules


@pytest.mark.parametrize("endpoint", STREAMS)
def test_header_rules_apply_to_event_streams(endpoint: str) -> None:
    headers = (("Content-Type", "application/json"), ("X-Accel-Buffering", "no"), ("Cache-Control", "no-store"))
    assert rules_of(STREAMS[endpoint], endpoint, headers=headers, status=200, complete=True) == {"http-content-type"}


def test_a_chunk_without_a_choice_violates_one_rule_for_any_request() -> None:
    body = frame(envelope([])) + chat({"content": "Hi"})
    plain, with_usage = {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}
    assert [*judge(Trace(body=body, request=plain)).counts] == ["use-only-if-asked"]
    assert "env-placeholder-chunk" in judge(Trace(body=body, request=with_usage)).counts


@pytest.mark.parametrize(("member", "form"), [('"id":null', "null"), ('"id":""', "wrong value: empty")])
def test_an_empty_string_on_a_later_delta_is_another_form_than_null(member: str, form: str) -> None:
    later = b'{"index":0,%b,"function":{"arguments":"{}"}}' % member.encode()
    body = chat(call(0, **GET), call(0, function={"arguments": "LATER"}), finish="tool_calls")
    body = body.replace(b'{"index":0,"function":{"arguments":"LATER"}}', later)
    assert later in body
    found = [finding for finding in judge(Trace(body=body)).findings if finding.rule == "tool-later-fields-absent"]
    assert [finding.form for finding in found] == [form]
