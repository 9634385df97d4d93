"""Datasets: conversations out of a file. What the assistant said in them is left out: the server answers itself.

A JSON file is a list of `{"conversations": [{"role": "user", "content": "…"}]}` (or, as ShareGPT has it, of
`{"from": "human", "value": "…"}`). A file of JSON lines has `prompt`, `text`, `messages` or `conversations` in each.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

FILE_LIMIT_BYTES = 256 * 2**20
"""A file is read whole, and takes a few times its size in memory."""
_ROLES = {"user": "user", "human": "user", "system": "system"}
_FORMS = '"prompt", "text", "messages" or "conversations"'
_NEWLINE = b"\n"
_PLACE = re.compile(r"\(byte (\d+)\)")


class Said(msgspec.Struct, frozen=True):
    """A message of a file, in the names of today or in those of ShareGPT."""

    role: str | None = None
    content: str | None = None
    speaker: str | None = msgspec.field(default=None, name="from")
    value: str | None = None


class Row(msgspec.Struct, frozen=True):
    """One conversation of a file, in one of its forms. What else it says is not kept."""

    prompt: str | None = None
    text: str | None = None
    messages: tuple[Said, ...] | None = None
    conversations: tuple[Said, ...] | None = None


Message = dict[str, str]
Turns = list[list[Message]]
"""What a user says, turn by turn: one message, after the system's where there is one."""

_LIST = msgspec.json.Decoder(list[Row])
_LINE = msgspec.json.Decoder(Row)


def read_dataset(path: Path) -> list[Turns]:
    """The conversations of a file, in its order; `ValueError` in one sentence, with the place, if it is no dataset."""
    found = [turns for row in _rows(path, _read(path)) if (turns := _turns(row))]
    if not found:
        raise ValueError(f"{path.name} has no conversation in which a user says something")
    return found


def _read(path: Path) -> bytes:
    try:
        if not path.is_file():  # a pipe would be waited for
            raise ValueError(f"there is no dataset file {path}")
        with path.open("rb") as file:
            data = file.read(FILE_LIMIT_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    if len(data) > FILE_LIMIT_BYTES:
        raise ValueError(f"{path.name} has more than {FILE_LIMIT_BYTES // 2**20} MB: take a part of it")
    return data.removeprefix(b"\xef\xbb\xbf")


def _rows(path: Path, data: bytes) -> Iterator[Row]:
    if not data.lstrip().startswith(b"["):
        for number, line in enumerate(data.split(_NEWLINE), 1):
            if line.strip():
                yield _row(line, f"{path.name}, line {number}")
        return
    try:
        rows = _LIST.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path.name}{_line_of(error, data)}: {_why(error)}") from None
    for number, row in enumerate(rows, 1):
        yield _checked(row, f"{path.name}, entry {number}")


def _row(line: bytes, place: str) -> Row:
    try:
        return _checked(_LINE.decode(line), place)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{place}: {_why(error)}") from None


def _checked(row: Row, place: str) -> Row:
    if (row.prompt, row.text, row.messages, row.conversations) == (None,) * 4:
        raise ValueError(f"{place}: there is no {_FORMS}")
    return row


def _why(error: Exception) -> str:
    return str(error).replace("`", "") if isinstance(error, msgspec.MsgspecError) else "this is no JSON"


def _line_of(error: Exception, data: bytes) -> str:
    """On which line the JSON breaks, where that is known."""
    found = _PLACE.search(str(error))
    return "" if found is None else f", line {1 + data[: int(found[1])].count(_NEWLINE)}"


def _turns(row: Row) -> Turns:
    if row.messages is None and row.conversations is None:
        text = row.prompt if row.prompt is not None else row.text
        return [[{"role": "user", "content": text}]] if text else []
    turns: Turns = []
    waiting: list[Message] = []
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
