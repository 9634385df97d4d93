"""All settings of the server: command line, environment, welldone.toml."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.config.public_settings import public_config
from tests.table import table
from welldone.cli import serve
from welldone.cli.serve import IGNORED_FLAGS, REFUSED_FLAGS
from welldone.cli.ui import UsageError
from welldone.config.builtin_model import DEFAULT_MODEL
from welldone.config.model import ALL_LAYERS, ModelSettings
from welldone.config.server import Config, ServeSettings
from welldone.server.config import ALL_FIELDS

ROOT = Path(__file__).parents[2]
LLAMA_SERVER = (
    "-m phi-4-Q4_K_M.gguf -c 2048 -ngl 99 -np 1 --cont-batching "
    "--host 0.0.0.0 --port 8000 -fa --alias phi-4 --send-done"
)
TWO = """
[server]
port = 9000
[defaults]
ctx-size = 1024
[defaults.defaults]
top_p = 0.5
[models.small]
file = "default"
aliases = ["s"]
[models.big]
file = "big.gguf"
ctx_size = 4096
[models.big.defaults]
temperature = 0.25
"""

Read = Callable[..., Config]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Read settings in an empty folder, or with this text as `welldone.toml`."""

    def read(words: str = "", toml: str | None = None, **environment: str) -> Config:
        if toml is not None:
            (tmp_path / "welldone.toml").write_text(toml)
        return serve.read_serve_config(words.split(), environment, tmp_path)

    return read


def _error_message(read: Read, words: str = "", toml: str | None = None, **environment: str) -> str:
    with pytest.raises(UsageError) as caught:
        read(words, toml, **environment)
    return str(caught.value)


def test_the_default_is_the_builtin_model_on_loopback(read: Read) -> None:
    config = read()
    assert config.server == ServeSettings()
    assert config.models == (ModelSettings(name=DEFAULT_MODEL.name, aliases=DEFAULT_MODEL.aliases),)
    assert config.warnings == ()


def test_a_llama_server_command_line_works(read: Read) -> None:
    config = read(LLAMA_SERVER)
    assert config.models == (
        ModelSettings(
            name="phi-4",
            file=Path("phi-4-Q4_K_M.gguf"),
            ctx_size=2048,
            gpu_layers=99,
            parallel=1,
            cont_batching=True,
            flash_attn="on",
        ),
    )
    assert config.server == ServeSettings(host="0.0.0.0", port=8000)
    assert config.warnings == ("--send-done is always on",)


@table(
    ("words", "name", "value"),
    [
        ("-fa", "flash_attn", "on"),
        ("-fa off", "flash_attn", "off"),
        ("--flash-attn auto", "flash_attn", "auto"),
        ("-ngl all", "gpu_layers", ALL_LAYERS),
        ("-ngl auto", "gpu_layers", None),
        ("-ngl -1", "gpu_layers", None),
        ("--n-gpu-layers=7", "gpu_layers", 7),
        ("-t 8", "threads", 8),
        ("-t -1", "threads", None),
        ("-tb 2", "threads_batch", 2),
        ("-b 512 -ub 256", "ubatch_size", 256),
        ("-np -1", "parallel", 0),
        ("-nocb", "cont_batching", False),
        ("-nocb -cb", "cont_batching", True),
        ("--no-mmap", "mmap", False),
        ("--mlock", "mlock", True),
        ("--no-jinja", "jinja", False),
        ("--jinja", "jinja", True),
        ("--embedding", "embeddings", True),
        ("--rerank", "reranking", True),
        ("--pooling mean", "pooling", "mean"),
        ("--chat-template chatml", "chat_template", "chatml"),
        ("--reasoning-format deepseek", "reasoning_format", "deepseek"),
        ("", "json_tool_calls", "auto"),
        ("--json-tool-calls", "json_tool_calls", "on"),
        ("--json-tool-calls off", "json_tool_calls", "off"),
        ("-ctk q8_0", "cache_type_k", "q8_0"),
        ("-no-kvu", "kv_unified", False),
        (
            "--spec-type ngram-mod,draft-simple --spec-type ngram-cache",
            "spec_type",
            ("ngram-mod", "draft-simple", "ngram-cache"),
        ),
        ("--draft-n 4 --spec-draft-n-max 8", "draft_max", 8),
        ("-ngld all", "draft_gpu_layers", ALL_LAYERS),
        ("-c 1 -c 2", "ctx_size", 2),
        ("--idle-unload 1.5", "idle_unload_s", 1.5),
        ("--alias a,b --alias c", "aliases", ("b", "c")),
        ("--temp 0.5 --top-k 3", "defaults", {"temperature": 0.5, "top_k": 3}),
        ("-n -1", "defaults", {}),
        ('--chat-template-kwargs {"a":false}', "defaults", {"chat_template_kwargs": {"a": False}}),
    ],
)
def test_flags_of_a_model(words: str, name: str, value: object, read: Read) -> None:
    (model,) = read(words).models
    assert getattr(model, name) == value


@table(
    ("words", "name", "value"),
    [
        ("--port 0", "port", 0),
        ("--api-key 12345678,abcdefgh", "api_keys", ("12345678", "abcdefgh")),
        ("--api-key=-1234567", "api_keys", ("-1234567",)),
        ("--sse-ping-interval 5", "keep_alive_s", 5.0),
        ("--sse-ping-interval -1", "keep_alive_s", 86_400.0),
        ("--slots", "slots", True),
        ("--slots --no-slots", "slots", False),
        ("--no-webui", "no_page", True),
        ("--cors-origins https://a.example,http://b:3000", "cors_origins", ("https://a.example", "http://b:3000")),
        ("--cors-origins *", "cors_origins", ("*",)),
        ("--log-disable", "quiet", True),
        ("--log-format json", "log_format", "json"),
    ],
)
def test_flags_of_the_server(words: str, name: str, value: object, read: Read) -> None:
    assert getattr(read(words).server, name) == value


def test_paths_are_relative_to_their_origin(read: Read, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "a.toml").write_text('[server]\napi_key_file = "keys"\n[models.m]\nfile = "sub/m.gguf"')
    config = read("--config conf/a.toml --lora l.gguf --lora /l2.gguf --mmproj p.gguf")
    assert config.server.config == tmp_path / "conf" / "a.toml"
    assert config.server.api_key_file == tmp_path / "conf" / "keys"
    (model,) = config.models
    assert model.file == tmp_path / "conf" / "sub" / "m.gguf"
    assert model.mmproj == tmp_path / "p.gguf"
    assert model.lora == (str(tmp_path / "l.gguf"), "/l2.gguf")


def test_flags_override_the_environment_which_overrides_the_file(read: Read) -> None:
    environment = {"WELLDONE_PORT": "9001", "WELLDONE_HOST": "localhost"}
    config = read("--port 9002", TWO + "[models.other]\nfile='other'", **environment)
    assert (config.server.port, config.server.host) == (9002, "localhost")
    assert read("").server.port == 9000
    assert {model.ctx_size for model in read("-c 99", WELLDONE_CTX_SIZE="77").models} == {99}
    assert {model.ctx_size for model in read("", WELLDONE_CTX_SIZE="77").models} == {77}


def test_a_file_may_have_several_models_with_common_defaults(read: Read, tmp_path: Path) -> None:
    config = read("", TWO)
    assert config.models == (
        ModelSettings(name="small", aliases=("s",), file=Path("default"), ctx_size=1024, defaults={"top_p": 0.5}),
        ModelSettings(name="big", file=Path("big.gguf"), ctx_size=4096, defaults={"temperature": 0.25, "top_p": 0.5}),
    )
    assert config.server.config == tmp_path / "welldone.toml"


@pytest.mark.parametrize("word", ["small", "s"])
def test_a_model_of_the_file_may_be_served_alone(word: str, read: Read) -> None:
    config = read(f"-m {word} -np 2", TWO)
    (model,) = config.models
    assert (model.name, model.file, model.ctx_size, model.parallel) == ("small", Path("default"), 1024, 2)
    assert config.warnings == ("-m: only this model is served; the other models of welldone.toml are not (1)",)


def test_a_model_of_the_hub_is_named_after_its_repository(read: Read) -> None:
    config = read("-hf owner/repo:Q4_K_M", TWO)
    (model,) = config.models
    assert (model.name, model.hf_repo, model.is_builtin) == ("owner/repo:Q4_K_M", "owner/repo:Q4_K_M", False)
    assert "only this model is served" in config.warnings[0]
    assert read("--hf-repo owner/repo --alias a").models[0].name == "a"
    assert read("", '[models.x]\nhf_repo = "owner/repo"').models[0].name == "x"
    assert read(LLAMA_ARG_HF_REPO="owner/repo").models[0].hf_repo == "owner/repo"


@pytest.mark.parametrize("words", ["-m /other/big.gguf", "-m /other/x.gguf --alias big"])
def test_a_model_file_with_the_name_of_a_table_uses_its_settings(words: str, read: Read) -> None:
    (model,) = read(words, TWO).models
    assert (model.name, model.file, model.ctx_size) == ("big", Path(words.split()[1]), 4096)


def test_another_model_file_uses_only_the_common_defaults(read: Read) -> None:
    (model,) = read("", TWO, LLAMA_ARG_MODEL="/other/x-00001-of-00003.gguf").models
    assert (model.name, model.ctx_size, model.defaults) == ("x", 1024, {"top_p": 0.5})


def test_a_name_with_a_dot_is_not_truncated(read: Read) -> None:
    assert read("-m qwen2.5-0.5b").models[0].name == "qwen2.5-0.5b"


def test_a_command_may_be_the_engine(read: Read) -> None:
    toml = '[models.v]\ncommand = ["vllm", "--port", "{port}"]\nenvironment = {TOKEN = "env:T"}\nkey = "env:T"'
    (model,) = read("", toml, T="canary-secret").models
    assert model.command == ("vllm", "--port", "{port}")
    assert (model.environment, model.key) == ({"TOKEN": "canary-secret"}, "canary-secret")
    assert "canary" not in repr(model)


def test_a_command_may_have_more_slots_than_llama_cpp(read: Read) -> None:
    (model,) = read("", '[models.v]\ncommand = ["vllm", "--port", "{port}"]\nparallel = 1024').models
    assert model.slots == 1024
    assert "llama.cpp has 256 slots at most" in _error_message(read, "-np 257", "")


def test_an_alias_flag_overrides_the_name_of_the_table(read: Read) -> None:
    (model,) = read("--alias new,n", "[models.old]\nfile='default'\naliases=['o']").models
    assert (model.name, model.aliases) == ("new", ("n",))


@table(
    ("words", "expected"),
    [
        ("--prot 1", "welldone serve: unknown option '--prot' (did you mean '--port'?); see welldone serve --help"),
        ("-ctx 1", "welldone serve: unknown option '-ctx' (did you mean '-ctv'?); see welldone serve --help"),
        ("-c2048", "welldone serve: unknown option '-c2048'; see welldone serve --help"),
        (
            "--api-kei=canary",
            "welldone serve: unknown option '--api-kei' (did you mean '--api-key'?); see welldone serve --help",
        ),
        ("model.gguf", "welldone serve: unknown argument 'model.gguf'; see welldone serve --help"),
        ("-c", "welldone serve: argument -c/--ctx-size: expected one argument; see welldone serve --help"),
        ("-c x", "-c should be a whole number, not 'x'"),
        ("-ngl x", "-ngl should be a whole number or auto or all, not 'x'"),
        ("--ctx-size -5", "--ctx-size should be at least 0, not '-5'"),
        ("--port 65536", "--port should be at most 65535, not '65536'"),
        ("-fa maybe", "-fa should be one of on, off, auto, not 'maybe'"),
        (
            "--embeddings --reranking",
            f"model '{DEFAULT_MODEL.name}' cannot have both --embeddings and --reranking: keep one",
        ),
        (
            "--chat-template a --chat-template-file b",
            f"model '{DEFAULT_MODEL.name}' has both --chat-template and --chat-template-file: keep one",
        ),
        ("-ts 3,x", f"model '{DEFAULT_MODEL.name}': --tensor-split must be numbers, such as 3,1"),
        ("--ssl-cert-file a", "TLS needs both --ssl-cert-file and --ssl-key-file"),
        ("--api-key 12345678 --no-api-key", "--no-api-key conflicts with the configured keys: keep one"),
        ("--api-key-file k --no-api-key", "--no-api-key conflicts with the configured keys: keep one"),
        ("--allowed-hosts http://a", re.compile(r"--allowed-hosts: 'http://a' is not a host name: .*")),
        ("--host :: --api-key canary", "--api-key: a key is shorter than 8 characters and can be guessed"),
        ("--api-key canary-ä", "--api-key: API key 1 has a space or a character that an HTTP header cannot contain"),
        ("--api-key -canary-1", "write a key that begins with - as --api-key=KEY"),
        ("--api-key env:NOT_SET", "--api-key names the environment variable NOT_SET, which is not set"),
        (
            "--host /run/a.sock",
            "--host should be one name or address; Unix sockets are not supported",
        ),
        (
            "--cors-origins https://a.example/path",
            "--cors-origins: 'https://a.example/path' is not an origin: write it as https://app.example.org, "
            "or * for all",
        ),
        ("-v -q", "--verbose conflicts with --quiet: keep one"),
        ("--config gone.toml", re.compile(r"cannot read .*/gone\.toml: no such file or directory")),
        ("-hff a.gguf", "-hff is not supported: name the file with -hf OWNER/REPO/FILE.gguf"),
        (
            "-hf repo",
            "--hf-repo: repo is not a repository on the Hub; write OWNER/REPOSITORY:QUANTISATION",
        ),
        ("-hf a/b -m c.gguf", "model 'a/b' has both a file and hf_repo: keep one"),
    ],
)
def test_an_error_on_the_command_line_is_one_line(words: str, expected: str | re.Pattern[str], read: Read) -> None:
    message = _error_message(read, words)
    assert re.fullmatch(expected, message) if isinstance(expected, re.Pattern) else message == expected
    assert "canary" not in message


@table(
    ("toml", "expected"),
    [
        ("[sever]", "no table 'sever' (did you mean 'server'?): write [server], [defaults], [models.NAME], "),
        ("port = 1", "no table 'port': write [server], [defaults], [models.NAME], [upstreams.NAME], [routes], "),
        ("[server]\nprot = 1", "server has no setting 'prot' (did you mean 'port'?)"),
        ("[server]\nport = '1'", "server.port should be a whole number, not '\"1\"'"),
        ("[server]\nport = 70000", "server.port should be at most 65535, not '70000'"),
        ("[server]\nconfig = 'x'", "server has no setting 'config'"),
        ("server = 3", "server should be a table"),
        ("[[models]]\nfile = 'x'", "models should be a table"),
        ("[models]\na = 3", "models.a should be a table"),
        ("[models.a]\nctx_sise = 3", "models.a has no setting 'ctx_sise' (did you mean 'ctx_size'?)"),
        ("[models.a]\nname = 'b'", "models.a has no setting 'name'"),
        ("[models.a]\nctx_size = 3", 'models.a needs a file, such as file = "default", hf_repo or a command'),
        (
            "[models.a.defaults]\ntemprature = 3",
            "models.a.defaults has no setting 'temprature' (did you mean 'temperature'?)",
        ),
        (
            "[models.a]\nfile='x'\n[models.a.defaults]\ntop_p = 3",
            "models.a.defaults.top_p should be at most 1, not '3'",
        ),
        ("[defaults]\nfile = 'x'", "defaults has no setting 'file'"),
        ("[models.a]\nfile='x'\ncommand=['y', '{port}']", "model 'a' has both a file and a command: keep one"),
        ("[models.a]\ncommand=['y']", "model 'a': its command must contain {port} or {socket}"),
        ("[models.a]\nfile='x'\n[models.b]\nfile='y'\naliases=['a']", "models 'a' and 'b' are both named 'a'"),
        ("[models.a]\nfile='x'\nalias='c'\n[models.b]\nfile='y'\nalias='c'", "models 'a' and 'b' are both named 'c'"),
        ('[models."a\\nb"]', "invalid model name 'a\\nb': expected 1 to 128 printable characters"),
        (
            "[models.a]\nfile='x'\naliases=[' ']",
            "invalid model name ' ': expected 1 to 128 printable characters",
        ),
        (
            '[upstreams.a]\nurl = "http://a"\nfinish_reasons = {Finished = "end"}',
            'upstreams.a.finish_reasons should be one of stop, length, tool_calls, content_filter, not \'{"Finished"',
        ),
        ("[server]\napi_key = ['canary', 1]", "server.api_key should be a list of strings"),
        ("[server", "is not TOML: Expected ']' at the end of a table declaration"),
        ("a = " + "[" * 100_000, "is not TOML"),
        ("#" * 2**20 + "#", "is longer than 1,048,576 bytes: is it the right file?"),
    ],
    ids=lambda value: value[:40],
)
def test_an_error_in_the_file_is_one_line(toml: str, expected: str, read: Read) -> None:
    message = _error_message(read, "", toml)
    assert expected in message
    assert message.isprintable()
    assert "canary" not in message


@table(
    ("words", "toml", "expected"),
    [
        ("--port 9000", "[server]\nport = 'http'", "welldone.toml: server.port should be a whole number, not"),
        ("-c 2048", "[defaults]\nctx_size = -5", "welldone.toml: defaults.ctx_size should be at least 0, not"),
        ("-m x.gguf", "[models.y]\nfile = 'y'\nparallel = 'two'", "welldone.toml: models.y.parallel should be"),
        ("--upstream http://a/v1", "[defaults]\nmlock = 1", "welldone.toml: defaults.mlock should be true or false"),
        ("--limits-store redis://a", "[limits]\nstore = 5", "welldone.toml: limits.store should be a non-empty string"),
        (
            "--api-key abcdefgh",
            "[server]\napi_keys = [5]",
            "welldone.toml: server.api_keys should be a list of strings",
        ),
    ],
)
@table("is_flag", [True, False], ids=["flag", "variable"])
def test_an_invalid_value_in_the_file_is_an_error_even_if_overridden(
    words: str, toml: str, expected: str, is_flag: bool, read: Read
) -> None:
    flag, value = words.split()
    variable = next(field.variables[0] for field in ALL_FIELDS if flag in field.setting.flags)
    message = _error_message(read, words, toml) if is_flag else _error_message(read, toml=toml, **{variable: value})
    assert message.startswith(expected)


def test_a_secret_that_is_overridden_need_not_be_in_the_environment(read: Read) -> None:
    config = read("--api-key abcdefgh", "[server]\napi_keys = ['env:NOT_SET_HERE']")
    assert config.server.api_keys == ("abcdefgh",)


def test_a_file_that_is_not_text_is_an_error(read: Read, tmp_path: Path) -> None:
    (tmp_path / "welldone.toml").write_bytes(b"\xff")
    assert _error_message(read).startswith("welldone.toml is not TOML: ")


@pytest.mark.parametrize("words", ["--alias x", "--lora l.gguf", "--mmproj p.gguf"])
def test_settings_of_a_single_model_need_a_single_model(words: str, read: Read) -> None:
    flag = words.split()[0]
    expected = f"{flag} applies to one model, but welldone.toml has 2: choose one with -m NAME"
    assert _error_message(read, words, TWO) == expected
    assert read(f"{words} -m small").models


def test_an_error_names_the_environment_variable(read: Read) -> None:
    assert _error_message(read, WELLDONE_PORT="x") == "WELLDONE_PORT should be a whole number, not 'x'"
    assert _error_message(read, LLAMA_ARG_N_PARALLEL="0") == "LLAMA_ARG_N_PARALLEL should be at least 1, not '0'"


def test_secrets_are_not_in_the_public_settings(read: Read) -> None:
    config = read("--api-key canary-1234", "[models.a]\ncommand = ['x', '{port}', 'canary']\nkey = 'canary'")
    assert config.server.api_keys == ("canary-1234",)
    assert "canary" not in repr(config)
    public = public_config(config)
    assert "canary" not in json.dumps(public)
    assert json.loads(json.dumps(public))["server"]["api_keys"] == "set"


def test_the_public_settings_include_the_cluster(read: Read) -> None:
    config = read(
        "", "[models.a]\ncommand = ['x', '{port}']\n[scale.front]\nport = 80\n[scale.engines.a]\nnum_gpus = 2"
    )
    shown = json.loads(json.dumps(public_config(config)))["scale"]
    assert (shown["front"]["port"], shown["engines"]["a"]["num_gpus"], shown["engine"]["num_gpus"]) == (80, 2, 0)
    assert shown["upscale_delay_s"] == 5


@table("flag", [flag for row in IGNORED_FLAGS for flag in row.flags])
def test_a_flag_without_effect_is_accepted_with_a_warning(flag: str, read: Read) -> None:
    (row,) = (row for row in IGNORED_FLAGS if flag in row.flags)
    value = " 1" if row.metavar.isalpha() else ""
    assert read(f"{flag}{value} --port 1 {flag}{value}").warnings == (f"{flag} {row.help}",)


@table("flag", [flag for row in REFUSED_FLAGS for flag in row.flags])
def test_an_unsupported_flag_is_rejected_with_the_reason(flag: str, read: Read) -> None:
    (row,) = (row for row in REFUSED_FLAGS if flag in row.flags)
    assert _error_message(read, f"{flag}{' 1' if row.metavar.isalpha() else ''}") == f"{flag} {row.help}"


def test_names_flags_keys_and_variables_are_unique() -> None:
    for names in (
        [field.name for field in ALL_FIELDS],
        [key for field in ALL_FIELDS for key in field.keys],
        [name for field in ALL_FIELDS for name in field.variables],
        [*serve.serve_parser().flags()],
    ):
        assert len(names) == len(set(names))


@table("field", ALL_FIELDS, ids=lambda field: field.name)
def test_every_setting_has_a_group_and_documented_help(field: object) -> None:
    assert isinstance(field, type(ALL_FIELDS[0]))
    assert field.setting.group in serve.SETTING_GROUPS
    assert field.setting.help.replace("|", "\\|") in (ROOT / "docs" / "settings.md").read_text("utf-8")


def test_help_fits_a_hundred_columns_and_names_every_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    text = serve.serve_parser().format_help()
    assert max(len(line) for line in text.splitlines()) <= 100
    for field in ALL_FIELDS:
        assert all(flag in text for flag in field.setting.flags)


def test_the_example_in_the_documents_is_valid(tmp_path: Path) -> None:
    config = serve.read_serve_config(["--config", str(ROOT / "docs" / "examples" / "welldone.toml")], {}, tmp_path)
    assert [model.name for model in config.models] == ["small", "phi-4", "embed", "big"]
    assert config.warnings == ()
    assert config.models[0].defaults == {"temperature": 0.2, "max_tokens": 512}
