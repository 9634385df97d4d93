"""GGUF files, byte for byte."""

import struct
from pathlib import Path

import pytest

from tests.models.gguf_writer import FORMS, Array, Gguf, Kind, Scalar, Tensor, Value, Weight
from tests.table import table
from welldone.engines.models.gguf import read_metadata

HEAD_BYTES = 24  # magic, version, and the counts of tensors and of pairs


def _pair(key: str, kind: Kind, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + value


@table(
    ("value", "kind", "data"),
    [
        ("é", Kind.STRING, b"\x02\0\0\0\0\0\0\0\xc3\xa9"),
        (True, Kind.BOOL, b"\x01"),
        (7, Kind.UINT32, b"\x07\0\0\0"),
        (0.5, Kind.FLOAT32, b"\0\0\0\x3f"),
        (Scalar(Kind.INT8, -1), Kind.INT8, b"\xff"),
        (Scalar(Kind.UINT64, 2**63), Kind.UINT64, b"\0\0\0\0\0\0\0\x80"),
        (Array(Kind.STRING, ["a"]), Kind.ARRAY, struct.pack("<IQQ", Kind.STRING, 1, 1) + b"a"),
        (Array(Kind.INT16, [-2, 3]), Kind.ARRAY, struct.pack("<IQhh", Kind.INT16, 2, -2, 3)),
        (
            Array(Kind.ARRAY, [Array(Kind.UINT8, [9])]),
            Kind.ARRAY,
            struct.pack("<IQIQB", Kind.ARRAY, 1, Kind.UINT8, 1, 9),
        ),
    ],
)
def test_a_value_is_written_with_its_type(value: Value, kind: Kind, data: bytes) -> None:
    written = Gguf({"key": value}).data()
    pair = _pair("key", kind, data)
    assert written[:HEAD_BYTES] == b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    assert written[HEAD_BYTES:] == pair + bytes(-(HEAD_BYTES + len(pair)) % 32)


@table("kind", FORMS)
def test_every_numeric_type_is_supported(kind: Kind) -> None:
    size = struct.calcsize(FORMS[kind])
    pair = _pair("n", kind, bytes(size))
    assert Gguf({"n": Scalar(kind, 0)}).data().startswith(pair, HEAD_BYTES)


@pytest.mark.parametrize("alignment", [32, 64, 256])
def test_tensors_are_aligned(alignment: int) -> None:
    half = Tensor("half", (3,), [1.0, 2.0, 3.0], Weight.F16)
    whole = Tensor("whole", (2, 2), [1.0, 2.0, 3.0, 4.0])
    written = Gguf({}, [half, whole]).data(alignment=alignment)
    data = written[-2 * alignment :]
    assert len(written) % alignment == 0
    assert data.startswith(struct.pack("<3e", 1, 2, 3))
    assert data.startswith(struct.pack("<4f", 1, 2, 3, 4), alignment)


def test_written_files_are_readable(tmp_path: Path) -> None:
    metadata: dict[str, Value] = {"general.architecture": "llama", "llama.context_length": Scalar(Kind.UINT64, 4096)}
    facts = read_metadata(Gguf(metadata, [Tensor("t", (2, 3), [0.0] * 6)]).write(tmp_path / "a.gguf", alignment=64))
    assert (facts.architecture, facts.context_length, facts.parameters) == ("llama", 4096, 6)


def test_a_tensor_with_too_few_numbers_is_rejected() -> None:
    with pytest.raises(ValueError, match="5 numbers do not fill"):
        Gguf({}, [Tensor("t", (2, 3), [0.0] * 5)]).data()
