"""`welldone scale`: the server on a Ray cluster."""

import importlib
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from welldone.cli import banner, ui
from welldone.cli.options import CommandParser
from welldone.cli.ui import ExitCode, UsageError
from welldone.config.server import Config
from welldone.config.settings import RawSetting, SettingsError
from welldone.reporting import format_table
from welldone.server.config import read_config

if TYPE_CHECKING:  # Ray is an extra
    from welldone.cluster.ray_cluster import ClusterStatus, DeploymentStatus

DESCRIPTION = """\
Run the server on a Ray cluster: fronts that speak to clients, and engines that each run a model,
on as many machines as there are. Ray starts more of them when there are more streams.

The settings stand in welldone.toml: models and keys as for welldone serve, and [scale] says how
many replicas there may be and what each takes of a machine. Without a cluster one is started on
this machine. Ctrl-C ends what runs; with --detach it goes on in the cluster."""

EXAMPLES = """
welldone scale
welldone scale --config welldone.toml
welldone scale --address 10.0.0.1:6379 --detach
welldone scale --status
welldone scale --stop
serve run welldone.cluster:app config=welldone.toml
"""

_POLL_S = 1.0  # between two looks at what runs; Ray changes something every few seconds at most
_STOP_TIMEOUT_S = 5.0  # for the deployment to see that it was ended: it looks twice a second


class _ClusterModule(Protocol):
    """What `scale/cluster.py` gives."""

    ClusterError: type[Exception]

    def connect(self, address: str | None, *, may_start: bool) -> bool: ...
    def leave(self) -> None: ...
    def machines(self) -> tuple[int, dict[str, float]]: ...
    def deploy(self, config: Config, keys: Sequence[str], name: str) -> None: ...
    def view(self, name: str) -> "ClusterStatus | None": ...
    def end(self, name: str) -> None: ...


class _ScaleOptions(NamedTuple):
    """What the command line says."""

    config: Path | None
    address: str | None
    name: str
    detach: bool
    status: bool
    stop: bool


def run(arguments: list[str]) -> ExitCode:
    """Deploy, and stay until told to end."""
    options = _parser().parse(arguments)
    wanted = _ScaleOptions(**{name: getattr(options, name) for name in _ScaleOptions._fields})
    if wanted.status and wanted.stop:
        raise UsageError("--status shows what runs, and --stop ends it: keep one")
    config = None if wanted.status or wanted.stop else _read_config(wanted.config)
    # Ray is an extra: help, and what is wrong with a file, can be had without it.
    cluster = cast("_ClusterModule", importlib.import_module("welldone.cluster.ray_cluster"))
    try:
        is_ours = cluster.connect(wanted.address, may_start=config is not None)
        try:
            return _run_action(cluster, config, wanted, is_ours=is_ours)
        finally:
            cluster.leave()
    except cluster.ClusterError as error:
        ui.print_note(str(error))
        return ExitCode.UNREACHABLE
    except ValueError as error:
        raise UsageError(str(error)) from None


def _run_action(cluster: _ClusterModule, config: Config | None, options: _ScaleOptions, *, is_ours: bool) -> ExitCode:
    if config is None:
        if cluster.view(options.name) is None:
            ui.print_note(f"nothing runs under the name {ui.printable_name(options.name)}")
            return ExitCode.FAILED
        if options.stop:
            cluster.end(options.name)
        else:
            for line in _status_table(cluster.view(options.name)):
                ui.print_line(line)
        return ExitCode.OK
    if options.detach and is_ours:
        raise UsageError(
            "there is no Ray cluster that could go on without this command: start one with `ray start --head`"
        )
    count, has = cluster.machines()
    machines = f"machines {count}, CPUs {has['CPU']:g}, GPUs {has['GPU']:g}"
    ui.print_hint(f"{'started' if is_ours else 'joined'} a Ray cluster: {machines}")
    return _deploy_and_wait(cluster, config, options, is_ours=is_ours)


def _deploy_and_wait(cluster: _ClusterModule, config: Config, options: _ScaleOptions, *, is_ours: bool) -> ExitCode:
    keys: Callable[[Config], list[str]] = importlib.import_module("welldone.cluster.application").keys_of
    known = keys(config)
    for note in config.warnings:
        ui.print_note(note)
    end = _stop_on_signal()
    deploying = _DeployThread(lambda: cluster.deploy(config, known, options.name))
    news = _ReplicaLog()
    while not end.is_set() and not deploying.is_done.wait(_POLL_S):
        news.update(cluster.view(options.name))
    if deploying.is_done.is_set():
        if deploying.error is not None:
            news.update(cluster.view(options.name))
            if is_ours:
                cluster.end(options.name)  # what did start leaves nothing behind
            raise deploying.error
        how = f"welldone scale --stop --name {ui.printable_name(options.name)}" if options.detach else "Ctrl-C"
        for line in banner.banner_lines(
            config, config.server.port, has_keys=config.has_keys(known), generated_key=None, stop_hint=how
        ):
            ui.print_line(line)
        ui.flush_output()
        if options.detach:
            return ExitCode.OK
    while not end.wait(_POLL_S):
        news.update(cluster.view(options.name))
    ui.print_hint("ending: running requests may finish; once more to end at once")
    cluster.end(options.name)
    deploying.is_done.wait(_STOP_TIMEOUT_S)
    return ExitCode.OK


def _stop_on_signal() -> threading.Event:
    """What a signal sets. A second one interrupts what is done then."""
    end = threading.Event()

    def tell(*_: object) -> None:
        if end.is_set():
            raise KeyboardInterrupt
        end.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, tell)
    return end


class _DeployThread:
    """Deploys in a thread, so that a person sees how far it is."""

    def __init__(self, deploy: Callable[[], None]) -> None:
        self.is_done = threading.Event()
        self.error: BaseException | None = None
        self._deploy = deploy
        threading.Thread(target=self._run, name="deploy", daemon=True).start()

    def _run(self) -> None:
        try:
            self._deploy()
        except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits for it
            self.error = error
        self.is_done.set()


class _ReplicaLog:
    """Tells what has changed since it was last told."""

    def __init__(self) -> None:
        self._last_status: dict[str, str] = {}

    def update(self, view: "ClusterStatus | None") -> None:
        """What runs now."""
        for group in () if view is None else view.groups:
            said = _replica_status(group)
            if self._last_status.get(group.name) != said:
                self._last_status[group.name] = said
                ui.print_note(f"{group.name}: {said}")


def _replica_status(group: "DeploymentStatus") -> str:
    coming = f", {group.coming} that start or end" if group.coming else ""
    words = group.message.strip().splitlines()
    is_wrong = "FAILED" in group.status or "UNHEALTHY" in group.status
    if not words or not (is_wrong or group.coming):
        return f"{group.running} running{coming}"
    has_traceback = is_wrong or words[0].endswith(":")
    return f"{group.running} running{coming}: {words[-1 if has_traceback else 0]}"


def _status_table(view: "ClusterStatus | None") -> list[str]:
    groups = () if view is None else view.groups
    rows = [(group.name, group.status.lower(), _replica_status(group)) for group in groups]
    return format_table(rows, ui.terminal_width()) if rows else []


def _read_config(path: Path | None) -> Config:
    given = {} if path is None else {"config": RawSetting(str(path), "--config", Path.cwd())}
    try:
        config = read_config(given, os.environ, folder=Path.cwd())
    except SettingsError as error:
        raise UsageError(str(error)) from error
    if config.server.workers > 1:
        raise UsageError("workers are for one machine: on a cluster, [scale.front] says how many fronts there are")
    if config.server.port == 0:
        raise UsageError("a cluster needs a port that is known: choose one in [server]")
    return config


def _parser() -> CommandParser:
    parser = CommandParser("scale", DESCRIPTION, EXAMPLES)
    parser.add_argument("--config", metavar="FILE", type=Path, help="the settings [./welldone.toml if it is there]")
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="the cluster; local: one that ends with this command [RAY_ADDRESS, the one of this machine, local]",
    )
    parser.add_argument("--name", metavar="NAME", default="welldone", help="what it is called there [welldone]")
    parser.add_argument("--detach", action="store_true", help="leave it running in the cluster, and end")
    parser.add_argument("--status", action="store_true", help="show what runs")
    parser.add_argument("--stop", action="store_true", help="end what runs; running requests may finish")
    return parser
