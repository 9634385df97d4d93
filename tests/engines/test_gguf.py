"""GGUF metadata reader: values, errors, and bounded memory for malicious files."""

import random
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engines import files
from tests.models.gguf_writer import ALIGNMENT, Array, Gguf, Kind, Scalar, Value
from tests.table import table
from welldone.engines.models import gguf
from welldone.engines.models.gguf import GgufError, GgufMetadata, ModelShape, read_metadata

TOKENS = [f"token{number}" for number in range(5000)]
MODEL = files.model(
    tokenizer__ggml__tokens=Array(Kind.STRING, TOKENS),
    tokenizer__ggml__scores=Array(Kind.FLOAT32, [0.5] * len(TOKENS)),
    general__quantized=Scalar(Kind.INT64, -5),
    general__share=Scalar(Kind.FLOAT64, 0.25),
    general__is_good=True,
)
HEADER_BYTES = len(MODEL) - 4000  # its weights are 1000 numbers of four bytes


def _read(data: bytes, folder: Path) -> GgufMetadata:
    path = folder / "a.gguf"
    path.write_bytes(data)
    return read_metadata(path)


def test_the_metadata_of_a_model_is_read(tmp_path: Path) -> None:
    found = _read(MODEL, tmp_path)
    assert 4000 <= found.weights_bytes < 4000 + ALIGNMENT
    assert found == GgufMetadata(
        size_bytes=len(MODEL),
        version=3,
        architecture="llama",
        name="Small",
        general_type="model",
        context_length=2048,
        chat_template=files.TEMPLATE,
        file_type="Q4_K_M",
        parameters=1000,
        parameters_by_type={"F32": 1000},
        weights_bytes=found.weights_bytes,
        shape=ModelShape(layers=3, width=64),
    )


def test_version_2_is_read_as_well(tmp_path: Path) -> None:
    assert _read(MODEL[:4] + struct.pack("<I", 2) + MODEL[8:], tmp_path).version == 2


@table(("number", "name"), [(0, "F32"), (7, "Q8_0"), (15, "Q4_K_M"), (18, "Q6_K"), (30, "IQ4_XS")])
def test_quantisations_have_the_names_of_llama_cpp(number: int, name: str, tmp_path: Path) -> None:
    assert _read(files.model(general__file_type=number), tmp_path).file_type == name


@table("number", [4, 33, 39, 1024, 2**32 - 1])
def test_an_unknown_quantisation_has_no_name(number: int, tmp_path: Path) -> None:
    assert _read(files.model(general__file_type=number), tmp_path).file_type is None


@table(
    ("metadata", "expected"),
    [
        ({"llama__pooling_type": 1}, "is_embedder"),
        ({"llama__pooling_type": 3}, "is_embedder"),
        ({"llama__pooling_type": 4}, "is_reranker"),
        ({"general__architecture": "clip"}, "is_projector"),
        ({"general__type": "mmproj"}, "is_projector"),
    ],
)
def test_models_that_are_not_for_chat_are_detected(metadata: dict[str, Value], expected: str, tmp_path: Path) -> None:
    found = _read(files.model(**metadata), tmp_path)
    flags = {name: getattr(found, name) for name in ("is_embedder", "is_reranker", "is_projector")}
    assert [name for name, value in flags.items() if value] == [expected]


def test_values_that_are_missing_or_of_another_type_are_absent(tmp_path: Path) -> None:
    bare = GgufMetadata(size_bytes=33, version=3, architecture="unknown", weights_bytes=9)
    assert _read(Gguf({}).data() + b"\0", tmp_path) == bare
    odd: dict[str, Value] = {"general__file_type": Scalar(Kind.INT32, -1), "general__name": 7}
    for context in (0.5, True):
        found = _read(files.model(**odd, llama__context_length=context), tmp_path)
        assert (found.context_length, found.file_type, found.name) == (None, None, None)


def test_a_long_unused_string_is_skipped(tmp_path: Path) -> None:
    data = files.model(tokenizer__huggingface__json="x" * (3 * gguf.STRING_LIMIT_BYTES))
    assert _read(data, tmp_path).name == "Small"


def test_an_array_in_place_of_a_number_is_skipped(tmp_path: Path) -> None:
    assert _read(files.model(llama__context_length=Array(Kind.UINT32, [1, 2])), tmp_path).context_length is None


def test_invalid_utf8_is_replaced(tmp_path: Path) -> None:
    assert _read(MODEL.replace(b"Small", b"\xff\xfeall"), tmp_path).name == "\ufffd\ufffdall"


@table(
    ("data", "message"),
    [
        (b"", "truncated"),
        (b"GG", "truncated"),
        (b"<html><body>Not found</body></html>", "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63), "metadata entries"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62), "bytes in a string"),
        (b"GGUF" + struct.pack("<IQQQ1sIQ", 3, 0, 1, 1, b"a", 8, 2**63), "truncated"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"a", 99), "type 99"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 8, 2**40), "strings"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 8, 2**20), "truncated"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 12, 2**60), "truncated"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 9, 1), "array of arrays"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 77, 1), "type 77"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 1, 0, 1, b"a", 2**31), "dimensions"),
        (files.model(tokenizer__chat_template="x" * (gguf.STRING_LIMIT_BYTES + 1)), "bytes in a string"),
        (MODEL[: HEADER_BYTES - 50], "truncated"),
    ],
)
def test_invalid_files_are_rejected_with_a_reason(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(GgufError, match=message):
        _read(data, tmp_path)


def test_missing_weights_are_detected(tmp_path: Path) -> None:
    offset = struct.pack("<Q", len(MODEL))
    at = MODEL.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 8 + 4
    with pytest.raises(GgufError, match="weights are missing"):
        _read(MODEL[:at] + offset + MODEL[at + 8 :], tmp_path)


def test_a_header_beyond_the_limit_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "large.gguf"
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQQ1sIQ", 3, 0, 2, 1, b"a", 8, gguf.HEADER_LIMIT_BYTES))
        file.truncate(2 * gguf.HEADER_LIMIT_BYTES)
    with pytest.raises(GgufError, match="more than 256 MB"):
        read_metadata(path)


@table("number", range(40))
def test_a_corrupted_file_is_read_or_rejected(number: int, tmp_path: Path) -> None:
    rng = random.Random(number)
    corrupted = bytearray(MODEL)
    for _ in range(rng.randint(1, 8)):
        position = rng.randrange(4, HEADER_BYTES)
        corrupted[position : position + 8] = rng.choice([b"\xff" * 8, bytes(8), rng.randbytes(8), b""])
    _assert_bounded_memory(bytes(corrupted), tmp_path)
    _assert_bounded_memory(MODEL[: rng.randrange(len(MODEL))], tmp_path)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_read_or_rejected(tmp_path_factory: pytest.TempPathFactory, tail: bytes) -> None:
    _assert_bounded_memory(b"GGUF" + struct.pack("<IQQ", 3, 2, 3) + tail, tmp_path_factory.getbasetemp())


def _assert_bounded_memory(data: bytes, folder: Path) -> None:
    tracemalloc.start()
    try:
        _read(data, folder)
    except GgufError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 16 * 2**20


@pytest.mark.parametrize("kind", ["none", "folder"])
def test_a_missing_file_or_a_folder_is_rejected(kind: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(GgufError):
        read_metadata(tmp_path / kind)
