"""Launch plans of engines."""

import os
from pathlib import Path

import pytest

from welldone.config import builtin_model
from welldone.config.model import ModelSettings
from welldone.engines.cores import Waiting, is_waiting_reported
from welldone.engines.engine_config import EngineConfig
from welldone.engines.errors import EngineError
from welldone.engines.plan import DEFAULT_CONTEXT_LIMIT, LaunchPlan, make_plan

SOCKETS = Path("/s")


def plan(
    settings: ModelSettings,
    environment: dict[str, str] | None = None,
    models: Path = Path("nowhere"),
    *,
    has_contention: bool = False,
) -> LaunchPlan:
    return make_plan(
        settings,
        models_folder=models,
        socket_folder=SOCKETS,
        environment=environment or {},
        has_contention=has_contention,
    )


def engine_config(settings: ModelSettings) -> EngineConfig:
    return EngineConfig.decode(plan(settings).config_line)


@pytest.mark.parametrize(("configured", "expected"), [(0, 4096), (512, 512), (1_000_000, 1_000_000)])
def test_the_context_is_the_models_own_unless_configured(tiny_model: Path, configured: int, expected: int) -> None:
    config = engine_config(ModelSettings(name="m", file=tiny_model, ctx_size=configured)).settings
    assert config.ctx_size == expected if configured else config.ctx_size <= DEFAULT_CONTEXT_LIMIT


def test_the_engine_gets_a_model_with_request_defaults(tiny_model: Path) -> None:
    defaults: dict[str, object] = {"max_tokens": 16, "temperature": 0.5, "stop": ["\n"], "logit_bias": {"7": -1}}
    config = engine_config(ModelSettings(name="m", file=tiny_model, defaults=defaults))
    assert (config.settings.file, config.settings.defaults) == (tiny_model, defaults)


def test_the_environment_says_how_threads_wait(tiny_model: Path) -> None:
    settings = ModelSettings(name="m", file=tiny_model, threads=2)
    found = plan(settings)
    assert found.environment.items() >= found.waiting.variables.items()
    found = plan(settings, has_contention=True)
    assert (found.waiting, found.environment["OMP_WAIT_POLICY"]) == (Waiting.SLEEP, "passive")
    found = plan(settings, {"OMP_WAIT_POLICY": "active"}, has_contention=True)
    assert (found.waiting, found.environment["OMP_WAIT_POLICY"]) == (Waiting.ENVIRONMENT, "active")
    assert "GOMP_SPINCOUNT" not in found.environment  # it would take precedence


def test_threads_spin_for_long_only_where_contention_would_be_noticed(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bool] = []

    def record(*_: object, is_watched: bool, **__: object) -> Waiting:
        calls.append(is_watched)
        return Waiting.SPIN

    monkeypatch.setattr("welldone.engines.plan.thread_waiting", record)
    no_builds = {"WELLDONE_ENGINES": str(tmp_path)}
    assert plan(ModelSettings(name="m", file=tiny_model), no_builds).is_watched is is_waiting_reported()
    assert not plan(ModelSettings(name="m", file=tiny_model, gpu_layers=9), no_builds).is_watched
    assert calls == [is_waiting_reported(), False]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "canary") for name in ("WELLDONE_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS", "db_password")),
        *((name, "canary") for name in ("CREDENTIALS", "SSH_AUTH_SOCK", "SENTRY_DSN", "GITHUB_PAT")),
        ("DATABASE_URL", "postgres://user:canary@db.example/all"),
        ("HTTPS_PROXY", "http://user:canary@proxy.example:3128"),
    ],
)
def test_secrets_of_the_environment_are_not_passed_to_the_engine(tiny_model: Path, name: str, value: str) -> None:
    launch_plan = plan(ModelSettings(name="m", file=tiny_model), {name: value, "PATH": "/bin"})
    assert name not in launch_plan.environment
    assert launch_plan.environment["PATH"] == "/bin"


def test_each_start_has_a_new_socket_and_key(tiny_model: Path) -> None:
    settings = ModelSettings(name="m", file=tiny_model)
    first, second = plan(settings).address, plan(settings).address
    assert first.socket != second.socket
    assert first.key != second.key
    assert engine_config(settings).parent_pid == os.getpid()


def test_only_the_default_model_gets_a_bundled_template(default_model: Path, tiny_model: Path) -> None:
    template = engine_config(ModelSettings(name="m", file=default_model)).settings.chat_template
    assert template is not None
    assert "<tools>" in template
    assert (
        engine_config(ModelSettings(name="m", file=default_model, chat_template="chatml")).settings.chat_template
        == "chatml"
    )
    assert engine_config(ModelSettings(name="m", file=tiny_model)).settings.chat_template is None


def test_the_built_in_model_is_found_by_its_name(tmp_path: Path, default_model: Path) -> None:
    (tmp_path / builtin_model.DEFAULT_MODEL.file_name).symlink_to(default_model)
    for file in (None, Path("default"), Path(builtin_model.DEFAULT_MODEL.name)):
        found = plan(ModelSettings(name="m", file=file), models=tmp_path)
        assert builtin_model.DEFAULT_MODEL.file_name.encode() in found.config_line


def test_a_template_is_read_from_a_file(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "my.jinja"
    path.write_text("{{ 'ä' }}", encoding="utf-8")
    assert (
        engine_config(ModelSettings(name="m", file=tiny_model, chat_template_file=path)).settings.chat_template
        == "{{ 'ä' }}"
    )


def test_a_chat_template_that_is_gone_is_a_permanent_error(tiny_model: Path) -> None:
    with pytest.raises(EngineError, match=r"chat template lost\.jinja cannot be read") as caught:
        plan(ModelSettings(name="m", file=tiny_model, chat_template_file=Path("/somewhere/lost.jinja")))
    assert caught.value.is_permanent
    assert "/somewhere" not in caught.value.message


def test_a_socket_path_that_is_too_long_is_an_error(tiny_model: Path) -> None:
    with pytest.raises(EngineError, match="path of the folder for sockets is too long"):
        make_plan(
            ModelSettings(name="m", file=tiny_model),
            models_folder=SOCKETS,
            socket_folder=Path("/" + "x" * 100),
            environment={},
        )


def test_an_embedding_model_has_a_batch_of_the_whole_context(tiny_embedding_model: Path, tiny_model: Path) -> None:
    embedder = engine_config(ModelSettings(name="m", file=tiny_embedding_model, ctx_size=1024)).settings
    assert (embedder.embeddings, embedder.pooling, embedder.ubatch_size) == (True, None, 1024)
    chat = engine_config(ModelSettings(name="m", file=tiny_model, ctx_size=1024, embeddings=True)).settings
    assert (chat.embeddings, chat.pooling) == (True, "mean")
    assert not engine_config(ModelSettings(name="m", file=tiny_model)).settings.embeddings


def test_the_address_of_a_command_is_filled_in() -> None:
    settings = ModelSettings(
        name="m", command=("run", "--listen={port}"), environment={"ADDRESS": "http://127.0.0.1:{port}"}, key="secret-1"
    )
    launch_plan = plan(settings, {"HOME": "/h"})
    port = str(launch_plan.address.port)
    assert launch_plan.arguments[-2:] == ("run", f"--listen={port}")
    assert launch_plan.environment == {"HOME": "/h", "ADDRESS": f"http://127.0.0.1:{port}"}
    assert (launch_plan.address.host, launch_plan.address.key) == ("127.0.0.1", "secret-1")
    assert "secret-1" not in repr(launch_plan)
