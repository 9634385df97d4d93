"""`POST /models/load` and `/models/unload`: admins only; a busy model is unloaded only with `force`."""

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.http.aio import run
from tests.server.running_gateway import gateway
from tests.server.running_server import CHAT, DONE, HELLO, ROLE, STOP, RecordedReply, RunningServer, run_server
from tests.table import table
from welldone.config.model import ModelSettings
from welldone.config.server import Config, KeySettings, ServeSettings
from welldone.engines.errors import EngineError
from welldone.engines.supervisor import ModelState
from welldone.mock.script import MockChunk, MockReply
from welldone.server.server import Server

SUCCESS = {"success": True}
ENDLESS = MockReply((ROLE, HELLO, MockChunk(HELLO.text, after_s=1000.0), STOP, DONE))
PLAIN, NAMED = "wd-plain-key-012345", "wd-named-key-012345"


async def _load(serving: RunningServer, model: object = "m", headers: str = "") -> RecordedReply:
    return await serving.post({"model": model}, "/models/load", headers)


async def _unload(serving: RunningServer, headers: str = "", **more: object) -> RecordedReply:
    return await serving.post({"model": "m", **more}, "/models/unload", headers)


def _state(serving: RunningServer) -> ModelState:
    return serving.server.supervisor.models[0].state


@asynccontextmanager
async def _serving(folder: Path, *models: ModelSettings, **more: Any) -> AsyncIterator[RunningServer]:  # noqa: ANN401
    """A server with several models, so that none is loaded at the start."""
    others = (ModelSettings(name="other", command=(sys.executable, "-c", "raise SystemExit")),)
    server = Server(Config(server=ServeSettings(port=0), models=(*models, *others), **more), keys=(), folder=folder)
    await server.start()
    try:
        yield RunningServer(server)
    finally:
        await server.stop()


def test_a_model_is_loaded_and_unloaded_on_request(tiny_model: Path, tmp_path: Path) -> None:
    async def main() -> None:
        async with _serving(tmp_path, ModelSettings(name="m", file=tiny_model, aliases=("tiny",))) as serving:
            model = serving.server.supervisor.models[0]
            assert _state(serving) is ModelState.UNLOADED
            assert (await _load(serving, "tiny")).json == SUCCESS
            assert _state(serving) is ModelState.LOADING
            await model.ensure_ready()
            assert (await _load(serving)).json == SUCCESS
            assert (await _unload(serving)).json == SUCCESS
            assert _state(serving) is ModelState.UNLOADED
            assert (await _unload(serving)).json == SUCCESS
            assert (await serving.post({**CHAT, "max_tokens": 2})).status == 200

    run(main())


def test_a_busy_model_is_unloaded_only_with_force(tmp_path: Path) -> None:
    async def main() -> None:
        async with run_server(tmp_path, ENDLESS) as serving:
            reader, writer = await serving.send({**CHAT, "stream": True})
            await reader.readuntil(b"Hello")
            rejected = await _unload(serving)
            assert (rejected.status, rejected.error["code"]) == (409, "model_busy")
            assert _state(serving) is ModelState.READY
            assert (await _unload(serving, force=True)).json == SUCCESS
            rest = await reader.read()
            assert rest.count(b'data: {"error"') == 1
            writer.close()

    run(main())


def test_a_load_with_force_restarts_the_engine(tmp_path: Path) -> None:
    async def main() -> None:
        async with run_server(tmp_path) as serving:
            (model,) = serving.server.supervisor.models
            before = model.process
            assert (await _load(serving)).json == SUCCESS
            assert model.process is before
            assert (await serving.post({"model": "m", "force": True}, "/models/load")).json == SUCCESS
            await model.ensure_ready()
            assert model.process is not before

    run(main())


def test_force_must_be_a_boolean(tmp_path: Path) -> None:
    wrong: tuple[object, ...] = (1, "yes", {})

    async def main() -> None:
        async with run_server(tmp_path) as serving:
            for force in wrong:
                loaded = await serving.post({"model": "m", "force": force}, "/models/load")
                for rejected in (await _unload(serving, force=force), loaded):
                    assert (rejected.status, rejected.error["param"]) == (400, "force")

    run(main())


def test_a_model_that_is_unknown_or_not_local_is_rejected(tmp_path: Path) -> None:
    async def main() -> None:
        async with run_server(tmp_path) as local, gateway(tmp_path, ()) as remote:
            for path in ("/models/load", "/models/unload", "/v1/models/load"):
                unknown = await local.post({"model": "none"}, path)
                assert (unknown.status, unknown.error["code"]) == (404, "model_not_found")
                foreign = await remote.post({"model": "m"}, path)
                assert (foreign.status, foreign.error["code"]) == (400, "model_not_local")

    run(main())


def test_a_model_that_failed_to_load_is_rejected_until_the_next_retry(tmp_path: Path) -> None:
    async def main() -> None:
        broken = ModelSettings(name="m", file=tmp_path / "none.gguf")
        async with _serving(tmp_path, broken) as serving:
            assert (await _load(serving)).json == SUCCESS
            with pytest.raises(EngineError):
                await serving.server.supervisor.models[0].ensure_ready()
            rejected = await _load(serving)
            assert (rejected.status, rejected.error["code"]) == (503, "model_unavailable")

    run(main())


@table(
    ("key", "rights", "status"),
    [(PLAIN, {}, 200), (NAMED, {}, 403), (NAMED, {"admin": True}, 200), ("", {}, 401)],
)
@table("path", ["/models/load", "/models/unload"])
def test_only_admins_load_and_unload(
    path: str, key: str, rights: Mapping[str, Any], status: int, tmp_path: Path
) -> None:
    async def main() -> None:
        named = (KeySettings(name="ci", key=NAMED, **rights),)
        models = (ModelSettings(name="m", file=tmp_path / "none.gguf"), ModelSettings(name="o", file=tmp_path / "o"))
        config = Config(server=ServeSettings(port=0), models=models, keys=named)
        server = Server(config, keys=[PLAIN], folder=tmp_path)
        await server.start()
        try:
            response = await RunningServer(server).post({"model": "m"}, path, f"Authorization: Bearer {key}\r\n")
            assert response.status == status
        finally:
            await server.stop()

    run(main())
