"""Installation and process of a server: virtual environment, model files, start and stop."""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from server_table import MODEL, Server  # isort: skip  # the folder of a script is on its path

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".venv-servers"
KEY = "sk-of-a-server-on-loopback"  # not a secret: it is valid only while the server runs

_INSTALL_S = 3600.0  # llama-cpp-python is compiled: five minutes on two cores
_CONVERT_S = 600.0
_START_S = 900.0  # vLLM takes 50 s on an idle machine, and some minutes on a busy one
_REPLY_S = 60.0
_STOP_S = 20.0
_POLL_S = 0.5
_EXCERPT_LINES = 3
_EXCERPT_CHARS = 600
_REMOVED_VARIABLES = ("WELLDONE_", "LITELLM_", "LLAMA_", "VLLM_", "HF_", "OPENAI_")


class ServerError(Exception):
    """The server does not run. The message is the reason."""


def install(server: Server) -> Path:
    """Install the server if it is missing or its lock file has changed; returns the folder of its programs."""
    if server.lock is None:
        return Path(sys.executable).parent
    lock, folder = ROOT / "requirements" / f"{server.lock}.txt", HOME / server.lock.removeprefix("servers-")
    ready, digest = folder / ".ready", hashlib.sha256(lock.read_bytes() + repr(server.build).encode()).hexdigest()
    if not ready.exists() or ready.read_text() != digest:
        print(f"{server.name}: installing", flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(folder)], _INSTALL_S)
        # --no-deps: the lock file is complete, and omits packages that only a GPU needs.
        # --no-cache-dir: a cached wheel may have been compiled with other options.
        options = ("--quiet", "--no-cache-dir", "--no-deps", "--require-hashes", "-r", str(lock))
        _run([str(folder / "bin" / "python"), "-m", "pip", "install", *options], _INSTALL_S, server.build)
        ready.write_text(digest)
    return folder / "bin"


def installed_version(server: Server, programs: Path) -> str:
    """The installed version of the server's package."""
    code = f"import importlib.metadata as m; print(m.version({server.package!r}))"
    return _run([str(programs / "python"), "-c", code], _REPLY_S).strip()


def convert_model(programs: Path, gguf: Path, template: Path) -> Path:
    """Convert the model to a folder with safetensors, once, with the transformers of a server."""
    folder, script = HOME / "model" / MODEL, Path(__file__).with_name("unpack.py")
    if not (folder / "tokenizer.json").exists():  # the file that is written last
        _run([str(programs / "python"), str(script), str(gguf), str(template), str(folder)], _CONVERT_S)
    return folder


def make_tiny_model(programs: Path, model: Path) -> Path:
    """Make a tiny model with the tokenizer of a converted one, once."""
    folder, script = HOME / "tiny" / MODEL, Path(__file__).with_name("tiny_model.py")
    if not (folder / "tokenizer.json").exists():  # the file that is written last
        _run([str(programs / "python"), str(script), str(model), str(folder)], _CONVERT_S)
    return folder


def _run(command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None) -> str:
    full = os.environ | dict(environment or {})
    try:
        done = subprocess.run(command, env=full, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise ServerError(f"{Path(command[0]).name} took longer than {seconds:g} s") from None
    if done.returncode != 0:
        raise ServerError(log_excerpt(done.stderr or done.stdout))
    return done.stdout


def log_excerpt(log: str) -> str:
    """The last lines of a log, without local paths."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return without_local_paths("\n".join(lines[-_EXCERPT_LINES:]))[-_EXCERPT_CHARS:] or "(no output)"


def without_local_paths(text: str) -> str:
    """The text with `…` for the paths of this machine."""
    for path in (str(ROOT), str(Path.home()), sys.prefix):
        text = text.replace(path, "…")
    return text


def free_port() -> int:
    """A free port. Not all servers can choose one and report it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


@contextmanager
def running_server(server: Server, values: Mapping[str, str], work: Path) -> Iterator[str]:
    """Run the server and wait until it answers; yields its URL. `values` replace the placeholders."""
    for name, text in server.files.items():
        (work / name).write_text(text.format_map(values))
    (work / "hub").mkdir(exist_ok=True)  # huggingface_hub fails without a cache folder
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_REMOVED_VARIABLES)}
    log = work / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [word.format_map(values) for word in server.command.split()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=work,
            env=environment | {name: value.format_map(values) for name, value in server.environment.items()},
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{values['port']}/v1"
    try:
        _wait_until_ready(process, url, log)
        yield url
    finally:
        _stop(process)


def _wait_until_ready(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while problem := _readiness_problem(url):
        if process.poll() is not None:
            excerpt = log_excerpt(log.read_text(errors="replace"))
            raise ServerError(f"the server ended with code {process.returncode}:\n{excerpt}")
        if time.monotonic() > deadline:
            excerpt = log_excerpt(log.read_text(errors="replace"))
            raise ServerError(f"no reply within {_START_S:g} s ({problem}):\n{excerpt}")
        time.sleep(_POLL_S)


def _readiness_problem(url: str) -> str:
    """Why a chat request fails; empty if it succeeds."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=_REPLY_S) as reply:
            reply.read()
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Stop the server and its process group."""
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
