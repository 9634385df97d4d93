"""Tests of the nemesis checker: it finds every kind of violation."""

import asyncio
import itertools
import re
from collections.abc import Sequence
from contextlib import AsyncExitStack

import msgspec
import pytest

from faults.nemesis import chaos, client_actions, dialects
from faults.nemesis.client import Client
from faults.nemesis.client_actions import ClientAction, Dialect
from faults.nemesis.history import ENDINGS, ObservedReply, violations
from faults.nemesis.toxics import KINDS, Kind, Proxy
from faults.nemesis.upstream import FAULT_NAMES, SHAPES, reply
from faults.nemesis.upstream_actions import UpstreamAction, read_upstream_action
from tests.http.aio import run
from welldone.mock.script import EVENT_STREAM_HEADERS, MockChunk, MockReply, MockScript, json_reply
from welldone.mock.server import MockHttpRequest, MockServer

ORDER = UpstreamAction("m00100001", tokens=3)
ACTION = ClientAction(ORDER)
ALL = ORDER.text("a1-1")
TOKENS = [ORDER.token("a1-1", number) for number in range(3)]
SEEDS = range(300)


def observed(text: str = ALL, events: str = "OTTTFD", **more: object) -> ObservedReply:
    reply = ObservedReply(200, is_closed=True, is_stream=True, first_text_at=5, text=text, events=events)
    return msgspec.structs.replace(reply, **more)


@pytest.mark.parametrize(
    ("good", "attempts"),
    [
        (observed(), [1]),
        (observed(), [1, 2]),
        (observed(TOKENS[0], "OTED"), [1]),
        (observed(ALL, "OTTTFED"), [1]),
        (observed("", "", has_left=True, is_closed=False), [1]),
        (observed(TOKENS[0] + TOKENS[1][:4], "OTT", has_left=True, is_closed=False), [1]),
        (observed("", "", status=502, is_stream=False, has_error=True), [1, 2]),
    ],
    ids=["whole", "second attempt", "error", "error after all text", "disconnected", "disconnected midway", "rejected"],
)
def test_a_correct_history_has_no_violations(good: ObservedReply, attempts: Sequence[int]) -> None:
    assert violations(ACTION, good, attempts) == []
    assert good.ending in ENDINGS


@pytest.mark.parametrize(
    ("bad", "attempts", "message"),
    [
        (observed(ALL + UpstreamAction("m00200002").token("a1-2", 3)), [1], "another request"),
        (observed(TOKENS[0] + ORDER.token("b1-1", 1) + TOKENS[2]), [1], "two attempts"),
        (observed(TOKENS[0] + TOKENS[2]), [1], "lost, doubled or moved"),
        (observed(TOKENS[0] * 2 + TOKENS[1] + TOKENS[2]), [1], "lost, doubled or moved"),
        (observed(TOKENS[1] + TOKENS[0] + TOKENS[2]), [1], "lost, doubled or moved"),
        (observed(ALL.replace("✓", "?", 1)), [1], "lost, doubled or moved"),
        (observed(ALL + "x"), [1], "differs from what"),
        (observed(TOKENS[0]), [1], "as if complete"),
        (observed(""), [1], "as if complete"),
        (observed("x", "OTED"), [1], "differs from what"),
        (observed(events="OTTTF"), [1], "no end"),
        (observed(events="OTTTFDD"), [1], "more than one end"),
        (observed(TOKENS[0], "OTEDED"), [1], "more than one end"),
        (observed(events="OTTFTD"), [1], "out of its turn"),
        (observed(events="OTTTFDT"), [1], "out of its turn"),
        (observed(events="OTTTFFD"), [1], "out of its turn"),
        (observed(TOKENS[0], "OTDD", has_left=True, is_closed=False), [1], "more than one end"),
        (observed(beyond=b"data: x"), [1], "after the end"),
        (observed(unreadable="no JSON"), [1], "cannot be read"),
        (observed(), [1, 6], "after the client had received"),
        (observed(), [1, 2, 3], "asked 3 times"),
        (observed(TOKENS[0], "OT", is_closed=False), [1], "the answer did not"),
        (observed("", "", status=0, is_closed=False), [1], "the answer did not"),
        (observed("", "", status=500, has_error=True), [1], "status 500"),
        (observed("", "", status=502), [1], "the form of its dialect"),
        (observed(is_stream=False), [1], "no stream although requested"),
    ],
)
def test_a_violation_is_found(bad: ObservedReply, attempts: Sequence[int], message: str) -> None:
    assert message in "\n".join(violations(ACTION, bad, attempts))


def test_an_answer_that_broke_off_may_be_continued() -> None:
    action = ClientAction(ORDER, is_continued=True)
    assert violations(action, observed(), [1, 6]) == []
    assert "asked 3 times" in violations(action, observed(), [1, 6, 7])[0]
    assert "two attempts" in violations(action, observed(TOKENS[0] + ORDER.token("b1-1", 1)), [1, 6])[0]


@pytest.mark.parametrize("numbers", [[1, 2, 4], [1, 2, 2, 3], [1, 3, 2], [2, 3]])
def test_a_wrong_number_of_an_event_is_found(numbers: list[int]) -> None:
    assert violations(ACTION, observed(numbers=[1, 2, 3]), [1]) == []
    assert "events were lost, doubled or moved" in violations(ACTION, observed(numbers=numbers), [1])[0]


def test_an_invalid_request_must_be_rejected_and_reach_no_upstream() -> None:
    bad = ClientAction(ORDER, wrong="no key")
    refused = observed("", "", status=401, has_error=True, is_stream=False, first_text_at=None)
    assert violations(bad, refused, []) == []
    assert "asked 1 times" in violations(bad, refused, [1])[0]
    assert "200 for a request that is wrong" in violations(bad, observed(), [])[0]
    assert "status 400" in violations(bad, msgspec.structs.replace(refused, status=400), [])[0]


@pytest.mark.parametrize(
    ("dialect", "end"),
    [("responses", "W"), ("messages", "FD"), ("ollama", "W")],
    ids=["responses", "messages", "ollama"],
)
def test_each_dialect_has_its_own_end(dialect: Dialect, end: str) -> None:
    action = ClientAction(ORDER, dialect=dialect)
    assert violations(action, observed(events=f"OTTT{end}"), [1]) == []
    assert violations(action, observed(TOKENS[0], "OTE"), [1]) == []
    assert violations(action, observed(events=f"OTTT{end}{end}"), [1])
    assert violations(action, observed(events="OTTT"), [1])


def test_a_seed_draws_the_same_and_all_there_is() -> None:
    drawn = [client_actions.draw(7, 1, number) for number in SEEDS]
    assert drawn == [client_actions.draw(7, 1, number) for number in SEEDS]
    assert drawn != [client_actions.draw(8, 1, number) for number in SEEDS]
    assert {one.dialect for one in drawn} == set(client_actions.DIALECTS)
    assert {one.wrong for one in drawn} == {"", *client_actions.WRONG}
    assert {one.order.shape for one in drawn} == set(SHAPES)
    assert {one.order.fault for one in drawn} == {"", *FAULT_NAMES}
    faults = [chaos.draw(7, "a", number, 1.0) for number in SEEDS]
    assert faults == [chaos.draw(7, "a", number, 1.0) for number in SEEDS]
    assert {fault.kind for fault in faults} == {*chaos.PROCESS_FAULTS, *KINDS}


@pytest.mark.parametrize("dialect", dict.fromkeys(client_actions.DIALECTS))
def test_an_order_travels_in_every_dialect(dialect: Dialect) -> None:
    body = dialects.body_of(ClientAction(ORDER, dialect=dialect), ORDER.encode())
    assert ORDER.encode() in (
        body.get("prompt"),
        body.get("input"),
        *[one["content"] for one in body.get("messages", ())],
    )


def test_an_order_is_found_in_parts_of_a_text() -> None:
    text = ORDER.encode()
    parts = [{"type": "text", "text": text[:9]}, {"type": "text", "text": text[9:]}]
    assert read_upstream_action({"messages": [{"role": "user", "content": parts}]}) == (ORDER, "")


@pytest.mark.parametrize("is_chat", [True, False])
@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("is_repeatable", [True, False])
def test_an_upstream_continues_any_part_of_its_text(name: str, *, is_chat: bool, is_repeatable: bool) -> None:
    order = msgspec.structs.replace(ORDER, is_repeatable=is_repeatable)
    text = order.text("" if is_repeatable else "a1-1")
    for size in range(len(f"{order.marker}:a1-1:"), len(text) + 1):
        prompt = {"prompt": order.encode() + text[:size]}
        turns = [{"role": "user", "content": order.encode()}, {"role": "assistant", "content": text[:size]}]
        found, prefix = read_upstream_action({"messages": turns} if is_chat else prompt)
        whole = msgspec.structs.replace(found, shape="whole")
        body = msgspec.json.decode(reply(whole, "c9-9", name, is_chat=is_chat, prefix=prefix).body)
        (choice,) = body["choices"]
        assert prefix + (choice["message"]["content"] if is_chat else choice["text"]) == text
    begins_again = msgspec.structs.replace(order, ignores_prefill=True)
    assert text[:5].encode() in reply(begins_again, "c9-9", name, is_chat=is_chat, prefix=text[:20]).body
    assert b"another text" in reply(order, "c9-9", name, is_chat=is_chat, prefix=f"{order.marker}::x").body


async def _send(
    answer: MockReply, action: ClientAction = ACTION, toxic: Kind | None = None
) -> tuple[ObservedReply, list[str]]:
    """Return what a client receives of an upstream through a proxy, and what the proxy recorded."""
    seen: list[str] = []
    async with await MockServer(MockScript(), lambda _: answer).listen() as upstream, Proxy("a", seen.append) as proxy:
        proxy.upstream_port = upstream.port
        client = Client(proxy.port, "key", itertools.count(), lambda one: dialects.body_of(one, one.order.encode()))
        try:
            async with AsyncExitStack() as stack:
                if toxic is not None:
                    await stack.enter_async_context(proxy.ill(toxic))
                return await client.send(action), seen
        except ConnectionRefusedError:
            return ObservedReply(), seen
        finally:
            client.close()


@pytest.mark.parametrize("shape", ["plain", "role-always", "usage-first", "split", "comments", "close-after", "joined"])
def test_a_client_hears_all_that_an_upstream_says(shape: str) -> None:
    order = msgspec.structs.replace(ORDER, shape=shape)
    received, seen = run(_send(reply(order, "a1-1", "a", is_chat=True), ClientAction(order, reuses_connection=False)))
    assert received.text == ALL
    assert violations(ClientAction(order), received, [0]) == []
    assert seen == [order.marker]


@pytest.mark.parametrize("toxic", ["latency", "bandwidth", "slow_close", "slicer"])
def test_a_slow_network_loses_nothing(toxic: Kind) -> None:
    received, _ = run(_send(reply(ORDER, "a1-1", "a", is_chat=True), toxic=toxic))
    assert received.text == ALL


@pytest.mark.parametrize("toxic", ["down", "timeout", "reset_peer", "limit_data"])
def test_a_broken_network_breaks_the_answer(toxic: Kind) -> None:
    long = msgspec.structs.replace(ORDER, pad=2000)
    received, _ = run(_send(reply(long, "a1-1", "a", is_chat=True), toxic=toxic))
    assert received.ending == "broken"


@pytest.mark.parametrize("fault", FAULT_NAMES)
def test_a_fault_never_looks_like_a_whole_answer(fault: str) -> None:
    order = msgspec.structs.replace(ORDER, fault=fault, faulty="b", at=0.5)
    assert reply(order, "a1-1", "a", is_chat=True).body == reply(ORDER, "a1-1", "a", is_chat=True).body
    assert _text(reply(ORDER, "b1-1", "b", is_chat=True).body) == ORDER.text("b1-1")
    assert _text(reply(order, "b1-1", "b", is_chat=True).body) != ORDER.text("b1-1")


def _text(body: bytes) -> str:
    """Return the text of a chat stream, as far as its chunks can be read."""
    return "".join(msgspec.json.decode(text) for text in re.findall(rb'"content": ?("(?:[^"\\]|\\.)*")', body))


@pytest.mark.parametrize("returns", [0, 1, 2])
@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_client_comes_back_for_the_rest_of_its_stream(returns: int, *, is_wrong: bool) -> None:
    order = msgspec.structs.replace(ORDER, tokens=9)
    frames = [chunk.data for chunk in reply(order, "a1-1", "a", is_chat=True).pieces]
    numbered = [MockChunk(base64=b"id: %d\n%s" % pair) for pair in enumerate(frames, 1)]
    seen: list[str] = []

    def choose(request: MockHttpRequest) -> MockReply:
        seen.append(request.method)
        if request.method == "DELETE":
            return json_reply({"deleted": True})
        last = {name.lower(): value for name, value in request.headers.items()}.get("last-event-id", "0")
        after = int(last) - (is_wrong and request.method == "GET")
        head = {**EVENT_STREAM_HEADERS, "x-welldone-stream-id": "stream_1"}
        return MockReply(tuple(numbered[after:]), headers=head)

    async def work() -> None:
        action = ClientAction(order, leaves_after=2, returns=returns, is_rude=True)
        async with await MockServer(MockScript(), choose, handles_all=True).listen() as server:
            client = Client(server.port, "key", itertools.count(), lambda one: dialects.body_of(one, "hello"))
            received = await client.send(action)
        assert seen == ["POST", *["GET"] * returns, *([] if returns else ["DELETE"])]
        assert received.ending == ("whole" if returns else "left")
        found = violations(action, received, [0])
        assert (
            found == [] if not (is_wrong and returns) else "events were lost, doubled or moved" in found[0] + found[1]
        )

    run(work())


def test_a_proxy_that_was_down_is_there_again() -> None:
    async def work() -> None:
        async with await MockServer(MockScript()).listen() as upstream, Proxy("a", lambda _: None) as proxy:
            proxy.upstream_port = upstream.port
            async with proxy.ill("down"):
                with pytest.raises(ConnectionRefusedError):
                    await asyncio.open_connection("127.0.0.1", proxy.port)
            _, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.close()

    run(work())
