"""Captures: each contains the bytes received, the repairs, and exactly the bytes sent."""

import asyncio
import gc
import itertools
import json
import time
import weakref
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.http.aio import run
from tests.server import test_same_dialect as native
from tests.server.running_gateway import Gateway, gateway
from tests.server.running_server import (
    CHAT,
    DONE,
    HELLO,
    ROLE,
    STOP,
    USAGE,
    RecordedReply,
    RunningServer,
    json_error,
    run_server,
)
from tests.table import table
from welldone.config.server import KeySettings
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import Failure
from welldone.dialects.registry import passthrough_repairer_for
from welldone.http.redaction import SecretRedactor
from welldone.mock.script import CHUNK_TEMPLATE, MockChunk, MockReply, json_reply
from welldone.server.inspector import captures
from welldone.server.inspector.captures import CaptureStore, CaptureView, StreamCapture
from welldone.stream.pipeline import StreamPipeline

Json = dict[str, Any]

CAPTURE_ID = "an-id-of-22-letters-xy"
CAPTURE_HEADER = f"x-welldone-tape: {CAPTURE_ID}\r\n"
STREAM = {**CHAT, "stream": True}
GOOD = MockReply((ROLE, HELLO, STOP, USAGE, DONE))
SECOND_ROLE = MockChunk(CHUNK_TEMPLATE % ('{"role":"assistant","content":" you"}', "null"))
BAD = MockReply((ROLE, HELLO, SECOND_ROLE, SECOND_ROLE, STOP))
"""Repeats its role and has no `[DONE]`."""
FIRST: Any = {"each": {"weight": 0.01}, "first": {"weight": 1000.0}}
PLAIN, NAMED = "wd-plain-key-012345", "wd-named-key-012345"
UPSTREAM_KEY = "sk-upstream-canary-0123456789"
ENVELOPE = Envelope("chatcmpl-1", 1, "m")
RESPONSES: Json = {"model": "m", "input": "Hi"}
MESSAGES: Json = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
OLLAMA: Json = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


async def read_capture(serving: RunningServer, key: str = "", name: str = CAPTURE_ID) -> Json:
    """Read a whole capture in several requests, as the page does."""
    found: Json = {}
    steps: list[Json] = []
    while not found.get("is_done"):
        response = await serving.get(f"/page/api/tapes/{name}?from={len(steps)}", _auth(key))
        assert response.status == 200, response.body
        found = response.json
        steps += found["steps"]
        assert found["next"] == len(steps)
    assert [step["n"] for step in steps] == list(range(len(steps)))
    times = [step["at_s"] for step in steps]
    assert times == sorted(times)
    return {**found, "steps": steps}


def _auth(key: str) -> str:
    return f"Authorization: Bearer {key}\r\n" if key else ""


def sent(capture: Json) -> str:
    return "".join(step["sent"] for step in capture["steps"])


def repaired_rules(capture: Json) -> list[str]:
    return [repair["rule"] for step in capture["steps"] for repair in step["repairs"]]


def ask(
    folder: Path,
    *scripts: Any,  # noqa: ANN401 - each its own
    request: Json = STREAM,
    path: str = "/v1/chat/completions",
    **settings: Any,  # noqa: ANN401 - each its own
) -> tuple[RecordedReply, Json]:
    """Return the reply to a client that requests a capture, and the capture."""

    async def work() -> tuple[RecordedReply, Json]:
        async with gateway(folder, *scripts, **settings) as serving:
            response = await serving.post(request, path, CAPTURE_HEADER)
            return response, await read_capture(serving)

    return run(work())


def received(capture: Json, attempt: int = 0) -> bytes:
    return "".join(step["received"] for step in capture["steps"] if step["attempt"] == attempt).encode()


def test_a_capture_has_the_bytes_received_and_sent(tmp_path: Path) -> None:
    response, capture = ask(tmp_path, [GOOD])
    assert sent(capture) == response.body.decode()
    assert received(capture) == GOOD.body
    assert repaired_rules(capture) == []
    facts = {name: capture[name] for name in ("id", "endpoint", "model", "is_stream", "is_cut")}
    assert facts == {"id": CAPTURE_ID, "endpoint": "chat", "model": "m", "is_stream": True, "is_cut": False}
    (attempt,) = capture["attempts"]
    assert (attempt["server"], attempt["status"], attempt["error"], attempt["is_local"]) == ("a", 200, None, False)
    assert ["content-type", "text/event-stream"] in [[name.lower(), value] for name, value in attempt["headers"]]
    assert capture["request"]["messages"] == CHAT["messages"]
    assert {"type": "text", "index": 0, "text": "Hello"} in capture["steps"][1]["events"]


def test_a_repair_is_listed_at_its_frame(tmp_path: Path) -> None:
    response, capture = ask(tmp_path, [BAD])
    assert sent(capture) == response.body.decode()
    assert [[repair["rule"] for repair in step["repairs"]] for step in capture["steps"][:4]] == [
        [],
        [],
        ["delta-role-once"],
        ["delta-role-once"],
    ]
    (repair,) = capture["steps"][2]["repairs"]
    assert (repair["count"], repair["severity"]) == (1, "breaks")
    assert repair["repair"]
    assert repair["expected"]
    assert "end-done" in "".join(repaired_rules(capture)) or repaired_rules(capture)[2:]


ENDPOINTS: dict[str, tuple[str, Json]] = {
    "chat": ("/v1/chat/completions", CHAT),
    "responses": ("/v1/responses", RESPONSES),
    "messages": ("/v1/messages", MESSAGES),
    "ollama": ("/api/chat", OLLAMA),
    "two choices": ("/v1/chat/completions", {**CHAT, "n": 2}),
}
STREAMED_AND_BUFFERED = pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])


@STREAMED_AND_BUFFERED
@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("reply", [GOOD, BAD], ids=["good", "bad"])
def test_in_every_dialect_the_captured_output_is_what_the_client_received(
    tmp_path: Path, endpoint: str, is_stream: bool, reply: MockReply
) -> None:
    path, request = ENDPOINTS[endpoint]
    response, capture = ask(tmp_path, [reply], request={**request, "stream": is_stream}, path=path)
    assert response.status == 200
    assert sent(capture) == response.body.decode()
    assert capture["is_stream"] is is_stream


@STREAMED_AND_BUFFERED
@native.EACH
def test_a_same_dialect_stream_is_captured_with_its_own_events(
    tmp_path: Path, dialect: str, is_stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.count(1_700_000_000)
    monkeypatch.setattr(time, "time", lambda: float(next(seconds)))
    response, capture = ask(
        tmp_path,
        [native.valid_reply(dialect, is_stream=is_stream)],
        request=native.request_for(dialect, is_stream=is_stream),
        path=native.PATHS[dialect],
        each=native.settings(dialect),
    )
    assert response.status == 200
    assert sent(capture) == response.body.decode()
    if is_stream:
        assert capture["steps"][0]["events"][0]["type"] in ("response.created", "message_start")


def test_a_failover_is_two_attempts_and_only_the_second_is_sent(tmp_path: Path) -> None:
    broken = MockReply((MockChunk('data: {"error":{"message":"no","code":500}}\n\n'),))
    response, capture = ask(tmp_path, [broken], [BAD], **FIRST)
    assert sent(capture) == response.body.decode()
    assert [attempt["server"] for attempt in capture["attempts"]] == ["a", "b"]
    assert capture["attempts"][0]["error"]
    assert received(capture, 0) == broken.body
    assert received(capture, 1) == BAD.body


def test_an_error_body_is_captured_though_it_is_not_fed_to_a_pipeline(tmp_path: Path) -> None:
    body = {"error": {"message": "no such thing", "type": "invalid_request_error", "param": None, "code": None}}
    response, capture = ask(tmp_path, [json_error(400, body)])
    assert response.status == 400
    assert sent(capture) == response.body.decode()
    assert json.loads(received(capture)) == body
    assert capture["attempts"][0]["status"] == 400


def test_an_error_body_before_a_failover_is_captured(tmp_path: Path) -> None:
    body = {"error": {"message": "full", "type": "server_error", "param": None, "code": None}}
    response, capture = ask(tmp_path, [json_error(503, body)], [GOOD], **FIRST)
    assert sent(capture) == response.body.decode()
    assert json.loads(received(capture, 0)) == body
    assert received(capture, 1) == GOOD.body
    assert next(step["byte"] for step in capture["steps"] if step["attempt"] == 1) == 0


FAILURES: dict[str, tuple[MockReply, str]] = {
    "refused": (json_error(503, {"error": {"message": "full"}}), "The upstream is not available."),
    "garbage": (MockReply((MockChunk("data: {{{{\n\n"),)), "the server sent"),
    "page": (MockReply((MockChunk("<html>"),), headers={"content-type": "text/html"}), "The upstream"),
    "cut": (MockReply((ROLE, HELLO), end="cut"), "the connection was lost"),
}


@table("failure", FAILURES)
def test_a_failed_attempt_has_an_error_message(tmp_path: Path, failure: str) -> None:
    reply, words = FAILURES[failure]
    _, capture = ask(tmp_path, [reply])
    assert words in capture["attempts"][0]["error"]


def test_a_request_that_is_rejected_before_any_attempt_has_a_capture(tmp_path: Path) -> None:
    async def work() -> None:
        async with run_server(tmp_path, GOOD) as serving:
            response = await serving.post({**STREAM, "temperature": "hot"}, headers=CAPTURE_HEADER)
            assert response.status == 400
            capture = await read_capture(serving)
        assert sent(capture) == response.body.decode()
        assert capture["attempts"] == []

    run(work())


@pytest.mark.parametrize("request_body", [STREAM, CHAT], ids=["stream", "whole"])
def test_an_error_midway_ends_the_capture_and_the_response_alike(tmp_path: Path, request_body: Json) -> None:
    response, capture = ask(tmp_path, [MockReply((ROLE, HELLO), end="cut")], request=request_body)
    assert sent(capture) == response.body.decode()
    assert response.error["message"] in sent(capture)
    assert capture["attempts"][0]["error"]


def test_keep_alives_of_an_upstream_are_captured_and_not_sent(tmp_path: Path) -> None:
    ping = MockChunk(": still here\n\n")
    response, capture = ask(tmp_path, [MockReply((ROLE, ping, HELLO, STOP, USAGE, DONE))])
    assert sent(capture) == response.body.decode()
    assert received(capture) == MockReply((ROLE, ping, HELLO, STOP, USAGE, DONE)).body
    (step,) = [step for step in capture["steps"] if step["received"].startswith(ping.text.strip())]
    assert step["events"] == [{"type": "keep_alive", "is_chunk": False}]


def test_keep_alives_of_both_sides_are_in_order_of_time(tmp_path: Path) -> None:
    ping = MockChunk(": still here\n\n", after_s=0.1)
    slow = MockReply((ROLE, HELLO, ping, MockChunk(HELLO.text, after_s=0.5), STOP, USAGE, DONE))
    response, capture = ask(tmp_path, [slow], keep_alive_s=0.05)  # `read_capture` asserts their order
    assert sent(capture) == response.body.decode()
    assert ": still here" in received(capture).decode()


@pytest.mark.parametrize("settings", [{"think": "tags"}, {"strict": ("delta-role-once",)}], ids=["think", "strict"])
def test_upstream_settings_apply_to_the_capture(tmp_path: Path, settings: Json) -> None:
    thinking = MockChunk(CHUNK_TEMPLATE % ('{"content":"<think>hm</think>so"}', "null"))
    response, capture = ask(tmp_path, [MockReply((ROLE, thinking, SECOND_ROLE, STOP, USAGE, DONE))], each=settings)
    assert sent(capture) == response.body.decode()
    events = [event["type"] for step in capture["steps"] for event in step["events"]]
    assert ("reasoning" if "think" in settings else "failure") in events


def test_keep_alives_with_sequence_numbers_are_numbered_in_the_capture(tmp_path: Path) -> None:
    slow = MockReply((ROLE, HELLO, MockChunk(HELLO.text, after_s=0.5), STOP, USAGE, DONE))
    request = {**RESPONSES, "stream": True}
    response, capture = ask(tmp_path, [slow], request=request, path="/v1/responses", keep_alive_s=0.05)
    assert "keep" in response.body.decode()
    assert sent(capture) == response.body.decode()


def test_a_reply_that_is_not_streamed_is_one_step(tmp_path: Path) -> None:
    answer = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
    whole = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [answer]}
    response, capture = ask(tmp_path, [json_reply(whole)])
    assert sent(capture) == response.body.decode()
    assert json.loads(capture["steps"][0]["received"]) == whole


def test_a_local_model_is_captured(tmp_path: Path) -> None:
    async def work() -> None:
        async with run_server(tmp_path, BAD) as serving:
            response = await serving.post(STREAM, headers=CAPTURE_HEADER)
            capture = await read_capture(serving)
        assert sent(capture) == response.body.decode()
        assert capture["attempts"][0]["is_local"] is True

    run(work())


def test_a_capture_can_be_read_while_it_grows(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [MockReply((ROLE, HELLO), end="hang")]) as serving:
            reader, writer = await serving.send(STREAM, headers=CAPTURE_HEADER)
            await reader.readuntil(b"Hello")
            found = (await serving.get(f"/page/api/tapes/{CAPTURE_ID}")).json
            assert (found["is_done"], found["next"]) == (False, 2)
            again = (await serving.get(f"/page/api/tapes/{CAPTURE_ID}?from=2")).json
            assert (again["is_done"], again["steps"], again["next"]) == (False, [], 2)
            writer.close()  # Stop
            assert (await read_capture(serving))["attempts"][0]["error"] == "The client disconnected."

    run(work())


def test_without_the_header_nothing_is_captured(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [GOOD]) as serving:
            await serving.post(STREAM)
            await serving.post(STREAM, headers="x-welldone-tape: short\r\n")
            assert (await serving.get(f"/page/api/tapes/{CAPTURE_ID}")).status == 404
            assert (await serving.get("/page/api/tapes/short")).status == 404

    run(work())


def test_without_a_page_the_header_is_ignored(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [GOOD], no_page=True) as serving:
            assert (await serving.post(STREAM, headers=CAPTURE_HEADER)).status == 200
            assert (await serving.get(f"/page/api/tapes/{CAPTURE_ID}")).status == 404

    run(work())


async def _ask_with_key(serving: Gateway, key: str) -> RecordedReply:
    return await serving.post(STREAM, headers=CAPTURE_HEADER + _auth(key))


def test_a_capture_is_readable_only_with_the_key_that_requested_it(tmp_path: Path) -> None:
    async def work() -> None:
        named = (KeySettings(name="ci", key=NAMED),)
        async with gateway(tmp_path, [GOOD], keys=[PLAIN], config={"keys": named}) as serving:
            await _ask_with_key(serving, PLAIN)
            assert (await serving.get(f"/page/api/tapes/{CAPTURE_ID}", _auth(PLAIN))).status == 200
            assert (await serving.get(f"/page/api/tapes/{CAPTURE_ID}", _auth(NAMED))).status == 404
            assert (await serving.get(f"/page/api/tapes/{CAPTURE_ID}")).status == 401

    run(work())


@pytest.mark.parametrize("key", [PLAIN, NAMED], ids=["admin", "named"])
def test_only_admins_see_upstreams_in_a_capture(tmp_path: Path, key: str) -> None:
    async def work() -> None:
        named = (KeySettings(name="ci", key=NAMED),)
        error = {"error": {"message": f"Incorrect API key provided: {UPSTREAM_KEY}"}}
        async with gateway(
            tmp_path, [json_error(401, error)], keys=[PLAIN], config={"keys": named}, each={"key": UPSTREAM_KEY}
        ) as serving:
            response = await _ask_with_key(serving, key)
            capture = await read_capture(serving, key)
        assert response.status == 502
        assert sent(capture) == response.body.decode()
        assert UPSTREAM_KEY not in json.dumps(capture)
        is_admin = key == PLAIN
        assert capture["attempts"][0]["server"] == ("a" if is_admin else "")
        assert bool(capture["attempts"][0]["headers"]) is is_admin
        assert capture["attempts"][0]["error"]  # everyone sees that it failed
        assert (capture["attempts"][0]["error"] == "the attempt failed") is not is_admin
        assert ("Incorrect API key provided" in received(capture).decode()) is is_admin

    run(work())


def test_a_secret_in_a_stream_is_redacted_in_the_capture(tmp_path: Path) -> None:
    leak = MockChunk("data: " + json.dumps({"error": {"message": f"key {UPSTREAM_KEY} is bad"}}) + "\n\n")
    _, capture = ask(tmp_path, [MockReply((ROLE, HELLO, leak))], each={"key": UPSTREAM_KEY})
    assert UPSTREAM_KEY not in json.dumps(capture)
    assert "[hidden]" in received(capture).decode()


def test_bytes_that_are_not_utf8_are_captured_in_base64(tmp_path: Path) -> None:
    odd = MockChunk(base64=b'data: {"choices":[{"index":0,"delta":{"content":"\xff"},"finish_reason":null}]}\n\n')
    response, capture = ask(tmp_path, [MockReply((ROLE, odd, STOP, USAGE, DONE))])
    assert sent(capture) == response.body.decode()
    assert [step["n"] for step in capture["steps"] if "received_base64" in step] == [1]


def test_a_repair_that_observed_half_a_character_is_encoded(tmp_path: Path) -> None:
    odd = MockChunk(base64=HELLO.data.replace(b"chat.completion.chunk", b"chat\xd0"))
    response, capture = ask(tmp_path, [MockReply((ROLE, odd, STOP, USAGE, DONE))])
    assert sent(capture) == response.body.decode()
    assert [
        repair["observed"]
        for step in capture["steps"]
        for repair in step["repairs"]
        if repair["rule"] == "env-object-const"
    ] == ["chat\ufffd"]


# Limits and lifetime.


def make_pipeline() -> StreamPipeline:
    return StreamPipeline(Endpoint.CHAT, fallback=ENVELOPE)


def begin(store: CaptureStore, name: str = CAPTURE_ID, principal: str = "me") -> StreamCapture:
    capture = store.begin(principal, name, endpoint="chat", model="m", is_stream=True, began=0.0)
    assert capture is not None
    capture.pipeline_created(make_pipeline)
    return capture


def receive(capture: StreamCapture, *chunks: bytes) -> None:
    attempt = capture.begin_attempt(0, "a", b"{}", is_local=False)
    for chunk in chunks:
        attempt.data(chunk)
        capture.feed(chunk, 0)


def make_store() -> CaptureStore:
    return CaptureStore(SecretRedactor([]), clock=lambda: 1.0)


def read(capture: StreamCapture, start: int = 0, *, is_admin: bool = True) -> CaptureView:
    return run(capture.read_steps(start, is_admin=is_admin))


def steps_per_read(capture: StreamCapture) -> list[int]:
    """Read all steps; return how many each read returned."""
    found = [read(capture)]
    while not found[-1].is_done:
        found.append(read(capture, found[-1].next))
    return [len(one.steps) for one in found if one.steps]


def test_data_that_was_not_fed_keeps_its_position() -> None:
    capture = begin(make_store())
    attempt = capture.begin_attempt(0, "a", b"{}", is_local=False)
    for chunk, is_given in ((b" ", False), (b"\n" + ROLE.data, True), (b": ping\n\n", False), (HELLO.data, True)):
        attempt.data(chunk)
        if is_given:
            capture.feed((b" " + chunk) if chunk.startswith(b"\n") else chunk, 0)
    attempt.data(b": pong\n\n")
    capture.end()
    found = read(capture, is_admin=False)
    assert [step.received for step in found.steps] == [
        " \n" + ROLE.text,
        ": ping\n\n",
        HELLO.text,
        ": pong\n\n",
    ]
    ends = [step.byte + len(step.received) for step in found.steps]
    assert [step.byte for step in found.steps] == [0, *ends[:-1]]
    assert found.is_done


def test_the_oldest_capture_is_discarded_first() -> None:
    store = make_store()
    names = [f"{number:022}" for number in range(captures.CAPTURES_LIMIT + 1)]
    for name in names:
        begin(store, name)
    assert store.find("me", names[0]) is None
    assert store.find("me", names[1]) is not None
    assert store.find("me", names[-1]) is not None


def test_an_id_that_is_reused_refers_to_the_latest_response() -> None:
    store = make_store()
    first, second = begin(store), begin(store)
    assert store.find("me", CAPTURE_ID) is second
    receive(first, ROLE.data)
    assert first.size < 2000


def test_a_capture_that_grows_too_long_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captures, "CAPTURE_LIMIT_BYTES", 20_000)
    capture = begin(make_store())
    receive(capture, ROLE.data, *[HELLO.data] * 1000)
    found = read(capture)
    assert (found.is_cut, found.is_done) == (True, True)
    assert 40 < len(found.steps) < 50
    assert capture.size < 60_000


def test_the_memory_of_steps_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captures, "STEPS_LIMIT_BYTES", 50_000)
    capture = begin(make_store())
    receive(capture, *[b": x\n\n" * 100] * 8)
    found = read(capture)
    assert found.is_cut
    assert 50 < len(found.steps) < 100


def test_a_buffered_reply_that_is_too_long_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captures, "CAPTURE_LIMIT_BYTES", 20_000)
    capture = begin(make_store())
    attempt = capture.begin_attempt(0, "a", b"{}", is_local=False)
    for _ in range(10):
        attempt.data(b"x" * 5000)
    capture.feed(b"x" * 50_000, 0, is_whole=True)
    capture.end()
    found = read(capture)
    assert (found.is_cut, found.is_done, found.steps) == (True, True, [])


def test_the_memory_of_all_captures_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captures, "ALL_CAPTURES_LIMIT_BYTES", 30_000)
    store = make_store()
    old, new = begin(store, "o" * 22), begin(store, "n" * 22)
    receive(old, b"x" * 20_000)
    receive(new, b"x" * 20_000)
    assert store.find("me", "o" * 22) is None
    assert store.find("me", "n" * 22) is new


def test_a_long_capture_is_read_in_several_replies_of_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captures, "STEPS_PER_REPLY", 30)
    capture = begin(make_store())
    receive(capture, ROLE.data, HELLO.data * 99)
    capture.end()
    assert steps_per_read(capture) == [30, 30, 30, 10]
    monkeypatch.setattr(captures, "REPLY_LIMIT_BYTES", 4 * read(capture, 1).steps[0].size)
    assert steps_per_read(capture) == [3, *[4] * 24, 1]  # the first is longer
    monkeypatch.setattr(captures, "REPLY_LIMIT_BYTES", 1)
    assert steps_per_read(capture) == [1] * 100


def test_the_replay_of_a_long_capture_yields_to_other_tasks() -> None:
    ticks = itertools.count()
    capture = begin(CaptureStore(SecretRedactor([]), clock=lambda: next(ticks) * captures.REPLAY_TURN_S / 10))
    receive(capture, ROLE.data, HELLO.data * 99)
    capture.end()

    async def work() -> int:
        reading = asyncio.create_task(capture.read_steps(0, is_admin=True))
        turns = 0
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        assert len((await reading).steps) == 100
        return turns

    assert run(work()) >= 10


def test_two_concurrent_reads_return_the_same_steps() -> None:
    ticks = itertools.count()
    capture = begin(CaptureStore(SecretRedactor([]), clock=lambda: next(ticks) * captures.REPLAY_TURN_S / 10))
    receive(capture, ROLE.data, *[HELLO.data] * 99)
    capture.end()

    async def work() -> None:
        one, other = await asyncio.gather(capture.read_steps(0, is_admin=True), capture.read_steps(0, is_admin=True))
        assert [step.n for step in one.steps] == list(range(100))
        assert one == other

    run(work())


def test_a_capture_that_is_discarded_during_a_read_returns_the_steps_made_so_far() -> None:
    ticks = itertools.count()
    capture = begin(CaptureStore(SecretRedactor([]), clock=lambda: next(ticks) * captures.REPLAY_TURN_S / 10))
    receive(capture, ROLE.data, HELLO.data * 99)

    async def work() -> None:
        reading = asyncio.create_task(capture.read_steps(0, is_admin=True))
        await asyncio.sleep(0)
        capture.stop()
        found = await reading
        assert 0 < len(found.steps) < 100
        assert (found.is_cut, found.is_done) == (True, True)

    run(work())


def test_a_long_request_is_not_captured() -> None:
    capture = begin(make_store())
    capture.begin_attempt(0, "a", b'{"x":"' + b"x" * captures.REQUEST_LIMIT_BYTES + b'"}', is_local=False)
    assert bytes(read(capture).request) == b"{}"


def test_a_failure_of_the_server_ends_the_capture_with_its_error() -> None:
    capture = begin(make_store())
    receive(capture, ROLE.data, HELLO.data)
    capture.fail(Failure("gone"))
    capture.end()
    found = json.loads(msgspec.json.encode(read(capture)))
    assert found["steps"][-1]["events"][-1]["error_type"] == "server_error"
    assert "gone" in found["steps"][-1]["sent"]


def test_an_event_that_json_cannot_encode_is_marked_as_not_shown() -> None:
    capture = make_store().begin("me", CAPTURE_ID, endpoint="messages", model="m", is_stream=True, began=0.0)
    assert capture is not None
    capture.pipeline_created(lambda: passthrough_repairer_for(Endpoint.MESSAGES, fallback=Envelope("msg_1", 1, "m")))
    half = b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\xf0\x9f"}}'
    receive(capture, b"event: content_block_delta\ndata: " + half + b"\n\n")
    (step,) = read(capture).steps
    assert bytes(step.events) == b'[{"type":"unshown"}]'
    assert step.received_base64


def test_unfed_data_of_several_parts_is_limited_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captures, "CAPTURE_LIMIT_BYTES", 20_000)
    capture = begin(make_store())
    for part in range(5):
        capture.begin_attempt(part, "a", b"{}", is_local=False).data(b"x" * 5000)
    assert capture.size < 25_000
    assert read(capture).is_cut
    capture.end()
    assert read(capture).is_done


def test_a_capture_that_was_read_completely_drops_its_pipeline() -> None:
    made: list[weakref.ref[StreamPipeline]] = []

    def make() -> StreamPipeline:
        made.append(weakref.ref(new := make_pipeline()))
        return new

    capture = begin(make_store())
    capture.pipeline_created(make)
    receive(capture, ROLE.data, HELLO.data)
    capture.end()
    assert len(read(capture).steps) == 2
    gc.collect()
    assert made[0]() is None
