"""The llama.cpp child with real models: answers, closed endpoints, settings and errors."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engines.supervisors import LIMIT_S, fetch_json, fetch_reply, run, running_supervisor, short_answer
from tests.table import table
from welldone.config.model import ModelSettings
from welldone.engines.errors import EngineError
from welldone.engines.supervisor import ModelState

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


def test_a_model_loads_and_answers(tiny_model: Path) -> None:
    async def main() -> None:
        async with running_supervisor(ModelSettings(name="tiny", file=tiny_model)) as supervisor:
            model = supervisor.models[0]
            assert await short_answer(await model.ensure_ready())
            assert model.state is ModelState.READY
            assert model.capabilities is not None
            assert model.capabilities.slots == model.settings.slots
            assert model.capabilities.context > 0
            assert model.capabilities.chat
            assert not model.capabilities.embeddings

    run(main())


def test_the_engine_requires_its_key_and_closes_other_endpoints(tiny_model: Path) -> None:
    async def main() -> None:
        async with running_supervisor(ModelSettings(name="tiny", file=tiny_model)) as supervisor:
            address = await supervisor.models[0].ensure_ready()
            without_key = msgspec.structs.replace(address, key=None)
            assert (await fetch_reply(without_key, "/v1/models")).status == 401
            assert (await fetch_reply(address, "/slots")).status != 200
            assert (await fetch_reply(address, "/")).status == 404
            reply = await fetch_reply(address, "/v1/models")
            assert (
                "access-control-allow-origin" not in reply.headers or not reply.headers["access-control-allow-origin"]
            )
            assert str(tiny_model).encode() not in reply.body

    run(main())


@ON_LINUX
def test_the_socket_is_private_and_the_key_is_not_in_arguments_or_environment(tiny_model: Path) -> None:
    async def main() -> None:
        async with running_supervisor(ModelSettings(name="tiny", file=tiny_model)) as supervisor:
            address = await supervisor.models[0].ensure_ready()
            process = supervisor.models[0].process
            assert process is not None
            assert address.socket is not None
            assert address.key is not None
            assert stat.S_IMODE(Path(address.socket).parent.stat().st_mode) == 0o700
            for name in ("cmdline", "environ"):
                assert address.key.encode() not in await asyncio.to_thread(
                    Path(f"/proc/{process.pid}/{name}").read_bytes
                )
            assert address.key not in repr(address) + repr(process.plan)

    run(main())


CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
PROMPTS = [
    pytest.param(
        {"messages": [{"role": "user", "content": "hi"}]},
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
        id="the model's default",
    ),
    pytest.param(
        {"messages": [{"role": role, "content": role} for role in ("system", "system", "user")]},
        "<|im_start|>system\nsystem<|im_end|>\n<|im_start|>system\nsystem<|im_end|>\n"
        "<|im_start|>user\nuser<|im_end|>\n<|im_start|>assistant\n",
        id="two system messages",
    ),
    pytest.param(
        {
            "messages": [
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "content": "sunny"},
            ]
        },
        "<|im_start|>assistant\n<tool_call>\n"
        '{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nsunny\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
        id="a call and its result, content null",
    ),
    pytest.param(
        {"messages": [{"role": "developer", "content": "D"}, {"role": "user", "content": "hi"}], "tools": [TOOL]},
        "<|im_start|>system\nD\n\nYou can call these functions:\n<tools>\n"
        '{"type": "function", "function": {"name": "weather"',
        id="tools in the first system message",
    ),
]


def test_the_default_model_supports_tools_and_its_template_renders_all_messages(default_model: Path) -> None:
    async def main() -> list[str]:
        async with running_supervisor(ModelSettings(name="default", file=default_model, threads=1)) as supervisor:
            address = await supervisor.models[0].ensure_ready()
            assert supervisor.models[0].capabilities is not None
            assert supervisor.models[0].capabilities.tools
            bodies: list[dict[str, Any]] = [case.values[0] for case in PROMPTS]  # type: ignore[misc]
            return [(await fetch_json(address, "/apply-template", body))["prompt"] for body in bodies]

    for case, prompt in zip(PROMPTS, run(main()), strict=True):
        assert str(case.values[1]) in prompt, case.id


def test_embedding_and_reranking_models_are_detected_from_their_files(
    tiny_embedding_model: Path, tiny_rerank_model: Path
) -> None:
    async def main() -> None:
        models = (
            ModelSettings(name="embedder", file=tiny_embedding_model),
            ModelSettings(name="ranker", file=tiny_rerank_model),
        )
        async with running_supervisor(*models) as supervisor:
            embedder, ranker = supervisor.models
            vectors = await fetch_json(await embedder.ensure_ready(), "/v1/embeddings", {"input": "hello"})
            assert len(vectors["data"][0]["embedding"]) == 32
            ranked = await fetch_json(
                await ranker.ensure_ready(), "/v1/rerank", {"query": "a", "documents": ["b", "c"]}
            )
            assert len(ranked["results"]) == 2
            assert embedder.capabilities is not None
            assert ranker.capabilities is not None
            assert (embedder.capabilities.embeddings, embedder.capabilities.chat) == (True, False)
            assert (ranker.capabilities.reranking, ranker.capabilities.chat) == (True, False)

    run(main())


def test_a_chat_model_returns_embeddings_if_configured(tiny_model: Path) -> None:
    async def main() -> None:
        async with running_supervisor(ModelSettings(name="tiny", file=tiny_model, embeddings=True)) as supervisor:
            address = await supervisor.models[0].ensure_ready()
            assert (await fetch_json(address, "/v1/embeddings", {"input": "hello"}))["data"][0]["embedding"]
            assert await short_answer(address)

    run(main())


def test_settings_reach_llama_cpp(tiny_model: Path) -> None:
    settings = ModelSettings(
        name="tiny",
        file=tiny_model,
        ctx_size=512,
        parallel=2,
        kv_unified=False,
        threads=1,
        threads_batch=1,
        flash_attn="off",
        mmap=False,
        gpu_layers=0,
        cache_type_k="f32",
        cache_ram_mib=0,
        warmup=False,
        tensor_split=("1",),
        reasoning_format="deepseek-legacy",
        chat_template="{{ messages[0].content }}",
    )

    async def main() -> None:
        async with running_supervisor(settings) as supervisor:
            address = await supervisor.models[0].ensure_ready()
            assert supervisor.models[0].capabilities is not None
            assert (supervisor.models[0].capabilities.context, supervisor.models[0].capabilities.slots) == (256, 2)
            prompt = await fetch_json(
                address, "/apply-template", {"messages": [{"role": "user", "content": "just this"}]}
            )
            assert prompt["prompt"] == "just this"

    run(main())


def test_the_engine_ignores_sigint(tiny_model: Path) -> None:
    async def main() -> None:
        async with running_supervisor(ModelSettings(name="tiny", file=tiny_model)) as supervisor:
            address = await supervisor.models[0].ensure_ready()
            process = supervisor.models[0].process
            assert process is not None
            os.kill(process.pid, signal.SIGINT)
            assert await short_answer(address)
            assert process.is_running

    run(main())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated"),
        (b"PK\x03\x04 and so on", "is not a GGUF file"),
        (b"GGUF\x03\x00\x00\x00" + b"\x00" * 16, "llama.cpp could not load it"),
    ],
)
def test_an_invalid_file_is_a_permanent_error(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "bad.gguf"
    file.write_bytes(content)

    async def main() -> None:
        async with running_supervisor(ModelSettings(name="bad", file=file)) as supervisor:
            with pytest.raises(EngineError, match=message) as caught:
                await supervisor.models[0].ensure_ready()
            assert caught.value.is_permanent
            assert str(tmp_path) not in caught.value.message
            assert supervisor.models[0].state is ModelState.FAILED

    run(main())


@table("stdin", [b"no end", b"{}\n"])
def test_without_a_configuration_the_child_exits(stdin: bytes) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "welldone.engines.llama_child"],
        input=stdin,
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 1
    assert b"no configuration" in ended.stderr.lower()
    assert not ended.stdout


def test_a_device_that_the_wheel_does_not_have_is_a_permanent_error(tiny_model: Path) -> None:
    async def main() -> None:
        wheel = Path("wheel")
        models = [
            ModelSettings(name="gpu", file=tiny_model, engine=wheel, device=("CUDA7",)),
            ModelSettings(name="cpu", file=tiny_model, engine=wheel, device=("none",), ctx_size=64),
        ]
        async with running_supervisor(*models) as supervisor:
            gpu, cpu = supervisor.models
            with pytest.raises(EngineError, match=r"this engine has no device CUDA7 \(--device\)") as caught:
                await gpu.ensure_ready()
            assert caught.value.is_permanent
            assert await short_answer(await cpu.ensure_ready())

    run(main())
