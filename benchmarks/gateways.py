"""The gateways that are measured: how each is started, one process on one core, and where a missing one comes from."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from programs import MODEL, Plan, Programs, Reader, pin  # isort: skip  # a neighbour: a script's own folder is on the path

PEERS = Path(__file__).parents[1] / ".venv-peers" / "bin"
FEW_STREAMS = 8  # LiteLLM takes a millisecond and more for a chunk: with 20 streams its core is full
MOST = 4096  # connections: none is sent away

_START_S = 120.0  # LiteLLM takes 15 s on an idle machine
_END_S = 15.0
_PAUSE_S = 0.2
_FIRST_TEXTS = 3


class GatewayError(Exception):
    """It does not run; why."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Where a gateway works."""

    folder: Path
    """Its own, for its files."""
    port: int
    upstream: int


@dataclass(frozen=True, kw_only=True)
class Gateway:
    """A program between the reader and the upstream."""

    name: str
    program: Path | None
    """None: it is not here."""
    where: str
    """How to get it."""
    command: Callable[[Job], list[str]]
    """What follows the program."""
    few: bool = False
    """It gets few streams."""

    def streams(self, wanted: int) -> int:
        """So many at once."""
        return min(wanted, FEW_STREAMS) if self.few else wanted


@dataclass(frozen=True)
class Running:
    """One that runs."""

    name: str
    pid: int
    port: int


def _welldone(job: Job) -> list[str]:
    file = job.folder / "welldone.toml"
    upstream = f'[upstreams.{MODEL}]\nurl = "http://127.0.0.1:{job.upstream}/v1"\nlimit = {MOST}\n'
    file.write_text(f"[server]\nconnections = {MOST}\n{upstream}")
    return ["serve", "--config", str(file), "--port", str(job.port)]


def _nginx(job: Job) -> list[str]:
    temporary = "".join(
        f"  {kind}_temp_path {job.folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    file = job.folder / "nginx.conf"
    file.write_text(
        f"worker_processes 1;\npid {job.folder}/pid;\nerror_log stderr;\n"
        f"events {{ worker_connections {2 * MOST}; }}\nhttp {{\n  access_log off;\n{temporary}"
        f"  upstream paced {{ server 127.0.0.1:{job.upstream}; keepalive {MOST}; }}\n"
        f"  server {{\n    listen 127.0.0.1:{job.port} backlog={MOST};\n    location / {{\n"
        "      proxy_pass http://paced;\n      proxy_http_version 1.1;\n"
        '      proxy_set_header Connection "";\n      proxy_buffering off;\n    }\n  }\n}\n'
    )
    return ["-p", str(job.folder), "-c", str(file), "-g", "daemon off;"]


def _router(job: Job) -> list[str]:
    return [
        *("--worker-urls", f"http://127.0.0.1:{job.upstream}", "--policy", "round_robin"),
        *("--host", "127.0.0.1", "--port", str(job.port), "--prometheus-port", str(free_port())),
        *("--max-concurrent-requests", str(MOST), "--log-level", "error"),
    ]


def _litellm(job: Job) -> list[str]:
    route = {"model": f"openai/{MODEL}", "api_base": f"http://127.0.0.1:{job.upstream}/v1", "api_key": "none"}
    file = job.folder / "litellm.yaml"
    file.write_bytes(msgspec.json.encode({"model_list": [{"model_name": MODEL, "litellm_params": route}]}))
    return ["--config", str(file), "--host", "127.0.0.1", "--port", str(job.port), "--telemetry", "False"]


def known() -> list[Gateway]:
    """All of them, ours first."""
    peers = "make .venv-peers/.ready"
    return [
        Gateway(name="welldone", program=_beside("welldone"), where="make serve", command=_welldone),
        Gateway(name="nginx", program=_found("nginx"), where="apt-get install nginx-light", command=_nginx),
        Gateway(
            name="sglang-router",
            program=_peer("sglang-router"),
            where=peers,
            command=lambda job: ["launch", *_router(job)],
        ),
        Gateway(name="vllm-router", program=_peer("vllm-router"), where=peers, command=_router),
        Gateway(name="litellm", program=_peer("litellm"), where=peers, command=_litellm, few=True),
    ]


def _beside(name: str) -> Path | None:
    return _if_there(Path(sys.executable).with_name(name))


def _peer(name: str) -> Path | None:
    return _if_there(PEERS / name)


def _found(name: str) -> Path | None:
    path = shutil.which(name, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin")
    return None if path is None else Path(path)


def _if_there(path: Path) -> Path | None:
    return path if path.is_file() else None


def free_port() -> int:
    """A port that is free now. Not all of these programs can choose one and say which."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def _environment() -> dict[str, str]:
    """Without settings that would change a gateway. LiteLLM asks the internet for nothing, and clients for no key."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WELLDONE_", "LITELLM_"))}
    litellm = ("LITELLM_LOCAL_MODEL_COST_MAP", "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY")
    return kept | dict.fromkeys(litellm, "true")


@contextmanager
def running(
    gateway: Gateway, folder: Path, *, upstream: int, programs: Programs, core: int | None
) -> Iterator[Running]:
    """The gateway, when it has answered once."""
    job = Job(folder=folder, port=free_port(), upstream=upstream)
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(gateway.program), *gateway.command(job)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            env=_environment(),
            start_new_session=True,
            preexec_fn=lambda: pin(core),
        )
    try:
        _wait(gateway, process, job, programs, log)
        yield Running(gateway.name, process.pid, job.port)
    finally:
        _end(process)


def _wait(gateway: Gateway, process: "subprocess.Popen[bytes]", job: Job, programs: Programs, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while not _answers(programs, job.port):
        if process.poll() is not None or time.monotonic() > deadline:
            raise GatewayError(
                f"{gateway.name} gives no answer:\n{_last(log.read_text(errors='replace').splitlines())}"
            )
        time.sleep(_PAUSE_S)


def _last(lines: Sequence[str]) -> str:
    return "\n".join(lines[-10:])


def _answers(programs: Programs, port: int) -> bool:
    now = time.monotonic()
    plan = Plan(streams=1, texts=_FIRST_TEXTS, start=now, step_s=0, since=now, until=now, limit=now + _END_S)
    return Reader(programs, port=port, plan=plan, core=None).end(_END_S).whole == 1


def _end(process: "subprocess.Popen[bytes]") -> None:
    """It and all that it has started."""
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
