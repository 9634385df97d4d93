"""Fixtures of the Ray tests, which are skipped if Ray is not installed."""

import importlib
import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cluster.cluster import RayCluster

_ENVIRONMENT = {
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "welldone.cluster.proxy.middlewares",
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",  # instead of 10 s
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # keeps Ray on the loopback interface
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
}


@pytest.fixture(scope="session")
def on_ray() -> Iterator["RayCluster"]:
    """A cluster of three nodes without an application."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed; use make test-scale")
    folder = Path(tempfile.mkdtemp(prefix="wd-"))  # short, since it contains Ray's sockets
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in _ENVIRONMENT.items():
                patch.setenv(name, value)
            # Ray writes the address of a cluster to RAY_TMPDIR/ray but does not create it. By default the folder is
            # shared by all clusters of the machine, and missing if none ever ran.
            patch.setenv("RAY_TMPDIR", str(folder))
            (folder / "ray").mkdir()
            # Ray reads its environment when it is imported.
            with importlib.import_module("tests.cluster.cluster").clustered(folder) as cluster:
                yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def pid_engine() -> str:
    """The command of an engine that answers with its process id: it starts fast and is never busy."""
    words = 'exec %s -m welldone mock --port {port} --tokens 400 --gap 50ms --text "$$ "'
    return str(["/bin/sh", "-c", words % sys.executable])
