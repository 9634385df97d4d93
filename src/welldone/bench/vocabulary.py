"""The vocabulary that a GGUF file carries: its tokens, and how they are put together.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import mmap
import struct
from pathlib import Path

import msgspec

from welldone.engines.gguf import STRINGS_LIMIT, GgufError, read_metadata

_TOKENIZER_PREFIX = "tokenizer.ggml."
_STRING_TYPE, _ARRAY_TYPE = 8, 9
_NUMBER_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The kinds of numbers, as the format numbers them and as `struct` names them."""
_COUNT_OFFSET = 16  # behind the magic, the version and the number of tensors


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says of its tokenizer. What it does not say is empty."""

    model: str
    """`gpt2`, `llama`, …: the family of tokenizers."""
    pre: str = ""
    """How a text is split before its pieces become tokens, as llama.cpp names it."""
    tokens: tuple[str, ...] = ()
    merges: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    token_type: tuple[int, ...] = ()
    add_space_prefix: bool = True


def read_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary in this file; `ValueError` in one sentence if there is none."""
    try:
        read_metadata(path)  # it trusts nothing: behind it every size is known to lie within the file
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            values = _GgufMetadataReader(data).values()
        return msgspec.convert(values, Vocabulary)
    except GgufError as error:
        raise ValueError(f"{path.name} {error}") from None
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except (msgspec.ValidationError, struct.error, KeyError):
        raise ValueError(f"{path.name} has no vocabulary that can be read") from None


class _GgufMetadataReader:
    """A way through the header of a file that was found to be whole."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._offset = _COUNT_OFFSET

    def values(self) -> dict[str, object]:
        """What it says of its tokenizer."""
        found: dict[str, object] = {}
        for _ in range(self._number("Q")):
            name = self._text()
            kind = self._number("I")
            value = self._array() if kind == _ARRAY_TYPE else self._value(kind)
            if name.startswith(_TOKENIZER_PREFIX):
                found[name.removeprefix(_TOKENIZER_PREFIX)] = value
        return found

    def _number(self, fmt: str) -> int:
        """The next number. (Fractions and truth values come as they are; nobody who wants a number asks for them.)"""
        value: int = struct.unpack_from(f"<{fmt}", self._data, self._offset)[0]
        self._offset += struct.calcsize(f"<{fmt}")
        return value

    def _text(self) -> str:
        size = self._number("Q")
        self._offset += size
        return self._data[self._offset - size : self._offset].decode("utf-8", "replace")

    def _value(self, kind: int) -> str | int:
        return self._text() if kind == _STRING_TYPE else self._number(_NUMBER_FORMATS[kind])

    def _array(self) -> tuple[object, ...]:
        kind, count = self._number("I"), self._number("Q")
        if count > STRINGS_LIMIT:
            raise GgufError(f"has an array of {count:,} values; {STRINGS_LIMIT:,} is the most that is read")
        if kind == _STRING_TYPE:
            return tuple(self._text() for _ in range(count))
        form = f"<{count}{_NUMBER_FORMATS[kind]}"
        values = struct.unpack_from(form, self._data, self._offset)
        self._offset += struct.calcsize(form)
        return values
