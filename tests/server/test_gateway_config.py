"""Configuration of upstreams, routes and named keys. Keys contain `canary`: no error message may show it."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.config.public_settings import public_config
from tests.table import table
from welldone.cli import config_reader, serve
from welldone.cli.ui import UsageError
from welldone.config.builtin_model import DEFAULT_MODEL
from welldone.config.server import Config, KeySettings
from welldone.config.upstream import UpstreamSettings

ROOT = Path(__file__).parents[2]
LAB = "[upstreams.lab]\nurl = 'http://lab:8000/v1'\n"
KEY = "wd-canary-0123456789"

Read = Callable[..., Config]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Return a function that reads settings in an empty folder, or with this `welldone.toml`."""

    def read(arguments: str = "", toml: str | None = None, **environment: str) -> Config:
        if toml is not None:
            (tmp_path / "welldone.toml").write_text(toml)
        return serve.read_serve_config(arguments.split(), environment, tmp_path)

    return read


def _error_of(read: Read, arguments: str = "", toml: str | None = None, **environment: str) -> str:
    with pytest.raises(UsageError) as caught:
        read(arguments, toml, **environment)
    heard = str(caught.value)
    assert "canary" not in heard
    assert heard.isprintable()
    return heard


def _problems(config: Config, models: Path) -> list[str]:
    return list(config_reader.startup_problems(config, models))


def test_an_upstream_needs_only_a_url(read: Read) -> None:
    config = read("--upstream http://127.0.0.1:8080/v1")
    assert config.upstreams == (UpstreamSettings(name="127.0.0.1-8080", url="http://127.0.0.1:8080/v1"),)
    assert (config.models, config.routes, config.keys, config.warnings) == ((), {}, (), ())


@table(
    ("arguments", "environment", "names"),
    [
        ("--upstream http://lab:8001/v1 --upstream http://lab:8002/v1", {}, ["lab-8001", "lab-8002"]),
        ("--upstream http://lab:8001/v1,https://api.example/v1", {}, ["lab-8001", "api.example"]),
        ("", {"WELLDONE_UPSTREAM": "http://lab/v1,http://[::1]:99/v1"}, ["lab", "localhost-99"]),
        ("--upstream http://lab/v1 --upstream http://lab/v2 --upstream http://lab/v1", {}, ["lab", "lab-2"]),
        ("--upstream http://flag/v1", {"WELLDONE_UPSTREAM": "http://variable/v1"}, ["flag"]),
    ],
)
def test_upstreams_are_named_after_their_hosts(
    arguments: str, environment: dict[str, str], names: list[str], read: Read
) -> None:
    assert [upstream.name for upstream in read(arguments, **environment).upstreams] == names


@pytest.mark.parametrize("url", ["http://lab:8001", "http://lab:8001/"])
def test_a_url_without_a_path_gets_v1(url: str, read: Read) -> None:
    config = read(f"--upstream {url}")
    assert config.upstreams[0].url == "http://lab:8001/v1"
    assert config.warnings == (f"--upstream: {url} has no path; using /v1",)
    (upstream,) = read("", f"[upstreams.lab]\nurl = '{url}'").upstreams
    assert upstream.url == "http://lab:8001/v1"


def test_the_key_of_the_command_line_applies_to_its_upstreams_only(read: Read) -> None:
    arguments = "--upstream http://a/v1 --upstream http://b/v1 --upstream-key env:UP"
    config = read(arguments, LAB, UP=KEY)
    assert {upstream.name: upstream.key for upstream in config.upstreams} == {"a": KEY, "b": KEY, "lab": None}


def test_openai_api_key_is_not_used_by_default(read: Read) -> None:
    (upstream,) = read("--upstream https://api.openai.com/v1", OPENAI_API_KEY=KEY).upstreams
    assert upstream.key is None


def test_all_settings_of_an_upstream_are_read_from_the_file(read: Read, tmp_path: Path) -> None:
    toml = """
    [upstreams.lab]
    url = "https://lab/v1/"
    key = "env:UP"
    headers = { X-Org = "env:ORG", X-Number = 7 }
    models = ["qwen-*", "phi-4"]
    weight = 2
    limit = 8
    first-byte-s = 5
    stream = false
    n = "each"
    strict = ["fin-always-sent"]
    sticky = "key"
    probe_s = 0
    health = "/health"
    insecure = true
    """
    assert read("", toml, UP=KEY, ORG="canary-org").upstreams == (
        UpstreamSettings(
            name="lab",
            url="https://lab/v1",
            key=KEY,
            headers={"X-Org": "canary-org", "X-Number": "7"},
            models=("qwen-*", "phi-4"),
            weight=2.0,
            limit=8,
            first_byte_s=5.0,
            stream="false",
            n="each",
            strict=("fin-always-sent",),
            sticky="key",
            probe_s=0.0,
            health="/health",
            insecure=True,
        ),
    )


def test_strict_may_be_all(read: Read) -> None:
    assert read("", LAB + "strict = true").upstreams[0].strict == ("all",)


def test_stream_may_be_a_bool_or_a_word(read: Read) -> None:
    words = {"stream = true": "true", "stream = false": "false", 'stream = "no-tools"': "no-tools", "": "true"}
    assert {line: read("", LAB + line).upstreams[0].stream for line in words} == words
    assert "should be one of true, false, no-tools, auto" in _error_of(read, "", LAB + 'stream = "tools"')


def test_local_models_and_upstreams_are_served_together(read: Read) -> None:
    config = read("--upstream http://other:1/v1", LAB + "[models.small]\nfile = 'default'")
    assert [upstream.name for upstream in config.upstreams] == ["other-1", "lab"]
    assert [model.name for model in config.models] == ["small"]
    assert [model.name for model in read("-m default").models] == [DEFAULT_MODEL.name]


def test_unused_model_settings_are_reported(read: Read) -> None:
    expected = "-c, --temp: unused, since only upstreams are configured; name a model with -m"
    assert read("-c 99 --temp 1 --upstream http://lab/v1").warnings == (expected,)
    assert read("-c 99 -m default --upstream http://lab/v1").warnings == ()


def test_a_generated_name_does_not_collide_with_the_file(read: Read) -> None:
    config = read("--upstream http://lab/v1", LAB)
    assert [(upstream.name, upstream.url) for upstream in config.upstreams] == [
        ("lab-2", "http://lab/v1"),
        ("lab", "http://lab:8000/v1"),
    ]


def test_a_route_has_one_or_several_targets(read: Read) -> None:
    toml = LAB + '[routes]\n"gpt-4o" = "qwen@lab"\n"gpt-*" = ["@lab", "b"]'
    assert read("", toml).routes == {"gpt-4o": ("qwen@lab",), "gpt-*": ("@lab", "b")}


def test_keys_have_names_models_and_rate_limits(read: Read) -> None:
    toml = """
    [keys.ci]
    key = "env:CI"
    models = ["qwen-*"]
    requests_per_minute = 60
    tokens_per_minute = 0
    [keys.boss]
    key = "wd-canary-boss"
    """
    assert read("--api-key 12345678", toml, CI=KEY).keys == (
        KeySettings(name="ci", key=KEY, models=("qwen-*",), requests_per_minute=60, tokens_per_minute=0),
        KeySettings(name="boss", key="wd-canary-boss"),
    )


@table(
    ("arguments", "expected"),
    [
        ("--upstream lab:8000", "--upstream: 'lab:8000' is not a URL; did you mean http://lab:8000/v1?"),
        ("--upstream localhost", "--upstream: 'localhost' is not a URL; did you mean http://localhost/v1?"),
        ("--upstream lab.example/", "--upstream: 'lab.example/' is not a URL; did you mean http://lab.example/v1?"),
        (
            "--upstream 10.0.0.1:80/api",
            "--upstream: '10.0.0.1:80/api' is not a URL; did you mean http://10.0.0.1:80/api?",
        ),
        ("--upstream me:canary@lab:8000", "--upstream: the URL must start with http:// or https://"),
        ("--upstream canary-sk-1", "--upstream: the URL must start with http:// or https://"),
        ("--upstream ftp://lab:8000", "--upstream: the URL must start with http:// or https://"),
        ("--upstream=", "--upstream should be a URL, but is empty: check the variable that it comes from"),
        ("--upstream=http://lab/v1 --upstream=", "--upstream should be a URL, but is empty"),
        ("--upstream=http://lab/v1,", "--upstream should be a URL, but is empty"),
        ("--upstream http://x:99999/v1", "--upstream: the port in the URL must be a number from 1 to 65535"),
        (
            "--upstream http://me:canary@lab/v1",
            "--upstream: the URL must not contain a user or a password: give the key",
        ),
        ("--upstream http://lab/v1?key=canary", "--upstream: the URL must not have a query or a fragment"),
        ("--upstream http://lab/v1/chat/completions", "--upstream: give the base URL of the API"),
        ("--upstream http://lab/v1/messages", "--upstream: give the base URL of the API"),
        ("--upstream http://127.0.0.1:8000/v1", "--upstream is the address of this server: choose another port"),
        ("--host 0.0.0.0 --upstream http://localhost:8000/v1", "--upstream is the address of this server"),
        ("--upstream-key canary-1", "--upstream-key needs an --upstream"),
        ("--upstream http://lab/v1 --upstream-key canary-ä", "--upstream: "),
        ("--upstream http://lab/v1 --upstream-key -canary", "write a key that begins with - as --upstream-key=KEY"),
        ("--upstream http://lab/v1 --upstream-key env:GONE", "--upstream-key names the environment variable GONE"),
        ("--workers 2", "--workers is not supported with local models: remove it"),
        ("--workers 2 --upstream http://lab/v1 -m default", "--workers is not supported with local models"),
        ("--workers 0 --upstream http://lab/v1", "--workers should be at least 1, not '0'"),
        ("--reasoning-field x", "--reasoning-field should be one of auto, reasoning_content, reasoning, both"),
    ],
)
def test_an_error_on_the_command_line_is_one_line(arguments: str, expected: str, read: Read) -> None:
    assert _error_of(read, arguments).startswith(expected)


@table(
    ("toml", "expected"),
    [
        ("[upstream.lab]", "welldone.toml has no table 'upstream' (did you mean 'upstreams'?): write "),
        ("[upstreams]\nlab = 'http://canary'", "welldone.toml: upstreams.lab should be a table"),
        ("[upstreams.lab]", 'welldone.toml: upstreams.lab needs a url, such as url = "http://HOST:8000/v1"'),
        (
            "[upstreams.lab]\nurl = 'http://lab/v1'\nchat = false",
            'welldone.toml: upstreams.lab: chat = false needs an API that it supports, such as speaks = ["messages"]',
        ),
        (
            "[upstreams.'a b']\nurl = 'http://a'",
            "welldone.toml: upstreams: invalid name 'a b': expected 1 to 64 letters, digits, dots, - and _",
        ),
        ('[upstreams."a\\n"]\nurl = 1', "welldone.toml: upstreams: invalid name 'a\\n': expected 1 to 64 letters"),
        (LAB + "modles = []", "welldone.toml: upstreams.lab has no setting 'modles' (did you mean 'models'?)"),
        (LAB + "kye = 'canary'", "welldone.toml: upstreams.lab has no setting 'kye' (did you mean 'key'?)"),
        (LAB + "key = ['canary']", "welldone.toml: upstreams.lab.key should be a non-empty string"),
        (LAB + "key = 'a canary'", "welldone.toml: upstreams.lab: its key has a space or a character that "),
        (LAB + "weight = 0", "welldone.toml: upstreams.lab.weight should be at least 0.01, not '0'"),
        (LAB + "n = 2", "welldone.toml: upstreams.lab.n should be one of auto, native, each, not '2'"),
        (LAB + "probe_s = -1", "welldone.toml: upstreams.lab.probe_s should be 0, or at least 1, not '-1'"),
        (
            LAB + "health = 'http://x/y'",
            "welldone.toml: upstreams.lab.health: expected an ASCII path that begins with /",
        ),
        (LAB + "health = '/a b'", "welldone.toml: upstreams.lab.health: expected an ASCII path that begins with /"),
        (LAB + "n = 'all'", "welldone.toml: upstreams.lab.n should be one of auto, native, each, not "),
        (LAB + "headers = {Host = 'canary'}", "welldone.toml: upstreams.lab: the header Host cannot be configured"),
        (LAB + 'headers = {X-A = "canary\\n"}', "welldone.toml: upstreams.lab: the value of the header X-A contains"),
        (LAB + "headers = {X-A = ['canary']}", "welldone.toml: upstreams.lab.headers should be a table of plain"),
        (
            LAB + "key = 'canary'\nheaders = {authorization = 'canary'}",
            "welldone.toml: upstreams.lab: both a key and an Authorization header are set",
        ),
        (LAB + "models = ['']", "welldone.toml: upstreams.lab.models should be a list of strings"),
        (LAB + "models = [' a']", "welldone.toml: upstreams.lab.models: invalid model name ' a': expected 1 to 128"),
        (
            LAB + "strict = ['fin-alway-sent']",
            "welldone.toml: upstreams.lab.strict: there is no rule 'fin-alway-sent' (did you mean 'fin-always-sent'?)",
        ),
        (
            LAB + "ca_file = 'gone.pem'",
            "welldone.toml: upstreams.lab: a CA certificate file needs a URL that starts with https",
        ),
        (
            "[upstreams.lab]\nurl = 'https://lab/v1'\nca_file = 'gone.pem'",
            "welldone.toml: upstreams.lab: the CA certificate file cannot be read or contains no certificate",
        ),
        (
            LAB + "models = ['a']\n[models.a]\nfile = 'default'",
            "welldone.toml: upstreams.lab.models: 'a' is also the name of a local model: rename one of them",
        ),
        (
            "[models.b]\nfile = 'default'\naliases = ['a']\n[routes]\na = 'b'",
            "welldone.toml: routes: 'a' is also the name of a local model: rename one of them",
        ),
        ("[routes]\ngpt-4.1 = 'm'", "welldone.toml: routes: a name with a dot needs quotes: 'gpt-4.1' = 'MODEL'"),
        ("[routes]\na.b.c = 'm'", "welldone.toml: routes: a name with a dot needs quotes: 'a.b.c' = 'MODEL'"),
        ("[routes]\na = {}", "welldone.toml: routes: a name with a dot needs quotes: 'a' = 'MODEL'"),
        ("[server]\nupstreams = ''", "welldone.toml: server.upstreams should be a URL, but is empty"),
        ("routes = 1", "welldone.toml: routes should be a table"),
        ("[routes]\na = []", 'welldone.toml: routes.a should be a string such as "qwen-7b@lab", or a list of strings'),
        ("[routes]\na = ['b', 1]", "welldone.toml: routes.a should be a string such as"),
        ('[routes]\n"a\\n" = 1', "welldone.toml: routes: invalid model name"),
        ("[keys]\nci = 'canary'", "welldone.toml: keys: each key is a table of its own, such as [keys.ci] with key = "),
        ("[keys]\ncanary = 'ci'", "welldone.toml: keys: each key is a table of its own"),
        ("[keys.'canary key']\nkey = 'a'", "welldone.toml: keys: invalid name: expected 1 to 64 letters"),
        ("[keys.ci]", 'welldone.toml: keys.ci needs a key, such as key = "env:MY_KEY"'),
        ("[keys.ci]\nkye = 'canary'", "welldone.toml: keys.ci has no setting 'kye' (did you mean 'key'?)"),
        ("[keys.ci]\nkey = ''", "welldone.toml: keys.ci.key should be a non-empty string"),
        ("[keys.ci]\nkey = ['canary']", "welldone.toml: keys.ci.key should be a non-empty string"),
        ("[keys.ci]\nkey = 'two canary'", "welldone.toml: key 'ci' has a space or a character that"),
        ("[keys.ci]\nkey = 'env:GONE'", "welldone.toml: keys.ci.key names the environment variable GONE, which is not"),
        (
            "[keys.anonymous]\nkey = 'canary-01'",
            "welldone.toml: keys.anonymous: this name is reserved for requests without a key",
        ),
        (
            "[keys.a]\nkey = 'canary-01'\n[keys.b]\nkey = 'canary-01'",
            "welldone.toml: key 'b' and key 'a' are the same: choose another",
        ),
        (
            "[server]\napi_key = 'canary-01'\n[keys.a]\nkey = 'canary-01'",
            "welldone.toml: key 'a' and API key 1 are the same: choose another",
        ),
        (
            "[server]\nhost = '0.0.0.0'\n[keys.a]\nkey = 'canary'",
            "welldone.toml: keys.a: its key is shorter than 8 characters and can be guessed",
        ),
        (
            "[server]\nno_api_key = true\n[keys.a]\nkey = 'canary-01'",
            "--no-api-key conflicts with the configured keys: keep one",
        ),
        (
            "[keys.a]\nkey = 'canary-01'\nmodels = [' a']",
            "welldone.toml: keys.a.models: invalid model name",
        ),
        (
            "[keys.a]\nkey = 'canary-01'\nrequests_per_minute = -1",
            "welldone.toml: keys.a.requests_per_minute should be",
        ),
    ],
    ids=lambda value: value[:50],
)
def test_an_error_in_the_file_is_one_line_with_its_position(toml: str, expected: str, read: Read) -> None:
    assert _error_of(read, "", toml).startswith(expected)


def test_an_empty_variable_is_an_error_unless_a_flag_overrides_it(read: Read) -> None:
    expected = "WELLDONE_UPSTREAM should be a URL, but is empty"
    assert _error_of(read, WELLDONE_UPSTREAM="").startswith(expected)
    assert _error_of(read, "", LAB, WELLDONE_UPSTREAM="").startswith(expected)
    assert len(read("--upstream http://lab/v1", WELLDONE_UPSTREAM="").upstreams) == 2


def test_secrets_are_never_shown(read: Read) -> None:
    toml = f"{LAB}key = '{KEY}-a'\nheaders = {{X-A = 'Bearer {KEY}-b', X-B = '1'}}\n[keys.ci]\nkey = '{KEY}-c'"
    config = read(f"--api-key {KEY}-d --upstream http://b/v1 --upstream-key {KEY}-e", toml)
    assert "canary" not in repr(config)
    public = json.loads(json.dumps(public_config(config)))
    assert "canary" not in json.dumps(public)
    assert (public["upstreams"][1]["url"], public["upstreams"][1]["key"]) == ("http://lab:8000/v1", "set")
    assert public["keys"][0]["name"] == "ci"
    assert set(config.secrets) == {f"{KEY}-{letter}" for letter in "abcde"}


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        (
            "'qwen@lob'",
            "welldone.toml: the route 'x' has the target 'qwen@lob': there is no upstream 'lob' (did you mean ",
        ),
        ("'*'", "welldone.toml: the route 'x' has the target '*': expected MODEL@UPSTREAM"),
        (
            "'phi-5'",
            "welldone.toml: the route 'x' has the target 'phi-5': no upstream has a model of this name (did you mean ",
        ),
    ],
)
def test_a_route_without_a_valid_target_is_an_error(route: str, expected: str, read: Read) -> None:
    fixed = LAB + "models = ['phi-4']\n"
    assert _problems(read("", fixed + "[routes]\nx = 'qwen@lab'"), Path()) == []
    (problem,) = _problems(read("", fixed + f"[routes]\nx = {route}"), Path())
    assert problem.startswith(expected)


def test_a_server_with_named_keys_generates_no_key(read: Read, tmp_path: Path) -> None:
    assert config_reader.find_api_keys(read("--host 0.0.0.0", "[keys.ci]\nkey = 'canary-01'")) == ([], None)
    (tmp_path / "keys.txt").write_text("canary-01\n")
    (tmp_path / "keys.txt").chmod(0o600)
    with pytest.raises(UsageError, match="key 'ci' and API key 1 are the same") as caught:
        config_reader.find_api_keys(read("--api-key-file keys.txt"))
    assert "canary" not in str(caught.value)


def test_the_recording_folder_is_checked_and_not_created(read: Read, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "there").mkdir()
    for folder, problem in {
        "new": [],
        "there": [],
        "file": [f"cannot create the folder {tmp_path}/file for --record: file exists"],
        "gone/new": [f"cannot create the folder {tmp_path}/gone/new for --record: no such file or directory"],
    }.items():
        assert _problems(read(f"--upstream http://lab/v1 --record {folder}"), tmp_path) == problem
    assert not (tmp_path / "new").exists()


def test_the_example_of_the_gateway_page_is_valid(read: Read) -> None:
    examples = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "gateway.md").read_text("utf-8"), re.DOTALL)
    config = read("", "\n".join(examples), CLOUD_KEY=KEY, CI_KEY=f"{KEY}-ci", REDIS_URL="redis://host:6379/0")
    assert config.limits.store == "redis://host:6379/0"
    assert _problems(config, Path()) == []
    assert [upstream.name for upstream in config.upstreams] == ["lab", "cloud", "small", "gpu", "new"]
    assert config.routes["*"] == ("qwen-7b@lab",)


def test_the_example_of_the_docs_is_valid(tmp_path: Path) -> None:
    environment = {"OPENAI_API_KEY": KEY, "CI_KEY": f"{KEY}-ci", "TEAM_KEY": f"{KEY}-team"}
    config = serve.read_serve_config(
        ["--config", str(ROOT / "docs" / "examples" / "gateway.toml")], environment, tmp_path
    )
    assert _problems(config, Path()) == []
    assert [upstream.name for upstream in config.upstreams] == ["lab", "gpu-1", "gpu-2", "openai"]
    assert [key.name for key in config.keys] == ["ci", "team"]
    assert (config.models, config.warnings) == ((), ())
