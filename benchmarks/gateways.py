"""The measured gateways: how to start each as one process on one core, and how to install it."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gateway_figures import OURS, OURS_OFF  # isort: skip  # same folder: a script's own folder is on the path
from c_programs import MODEL, Plan, Programs, Reader, pin  # isort: skip

PEERS = Path(__file__).parents[1] / ".venv-peers" / "bin"
FEW_STREAMS = 8  # LiteLLM needs over a millisecond per chunk: 20 streams saturate its core
MOST = 4096  # connections: high enough that none is rejected

_START_S = 120.0  # LiteLLM needs 15 s on an idle machine
_END_S = 15.0
_PAUSE_S = 0.2
_READY_TEXTS = 3


class GatewayError(Exception):
    """A gateway does not start or sends no answer."""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Folder and ports of a gateway."""

    folder: Path
    """For its configuration and log."""
    port: int
    upstream: int


@dataclass(frozen=True, kw_only=True)
class Gateway:
    """Gateway program."""

    name: str
    program: Path | None
    """None: not installed."""
    install: str
    """Command that installs it."""
    command: Callable[[Setup], list[str]]
    """Returns the arguments of the program."""
    is_slow: bool = False
    """Measured with few streams."""

    def streams(self, requested: int) -> int:
        """Return the number of concurrent streams to measure with."""
        return min(requested, FEW_STREAMS) if self.is_slow else requested


@dataclass(frozen=True)
class Running:
    """Running gateway."""

    name: str
    pid: int
    port: int


def _welldone(setup: Setup) -> list[str]:
    file = setup.folder / "welldone.toml"
    upstream = f'[upstreams.{MODEL}]\nurl = "http://127.0.0.1:{setup.upstream}/v1"\nlimit = {MOST}\n'
    file.write_text(f"[server]\nconnections = {MOST}\n{upstream}")
    return ["serve", "--config", str(file), "--port", str(setup.port)]


def _nginx(setup: Setup) -> list[str]:
    temporary = "".join(
        f"  {kind}_temp_path {setup.folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    file = setup.folder / "nginx.conf"
    file.write_text(
        f"worker_processes 1;\npid {setup.folder}/pid;\nerror_log stderr;\n"
        f"events {{ worker_connections {2 * MOST}; }}\nhttp {{\n  access_log off;\n{temporary}"
        f"  keepalive_requests {1_000_000_000};\n"  # by default it closes a connection after 1,000 requests
        f"  upstream paced {{\n    server 127.0.0.1:{setup.upstream};\n"
        f"    keepalive {MOST};\n    keepalive_requests {1_000_000_000};\n  }}\n"
        f"  server {{\n    listen 127.0.0.1:{setup.port} backlog={MOST};\n    location / {{\n"
        "      proxy_pass http://paced;\n      proxy_http_version 1.1;\n"
        '      proxy_set_header Connection "";\n      proxy_buffering off;\n    }\n  }\n}\n'
    )
    return ["-p", str(setup.folder), "-c", str(file), "-g", "daemon off;"]


def _router(setup: Setup) -> list[str]:
    return [
        *("--worker-urls", f"http://127.0.0.1:{setup.upstream}", "--policy", "round_robin"),
        *("--host", "127.0.0.1", "--port", str(setup.port), "--prometheus-port", str(free_port())),
        *("--max-concurrent-requests", str(MOST), "--log-level", "error"),
    ]


def _litellm(setup: Setup) -> list[str]:
    route = {"model": f"openai/{MODEL}", "api_base": f"http://127.0.0.1:{setup.upstream}/v1", "api_key": "none"}
    file = setup.folder / "litellm.yaml"
    file.write_bytes(msgspec.json.encode({"model_list": [{"model_name": MODEL, "litellm_params": route}]}))
    return ["--config", str(file), "--host", "127.0.0.1", "--port", str(setup.port), "--telemetry", "False"]


def known() -> list[Gateway]:
    """Return all gateways, welldone first."""
    peers = "make .venv-peers/.ready"
    return [
        Gateway(name=OURS, program=_sibling("welldone"), install="make serve", command=_welldone),
        Gateway(
            name=OURS_OFF,
            program=_sibling("welldone"),
            install="make serve",
            command=lambda setup: [*_welldone(setup), "--continue", "off"],
        ),
        Gateway(name="nginx", program=_on_path("nginx"), install="apt-get install nginx-light", command=_nginx),
        Gateway(
            name="sglang-router",
            program=_peer("sglang-router"),
            install=peers,
            command=lambda setup: ["launch", *_router(setup)],
        ),
        Gateway(name="smg", program=_peer("smg"), install=peers, command=lambda setup: ["launch", *_router(setup)]),
        Gateway(name="vllm-router", program=_peer("vllm-router"), install=peers, command=_router),
        Gateway(name="litellm", program=_peer("litellm"), install=peers, command=_litellm, is_slow=True),
    ]


def _sibling(name: str) -> Path | None:
    return _existing(Path(sys.executable).with_name(name))


def _peer(name: str) -> Path | None:
    return _existing(PEERS / name)


def _on_path(name: str) -> Path | None:
    path = shutil.which(name, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin")
    return None if path is None else Path(path)


def _existing(path: Path) -> Path | None:
    return path if path.is_file() else None


def free_port() -> int:
    """Return a port that is free now; not all of these programs can choose one and print it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def _environment() -> dict[str, str]:
    """Environment without settings that change a gateway. LiteLLM stays offline and requires no key."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("WELLDONE_", "LITELLM_"))}
    litellm = ("LITELLM_LOCAL_MODEL_COST_MAP", "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY")
    return inherited | dict.fromkeys(litellm, "true")


@contextmanager
def running(
    gateway: Gateway, folder: Path, *, upstream: int, programs: Programs, core: int | None
) -> Iterator[Running]:
    """Run a gateway; yields after its first answer."""
    setup = Setup(folder=folder, port=free_port(), upstream=upstream)
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(gateway.program), *gateway.command(setup)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            env=_environment(),
            start_new_session=True,
            preexec_fn=lambda: pin(core),
        )
    try:
        _wait_until_ready(gateway, process, setup, programs, log)
        yield Running(gateway.name, process.pid, setup.port)
    finally:
        _end(process)


def _wait_until_ready(
    gateway: Gateway, process: "subprocess.Popen[bytes]", setup: Setup, programs: Programs, log: Path
) -> None:
    deadline = time.monotonic() + _START_S
    while not _is_ready(programs, setup.port):
        if process.poll() is not None or time.monotonic() > deadline:
            lines = log.read_text(errors="replace").splitlines()
            raise GatewayError("\n".join([f"{gateway.name} sent no answer:", *lines[-10:]]))
        time.sleep(_PAUSE_S)


def _is_ready(programs: Programs, port: int) -> bool:
    now = time.monotonic()
    plan = Plan(streams=1, texts=_READY_TEXTS, start=now, step_s=0, since=now, until=now, limit=now + _END_S)
    return Reader(programs, port=port, plan=plan, core=None).end(_END_S).complete == 1


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Terminate the process and its group."""
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
