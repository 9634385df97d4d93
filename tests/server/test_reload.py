"""Another configuration for a running server: new requests follow it, and running streams end as they began."""

import asyncio
import dataclasses
import re
from pathlib import Path
from typing import Any

from tests.http.aio import run
from tests.server.running_gateway import Gateway, gateway
from tests.server.running_server import DONE, HELLO, ROLE, STOP, RecordedReply, RunningServer, run_server
from tests.table import table
from welldone.config.model import ModelSettings
from welldone.config.server import RELOADED_SETTINGS, Config, KeySettings, LimitsSettings, ServeSettings
from welldone.config.upstream import UpstreamSettings
from welldone.engines import supervisor
from welldone.engines.supervisor import ModelState
from welldone.gateway.upstream import FAILURE_THRESHOLD
from welldone.mock.script import MockChunk, MockReply
from welldone.server.reload import NewConfig, ReloadResult, describe_changes, keep_fixed_settings

SLOW = MockReply((ROLE, HELLO, MockChunk(HELLO.text, after_s=0.3), STOP, DONE))
"""It is still running when the configuration has changed."""
FAST = MockReply((ROLE, HELLO, STOP, DONE))
SECRET = "canary-0123456789"
OTHER_SECRET = "canary-of-another-key"


def chat(model: str) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "Hi"}], "stream": True}


def config_of(running: RunningServer) -> Config:
    return running.server._config


def reload(running: RunningServer, plain_keys: tuple[str, ...] = (), **changes: Any) -> set[str]:  # noqa: ANN401
    """Change fields of the configuration."""
    return running.server.reload(NewConfig(config=dataclasses.replace(config_of(running), **changes), keys=plain_keys))


def changed(running: RunningServer, **changes: Any) -> ServeSettings:  # noqa: ANN401 - fields of ServeSettings
    return dataclasses.replace(config_of(running).server, **changes)


async def metrics(running: RunningServer, headers: str = "") -> str:
    return (await running.get("/metrics", headers)).body.decode()


def test_a_stream_outlives_its_upstream_and_new_requests_use_the_new_one(tmp_path: Path) -> None:
    async def scenario(gate: Gateway) -> None:
        reader, writer = await gate.send(chat("x"))
        received = await reader.readuntil(b"Hello")
        (first, second) = config_of(gate).upstreams
        reload(gate, upstreams=(second,), routes={"y": ("z@b",)})
        replies = await asyncio.gather(gate.post(chat("x")), gate.post(chat("y")))
        assert [reply.status for reply in replies] == [404, 200]
        received += await reader.read()
        writer.close()
        reply = RecordedReply(received, chat("x"))
        assert reply.body.count(b"Hello") == 2
        assert reply.findings() == []
        assert gate.post_counts == [1, 1]
        page = await metrics(gate)
        assert 'welldone_upstream_requests_total{status="200",upstream="a"} 1.0' in page  # counted after its removal
        assert 'welldone_upstream_up{upstream="a"}' not in page
        reload(gate, upstreams=(dataclasses.replace(second, weight=2.0),))
        assert 'upstream="a"' not in await metrics(gate)
        assert first.name == "a"

    async def body() -> None:
        async with gateway(tmp_path, [SLOW], [FAST], each={"models": ("z",)}, first={"models": ("x",)}) as gate:
            await scenario(gate)

    run(body())


def test_an_upstream_with_the_same_address_keeps_health_and_breaker(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway(tmp_path, [FAST], [FAST]) as gate:
            a, b = gate.server.upstreams.all
            for _ in range(FAILURE_THRESHOLD):
                a.breaker.record_failure()
                b.breaker.record_failure()
            first, second = config_of(gate).upstreams
            moved = dataclasses.replace(second, key="another-key-of-the-upstream")
            reload(gate, upstreams=(dataclasses.replace(first, weight=3.0, limit=7), moved))
            kept, new = gate.server.upstreams.all
            assert kept is a
            assert kept.breaker.state == "open"
            assert (kept.settings.weight, kept.settings.limit) == (3.0, 7)
            assert new is not b
            assert new.breaker.state == "closed"
            b.breaker.record_success()  # of a request in progress
            page = await metrics(gate)
            assert 'welldone_upstream_breaker_state{state="open",upstream="a"} 1.0' in page
            assert 'welldone_upstream_breaker_state{state="open",upstream="b"} 0.0' in page
            state = (await gate.get("/page/api/state")).json
            assert [one["limit"] for one in state["upstreams"]] == [7, 256]

    run(body())


def test_the_first_upstream_of_a_server_gets_its_metrics(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway(tmp_path, [FAST]) as gate:
            upstreams = config_of(gate).upstreams
            reload(gate, upstreams=())
            assert "welldone_upstream_up" not in await metrics(gate)
            assert (await gate.post(chat("x"))).status == 404
            reload(gate, upstreams=upstreams)
            assert (await gate.post(chat("x"))).status == 200
            assert 'welldone_upstream_requests_total{status="200",upstream="a"} 1.0' in await metrics(gate)

    run(body())


def test_keys_are_added_changed_and_removed(tmp_path: Path) -> None:
    def bearer(key: str) -> str:
        return f"Authorization: Bearer {key}\r\n"

    async def statuses(gate: Gateway, *keys: str) -> list[int]:
        return [(await gate.post(chat("x"), headers=bearer(key) if key else "")).status for key in keys]

    async def body() -> None:
        async with gateway(tmp_path, [FAST]) as gate:
            assert await statuses(gate, "") == [200]
            named = KeySettings(name="ci", key=SECRET)
            reload(gate, (OTHER_SECRET,))
            assert await statuses(gate, "", OTHER_SECRET, SECRET) == [401, 200, 401]
            reload(gate, (OTHER_SECRET,), keys=(named,))
            assert await statuses(gate, OTHER_SECRET, SECRET) == [200, 200]
            reload(gate, keys=(dataclasses.replace(named, models=("y",)),))
            assert await statuses(gate, OTHER_SECRET, SECRET) == [401, 403]

    run(body())


def test_limits_change_and_the_usage_of_a_key_stays(tmp_path: Path) -> None:
    async def left(gate: Gateway) -> str:
        reply = await gate.post(chat("x"))
        found = [line for line in reply.head.lower().splitlines() if "remaining-requests" in line]
        return found[0].split()[-1] if found else str(reply.status)

    async def body() -> None:
        async with gateway(tmp_path, [FAST], requests_per_minute=10) as gate:
            assert await left(gate) == "9"
            reload(gate, server=changed(gate, requests_per_minute=5))
            assert await left(gate) == "4"  # the level was above the new limit
            reload(gate, server=changed(gate, requests_per_minute=20))
            assert await left(gate) == "3"
            reload(gate, server=changed(gate, requests_per_minute=0))
            assert await left(gate) == "200"

    run(body())


def test_new_secrets_are_hidden(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway(tmp_path, [FAST]) as gate:
            (first,) = config_of(gate).upstreams
            assert SECRET in reload(gate, upstreams=(dataclasses.replace(first, key=SECRET),))
            assert (await gate.post(chat(SECRET))).status == 200
            assert SECRET not in await metrics(gate)
            assert SECRET not in (await gate.get("/page/api/state")).body.decode()
            assert SECRET in reload(gate, upstreams=(first,))  # its requests may still be running
            assert SECRET not in reload(gate, upstreams=(first,))

    run(body())


def test_time_limits_and_body_limits_apply_to_the_next_request(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway(tmp_path, [FAST]) as gate:
            long = {**chat("x"), "user": "u" * 2000}
            assert (await gate.post(long)).status == 200
            reload(gate, server=changed(gate, body_limit_bytes=1024))
            for path in ("/v1/chat/completions", "/v1/responses", "/v1/embeddings"):
                assert (await gate.post({**long, "input": "Hi"}, path)).status == 413
            reload(gate, server=changed(gate, body_limit_bytes=10_000))
            assert (await gate.post(long)).status == 200

    run(body())


def test_only_admins_reload_over_http(tmp_path: Path) -> None:
    results = [
        ReloadResult(outcome="applied", file="f", changes=("routes: added x",)),
        ReloadResult(outcome="failed", file="f", error="f: routes: x"),
    ]

    async def reload_config() -> ReloadResult:
        return results.pop(0)

    async def post(gate: Gateway, key: str) -> RecordedReply:
        return await gate.get("/admin/reload", f"Authorization: Bearer {key}\r\n", method="POST")

    async def body() -> None:
        named = KeySettings(name="ci", key=SECRET)
        keys = (OTHER_SECRET,)
        async with gateway(tmp_path, [FAST], keys=keys, config={"keys": (named,)}, on_reload=reload_config) as gate:
            assert (await post(gate, SECRET)).status == 403
            reply = await post(gate, OTHER_SECRET)
            assert reply.json == {
                "outcome": "applied",
                "file": "f",
                "error": None,
                "changes": ["routes: added x"],
                "warnings": [],
            }
            reply = await post(gate, OTHER_SECRET)
            assert (reply.status, reply.error["code"]) == (409, "invalid_configuration")
            assert reply.error["message"] == "The configuration is unchanged: f: routes: x"

    run(body())


def test_a_server_without_a_configuration_to_read_has_no_such_path(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway(tmp_path, [FAST]) as gate:
            assert (await gate.get("/admin/reload", method="POST")).status == 404

    run(body())


# Local models, with a mock engine.


def test_a_removed_model_finishes_its_stream_and_a_new_one_is_loaded(tmp_path: Path) -> None:
    async def body() -> None:
        async with run_server(tmp_path, SLOW) as running:
            (old,) = running.server.supervisor.models
            reader, writer = await running.send(chat("m"))
            received = await reader.readuntil(b"Hello")
            new = dataclasses.replace(old.settings, name="n", aliases=("alias",), preload=True)
            reload(running, models=(new,))
            assert (await running.post(chat("m"))).status == 404
            received += await reader.read()
            writer.close()
            assert RecordedReply(received, chat("m")).body.count(b"Hello") == 2
            assert (await running.post(chat("alias"))).body.count(b"Hello") == 2
            while old.state is not ModelState.STOPPED:
                await running.server.supervisor.wait_for_change(10.0)
            page = await metrics(running)
            assert 'llamacpp:requests_processing{model="n"}' in page
            assert 'llamacpp:requests_processing{model="m"}' not in page
            assert 'welldone_engine_up{model="n"} 1.0' in page

    run(body())


@table(
    ("changes", "is_kept"),
    [
        ({"queue": 1, "queue_wait_s": 3.0, "aliases": ("other",), "defaults": {"seed": 1}, "idle_unload_s": 9.0}, True),
        ({"parallel": 3}, False),
        ({"environment": {"A": "1"}}, False),
    ],
)
def test_an_engine_is_kept_if_it_would_start_in_the_same_way(
    tmp_path: Path, changes: dict[str, Any], is_kept: bool
) -> None:
    async def body() -> None:
        async with run_server(tmp_path, FAST) as running:
            (old,) = running.server.supervisor.models
            reload(running, models=(dataclasses.replace(old.settings, **changes),))
            (new,) = running.server.supervisor.models
            assert (new is old) is is_kept
            assert (await running.post(chat("m"))).status == 200
            if is_kept:
                state = (await running.get("/page/api/state")).json["models"][0]
                assert (state["queue"], new.state) == (1, ModelState.READY)
                assert (await running.post(chat("other"))).status == 200

    run(body())


def test_a_retired_model_does_not_delay_the_shutdown(tmp_path: Path) -> None:
    async def body() -> None:
        async with run_server(tmp_path, MockReply((ROLE, HELLO), end="hang"), drain_s=0.0) as running:
            (old,) = running.server.supervisor.models
            reader, writer = await running.send(chat("m"))
            await reader.readuntil(b"Hello")
            reload(running, models=())
            assert old.running
        assert old.state is ModelState.STOPPED
        writer.close()

    assert supervisor.RETIRE_DELAY_S < supervisor.STOP_TIMEOUT_S
    run(body())


# What changes, and what needs a restart.


def test_settings_that_need_a_restart_are_named_and_stay() -> None:
    before = Config(server=ServeSettings(port=1, idle_s=5.0), models=())
    new = Config(
        server=ServeSettings(port=2, idle_s=6.0, workers=3, stored_bytes=2**21),
        models=(),
        limits=LimitsSettings(store="redis://HOST:6379/0"),
    )
    kept, warnings = keep_fixed_settings(before, new)
    assert (kept.server.port, kept.server.workers, kept.server.idle_s, kept.limits) == (1, 1, 6.0, before.limits)
    names = [warning.split()[3] for warning in warnings]
    assert sorted(names) == ["limits.store", "server.port", "server.stored_bytes", "server.workers"]
    assert keep_fixed_settings(before, before) == (before, [])


def test_the_page_lists_all_settings_that_a_reload_changes() -> None:
    page = (Path(__file__).parents[2] / "docs" / "serve.md").read_text("utf-8")
    (row,) = re.findall(r"^\| `\[server\]` \| (.*) \|$", page, re.MULTILINE)
    in_other_rows = {"config", "upstreams", "upstream_key", "api_keys", "api_key_file"}
    assert set(re.findall(r"`(\w+)`", row)) == RELOADED_SETTINGS - in_other_rows
    assert {field.name for field in dataclasses.fields(ServeSettings)} >= RELOADED_SETTINGS


def test_changes_are_described_without_secrets() -> None:
    def upstream(name: str, **more: Any) -> UpstreamSettings:  # noqa: ANN401 - settings
        return UpstreamSettings(name=name, url="http://127.0.0.1:1/v1", **more)

    before = Config(
        server=ServeSettings(idle_s=5.0),
        models=(ModelSettings(name="m"),),
        upstreams=(upstream("a"), upstream("b", key=SECRET)),
        keys=(KeySettings(name="ci", key=SECRET),),
    )
    new = Config(
        server=ServeSettings(idle_s=6.0, api_keys=(OTHER_SECRET,)),
        models=(ModelSettings(name="m"),),
        upstreams=(upstream("b", key=OTHER_SECRET), upstream("c")),
        routes={"x": ("y",)},
    )
    assert describe_changes(before, new, (), (OTHER_SECRET,)) == (
        "upstreams: added c; changed b; removed a",
        "routes: added x",
        "keys: removed ci",
        "keys without a name: added 1",
        "server: changed idle_s",
    )
    assert describe_changes(before, before, (SECRET,), (SECRET,)) == ()
    assert ReloadResult(outcome="unchanged").error is None
