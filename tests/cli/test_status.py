"""`welldone status`: against real servers, on a terminal and in a pipe, and its errors."""

import json
import os
import pty
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.live import watched
from tests.cli.run import COMMAND, ENVIRONMENT, Run
from tests.engines import web
from tests.engines.web import Page, Site
from tests.http.certificates import make_pair
from tests.support.faults import start_chat
from tests.support.raw import RawConnection
from tests.support.server import KEY, Running
from tests.support.upstream import eventually, gateway, upstream
from welldone import __version__
from welldone.cli.server_status import NO_METRICS, NO_PAGE, NOT_ADMIN
from welldone.cli.ui import ExitCode

CI_KEY = "wd-named-key-0123456789"
NAMED_KEY = f'[keys.ci]\nkey = "{CI_KEY}"\nmodels = ["hello", "tiny"]\n'
CLOSED = "http://127.0.0.1:1/v1"
TERMINAL = {name: value for name, value in ENVIRONMENT.items() if name != "NO_COLOR"} | {"TERM": "xterm"}


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway with a local model, an upstream that works and one that is gone, after some requests."""
    model = f"[models.tiny]\nfile = {json.dumps(str(tiny_model))}\nthreads = 1\nparallel = 2\nqueue = 5\n"
    with upstream() as good:
        urls = (good.url, CLOSED)
        with gateway(tmp_path_factory.mktemp("status"), *urls, more=model + NAMED_KEY) as running:
            running.log.wait("model is ready")
            for name in ("tiny", "no-done", *("broken", "hello") * 3):
                with start_chat(running, model=name) as connection:
                    connection.reply()
            yield running


@pytest.fixture(scope="module")
def bare_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway without a page, whose upstream cannot be reached."""
    folder = tmp_path_factory.mktemp("bare")
    with gateway(folder, CLOSED, each={"probe_s": 1}, more=NAMED_KEY, options=["--no-page"]) as running:
        eventually(lambda: b'welldone_upstream_up{upstream="a"} 0.0' in _metrics(running))
        yield running


def _metrics(server: Running) -> bytes:
    with RawConnection(server, "/metrics") as connection:
        return connection.reply().trace.body


@pytest.fixture
def site() -> Iterator[Site]:
    """A web server that is not welldone."""
    with web.site() as made:
        yield made


def _state(**fields: Any) -> bytes:  # noqa: ANN401 - of the reply
    return json.dumps({"version": "9.9", "uptime_s": 5.0, "from_the_future": 1, **fields}).encode()


# One look.


def test_the_tables_show_models_upstreams_and_errors(server: Running, here: Run) -> None:
    ran = here("status", server.url, "--api-key", KEY)
    assert (ran.code, ran.notes) == (ExitCode.OK, "")
    lines = ran.out.decode().splitlines()
    assert lines[0].startswith(f"ready  welldone {__version__} at {server.root}, up ")
    assert lines[0].endswith(", 0 in progress")
    rows = [line.split() for line in lines]
    assert ["tiny", "ready", "0", "0/2", "0/5"] in rows
    cells = {row[0]: row[1:] for row in rows if row and row[0] in ("a", "b")}
    assert cells["a"][0] == "errors"
    assert cells["b"][:3] == ["failing", cells["b"][1], "100.0%"]
    assert "  a: 3 of 7 requests failed" in lines
    assert "  b: all recent requests failed, the last: unreachable" in lines
    errors = lines[lines.index("recent errors") + 1 :]
    assert len(errors) == 3
    assert all("  502  broken → " in line and "a:500" in line and " req_" in line for line in errors)


def test_json_has_the_same_figures(server: Running, here: Run) -> None:
    ran = here("status", server.root, "--api-key", KEY, "--json")
    assert ran.code == ExitCode.OK
    shown = json.loads(ran.out)
    assert (shown["version"], shown["server_version"], shown["is_ready"]) == (1, __version__, True)
    assert [(one["id"], one["state"], one["slots"], one["queue"]) for one in shown["models"]] == [
        ("tiny", "ready", 2, 5)
    ]
    first, second = shown["upstreams"]
    assert (first["state"], first["window"]["repaired"]) == ("errors", 1)
    assert first["window"]["requests"] > first["window"]["failures"] == 3
    assert first["ttft_s"]["p50"] > 0
    assert (second["state"], second["failing"]) == ("failing", "unreachable")
    assert [row["status"] for row in shown["errors"]] == [502, 502, 502]
    assert shown["notes"] == []


def test_a_plain_key_sees_less_and_a_note_says_so(server: Running, here: Run) -> None:
    shown = json.loads(here("status", server.url, "--api-key", CI_KEY, "--json").out)
    assert ([model["id"] for model in shown["models"]], shown["upstreams"]) == (["tiny"], [])
    assert (shown["errors"], shown["notes"]) == ([], [NOT_ADMIN])
    assert f"note: {NOT_ADMIN}" in here("status", server.url, "--api-key", CI_KEY).out.decode()


def test_the_server_and_the_key_of_the_settings_are_used(
    server: Running, here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WELLDONE_PORT", str(server.port))
    monkeypatch.setenv("WELLDONE_API_KEY", KEY)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    assert here("status").code == ExitCode.OK
    ran = here("status", f"127.0.0.1:{server.port}", "--once")
    assert (ran.code, ran.out.startswith(b"ready  ")) == (ExitCode.OK, True)


def test_a_server_without_a_page_shows_its_metrics_and_why_it_is_not_ready(bare_server: Running, here: Run) -> None:
    ran = here("status", bare_server.url, "--api-key", KEY)
    assert ran.code == ExitCode.FAILED
    lines = ran.out.decode().splitlines()
    assert lines[0].startswith(f"not ready  welldone {__version__} at ")
    assert lines[1] == " " * len("not ready  ") + "No upstream can be reached."
    assert ["a", "down", "-", "-", "-", "-", "-"] in [line.split()[:7] for line in lines]
    assert f"note: {NO_PAGE}" in lines
    shown = json.loads(here("status", bare_server.url, "--api-key", KEY, "--json").out)
    assert (shown["is_ready"], shown["problem"]) == (False, "No upstream can be reached.")
    assert shown["uptime_s"] > 0


def test_without_a_page_and_the_metrics_only_the_readiness_is_shown(bare_server: Running, here: Run) -> None:
    shown = json.loads(here("status", bare_server.url, "--api-key", CI_KEY, "--json").out)
    assert (shown["is_ready"], shown["upstreams"], shown["notes"]) == (False, [], [NO_METRICS])


@pytest.mark.parametrize("columns", [80, 60])
def test_lines_fit_the_terminal(columns: int, server: Running, here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    narrow = here("status", server.url, "--api-key", KEY).out.decode()
    assert max(map(len, narrow.splitlines())) <= columns


def test_states_of_models_and_upstreams_have_reasons(site: Site, here: Run) -> None:
    models = [
        {"id": "big\x1b[2J", "state": "failed", "error": "out of\nmemory"},
        {"id": "idle", "state": "unloaded"},
    ]
    upstreams = [
        {"name": "one", "is_healthy": False, "trouble": "no connection"},
        {"name": "two", "breaker": "open"},
        {"name": "three", "breaker": "half-open"},
        {"name": "four", "window": {"requests": 3, "failures": 3}},
        {"name": "five", "window": {"requests": 0}, "ttft_s": {"p50": 0.5, "p95": 2.25}},
    ]
    recent = [
        {"at": 0.0, "status": status, "path": "/v1/chat/completions", "error": error, "request_id": f"r{status}"}
        for status, error in ((404, "model_not_found"), (429, "queue_full"), (200, None), (200, "timeout"))
    ]
    problem = json.dumps({"error": {"message": "Loading model"}}).encode()
    site.pages["/health"] = Page(problem, status=503)
    fields = {"uptime_s": 90_000.0, "workers": 4, "models": models, "upstreams": upstreams, "recent": recent}
    site.pages["/page/api/state"] = Page(_state(**fields))
    ran = here("status", site.url(""))
    assert (ran.code, b"\x1b" in ran.out) == (ExitCode.FAILED, False)
    lines = ran.out.decode().splitlines()
    assert lines[0] == f"not ready  welldone 9.9 at {site.url('')}, up 1 d 1 h, 4 workers, 0 in progress"
    assert lines[1].strip() == "Loading model"
    rows = {row[0]: row[1:] for row in (line.split() for line in lines) if row}
    assert [rows[name][0] for name in ("one", "two", "three", "four", "five")] == [
        *("down", "open", "half-open", "failing", "ok")
    ]
    assert rows["four"][1:4] == ["3", "100.0%", "0.0%"]
    assert rows["five"][1:8] == ["0", "-", "-", "500", "ms", "2.2", "s"]
    assert "  'big\\x1b[2J': out of memory" in lines
    assert "  one: no connection" in lines
    assert "  two: the circuit breaker is open: it gets no requests until a probe succeeds" in lines
    assert "  four: all recent requests failed" in lines
    errors = lines[lines.index("recent errors") + 1 :]
    assert [line.split()[1:] for line in errors] == [
        ["429", "/v1/chat/completions", "queue_full", "r429"],
        ["200", "/v1/chat/completions", "timeout", "r200"],
    ]


def test_a_state_follows_from_the_errors_of_the_last_minutes(site: Site, here: Run) -> None:
    counts = {"one": (1, 1), "most": (10, 9), "few": (10, 2), "all": (3, 3)}
    upstreams = [{"name": name, "window": {"requests": some, "failures": bad}} for name, (some, bad) in counts.items()]
    results = {"good": [200, 200], "once": [500, 200], "bad": [503, 500, 500], "busy": [429, 429, 429], "away": [500]}
    models = [{"id": name, "state": "unloaded" if name == "away" else "ready"} for name in (*results, "old")]
    recent = [
        {"at": 900.0, "path": "/v1/chat/completions", "model": name, "status": status}
        | ({"error": f"e{number}"} if status >= 400 else {})
        for name, statuses in results.items()
        for number, status in enumerate(statuses)
    ]
    recent.append({"at": 600.0, "path": "/v1/chat/completions", "model": "old", "status": 500, "error": "long_ago"})
    site.pages["/health"] = Page(b"{}")
    site.pages["/page/api/state"] = Page(_state(now=1000.0, models=models, upstreams=upstreams, recent=recent))
    ran = here("status", site.url(""))
    assert ran.code == ExitCode.OK  # the server is ready
    lines = ran.out.decode().splitlines()
    states = {row[0]: row[1] for row in (line.split() for line in lines) if len(row) > 1}
    expected = {"one": "errors", "most": "errors", "few": "ok", "all": "failing"}
    expected |= {
        "good": "ready",
        "once": "errors",
        "bad": "failing",
        "busy": "ready",
        "away": "unloaded",
        "old": "ready",
    }
    assert {name: states[name] for name in expected} == expected
    for reason in (
        "  one: 1 of 1 requests failed",
        "  once: 1 of 2 recent requests failed, the last: e0",
        "  bad: 3 of 3 recent requests failed, the last: e0",
    ):
        assert reason in lines


@pytest.mark.parametrize(("uptime_s", "text"), [(59.4, "59 s"), (61.0, "1 min"), (7_500.0, "2 h 5 min")])
def test_the_uptime_has_two_units_at_most(uptime_s: float, text: str, site: Site, here: Run) -> None:
    site.pages["/health"] = Page(b"{}")
    site.pages["/page/api/state"] = Page(_state(uptime_s=uptime_s))
    assert here("status", site.url("")).out.decode() == f"ready  welldone 9.9 at {site.url('')}, up {text}\n"


# Errors.


@pytest.mark.parametrize(("key", "words"), [(None, "requires a key"), ("wrong-key-0123456789", "refuses the key")])
@pytest.mark.parametrize("name", ["server", "bare_server"])
def test_a_key_that_is_missing_or_wrong_is_reported(
    name: str, key: str | None, words: str, here: Run, request: pytest.FixtureRequest
) -> None:
    running: Running = request.getfixturevalue(name)
    ran = here("status", running.url, *([] if key is None else ["--api-key", key]))
    assert (ran.code, ran.out) == (ExitCode.UNREACHABLE, b"")
    assert ran.notes == f"the server at {running.root} {words}: --api-key KEY, or WELLDONE_API_KEY\n"


@pytest.mark.parametrize(
    "pages",
    [
        {},
        {"/page/api/state": Page(b"<html>")},
        {"/page/api/state": Page(b'{"version":"1"}')},
        {"/page/api/state": Page(b"\xff")},
        {"/metrics": Page(b"vllm:num_requests_running 1\n")},
    ],
)
def test_a_server_that_is_not_welldone_is_reported(pages: dict[str, Page], site: Site, here: Run) -> None:
    site.pages |= {"/health": Page(b""), **pages}
    ran = here("status", site.url("/v1"))
    assert (ran.code, ran.out) == (ExitCode.UNREACHABLE, b"")
    assert ran.notes == f"the server at {site.url('')} is not welldone serve\n"


def test_another_status_is_reported_with_its_message(site: Site, here: Run) -> None:
    site.pages["/page/api/state"] = Page(b'{"error":{"message":"Host is\\n not allowed"}}', status=403)
    ran = here("status", site.url(""))
    assert (ran.code, ran.notes) == (
        ExitCode.UNREACHABLE,
        f"the server at {site.url('')} answers with status 403: Host is not allowed\n",
    )


def test_a_server_that_does_not_answer_is_reported(here: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as made:
        port = made.getsockname()[1]
    ran = here("status", f"http://127.0.0.1:{port}")
    assert ran.code == ExitCode.UNREACHABLE
    assert ran.notes.startswith(f"no server answers at http://127.0.0.1:{port}: ")
    assert ran.notes.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        "http://h:1 --once --watch 1",
        "http://h:1 --watch 0.01",
        "http://h:1 --watch soon",
        "ftp://h",
        "http://u:hunter2@h",
        "http://h:1 more",
    ],
)
def test_wrong_options_are_one_line(words: str, here: Run) -> None:
    ran = here("status", *words.split())
    assert (ran.code, ran.out, ran.notes.count("\n")) == (ExitCode.USAGE, b"", 1)
    assert "hunter2" not in ran.notes


# Again and again.


@contextmanager
def _on_terminal(*words: str, **variables: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run the command on a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [COMMAND, "status", *words],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env=TERMINAL | {"COLUMNS": "100", "LINES": "30"} | variables,
    )
    os.close(theirs)
    try:
        with watched(process):
            yield process, ours
    finally:
        os.close(ours)


def _read_until(terminal: int, text: str | None, seen: str = "") -> str:
    """Read until the text has come, or to the end."""
    data = seen.encode()
    while text is None or text.encode() not in data:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # Linux reports EIO when the other side of a terminal is closed
            piece = b""
        if not piece:
            assert text is None, data
            break
        data += piece
    return data.decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_terminal_is_redrawn_until_the_end_and_restored(number: int, site: Site) -> None:
    site.pages["/health"] = Page(b"{}")
    site.pages["/page/api/state"] = Page(_state(models=[{"id": "m", "state": "loading"}]))
    with _on_terminal(site.url(""), "--watch", "100ms") as (process, terminal):
        seen = _read_until(terminal, "loading")
        assert seen.startswith("\x1b[?1049h\x1b[?25l")
        assert "\x1b[33mloading" in seen
        site.pages["/page/api/state"] = Page(b"", status=502)
        _read_until(terminal, f"the server at {site.url('')} answers with status 502")
        site.pages["/page/api/state"] = Page(_state(models=[{"id": "m", "state": "ready"}]))
        _read_until(terminal, "\x1b[32mready")
        process.send_signal(number)
        last = _read_until(terminal, None)
        assert process.wait() == ExitCode.OK
    _, _, after = last.rpartition("\x1b[?25h\x1b[?1049l")
    assert after.splitlines()[-1].split() == ["m", "\x1b[32mready\x1b[0m", "0", "0/0", "0/0"]


def test_a_terminal_shows_a_real_server_live(server: Running) -> None:
    with _on_terminal(server.url, NO_COLOR="1", WELLDONE_API_KEY=KEY) as (process, terminal):
        seen = _read_until(terminal, "every 2 s; Ctrl-C ends it")
        process.send_signal(signal.SIGINT)
        _read_until(terminal, None)
        assert process.wait() == ExitCode.OK
    assert "all recent requests failed" in seen
    assert "\x1b[3" not in seen


@pytest.mark.parametrize(("words", "variables"), [(["--once"], {}), ([], {"TERM": "dumb"})])
def test_once_leaves_the_terminal_as_it_is(words: list[str], variables: dict[str, str], site: Site) -> None:
    site.pages["/health"] = Page(b"{}")
    site.pages["/page/api/state"] = Page(_state())
    with _on_terminal(site.url(""), *words, NO_COLOR="1", **variables) as (process, terminal):
        assert _read_until(terminal, None) == f"ready  welldone 9.9 at {site.url('')}, up 5 s\r\n"
        assert process.wait() == ExitCode.OK


@pytest.mark.parametrize("is_json", [True, False])
def test_a_pipe_gets_one_state_after_the_other(is_json: bool, site: Site) -> None:
    site.pages["/health"] = Page(b"{}")
    site.pages["/page/api/state"] = Page(_state())
    words = ["status", site.url(""), "--watch", "100ms", *(["--json"] if is_json else [])]
    process = subprocess.Popen([COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT)
    with watched(process):
        assert process.stdout is not None
        lines = [process.stdout.readline().decode() for _ in range(3)]
        site.pages["/page/api/state"] = Page(b"", status=500)
        assert process.stderr is not None
        assert b"status 500" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait() == ExitCode.OK
    if is_json:
        assert {json.loads(line)["server_version"] for line in lines} == {"9.9"}
    else:
        assert lines == [lines[0], "\n", lines[0]]


# TLS.


@pytest.mark.tier2
def test_a_certificate_that_is_not_trusted_is_named_with_an_option(tmp_path: Path, here: Run) -> None:
    pair = make_pair(tmp_path)
    options = ["--ssl-cert-file", str(pair.certificate), "--ssl-key-file", str(pair.key)]
    with upstream() as backend, gateway(tmp_path, backend.url, options=options) as running:
        for words in (["status", running.url], ["reload", "--url", running.url], ["models", "--url", running.url]):
            ran = here(*words, "--api-key", KEY)
            assert ran.code == ExitCode.UNREACHABLE
            assert ran.notes.endswith("if it is yours, name its file with --ca-file\n")
            ran = here(*words, "--api-key", KEY, "--ca-file", str(pair.certificate))
            assert (ran.code, ran.notes) == (ExitCode.OK, "")
