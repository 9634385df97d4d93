"""The actions of `welldone engine`, and the lines of the banner about engines."""

import asyncio
import os
import shutil
import time
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import msgspec

from welldone.cli import ui
from welldone.cli.pull import PULL_EXIT_CODES, download_progress
from welldone.cli.ui import ExitCode, UsageError
from welldone.config.builtin_model import find_builtin
from welldone.config.server import Config
from welldone.config.settings import unknown_name
from welldone.engines import builds, cpu_features, llama_server, native_build
from welldone.engines.builds import (
    WHEEL,
    EngineBuild,
    EngineChoice,
    SpeedComparison,
    choose_engine,
    engines_folder,
    llama_version_of,
    unused_features,
    wheel_features,
    wheel_version,
)
from welldone.engines.cpu_features import quantisation_note
from welldone.engines.errors import EngineError
from welldone.engines.models.install import PullError
from welldone.engines.models.store import models_folder
from welldone.engines.native_build import BuildError, EngineBuilder
from welldone.engines.plan import read_model_metadata
from welldone.engines.self_test import measure_engines
from welldone.reporting import format_table, wrap_text

_STEP_LINES = 10  # lines of progress without a terminal
_ESTIMATE_STEPS = 10  # compiled files after which the remaining time is estimated from them


class EngineRow(msgspec.Struct, kw_only=True):
    """A row of the table, and an entry of the JSON output."""

    name: str
    llama_version: int | None = None
    backend: str | None = None
    is_used: bool = False
    features: tuple[str, ...] | None = None
    """None: unknown."""
    unused_features: tuple[str, ...] | None = None
    speed: SpeedComparison | None = None
    source: str
    problem: str | None = None


def run(options: Namespace, backend: str, read_config: Callable[[], Config]) -> ExitCode:
    """Run the action that the options name."""
    try:
        match options.action:
            case "build":
                return _build(backend, options.jobs)
            case "test":
                return _test(options.name)
            case "remove":
                return _remove(options.name)
            case _ if options.folder:
                ui.print_line(str(engines_folder(os.environ)))
                return ExitCode.OK
            case _:
                return _list(read_config(), is_json=options.json)
    except PullError as error:
        ui.print_note(str(error))
        return PULL_EXIT_CODES[error.kind]
    except (BuildError, EngineError) as error:
        ui.print_note(str(error))
        return ExitCode.FAILED


def _build(backend: str, jobs: int | None) -> ExitCode:
    with download_progress() as progress:
        builder = EngineBuilder(
            backend=backend,
            jobs=jobs or native_build.available_cpus(),
            progress=progress,
            on_step=step_progress(),
            note=ui.print_note,
        )
        if (build := builder.existing()) is not None:
            ui.print_note(f"{build.name} is there already; to build it anew, first welldone engine remove {build.name}")
            ui.print_line(str(engines_folder(os.environ) / build.name / builds.SERVER_PROGRAM))
            return ExitCode.OK
        expected = f"about {minutes(builder.expected_s)}" if backend == "cpu" else "longer than for the CPU alone"
        ui.print_note(
            f"building llama.cpp b{builder.source.llama_version} for {cpu_features.cpu_model()} ({backend}), "
            f"{builder.jobs} jobs: {expected}; Ctrl-C interrupts it, and the same command goes on"
        )
        build = builder.build()
    if ui.is_interactive():
        ui.overwrite_line("")
    ui.print_note(f"{build.name} is ready after {minutes(build.build_s)}; welldone serve uses it from its next start")
    if build.speed is not None:
        ui.print_note(speed_text(build.speed))
    ui.print_line(str(engines_folder(os.environ) / build.name / builds.SERVER_PROGRAM))
    return ExitCode.OK


def step_progress(clock: Callable[[], float] = time.monotonic) -> native_build.OnStep:
    """Return a progress of the compiler: a line that is overwritten, or a line per tenth."""
    started: list[tuple[float, int]] = []
    printed = 0

    def report(done: int, total: int) -> None:
        nonlocal printed
        if not started:
            started.append((clock(), done - 1))
        (started_at, first), rest = started[0], ""
        if done - first > _ESTIMATE_STEPS:
            rest = f", about {minutes((clock() - started_at) / (done - first) * (total - done))} left"
        text = f"compiled {done} of {total}{rest}"
        if ui.is_interactive():
            ui.overwrite_line(text)
        elif done * _STEP_LINES // total > printed:
            printed = done * _STEP_LINES // total
            ui.print_note(text)

    return report


def minutes(seconds: float) -> str:
    """Format a duration in minutes, or in seconds if it is short."""
    return f"{seconds / 60:.0f} min" if seconds >= 100 else f"{seconds:.0f} s"


def _factors(speed: SpeedComparison) -> str:
    return f"{speed.decode_ratio:.2f} times (prompts {speed.prompt_ratio:.2f} times)"


def speed_text(speed: SpeedComparison) -> str:
    """Describe a measured speed in one line."""
    return (
        f"measured on one core with the built-in model: {speed.build.decode:.0f} tokens/s, "
        f"{speed.decode_ratio:.2f} times the wheel's {speed.wheel.decode:.0f}; prompts {speed.build.prompt:.0f} "
        f"tokens/s, {speed.prompt_ratio:.2f} times the wheel's {speed.wheel.prompt:.0f}"
    )


def _test(name: str) -> ExitCode:
    folder = engines_folder(os.environ)
    build = _find(folder, name)
    model = find_builtin(models_folder(os.environ))
    if model is None:
        raise UsageError("the test needs the built-in model: welldone pull default")
    speeds = asyncio.run(measure_engines([Path(name), Path(WHEEL)], model, os.environ))
    build = msgspec.structs.replace(build, speed=SpeedComparison(*speeds))
    builds.write_manifest(folder / name, build)
    assert build.speed is not None
    ui.print_line(speed_text(build.speed))
    return ExitCode.OK


def _remove(name: str) -> ExitCode:
    folder = engines_folder(os.environ)
    if not native_build.remove_build(folder, name):
        _find(folder, name)
    ui.print_note(f"{name} is removed")
    return ExitCode.OK


def _find(folder: Path, name: str) -> EngineBuild:
    by_name = {build.name: build for build in builds.list_builds(folder)}
    if name not in by_name:
        raise UsageError(unknown_name("build", name, by_name, "welldone engine lists them"))
    return by_name[name]


def _list(config: Config, *, is_json: bool) -> ExitCode:
    rows = list(_rows(config))
    usable = cpu_features.usable_features(cpu_features.cpu_flags())
    if is_json:
        output = {"version": 1, "cpu": cpu_features.cpu_model(), "cpu_features": usable, "engines": rows}
        ui.print_line(msgspec.json.encode(output).decode())
        return ExitCode.OK
    width = ui.terminal_width()
    heads = ("", "name", "llama.cpp", "for", "details")
    lines = format_table([heads, *map(_cells, rows)], width)
    for row in rows:
        if row.problem:
            lines += wrap_text("", f"{row.name}: {row.problem}", width)
        if row.unused_features:
            lines += wrap_text("", f"{row.name} does not use {', '.join(row.unused_features)} of this CPU", width)
    features = ", ".join(usable) or "its features are unknown"
    lines += wrap_text("", f"this CPU: {cpu_features.cpu_model()}; {features}", width)
    if any(row.is_used and row.name == WHEEL for row in rows):
        lines += wrap_text("", build_hint(EngineBuilder().expected_s), width)
    ui.print_lines(lines)
    return ExitCode.OK


def build_hint(expected_s: float) -> str:
    """Return how to get a faster engine."""
    return f"welldone engine build compiles llama.cpp for this CPU (about {minutes(expected_s)})"


def _rows(config: Config) -> Iterator[EngineRow]:
    used = {choice.name for choice in model_engines(config) if choice is not None}
    for build in builds.list_builds(engines_folder(os.environ)):
        yield EngineRow(
            name=build.name,
            llama_version=build.llama_version,
            backend=build.backend,
            is_used=build.name in used,
            features=build.features,
            unused_features=unused_features(build.features),
            speed=build.speed,
            source=f"built {build.built[:10]}",
            problem=build.problem(),
        )
    version, features = wheel_version(), wheel_features(os.environ)
    yield EngineRow(
        name=WHEEL,
        llama_version=None if version is None else llama_version_of(version),
        backend="cpu",
        is_used=WHEEL in used,
        features=features,
        unused_features=None if features is None else unused_features(features),
        source="not installed" if version is None else f"xllamacpp {version}",
        problem="it cannot be loaded" if version is not None and features is None else None,
    )
    if program := shutil.which(builds.SERVER_PROGRAM):
        yield _program_row(Path(program), is_used=builds.SERVER_PROGRAM in used)
    for model in config.models:
        if model.command:
            yield EngineRow(name=model.command[0], is_used=True, source=f"command of {model.name}")


def _program_row(program: Path, *, is_used: bool) -> EngineRow:
    row = EngineRow(name=builds.SERVER_PROGRAM, is_used=is_used, source=f"PATH: {program}")
    try:
        row.llama_version = llama_server.probe_server(program).version
        row.features = llama_server.read_features(program)
        row.unused_features = unused_features(row.features)
    except EngineError as error:
        row.problem = error.message
    return row


def _cells(row: EngineRow) -> tuple[str, ...]:
    speed = "" if row.speed is None else f"{_factors(row.speed)} the wheel's"
    details = [ui.printable_name(row.source), f"uses {', '.join(row.features)}" if row.features else "", speed]
    return (
        "*" if row.is_used else "",
        ui.printable_name(row.name),
        f"b{row.llama_version}" if row.llama_version else "-",
        row.backend or "-",
        "; ".join(filter(None, details)),
    )


def model_engines(config: Config) -> list[EngineChoice | None]:
    """Return the engine of each model; None for a command, and for one that is not there."""
    engines: list[EngineChoice | None] = []
    for model in config.models:
        try:
            engines.append(None if model.command else choose_engine(model.engine, os.environ))
        except EngineError:
            engines.append(None)
    return engines


def engine_lines(config: Config) -> list[str]:
    """Return the lines of the banner about the engines of local models, one or two for each."""
    chosen = {choice.name: choice for choice in model_engines(config) if choice is not None}
    lines: list[str] = []
    for choice in chosen.values():
        if choice.build is not None:
            speed = choice.build.speed
            factor = "" if speed is None else f": {_factors(speed)} as fast as the wheel"
            lines.append(f"llama.cpp b{choice.build.llama_version}, built for this CPU ({choice.name}){factor}")
        elif choice.program is not None:
            lines.append(str(choice.program))
        else:
            lines += _wheel_lines()
    return lines + _quantisation_lines(config)


def _quantisation_lines(config: Config) -> list[str]:
    """Describe models whose weights are slow on this CPU. The built-in model has no other quantisation."""
    lines = []
    for model, choice in zip(config.models, model_engines(config), strict=True):
        if choice is None or model.is_builtin or model.needs_gpu:
            continue
        if choice.build is not None and choice.build.backend == "cpu":
            features: Collection[str] = choice.build.features
        elif choice.program is None:
            features = wheel_features(os.environ) or ()
        else:
            continue  # it may use a GPU
        metadata = read_model_metadata(model, models_folder(os.environ))
        note = quantisation_note(None if metadata is None else metadata.main_type, features)
        if note is not None:
            lines.append(f"{ui.printable_name(model.name)}: {note}")
    return lines


def _wheel_lines() -> list[str]:
    """Describe the wheel, and what it loses on this CPU."""
    version = wheel_version()
    number = None if version is None else llama_version_of(version)
    name = "wheel" if number is None else f"llama.cpp b{number} (wheel)"
    faster = next((build for build in builds.list_builds(engines_folder(os.environ)) if build.problem() is None), None)
    if faster is not None and faster.speed is not None:
        return [f"{name}; {faster.name} is {_factors(faster.speed)} as fast here (--engine auto)"]
    unused = unused_features(
        wheel_features(os.environ) or tuple(cpu_features.usable_features(cpu_features.cpu_flags()))
    )
    if not unused:
        return [name]
    return [f"{name}, which does not use {', '.join(unused)} of this CPU:", build_hint(EngineBuilder().expected_s)]
