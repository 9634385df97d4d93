"""What is asked: prompts of a dataset, or written here, in conversations that the server's own answers carry on.

A conversation that was answered goes on before a new one begins: what the server keeps of it is of use, as in life.
"""

import random
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any, Protocol

import msgspec

from welldone.bench.counting import ESTIMATE, Counter
from welldone.bench.datasets import Message, Turns, read_dataset
from welldone.bench.lengths import draw
from welldone.bench.profiles import FIXED_LENGTH, Profile, profile_named
from welldone.bench.settings import BenchSettings, Length
from welldone.bench.writing import Writer

MOST_CONVERSATIONS = 5_000
"""That are taken of a dataset, by chance: each is counted before the start, which takes about a millisecond."""


class Said(msgspec.Struct, frozen=True):
    """What a user says in one turn."""

    messages: Sequence[Message]
    """One of the user, after the system's where there is one."""
    tokens: int | None


class Conversation(msgspec.Struct, frozen=True):
    """One that is under way: what was said so far, and what the user has yet to say."""

    history: list[dict[str, Any]]
    rest: Sequence[Said]


class Turn(msgspec.Struct):
    """One request to be made."""

    messages: list[dict[str, Any]]
    limit_tokens: int | None
    prompt_tokens: int | None
    """By the tokenizer, without the words of the chat template. None where there is no tokenizer, or where the server's
    own answers are part of it: to count them would take time while requests are under way."""
    conversation: Conversation | None
    """What goes on once this is answered, if anything does."""


class Prompts(Protocol):
    """An endless source of requests."""

    def next(self) -> Turn:
        """The request to be made now."""

    def answered(self, turn: Turn, text: str) -> None:
        """The server's whole answer: what the user says to it is due next."""


def prompts_for(settings: BenchSettings, counter: Counter | None, rng: random.Random) -> Prompts:
    """What these settings ask for; `ValueError` in one sentence where they ask for what is not there."""
    profile = FIXED_LENGTH if settings.profile is None else profile_named(settings.profile)
    decode = settings.decode or profile.decode
    if settings.dataset is None:
        scripts = _written(profile, settings.prompt, counter, rng)
    else:
        length = settings.prompt or (profile.prompt if settings.profile else None)
        found = read_dataset(settings.dataset)
        rng.shuffle(found)
        scripts = cycle(_fitting(found[:MOST_CONVERSATIONS], length, counter, rng))
    return Conversations(scripts, decode, rng)


class Conversations:
    """Requests out of conversations, which are given as what a user says turn by turn."""

    def __init__(self, scripts: Iterator[Sequence[Said]], decode: Length, rng: random.Random) -> None:
        self._scripts = scripts
        self._decode = decode
        self._rng = rng
        self._due: deque[Conversation] = deque()
        """Never more than requests were under way at once: only an answer adds one."""

    def next(self) -> Turn:
        conversation = self._due.popleft() if self._due else Conversation([], next(self._scripts))
        said, *rest = conversation.rest
        messages = [*conversation.history, *said.messages]
        return Turn(
            messages=messages,
            limit_tokens=draw(self._decode, self._rng),
            prompt_tokens=None if conversation.history else said.tokens,
            conversation=Conversation(messages, rest) if rest else None,
        )

    def answered(self, turn: Turn, text: str) -> None:
        conversation = turn.conversation
        # An answer without text (only thoughts, or a call) cannot stand in a history: many servers refuse it.
        if conversation is not None and text:
            history = [*conversation.history, {"role": "assistant", "content": text}]
            self._due.append(Conversation(history, conversation.rest))


def _written(
    profile: Profile, length: Length | None, counter: Counter | None, rng: random.Random
) -> Iterator[Sequence[Said]]:
    """Conversations that are made up, for ever."""
    writer = Writer(profile.style, counter or ESTIMATE, rng)
    length = length or profile.written
    while True:
        turns = [_said(*writer.write(draw(length, rng)), counter) for _ in range(rng.randint(*profile.turns))]
        yield [_with_system(turns[0], writer.opening(), counter), *turns[1:]] if len(turns) > 1 else turns


def _said(text: str, tokens: int, counter: Counter | None) -> Said:
    return Said([{"role": "user", "content": text}], tokens if counter else None)


def _with_system(said: Said, opening: str, counter: Counter | None) -> Said:
    """The first turn of a chat, after the system's words. They too are new each time: they come first of all."""
    text = f"{opening} You help the people there. Answer in plain words."
    tokens = said.tokens + counter.count(text) if counter and said.tokens is not None else None
    return Said([{"role": "system", "content": text}, *said.messages], tokens)


def _fitting(
    conversations: list[Turns], length: Length | None, counter: Counter | None, rng: random.Random
) -> list[Sequence[Said]]:
    """The conversations of a file, each turn cut to a length. One whose first turn is too short is left out."""
    found = [
        [_cut(turn, length, counter, rng) for turn in turns]
        for turns in conversations
        if length is None or (counter or ESTIMATE).count(turns[0][-1]["content"]) >= length.min_tokens
    ]
    if not found and length is not None:
        raise ValueError(f"the dataset has no first question of {length.min_tokens} tokens or more; ask for fewer")
    return list(found)


def _cut(turn: list[Message], length: Length | None, counter: Counter | None, rng: random.Random) -> Said:
    *before, last = turn
    if length is not None:
        last = {**last, "content": (counter or ESTIMATE).cut(last["content"], draw(length, rng))}
    messages = [*before, last]
    return Said(messages, sum(counter.count(message["content"]) for message in messages) if counter else None)
