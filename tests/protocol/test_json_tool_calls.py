"""Conversion of text that is the JSON of a tool call."""

import json
from typing import Any

import pytest

from tests.protocol.build import (
    CHAT,
    FALLBACK,
    call_start,
    choice,
    chunk,
    content_chunks,
    count,
    delta_chunk,
    entry,
    finish,
    role,
    stream,
    usage_chunk,
)
from tests.table import table
from welldone.core.answer_format import AnswerFormat
from welldone.core.collect import collect
from welldone.core.continuation import Continuation, ContinuationWay
from welldone.core.events import (
    ChoiceStart,
    Event,
    Failure,
    FieldLocation,
    Finish,
    KeepAlive,
    Logprobs,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    UnknownFields,
    Usage,
)
from welldone.core.json_tool_calls import HELD_LIMIT, CallableTools, JsonCallConverter, callable_tools
from welldone.core.repair_log import RepairLog
from welldone.core.request_facts import RepairOptions, RequestFacts
from welldone.dialects.messages.writer import MessagesFormat
from welldone.dialects.responses.writer import ResponsesFormat
from welldone.rules.judge import judge
from welldone.rules.trace import Trace
from welldone.stream.pipeline import BufferedPipeline, StreamPipeline

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
BODY: dict[str, Any] = {
    "stream": True,
    "tools": [
        {"type": "function", "function": {"name": "get", "parameters": PARAMETERS}},
        {"type": "function", "function": {"name": "end"}},
    ],
}
CALL = '{"name": "get", "arguments": {"city": "Oslo", "days": 2}}'
LLAMA = '{"type": "function", "name": "end", "parameters": {}}'
"""The form in which Llama 4 answers (https://github.com/vllm-project/vllm/issues/46863)."""
QWEN = '```json\n{\n  "name": "get",\n  "arguments": {\n    "city": "Oslo"\n  }\n}\n```'
"""The form in which Qwen2.5-Coder answers (https://github.com/ardanlabs/kronk/pull/950), one character per chunk."""
SPACE = "\n" * 257


def tools() -> CallableTools:
    found = callable_tools(BODY)
    assert found is not None
    return found


def converted(*events: Event) -> list[Event]:
    ids = iter(f"call_{number}" for number in range(1, 200))
    return JsonCallConverter(tools(), ids.__next__, RepairLog()).feed(list(events))


def answer_of(text: str, reason: str = "stop", *, is_split: bool = False) -> list[Event]:
    pieces = list(text) if is_split else [text]
    return converted(ChoiceStart(0), *(Text(0, piece) for piece in pieces), Finish(0, reason))


@table(
    ("text", "name", "arguments"),
    [
        (CALL, "get", '{"city": "Oslo", "days": 2}'),
        (QWEN, "get", '{\n    "city": "Oslo"\n  }'),
        (f" \n{CALL}\n\n", "get", '{"city": "Oslo", "days": 2}'),
        (f"```\n{CALL}```\n", "get", '{"city": "Oslo", "days": 2}'),
        ('{"arguments":{},"name":"end"}', "end", "{}"),
        (LLAMA, "end", "{}"),
        (f"[{LLAMA}]", "end", "{}"),
        ('{"name": "get", "parameters": {"city": ""}}', "get", '{"city": ""}'),
        ('{"name": "\\u0067et", "arguments": {"city": "\\"}\\u00e9\\\\"}}', "get", '{"city": "\\"}\\u00e9\\\\"}'),
        (
            '{"name":"get","arguments":{"city":"","a":[{},[],-1.5e+3,0,true , {"b":null}]}}',
            "get",
            '{"city":"","a":[{},[],-1.5e+3,0,true , {"b":null}]}',
        ),
    ],
)
def test_text_that_is_only_a_call_becomes_the_call(text: str, name: str, arguments: str) -> None:
    for is_split in (False, True):
        assert answer_of(text, is_split=is_split) == [
            ChoiceStart(0),
            ToolCall(0, 0, "call_1", name),
            ToolArguments(0, 0, arguments),
            Finish(0, "tool_calls"),
        ]


@table(
    "text",
    [
        f"[{CALL}, {LLAMA}]",
        f"```json\n[\n{CALL},\n  {LLAMA}\n]\n```",
        f" [ {CALL} , {LLAMA} ] ",
    ],
)
def test_a_list_of_calls_becomes_the_calls(text: str) -> None:
    for is_split in (False, True):
        assert answer_of(text, is_split=is_split) == [
            ChoiceStart(0),
            ToolCall(0, 0, "call_1", "get"),
            ToolArguments(0, 0, '{"city": "Oslo", "days": 2}'),
            ToolCall(0, 1, "call_2", "end"),
            ToolArguments(0, 1, "{}"),
            Finish(0, "tool_calls"),
        ]


def test_a_list_of_more_calls_than_the_limit_stays_text() -> None:
    for count_of_calls, reason in ((128, "tool_calls"), (129, "stop")):
        assert answer_of(f"[{', '.join([LLAMA] * count_of_calls)}]")[-1] == Finish(0, reason)


@pytest.mark.parametrize(
    "text",
    [
        "Hello",
        "[]",
        f"[{CALL}",
        f"[{CALL},]",
        f"[{CALL} {CALL}]",
        f"[{CALL}, 1]",
        f"{CALL}]",
        f"{CALL}, {CALL}",
        f"[[{CALL}]]",
        f'[{CALL}, {{"name": "put", "arguments": {{}}}}]',
        f"[{CALL}] now",
        f"[{CALL}, {{",
        '{"type": "custom", "name": "end", "arguments": {}}',
        '{"type": {}, "name": "end", "arguments": {}}',
        "  ",
        SPACE + CALL,
        f"I call {CALL}",
        f"{CALL} now",
        f"{CALL}{CALL}",
        f"{CALL}```",
        f"{CALL}{SPACE}",
        f"```json\n{CALL}",
        f"```json\n{CALL}\n``",
        f"```json\n{CALL}\n```\nDone.",
        f"```json\n{CALL}\n````",
        f"```python\n{CALL}\n```",
        f"``{CALL}``",
        CALL[:-1],
        "{}",
        '{"name": "end"}',
        '{"arguments": {}}',
        '{"title": "end", "arguments": {}}',
        '{"name": "end", "name": "end"}',
        '{"name": "end", "arguments": {}, "arguments": {}}',
        '{"name": "end", "arguments": {}, "parameters": {}}',
        '{"name": "end", "arguments": {}, "id": 1}',
        '{"name": "\\ud800", "arguments": {}}',
        f'{{"name": "{"e" * 2000}", "arguments": {{}}}}',
        '{"name": "put", "arguments": {}}',
        '{"name": 7, "arguments": {}}',
        '{"name": "end", "arguments": "{}"}',
        '{"name": "end", "arguments": []}',
        '{"name": "end", "arguments": {"x": 1}}',
        '{"name": "get", "arguments": {"city": 7}}',
        '{"name": "get", "arguments": {"days": 7}}',
        '{"name": "get", "arguments": {"city": "a\nb"}}',
        '{"name": "get", "arguments": {"city": "\\x"}}',
        '{"name": "get", "arguments": {"city": "", "a": 01}}',
        '{"name": "get", "arguments": {"city": "", "a": nil}}',
        f'{{"name": "get", "arguments": {{"city": "", "a": {"1" * 80}}}}}',
        f'{{"name": "get", "arguments": {{"city": "", "a": {"1" * 80}',
        '{"name": "get", "arguments": {"city": "", "a": 1e999}}',
        '{"name": "get", "arguments": {"city": "", "a": [1 2]}}',
        '{"name": "get", "arguments": {"city": "", }}',
        '{"name": "get", "arguments": {"city": "", "a": [1,]}}',
        '{"name": "get", "arguments": {"city": "", "a": [}}',
        '{"name": "get", "arguments": {"city" ""}}',
        '{"name": "get", "arguments": {7: ""}}',
        f'{{"name": "get", "arguments": {{"city": "", "a": {"[" * 99}{"]" * 99}}}}}',
        f'{{"name": "get", "arguments": {{"city": "{"a" * HELD_LIMIT}"}}}}',
    ],
)  # fmt: skip
def test_any_other_text_passes_unchanged(text: str) -> None:
    assert answer_of(text) == [ChoiceStart(0), Text(0, text), Finish(0, "stop")]
    if len(text) < HELD_LIMIT:
        split = answer_of(text, is_split=True)
        assert split == [ChoiceStart(0), *(Text(0, sign) for sign in text), Finish(0, "stop")]


@table(
    ("text", "count"),
    [
        ("Hello", 1),
        (" \n Hello", 4),
        ("`x`", 2),
        ("```python\nx", 4),
        ("```js\nx", 6),
        ('{"title": 1}', 8),
        ('{"name": "put", "a', 14),
        ('{"name": 7', 10),
        ('{"name": "end", "arguments": {"x": 1}} ', 38),
        ('{"name": "end", "arguments": {x', 31),
        (f"{CALL}\n.", len(CALL) + 2),
    ],
)
def test_text_is_held_only_while_it_may_be_a_call(text: str, count: int) -> None:
    converter = JsonCallConverter(tools(), str, RepairLog())
    sent = [len(converter.feed([Text(0, sign)])) for sign in text]
    assert sent == [0] * (count - 1) + [count] + [1] * (len(text) - count)
    assert converter.is_settled(1)
    assert not converter.is_settled(2)


@table(("reason", "is_call"), [("stop", True), ("tool_calls", True), ("length", False), ("content_filter", False)])
def test_a_truncated_answer_is_no_call(reason: str, is_call: bool) -> None:
    assert any(isinstance(event, ToolCall) for event in answer_of(CALL, reason)) is is_call


def test_other_events_keep_their_order() -> None:
    first, second, chunk_fields = (
        UnknownFields(0, FieldLocation.DELTA, {"x": 1}),
        UnknownFields(0, FieldLocation.CHOICE, {"y": 2}),
        UnknownFields(0, FieldLocation.CHUNK, {"z": 3}, in_own_chunk=True),
    )
    logprobs, usage = Logprobs(0, {"content": []}), Usage(1, 2, 3, {})
    start: list[Event] = [first, ChoiceStart(0), KeepAlive(), Reasoning(0, "hm"), Text(0, " "), Reasoning(0, "m")]
    assert converted(*start, logprobs, Text(0, CALL[:9]), second, logprobs, Text(0, CALL[9:]), chunk_fields,
                     Finish(0, "stop"), usage) == [
        *start,
        second,
        ToolCall(0, 0, "call_1", "get"),
        ToolArguments(0, 0, '{"city": "Oslo", "days": 2}'),
        chunk_fields,
        Finish(0, "tool_calls"),
        usage,
    ]  # fmt: skip
    plain: list[Event] = [*start, logprobs, Text(0, "{"), second, logprobs, Text(0, "}"), chunk_fields]
    assert converted(*plain, Finish(0, "stop"), usage) == [*plain, Finish(0, "stop"), usage]


@pytest.mark.parametrize(
    "event",
    [Reasoning(0, "r"), Refusal(0, "r"), ToolCall(0, 0, "a", "get"), ToolArguments(0, 0, "{}"), Failure("f")],
    ids=lambda event: type(event).__name__,
)
def test_what_is_held_precedes_other_content(event: Event) -> None:
    rest: list[Event] = [] if isinstance(event, Failure) else [Text(0, "}"), Finish(0, "stop")]
    events: list[Event] = [ChoiceStart(0), Text(0, CALL), event, *rest]
    assert converted(*events) == events


def test_each_choice_is_converted_by_itself() -> None:
    texts = [CALL, "Hello", QWEN]
    events: list[Event] = [ChoiceStart(index) for index in range(3)]
    events += [Text(index, sign) for at in range(99) for index in range(3) for sign in texts[index][at : at + 1]]
    reply = collect(converted(*events, *(Finish(index, "stop") for index in range(3))))
    found = [reply.choices[index] for index in range(3)]
    assert [len(one.tool_calls) for one in found] == [1, 0, 1]
    assert [one.text for one in found] == ["", "Hello", ""]
    assert [one.finish_reason for one in found] == ["tool_calls", "stop", "tool_calls"]


@table(
    ("change", "names"),
    [
        ({}, {"get", "end"}),
        ({"tool_choice": "auto"}, {"get", "end"}),
        ({"tool_choice": None, "response_format": None}, {"get", "end"}),
        ({"tool_choice": "required"}, None),
        ({"tool_choice": "none"}, None),
        ({"tool_choice": {"type": "function", "function": {"name": "get"}}}, None),
        ({"response_format": {"type": "json_object"}}, None),
        ({"tools": []}, None),
        ({"tools": [7, {"function": 7}, {"function": {"name": 7}}, {"type": "custom", "custom": {"name": "x"}}]}, None),
    ],
)
def test_the_functions_that_a_model_may_choose(change: dict[str, object], names: set[str] | None) -> None:
    found = callable_tools({**BODY, **change})
    assert (None if found is None else set(found.schemas)) == names


def test_an_upstream_may_ignore_that_a_call_is_required() -> None:
    body = {**BODY, "tool_choice": "required"}
    assert callable_tools(body) is None
    assert callable_tools(body, is_upstream=True) is not None
    assert callable_tools({**BODY, "tool_choice": "none"}, is_upstream=True) is None


# In pipelines.

REPLIES = [*content_chunks(*QWEN), finish(), usage_chunk(count(9, 20))]
OPTIONS = RepairOptions(json_calls=callable_tools(BODY))


def pipeline(dialect: AnswerFormat | None = None, options: RepairOptions = OPTIONS, **changes: Any) -> StreamPipeline:  # noqa: ANN401 - fields of the facts
    known: dict[str, Any] = {"include_usage": True, "choice_count": 1, "tool_names": frozenset({"get"})}
    facts = RequestFacts(**known | changes)
    return StreamPipeline(CHAT, fallback=FALLBACK, facts=facts, dialect=dialect, options=options)


def sent_by(stream_pipeline: StreamPipeline, data: bytes) -> bytes:
    return stream_pipeline.feed(data) + stream_pipeline.close()


def test_a_stream_with_a_converted_call_is_clean() -> None:
    answer = pipeline()
    out = sent_by(answer, stream(role(), *REPLIES))
    request = {**BODY, "stream_options": {"include_usage": True}}
    assert not judge(Trace(body=out, endpoint="chat", request=request)).counts
    assert out.count(b'"tool_calls":[') == 2
    assert b'"finish_reason":"tool_calls"' in out
    assert b"```" not in out
    result = answer.result
    assert (result.converted_calls, result.text_tool_calls) == (1, 0)
    assert [entry.rule for entry in result.repairs] == ["tool-no-markup-leak"]
    assert result.usage is not None
    assert result.usage.completion_tokens == 20


def test_without_the_option_the_text_passes() -> None:
    answer = pipeline(options=RepairOptions())
    assert sent_by(answer, stream(role(), *REPLIES)).count(b'"content":"`"') == 6
    assert (answer.result.converted_calls, answer.result.text_tool_calls) == (0, 1)


def test_an_unconverted_call_is_still_counted() -> None:
    answer = pipeline()
    sent_by(answer, stream(role(), *content_chunks(f"[{CALL}, 1]"), finish()))
    assert (answer.result.converted_calls, answer.result.text_tool_calls) == (0, 1)


def test_a_converted_call_after_think_tags() -> None:
    answer = pipeline(options=RepairOptions(json_calls=OPTIONS.json_calls, think="tags"))
    out = sent_by(answer, stream(role(), *content_chunks("<think>", "hm", "</think>", "\n\n", CALL), finish()))
    assert (answer.result.converted_calls, answer.result.text_tool_calls) == (1, 0)
    assert b'"reasoning_content":"hm"' in out


def test_the_fast_path_is_used_once_the_text_is_no_call() -> None:
    answer = pipeline(tool_names=frozenset())  # which are watched as well
    assert not answer.parts[0].has_plain_text
    for text, is_fast in (("{", False), ('"name"', False), ("}", True), (" c", True)):
        answer.feed(stream(*([role()] if text == "{" else []), *content_chunks(text), end=b""))
        assert answer.parts[0].can_use_fast_path(0, Text) is is_fast


@pytest.mark.parametrize(
    ("dialect", "kind"),
    [(None, b'"tool_calls"'), (MessagesFormat(), b'"tool_use"'), (ResponsesFormat({}), b'"function_call"')],
)
def test_other_dialects_get_the_call(dialect: AnswerFormat | None, kind: bytes) -> None:
    streamed = sent_by(pipeline(dialect), stream(role(), *REPLIES))
    whole = BufferedPipeline(
        CHAT, fallback=FALLBACK, facts=RequestFacts(choice_count=1), dialect=dialect, options=OPTIONS
    )
    message = {"role": "assistant", "content": QWEN}
    reply = chunk({"index": 0, "message": message, "finish_reason": "stop"}, object="chat.completion", usage=count())
    whole.feed_reply(json.dumps(reply).encode())
    whole.close()
    for out in (streamed, whole.body()):
        assert kind in out
        assert b"Oslo" in out
        assert b"```" not in out


def test_legacy_functions_get_a_function_call() -> None:
    out = sent_by(pipeline(uses_legacy_functions=True), stream(role(), *REPLIES))
    assert b'"function_call":{"name":"get"' in out


def test_log_probabilities_of_a_converted_text_are_dropped() -> None:
    frames = [chunk(choice({"content": sign}, logprobs={"content": [entry(sign)], "refusal": None})) for sign in CALL]
    out = sent_by(pipeline(), stream(role(), *frames, finish()))
    assert b'"logprob"' not in out
    frames = [chunk(choice({"content": sign}, logprobs={"content": [entry(sign)], "refusal": None})) for sign in "{}"]
    assert sent_by(pipeline(), stream(role(), *frames, finish())).count(b'"logprob"') == 2


def test_a_failure_releases_the_text() -> None:
    out = sent_by(pipeline(), stream(role(), *content_chunks(CALL), end=b""))
    assert json.dumps(CALL)[1:-1].encode() in out
    assert b'"error"' in out


def continued(way: ContinuationWay, first: str, second: str, **fields: Any) -> bytes:  # noqa: ANN401 - each its own
    """The bytes of an answer whose first stream breaks off."""
    facts = RequestFacts(choice_count=1)
    answer = StreamPipeline(CHAT, fallback=FALLBACK, facts=facts, options=OPTIONS, is_continuable=True)
    out = answer.feed(stream(role(), *content_chunks(*first), end=b"")) + answer.close()
    answer.continue_part(0, Continuation(way=way, failure=Failure("broken"), **fields))
    answer.configure(0, OPTIONS)
    return out + sent_by(answer, stream(role(), *content_chunks(*second), finish()))


def test_a_continued_answer_is_converted_only_as_a_whole() -> None:
    out = continued(ContinuationWay.REPLAY, CALL[:20], CALL)
    assert b'"tool_calls"' in out
    assert b'"content":"{"' not in out
    out = continued(ContinuationWay.PREFILL, "So: ", CALL, prefill="So: ")
    assert b'"tool_calls"' not in out
    assert b'"content":"{"' in out


def test_a_real_call_is_untouched() -> None:
    data = stream(role(), delta_chunk(call_start(arguments=CALL)), finish("tool_calls"))
    assert sent_by(pipeline(), data) == sent_by(pipeline(options=RepairOptions()), data)
