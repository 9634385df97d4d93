"""DNS resolver: slow lookups block nothing else."""

import asyncio
import socket
import threading

import pytest

from tests.http.aio import run, serving
from tests.http.test_client import REPLY
from welldone.http.address import Address
from welldone.http.client import fetch
from welldone.http.connect import HttpClientError, Resolver


class FakeNameServer:
    """A fake name server that answers name_server with the prefix `slow` when `answer_slow` is set."""

    def __init__(self) -> None:
        self.answer_slow = threading.Event()
        self.queries: list[str] = []

    def lookup(self, name: str) -> list[str]:
        self.queries.append(name)
        if name.startswith("slow"):
            self.answer_slow.wait(60)
        if name.startswith("none"):
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [] if name.startswith("empty") else ["127.0.0.1", "::1"]


def test_a_slow_lookup_is_shared_and_blocks_nothing_else() -> None:
    async def work() -> None:
        name_server = FakeNameServer()
        resolver = Resolver(name_server.lookup)
        pending = [asyncio.create_task(resolver.resolve("slow")) for _ in range(100)]
        others = await asyncio.gather(*(resolver.resolve(f"name-{number}") for number in range(20)))
        assert others == [["127.0.0.1", "::1"]] * 20
        assert await asyncio.to_thread(lambda: 5) == 5  # the default executor is free
        pending.pop().cancel()
        name_server.answer_slow.set()
        assert await asyncio.gather(*pending) == [["127.0.0.1", "::1"]] * 99
        assert name_server.queries.count("slow") == 1
        await resolver.resolve("slow")
        assert name_server.queries.count("slow") == 2

    run(work())


def test_the_number_of_pending_lookups_is_bounded() -> None:
    async def work() -> None:
        name_server = FakeNameServer()
        resolver = Resolver(name_server.lookup)
        pending = [asyncio.create_task(resolver.resolve(f"slow-{number}")) for number in range(64)]
        await asyncio.sleep(0)
        with pytest.raises(socket.gaierror):
            await resolver.resolve("one-more")
        name_server.answer_slow.set()
        await asyncio.gather(*pending)
        assert await resolver.resolve("one-more") == ["127.0.0.1", "::1"]

    run(work())


@pytest.mark.parametrize("name", ["none", "empty"])
def test_a_name_without_an_address_is_an_error(name: str) -> None:
    async def work() -> None:
        with pytest.raises(socket.gaierror):
            await Resolver(FakeNameServer().lookup).resolve(name)

    run(work())


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "fe80::1%lo"])
def test_an_ip_address_is_not_looked_up(address: str) -> None:
    async def work() -> None:
        name_server = FakeNameServer()
        assert await Resolver(name_server.lookup).resolve(address) == [address]
        assert name_server.queries == []

    run(work())


def test_the_next_address_is_tried_when_one_does_not_connect() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(REPLY)

    async def work() -> None:
        async with serving(answer) as port:  # on 127.0.0.1 only, while localhost often resolves to ::1 too
            reply = await fetch(Address(host="localhost", port=port), "GET", "/", timeout_s=30)
            assert reply.body == b"hello"
        for host in ("localhost", "name.invalid", "a" * 300, ".."):
            with pytest.raises(HttpClientError):
                await fetch(Address(host=host, port=1), "GET", "/", timeout_s=30)

    run(work())
