"""JavaScript clients: one node process (node/read.mjs) that reads any number of streams."""

import json
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.oracle.reply import Reply

HOME = Path(__file__).parent / "node"


def why_missing() -> str | None:
    """Return why the JavaScript clients cannot run; None if they can."""
    if shutil.which("node") is None:
        return "no node here"
    if not (HOME / "node_modules").is_dir():
        return "run: npm ci --prefix tests/oracle/node"
    return None


class NodeClients:
    """Context manager of the node process."""

    def __init__(self) -> None:
        self._node = subprocess.Popen(
            ["node", str(HOME / "read.mjs")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        # The process ends at the end of its input.
        self._node.communicate(timeout=10)

    def read(self, client: str, base_url: str, endpoint: str, tools: list[str]) -> Reply:
        """Read the stream with `client`; `tools` are the tool names of the request."""
        assert self._node.stdin is not None
        assert self._node.stdout is not None
        job = {"client": client, "base_url": base_url, "endpoint": endpoint, "tools": tools}
        self._node.stdin.write(json.dumps(job) + "\n")
        self._node.stdin.flush()
        line = self._node.stdout.readline()
        assert line, "node ended; its last words are above"
        result = json.loads(line)
        assert "crash" not in result, result["crash"]
        choices = {int(index): choice for index, choice in result["choices"].items()}
        return Reply(choices=choices, usage=result["usage"], error=result["error"])
