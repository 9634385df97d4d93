"""Dynamic upstreams: assignment of cluster replicas, and upstreams that change their address."""

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.http.aio import run
from welldone.config.upstream import UpstreamSettings
from welldone.core.json_budget import run_to_completion
from welldone.gateway.registry import DynamicUpstreams, UpstreamRegistry
from welldone.gateway.upstream import FAILURE_THRESHOLD, UNHEALTHY_AFTER_PROBES, Upstream
from welldone.http.address import Address
from welldone.http.client import BufferedResponse
from welldone.http.connect import HttpClientError
from welldone.mock.script import MockScript
from welldone.mock.server import MockServer

WELL = BufferedResponse(200, {}, b"{}")
LOST = HttpClientError("no route")
HERE, THERE = (Address(host="127.0.0.1", port=port, key=f"key-of-{port}", prefix="/v1") for port in (1, 2))


def settings(name: str, probe_s: float = 2.0) -> UpstreamSettings:
    url = "http://nobody.invalid/v1"
    return UpstreamSettings(name=name, url=url, models=("m",), health="/health", probe_s=probe_s, is_dynamic=True)


def unassigned(name: str = "m/1", on_change_calls: Callable[[Upstream], None] = lambda _: None) -> Upstream:
    return Upstream(settings(name), clock=lambda: 0.0, on_change=on_change_calls)


REPLICAS = st.dictionaries(
    st.sampled_from("abcdefgh"), st.builds(lambda port: Address(host="h", port=port), st.integers(1, 3)), max_size=8
)


@given(count=st.integers(1, 5), rounds=st.lists(REPLICAS, max_size=12))
def test_each_replica_keeps_one_upstream_while_others_come_and_go(count: int, rounds: list[dict[str, Address]]) -> None:
    upstreams = [unassigned(f"m/{number}") for number in range(count)]
    dynamic = DynamicUpstreams(upstreams)
    before: dict[str, tuple[Upstream, Address]] = {}
    for replicas in rounds:
        dynamic.update_replicas(replicas)
        now = dict(dynamic._assignments)
        taken = [upstream for upstream, _ in now.values()]
        assert len({id(upstream) for upstream in taken}) == len(taken)
        assert {id(one) for one in upstreams if not one.is_unassigned} == {id(one) for one in taken}
        for name, (upstream, address) in now.items():
            assert upstream.address == address == replicas[name]
        for name, (upstream, address) in before.items():
            if replicas.get(name) == address:
                assert now[name][0] is upstream
        assert len(now) == min(count, len(replicas))
        before = now


def test_a_surplus_replica_gets_the_upstream_that_becomes_free() -> None:
    one, two = unassigned("m/1"), unassigned("m/2")
    dynamic = DynamicUpstreams([one, two])
    third = Address(host="h", port=3)
    dynamic.update_replicas({"a": HERE, "b": THERE, "c": third})
    assert (one.address, two.address) == (HERE, THERE)
    dynamic.update_replicas({"a": HERE, "c": third})
    assert (one.address, two.address) == (HERE, third)


def test_a_replica_with_a_new_address_is_assigned_anew() -> None:
    one = unassigned()
    dynamic = DynamicUpstreams([one])
    dynamic.update_replicas({"a": HERE})
    one.mark_unhealthy()
    dynamic.update_replicas({"a": THERE})
    assert one.address == THERE
    assert one.is_available


def test_an_unchanged_update_has_no_effect() -> None:
    on_change_calls: list[Upstream] = []
    one = unassigned(on_change_calls=on_change_calls.append)
    dynamic = DynamicUpstreams([one])
    dynamic.update_replicas({"a": HERE})
    one.mark_unhealthy()
    count = len(on_change_calls)
    dynamic.update_replicas({"a": HERE})
    assert not one.is_available
    assert len(on_change_calls) == count


def test_a_dynamic_upstream_starts_unassigned() -> None:
    one = unassigned()
    assert (one.is_unassigned, one.is_healthy, one.is_available, one.is_ready) == (True, False, False, False)
    one.assign(None)
    assert one.problem == "no replica of the cluster is assigned to this upstream"


def test_an_assignment_resets_the_state_of_the_previous_replica() -> None:
    one = unassigned()
    one.assign(HERE)
    for _ in range(FAILURE_THRESHOLD):
        one.breaker.record_failure()
    one.start_cooldown(30.0)
    one.mark_unhealthy()
    one.record_probe(LOST)
    assert not one.is_available
    one.assign(THERE)
    assert one.is_available
    assert (one.problem, one.breaker.state, one.retry_after_s) == (None, "closed", 0.0)


@pytest.mark.parametrize("is_well", [True, False])
def test_after_mark_unhealthy_one_successful_probe_is_enough(is_well: bool) -> None:
    one = unassigned()
    one.assign(HERE)
    one.record_probe(WELL)
    one.mark_unhealthy()
    assert not one.is_available
    one.record_probe(WELL if is_well else LOST)
    assert one.is_available is is_well


def test_one_failed_probe_does_not_make_a_replica_unhealthy() -> None:
    one = unassigned()
    one.assign(HERE)
    one.record_probe(WELL)
    for count in range(1, UNHEALTHY_AFTER_PROBES + 1):
        one.record_probe(LOST)
        assert one.is_available is (count < UNHEALTHY_AFTER_PROBES)


def test_each_change_is_reported_once() -> None:
    on_change_calls: list[bool] = []
    one = unassigned(on_change_calls=lambda upstream: on_change_calls.append(upstream.is_healthy))
    one.assign(HERE)
    one.mark_unhealthy()
    one.mark_unhealthy()
    one.record_probe(WELL)
    one.assign(None)
    assert on_change_calls == [True, False, True, False]


def test_the_key_of_the_replica_is_a_secret() -> None:
    one = unassigned()
    one.assign(HERE)
    assert "key-of-1" in one.secrets
    one.assign(THERE)
    assert "key-of-2" in one.secrets


def test_a_replica_is_treated_as_a_local_llama_cpp_engine() -> None:
    one = unassigned()
    one.assign(HERE)
    listed = b'{"data": [{"id": "m", "owned_by": "welldone"}]}'
    run_to_completion(one.record_model_list_in_steps(BufferedResponse(200, {}, listed)))
    assert one.kind == "llamacpp"
    assert one.listed_model("m") is not None


def test_a_change_wakes_all_waiters_once() -> None:
    async def work() -> None:
        upstreams = UpstreamRegistry([settings("m/1")], {})
        (one,) = upstreams.all
        waiting = [asyncio.create_task(upstreams.wait_for_change(60.0)) for _ in range(3)]
        await asyncio.sleep(0)
        one.assign(HERE)
        await asyncio.gather(*waiting)
        later = asyncio.create_task(upstreams.wait_for_change(60.0))
        await asyncio.sleep(0)
        assert not later.done()
        one.assign(None)
        await later
        await upstreams.wait_for_change(0.0)

    run(work())


def test_unassigned_upstreams_are_not_probed() -> None:
    async def work() -> None:
        pauses = asyncio.Semaphore(0)
        looked = asyncio.Semaphore(0)

        async def pause(_: float) -> None:
            looked.release()
            await pauses.acquire()

        async with await MockServer(MockScript(), handles_all=True).listen() as server:
            upstreams = UpstreamRegistry([settings("m/1")], {}, pause=pause)
            (one,) = upstreams.all
            await upstreams.start()
            await upstreams.wait_until_probed(60.0)
            await looked.acquire()
            assert server.counts.requests == 0
            assert upstreams.list_models() == [
                {"id": "m", "object": "model", "created": 0, "owned_by": "upstream"},
            ]
            one.assign(Address(host="127.0.0.1", port=server.port, prefix="/v1"))
            one.mark_unhealthy()
            pauses.release()
            await looked.acquire()
            assert one.is_available
            assert one.is_ready
            assert [request.path for request in server.requests] == ["/health", "/v1/models"]
            one.assign(None)
            pauses.release()
            await looked.acquire()
            assert len(server.requests) == 2
            await upstreams.stop()

    run(work())


def test_a_probe_of_the_previous_replica_is_ignored() -> None:
    async def work() -> None:
        looked = asyncio.Event()

        async def pause(_: float) -> None:
            looked.set()
            await asyncio.Event().wait()

        is_asked, may_answer = asyncio.Event(), asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            is_asked.set()
            await may_answer.wait()
            writer.write(b"HTTP/1.1 503 x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        upstreams = UpstreamRegistry([settings("m/1")], {}, pause=pause)
        (one,) = upstreams.all
        one.assign(Address(host="127.0.0.1", port=port, prefix="/v1"))
        await upstreams.start()
        await is_asked.wait()
        one.assign(Address(host="127.0.0.1", port=port, prefix="/v1", key="another"))
        one._failed_probes = UNHEALTHY_AFTER_PROBES - 1
        may_answer.set()
        await looked.wait()
        assert one.is_available
        await upstreams.stop()
        server.close()

    run(work())
