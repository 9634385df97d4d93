"""nginx and Caddy as child processes in front of a gateway, with the files of deploy/.

The files are changed as little as possible: ports, the certificate, and the folder of the log.
"""

import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Protocol

import pytest

from tests.deploy.manifests import ROOT
from tests.http.certificates import Pair, make_pair
from tests.support.server import KEY, LIMIT_S, Running, reserved_port
from welldone.mock.script import CHUNK_TEMPLATE, HELLO_REPLY

NGINX_FILE = ROOT / "deploy" / "nginx" / "welldone.conf"
CADDY_FILE = ROOT / "deploy" / "caddy" / "Caddyfile"
SITE = "chat.example.org"
"""Name of the server in the files."""
CLIENT_ADDRESS = "127.0.0.2"
"""Address of the tests' clients; the proxies themselves connect from 127.0.0.1."""
CERTIFICATE, CERTIFICATE_KEY = f"/etc/ssl/certs/{SITE}.pem", f"/etc/ssl/private/{SITE}.key"

Edits = Mapping[str, str]
"""Replacements in a file of deploy/."""


class RunningProxy(Running):
    """A running proxy. Clients connect with TLS, from `CLIENT_ADDRESS`, to the server `SITE`."""

    def __init__(
        self, name: str, process: "subprocess.Popen[str]", port: int, certificate: Path, access_log: Path | None
    ) -> None:
        super().__init__(process, model="hello", key=KEY)
        self.name = name
        self.url = f"https://127.0.0.1:{port}/v1"
        self._certificate = certificate
        self._access_log = access_log

    def connect(self, *protocols: str) -> ssl.SSLSocket:
        """Open a connection to the server, and offer these protocols (ALPN)."""
        tls = ssl.create_default_context(cafile=self._certificate)
        tls.set_alpn_protocols(protocols)
        connection = socket.create_connection(("127.0.0.1", self.port), LIMIT_S, (CLIENT_ADDRESS, 0))
        return tls.wrap_socket(connection, server_hostname=SITE)

    def headers(self) -> dict[str, str]:
        """The Host header and that with the key."""
        return {"Host": SITE, **super().headers()}

    def logged(self) -> list[str]:
        """The lines of the access log and the error log, so far."""
        lines = [] if self._access_log is None else self._access_log.read_text().splitlines()
        return [*lines, *self.log.all]


class Proxy(Protocol):
    """Runs a proxy in front of a gateway, with the file of deploy/ and further edits, until the block ends."""

    def __call__(
        self, folder: Path, gateway: Running, edits: Edits | None = None
    ) -> AbstractContextManager[RunningProxy]: ...


@contextmanager
def nginx(folder: Path, gateway: Running, edits: Edits | None = None) -> Iterator[RunningProxy]:
    """Run nginx."""
    require("nginx")
    pair = make_pair(folder, names=f"DNS:{SITE}")
    with reserved_port() as reservation:
        port: int = reservation.getsockname()[1]
        own_edits = {
            "127.0.0.1:8000": f"127.0.0.1:{gateway.port}",
            "listen 443": f"listen 127.0.0.1:{port}",
            "    listen [::]:443 ssl http2;\n": "",
            CERTIFICATE: str(pair.certificate),
            CERTIFICATE_KEY: str(pair.key),
            "/var/log/nginx/": f"{folder}/",
        }
        (folder / "welldone.conf").write_text(edited(NGINX_FILE, {**(edits or {}), **own_edits}))
        (folder / "nginx.conf").write_text(nginx_main_file(folder))
        command = ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]
        with running(command, folder, port, pair, access_log=folder / "welldone.log") as proxy:
            proxy.log.wait(r"start worker process \d")
            yield proxy


def nginx_main_file(folder: Path) -> str:
    """The file that includes that of deploy/, instead of Debian's, with compression of everything."""
    paths = [f"{name}_temp_path {folder / name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")]
    user = "user root;" if os.getuid() == 0 else ""  # only root may enter the folders of root's tests
    main = f"daemon off; {user} pid {folder / 'pid'}; error_log stderr notice; events {{}}"
    return f"{main} http {{ gzip on; gzip_types *; {' '.join(paths)} include {folder / 'welldone.conf'}; }}"


@contextmanager
def caddy(folder: Path, gateway: Running, edits: Edits | None = None) -> Iterator[RunningProxy]:
    """Run Caddy, without its API, requests for certificates and HTTP/3."""
    require("caddy")
    pair = make_pair(folder, names=f"DNS:{SITE}")
    with reserved_port() as reservation:
        port: int = reservation.getsockname()[1]
        options = ["admin off", "auto_https off", "skip_install_trust", "default_bind 127.0.0.1", f"https_port {port}"]
        own_edits = {
            "127.0.0.1:8000": f"127.0.0.1:{gateway.port}",
            "\n{\n": "\n".join(["", "{", *options, "servers {", "protocols h1 h2", "}", ""]),
            f"# tls {CERTIFICATE} {CERTIFICATE_KEY}": f"tls {pair.certificate} {pair.key}",
        }
        file = folder / "Caddyfile"
        file.write_text(edited(CADDY_FILE, {**(edits or {}), **own_edits}))
        command = ["caddy", "run", "--config", str(file), "--adapter", "caddyfile"]
        with running(command, folder, port, pair) as proxy:
            proxy.log.wait("serving initial configuration")
            yield proxy


@contextmanager
def running(
    command: list[str], folder: Path, port: int, pair: Pair, *, access_log: Path | None = None
) -> Iterator[RunningProxy]:
    """Run the program of a proxy, and end it when the block ends."""
    # Caddy stores its state below these folders.
    environment = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, env=environment
    )
    proxy = RunningProxy(command[0], process, port, pair.certificate, access_log)
    try:
        yield proxy
    finally:
        try:
            proxy.end()
        finally:
            process.kill()
            process.wait()


def require(program: str) -> None:
    """Skip the test if the program is missing."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed (Debian package {program})")


def edited(path: Path, edits: Edits) -> str:
    """The file after the edits; each must change something."""
    text = path.read_text()
    for old, new in edits.items():
        assert old in text, f"{path.name} has no {old!r}"
        text = text.replace(old, new)
    return text


class GatedUpstream(ThreadingHTTPServer):
    """An upstream that waits for `gate` before each word of its answer, and before its end."""

    daemon_threads = True
    words = tuple(f"word-{number}" for number in range(5))

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _GatedHandler)
        self.gate = threading.Semaphore(0)

    @property
    def url(self) -> str:
        """The base URL of the API."""
        return f"http://127.0.0.1:{self.server_port}/v1"


class _GatedHandler(BaseHTTPRequestHandler):
    server: GatedUpstream

    def do_POST(self) -> None:
        gate = self.server.gate
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        role, _, *end = (piece.data for piece in HELLO_REPLY.pieces)
        words = [(CHUNK_TEMPLATE % (f'{{"content":"{word}"}}', "null")).encode() for word in self.server.words]
        for data in (role + words[0], *words[1:], b"".join(end)):
            if not gate.acquire(timeout=LIMIT_S):
                return
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Do not log."""


@contextmanager
def gated_upstream() -> Iterator[GatedUpstream]:
    """Run the upstream until the block ends."""
    with GatedUpstream() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
