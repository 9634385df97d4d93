"""Law 3 on legal streams: a plain client reads the same answer before and after repair.

`python -m tests.laws.right_answers --streams 10000` checks generated streams of each dialect and prints differences.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from random import Random
from typing import Any, NamedTuple, TypeAlias

from tests.laws import plain_client, right_chunks, right_events
from tests.laws.plain_client import Answer, Call, Choice, chunks_answer, reply_answer
from tests.laws.right_chunks import ALL, Contents, Drawn
from tests.laws.right_events import DrawnEvents
from welldone.core.answer_format import AnswerFormat
from welldone.core.catalog import RULES, Severity
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.request_facts import read_request_facts
from welldone.dialects.messages.writer import MessagesFormat
from welldone.dialects.ollama.writer import OllamaFormat
from welldone.dialects.registry import passthrough_repairer_for
from welldone.dialects.responses.writer import ResponsesFormat
from welldone.dialects.same_dialect import PassthroughRepairer
from welldone.rules.judge import judge
from welldone.rules.trace import Trace
from welldone.stream.pipeline import BufferedPipeline, StreamPipeline

Json: TypeAlias = dict[str, Any]


class Difference(NamedTuple):
    """Difference between two values, with its path."""

    step: str
    path: str
    before: object
    after: object


FALLBACK = {
    Endpoint.CHAT: Envelope("chatcmpl-ours", 1600000000, "ours"),
    Endpoint.COMPLETIONS: Envelope("cmpl-ours", 1600000000, "ours"),
}
FALLBACK_ENVELOPE = Envelope("resp_ours", 1600000000, "ours")


def compare(step: str, before: object, after: object, path: str = "") -> Iterator[Difference]:
    """Yield the differences of two values."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from compare(step, before.get(key, "(absent)"), after.get(key, "(absent)"), f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for position, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from compare(step, one, other, f"{path}[{position}]")
    elif before != after or type(before) is not type(after):
        yield Difference(step, path, before, after)


def same(step: str, before: Answer, after: Answer) -> Iterator[Difference]:
    """Yield the differences of two answers."""
    yield from compare(step, asdict(before), asdict(after))


EXCEPTED = {
    # Mistral's content parts, which OpenAI clients do not read, are repaired.
    "delta-content-string",
    # Four texts that each extend the previous one look cumulative: reported, and never changed.
    "delta-content-incremental",
}
"""Rules with severity `breaks` that a generated stream may violate."""


def client_breaking_rules(endpoint: Endpoint, request: Json, stream: bytes) -> Iterator[Difference]:
    """Yield the violated rules that break clients; a legal stream has none."""
    found = judge(Trace(body=stream, endpoint=endpoint.value, request=request))
    for finding in found.findings:
        if RULES[finding.rule].severity is Severity.BREAKS and finding.rule not in EXCEPTED:
            yield Difference("judge", finding.rule, None, finding)


def pieces(draw: Random, data: bytes) -> list[bytes]:
    """Split bytes as a transport may: not at all, frame by frame, or anywhere."""
    match draw.choice(("whole", "frames", "anywhere")):
        case "whole":
            return [data]
        case "frames":
            return [frame + b"\n\n" for frame in data.split(b"\n\n") if frame]
        case _:
            ends = sorted({draw.randint(1, len(data)) for _ in range(draw.randint(1, 9))} | {len(data)})
            return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def repaired_stream(draw: Random, endpoint: Endpoint, drawn: Drawn, dialect: AnswerFormat | None = None) -> bytes:
    """Repair a stream."""
    pipe = StreamPipeline(
        endpoint, fallback=_fallback(endpoint, dialect), facts=read_request_facts(drawn.request), dialect=dialect
    )
    return b"".join([*(pipe.feed(piece) for piece in pieces(draw, drawn.stream)), pipe.close()])


def reply_as_stream(endpoint: Endpoint, drawn: Drawn, dialect: AnswerFormat | None = None) -> bytes:
    """Repair a reply and send it as a stream."""
    pipe = StreamPipeline(
        endpoint, fallback=_fallback(endpoint, dialect), facts=read_request_facts(drawn.request), dialect=dialect
    )
    return pipe.feed_reply(drawn.reply) + pipe.close()


def stream_as_reply(draw: Random, endpoint: Endpoint, drawn: Drawn, dialect: AnswerFormat | None = None) -> bytes:
    """Repair a stream and send it as a reply."""
    buffered = BufferedPipeline(
        endpoint, fallback=_fallback(endpoint, dialect), facts=read_request_facts(drawn.request), dialect=dialect
    )
    for piece in pieces(draw, drawn.stream):
        buffered.feed(piece)
    buffered.close()
    return buffered.body()


def repaired_reply(endpoint: Endpoint, drawn: Drawn, dialect: AnswerFormat | None = None) -> bytes:
    """Repair a reply."""
    buffered = BufferedPipeline(
        endpoint, fallback=_fallback(endpoint, dialect), facts=read_request_facts(drawn.request), dialect=dialect
    )
    buffered.feed_reply(drawn.reply)
    buffered.close()
    return buffered.body()


def _fallback(endpoint: Endpoint, dialect: AnswerFormat | None) -> Envelope:
    return FALLBACK[endpoint] if dialect is None else FALLBACK_ENVELOPE


def _final(answer: Answer, original: Answer) -> Answer:
    """Answer with the unknown members of `original`: their values differ between a stream and its accumulation."""
    choices = {
        index: replace(
            choice,
            members=original.choices[index].members if index in original.choices else {},
            delta_members=original.choices[index].delta_members if index in original.choices else {},
        )
        for index, choice in answer.choices.items()
    }
    return replace(answer, choices=choices, members=original.members, usage=answer.usage[-1:])


def chunks(endpoint: Endpoint, draw: Random, drawn: Drawn) -> Iterator[Difference]:
    """Repair chat or completions, stream and reply to stream and reply: all answers are equal."""
    received = chunks_answer(drawn.stream)
    yield from same("the generator itself", drawn.answer, _final(received, drawn.answer))
    yield from same("the generator's reply", drawn.answer, reply_answer(drawn.reply))
    yield from client_breaking_rules(endpoint, drawn.request, drawn.stream)
    once = repaired_stream(draw, endpoint, drawn)
    yield from same("stream to stream", received, chunks_answer(once))
    twice = repaired_stream(draw, endpoint, replace(drawn, stream=once))
    yield from compare("stream repaired twice", once.split(b"\n\n"), twice.split(b"\n\n"))
    yield from same("stream to reply", drawn.answer, reply_answer(stream_as_reply(draw, endpoint, drawn)))
    yield from same("reply to reply", drawn.answer, reply_answer(repaired_reply(endpoint, drawn)))
    streamed = chunks_answer(reply_as_stream(endpoint, drawn))
    streamed.usage = streamed.usage[-1:]  # the request may ask for continuous usage
    yield from same("reply to stream", drawn.answer, streamed)


# Translations. The expected answer leaves out only what the dialect cannot represent: choices after the first (one is
# requested), the envelope (id and time are generated), unknown members of chunks, choices and deltas, content parts
# that are neither text nor thinking.


def _translated(
    name: str,
    draw: Random,
    contents: Contents,
    dialects: Callable[[], AnswerFormat],
    read: Callable[[bytes, bool], Answer],
    expected: Callable[[Drawn], Answer],
) -> Iterator[Difference]:
    """Translate a chat answer to another dialect: stream and reply to stream and reply."""
    drawn = right_chunks.chat(draw, contents, most_choices=1)
    expected_answer = expected(drawn)
    endpoint = Endpoint.CHAT
    yield from same(
        f"stream to {name} stream", expected_answer, read(repaired_stream(draw, endpoint, drawn, dialects()), True)
    )
    yield from same(
        f"stream to {name} reply", expected_answer, read(stream_as_reply(draw, endpoint, drawn, dialects()), False)
    )
    yield from same(f"reply to {name} reply", expected_answer, read(repaired_reply(endpoint, drawn, dialects()), False))
    yield from same(
        f"reply to {name} stream", expected_answer, read(reply_as_stream(endpoint, drawn, dialects()), True)
    )


def _renamed(usage: Json, names: Json) -> Json:
    return {names.get(name, name): item for name, item in usage.items()}


def responses(draw: Random, contents: Contents = ALL) -> Iterator[Difference]:
    """Chat to Responses."""
    contents = replace(contents, trailing_space=False)  # a streamed call ends before the next one
    yield from _translated(
        "Responses", draw, contents, lambda: ResponsesFormat({}), read_responses, expected_of_responses
    )


def expected_of_responses(drawn: Drawn) -> Answer:
    """Answer with log probabilities of text, custom calls, members of calls, and all of usage."""
    original = drawn.answer.choices[0]
    reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
    # Responses has no log probabilities of a refusal.
    logprobs = (
        {"content": [_with_bytes(entry) for entry in entries]} if (entries := original.logprobs.get("content")) else {}
    )
    choice = replace(
        original,
        calls=_flat(original.calls),
        parts=[],
        finish=[reasons.get(original.finish[0], "completed")],
        logprobs=logprobs,
        members={},
        delta_members={},
    )
    usage = [_responses_usage(one) for one in drawn.answer.usage]
    return Answer({0: choice}, usage, is_done=True)


def read_responses(body: bytes, is_stream: bool) -> Answer:
    """Read a Response; the deltas of a stream have the same texts as its last event."""
    response = plain_client.response_of(body) if is_stream else json.loads(body)
    if is_stream:
        output = plain_client.output_of_deltas(body)
        assert plain_client.texts_of(output) == plain_client.texts_of(response["output"])
    return plain_client.responses_answer(response)


def _with_bytes(entry: Json) -> Json:
    """Log probability entry with `bytes`, which Responses requires."""
    received_object = {"bytes": list(entry["token"].encode())} if entry["bytes"] is None else {}
    tops = {"top_logprobs": [_with_bytes(top) for top in entry["top_logprobs"]]} if "top_logprobs" in entry else {}
    return entry | received_object | tops


def _responses_usage(usage: Json) -> Json:
    """Usage of Responses; required details that the upstream did not send are 0."""
    names = {
        "prompt_tokens": "input_tokens",
        "completion_tokens": "output_tokens",
        "prompt_tokens_details": "input_tokens_details",
        "completion_tokens_details": "output_tokens_details",
    }
    renamed = _renamed(usage, names)
    read = {"cached_tokens": 0, "cache_write_tokens": 0} | renamed.get("input_tokens_details", {})
    written = {"reasoning_tokens": 0} | renamed.get("output_tokens_details", {})
    return renamed | {"input_tokens_details": read, "output_tokens_details": written}


def messages(draw: Random, contents: Contents = ALL) -> Iterator[Difference]:
    """Chat to Messages."""
    yield from _translated("Messages", draw, contents, MessagesFormat, read_messages, expected_of_messages)


def expected_of_messages(drawn: Drawn) -> Answer:
    """Answer without log probabilities; a refusal is text with its own stop reason."""
    original = drawn.answer.choices[0]
    calls = _object_calls(original)
    choice = Choice(
        original.text + original.refusal,
        original.reasoning,
        calls=calls,
        finish=[_stop_reason(original)],
    )
    usage = [_messages_usage(one) for one in drawn.answer.usage]
    zeros = dict.fromkeys(
        ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"), 0
    )
    return Answer({0: choice}, usage or [zeros], is_done=True)


def read_messages(body: bytes, is_stream: bool) -> Answer:
    """Read a message."""
    message = plain_client.message_of(body) if is_stream else json.loads(body)
    # Members without a value that the schema requires.
    message["usage"] = {name: item for name, item in message["usage"].items() if name not in _NULL_USAGE or item}
    answer = plain_client.messages_answer(message)
    for call in answer.choices[0].calls:
        assert call.members.pop("caller") == [{"type": "direct"}]
    return answer


def _object_calls(original: Choice) -> list[Call]:
    """Calls in a dialect where arguments are an object and there is no inner object for the name.

    The input of a custom call becomes a member. A call that may be truncated is not sent: one whose arguments are not
    JSON, and a last one whose input is free text.
    """
    calls = []
    for call in original.calls:
        is_custom = call.type == "custom"
        is_cut = original.finish == ["length"] and call is original.calls[-1]
        if is_custom and not is_cut:
            calls.append(replace(call, type="function", text=json.dumps({"input": call.text})))
        elif not is_custom and _is_json(call.text):
            calls.append(replace(call, text=json.dumps(json.loads(call.text))))
    return _flat(calls)


def _flat(calls: list[Call]) -> list[Call]:
    """Calls without unknown members of `function` and `custom`, which the dialect does not have."""
    return [
        replace(call, members={name: item for name, item in call.members.items() if not name.startswith("function.")})
        for call in calls
    ]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _stop_reason(original: Choice) -> str:
    finish = original.finish[0]
    if finish == "length":
        return "max_tokens"
    if original.calls:
        return "tool_use"
    return "refusal" if original.refusal or finish == "content_filter" else "end_turn"


_NULL_USAGE = frozenset(
    ("cache_creation", "inference_geo", "output_tokens_details", "server_tool_use", "service_tier", "speed")
)
"""Members of a Messages usage that have no equivalent in chat: null, as the schema requires them."""


def _messages_usage(usage: Json) -> Json:
    """Usage of Messages: cached tokens are separate, reasoning is `thinking_tokens`; no total and no other details."""
    cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    counts = {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
    }
    thinking = usage.get("completion_tokens_details", {}).get("reasoning_tokens")
    known = {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details"}
    details = {} if thinking is None else {"output_tokens_details": {"thinking_tokens": thinking}}
    return {name: item for name, item in usage.items() if name not in known} | counts | details


def ollama(draw: Random, contents: Contents = ALL) -> Iterator[Difference]:
    """Chat to Ollama."""
    yield from _translated(
        "Ollama",
        draw,
        contents,
        lambda: OllamaFormat(is_chat=True, created_at="now"),
        read_ollama,
        expected_of_ollama,
    )


def expected_of_ollama(drawn: Drawn) -> Answer:
    """Answer without log probabilities, ids or members of calls; two counts; a refusal is text."""
    original = drawn.answer.choices[0]
    calls = [replace(call, id="", members={}) for call in _object_calls(original)]
    finish = "stop" if original.finish == ["tool_calls"] else original.finish[0]
    choice = Choice(original.text + original.refusal, original.reasoning, calls=calls, finish=[finish])
    names = {"prompt_tokens": "prompt_eval_count", "completion_tokens": "eval_count"}
    usage = [{field_name: one[name] for name, field_name in names.items()} for one in drawn.answer.usage] or [{}]
    return Answer({0: choice}, usage, is_done=True)


def read_ollama(body: bytes, is_stream: bool) -> Answer:
    """Read lines."""
    return plain_client.ollama_answer(body)


def chat(draw: Random, contents: Contents = ALL) -> Iterator[Difference]:
    """Chat to chat."""
    yield from chunks(Endpoint.CHAT, draw, right_chunks.chat(draw, contents))


def completions(draw: Random, contents: Contents = ALL) -> Iterator[Difference]:
    """Completions to completions."""
    yield from chunks(Endpoint.COMPLETIONS, draw, right_chunks.completions(draw, contents))


# Pass-through repair: a legal stream is sent event by event as received.


def _passthrough(endpoint: Endpoint, draw: Random, drawn: DrawnEvents) -> Iterator[Difference]:
    def repairer(*, is_stream: bool) -> PassthroughRepairer:
        return passthrough_repairer_for(
            endpoint, fallback=FALLBACK_ENVELOPE, request=drawn.request, is_stream=is_stream
        )

    yield from client_breaking_rules(endpoint, drawn.request, drawn.stream)
    stream = repairer(is_stream=True)
    sent = b"".join([*(stream.feed(piece) for piece in pieces(draw, drawn.stream)), stream.close()])
    yield from compare("events", _numbered(drawn.events), _numbered(_named_events(sent)))
    buffered = repairer(is_stream=False)
    for piece in pieces(draw, drawn.stream):
        buffered.feed(piece)
    buffered.close()
    yield from compare("stream to reply", drawn.reply_object, json.loads(buffered.body()))
    reply_repairer = repairer(is_stream=False)
    reply_repairer.feed_reply(drawn.reply)
    reply_repairer.close()
    yield from compare("reply to reply", drawn.reply_object, json.loads(reply_repairer.body()))
    streamed = repairer(is_stream=True)
    sent = streamed.feed_reply(drawn.reply) + streamed.close()
    is_messages = endpoint is Endpoint.MESSAGES
    received_object = plain_client.message_of(sent) if is_messages else plain_client.response_of(sent)
    yield from compare(
        "reply to stream", drawn.reply_object | ({"is_stopped": True} if is_messages else {}), received_object
    )


def _named_events(stream: bytes) -> list[Json]:
    """Events of a stream; the SSE event name must equal the type."""
    found = plain_client.events(stream)
    values = [json.loads(data) for _, data in found]
    assert [name for name, _ in found] == [one["type"] for one in values]
    return values


def _numbered(events: list[Json]) -> list[Json]:
    """Events without keep-alives, which comments become. Sequence numbers are checked, then replaced by 0."""
    numbers = [one["sequence_number"] for one in events if "sequence_number" in one]
    assert numbers == list(range(len(numbers)))
    return [one | {"sequence_number": 0} for one in events if one["type"] not in ("ping", "keepalive")]


def passthrough_responses(draw: Random, contents: Contents = ALL) -> Iterator[Difference]:
    """Responses to Responses."""
    yield from _passthrough(Endpoint.RESPONSES, draw, right_events.responses(draw, contents))


def passthrough_messages(draw: Random, contents: Contents = ALL) -> Iterator[Difference]:
    """Messages to Messages; the plain client must also read the original message from the stream."""
    drawn = right_events.messages(draw, contents)
    original = plain_client.message_of(drawn.stream)
    yield from compare("the generator itself", drawn.reply_object | {"is_stopped": True}, original)
    yield from _passthrough(Endpoint.MESSAGES, draw, drawn)


DIALECTS: dict[str, Callable[[Random, Contents], Iterator[Difference]]] = {
    "chat": chat,
    "completions": completions,
    "responses": passthrough_responses,
    "messages": passthrough_messages,
    "chat to Responses": responses,
    "chat to Messages": messages,
    "chat to Ollama": ollama,
}


def differences(dialect: str, seed: int, contents: Contents = ALL) -> list[Difference]:
    """Return the differences of one generated stream."""
    return list(DIALECTS[dialect](Random(f"{dialect} {seed}"), contents))


def main() -> int:
    """Check many streams and print the differences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=10_000, help="number of streams per dialect")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the first stream; the next streams have the next numbers"
    )
    parser.add_argument("--only", choices=sorted(DIALECTS), help="one dialect")
    parser.add_argument("--without", default="", help="contents to exclude, such as growing,parts")
    parser.add_argument("--show", type=int, default=3, help="printed differences of each kind")
    args = parser.parse_args()
    contents = Contents(**dict.fromkeys(filter(None, args.without.split(",")), False))
    names = DIALECTS if args.only is None else [args.only]
    seeds = range(args.seed, args.seed + args.streams)
    return int(sum(_try(name, seeds, contents, args.show) for name in names) > 0)


def _try(name: str, seeds: range, contents: Contents, limit: int) -> int:
    """Check the streams of one dialect; return the number with differences."""
    kinds: Counter[str] = Counter()
    differing = 0
    for seed in seeds:
        try:
            found = differences(name, seed, contents)
        except Exception as error:  # noqa: BLE001 - a crash is reported as a difference
            found = [Difference("crash", type(error).__name__, None, repr(error)[:500])]
        differing += bool(found)
        for one in found:
            kind = f"{one.step} {''.join(letter for letter in one.path if not letter.isdigit())}"
            kinds[kind] += 1
            if kinds[kind] <= limit:
                sys.stdout.write(f"  {name} {seed}: {kind}\n    {one.before!r:.600}\n    {one.after!r:.600}\n")
    sys.stdout.write(f"{name}: {len(seeds)} streams, {differing} with a difference {dict(kinds) or ''}\n")
    return differing


if __name__ == "__main__":
    sys.exit(main())
