"""`welldone models`: the table, the JSON, the state from a running server."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.run import CommandResult, Run
from tests.engines import files, web
from tests.engines.web import Page, Site
from welldone.cli.ui import ExitCode
from welldone.config.builtin_model import DEFAULT_MODEL
from welldone.engines.models.store import ModelOrigin, write_origin

TOML = """
[models.small]
file = "own.gguf"
aliases = ["tiny"]

[models.fetched]
file = "a"

[models.gone]
file = "gone.gguf"

[models.other]
command = ["llama-server", "--port", "{port}"]
"""


@pytest.fixture
def closed_port() -> int:
    """A port without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        port: int = made.getsockname()[1]
    return port


@pytest.fixture
def list_models(here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed_port: int) -> Run:
    """Run the command with a models folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WELLDONE_HOME", str(tmp_path))
    monkeypatch.setenv("WELLDONE_PORT", str(closed_port))
    (tmp_path / "models").mkdir()

    def run(*arguments: str) -> CommandResult:
        return here("models", *arguments)

    return run


@pytest.fixture
def site() -> Iterator[Site]:
    """A web server."""
    with web.site() as made:
        yield made


def _models(ran: CommandResult) -> dict[str, dict[str, Any]]:
    shown = json.loads(ran.out)
    assert shown["version"] == 1
    return {model["name"]: model for model in shown["models"]}


def test_the_builtin_model_is_listed_before_it_is_downloaded(list_models: Run, tmp_path: Path) -> None:
    ran = list_models()
    assert (ran.code, ran.notes) == (ExitCode.OK, "")
    assert ran.out.decode().splitlines() == [
        "name                      size  type  parameters  context  state        from",
        "smollm2-135m-instruct  98.4 MB  Q4_1        135M    8,192  not fetched  built-in",
        f"stored in {tmp_path / 'models'}; welldone pull SOURCE downloads more",
    ]


def test_downloaded_models_are_listed_with_their_origin(list_models: Run, tmp_path: Path) -> None:
    path = tmp_path / "models" / "a.gguf"
    path.write_bytes(files.model(3000))
    write_origin(path, ModelOrigin(source="hf:owner/repo/a.gguf", sha256="0" * 64, fetched="2026-01-01T00:00:00+00:00"))
    (tmp_path / "models" / "b.gguf").write_bytes(b"<html>")
    ran = list_models()
    lines = ran.out.decode().splitlines()
    assert lines[2].split() == ["a", "0.0", "MB", "Q4_K_M", "3,000", "2,048", "here", "hf:owner/repo/a.gguf"]
    assert lines[3].split() == ["b", "0.0", "MB", "-", "-", "-", "broken", "file"]
    assert lines[4].startswith("b cannot be served: it is not a GGUF file")
    listed = _models(list_models("--json"))
    assert listed["a"]["path"] == str(path)
    assert [listed[name]["problem"] is None for name in ("a", "b")] == [True, False]


def test_a_downloaded_builtin_model_is_listed_once(list_models: Run, tmp_path: Path) -> None:
    path = tmp_path / "models" / DEFAULT_MODEL.file_name
    path.write_bytes(files.model(10))
    with path.open("ab") as file:
        file.truncate(DEFAULT_MODEL.size_bytes)
    listed = _models(list_models("--json"))
    assert list(listed) == [DEFAULT_MODEL.name]
    assert (listed[DEFAULT_MODEL.name]["state"], listed[DEFAULT_MODEL.name]["source"]) == ("here", "built-in")


@pytest.mark.parametrize("is_named", [True, False])
def test_models_of_the_config_file_are_listed(is_named: bool, list_models: Run, tmp_path: Path) -> None:
    name = "mine.toml" if is_named else "welldone.toml"
    (tmp_path / name).write_text(TOML, "utf-8")
    (tmp_path / "own.gguf").write_bytes(files.model(10))
    (tmp_path / "models" / "a.gguf").write_bytes(files.model(20))
    listed = _models(list_models("--json", *(["--config", name] if is_named else [])))
    assert {model: (row["state"], row["source"]) for model, row in listed.items()} == {
        "small": ("here", name),
        "fetched": ("here", name),
        "gone": ("missing", name),
        "other": ("command", name),
        DEFAULT_MODEL.name: ("not fetched", "built-in"),
    }
    assert listed["small"]["aliases"] == ["tiny"]
    assert listed["fetched"]["parameters"] == 20


UPSTREAMS = """
[upstreams.lab]
url = "http://lab:8000/canary-0123456789/v1"
key = "canary-0123"
"""


def test_upstreams_are_listed_if_no_server_runs(list_models: Run, tmp_path: Path) -> None:
    (tmp_path / "welldone.toml").write_text(UPSTREAMS, "utf-8")
    ran = list_models()
    assert ["lab", "-", "-", "-", "-", "upstream", "http://lab:8000/…/v1"] in [
        line.split() for line in ran.out.decode().splitlines()
    ]
    assert b"canary" not in ran.out + list_models("--json").out


def test_a_running_server_lists_the_models_of_its_upstreams(
    list_models: Run, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "welldone.toml").write_text(UPSTREAMS + '[keys.ci]\nkey = "key-hunter2-ci"', "utf-8")
    monkeypatch.setenv("WELLDONE_PORT", str(site.port))
    _serve(site, {"id": "qwen-7b", "max_model_len": 32_768})
    listed = _models(list_models("--json"))
    assert list(listed) == [DEFAULT_MODEL.name, "qwen-7b"]
    assert (listed["qwen-7b"]["state"], listed["qwen-7b"]["context_length"]) == ("served", 32_768)
    assert site.requests[0].headers["authorization"] == "Bearer key-hunter2-ci"


def test_an_error_in_the_config_file_is_one_line(list_models: Run, tmp_path: Path) -> None:
    (tmp_path / "welldone.toml").write_text("[model.a]\n", "utf-8")
    ran = list_models()
    assert (ran.code, ran.out, ran.notes.count("\n")) == (ExitCode.USAGE, b"", 1)


def _serve(site: Site, *models: dict[str, object]) -> None:
    body = json.dumps({"object": "list", "data": list(models)}).encode()
    site.pages["/v1/models"] = Page(body, headers={"Content-Type": "application/json"})


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_the_state_comes_from_a_running_server(path: str, list_models: Run, site: Site) -> None:
    meta = {"n_params": 10**9, "size": 10**9, "n_ctx_train": 4096}
    _serve(
        site,
        {"id": DEFAULT_MODEL.name, "status": {"value": "loaded"}},
        {"id": "phi-4", "status": {"value": "unloaded"}, "meta": meta, "aliases": ["phi"]},
        {"id": "bare"},
        {"id": 7},
    )
    ran = list_models("--json", "--url", site.url(path), "--api-key", "key-hunter2")
    assert ran.code == ExitCode.OK
    listed = _models(ran)
    assert {name: row["state"] for name, row in listed.items()} == {
        DEFAULT_MODEL.name: "loaded",
        "phi-4": "unloaded",
        "bare": "served",
    }
    assert (listed["phi-4"]["parameters"], listed["phi-4"]["source"]) == (10**9, site.url(path))
    assert site.requests[0].headers["authorization"] == "Bearer key-hunter2"


def test_the_server_of_the_settings_is_queried_with_their_key(
    list_models: Run, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WELLDONE_PORT", str(site.port))
    monkeypatch.setenv("WELLDONE_API_KEY", "key-hunter2-and-more")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    _serve(site, {"id": DEFAULT_MODEL.name, "status": {"value": "loading"}})
    ran = list_models()
    assert " loading " in ran.out.decode()
    assert site.requests[0].headers["authorization"] == "Bearer key-hunter2-and-more"


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (Page(status=401), "requires a key: --api-key"),
        (Page(b"<html>", status=401, cuts=[3]), "requires a key: --api-key"),
        (Page(b"<html>"), "does not list models"),
        (Page(b"{}"), "does not list models"),
        (Page(status=500), "status 500"),
    ],
)
def test_a_server_that_does_not_list_models_is_reported(page: Page, words: str, list_models: Run, site: Site) -> None:
    site.pages["/v1/models"] = page
    ran = list_models("--url", site.url(""))
    assert ran.code == ExitCode.UNREACHABLE
    assert words in ran.notes
    assert DEFAULT_MODEL.name in ran.out.decode()


def test_a_server_that_does_not_answer_is_reported(list_models: Run, closed_port: int) -> None:
    ran = list_models("--url", f"http://127.0.0.1:{closed_port}")
    assert ran.code == ExitCode.UNREACHABLE
    assert "no server answers" in ran.notes


@pytest.mark.parametrize(
    "url", ["nonsense", "ftp://host", "http://", "http://[::1", "http://a b", "http://u:hunter2@h"]
)
def test_an_invalid_url_is_a_usage_error(url: str, list_models: Run) -> None:
    ran = list_models("--url", url)
    assert (ran.code, ran.notes.count("\n")) == (ExitCode.USAGE, 1)
    assert "hunter2" not in ran.notes


def test_control_characters_in_names_are_escaped(list_models: Run, tmp_path: Path, site: Site) -> None:
    (tmp_path / "models" / "a\x1b[2J.gguf").write_bytes(files.model(10))
    _serve(site, {"id": "b\x1b[2J", "status": {"value": "x\x1b[2J"}})
    assert b"\x1b" not in list_models("--url", site.url("")).out
