"""Prompts: from a dataset or synthetic, in conversations that continue with the server's own answers.

An answered conversation continues before a new one starts, so that the server's prompt cache is of use, as in practice.
"""

import random
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from welldone.bench import words
from welldone.bench.settings import BenchSettings, LengthSpec, draw_length
from welldone.bench.tokens import ESTIMATED_COUNTER, BenchTokenCounter
from welldone.bench.words import FIXED_LENGTH_PROFILE, PromptStyle, WorkloadProfile, find_workload_profile

# Datasets: conversations from a file. Their assistant messages are ignored: the server answers itself.
#
# A JSON file is a list of `{"conversations": [{"role": "user", "content": "…"}]}` (or, in the format of ShareGPT, of
# `{"from": "human", "value": "…"}`). A file of JSON lines has `prompt`, `text`, `messages` or `conversations` per line.


DATASET_LIMIT_BYTES = 256 * 2**20
"""Files are read whole, and take a few times their size in memory."""
_ROLES = {"user": "user", "human": "user", "system": "system"}
_TEXT_FIELDS = '"prompt", "text", "messages" or "conversations"'
_BYTE_OFFSET = re.compile(r"\(byte (\d+)\)")


class DatasetMessage(msgspec.Struct, frozen=True):
    """A message in a dataset, with the field names of OpenAI or of ShareGPT."""

    role: str | None = None
    content: str | None = None
    speaker: str | None = msgspec.field(default=None, name="from")
    value: str | None = None


class DatasetRow(msgspec.Struct, frozen=True):
    """A conversation in a dataset, in one of its formats. Other fields are ignored."""

    prompt: str | None = None
    text: str | None = None
    messages: tuple[DatasetMessage, ...] | None = None
    conversations: tuple[DatasetMessage, ...] | None = None


PromptMessage = dict[str, str]
DatasetTurns = list[list[PromptMessage]]
"""The messages of each turn of a user: one message, after the system message in the first turn if there is one."""

Decoded = TypeVar("Decoded")
_LIST_DECODER = msgspec.json.Decoder(list[DatasetRow])
_ROW_DECODER = msgspec.json.Decoder(DatasetRow)


def read_dataset(path: Path) -> list[DatasetTurns]:
    """Read the conversations of a file in order. Raises `ValueError` with the position if it is not a dataset."""
    conversations = [turns for row in _parse_rows(path, _read_file(path)) if (turns := _user_turns(row))]
    if not conversations:
        raise ValueError(f"{path.name} has no conversation with a user message")
    return conversations


def _read_file(path: Path) -> bytes:
    try:
        if not path.is_file():  # reading a pipe would block
            raise ValueError(f"there is no dataset file {path}")
        with path.open("rb") as file:
            data = file.read(DATASET_LIMIT_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    if len(data) > DATASET_LIMIT_BYTES:
        raise ValueError(f"{path.name} has more than {DATASET_LIMIT_BYTES // 2**20} MB: use a part of it")
    return data.removeprefix(b"\xef\xbb\xbf")


def _parse_rows(path: Path, data: bytes) -> Iterator[DatasetRow]:
    if data.lstrip().startswith(b"["):
        rows = _decode(_LIST_DECODER, data, path.name, has_lines=True)
        located = ((f"{path.name}, entry {number}", row) for number, row in enumerate(rows, 1))
    else:
        lines = ((f"{path.name}, line {number}", line) for number, line in enumerate(data.split(b"\n"), 1))
        located = ((location, _decode(_ROW_DECODER, line, location)) for location, line in lines if line.strip())
    for location, row in located:
        if (row.prompt, row.text, row.messages, row.conversations) == (None,) * 4:
            raise ValueError(f"{location}: there is no {_TEXT_FIELDS}")
        yield row


def _decode(
    decoder: "msgspec.json.Decoder[Decoded]", data: bytes, location: str, *, has_lines: bool = False
) -> Decoded:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if has_lines and (offset := _BYTE_OFFSET.search(str(error))):
            lines_before = data[: int(offset[1])].count(b"\n")
            location += f", line {1 + lines_before}"
        reason = str(error).replace("`", "") if isinstance(error, msgspec.MsgspecError) else "not JSON"
        raise ValueError(f"{location}: {reason}") from None


def _user_turns(row: DatasetRow) -> DatasetTurns:
    if row.messages is None and row.conversations is None:
        text = row.prompt if row.prompt is not None else row.text
        return [[{"role": "user", "content": text}]] if text else []
    turns: DatasetTurns = []
    waiting: list[PromptMessage] = []
    for message in row.messages if row.messages is not None else row.conversations or ():
        role = _ROLES.get(message.role or message.speaker or "")
        content = message.content if message.content is not None else message.value
        if role is None or not content:
            continue
        waiting.append({"role": role, "content": content})
        if role == "user":
            turns.append(waiting)
            waiting = []
    return turns


# Synthetic prompts with a given number of tokens.
#
# Parts are generated and counted once. A prompt is then a random sequence of parts whose token counts are added, which
# takes a microsecond per part: prompts are generated during the measurement and must not delay requests.


PART_COUNT = 500
"""Number of different parts: a long prompt has some hundred of them, in random order."""


class PromptWriter:
    """Generates prompts in one style, deterministically for a given `rng`."""

    def __init__(self, style: PromptStyle, counter: BenchTokenCounter, rng: random.Random) -> None:
        self._style = style
        self._counter = counter
        self._rng = rng
        self._number = 0
        self._parts = [(passage, self._count(passage)) for passage in (style.part(rng) for _ in range(PART_COUNT))]
        # The rest of a prompt is filled with the longest parts that fit, then with short words.
        self._by_tokens: dict[int, list[str]] = {}
        for passage, size in (*self._parts, *((f" {word}", self._count(f" {word}")) for word in words.FUNCTION_WORDS)):
            self._by_tokens.setdefault(size, []).append(passage)
        self._sizes = sorted(self._by_tokens)
        self._closing_tokens = self._count(style.closing)

    def _count(self, passage: str) -> int:
        """Return the tokens that a part adds to a text: at least one, so that generation terminates."""
        return max(1, self._counter.count(self._style.separator + passage) - self._counter.count(self._style.separator))

    def write(self, tokens: int) -> tuple[str, int]:
        """Return a new prompt and its number of tokens, which equals `tokens` if possible."""
        opening = self.opening()
        left = tokens - self._counter.count(opening) - self._closing_tokens
        if left < 0:
            text = self._counter.truncate(opening + self._style.closing, tokens)
            return text, self._counter.count(text)
        written = [opening]
        while left >= self._sizes[-1]:
            passage, size = self._rng.choice(self._parts)
            written.append(passage)
            left -= size
        while left >= self._sizes[0]:
            size = self._sizes[bisect_right(self._sizes, left) - 1]
            written.append(self._rng.choice(self._by_tokens[size]))
            left -= size
        written.append(self._style.closing)
        return "".join(written), tokens - left

    def opening(self) -> str:
        """Return the first words of a text, unique among all."""
        self._number += 1
        return self._style.opening(self._rng, self._number)


MAX_CONVERSATIONS = 5_000
"""Sampled from a dataset: each is tokenized before the start, which takes about a millisecond."""


class UserTurn(msgspec.Struct, frozen=True):
    """The messages of one turn of a user."""

    messages: Sequence[PromptMessage]
    """The user message, after the system message if there is one."""
    tokens: int | None


class PromptRequest(msgspec.Struct):
    """A request to send."""

    messages: list[dict[str, Any]]
    max_tokens: int | None
    prompt_tokens: int | None
    """From the tokenizer, without the chat template. None without a tokenizer, or if the prompt includes answers of the
    server: counting them would take time during the measurement."""
    remaining: Sequence[UserTurn] = ()
    """The turns of the conversation that follow the answer."""


class PromptSource(Protocol):
    """An endless source of requests."""

    def next(self) -> PromptRequest:
        """Return the next request."""

    def add_answer(self, request: PromptRequest, text: str) -> None:
        """Add the complete answer of the server: the next turn of the conversation becomes available."""


def make_prompt_source(settings: BenchSettings, counter: BenchTokenCounter | None, rng: random.Random) -> PromptSource:
    """Return the source for these settings; raises `ValueError` if a profile, a file or a tokenizer is missing."""
    profile = FIXED_LENGTH_PROFILE if settings.profile is None else find_workload_profile(settings.profile)
    decode = settings.decode or profile.decode
    if settings.dataset is None:
        scripts = _synthetic_conversations(profile, settings.prompt, counter, rng)
    else:
        length = settings.prompt or (profile.prompt if settings.profile else None)
        conversations = read_dataset(settings.dataset)
        rng.shuffle(conversations)
        scripts = cycle(_fit_conversations(conversations[:MAX_CONVERSATIONS], length, counter, rng))
    return ConversationSource(scripts, decode, rng)


class ConversationSource:
    """Requests from conversations, each given as the turns of a user."""

    def __init__(self, scripts: Iterator[Sequence[UserTurn]], decode: LengthSpec, rng: random.Random) -> None:
        self._scripts = scripts
        self._decode = decode
        self._rng = rng
        self._due: deque[tuple[list[dict[str, Any]], Sequence[UserTurn]]] = deque()
        """Messages so far and remaining turns. At most as many as requests in flight: only an answer adds one."""

    def next(self) -> PromptRequest:
        history, (turn, *rest) = self._due.popleft() if self._due else ([], next(self._scripts))
        max_tokens = draw_length(self._decode, self._rng)
        return PromptRequest([*history, *turn.messages], max_tokens, None if history else turn.tokens, rest)

    def add_answer(self, request: PromptRequest, text: str) -> None:
        # Many servers reject a history with an answer that has no text (only reasoning, or a tool call).
        if request.remaining and text:
            self._due.append(([*request.messages, {"role": "assistant", "content": text}], request.remaining))


def _synthetic_conversations(
    profile: WorkloadProfile, length: LengthSpec | None, counter: BenchTokenCounter | None, rng: random.Random
) -> Iterator[Sequence[UserTurn]]:
    """Yield synthetic conversations without end."""
    writer = PromptWriter(profile.style, counter or ESTIMATED_COUNTER, rng)
    length = length or profile.synthetic_length
    while True:
        written = [writer.write(draw_length(length, rng)) for _ in range(rng.randint(*profile.turns))]
        turns = [UserTurn([{"role": "user", "content": text}], tokens if counter else None) for text, tokens in written]
        if len(turns) > 1:
            # The system message is unique too, since it comes first in the prompt.
            system = f"{writer.opening()} You help the people there. Answer in plain words."
            tokens = written[0][1] + counter.count(system) if counter else None
            turns[0] = UserTurn([{"role": "system", "content": system}, *turns[0].messages], tokens)
        yield turns


def _fit_conversations(
    conversations: list[DatasetTurns], length: LengthSpec | None, counter: BenchTokenCounter | None, rng: random.Random
) -> list[list[UserTurn]]:
    """Cut the turns of a dataset to a length. Conversations whose first turn is too short are skipped."""
    fitting = [
        [_cut_turn(turn, length, counter, rng) for turn in turns]
        for turns in conversations
        if length is None or (counter or ESTIMATED_COUNTER).count(turns[0][-1]["content"]) >= length.min_tokens
    ]
    if not fitting and length is not None:
        least = length.min_tokens
        raise ValueError(f"the dataset has no first message of {least} tokens or more; use a smaller length")
    return fitting


def _cut_turn(
    turn: list[PromptMessage], length: LengthSpec | None, counter: BenchTokenCounter | None, rng: random.Random
) -> UserTurn:
    *before, last = turn
    if length is not None:
        last = {**last, "content": (counter or ESTIMATED_COUNTER).truncate(last["content"], draw_length(length, rng))}
    messages = [*before, last]
    return UserTurn(messages, sum(counter.count(message["content"]) for message in messages) if counter else None)
