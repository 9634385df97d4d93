"""Datasets: conversations out of a file. What the assistant said in them is left out: the server answers itself.

A JSON file is a list of `{"conversations": [{"role": "user", "content": "…"}]}` (or, as ShareGPT has it, of
`{"from": "human", "value": "…"}`). A file of JSON lines has `prompt`, `text`, `messages` or `conversations` in each.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

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
