"""Responses over WebSocket: requests, events, conversations of a connection, limits, access, and its end."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from tests.http.aio import LIMIT_S, run
from tests.http.frames import HANDSHAKE
from tests.server import open_responses
from tests.server.running_gateway import Gateway, gateway
from tests.server.running_server import DONE, HELLO, ROLE, STOP, USAGE, json_error
from tests.server.test_same_dialect import numbered, response_events, seen, settings
from tests.table import table
from welldone.mock.script import MockChunk, MockReply

Json = dict[str, Any]
ANSWER = MockReply((ROLE, HELLO, STOP, USAGE, DONE))
HANGING = MockReply((ROLE, HELLO), end="hang")
TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")
KEY = "wd-key-of-a-socket-0123456789"


class Client:
    """A connection that requests responses."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, **body: Any) -> None:  # noqa: ANN401 - each field its own
        """Request a response."""
        await self.socket.send(json.dumps({"type": "response.create", "model": "m", "input": "Hi", **body}))

    async def receive(self) -> Json:
        """Return the next event."""
        async with asyncio.timeout(LIMIT_S):
            event: Json = json.loads(await self.socket.recv())
        return event

    async def events(self) -> list[Json]:
        """Return the events of a response."""
        events = [await self.receive()]
        while events[-1]["type"] not in TERMINAL:
            events.append(await self.receive())
        return events

    async def create(self, **body: Any) -> Json:  # noqa: ANN401 - each field its own
        """Return a whole response, which breaks no rule; or the error event."""
        request = {"model": "m", "input": "Hi", **body}
        await self.send(**body)
        return open_responses.checked_response(await self.events(), request)

    async def closed(self) -> int:
        """Wait for the end of the connection; returns the code of the close frame."""
        async with asyncio.timeout(LIMIT_S):
            await self.socket.wait_closed()
        assert self.socket.close_code is not None
        return self.socket.close_code


@asynccontextmanager
async def client_of(serving: Gateway, key: str | None = None, **options: Any) -> AsyncIterator[Client]:  # noqa: ANN401
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    url = f"ws://127.0.0.1:{serving.server.port}/v1/responses"
    async with connect(url, additional_headers=headers, **options) as socket:
        yield Client(socket)


@asynccontextmanager
async def session(folder: Path, *replies: MockReply, **options: Any) -> AsyncIterator[tuple[Gateway, Client]]:  # noqa: ANN401
    """A gateway in front of a chat upstream, and a connection to it."""
    async with gateway(folder, replies or (ANSWER,), **options) as serving, client_of(serving) as client:
        yield serving, client


async def until_idle(serving: Gateway) -> None:
    async with asyncio.timeout(LIMIT_S):
        while serving.answers():  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.005)


def messages(serving: Gateway) -> list[str]:
    """The contents of the messages that the upstream has received last."""
    return [message["content"] for message in seen(serving)["body"]["messages"]]


def test_responses_of_a_connection_are_sent_one_after_the_other(tmp_path: Path) -> None:
    async def work() -> None:
        async with session(tmp_path) as (_, client):
            first, second = await client.create(), await client.create(stream=False, stream_id="a")
            assert first["status"] == second["status"] == "completed"
            assert first["id"] != second["id"]
            for name in ("b", "c", "d"):
                await client.send(stream_id=name)
            assert [{event["stream_id"] for event in await client.events()} for _ in "bcd"] == [{"b"}, {"c"}, {"d"}]

    run(work())


def test_a_response_that_is_not_stored_continues_on_its_connection_only(tmp_path: Path) -> None:
    async def work() -> None:
        async with session(tmp_path) as (serving, client):
            first = await client.create(store=False)
            second = await client.create(store=False, input="And?", previous_response_id=first["id"])
            assert second["previous_response_id"] == first["id"]
            assert messages(serving) == ["Hi", "Hello", "And?"]
            third = await client.create(store=False, input="So?", previous_response_id=second["id"])
            assert messages(serving) == ["Hi", "Hello", "And?", "Hello", "So?"]
            item = {"type": "item_reference", "id": third["output"][0]["id"]}
            await client.create(store=False, input=[item])
            assert messages(serving) == ["Hello"]
            async with client_of(serving) as other:
                lost = await other.create(store=False, previous_response_id=third["id"])
                assert (lost["status"], lost["error"]["code"]) == (400, "previous_response_not_found")
                assert (await other.create(store=False))["status"] == "completed"
            assert (await serving.get(f"/v1/responses/{third['id']}")).status == 404
            fourth = await client.create(previous_response_id=third["id"], store=False)
            assert fourth["status"] == "completed"

    run(work())


def test_a_stored_response_continues_anywhere(tmp_path: Path) -> None:
    async def work() -> None:
        async with session(tmp_path) as (serving, client):
            stored = await client.create()
            async with client_of(serving) as other:
                local = await other.create(store=False, input="And?", previous_response_id=stored["id"])
                assert messages(serving) == ["Hi", "Hello", "And?"]
                await other.create(store=False, input="So?", previous_response_id=local["id"])
                assert messages(serving) == ["Hi", "Hello", "And?", "Hello", "So?"]

    run(work())


def test_a_failed_continuation_ends_its_chain(tmp_path: Path) -> None:
    async def work() -> None:
        broken = MockReply((ROLE, HELLO), end="cut")
        refused = json_error(400, {"error": {"message": "no", "type": "invalid_request_error"}})
        async with session(tmp_path, ANSWER, broken, ANSWER, refused, ANSWER, early_s=0.0) as (_, client):
            orphan = [{"type": "function_call_output", "call_id": "c1", "output": "x"}]
            for body in ({}, {}, {"input": orphan}):
                first = await client.create(store=False)
                failed = await client.create(store=False, previous_response_id=first["id"], **body)
                assert failed["status"] in ("failed", 400)
                lost = await client.create(store=False, previous_response_id=first["id"])
                assert lost["error"]["code"] == "previous_response_not_found"

    run(work())


def test_a_warm_up_generates_nothing_and_can_be_continued(tmp_path: Path) -> None:
    async def work() -> None:
        async with session(tmp_path) as (serving, client):
            warm = await client.create(generate=False, store=False, instructions="Be brief.")
            assert (warm["status"], warm["output"], warm["usage"]["total_tokens"]) == ("completed", [], 0)
            assert serving.post_counts == [0]
            await client.create(store=False, input="And?", previous_response_id=warm["id"])
            assert messages(serving) == ["Hi", "And?"]
            invalid = await client.create(generate=False, temperature="hot")
            assert invalid["error"]["param"] == "temperature"

    run(work())


def test_an_upstream_with_the_same_dialect_gets_the_conversation(tmp_path: Path) -> None:
    async def work() -> None:
        native = MockReply(numbered(*response_events()))
        async with gateway(tmp_path, [native], each=settings("responses")) as serving, client_of(serving) as client:
            await client.send(store=False, tools=[{"type": "web_search"}], client_metadata={"a": "b"})
            events = await client.events()
            assert "response.web_search_call.completed" in [event["type"] for event in events]
            assert seen(serving)["body"] == {
                "model": "m",
                "input": "Hi",
                "store": False,
                "stream": True,
                "tools": [{"type": "web_search"}],
                "client_metadata": {"a": "b"},
            }
            await client.send(store=False, input="And?", previous_response_id="resp_up")
            await client.events()
            body = seen(serving)["body"]
            assert "previous_response_id" not in body
            assert [item["type"] for item in body["input"][:3]] == ["message", "web_search_call", "message"]
            assert body["input"][3] == {"role": "user", "content": "And?"}

    run(work())


@table(
    ("message", "param"),
    [
        ("nonsense", None),
        ("[]", None),
        ("", None),
        ("{}", "type"),
        ('{"type": 5}', "type"),
        ('{"type": "response.steer"}', "type"),
        ('{"type": "response.create", "model": "m"}', "input"),
        ('{"type": "response.create", "model": "m", "input": "a", "background": true}', "background"),
        ('{"type": "response.create", "model": "m", "input": "a", "stream_id": 5}', "stream_id"),
        ('{"type": "response.create", "model": "m", "input": "a", "generate": "no"}', "generate"),
        ('{"type": "response.create", "model": "m", "input": "a", "max_tokens": 5}', "max_tokens"),
    ],
)
def test_an_invalid_message_gets_an_error_event_and_the_connection_stays(
    message: str, param: str | None, tmp_path: Path
) -> None:
    async def work() -> None:
        async with session(tmp_path) as (_, client):
            await client.socket.send(message)
            event = await client.receive()
            assert open_responses.wrong_in_error_event(event) == []
            assert (event["status"], event["error"]["param"]) == (400, param)
            assert (await client.create())["status"] == "completed"

    run(work())


def test_the_error_of_an_upstream_is_an_error_event_with_its_status(tmp_path: Path) -> None:
    async def work() -> None:
        busy = json_error(429, {"error": {"message": "slow down", "type": "rate_limit_error"}})
        async with session(tmp_path, busy) as (_, client):
            event = await client.create(stream_id="a")
            assert (event["status"], event["stream_id"]) == (429, "a")
            assert int(event["headers"]["retry-after"]) > 0

    run(work())


# Access.


@table(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": f"Bearer {KEY}", "Origin": "https://evil.example"}, 403),
        ({"Authorization": f"Bearer {KEY}", "Host": "evil.example"}, 403),
        ({"Authorization": f"Bearer {KEY}"}, 101),
        ({"Authorization": f"Bearer {KEY}", "Origin": "http://127.0.0.1:{port}"}, 101),
        ({"Authorization": f"Bearer {KEY}", "Origin": "https://chat.example"}, 101),
    ],
)
def test_a_handshake_needs_a_key_and_an_allowed_origin(headers: dict[str, str], status: int, tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [ANSWER], keys=[KEY], cors_origins=("https://chat.example",)) as serving:
            port = serving.server.port
            fields = {"Host": f"127.0.0.1:{port}", **headers}
            lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items()).replace("{port}", str(port))
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HANDSHAKE.replace(b"Host: localhost\r\n", lines.encode()))
            assert (await reader.readline()).split()[1] == str(status).encode()
            writer.close()

    run(work())


@table(
    ("old", "new", "status"),
    [
        (b"Version: 13", b"Version: 8", 426),
        (b"Upgrade: WebSocket", b"Upgrade: h2c", 426),
        (b"keep-alive, Upgrade", b"Upgrade, HTTP2-Settings", 101),
        (b"GET /v1/responses", b"GET /responses", 101),
        (b"GET /v1/responses", b"GET /v1/chat/completions", 426),
        (b"GET /v1/responses", b"DELETE /v1/responses", 426),
        (b"Upgrade: WebSocket\r\n", b"", 405),
        (b"dGhlIHNhbXBsZSBub25jZQ==", b"short", 400),
    ],
)
def test_only_a_valid_handshake_is_accepted(old: bytes, new: bytes, status: int, tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [ANSWER]) as serving:
            reader, writer = await asyncio.open_connection("127.0.0.1", serving.server.port)
            writer.write(HANDSHAKE.replace(old, new))
            assert (await reader.readline()).split()[1] == str(status).encode()
            writer.close()

    run(work())


# Limits.


def test_rate_limits_count_each_response(tmp_path: Path) -> None:
    async def work() -> None:
        async with session(tmp_path, requests_per_minute=2) as (_, client):
            assert (await client.create())["status"] == "completed"
            assert (await client.create())["status"] == "completed"
            event = await client.create()
            assert (event["status"], event["error"]["code"]) == (429, "rate_limit_exceeded")
            assert int(event["headers"]["retry-after"]) > 0

    run(work())


def test_connections_are_limited_and_idle_ones_do_not_count_as_requests(tmp_path: Path) -> None:
    async def work() -> None:
        async with session(tmp_path, connections=1) as (serving, client):
            assert (await serving.post({"model": "m", "messages": [{"role": "user", "content": "Hi"}]})).status == 200
            with pytest.raises(InvalidStatus) as caught:
                async with client_of(serving):
                    pass
            assert caught.value.response.status_code == 503
            assert (await client.create())["status"] == "completed"

    run(work())


def test_a_message_beyond_the_body_limit_closes_the_connection(tmp_path: Path) -> None:
    async def work() -> None:
        async with session(tmp_path, body_limit_bytes=2_000) as (_, client):
            await client.send(input="x" * 2_000)
            assert await client.closed() == 1009

    run(work())


def test_received_messages_count_against_the_memory_for_bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with session(tmp_path, HANGING) as (serving, client):
            await client.send()
            await client.receive()
            await client.send(input="x" * 50_000)
            assert await client.closed() == 1013
            await until_idle(serving)

    monkeypatch.setattr("welldone.server.parts.BODY_BUDGET_BYTES", 40_000)
    run(work())


def test_an_idle_connection_is_closed(tmp_path: Path) -> None:
    async def work() -> None:
        async with session(tmp_path, socket_idle_s=0.3) as (_, client):
            assert (await client.create())["status"] == "completed"
            assert await client.closed() == 1001

    run(work())


def test_an_old_connection_gets_an_error_event_and_is_closed(tmp_path: Path) -> None:
    async def work() -> None:
        slow = MockReply((ROLE, MockChunk(HELLO.text, after_s=0.6), STOP, USAGE, DONE))
        async with session(tmp_path, slow, socket_life_s=0.5) as (_, client):
            assert (await client.create())["status"] == "completed"
            event = await client.receive()
            assert event["error"]["code"] == "websocket_connection_limit_reached"
            assert await client.closed() == 1001

    run(work())


def test_a_slow_reader_pauses_the_generation_and_is_disconnected(tmp_path: Path) -> None:
    async def work() -> None:
        endless = MockReply((ROLE, MockChunk(HELLO.text.replace("Hello", "x" * 100))), end="endless")
        async with session(tmp_path, endless, write_s=0.5) as (serving, client):
            # The buffers of the sockets must be full before the answer is too long to be repeated at its end.
            client.socket.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            await client.send()
            await client.receive()
            client.socket.transport.pause_reading()
            (task,) = serving.answers()
            async with asyncio.timeout(LIMIT_S):
                while not task.client.has_backpressure:  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(0.005)
            await until_idle(serving)
            assert task.error is not None
            client.socket.transport.abort()  # the closing handshake would wait for a client that reads nothing

    run(work())


# The end of a connection.


@table("is_closing", [True, False], ids=["close frame", "disconnect"])
def test_a_client_that_leaves_ends_the_generation(is_closing: bool, tmp_path: Path) -> None:
    async def work() -> None:
        async with session(tmp_path, HANGING) as (serving, client):
            await client.send()
            await client.receive()
            assert serving.answers()
            if is_closing:
                await client.socket.close()
            else:
                client.socket.transport.abort()
            await until_idle(serving)

    run(work())


def test_a_drain_finishes_the_response_in_progress_and_closes_all_connections(tmp_path: Path) -> None:
    async def work() -> None:
        slow = MockReply((ROLE, MockChunk(HELLO.text, after_s=0.5), STOP, USAGE, DONE))
        async with session(tmp_path, slow) as (serving, client), client_of(serving) as idle:
            await client.send()
            await client.send(input="not begun")
            await client.receive()
            stopping = asyncio.create_task(serving.server.stop())
            assert await idle.closed() == 1001
            assert (await client.events())[-1]["type"] == "response.completed"
            assert await client.closed() == 1001
            assert await stopping

    run(work())


def test_a_response_that_exceeds_the_drain_time_fails(tmp_path: Path) -> None:
    async def work() -> None:
        async with session(tmp_path, HANGING, drain_s=0.2) as (serving, client):
            await client.send()
            await client.receive()
            stopping = asyncio.create_task(serving.server.stop())
            last = (await client.events())[-1]
            assert (last["type"], last["response"]["error"]["code"]) == ("response.failed", "shutting_down")
            assert await client.closed() == 1001
            assert not await stopping

    run(work())


def test_pings_are_answered_and_keep_alives_are_pings(tmp_path: Path) -> None:
    async def work() -> None:
        slow = MockReply(ANSWER.pieces, after_s=0.6)
        async with session(tmp_path, slow, keep_alive_s=0.05, early_s=0.05) as (_, client):
            await (await client.socket.ping())
            assert (await client.create())["status"] == "completed"  # comments of SSE are no messages

    run(work())
