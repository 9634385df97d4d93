"""Malformed streams, at least one for each rule with a repair, and the expected bytes after repair."""

import json
from typing import NamedTuple

from tests.protocol.build import (
    ABSENT,
    CHAT,
    COMPLETIONS,
    DONE,
    call,
    call_start,
    choice,
    chunk,
    content_chunks,
    count,
    delta_chunk,
    entry,
    finish,
    frame,
    pack,
    piece,
    role,
    stream,
    text,
    text_choice,
    text_chunk,
    text_end,
    top,
    usage_chunk,
)
from welldone.core.envelope import Endpoint
from welldone.core.events import Json
from welldone.core.request_facts import RequestFacts


class Case(NamedTuple):
    """Stream that violates a rule, and its repair."""

    rule: str
    malformed: bytes
    expected: bytes
    also: tuple[str, ...] = ()
    """Other rules that the same bytes violate."""
    endpoint: Endpoint = CHAT
    facts: RequestFacts | None = None


HELLO = [role(), *content_chunks("Hel", "lo"), finish()]
CORRECT = stream(*HELLO)
FACTS = RequestFacts(include_usage=True)
KEEP_ALIVE = b": keep-alive\n\n"


def each(**members: object) -> bytes:
    """The correct stream with changed members of each chunk."""
    return stream(*({key: item for key, item in (one | members).items() if item is not ABSENT} for one in HELLO))


def between(*parts: object) -> bytes:
    """The correct stream with inserted parts."""
    return stream(*HELLO[:2], *parts, *HELLO[2:])


def answer(*deltas: object, reason: object = "stop") -> bytes:
    """Stream of one choice with these deltas."""
    return stream(role(), *(delta_chunk(delta) for delta in deltas), finish(reason))


def called(*deltas: object) -> bytes:
    """Stream with tool calls."""
    return answer(*deltas, reason="tool_calls")


def spell(content: bytes) -> bytes:
    """Frame whose text is inserted without escapes."""
    return frame(delta_chunk({"content": "@"})).replace(b"@", content)


def failed(*parts: object, error: Json) -> bytes:
    """Stream that ends with an error."""
    return stream(*parts, {"error": error})


def error(message: str, kind: str = "server_error", code: object = None, **more: object) -> Json:
    return {"message": message, "type": kind, "param": None, "code": code, **more}


CUT = error("the server's stream ended before the answer was complete", "upstream_error", "incomplete_stream")
UNFINISHED = error("the server's answer ended without a finish_reason", "upstream_error", "incomplete_stream")
EARLY = error("the server sent [DONE] before the answer was complete", "upstream_error", "incomplete_stream")
BOOM = error("boom", "t")
GET = [call_start(), piece('{"x":1}')]
PUT = [call_start(1, "call_b", "put"), piece('{"y":2}', 1)]
CALLED = called(*GET)
TWICE = called(*GET, *PUT)

FRAMING = [
    Case(
        "sse-event-blank-line",
        CORRECT.replace(b"\n\n", b"\n"),
        CORRECT,
        ("end-last-event-terminated", "sse-one-object-per-event"),
    ),
    Case(
        "sse-one-object-per-event", stream(HELLO[0], frame(HELLO[1])[:-2], pack(HELLO[2]), b"\n\n", HELLO[3]), CORRECT
    ),
    Case("sse-one-object-per-event", stream(b"data: ", pack(HELLO), b"\n\n"), CORRECT),
    Case(
        "sse-json-on-one-line", stream(b"data: ", json.dumps(HELLO[0], indent=1).encode(), b"\n\n", *HELLO[1:]), CORRECT
    ),
    Case("sse-data-space", CORRECT.replace(b"data: ", b"data:"), CORRECT, ("end-done-exact",)),
    Case("sse-data-space", CORRECT.replace(b"data: {", b"data:  {"), CORRECT),
    Case("sse-data-space", CORRECT.replace(b"data: {", b"{"), CORRECT),
    Case("sse-data-space", CORRECT.replace(b"data: ", b"data: data: "), CORRECT, ("end-done-exact",)),
    Case("sse-lf-only", CORRECT.replace(b"\n", b"\r\n"), CORRECT),
    Case("sse-lf-only", CORRECT.replace(b"\n", b"\r"), CORRECT),
    Case("sse-no-bom", b"\xef\xbb\xbf" + CORRECT, CORRECT),
    Case("sse-no-id-field", CORRECT.replace(b"data: ", b"id: 7\ndata: "), CORRECT),
    Case("sse-no-retry-frame", b"retry: 3000\n\n" + CORRECT, CORRECT),
    Case("sse-no-empty-data", between(b"data: \n\n"), CORRECT),
    Case("sse-no-empty-data", between(b"event: ping\n\n"), CORRECT, ("sse-no-event-name",)),
    Case("sse-no-foreign-json", between({"type": "ping"}), CORRECT),
    Case("sse-no-event-name", CORRECT.replace(b"data: ", b"event: data\ndata: "), CORRECT),
    Case("sse-keepalive-form", between(b"data: : ping\n\n"), between(KEEP_ALIVE)),
    Case(
        "sse-keepalive-run-limit",
        between(b": ping\n\n" * 50),
        between(KEEP_ALIVE * 40, delta_chunk({}), KEEP_ALIVE * 9),
    ),
    Case("sse-keepalive-run-limit", between(b":\n" * 50), between(KEEP_ALIVE * 40, delta_chunk({}), KEEP_ALIVE * 9)),
]

ENCODING = [
    Case(
        "enc-valid-utf8",
        stream(role(), spell(b"\xf0\x9f"), spell(b"\x98\x80"), finish()),
        answer({}, {"content": "😀"}),
    ),
    Case("enc-valid-utf8", stream(role(), spell(b"a\xff"), finish()), answer({"content": "a"}, {"content": "\ufffd"})),
    Case(
        "enc-no-lone-surrogate",
        stream(role(), spell(b"a\\ud83d"), spell(b"\\ude00"), finish()),
        answer({"content": "a"}, {"content": "😀"}),
    ),
    Case("enc-strict-json", stream(*(b"data: " + repr(one).encode() + b"\n\n" for one in HELLO)), CORRECT),
    Case("enc-strict-json", stream(*(b"data: " + repr(pack(one)).encode() + b"\n\n" for one in HELLO)), CORRECT),
    Case(
        "enc-escape-line-breaks",
        stream(role(), spell("\u2028".encode()), finish()),
        stream(role(), spell(b"\\u2028"), finish()),
    ),
    Case("enc-escape-line-breaks", stream(role(), spell(b"\t"), finish()), answer({"content": "\t"})),
]

ENDING = [
    Case("end-done-sent", stream(*HELLO, end=b""), CORRECT),
    Case("end-done-exact", CORRECT.replace(b"[DONE]", b"[DONE] "), CORRECT),
    Case("end-done-exact", CORRECT.replace(b"[DONE]", b'"[done]"'), CORRECT),
    Case("end-done-last", CORRECT + DONE, CORRECT),
    Case("end-done-last", CORRECT + frame(delta_chunk({"content": "x"})), CORRECT, ("fin-last-of-choice",)),
    Case("end-done-last", CORRECT + CORRECT, CORRECT, ("fin-last-of-choice",)),
    Case("end-done-last", CORRECT + frame({"error": {"message": "boom"}}), CORRECT),
    Case("end-done-last", stream(*HELLO, DONE, usage_chunk(count()), end=b""), stream(*HELLO, usage_chunk(count()))),
    Case("end-done-last", stream(*HELLO[:3], DONE, HELLO[3], end=b""), CORRECT),
    Case("end-done-last", stream(*HELLO[:2], DONE, *HELLO[2:], end=b""), failed(*HELLO[:2], error=EARLY)),
    Case("end-last-event-terminated", CORRECT[:-2], CORRECT),
    Case("end-last-event-terminated", stream(*HELLO, end=b'data: {"id":"chat'), CORRECT, ("end-done-sent",)),
    Case(
        "end-last-event-terminated",
        stream(*HELLO[:3], end=b'data: {"id":"chat'),
        failed(*HELLO[:3], error=CUT),
        ("end-no-early-eof", "err-not-silent"),
    ),
    Case("end-done-exact", CORRECT.replace(b"\n\ndata: [DONE]", b"\n[DONE]"), CORRECT, ("sse-data-space",)),
    Case("end-no-early-eof", stream(*HELLO[:3], end=b""), failed(*HELLO[:3], error=UNFINISHED), ("err-not-silent",)),
    Case("end-no-early-eof", stream(HELLO[0], end=b""), failed(HELLO[0], error=CUT), ("err-not-silent",)),
]

FALLBACK_FIELDS = {"id": "chatcmpl-ours", "created": 1600000000, "model": "ours"}
NO_USAGE = {"id": ABSENT, "object": ABSENT, "created": ABSENT, "model": ABSENT}
MINTED = ("env-created-int", "env-id-present", "env-model-string", "env-object-const")

ENVELOPE = [
    Case("env-object-const", each(object="chat.completion"), CORRECT),
    Case("env-object-const", each(object=ABSENT), CORRECT),
    Case("env-id-present", each(id=""), each(id=FALLBACK_FIELDS["id"])),
    Case("env-id-present", each(id=7), each(id="7")),
    Case("env-id-constant", stream(HELLO[0], *(one | {"id": "x"} for one in HELLO[1:])), CORRECT),
    Case("env-created-int", each(created="1700000000"), CORRECT),
    Case("env-created-int", each(created=1700000000999), CORRECT),
    Case("env-created-int", each(created=ABSENT), each(created=FALLBACK_FIELDS["created"])),
    Case("env-created-constant", stream(HELLO[0], *(one | {"created": 1700000001} for one in HELLO[1:])), CORRECT),
    Case("env-model-string", each(model=None), each(model=FALLBACK_FIELDS["model"])),
    Case("env-choices-array", between(chunk(choices=None)), CORRECT),
    Case("env-choices-array", between(chunk(choices=ABSENT)), CORRECT),
    Case("env-no-error-key", each(error=None), CORRECT),
    Case(
        "env-metadata-on-usage-chunk",
        stream(*HELLO, usage_chunk(count(), **NO_USAGE)),
        stream(*HELLO, usage_chunk(count())),
        MINTED,
    ),
    Case(
        "env-fingerprint",
        stream(chunk(*HELLO[0]["choices"], system_fingerprint="fp"), *HELLO[1:]),
        CORRECT.replace(b'"model":"m"', b'"model":"m","system_fingerprint":"fp"'),
    ),
    Case("env-obfuscation", each(obfuscation=7), CORRECT),
    Case("env-obfuscation", each(obfuscation="xx"), CORRECT, facts=RequestFacts(allow_obfuscation=False)),
    Case("env-placeholder-chunk", stream(chunk(id="", object="", model=""), *HELLO), CORRECT),
    Case("env-placeholder-chunk", stream(HELLO[0], chunk(), *HELLO[1:]), CORRECT),
]

DELTAS = [
    Case("delta-role-first", stream(*HELLO[1:]), CORRECT),
    Case("delta-role-once", answer({"role": "assistant", "content": ""}, {"content": "a"}), answer({"content": "a"})),
    Case("delta-role-absent-later", answer({"role": None, "content": "a"}), answer({"content": "a"})),
    Case("delta-role-absent-later", answer({"role": "", "content": "a"}), answer({"content": "a"})),
    Case("delta-role-assistant", CORRECT.replace(b'"role":"assistant"', b'"role":"model"'), CORRECT),
    Case("delta-role-content-empty", CORRECT.replace(b'"content":""', b'"content":null'), CORRECT),
    Case("delta-role-content-empty", stream(delta_chunk({"role": "assistant", "content": "Hel"}), *HELLO[2:]), CORRECT),
    Case("delta-content-string", answer({"content": [{"type": "text", "text": "a"}]}), answer({"content": "a"})),
    Case(
        "delta-content-string",
        answer({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "t"}]}]}, {"content": "a"}),
        answer({"reasoning_content": "t"}, {"content": "a"}),
    ),
    Case(
        "delta-content-string",
        answer({"content": ["a", {"type": "reference", "reference_ids": [1]}]}),
        answer({"content": "a", "content_parts": [{"type": "reference", "reference_ids": [1]}]}),
    ),
    Case("delta-object-present", stream(*HELLO[:3], chunk(choice(None, "stop"))), CORRECT),
    Case("delta-object-present", stream(*HELLO[:3], chunk(choice(ABSENT, "stop"))), CORRECT),
    Case("delta-not-message", CORRECT.replace(b'"delta"', b'"message"'), CORRECT),
    Case(
        "delta-not-message",
        stream(*HELLO[:2], delta_chunk({"content": "lo"}, message={"content": "Hello"}), HELLO[3]),
        CORRECT,
    ),
    Case("delta-final-empty", stream(*HELLO[:3], chunk(choice({"content": None}, "stop"))), CORRECT),
    Case("delta-no-noop-flood", between(*[delta_chunk({})] * 30), between(*[delta_chunk({})] * 16, KEEP_ALIVE * 14)),
]

REASONS = [
    Case("fin-key-present", CORRECT.replace(b',"finish_reason":null', b""), CORRECT),
    Case("fin-null-not-empty", CORRECT.replace(b'"finish_reason":null', b'"finish_reason":""'), CORRECT),
    Case("fin-null-not-string", CORRECT.replace(b'"finish_reason":null', b'"finish_reason":"null"'), CORRECT),
    Case("fin-closed-enum", answer({"content": "a"}, reason="eos_token"), answer({"content": "a"})),
    Case("fin-closed-enum", answer({"content": "a"}, reason="max_tokens"), answer({"content": "a"}, reason="length")),
    Case(
        "fin-closed-enum",
        answer({"content": "a"}, reason="abort"),
        failed(
            role(),
            delta_chunk({"content": "a"}),
            error=error(
                "the server ended the answer with finish_reason 'abort'", "upstream_error", "incomplete_stream"
            ),
        ),
    ),
    Case("fin-exactly-once", stream(*HELLO, finish()), CORRECT, ("fin-last-of-choice",)),
    Case("fin-exactly-once", called(*GET).replace(DONE, frame(finish()) + DONE), CALLED, ("fin-last-of-choice",)),
    Case("fin-always-sent", stream(*HELLO[:3]), CORRECT, ("err-not-silent",)),
    Case("fin-last-of-choice", stream(*HELLO[:2], HELLO[3], HELLO[2]), CORRECT),
    Case("fin-own-chunk", stream(*HELLO[:2], chunk(choice({"content": "lo"}, "stop"))), CORRECT),
    Case("fin-tool-calls", answer(*GET), CALLED),
    Case("fin-function-call-legacy", answer(*GET, reason="function_call"), CALLED),
]

COUNTED = stream(*(one | {"usage": None} for one in HELLO), usage_chunk(count()))
MOONSHOT = [*HELLO[:3], chunk(choice({}, "stop", usage=count()))]

USAGE = [
    Case(
        "use-final-chunk",
        stream(*HELLO[:3], HELLO[3] | {"usage": count()}),
        COUNTED,
        ("use-null-elsewhere",),
        facts=FACTS,
    ),
    Case(
        "use-final-chunk",
        stream(*MOONSHOT),
        stream(*(one | {"usage": None} for one in MOONSHOT), usage_chunk(count())),
        ("use-null-elsewhere",),
        facts=FACTS,
    ),
    Case("use-only-if-asked", stream(*HELLO, usage_chunk(count())), CORRECT, facts=RequestFacts(include_usage=False)),
    Case("use-only-if-asked", stream(HELLO[0], chunk(), *HELLO[1:]), CORRECT, facts=RequestFacts(include_usage=False)),
    Case(
        "use-null-elsewhere", stream(*(one | {"usage": count()} for one in HELLO)), stream(*HELLO, usage_chunk(count()))
    ),
    Case(
        "use-not-zero",
        stream(*(one | {"usage": count(0, 0)} for one in HELLO), usage_chunk(count())),
        COUNTED,
        ("use-null-elsewhere",),
        facts=FACTS,
    ),
    Case(
        "use-ints", stream(*HELLO, usage_chunk({"prompt_tokens": "5", "completion_tokens": 3.0})), COUNTED, facts=FACTS
    ),
    Case("use-last", stream(*HELLO[:3], usage_chunk(count()), HELLO[3]), COUNTED, facts=FACTS),
    Case("use-last", stream(*HELLO, usage_chunk(count(5, 2)), usage_chunk(count())), COUNTED, facts=FACTS),
    Case(
        "use-choices-empty-array",
        stream(*HELLO, usage_chunk(count(), choices=None)),
        COUNTED,
        ("env-choices-array",),
        facts=FACTS,
    ),
    Case(
        "use-choices-empty-array",
        stream(*HELLO, usage_chunk(count(), choices=[choice({})])),
        COUNTED,
        ("fin-last-of-choice",),
        facts=FACTS,
    ),
]

CALLS = [
    Case("tool-index-required", called(call_start(ABSENT), piece('{"x":1}', ABSENT)), CALLED),
    Case(
        "tool-index-required",
        called(
            call_start(ABSENT), piece('{"x":1}', ABSENT), call_start(ABSENT, "call_b", "put"), piece('{"y":2}', ABSENT)
        ),
        TWICE,
    ),
    Case("tool-index-int", called(call_start("0"), piece('{"x":1}', "0")), CALLED),
    Case("tool-index-distinct", called(*GET, call_start(0, "call_b", "put"), piece('{"y":2}')), TWICE),
    Case("tool-index-contiguous", called(call_start(1), piece('{"x":1}', 1)), CALLED),
    Case("tool-id-first", called(call_start(id=ABSENT), GET[1]), called(call_start(id="call_ours1"), GET[1])),
    Case(
        "tool-id-once", called(GET[0], call(0, id="call_a", type="function", function={"arguments": '{"x":1}'})), CALLED
    ),
    Case(
        "tool-id-stable",
        called(GET[0], call(0, id="call_z", type="function", function={"arguments": '{"x":1}'})),
        CALLED,
    ),
    Case(
        "tool-id-stable",
        called(GET[0], call_start(0, "call_z", "get"), GET[1]),
        CALLED,
        ("tool-index-distinct",),
    ),
    Case(
        "tool-id-stable",
        called(*GET, call_start(1, "call_a", "put"), PUT[1]),
        called(*GET, call_start(1, "call_ours1", "put"), PUT[1]),
    ),
    Case("tool-type-first", called(call_start(type=ABSENT), GET[1]), CALLED),
    Case(
        "tool-name-whole",
        called(call_start(name="g"), call(0, type="function", function={"name": "et"}), GET[1]),
        CALLED,
    ),
    Case(
        "tool-name-once",
        called(GET[0], call(0, type="function", function={"name": "get", "arguments": '{"x":1}'})),
        CALLED,
    ),
    Case(
        "tool-later-fields-absent",
        called(GET[0], call(0, id=None, type=None, function={"name": None, "arguments": '{"x":1}'})),
        CALLED,
    ),
    Case(
        "tool-later-fields-absent",
        called(GET[0], call(0, id="", type="function", function={"name": "", "arguments": '{"x":1}'})),
        CALLED,
    ),
    Case("tool-args-string", called(call_start(arguments={"x": 1})), CALLED),
    Case("tool-args-first-empty", called(call_start(arguments="{}"), GET[1]), CALLED),
    Case("tool-args-no-arg-call", called(call_start()), called(call_start(), piece("{}"))),
    Case("tool-function-present", called(GET[0], call(0), GET[1]), called({}, *GET)),
    Case("tool-one-at-a-time", called({"tool_calls": [*GET[0]["tool_calls"], *GET[1]["tool_calls"]]}), CALLED),
    Case("tool-one-at-a-time", called(GET[0], PUT[0], PUT[1], GET[1]), TWICE),
    Case("tool-no-content-in-same-delta", called({"content": "a", **GET[0]}, GET[1]), called({"content": "a"}, *GET)),
    Case("tool-calls-null", answer({"content": "a", "tool_calls": None}), answer({"content": "a"})),
    Case("tool-calls-null", answer({"content": "a", "tool_calls": []}), answer({"content": "a"})),
    Case(
        "tool-finish-follows",
        stream(role(), *(delta_chunk(delta) for delta in GET)),
        CALLED,
        ("err-not-silent", "fin-always-sent"),
    ),
    Case(
        "tool-finish-follows",
        stream(role(), *(delta_chunk(delta) for delta in GET), end=b""),
        failed(role(), *(delta_chunk(delta) for delta in GET), error=UNFINISHED),
        ("end-no-early-eof", "err-not-silent"),
    ),
    Case(
        "tool-legacy-function-call",
        called({"function_call": {"name": "get", "arguments": ""}}, {"function_call": {"arguments": '{"x":1}'}}),
        called(call_start(id="call_ours1"), GET[1]),
        ("tool-id-first",),
    ),
]


def spelled(logprobs: object) -> bytes:
    """Stream of one text with log probabilities."""
    return stream(role(), delta_chunk({"content": "a"}, logprobs=logprobs), finish())


SPELLED = spelled({"content": [entry("a", -0.5, top("b"))], "refusal": None})
UNLIKELY = spelled({"content": [entry("a", -9999.0)], "refusal": None})

EXTRAS = [
    Case(
        "ext-reasoning-field",
        answer({"reasoning": "r"}, {"content": "a"}),
        answer({"reasoning_content": "r"}, {"content": "a"}),
    ),
    Case(
        "ext-reasoning-field",
        answer({"reasoning": "r", "reasoning_content": "r"}, {"content": "a"}),
        answer({"reasoning_content": "r"}, {"content": "a"}),
    ),
    Case("ext-logprobs-shape", spelled({"content": [entry("a", -0.5, top("b"))]}), SPELLED),
    Case("ext-logprobs-shape", spelled([]), answer({"content": "a"})),
    Case(
        "ext-logprobs-entry",
        spelled({"content": [entry("a", top_logprobs=ABSENT)], "refusal": None}),
        spelled({"content": [entry("a")], "refusal": None}),
    ),
    Case(
        "ext-logprobs-finite",
        spelled({"content": [entry("a", "@")], "refusal": None}).replace(b'"@"', b"-Infinity"),
        UNLIKELY,
        ("enc-strict-json",),
    ),
    Case("ext-logprobs-finite", spelled({"content": [entry("a", None)], "refusal": None}), UNLIKELY),
    Case(
        "ext-list-fields-indexed",
        answer({"x": [{"a": 1}]}, {"x": [{"a": 2}]}),
        answer({"x": [{"a": 1}]}, {"x": [{"a": 2, "index": 1}]}),
    ),
]

NO_ANSWER = error("the server sent no answer", "upstream_error", "incomplete_stream")
BROKEN = failed(*HELLO[:2], error=BOOM)

ERRORS = [
    Case("err-body-shape", failed(*HELLO[:2], error={"message": "boom", "type": "t"}), BROKEN),
    Case("err-code-string", failed(error=error("boom", code=500)), failed(error=error("boom", code="500"))),
    Case("err-midstream-event", failed(*HELLO[:2], error=BOOM).replace(b'{"error"', b'{ "error"'), BROKEN),
    Case("err-midstream-event", stream({"error": "boom"}), failed(error=error("boom")), ("err-body-shape",)),
    Case("err-then-done", BROKEN.removesuffix(DONE), BROKEN),
    Case("err-then-done", stream(*HELLO[:2], {"error": BOOM}, *HELLO[2:]), BROKEN),
    Case("err-not-object-error", stream(*HELLO[:2], {"object": "error", "message": "boom", "type": "t"}), BROKEN),
    Case("err-not-error-field", stream(*HELLO[:2], b"error: " + pack({"error": BOOM}) + b"\n\n"), BROKEN),
    Case("err-not-silent", stream(*HELLO[:3], end=b""), failed(*HELLO[:3], error=UNFINISHED), ("end-no-early-eof",)),
    Case("err-not-with-choices", stream(*HELLO[:2], chunk(error=BOOM)), BROKEN, ("err-midstream-event",)),
    Case("err-not-with-choices", stream(*HELLO[:2], chunk(choice({}, "error", error=BOOM))), BROKEN),
    Case("err-event-name", stream(*HELLO[:2], b"event: error\n", {"error": BOOM}), BROKEN, ("sse-no-event-name",)),
    Case("err-empty-stream", DONE, failed(error=NO_ANSWER)),
    Case("err-empty-stream", b"", failed(error=NO_ANSWER)),
]

TWO = [role(), role(1), delta_chunk({"content": "a"}), delta_chunk({"content": "b"}, 1), finish(), finish("stop", 1)]

CHOICES = [
    Case("n-index-int", CORRECT.replace(b'"index":0,', b""), CORRECT),
    Case("n-index-int", CORRECT.replace(b'"index":0', b'"index":"0"'), CORRECT),
    Case("n-index-int", CORRECT.replace(b'"index":0', b'"index":3'), CORRECT, facts=RequestFacts(choice_count=1)),
    Case("n-first-order", stream(role(1), role(), *TWO[2:]), stream(*TWO)),
    Case(
        "n-one-choice-per-chunk",
        stream(role(), role(1), chunk(choice({"content": "a"}), choice({"content": "b"}, None, 1)), *TWO[4:]),
        stream(*TWO),
    ),
]

DONE_TEXT = stream(text("a"), text_end())
LISTS = {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{"b": -0.5}], "text_offset": [0]}
COUNTED_TEXT = stream(text("a") | {"usage": None}, text_end() | {"usage": None}, text_chunk(usage=count()))


def completion(
    rule: str,
    malformed: bytes,
    expected: bytes = DONE_TEXT,
    also: tuple[str, ...] = (),
    facts: RequestFacts | None = None,
) -> Case:
    return Case(rule, malformed, expected, also, COMPLETIONS, facts)


TEXTS = [
    completion("cmpl-text-string", stream(text("a"), text_chunk(text_choice(None, "stop")))),
    completion("cmpl-text-string", stream(text("a"), text_chunk(text_choice(ABSENT, "stop")))),
    completion("cmpl-no-delta", stream(text(ABSENT, delta={"content": "a"}), text_end())),
    completion("cmpl-no-delta", stream(text(ABSENT, message={"content": "a"}), text_end())),
    completion("cmpl-object", DONE_TEXT.replace(b"text_completion", b"text_completion.chunk")),
    completion("cmpl-index", DONE_TEXT.replace(b'"index":0,', b"")),
    completion("cmpl-index", DONE_TEXT.replace(b'"index":0', b'"index":"0"')),
    completion("cmpl-finish", stream(text("a"), text_end("eos"))),
    completion("cmpl-finish", stream(text("a", finish_reason=""), text_end())),
    completion("cmpl-finish", stream(text("a", finish_reason=ABSENT), text_end())),
    completion("cmpl-logprobs", stream(text("a", logprobs={}), text_end())),
    completion(
        "cmpl-logprobs",
        stream(text("a", logprobs={"content": [entry("a", -0.5, top("b"))]}), text_end()),
        stream(text("a", logprobs=LISTS), text_end()),
    ),
    completion("cmpl-done", DONE_TEXT.removesuffix(DONE), also=("end-done-sent",)),
    completion(
        "cmpl-usage-chunk",
        stream(text("a"), text_end() | {"usage": count()}),
        COUNTED_TEXT,
        ("use-final-chunk", "use-null-elsewhere"),
        FACTS,
    ),
    completion("cmpl-id-constant", DONE_TEXT.replace(b'"cmpl-1"', b'"chatcmpl-1"')),
    completion("cmpl-id-constant", stream(text("a"), text_end() | {"id": "cmpl-2"})),
]

CASES = [
    *FRAMING,
    *ENCODING,
    *ENDING,
    *ENVELOPE,
    *DELTAS,
    *REASONS,
    *USAGE,
    *CALLS,
    *EXTRAS,
    *ERRORS,
    *CHOICES,
    *TEXTS,
]
