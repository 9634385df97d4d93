"""The systemd unit: systemd accepts it, and its times and exit codes are those of the server."""

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from welldone.cli import supervisor
from welldone.cli.serve import CHECK_FLAG
from welldone.cli.ui import ExitCode
from welldone.config.server import ServeSettings

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "welldone.service"


class _UnitParser(configparser.ConfigParser):
    def optionxform(self, optionstr: str) -> str:
        return optionstr


def service() -> dict[str, str]:
    """The section `[Service]`; of repeated settings the last one."""
    parser = _UnitParser(interpolation=None, strict=False)
    parser.read_string(UNIT.read_text())
    return dict(parser["Service"])


def test_the_configuration_is_checked_before_a_start_and_a_reload() -> None:
    check = f"{service()['ExecStart']} {CHECK_FLAG}"
    assert service()["ExecStartPre"] == f"-{check}"  # RestartPreventExitStatus is for ExecStart only
    reload = [line.partition("=")[2] for line in UNIT.read_text().splitlines() if line.startswith("ExecReload=")]
    assert reload == [check, "/bin/kill -HUP $MAINPID"]


def test_times_and_exit_codes_are_those_of_the_server() -> None:
    unit = service()
    assert float(unit["TimeoutStopSec"]) == ServeSettings().drain_s + supervisor.KILL_AFTER_S
    assert unit["RestartPreventExitStatus"] == str(int(ExitCode.USAGE))
    assert unit["Type"] == "notify"
    assert unit["KillMode"] == "mixed"
    assert float(unit["WatchdogSec"]) > 0


def test_gpus_and_compiled_kernels_are_not_blocked() -> None:
    assert not service().keys() & {"PrivateDevices", "DeviceAllow", "MemoryDenyWriteExecute", "ProcSubset"}


@pytest.mark.tier2
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze, of the package systemd")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program, unit = tmp_path / "welldone", tmp_path / "welldone.service"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit.write_text(UNIT.read_text().replace("/opt/welldone/bin/welldone", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
