"""A Prometheus server as a child process, which scrapes one server every second."""

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.server import LIMIT_S, Lines, Running, reserved_port

NEEDS_PROMETHEUS = pytest.mark.skipif(
    shutil.which("promtool") is None or shutil.which("prometheus") is None,
    reason="Prometheus is not installed (Debian package prometheus)",
)


class RealPrometheus:
    """A running Prometheus."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def query(self, expression: str) -> list[Any]:
        """Evaluate an expression now, and return the samples."""
        return list(self._get(f"query?query={urllib.parse.quote(expression)}")["result"])

    def rules(self) -> list[Any]:
        """The alert rules with their state."""
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, path: str) -> Any:  # noqa: ANN401 - differs by path
        with urllib.request.urlopen(f"{self._url}/{path}", timeout=LIMIT_S) as reply:
            return json.load(reply)["data"]


@contextmanager
def real_prometheus(folder: Path, server: Running, rules: Path) -> Iterator[RealPrometheus]:
    """Run Prometheus with these rules, and stop it when the block ends."""
    job = {
        "job_name": "welldone",
        "static_configs": [{"targets": [f"127.0.0.1:{server.port}"]}],
        "authorization": {"credentials": server.key},
    }
    times = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump({"global": times, "rule_files": [str(rules)], "scrape_configs": [job]}))
    with reserved_port() as reservation:
        port: int = reservation.getsockname()[1]
        command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
        process = subprocess.Popen(
            [*command, f"--web.listen-address=127.0.0.1:{port}"], stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stderr is not None
            Lines(process.stderr).wait("Server is ready to receive web requests")
            yield RealPrometheus(port)
        finally:
            process.kill()
            process.wait(LIMIT_S)
