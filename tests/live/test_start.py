"""Server start: errors in one line, the banner, warnings, signals and keys."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.faults import ENGINE, LINUX, chat_body, chat_once, command_line, engine_of, small_server
from tests.support.raw import CHAT, fetch
from tests.support.server import KEY, LIMIT_S, Lines, serving
from welldone.cli.main import run
from welldone.config.builtin_model import DEFAULT_MODEL
from welldone.config.settings import install_advice

pytestmark = pytest.mark.tier3

USAGE, UNREACHABLE = 2, 3


def start(*arguments: str, environment: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """Run `welldone serve` with options that make it exit by itself."""
    return subprocess.run(
        [sys.executable, "-m", "welldone", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
        check=False,
    )


def start_error(*arguments: str) -> str:
    """The one-line error of a start that fails."""
    done = start(*arguments)
    assert (done.returncode, done.stdout) == (USAGE, "")
    (line,) = done.stderr.splitlines()
    return line


def usage_error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one-line error of an invalid command line. Nothing is started, so it runs in this process."""
    assert run(["serve", *arguments]) == USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def test_a_missing_model_file_is_reported_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    line = usage_error(capsys, "-m", "no-such-model.gguf")
    assert "no-such-model.gguf" in line
    assert "welldone pull" in line


@pytest.mark.parametrize(
    ("flag", "nearest"),
    [("--ctx-sise", "--ctx-size"), ("-nlg", "-ngl")],
)
def test_an_unknown_flag_suggests_the_nearest(capsys: pytest.CaptureFixture[str], flag: str, nearest: str) -> None:
    line = usage_error(capsys, flag, "1")
    assert flag in line
    assert nearest in line


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--port", "http"], "--port"),
        (["--host", "0.0.0.0", "--api-key", "short"], "key"),
        (["--api-key-file", "no-such-file"], "no-such-file"),
        (["--config", "no-such.toml"], "no-such.toml"),
    ],
)
def test_an_invalid_setting_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], tiny_model: Path, arguments: list[str], part: str
) -> None:
    assert part in usage_error(capsys, "-m", str(tiny_model), "--port", "0", *arguments)


@pytest.mark.parametrize("host", ["256.256.256.256", "192.0.2.1"], ids=["not an address", "of another machine"])
def test_a_host_that_cannot_be_bound_is_reported_in_one_line(tiny_model: Path, host: str) -> None:
    line = start_error("-m", str(tiny_model), "--port", "0", "--host", host)
    assert host in line
    assert "--host" in line
    assert "--port" not in line


def test_a_port_in_use_is_reported_with_a_hint(tiny_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        line = start_error("-m", str(tiny_model), "--port", port)
    assert line == f"port {port} is already in use by another program; choose another with --port"


@pytest.mark.parametrize("content", [None, "no certificate"], ids=["missing", "broken"])
def test_an_unusable_tls_file_is_named(tiny_model: Path, tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "cert.pem"
    if content is not None:
        file.write_text(content)
    line = start_error("-m", str(tiny_model), "--port", "0", "--ssl-cert-file", str(file), "--ssl-key-file", str(file))
    assert "cert.pem" in line


@pytest.mark.parametrize("size", [0, 3, 1000, None], ids=["empty", "three bytes", "noise", "truncated"])
def test_a_file_that_is_not_a_model_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], tiny_model: Path, tmp_path: Path, size: int | None
) -> None:
    file = tmp_path / "bad.gguf"
    data = tiny_model.read_bytes()
    file.write_bytes(data[: len(data) // 2] if size is None else b"\xf0\x9f\x92" * (size // 3))
    assert "bad.gguf is " in usage_error(capsys, "-m", str(file), "--port", "0")


@pytest.mark.parametrize("flag", ["--lora", "--mmproj", "--chat-template-file", "--model-draft"])
def test_a_missing_auxiliary_file_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], tiny_model: Path, flag: str
) -> None:
    line = usage_error(capsys, "-m", str(tiny_model), "--port", "0", flag, "no-such-file")
    assert "no-such-file" in line
    assert flag in line


def test_a_draft_model_of_another_vocabulary_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], tiny_model: Path, default_model: Path
) -> None:
    line = usage_error(capsys, "-m", str(default_model), "--port", "0", "-md", str(tiny_model))
    assert f"its draft model {tiny_model.name} has another vocabulary" in line


@pytest.mark.parametrize(
    ("table", "part"),
    [
        ('file = "gone.gguf"', "there is no model gone.gguf"),
        ('file = "default"\nlora = ["gone"]', "--lora"),
        ('command = ["no-such-program", "{port}"]', "cannot find the program no-such-program"),
    ],
)
def test_a_missing_file_in_the_config_is_reported_with_its_table(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, table: str, part: str
) -> None:
    (tmp_path / "my.toml").write_text(f"[models.mine]\n{table}\n")
    line = usage_error(capsys, "--config", str(tmp_path / "my.toml"))
    assert line.startswith("my.toml: models.mine: ")
    assert part in line


def test_a_model_that_llama_cpp_cannot_load_ends_the_server_with_the_reason(tiny_model: Path) -> None:
    done = start("-m", str(tiny_model), "--port", "0", "--lora", str(tiny_model))
    assert done.returncode == UNREACHABLE
    assert "cannot be loaded" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


LOADER_ERROR = "libgomp.so.1: cannot open shared object file: No such file or directory"


@pytest.mark.parametrize(
    ("raised", "parts", "not_in"),
    [
        (
            f"ImportError({LOADER_ERROR!r})",
            [
                LOADER_ERROR,
                "libgomp.so.1 is missing",
                "apt-get install libgomp1",
                "dnf install libgomp",
                "apk add libgomp",
            ],
            "not installed",
        ),
        ("ImportError('/opt/lib/x.so: undefined symbol: f')", ["(x.so: undefined symbol: f)", "pip install"], "/opt"),
        ("ModuleNotFoundError('No module named numpy', name='numpy')", ["numpy", "pip install"], "not installed"),
        (
            "ModuleNotFoundError(name='xllamacpp')",
            [f"llama.cpp is not installed: {install_advice('serve')}"],
            "missing",
        ),
    ],
    ids=["no libgomp", "another library", "another module", "not installed"],
)
def test_an_import_error_of_llama_cpp_ends_the_server_with_the_missing_package(
    tiny_model: Path, tmp_path: Path, raised: str, parts: list[str], not_in: str
) -> None:
    (tmp_path / "xllamacpp.py").write_text(f"raise {raised}\n")
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    options = ("-m", str(tiny_model), "--port", "0", "--engine", "wheel")
    done = start(*options, environment={"PYTHONPATH": paths})
    assert done.returncode == UNREACHABLE
    line = done.stderr.splitlines()[-1]
    assert [part for part in parts if part not in line] == []
    assert not_in not in line
    assert "Traceback" not in done.stderr


def test_a_model_that_cannot_be_loaded_does_not_affect_others(tiny_model: Path, tmp_path: Path) -> None:
    # A model file is not a LoRA adapter, which only llama.cpp detects.
    bad = f'[models.bad]\nfile = "{tiny_model}"\nlora = ["{tiny_model}"]\n'
    tables = f'[models.good]\nfile = "{tiny_model}"\nthreads = 1\n{bad}'
    (tmp_path / "welldone.toml").write_text(tables)
    with serving([], folder=tmp_path, model="bad", is_awaited=False) as server:
        for stream in (False, True):
            reply = fetch(server, CHAT, chat_body(server, stream=stream))
            assert reply.status == 503
            assert reply.error()["code"] == "model_unavailable"
            assert str(tmp_path) not in reply.error()["message"]
            assert int(reply.header("retry-after") or 0) >= 1
        failed = server.log.wait(r"the model bad cannot be loaded.* engine=(.*)")
        assert "lora" in failed[1].lower()
        server.model = "good"
        assert chat_once(server).choice.finish == "length"
        server.log.wait("model is ready model=good context=[0-9]+ slots=[0-9]+ on=wheel load_s=[0-9.]+")


def test_help_lists_the_flags() -> None:
    done = start("--help")
    assert (done.returncode, done.stderr) == (0, "")
    for flag in ("--model", "--ctx-size", "--gpu-layers", "--api-key", "--config", "--drain"):
        assert flag in done.stdout


def test_a_command_line_of_llama_server_works_unchanged(tiny_model: Path) -> None:
    options = "-c 2048 -ngl 99 -np 1 --cont-batching --host 0.0.0.0 -fa --alias phi-4 --send-done -t 1 -b 512 -ub 256"
    options += " --jinja --no-mmap --metrics --slots --reasoning-format auto"
    with serving(["-m", str(tiny_model), *options.split()], model="phi-4") as server:
        assert "--send-done" in "\n".join(server.log.all)
        assert chat_once(server).model == "phi-4"
        assert fetch(server, "/slots").status == 200


def test_a_second_start_downloads_nothing(default_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / DEFAULT_MODEL.file_name).symlink_to(default_model)
    offline = {"WELLDONE_HOME": str(tmp_path), "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_NO_INDEX": "1"}
    with serving([], model=DEFAULT_MODEL.name, environment=offline, folder=tmp_path) as server:
        assert server.stdout.all[0].startswith("welldone ")
        assert DEFAULT_MODEL.name in server.stdout.all[0]
        assert chat_once(server, max_tokens=4).model == DEFAULT_MODEL.name
        assert server.end() == 0
        assert "fetching" not in server.log.join()


def test_the_banner_shows_an_example_request(tiny_model: Path) -> None:
    with small_server(tiny_model) as server:
        server.stdout.wait("stop +Ctrl-C")
        banner = "\n".join(server.stdout.all)
    assert f"curl -N {server.url}/chat/completions" in banner
    assert f"page      {server.root}/" in banner
    assert KEY not in banner


def test_a_short_key_is_accepted_with_a_warning_on_a_loopback_address(tiny_model: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("short\n")
    keys.chmod(0o600)
    for options in (["--api-key", "short"], ["--api-key-file", str(keys)]):
        with small_server(tiny_model, *options, key=None) as server:
            assert "shorter than 8 characters" in server.log.all[0]
            assert fetch(server, "/v1/models").status == 401
            server.key = "short"
            assert chat_once(server).choice.finish == "length"


def test_each_load_and_unload_of_a_model_is_logged(tiny_model: Path) -> None:
    with small_server(tiny_model, "--idle-unload", "0.1") as server:
        server.log.wait("model is unloaded model=tiny")
        seen = len(server.log.all)
        assert chat_once(server).choice.finish == "length"
        server.log.wait("model is ready model=tiny", seen=seen)


@LINUX
@pytest.mark.parametrize(
    "options", [["-ngl", "all"], ["-mg", "1"], ["-ts", "3,1"], ["-sm", "none"]], ids=lambda it: it[0]
)
def test_gpu_settings_without_gpu_support_cause_a_warning(tiny_model: Path, options: list[str]) -> None:
    # The package of llama.cpp that the tests install on Linux has no GPU support.
    with small_server(tiny_model, *options) as server:
        server.log.wait("warning +this engine has no GPU.* model=tiny")


def test_without_gpu_settings_there_is_no_gpu_warning(tiny_model: Path) -> None:
    with small_server(tiny_model, "-ngl", "0") as server:
        assert server.end() == 0
        assert "GPU" not in server.log.join()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_repeated_signals_end_the_server_with_exit_code_0(tiny_model: Path, number: int) -> None:
    with small_server(tiny_model) as server:
        server.process.send_signal(number)
        while server.process.poll() is None:
            server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
        assert "Traceback" not in server.log.join()


@contextmanager
def started_with(disposition: signal.Handlers) -> Iterator[None]:
    """Set the SIGHUP disposition that child processes inherit; nohup ignores it."""
    before = signal.signal(signal.SIGHUP, disposition)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@LINUX
@pytest.mark.parametrize("disposition", [signal.SIG_DFL, signal.SIG_IGN], ids=["default", "nohup"])
def test_sighup_reads_the_settings_again_and_ends_neither_the_server_nor_its_engine(
    tiny_model: Path, disposition: signal.Handlers
) -> None:
    with started_with(disposition), small_server(tiny_model) as server, engine_of(server) as engine:
        os.kill(engine.pid, signal.SIGHUP)
        server.process.send_signal(signal.SIGHUP)
        server.log.wait("info +the configuration was read again and is unchanged")
        assert chat_once(server).choice.finish == "length"
        assert server.end() == 0
        assert "engine died" not in server.log.join()


IN_TERMINAL = "import os, sys; os.setsid(); os.open(sys.argv[1], os.O_RDWR); os.execv(sys.argv[2], sys.argv[2:])"
"""Runs a program with the named terminal as its controlling terminal."""


@LINUX
@pytest.mark.parametrize(
    ("disposition", "ends"), [(signal.SIG_DFL, True), (signal.SIG_IGN, False)], ids=["default", "nohup"]
)
def test_closing_the_terminal_ends_the_server_unless_started_with_nohup(
    tiny_model: Path, disposition: signal.Handlers, ends: bool
) -> None:
    terminal, child_terminal = os.openpty()
    command = [sys.executable, "-m", "welldone", "serve", "-m", str(tiny_model), "--port", "0", "-t", "1"]
    with started_with(disposition):
        process = subprocess.Popen(
            [sys.executable, "-c", IN_TERMINAL, os.ttyname(child_terminal), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
    try:
        assert process.stderr is not None
        log = Lines(process.stderr)
        log.wait("model is ready")
        os.close(child_terminal)
        os.close(terminal)
        if not ends:
            log.wait("the configuration was read again")
            process.terminate()
        assert process.wait(LIMIT_S) == 0
        assert ("the configuration was read again" in log.join()) is not ends
    finally:
        process.kill()
        process.wait()


@LINUX
@pytest.mark.parametrize("source", ["file", "environment", "other variable"])
def test_no_key_is_visible_in_the_process_list(tiny_model: Path, tmp_path: Path, source: str) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n")
    keys.chmod(0o600)
    sources: dict[str, tuple[list[str], dict[str, str]]] = {
        "file": (["--api-key-file", str(keys)], {}),
        "environment": ([], {"WELLDONE_API_KEY": KEY}),
        "other variable": (["--api-key", "env:MY_KEY"], {"MY_KEY": KEY}),
    }
    options, environment = sources[source]
    with small_server(tiny_model, *options, key=None, environment=environment) as server, engine_of(server) as engine:
        assert fetch(server, "/v1/models").status == 401
        server.key = KEY
        assert chat_once(server).choice.finish == "length"
        assert command_line(engine.pid)[-3:] == ["-m", ENGINE, ""]
        visible = command_line(server.process.pid) + Path(f"/proc/{engine.pid}/environ").read_text().split("\0")
        assert [text for text in visible if KEY in text] == []
