"""Reader of GGUF metadata: architecture, names, chat template, shape and quantisation of a model file.

GGUF files are not trusted: no size that a file declares is believed. The header is read through a small window, arrays
are skipped unless a caller wants them, and the weights are never read.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import os
import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from welldone.http.address import is_local_failure

MAGIC = b"GGUF"
VERSIONS = (2, 3)
"""Version 1 was in use for a few weeks of 2023; llama.cpp does not read it any more."""

HEADER_LIMIT_BYTES = 256 * 2**20
"""The header of a model with 262,144 tokens, their scores and merges has about 16 MB."""
STRING_LIMIT_BYTES = 2**20
"""The longest strings are chat templates; known ones have less than 50 kB."""
NAME_LIMIT_BYTES = 65_535
"""Limit of a key according to the specification."""
ENTRIES_LIMIT = 65_536
"""Limit of metadata entries and of tensors: models have less than 100 and a few thousand."""
STRINGS_LIMIT = 4 * 2**20
"""Limit of strings in an array: the largest vocabularies have 262,144 tokens and about twice as many merges."""
DIMENSIONS_LIMIT = 4  # as in ggml

_WINDOW_BYTES = 2**20
_UINT32, _STRING, _ARRAY = 4, 8, 9
_SCALAR_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", _UINT32: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_SCALAR_TYPES: Final = {number: struct.Struct(f"<{code}") for number, code in _SCALAR_FORMATS.items()}
"""Scalar value types by their number in the format."""
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
"""llama.cpp's names of quantisation mixtures by number (`general.file_type`); None: removed from llama.cpp."""
# fmt: off
TENSOR_TYPES = (
    "F32", "F16", "Q4_0", "Q4_1", None, None, "Q5_0", "Q5_1", "Q8_0", "Q8_1",
    "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S",
    "IQ4_XS", "I8", "I16", "I32", "I64", "F64", "IQ1_M", "BF16", None, None, None, "TQ1_0", "TQ2_0", None, None, None,
    "MXFP4",
)
# fmt: on
"""ggml's names of tensor types by number; None: removed from ggml."""
POOLINGS = ("none", "mean", "cls", "last", "rank")


class GgufError(Exception):
    """The file is not a GGUF file that can be served. The message is a clause without the path."""

    def __init__(self, message: str, *, is_permanent: bool = True) -> None:
        super().__init__(message)
        self.is_permanent = is_permanent
        """Whether a retry fails in the same way; not if this machine is out of file descriptors or memory."""


LAYERS_LIMIT = 65_536
"""Limit of layers, and of values in an array with one value per layer: real models have some hundred. A file may
declare billions, and the memory of each is estimated."""


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """Dimensions that decide how much memory a model needs besides its weights. 0: the file does not name it."""

    layers: int = 0
    width: int = 0
    hidden: int = 0
    """Width of the feed-forward layers."""
    heads: int = 0
    kv_heads: tuple[int, ...] = (0,)
    """By layer, or one number for all."""
    key_length: int = 0
    value_length: int = 0
    window: int = 0
    """Tokens of a sliding window."""
    window_layers: tuple[bool, ...] | None = None
    """Which layers have a sliding window; None: unknown."""
    is_latent: bool = False
    """Whether keys and values are compressed to one vector per token (MLA)."""


class GgufMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of a model file. Strings are as in the file: make them printable before display."""

    size_bytes: int
    version: int
    architecture: str
    name: str | None = None
    general_type: str | None = None
    """`model`, `adapter`, `mmproj`, …"""
    context_length: int | None = None
    chat_template: str | None = None
    file_type: str | None = None
    pooling: str | None = None
    """Pooling type; only embedding and reranking models have one."""
    parameters: int = 0
    """Number of parameters in this file."""
    parameters_by_type: dict[str, int] = {}
    """Number of parameters by type of their tensor; without those of unknown types."""
    weights_bytes: int = 0
    """Bytes of this file after its header, with some padding."""
    shape: ModelShape = ModelShape()

    @property
    def main_type(self) -> str | None:
        """The type of most parameters."""
        return max(self.parameters_by_type, key=lambda name: self.parameters_by_type[name], default=None)

    @property
    def is_projector(self) -> bool:
        """Whether it is a multimodal projector (`--mmproj`) and not a model."""
        return self.architecture == "clip" or self.general_type == "mmproj"

    @property
    def prints_json_calls(self) -> bool:
        """Whether it is of a family that writes the JSON of tool calls without the markup of its chat template."""
        return re.search(r"qwen2\.5[-_ ]*coder", self.name or "", re.IGNORECASE) is not None

    @property
    def is_reranker(self) -> bool:
        """Whether it is a reranking model."""
        return self.pooling == "rank"

    @property
    def is_embedder(self) -> bool:
        """Whether it is an embedding model."""
        return self.pooling in ("mean", "cls", "last")


def read_metadata(path: Path) -> GgufMetadata:
    """Read the metadata of a file; raise `GgufError` if it is not a valid GGUF file."""
    header = _read_header(path, _is_metadata, _HeaderReader.read_value_by_layer)
    architecture = header.text("general.architecture") or "unknown"
    return GgufMetadata(
        size_bytes=header.size_bytes,
        version=header.version,
        architecture=architecture,
        name=header.text("general.name"),
        general_type=header.text("general.type"),
        context_length=header.number(f"{architecture}.context_length"),
        chat_template=header.text("tokenizer.chat_template"),
        file_type=_name_at(FILE_TYPES, header.number("general.file_type")),
        pooling=_name_at(POOLINGS, header.number(f"{architecture}.pooling_type")),
        parameters=sum(header.parameters_by_type.values()),
        parameters_by_type={
            name: count
            for number, count in header.parameters_by_type.items()
            if (name := _name_at(TENSOR_TYPES, number)) is not None
        },
        weights_bytes=header.weights_bytes,
        shape=_read_shape(header, architecture),
    )


def _read_shape(header: "_Header", architecture: str) -> ModelShape:
    def number(name: str) -> int:
        return header.number(f"{architecture}.{name}") or 0

    def by_layer(name: str) -> tuple[int, ...]:
        value = header.values.get(f"{architecture}.{name}")
        items = value if isinstance(value, list) else [value]
        return tuple(item if isinstance(item, int) and item > 0 else 0 for item in items)

    heads = max(by_layer("attention.head_count"), default=0)
    width = number("embedding_length")
    has_kv_heads = f"{architecture}.attention.head_count_kv" in header.values
    head_length = width // heads if heads else 0
    pattern = header.values.get(f"{architecture}.attention.sliding_window_pattern")
    return ModelShape(
        layers=min(number("block_count"), LAYERS_LIMIT),
        width=width,
        hidden=max(by_layer("feed_forward_length"), default=0),
        heads=heads,
        kv_heads=by_layer("attention.head_count_kv" if has_kv_heads else "attention.head_count"),
        key_length=number("attention.key_length") or head_length,
        value_length=number("attention.value_length") or head_length,
        window=number("attention.sliding_window"),
        window_layers=tuple(map(bool, pattern)) if isinstance(pattern, list) and pattern else None,
        is_latent=bool(number("attention.kv_lora_rank")),
    )


def read_values(path: Path, prefix: str) -> dict[str, object]:
    """Read the values whose keys begin with `prefix`, arrays too; raise `GgufError` as `read_metadata`."""
    return _read_header(path, lambda key, _: key.startswith(prefix), _HeaderReader.read_value).values


_TEXT_KEYS = {"general.architecture", "general.name", "general.type", "tokenizer.chat_template"}
_LAYER_KEY_SUFFIXES = (".head_count", ".head_count_kv", ".feed_forward_length", ".sliding_window_pattern")
"""Numbers, or arrays with a number per layer."""
_NUMBER_KEY_SUFFIXES = (
    ".file_type",
    ".context_length",
    ".pooling_type",
    ".block_count",
    ".embedding_length",
    ".key_length",
    ".value_length",
    ".sliding_window",
    ".kv_lora_rank",
)


def _is_metadata(key: str, value_type: int) -> bool:
    if value_type == _ARRAY:
        return key.endswith(_LAYER_KEY_SUFFIXES)
    return key in _TEXT_KEYS or key.endswith((*_NUMBER_KEY_SUFFIXES, *_LAYER_KEY_SUFFIXES))


def _name_at(names: Sequence[str | None], index: int | None) -> str | None:
    return None if index is None or index >= len(names) else names[index]


class _Header(msgspec.Struct, frozen=True):
    """Facts and selected values of a header. A value of an unexpected type counts as absent."""

    size_bytes: int
    version: int
    values: dict[str, object]
    parameters_by_type: dict[int, int]
    weights_bytes: int

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        return value if isinstance(value, str) else None

    def number(self, key: str) -> int | None:
        value = self.values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


_Reading = Callable[["_HeaderReader", int], object]


def _read_header(path: Path, is_wanted: Callable[[str, int], bool], read_value: _Reading) -> _Header:
    try:
        if not path.is_file():  # opening a pipe would block
            raise GgufError("does not exist" if not path.exists() else "is not a regular file")
        with path.open("rb") as file:
            return _parse_header(_HeaderReader(file, os.fstat(file.fileno()).st_size), is_wanted, read_value)
    except OSError as error:
        message = f"cannot be read: {(error.strerror or str(error)).lower()}"
        raise GgufError(message, is_permanent=not is_local_failure(error)) from None


def _parse_header(header: "_HeaderReader", is_wanted: Callable[[str, int], bool], read_value: _Reading) -> _Header:
    if (magic := header.read(4)) != MAGIC:
        raise GgufError(f"is not a GGUF file: it begins with {magic!r}")
    version = header.read_number(_U32)
    if version not in VERSIONS:
        is_swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        raise GgufError(
            "is a big-endian GGUF file" if is_swapped else f"is GGUF version {version}; supported are 2 and 3"
        )
    tensors = header.read_count("tensors", ENTRIES_LIMIT)
    values: dict[str, object] = {}
    for _ in range(header.read_count("metadata entries", ENTRIES_LIMIT)):
        key, value_type = header.read_text(NAME_LIMIT_BYTES), header.read_number(_U32)
        if is_wanted(key, value_type):
            values[key] = read_value(header, value_type)
        else:
            header.skip_value(value_type)
    parameters = _count_parameters(header, tensors)
    return _Header(header.size, version, values, parameters, header.size - header.position)


def _scalar_type(type_id: int) -> struct.Struct:
    try:
        return _SCALAR_TYPES[type_id]
    except KeyError:
        raise GgufError(f"has a value of type {type_id}, which GGUF does not define") from None


def _count_parameters(header: "_HeaderReader", count: int) -> dict[int, int]:
    """Count parameters by type of their tensor. One with an offset beyond the file means that it is truncated."""
    counts: dict[int, int] = {}
    last_offset = 0
    for _ in range(count):
        header.skip(header.read_count("bytes in a tensor name", NAME_LIMIT_BYTES))
        dimensions = header.read_number(_U32)
        if dimensions > DIMENSIONS_LIMIT:
            raise GgufError(f"has a tensor of {dimensions} dimensions; the limit is {DIMENSIONS_LIMIT}")
        parameters = math.prod(header.read_number(_U64) for _ in range(dimensions))
        tensor_type = header.read_number(_U32)
        counts[tensor_type] = counts.get(tensor_type, 0) + parameters
        last_offset = max(last_offset, header.read_number(_U64))
    if count and header.position + last_offset >= header.size:
        raise GgufError("is truncated: weights are missing; download it again")
    return counts


class _HeaderReader:
    """Buffered reader of a header. Reading past the limit or the end of the file raises `GgufError`."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._window = b""
        self._window_start = 0  # position of the window in the file
        self._window_offset = 0  # read position within the window
        self.size = size

    @property
    def position(self) -> int:
        """The read position in the file."""
        return self._window_start + self._window_offset

    def read(self, count: int) -> bytes:
        """Read bytes."""
        if self._window_offset + count > len(self._window):
            self._seek(self.position, count)
        data = self._window[self._window_offset : self._window_offset + count]
        self._window_offset += count
        return data

    def skip(self, count: int) -> None:
        """Skip bytes."""
        if self._window_offset + count <= len(self._window):
            self._window_offset += count
        else:
            self._seek(self.position + count, 0)

    def read_number(self, scalar_type: struct.Struct) -> int:
        """Read a scalar. Floats and booleans are returned as they are."""
        value: int = scalar_type.unpack(self.read(scalar_type.size))[0]
        return value

    def read_count(self, unit: str, limit: int) -> int:
        """Read a number of items or bytes and check it against a limit."""
        value = self.read_number(_U64)
        if value > limit:
            raise GgufError(f"declares {value:,} {unit}; the limit is {limit:,}")
        return value

    def read_text(self, limit: int) -> str:
        """Read a string."""
        return self.read(self.read_count("bytes in a string", limit)).decode("utf-8", "replace")

    def read_value(self, value_type: int) -> object:
        """Read a value of this type."""
        if value_type == _STRING:
            return self.read_text(STRING_LIMIT_BYTES)
        if value_type != _ARRAY:
            return self.read_number(_scalar_type(value_type))
        item_type, count = self._read_array_head()
        if count > STRINGS_LIMIT:
            raise GgufError(f"has an array of {count:,} values; the limit is {STRINGS_LIMIT:,}")
        if item_type == _STRING:
            return [self.read_text(STRING_LIMIT_BYTES) for _ in range(count)]
        return self._read_numbers(item_type, count)

    def read_value_by_layer(self, value_type: int) -> object:
        """Read a value of this type. An array that is longer than models have layers, or not of numbers, is None."""
        if value_type != _ARRAY:
            return self.read_value(value_type)
        item_type, count = self._read_array_head()
        if item_type != _STRING and count <= LAYERS_LIMIT:
            return self._read_numbers(item_type, count)
        self._skip_items(item_type, count)
        return None

    def _read_numbers(self, item_type: int, count: int) -> list[float]:
        numbers = struct.Struct(f"<{count}{_scalar_type(item_type).format[1:]}")
        return list(numbers.unpack(self.read(numbers.size)))

    def skip_value(self, value_type: int) -> None:
        """Skip a value of this type."""
        if value_type == _STRING:
            self.skip(self.read_number(_U64))  # some files have megabytes of tokenizer JSON
        elif value_type != _ARRAY:
            self.skip(_scalar_type(value_type).size)
        else:
            self._skip_items(*self._read_array_head())

    def _skip_items(self, item_type: int, count: int) -> None:
        """Skip the values of an array."""
        if item_type != _STRING:
            self.skip(_scalar_type(item_type).size * count)
        elif count > STRINGS_LIMIT:
            raise GgufError(f"has an array of {count:,} strings; the limit is {STRINGS_LIMIT:,}")
        else:
            self._skip_strings(count)

    def _read_array_head(self) -> tuple[int, int]:
        """Read the type and the number of the values of an array."""
        item_type, count = self.read_number(_U32), self.read_number(_U64)
        if item_type == _ARRAY:
            raise GgufError("has an array of arrays, which is not supported")
        return item_type, count

    def _skip_strings(self, count: int) -> None:
        """Skip strings. A vocabulary has hundreds of thousands, so this loop is optimised."""
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
        """Move the window to `position` and read at least `count` bytes."""
        if position + count > self.size:
            raise GgufError("is truncated within its header; download it again")
        if position + count > HEADER_LIMIT_BYTES:
            raise GgufError(f"has a header of more than {HEADER_LIMIT_BYTES // 2**20} MB")
        self._file.seek(position)
        self._window = self._file.read(max(count, _WINDOW_BYTES))
        self._window_start, self._window_offset = position, 0
        if len(self._window) < count:
            raise GgufError("shrank while it was read")
