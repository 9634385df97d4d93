"""Models of a repository on the Hub: which files belong to which quantisation, and which one is meant.

A repository has a model in several quantisations, each in one file or in the parts of a split model. No network here:
`hub` lists the files.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from welldone.config.model import ModelSettings
from welldone.config.settings import did_you_mean
from welldone.engines.models import install, store
from welldone.engines.models.install import HubRepository, HubSource, PullError, PullErrorKind

_QUANTISATION = re.compile(
    r"(?<![a-z0-9])(?:ud-)?(?:i?q\d(?:_(?:\d|k|xxs|xs|s|m|l|xl|nl))+|tq\d_\d|(?:mx|nv)fp4(?:_moe)?|bf16|fp?16|fp?32)"
    r"(?![a-z0-9])",
    re.IGNORECASE,
)
"""A quantisation in a file name, as llama.cpp's `llama-quantize` lists them; `UD-` are Unsloth's own mixtures."""
_NOT_MODELS = ("mmproj", "imatrix")
"""Parts of the names of files that are no models: multimodal projectors and importance matrices."""
_PREFERRED = ("Q4_K_M", "UD-Q4_K_XL", "Q4_K_S", "Q4_0", "Q4_1", "IQ4_NL", "IQ4_XS", "MXFP4_MOE", "Q5_K_M", "Q8_0")
"""Defaults, the first one that a repository has. Q4_K_M is llama-server's default; the others are near it in size."""


class RepositoryFile(msgspec.Struct, frozen=True):
    """A file in a repository."""

    path: str
    size_bytes: int = 0


class RepositoryModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model in a repository: one quantisation, in one or several files."""

    label: str
    """Its quantisation; the path of its file if that has none, or several models have the same."""
    path: str
    """Its file; the first one of a split model."""
    size_bytes: int
    """Size of all its files; 0: unknown."""
    files: int = 1

    def __str__(self) -> str:
        """Return the label with the size."""
        return f"{self.label} ({install.format_size(self.size_bytes)})" if self.size_bytes else self.label


class AmbiguousModelError(PullError):
    """The source names a repository with several models. The message lists them, with a command for one."""

    def __init__(self, source: HubRepository, models: Sequence[RepositoryModel]) -> None:
        self.source = source
        self.models = models
        self.default: RepositoryModel | None = preferred_model(models)
        example = source_of(source, self.default or models[0])
        super().__init__(
            f"{source} has {len(models)} quantisations: {_listed(models)}; choose one: welldone pull {example}",
            PullErrorKind.USER_ERROR,
        )


def source_of(source: HubRepository, model: RepositoryModel) -> HubRepository | HubSource:
    """Return the source of one model: by its quantisation, or by its path if it has none."""
    if quantisation_of(model.path) == model.label:
        return msgspec.structs.replace(source, label=model.label)
    return HubSource(source.repository, model.path, source.revision)


def quantisation_of(path: str) -> str | None:
    """Return the quantisation that the name of a file ends with, or that of its folder."""
    *folders, name = path.split("/")
    for text in (name, *reversed(folders)):
        if matches := _QUANTISATION.findall(text):
            return str(matches[-1]).upper()
    return None


def list_models(files: Iterable[RepositoryFile]) -> list[RepositoryModel]:
    """Return the models of a repository with these files, by size. Split models that lack a part are left out."""
    sizes = {
        file.path: file.size_bytes
        for file in files
        if file.path.lower().endswith(store.GGUF_SUFFIX)
        and not any(word in file.path.rpartition("/")[2].lower() for word in _NOT_MODELS)
    }
    complete: list[tuple[str, list[str]]] = []
    for path in sizes:
        parts = install.split_model_paths(path)
        if path == parts[0] and all(part_path in sizes for part_path in parts):
            complete.append((path, parts))
    labels = Counter(quantisation_of(path) for path, _ in complete)
    models = []
    for path, parts in complete:
        label = quantisation_of(path)
        if label is None or labels[label] > 1:
            label = path
        size = sum(sizes[part_path] for part_path in parts)
        models.append(RepositoryModel(label=label, path=path, size_bytes=size, files=len(parts)))
    return sorted(models, key=lambda model: (model.size_bytes, model.path))


def preferred_model(models: Sequence[RepositoryModel]) -> RepositoryModel | None:
    """Return the model to suggest or to take if none is named: the only one, or one of 4 bits."""
    if len(models) == 1:
        return models[0]
    by_label = {model.label: model for model in models}
    return next((by_label[label] for label in _PREFERRED if label in by_label), None)


def choose_model(source: HubRepository, models: Sequence[RepositoryModel], *, takes_default: bool) -> RepositoryModel:
    """Return the model that a source names.

    Raises:
        AmbiguousModelError: it names none of several, and none is the default or a default is not wanted.
        PullError: there is no such model.
    """
    if not models:
        bare = msgspec.structs.replace(source, label=None)
        raise install.user_error(f"{bare} has no GGUF model; many models have a second repository, named …-GGUF")
    if source.label is None:
        chosen = preferred_model(models) if takes_default or len(models) == 1 else None
        if chosen is None:
            raise AmbiguousModelError(source, models)
        return chosen
    for model in models:
        if source.label.casefold() == model.label.casefold():
            return model
    if same := [model for model in models if quantisation_of(model.path) == source.label.upper()]:
        raise AmbiguousModelError(source, same)
    hint = did_you_mean(source.label.upper(), [model.label for model in models])
    bare = msgspec.structs.replace(source, label=None)
    raise install.user_error(f"{bare} has no quantisation {source.label}{hint}; it has {_listed(models)}")


def find_installed(folder: Path, source: HubRepository) -> Path | None:
    """Return the (first) file of a complete model that was downloaded from this repository.

    Without a quantisation any one counts: a model that is there needs no network.
    """
    paths: dict[str, Path] = {}
    for files in store.files_by_model(folder).values():
        origin = store.read_origin(files[0])
        hub_file = None if origin is None else install.parse_hub_file(origin.source)
        if hub_file is None or (hub_file.repository, hub_file.revision) != (source.repository, source.revision):
            continue
        if len(files) == len(store.split_file_names(files[0].name)):
            paths[hub_file.path] = files[0]
    models = list_models(RepositoryFile(part_path) for path in paths for part_path in install.split_model_paths(path))
    try:
        return paths[choose_model(source, models, takes_default=True).path]
    except PullError:
        return None


def find_configured_model(folder: Path, settings: ModelSettings) -> Path | None:
    """Return the file of the model that the settings name; None if it is not there."""
    if settings.hf_repo is None:
        return store.resolve_model_file(folder, settings.file)
    source = install.parse_hub_source(settings.hf_repo)
    if isinstance(source, HubSource):
        path = folder / install.safe_file_name(source.path)
        origin = store.read_origin(path)
        is_here = origin is not None and origin.source == str(source)
        return (
            path if is_here and all((folder / name).is_file() for name in store.split_file_names(path.name)) else None
        )
    return find_installed(folder, source)


def _listed(models: Iterable[RepositoryModel]) -> str:
    return ", ".join(map(str, models))
