"""Writer of GGUF version 3: metadata of all types, tensors of floats.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
All numbers are little-endian: "If no additional information is provided, assume the model is little-endian."
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

MAGIC = b"GGUF"
VERSION = 3
ALIGNMENT = 32  # the default of `general.alignment`


class Kind(IntEnum):
    """Types of metadata values, by their number in the format."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


class Weight(IntEnum):
    """Supported tensor types."""

    F32 = 0
    F16 = 1


FORMS = {
    Kind.UINT8: "<B",
    Kind.INT8: "<b",
    Kind.UINT16: "<H",
    Kind.INT16: "<h",
    Kind.UINT32: "<I",
    Kind.INT32: "<i",
    Kind.FLOAT32: "<f",
    Kind.BOOL: "<?",
    Kind.UINT64: "<Q",
    Kind.INT64: "<q",
    Kind.FLOAT64: "<d",
}


@dataclass(frozen=True)
class Scalar:
    """A number or boolean with an explicit type."""

    kind: Kind
    value: float


@dataclass(frozen=True)
class Array:
    """Values of one type; nested arrays are of this class too."""

    kind: Kind
    values: Sequence["float | str | Array"]


# Default types: str is STRING, bool is BOOL, int is UINT32, float is FLOAT32, as llama.cpp's converter has it for
# nearly every key.
Value = str | bool | int | float | Scalar | Array


@dataclass(frozen=True)
class Tensor:
    """Numbers with a shape; the first dimension is contiguous."""

    name: str
    shape: tuple[int, ...]
    weights: Sequence[float]
    kind: int = Weight.F32

    def data(self) -> bytes:
        """Encode the numbers."""
        if len(self.weights) != math.prod(self.shape):
            raise ValueError(f"{self.name}: {len(self.weights)} numbers do not fill {self.shape}")
        letter = "e" if self.kind is Weight.F16 else "f"
        return struct.pack(f"<{len(self.weights)}{letter}", *self.weights)


@dataclass(frozen=True)
class Gguf:
    """Content of a file."""

    metadata: Mapping[str, Value]
    tensors: Sequence[Tensor] = ()

    def write(self, path: Path, *, alignment: int = ALIGNMENT) -> Path:
        """Write the file and return its path."""
        path.write_bytes(self.data(alignment=alignment))
        return path

    def data(self, *, alignment: int = ALIGNMENT) -> bytes:
        """Encode the file; an alignment other than the default is stored in its metadata."""
        told = dict(self.metadata)
        if alignment != ALIGNMENT:
            told["general.alignment"] = alignment
        infos, blocks, offset = [], [], 0
        for tensor in self.tensors:
            block = _padded(tensor.data(), alignment)
            infos.append(_info(tensor, offset))
            blocks.append(block)
            offset += len(block)
        head = MAGIC + struct.pack("<IQQ", VERSION, len(infos), len(told))
        pairs = [_text(key) + _value(value) for key, value in told.items()]
        return _padded(b"".join([head, *pairs, *infos]), alignment) + b"".join(blocks)


def _info(tensor: Tensor, offset: int) -> bytes:
    rank = len(tensor.shape)
    return _text(tensor.name) + struct.pack(f"<I{rank}QIQ", rank, *tensor.shape, tensor.kind, offset)


def _value(value: Value) -> bytes:
    """Encode a value, preceded by its type."""
    match value:
        case str():
            return _kind(Kind.STRING) + _text(value)
        case Scalar(kind=kind, value=number):
            return _kind(kind) + struct.pack(FORMS[kind], number)
        case Array():
            return _kind(Kind.ARRAY) + _array(value)
        case bool():  # before int: bool is a subclass
            return _value(Scalar(Kind.BOOL, value))
        case int():
            return _value(Scalar(Kind.UINT32, value))
        case float():
            return _value(Scalar(Kind.FLOAT32, value))


def _array(array: Array) -> bytes:
    items = [_item(array.kind, value) for value in array.values]
    return _kind(array.kind) + struct.pack("<Q", len(items)) + b"".join(items)


def _item(kind: Kind, value: float | str | Array) -> bytes:
    match value:
        case str():
            return _text(value)
        case Array():
            return _array(value)
        case _:
            return struct.pack(FORMS[kind], value)


def _kind(kind: Kind) -> bytes:
    return struct.pack("<I", kind)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _padded(data: bytes, alignment: int) -> bytes:
    return data + bytes(-len(data) % alignment)
