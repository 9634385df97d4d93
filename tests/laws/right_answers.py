"""Law 3 on legal streams: what a plain client has of an answer is the same before and after welldone.

`python -m tests.laws.right_answers --streams 10000` tries so many streams of each dialect and prints the differences.
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
from welldone.protocol.catalog import RULES_BY_ID
from welldone.protocol.catalog.rule import Severity
from welldone.protocol.dialects.anthropic.writer import MessagesDialect
from welldone.protocol.dialects.base import Dialect
from welldone.protocol.dialects.ollama import OllamaDialect
from welldone.protocol.dialects.registry import passthrough_repairer_for
from welldone.protocol.dialects.responses.writer import ResponsesDialect
from welldone.protocol.dialects.same_dialect import PassthroughRepairer
from welldone.protocol.envelope import Endpoint, Envelope
from welldone.protocol.pipeline import BufferedPipeline, StreamPipeline
from welldone.protocol.request_facts import read_request_facts
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

Json: TypeAlias = dict[str, Any]


class Difference(NamedTuple):
    """What differs, where, and both values."""

    step: str
    path: str
    before: object
    after: object


FALLBACK = {
    Endpoint.CHAT: Envelope("chatcmpl-ours", 1600000000, "ours"),
    Endpoint.COMPLETIONS: Envelope("cmpl-ours", 1600000000, "ours"),
}
OURS = Envelope("resp_ours", 1600000000, "ours")


def compare(step: str, before: object, after: object, path: str = "") -> Iterator[Difference]:
    """The places at which two values differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from compare(step, before.get(key, "(absent)"), after.get(key, "(absent)"), f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for place, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from compare(step, one, other, f"{path}[{place}]")
    elif before != after or type(before) is not type(after):
        yield Difference(step, path, before, after)


def same(step: str, before: Answer, after: Answer) -> Iterator[Difference]:
    """The places at which two answers differ."""
    yield from compare(step, asdict(before), asdict(after))


EXCEPTED = {
    # Mistral's form of content, which OpenAI's clients do not read: for them it is repaired.
    "delta-content-string",
    # Four texts that each extend the one before look like a server that repeats itself: reported, and never changed.
    "delta-content-incremental",
}
"""Rules that break clients, and that a generated stream may break."""


def judged(endpoint: Endpoint, request: Json, stream: bytes) -> Iterator[Difference]:
    """Rules that a stream breaks in a way that breaks clients: a legal one breaks none."""
    found = judge(Trace(body=stream, endpoint=endpoint.value, request=request))
    for finding in found.findings:
        if RULES_BY_ID[finding.rule].severity is Severity.BREAKS and finding.rule not in EXCEPTED:
            yield Difference("judge", finding.rule, None, finding)


def pieces(draw: Random, data: bytes) -> list[bytes]:
    """The bytes as a transport may cut them: at once, frame by frame, or anywhere."""
    match draw.choice(("whole", "frames", "anywhere")):
        case "whole":
            return [data]
        case "frames":
            return [frame + b"\n\n" for frame in data.split(b"\n\n") if frame]
        case _:
            ends = sorted({draw.randint(1, len(data)) for _ in range(draw.randint(1, 9))} | {len(data)})
            return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def piped(draw: Random, endpoint: Endpoint, drawn: Drawn, dialect: Dialect | None = None) -> bytes:
    """The stream, repaired."""
    pipe = StreamPipeline(
        endpoint, fallback=_fallback(endpoint, dialect), facts=read_request_facts(drawn.request), dialect=dialect
    )
    return b"".join([*(pipe.feed(piece) for piece in pieces(draw, drawn.stream)), pipe.close()])


def piped_reply(endpoint: Endpoint, drawn: Drawn, dialect: Dialect | None = None) -> bytes:
    """The whole reply as a stream."""
    pipe = StreamPipeline(
        endpoint, fallback=_fallback(endpoint, dialect), facts=read_request_facts(drawn.request), dialect=dialect
    )
    return pipe.feed_reply(drawn.reply) + pipe.close()


def folded(draw: Random, endpoint: Endpoint, drawn: Drawn, dialect: Dialect | None = None) -> bytes:
    """The stream as a whole reply."""
    fold = BufferedPipeline(
        endpoint, fallback=_fallback(endpoint, dialect), facts=read_request_facts(drawn.request), dialect=dialect
    )
    for piece in pieces(draw, drawn.stream):
        fold.feed(piece)
    fold.close()
    return fold.body()


def folded_reply(endpoint: Endpoint, drawn: Drawn, dialect: Dialect | None = None) -> bytes:
    """The whole reply as a whole reply."""
    fold = BufferedPipeline(
        endpoint, fallback=_fallback(endpoint, dialect), facts=read_request_facts(drawn.request), dialect=dialect
    )
    fold.feed_reply(drawn.reply)
    fold.close()
    return fold.body()


def _fallback(endpoint: Endpoint, dialect: Dialect | None) -> Envelope:
    return FALLBACK[endpoint] if dialect is None else OURS


def _final(answer: Answer, meant: Answer) -> Answer:
    """An answer without the values of unknown members, which differ between a stream and its sum."""
    choices = {
        index: replace(
            choice,
            members=meant.choices[index].members if index in meant.choices else {},
            delta_members=meant.choices[index].delta_members if index in meant.choices else {},
        )
        for index, choice in answer.choices.items()
    }
    return replace(answer, choices=choices, members=meant.members, usage=answer.usage[-1:])


def chunks(endpoint: Endpoint, draw: Random, drawn: Drawn) -> Iterator[Difference]:
    """Chat or completions, repaired and folded, from a stream and from a whole reply: all is equal."""
    given = chunks_answer(drawn.stream)
    yield from same("the generator itself", drawn.answer, _final(given, drawn.answer))
    yield from same("the generator's reply", drawn.answer, reply_answer(drawn.reply))
    yield from judged(endpoint, drawn.request, drawn.stream)
    yield from same("stream to stream", given, chunks_answer(piped(draw, endpoint, drawn)))
    yield from same("stream to reply", drawn.answer, reply_answer(folded(draw, endpoint, drawn)))
    yield from same("reply to reply", drawn.answer, reply_answer(folded_reply(endpoint, drawn)))
    spread = chunks_answer(piped_reply(endpoint, drawn))
    spread.usage = spread.usage[-1:]  # a request may ask for counts on each chunk
    yield from same("reply to stream", drawn.answer, spread)


# Translations. What a dialect has no place for is left out of what is expected, and nothing else: choices but the
# first (one is requested), the envelope (id and time are ours), unknown members of chunks, choices and deltas, parts of
# content that are neither text nor thinking.


def _translated(
    name: str,
    draw: Random,
    contents: Contents,
    dialects: Callable[[], Dialect],
    read: Callable[[bytes, bool], Answer],
    expected: Callable[[Drawn], Answer],
) -> Iterator[Difference]:
    """An answer of chat in another dialect: streamed and whole, from a stream and from a whole reply."""
    drawn = right_chunks.chat(draw, contents, most_choices=1)
    meant = expected(drawn)
    endpoint = Endpoint.CHAT
    yield from same(f"stream to {name} stream", meant, read(piped(draw, endpoint, drawn, dialects()), True))
    yield from same(f"stream to {name} reply", meant, read(folded(draw, endpoint, drawn, dialects()), False))
    yield from same(f"reply to {name} reply", meant, read(folded_reply(endpoint, drawn, dialects()), False))
    yield from same(f"reply to {name} stream", meant, read(piped_reply(endpoint, drawn, dialects()), True))


def _renamed(usage: Json, names: Json) -> Json:
    return {names.get(name, name): told for name, told in usage.items()}


def responses(draw: Random, contents: Contents = ALL) -> Iterator[Difference]:
    """Chat to Responses: also log probabilities of text, custom calls, members of calls, and all of usage."""

    def expected(drawn: Drawn) -> Answer:
        meant = drawn.answer.choices[0]
        reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
        # Log probabilities of a refusal have no place.
        logprobs = (
            {"content": [_with_bytes(entry) for entry in entries]} if (entries := meant.logprobs.get("content")) else {}
        )
        choice = replace(
            meant,
            calls=_flat(meant.calls),
            parts=[],
            finish=[reasons.get(meant.finish[0], "completed")],
            logprobs=logprobs,
            members={},
            delta_members={},
        )
        usage = [_responses_usage(one) for one in drawn.answer.usage]
        return Answer({0: choice}, usage, is_done=True)

    def read(body: bytes, is_stream: bool) -> Answer:
        response = plain_client.response_of(body) if is_stream else json.loads(body)
        return plain_client.responses_answer(response)

    yield from _translated("Responses", draw, contents, lambda: ResponsesDialect({}), read, expected)


def _with_bytes(entry: Json) -> Json:
    """An entry of log probabilities. This dialect requires bytes: where the upstream sent none, they are made."""
    made = {"bytes": list(entry["token"].encode())} if entry["bytes"] is None else {}
    tops = {"top_logprobs": [_with_bytes(top) for top in entry["top_logprobs"]]} if "top_logprobs" in entry else {}
    return entry | made | tops


def _responses_usage(usage: Json) -> Json:
    """Usage with this dialect's names; the details that it requires are 0 where the upstream did not send them."""
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
    """Chat to Messages: no log probabilities; a refusal is text, with a stop reason of its own."""

    def expected(drawn: Drawn) -> Answer:
        meant = drawn.answer.choices[0]
        calls = _object_calls(meant)
        choice = Choice(meant.text + meant.refusal, meant.reasoning, calls=calls, finish=[_stop_reason(meant)])
        usage = [_messages_usage(one) for one in drawn.answer.usage]
        zeros = dict.fromkeys(
            ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"), 0
        )
        return Answer({0: choice}, usage or [zeros], is_done=True)

    def read(body: bytes, is_stream: bool) -> Answer:
        message = plain_client.message_of(body) if is_stream else json.loads(body)
        return plain_client.messages_answer(message)

    yield from _translated("Messages", draw, contents, MessagesDialect, read, expected)


def _object_calls(meant: Choice) -> list[Call]:
    """The calls of a dialect in which arguments are an object, and which has no object for the name.

    The input of a custom call is a member of it. A call that the answer's end may have cut is not delivered: one whose
    arguments are no JSON, and a last one whose input is free text.
    """
    calls = []
    for call in meant.calls:
        is_custom = call.type == "custom"
        is_cut = meant.finish == ["length"] and call is meant.calls[-1]
        if is_custom and not is_cut:
            calls.append(replace(call, type="function", text=json.dumps({"input": call.text})))
        elif not is_custom and _is_json(call.text):
            calls.append(replace(call, text=json.dumps(json.loads(call.text))))
    return _flat(calls)


def _flat(calls: list[Call]) -> list[Call]:
    """Calls without unknown members of `function` and `custom`: there is no such object."""
    return [
        replace(call, members={name: told for name, told in call.members.items() if not name.startswith("function.")})
        for call in calls
    ]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _stop_reason(meant: Choice) -> str:
    finish = meant.finish[0]
    if finish == "length":
        return "max_tokens"
    if meant.calls:
        return "tool_use"
    return "refusal" if meant.refusal or finish == "content_filter" else "end_turn"


def _messages_usage(usage: Json) -> Json:
    """Cached tokens stand apart, thinking has a name of its own, other details and the total have no place."""
    cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    counts = {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
    }
    thought = usage.get("completion_tokens_details", {}).get("reasoning_tokens")
    known = {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details"}
    details = {} if thought is None else {"output_tokens_details": {"thinking_tokens": thought}}
    return {name: told for name, told in usage.items() if name not in known} | counts | details


def ollama(draw: Random, contents: Contents = ALL) -> Iterator[Difference]:
    """Chat to Ollama: no log probabilities, no ids or members of calls, two counts; a refusal is text."""

    def expected(drawn: Drawn) -> Answer:
        meant = drawn.answer.choices[0]
        calls = [replace(call, id="", members={}) for call in _object_calls(meant)]
        finish = "stop" if meant.finish == ["tool_calls"] else meant.finish[0]
        choice = Choice(meant.text + meant.refusal, meant.reasoning, calls=calls, finish=[finish])
        names = {"prompt_tokens": "prompt_eval_count", "completion_tokens": "eval_count"}
        usage = [{ours: one[name] for name, ours in names.items()} for one in drawn.answer.usage] or [{}]
        return Answer({0: choice}, usage, is_done=True)

    def read(body: bytes, is_stream: bool) -> Answer:
        return plain_client.ollama_answer(body)

    yield from _translated(
        "Ollama", draw, contents, lambda: OllamaDialect(is_chat=True, created_at="now"), read, expected
    )


def chat(draw: Random, contents: Contents = ALL) -> Iterator[Difference]:
    """Chat."""
    yield from chunks(Endpoint.CHAT, draw, right_chunks.chat(draw, contents))


def completions(draw: Random, contents: Contents = ALL) -> Iterator[Difference]:
    """Completions."""
    yield from chunks(Endpoint.COMPLETIONS, draw, right_chunks.completions(draw, contents))


# Streams that are repaired within their own dialect: a legal one goes out event by event as it came in.


def _native(endpoint: Endpoint, draw: Random, drawn: DrawnEvents) -> Iterator[Difference]:
    def native(*, is_stream: bool) -> PassthroughRepairer:
        return passthrough_repairer_for(endpoint, fallback=OURS, request=drawn.request, is_stream=is_stream)

    yield from judged(endpoint, drawn.request, drawn.stream)
    stream = native(is_stream=True)
    sent = b"".join([*(stream.feed(piece) for piece in pieces(draw, drawn.stream)), stream.close()])
    yield from compare("events", _numbered(drawn.events), _numbered(_said(sent)))
    fold = native(is_stream=False)
    for piece in pieces(draw, drawn.stream):
        fold.feed(piece)
    fold.close()
    yield from compare("stream to reply", drawn.whole, json.loads(fold.body()))
    whole = native(is_stream=False)
    whole.feed_reply(drawn.reply)
    whole.close()
    yield from compare("reply to reply", drawn.whole, json.loads(whole.body()))
    spread = native(is_stream=True)
    sent = spread.feed_reply(drawn.reply) + spread.close()
    is_messages = endpoint is Endpoint.MESSAGES
    made = plain_client.message_of(sent) if is_messages else plain_client.response_of(sent)
    yield from compare("reply to stream", drawn.whole | ({"is_stopped": True} if is_messages else {}), made)


def _said(stream: bytes) -> list[Json]:
    """The events of a stream; each has its own name."""
    found = plain_client.events(stream)
    values = [json.loads(data) for _, data in found]
    assert [name for name, _ in found] == [one["type"] for one in values]
    return values


def _numbered(events: list[Json]) -> list[Json]:
    """Events without signs of life, which a comment becomes. Their numbers are checked, then left out."""
    numbers = [one["sequence_number"] for one in events if "sequence_number" in one]
    assert numbers == list(range(len(numbers)))
    return [one | {"sequence_number": 0} for one in events if one["type"] not in ("ping", "keepalive")]


def native_responses(draw: Random, contents: Contents = ALL) -> Iterator[Difference]:
    """Responses, repaired and folded."""
    yield from _native(Endpoint.RESPONSES, draw, right_events.responses(draw, contents))


def native_messages(draw: Random, contents: Contents = ALL) -> Iterator[Difference]:
    """Messages, repaired and folded; what the stream's own client makes of it is the message that was meant."""
    drawn = right_events.messages(draw, contents)
    meant = plain_client.message_of(drawn.stream)
    yield from compare("the generator itself", drawn.whole | {"is_stopped": True}, meant)
    yield from _native(Endpoint.MESSAGES, draw, drawn)


DIALECTS: dict[str, Callable[[Random, Contents], Iterator[Difference]]] = {
    "chat": chat,
    "completions": completions,
    "responses": native_responses,
    "messages": native_messages,
    "chat to Responses": responses,
    "chat to Messages": messages,
    "chat to Ollama": ollama,
}


def differences(dialect: str, seed: int, contents: Contents = ALL) -> list[Difference]:
    """What differs in one stream."""
    return list(DIALECTS[dialect](Random(f"{dialect} {seed}"), contents))


def main() -> int:
    """Try many streams, and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=10_000, help="streams of each dialect")
    parser.add_argument("--seed", type=int, default=0, help="of the first stream; each has the next")
    parser.add_argument("--only", choices=sorted(DIALECTS), help="one dialect")
    parser.add_argument("--without", default="", help="contents to leave out, such as growing,parts")
    parser.add_argument("--show", type=int, default=3, help="differences of each kind that are printed")
    args = parser.parse_args()
    contents = Contents(**dict.fromkeys(filter(None, args.without.split(",")), False))
    names = DIALECTS if args.only is None else [args.only]
    seeds = range(args.seed, args.seed + args.streams)
    return int(sum(_try(name, seeds, contents, args.show) for name in names) > 0)


def _try(name: str, seeds: range, contents: Contents, most: int) -> int:
    """Try the streams of one dialect; how many had a difference."""
    kinds: Counter[str] = Counter()
    differing = 0
    for seed in seeds:
        try:
            found = differences(name, seed, contents)
        except Exception as error:  # noqa: BLE001 - a crash is a difference like any other
            found = [Difference("crash", type(error).__name__, None, repr(error)[:500])]
        differing += bool(found)
        for one in found:
            kind = f"{one.step} {''.join(letter for letter in one.path if not letter.isdigit())}"
            kinds[kind] += 1
            if kinds[kind] <= most:
                sys.stdout.write(f"  {name} {seed}: {kind}\n    {one.before!r:.600}\n    {one.after!r:.600}\n")
    sys.stdout.write(f"{name}: {len(seeds)} streams, {differing} with a difference {dict(kinds) or ''}\n")
    return differing


if __name__ == "__main__":
    sys.exit(main())
