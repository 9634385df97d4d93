"""The child around llama.cpp, with real models: what it answers, what it keeps closed, and that it ends."""

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

from tests.engines.fleets import LIMIT_S, ask, fleet_of, get, run, say_hello
from tests.table import table
from welldone.config.model import ModelSettings
from welldone.engines.errors import EngineError
from welldone.engines.supervisor import ModelState

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


def test_a_model_is_ready_and_answers(tiny_model: Path) -> None:
    async def main() -> None:
        async with fleet_of(ModelSettings(name="tiny", file=tiny_model)) as fleet:
            model = fleet.models[0]
            assert await say_hello(await model.ensure_ready())
            assert model.state is ModelState.READY
            assert model.capabilities is not None
            assert model.capabilities.slots == model.settings.slots
            assert model.capabilities.context > 0
            assert model.capabilities.chat
            assert not model.capabilities.embeddings

    run(main())


def test_the_engine_wants_its_key_and_offers_nothing_else(tiny_model: Path) -> None:
    async def main() -> None:
        async with fleet_of(ModelSettings(name="tiny", file=tiny_model)) as fleet:
            address = await fleet.models[0].ensure_ready()
            stranger = msgspec.structs.replace(address, key=None)
            assert (await get(stranger, "/v1/models")).status == 401
            assert (await get(address, "/slots")).status != 200
            assert (await get(address, "/")).status == 404
            reply = await get(address, "/v1/models")
            assert (
                "access-control-allow-origin" not in reply.headers or not reply.headers["access-control-allow-origin"]
            )
            assert str(tiny_model).encode() not in reply.body

    run(main())


@ON_LINUX
def test_the_socket_is_private_and_the_key_is_in_no_argument(tiny_model: Path) -> None:
    async def main() -> None:
        async with fleet_of(ModelSettings(name="tiny", file=tiny_model)) as fleet:
            address = await fleet.models[0].ensure_ready()
            process = fleet.models[0].process
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


def test_the_default_model_knows_tools(default_model: Path) -> None:
    async def main() -> None:
        async with fleet_of(ModelSettings(name="default", file=default_model, threads=1)) as fleet:
            address = await fleet.models[0].ensure_ready()
            assert fleet.models[0].capabilities is not None
            assert fleet.models[0].capabilities.tools
            assert "Hello" in await say_hello(address)

    run(main())


CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
PROMPTS = [
    pytest.param(
        {"messages": [{"role": "user", "content": "hi"}]},
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
        id="as the model's own",
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


def test_the_template_of_the_default_model_says_what_was_said(default_model: Path) -> None:
    async def main() -> list[str]:
        async with fleet_of(ModelSettings(name="default", file=default_model, threads=1)) as fleet:
            address = await fleet.models[0].ensure_ready()
            bodies: list[dict[str, Any]] = [case.values[0] for case in PROMPTS]  # type: ignore[misc]
            return [(await ask(address, "/apply-template", body))["prompt"] for body in bodies]

    for case, prompt in zip(PROMPTS, run(main()), strict=True):
        assert str(case.values[1]) in prompt, case.id


def test_models_for_embeddings_and_ranking_are_known_by_their_files(
    tiny_embedding_model: Path, tiny_rerank_model: Path
) -> None:
    async def main() -> None:
        models = (
            ModelSettings(name="embedder", file=tiny_embedding_model),
            ModelSettings(name="ranker", file=tiny_rerank_model),
        )
        async with fleet_of(*models) as fleet:
            embedder, ranker = fleet.models
            vectors = await ask(await embedder.ensure_ready(), "/v1/embeddings", {"input": "hello"})
            assert len(vectors["data"][0]["embedding"]) == 32
            ranked = await ask(await ranker.ensure_ready(), "/v1/rerank", {"query": "a", "documents": ["b", "c"]})
            assert len(ranked["results"]) == 2
            assert embedder.capabilities is not None
            assert ranker.capabilities is not None
            assert (embedder.capabilities.embeddings, embedder.capabilities.chat) == (True, False)
            assert (ranker.capabilities.reranking, ranker.capabilities.chat) == (True, False)

    run(main())


def test_a_chat_model_gives_embeddings_where_they_are_asked_for(tiny_model: Path) -> None:
    async def main() -> None:
        async with fleet_of(ModelSettings(name="tiny", file=tiny_model, embeddings=True)) as fleet:
            address = await fleet.models[0].ensure_ready()
            assert (await ask(address, "/v1/embeddings", {"input": "hello"}))["data"][0]["embedding"]
            assert await say_hello(address)

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
        async with fleet_of(settings) as fleet:
            address = await fleet.models[0].ensure_ready()
            assert fleet.models[0].capabilities is not None
            assert (fleet.models[0].capabilities.context, fleet.models[0].capabilities.slots) == (256, 2)
            prompt = await ask(address, "/apply-template", {"messages": [{"role": "user", "content": "just this"}]})
            assert prompt["prompt"] == "just this"

    run(main())


def test_ctrl_c_is_left_to_the_parent(tiny_model: Path) -> None:
    async def main() -> None:
        async with fleet_of(ModelSettings(name="tiny", file=tiny_model)) as fleet:
            address = await fleet.models[0].ensure_ready()
            process = fleet.models[0].process
            assert process is not None
            os.kill(process.pid, signal.SIGINT)
            assert await say_hello(address)
            assert process.is_running

    run(main())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "cut off"),
        (b"PK\x03\x04 and so on", "is no GGUF file"),
        (b"GGUF\x03\x00\x00\x00" + b"\x00" * 16, "llama.cpp could not load it"),
    ],
)
def test_a_bad_file_is_a_clear_error(tmp_path: Path, content: bytes, says: str) -> None:
    file = tmp_path / "bad.gguf"
    file.write_bytes(content)

    async def main() -> None:
        async with fleet_of(ModelSettings(name="bad", file=file)) as fleet:
            with pytest.raises(EngineError, match=says) as caught:
                await fleet.models[0].ensure_ready()
            assert caught.value.is_permanent
            assert str(tmp_path) not in caught.value.message
            assert fleet.models[0].state is ModelState.FAILED

    run(main())


@table("said", [b"", b"no end", b"{}\n", b"[]\n"])
def test_without_orders_the_child_does_nothing(said: bytes) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "welldone.engines.llama_child"],
        input=said,
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 1
    assert b"orders" in ended.stderr.lower()
    assert not ended.stdout
