"""Search and download of models from the page: the real library in its own process, with a fake Hub."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.engines import files
from tests.engines.fake_hub import TOKEN, FakeHub, fake_hub
from tests.http.aio import run
from tests.server.running_gateway import gateway
from tests.server.running_server import SITE, RecordedReply, RunningServer
from tests.table import table
from welldone.config.model import ModelSettings
from welldone.config.server import Config, KeySettings, ServeSettings
from welldone.server.inspector import downloads
from welldone.server.server import Server

pytest.importorskip("huggingface_hub")

ADMIN, GUEST = "wd-plain-0123456789abcdef", "wd-guest-0123456789abcdef"
PULL = "/page/api/pull"
DATA = files.model(3000)
CONTENTS = {"a-Q8_0.gguf": files.model(4000), "sub/a-Q4_K_M.gguf": DATA}
COMMAND = (sys.executable, "-c", "raise SystemExit", "{port}")


def auth(key: str = ADMIN) -> str:
    return f"Authorization: Bearer {key}\r\n"


@asynccontextmanager
async def serving(hub: FakeHub) -> AsyncIterator[RunningServer]:
    """A server with a local model that is never loaded, and its Hub."""
    models = tuple(ModelSettings(name=name, command=COMMAND) for name in ("m", "n"))
    config = Config(server=ServeSettings(port=0), models=models, keys=(KeySettings(name="guest", key=GUEST),))
    environment = {**os.environ, **hub.environment}
    server = Server(config, keys=(ADMIN,), folder=hub.folder, environment=environment, site=SITE)
    await server.start()
    try:
        yield RunningServer(server)
    finally:
        await server.stop()


async def pull(server: RunningServer, source: str = "hf:owner/repo:Q4_K_M") -> RecordedReply:
    return await server.post({"source": source}, PULL, auth())


async def view(server: RunningServer) -> dict[str, Any]:
    found: dict[str, Any] = (await server.get(PULL, auth())).json
    state = (await server.get("/page/api/state", auth())).json["download"]
    assert state["source"] == found["source"]
    return found


async def until(server: RunningServer, *states: str) -> dict[str, Any]:
    """Poll the download until it is in one of these states."""
    while (found := await view(server))["state"] not in states:  # noqa: ASYNC110 - as the page does
        await asyncio.sleep(0.02)
    return found


@pytest.mark.tier2
def test_a_model_is_found_chosen_and_downloaded(tmp_path: Path) -> None:
    async def work(hub: FakeHub) -> None:
        hub.offer_repository(CONTENTS)
        hub.offer_search("owner/repo")
        async with serving(hub) as server:
            assert (await view(server))["state"] == "idle"
            found = (await server.get("/page/api/hub/search?q=tiny%20model", auth())).json
            assert found == {"repositories": [{"id": "owner/repo", "downloads": 12, "likes": 3, "is_gated": True}]}
            (request,) = (one for one in hub.site.requests if one.path.startswith("/api/models?"))
            assert "search=tiny" in request.path
            assert "filter=gguf" in request.path
            listed = (await server.get("/page/api/hub/files?repository=owner/repo", auth())).json["models"]
            assert [(row["label"], row["source"], row["is_default"]) for row in listed] == [
                ("Q4_K_M", "hf:owner/repo:Q4_K_M", True),
                ("Q8_0", "hf:owner/repo:Q8_0", False),
            ]
            assert listed[0]["size_bytes"] == len(DATA)
            started = (await pull(server, listed[0]["source"])).json
            assert (started["state"], started["source"]) == ("running", "hf:owner/repo:Q4_K_M")
            done = await until(server, "done", "failed")
            assert (done["state"], done["model"], done["error"]) == ("done", "a-Q4_K_M", None)
            assert (hub.folder / "a-Q4_K_M.gguf").read_bytes() == DATA
            assert hub.tokens == {f"Bearer {TOKEN}"}

    with fake_hub(tmp_path) as hub:
        run(work(hub))


@pytest.mark.tier2
def test_one_download_runs_at_a_time_and_can_be_cancelled(tmp_path: Path) -> None:
    async def work(hub: FakeHub) -> None:
        hub.offer_repository(CONTENTS)
        released = threading.Event()
        for path, page in hub.site.pages.items():
            if "/resolve/" in path:
                page.released = released
        async with serving(hub) as server:
            assert (await pull(server)).status == 200
            second = await pull(server, "hf:owner/repo:Q8_0")
            assert (second.status, second.error["code"]) == (409, "download_running")
            while not any(one.method == "GET" and "/resolve/" in one.path for one in hub.site.requests):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            cancelled = await server.get(PULL, auth(), method="DELETE")
            assert cancelled.json["state"] == "cancelled"
            assert (await server.get(PULL, auth(), method="DELETE")).json["state"] == "cancelled"
            assert not list(hub.folder.glob("*.gguf"))
            released.set()
            assert (await pull(server)).status == 200
            assert (await until(server, "done", "failed"))["state"] == "done"

    with fake_hub(tmp_path) as hub:
        run(work(hub))


def test_a_download_ends_with_the_server(tmp_path: Path) -> None:
    async def work(hub: FakeHub) -> None:
        hub.offer_repository(CONTENTS)
        for page in hub.site.pages.values():
            page.released = threading.Event()
        async with serving(hub) as server:
            assert (await pull(server)).status == 200
        assert not asyncio.all_tasks() - {asyncio.current_task()}

    with fake_hub(tmp_path) as hub:
        run(work(hub))


@pytest.mark.tier2
def test_errors_of_the_hub_are_shown(tmp_path: Path) -> None:
    async def work(hub: FakeHub) -> None:
        async with serving(hub) as server:
            hub.fail_list(403, "GatedRepo")
            listed = await server.get("/page/api/hub/files?repository=owner/repo", auth())
            assert (listed.status, listed.error["code"]) == (502, "hub_unavailable")
            assert "hf:owner/repo is gated" in listed.error["message"]
            found = await server.get("/page/api/hub/search?q=a", auth())  # the fake Hub has no search
            assert (found.status, found.error["code"]) == (502, "hub_unavailable")
            assert found.error["message"] == "the search failed: the Hub answered 404; try again later."
            hub.offer_repository(CONTENTS)
            await pull(server, "owner/repo")
            failed = await until(server, "failed", "done")
            assert "choose one: welldone pull hf:owner/repo:Q4_K_M" in failed["error"]

    with fake_hub(tmp_path) as hub:
        run(work(hub))


@table(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", PULL, {"source": "https://127.0.0.1/a.gguf"}, 400, None),
        ("POST", PULL, {"source": "default"}, 400, None),
        ("POST", PULL, {"source": ""}, 400, None),
        ("POST", PULL, {}, 400, "missing_required_parameter"),
        ("POST", PULL, {"source": "x" * 5000}, 413, None),
        ("GET", "/page/api/hub/search", None, 400, None),
        ("GET", "/page/api/hub/search?q=", None, 400, None),
        ("GET", f"/page/api/hub/search?q={'x' * 201}", None, 400, None),
        ("GET", "/page/api/hub/search?q=a%00b", None, 400, None),
        ("GET", "/page/api/hub/search?q=a&q=b&q=c&q=d&q=e", None, 400, None),
        ("GET", "/page/api/hub/files?repository=../x", None, 400, None),
        ("GET", "/page/api/hub/files?repository=https://h/a.gguf", None, 400, None),
    ],
)
def test_bad_requests_are_refused(
    tmp_path: Path, method: str, path: str, body: dict[str, Any] | None, status: int, code: str | None
) -> None:
    async def work(hub: FakeHub) -> None:
        async with serving(hub) as server:
            reply = await (server.get(path, auth()) if body is None else server.post(body, path, auth()))
            assert reply.status == status
            assert code is None or reply.error["code"] == code
            assert hub.site.requests == []

    with fake_hub(tmp_path) as hub:
        run(work(hub))


def test_only_admins_search_and_download(tmp_path: Path) -> None:
    async def work(hub: FakeHub) -> None:
        async with serving(hub) as server:
            replies = [
                await server.get("/page/api/hub/search?q=a", auth(GUEST)),
                await server.get("/page/api/hub/files?repository=a/b", auth(GUEST)),
                await server.get(PULL, auth(GUEST)),
                await server.get(PULL, auth(GUEST), method="DELETE"),
                await server.post({"source": "a/b"}, PULL, auth(GUEST)),
            ]
            assert [reply.status for reply in replies] == [403] * len(replies)
            assert (await server.get("/page/api/state", auth(GUEST))).json["download"] is None
            assert (
                await server.post({"source": "a/b"}, PULL, auth() + "Origin: http://evil.example\r\n")
            ).status == 403

    with fake_hub(tmp_path) as hub:
        run(work(hub))


def test_a_gateway_without_local_models_downloads_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, []) as server:
            assert (await server.get(PULL)).status == 404
            assert (await server.get("/page/api/state")).json["download"] is None

    run(work())


def test_searches_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "CONCURRENT_LOOKUPS", 0)

    async def work(hub: FakeHub) -> None:
        async with serving(hub) as server:
            reply = await server.get("/page/api/hub/search?q=a", auth())
            assert (reply.status, reply.error["code"]) == (429, "too_many_searches")

    with fake_hub(tmp_path) as hub:
        run(work(hub))
