"""The start: what can be wrong is said in a line, and what is right is said in a banner."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.live.faults import ENGINE, LINUX, answer, command_line, engine_of, request, small
from tests.live.raw import CHAT, ask
from tests.live.server import KEY, LIMIT_S, Lines, serving
from welldone.cli.main import run
from welldone.config.builtin_model import DEFAULT_MODEL

pytestmark = pytest.mark.tier3

USAGE, UNREACHABLE = 2, 3


def start(*words: str, environment: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """A start that is expected to end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "welldone", "serve", *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
        check=False,
    )


def mistake(*words: str) -> str:
    """The one line about a start that cannot be."""
    done = start(*words)
    assert (done.returncode, done.stdout) == (USAGE, "")
    (line,) = done.stderr.splitlines()
    return line


def slip(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line about a command line that cannot be followed. Nothing is started, so no program is needed."""
    assert run(["serve", *words]) == USAGE
    heard = capsys.readouterr()
    assert heard.out == ""
    (line,) = heard.err.splitlines()
    return line


def test_a_file_that_is_not_there_is_said_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    line = slip(capsys, "-m", "no-such-model.gguf")
    assert "no-such-model.gguf" in line
    assert "welldone pull" in line


@pytest.mark.parametrize(
    ("flag", "nearest"),
    [("--ctx-sise", "--ctx-size"), ("-nlg", "-ngl")],
)
def test_a_flag_that_nobody_knows_names_the_nearest(
    capsys: pytest.CaptureFixture[str], flag: str, nearest: str
) -> None:
    line = slip(capsys, flag, "1")
    assert flag in line
    assert nearest in line


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--port", "http"], "--port"),
        (["--host", "0.0.0.0", "--api-key", "short"], "key"),
        (["--api-key-file", "no-such-file"], "no-such-file"),
        (["--config", "no-such.toml"], "no-such.toml"),
    ],
)
def test_a_setting_that_cannot_be_is_said_in_a_line(
    capsys: pytest.CaptureFixture[str], tiny_model: Path, words: list[str], part: str
) -> None:
    assert part in slip(capsys, "-m", str(tiny_model), "--port", "0", *words)


@pytest.mark.parametrize("host", ["256.256.256.256", "192.0.2.1"], ids=["no address", "another machine's"])
def test_an_address_that_is_not_ours_is_said_in_a_line(tiny_model: Path, host: str) -> None:
    line = mistake("-m", str(tiny_model), "--port", "0", "--host", host)
    assert host in line
    assert "--host" in line
    assert "--port" not in line


def test_a_port_that_is_taken_is_said_with_what_to_do(tiny_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        line = mistake("-m", str(tiny_model), "--port", port)
    assert line == f"port {port} is already in use by another program; choose another with --port"


@pytest.mark.parametrize("content", [None, "no certificate"], ids=["missing", "broken"])
def test_files_of_tls_that_cannot_be_used_are_named(tiny_model: Path, tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "cert.pem"
    if content is not None:
        file.write_text(content)
    line = mistake("-m", str(tiny_model), "--port", "0", "--ssl-cert-file", str(file), "--ssl-key-file", str(file))
    assert "cert.pem" in line


@pytest.mark.parametrize("size", [0, 3, 1000, None], ids=["empty", "three bytes", "noise", "cut"])
def test_a_file_that_is_no_model_is_said_in_a_line(
    capsys: pytest.CaptureFixture[str], tiny_model: Path, tmp_path: Path, size: int | None
) -> None:
    file = tmp_path / "bad.gguf"
    whole = tiny_model.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] if size is None else b"\xf0\x9f\x92" * (size // 3))
    assert "bad.gguf is " in slip(capsys, "-m", str(file), "--port", "0")


@pytest.mark.parametrize("flag", ["--lora", "--mmproj", "--chat-template-file"])
def test_a_file_beside_the_model_that_is_not_there_is_said_in_a_line(
    capsys: pytest.CaptureFixture[str], tiny_model: Path, flag: str
) -> None:
    line = slip(capsys, "-m", str(tiny_model), "--port", "0", flag, "no-such-file")
    assert "no-such-file" in line
    assert flag in line


@pytest.mark.parametrize(
    ("table", "part"),
    [
        ('file = "gone.gguf"', "there is no model gone.gguf"),
        ('file = "default"\nlora = ["gone"]', "--lora"),
        ('command = ["no-such-program", "{port}"]', "there is no program no-such-program"),
    ],
)
def test_what_a_file_names_and_is_not_there_is_said_with_its_table(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, table: str, part: str
) -> None:
    (tmp_path / "my.toml").write_text(f"[models.mine]\n{table}\n")
    line = slip(capsys, "--config", str(tmp_path / "my.toml"))
    assert line.startswith("my.toml: models.mine: ")
    assert part in line


def test_a_model_that_llama_cpp_cannot_load_ends_the_server_with_its_reason(tiny_model: Path) -> None:
    done = start("-m", str(tiny_model), "--port", "0", "--lora", str(tiny_model))
    assert done.returncode == UNREACHABLE
    assert "cannot be loaded" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


LOADER = "libgomp.so.1: cannot open shared object file: No such file or directory"


@pytest.mark.parametrize(
    ("raised", "parts", "not_in"),
    [
        (
            f"ImportError({LOADER!r})",
            [LOADER, "libgomp.so.1 is missing", "apt-get install libgomp1", "dnf install libgomp", "apk add libgomp"],
            "not installed",
        ),
        ("ImportError('/opt/lib/x.so: undefined symbol: f')", ["(x.so: undefined symbol: f)", "pip install"], "/opt"),
        ("ModuleNotFoundError('No module named numpy', name='numpy')", ["numpy", "pip install"], "not installed"),
        ("ModuleNotFoundError(name='xllamacpp')", ["llama.cpp is not installed: pip install xllamacpp"], "missing"),
    ],
    ids=["no libgomp", "another library", "another module", "not installed"],
)
def test_llama_cpp_that_cannot_be_imported_ends_the_server_with_what_is_missing(
    tiny_model: Path, tmp_path: Path, raised: str, parts: list[str], not_in: str
) -> None:
    (tmp_path / "xllamacpp.py").write_text(f"raise {raised}\n")
    done = start("-m", str(tiny_model), "--port", "0", environment={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == UNREACHABLE
    line = done.stderr.splitlines()[-1]
    assert [part for part in parts if part not in line] == []
    assert not_in not in line
    assert "Traceback" not in done.stderr


def test_a_model_that_cannot_be_loaded_harms_no_other(tiny_model: Path, tmp_path: Path) -> None:
    # A model is no adapter, and only llama.cpp finds that out.
    bad = f'[models.bad]\nfile = "{tiny_model}"\nlora = ["{tiny_model}"]\n'
    tables = f'[models.good]\nfile = "{tiny_model}"\nthreads = 1\n{bad}'
    (tmp_path / "welldone.toml").write_text(tables)
    with serving([], folder=tmp_path, model="bad", is_awaited=False) as server:
        for stream in (False, True):
            reply = ask(server, CHAT, request(server, stream=stream))
            assert reply.status == 503
            assert reply.error()["code"] == "model_unavailable"
            assert str(tmp_path) not in reply.error()["message"]
            assert int(reply.header("retry-after") or 0) >= 1
        failed = server.log.wait(r"the model bad cannot be loaded.* engine=(.*)")
        assert "lora" in failed[1].lower()
        server.model = "good"
        assert answer(server).one.finish == "length"
        server.log.wait("model is ready model=good context=[0-9]+ slots=[0-9]+ load_s=[0-9.]+")


def test_help_shows_the_flags() -> None:
    done = start("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for flag in ("--model", "--ctx-size", "--gpu-layers", "--api-key", "--config", "--drain"):
        assert flag in done.stdout


def test_the_command_line_of_llama_server_works_as_it_is(tiny_model: Path) -> None:
    words = "-c 2048 -ngl 99 -np 1 --cont-batching --host 0.0.0.0 -fa --alias phi-4 --send-done -t 1 -b 512 -ub 256"
    words += " --jinja --no-mmap --metrics --slots --reasoning-format auto"
    with serving(["-m", str(tiny_model), *words.split()], model="phi-4") as server:
        assert "--send-done" in "\n".join(server.log.all)
        assert answer(server).model == "phi-4"
        assert ask(server, "/slots").status == 200


def test_the_second_start_fetches_nothing(default_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / DEFAULT_MODEL.file_name).symlink_to(default_model)
    nowhere = {"WELLDONE_HOME": str(tmp_path), "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_NO_INDEX": "1"}
    with serving([], model=DEFAULT_MODEL.name, environment=nowhere, folder=tmp_path) as server:
        assert server.said.all[0].startswith("welldone ")
        assert DEFAULT_MODEL.name in server.said.all[0]
        assert answer(server, max_tokens=4).model == DEFAULT_MODEL.name
        assert server.end() == 0
        assert "fetching" not in server.log.join()


def test_the_banner_shows_a_line_to_try(tiny_model: Path) -> None:
    with small(tiny_model) as server:
        server.said.wait("end +Ctrl-C")
        banner = "\n".join(server.said.all)
    assert f"curl -N {server.url}/chat/completions" in banner
    assert f"page      {server.root}/" in banner
    assert KEY not in banner


def test_a_short_key_is_enough_for_this_machine(tiny_model: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("short\n")
    keys.chmod(0o600)
    for options in (["--api-key", "short"], ["--api-key-file", str(keys)]):
        with small(tiny_model, *options, key=None) as server:
            assert "shorter than 8 characters" in server.log.all[0]
            assert ask(server, "/v1/models").status == 401
            server.key = "short"
            assert answer(server).one.finish == "length"


def test_a_model_that_comes_and_goes_is_told_of_each_time(tiny_model: Path) -> None:
    with small(tiny_model, "--idle-unload", "0.1") as server:
        server.log.wait("model is unloaded model=tiny")
        seen = len(server.log.all)
        assert answer(server).one.finish == "length"
        server.log.wait("model is ready model=tiny", seen=seen)


@LINUX
@pytest.mark.parametrize(
    "options", [["-ngl", "all"], ["-mg", "1"], ["-ts", "3,1"], ["-sm", "none"]], ids=lambda it: it[0]
)
def test_settings_for_a_gpu_that_is_not_there_are_said_to_do_nothing(tiny_model: Path, options: list[str]) -> None:
    # The package that is installed here for Linux has no part for a GPU.
    with small(tiny_model, *options) as server:
        server.log.wait("warning +this engine has no GPU.* model=tiny")


def test_without_settings_for_a_gpu_nothing_is_said_of_one(tiny_model: Path) -> None:
    with small(tiny_model, "-ngl", "0") as server:
        assert server.end() == 0
        assert "GPU" not in server.log.join()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_well_however_often_it_comes(tiny_model: Path, number: int) -> None:
    with small(tiny_model) as server:
        server.process.send_signal(number)
        while server.process.poll() is None:
            server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
        assert "Traceback" not in server.log.join()


@contextmanager
def started_with(disposition: signal.Handlers) -> Iterator[None]:
    """Children inherit an ignored SIGHUP: nohup starts them that way, others do not."""
    before = signal.signal(signal.SIGHUP, disposition)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@LINUX
@pytest.mark.parametrize("disposition", [signal.SIG_DFL, signal.SIG_IGN], ids=["as usual", "nohup"])
def test_sighup_is_logged_and_ends_neither_the_server_nor_its_engine(
    tiny_model: Path, disposition: signal.Handlers
) -> None:
    with started_with(disposition), small(tiny_model) as server, engine_of(server) as engine:
        os.kill(engine.pid, signal.SIGHUP)
        server.process.send_signal(signal.SIGHUP)
        server.log.wait("info +SIGHUP is ignored")
        assert answer(server).one.finish == "length"
        assert server.end() == 0
        assert "engine died" not in server.log.join()


IN_TERMINAL = "import os, sys; os.setsid(); os.open(sys.argv[1], os.O_RDWR); os.execv(sys.argv[2], sys.argv[2:])"
"""Runs a program with the named terminal as its controlling terminal."""


@LINUX
@pytest.mark.parametrize(
    ("disposition", "is_end"), [(signal.SIG_DFL, True), (signal.SIG_IGN, False)], ids=["as usual", "nohup"]
)
def test_a_terminal_that_closes_ends_its_server_unless_nohup_started_it(
    tiny_model: Path, disposition: signal.Handlers, is_end: bool
) -> None:
    ours, theirs = os.openpty()
    words = [sys.executable, "-m", "welldone", "serve", "-m", str(tiny_model), "--port", "0", "-t", "1"]
    with started_with(disposition):
        process = subprocess.Popen(
            [sys.executable, "-c", IN_TERMINAL, os.ttyname(theirs), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        assert process.stderr is not None
        log = Lines(process.stderr)
        log.wait("model is ready")
        os.close(theirs)
        os.close(ours)
        if not is_end:
            log.wait("SIGHUP is ignored")
            process.terminate()
        assert process.wait(LIMIT_S) == 0
        assert ("SIGHUP is ignored" in log.join()) is not is_end
    finally:
        process.kill()
        process.wait()


@LINUX
@pytest.mark.parametrize("way", ["file", "environment", "other variable"])
def test_no_key_stands_where_it_can_be_read_from_outside(tiny_model: Path, tmp_path: Path, way: str) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n")
    keys.chmod(0o600)
    ways: dict[str, tuple[list[str], dict[str, str]]] = {
        "file": (["--api-key-file", str(keys)], {}),
        "environment": ([], {"WELLDONE_API_KEY": KEY}),
        "other variable": (["--api-key", "env:MY_KEY"], {"MY_KEY": KEY}),
    }
    options, environment = ways[way]
    with small(tiny_model, *options, key=None, environment=environment) as server, engine_of(server) as engine:
        assert ask(server, "/v1/models").status == 401
        server.key = KEY
        assert answer(server).one.finish == "length"
        assert command_line(engine.pid)[-3:] == ["-m", ENGINE, ""]
        told = command_line(server.process.pid) + Path(f"/proc/{engine.pid}/environ").read_text().split("\0")
        assert [word for word in told if KEY in word] == []
