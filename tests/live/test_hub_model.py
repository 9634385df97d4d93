"""`welldone serve -hf`: a model of the Hub is downloaded at the first start, and served without the Hub afterwards."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.fake_hub import FakeHub, fake_hub
from tests.support.faults import chat_once
from tests.support.server import KEY, LIMIT_S, serving

pytestmark = pytest.mark.tier2

OPTIONS = ("-t", "1", "-np", "1")


def test_a_model_of_the_hub_is_downloaded_once_and_served(tiny_model: Path, tmp_path: Path) -> None:
    with fake_hub(tmp_path) as hub:
        hub.offer_repository({"tiny-Q8_0.gguf": b"GGUF", "tiny-Q4_K_M.gguf": tiny_model.read_bytes()})
        arguments = ["-hf", "owner/repo", *OPTIONS]
        with serving(arguments, model="owner/repo", environment=hub.environment) as running:
            assert "downloading owner/repo (once)" in running.log.all
            assert chat_once(running).text
        hub.site.pages.clear()
        with serving(arguments, model="owner/repo", environment=hub.environment) as running:
            assert chat_once(running).text
            assert not any("downloading" in line for line in running.log.all)
        assert hub.file_names == ["tiny-Q4_K_M.gguf", "tiny-Q4_K_M.gguf.json"]


def test_a_model_that_cannot_be_downloaded_ends_the_start(tmp_path: Path) -> None:
    with fake_hub(tmp_path) as hub:
        hub.fail_list(403, "GatedRepo")
        code, lines = fail(hub, "owner/repo:Q4_K_M")
        assert code == 3
        assert "hf:owner/repo:Q4_K_M is gated: request access on the page of owner/repo; " in lines[-1]
        hub.offer_repository({"tiny-F16.gguf": b"GGUF", "tiny-F32.gguf": b"GGUF"})
        code, lines = fail(hub, "owner/repo")
        assert "has 2 quantisations: F16 (0.0 MB), F32 (0.0 MB); choose one: welldone pull" in lines[-1]
        code, lines = fail(hub, "owner/repo:F16")
        assert (code, lines[-1].partition(" is ")[2]) == (2, "truncated within its header; download it again")


def fail(hub: FakeHub, repository: str) -> tuple[int, list[str]]:
    """Start a server that cannot serve; return its exit code and the lines of its log."""
    command = [sys.executable, "-m", "welldone", "serve", "--port", "0", "--api-key", KEY, "-hf", repository, *OPTIONS]
    environment, folder = os.environ | hub.environment, hub.folder.parent
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, cwd=folder)
    return done.returncode, done.stderr.splitlines()
