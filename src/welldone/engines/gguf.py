"""What a GGUF file says of itself, read from its header. The weights are never read.

The file may be hostile: no size that it declares is trusted. A header is walked through a small window, and arrays are
passed over without being built. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from welldone.net.reasons import is_local_failure

MAGIC = b"GGUF"
VERSIONS = (2, 3)
"""Version 1 was in use for a few weeks of 2023, and llama.cpp does not read it any more."""

HEADER_LIMIT_BYTES = 256 * 2**20
"""The largest header; that of a model with 262,144 tokens, their scores and merges, has about 16 MB."""
STRING_LIMIT_BYTES = 2**20
"""The longest text that is kept. Chat templates are the longest, and those that we know have less than 50 kB."""
NAME_LIMIT_BYTES = 65_535
"""The longest key, by the format's own description."""
ENTRIES_LIMIT = 65_536
"""The most metadata entries, and the most tensors: models have less than 100 and a few thousand."""
STRINGS_LIMIT = 4 * 2**20
"""The most strings in an array: the largest vocabularies have 262,144 tokens and about twice as many merges."""
DIMENSIONS_LIMIT = 4  # as in ggml

_WINDOW_BYTES = 2**20
_UINT32, _STRING, _ARRAY = 4, 8, 9
_SCALAR_TYPES: Final = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    _UINT32: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
"""The kinds of values that are numbers, as the format numbers them."""
_U32 = _SCALAR_TYPES[_UINT32]
_U64 = _SCALAR_TYPES[10]

# fmt: off
FILE_TYPES = (
    "F32", "F16", "Q4_0", "Q4_1", None, None, None, "Q8_0", "Q5_0", "Q5_1",
    "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K",
    "IQ2_XXS", "IQ2_XS", "Q2_K_S", "IQ3_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ3_M", "IQ2_S", "IQ2_M",
    "IQ4_XS", "IQ1_M", "BF16", None, None, None, "TQ1_0", "TQ2_0", "MXFP4_MOE",
)
# fmt: on
"""How llama.cpp names its mixtures of quantisations (`general.file_type`), by number; None is one that it gave up."""
POOLINGS = ("none", "mean", "cls", "last", "rank")


class GgufError(Exception):
    """The file is no GGUF that can be served. The message says why, and is safe to show."""

    def __init__(self, message: str, *, is_permanent: bool = True) -> None:
        super().__init__(message)
        self.is_permanent = is_permanent
        """Whether it will be so the next time, too. A machine that is full now need not stay so."""


class GgufMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's file says of itself. Texts come from the file as they are: who shows them makes them printable."""

    size_bytes: int
    version: int
    architecture: str
    name: str | None = None
    general_type: str | None = None
    """`model`, `adapter`, `mmproj`, … where the file says so."""
    context_length: int | None = None
    embedding_length: int | None = None
    block_count: int | None = None
    chat_template: str | None = None
    tokenizer: str | None = None
    file_type: str | None = None
    pooling: str | None = None
    """How a vector is made of tokens; models for embeddings and reranking have it."""
    split_count: int = 1
    """Of how many files the model is made."""
    parameters: int = 0
    """The numbers in the tensors of this file."""

    @property
    def is_projector(self) -> bool:
        """Whether it is the part of a model that sees or hears (`--mmproj`), and no model itself."""
        return self.architecture == "clip" or self.general_type == "mmproj"

    @property
    def is_reranker(self) -> bool:
        """Whether it gives scores to pairs of texts."""
        return self.pooling == "rank"

    @property
    def is_embedder(self) -> bool:
        """Whether it gives vectors, not text."""
        return self.pooling in ("mean", "cls", "last")


def read_metadata(path: Path) -> GgufMetadata:
    """What the model in this file says of itself; `GgufError` if it is no GGUF, or a broken one."""
    try:
        if not path.is_file():  # a pipe would be waited for
            raise GgufError("is not there" if not path.exists() else "is no file")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            return _parse_header(_HeaderReader(file, size), size)
    except OSError as error:
        said = f"cannot be read: {(error.strerror or str(error)).lower()}"
        raise GgufError(said, is_permanent=not is_local_failure(error)) from None


def _parse_header(header: "_HeaderReader", size_bytes: int) -> GgufMetadata:
    if (magic := header.read(4)) != MAGIC:
        raise GgufError(f"is no GGUF file: it begins with {magic!r}")
    version = header.read_number(_U32)
    if version not in VERSIONS:
        is_swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        raise GgufError("is big-endian GGUF" if is_swapped else f"is GGUF version {version}; 2 and 3 can be read")
    tensors = header.read_count("tensors", ENTRIES_LIMIT)
    values = _read_key_values(header, header.read_count("metadata entries", ENTRIES_LIMIT))
    parameters = _count_parameters(header, tensors)
    architecture = values.text("general.architecture") or "unknown"
    return GgufMetadata(
        size_bytes=size_bytes,
        version=version,
        architecture=architecture,
        name=values.text("general.name"),
        general_type=values.text("general.type"),
        context_length=values.number(f"{architecture}.context_length"),
        embedding_length=values.number(f"{architecture}.embedding_length"),
        block_count=values.number(f"{architecture}.block_count"),
        chat_template=values.text("tokenizer.chat_template"),
        tokenizer=values.text("tokenizer.ggml.model"),
        file_type=_name_at(FILE_TYPES, values.number("general.file_type")),
        pooling=_name_at(POOLINGS, values.number(f"{architecture}.pooling_type")),
        split_count=values.number("split.count") or 1,
        parameters=parameters,
    )


def _name_at(names: Sequence[str | None], index: int | None) -> str | None:
    return None if index is None or index >= len(names) else names[index]


class _KeyValues(dict[str, "str | int | float | bool"]):
    """The metadata that was kept. A value of another kind than expected counts as absent."""

    def text(self, key: str) -> str | None:
        value = self.get(key)
        return value if isinstance(value, str) else None

    def number(self, key: str) -> int | None:
        value = self.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


_TEXT_KEYS = {
    "general.architecture",
    "general.name",
    "general.type",
    "tokenizer.chat_template",
    "tokenizer.ggml.model",
}
_NUMBER_KEY_SUFFIXES = (
    ".file_type",
    ".context_length",
    ".embedding_length",
    ".block_count",
    ".pooling_type",
    "split.count",
)


def _read_key_values(header: "_HeaderReader", count: int) -> _KeyValues:
    values = _KeyValues()
    for _ in range(count):
        key = header.read_text(NAME_LIMIT_BYTES)
        kind = header.read_number(_U32)
        if kind == _ARRAY:
            header.skip_array()
        elif kind != _STRING:
            number = header.read_number(_scalar_type(kind))
            if key.endswith(_NUMBER_KEY_SUFFIXES):
                values[key] = number
        elif key in _TEXT_KEYS:
            values[key] = header.read_text(STRING_LIMIT_BYTES)
        else:
            header.skip(header.read_number(_U64))  # some files carry megabytes of a tokenizer as text
    return values


def _scalar_type(type_id: int) -> struct.Struct:
    try:
        return _SCALAR_TYPES[type_id]
    except KeyError:
        raise GgufError(f"has a value of kind {type_id}, which GGUF does not know") from None


def _count_parameters(header: "_HeaderReader", count: int) -> int:
    """How many numbers the tensors hold. A tensor that would lie beyond the file means that it was cut off."""
    total = last = 0
    for _ in range(count):
        header.skip(header.read_count("bytes in a tensor's name", NAME_LIMIT_BYTES))
        dimensions = header.read_number(_U32)
        if dimensions > DIMENSIONS_LIMIT:
            raise GgufError(f"has a tensor of {dimensions} dimensions; {DIMENSIONS_LIMIT} is the most")
        total += math.prod(header.read_number(_U64) for _ in range(dimensions))
        header.skip(_U32.size)
        last = max(last, header.read_number(_U64))
    if count and header.position + last >= header.size:
        raise GgufError("is cut off: its weights are not all there; fetch it again")
    return total


class _HeaderReader:
    """The bytes of a header, through a window. Every way past its end, or past the file's, is a `GgufError`."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._window = b""
        self._window_start = 0  # where the window begins in the file
        self._window_offset = 0  # where reading goes on, in the window
        self.size = size

    @property
    def position(self) -> int:
        """How far the header was read."""
        return self._window_start + self._window_offset

    def read(self, count: int) -> bytes:
        """The next bytes."""
        if self._window_offset + count > len(self._window):
            self._seek(self.position, count)
        piece = self._window[self._window_offset : self._window_offset + count]
        self._window_offset += count
        return piece

    def skip(self, count: int) -> None:
        """Pass over bytes without reading them."""
        if self._window_offset + count <= len(self._window):
            self._window_offset += count
        else:
            self._seek(self.position + count, 0)

    def read_number(self, scalar_type: struct.Struct) -> int:
        """The next number. (Fractions and truth values come as they are; nobody who wants a number asks for them.)"""
        value: int = scalar_type.unpack(self.read(scalar_type.size))[0]
        return value

    def read_count(self, unit: str, limit: int) -> int:
        """The next number, which says how many of something follow."""
        value = self.read_number(_U64)
        if value > limit:
            raise GgufError(f"declares {value:,} {unit}; {limit:,} is the most that is read")
        return value

    def read_text(self, limit: int) -> str:
        """The next string."""
        return self.read(self.read_count("bytes in a text", limit)).decode("utf-8", "replace")

    def skip_array(self) -> None:
        """Pass over an array."""
        kind, count = self.read_number(_U32), self.read_number(_U64)
        if kind == _ARRAY:
            raise GgufError("has an array of arrays, which no model has")
        if kind != _STRING:
            self.skip(_scalar_type(kind).size * count)
        elif count > STRINGS_LIMIT:
            raise GgufError(f"has an array of {count:,} texts; {STRINGS_LIMIT:,} is the most that is read")
        else:
            self._skip_strings(count)

    def _skip_strings(self, count: int) -> None:
        """Pass over strings. A vocabulary has 100,000s of them, so this is the one loop that has to be fast."""
        unpack, size = _U64.unpack_from, _U64.size
        while count:
            window, at, end = self._window, self._window_offset, len(self._window) - size
            while count and at <= end:
                at += size + unpack(window, at)[0]
                count -= 1
            if count or at > len(window):
                self._seek(self._window_start + at, size if count else 0)
            else:
                self._window_offset = at

    def _seek(self, position: int, count: int) -> None:
        """Open the window anew at `place`, with `count` bytes at least."""
        if position + count > self.size:
            raise GgufError("is cut off within its header; fetch it again")
        if position + count > HEADER_LIMIT_BYTES:
            raise GgufError(f"has a header of more than {HEADER_LIMIT_BYTES // 2**20} MB")
        self._file.seek(position)
        self._window = self._file.read(max(count, _WINDOW_BYTES))
        self._window_start, self._window_offset = position, 0
        if len(self._window) < count:
            raise GgufError("became shorter while it was read")
