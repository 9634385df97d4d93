"""`welldone engine build`: llama-server, compiled for this machine from the source archive of the pinned wheel.

xllamacpp's source archive on the package index contains the complete llama.cpp of the version that its wheel contains
(docs/decisions/021-engine-from-source.md). Only llama-server is built, as one static program: no web page, tests,
examples, TLS and downloads. A build that fails or is interrupted leaves its folder behind, where the next one goes on.
"""

import asyncio
import os
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path, PurePosixPath

from welldone.config import builtin_model
from welldone.engines import builds, cpu_features, llama_server
from welldone.engines.builds import EngineBuild, EngineSpeed, SpeedComparison
from welldone.engines.cores import thread_limit
from welldone.engines.engine_config import PYTHON_MODULE
from welldone.engines.errors import EngineError
from welldone.engines.models import install
from welldone.engines.models.install import FreeSpace, Progress, PullError
from welldone.engines.models.store import models_folder
from welldone.engines.pip_download import PinnedFile, PipDownloader, last_pip_error, pip_environment
from welldone.engines.self_test import measure_engines


@dataclass(frozen=True, kw_only=True)
class EngineSource:
    """A source archive that contains llama.cpp."""

    file: PinnedFile
    llama_version: int
    """llama.cpp's build number, which its own build would read from git."""
    folder: str
    """The folder of llama.cpp within the archive's only folder."""


SOURCE = EngineSource(
    file=PinnedFile(
        requirement="xllamacpp==2026.10.11549",  # the version in requirements/serve.txt
        sha256="c17ee1163006f70726abb9f72137830818f3d8cb60bfc34cb232d08428eaa22b",
        size_bytes=37_722_765,
        label="source of llama.cpp",
        is_source=True,
    ),
    llama_version=11549,
    folder="thirdparty/llama.cpp",
)

CPU_SECONDS = 1000.0
"""Processor time of a build for the CPU (960 s measured with GCC 12 on a Xeon of 2.5 GHz), for the expected time."""

NEEDED_BYTES = {"cpu": 10**9, "vulkan": 2 * 10**9, "cuda": 6 * 10**9}
"""Source, objects and program. Measured for the CPU: 0.3 GB; the others are generous."""

_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_BUILD_COMMIT=sdist",
    "-DLLAMA_ALL_WARNINGS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
)
_BACKEND_OPTIONS = {"cpu": (), "cuda": ("-DGGML_CUDA=ON",), "vulkan": ("-DGGML_VULKAN=ON",)}
_BACKEND_PROGRAMS = {
    "cuda": ("nvcc", "CUDACXX", "the CUDA toolkit"),
    "vulkan": ("glslc", "", "the Vulkan SDK"),
}
_COMPILER_HINT = (
    "apt-get install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora), apk add g++ (Alpine) or "
    "xcode-select --install (macOS)"
)
_OUTPUT_LINES = 400
_STEP = re.compile(r"\[(\d+)/(\d+)\] ")
_ERROR_LINE = re.compile(r"(^|: )(fatal error|error|CMake Error)[ :]", re.IGNORECASE)
_SHOWN_CHARS = 200

OnStep = Callable[[int, int], None]
"""Callback for the progress of the compiler: steps done, all steps."""


class BuildError(Exception):
    """A build failed. The message is one line that says what to do."""


@dataclass(frozen=True, kw_only=True)
class EngineBuilder:
    """Builds an engine and installs it."""

    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    backend: str = "cpu"
    jobs: int = field(default_factory=lambda: available_cpus())
    source: EngineSource = SOURCE
    progress: Progress = install.no_progress
    on_step: OnStep = lambda _done, _total: None
    note: Callable[[str], None] = lambda _: None
    free: FreeSpace = install.free_bytes
    measures: bool = True

    @property
    def folder(self) -> Path:
        """The folder of all builds."""
        return builds.engines_folder(self.environment)

    @property
    def name(self) -> str:
        """The name of the build."""
        return f"b{self.source.llama_version}-{self.backend}"

    @property
    def work_folder(self) -> Path:
        """Where it is built; removed when it is installed."""
        return self.folder / f".build-{self.name}"

    @property
    def expected_s(self) -> float:
        """Expected seconds of a build for the CPU."""
        return CPU_SECONDS / self.jobs

    def build(self) -> EngineBuild:
        """Build, test and install the engine, unless it is there.

        Raises `BuildError` or `PullError`; the folder stays for the next try.
        """
        started = time.monotonic()
        try:
            self.work_folder.mkdir(parents=True, exist_ok=True)
            with install.download_lock(self.folder / self.name, self.progress):
                if (built := self.existing()) is not None:
                    return built
                self._check_programs()
                install.check_free_space(self.folder, NEEDED_BYTES[self.backend], self.free)
                self._fetch_source()
                program = self._compile(self._build_environment())
                return self._install(program, time.monotonic() - started)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise BuildError(f"cannot write to {self.folder}: {reason}; set WELLDONE_HOME to another folder") from None

    def existing(self) -> EngineBuild | None:
        """Return the same build, if it is installed and runs on this CPU."""
        for build in builds.list_builds(self.folder):
            is_same = build.name == self.name and build.source == self.source.file.requirement
            if is_same and build.problem() is None and not (self.work_folder / "source").exists():
                shutil.rmtree(self.work_folder, ignore_errors=True)
                return build
        return None

    def _check_programs(self) -> None:
        search = self.environment.get("PATH")
        compilers = filter(None, (self.environment.get("CXX", "").split(" ")[0], "c++", "g++", "clang++"))
        if not any(shutil.which(name, path=search) for name in compilers):
            raise BuildError(f"there is no C++ compiler; install one: {_COMPILER_HINT}")
        if self.backend in _BACKEND_PROGRAMS:
            name, variable, package = _BACKEND_PROGRAMS[self.backend]
            if not shutil.which(self.environment.get(variable) or name, path=search):
                raise BuildError(
                    f"there is no {name} on PATH, which a build with {self.backend} needs; install {package}"
                )

    def _fetch_source(self) -> None:
        """Download and unpack the source, unless an earlier try has done it."""
        target = self.work_folder / "source"
        if target.is_dir():
            return
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=self.work_folder) as name:
            downloader = PipDownloader(progress=self.progress, environment=self.environment)
            content, otherwise = "the source of llama.cpp", "go on with the wheel, which needs no build"
            archive = downloader.download(self.source.file, Path(name), content=content, otherwise=otherwise)
            install.check_sha256(install.file_sha256(archive), self.source.file.sha256, archive.name)
            unpacked = Path(name) / "unpacked"
            try:
                with tarfile.open(archive) as opened:
                    paths = ((member, PurePosixPath(member.name).parts[1:]) for member in opened)
                    wanted = self.source.folder
                    members = [member for member, parts in paths if PurePosixPath(*parts).is_relative_to(wanted)]
                    opened.extractall(unpacked, members, filter="data")
            except (tarfile.TarError, EOFError) as error:
                raise BuildError(f"{archive.name} cannot be unpacked: {error}") from None
            for folder in unpacked.glob(f"*/{self.source.folder}"):
                folder.rename(target)
                return
        raise BuildError(f"{archive.name} does not contain {self.source.folder}")

    def _build_environment(self) -> dict[str, str]:
        """Return the environment of the compiler, with CMake and Ninja as wheels where the system has none."""
        environment = dict(self.environment) | {"NINJA_STATUS": "[%f/%t] ", "LC_ALL": "C"}
        search = self.environment.get("PATH", os.defpath)
        if shutil.which("cmake", path=search) and shutil.which("ninja", path=search):
            return environment
        tools = self.work_folder / "tools"
        if not (tools / "bin" / "ninja").exists() or not (tools / "bin" / "cmake").exists():
            self.note("downloading CMake and Ninja")
            self._install_tools(tools)
        paths = [str(tools), *filter(None, [self.environment.get("PYTHONPATH")])]
        return environment | {"PATH": f"{tools / 'bin'}{os.pathsep}{search}", "PYTHONPATH": os.pathsep.join(paths)}

    def _install_tools(self, tools: Path) -> None:
        requirements = files("welldone.engines").joinpath("build_tools.txt").read_text("utf-8")
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=self.work_folder) as name:
            path, output_file = Path(name) / "requirements.txt", Path(name) / "pip-output.txt"
            path.write_text(requirements, "utf-8")
            words = [*PipDownloader().pip(), "install", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
            words += ["--no-input", "--disable-pip-version-check", "--target", str(tools), "--requirement", str(path)]
            with output_file.open("wb") as output:
                ended = subprocess.run(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=pip_environment(self.environment, Path(name)),
                    check=False,
                )
            if ended.returncode:
                shutil.rmtree(tools, ignore_errors=True)
                raise PullError(
                    f"pip could not install CMake and Ninja: {last_pip_error(output_file)}. Check the connection and "
                    "pip's settings (PIP_INDEX_URL, PIP_PROXY), or install cmake and ninja with your system"
                )

    def _compile(self, environment: Mapping[str, str]) -> Path:
        """Configure and compile; return the program."""
        source, target, flags_file = (self.work_folder / name for name in ("source", "build", "cpu-flags"))
        flags = " ".join(sorted(cpu_features.cpu_flags()))
        if target.is_dir() and (not flags_file.exists() or flags_file.read_text("utf-8") != flags):
            shutil.rmtree(target)  # of another CPU
        flags_file.write_text(flags, "utf-8")
        version = f"-DLLAMA_BUILD_NUMBER={self.source.llama_version}"
        options = (*_OPTIONS, version, *_BACKEND_OPTIONS[self.backend])
        self._run(["cmake", "-S", str(source), "-B", str(target), "-G", "Ninja", *options], environment)
        self._run(["ninja", "-C", str(target), "-j", str(self.jobs), builds.SERVER_PROGRAM], environment)
        return target / "bin" / builds.SERVER_PROGRAM

    def _run(self, words: list[str], environment: Mapping[str, str]) -> None:
        """Run a program, report its steps, and log its output. Raises `BuildError`."""
        lines: deque[str] = deque(maxlen=_OUTPUT_LINES)
        log = self.work_folder / "build.log"
        program = shutil.which(words[0], path=environment["PATH"]) or words[0]
        with (
            log.open("ab") as file,
            subprocess.Popen(
                # It ends the compilers when this process does, however that happens.
                [*PYTHON_MODULE, "welldone.engines.command_child", str(os.getpid()), program, *words[1:]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C in the terminal must reach this process only
            ) as process,
        ):
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    file.write(line)
                    text = line.decode("utf-8", "replace").rstrip()
                    lines.append(text)
                    if step := _STEP.match(text):
                        self.on_step(int(step[1]), int(step[2]))
            finally:
                process.stdin.close()
                code = process.wait()
        if code:
            raise BuildError(f"{explain_failure(words[0], lines)}; the output is in {log}")

    def _install(self, program: Path, build_s: float) -> EngineBuild:
        """Test the program and move it to its place, atomically."""
        self.note("testing the engine")
        try:
            probed = llama_server.probe_server(program)
            if probed.version != self.source.llama_version:
                raise BuildError(f"the built program reports version {probed.version}, not {self.source.llama_version}")
            features = llama_server.read_features(program)
            speed = self._measure(program) if self.measures else None
        except EngineError as error:
            raise BuildError(f"the built engine does not work: {error.message}") from None
        build = EngineBuild(
            name=self.name,
            llama_version=self.source.llama_version,
            backend=self.backend,
            source=self.source.file.requirement,
            machine=platform.machine(),
            cpu_flags=tuple(sorted(cpu_features.cpu_flags())),
            features=features,
            built=datetime.now(UTC).isoformat(timespec="seconds"),
            build_s=round(build_s, 1),
            speed=speed,
        )
        staging = Path(tempfile.mkdtemp(prefix=".install-", dir=self.folder))
        try:
            shutil.copy2(program, staging / builds.SERVER_PROGRAM)
            builds.write_manifest(staging, build)
            staging.chmod(0o755)
            _remove_folder(self.folder / self.name)
            staging.rename(self.folder / self.name)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        shutil.rmtree(self.work_folder, ignore_errors=True)
        return build

    def _measure(self, program: Path) -> SpeedComparison | None:
        """Compare the program with the wheel, if the built-in model is there. It must answer; the wheel need not."""
        model = builtin_model.find_builtin(models_folder(self.environment))
        if model is None:
            return None
        speeds: list[EngineSpeed] = asyncio.run(measure_engines([program], model, self.environment, rounds=1))
        try:
            speeds = asyncio.run(measure_engines([program, Path(builds.WHEEL)], model, self.environment))
        except EngineError as error:
            self.note(
                f"its speed beside the wheel's was not measured ({error.message}): welldone engine test {self.name}"
            )
            return None
        return SpeedComparison(*speeds)


def remove_build(folder: Path, name: str) -> bool:
    """Remove a build, or what is left of an unfinished one; return whether there was one."""
    if name.startswith(".") or Path(name).name != name:
        return False
    return any([_remove_folder(folder / name), _remove_folder(folder / f".build-{name}")])


def _remove_folder(path: Path) -> bool:
    """Remove a folder at once: it is renamed first. A running server keeps its open program."""
    if not path.is_dir():
        return False
    gone = Path(tempfile.mkdtemp(prefix=".removed-", dir=path.parent))
    path.rename(gone / path.name)
    shutil.rmtree(gone, ignore_errors=True)
    return True


def explain_failure(program: str, lines: Sequence[str]) -> str:
    """Return one line about a failed CMake or Ninja, from its output."""
    text = "\n".join(lines)
    if "No space left on device" in text:
        return "the disk is full; free some space, or set WELLDONE_HOME to a folder on another disk, and build again"
    if re.search(r"Killed|signal 9|out of memory|virtual memory exhausted", text):
        return "the compiler ran out of memory; build again with --jobs 1"
    errors = [line for line in lines if _ERROR_LINE.search(line)]
    reason = next(iter(errors), lines[-1] if lines else "it printed nothing").strip()
    return f"{program} failed: {reason[:_SHOWN_CHARS]}"


def available_cpus() -> int:
    """Return the cores that this process may use."""
    return thread_limit() or os.cpu_count() or 1
