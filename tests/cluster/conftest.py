"""The cluster, for all tests of this folder. Where Ray is not installed they are skipped."""

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
    from tests.cluster.cluster import OnRay

_ENVIRONMENT = {
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "welldone.cluster.proxy.middlewares",
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "0.5",  # so that nobody waits ten seconds for a number
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # what Ray does so elsewhere: it stays on the loopback
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
}


@pytest.fixture(scope="session")
def on_ray() -> Iterator["OnRay"]:
    """Three nodes, on which nothing runs yet."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("no Ray here: make test-scale has an environment with it")
    folder = Path(tempfile.mkdtemp(prefix="wd-"))  # a short name: Ray has sockets in it
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in _ENVIRONMENT.items():
                patch.setenv(name, value)
            # Ray notes the address of a cluster in RAY_TMPDIR/ray and does not make that folder. By default it is that
            # of all clusters of the machine, and missing where none ever ran.
            patch.setenv("RAY_TMPDIR", str(folder))
            (folder / "ray").mkdir()
            # Ray reads its environment when it is imported.
            with importlib.import_module("tests.cluster.cluster").clustered(folder) as cluster:
                yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def says_who() -> str:
    """The command of an engine that says the number of its process, again and again: fast to start, and never busy."""
    words = 'exec %s -m welldone mock --port {port} --tokens 400 --gap 50ms --text "$$ "'
    return str(["/bin/sh", "-c", words % sys.executable])
