"""The models folder: names and origins of its files.

A model name is looked up among the existing files; it never becomes part of a path.
"""

import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import msgspec

from welldone.config import builtin_model
from welldone.engines.models.gguf import GgufError, GgufMetadata, read_metadata

GGUF_SUFFIX = ".gguf"
# llama.cpp's naming scheme for split models (gguf-split).
_SPLIT_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})")
_FILES_LIMIT = 10_000  # far more than a models folder has; one with more was configured by mistake
_ORIGIN_LIMIT_BYTES = 65_536  # ours have less than 1 kB


class ModelOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """Origin of a downloaded file; stored beside it as JSON. It contains no secret."""

    source: str
    sha256: str
    fetched: str
    """Time of the download, ISO 8601 in UTC."""


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A model in the folder."""

    name: str
    path: Path
    """Its file; the first one of a split model."""
    size_bytes: int
    """Size of all its files."""
    metadata: GgufMetadata | None
    problem: str | None
    """Why it cannot be served, if it cannot."""
    origin: ModelOrigin | None


def models_folder(environment: Mapping[str, str]) -> Path:
    """Return the models folder: in WELLDONE_HOME, or else in the user's cache directory."""
    if home := environment.get("WELLDONE_HOME"):
        return Path(home).expanduser().absolute() / "models"
    cache = environment.get("XDG_CACHE_HOME", "")
    # XDG Base Directory Specification: "If an implementation encounters a relative path in any of these variables it
    # should consider the path invalid and ignore it."
    base = Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache"
    return base / "welldone" / "models"


def resolve_model_file(folder: Path, file: Path | None) -> Path | None:
    """Return the file of the model that the settings name by its path or its name; None: the built-in model."""
    if file is not None and file.is_file():
        return file
    return find_model_file(folder, builtin_model.DEFAULT_MODEL.name if file is None else str(file))


def find_model_file(folder: Path, name: str) -> Path | None:
    """Return the (first) file of the model with this name or file name."""
    if builtin_model.is_builtin_name(name) and (path := builtin_model.find_builtin(folder)):
        return path
    for stem, files in files_by_model(folder).items():
        if name in (stem, files[0].name, files[0].stem):
            return files[0]
    return None


def list_models(folder: Path) -> list[ModelEntry]:
    """List all models in the folder, sorted by name."""
    return [read_entry(stem, files) for stem, files in sorted(files_by_model(folder).items())]


def model_name_of(path: Path) -> str:
    """Return the name of the model that a file belongs to."""
    if path.name == builtin_model.DEFAULT_MODEL.file_name:
        return builtin_model.DEFAULT_MODEL.name
    match = _SPLIT_NAME.fullmatch(path.stem)
    return path.stem if match is None else match["stem"]


def read_origin(path: Path) -> ModelOrigin | None:
    """Return the origin of a file, if `welldone pull` downloaded it."""
    try:
        with _origin_path(path).open("rb") as file:
            return msgspec.json.decode(file.read(_ORIGIN_LIMIT_BYTES), type=ModelOrigin)
    except (OSError, msgspec.MsgspecError):
        return None  # a file that the user has copied there has none


def write_origin(path: Path, origin: ModelOrigin) -> None:
    """Store the origin of a file."""
    _origin_path(path).write_bytes(msgspec.json.format(msgspec.json.encode(origin)) + b"\n")


def split_file_names(file_name: str) -> list[str]:
    """Return the names of all files of the model that a file belongs to."""
    stem, dot, suffix = file_name.rpartition(".")
    match = _SPLIT_NAME.fullmatch(stem)
    if match is None:
        return [file_name]
    count = int(match["count"])
    return [f"{match['stem']}-{number:05}-of-{count:05}{dot}{suffix}" for number in range(1, count + 1)]


def _origin_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def files_by_model(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each model, in order."""
    try:
        paths = sorted(islice(folder.iterdir(), _FILES_LIMIT))
    except OSError:
        return {}  # the folder does not exist before the first download
    models: dict[str, list[Path]] = {}
    for path in paths:
        if path.suffix == GGUF_SUFFIX and not path.name.startswith(".") and path.is_file():
            models.setdefault(model_name_of(path), []).append(path)
    return models


def read_entry(name: str, files: list[Path]) -> ModelEntry:
    """Return the entry of a model with these files."""
    metadata, problem = None, None
    try:
        metadata, *rest = [read_metadata(path) for path in files]
        parameters = metadata.parameters + sum(part_metadata.parameters for part_metadata in rest)
        metadata = msgspec.structs.replace(metadata, parameters=parameters)
        if missing := len(set(split_file_names(files[0].name)) - {path.name for path in files}):
            problem = f"lacks {missing} of its {missing + len(files)} files; pull it again"
    except GgufError as error:
        problem = str(error)
    return ModelEntry(
        name=name,
        path=files[0],
        size_bytes=sum(path.stat().st_size for path in files),
        metadata=metadata,
        problem=problem,
        origin=read_origin(files[0]),
    )
