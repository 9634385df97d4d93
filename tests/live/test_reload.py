"""Reload of a running server by SIGHUP, `POST /admin/reload` and `welldone reload`, while it streams."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.live.keys_command import chat_status
from tests.live.test_gateway_workers import slow_or_by_model, suspended, two_workers, wait_for_ready, workers
from tests.support.faults import LINUX, Child, chat_once, children, engine_of, metric, start_chat
from tests.support.raw import RawConnection, Reply, fetch, parse_valid
from tests.support.server import KEY, LIMIT_S, Running, serving
from tests.support.upstream import Upstream, eventually, gateway, upstream

pytestmark = [LINUX, pytest.mark.tier2]
RELOADED, UNCHANGED = "the configuration was reloaded", "the configuration is unchanged: "
RELOADS = "welldone_reloads_total"
SLOW_TEXT = "Hello" * 41


@pytest.fixture
def backend() -> Iterator[Upstream]:
    with upstream(slow_or_by_model) as started:
        yield started


@pytest.fixture
def other() -> Iterator[Upstream]:
    with upstream(slow_or_by_model) as started:
        yield started


def write(folder: Path, *upstreams: tuple[str, Upstream], more: str = "") -> None:
    """Write the file anew, at once: a reader sees the old or the new one."""
    tables = [f'[upstreams.{name}]\nurl = "{one.url}"\nmodels = ["*"]\nprobe_s = 0\n' for name, one in upstreams]
    new = folder / "new.toml"
    new.write_text("\n".join([more, *tables]))
    new.replace(folder / "welldone.toml")


def reload(server: Running) -> Reply:
    with RawConnection(server, "/admin/reload", {}) as connection:
        return connection.reply()


def hang_up(server: Running, expected: str = RELOADED) -> str:
    """Send SIGHUP, and wait for the line of the result."""
    seen = len(server.log.all)
    server.process.send_signal(signal.SIGHUP)
    return server.log.wait(expected, seen=seen).string


def command(server: Running, *options: str, key: str | None = KEY) -> "subprocess.CompletedProcess[str]":
    keys = [] if key is None else ["--api-key", key]
    return subprocess.run(
        [sys.executable, "-m", "welldone", "reload", "--url", server.root, *keys, *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


@pytest.mark.parametrize("count", ["1", "2"], ids=["one process", "two workers"])
def test_a_stream_survives_the_removal_of_its_upstream(
    tmp_path: Path, backend: Upstream, other: Upstream, count: str
) -> None:
    with gateway(tmp_path, backend.url, options=["--workers", count]) as server:
        with ExitStack() as stack:
            streams = [stack.enter_context(start_chat(server, model="slow")) for _ in range(4)]
            for stream in streams:
                stream.wait(b"Hello")
            write(tmp_path, ("b", other), more='[routes]\nnew = "hello@b"')
            line = hang_up(server)
            assert "upstreams: added b; removed a" in line
            assert "routes: added new" in line
            before = len(backend.posts())
            for _ in range(4):  # of both workers
                assert chat_once(server, model="new").text == "Hello"
            assert len(other.posts()) == 4
            assert len(backend.posts()) == before
            for stream in streams:
                assert parse_valid(stream.reply()).text == SLOW_TEXT
        assert metric(server, RELOADS) == 1
        assert server.end() == 0
        assert "Traceback" not in server.log.join()


@pytest.mark.parametrize("count", ["1", "2"], ids=["one process", "two workers"])
def test_a_bad_file_changes_nothing_and_says_why(tmp_path: Path, backend: Upstream, count: str) -> None:
    with gateway(tmp_path, backend.url, options=["--workers", count]) as server:
        file = tmp_path / "welldone.toml"
        good = file.read_text()
        for text, reason in [
            (good + "\n[upstreams.b]\nurl = 7\n", "welldone.toml: upstreams.b.url"),
            (good + "\n[routes]\nx = 'y@nowhere'\n", "welldone.toml: the route 'x' has the target 'y@nowhere'"),
            (good + "\n[server", "welldone.toml is not TOML"),
            (None, "cannot read"),
        ]:
            if text is None:
                file.unlink()
            else:
                file.write_text(text)
            hang_up(server, UNCHANGED + ".*" + re.escape(reason))
            reply = reload(server)
            assert (reply.status, reply.error()["code"]) == (409, "invalid_configuration")
            assert reason in reply.error()["message"]
            assert chat_once(server).text == "Hello"
        done = command(server)
        assert done.returncode == 1
        assert done.stdout == ""
        assert done.stderr.startswith("The configuration is unchanged: cannot read")
        assert metric(server, 'welldone_reloads_total{outcome="failed"}') == metric(server, RELOADS) == 9
        assert metric(server, "welldone_config_last_reload_successful") == 0
        file.write_text(good)
        assert command(server).stdout.startswith("the configuration is unchanged (")
        assert metric(server, "welldone_config_last_reload_successful") == 1
        assert server.end() == 0


def test_settings_that_need_a_restart_are_named(tmp_path: Path, backend: Upstream) -> None:
    with gateway(tmp_path, backend.url) as server:
        write(tmp_path, ("a", backend), more="[server]\nstored_bytes = 2_000_000\nworkers = 2\nidle_s = 7\n")
        before = metric(server, "welldone_config_timestamp_seconds")
        done = command(server)
        assert done.returncode == 0
        assert done.stderr.splitlines() == [
            f"warning: a change of server.{name} needs a restart: the present value stays"
            for name in ("workers", "stored_bytes")
        ]
        assert done.stdout.splitlines()[1:] == ["  server: changed idle_s"]
        assert metric(server, "welldone_config_timestamp_seconds") > before
        assert len(children(server.process.pid)) == 0


@pytest.mark.parametrize("count", ["1", "2"], ids=["one process", "two workers"])
def test_keys_are_added_and_removed(tmp_path: Path, backend: Upstream, count: str) -> None:
    key = "canary-of-the-new-key"
    with gateway(tmp_path, backend.url, options=["--workers", count]) as server:
        assert chat_status(server, key) == 401
        server.key = KEY
        write(tmp_path, ("a", backend), more=f'[keys.ci]\nkey = "{key}"\nrequests_per_minute = 6\n')
        assert reload(server).status == 200
        statuses = [chat_status(server, key) for _ in range(12)]
        assert set(statuses) == {200, 429}
        assert statuses.count(200) in (6, 7)  # one limit for both workers
        with RawConnection(server, "/admin/reload", {}) as connection:
            assert connection.reply().status == 403  # not an admin
        assert command(server, key=key).returncode == 3
        server.key = KEY
        write(tmp_path, ("a", backend))
        assert "keys: removed ci" in hang_up(server)
        assert chat_status(server, key) == 401
        server.key = KEY
        assert server.end() == 0
        assert key not in server.log.join() + server.stdout.join()


def test_all_workers_apply_it_and_a_new_worker_starts_with_it(
    tmp_path: Path, backend: Upstream, other: Upstream
) -> None:
    with two_workers(tmp_path, backend) as server, workers(server) as (one, another):
        write(tmp_path, ("b", other))
        assert reload(server).status == 200
        for worker in (one, another):
            with suspended(worker):
                assert chat_once(server).text == "Hello"
        assert len(other.posts()) == 2
        one.kill()
        one.wait()
        wait_for_ready(server, 3)
        with suspended(another):
            assert chat_once(server).text == "Hello"
        assert len(other.posts()) == 3
        assert server.end() == 0


def test_a_worker_that_does_not_run_does_not_delay_the_others_and_applies_it_later(
    tmp_path: Path, backend: Upstream, other: Upstream
) -> None:
    with two_workers(tmp_path, backend) as server, workers(server) as (one, another):
        with suspended(one):
            write(tmp_path, ("b", other))
            reply = reload(server)
            assert reply.status == 200
            assert [line for line in json.loads(reply.trace.body)["warnings"] if "has not applied it yet" in line]
        eventually(lambda: chat_once(server).text == "Hello" and len(other.posts()) > 0)
        with suspended(another):
            assert chat_once(server).text == "Hello"
        assert backend.posts() == []
        assert server.end() == 0


@pytest.mark.parametrize("count", ["1", "2"], ids=["one process", "two workers"])
def test_no_answer_is_lost_while_the_configuration_changes_again_and_again(
    tmp_path: Path, backend: Upstream, other: Upstream, count: str
) -> None:
    with gateway(tmp_path, backend.url, options=["--workers", count]) as server:
        texts: list[str] = []
        is_done = threading.Event()

        def ask() -> None:
            while not is_done.is_set():
                texts.append(chat_once(server).text)
                texts.append(chat_once(server, model="slow").text.replace(SLOW_TEXT, "Hello"))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            for number in range(20):
                upstreams = (("a", backend), ("b", other)) if number % 2 else (("b", other),)
                write(tmp_path, *upstreams, more=f"[keys.k{number}]\nkey = 'canary-key-{number:04}'\n")
                hang_up(server)
        finally:
            is_done.set()
            for thread in threads:
                thread.join()
        assert texts
        assert set(texts) == {"Hello"}
        assert metric(server, 'welldone_reloads_total{outcome="applied"}') == 20
        for _ in range(30):  # not waited for: several may be handled at once
            server.process.send_signal(signal.SIGHUP)
        assert chat_once(server).text == "Hello"
        assert server.end() == 0
        assert "Traceback" not in server.log.join()


def test_local_models_come_and_go(tmp_path: Path, tiny_model: Path) -> None:
    def model(name: str, more: str = "") -> str:
        return f'[models.{name}]\nfile = "{tiny_model}"\nthreads = 1\nparallel = 1\npreload = true\n{more}\n'

    file = tmp_path / "welldone.toml"
    file.write_text(model("old"))
    with serving([], model="old", folder=tmp_path) as server, engine_of(server) as engine:
        with start_chat(server, model="old", max_tokens=200) as stream:
            stream.wait(rb'"content":"[^"]')
            file.write_text(model("new"))
            assert "models: added new; removed old" in hang_up(server)
            server.log.wait("model is ready.*new")
            assert chat_once(server, model="new").choice.finish == "length"
            assert parse_valid(stream.reply()).choice.finish == "length"
        engine.wait()
        file.write_text(model("new", "queue = 3\n[models.new.defaults]\nseed = 3"))
        (kept,) = children(server.process.pid)[:1]
        with Child(kept):
            assert "models: changed new" in hang_up(server)
            assert kept in children(server.process.pid)
        assert chat_once(server, model="new").choice.finish == "length"
        file.write_text(model("new") + '[models.missing]\nfile = "/nonexistent.gguf"\n')
        assert "models.missing: there is no model /nonexistent.gguf" in hang_up(server, UNCHANGED)
        assert server.end() == 0


def test_the_command_finds_the_server_and_an_admin_key_in_the_file(tmp_path: Path, backend: Upstream) -> None:
    with gateway(tmp_path, backend.url, key=None, more='[keys.boss]\nkey = "canary-boss"\nadmin = true\n') as server:
        text = f"[server]\nport = {server.port}\n" + (tmp_path / "welldone.toml").read_text()
        (tmp_path / "welldone.toml").write_text(text)
        done = subprocess.run(
            [sys.executable, "-m", "welldone", "reload"],
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if name != "WELLDONE_API_KEY"},
        )
        assert done.stdout.startswith("the configuration is unchanged")
        assert done.stderr == ""
        assert command(server, key=None).returncode == 3
        assert fetch(server, "/health").status == 200
    assert command(server).returncode == 3
