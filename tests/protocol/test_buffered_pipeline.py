"""Repair of non-streaming replies."""

from typing import Any, NamedTuple

import pytest

from tests.protocol.build import ABSENT, CHAT, COMPLETIONS, FALLBACKS, count, entry, pack, rules, without
from tests.table import table
from welldone.core.catalog import RULES, Detection, Repairability
from welldone.core.envelope import Endpoint
from welldone.core.events import Failure, Usage
from welldone.core.request_facts import RequestFacts
from welldone.stream.pipeline import BufferedPipeline

Json = dict[str, Any]
NO_ANSWER = Failure("the server sent no answer", "upstream_error", None, "incomplete_stream")
NO_OBJECT = Failure("the server sent a reply that is not a JSON object", "upstream_error", None, "bad_upstream_stream")
BY_STATUS_AND_HEADERS = {"ns-content-type-json", "ns-error-status"}
"""Rules that need more than the body."""


class Reply(NamedTuple):
    """Body of a repaired reply, and its failure, if any."""

    body: bytes
    failure: Failure | None = None


def make_buffered(body: bytes, endpoint: Endpoint = CHAT, facts: RequestFacts | None = None) -> BufferedPipeline:
    buffered = BufferedPipeline(endpoint, fallback=FALLBACKS[endpoint], facts=facts)
    buffered.feed_reply(body)
    buffered.close()
    return buffered


def fix(body: bytes, endpoint: Endpoint = CHAT, facts: RequestFacts | None = None) -> tuple[Reply, list[str]]:
    buffered = make_buffered(body, endpoint, facts)
    return Reply(buffered.body(), buffered.failure), rules(buffered.repair_log)


def reply(*choices: object, **members: object) -> Json:
    envelope = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1700000000, "model": "m"}
    return without({**envelope, "choices": list(choices), "usage": count(), **members})


def message(content: object = "Hello", finish: object = "stop", index: object = 0, **members: object) -> Json:
    message = without({"role": "assistant", "content": content, "refusal": None, **members})
    return without({"index": index, "message": message, "logprobs": None, "finish_reason": finish})


def call(**members: object) -> Json:
    right = {"id": "call_a", "type": "function", "function": {"name": "get", "arguments": '{"x":1}'}}
    return without({**right, **members})


def text_reply(*choices: object, **members: object) -> Json:
    return reply(*choices, **{"id": "cmpl-1", "object": "text_completion", **members})


def text(content: object = "Hello", finish: object = "stop", index: object = 0) -> Json:
    return without({"index": index, "text": content, "logprobs": None, "finish_reason": finish})


RIGHT = reply(message())
CALLED = reply(message(None, "tool_calls", tool_calls=[call()]))


@table(
    ("endpoint", "right"),
    [
        (CHAT, RIGHT),
        (CHAT, CALLED),
        (CHAT, reply(message(reasoning_content="why"), message("b", "length", 1))),
        (
            CHAT,
            reply(
                message(None, "content_filter") | {"message": {"role": "assistant", "content": None, "refusal": "no"}}
            ),
        ),
        (CHAT, reply(message(x="b") | {"logprobs": {"content": [entry("a")], "refusal": None}, "y": 2}, z=3)),
        (CHAT, reply(message(), system_fingerprint="fp")),
        (COMPLETIONS, text_reply(text())),
        (COMPLETIONS, text_reply(text("a"), text("b", "length", 1))),
    ],
)
def test_a_correct_reply_stays_unchanged(endpoint: Endpoint, right: Json) -> None:
    assert fix(pack(right), endpoint) == (Reply(pack(right)), [])


CASES: list[tuple[str, Json, Json]] = [
    ("ns-role", reply(message(role="model")), RIGHT),
    ("ns-role", reply(message(role=ABSENT)), RIGHT),
    ("ns-finish", reply(message(finish="eos")), RIGHT),
    ("ns-content-key", reply(message(ABSENT, "tool_calls", tool_calls=[call()])), CALLED),
    ("ns-content-key", reply(message([{"type": "text", "text": "Hello"}])), RIGHT),
    ("ns-tool-calls", reply(message(None, "tool_calls", tool_calls=[call(index=0)])), CALLED),
    ("ns-tool-calls", reply(message(None, "tool_calls", tool_calls=[call(type=ABSENT)])), CALLED),
    (
        "ns-tool-calls",
        reply(message(None, "tool_calls", tool_calls=[call(function={"name": "get", "arguments": {"x": 1}})])),
        CALLED,
    ),
    (
        "ns-tool-calls",
        reply(message(None, "tool_calls", tool_calls=[None, call(id=ABSENT)])),
        reply(message(None, "tool_calls", tool_calls=[call(id="call_ours1")])),
    ),
    ("ns-object", reply(message(), object="chat.completion.chunk"), RIGHT),
    ("ns-object-schema", reply(message(index=ABSENT)), RIGHT),
    ("ns-object-schema", reply(message() | {"logprobs": 7}), RIGHT),
    ("ns-object-schema", reply(message(), created=1600000000.5), reply(message(), created=1600000000)),
    ("ns-usage", reply(message(), usage=None), reply(message(), usage=ABSENT)),
]


@table(("rule", "malformed", "right"), CASES)
def test_a_violation_in_a_reply_is_repaired_and_recorded(rule: str, malformed: Json, right: Json) -> None:
    assert fix(pack(malformed)) == (Reply(pack(right)), [rule])


def test_each_rule_with_a_repair_has_a_case() -> None:
    reply_rules = [rule for rule in RULES.values() if rule.id.startswith("ns-") and rule.detection is Detection.REPLY]
    repairable = {rule.id for rule in reply_rules if rule.repairability is not Repairability.REPORT_ONLY}
    tried = {rule for rule, _, _ in CASES} | {"ns-no-sse-tail"}
    assert repairable - tried == BY_STATUS_AND_HEADERS


@table("tail", [b"data: [DONE]\n\n", b"\n\ndata: [DONE]", b" {}", b"x"])
def test_text_after_the_reply_is_dropped(tail: bytes) -> None:
    assert fix(pack(RIGHT) + tail) == (Reply(pack(RIGHT)), ["ns-no-sse-tail"])


def test_white_space_around_the_reply_is_ignored() -> None:
    assert fix(b" \n\n" + pack(RIGHT) + b"\n") == (Reply(pack(RIGHT)), [])


@table(
    ("endpoint", "malformed", "right", "recorded"),
    [
        (COMPLETIONS, text_reply(text(finish="eos")), text_reply(text()), ["ns-finish"]),
        (COMPLETIONS, text_reply(text(), object=ABSENT), text_reply(text()), ["ns-object"]),
        (COMPLETIONS, text_reply(text(), id="chatcmpl-1"), text_reply(text()), []),
        (
            CHAT,
            reply(message(), id=ABSENT, created=ABSENT, model=ABSENT),
            reply(message(), id="chatcmpl-ours", created=1600000000, model="ours"),
            ["ns-object-schema"],
        ),
        (CHAT, reply(message(), None), RIGHT, []),
        (CHAT, reply(message() | {"message": None}), reply(message("")), ["ns-content-key", "ns-role"]),
        (CHAT, reply(message(tool_calls=None)), RIGHT, []),
        (COMPLETIONS, text_reply(text(index=ABSENT)), text_reply(text()), ["ns-object-schema"]),
    ],
)
def test_more_malformed_replies_are_repaired(
    endpoint: Endpoint, malformed: Json, right: Json, recorded: list[str]
) -> None:
    buffered_pipeline, found = fix(pack(malformed), endpoint)
    assert buffered_pipeline == Reply(pack(right))
    assert recorded == found


@table("half", [b"\\ud83d", b"\\ude00", b"\xff", b"\xf0\x9f"])
def test_a_partial_character_becomes_u_fffd(half: bytes) -> None:
    malformed = reply(message("a@", x=["@"], tool_calls=[call(id="@")]), model="@", y={"@": "@"})
    right = reply(message("a@", "tool_calls", tool_calls=[call(id="@")], x=["@"]), model="@", y={"@": "@"})
    assert fix(pack(malformed).replace(b"@", half))[0] == Reply(pack(right).replace(b"@", b"\xef\xbf\xbd"))
    error = pack({"error": {"message": "@", "type": "t", "param": None, "code": None}})
    assert fix(error.replace(b"@", half))[0] == failed(Failure("\ufffd", "t"))


def test_a_surrogate_pair_is_one_character() -> None:
    assert fix(pack(reply(message("@"))).replace(b"@", b"\\ud83d\\ude00"))[0] == Reply(pack(reply(message("😀"))))


def test_numbers_of_a_message_stay_unchanged() -> None:
    right = reply(message(score=7, rate=2.5, parts=[{"n": 1}]))
    assert fix(pack(right)) == (Reply(pack(right)), [])


def test_the_usage_of_the_server_is_stored() -> None:
    for value, usage in ((RIGHT, Usage(5, 3, 8, {})), (reply(message(), usage=None), None)):
        buffered_pipeline = make_buffered(pack(value), facts=RequestFacts(include_usage=False))
        assert buffered_pipeline.usage == usage


def test_a_list_of_replies_is_merged_into_one_reply() -> None:
    listed = [text_reply(text("a")), text_reply(text("b"), text("c"))]
    right = text_reply(text("a"), text("b", index=1), text("c", index=2))
    assert fix(pack(listed), COMPLETIONS) == (Reply(pack(right)), [])
    assert fix(pack([RIGHT])) == (Reply(pack(RIGHT)), [])


def test_a_request_with_functions_gets_a_function_call() -> None:
    function = {"name": "get", "arguments": "{}"}
    right = reply(message(None, "function_call", function_call=function))
    assert fix(pack(right), facts=RequestFacts(uses_legacy_functions=True)) == (Reply(pack(right)), [])


def failed(failure: Failure, **more: object) -> Reply:
    error = {"message": failure.message, "type": failure.type, "param": failure.param, "code": failure.code, **more}
    return Reply(pack({"error": error}), failure)


@table(
    ("body", "failure", "recorded"),
    [
        (b"", NO_OBJECT, []),
        (b"<html>", NO_OBJECT, []),
        (b"7", NO_OBJECT, []),
        (b"[]", NO_OBJECT, []),
        (b"[7,{}]", NO_OBJECT, []),
        (b"{" * 1_000_000, NO_OBJECT, []),
        (b"{}", NO_ANSWER, ["ns-choices"]),
        (pack(reply()), NO_ANSWER, ["ns-choices"]),
        (pack(reply(choices=None)), NO_ANSWER, ["ns-choices"]),
        (pack([reply(choices=None), reply()]), NO_ANSWER, ["ns-choices"]),
    ],
    ids=[
        "nothing",
        "markup",
        "number",
        "empty list",
        "odd list",
        "braces",
        "empty",
        "no choices",
        "null",
        "none of all",
    ],
)
def test_a_reply_without_an_answer_is_an_error(body: bytes, failure: Failure, recorded: list[str]) -> None:
    assert fix(body) == (failed(failure), recorded)


@table(
    ("body", "failure", "recorded"),
    [
        ({"error": {"message": "m", "type": "t", "param": None, "code": "c"}}, Failure("m", "t", None, "c"), []),
        ({"error": "boom"}, Failure("boom"), ["err-body-shape"]),
        ({"error": {"message": "m"}}, Failure("m"), ["err-body-shape"]),
        (
            {"error": {"message": "m", "type": "t", "param": None, "code": 429}},
            Failure("m", "t", None, "429"),
            ["err-code-string"],
        ),
        ({"detail": "d"}, Failure("d"), ["err-body-shape"]),
    ],
)
def test_an_error_is_sent_in_openai_s_shape(body: Json, failure: Failure, recorded: list[str]) -> None:
    assert fix(pack(body)) == (failed(failure), recorded)


@pytest.mark.parametrize(
    ("given", "failure"),
    [
        (
            message(finish="abort"),
            Failure(
                "the server ended the answer with finish_reason 'abort'", "upstream_error", None, "incomplete_stream"
            ),
        ),
        (
            message(None, "tool_calls", tool_calls=[call(function={"arguments": "{}"}, id=ABSENT)]),
            Failure("the server sent a tool call without a name", "upstream_error", None, "incomplete_stream"),
        ),
    ],
)
def test_an_incomplete_reply_is_an_error(given: Json, failure: Failure) -> None:
    assert fix(pack(reply(given)))[0] == failed(failure)
