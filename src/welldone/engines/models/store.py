"""The folder of models: what is in it, under which names, and where each file came from.

A name is looked up among the files that are there. It never becomes part of a path.
"""

import math
import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from welldone.config import builtin_model
from welldone.http.address import is_local_failure

# What a GGUF file says of itself, read from its header. The weights are never read.
#
# The file may be hostile: no size that it declares is trusted. A header is walked through a small window, and arrays are
# passed over without being built. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md


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


GGUF_SUFFIX = ".gguf"
_ORIGIN_SUFFIX = ".json"
_SPLIT_NAME = re.compile(
    r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})"
)  # how llama.cpp names the parts of a split model
_FILES_LIMIT = 10_000  # far more than anybody keeps; a folder with more was named by mistake
_ORIGIN_LIMIT_BYTES = 65_536  # ours have less than 1 kB


class ModelOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a file came from; kept beside it as JSON. No secret is in it."""

    source: str
    sha256: str
    fetched: str
    """When, as ISO 8601 in UTC."""


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One model in the folder."""

    name: str
    path: Path
    """Its file; of a split model the first."""
    size_bytes: int
    """Of all its files."""
    metadata: GgufMetadata | None
    problem: str | None
    """Why it cannot be served."""
    origin: ModelOrigin | None


def models_folder(environment: Mapping[str, str]) -> Path:
    """Where models are kept: in WELLDONE_HOME, else where the system keeps what can be fetched again."""
    if home := environment.get("WELLDONE_HOME"):
        return Path(home).expanduser().absolute() / "models"
    cache = environment.get("XDG_CACHE_HOME", "")
    # "If an implementation encounters a relative path in any of these variables it should consider the path invalid and
    # ignore it." (XDG base directories)
    base = Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache"
    return base / "welldone" / "models"


def find_model_file(folder: Path, name: str) -> Path | None:
    """The file of the model with this name, or with this file name; the first file where it is split."""
    if builtin_model.is_builtin_name(name) and (path := builtin_model.find_builtin(folder)):
        return path
    for stem, files in _files_by_model(folder).items():
        if name in (stem, files[0].name, files[0].stem):
            return files[0]
    return None


def list_models(folder: Path) -> list[ModelEntry]:
    """All models in the folder, by name."""
    return [_make_entry(stem, files) for stem, files in sorted(_files_by_model(folder).items())]


def model_name_of(path: Path) -> str:
    """The name of the model whose file this is, or one of whose files."""
    if path.name == builtin_model.DEFAULT_MODEL.file_name:
        return builtin_model.DEFAULT_MODEL.name
    part = _SPLIT_NAME.fullmatch(path.stem)
    return path.stem if part is None else part["stem"]


def read_origin(path: Path) -> ModelOrigin | None:
    """Where this file came from, if we fetched it."""
    try:
        with _origin_path(path).open("rb") as file:
            return msgspec.json.decode(file.read(_ORIGIN_LIMIT_BYTES), type=ModelOrigin)
    except (OSError, msgspec.MsgspecError):
        return None  # a file that somebody put there himself has none


def write_origin(path: Path, origin: ModelOrigin) -> None:
    """Keep where this file came from."""
    _origin_path(path).write_bytes(msgspec.json.format(msgspec.json.encode(origin)) + b"\n")


def split_file_names(file_name: str) -> list[str]:
    """The names of all files of the model that this file belongs to: only its own, if the model is not split."""
    stem, dot, suffix = file_name.rpartition(".")
    match = _SPLIT_NAME.fullmatch(stem)
    if match is None:
        return [file_name]
    count = int(match["count"])
    return [f"{match['stem']}-{number:05}-of-{count:05}{dot}{suffix}" for number in range(1, count + 1)]


def _origin_path(path: Path) -> Path:
    return path.with_name(path.name + _ORIGIN_SUFFIX)


def _files_by_model(folder: Path) -> dict[str, list[Path]]:
    """The files of each model, in order, by its name."""
    models: dict[str, list[Path]] = {}
    for path in sorted(_gguf_files(folder)):
        models.setdefault(model_name_of(path), []).append(path)
    return models


def _gguf_files(folder: Path) -> Iterator[Path]:
    try:
        for path in islice(folder.iterdir(), _FILES_LIMIT):
            if path.suffix == GGUF_SUFFIX and not path.name.startswith(".") and path.is_file():
                yield path
    except OSError:
        return  # there is no such folder before the first model is fetched


def _make_entry(name: str, files: list[Path]) -> ModelEntry:
    facts, problem = _read_split_metadata(files)
    return ModelEntry(
        name=name,
        path=files[0],
        size_bytes=sum(path.stat().st_size for path in files),
        metadata=facts,
        problem=problem,
        origin=read_origin(files[0]),
    )


def _read_split_metadata(files: list[Path]) -> tuple[GgufMetadata | None, str | None]:
    try:
        first, *rest = [read_metadata(path) for path in files]
    except GgufError as error:
        return None, str(error)
    facts = msgspec.structs.replace(first, parameters=first.parameters + sum(part.parameters for part in rest))
    missing = len(set(split_file_names(files[0].name)) - {path.name for path in files})
    return facts, f"lacks {missing} of its {missing + len(files)} files; pull it again" if missing else None
