"""The way of one answer: what the engine does, and what the client gets of it."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.http.aio import run
from tests.server.scripts import CHAT, DONE, HELLO, ROLE, STOP, USAGE, Heard, Serving, refusal, scripted
from tests.table import table
from welldone.gateway.errors import ApiError
from welldone.mock.script import MockChunk, MockReply
from welldone.protocol.envelope import Endpoint, Envelope
from welldone.protocol.events import EventOrderError, Failure
from welldone.protocol.pipeline import StreamPipeline

STREAM = {**CHAT, "stream": True}
WHOLE = MockReply((ROLE, HELLO, STOP, USAGE, DONE))

HIDDEN = MockChunk(': {"choices":[]}\n\n', after_s=0.1)
LATE = MockChunk(STOP.text, after_s=0.1)
"""They come each by itself."""

HAS_HEAD = ["err-status-before-stream"]
"""Who waits longer than `early_s` has the head of a stream and signs of life: an error has no other status any more."""


def ask(folder: Path, *posts: MockReply, request: dict[str, Any] = STREAM, **settings: Any) -> Heard:  # noqa: ANN401 - each its own
    async def work() -> Heard:
        async with scripted(folder, *posts, **settings) as serving:
            return await serving.ask(request)

    return run(work())


@pytest.mark.parametrize("request_body", [STREAM, CHAT], ids=["stream", "whole"])
def test_an_answer_is_right(tmp_path: Path, request_body: dict[str, Any]) -> None:
    heard = ask(tmp_path, WHOLE, request=request_body)
    assert heard.status == 200
    assert heard.findings() == []
    assert b"Hello" in heard.body


TOO_LONG = {
    "error": {"code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": 9, "n_ctx": 8, "message": "x"}
}


@table("request_body", [STREAM, CHAT], ids=["stream", "whole"])
@table(
    ("reply", "status", "code"),
    [
        (refusal(400, TOO_LONG), 400, "context_length_exceeded"),
        (refusal(400, {"error": {"message": "no such thing"}}), 400, "invalid_request"),
        (refusal(422, {"detail": "no"}), 400, "invalid_request"),
        (refusal(501, {"error": {"message": "cannot"}}), 400, "unsupported_by_model"),
        (refusal(503, {"error": {"message": "Loading model"}}), 503, "model_loading"),
        (refusal(500, {"error": {"message": "at /home/me/x.cpp 0x7fffdeadbeef"}}), 502, "engine_error"),
        (refusal(401, {"error": {"message": "Invalid API Key"}}), 502, "engine_error"),
        (refusal(500, ["what"]), 502, "engine_error"),
        (MockReply((MockChunk("<html>"),), 500), 502, "engine_error"),
        (MockReply((MockChunk("x"),), 302), 502, "engine_error"),
    ],
)
def test_what_the_engine_refuses_gets_the_right_status(
    tmp_path: Path, reply: MockReply, status: int, code: str, request_body: dict[str, Any]
) -> None:
    heard = ask(tmp_path, reply, request=request_body)
    assert (heard.status, heard.error["code"]) == (status, code)
    assert "/home" not in heard.body.decode()
    assert "0x7f" not in heard.body.decode()
    assert ("Retry-After: 1" in heard.head) == (status == 503)


def test_a_prompt_that_does_not_fit_is_told_both_numbers(tmp_path: Path) -> None:
    message = ask(tmp_path, refusal(400, TOO_LONG)).error["message"]
    assert "8 tokens" in message
    assert "9 tokens" in message


@table(
    ("reply", "code"),
    [
        (MockReply((ROLE, HELLO), end="cut"), "engine_died"),
        (MockReply((ROLE, HELLO)), "incomplete_stream"),
        (MockReply((ROLE, MockChunk('data: {"error":{"message":"broken","code":500}}\n\n'))), "500"),
        (MockReply((ROLE, MockChunk("data: " + "x" * 100 + "\n\n"))), "bad_upstream_stream"),
        (MockReply((ROLE, HELLO, HIDDEN, LATE, DONE)), "bad_upstream_stream"),
        (MockReply((ROLE, HELLO), end="hang"), "timeout"),
    ],
    ids=["cut", "without an end", "an error of its own", "garbage", "a chunk in a comment", "silence"],
)
def test_an_answer_that_breaks_off_is_never_taken_for_a_whole_one(tmp_path: Path, reply: MockReply, code: str) -> None:
    heard = ask(tmp_path, reply, idle_s=0.2, keep_alive_s=0.05)
    assert heard.findings() == []
    assert heard.error["code"] == code
    assert heard.body.endswith(b"data: [DONE]\n\n")
    assert heard.raw.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize(
    "reply", [MockReply((ROLE, HELLO), end="cut"), MockReply((ROLE, HELLO)), MockReply((ROLE,), end="hang")]
)
def test_a_whole_reply_that_cannot_be_had_is_an_error_of_the_engine(tmp_path: Path, reply: MockReply) -> None:
    heard = ask(tmp_path, reply, request=CHAT, idle_s=0.2, first_byte_s=0.4, keep_alive_s=0.05)
    assert heard.status in (502, 504)
    assert heard.findings() == []


def test_an_engine_that_never_begins_is_given_up(tmp_path: Path) -> None:
    heard = ask(tmp_path, MockReply((), end="hang"), first_byte_s=0.2, keep_alive_s=0.05, early_s=0.05)
    assert heard.error["code"] == "timeout"
    assert b": keep-alive" in heard.body
    assert heard.findings() == HAS_HEAD


def test_a_refusal_after_the_head_is_an_error_event(tmp_path: Path) -> None:
    late = MockReply(
        (MockChunk('{"error":{"message":"late"}}', after_s=0.3),), 400, {"Content-Type": "application/json"}
    )
    heard = ask(tmp_path, late, early_s=0.05, keep_alive_s=0.1)
    assert heard.status == 200
    assert heard.error["message"] == "late"
    assert heard.findings() == HAS_HEAD


def test_silence_is_filled_with_comments_up_to_a_number(tmp_path: Path) -> None:
    slow = MockReply((ROLE, MockChunk(HELLO.text, after_s=1.0), STOP, DONE))
    heard = ask(tmp_path, slow, keep_alive_s=0.01, idle_s=60.0)
    assert heard.findings() == []
    assert 10 < heard.body.count(b": keep-alive\n\n") <= 45


def test_a_stream_that_flows_needs_no_comments(tmp_path: Path) -> None:
    flowing = MockReply((ROLE, *[MockChunk(HELLO.text, after_s=0.02)] * 30, STOP, DONE))
    heard = ask(tmp_path, flowing, keep_alive_s=0.3, idle_s=60.0)
    assert heard.body.count(b": keep-alive\n\n") <= 1  # one where the machine itself was asleep
    assert heard.body.count(b"Hello") == 30


@pytest.mark.parametrize("request_body", [STREAM, CHAT], ids=["stream", "whole"])
def test_a_server_that_leaves_its_body_open_is_not_waited_for(tmp_path: Path, request_body: dict[str, Any]) -> None:
    heard = ask(tmp_path, MockReply((ROLE, HELLO, STOP, USAGE, DONE), end="hang"), request=request_body)
    assert heard.status == 200
    assert heard.findings() == []


def test_bodies_that_are_left_open_do_not_hold_up_the_next_choice(tmp_path: Path) -> None:
    hanging = MockReply((ROLE, HELLO, STOP, USAGE, DONE), end="hang")

    async def work() -> Heard:
        async with scripted(tmp_path, hanging, model={"parallel": 1}) as serving:
            return await serving.ask({**STREAM, "n": 2})

    heard = run(work())
    assert heard.findings() == []
    assert heard.body.count(b"Hello") == 2


def test_an_engine_that_does_not_even_begin_its_reply_is_given_up(tmp_path: Path) -> None:
    async def work() -> Heard:
        async with scripted(tmp_path, first_byte_s=0.3) as serving:
            process = serving.server.fleet.models[0].process
            assert process is not None
            engines = await asyncio.create_subprocess_exec("pgrep", "-P", str(process.pid), stdout=-1)
            child = int((await engines.communicate())[0].split()[0])
            os.kill(child, signal.SIGSTOP)
            try:
                return await serving.ask(CHAT)
            finally:
                os.kill(child, signal.SIGCONT)

    heard = run(work())
    assert (heard.status, heard.error["code"]) == (504, "timeout")


def test_each_choice_is_asked_for_by_itself(tmp_path: Path) -> None:
    async def work() -> tuple[Heard, list[dict[str, Any]]]:
        async with scripted(tmp_path, WHOLE) as serving:
            heard = await serving.ask({**STREAM, "n": 3, "seed": 7, "stream_options": {"include_usage": True}})
            return heard, await serving.seen()

    heard, seen = run(work())
    assert {json.loads(one["body"])["seed"] for one in seen} == {7, 8, 9}
    assert all("n" not in json.loads(one["body"]) for one in seen)
    indices = {choice["index"] for line in _data(heard) for choice in line["choices"]}
    assert indices == {0, 1, 2}
    assert heard.findings() == []
    assert _data(heard)[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}


def test_one_part_that_fails_ends_them_all(tmp_path: Path) -> None:
    async def work() -> tuple[Heard, list[dict[str, Any]]]:
        async with scripted(tmp_path, MockReply((ROLE, HELLO), end="hang"), MockReply((ROLE,), end="cut")) as serving:
            heard = await serving.ask({**STREAM, "n": 2})
            seen = await serving.seen()
            while any(one["end"] == "running" for one in seen):
                seen = await serving.seen()
            return heard, seen

    heard, seen = run(work())
    assert heard.error["code"] == "engine_died"
    assert heard.findings() == []
    assert sorted(one["end"] for one in seen) == ["cut", "left"]


@table("request_body", [STREAM, CHAT], ids=["stream", "whole"])
@table("reply", [MockReply((), end="hang"), MockReply((ROLE, HELLO), end="hang")], ids=["before", "midway"])
def test_a_client_that_leaves_takes_its_engine_along(
    tmp_path: Path, reply: MockReply, request_body: dict[str, Any]
) -> None:
    async def work() -> None:
        async with scripted(tmp_path, reply) as serving:
            _, writer = await serving.send(request_body)
            while not await serving.seen():
                pass
            writer.transport.abort()
            while (await serving.seen())[0]["end"] != "left":
                pass

    run(work())


def test_a_client_that_does_not_read_is_left(tmp_path: Path) -> None:
    flood = MockReply((ROLE, *[MockChunk(HELLO.text.replace("Hello", "x" * 100_000))] * 400, STOP, DONE))

    async def work() -> None:
        async with scripted(tmp_path, flood, write_s=0.2) as serving:
            _, writer = await serving.send(STREAM)
            while not (seen := await serving.seen()) or seen[0]["end"] == "running":
                pass
            assert seen[0]["end"] == "left"
            writer.close()

    run(work())


def test_a_slow_client_gets_all_of_it(tmp_path: Path) -> None:
    flood = MockReply((ROLE, *[MockChunk(HELLO.text.replace("Hello", "x" * 100_000))] * 100, STOP, DONE))

    async def work() -> bytes:
        async with scripted(tmp_path, flood) as serving:
            reader, writer = await serving.send(STREAM)
            while not await serving.seen():
                pass
            raw = bytearray()
            while piece := await reader.read(65536):
                raw += piece
                await asyncio.sleep(0)
            writer.close()
            return bytes(raw)

    heard = Heard(run(work()), STREAM)
    assert heard.findings() == []
    assert heard.body.count(b"x" * 100_000) == 100


def test_what_runs_when_the_server_ends_is_told_so(tmp_path: Path) -> None:
    async def work() -> list[Heard]:
        async with scripted(tmp_path, MockReply((ROLE, HELLO), end="hang"), drain_s=0.1) as serving:
            asks = [asyncio.create_task(serving.ask(request)) for request in (STREAM, CHAT)]
            while len(await serving.seen()) < 2:
                pass
            assert not await serving.server.stop()
            return list(await asyncio.gather(*asks))

    streamed, whole = run(work())
    assert streamed.error["code"] == "shutting_down"
    assert streamed.findings() == []
    assert (whole.status, whole.error["code"]) == (503, "shutting_down")


def test_a_full_queue_is_told_when_to_come_again(tmp_path: Path) -> None:
    async def work(serving: Serving) -> Heard:
        _, writer = await serving.send(STREAM)
        while not await serving.seen():
            pass
        heard = await serving.ask()
        writer.close()
        return heard

    async def all_of_it() -> Heard:
        hanging = MockReply((ROLE, HELLO), end="hang")
        async with scripted(tmp_path, hanging, model={"parallel": 1, "queue": 0}, drain_s=0.1) as serving:
            return await work(serving)

    heard = run(all_of_it())
    assert (heard.status, heard.error["code"]) == (429, "queue_full")
    assert "Retry-After: " in heard.head
    assert heard.findings() == []


@pytest.mark.parametrize("request_body", [STREAM, CHAT], ids=["stream", "whole"])
def test_silence_after_the_first_word_has_the_shorter_limit(tmp_path: Path, request_body: dict[str, Any]) -> None:
    hanging = MockReply((ROLE, HELLO), end="hang")
    heard = ask(tmp_path, hanging, request=request_body, idle_s=0.2, first_byte_s=3600.0, keep_alive_s=3600.0)
    assert heard.error["code"] == "timeout"


def test_a_request_does_not_wait_for_itself(tmp_path: Path) -> None:
    slow = MockReply((ROLE, MockChunk(HELLO.text, after_s=0.2), STOP, USAGE, DONE))

    async def work() -> Heard:
        async with scripted(tmp_path, slow, model={"parallel": 1, "queue": 0, "queue_wait_s": 0.01}) as serving:
            return await serving.ask({**STREAM, "n": 4})

    heard = run(work())
    assert heard.findings() == []
    assert heard.body.count(b"Hello") == 4


def test_a_part_that_reads_its_prompt_may_be_silent_for_longer(tmp_path: Path) -> None:
    quick = MockReply((ROLE, HELLO, STOP, USAGE, DONE))
    slow = MockReply((MockChunk(ROLE.text, after_s=0.6), HELLO, STOP, USAGE, DONE))
    heard = ask(tmp_path, quick, slow, request={**STREAM, "n": 2}, idle_s=0.2, first_byte_s=3600.0)
    assert heard.findings() == []
    assert heard.body.count(b"Hello") == 2


def test_a_busy_engine_is_passed_on_with_its_time(tmp_path: Path) -> None:
    busy = MockReply(
        (MockChunk('{"error":{"message":"busy"}}'),), 429, {"Content-Type": "application/json", "Retry-After": "7"}
    )
    heard = ask(tmp_path, busy)
    assert heard.status == 429
    assert "Retry-After: 7" in heard.head


def test_what_is_not_streamed_ends_with_the_server_too(tmp_path: Path) -> None:
    async def work() -> Heard:
        async with scripted(tmp_path, MockReply((), end="hang"), drain_s=0.1) as serving:
            asked = asyncio.create_task(serving.ask({"model": "m", "input": "x"}, "/v1/embeddings"))
            while not await serving.seen():
                pass
            await serving.server.stop()
            return await asked

    heard = run(work())
    assert (heard.status, heard.error["code"]) == (503, "shutting_down")


class _Broken(StreamPipeline):
    """A pipe with a mistake in it."""

    def fail(self, failure: Failure) -> bytes:
        raise EventOrderError("Failure", "all is lost", "nothing")


def test_a_mistake_of_ours_still_ends_the_stream(tmp_path: Path) -> None:
    async def work() -> Heard:
        async with scripted(tmp_path, MockReply((ROLE, HELLO), end="hang")) as serving:
            asked = asyncio.create_task(serving.ask(STREAM))
            while not any(answer.times.has_begun for answer in serving.answers()):
                await serving.seen()
            await serving.seen()
            (answer,) = serving.answers()
            answer.pipeline = _Broken(Endpoint.CHAT, fallback=Envelope("chatcmpl-1", 1, "m"))
            answer.abort(ApiError(500, "broken", code="internal_error"))
            return await asked

    heard = run(work())
    assert heard.body.endswith(b"data: [DONE]\n\n")
    assert heard.raw.endswith(b"0\r\n\r\n")


def _data(heard: Heard) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in heard.body.decode().splitlines() if line.startswith("data: {")]
