"""What is asked: prompts of a dataset, or written here, in conversations that the server's own answers carry on.

A conversation that was answered goes on before a new one begins: what the server keeps of it is of use, as in life.
"""

import random
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any, Protocol

import msgspec

from welldone.bench.counting import ESTIMATED_COUNTER, BenchTokenCounter
from welldone.bench.datasets import PromptMessage, DatasetTurns, read_dataset
from welldone.bench.lengths import draw_length
from welldone.bench.profiles import FIXED_LENGTH_PROFILE, WorkloadProfile, find_workload_profile
from welldone.bench.settings import BenchSettings, LengthSpec
from welldone.bench.writing import PromptWriter

MAX_CONVERSATIONS = 5_000
"""That are taken of a dataset, by chance: each is counted before the start, which takes about a millisecond."""


class UserTurn(msgspec.Struct, frozen=True):
    """What a user says in one turn."""

    messages: Sequence[PromptMessage]
    """One of the user, after the system's where there is one."""
    tokens: int | None


class Conversation(msgspec.Struct, frozen=True):
    """One that is under way: what was said so far, and what the user has yet to say."""

    history: list[dict[str, Any]]
    remaining: Sequence[UserTurn]


class PromptRequest(msgspec.Struct):
    """One request to be made."""

    messages: list[dict[str, Any]]
    max_tokens: int | None
    prompt_tokens: int | None
    """By the tokenizer, without the words of the chat template. None where there is no tokenizer, or where the server's
    own answers are part of it: to count them would take time while requests are under way."""
    conversation: Conversation | None
    """What goes on once this is answered, if anything does."""


class PromptSource(Protocol):
    """An endless source of requests."""

    def next(self) -> PromptRequest:
        """The request to be made now."""

    def add_answer(self, request: PromptRequest, text: str) -> None:
        """The server's whole answer: what the user says to it is due next."""


def make_prompt_source(settings: BenchSettings, counter: BenchTokenCounter | None, rng: random.Random) -> PromptSource:
    """What these settings ask for; `ValueError` in one sentence where they ask for what is not there."""
    profile = FIXED_LENGTH_PROFILE if settings.profile is None else find_workload_profile(settings.profile)
    decode = settings.decode or profile.decode
    if settings.dataset is None:
        scripts = _synthetic_conversations(profile, settings.prompt, counter, rng)
    else:
        length = settings.prompt or (profile.prompt if settings.profile else None)
        found = read_dataset(settings.dataset)
        rng.shuffle(found)
        scripts = cycle(_fit_conversations(found[:MAX_CONVERSATIONS], length, counter, rng))
    return ConversationSource(scripts, decode, rng)


class ConversationSource:
    """Requests out of conversations, which are given as what a user says turn by turn."""

    def __init__(self, scripts: Iterator[Sequence[UserTurn]], decode: LengthSpec, rng: random.Random) -> None:
        self._scripts = scripts
        self._decode = decode
        self._rng = rng
        self._due: deque[Conversation] = deque()
        """Never more than requests were under way at once: only an answer adds one."""

    def next(self) -> PromptRequest:
        conversation = self._due.popleft() if self._due else Conversation([], next(self._scripts))
        said, *rest = conversation.remaining
        messages = [*conversation.history, *said.messages]
        return PromptRequest(
            messages=messages,
            max_tokens=draw_length(self._decode, self._rng),
            prompt_tokens=None if conversation.history else said.tokens,
            conversation=Conversation(messages, rest) if rest else None,
        )

    def add_answer(self, request: PromptRequest, text: str) -> None:
        conversation = request.conversation
        # An answer without text (only thoughts, or a call) cannot stand in a history: many servers refuse it.
        if conversation is not None and text:
            history = [*conversation.history, {"role": "assistant", "content": text}]
            self._due.append(Conversation(history, conversation.remaining))


def _synthetic_conversations(
    profile: WorkloadProfile, length: LengthSpec | None, counter: BenchTokenCounter | None, rng: random.Random
) -> Iterator[Sequence[UserTurn]]:
    """Conversations that are made up, for ever."""
    writer = PromptWriter(profile.style, counter or ESTIMATED_COUNTER, rng)
    length = length or profile.synthetic_length
    while True:
        turns = [
            _user_turn(*writer.write(draw_length(length, rng)), counter) for _ in range(rng.randint(*profile.turns))
        ]
        yield [_with_system(turns[0], writer.opening(), counter), *turns[1:]] if len(turns) > 1 else turns


def _user_turn(text: str, tokens: int, counter: BenchTokenCounter | None) -> UserTurn:
    return UserTurn([{"role": "user", "content": text}], tokens if counter else None)


def _with_system(turn: UserTurn, opening: str, counter: BenchTokenCounter | None) -> UserTurn:
    """The first turn of a chat, after the system's words. They too are new each time: they come first of all."""
    text = f"{opening} You help the people there. Answer in plain words."
    tokens = turn.tokens + counter.count(text) if counter and turn.tokens is not None else None
    return UserTurn([{"role": "system", "content": text}, *turn.messages], tokens)


def _fit_conversations(
    conversations: list[DatasetTurns], length: LengthSpec | None, counter: BenchTokenCounter | None, rng: random.Random
) -> list[Sequence[UserTurn]]:
    """The conversations of a file, each turn cut to a length. One whose first turn is too short is left out."""
    found = [
        [_cut_turn(turn, length, counter, rng) for turn in turns]
        for turns in conversations
        if length is None or (counter or ESTIMATED_COUNTER).count(turns[0][-1]["content"]) >= length.min_tokens
    ]
    if not found and length is not None:
        raise ValueError(f"the dataset has no first question of {length.min_tokens} tokens or more; ask for fewer")
    return list(found)


def _cut_turn(
    turn: list[PromptMessage], length: LengthSpec | None, counter: BenchTokenCounter | None, rng: random.Random
) -> UserTurn:
    *before, last = turn
    if length is not None:
        last = {**last, "content": (counter or ESTIMATED_COUNTER).truncate(last["content"], draw_length(length, rng))}
    messages = [*before, last]
    return UserTurn(messages, sum(counter.count(message["content"]) for message in messages) if counter else None)
