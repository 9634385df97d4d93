"""Laws of translation: what chat can say and another dialect can carry comes back unchanged, and the output is right.

Streams and replies: events are written in the dialect, and read as events. Requests: chat, the dialect, chat.
"""

import json
from random import Random
from typing import Any, cast

from hypothesis import event, given
from hypothesis import strategies as st

from tests.laws import right_events, test_laws_messages, test_laws_responses
from tests.laws.strategies import arguments, legal_events, names, texts
from tests.table import table
from welldone.protocol.catalog import RULES, Repairability
from welldone.protocol.collect import collect
from welldone.protocol.dialects.anthropic.writer import MessagesDialect
from welldone.protocol.dialects.base import Dialect
from welldone.protocol.dialects.responses.writer import ResponsesDialect
from welldone.protocol.envelope import Endpoint, Envelope
from welldone.protocol.events import (
    ChoiceStart,
    Event,
    Failure,
    Finish,
    KeepAlive,
    Logprobs,
    Refusal,
    ToolArguments,
    ToolCall,
    UnknownFields,
    Usage,
)
from welldone.protocol.pipeline import BufferedPipeline, StreamPipeline
from welldone.protocol.request_facts import RepairOptions, RequestFacts
from welldone.rules.judge import judge
from welldone.rules.trace import Trace
from welldone.server.requests.anthropic import anthropic_to_chat
from welldone.server.requests.chat_to_messages import chat_to_messages
from welldone.server.requests.chat_to_responses import chat_to_responses
from welldone.server.requests.response_items import raw_input_items
from welldone.server.requests.responses import responses_to_chat

Json = dict[str, Any]
OURS = Envelope("chatcmpl-ours", 1600000000, "ours")
FACTS = RequestFacts(include_usage=True, choice_count=1)
MESSAGES, RESPONSES = Endpoint.MESSAGES, Endpoint.RESPONSES
DIALECTS: dict[Endpoint, Dialect] = {MESSAGES: MessagesDialect(), RESPONSES: ResponsesDialect({})}
SENT = {MESSAGES: Envelope("msg_1", 1700000000, "m"), RESPONSES: Envelope("resp_1", 1700000000, "m")}
EACH = table("dialect", [MESSAGES, RESPONSES])
NOT_CARRIED: dict[Endpoint, tuple[type[Event], ...]] = {
    MESSAGES: (KeepAlive, UnknownFields, Logprobs, Refusal),
    RESPONSES: (KeepAlive, UnknownFields),
}
"""Events that the dialect cannot carry; docs/dialects.md lists them."""


def pipeline(dialect: Endpoint) -> StreamPipeline:
    """Make a pipeline from a dialect to chat."""
    options = RepairOptions(upstream_dialect=dialect)
    return StreamPipeline(Endpoint.CHAT, fallback=OURS, facts=FACTS, options=options)


def read(dialect: Endpoint, data: bytes) -> list[Event]:
    """Read a stream as events."""
    return _read_to_end(reading := pipeline(dialect), reading.read(data))


def read_reply(dialect: Endpoint, data: bytes) -> list[Event]:
    """Read a reply as events."""
    reading = pipeline(dialect)
    return _read_to_end(reading, [event for step in reading.read_reply_in_steps(data) for event in step])


def _read_to_end(reading: StreamPipeline, events: list[Event]) -> list[Event]:
    for _, last in reading.read_end_by_frame():
        events += last
    assert {entry.rule for entry in reading.result.repairs} <= {"resp-usage"}  # not all events have a usage
    return events


def translate(dialect: Endpoint, data: bytes, cuts: list[int] | None = None) -> bytes:
    """Translate a stream to chat, split at `cuts`."""
    ends = [*sorted(cut for cut in cuts or [] if cut < len(data)), len(data)]
    pieces = [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    reading = pipeline(dialect)
    return b"".join([*(reading.feed(piece) for piece in pieces), reading.close()])


def write(dialect: Endpoint, events: list[Event]) -> bytes:
    """Write a stream in a dialect."""
    writer = DIALECTS[dialect].make_writer(SENT[dialect], lambda: None)
    return b"".join([*(writer.send(event) for event in events), writer.end()])


def counts(usage: Usage | None) -> tuple[int, ...]:
    """Return the counts of a usage; Messages always has one."""
    if usage is None:
        return (0, 0, 0, 0)
    cached = usage.extra_fields.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens, min(cached, usage.prompt_tokens)


@EACH
@given(events=legal_events(Endpoint.CHAT, choices=1))
def test_a_stream_in_another_dialect_has_the_same_events(dialect: Endpoint, events: list[Event]) -> None:
    events = [one for one in events if not isinstance(one, NOT_CARRIED[dialect])]
    if not events:
        return
    found = read(dialect, write(dialect, events))
    if isinstance(events[-1], Failure):
        # A call is sent once its name is known to be complete, which a failure may precede; so are start and end.
        # Log probabilities are sent with their text.
        skipped = ChoiceStart, Finish, Logprobs, ToolCall, ToolArguments, UnknownFields
        *before, failure = (one for one in events if not isinstance(one, skipped))
        *found_before, found_failure = (one for one in found if not isinstance(one, skipped))
        assert found_before == before
        assert isinstance(found_failure, Failure)
        assert isinstance(failure, Failure)
        assert found_failure.message == failure.message
        return
    usages = [one for one in events if isinstance(one, Usage)]
    found_usages = [one for one in found if isinstance(one, Usage)]
    assert [one for one in found if not isinstance(one, Usage)] == [one for one in events if not isinstance(one, Usage)]
    assert counts(found_usages[-1] if found_usages else None) == counts(usages[-1] if usages else None)


@EACH
@given(events=legal_events(Endpoint.CHAT, choices=1))
def test_a_reply_in_another_dialect_has_the_same_content(dialect: Endpoint, events: list[Event]) -> None:
    events = [one for one in events if not isinstance(one, NOT_CARRIED[dialect])]
    if not events or isinstance(events[-1], Failure):
        return
    assert content(read_reply(dialect, DIALECTS[dialect].encode_reply(SENT[dialect], collect(events)))) == content(
        events
    )


def violated_rules(data: bytes, **about: Any) -> set[str]:  # noqa: ANN401 - members of the trace
    judged = judge(Trace(body=data, endpoint="chat", **about))
    return {rule for rule in judged.counts if RULES[rule].repairability is not Repairability.REPORT_ONLY}


ANY_BYTES = {MESSAGES: test_laws_messages.any_bytes, RESPONSES: test_laws_responses.any_stream}


@EACH
@given(data=st.data(), cuts=st.lists(st.integers(1, 3000)))
def test_any_bytes_give_a_correct_stream_however_they_are_split(
    dialect: Endpoint, data: st.DataObject, cuts: list[int]
) -> None:
    body = data.draw(ANY_BYTES[dialect])
    sent = translate(dialect, body)
    event("failed" if b'"error"' in sent else "complete")
    assert violated_rules(sent) == set()
    assert translate(dialect, body, cuts) == sent


@EACH
@given(data=st.data())
def test_any_bytes_give_the_same_answer_as_a_stream_and_as_a_reply(dialect: Endpoint, data: st.DataObject) -> None:
    body = data.draw(ANY_BYTES[dialect])
    streamed = pipeline(dialect)
    streamed.feed(body)
    streamed.close()
    options = RepairOptions(upstream_dialect=dialect)
    buffered = BufferedPipeline(Endpoint.CHAT, fallback=OURS, facts=FACTS, options=options)
    buffered.feed(body)
    buffered.close()
    assert buffered.result == streamed.result
    assert violated_rules(buffered.body(), status=500 if buffered.failure else 200) == set()


DRAWN = {MESSAGES: right_events.messages, RESPONSES: right_events.responses}


@EACH
@given(seed=st.integers(0, 2**32))
def test_a_right_stream_and_its_reply_need_no_repair_and_have_the_same_text(dialect: Endpoint, seed: int) -> None:
    drawn = DRAWN[dialect](Random(seed))
    streamed, whole = read(dialect, drawn.stream), read_reply(dialect, drawn.reply)
    found, expected = content(streamed), content(whole)
    for one in (found, expected):  # texts and reasoning that are open at once follow each other, as they begin or end
        one[:3] = [sorted(str(text)) for text in one[:3]]
        one[4] = sorted(str(detail | {"index": 0}) for detail in cast("list[Json]", one[4] or []))
    if any(item.get("content") and item.get("summary") for item in drawn.reply_object.get("output", ())):
        del found[1], expected[1]  # of a text and its summary, what comes first is sent: a reply has another order
    assert found == expected


def content(events: list[Event]) -> list[object]:
    """Return text, reasoning, calls, the end and the usage of an answer."""
    reply = collect(events)
    (choice,) = reply.choices.values()
    calls = [
        (call.id, call.name, call.arguments if call.is_custom else json.loads(call.arguments))
        for call in choice.tool_calls
    ]
    details = choice.delta_fields.get("reasoning_details")
    texts = choice.text, choice.reasoning, choice.refusal
    return [*texts, calls, details, choice.finish_reason, choice.stop_string, counts(reply.usage)]


# Requests.

DATA_URL = "data:image/png;base64,aGk="
user_content = st.one_of(
    texts,
    st.lists(
        st.one_of(
            st.builds(lambda text: {"type": "text", "text": text}, texts),
            st.sampled_from([DATA_URL, "https://example.com/a.png"]).map(
                lambda url: {"type": "image_url", "image_url": {"url": url}}
            ),
        ),
        min_size=1,
        max_size=3,
    ).filter(lambda parts: any(part["type"] == "image_url" for part in parts)),  # texts alone are one string
)
functions: st.SearchStrategy[Json] = st.builds(
    lambda name, description: {"type": "function", "function": {"name": name, **description, "parameters": PARAMETERS}},
    names,
    st.one_of(st.just({}), texts.map(lambda text: {"description": text})),
)
PARAMETERS: Json = {"type": "object", "properties": {"a": {"type": "string"}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True}}


@st.composite
def chats(draw: st.DrawFn) -> Json:
    """Draw a chat request with what both other dialects carry."""
    messages: list[Json] = []
    if draw(st.booleans()):
        messages.append({"role": "system", "content": draw(texts)})
    for turn in range(draw(st.integers(1, 3))):
        messages.append({"role": "user", "content": draw(user_content)})
        calls = draw(st.lists(st.tuples(names, arguments), max_size=2))
        if calls:
            listed = [
                {"id": f"call_{turn}_{number}", "type": "function", "function": {"name": name, "arguments": given}}
                for number, (name, given) in enumerate(calls)
            ]
            messages.append({"role": "assistant", "content": draw(texts), "tool_calls": listed})
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": draw(texts)} for call in listed]
        messages.append({"role": "assistant", "content": draw(texts)})
    messages.append({"role": "user", "content": draw(texts)})
    body: Json = {
        "messages": messages,
        "stream": draw(st.booleans()),
        "max_completion_tokens": draw(st.integers(1, 99)),
    }
    optional = {
        "temperature": st.sampled_from([0, 0.5, 1]),
        "top_p": st.sampled_from([0.1, 1]),
        "reasoning_effort": st.sampled_from(["low", "medium", "high"]),
        "response_format": st.just(FORMAT),
        "user": names,
    }
    body |= {name: draw(values) for name, values in optional.items() if draw(st.booleans())}
    if draw(st.booleans()):
        tools = draw(st.lists(functions, min_size=1, max_size=2, unique_by=lambda tool: tool["function"]["name"]))
        named = {"type": "function", "function": {"name": tools[0]["function"]["name"]}}
        body |= {"tools": tools, "tool_choice": draw(st.sampled_from(["auto", "required", "none", named]))}
        body |= {"parallel_tool_calls": False} if draw(st.booleans()) and body["tool_choice"] != "none" else {}
    return body


def canonical(chat: Json) -> Json:
    """Return a chat request in a form that is the same for equal requests."""
    out = {name: value for name, value in chat.items() if value is not None and name != "model"}
    for message in out["messages"]:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return out


@given(chat=chats(), stops=st.lists(names, max_size=2))
def test_a_request_comes_back_from_messages(chat: Json, stops: list[str]) -> None:
    chat |= {"stop": stops} if stops else {}
    translated = {"model": "m", **chat_to_messages(chat)}
    found = anthropic_to_chat(json.loads(json.dumps(translated)), "openai", ignores_unknown_tools=False).chat
    if chat.get("reasoning_effort") is None:
        found.pop("reasoning_effort", None)
    assert canonical(found) == canonical(chat)


@given(chat=chats())
def test_a_request_comes_back_from_responses(chat: Json) -> None:
    chat |= {"logprobs": True, "top_logprobs": 2} if chat["stream"] else {}
    translated = json.loads(json.dumps({"model": "m", **chat_to_responses(chat)}))
    found = responses_to_chat(translated, [], raw_input_items(translated), ignores_unknown_tools=False).chat
    assert canonical(found) == canonical(chat)
