"""Other load generators: how each is started, and what CPU a chunk takes there.

They tell nobody what their own start and their tables take, which is many times a short run. So each does short runs
and long ones: what the long ones took more is what their chunks took.
"""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from programs import MODEL, pin  # isort: skip  # a neighbour: a script's own folder is on the path

ROOT = Path(__file__).parents[1]
SHORT = 32
"""Requests of a short run: as many as there are streams."""
_ROUNDS = 2
"""Runs of each length, of which the least disturbed count: a start takes 10 to 20 s of CPU, and 5 s more or less."""
_LIMIT_S = 600.0  # a run takes a minute where the machine is busy: a hang is a failure
_PAUSE_S = 0.1
_LAST_WORDS = 500
_WORDS = ["[UNK]", *"abcdefghijklmnopqrstuvwxyz"]
# The command of the builds for CPUs does not find its own version; the benchmark itself does not ask for it.
_VLLM = (
    "import argparse; from vllm.benchmarks.serve import add_cli_args, main; "
    "parser = argparse.ArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
)


class GeneratorError(Exception):
    """It does not run; why."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a generator does."""

    folder: Path
    """For its files. A tokenizer is there: all of them want one, though the upstream counts."""
    port: int
    streams: int
    requests: int
    texts: int


@dataclass(frozen=True, kw_only=True)
class Generator:
    """A program that measures servers."""

    name: str
    program: Path
    where: str
    """How to get it."""
    arguments: Callable[[Job], list[str]]


def _guidellm(job: Job) -> list[str]:
    return [
        *("run", "--disable-console"),
        *("--backend", f"kind=openai_http,target=http://127.0.0.1:{job.port},model={MODEL}"),
        *("--profile", f"kind=concurrent,streams={job.streams}"),
        *("--constraint", f"kind=max_requests,count={job.requests}"),
        *("--tokenizer", f"kind=huggingface_auto,model={job.folder}"),
        *("--data", f"kind=synthetic_text,prompt_tokens=8,output_tokens={job.texts}"),
        *("--output", f"kind=json,path={job.folder / 'guidellm.json'}"),
    ]


def _vllm(job: Job) -> list[str]:
    return [
        *("-c", _VLLM, "--backend", "openai-chat", "--base-url", f"http://127.0.0.1:{job.port}"),
        *("--endpoint", "/v1/chat/completions", "--model", MODEL, "--tokenizer", str(job.folder), "--disable-tqdm"),
        *("--dataset-name", "random", "--random-input-len", "8", "--random-output-len", str(job.texts)),
        *("--num-prompts", str(job.requests), "--max-concurrency", str(job.streams)),
    ]


KNOWN = (
    Generator(
        name="guidellm",
        program=ROOT / ".venv-guidellm/bin/guidellm",
        where="make .venv-guidellm/.ready",
        arguments=_guidellm,
    ),
    Generator(
        name="vllm bench serve",
        program=ROOT / ".venv-servers/vllm/bin/python",
        where="make servers ARGS='--only vllm'",
        arguments=_vllm,
    ),
)


def cpu_per_chunk_s(generator: Generator, *, port: int, streams: int, texts: int, core: int, requests: int) -> float:
    """By short runs and long ones, in turn."""
    with tempfile.TemporaryDirectory(prefix="generators-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        _write_tokenizer(folder)
        short = Job(folder=folder, port=port, streams=streams, requests=SHORT, texts=texts)
        long = replace(short, requests=SHORT + requests)
        pairs = [(_cpu_s(generator, short, core), _cpu_s(generator, long, core)) for _ in range(_ROUNDS)]
    more_s = min(many for _, many in pairs) - min(few for few, _ in pairs)
    return more_s / (requests * texts)


def _cpu_s(generator: Generator, job: Job, core: int) -> float:
    """What it took, with the processes that it started itself."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [str(generator.program), *generator.arguments(job)],
            cwd=job.folder,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(job.folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=lambda: pin(core),
        )
        limit = time.monotonic() + _LIMIT_S
        while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
            if time.monotonic() > limit:
                process.kill()
                raise GeneratorError(f"{generator.name} did not end within {_LIMIT_S:g} s")
            time.sleep(_PAUSE_S)
        _, status, used = ended
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            log.seek(0)
            raise GeneratorError(f"{generator.name} failed: {log.read().decode(errors='replace')[-_LAST_WORDS:]}")
    return used.ru_utime + used.ru_stime


def _write_tokenizer(folder: Path) -> None:
    """The least that their libraries take for a tokenizer."""
    model = {"type": "WordLevel", "vocab": {word: id for id, word in enumerate(_WORDS)}, "unk_token": _WORDS[0]}
    whole = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": _WORDS[0], "model_max_length": 10**6}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
