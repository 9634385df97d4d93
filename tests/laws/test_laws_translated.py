"""Laws of translation: what chat can say and another dialect can carry comes back unchanged, and the output is right.

Streams and replies: events are written in the dialect, and read as events. Requests: chat, the dialect, chat. Gemini's
also the other way round.
"""

import contextlib
import json
from collections.abc import Callable
from random import Random
from typing import Any, cast

import msgspec
from hypothesis import event, given
from hypothesis import strategies as st

from tests.laws import right_events, right_gemini, test_laws_messages, test_laws_responses
from tests.laws.strategies import arguments, legal_events, names, texts
from tests.table import table
from welldone.core.answer_format import AnswerFormat
from welldone.core.catalog import RULES, Repairability
from welldone.core.collect import collect
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import (
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
from welldone.core.request_facts import RepairOptions, RequestFacts
from welldone.dialects.gemini.repair import GeminiRepairer
from welldone.dialects.gemini.writer import GeminiFormat
from welldone.dialects.messages.writer import MessagesFormat
from welldone.dialects.responses.writer import ResponsesFormat
from welldone.rules.judge import judge
from welldone.rules.trace import Trace
from welldone.server.requests.anthropic import anthropic_to_chat
from welldone.server.requests.chat_to_gemini import chat_to_gemini
from welldone.server.requests.chat_to_messages import chat_to_messages
from welldone.server.requests.chat_to_responses import chat_to_responses
from welldone.server.requests.gemini import gemini_to_chat
from welldone.server.requests.response_items import raw_input_items
from welldone.server.requests.responses import responses_to_chat
from welldone.stream.pipeline import BufferedPipeline, StreamPipeline

Json = dict[str, Any]
OURS = Envelope("chatcmpl-ours", 1600000000, "ours")
FACTS = RequestFacts(include_usage=True, choice_count=1)
MESSAGES, RESPONSES, GEMINI = Endpoint.MESSAGES, Endpoint.RESPONSES, Endpoint.GEMINI
DIALECTS: dict[Endpoint, AnswerFormat] = {
    MESSAGES: MessagesFormat(),
    RESPONSES: ResponsesFormat({}),
    GEMINI: GeminiFormat(includes_thoughts=True),
}
SENT = {
    MESSAGES: Envelope("msg_1", 1700000000, "m"),
    RESPONSES: Envelope("resp_1", 1700000000, "m"),
    GEMINI: Envelope("1", 1700000000, "m"),
}
EACH = table("dialect", [MESSAGES, RESPONSES, GEMINI])
NOT_CARRIED: dict[Endpoint, tuple[type[Event], ...]] = {
    MESSAGES: (KeepAlive, UnknownFields, Logprobs, Refusal),
    RESPONSES: (KeepAlive, UnknownFields),
    GEMINI: (KeepAlive, UnknownFields, Refusal),
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
    if dialect is GEMINI:  # a call is sent whole
        events, found = joined_calls(events), joined_calls(found)
    if dialect is MESSAGES:
        found = [without_caller(one) if isinstance(one, ToolCall) else one for one in found]
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


def without_caller(call: ToolCall) -> ToolCall:
    """Return a call without the member `caller`, which Messages require."""
    members = {name: value for name, value in call.extra_fields.items() if name != "caller"}
    assert call.extra_fields == members | {"caller": {"type": "direct"}}
    return msgspec.structs.replace(call, extra_fields=members)


def joined_calls(events: list[Event]) -> list[Event]:
    """Return the events with the arguments of each call in one piece, without white space."""
    out: list[Event] = []
    for one in events:
        if isinstance(one, ToolArguments) and isinstance(last := out[-1], ToolArguments):
            out[-1] = ToolArguments(one.index, one.call_index, last.text + one.text)
        else:
            out.append(one)
    return [
        ToolArguments(one.index, one.call_index, json.dumps(json.loads(one.text)))
        if isinstance(one, ToolArguments) and one.text.endswith("}")
        else one
        for one in out
    ]


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


ANY_BYTES = {
    MESSAGES: test_laws_messages.any_bytes,
    RESPONSES: test_laws_responses.any_stream,
    GEMINI: right_gemini.any_bytes,
}


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


DRAWN: dict[Endpoint, Callable[[Random], right_events.DrawnEvents]] = {
    MESSAGES: right_events.messages,
    RESPONSES: right_events.responses,
    GEMINI: right_gemini.gemini,
}


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


# Gemini: the other way round, and pass-through.


@given(seed=st.integers(0, 2**32))
def test_a_right_gemini_stream_comes_back_from_events(seed: int) -> None:
    drawn = right_gemini.gemini(Random(seed))
    events = read(GEMINI, drawn.stream)
    again = merged(write(GEMINI, events))
    assert again["usageMetadata"] == drawn.reply_object["usageMetadata"]
    (found,), (expected,) = again["candidates"], drawn.reply_object["candidates"]
    assert found["finishReason"] == expected["finishReason"]
    assert parts(found) == parts(expected)
    encoded = DIALECTS[GEMINI].encode_reply(SENT[GEMINI], collect(events))
    assert parts(json.loads(encoded)["candidates"][0]) == parts(expected)


def parts(candidate: Json) -> list[Json]:
    """Return the parts that are not empty: the end of a stream may need one."""
    return [part for part in candidate["content"]["parts"] if part != {"text": ""}]


def merged(data: bytes) -> Json:
    """Return a stream as one reply."""
    repairer = GeminiRepairer(fallback=OURS, is_stream=False)
    repairer.feed(data)
    repairer.close()
    reply: Json = json.loads(repairer.body())
    return reply


def fix(data: bytes, cuts: list[int] | None = None) -> bytes:
    """Repair a Gemini stream, split at `cuts`."""
    repairer = GeminiRepairer(fallback=OURS)
    ends = [*sorted(cut for cut in cuts or [] if cut < len(data)), len(data)]
    pieces = [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return b"".join([*(repairer.feed(piece) for piece in pieces), repairer.close()])


def elements(data: bytes) -> list[Json]:
    return [json.loads(line.removeprefix("data: ")) for line in data.decode().splitlines() if line]


@given(seed=st.integers(0, 2**32))
def test_a_right_gemini_stream_passes_unchanged(seed: int) -> None:
    drawn = right_gemini.gemini(Random(seed))
    assert elements(fix(drawn.stream)) == drawn.events
    found = merged(drawn.stream)
    assert parts(found["candidates"][0]) == parts(drawn.reply_object["candidates"][0])
    assert found | {"candidates": 0} == drawn.reply_object | {"candidates": 0}


@given(data=right_gemini.any_bytes, cuts=st.lists(st.integers(1, 3000)))
def test_any_bytes_give_elements_with_an_end_however_they_are_split(data: bytes, cuts: list[int]) -> None:
    fixed = fix(data)
    assert fix(data, cuts) == fixed
    assert elements(fix(fixed)) == elements(fixed)  # keep-alives are empty lines
    *_, last = found = elements(fixed)
    assert [one for one in found[:-1] if "error" in one] == []
    ends = [one for one in found if "error" in one or "promptFeedback" in one or "finishReason" in json.dumps(one)]
    assert ends, last


# Requests.

DATA_URL, LINK = "data:image/png;base64,aGk=", "https://example.com/a.png"
user_content = st.one_of(
    texts,
    st.lists(
        st.one_of(
            st.builds(lambda text: {"type": "text", "text": text}, texts),
            st.sampled_from([DATA_URL, LINK]).map(lambda url: {"type": "image_url", "image_url": {"url": url}}),
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
    found = responses_to_chat(translated, [], raw_input_items(translated), unknown_tools="refuse").chat
    assert canonical(found) == canonical(chat)


def with_parsed_results(chat: Json) -> Json:
    """Return a chat with results of tools that are JSON objects as such."""
    for message in chat["messages"]:
        if message["role"] == "tool" and message["content"].strip().startswith("{"):
            with contextlib.suppress(ValueError):
                message["content"] = json.loads(message["content"])
    return canonical(chat)


@given(chat=chats(), stops=st.lists(names, max_size=2), results=st.lists(arguments, max_size=2))
def test_a_request_comes_back_from_gemini(chat: Json, stops: list[str], results: list[str]) -> None:
    for name in ("user", "parallel_tool_calls"):  # it has no such fields
        chat.pop(name, None)
    chat |= {"stop": stops} if stops else {}
    chat |= {"seed": 7, "presence_penalty": 0.5, "logprobs": True, "top_logprobs": 2} if chat.pop("stream") else {}
    if "response_format" in chat:
        chat["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": PARAMETERS}}
    for message, result in zip([one for one in chat["messages"] if one["role"] == "tool"], results, strict=False):
        message["content"] = result
    for message in chat["messages"]:
        if isinstance(message["content"], list):
            message["content"] = [part for part in message["content"] if part.get("image_url") != {"url": LINK}] or "x"
            if all(part["type"] == "text" for part in message["content"] if isinstance(part, dict)):
                message["content"] = "x"
    translated = json.loads(json.dumps(chat_to_gemini(chat)))
    found = gemini_to_chat(translated, "openai", model="m", ignores_unknown_tools=False).chat
    if isinstance(choice := chat.get("tool_choice"), dict):  # the other functions are not offered
        chat["tools"] = [tool for tool in chat["tools"] if tool["function"]["name"] == choice["function"]["name"]]
        chat["tool_choice"] = "required"
    assert with_parsed_results(found) == with_parsed_results(chat)


parts_of_user = st.one_of(
    texts.map(lambda text: [{"text": text}]),
    texts.map(lambda text: [{"text": text}, {"inlineData": {"mimeType": "image/png", "data": "aGk="}}]),
    st.just([{"inlineData": {"mimeType": "audio/wav", "data": "aGk="}}]),
)
objects = arguments.map(json.loads)


@st.composite
def gemini_requests(draw: st.DrawFn) -> Json:
    """Draw a request with what chat carries."""
    contents: list[Json] = []
    for turn in range(draw(st.integers(1, 3))):
        contents.append({"role": "user", "parts": draw(parts_of_user)})
        signed = {"thoughtSignature": "c2ln"} if draw(st.booleans()) else {}
        model: list[Json] = [{"text": draw(texts), "thought": True}] if draw(st.booleans()) else []
        model.append({"text": draw(texts), **signed})
        calls = draw(st.lists(st.tuples(names, objects), max_size=2))
        ids = [f"id{turn}_{number}" for number in range(len(calls))]
        model += [
            {"functionCall": {"id": one, "name": name, "args": args}, **signed}
            for one, (name, args) in zip(ids, calls, strict=True)
        ]
        contents.append({"role": "model", "parts": model})
        if calls:
            results: list[Json] = [
                {"functionResponse": {"id": one, "name": name, "response": draw(objects)}}
                for one, (name, _) in zip(ids, calls, strict=True)
            ]
            contents += [{"role": "user", "parts": results}, {"role": "model", "parts": [{"text": draw(texts)}]}]
    contents.append({"role": "user", "parts": [{"text": draw(texts)}]})
    config = {
        "temperature": st.sampled_from([0, 0.5, 2]),
        "topP": st.just(0.5),
        "topK": st.integers(1, 40),
        "seed": st.integers(0, 9),
        "maxOutputTokens": st.integers(1, 99),
        "stopSequences": st.lists(names, min_size=1, max_size=2),
        "frequencyPenalty": st.just(0.5),
        "thinkingConfig": st.sampled_from([{"includeThoughts": True, "thinkingLevel": "LOW"}, {"thinkingBudget": 0}]),
    }
    body: Json = {"contents": contents}
    chosen = {name: draw(values) for name, values in config.items() if draw(st.booleans())}
    if draw(st.booleans()):
        chosen |= {"responseMimeType": "application/json", "responseJsonSchema": PARAMETERS}
    body |= {"generationConfig": chosen} if chosen else {}
    if draw(st.booleans()):
        body["systemInstruction"] = {"parts": [{"text": draw(texts)}]}
    if draw(st.booleans()):
        declared = {"name": draw(names), "description": draw(texts), "parametersJsonSchema": PARAMETERS}
        body["tools"] = [{"functionDeclarations": [declared]}]
        mode = draw(st.sampled_from(["AUTO", "ANY", "NONE"]))
        body["toolConfig"] = {"functionCallingConfig": {"mode": mode}}
    return body


@given(body=gemini_requests())
def test_a_gemini_request_comes_back_from_chat(body: Json) -> None:
    chat = gemini_to_chat(body, "openai", model="m", ignores_unknown_tools=False).chat
    assert chat_to_gemini(json.loads(json.dumps(chat)) | {"model": "m"}) == body
