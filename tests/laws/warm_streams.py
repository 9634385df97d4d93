"""Generator of legal chat streams of one server, which differ as the streams of one server do.

The first ones have only text, so that a gateway learns their form; the others depart from it at some chunk.
"""

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple, TypeAlias

from tests.laws.right_chunks import ALL, cut, texts, value

Json: TypeAlias = dict[str, Any]

MOST_TEXTS = 40
"""More than a template of a whole stream has."""


class Style(NamedTuple):
    """The form of the chunks of a server."""

    is_plain: bool
    """Whether a template can have all its members."""

    model: str
    members: Json
    choice: Json
    delta: Json
    usage: Json
    separators: tuple[str, str]
    is_choice_first: bool
    has_null_usage: bool
    is_ascii: bool


def style(draw: Random, model: str) -> Style:
    """Draw the form of a server's chunks."""
    members: Json = draw.choice(({}, {"system_fingerprint": "fp_1"}, {"system_fingerprint": "%s%(i)b"}))
    is_plain = draw.random() < 0.8
    if not is_plain:
        members |= draw.choice(({"service_tier": "default"}, {"provider": "x%s%%"}, {"x_any": value(draw)}))
    usage = draw.choice(({}, {"prompt_tokens_details": {"cached_tokens": 2}}, {"cost": 0.25, "x_usage": [1, 2.5]}))
    return Style(
        is_plain,
        model,
        members,
        draw.choice(({}, {"logprobs": None}, {"logprobs": None, "stop_reason": None}, {"token_ids": None})),
        draw.choice(({"content": ""}, {"content": "", "refusal": None}, {"content": None}, {})),
        usage,
        draw.choice(((",", ":"), (", ", ": "))),
        is_choice_first=draw.random() < 0.3,
        has_null_usage=draw.random() < 0.5,
        is_ascii=draw.random() < 0.5,
    )


class Stream:
    """One stream of a server as chunks, which departures change."""

    def __init__(self, draw: Random, form: Style, pieces: list[str]) -> None:
        self.draw = draw
        self.form = form
        self.envelope: Json = {
            "id": f"chatcmpl-{draw.randrange(10**6)}",
            "object": "chat.completion.chunk",
            "created": 1700000000 + draw.randrange(10**6),
            "model": form.model,
        }
        first = self.chunk({"role": "assistant"} | form.delta)
        self.texts = [self.chunk({"content": piece}) for piece in pieces]
        self.rest = [self.chunk({}, draw.choice(("stop", "stop", "length")))]
        prompt, written = draw.randint(1, 999), draw.randint(0, 999)
        usage = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written} | form.usage
        self.usage = self.chunk({}) | {"choices": [], "usage": usage}
        self.first = [first]
        self.comments: set[int] = set()
        """Numbers of the chunks that a comment precedes."""

    def chunk(self, delta: Json, finish: str | None = None, **members: Any) -> Json:  # noqa: ANN401 - JSON
        """Return a chunk of the server's form."""
        choices = [{"index": 0, "delta": delta, **self.form.choice, "finish_reason": finish, **members}]
        null_usage = {"usage": None} if self.form.has_null_usage else {}
        if self.form.is_choice_first:
            return {"choices": choices, **self.envelope, **self.form.members, **null_usage}
        return {**self.envelope, **self.form.members, "choices": choices, **null_usage}

    def insert(self, *chunks: Json) -> None:
        """Insert chunks at some place between the texts."""
        place = self.draw.randint(0, len(self.texts))
        self.texts[place:place] = chunks

    def some_text(self) -> Json:
        """Return some text chunk, which may be changed."""
        chunks = [chunk for chunk in self.texts if isinstance(chunk["choices"][0]["delta"].get("content"), str)]
        if not chunks:
            chunks = [self.chunk({"content": "x"})]
            self.texts += chunks
        return self.draw.choice(chunks)

    def bytes(self) -> bytes:
        """Return the stream."""
        frames = []
        for number, chunk in enumerate([*self.first, *self.texts, *self.rest, self.usage]):
            written = json.dumps(chunk, ensure_ascii=self.form.is_ascii, separators=self.form.separators)
            for letter in "\u0085\u2028\u2029":
                written = written.replace(letter, f"\\u{ord(letter):04x}")
            frames += [": keep-alive\n\n"] * (number in self.comments)
            frames.append(f"data: {written}\n\n")
        return "".join([*frames, "data: [DONE]\n\n"]).encode()


def plain_pieces(draw: Random, most: int = 9) -> list[str]:
    """Draw pieces of text that are not empty."""
    pieces = [piece for piece in texts(draw, ALL, most).pieces if piece]
    return pieces or ["Hello", " there"]


# Departures: each returns nothing and leaves a legal stream.


def _log_probabilities(stream: Stream) -> None:
    chunk = stream.some_text()["choices"][0]
    text = chunk["delta"]["content"]
    chunk["logprobs"] = {"content": [{"token": text, "logprob": -0.5, "bytes": None, "top_logprobs": []}]}
    chunk["logprobs"]["refusal"] = None


def _unknown_member(stream: Stream) -> None:
    chunk, draw = stream.some_text(), stream.draw
    place = draw.choice((chunk, chunk["choices"][0], chunk["choices"][0]["delta"]))
    place["x_new"] = draw.choice(("s", {"a": None}, [{"b": "c"}], True))


def _reasoning(stream: Stream) -> None:
    stream.insert(*(stream.chunk({"reasoning_content": piece}) for piece in plain_pieces(stream.draw, 4)))


def _calls(stream: Stream) -> None:
    draw = stream.draw
    queues = []
    for number in range(draw.randint(1, 3)):
        begun = {
            "index": number,
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": "f", "arguments": ""},
        }
        pieces = cut(draw, json.dumps({"a": draw.choice(("x", "é", "<think>", "data: "))}))
        queues.append([begun, *({"index": number, "function": {"arguments": piece}} for piece in pieces)])
    started = 0
    while any(queues):
        ready = [position for position, queue in enumerate(queues) if queue and position <= started]
        position = draw.choice(ready)
        stream.texts.append(stream.chunk({"tool_calls": [queues[position].pop(0)]}))
        started = max(started, position + 1)
    stream.rest[0]["choices"][0]["finish_reason"] = "tool_calls"


def _refusal(stream: Stream) -> None:
    stream.texts = [stream.chunk({"refusal": piece}) for piece in plain_pieces(stream.draw)]


def _text_with_finish(stream: Stream) -> None:
    stream.rest[0]["choices"][0]["delta"] = {"content": " end"}


def _filtered(stream: Stream) -> None:
    stream.rest[0]["choices"][0]["finish_reason"] = "content_filter"


def _more_usage(stream: Stream) -> None:
    usage = stream.usage["usage"]
    usage["total_tokens"] += stream.draw.choice((0, 5))
    usage["completion_tokens_details"] = {"reasoning_tokens": 5}


def _growing_texts(stream: Stream) -> None:
    stream.texts = [stream.chunk({"content": "ab" * count}) for count in range(1, stream.draw.randint(3, 6))]


def _many_texts(stream: Stream) -> None:
    words = plain_pieces(stream.draw)
    stream.texts = [stream.chunk({"content": words[number % len(words)]}) for number in range(MOST_TEXTS)]


def _empty_text(stream: Stream) -> None:
    stream.insert(stream.chunk({"content": ""}))


def _no_text(stream: Stream) -> None:
    stream.texts = []


def _parts(stream: Stream) -> None:
    stream.insert(stream.chunk({"content": [{"type": "text", "text": "as a part"}]}))


def _comment(stream: Stream) -> None:
    stream.comments.add(stream.draw.randint(0, len(stream.texts) + 2))


def _other_form(stream: Stream) -> None:
    """The members of one chunk in another order."""
    chunk = stream.some_text()
    members = list(chunk.items())
    stream.draw.shuffle(members)
    chunk.clear()
    chunk.update(members)


DEPARTURES: tuple[Callable[[Stream], None], ...] = (
    _log_probabilities,
    _unknown_member,
    _reasoning,
    _calls,
    _refusal,
    _text_with_finish,
    _filtered,
    _more_usage,
    _growing_texts,
    _many_texts,
    _empty_text,
    _no_text,
    _parts,
    _comment,
    _other_form,
)


def warm_streams(draw: Random, form: Style, count: int) -> Iterator[bytes]:
    """Draw streams of one server: every other one has only text, the others depart from that.

    A template is learnt from the first one, unless chunks of this form have members that no template has.
    """
    for number in range(count):
        stream = Stream(draw, form, plain_pieces(draw) if number else ["Hello", " there"])
        for depart in draw.sample(DEPARTURES, draw.choice((1, 1, 1, 2)) * (number % 2)):
            depart(stream)
        yield stream.bytes()
