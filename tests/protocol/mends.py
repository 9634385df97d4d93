"""Odd streams, one or more for each rule that repair can mend, with the stream that comes of them, byte for byte."""

import json
from typing import NamedTuple

from tests.protocol.build import (
    CHAT,
    COMPLETIONS,
    DONE,
    GONE,
    call,
    choice,
    chunk,
    count,
    counted,
    entry,
    finish,
    frame,
    named,
    pack,
    piece,
    role,
    say,
    stream,
    text,
    text_choice,
    text_chunk,
    text_end,
    top,
    words,
)
from welldone.protocol.envelope import Endpoint
from welldone.protocol.events import Json
from welldone.protocol.request_facts import RequestFacts


class Case(NamedTuple):
    """A stream that breaks a rule, and what repair makes of it."""

    rule: str
    odd: bytes
    right: bytes
    also: tuple[str, ...] = ()
    """Other rules that the same bytes break."""
    endpoint: Endpoint = CHAT
    asked: RequestFacts | None = None


HELLO = [role(), *words("Hel", "lo"), finish()]
RIGHT = stream(*HELLO)
ASKED = RequestFacts(include_usage=True)
KEEP_ALIVE = b": keep-alive\n\n"


def each(**members: object) -> bytes:
    """The right stream, with members of each chunk changed."""
    return stream(*({key: item for key, item in (one | members).items() if item is not GONE} for one in HELLO))


def between(*parts: object) -> bytes:
    """The right stream, with something in its middle."""
    return stream(*HELLO[:2], *parts, *HELLO[2:])


def answer(*deltas: object, reason: object = "stop") -> bytes:
    """A stream of one choice: its role, these deltas and its end."""
    return stream(role(), *(say(delta) for delta in deltas), finish(reason))


def called(*deltas: object) -> bytes:
    """A stream that calls tools."""
    return answer(*deltas, reason="tool_calls")


def spell(content: bytes) -> bytes:
    """A frame whose text is written as it stands."""
    return frame(say({"content": "@"})).replace(b"@", content)


def failed(*parts: object, error: Json) -> bytes:
    """A stream that breaks off."""
    return stream(*parts, {"error": error})


def error(message: str, kind: str = "server_error", code: object = None, **more: object) -> Json:
    return {"message": message, "type": kind, "param": None, "code": code, **more}


CUT = error("the server's stream ended before the answer was whole", "upstream_error", "incomplete_stream")
BOOM = error("boom", "t")
GET = [named(), piece('{"x":1}')]
PUT = [named(1, "call_b", "put"), piece('{"y":2}', 1)]
CALLED = called(*GET)
TWICE = called(*GET, *PUT)

FRAMING = [
    Case(
        "sse-event-blank-line",
        RIGHT.replace(b"\n\n", b"\n"),
        RIGHT,
        ("end-last-event-terminated", "sse-one-object-per-event"),
    ),
    Case("sse-one-object-per-event", stream(HELLO[0], frame(HELLO[1])[:-2], pack(HELLO[2]), b"\n\n", HELLO[3]), RIGHT),
    Case("sse-one-object-per-event", stream(b"data: ", pack(HELLO), b"\n\n"), RIGHT),
    Case(
        "sse-json-on-one-line", stream(b"data: ", json.dumps(HELLO[0], indent=1).encode(), b"\n\n", *HELLO[1:]), RIGHT
    ),
    Case("sse-data-space", RIGHT.replace(b"data: ", b"data:"), RIGHT, ("end-done-exact",)),
    Case("sse-data-space", RIGHT.replace(b"data: {", b"data:  {"), RIGHT),
    Case("sse-data-space", RIGHT.replace(b"data: {", b"{"), RIGHT),
    Case("sse-lf-only", RIGHT.replace(b"\n", b"\r\n"), RIGHT),
    Case("sse-lf-only", RIGHT.replace(b"\n", b"\r"), RIGHT),
    Case("sse-no-bom", b"\xef\xbb\xbf" + RIGHT, RIGHT),
    Case("sse-no-id-field", RIGHT.replace(b"data: ", b"id: 7\ndata: "), RIGHT),
    Case("sse-no-retry-frame", b"retry: 3000\n\n" + RIGHT, RIGHT),
    Case("sse-no-empty-data", between(b"data: \n\n"), RIGHT),
    Case("sse-no-empty-data", between(b"event: ping\n\n"), RIGHT, ("sse-no-event-name",)),
    Case("sse-no-foreign-json", between({"type": "ping"}), RIGHT),
    Case("sse-no-event-name", RIGHT.replace(b"data: ", b"event: data\ndata: "), RIGHT),
    Case("sse-keepalive-form", between(b"data: : ping\n\n"), between(KEEP_ALIVE)),
    Case("sse-keepalive-run-limit", between(b": ping\n\n" * 50), between(KEEP_ALIVE * 40, say({}), KEEP_ALIVE * 9)),
    Case("sse-keepalive-run-limit", between(b":\n" * 50), between(KEEP_ALIVE * 40, say({}), KEEP_ALIVE * 9)),
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
    Case("enc-strict-json", stream(*(b"data: " + repr(one).encode() + b"\n\n" for one in HELLO)), RIGHT),
    Case("enc-strict-json", stream(*(b"data: " + repr(pack(one)).encode() + b"\n\n" for one in HELLO)), RIGHT),
    Case(
        "enc-escape-line-breaks",
        stream(role(), spell("\u2028".encode()), finish()),
        stream(role(), spell(b"\\u2028"), finish()),
    ),
    Case("enc-escape-line-breaks", stream(role(), spell(b"\t"), finish()), answer({"content": "\t"})),
]

ENDING = [
    Case("end-done-sent", stream(*HELLO, end=b""), RIGHT),
    Case("end-done-exact", RIGHT.replace(b"[DONE]", b"[DONE] "), RIGHT),
    Case("end-done-exact", RIGHT.replace(b"[DONE]", b'"[done]"'), RIGHT),
    Case("end-done-last", RIGHT + DONE, RIGHT),
    Case("end-done-last", stream(*HELLO[:2], DONE, *HELLO[2:], end=b""), RIGHT),
    Case("end-last-event-terminated", RIGHT[:-2], RIGHT),
    Case("end-last-event-terminated", stream(*HELLO, end=b'data: {"id":"chat'), RIGHT, ("end-done-sent",)),
    Case(
        "end-last-event-terminated",
        stream(*HELLO[:3], end=b'data: {"id":"chat'),
        failed(*HELLO[:3], error=CUT),
        ("end-no-early-eof", "err-not-silent"),
    ),
    Case("end-done-exact", RIGHT.replace(b"\n\ndata: [DONE]", b"\n[DONE]"), RIGHT, ("sse-data-space",)),
    Case("end-no-early-eof", stream(*HELLO[:3], end=b""), failed(*HELLO[:3], error=CUT), ("err-not-silent",)),
]

OURS = {"id": "chatcmpl-ours", "created": 1600000000, "model": "ours"}
NO_USAGE = {"id": GONE, "object": GONE, "created": GONE, "model": GONE}
MINTED = ("env-created-int", "env-id-present", "env-model-string", "env-object-const")

ENVELOPE = [
    Case("env-object-const", each(object="chat.completion"), RIGHT),
    Case("env-object-const", each(object=GONE), RIGHT),
    Case("env-id-present", each(id=""), each(id=OURS["id"])),
    Case("env-id-present", each(id=7), each(id="7")),
    Case("env-id-constant", stream(HELLO[0], *(one | {"id": "x"} for one in HELLO[1:])), RIGHT),
    Case("env-created-int", each(created="1700000000"), RIGHT),
    Case("env-created-int", each(created=1700000000999), RIGHT),
    Case("env-created-int", each(created=GONE), each(created=OURS["created"])),
    Case("env-created-constant", stream(HELLO[0], *(one | {"created": 1700000001} for one in HELLO[1:])), RIGHT),
    Case("env-model-string", each(model=None), each(model=OURS["model"])),
    Case("env-choices-array", between(chunk(choices=None)), RIGHT),
    Case("env-choices-array", between(chunk(choices=GONE)), RIGHT),
    Case("env-no-error-key", each(error=None), RIGHT),
    Case(
        "env-metadata-on-usage-chunk",
        stream(*HELLO, counted(count(), **NO_USAGE)),
        stream(*HELLO, counted(count())),
        MINTED,
    ),
    Case(
        "env-fingerprint",
        stream(chunk(*HELLO[0]["choices"], system_fingerprint="fp"), *HELLO[1:]),
        RIGHT.replace(b'"model":"m"', b'"model":"m","system_fingerprint":"fp"'),
    ),
    Case("env-obfuscation", each(obfuscation=7), RIGHT),
    Case("env-obfuscation", each(obfuscation="xx"), RIGHT, asked=RequestFacts(allow_obfuscation=False)),
    Case("env-placeholder-chunk", stream(chunk(id="", object="", model=""), *HELLO), RIGHT),
    Case("env-placeholder-chunk", stream(HELLO[0], chunk(), *HELLO[1:]), RIGHT),
]

DELTAS = [
    Case("delta-role-first", stream(*HELLO[1:]), RIGHT),
    Case("delta-role-once", answer({"role": "assistant", "content": ""}, {"content": "a"}), answer({"content": "a"})),
    Case("delta-role-absent-later", answer({"role": None, "content": "a"}), answer({"content": "a"})),
    Case("delta-role-absent-later", answer({"role": "", "content": "a"}), answer({"content": "a"})),
    Case("delta-role-assistant", RIGHT.replace(b'"role":"assistant"', b'"role":"model"'), RIGHT),
    Case("delta-role-content-empty", RIGHT.replace(b'"content":""', b'"content":null'), RIGHT),
    Case("delta-role-content-empty", stream(say({"role": "assistant", "content": "Hel"}), *HELLO[2:]), RIGHT),
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
    Case("delta-object-present", stream(*HELLO[:3], chunk(choice(None, "stop"))), RIGHT),
    Case("delta-object-present", stream(*HELLO[:3], chunk(choice(GONE, "stop"))), RIGHT),
    Case("delta-not-message", RIGHT.replace(b'"delta"', b'"message"'), RIGHT),
    Case(
        "delta-not-message", stream(*HELLO[:2], say({"content": "lo"}, message={"content": "Hello"}), HELLO[3]), RIGHT
    ),
    Case("delta-final-empty", stream(*HELLO[:3], chunk(choice({"content": None}, "stop"))), RIGHT),
    Case("delta-no-noop-flood", between(*[say({})] * 30), between(*[say({})] * 16, KEEP_ALIVE * 14)),
]

REASONS = [
    Case("fin-key-present", RIGHT.replace(b',"finish_reason":null', b""), RIGHT),
    Case("fin-null-not-empty", RIGHT.replace(b'"finish_reason":null', b'"finish_reason":""'), RIGHT),
    Case("fin-null-not-string", RIGHT.replace(b'"finish_reason":null', b'"finish_reason":"null"'), RIGHT),
    Case("fin-closed-enum", answer({"content": "a"}, reason="eos_token"), answer({"content": "a"})),
    Case("fin-closed-enum", answer({"content": "a"}, reason="max_tokens"), answer({"content": "a"}, reason="length")),
    Case(
        "fin-closed-enum",
        answer({"content": "a"}, reason="abort"),
        failed(
            role(),
            say({"content": "a"}),
            error=error(
                "the server ended the answer with finish_reason 'abort'", "upstream_error", "incomplete_stream"
            ),
        ),
    ),
    Case("fin-exactly-once", stream(*HELLO, finish()), RIGHT, ("fin-last-of-choice",)),
    Case("fin-exactly-once", called(*GET).replace(DONE, frame(finish()) + DONE), CALLED, ("fin-last-of-choice",)),
    Case("fin-always-sent", stream(*HELLO[:3]), RIGHT, ("err-not-silent",)),
    Case("fin-last-of-choice", stream(*HELLO[:2], HELLO[3], HELLO[2]), RIGHT),
    Case("fin-own-chunk", stream(*HELLO[:2], chunk(choice({"content": "lo"}, "stop"))), RIGHT),
    Case("fin-tool-calls", answer(*GET), CALLED),
    Case("fin-function-call-legacy", answer(*GET, reason="function_call"), CALLED),
]

COUNTED = stream(*(one | {"usage": None} for one in HELLO), counted(count()))

USAGE = [
    Case(
        "use-final-chunk",
        stream(*HELLO[:3], HELLO[3] | {"usage": count()}),
        COUNTED,
        ("use-null-elsewhere",),
        asked=ASKED,
    ),
    Case("use-only-if-asked", stream(*HELLO, counted(count())), RIGHT, asked=RequestFacts(include_usage=False)),
    Case("use-only-if-asked", stream(HELLO[0], chunk(), *HELLO[1:]), RIGHT, asked=RequestFacts(include_usage=False)),
    Case("use-null-elsewhere", stream(*(one | {"usage": count()} for one in HELLO)), stream(*HELLO, counted(count()))),
    Case(
        "use-not-zero",
        stream(*(one | {"usage": count(0, 0)} for one in HELLO), counted(count())),
        COUNTED,
        ("use-null-elsewhere",),
        asked=ASKED,
    ),
    Case("use-ints", stream(*HELLO, counted({"prompt_tokens": "5", "completion_tokens": 3.0})), COUNTED, asked=ASKED),
    Case("use-last", stream(*HELLO[:3], counted(count()), HELLO[3]), COUNTED, asked=ASKED),
    Case("use-last", stream(*HELLO, counted(count(5, 2)), counted(count())), COUNTED, asked=ASKED),
    Case(
        "use-choices-empty-array",
        stream(*HELLO, counted(count(), choices=None)),
        COUNTED,
        ("env-choices-array",),
        asked=ASKED,
    ),
    Case(
        "use-choices-empty-array",
        stream(*HELLO, counted(count(), choices=[choice({})])),
        COUNTED,
        ("fin-last-of-choice",),
        asked=ASKED,
    ),
]

CALLS = [
    Case("tool-index-required", called(named(GONE), piece('{"x":1}', GONE)), CALLED),
    Case(
        "tool-index-required",
        called(named(GONE), piece('{"x":1}', GONE), named(GONE, "call_b", "put"), piece('{"y":2}', GONE)),
        TWICE,
    ),
    Case("tool-index-int", called(named("0"), piece('{"x":1}', "0")), CALLED),
    Case("tool-index-distinct", called(*GET, named(0, "call_b", "put"), piece('{"y":2}')), TWICE),
    Case("tool-index-contiguous", called(named(1), piece('{"x":1}', 1)), CALLED),
    Case("tool-id-first", called(named(id=GONE), GET[1]), called(named(id="call_ours1"), GET[1])),
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
        called(*GET, named(1, "call_a", "put"), PUT[1]),
        called(*GET, named(1, "call_ours1", "put"), PUT[1]),
    ),
    Case("tool-type-first", called(named(type=GONE), GET[1]), CALLED),
    Case("tool-name-whole", called(named(name="g"), call(0, type="function", function={"name": "et"}), GET[1]), CALLED),
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
    Case("tool-args-string", called(named(arguments={"x": 1})), CALLED),
    Case("tool-args-first-empty", called(named(arguments="{}"), GET[1]), CALLED),
    Case("tool-args-no-arg-call", called(named()), called(named(), piece("{}"))),
    Case("tool-function-present", called(GET[0], call(0), GET[1]), called({}, *GET)),
    Case("tool-one-at-a-time", called({"tool_calls": [*GET[0]["tool_calls"], *GET[1]["tool_calls"]]}), CALLED),
    Case("tool-one-at-a-time", called(GET[0], PUT[0], PUT[1], GET[1]), TWICE),
    Case("tool-no-content-in-same-delta", called({"content": "a", **GET[0]}, GET[1]), called({"content": "a"}, *GET)),
    Case("tool-calls-null", answer({"content": "a", "tool_calls": None}), answer({"content": "a"})),
    Case("tool-calls-null", answer({"content": "a", "tool_calls": []}), answer({"content": "a"})),
    Case(
        "tool-finish-follows",
        stream(role(), *(say(delta) for delta in GET)),
        CALLED,
        ("err-not-silent", "fin-always-sent"),
    ),
    Case(
        "tool-finish-follows",
        stream(role(), *(say(delta) for delta in GET), end=b""),
        failed(role(), *(say(delta) for delta in GET), error=CUT),
        ("end-no-early-eof", "err-not-silent"),
    ),
    Case(
        "tool-legacy-function-call",
        called({"function_call": {"name": "get", "arguments": ""}}, {"function_call": {"arguments": '{"x":1}'}}),
        called(named(id="call_ours1"), GET[1]),
        ("tool-id-first",),
    ),
]


def spelled(logprobs: object) -> bytes:
    """A stream of one text with its log probabilities."""
    return stream(role(), say({"content": "a"}, logprobs=logprobs), finish())


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
        spelled({"content": [entry("a", top_logprobs=GONE)], "refusal": None}),
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
    Case("err-not-silent", stream(*HELLO[:3], end=b""), failed(*HELLO[:3], error=CUT), ("end-no-early-eof",)),
    Case("err-not-with-choices", stream(*HELLO[:2], chunk(error=BOOM)), BROKEN, ("err-midstream-event",)),
    Case("err-event-name", stream(*HELLO[:2], b"event: error\n", {"error": BOOM}), BROKEN, ("sse-no-event-name",)),
    Case("err-empty-stream", DONE, failed(error=NO_ANSWER)),
    Case("err-empty-stream", b"", failed(error=NO_ANSWER)),
]

TWO = [role(), role(1), say({"content": "a"}), say({"content": "b"}, 1), finish(), finish("stop", 1)]

CHOICES = [
    Case("n-index-int", RIGHT.replace(b'"index":0,', b""), RIGHT),
    Case("n-index-int", RIGHT.replace(b'"index":0', b'"index":"0"'), RIGHT),
    Case("n-index-int", RIGHT.replace(b'"index":0', b'"index":3'), RIGHT, asked=RequestFacts(choice_count=1)),
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
    rule: str, odd: bytes, right: bytes = DONE_TEXT, also: tuple[str, ...] = (), asked: RequestFacts | None = None
) -> Case:
    return Case(rule, odd, right, also, COMPLETIONS, asked)


TEXTS = [
    completion("cmpl-text-string", stream(text("a"), text_chunk(text_choice(None, "stop")))),
    completion("cmpl-text-string", stream(text("a"), text_chunk(text_choice(GONE, "stop")))),
    completion("cmpl-no-delta", stream(text(GONE, delta={"content": "a"}), text_end())),
    completion("cmpl-no-delta", stream(text(GONE, message={"content": "a"}), text_end())),
    completion("cmpl-object", DONE_TEXT.replace(b"text_completion", b"text_completion.chunk")),
    completion("cmpl-index", DONE_TEXT.replace(b'"index":0,', b"")),
    completion("cmpl-index", DONE_TEXT.replace(b'"index":0', b'"index":"0"')),
    completion("cmpl-finish", stream(text("a"), text_end("eos"))),
    completion("cmpl-finish", stream(text("a", finish_reason=""), text_end())),
    completion("cmpl-finish", stream(text("a", finish_reason=GONE), text_end())),
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
        ASKED,
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
