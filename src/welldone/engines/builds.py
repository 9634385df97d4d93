"""Builds of llama.cpp on this machine, and the choice between them.

A build is a folder `engines/NAME` beside the models folder, with the program `llama-server` and a manifest. A model
runs on the fastest suitable build, else on the wheel of xllamacpp. A `llama-server` on PATH is used only if the
settings name it: its version and its origin are unknown.
"""

import contextlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping
from functools import cache
from itertools import islice
from pathlib import Path

import msgspec

from welldone.engines import cpu_features
from welldone.engines.engine_config import PYTHON_MODULE, WheelInfo
from welldone.engines.errors import EngineError
from welldone.engines.models.store import models_folder

WHEEL = "wheel"
SERVER_PROGRAM = "llama-server"
MANIFEST = "engine.json"
BACKENDS = ("cuda", "vulkan", "cpu")
"""The fastest first."""

_BUILDS_LIMIT = 100  # entries of the folder that are read


class EngineSpeed(msgspec.Struct, frozen=True):
    """Tokens per second of one request on one core, measured with the built-in model."""

    prompt: float
    decode: float


class SpeedComparison(msgspec.Struct, frozen=True):
    """Speed of a build and of the wheel, measured alternately in one run."""

    build: EngineSpeed
    wheel: EngineSpeed

    @property
    def decode_ratio(self) -> float:
        """How many times as fast as the wheel the build generates tokens."""
        return self.build.decode / self.wheel.decode

    @property
    def prompt_ratio(self) -> float:
        """How many times as fast as the wheel the build reads a prompt."""
        return self.build.prompt / self.wheel.prompt


class EngineBuild(msgspec.Struct, frozen=True, kw_only=True):
    """Manifest of a build."""

    name: str
    llama_version: int
    """llama.cpp's build number."""
    backend: str
    source: str
    """The pinned requirement that it was built from."""
    machine: str
    """Architecture, as `platform.machine()` names it."""
    cpu_flags: tuple[str, ...]
    """Instruction sets of the CPU that it was built on: it may use all of them."""
    features: tuple[str, ...]
    """Those that llama.cpp reports to use."""
    built: str
    """Date and time."""
    build_s: float = 0.0
    speed: SpeedComparison | None = None
    """None if the built-in model was not downloaded."""

    def problem(self, machine: str | None = None, flags: Collection[str] | None = None) -> str | None:
        """Return why it does not run on this machine; None if it does."""
        own_flags = cpu_features.cpu_flags() if flags is None else flags
        if self.machine != (machine or platform.machine()):
            return f"built for {self.machine}"
        missing = sorted(set(self.cpu_flags) - set(own_flags))
        return f"built for another CPU (with {', '.join(missing[:3])})" if missing else None


class EngineChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The engine of a model."""

    name: str
    """`wheel`, the name of a build, or the path of a program."""
    program: Path | None = None
    """The llama-server; None for the wheel."""
    build: EngineBuild | None = None
    is_automatic: bool = False
    """Whether another engine may take its place if it does not start."""

    @property
    def is_cpu_build(self) -> bool:
        """Whether it is a build without GPUs."""
        return self.build is not None and self.build.backend == "cpu"


def engines_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the builds: WELLDONE_ENGINES, or else beside the models folder."""
    if folder := environment.get("WELLDONE_ENGINES"):
        return Path(folder).expanduser().absolute()
    return models_folder(environment).parent / "engines"


def list_builds(folder: Path) -> list[EngineBuild]:
    """Return the complete builds, the best one first."""
    try:
        paths = list(islice(folder.iterdir(), _BUILDS_LIMIT))
    except OSError:
        return []  # the folder does not exist before the first build
    builds = []
    for path in paths:
        if path.name.startswith(".") or not os.access(path / SERVER_PROGRAM, os.X_OK):
            continue
        try:
            build = msgspec.json.decode((path / MANIFEST).read_bytes(), type=EngineBuild)
        except (OSError, msgspec.MsgspecError):
            continue
        if build.name == path.name:
            builds.append(build)
    rank = {backend: number for number, backend in enumerate(BACKENDS)}
    return sorted(builds, key=lambda build: (rank.get(build.backend, len(rank)), -build.llama_version, build.name))


def choose_engine(
    wanted: Path | None, environment: Mapping[str, str], *, excluded: Collection[str] = ()
) -> EngineChoice:
    """Return the engine for the setting `engine`: None (the fastest), `wheel`, a build's name, or a program.

    `excluded` are engines that did not start. Raises `EngineError` if there is no such engine.
    """
    folder = engines_folder(environment)
    if wanted is None:
        for build in list_builds(folder):
            if build.name not in excluded and build.problem() is None:
                return _built(folder, build, is_automatic=True)
        return EngineChoice(name=WHEEL, is_automatic=True)
    if str(wanted) == WHEEL:
        return EngineChoice(name=WHEEL)
    for build in list_builds(folder):
        if build.name == str(wanted):
            if problem := build.problem():
                raise EngineError(f"the engine {build.name} cannot run on this machine: {problem}", is_permanent=True)
            return _built(folder, build)
    if wanted.is_absolute() or wanted.name != str(wanted):
        program = str(wanted) if wanted.is_file() and os.access(wanted, os.X_OK) else None
    else:
        program = shutil.which(str(wanted), path=environment.get("PATH"))
    if program is None:
        text = f"there is no engine {wanted.name}; `welldone engine` lists those that are there"
        raise EngineError(text, is_permanent=True)
    return EngineChoice(name=wanted.name, program=Path(program))


def _built(folder: Path, build: EngineBuild, *, is_automatic: bool = False) -> EngineChoice:
    program = folder / build.name / SERVER_PROGRAM
    return EngineChoice(name=build.name, program=program, build=build, is_automatic=is_automatic)


def write_manifest(folder: Path, build: EngineBuild) -> None:
    """Write the manifest of a build, atomically."""
    part_file = folder / f"{MANIFEST}.part"
    part_file.write_bytes(msgspec.json.format(msgspec.json.encode(build), indent=2))
    part_file.replace(folder / MANIFEST)


# ---- the wheel of xllamacpp: its version, and the instruction sets that its llama.cpp uses
#
# Only a child process imports native code; its answer is stored, since the import takes half a second.

WHEEL_PACKAGE = "xllamacpp"
_WHEEL_TIMEOUT_S = 30.0  # half a second on an idle machine


def wheel_version() -> str | None:
    """Return the version of the installed wheel; None if there is none."""
    from importlib import metadata  # 40 ms, which `engine --help` does not need

    try:
        return metadata.version(WHEEL_PACKAGE)
    except metadata.PackageNotFoundError:
        return None


def llama_version_of(version: str) -> int | None:
    """Return llama.cpp's build number in a version of the wheel: its third part, such as 11549."""
    match = re.fullmatch(r"\d+\.\d+\.(\d+)(\..*)?", version)
    return int(match[1]) if match else None


@cache
def wheel_fingerprint() -> str | None:
    """Return the build of llama.cpp in the wheel, such as `b11549`: the wheel does not know it."""
    number = llama_version_of(wheel_version() or "")
    return None if number is None else f"b{number}"


def wheel_features(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the instruction sets that the wheel uses; None if it cannot be imported."""
    version = wheel_version()
    if version is None:
        return None
    path = engines_folder(environment) / f"{platform.machine()}-wheel.json"
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        info = msgspec.json.decode(path.read_bytes(), type=WheelInfo)
        if info.version == version:
            return cpu_features.parse_system_info(info.system_info)
    try:
        ended = subprocess.run(
            [*PYTHON_MODULE, "welldone.engines.llama_child", "--info"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_WHEEL_TIMEOUT_S,
            check=True,
            env=dict(environment),
        )
        info = msgspec.json.decode(ended.stdout, type=WheelInfo)
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError):
        return None
    with contextlib.suppress(OSError):  # a folder that cannot be written costs half a second per start
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(info, version=version)))
    return cpu_features.parse_system_info(info.system_info)


def unused_features(features: tuple[str, ...]) -> tuple[str, ...]:
    """Return what this CPU supports and an engine with these features does not use."""
    return tuple(name for name in cpu_features.usable_features(cpu_features.cpu_flags()) if name not in features)
