"""The folder of models: what is in it, under which names, and where each file came from.

A name is looked up among the files that are there. It never becomes part of a path.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import msgspec

from welldone.engines import default
from welldone.engines.gguf import GgufMetadata, GgufError, read_metadata

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
    if default.is_builtin_name(name) and (path := default.find_builtin(folder)):
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
    if path.name == default.DEFAULT_MODEL.file_name:
        return default.DEFAULT_MODEL.name
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
