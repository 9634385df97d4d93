"""`welldone scale`: run the server on a Ray cluster.

Run the server on a Ray cluster: fronts that serve clients, and engines that each run a model, on
several machines. Ray adds replicas when there are more streams.

The settings come from welldone.toml: models and keys as for welldone serve, and in [scale] the
number of replicas and the resources of each. If there is no cluster, one is started on this
machine. Ctrl-C stops the deployment; with --detach it keeps running in the cluster.

examples:
  welldone scale
  welldone scale --config welldone.toml
  welldone scale --address 10.0.0.1:6379 --detach
  welldone scale --status
  welldone scale --stop
  serve run welldone.cluster:app config=welldone.toml
"""

import signal
import threading
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from welldone.cli import banner, ui
from welldone.cli.options import CommandParser
from welldone.cli.serve import read_server_config
from welldone.cli.ui import ExitCode, UsageError
from welldone.config.server import Config
from welldone.reporting import format_table

if TYPE_CHECKING:  # Ray is an extra
    from welldone.cluster.ray_cluster import ClusterStatus, DeploymentStatus


_POLL_S = 1.0  # between two queries of the status, which Ray changes every few seconds at most
_STOP_TIMEOUT_S = 5.0  # for the deployment to notice that it was stopped; it polls twice a second


def run(arguments: list[str]) -> ExitCode:
    """Deploy, and wait for a signal; or show the status; or stop the deployment."""
    options = _parser().parse(arguments)
    if options.status and options.stop:
        raise UsageError("--status and --stop exclude each other: use one")
    config = None if options.status or options.stop else _read_config(options.config)
    from welldone.cluster import ray_cluster as cluster  # an extra: --help and errors in the config file work without

    try:
        is_ours = cluster.connect(options.address, may_start=config is not None)
        try:
            return _run_action(config, options, is_ours=is_ours)
        finally:
            cluster.leave()
    except cluster.ClusterError as error:
        ui.print_note(str(error))
        return ExitCode.UNREACHABLE
    except ValueError as error:
        raise UsageError(str(error)) from None


def _run_action(config: Config | None, options: Namespace, *, is_ours: bool) -> ExitCode:
    from welldone.cluster import ray_cluster as cluster

    if config is None:
        view = cluster.view(options.name)
        if view is None:
            ui.print_note(f"no deployment named {ui.printable_name(options.name)} is running")
            return ExitCode.FAILED
        if options.stop:
            cluster.end(options.name)
        else:
            rows = [(group.name, group.status.lower(), _replica_status(group)) for group in view.groups]
            ui.print_lines(format_table(rows, ui.terminal_width()) if rows else [])
        return ExitCode.OK
    if options.detach and is_ours:
        raise UsageError("--detach needs a Ray cluster that outlives this command: start one with `ray start --head`")
    count, resources = cluster.machines()
    machines = f"machines {count}, CPUs {resources['CPU']:g}, GPUs {resources['GPU']:g}"
    ui.print_hint(f"{'started' if is_ours else 'joined'} a Ray cluster: {machines}")
    return _deploy_and_wait(config, options, is_ours=is_ours)


def _deploy_and_wait(config: Config, options: Namespace, *, is_ours: bool) -> ExitCode:
    from welldone.cluster import ray_cluster as cluster
    from welldone.cluster.application import keys_of

    keys = keys_of(config)
    for note in config.warnings:
        ui.print_note(note)
    stop = _stop_on_signal()
    deployment = _DeployThread(lambda: cluster.deploy(config, keys, options.name))
    printed: dict[str, str] = {}
    while not stop.is_set() and not deployment.is_done.wait(_POLL_S):
        _print_changes(cluster.view(options.name), printed)
    if deployment.is_done.is_set():
        if deployment.error is not None:
            _print_changes(cluster.view(options.name), printed)
            if is_ours:
                cluster.end(options.name)  # stop the replicas that did start
            raise deployment.error
        stop_hint = f"welldone scale --stop --name {ui.printable_name(options.name)}" if options.detach else "Ctrl-C"
        has_keys, port = config.has_keys(keys), config.server.port
        ui.print_lines(banner.banner_lines(config, port, has_keys=has_keys, generated_key=None, stop_hint=stop_hint))
        ui.flush_output()
        if options.detach:
            return ExitCode.OK
    while not stop.wait(_POLL_S):
        _print_changes(cluster.view(options.name), printed)
    ui.print_hint("stopping: running requests may finish; press Ctrl-C again to stop at once")
    cluster.end(options.name)
    deployment.is_done.wait(_STOP_TIMEOUT_S)
    return ExitCode.OK


def _stop_on_signal() -> threading.Event:
    """Return an event that the first signal sets. A second signal raises KeyboardInterrupt."""
    stop = threading.Event()

    def handle(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    return stop


class _DeployThread:
    """Deploys in a thread, so that the progress can be shown meanwhile."""

    def __init__(self, deploy: Callable[[], None]) -> None:
        self.is_done = threading.Event()
        self.error: BaseException | None = None
        self._deploy = deploy
        threading.Thread(target=self._run, name="deploy", daemon=True).start()

    def _run(self) -> None:
        try:
            self._deploy()
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            self.error = error
        self.is_done.set()


def _print_changes(view: "ClusterStatus | None", printed: dict[str, str]) -> None:
    """Print the status of replicas where it differs from the one that was printed last."""
    for group in () if view is None else view.groups:
        status = _replica_status(group)
        if printed.get(group.name) != status:
            printed[group.name] = status
            ui.print_note(f"{group.name}: {status}")


def _replica_status(group: "DeploymentStatus") -> str:
    pending = f", {group.coming} starting or stopping" if group.coming else ""
    lines = group.message.strip().splitlines()
    has_failed = "FAILED" in group.status or "UNHEALTHY" in group.status
    if not lines or not (has_failed or group.coming):
        return f"{group.running} running{pending}"
    has_traceback = has_failed or lines[0].endswith(":")
    return f"{group.running} running{pending}: {lines[-1 if has_traceback else 0]}"


def _read_config(path: Path | None) -> Config:
    config = read_server_config(None if path is None else str(path))
    if config.server.workers > 1:
        raise UsageError("workers applies to one machine: on a cluster, set the number of fronts in [scale.front]")
    if config.server.port == 0:
        raise UsageError("port = 0 does not work on a cluster: choose a port in [server]")
    return config


def _parser() -> CommandParser:
    parser = CommandParser("scale", __doc__)
    add = parser.option
    add("--config FILE", "the settings [./welldone.toml if it exists]", Path)
    clusters = "the cluster; local: one that ends with this command [RAY_ADDRESS, a cluster on this machine, local]"
    add("--address HOST:PORT", clusters)
    add("--name NAME", "name of the deployment [welldone]", default="welldone")
    add("--detach", "leave the deployment running, and exit")
    add("--status", "show the status of the deployment")
    add("--stop", "stop the deployment; running requests may finish")
    return parser
