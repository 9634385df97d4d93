"""What is asked: prompts of a dataset, or written here, in conversations that the server's own answers carry on.

A conversation that was answered goes on before a new one begins: what the server keeps of it is of use, as in life.
"""

import random
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, Protocol

import msgspec

from welldone.bench import words
from welldone.bench.settings import BenchSettings, LengthSpec, draw_length
from welldone.bench.tokens import ESTIMATED_COUNTER, BenchTokenCounter
from welldone.bench.words import FIXED_LENGTH_PROFILE, PromptStyle, WorkloadProfile, find_workload_profile

# Datasets: conversations out of a file. What the assistant said in them is left out: the server answers itself.
#
# A JSON file is a list of `{"conversations": [{"role": "user", "content": "…"}]}` (or, as ShareGPT has it, of
# `{"from": "human", "value": "…"}`). A file of JSON lines has `prompt`, `text`, `messages` or `conversations` in each.


DATASET_LIMIT_BYTES = 256 * 2**20
"""A file is read whole, and takes a few times its size in memory."""
_ROLES = {"user": "user", "human": "user", "system": "system"}
_TEXT_FIELDS = '"prompt", "text", "messages" or "conversations"'
_NEWLINE = b"\n"
_BYTE_OFFSET = re.compile(r"\(byte (\d+)\)")


class DatasetMessage(msgspec.Struct, frozen=True):
    """A message of a file, in the names of today or in those of ShareGPT."""

    role: str | None = None
    content: str | None = None
    speaker: str | None = msgspec.field(default=None, name="from")
    value: str | None = None


class DatasetRow(msgspec.Struct, frozen=True):
    """One conversation of a file, in one of its forms. What else it says is not kept."""

    prompt: str | None = None
    text: str | None = None
    messages: tuple[DatasetMessage, ...] | None = None
    conversations: tuple[DatasetMessage, ...] | None = None


PromptMessage = dict[str, str]
DatasetTurns = list[list[PromptMessage]]
"""What a user says, turn by turn: one message, after the system's where there is one."""

_LIST_DECODER = msgspec.json.Decoder(list[DatasetRow])
_ROW_DECODER = msgspec.json.Decoder(DatasetRow)


def read_dataset(path: Path) -> list[DatasetTurns]:
    """The conversations of a file, in its order; `ValueError` in one sentence, with the place, if it is no dataset."""
    found = [turns for row in _parse_rows(path, _read_file(path)) if (turns := _user_turns(row))]
    if not found:
        raise ValueError(f"{path.name} has no conversation in which a user says something")
    return found


def _read_file(path: Path) -> bytes:
    try:
        if not path.is_file():  # a pipe would be waited for
            raise ValueError(f"there is no dataset file {path}")
        with path.open("rb") as file:
            data = file.read(DATASET_LIMIT_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    if len(data) > DATASET_LIMIT_BYTES:
        raise ValueError(f"{path.name} has more than {DATASET_LIMIT_BYTES // 2**20} MB: take a part of it")
    return data.removeprefix(b"\xef\xbb\xbf")


def _parse_rows(path: Path, data: bytes) -> Iterator[DatasetRow]:
    if not data.lstrip().startswith(b"["):
        for number, line in enumerate(data.split(_NEWLINE), 1):
            if line.strip():
                yield _parse_row(line, f"{path.name}, line {number}")
        return
    try:
        rows = _LIST_DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path.name}{_line_of(error, data)}: {_decode_error(error)}") from None
    for number, row in enumerate(rows, 1):
        yield _check_row(row, f"{path.name}, entry {number}")


def _parse_row(line: bytes, location: str) -> DatasetRow:
    try:
        return _check_row(_ROW_DECODER.decode(line), location)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{location}: {_decode_error(error)}") from None


def _check_row(row: DatasetRow, location: str) -> DatasetRow:
    if (row.prompt, row.text, row.messages, row.conversations) == (None,) * 4:
        raise ValueError(f"{location}: there is no {_TEXT_FIELDS}")
    return row


def _decode_error(error: Exception) -> str:
    return str(error).replace("`", "") if isinstance(error, msgspec.MsgspecError) else "this is no JSON"


def _line_of(error: Exception, data: bytes) -> str:
    """On which line the JSON breaks, where that is known."""
    found = _BYTE_OFFSET.search(str(error))
    return "" if found is None else f", line {1 + data[: int(found[1])].count(_NEWLINE)}"


def _user_turns(row: DatasetRow) -> DatasetTurns:
    if row.messages is None and row.conversations is None:
        text = row.prompt if row.prompt is not None else row.text
        return [[{"role": "user", "content": text}]] if text else []
    turns: DatasetTurns = []
    waiting: list[PromptMessage] = []
    for said in row.messages if row.messages is not None else row.conversations or ():
        role = _ROLES.get(said.role or said.speaker or "")
        content = said.content if said.content is not None else said.value
        if role is None or not content:
            continue
        waiting.append({"role": role, "content": content})
        if role == "user":
            turns.append(waiting)
            waiting = []
    return turns


# Prompts that are written here, offline, of a given number of tokens.
#
# Parts are made and counted once. A prompt is then a matter of drawing parts and adding up their tokens, which takes a
# millionth of a second each: a prompt is made while requests are under way, and must not delay them.


PART_COUNT = 500
"""How many different parts there are: a long prompt has some hundred of them, in an order of its own."""


class PromptWriter:
    """Writes prompts in one style. What it writes depends on `rng` alone."""

    def __init__(self, style: PromptStyle, counter: BenchTokenCounter, rng: random.Random) -> None:
        self._style = style
        self._counter = counter
        self._rng = rng
        self._number = 0
        self._parts = [(part, self._count(part)) for part in (style.part(rng) for _ in range(PART_COUNT))]
        # What is left in the end is filled with the longest parts that fit, and with small words.
        self._by_tokens: dict[int, list[str]] = {}
        for part, size in (*self._parts, *((f" {word}", self._count(f" {word}")) for word in words.FUNCTION_WORDS)):
            self._by_tokens.setdefault(size, []).append(part)
        self._sizes = sorted(self._by_tokens)
        self._closing_tokens = self._count(style.closing)

    def _count(self, part: str) -> int:
        """How many tokens a part adds to a text: one at least, so that writing comes to an end."""
        return max(1, self._counter.count(self._style.separator + part) - self._counter.count(self._style.separator))

    def write(self, tokens: int) -> tuple[str, int]:
        """A prompt that was not there before, and how many tokens it has: as many as asked for, if it can be."""
        opening = self.opening()
        left = tokens - self._counter.count(opening) - self._closing_tokens
        if left < 0:
            text = self._counter.truncate(opening + self._style.closing, tokens)
            return text, self._counter.count(text)
        written = [opening]
        while left >= self._sizes[-1]:
            part, size = self._rng.choice(self._parts)
            written.append(part)
            left -= size
        while left >= self._sizes[0]:
            size = self._sizes[bisect_right(self._sizes, left) - 1]
            written.append(self._rng.choice(self._by_tokens[size]))
            left -= size
        written.append(self._style.closing)
        return "".join(written), tokens - left

    def opening(self) -> str:
        """The first words of a text: never the same twice."""
        self._number += 1
        return self._style.opening(self._rng, self._number)


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
