"""`welldone engine`, and the engine in the banner of `welldone serve`."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.random_gguf import Packed
from tests.cli.run import Run
from tests.engines import files, stand_in_server
from tests.engines.test_llama_server import installed_build
from tests.models.gguf_writer import Gguf
from tests.support.server import serving
from welldone.cli import engine, engine_actions, ui
from welldone.config.model import ModelSettings
from welldone.config.server import Config, ServeSettings
from welldone.engines import builds
from welldone.engines.builds import EngineBuild, EngineSpeed, SpeedComparison, write_manifest
from welldone.engines.cpu_features import quantisation_note
from welldone.engines.native_build import SOURCE

TWICE = SpeedComparison(build=EngineSpeed(300.0, 80.0), wheel=EngineSpeed(100.0, 40.0))


def measured_build(folder: Path) -> EngineBuild:
    """Install a build that was measured to be twice as fast as the wheel."""
    found = installed_build(folder)
    measured = EngineBuild(**{name: getattr(found, name) for name in found.__struct_fields__} | {"speed": TWICE})
    write_manifest(folder / found.name, measured)
    return measured


def test_the_engines_are_listed_and_the_used_one_is_marked(
    here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in_server.install(tmp_path / "bin" / "llama-server")
    (tmp_path / "welldone.toml").write_text('[models.a]\ncommand = ["vllm", "{port}"]\n[models.b]\nfile = "default"\n')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("WELLDONE_ENGINES", str(tmp_path / "engines"))

    def command(*words: str) -> bytes:
        done = here("engine", *words, cwd=tmp_path)
        assert (done.code, done.err) == (0, b"")
        return done.out

    text = command("list").decode()
    assert "*  wheel " in text
    assert "PATH: " in text
    assert "welldone engine build compiles llama.cpp for this CPU" in text
    build = measured_build(tmp_path / "engines")
    listed = json.loads(command("--json"))
    assert [(row["name"], row["is_used"]) for row in listed["engines"]] == [
        (build.name, True),
        ("wheel", False),
        ("llama-server", False),
        ("vllm", True),
    ]
    own, of_wheel, program, _ = listed["engines"]
    assert own["speed"]["build"]["decode"] == 80.0
    assert (of_wheel["llama_version"], bool(of_wheel["features"])) == (
        builds.llama_version_of(builds.wheel_version() or ""),
        True,
    )
    assert (program["llama_version"], program["features"]) == (stand_in_server.VERSION, ["AVX", "AVX2", "AVX512"])
    assert "2.00 times (prompts 3.00 times) the wheel's" in command().decode()


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds are in `tmp_path`, and none can be made."""
    for name, value in {"WELLDONE_ENGINES": str(tmp_path), "PATH": "/nowhere", "CXX": ""}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("no_compiler")
def test_a_build_that_is_there_is_not_built_again(here: Run, tmp_path: Path) -> None:
    build = installed_build(tmp_path)
    write_manifest(tmp_path / build.name, msgspec.structs.replace(build, source=SOURCE.file.requirement))
    done = here("engine", "build")
    assert (done.code, done.out.decode()) == (0, f"{tmp_path / build.name / 'llama-server'}\n")
    assert done.notes == f"{build.name} is there already; to build it anew, first welldone engine remove {build.name}\n"


@pytest.mark.usefixtures("no_compiler")
def test_a_build_is_removed(here: Run, tmp_path: Path) -> None:
    build = installed_build(tmp_path)
    assert here("engine", "remove", build.name).code == 0
    done = here("engine", "remove", build.name)
    assert (done.code, done.notes) == (2, f"there is no build '{build.name}'; welldone engine lists them\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("remove",), "engine remove NAME"),
        (("build", "x"), "engine remove NAME"),
        (("build", "--cuda", "--vulkan"), "give one backend at most"),
        (("--jobs", "2"), "belong to welldone engine build"),
        (("build", "--jobs", "0"), "--jobs"),
        (("test", "b1-cpu"), "there is no build 'b1-cpu'"),
        (("remove", "../x"), "there is no build '../x'"),
    ],
)
def test_usage_errors_are_one_line(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WELLDONE_ENGINES", str(tmp_path / "none"))
    with pytest.raises(ui.UsageError, match=message.replace(".", r"\.")) as caught:
        engine.run(list(words))
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("no_compiler")
def test_a_build_that_cannot_start_is_one_line(here: Run) -> None:
    done = here("engine", "build")
    assert done.code == 1
    assert done.notes.splitlines()[-1].startswith("there is no C++ compiler; install one: apt-get install g++")
    assert "about" in done.notes.splitlines()[0]


def test_progress_is_a_line_per_tenth_with_the_remaining_time(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    report = engine_actions.step_progress(lambda: now)
    for done in range(1, 201):
        now += 3.0
        report(done, 200)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0] == "compiled 20 of 200, about 9 min left"
    assert lines[-1] == "compiled 200 of 200, about 0 s left"


def banner_of(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wanted: Path | None = None,
    **changes: Any,  # noqa: ANN401 - those of ModelSettings
) -> list[str]:
    monkeypatch.setenv("WELLDONE_ENGINES", str(tmp_path))
    model = ModelSettings(name="m", engine=wanted, **changes)
    return engine_actions.engine_lines(Config(server=ServeSettings(), models=(model,)))


def test_the_banner_names_the_engine_and_what_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = builds.llama_version_of(builds.wheel_version() or "")
    monkeypatch.setattr(engine_actions, "unused_features", lambda _: ("AVX512", "AMX_INT8"))
    lost, hint = banner_of(tmp_path, monkeypatch)
    assert lost == f"llama.cpp b{version} (wheel), which does not use AVX512, AMX_INT8 of this CPU:"
    assert hint.startswith("welldone engine build compiles llama.cpp for this CPU (about ")
    monkeypatch.setattr(engine_actions, "unused_features", lambda _: ())
    assert banner_of(tmp_path, monkeypatch) == [f"llama.cpp b{version} (wheel)"]
    build = measured_build(tmp_path)
    (line,) = banner_of(tmp_path, monkeypatch)
    assert (
        line
        == f"llama.cpp b11549, built for this CPU ({build.name}): 2.00 times (prompts 3.00 times) as fast as the wheel"
    )
    (line,) = banner_of(tmp_path, monkeypatch, Path("wheel"))
    assert line.endswith(f"(wheel); {build.name} is 2.00 times (prompts 3.00 times) as fast here (--engine auto)")
    program = stand_in_server.install(tmp_path / "llama-server")
    assert banner_of(tmp_path, monkeypatch, program) == [str(program)]


def test_the_banner_names_weights_that_are_slow_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [Packed("a", (256, 64), (), 21, bytes(64 * 110)), Packed("b", (8, 8), (), 0, bytes(256))]
    model = Gguf(files.metadata(), tensors).write(tmp_path / "m.gguf")
    note = "m: IQ3_S weights generate slowly on a CPU: Q3_K ones are 1.6 to 2 times as fast, and somewhat larger"
    assert banner_of(tmp_path, monkeypatch, file=model)[-1] == note
    assert note not in banner_of(tmp_path, monkeypatch, file=model, gpu_layers=9)
    program = stand_in_server.install(tmp_path / "llama-server")
    assert banner_of(tmp_path, monkeypatch, program, file=model) == [str(program)]
    installed_build(tmp_path)
    assert banner_of(tmp_path, monkeypatch, file=model)[-1] == note


@pytest.mark.parametrize(
    ("kind", "features", "words"),
    [
        ("Q4_1", ("AVX2",), "Q4_1 weights read prompts slowly on a CPU: Q4_K ones"),
        ("Q5_0", ("NEON", "DOTPROD"), "Q5_K ones"),
        ("Q5_1", ("AVX2", "AMX_INT8"), "Q5_K ones"),
        ("Q4_1", ("AVX2", "AMX_INT8"), None),
        ("Q4_1", ("NEON",), None),
        ("Q4_K", ("AVX2",), None),
        ("IQ4_XS", ("AVX2",), None),
        (None, (), None),
    ],
)
def test_a_note_depends_on_the_instruction_sets(kind: str | None, features: tuple[str, ...], words: str | None) -> None:
    note = quantisation_note(kind, features)
    assert note is None if words is None else words in str(note)


def test_serve_runs_on_the_chosen_engine(tiny_model: Path, tmp_path: Path) -> None:
    program = stand_in_server.install(tmp_path / "my-server")
    options = ["-m", str(tiny_model), "-t", "1", "-c", "256", "--engine", str(program)]
    with serving(options) as server:
        server.stdout.wait(f"  engine +{program}")
        server.log.wait("model is ready .*on=my-server")
        assert server.end() == 0


def test_an_engine_that_is_not_there_ends_the_start(tiny_model: Path, here: Run) -> None:
    done = here("serve", "-m", str(tiny_model), "--engine", "no-such-engine", "--port", "0")
    assert done.code == 2
    assert done.notes == "there is no engine no-such-engine; `welldone engine` lists those that are there (--engine)\n"
