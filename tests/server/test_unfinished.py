"""Upstreams whose answers end without `finish_reason` and `[DONE]`, with both values of `ends`."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.http.aio import run
from tests.server.running_gateway import Gateway, gateway
from tests.server.running_server import CHAT, HELLO, ROLE, RecordedReply
from tests.table import table
from welldone.gateway import error_mapping
from welldone.gateway.upstream import FAILURE_THRESHOLD
from welldone.mock.script import CHUNK_TEMPLATE, MockChunk, MockReply, MockScript, json_reply
from welldone.mock.variants import FAULT_REPLIES

STREAM = {**CHAT, "stream": True}
BOTH = pytest.mark.parametrize("request_body", [STREAM, CHAT], ids=["stream", "whole"])
CLOSE: Any = {"each": {"ends": "close"}}
HINT = 'if that is its way, set ends = "close" for it'

UNFINISHED = MockReply((ROLE, HELLO))
CUT = MockReply((ROLE, HELLO), end="cut")
CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "get", "arguments": '{"x": '}}
HALF_A_CALL = MockReply((ROLE, MockChunk(CHUNK_TEMPLATE % (json.dumps({"tool_calls": [CALL]}), "null"))))
NO_FINISH_REASON = json_reply({"choices": [{"index": 0, "message": {"content": "Hello"}}]})


def ask(
    folder: Path,
    reply: MockReply,
    request: dict[str, Any],
    path: str = "/v1/chat/completions",
    **settings: Any,  # noqa: ANN401 - of the gateway
) -> tuple[RecordedReply, str]:
    """The response, and the metrics."""

    async def work() -> tuple[RecordedReply, str]:
        async with gateway(folder, [reply], **settings) as serving:
            response = await serving.post(request, path)
            return response, (await serving.get("/metrics")).body.decode()

    return run(work())


def count(metrics: str, outcome: str) -> int:
    """The attempts with an outcome."""
    found = re.search(rf'welldone_upstream_requests_total{{status="{outcome}",upstream="a"}} (\d+)', metrics)
    return 0 if found is None else int(found[1])


def is_stop(response: RecordedReply) -> bool:
    return b'"finish_reason":"stop"' in response.body


@BOTH
@table(
    "reply",
    [
        UNFINISHED,
        msgspec.structs.replace(UNFINISHED, framing="length"),
        MockReply((ROLE, MockChunk(HELLO.data.removesuffix(b"\n\n").decode()))),
        NO_FINISH_REASON,
        msgspec.structs.replace(NO_FINISH_REASON, framing="close"),  # a whole JSON object is complete
    ],
)
def test_a_complete_body_ends_an_answer_with_close(
    tmp_path: Path, reply: MockReply, request_body: dict[str, Any]
) -> None:
    response, metrics = ask(tmp_path, reply, request_body, **CLOSE)
    assert response.status == 200
    assert b"Hello" in response.body
    assert is_stop(response)
    assert set(response.findings()) <= {"ns-usage", "use-final-chunk"}
    assert count(metrics, "200") == 1
    assert "unfinished" not in metrics


def test_equal_streams_end_alike(tmp_path: Path) -> None:
    """From the second on they may be written from a template."""

    async def work() -> None:
        async with gateway(tmp_path, [UNFINISHED], **CLOSE) as serving:
            responses = [await serving.post(STREAM) for _ in range(4)]
        assert [(is_stop(response), response.findings()) for response in responses] == [(True, [])] * 4

    run(work())


@BOTH
@table(
    ("reply", "outcome"),
    [
        (CUT, "cut"),
        (msgspec.structs.replace(CUT, framing="length", headers={**CUT.headers, "Content-Length": "9999"}), "cut"),
        (msgspec.structs.replace(UNFINISHED, framing="close"), "cut"),  # nothing shows whether it is complete
        (HALF_A_CALL, "cut"),
        (MockReply((ROLE, HELLO, MockChunk('data: {"choices":[{"ind'))), "cut"),
        (MockReply((ROLE,)), "cut"),
        (MockReply((ROLE, HELLO), end="reset"), "cut"),
    ],
)
def test_a_broken_answer_stays_an_error_with_close(
    tmp_path: Path, reply: MockReply, outcome: str, request_body: dict[str, Any]
) -> None:
    response, metrics = ask(tmp_path, reply, request_body, **CLOSE)
    assert response.error["code"] in ("incomplete_stream", "upstream_died")
    assert response.status == 502 or response.body.endswith(b"data: [DONE]\n\n")
    assert not is_stop(response)
    assert count(metrics, outcome) >= 1  # an answer without content is requested again


def test_a_body_without_a_length_that_has_an_end_needs_no_other(tmp_path: Path) -> None:
    for reply in (FAULT_REPLIES["no-length"], FAULT_REPLIES["http-1.0"]):
        response, _ = ask(tmp_path, reply, STREAM, **CLOSE)
        assert is_stop(response)


@BOTH
@table("reply", [UNFINISHED, msgspec.structs.replace(UNFINISHED, framing="close"), NO_FINISH_REASON])
def test_the_error_names_the_setting(tmp_path: Path, reply: MockReply, request_body: dict[str, Any]) -> None:
    response, metrics = ask(tmp_path, reply, request_body)
    assert response.error["code"] == "incomplete_stream"
    assert 'ends = "close"' in response.error["message"]
    assert not is_stop(response)
    assert count(metrics, "unfinished") == 1


def test_the_error_counts_such_answers(tmp_path: Path) -> None:
    async def work() -> list[str]:
        async with gateway(tmp_path, [UNFINISHED]) as serving:
            return [str((await serving.post(CHAT)).error["message"]) for _ in range(3)]

    counts = [message.partition(" of its answers")[0] for message in run(work())]
    assert counts == [f"the upstream ended {number}" for number in (1, 2, 3)]


def test_the_error_of_a_gateway_behind_this_one_is_no_answer_without_an_end(tmp_path: Path) -> None:
    error = msgspec.to_builtins(error_mapping.unfinished_upstream(3))
    _, metrics = ask(tmp_path, MockReply((ROLE, MockChunk(f"data: {json.dumps({'error': error})}\n\n"))), STREAM)
    assert count(metrics, "unfinished") == 0


def test_delivered_text_stays_delivered(tmp_path: Path) -> None:
    reply = MockReply((ROLE, HELLO, MockChunk(HELLO.data.decode(), after_s=0.05)))
    response, _ = ask(tmp_path, reply, STREAM)
    assert response.status == 200
    assert response.body.count(b"Hello") == 2
    assert 'ends = "close"' in response.error["message"]
    assert response.findings() == []


async def _upstream(serving: Gateway) -> dict[str, Any]:
    """The upstream in the server view."""
    (upstream,) = (await serving.get("/page/api/state")).json["upstreams"]
    return dict(upstream)


def test_the_circuit_breaker_stays_closed_and_the_state_has_the_hint(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [UNFINISHED]) as serving:
            assert (await _upstream(serving))["trouble"] is None
            for _ in range(FAILURE_THRESHOLD + 1):
                await serving.post(CHAT)
            upstream = await _upstream(serving)
        assert upstream["breaker"] == "closed"
        assert upstream["failing"] == "unfinished"
        assert upstream["is_healthy"]
        assert upstream["trouble"] == f"the upstream ended 6 of its answers without a finish_reason; {HINT}"

    run(work())


@table("reply", [CUT, HALF_A_CALL, MockReply((ROLE,)), FAULT_REPLIES["html"]])
def test_the_circuit_breaker_opens_for_broken_answers(tmp_path: Path, reply: MockReply) -> None:
    async def work() -> None:
        async with gateway(tmp_path, MockScript(posts=(reply,))) as serving:
            for _ in range(FAILURE_THRESHOLD):
                await serving.post(CHAT)
            upstream = await _upstream(serving)
        assert upstream["breaker"] == "open"
        assert upstream["trouble"] is None

    run(work())


@table(
    ("name", "outcome"),
    [
        ("html", "unreadable"),
        ("gzip", "unreadable"),
        ("not-http", "unreadable"),
        ("bad-json", "unreadable"),
        ("close-first", "lost"),
        ("cut-head", "lost"),
        ("cut", "cut"),
        ("empty", "cut"),
        ("error-event", "502"),
    ],
)
def test_each_failure_has_its_outcome(tmp_path: Path, name: str, outcome: str) -> None:
    _, metrics = ask(tmp_path, FAULT_REPLIES[name], CHAT)
    assert count(metrics, outcome) == 1


@table("is_native", [True, False])
def test_an_upstream_with_the_messages_api_may_end_its_answers_too(tmp_path: Path, *, is_native: bool) -> None:
    events = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}},
        {"type": "content_block_stop", "index": 0},
    ]
    chunks = [MockChunk(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n") for event in events]
    each = {"speaks": ("messages",), "chat": is_native}
    path = "/v1/messages" if is_native else "/v1/chat/completions"
    request = {**STREAM, "max_tokens": 9}
    response, metrics = ask(tmp_path, MockReply(tuple(chunks)), request, path, each={**each, "ends": "close"})
    assert (b'"stop_reason":"end_turn"' if is_native else b'"finish_reason":"stop"') in response.body
    assert count(metrics, "200") == 1
    response, metrics = ask(tmp_path, MockReply(tuple(chunks)), request, path, each=each)
    assert b"ends = " in response.body
    assert count(metrics, "unfinished") == 1
