"""`welldone serve --check-config`: what it prints, the errors that it finds, and that it starts and changes nothing."""

import socket
from pathlib import Path

import pytest

from tests.cli.run import Run, run
from tests.http.certificates import make_pair
from tests.table import table
from welldone.cli.ui import ExitCode

KEY = "wd-canary-0123456789"
GATEWAY = """
[server]
port = {port}
record = "recorded"
[upstreams.lab]
url = "http://lab.example:8000/v1/canary-in-the-path-of-a-url"
key = "env:LAB_KEY"
models = ["qwen"]
[routes]
chat = "qwen@lab"
[keys.ci]
key = "env:CI_KEY"
[models.own]
command = ["{program}", "--secret", "canary", "--port", "{{port}}"]
"""


def test_a_valid_configuration_is_shown_without_secrets_and_nothing_is_started(tmp_path: Path) -> None:
    (tmp_path / "keys.txt").write_text(f"{KEY}-a\n{KEY}-b\n")
    (tmp_path / "keys.txt").chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as running:  # the server whose configuration is checked
        port = running.getsockname()[1]
        (tmp_path / "welldone.toml").write_text(GATEWAY.format(port=port, program="sh"))
        before = sorted(tmp_path.rglob("*"))
        ran = run(
            *("serve", "--check-config", "--api-key-file", "keys.txt"),
            cwd=tmp_path,
            LAB_KEY=f"{KEY}-lab",
            CI_KEY=f"{KEY}-ci",
        )
    assert (ran.code, ran.notes) == (ExitCode.OK, "")
    assert ran.out.decode().splitlines() == [
        f"the configuration is valid ({tmp_path}/welldone.toml)",
        f"  address   127.0.0.1, port {port}",
        "  model     own  command sh",
        "  upstream  lab  http://lab.example:8000/v1/…, qwen",
        "  routes    chat",
        "  API keys  3",
    ]
    assert sorted(tmp_path.rglob("*")) == before


def test_models_are_shown_with_their_files(tiny_model: Path, tmp_path: Path, here: Run) -> None:
    words = ["serve", "--check-config", "-m", str(tiny_model), "--host", "0.0.0.0"]
    assert here(*words).out.decode().splitlines() == [
        "the configuration is valid",
        "  address   0.0.0.0, port 8000",
        f"  model     tiny  {tiny_model}",
        "  API keys  1, generated at each start",
    ]


def test_a_model_that_the_start_downloads_is_not_downloaded(tmp_path: Path) -> None:
    ran = run("serve", "--check-config", "--no-api-key", "--host", "0.0.0.0", cwd=tmp_path, WELLDONE_HOME=str(tmp_path))
    assert (ran.code, ran.notes) == (ExitCode.OK, "")
    assert "downloaded at the start" in ran.out.decode()
    assert ran.out.decode().endswith(
        "  API keys  0\n  warning   no API key: anyone who reaches this address can use the models\n"
    )
    assert list(tmp_path.iterdir()) == []


ERRORS = {
    "--port http": "--port should be a whole number, not 'http'",
    "--config gone.toml": "cannot read gone.toml: no such file or directory",
    "--config wrong.toml": "wrong.toml: server has no setting 'prot' (did you mean 'port'?)",
    "--config variable.toml": "variable.toml: upstreams.a.key names the environment variable GONE, which is not set",
    "--config ca.toml": "ca.toml: upstreams.a: the CA certificate file cannot be read or contains no certificate",
    "--config route.toml": "route.toml: the route 'x' has the target 'm@b': there is no upstream 'b'",
    "--config command.toml": "command.toml: models.a: cannot find the program no-such-program of its command",
    "-m gone.gguf": (
        "there is no model gone.gguf; welldone models lists those that are there, welldone pull downloads one"
    ),
    "-m empty.gguf": "empty.gguf is truncated within its header; download it again",
    "-m {tiny} --mmproj empty.gguf": "empty.gguf is truncated within its header; download it again (--mmproj)",
    "-m {tiny} --lora gone.gguf": "cannot read gone.gguf (--lora)",
    "-m part-00001-of-00002.gguf": "cannot read part-00002-of-00002.gguf",
    "-m {tiny} --chat-template-file gone": "cannot read gone (--chat-template-file)",
    "-m {tiny} --engine gone": "there is no engine gone; `welldone engine` lists those that are there (--engine)",
    "-m {tiny} -ts 3,x": "model 'tiny': --tensor-split must be numbers, such as 3,1",
    "--upstream http://a/v1 --api-key-file gone": "cannot read the API keys in gone: No such file or directory",
    "--upstream http://a/v1 --keys-file gone": (
        "there is no file gone; welldone keys add NAME --keys-file gone creates it"
    ),
    "--upstream http://a/v1 --ssl-cert-file gone --ssl-key-file empty.gguf": "cannot read gone, which TLS needs",
    "--upstream http://a/v1 --ssl-cert-file empty.gguf --ssl-key-file empty.gguf": (
        "empty.gguf does not hold a certificate in PEM form"
    ),
    "--upstream http://a/v1 --record gone/new": (
        "cannot create the folder gone/new for --record: no such file or directory"
    ),
}
FILES = {
    "wrong.toml": "[server]\nprot = 1\n",
    "variable.toml": "[upstreams.a]\nurl = 'http://a/v1'\nkey = 'env:GONE'\n",
    "ca.toml": "[upstreams.a]\nurl = 'https://a/v1'\nca_file = 'gone.pem'\n",
    "route.toml": "[upstreams.a]\nurl = 'http://a/v1'\n[routes]\nx = 'm@b'\n",
    "command.toml": "[models.a]\ncommand = ['no-such-program', '{port}']\n",
    "empty.gguf": "",
}


@pytest.fixture
def configs(here: Run, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, also of `here`, with wrong configurations."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "part-00001-of-00002.gguf").write_bytes(tiny_model.read_bytes())
    return tmp_path


@table("words", [*ERRORS])
def test_an_error_has_the_text_of_the_start(words: str, configs: Path, tiny_model: Path, here: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:  # so that a start without an error ends as well
        port = str(other.getsockname()[1])
        arguments = ["serve", "--port", port, *words.format(tiny=tiny_model).split()]
        checked = here(*arguments, "--check-config")
        assert (checked.code, checked.out) == (ExitCode.USAGE, b"")
        assert checked.notes.replace(f"{configs}/", "") == f"{ERRORS[words]}\n"
        assert here(*arguments) == checked


def test_all_problems_of_files_and_routes_are_reported_at_once(configs: Path, here: Run) -> None:
    (configs / "all.toml").write_text(
        FILES["route.toml"]
        + FILES["command.toml"]
        + "[models.b]\nfile = 'gone.gguf'\n[server]\napi_key_file = 'gone'\n"
    )
    ran = here("serve", "--check-config", "--config", "all.toml")
    assert (ran.code, ran.out) == (ExitCode.USAGE, b"")
    assert [line.removeprefix("all.toml: ")[:32] for line in ran.notes.splitlines()] == [
        "models.a: cannot find the progra",
        "models.b: there is no model gone",
        "the route 'x' has the target 'm@",
        f"cannot read the API keys in {configs}"[:32],
    ]


@pytest.mark.tier2
def test_a_certificate_and_a_key_that_do_not_belong_together_are_found(tmp_path: Path, here: Run) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = (make_pair(tmp_path / name) for name in ("one", "two"))
    words = ["serve", "--check-config", "--upstream", "http://a/v1", "--ssl-cert-file", str(one.certificate)]
    assert here(*words, "--ssl-key-file", str(one.key)).out.decode().splitlines()[1].endswith(", with TLS")
    ran = here(*words, "--ssl-key-file", str(two.key))
    assert (ran.code, "does not belong to the certificate" in ran.notes) == (ExitCode.USAGE, True)
