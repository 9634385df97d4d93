"""Rules of Gemini: correct streams and replies, violations with their severity, and arbitrary input."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rules.streams import texts
from tests.table import table
from welldone.core.catalog import RULES, Severity
from welldone.rules.checks.gemini import CHECKS
from welldone.rules.judge import LintReport, judge
from welldone.rules.trace import Trace

Json = dict[str, Any]

STREAM, WHOLE = "/v1beta/models/m:streamGenerateContent", "/v1beta/models/m:generateContent"
EVENTS = f"{STREAM}?alt=sse"
USAGE: Json = {"promptTokenCount": 5, "candidatesTokenCount": 3, "totalTokenCount": 8}
ERROR: Json = {"error": {"code": 503, "message": "gone", "status": "UNAVAILABLE"}}
BLOCKED: Json = {"promptFeedback": {"blockReason": "SAFETY"}, "modelVersion": "m"}


# Streams


def candidate(*parts: object, finish: object = None, **members: object) -> Json:
    content = {"content": {"parts": list(parts or ({"text": "Hi"},)), "role": "model"}}
    return {**content, **({} if finish is None else {"finishReason": finish}), "index": 0, **members}


def element(*candidates: Json, **members: object) -> Json:
    return {"candidates": list(candidates or (candidate(),)), "modelVersion": "m", "responseId": "r", **members}


def without(value: Json, *keys: str) -> Json:
    return {key: member for key, member in value.items() if key not in keys}


HI = element()
END = element(candidate({"text": ""}, finish="STOP"), usageMetadata=USAGE)


def encode(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def events(*elements: object) -> bytes:
    return b"".join(one if isinstance(one, bytes) else b"data: %b\n\n" % encode(one) for one in elements)


def array(*elements: object) -> bytes:
    return b"[%b\n]" % b",\n".join(map(encode, elements))


def call(**members: object) -> Json:
    return {"functionCall": {"name": "f", "args": {}, **members}}


def usage(**counts: object) -> Json:
    return element(candidate({"text": ""}, finish="STOP"), usageMetadata={**USAGE, **counts})


def judge_gemini(body: bytes, **known: Any) -> LintReport:  # noqa: ANN401 - any field of a trace
    return judge(Trace(body=body, endpoint="gemini", **known))


def severities(body: bytes, **known: Any) -> dict[str, set[str]]:  # noqa: ANN401 - any field of a trace
    """Return the severities of the findings by rule."""
    found: dict[str, set[str]] = {}
    for finding in judge_gemini(body, **known).findings:
        found.setdefault(finding.rule, set()).add(finding.severity)
    return found


# Correct streams and replies


@st.composite
def right_elements(draw: st.DrawFn) -> tuple[list[Json], Json]:
    """The elements of a correct stream of one or two candidates, and its request."""
    count = draw(st.integers(1, 2))
    kinds = ("text", "thought", "call", "signed", "code")
    elements = []
    for number, kind in enumerate(draw(st.lists(st.sampled_from(kinds), max_size=6))):
        word = draw(texts)
        parts: dict[str, Json] = {
            "text": {"text": word},
            "thought": {"text": word, "thought": True},
            "call": call(id=f"c{number}") if draw(st.booleans()) else {"functionCall": {"name": "f"}},
            "signed": {"text": "", "thoughtSignature": draw(st.sampled_from(("", "c2lnbg==", "_-8", "+/8=")))},
            "code": {"executableCode": {"code": word}},
        }
        spent = {} if draw(st.booleans()) else {"usageMetadata": {"promptTokenCount": 5, "totalTokenCount": 5}}
        elements.append(element(candidate(parts[kind], index=draw(st.integers(0, count - 1))), **spent))
    open_ones = {one["candidates"][0]["index"] for one in elements} | {0}
    if draw(st.integers(0, 4)) == 0:
        return [*elements, ERROR], _request(count)
    ends = [
        candidate({"text": ""}, finish=draw(st.sampled_from(("STOP", "MAX_TOKENS"))), index=one) for one in open_ones
    ]
    counts = {"promptTokenCount": 5, "candidatesTokenCount": 2, "thoughtsTokenCount": 1, "totalTokenCount": 8}
    return [*elements, element(*ends, usageMetadata=counts)], _request(count)


def _request(count: int) -> Json:
    return {"generation_config": {"candidate_count": count, "thinking_config": {"include_thoughts": True}}}


@given(right_elements(), st.sampled_from((b"", b"\n", b"\r\n")))
def test_a_correct_stream_violates_no_rule(right: tuple[list[Json], Json], gap: bytes) -> None:
    elements, request = right
    frames = gap.join([b"", *(events(one) for one in elements)])
    assert judge_gemini(frames, path=EVENTS, request=request).findings == ()
    assert judge_gemini(gap + array(*elements) + gap, path=STREAM, request=request).findings == ()


@table(
    "elements",
    [
        [END],
        [BLOCKED],
        [HI, ERROR],
        [HI, element({"finishReason": "SAFETY", "index": 0})],
        [HI, element({"content": {"role": "model"}, "finishReason": "MAX_TOKENS"})],
        [without(HI, "modelVersion", "responseId"), END],
        [element(candidate(finish=None, finishReason=None)), END],
        [HI, END, element({"index": 0}, usageMetadata=USAGE) | {"candidates": [candidate({"text": ""})]}],
        [
            element(candidate({"functionCall": {"name": "f", "willContinue": True}})),
            element(candidate(call(name=""))),
            END,
        ],
        [element(candidate(call(args=None))), END],
        [element(candidate({"text": "Hi", "thought": None, "thoughtSignature": None})), END],
        [element(candidate({"hologram": {}})), END],
        [HI, usage(cachedContentTokenCount=4, toolUsePromptTokenCount=2, totalTokenCount=10)],
        [HI, element(candidate(finish="STOP"))],
        [element(error=None), END],
    ],
)
def test_streams_that_the_api_allows_violate_no_rule(elements: list[Json]) -> None:
    assert judge_gemini(events(*elements)).findings == ()
    assert judge_gemini(events(*elements).replace(b"\n", b"\r\n")).findings == ()
    assert judge_gemini(array(*elements)).findings == ()


@table("reply", [element(candidate(finish="STOP"), usageMetadata=USAGE), BLOCKED, element(candidate(finish="OTHER"))])
def test_a_correct_reply_violates_no_rule(reply: Json) -> None:
    assert judge_gemini(encode(reply), request={}, path=WHOLE, status=200).findings == ()


# Violations and their severity

BREAKS, TOLERATED = {Severity.BREAKS.value}, {Severity.TOLERATED.value}
CHANGED: list[tuple[list[Any], str, set[str]]] = [
    ([HI, {"type": "ping"}, END], "gem-element", BREAKS),
    ([HI, None, END], "gem-element", BREAKS),
    ([HI, element(candidates=[]), END], "gem-element", BREAKS),
    ([HI, element(candidates=None), END], "gem-element", BREAKS),
    ([element(candidates=candidate()), END], "gem-candidates", BREAKS),
    ([{**HI, "candidates": [None]}, END], "gem-candidates", BREAKS),
    ([element(candidate(index="a")), END], "gem-candidate-index", BREAKS),
    ([element(candidate(index=-1)), END], "gem-candidate-index", BREAKS),
    ([element(candidate(index=True)), END], "gem-candidate-index", BREAKS),
    ([element(candidate(), candidate()), END], "gem-candidate-index", BREAKS),
    (
        [
            element(candidate(), without(candidate(), "index")),
            element(*(candidate(finish="STOP", index=n) for n in (0, 1))),
        ],
        "gem-candidate-index",
        TOLERATED,
    ),
    ([element(candidate(content="Hi")), END], "gem-content", BREAKS),
    ([element(without(candidate(), "content")), END], "gem-content", BREAKS),
    ([element(candidate(content={"role": "model"})), END], "gem-content", BREAKS),
    ([element(candidate(content={"role": "model", "parts": []})), END], "gem-content", BREAKS),
    ([element(candidate(content={"role": "model", "parts": {"text": "Hi"}})), END], "gem-content", BREAKS),
    ([HI, element(candidate(finish="STOP", content="Hi"), usageMetadata=USAGE)], "gem-content", BREAKS),
    ([element(candidate(content={"parts": [{"text": "Hi"}], "role": "assistant"})), END], "gem-role", BREAKS),
    ([element(candidate(content={"parts": [{"text": "Hi"}]})), END], "gem-role", BREAKS),
    *(([element(candidate(part)), END], "gem-parts", BREAKS) for part in ({}, None, "Hi", {"text": None}, {"text": 7})),
    ([element(candidate({"text": "Hi", "thought": "true"})), END], "gem-thoughts", BREAKS),
    *(
        ([element(candidate({"text": "", "thoughtSignature": one})), END], "gem-signature", BREAKS)
        for one in ("not base64", "abcde", 7, "ab", "+_8=", "YQ=")
    ),
    *(
        ([element(candidate(call(**one))), END], "gem-call", BREAKS)
        for one in ({"args": "{}"}, {"args": [1]}, {"name": ""}, {"name": None}, {"name": 7})
    ),
    ([element(candidate({"functionCall": "f"})), END], "gem-call", BREAKS),
    ([element(candidate(call(id="a"), call(id="a"))), END], "gem-call-ids", TOLERATED),
    ([element(candidate(call(id="a"))), element(candidate(call(id="a"))), END], "gem-call-ids", TOLERATED),
    ([element(candidate(call(id=""))), END], "gem-call-ids", TOLERATED),
    ([element(candidate(call(id=7))), END], "gem-call-ids", BREAKS),
    ([HI, element(candidate(finish="stop"), usageMetadata=USAGE)], "gem-finish-reason", TOLERATED),
    ([element(candidate(finish="")), END], "gem-finish-reason", TOLERATED),
    ([HI, element(candidate(finish=1), usageMetadata=USAGE)], "gem-finish-reason", BREAKS),
    ([HI, element(candidate(finish=["STOP"]), usageMetadata=USAGE)], "gem-finish-reason", BREAKS),
    ([element(candidate(finish="STOP")), END], "gem-finish-once", TOLERATED),
    ([END, element(usageMetadata=USAGE)], "gem-finish-once", TOLERATED),
    ([HI], "gem-no-early-eof", BREAKS),
    ([element(candidate(), candidate(index=1)), END], "gem-no-early-eof", BREAKS),
    ([{"promptFeedback": {"blockReason": "bad"}}], "gem-blocked-prompt", TOLERATED),
    ([{"promptFeedback": {"blockReason": 7}}], "gem-blocked-prompt", BREAKS),
    ([BLOCKED, END], "gem-blocked-prompt", TOLERATED),
    ([element(modelVersion=7), END], "gem-envelope", BREAKS),
    ([element(modelVersion="n"), END], "gem-envelope", TOLERATED),
    ([element(responseId="s"), END], "gem-envelope", TOLERATED),
    ([HI, usage(promptTokenCount=5.5)], "gem-usage-counts", BREAKS),
    ([HI, usage(thoughtsTokenCount="4")], "gem-usage-counts", BREAKS),
    ([HI, usage(promptTokenCount=-1, totalTokenCount=2)], "gem-usage-counts", TOLERATED),
    ([HI, {**END, "usageMetadata": "8"}], "gem-usage-counts", BREAKS),
    ([HI, usage(totalTokenCount=9)], "gem-usage-total", TOLERATED),
    (
        [element(usageMetadata=USAGE), usage(candidatesTokenCount=1, totalTokenCount=6)],
        "gem-usage-cumulative",
        TOLERATED,
    ),
    ([element(usageMetadata=USAGE), without(END, "usageMetadata")], "gem-usage-last", TOLERATED),
    ([HI, {"modelVersion": "m", **ERROR}], "gem-error-element", BREAKS),
    ([HI, ERROR["error"]], "gem-error-element", BREAKS),
    *(
        ([HI, {"error": {**ERROR["error"], "code": one}}], "gem-error-element", BREAKS)
        for one in (None, "503", 14, True)
    ),
    ([HI, {"error": "gone"}], "gem-error-element", BREAKS),
    ([HI, {"error": without(ERROR["error"], "status")}], "gem-error-element", TOLERATED),
    ([HI, ERROR, END], "gem-error-last", TOLERATED),
    ([HI, {"error": {**ERROR["error"], "status": "GONE"}}], "gem-error-status", TOLERATED),
]
"""Elements of a stream, and the one rule that they violate with its severity."""


@table(("elements", "rule", "cost"), CHANGED)
def test_each_violation_of_a_stream_is_found_alone(elements: list[Any], rule: str, cost: set[str]) -> None:
    assert severities(events(*elements)) == {rule: cost}
    assert severities(array(*elements)) == {rule: cost}


@table(
    ("body", "rules"),
    [
        (events(HI, b": ping\n\n", END), {"gem-data-lines-only"}),
        (events(b"event: message\n", HI, END), {"gem-data-lines-only"}),
        (events(b"id: 7\n", HI, b"retry: 5\n\n", END), {"gem-data-lines-only"}),
        (events(HI, b"data: : ping\n\n", END), {"gem-data-lines-only"}),
        (events(HI, b"event: ping\n\n", END), {"gem-data-lines-only", "sse-no-empty-data"}),
        (events(HI, END, b"data: [DONE]\n\n"), {"gem-no-done"}),
        (events(HI, b"data:\n\n", END), {"sse-no-empty-data"}),
        (events(HI, END).replace(b"data: ", b"data:"), {"sse-data-space"}),
        (events(HI, END).replace(b"\n\n", b"\n", 1), {"sse-event-blank-line", "sse-one-object-per-event"}),
        (events(HI, END)[:-2], {"end-last-event-terminated"}),
        (events(HI, b"error: gone\n\n"), {"err-not-error-field", "gem-error-element"}),
        (events(HI, END).replace(b"Hi", "H\ufffd".encode()), {"enc-no-replacement-char"}),
        (events(HI, END).replace(b"Hi", rb"H\ud83d"), {"enc-no-lone-surrogate"}),
        (events(HI, END).replace(b"Hi", "a\u2028b".encode()), {"enc-escape-line-breaks"}),
        (events(HI, END).replace(b"Hi", b"H\xff"), {"enc-valid-utf8"}),
        (events(HI, END).replace(b'"index":0', b'"avgLogprobs":NaN,"index":0'), {"enc-strict-json"}),
        (b"", {"err-empty-stream"}),
    ],
)
def test_violations_of_the_framing_of_events(body: bytes, rules: set[str]) -> None:
    assert severities(body).keys() == rules


@table(
    ("body", "rules"),
    [
        (b"[]", {"err-empty-stream"}),
        (array(HI, END).replace(b",\n{", b"\n{"), {"enc-strict-json"}),
        (array(HI, END).replace(b"\n]", b",\n]"), {"enc-strict-json"}),
        (array(HI, END).replace(b'"index":0', b'"index":0,', 1), {"enc-strict-json"}),
        (array(HI, END).replace(b'"index":0', b'"avgLogprobs":NaN,"index":0'), {"enc-strict-json"}),
        (array(HI, END).replace(b"Hi", "H\ufffd".encode()), {"enc-no-replacement-char"}),
        (array(HI, END).replace(b"Hi", rb"H\ud83d"), {"enc-no-lone-surrogate"}),
        (array(HI, END).replace(b"Hi", b"a\nb"), {"enc-escape-line-breaks"}),
        (array(HI, END).replace(b"Hi", b"H\xff"), {"enc-valid-utf8"}),
        (array(HI, END)[:-2], {"gem-no-early-eof"}),
        (array(HI, END)[:-9], {"gem-no-early-eof", "enc-strict-json"}),
        (b"[", {"gem-no-early-eof", "err-empty-stream"}),
    ],
)
def test_violations_of_an_array(body: bytes, rules: set[str]) -> None:
    assert severities(body, path=STREAM).keys() == rules


def test_a_finding_in_an_array_has_the_offset_of_its_element() -> None:
    body = (
        b"\xef\xbb\xbf [\n"
        + encode(element(candidate({"text": '],"{'})))
        + b" ,\n"
        + encode({**END, "modelVersion": 7})
        + b"]"
    )
    (finding,) = judge_gemini(body).findings
    assert (finding.frame, finding.rule) == (2, "gem-envelope")
    assert finding.byte is not None
    assert body[finding.byte :].startswith(b'{"candidates":[{"content":{"parts":[{"text":""}]')


@table(
    ("body", "path", "rules"),
    [
        (events(HI, END), EVENTS, set()),
        (events(HI, END), f"{STREAM}?key=k&$alt=sse", set()),
        (array(HI, END), STREAM, set()),
        (array(HI, END), f"{STREAM}?alt=json", set()),
        (array(HI, END), EVENTS, {"gem-stream-form"}),
        (events(HI, END), STREAM, {"gem-stream-form"}),
        (encode(END), EVENTS, {"err-empty-stream"}),
        (encode(ERROR), EVENTS, {"err-status-before-stream"}),
        (events(ERROR), EVENTS, {"err-status-before-stream"}),
        (array(ERROR), STREAM, {"err-status-before-stream"}),
        (array(END), WHOLE, {"gem-whole-reply"}),
        (encode(ERROR), WHOLE, {"ns-error-status"}),
    ],
)
def test_the_path_decides_about_the_form_of_the_reply(body: bytes, path: str, rules: set[str]) -> None:
    assert severities(body, path=path, status=200).keys() == rules


@table(
    ("kind", "body", "rules"),
    [
        ("text/event-stream; charset=utf-8", events(HI, END), set()),
        ("application/json", array(HI, END), set()),
        ("application/json; charset=latin-1", array(HI, END), {"http-charset-utf8"}),
        ("text/event-stream", array(HI, END), {"http-content-type"}),
        ("application/json", events(HI, END), {"http-content-type"}),
    ],
)
def test_each_form_has_its_content_type(kind: str, body: bytes, rules: set[str]) -> None:
    headers = (("Content-Type", kind), ("X-Accel-Buffering", "no"), ("Cache-Control", "no-cache"))
    assert severities(body, headers=headers, status=200).keys() == rules


def test_header_rules_apply_to_arrays() -> None:
    found = severities(array(HI, END), headers=(("Transfer-Encoding", "chunked"),), status=200, complete=False)
    rules = {"http-content-type", "http-no-proxy-buffering", "http-cache-control", "http-chunked-terminated"}
    assert found.keys() == rules


@table(
    ("request_", "elements", "found"),
    [
        ({}, [element(candidate({"text": "Hm", "thought": True})), END], {"gem-thoughts": TOLERATED}),
        (
            {"generationConfig": 7},
            [element(candidate({"text": "Hm", "thought": True})), END],
            {"gem-thoughts": TOLERATED},
        ),
        ({}, [HI, element(candidate(finish="STOP", index=1)), END], {"gem-candidate-index": BREAKS}),
        (
            {"generationConfig": {"candidateCount": "2"}},
            [HI, element(candidate(finish="STOP", index=1)), END],
            {"gem-candidate-index": BREAKS},
        ),
        ({"generationConfig": {"candidateCount": 2}}, [HI, element(candidate(finish="STOP", index=1)), END], {}),
        (None, [HI, element(candidate({"text": "Hm", "thought": True}, finish="STOP", index=1)), END], {}),
    ],
)
def test_rules_depend_on_the_request(request_: Json | None, elements: list[Json], found: dict[str, set[str]]) -> None:
    assert severities(events(*elements), request=request_) == found


@table(
    ("reply", "found"),
    [
        ({}, {"gem-whole-reply": BREAKS}),
        ({"candidates": []}, {"gem-whole-reply": BREAKS}),
        (element(), {"gem-whole-reply": BREAKS}),
        (element(candidate(content="Hi", finish="STOP")), {"gem-content": BREAKS}),
        (element(candidate({}, finish="STOP")), {"gem-parts": BREAKS}),
        (element(candidate(finish="end_turn")), {"gem-finish-reason": TOLERATED}),
        ({**BLOCKED, "candidates": [candidate(finish="STOP")]}, {"gem-blocked-prompt": TOLERATED}),
        (usage(totalTokenCount=3), {"gem-usage-total": TOLERATED}),
    ],
)
def test_violations_of_a_whole_reply(reply: Json, found: dict[str, set[str]]) -> None:
    assert severities(encode(reply), request={}, path=WHOLE) == found


def test_a_truncated_reply_was_cut() -> None:
    body = encode(element(candidate(finish="STOP")))[:-4]
    report = judge_gemini(body, path=WHOLE, complete=False)
    assert {finding.rule for finding in report.findings if finding.cause is None} == {"gem-no-early-eof"}


@table(
    ("status", "body", "found"),
    [
        (503, ERROR, {}),
        (503, [ERROR], {}),
        (413, {"error": {"code": 413, "message": "no", "status": "INVALID_ARGUMENT"}}, {}),
        (503, [ERROR, ERROR], {"gem-error-body": BREAKS}),
        (400, {"error": {"message": "no"}}, {"gem-error-body": BREAKS}),
        (400, {"detail": "no"}, {"gem-error-body": BREAKS}),
        (400, "no", {"gem-error-body": BREAKS}),
        (503, {"error": without(ERROR["error"], "status")}, {"gem-error-body": TOLERATED}),
        (500, ERROR, {"gem-error-status": TOLERATED}),
        (503, {"error": {**ERROR["error"], "status": "INTERNAL"}}, {"gem-error-status": TOLERATED}),
        (418, {"error": {"code": 418, "message": "no", "status": "TEAPOT"}}, {"gem-error-status": TOLERATED}),
    ],
)
def test_the_body_of_a_failed_request_has_googles_format(status: int, body: object, found: dict[str, set[str]]) -> None:
    assert severities(encode(body), status=status) == found


def test_an_abandoned_stream_has_no_findings_about_its_end() -> None:
    assert judge_gemini(events(HI), end=None).findings == ()


# Arbitrary input

_SCALARS: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers(-1, 2) | st.text(max_size=2) | st.floats()
_MEMBERS = (
    *("text", "thought", "thoughtSignature", "functionCall", "name", "args", "id", "parts", "role", "content", "index"),
    *(
        "finishReason",
        "candidates",
        "promptFeedback",
        "blockReason",
        "usageMetadata",
        "totalTokenCount",
        "error",
        "code",
    ),
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_MEMBERS), inner),
    max_leaves=9,
)
_CANDIDATES = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("content", "index", "finishReason", "error", "candidates"), _VALUES)
)
_ELEMENTS = st.fixed_dictionaries(
    {},
    optional={
        "candidates": st.lists(_CANDIDATES | _VALUES, max_size=2) | _VALUES,
        **dict.fromkeys(("promptFeedback", "usageMetadata", "modelVersion", "responseId", "error"), _VALUES),
    },
)


@given(st.lists(_ELEMENTS | _VALUES, max_size=5), st.sampled_from((None, EVENTS, STREAM, WHOLE)))
def test_arbitrary_elements_do_not_raise(elements: list[Any], path: str | None) -> None:
    for body in (events(*elements), array(*elements), *map(encode, elements[:1])):
        judge_gemini(body, status=200, request={}, path=path)
        judge_gemini(body, status=500, path=path)


@given(st.binary(max_size=40).map(lambda rest: b"[" + rest))
def test_arbitrary_arrays_do_not_raise(body: bytes) -> None:
    judge_gemini(body, path=STREAM)


@pytest.mark.no_cover
@given(right_elements(), st.data())
def test_the_cut_of_a_correct_stream_is_found(right: tuple[list[Json], Json], data: st.DataObject) -> None:
    elements, _ = right
    for body in (events(*elements), array(*elements)):
        cut = body[: data.draw(st.integers(0, len(body) - 3))]
        assert judge_gemini(cut, complete=False).findings


def test_every_rule_is_about_gemini() -> None:
    assert {RULES[check.rule].endpoints for check in CHECKS} == {("gemini",)}
    assert all(check.rule.startswith("gem-") for check in CHECKS)
