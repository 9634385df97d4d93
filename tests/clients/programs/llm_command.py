"""The `llm` command, as used in a terminal."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import openai._base_client
from click.testing import CliRunner  # type: ignore[import-not-found,unused-ignore]  # not in this venv
from llm.cli import cli  # type: ignore[import-not-found]  # not in this venv

from tests.clients.programs.job import Job, Result, answer_result, catching_errors, serve_jobs

LIMIT_S = 60.0
# The command retries twice when a server fails; without the pauses, which add up to minutes.
openai._base_client.INITIAL_RETRY_DELAY = 0.0  # type: ignore[attr-defined]  # not public
COMMAND = (sys.executable, "-m", "tests.clients.programs.loopback", "llm")
USAGE = re.compile(r"Token usage: ([\d,]+) input, ([\d,]+) output")
STATUS = re.compile(r"Error code: (\d+)")


def _prepare(job: Job) -> None:
    """Write the settings to the folder in LLM_USER_PATH. JSON is valid YAML."""
    folder = Path(os.environ["LLM_USER_PATH"])
    folder.mkdir(exist_ok=True)
    models = [
        {
            "model_id": name,
            "model_name": name,
            "api_base": job.base_url,
            "api_key_name": "ours",
            "supports_schema": True,
            **({"completion": True} if job.endpoint == "completions" else {}),
        }
        for name in (job.model, job.missing_model)
    ]
    (folder / "extra-openai-models.yaml").write_text(json.dumps(models))
    (folder / "keys.json").write_text(json.dumps({"ours": job.key}))


def _arguments(job: Job, model: str, tokens: int, *extra: str) -> list[str]:
    _prepare(job)
    options = ["-o", "temperature", "0", "-o", "max_tokens", str(tokens), "--no-log"]
    return [*COMMAND, "prompt", "-m", model, *options, *extra]


def _run(arguments: list[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def text(job: Job) -> Result:
    command = _arguments(job, job.model, job.max_tokens)
    pieces = []
    with subprocess.Popen([*command, job.prompt], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as streaming:
        assert streaming.stdout is not None
        while piece := os.read(streaming.stdout.fileno(), 65536):
            pieces.append(piece)
    whole = _run([*command, "--no-stream", job.prompt])
    return {
        "streamed": b"".join(pieces).decode(),
        "pieces": len(pieces),
        "whole": whole.stdout,
        "finish": [streaming.returncode, whole.returncode],
    }


def usage(job: Job) -> Result:
    command = _arguments(job, job.model, job.max_tokens, "--usage")
    streamed, whole = _run([*command, job.prompt]), _run([*command, "--no-stream", job.prompt])
    return {"streamed": [_counts(streamed.stderr)], "whole": _counts(whole.stderr)}


def _counts(stderr: str) -> list[int]:
    found = USAGE.search(stderr)
    assert found is not None, stderr
    prompt, completion = (int(count.replace(",", "")) for count in found.groups())
    return [prompt, completion, prompt + completion]


def structured(job: Job) -> Result:
    schema = json.dumps(job.tools[0]["function"]["parameters"])
    command = _arguments(job, job.model, job.call_tokens, "--schema", schema)
    runs = [_run([*command, job.question]), _run([*command, "--no-stream", job.question])]
    return {"places": [json.loads(run.stdout) for run in runs]}


def unknown_model(job: Job) -> Result:
    run = _run([*_arguments(job, job.missing_model, job.max_tokens), job.prompt])
    found = STATUS.search(run.stderr)
    return {"error": f"exit {run.returncode}", "status": int(found[1]) if found else None, "message": run.stderr}


def cancel(job: Job) -> Result:
    """Send SIGINT after the second piece."""
    command = [*_arguments(job, job.model, job.story_tokens), job.story]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as run:
        assert run.stdout is not None
        pieces = [os.read(run.stdout.fileno(), 65536) for _ in range(2)]
        run.send_signal(signal.SIGINT)
    return {"pieces": len([piece for piece in pieces if piece])}


class CommandError(Exception):
    """The command failed."""


def read(job: Job) -> Result:
    """Run the command in this process: it takes a second to start and runs hundreds of times here."""
    _prepare(job)
    stream_options = [] if job.is_stream else ["--no-stream"]
    finished = CliRunner().invoke(cli, ["prompt", "-m", job.model, "--no-log", "--usage", *stream_options, job.prompt])
    if finished.exit_code:
        raise CommandError(finished.stderr.strip() or repr(finished.exception))
    usage = _counts(finished.stderr) if USAGE.search(finished.stderr) else None
    return answer_result([[finished.stdout.removesuffix("\n"), [], None]], usage)


if __name__ == "__main__":
    scenarios = (text, usage, structured, unknown_model, cancel)
    serve_jobs({scenario.__name__: scenario for scenario in scenarios} | {"read": catching_errors(read)})
