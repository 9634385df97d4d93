"""Other load generators: how to start each, and its CPU time per chunk.

Their own start and their reports take many times the CPU of a short run and are not reported separately. So each
generator does short and long runs: the difference is the cost of the chunks.
"""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from c_programs import MODEL, pin  # isort: skip  # same folder: a script's own folder is on the path

ROOT = Path(__file__).parents[1]
SHORT = 32
"""Requests of a short run: one per stream."""
_ROUNDS = 2
"""Runs of each length; the fastest one counts, since a start takes 10 to 20 s of CPU and varies by 5 s."""
_LIMIT_S = 600.0  # a run takes a minute on a busy machine: the limit turns a hang into a failure
_PAUSE_S = 0.1
_ERROR_BYTES = 500
_WORDS = ["[UNK]", *"abcdefghijklmnopqrstuvwxyz"]
# The CLI of vLLM's CPU builds fails to find its own version; the benchmark module does not need it.
_VLLM = (
    "import argparse; from vllm.benchmarks.serve import add_cli_args, main; "
    "parser = argparse.ArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
)


class GeneratorError(Exception):
    """A load generator failed or did not end."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Settings of one run."""

    folder: Path
    """For its files. It has a tokenizer, which all generators require although the upstream reports usage."""
    port: int
    streams: int
    requests: int
    texts: int


@dataclass(frozen=True, kw_only=True)
class Generator:
    """Load generator program."""

    name: str
    program: Path
    install: str
    """Command that installs it."""
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
        install="make .venv-guidellm/.ready",
        arguments=_guidellm,
    ),
    Generator(
        name="vllm bench serve",
        program=ROOT / ".venv-servers/vllm/bin/python",
        install="make servers ARGS='--only vllm'",
        arguments=_vllm,
    ),
)


def cpu_per_chunk_s(generator: Generator, *, port: int, streams: int, texts: int, core: int, requests: int) -> float:
    """Return the CPU time per chunk, from alternating short and long runs."""
    with tempfile.TemporaryDirectory(prefix="generators-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        _write_tokenizer(folder)
        short = Job(folder=folder, port=port, streams=streams, requests=SHORT, texts=texts)
        long = replace(short, requests=SHORT + requests)
        pairs = [(_cpu_s(generator, short, core), _cpu_s(generator, long, core)) for _ in range(_ROUNDS)]
    added_s = min(many for _, many in pairs) - min(few for few, _ in pairs)
    return added_s / (requests * texts)


def _cpu_s(generator: Generator, job: Job, core: int) -> float:
    """CPU time of one run, children included."""
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
        while (waited := os.wait4(process.pid, os.WNOHANG))[0] == 0:
            if time.monotonic() > limit:
                process.kill()
                raise GeneratorError(f"{generator.name} did not end within {_LIMIT_S:g} s")
            time.sleep(_PAUSE_S)
        _, status, used = waited
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            log.seek(0)
            raise GeneratorError(f"{generator.name} failed: {log.read().decode(errors='replace')[-_ERROR_BYTES:]}")
    return used.ru_utime + used.ru_stime


def _write_tokenizer(folder: Path) -> None:
    """Write the smallest tokenizer that their libraries accept."""
    model = {"type": "WordLevel", "vocab": {word: id for id, word in enumerate(_WORDS)}, "unk_token": _WORDS[0]}
    tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": _WORDS[0], "model_max_length": 10**6}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
