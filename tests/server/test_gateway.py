"""Upstreams, routes and named keys, as users write them. What is a key says `canary`: no mistake may show it."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.table import table
from welldone.cli import serve, service
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
    """Settings read in an empty folder, or beside the `welldone.toml` with this text."""

    def read(words: str = "", toml: str | None = None, **environment: str) -> Config:
        if toml is not None:
            (tmp_path / "welldone.toml").write_text(toml)
        return serve.read_serve_config(words.split(), environment, tmp_path)

    return read


def _mistake(read: Read, words: str = "", toml: str | None = None, **environment: str) -> str:
    with pytest.raises(UsageError) as caught:
        read(words, toml, **environment)
    heard = str(caught.value)
    assert "canary" not in heard
    assert heard.isprintable()
    return heard


def test_an_upstream_needs_nothing_but_its_url(read: Read) -> None:
    config = read("--upstream http://127.0.0.1:8080/v1")
    assert config.upstreams == (UpstreamSettings(name="127.0.0.1-8080", url="http://127.0.0.1:8080/v1"),)
    assert (config.models, config.routes, config.keys, config.warnings) == ((), {}, (), ())


@table(
    ("words", "environment", "names"),
    [
        ("--upstream http://lab:8001/v1 --upstream http://lab:8002/v1", {}, ["lab-8001", "lab-8002"]),
        ("--upstream http://lab:8001/v1,https://api.example/v1", {}, ["lab-8001", "api.example"]),
        ("", {"WELLDONE_UPSTREAM": "http://lab/v1,http://[::1]:99/v1"}, ["lab", "localhost-99"]),
        ("--upstream http://lab/v1 --upstream http://lab/v2 --upstream http://lab/v1", {}, ["lab", "lab-2"]),
        ("--upstream http://flag/v1", {"WELLDONE_UPSTREAM": "http://variable/v1"}, ["flag"]),
    ],
)
def test_upstreams_are_named_after_their_hosts(
    words: str, environment: dict[str, str], names: list[str], read: Read
) -> None:
    assert [upstream.name for upstream in read(words, **environment).upstreams] == names


@pytest.mark.parametrize("url", ["http://lab:8001", "http://lab:8001/"])
def test_a_url_without_a_path_is_asked_where_most_servers_have_their_api(url: str, read: Read) -> None:
    config = read(f"--upstream {url}")
    assert config.upstreams[0].url == "http://lab:8001/v1"
    assert config.warnings == (f"--upstream: {url} has no path, so it is asked at /v1",)
    (upstream,) = read("", f"[upstreams.lab]\nurl = '{url}'").upstreams
    assert upstream.url == "http://lab:8001/v1"


def test_the_key_of_the_command_line_goes_to_its_upstreams_and_to_no_other(read: Read) -> None:
    words = "--upstream http://a/v1 --upstream http://b/v1 --upstream-key env:UP"
    config = read(words, LAB, UP=KEY)
    assert {upstream.name: upstream.key for upstream in config.upstreams} == {"a": KEY, "b": KEY, "lab": None}


def test_a_key_of_openai_in_the_environment_is_not_taken_unasked(read: Read) -> None:
    (upstream,) = read("--upstream https://api.openai.com/v1", OPENAI_API_KEY=KEY).upstreams
    assert upstream.key is None


def test_an_upstream_of_the_file_has_all_settings(read: Read, tmp_path: Path) -> None:
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
            stream=False,
            n="each",
            strict=("fin-always-sent",),
            sticky="key",
            probe_s=0.0,
            health="/health",
            insecure=True,
        ),
    )


def test_strict_may_be_all_rules(read: Read) -> None:
    assert read("", LAB + "strict = true").upstreams[0].strict == ("all",)


def test_models_of_this_machine_and_upstreams_are_served_together(read: Read) -> None:
    config = read("--upstream http://other:1/v1", LAB + "[models.small]\nfile = 'default'")
    assert [upstream.name for upstream in config.upstreams] == ["other-1", "lab"]
    assert [model.name for model in config.models] == ["small"]
    assert [model.name for model in read("-m default").models] == [DEFAULT_MODEL.name]


def test_settings_of_models_are_said_to_be_unused_where_there_are_none(read: Read) -> None:
    said = "-c, --temp: unused, for there are only upstreams; name a model with -m"
    assert read("-c 99 --temp 1 --upstream http://lab/v1").warnings == (said,)
    assert read("-c 99 -m default --upstream http://lab/v1").warnings == ()


def test_a_name_that_is_made_is_none_that_the_file_has(read: Read) -> None:
    config = read("--upstream http://lab/v1", LAB)
    assert [(upstream.name, upstream.url) for upstream in config.upstreams] == [
        ("lab-2", "http://lab/v1"),
        ("lab", "http://lab:8000/v1"),
    ]


def test_routes_have_one_target_or_several(read: Read) -> None:
    toml = LAB + '[routes]\n"gpt-4o" = "qwen@lab"\n"gpt-*" = ["@lab", "b"]'
    assert read("", toml).routes == {"gpt-4o": ("qwen@lab",), "gpt-*": ("@lab", "b")}


def test_keys_have_names_models_and_rates(read: Read) -> None:
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
    ("words", "said"),
    [
        ("--upstream lab:8000", "--upstream: 'lab:8000' is no URL; did you mean http://lab:8000/v1?"),
        ("--upstream localhost", "--upstream: 'localhost' is no URL; did you mean http://localhost/v1?"),
        ("--upstream lab.example/", "--upstream: 'lab.example/' is no URL; did you mean http://lab.example/v1?"),
        ("--upstream 10.0.0.1:80/api", "--upstream: '10.0.0.1:80/api' is no URL; did you mean http://10.0.0.1:80/api?"),
        ("--upstream me:canary@lab:8000", "--upstream: a URL begins with http:// or https://"),
        ("--upstream canary-sk-1", "--upstream: a URL begins with http:// or https://"),
        ("--upstream ftp://lab:8000", "--upstream: a URL begins with http:// or https://"),
        ("--upstream=", "--upstream should be a URL, and it is empty: is the variable set that it should come from?"),
        ("--upstream=http://lab/v1 --upstream=", "--upstream should be a URL, and it is empty"),
        ("--upstream=http://lab/v1,", "--upstream should be a URL, and it is empty"),
        ("--upstream http://x:99999/v1", "--upstream: the port of a URL is a number from 1 to 65535"),
        ("--upstream http://me:canary@lab/v1", "--upstream: a URL has no user and no password: give the key"),
        ("--upstream http://lab/v1?key=canary", "--upstream: the URL of a server has no query and no fragment"),
        ("--upstream http://lab/v1/chat/completions", "--upstream: write the address up to where the API begins"),
        ("--upstream http://lab/v1/messages", "--upstream: write the address up to where the API begins"),
        ("--upstream http://127.0.0.1:8000/v1", "--upstream is where this server would listen: choose another port"),
        ("--host 0.0.0.0 --upstream http://localhost:8000/v1", "--upstream is where this server would listen"),
        ("--upstream-key canary-1", "--upstream-key is for the servers of --upstream, and there are none"),
        ("--upstream http://lab/v1 --upstream-key canary-ä", "--upstream: "),
        ("--upstream http://lab/v1 --upstream-key -canary", "a key that begins with - is written --upstream-key=KEY"),
        ("--upstream http://lab/v1 --upstream-key env:GONE", "--upstream-key names the environment variable GONE"),
        ("--workers 2", "--workers is for a server that has upstreams and no model of its own: leave it out"),
        ("--workers 2 --upstream http://lab/v1 -m default", "--workers is for a server that has upstreams and no "),
        ("--workers 0 --upstream http://lab/v1", "--workers should be at least 1, not '0'"),
        ("--reasoning-field x", "--reasoning-field should be one of auto, reasoning_content, reasoning, both"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(words: str, said: str, read: Read) -> None:
    assert _mistake(read, words).startswith(said)


@table(
    ("toml", "said"),
    [
        ("[upstream.lab]", "welldone.toml has no table 'upstream' (did you mean 'upstreams'?): write "),
        ("[upstreams]\nlab = 'http://canary'", "welldone.toml: upstreams.lab should be a table"),
        ("[upstreams.lab]", 'welldone.toml: upstreams.lab needs a url, such as url = "http://HOST:8000/v1"'),
        (
            "[upstreams.'a b']\nurl = 'http://a'",
            "welldone.toml: upstreams: a name has 1 to 64 letters, digits, dots, - and _, and 'a b' has not",
        ),
        ('[upstreams."a\\n"]\nurl = 1', "welldone.toml: upstreams: a name has 1 to 64 letters"),
        (LAB + "modles = []", "welldone.toml: upstreams.lab has no setting 'modles' (did you mean 'models'?)"),
        (LAB + "kye = 'canary'", "welldone.toml: upstreams.lab has no setting 'kye' (did you mean 'key'?)"),
        (LAB + "key = ['canary']", "welldone.toml: upstreams.lab.key should be text that is not empty"),
        (LAB + "key = 'a canary'", "welldone.toml: upstreams.lab: its key has a blank or a character that "),
        (LAB + "weight = 0", "welldone.toml: upstreams.lab.weight should be at least 0.01, not '0'"),
        (LAB + "n = 2", "welldone.toml: upstreams.lab.n should be one of auto, native, each, not '2'"),
        (LAB + "probe_s = -1", "welldone.toml: upstreams.lab.probe_s should be 0, or at least 1, not '-1'"),
        (LAB + "health = 'http://x/y'", "welldone.toml: upstreams.lab.health: a path begins with /"),
        (LAB + "health = '/a b'", "welldone.toml: upstreams.lab.health: a path begins with /"),
        (LAB + "n = 'all'", "welldone.toml: upstreams.lab.n should be one of auto, native, each, not "),
        (LAB + "headers = {Host = 'canary'}", "welldone.toml: upstreams.lab: the header Host is not for settings"),
        (LAB + 'headers = {X-A = "canary\\n"}', "welldone.toml: upstreams.lab: the value of the header X-A has"),
        (LAB + "headers = {X-A = ['canary']}", "welldone.toml: upstreams.lab.headers should be a table of plain"),
        (
            LAB + "key = 'canary'\nheaders = {authorization = 'canary'}",
            "welldone.toml: upstreams.lab: there is a key and also a header Authorization",
        ),
        (LAB + "models = ['']", "welldone.toml: upstreams.lab.models should be a list of texts"),
        (LAB + "models = [' a']", "welldone.toml: upstreams.lab.models: the name of a model has 1 to 128 visible"),
        (
            LAB + "strict = ['fin-alway-sent']",
            "welldone.toml: upstreams.lab.strict: there is no rule 'fin-alway-sent' (did you mean 'fin-always-sent'?)",
        ),
        (LAB + "ca_file = 'gone.pem'", "welldone.toml: upstreams.lab: a file of certificates needs a URL with https"),
        (
            "[upstreams.lab]\nurl = 'https://lab/v1'\nca_file = 'gone.pem'",
            "welldone.toml: upstreams.lab: the file of certificates cannot be read, or has none",
        ),
        (
            LAB + "models = ['a']\n[models.a]\nfile = 'default'",
            "welldone.toml: upstreams.lab.models: 'a' is the name of a model of this machine too: rename one of them",
        ),
        (
            "[models.b]\nfile = 'default'\naliases = ['a']\n[routes]\na = 'b'",
            "welldone.toml: routes: 'a' is the name of a model of this machine too: rename one of them",
        ),
        ("[routes]\ngpt-4.1 = 'm'", "welldone.toml: routes: a name with a dot needs quotes: 'gpt-4.1' = 'MODEL'"),
        ("[routes]\na.b.c = 'm'", "welldone.toml: routes: a name with a dot needs quotes: 'a.b.c' = 'MODEL'"),
        ("[routes]\na = {}", "welldone.toml: routes: a name with a dot needs quotes: 'a' = 'MODEL'"),
        ("[server]\nupstreams = ''", "welldone.toml: server.upstreams should be a URL, and it is empty"),
        ("routes = 1", "welldone.toml: routes should be a table"),
        ("[routes]\na = []", 'welldone.toml: routes.a should be a text such as "qwen-7b@lab", or a list of such'),
        ("[routes]\na = ['b', 1]", "welldone.toml: routes.a should be a text such as"),
        ('[routes]\n"a\\n" = 1', "welldone.toml: routes: the name of a model has 1 to 128 visible characters"),
        ("[keys]\nci = 'canary'", "welldone.toml: keys: each key is a table of its own, such as [keys.ci] with key = "),
        ("[keys]\ncanary = 'ci'", "welldone.toml: keys: each key is a table of its own"),
        ("[keys.'canary key']\nkey = 'a'", "welldone.toml: keys: a name has 1 to 64 letters"),
        ("[keys.ci]", 'welldone.toml: keys.ci needs a key, such as key = "env:MY_KEY"'),
        ("[keys.ci]\nkye = 'canary'", "welldone.toml: keys.ci has no setting 'kye' (did you mean 'key'?)"),
        ("[keys.ci]\nkey = ''", "welldone.toml: keys.ci.key should be text that is not empty"),
        ("[keys.ci]\nkey = ['canary']", "welldone.toml: keys.ci.key should be text that is not empty"),
        ("[keys.ci]\nkey = 'two canary'", "welldone.toml: key 'ci' has a blank or a character that"),
        ("[keys.ci]\nkey = 'env:GONE'", "welldone.toml: keys.ci.key names the environment variable GONE, which is not"),
        ("[keys.anonymous]\nkey = 'canary-01'", "welldone.toml: keys.anonymous: this is what those without a key are"),
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
            "welldone.toml: keys.a: its key is shorter than 8 characters, which others can guess",
        ),
        (
            "[server]\nno_api_key = true\n[keys.a]\nkey = 'canary-01'",
            "--no-api-key is set, and there are keys too: keep one",
        ),
        (
            "[keys.a]\nkey = 'canary-01'\nmodels = [' a']",
            "welldone.toml: keys.a.models: the name of a model has 1 to 128 visible characters",
        ),
        (
            "[keys.a]\nkey = 'canary-01'\nrequests_per_minute = -1",
            "welldone.toml: keys.a.requests_per_minute should be",
        ),
    ],
    ids=lambda value: value[:50],
)
def test_a_mistake_in_the_file_is_one_line_that_says_where(toml: str, said: str, read: Read) -> None:
    assert _mistake(read, "", toml).startswith(said)


def test_a_variable_that_is_empty_is_a_mistake_unless_a_flag_says_more(read: Read) -> None:
    said = "WELLDONE_UPSTREAM should be a URL, and it is empty"
    assert _mistake(read, WELLDONE_UPSTREAM="").startswith(said)
    assert _mistake(read, "", LAB, WELLDONE_UPSTREAM="").startswith(said)
    assert len(read("--upstream http://lab/v1", WELLDONE_UPSTREAM="").upstreams) == 2


def test_secrets_are_in_nothing_that_is_shown(read: Read) -> None:
    toml = f"{LAB}key = '{KEY}-a'\nheaders = {{X-A = 'Bearer {KEY}-b', X-B = '1'}}\n[keys.ci]\nkey = '{KEY}-c'"
    config = read(f"--api-key {KEY}-d --upstream http://b/v1 --upstream-key {KEY}-e", toml)
    assert "canary" not in repr(config)
    public = json.loads(json.dumps(config.as_public()))
    assert "canary" not in json.dumps(public)
    assert (public["upstreams"][1]["url"], public["upstreams"][1]["key"]) == ("http://lab:8000/v1", "set")
    assert public["keys"][0]["name"] == "ci"
    assert set(config.secrets) == {f"{KEY}-{letter}" for letter in "abcde"}


@pytest.mark.parametrize(
    ("route", "said"),
    [
        ("'qwen@lob'", "welldone.toml: the route 'x' leads to 'qwen@lob': there is no upstream 'lob' (did you mean "),
        ("'*'", "welldone.toml: the route 'x' leads to '*': a target is MODEL@UPSTREAM"),
        ("'phi-5'", "welldone.toml: the route 'x' leads to 'phi-5': nobody has a model of this name (did you mean "),
    ],
)
def test_a_route_that_leads_nowhere_is_a_mistake(route: str, said: str, read: Read) -> None:
    fixed = LAB + "models = ['phi-4']\n"
    service.check_routes(read("", fixed + "[routes]\nx = 'qwen@lab'"))
    with pytest.raises(UsageError) as caught:
        service.check_routes(read("", fixed + f"[routes]\nx = {route}"))
    assert str(caught.value).startswith(said)


def test_a_server_with_named_keys_makes_none_up(read: Read, tmp_path: Path) -> None:
    assert service.find_api_keys(read("--host 0.0.0.0", "[keys.ci]\nkey = 'canary-01'")) == ([], None)
    (tmp_path / "keys.txt").write_text("canary-01\n")
    (tmp_path / "keys.txt").chmod(0o600)
    with pytest.raises(UsageError, match="key 'ci' and API key 1 are the same") as caught:
        service.find_api_keys(read("--api-key-file keys.txt"))
    assert "canary" not in str(caught.value)


def test_the_folder_for_records_is_made_for_its_owner_alone(read: Read, tmp_path: Path) -> None:
    config = read("--upstream http://lab/v1 --record tapes")
    service.check_files(config, tmp_path)
    assert (tmp_path / "tapes").stat().st_mode & 0o777 == 0o700
    service.check_files(config, tmp_path)
    (tmp_path / "file").write_text("")
    for folder in ("file", "gone/tapes"):
        with pytest.raises(UsageError, match="which --record names: "):
            service.check_files(read(f"--upstream http://lab/v1 --record {folder}"), tmp_path)


def test_what_the_page_of_the_gateway_shows_is_right(read: Read) -> None:
    shown = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "gateway.md").read_text("utf-8"), re.DOTALL)
    config = read("", "\n".join(shown), CLOUD_KEY=KEY, CI_KEY=f"{KEY}-ci", REDIS_URL="redis://host:6379/0")
    assert config.limits.store == "redis://host:6379/0"
    service.check_routes(config)
    assert [upstream.name for upstream in config.upstreams] == ["lab", "cloud"]
    assert config.routes["*"] == ("qwen-7b@lab",)


def test_the_example_of_the_documents_is_right(tmp_path: Path) -> None:
    environment = {"OPENAI_API_KEY": KEY, "CI_KEY": f"{KEY}-ci", "TEAM_KEY": f"{KEY}-team"}
    config = serve.read_serve_config(
        ["--config", str(ROOT / "docs" / "examples" / "gateway.toml")], environment, tmp_path
    )
    service.check_routes(config)
    assert [upstream.name for upstream in config.upstreams] == ["lab", "gpu-1", "gpu-2", "openai"]
    assert [key.name for key in config.keys] == ["ci", "team"]
    assert (config.models, config.warnings) == ((), ())
