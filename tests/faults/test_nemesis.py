"""That the judge of nemesis finds what is wrong: else to have found nothing would mean nothing."""

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import AsyncExitStack

import msgspec
import pytest

from faults.nemesis import dialects, mischief, wish
from faults.nemesis.client import Client
from faults.nemesis.history import ENDINGS, Heard, violations
from faults.nemesis.order import Order, read_order
from faults.nemesis.toxics import KINDS, Kind, Proxy
from faults.nemesis.upstream import FAULT_NAMES, SHAPES, reply
from faults.nemesis.wish import Dialect, Wish
from tests.http.aio import run
from welldone.mock.script import MockReply, MockScript
from welldone.mock.server import MockServer

ORDER = Order("m00100001", tokens=3)
WISH = Wish(ORDER)
ALL = ORDER.text("a1-1")
TOKENS = [ORDER.token("a1-1", number) for number in range(3)]
SEEDS = range(300)


def heard(text: str = ALL, events: str = "OTTTFD", **more: object) -> Heard:
    told = Heard(200, is_closed=True, is_stream=True, first_text_at=5, text=text, events=events)
    return msgspec.structs.replace(told, **more)


@pytest.mark.parametrize(
    ("right", "asked"),
    [
        (heard(), [1]),
        (heard(), [1, 2]),
        (heard(TOKENS[0], "OTED"), [1]),
        (heard(ALL, "OTTTFED"), [1]),
        (heard("", "", has_left=True, is_closed=False), [1]),
        (heard(TOKENS[0] + TOKENS[1][:4], "OTT", has_left=True, is_closed=False), [1]),
        (heard("", "", status=502, is_stream=False, has_error=True), [1, 2]),
    ],
    ids=["whole", "at the second try", "error", "error after all was said", "left", "left midway", "refused"],
)
def test_what_is_right_is_found_right(right: Heard, asked: Sequence[int]) -> None:
    assert violations(WISH, right, asked) == []
    assert right.ending in ENDINGS


@pytest.mark.parametrize(
    ("bad", "asked", "words"),
    [
        (heard(ALL + Order("m00200002").token("a1-2", 3)), [1], "another request"),
        (heard(TOKENS[0] + ORDER.token("b1-1", 1) + TOKENS[2]), [1], "two attempts"),
        (heard(TOKENS[0] + TOKENS[2]), [1], "lost, doubled or moved"),
        (heard(TOKENS[0] * 2 + TOKENS[1] + TOKENS[2]), [1], "lost, doubled or moved"),
        (heard(TOKENS[1] + TOKENS[0] + TOKENS[2]), [1], "lost, doubled or moved"),
        (heard(ALL.replace("✓", "?", 1)), [1], "lost, doubled or moved"),
        (heard(ALL + "x"), [1], "not what was said"),
        (heard(TOKENS[0]), [1], "as if it were whole"),
        (heard(""), [1], "as if it were whole"),
        (heard("x", "OTED"), [1], "not what was said"),
        (heard(events="OTTTF"), [1], "no end"),
        (heard(events="OTTTFDD"), [1], "more than one end"),
        (heard(TOKENS[0], "OTEDED"), [1], "more than one end"),
        (heard(events="OTTFTD"), [1], "out of its turn"),
        (heard(events="OTTTFDT"), [1], "out of its turn"),
        (heard(events="OTTTFFD"), [1], "out of its turn"),
        (heard(TOKENS[0], "OTDD", has_left=True, is_closed=False), [1], "more than one end"),
        (heard(beyond=b"data: x"), [1], "after the end"),
        (heard(unreadable="no JSON"), [1], "cannot be read"),
        (heard(), [1, 6], "after the client had heard"),
        (heard(), [1, 2, 3], "asked 3 times"),
        (heard(TOKENS[0], "OT", is_closed=False), [1], "the answer did not"),
        (heard("", "", status=0, is_closed=False), [1], "the answer did not"),
        (heard("", "", status=500, has_error=True), [1], "status 500"),
        (heard("", "", status=502), [1], "the form of its dialect"),
        (heard(is_stream=False), [1], "no stream where one was wanted"),
    ],
)
def test_a_history_that_is_wrong_is_caught(bad: Heard, asked: Sequence[int], words: str) -> None:
    assert words in "\n".join(violations(WISH, bad, asked))


def test_a_wrong_request_must_be_refused_and_reach_no_upstream() -> None:
    bad = Wish(ORDER, wrong="no key")
    refused = heard("", "", status=401, has_error=True, is_stream=False, first_text_at=None)
    assert violations(bad, refused, []) == []
    assert "asked 1 times" in violations(bad, refused, [1])[0]
    assert "200 for a request that is wrong" in violations(bad, heard(), [])[0]
    assert "status 400" in violations(bad, msgspec.structs.replace(refused, status=400), [])[0]


@pytest.mark.parametrize(
    ("dialect", "end"),
    [("responses", "W"), ("messages", "FD"), ("ollama", "W")],
    ids=["responses", "messages", "ollama"],
)
def test_each_dialect_has_its_own_end(dialect: Dialect, end: str) -> None:
    asked = Wish(ORDER, dialect=dialect)
    assert violations(asked, heard(events=f"OTTT{end}"), [1]) == []
    assert violations(asked, heard(TOKENS[0], "OTE"), [1]) == []
    assert violations(asked, heard(events=f"OTTT{end}{end}"), [1])
    assert violations(asked, heard(events="OTTT"), [1])


def test_a_seed_draws_the_same_and_all_there_is() -> None:
    drawn = [wish.draw(7, 1, number) for number in SEEDS]
    assert drawn == [wish.draw(7, 1, number) for number in SEEDS]
    assert drawn != [wish.draw(8, 1, number) for number in SEEDS]
    assert {one.dialect for one in drawn} == set(wish.DIALECTS)
    assert {one.wrong for one in drawn} == {"", *wish.WRONG}
    assert {one.order.shape for one in drawn} == set(SHAPES)
    assert {one.order.fault for one in drawn} == {"", *FAULT_NAMES}
    faults = [mischief.draw(7, "a", number, 1.0) for number in SEEDS]
    assert faults == [mischief.draw(7, "a", number, 1.0) for number in SEEDS]
    assert {fault.kind for fault in faults} == {*mischief.PROCESS_FAULTS, *KINDS}


@pytest.mark.parametrize("dialect", dict.fromkeys(wish.DIALECTS))
def test_an_order_travels_in_every_dialect(dialect: Dialect) -> None:
    body = dialects.body_of(Wish(ORDER, dialect=dialect), ORDER.encode())
    assert ORDER.encode() in (
        body.get("prompt"),
        body.get("input"),
        *[one["content"] for one in body.get("messages", ())],
    )


def test_an_order_is_found_in_parts_of_a_text() -> None:
    text = ORDER.encode()
    parts = [{"type": "text", "text": text[:9]}, {"type": "text", "text": text[9:]}]
    assert read_order({"messages": [{"role": "user", "content": parts}]}) == ORDER


async def _ask(answer: MockReply, asked: Wish = WISH, toxic: Kind | None = None) -> tuple[Heard, list[str]]:
    """What a client hears of an upstream through a proxy, and what the proxy saw."""
    seen: list[str] = []
    async with await MockServer(MockScript(), lambda _: answer).listen() as upstream, Proxy("a", seen.append) as proxy:
        proxy.behind = upstream.port
        client = Client(proxy.port, "key", itertools.count(), lambda one: dialects.body_of(one, one.order.encode()))
        try:
            async with AsyncExitStack() as stack:
                if toxic is not None:
                    await stack.enter_async_context(proxy.ill(toxic))
                return await client.ask(asked), seen
        except ConnectionRefusedError:
            return Heard(), seen
        finally:
            client.close()


@pytest.mark.parametrize("shape", ["plain", "role-always", "usage-first", "split", "comments", "close-after", "joined"])
def test_a_client_hears_all_that_an_upstream_says(shape: str) -> None:
    order = msgspec.structs.replace(ORDER, shape=shape)
    told, seen = run(_ask(reply(order, "a1-1", "a", is_chat=True), Wish(order, is_kept=False)))
    assert told.text == ALL
    assert violations(Wish(order), told, [0]) == []
    assert seen == [order.marker]


@pytest.mark.parametrize("toxic", ["latency", "bandwidth", "slow_close", "slicer"])
def test_a_slow_network_loses_nothing(toxic: Kind) -> None:
    told, _ = run(_ask(reply(ORDER, "a1-1", "a", is_chat=True), toxic=toxic))
    assert told.text == ALL


@pytest.mark.parametrize("toxic", ["down", "timeout", "reset_peer", "limit_data"])
def test_a_broken_network_breaks_the_answer(toxic: Kind) -> None:
    long = msgspec.structs.replace(ORDER, pad=2000)
    told, _ = run(_ask(reply(long, "a1-1", "a", is_chat=True), toxic=toxic))
    assert told.ending == "broken"


@pytest.mark.parametrize("fault", FAULT_NAMES)
def test_a_fault_never_looks_like_a_whole_answer(fault: str) -> None:
    order = msgspec.structs.replace(ORDER, fault=fault, faulty="b", at=0.5)
    assert reply(order, "a1-1", "a", is_chat=True).body == reply(ORDER, "a1-1", "a", is_chat=True).body
    assert ALL.encode() not in reply(order, "b1-1", "b", is_chat=True).body


def test_a_proxy_that_was_down_is_there_again() -> None:
    async def work() -> None:
        async with await MockServer(MockScript()).listen() as upstream, Proxy("a", lambda _: None) as proxy:
            proxy.behind = upstream.port
            async with proxy.ill("down"):
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.open_connection("127.0.0.1", proxy.port)
            _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.close()

    run(work())
