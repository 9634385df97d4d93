"""API keys in a file: created with `welldone keys`, and accepted by a running server with two workers."""

import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tests.live import keys_command
from tests.live.keys_command import chat_status, has_status
from tests.support.server import LIMIT_S
from tests.support.upstream import Upstream, eventually, gateway

pytestmark = pytest.mark.tier2


def run_keys(folder: Path, *arguments: str, code: int = 0) -> tuple[str, str]:
    """Run `welldone keys` with the file of the environment, and return stdout and stderr."""
    return keys_command.run_keys(arguments, {"WELLDONE_KEYS_FILE": str(folder / "keys.json")}, code, folder)


def test_a_key_works_until_it_is_removed(tmp_path: Path, backend: Upstream) -> None:
    run_keys(tmp_path, "add", "first")
    options = ("--keys-file", "keys.json", "--workers", "2")
    with gateway(tmp_path, backend.url, key=None, options=options) as server:
        assert chat_status(server, None) == 401
        key, _ = run_keys(tmp_path, "add", "ci", "--models", "hello", "--requests-per-minute", "12")
        eventually(partial(has_status, server, key, 200))
        assert chat_status(server, key, model="silent") == 403
        assert chat_status(server, f"{key}x") == 401
        statuses = Counter(chat_status(server, key) for _ in range(30))
        assert set(statuses) == {200, 429}
        assert statuses[200] < 20  # one limit for both workers
        run_keys(tmp_path, "remove", "ci")
        eventually(partial(has_status, server, key, 401))
        assert server.end() == 0
        assert key not in server.log.join() + server.stdout.join()


def test_a_server_does_not_start_without_its_file(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "welldone", "serve", "--port", "0", "--keys-file", "keys.json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert "welldone keys add NAME --keys-file" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_command_lists_names_and_limits_without_the_keys(tmp_path: Path) -> None:
    assert run_keys(tmp_path, "list") == ("", "there are no keys: welldone keys add NAME creates one")
    key, stderr = run_keys(tmp_path, "add", "ci", "--models", "a,b*", "--tokens-per-minute", "0")
    assert "not shown again" in stderr
    listing, _ = run_keys(tmp_path, "list")
    assert listing == "ci  a, b*; unlimited tokens per minute"
    assert key not in (tmp_path / "keys.json").read_text("utf-8")
    _, stderr = run_keys(tmp_path, "add", "ci", code=2)
    assert stderr == "there already is a key ci: choose another name, or remove it first"
    _, stderr = run_keys(tmp_path, "remove", "ann", code=2)
    assert stderr == "there is no key ann; welldone keys list shows the keys"
    _, stderr = run_keys(tmp_path, "add", "x", "--keys-file", "a", "--limits-store", "redis://127.0.0.1:1/0", code=2)
    assert stderr == "--limits-store conflicts with --keys-file: keep one"
    (tmp_path / "keys.json").write_text("{}x", "utf-8")
    _, stderr = run_keys(tmp_path, "list", code=2)
    assert "is not a file of welldone keys" in stderr
