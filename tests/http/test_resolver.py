"""Names of servers are looked up without holding up anything else."""

import asyncio
import socket
import threading

import pytest

from tests.http.aio import run, serving
from tests.http.test_outbound import REPLY
from welldone.http.address import Address
from welldone.http.client import HttpClientError, fetch
from welldone.http.resolver import Resolver


class Names:
    """A name server: `slow.` names are answered when the gate opens."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.asked: list[str] = []

    def lookup(self, name: str) -> list[str]:
        self.asked.append(name)
        if name.startswith("slow"):
            self.gate.wait(60)
        if name.startswith("none"):
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [] if name.startswith("empty") else ["127.0.0.1", "::1"]


def test_a_name_that_hangs_is_looked_up_once_and_holds_up_nothing_else() -> None:
    async def work() -> None:
        names = Names()
        resolver = Resolver(names.lookup)
        waiting = [asyncio.create_task(resolver.resolve("slow")) for _ in range(100)]
        others = await asyncio.gather(*(resolver.resolve(f"name-{number}") for number in range(20)))
        assert others == [["127.0.0.1", "::1"]] * 20
        assert await asyncio.to_thread(lambda: 5) == 5  # the loop's own threads are free
        waiting.pop().cancel()
        names.gate.set()
        assert await asyncio.gather(*waiting) == [["127.0.0.1", "::1"]] * 99
        assert names.asked.count("slow") == 1
        await resolver.resolve("slow")
        assert names.asked.count("slow") == 2

    run(work())


def test_names_that_hang_are_bounded_in_number() -> None:
    async def work() -> None:
        names = Names()
        resolver = Resolver(names.lookup)
        waiting = [asyncio.create_task(resolver.resolve(f"slow-{number}")) for number in range(64)]
        await asyncio.sleep(0)
        with pytest.raises(socket.gaierror):
            await resolver.resolve("one-more")
        names.gate.set()
        await asyncio.gather(*waiting)
        assert await resolver.resolve("one-more") == ["127.0.0.1", "::1"]

    run(work())


@pytest.mark.parametrize("name", ["none", "empty"])
def test_a_name_without_an_address_is_an_error(name: str) -> None:
    async def work() -> None:
        with pytest.raises(socket.gaierror):
            await Resolver(Names().lookup).resolve(name)

    run(work())


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "fe80::1%lo"])
def test_an_address_is_not_looked_up(address: str) -> None:
    async def work() -> None:
        names = Names()
        assert await Resolver(names.lookup).resolve(address) == [address]
        assert names.asked == []

    run(work())


def test_a_name_of_which_one_address_does_not_answer_is_reached_by_another() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(REPLY)

    async def work() -> None:
        async with serving(answer) as port:  # on 127.0.0.1 only, while localhost is often ::1 as well
            reply = await fetch(Address(host="localhost", port=port), "GET", "/", timeout_s=30)
            assert reply.body == b"hello"
        for host in ("localhost", "name.invalid", "a" * 300, ".."):
            with pytest.raises(HttpClientError):
                await fetch(Address(host=host, port=1), "GET", "/", timeout_s=30)

    run(work())
