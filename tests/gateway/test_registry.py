"""The registry of upstreams, with probes over real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.http.aio import LIMIT_S, run, serving
from tests.http.certificates import make_pair
from tests.table import table
from welldone.config.upstream import UpstreamSettings
from welldone.gateway.registry import MODEL_LIST_INTERVAL_S, MODEL_LIST_LIMIT_BYTES, UpstreamRegistry
from welldone.gateway.routing import LocalRoute, UpstreamGroup
from welldone.gateway.upstream import Upstream


class _Server:
    """A server with a replaceable reply per path; other paths return 404."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.paths: list[str] = []
        self.heads: list[str] = []

    def lists(self, *objects: dict[str, Any]) -> None:
        self.answers["/v1/models"] = 200, json.dumps({"object": "list", "data": objects}).encode()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        self.paths.append(head.split()[1])
        status, body = self.answers.get(self.paths[-1], (404, b""))
        writer.write(b"HTTP/1.1 %d x\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)


class _Pauses:
    """Pauses that the test ends."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lengths: list[float] = []
        self._begun = asyncio.Semaphore(0)
        self._over = asyncio.Semaphore(0)

    def clock(self) -> float:
        return self.now

    async def pause(self, seconds: float) -> None:
        self.lengths.append(seconds)
        self._begun.release()
        await self._over.acquire()

    async def until_looked(self) -> None:
        """Wait until the running probe has ended."""
        await self._begun.acquire()

    async def next_probe(self, after_s: float = 15.0) -> None:
        """Run one more probe."""
        self.now += after_s
        self._over.release()
        await self.until_looked()


@asynccontextmanager
async def _watched(
    *settings: UpstreamSettings,
    routes: Mapping[str, Sequence[str]] | None = None,
    local_names: Sequence[str] = (),
    on_change: Callable[[Upstream], None] = lambda _: None,
) -> AsyncIterator[tuple[UpstreamRegistry, _Pauses]]:
    pauses = _Pauses()
    upstreams = UpstreamRegistry(
        settings,
        routes or {},
        local_names=local_names,
        on_change=on_change,
        clock=pauses.clock,
        pause=pauses.pause,
    )
    await upstreams.start()
    try:
        for one in settings:
            if one.probe_s:
                await pauses.until_looked()
        yield upstreams, pauses
    finally:
        await upstreams.stop()


def _settings(port: int, name: str = "lab", **settings: Any) -> UpstreamSettings:  # noqa: ANN401 - its own
    return UpstreamSettings(name=name, url=f"http://127.0.0.1:{port}/v1", **settings)


def _with_server(body: Callable[[_Server, int], Awaitable[None]]) -> None:
    async def main() -> None:
        server = _Server()
        async with serving(server.answer) as port:
            await body(server, port)

    run(main())


def test_models_are_known_after_the_first_probe() -> None:
    async def body(server: _Server, port: int) -> None:
        server.lists({"id": "m", "owned_by": "vllm"})
        async with _watched(_settings(port, key="sk-key")) as (upstreams, pauses):
            (lab,) = upstreams.all
            group = upstreams.resolve("m")
            assert isinstance(group, UpstreamGroup)
            assert group.members[0].upstream is lab
            assert (upstreams.resolve("n"), lab.supports_native_n, lab.problem) == (None, True, None)
            assert "Authorization: Bearer sk-key\r\n" in server.heads[0]
            server.lists({"id": "n"})
            await pauses.next_probe()
            assert (upstreams.resolve("m"), upstreams.resolve("n") is not None) == (None, True)
            assert all(13.5 <= seconds <= 16.5 for seconds in pauses.lengths)
            assert server.paths == ["/v1/models"] * 2

    _with_server(body)


def test_changes_of_health_are_reported() -> None:
    async def body(server: _Server, port: int) -> None:
        changes: list[str] = []
        server.lists({"id": "m"})
        async with _watched(
            _settings(port), on_change=lambda it: changes.append(f"{it.name} {it.is_healthy} {it.problem}")
        ) as (upstreams, pauses):
            server.answers["/v1/models"] = 500, b""
            await pauses.next_probe()
            assert changes == []
            await pauses.next_probe()
            await pauses.next_probe()
            assert upstreams.resolve("m") is not None  # unavailable, but still known
            server.lists({"id": "n"})
            await pauses.next_probe()
            server.answers["/v1/models"] = 401, b""
            await pauses.next_probe()
            assert upstreams.all[0].is_available
        assert changes == [
            "lab False the upstream is unhealthy (status 500); see its log",
            "lab True None",
            "lab True the upstream requires a key: --upstream-key, or key = in the file (status 401)",
        ]

    _with_server(body)


def test_an_unreachable_upstream_is_unhealthy_and_still_resolved() -> None:
    async def main() -> None:
        async with serving(_Server().answer) as port:
            pass
        async with _watched(_settings(port)) as (upstreams, pauses):
            await upstreams.wait_until_probed(LIMIT_S)
            assert "no connection to the server" in (upstreams.all[0].problem or "")
            await pauses.next_probe()
            assert (upstreams.all[0].is_healthy, upstreams.all[0].listed_models) == (False, None)
            assert upstreams.resolve("any") is not None
            assert (upstreams.sole_model(), upstreams.list_models()) == (None, [])

    run(main())


@pytest.mark.tier2
def test_an_untrusted_certificate_has_its_own_hint(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(_Server().answer, make_pair(tmp_path).serving()) as port:
            lab = UpstreamSettings(name="lab", url=f"https://127.0.0.1:{port}/v1")
            async with _watched(lab) as (upstreams, _):
                expected = "certificate is not trusted; set ca_file = to trust its certificate"
                assert (upstreams.all[0].problem or "").endswith(expected)

    run(main())


def test_a_list_that_is_too_long_is_a_failed_probe() -> None:
    async def body(server: _Server, port: int) -> None:
        server.answers["/v1/models"] = 200, b" " * (MODEL_LIST_LIMIT_BYTES + 1)
        async with _watched(_settings(port)) as (upstreams, pauses):
            await pauses.next_probe()
            assert not upstreams.all[0].is_healthy

    _with_server(body)


def test_a_health_path_is_probed_from_the_root_and_models_listed_less_often() -> None:
    async def body(server: _Server, port: int) -> None:
        server.answers["/up"] = 200, b""
        async with _watched(_settings(port, health="/up")) as (upstreams, pauses):
            await pauses.next_probe()
            assert server.paths == ["/up", "/v1/models"] * 2  # an unknown list is requested each time
            server.lists({"id": "m"})
            await pauses.next_probe()
            server.paths.clear()
            await pauses.next_probe(MODEL_LIST_INTERVAL_S - 1)
            await pauses.next_probe(1)
            assert server.paths == ["/up", "/up", "/v1/models"]
            server.answers["/up"] = 503, b""
            await pauses.next_probe()
            await pauses.next_probe()
            assert not upstreams.all[0].is_healthy

    _with_server(body)


def test_without_probes_models_are_listed_once() -> None:
    async def body(server: _Server, port: int) -> None:
        server.lists({"id": "m"})
        async with _watched(_settings(port, probe_s=0.0)) as (upstreams, pauses):
            await asyncio.wait([task for task in asyncio.all_tasks() if task.get_name() == "health of lab"])
            assert (server.paths, pauses.lengths) == (["/v1/models"], [])
            assert upstreams.list_models()[0]["id"] == "m"
            await upstreams.wait_until_probed(LIMIT_S)

    _with_server(body)


def test_stop_cancels_a_hanging_probe() -> None:
    async def main() -> None:
        has_request = asyncio.Event()

        async def hang(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            has_request.set()
            await reader.read()

        async with serving(hang) as port:
            upstreams = UpstreamRegistry([_settings(port)], {})
            await upstreams.start()
            await has_request.wait()
            await upstreams.wait_until_probed(0.0)
            await upstreams.stop()
            assert len(asyncio.all_tasks()) <= 2  # this task and the server's
        await UpstreamRegistry([], {}).stop()

    run(main())


def test_the_model_list_merges_routes_and_upstreams() -> None:
    async def body(server: _Server, port: int) -> None:
        server.lists({"id": "m", "created": 7, "max_model_len": 9}, {"id": "n", "root": "/models/n"}, {"id": "home"})
        routes = {"gpt": ["m@lab"], "gpt-*": ["m@lab"], "n": ["m@lab"], "mine": ["home"], "nobody": ["none"]}
        lab, shed = _settings(port), _settings(port, "shed", models=("m", "extra", "x-*"))
        async with _watched(lab, shed, routes=routes, local_names=["home"]) as (upstreams, _):
            model = {"object": "model", "created": 7, "owned_by": "upstream", "max_model_len": 9}
            bare = {"object": "model", "created": 0, "owned_by": "upstream"}
            assert upstreams.list_models() == [
                {**model, "id": "gpt"},
                {**model, "id": "n"},
                {**bare, "id": "mine"},
                {**model, "id": "m"},
                {**bare, "id": "extra"},
            ]
            assert upstreams.resolve("mine") == LocalRoute("home")
            assert str(port) not in json.dumps(upstreams.list_models())

    _with_server(body)


@table(
    ("listed", "routes", "local_names", "expected"),
    [
        (["m"], {}, [], "m"),
        (["m"], {"gpt": ["m"]}, [], "gpt"),
        (["m"], {"gpt": ["m"]}, ["home"], None),
        (["m"], {"gpt": ["none"]}, [], None),
        (["m", "n"], {}, [], None),
        ([], {}, [], None),
    ],
)
def test_the_only_model_is_found_without_a_name(
    listed: list[str], routes: dict[str, list[str]], local_names: list[str], expected: str | None
) -> None:
    async def body(server: _Server, port: int) -> None:
        server.lists(*({"id": name} for name in listed))
        lab, shed = _settings(port), _settings(port, "shed")
        async with _watched(lab, shed, routes=routes, local_names=local_names) as (upstreams, _):
            only = upstreams.sole_model()
            assert (only and only.name) == expected
            assert only is None or len(only.members) == 2

    _with_server(body)
