"""What an engine is told before it starts."""

import os
from pathlib import Path

import msgspec
import pytest

from welldone.config import builtin_model
from welldone.config.model import ModelSettings
from welldone.engines.engine_config import EngineConfig
from welldone.engines.errors import EngineError
from welldone.engines.plan import DEFAULT_CONTEXT_LIMIT, LaunchPlan, make_plan

SOCKETS = Path("/s")


def plan(
    settings: ModelSettings, environment: dict[str, str] | None = None, models: Path = Path("nowhere")
) -> LaunchPlan:
    return make_plan(settings, models_folder=models, socket_folder=SOCKETS, environment=environment or {})


def orders(settings: ModelSettings) -> EngineConfig:
    return msgspec.json.decode(plan(settings).config_line, type=EngineConfig)


@pytest.mark.parametrize(("asked", "got"), [(0, 4096), (512, 512), (1_000_000, 1_000_000)])
def test_the_context_is_the_models_own_unless_asked(tiny_model: Path, asked: int, got: int) -> None:
    told = orders(ModelSettings(name="m", file=tiny_model, ctx_size=asked))
    assert told.ctx_size == got if asked else told.ctx_size <= DEFAULT_CONTEXT_LIMIT


def test_threads_do_not_spin_unless_the_user_wants_that(tiny_model: Path) -> None:
    settings = ModelSettings(name="m", file=tiny_model)
    assert plan(settings).environment["OMP_WAIT_POLICY"] == "passive"
    assert plan(settings, {"OMP_WAIT_POLICY": "active"}).environment["OMP_WAIT_POLICY"] == "active"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "canary") for name in ("WELLDONE_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS", "db_password")),
        *((name, "canary") for name in ("CREDENTIALS", "SSH_AUTH_SOCK", "SENTRY_DSN", "GITHUB_PAT")),
        ("DATABASE_URL", "postgres://user:canary@db.example/all"),
        ("HTTPS_PROXY", "http://user:canary@proxy.example:3128"),
    ],
)
def test_our_own_engine_is_told_no_secret_of_the_environment(tiny_model: Path, name: str, value: str) -> None:
    made = plan(ModelSettings(name="m", file=tiny_model), {name: value, "PATH": "/bin"})
    assert name not in made.environment
    assert made.environment["PATH"] == "/bin"


def test_each_start_has_a_place_and_a_key_of_its_own(tiny_model: Path) -> None:
    settings = ModelSettings(name="m", file=tiny_model)
    one, two = plan(settings).address, plan(settings).address
    assert one.socket != two.socket
    assert one.key != two.key
    assert orders(settings).parent_pid == os.getpid()


def test_the_default_model_has_our_template_and_others_have_their_own(default_model: Path, tiny_model: Path) -> None:
    template = orders(ModelSettings(name="m", file=default_model)).chat_template
    assert template is not None
    assert "<tools>" in template
    assert orders(ModelSettings(name="m", file=default_model, chat_template="chatml")).chat_template == "chatml"
    assert orders(ModelSettings(name="m", file=tiny_model)).chat_template is None


def test_the_built_in_model_is_found_by_its_name(tmp_path: Path, default_model: Path) -> None:
    (tmp_path / builtin_model.DEFAULT_MODEL.file_name).symlink_to(default_model)
    for file in (None, Path("default"), Path(builtin_model.DEFAULT_MODEL.name)):
        found = plan(ModelSettings(name="m", file=file), models=tmp_path)
        assert builtin_model.DEFAULT_MODEL.file_name.encode() in found.config_line


def test_a_template_comes_from_a_file(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "my.jinja"
    path.write_text("{{ 'ä' }}", encoding="utf-8")
    assert orders(ModelSettings(name="m", file=tiny_model, chat_template_file=path)).chat_template == "{{ 'ä' }}"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"chat_template_file": Path("/somewhere/lost.jinja")}, "chat template lost.jinja cannot be read"),
        ({"tensor_split": ("3", "x")}, "tensor_split"),
    ],
)
def test_settings_that_cannot_work_are_errors(tiny_model: Path, changes: dict[str, object], says: str) -> None:
    with pytest.raises(EngineError, match=says) as caught:
        plan(ModelSettings(name="m", file=tiny_model, **changes))  # type: ignore[arg-type]
    assert caught.value.is_permanent
    assert "/somewhere" not in caught.value.message


def test_a_path_that_is_too_long_for_a_socket_is_an_error(tiny_model: Path) -> None:
    with pytest.raises(EngineError, match="too long a path"):
        make_plan(
            ModelSettings(name="m", file=tiny_model),
            models_folder=SOCKETS,
            socket_folder=Path("/" + "x" * 100),
            environment={},
        )


def test_a_model_for_embeddings_reads_a_text_in_one_go(tiny_embedding_model: Path, tiny_model: Path) -> None:
    embedder = orders(ModelSettings(name="m", file=tiny_embedding_model, ctx_size=1024))
    assert (embedder.embeddings, embedder.pooling, embedder.ubatch_size) == (True, None, 1024)
    chat = orders(ModelSettings(name="m", file=tiny_model, ctx_size=1024, embeddings=True))
    assert (chat.embeddings, chat.pooling) == (True, "mean")
    assert not orders(ModelSettings(name="m", file=tiny_model)).embeddings


def test_a_command_gets_its_place_and_its_key() -> None:
    settings = ModelSettings(
        name="m", command=("run", "--at={port}"), environment={"AT": "http://127.0.0.1:{port}"}, key="k"
    )
    made = plan(settings, {"HOME": "/h"})
    port = str(made.address.port)
    assert made.arguments[-2:] == ("run", f"--at={port}")
    assert made.environment == {"HOME": "/h", "AT": f"http://127.0.0.1:{port}"}
    assert (made.address.host, made.address.key) == ("127.0.0.1", "k")
    assert "k" not in repr(made).replace("Plan", "")
