"""Messages to systemd, received on a real datagram socket, from a server with one process and with workers."""

import os
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.server import LIMIT_S, serving
from tests.support.upstream import upstream
from welldone.cli.service_manager import ServiceManager

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets exist on Linux only")


@contextmanager
def manager_socket(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(address)
        receiver.settimeout(LIMIT_S)
        yield receiver


def received(receiver: socket.socket) -> dict[str, str]:
    return dict(line.split("=", 1) for line in receiver.recv(4096).decode().splitlines())


def test_messages_arrive_and_children_do_not_see_the_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    environment = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
    with manager_socket(path) as receiver:
        manager = ServiceManager(environment)
        assert environment == {"HOME": "/"}
        assert manager.watchdog_s == 1.5
        manager.ready("two\nlines")
        assert received(receiver) == {"READY": "1", "STATUS": "two lines"}
        manager.reloading()
        first = received(receiver)
        assert first["RELOADING"] == "1"
        assert first["MONOTONIC_USEC"].isdecimal()
        manager.keep_alive()
        assert received(receiver) == {"WATCHDOG": "1"}
        manager.stopping()
        assert received(receiver)["STOPPING"] == "1"
    manager.keep_alive()  # nobody receives it


@LINUX
def test_an_abstract_socket_is_used() -> None:
    name = f"welldone-test-{os.getpid()}"
    with manager_socket(f"\0{name}") as receiver:
        ServiceManager({"NOTIFY_SOCKET": f"@{name}"}).keep_alive()
        assert received(receiver) == {"WATCHDOG": "1"}


@pytest.mark.parametrize(
    "environment",
    [{}, {"WATCHDOG_USEC": "1"}, {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}],
    ids=["none", "no socket", "other process"],
)
def test_without_a_manager_nothing_is_sent(environment: dict[str, str]) -> None:
    manager = ServiceManager(environment)
    assert manager.watchdog_s is None
    manager.ready("x")


@LINUX
@pytest.mark.tier2
@pytest.mark.parametrize("count", ["1", "2"], ids=["one process", "two workers"])
def test_a_server_reports_start_reload_and_stop(tmp_path: Path, count: str) -> None:
    def next_message(receiver: socket.socket) -> dict[str, str]:
        while (message := received(receiver)) == {"WATCHDOG": "1"}:
            pass
        return message

    path = str(tmp_path / "notify")
    environment = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "200000"}
    with manager_socket(path) as receiver, upstream() as backend:
        arguments = ["--upstream", backend.url, "--workers", count]
        with serving(arguments, folder=tmp_path, environment=environment, is_awaited=False) as server:
            assert next_message(receiver) == {"READY": "1", "STATUS": "serving"}
            assert received(receiver) == {"WATCHDOG": "1"}
            server.process.send_signal(signal.SIGHUP)
            assert next_message(receiver)["RELOADING"] == "1"
            assert next_message(receiver) == {"READY": "1", "STATUS": "serving"}
            (tmp_path / "welldone.toml").write_text("[server]\nport = 'x'\n")
            server.process.send_signal(signal.SIGHUP)
            assert next_message(receiver)["RELOADING"] == "1"
            status = next_message(receiver)
            assert re.search(r"welldone.toml: server.port", status["STATUS"])
            assert status["READY"] == "1"
            server.process.send_signal(signal.SIGTERM)
            assert next_message(receiver)["STOPPING"] == "1"
            assert server.end() == 0
