"""Builds of an engine from a small source: the real pip, and stand-ins for CMake, Ninja and the compiler."""

import io
import os
import signal
import subprocess
import sys
import tarfile
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engines import files, stand_in_server
from tests.engines.supervisors import ProcessWatch
from welldone.engines import builds, cpu_features
from welldone.engines.builds import EngineBuild, choose_engine, engines_folder, list_builds
from welldone.engines.errors import EngineError
from welldone.engines.models.install import PullError
from welldone.engines.native_build import (
    SOURCE,
    BuildError,
    EngineBuilder,
    EngineSource,
    available_cpus,
    explain_failure,
    remove_build,
)
from welldone.engines.pip_download import METADATA_BACKEND, PinnedFile

ROOT = Path(__file__).parents[2]
MUST_NOT_RUN = "raise SystemExit('must not be executed')\n"

CMAKE = """
import pathlib, sys
target = pathlib.Path(sys.argv[sys.argv.index("-B") + 1])
target.mkdir(exist_ok=True)
(target / "options").write_text(" ".join(sys.argv))
"""
NINJA = """
import os, pathlib, sys, time
target = pathlib.Path(sys.argv[sys.argv.index("-C") + 1])
source = target.parent / "source"
mark = target / "compiled"
print("[1/2] Building CXX object", flush=True)
if (source / "fails").exists():
    print((source / "fails").read_text(), flush=True)
    sys.exit(1)
if (source / "hangs").exists():
    (source / "hangs").unlink()
    mark.write_text("first file")
    pathlib.Path(os.environ["STARTED"]).touch()
    time.sleep(600)
(target / "resumed").write_text(mark.read_text() if mark.exists() else "nothing")
print("[2/2] Linking", flush=True)
(target / "bin").mkdir(exist_ok=True)
program = target / "bin" / "llama-server"
program.write_text((source / "llama-server").read_text())
program.chmod(0o755)
"""


def program(folder: Path, name: str, text: str) -> None:
    """Write a Python program."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!{sys.executable}\n{text}")
    (folder / name).chmod(0o755)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which pip uses one folder, and PATH has only the stand-ins."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    tools = tmp_path / "tools"
    for name, text in (("cmake", CMAKE), ("ninja", NINJA), ("c++", "")):
        program(tools, name, text)
    return inherited | {
        "PATH": str(tools),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "packages"),
        "PIP_NO_CACHE_DIR": "1",
        "WELLDONE_ENGINES": str(tmp_path / "home" / "engines"),
        "STARTED": str(tmp_path / "started"),
    }


def archive(folder: Path) -> EngineSource:
    """Write a source archive with the layout of the real one."""
    folder.mkdir(exist_ok=True)
    server = stand_in_server.install(folder / "server")
    members = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: tiny-engine\nVersion: 1.0\n",
        "pyproject.toml": '[build-system]\nrequires = ["nowhere"]\nbuild-backend = "setuptools.build_meta"\n',
        "setup.py": MUST_NOT_RUN,
        "thirdparty/llama.cpp/llama-server": server.read_text("utf-8"),
    }
    path = folder / "tiny_engine-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as opened:
        for name, text in members.items():
            member = tarfile.TarInfo(f"tiny_engine-1.0/{name}")
            member.size = len(text.encode())
            opened.addfile(member, io.BytesIO(text.encode()))
    data = path.read_bytes()
    file = PinnedFile(
        requirement="tiny-engine==1.0",
        sha256=files.sha256(data),
        size_bytes=len(data),
        label="source",
        is_source=True,
    )
    return EngineSource(file=file, llama_version=stand_in_server.VERSION, folder="thirdparty/llama.cpp")


def builder(environment: dict[str, str], source: EngineSource, **options: object) -> EngineBuilder:
    return EngineBuilder(environment=environment, source=source, jobs=3, measures=False, **options)  # type: ignore[arg-type]


def prepared(
    environment: dict[str, str],
    *,
    version: int = stand_in_server.VERSION,
    more: dict[str, str] | None = None,
    **options: object,
) -> EngineBuilder:
    """Return a builder whose source is already unpacked, without pip; `more` are files of the source."""
    file = PinnedFile(requirement="tiny-engine==1.0", sha256="", size_bytes=1, label="source", is_source=True)
    source = EngineSource(file=file, llama_version=stand_in_server.VERSION, folder="thirdparty/llama.cpp")
    made = builder(environment, source, **options)
    stand_in_server.install(made.work_folder / "source" / "llama-server", version=version)
    for name, text in (more or {}).items():
        (made.work_folder / "source" / name).write_text(text)
    return made


def test_a_build_is_installed_listed_chosen_and_removed(environment: dict[str, str], tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    source = archive(tmp_path / "packages")
    build = builder(environment, source, on_step=lambda *step: steps.append(step)).build()
    folder = engines_folder(environment)
    assert steps == [(1, 2), (2, 2)]
    assert list_builds(folder) == [build]
    assert (build.name, build.features, build.problem()) == ("b11549-cpu", ("AVX", "AVX2", "AVX512"), None)
    assert sorted(path.name for path in (folder / build.name).iterdir()) == ["engine.json", "llama-server"]
    assert not list(folder.glob(".[!b]*[!k]"))  # the lock file stays
    choice = choose_engine(None, environment)
    assert (choice.name, choice.is_automatic) == (build.name, True)
    assert choose_engine(Path(build.name), environment).build == build
    assert choose_engine(Path("wheel"), environment).program is None
    assert choose_engine(None, environment, excluded={build.name}).name == "wheel"
    # It is not built again until it is removed.
    assert builder(environment, source, free=lambda _: 0).build() == build
    assert sorted(path.name for path in folder.iterdir()) == [".b11549-cpu.lock", build.name]
    assert remove_build(folder, build.name)
    assert not remove_build(folder, build.name)
    assert choose_engine(None, environment).name == "wheel"


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("x.cpp:3:1: fatal error: no-such.h: No such file", "ninja failed: x.cpp:3:1: fatal error: no-such.h"),
        ("x.cpp: fatal error: No space left on device", "the disk is full; free some space"),
        ("c++: fatal error: Killed signal terminated program cc1plus", "out of memory; build again with --jobs 1"),
    ],
)
def test_the_reason_of_a_failure_is_in_the_output(output: str, message: str) -> None:
    assert message in explain_failure("ninja", ["[1/2] Building", output, "ninja: build stopped"])


def test_a_failed_build_is_one_line_and_its_output_and_options_are_kept(
    environment: dict[str, str], tmp_path: Path
) -> None:
    output = "x.cpp: fatal error: No space left on device"
    made = prepared(environment, more={"fails": output})
    with pytest.raises(BuildError, match="the disk is full; free some space") as caught:
        made.build()
    assert "\n" not in str(caught.value)
    assert output in (made.work_folder / "build.log").read_text()
    assert str(made.work_folder / "build.log") in str(caught.value)
    assert choose_engine(None, environment).name == "wheel"
    # What is not needed is not built.
    options = (made.work_folder / "build" / "options").read_text()
    for option in ("GGML_NATIVE=ON", "LLAMA_BUILD_TESTS=OFF", "LLAMA_USE_PREBUILT_UI=OFF", "LLAMA_BUILD_NUMBER=11549"):
        assert f"-D{option}" in options


def test_a_failed_build_goes_on_where_it_stopped(environment: dict[str, str], tmp_path: Path) -> None:
    made = prepared(environment, more={"fails": "error: no"})
    with pytest.raises(BuildError):
        made.build()
    (made.work_folder / "source" / "fails").unlink()
    assert made.build().name == made.name
    assert not made.work_folder.exists()


def test_a_build_of_another_cpu_starts_again(environment: dict[str, str], tmp_path: Path) -> None:
    made = prepared(environment, more={"fails": "error: no"})
    with pytest.raises(BuildError):
        made.build()
    (made.work_folder / "build" / "object").touch()
    (made.work_folder / "cpu-flags").write_text("avx1024")
    with pytest.raises(BuildError):
        made.build()
    assert not (made.work_folder / "build" / "object").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_build_ends_its_compilers_and_goes_on(
    environment: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    made = prepared(environment, more={"hangs": ""})
    text = "import os; from tests.engines.test_native_build import *; prepared(dict(os.environ)).build()"
    paths = f"{ROOT}{os.pathsep}{ROOT / 'src'}"
    with subprocess.Popen(
        [sys.executable, "-c", text], env=environment | {"PYTHONPATH": paths}, stderr=subprocess.DEVNULL, cwd=tmp_path
    ) as process:
        started = Path(environment["STARTED"])
        while not started.exists():
            assert process.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.05)
        (compiler,) = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if _is_ninja(path, made)]
        watch = ProcessWatch(compiler)
        process.send_signal(number)
        assert process.wait(60) != 0
    assert watch.has_ended()
    watch.close()
    assert list_builds(engines_folder(environment)) == []
    resumed: list[str] = []
    again = replace(made, note=lambda _: resumed.append((made.work_folder / "build" / "resumed").read_text()))
    again.build()
    assert resumed == ["first file"]


def _is_ninja(path: Path, made: EngineBuilder) -> bool:
    try:
        text = path.read_bytes()
    except OSError:
        return False  # it has just ended
    return str(made.work_folder).encode() in text and b"command_child" not in text


def _fails(made: EngineBuilder, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        made.build()
    assert "\n" not in str(caught.value)
    assert list_builds(made.folder) == []
    assert choose_engine(None, made.environment).name == "wheel"


def test_without_a_compiler_the_error_names_packages(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "tools" / "c++").unlink()
    _fails(prepared(environment), BuildError, "no C.. compiler; install one: apt-get")


@pytest.mark.parametrize(("backend", "name"), [("cuda", "nvcc"), ("vulkan", "glslc")])
def test_a_gpu_build_needs_its_compiler(environment: dict[str, str], tmp_path: Path, backend: str, name: str) -> None:
    _fails(prepared(environment, backend=backend), BuildError, f"no {name} on PATH")
    program(tmp_path / "tools", name, "")
    assert prepared(environment, backend=backend).build().name == f"b11549-{backend}"


def test_without_the_package_index_the_error_names_the_settings(environment: dict[str, str], tmp_path: Path) -> None:
    source = archive(tmp_path / "packages")
    (tmp_path / "packages" / "tiny_engine-1.0.tar.gz").unlink()
    _fails(builder(environment, source), PullError, r"could not download tiny-engine==1\.0.*PIP_INDEX_URL.*go on with")


def test_without_cmake_and_the_package_index_the_error_names_both(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "tools" / "cmake").unlink()
    notes: list[str] = []
    made = prepared(environment, note=notes.append)
    _fails(made, PullError, r"could not install CMake and Ninja: .*install cmake and ninja with your system")
    assert notes == ["downloading CMake and Ninja"]
    assert not (made.work_folder / "tools").exists()


def test_another_hash_is_refused(environment: dict[str, str], tmp_path: Path) -> None:
    source = archive(tmp_path / "packages")
    wrong = replace(source, file=replace(source.file, sha256="0" * 64))
    _fails(builder(environment, wrong), PullError, "another sha256 than the pinned one")


def test_a_full_disk_is_found_before_the_build(environment: dict[str, str], tmp_path: Path) -> None:
    made = prepared(environment, free=lambda _: 10**6)
    _fails(made, PullError, "not enough disk space")


def test_a_folder_that_cannot_be_written_is_an_error(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    made = builder(environment, archive(tmp_path / "packages"))
    with pytest.raises(BuildError, match=r"cannot write to .*set WELLDONE_HOME"):
        made.build()


def test_a_program_of_another_version_is_not_installed(environment: dict[str, str], tmp_path: Path) -> None:
    _fails(prepared(environment, version=7), BuildError, "reports version 7, not 11549")


def test_a_program_that_does_not_run_is_not_installed(environment: dict[str, str], tmp_path: Path) -> None:
    _fails(
        prepared(environment, more={"llama-server": "#!/nowhere\n"}),
        BuildError,
        "does not work: llama-server cannot be executed",
    )


def test_a_source_without_llama_cpp_is_an_error(environment: dict[str, str], tmp_path: Path) -> None:
    source = replace(archive(tmp_path / "packages"), folder="elsewhere")
    _fails(builder(environment, source), BuildError, "does not contain elsewhere")


def test_a_build_for_another_cpu_is_not_used_and_one_with_a_damaged_manifest_is_ignored(
    environment: dict[str, str], tmp_path: Path
) -> None:
    build = prepared(environment).build()
    assert build.problem(flags=()) is None or cpu_features.cpu_flags()
    manifest = engines_folder(environment) / build.name / "engine.json"
    manifest.write_text(manifest.read_text().replace('"cpu_flags": [', '"cpu_flags": ["avx1024",'))
    (listed,) = list_builds(engines_folder(environment))
    assert listed.problem() == "built for another CPU (with avx1024)"
    assert choose_engine(None, environment).name == "wheel"
    with pytest.raises(EngineError, match="cannot run on this machine"):
        choose_engine(Path(build.name), environment)
    assert build.problem(machine="pdp11") == f"built for {build.machine}"
    manifest.write_text("{")
    assert list_builds(engines_folder(environment)) == []


def test_the_best_build_comes_first(tmp_path: Path) -> None:
    names = [("b3-cpu", 3, "cpu"), ("b9-cpu", 9, "cpu"), ("b1-cuda", 1, "cuda"), ("b1-vulkan", 1, "vulkan")]
    for name, version, backend in names:
        stand_in_server.install(tmp_path / name / "llama-server")
        build = EngineBuild(
            name=name,
            llama_version=version,
            backend=backend,
            source="",
            machine="",
            cpu_flags=(),
            features=(),
            built="",
        )
        builds.write_manifest(tmp_path / name, build)
    assert [build.name for build in list_builds(tmp_path)] == ["b1-cuda", "b1-vulkan", "b9-cpu", "b3-cpu"]


@pytest.mark.parametrize("name", ["no-such-program", "/no/such/llama-server", "sub/llama-server"])
def test_an_unknown_engine_is_an_error(environment: dict[str, str], name: str) -> None:
    with pytest.raises(EngineError, match="there is no engine"):
        choose_engine(Path(name), environment)


def test_a_program_on_path_is_used_only_by_its_name(environment: dict[str, str], tmp_path: Path) -> None:
    found = stand_in_server.install(tmp_path / "tools" / "llama-server")
    assert choose_engine(None, environment).name == "wheel"
    assert choose_engine(Path("llama-server"), environment).program == found
    assert choose_engine(found, environment).program == found


def test_the_source_is_that_of_the_locked_wheel() -> None:
    lock = (ROOT / "requirements" / "serve.txt").read_text("utf-8")
    _, _, rest = lock.partition(f"{SOURCE.file.requirement} ")
    assert f"sha256:{SOURCE.file.sha256}" in rest.partition("# via")[0]
    assert SOURCE.file.requirement.endswith(f".{SOURCE.llama_version}")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert any(word.startswith("xllamacpp") for word in extras["serve"])


def test_the_output_of_a_program_without_errors_is_its_last_line() -> None:
    assert explain_failure("cmake", ["one", "two"]) == "cmake failed: two"
    assert explain_failure("cmake", []) == "cmake failed: it printed nothing"
    assert available_cpus() >= 1


def test_cpu_features_are_read_from_linux(tmp_path: Path) -> None:
    x86, arm, other = tmp_path / "x86", tmp_path / "arm", tmp_path / "other"
    x86.write_text("model name\t: A CPU\nflags\t\t: fpu avx avx2 f16c fma bmi2 avx512f flush_l1d\n")
    arm.write_text("Features\t: fp asimd asimddp atomics\n")
    other.write_text("processor : 0\n")
    assert cpu_features.cpu_flags(x86) == {"avx", "avx2", "f16c", "fma", "bmi2", "avx512f"}
    assert cpu_features.usable_features(cpu_features.cpu_flags(x86), "x86_64") == ("AVX", "AVX2", "F16C", "FMA", "BMI2")
    assert cpu_features.usable_features(cpu_features.cpu_flags(arm), "aarch64") == ("NEON", "DOTPROD")
    assert cpu_features.cpu_flags(other) == cpu_features.cpu_flags(tmp_path / "nothing") == frozenset()
    assert cpu_features.cpu_model(x86) == "A CPU"
    assert cpu_features.cpu_model(tmp_path / "nothing")


def test_the_metadata_of_a_source_archive_has_its_name(tmp_path: Path) -> None:
    """Versions of pip before 24.1 read the name of a package from the folder of its metadata."""
    (tmp_path / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: tiny-engine\nVersion: 1.0\n", "utf-8")
    program = f"{METADATA_BACKEND}\nprint(prepare_metadata_for_build_wheel({str(tmp_path)!r}))"
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "tiny_engine-1.0.dist-info"
    assert (tmp_path / ended.stdout.strip() / "METADATA").read_bytes() == (tmp_path / "PKG-INFO").read_bytes()
