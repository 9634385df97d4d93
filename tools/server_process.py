"""A server from its lock file to its end: its environment, the model in the form that it reads, its process."""

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

from server_table import MODEL, Server  # isort: skip  # a neighbour: a script's own folder is on the path

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".venv-servers"
KEY = "sk-of-a-server-on-loopback"  # no secret: it is gone with the server

_INSTALL_S = 3600.0  # llama-cpp-python is compiled, on two cores for five minutes
_UNPACK_S = 600.0
_START_S = 300.0  # vLLM takes 50 s on an idle machine
_ANSWER_S = 60.0
_END_S = 20.0
_PAUSE_S = 0.5
_LINES = 3
_LETTERS = 600
_OTHERS = ("WELLDONE_", "LITELLM_", "LLAMA_", "VLLM_", "HF_", "OPENAI_")


class ServerError(Exception):
    """It does not run; why."""


def installed(server: Server) -> Path:
    """The folder of its programs. It is installed if it is not there, or if its lock file has changed."""
    if server.lock is None:
        return Path(sys.executable).parent
    lock, folder = ROOT / "requirements" / f"{server.lock}.txt", HOME / server.name
    ready, wanted = folder / ".ready", hashlib.sha256(lock.read_bytes() + repr(server.build).encode()).hexdigest()
    if not ready.exists() or ready.read_text() != wanted:
        print(f"{server.name}: installing", flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(folder)], _INSTALL_S)
        # Without dependencies: the lock file names all that are needed, and leaves out what only a GPU needs.
        # Without its cache: pip would take what was once compiled in another way.
        options = ("--quiet", "--no-cache-dir", "--no-deps", "--require-hashes", "-r", str(lock))
        _run([str(folder / "bin" / "python"), "-m", "pip", "install", *options], _INSTALL_S, server.build)
        ready.write_text(wanted)
    return folder / "bin"


def version_of(server: Server, programs: Path) -> str:
    """The version that is installed."""
    code = f"import importlib.metadata as m; print(m.version({server.package!r}))"
    return _run([str(programs / "python"), "-c", code], _ANSWER_S).strip()


def unpacked(programs: Path, gguf: Path, template: Path) -> Path:
    """The model as a folder, made once by a server that can."""
    folder, script = HOME / "model" / MODEL, Path(__file__).with_name("unpack.py")
    if not (folder / "tokenizer.json").exists():  # written last
        _run([str(programs / "python"), str(script), str(gguf), str(template), str(folder)], _UNPACK_S)
    return folder


def _run(command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None) -> str:
    full = os.environ | dict(environment or {})
    try:
        done = subprocess.run(command, env=full, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise ServerError(f"{Path(command[0]).name} took longer than {seconds:g} s") from None
    if done.returncode != 0:
        raise ServerError(gist(done.stderr or done.stdout))
    return done.stdout


def gist(log: str) -> str:
    """The last words of a log, without the paths of this machine."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return plain("\n".join(lines[-_LINES:]))[-_LETTERS:] or "it said nothing"


def plain(text: str) -> str:
    """A text without the paths of this machine."""
    for path in (str(ROOT), str(Path.home()), sys.prefix):
        text = text.replace(path, "…")
    return text


def free_port() -> int:
    """A port that is free now. Not all of these programs can choose one and say which."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


@contextmanager
def running(server: Server, names: Mapping[str, str], work: Path) -> Iterator[str]:
    """The server, when it has answered once; its URL. `names` fill its command."""
    for name, text in server.files.items():
        (work / name).write_text(text.format_map(names))
    (work / "hub").mkdir()  # huggingface_hub fails where there is no cache, empty or not
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OTHERS)}
    log = work / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [word.format_map(names) for word in server.command.split()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=work,
            env=kept | {name: value.format_map(names) for name, value in server.environment.items()},
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{names['port']}/v1"
    try:
        _wait(process, url, log)
        yield url
    finally:
        _end(process)


def _wait(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while why := _answers(url):
        if process.poll() is not None:
            raise ServerError(f"it ended with code {process.returncode}:\n{gist(log.read_text(errors='replace'))}")
        if time.monotonic() > deadline:
            raise ServerError(f"no answer within {_START_S:g} s ({why}):\n{gist(log.read_text(errors='replace'))}")
        time.sleep(_PAUSE_S)


def _answers(url: str) -> str:
    """Empty where it answers a chat, else why not."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_S) as reply:
            reply.read()
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def _end(process: "subprocess.Popen[bytes]") -> None:
    """It and all that it has started."""
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
