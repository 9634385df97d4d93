"""llama-server as an engine: probed flags, command line, and all promises of the supervisor."""

import asyncio
import os
import signal
import stat
from pathlib import Path

import pytest

from tests.engines import stand_in_server
from tests.engines.supervisors import fetch_reply, run, running_supervisor, short_answer
from welldone.config.model import ModelSettings
from welldone.engines.builds import EngineBuild, write_manifest
from welldone.engines.errors import EngineError
from welldone.engines.llama_server import ServerProgram, probe_server, read_features, server_arguments
from welldone.engines.plan import FALLBACK_NOTE, make_plan
from welldone.engines.supervisor import LocalModel
from welldone.http.address import Address

OLD = ("--load-mode", "--cache-ram", "--no-ui", "--no-kv-unified", "--cors-origins", "--sse-ping-interval", "--offline")
"""Flags that older versions do not have."""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return stand_in_server.install(tmp_path / "llama-server")


def arguments(program: ServerProgram, **settings: object) -> list[str]:
    own = ModelSettings(name="m", file=Path("/m.gguf"), ctx_size=64, parallel=1, **settings)  # type: ignore[arg-type]
    return server_arguments(own, program, ("--host", "/s.sock"), Path("/s.key"), None)


def test_a_program_is_probed_for_its_flags_and_version(program: Path) -> None:
    probed = probe_server(program)
    assert probed.version == stand_in_server.VERSION
    assert probed.has_socket
    assert {"--model", "--no-kv-unified"} <= probed.flags
    assert read_features(program) == ("AVX", "AVX2", "AVX512")


def test_a_program_is_probed_again_when_it_changes(program: Path) -> None:
    assert probe_server(program).version == stand_in_server.VERSION
    stand_in_server.install(program, version=7, without=("--swa-full",))
    assert probe_server(program).version == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#!/bin/sh\necho --model --host\n", "is not a llama-server, or too old"),
        ("#!/bin/sh\nexit 3\n", "--help failed with code 3"),
        ("#!/nowhere\n", "cannot be executed"),
    ],
)
def test_another_program_is_refused(tmp_path: Path, text: str, message: str) -> None:
    other = tmp_path / "other"
    other.write_text(text)
    other.chmod(0o755)
    with pytest.raises(EngineError, match=message) as caught:
        probe_server(other)
    assert caught.value.is_permanent
    assert str(tmp_path) not in caught.value.message


def test_settings_become_flags(program: Path) -> None:
    words = arguments(
        probe_server(program),
        threads=3,
        mlock=True,
        mmap=False,
        warmup=False,
        swa_full=True,
        tensor_split=("3", "1"),
        lora=("a.gguf", "b.gguf"),
        jinja=False,
        cache_reuse=32,
    )
    joined = " ".join(words)
    for part in (
        "--model /m.gguf --alias m --host /s.sock --api-key-file /s.key",
        "--lora a.gguf --lora b.gguf",
        "--ctx-size 64 --predict 64 --parallel 1",
        "--threads 3",
        "--cache-reuse 32",
        "--tensor-split 3,1",
        "--load-mode mlock",
        "--no-warmup --swa-full --no-kv-unified",
        "--no-jinja",
        "--metrics --no-slots --no-ui --offline",
    ):
        assert part in joined
    assert "--gpu-layers" not in words


def test_an_older_program_gets_the_flags_that_it_knows(tmp_path: Path) -> None:
    old = probe_server(stand_in_server.install(tmp_path / "old", without=OLD))
    words = arguments(old, mlock=True)
    assert not set(words) & set(OLD)
    assert "--mlock" in words
    older = probe_server(stand_in_server.install(tmp_path / "older", without=("--swa-full", "--cache-reuse")))
    assert "--cache-reuse" not in arguments(older)
    for setting in ({"swa_full": True}, {"cache_reuse": 8}):
        with pytest.raises(EngineError, match="does not know --"):
            arguments(older, **setting)


def plan_environment(tmp_path: Path) -> dict[str, str]:
    return {"WELLDONE_ENGINES": str(tmp_path), "PATH": os.environ["PATH"]}


def test_the_key_is_in_a_private_file_and_settings_of_others_have_no_effect(
    program: Path, tiny_model: Path, short_path: Path
) -> None:
    environment = plan_environment(short_path) | {"LLAMA_ARG_PORT": "1", "AIP_HTTP_PORT": "2", "HF_HOME": "/h"}
    settings = ModelSettings(name="m", file=tiny_model, engine=program, chat_template="{{ 'x' }}", gpu_layers=7)
    plan = make_plan(settings, models_folder=short_path, socket_folder=short_path, environment=environment)
    assert plan.address.key is not None
    key_file = Path(plan.arguments[plan.arguments.index("--api-key-file") + 1])
    assert key_file.read_text("utf-8") == plan.address.key
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert not {"LLAMA_ARG_PORT", "AIP_HTTP_PORT", "HF_HOME"} & set(plan.environment)
    assert not any(plan.address.key in word for word in (*plan.arguments, *plan.environment.values()))
    assert plan.address.key not in repr(plan)
    template = Path(plan.arguments[plan.arguments.index("--chat-template-file") + 1])
    assert template.read_text("utf-8") == "{{ 'x' }}"
    assert plan.arguments[plan.arguments.index("--gpu-layers") + 1] == "7"


def test_a_program_without_unix_sockets_listens_on_loopback(tiny_model: Path, tmp_path: Path) -> None:
    old = stand_in_server.install(tmp_path / "old", without=(".sock",))
    settings = ModelSettings(name="m", file=tiny_model, engine=old, ctx_size=256)

    async def main() -> None:
        async with running_supervisor(settings) as supervisor:
            address = await supervisor.models[0].ensure_ready()
            assert (address.socket, address.host) == (None, "127.0.0.1")
            assert (await fetch_reply(Address(port=address.port), "/v1/models")).status in (200, 401)
            assert (await fetch_reply(Address(port=address.port), "/props")).status == 401
            assert isinstance(await short_answer(address), str)

    run(main())


def test_a_model_answers_restarts_and_leaves_nothing_behind(program: Path, tiny_model: Path) -> None:
    settings = ModelSettings(name="m", file=tiny_model, engine=program, ctx_size=256, chat_template="chatml")

    async def main() -> None:
        async with running_supervisor(settings) as supervisor:
            model = supervisor.models[0]
            address = await model.ensure_ready()
            assert model.capabilities is not None
            assert (model.capabilities.kind, model.capabilities.context) == ("llama", 256)
            before = await short_answer(address)
            assert model.process is not None
            assert address.socket is not None
            folder = Path(address.socket).parent
            assert sorted(path.suffix for path in folder.iterdir()) == [".sock"]
            os.kill(model.process.pid, signal.SIGKILL)  # the guard ends llama-server with it
            await model.wait_for_exit_notice()
            again = await model.ensure_ready()
            assert again.socket != address.socket
            assert await short_answer(again) == before
            assert model.restarts == 1
            assert sorted(path.suffix for path in folder.iterdir()) == [".sock"]
        assert not folder.exists()

    run(main())


def test_an_engine_that_hangs_is_restarted(program: Path, tiny_model: Path) -> None:
    settings = ModelSettings(name="m", file=tiny_model, engine=program, ctx_size=256)

    async def main() -> None:
        ended = asyncio.Event()

        def on_change(model: LocalModel) -> None:
            if model.restarts:
                ended.set()

        warnings: list[str] = []
        async with running_supervisor(
            settings, on_change=on_change, on_warning=lambda _, text: warnings.append(text)
        ) as supervisor:
            model = supervisor.models[0]
            await model.ensure_ready()
            assert model.process is not None
            (child,) = [pid for pid in _children(model.process.pid) if str(program) in _command(pid)[:2]]
            os.kill(child, signal.SIGSTOP)
            model.check_liveness(timeout_s=0.5)
            await ended.wait()
            await short_answer(await model.ensure_ready())
        assert warnings == ["the engine has made no progress for 0.5 s: stopping it"]

    run(main())


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _command(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def test_a_model_that_cannot_be_loaded_is_a_permanent_error(program: Path, tmp_path: Path, tiny_model: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(tiny_model.read_bytes()[:-4096])
    settings = ModelSettings(name="m", file=damaged, engine=program, ctx_size=256)

    async def main() -> None:
        async with running_supervisor(settings) as supervisor:
            with pytest.raises(EngineError, match=r"llama\.cpp could not load it") as caught:
                await supervisor.models[0].ensure_ready()
            assert caught.value.is_permanent

    run(main())


def installed_build(folder: Path, program_text: str | None = None) -> EngineBuild:
    """Install a build that is the stand-in, or a program with another text."""
    build = EngineBuild(
        name="b11549-cpu",
        llama_version=11549,
        backend="cpu",
        source="x==1",
        machine=os.uname().machine,
        cpu_flags=(),
        features=("AVX2",),
        built="2026-11-17T00:00:00+00:00",
    )
    path = stand_in_server.install(folder / build.name / "llama-server")
    if program_text is not None:
        path.write_text(program_text)
    write_manifest(folder / build.name, build)
    return build


@pytest.mark.parametrize(
    "program_text",
    [
        "#!/bin/sh\nkill -ILL $$\n",
        "#!/nowhere\n",
        "#!/bin/sh\n[ $1 = --help ] && echo '--model --host --metrics --api-key-file --jinja --ctx-size --predict "
        "--parallel --batch-size --ubatch-size --alias' && exit\n[ $1 = --version ] && exit\nkill -ILL $$\n",
    ],
    ids=["illegal instruction in the probe", "cannot be executed", "illegal instruction at the start"],
)
def test_the_wheel_takes_the_place_of_a_build_that_does_not_start(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, program_text: str
) -> None:
    build = installed_build(tmp_path, program_text)
    monkeypatch.setenv("WELLDONE_ENGINES", str(tmp_path))
    lines: list[str] = []

    async def main() -> None:
        settings = ModelSettings(name="m", file=tiny_model, ctx_size=256, threads=1)
        async with running_supervisor(settings, on_warning=lambda _, line: lines.append(line)) as supervisor:
            model = supervisor.models[0]
            await short_answer(await model.ensure_ready())
            assert model.process is not None
            assert model.process.plan.engine is not None
            assert model.process.plan.engine.name == "wheel"
            assert model.restarts == 0

    run(main())
    assert [line for line in lines if line.startswith(f"{FALLBACK_NOTE} {build.name}")]


def test_a_build_is_used_by_itself(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = installed_build(tmp_path)
    monkeypatch.setenv("WELLDONE_ENGINES", str(tmp_path))

    async def main() -> None:
        settings = ModelSettings(name="m", file=tiny_model, ctx_size=256, threads=1, gpu_layers=3)
        lines: list[str] = []
        async with running_supervisor(settings, on_warning=lambda _, line: lines.append(line)) as supervisor:
            model = supervisor.models[0]
            await short_answer(await model.ensure_ready())
            assert model.process is not None
            assert model.process.plan.engine is not None
            assert model.process.plan.engine.build == build
            words = model.process.plan.arguments
            assert words[words.index("--fit") + 1] == "off"
        assert any("has no GPU" in line for line in lines)

    run(main())
