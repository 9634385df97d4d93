"""Background responses whose stream can be resumed: `GET /v1/responses/{id}?stream=true&starting_after=N`."""

import json
from pathlib import Path
from typing import Any

from tests.http.aio import run
from tests.server.resumable import (
    ASKS,
    Connection,
    GatedUpstream,
    connect,
    findings,
    gated_gateway,
    request,
)
from tests.server.running_gateway import Gateway
from tests.server.test_resume import CHUNKS, LONG, RESPONSE, WORDS, wait_until
from tests.table import table

BACKGROUND: dict[str, Any] = {**RESPONSE, "background": True}
NATIVE_ID = "resp_upstream"


def values(events: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(event.partition(b"data: ")[2]) for event in events]


def native_chunks() -> list[str]:
    """The stream of an upstream with this dialect."""
    response = {
        "id": NATIVE_ID,
        "object": "response",
        "created_at": 1,
        "model": "up",
        "background": False,
        "output": [],
    }
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed"}
    part = {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
    at = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    done = {**message, "content": [part]}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": response | {"status": "in_progress"}},
        {"type": "response.in_progress", "response": response | {"status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": message | {"content": []}},
        {"type": "response.content_part.added", **at, "part": part | {"text": ""}},
        {"type": "response.output_text.delta", **at, "delta": "Hello", "logprobs": []},
        {"type": "response.output_text.done", **at, "text": "Hello", "logprobs": []},
        {"type": "response.content_part.done", **at, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        {
            "type": "response.completed",
            "response": response | {"status": "completed", "output": [done], "usage": usage},
        },
    ]
    return [
        f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': number})}\n\n"
        for number, event in enumerate(events)
    ]


async def begin(gate: Gateway, events: int) -> tuple[Connection, str, list[bytes]]:
    """Start a background stream and lose it after some events."""
    first = await connect(gate.server.port, "/v1/responses", BACKGROUND)
    seen = await first.read_events(events)
    assert first.status == 200
    await first.lose()
    return first, values(seen)[0]["response"]["id"], seen


async def retrieve(gate: Gateway, response_id: str, query: str = "", method: str = "GET") -> Connection:
    return await request(gate.server.port, f"/v1/responses/{response_id}{query}", method=method)


@table(("native",), [(False,), (True,)])
def test_a_background_stream_is_resumed_by_sequence_number(tmp_path: Path, native: bool) -> None:
    async def work() -> None:
        upstream = GatedUpstream(native_chunks() if native else CHUNKS)
        speaks = ("chat", "responses") if native else ("chat",)
        async with gated_gateway(tmp_path, upstream, speaks=speaks) as gate:
            await upstream.allow(4)
            _, name, seen = await begin(gate, 3)
            assert name.startswith("resp_")
            assert name != NATIVE_ID
            running = await retrieve(gate, name)
            assert (running.json["status"], running.json["id"]) == ("in_progress", name)
            live = await connect(gate.server.port, f"/v1/responses/{name}?stream=true&starting_after=2")
            await upstream.allow_all()
            rest = await live.read_all()
            whole = seen + rest
            assert [value["sequence_number"] for value in values(whole)] == list(range(len(whole)))
            assert findings(b"".join(whole), "responses", RESPONSE) == set()
            final = values(whole)[-1]["response"]
            assert (final["id"], final["background"], final["status"]) == (name, True, "completed")
            stored = (await retrieve(gate, name)).json
            assert stored == final
            for query, start in (("?stream=true", 0), ("?stream=true&starting_after=0", 1)):
                assert (await retrieve(gate, name, query)).events == whole[start:]
            last = len(whole) - 1
            empty = await retrieve(gate, name, f"?stream=true&starting_after={last}")
            assert (empty.status, bytes(empty.body)) == (200, b"")
            numbered = await request(gate.server.port, f"/v1/streams/{name}", "Last-Event-ID: 3\r\n")
            assert b"id: 4\n" in numbered.body
            if not native:
                text = "".join(value["delta"] for value in values(whole) if value["type"].endswith("text.delta"))
                assert text == "".join(WORDS)

    run(work())


@table(
    ("query", "status", "param"),
    [
        ("?stream=true&starting_after=99", 400, "starting_after"),
        ("?stream=true&starting_after=-1", 400, "starting_after"),
        ("?stream=true&starting_after=x", 400, "starting_after"),
        ("?starting_after=1", 400, "starting_after"),
        ("?stream=false&starting_after=1", 400, "starting_after"),
        ("?stream=maybe", 400, "stream"),
    ],
)
def test_wrong_queries_are_refused(tmp_path: Path, query: str, status: int, param: str) -> None:
    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        async with gated_gateway(tmp_path, upstream) as gate:
            await upstream.allow(3)
            _, name, _ = await begin(gate, 2)
            refused = await retrieve(gate, name, query)
            assert (refused.status, refused.json["error"]["param"]) == (status, param)

    run(work())


def test_other_responses_cannot_be_streamed_again(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        async with gated_gateway(tmp_path, upstream, resume_s=0.1) as gate:
            await upstream.allow_all()
            port = gate.server.port
            assert (await retrieve(gate, "resp_unknown", "?stream=true")).status == 404
            plain = await connect(port, "/v1/responses", {"model": "m", "input": "Hi"})
            await plain.read_all()
            refused = await retrieve(gate, plain.json["id"], "?stream=true")
            assert refused.status == 400
            assert "'background': true" in refused.json["error"]["message"]
            queued = await connect(port, "/v1/responses", {"model": "m", "input": "Hi", "background": True})
            await queued.read_all()
            refused = await retrieve(gate, queued.json["id"], "?stream=true")
            assert refused.status == 400
            assert "'stream': true" in refused.json["error"]["message"]
            first = await connect(port, "/v1/responses", BACKGROUND)
            name = values(await first.read_all())[0]["response"]["id"]
            registry = gate.server.routes._resume.registry
            await wait_until(lambda: not registry.streams)
            gone = await retrieve(gate, name, "?stream=true")
            assert (gone.status, gone.json["error"]["code"]) == (410, "events_dropped")
            assert (await retrieve(gate, name)).json["status"] == "completed"

    run(work())


def test_a_background_stream_goes_on_without_readers(tmp_path: Path) -> None:
    """Beyond the time and the memory for which other streams are kept."""

    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        async with gated_gateway(tmp_path, upstream, resume_s=0.1, keep_alive_s=0.1) as gate:
            await upstream.allow(3)
            _, name, seen = await begin(gate, 2)
            other = await connect(gate.server.port, "/v1/responses", BACKGROUND)
            while other.body.count(b": keep-alive") < 4:
                assert await other.read_chunk()
            await upstream.allow_all()
            whole = await retrieve(gate, name, "?stream=true")
            assert whole.events[: len(seen)] == seen
            assert (await retrieve(gate, name)).json["status"] == "completed"

    run(work())


def test_a_background_stream_waits_for_no_reader(tmp_path: Path) -> None:
    """Its oldest events are dropped, whether or not a reader has received them."""

    async def work() -> None:
        upstream = GatedUpstream(LONG)
        async with gated_gateway(tmp_path, upstream, resume_stream_bytes=2**16) as gate:
            await upstream.allow(2)
            _, name, _ = await begin(gate, 2)
            await upstream.allow_all()
            while (await retrieve(gate, name)).json["status"] == "in_progress":
                pass
            gone = await retrieve(gate, name, "?stream=true&starting_after=1")
            assert (gone.status, gone.json["error"]["code"]) == (410, "events_dropped")
            assert (await retrieve(gate, name)).json["status"] == "completed"

    run(work())


def test_a_cancelled_background_stream_ends_with_response_failed(tmp_path: Path) -> None:
    async def work() -> None:
        upstream = GatedUpstream(CHUNKS)
        async with gated_gateway(tmp_path, upstream) as gate:
            await upstream.allow(3)
            first = await connect(gate.server.port, "/v1/responses", BACKGROUND, ASKS)
            seen = values(await first.read_events(2))
            name = seen[0]["response"]["id"]
            assert first.stream_id == name
            cancelled = await retrieve(gate, f"{name}/cancel", method="POST")
            assert (cancelled.status, cancelled.json["status"]) == (200, "cancelled")
            whole = await first.read_all()
            final = values(whole)[-1]
            assert (final["type"], final["response"]["error"]["code"]) == ("response.failed", "cancelled")
            await upstream.disconnected.wait()
            assert (await retrieve(gate, name)).json["status"] == "cancelled"
            assert (await retrieve(gate, name, method="DELETE")).json["deleted"] is True
            assert (await retrieve(gate, name, "?stream=true")).status == 404

    run(work())


def test_a_background_stream_that_fails_early_has_a_status(tmp_path: Path) -> None:
    async def work() -> None:
        async with gated_gateway(tmp_path, GatedUpstream([])) as gate:
            refused = await connect(gate.server.port, "/v1/responses", BACKGROUND)
            await refused.read_all()
            assert refused.status == 502

    run(work())
