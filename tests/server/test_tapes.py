"""What the page is told of an answer that it watched: what came, what was mended, and just what went out."""

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
from tests.server import test_native as native
from tests.server.gateways import Gateway, gateway
from tests.server.scripts import CHAT, DONE, HELLO, ROLE, STOP, USAGE, Heard, Serving, refusal, scripted
from tests.table import table
from welldone.config.server import KeySettings
from welldone.http.redaction import SecretRedactor
from welldone.mock.script import CHUNK_TEMPLATE, MockChunk, MockReply, json_reply
from welldone.protocol.dialects.registry import passthrough_repairer_for
from welldone.protocol.envelope import Endpoint, Envelope
from welldone.protocol.events import Failure
from welldone.protocol.pipeline import StreamPipeline
from welldone.server.inspector import captures as tapes_file
from welldone.server.inspector import captures as watch_file
from welldone.server.inspector.captures import CaptureStore, CaptureView, StreamCapture

Json = dict[str, Any]

NAME = "a-name-of-22-letters-x"
WATCHED = f"x-welldone-tape: {NAME}\r\n"
STREAM = {**CHAT, "stream": True}
GOOD = MockReply((ROLE, HELLO, STOP, USAGE, DONE))
TWICE = MockChunk(CHUNK_TEMPLATE % ('{"role":"assistant","content":" you"}', "null"))
SPOILED = MockReply((ROLE, HELLO, TWICE, TWICE, STOP))
"""With its role again and again, and without its end."""
FIRST: Any = {"each": {"weight": 0.01}, "first": {"weight": 1000.0}}
PLAIN, NAMED = "wd-plain-key-012345", "wd-named-key-012345"
UPSTREAM_KEY = "sk-upstream-canary-0123456789"
HEAD = Envelope("chatcmpl-1", 1, "m")
RESPONSES: Json = {"model": "m", "input": "Hi"}
MESSAGES: Json = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
OLLAMA: Json = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


async def taped(serving: Serving, key: str = "", name: str = NAME) -> Json:
    """All of a tape, asked for as a page does."""
    found: Json = {}
    steps: list[Json] = []
    while not found.get("is_done"):
        heard = await serving.get(f"/page/api/tapes/{name}?from={len(steps)}", _by(key))
        assert heard.status == 200, heard.body
        found = heard.json
        steps += found["steps"]
        assert found["next"] == len(steps)
    assert [step["n"] for step in steps] == list(range(len(steps)))
    times = [step["at_s"] for step in steps]
    assert times == sorted(times)
    return {**found, "steps": steps}


def _by(key: str) -> str:
    return f"Authorization: Bearer {key}\r\n" if key else ""


def said(tape: Json) -> str:
    return "".join(step["said"] for step in tape["steps"])


def rules(tape: Json) -> list[str]:
    return [note["rule"] for step in tape["steps"] for note in step["notes"]]


def ask(
    folder: Path,
    *scripts: Any,  # noqa: ANN401 - each its own
    request: Json = STREAM,
    path: str = "/v1/chat/completions",
    **settings: Any,  # noqa: ANN401 - each its own
) -> tuple[Heard, Json]:
    """What a client got that watches, and its tape."""

    async def work() -> tuple[Heard, Json]:
        async with gateway(folder, *scripts, **settings) as serving:
            heard = await serving.ask(request, path, WATCHED)
            return heard, await taped(serving)

    return run(work())


def heard_in(tape: Json, attempt: int = 0) -> bytes:
    return "".join(step["heard"] for step in tape["steps"] if step["attempt"] == attempt).encode()


def test_a_tape_tells_what_came_and_what_went_out_for_it(tmp_path: Path) -> None:
    heard, tape = ask(tmp_path, [GOOD])
    assert said(tape) == heard.body.decode()
    assert heard_in(tape) == GOOD.body
    assert rules(tape) == []
    facts = {name: tape[name] for name in ("id", "endpoint", "model", "is_stream", "is_cut")}
    assert facts == {"id": NAME, "endpoint": "chat", "model": "m", "is_stream": True, "is_cut": False}
    (attempt,) = tape["attempts"]
    assert (attempt["server"], attempt["status"], attempt["error"], attempt["is_local"]) == ("a", 200, None, False)
    assert ["content-type", "text/event-stream"] in [[name.lower(), value] for name, value in attempt["headers"]]
    assert tape["request"]["messages"] == CHAT["messages"]
    assert {"type": "text", "index": 0, "text": "Hello"} in tape["steps"][1]["events"]


def test_what_was_mended_stands_at_its_frame(tmp_path: Path) -> None:
    heard, tape = ask(tmp_path, [SPOILED])
    assert said(tape) == heard.body.decode()
    assert [[note["rule"] for note in step["notes"]] for step in tape["steps"][:4]] == [
        [],
        [],
        ["delta-role-once"],
        ["delta-role-once"],
    ]
    (note,) = tape["steps"][2]["notes"]
    assert (note["count"], note["severity"]) == (1, "breaks")
    assert note["how"]
    assert note["wanted"]
    assert "end-done" in "".join(rules(tape)) or rules(tape)[2:]


WAYS: dict[str, tuple[str, Json]] = {
    "chat": ("/v1/chat/completions", CHAT),
    "responses": ("/v1/responses", RESPONSES),
    "messages": ("/v1/messages", MESSAGES),
    "ollama": ("/api/chat", OLLAMA),
    "two choices": ("/v1/chat/completions", {**CHAT, "n": 2}),
}
BOTH = pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])


@BOTH
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reply", [GOOD, SPOILED], ids=["right", "spoiled"])
def test_in_every_dialect_what_is_told_to_be_said_is_what_the_client_got(
    tmp_path: Path, way: str, is_stream: bool, reply: MockReply
) -> None:
    path, request = WAYS[way]
    heard, tape = ask(tmp_path, [reply], request={**request, "stream": is_stream}, path=path)
    assert heard.status == 200
    assert said(tape) == heard.body.decode()
    assert tape["is_stream"] is is_stream


@BOTH
@native.EACH
def test_a_native_stream_is_told_with_its_own_events(
    tmp_path: Path, dialect: str, is_stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.count(1_700_000_000)
    monkeypatch.setattr(time, "time", lambda: float(next(seconds)))
    heard, tape = ask(
        tmp_path,
        [native.right(dialect, is_stream=is_stream)],
        request=native.asked(dialect, is_stream=is_stream),
        path=native.PATHS[dialect],
        each=native.settings(dialect),
    )
    assert heard.status == 200
    assert said(tape) == heard.body.decode()
    if is_stream:
        assert tape["steps"][0]["events"][0]["type"] in ("response.created", "message_start")


def test_a_failover_is_two_attempts_and_only_the_second_is_said(tmp_path: Path) -> None:
    broken = MockReply((MockChunk('data: {"error":{"message":"no","code":500}}\n\n'),))
    heard, tape = ask(tmp_path, [broken], [SPOILED], **FIRST)
    assert said(tape) == heard.body.decode()
    assert [attempt["server"] for attempt in tape["attempts"]] == ["a", "b"]
    assert tape["attempts"][0]["error"]
    assert heard_in(tape, 0) == broken.body
    assert heard_in(tape, 1) == SPOILED.body


def test_a_refusal_is_heard_though_no_pipe_has_read_it(tmp_path: Path) -> None:
    body = {"error": {"message": "no such thing", "type": "invalid_request_error", "param": None, "code": None}}
    heard, tape = ask(tmp_path, [refusal(400, body)])
    assert heard.status == 400
    assert said(tape) == heard.body.decode()
    assert json.loads(heard_in(tape)) == body
    assert tape["attempts"][0]["status"] == 400


def test_a_refusal_before_a_failover_is_heard_too(tmp_path: Path) -> None:
    body = {"error": {"message": "full", "type": "server_error", "param": None, "code": None}}
    heard, tape = ask(tmp_path, [refusal(503, body)], [GOOD], **FIRST)
    assert said(tape) == heard.body.decode()
    assert json.loads(heard_in(tape, 0)) == body
    assert heard_in(tape, 1) == GOOD.body
    assert next(step["byte"] for step in tape["steps"] if step["attempt"] == 1) == 0


TROUBLES: dict[str, tuple[MockReply, str]] = {
    "refused": (refusal(503, {"error": {"message": "full"}}), "The upstream is not available."),
    "garbage": (MockReply((MockChunk("data: {{{{\n\n"),)), "the server sent"),
    "page": (MockReply((MockChunk("<html>"),), headers={"content-type": "text/html"}), "The upstream"),
    "cut": (MockReply((ROLE, HELLO), end="cut"), "the connection was lost"),
}


@table("trouble", TROUBLES)
def test_why_an_attempt_failed_is_told_in_words(tmp_path: Path, trouble: str) -> None:
    reply, words = TROUBLES[trouble]
    _, tape = ask(tmp_path, [reply])
    assert words in tape["attempts"][0]["error"]


def test_a_request_that_is_refused_before_anybody_is_asked_has_a_tape(tmp_path: Path) -> None:
    async def work() -> None:
        async with scripted(tmp_path, GOOD) as serving:
            heard = await serving.ask({**STREAM, "temperature": "hot"}, headers=WATCHED)
            assert heard.status == 400
            tape = await taped(serving)
        assert said(tape) == heard.body.decode()
        assert tape["attempts"] == []

    run(work())


@pytest.mark.parametrize("request_body", [STREAM, CHAT], ids=["stream", "whole"])
def test_an_error_in_the_middle_ends_the_tape_as_it_ends_the_answer(tmp_path: Path, request_body: Json) -> None:
    heard, tape = ask(tmp_path, [MockReply((ROLE, HELLO), end="cut")], request=request_body)
    assert said(tape) == heard.body.decode()
    assert heard.error["message"] in said(tape)
    assert tape["attempts"][0]["error"]


def test_signs_of_life_of_a_server_are_heard_and_not_said(tmp_path: Path) -> None:
    ping = MockChunk(": still here\n\n")
    heard, tape = ask(tmp_path, [MockReply((ROLE, ping, HELLO, STOP, USAGE, DONE))])
    assert said(tape) == heard.body.decode()
    assert heard_in(tape) == MockReply((ROLE, ping, HELLO, STOP, USAGE, DONE)).body
    (step,) = [step for step in tape["steps"] if step["heard"].startswith(ping.text.strip())]
    assert step["events"] == [{"type": "keep_alive", "is_chunk": False}]


def test_signs_of_life_of_both_sides_stand_in_the_order_of_their_times(tmp_path: Path) -> None:
    ping = MockChunk(": still here\n\n", after_s=0.1)
    slow = MockReply((ROLE, HELLO, ping, MockChunk(HELLO.text, after_s=0.5), STOP, USAGE, DONE))
    heard, tape = ask(tmp_path, [slow], keep_alive_s=0.05)  # which looks at the times
    assert said(tape) == heard.body.decode()
    assert ": still here" in heard_in(tape).decode()


@pytest.mark.parametrize("how", [{"think": "tags"}, {"strict": ("delta-role-once",)}], ids=["think", "strict"])
def test_what_an_upstream_needs_is_done_in_its_tape_as_well(tmp_path: Path, how: Json) -> None:
    thinking = MockChunk(CHUNK_TEMPLATE % ('{"content":"<think>hm</think>so"}', "null"))
    heard, tape = ask(tmp_path, [MockReply((ROLE, thinking, TWICE, STOP, USAGE, DONE))], each=how)
    assert said(tape) == heard.body.decode()
    events = [event["type"] for step in tape["steps"] for event in step["events"]]
    assert ("reasoning" if "think" in how else "failure") in events


def test_signs_of_life_that_we_send_are_numbered_in_the_tape_as_well(tmp_path: Path) -> None:
    slow = MockReply((ROLE, HELLO, MockChunk(HELLO.text, after_s=0.5), STOP, USAGE, DONE))
    request = {**RESPONSES, "stream": True}
    heard, tape = ask(tmp_path, [slow], request=request, path="/v1/responses", keep_alive_s=0.05)
    assert "keep" in heard.body.decode()
    assert said(tape) == heard.body.decode()


def test_a_reply_that_is_no_stream_is_one_step(tmp_path: Path) -> None:
    answer = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
    whole = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [answer]}
    heard, tape = ask(tmp_path, [json_reply(whole)])
    assert said(tape) == heard.body.decode()
    assert json.loads(tape["steps"][0]["heard"]) == whole


def test_a_local_model_is_watched_too(tmp_path: Path) -> None:
    async def work() -> None:
        async with scripted(tmp_path, SPOILED) as serving:
            heard = await serving.ask(STREAM, headers=WATCHED)
            tape = await taped(serving)
        assert said(tape) == heard.body.decode()
        assert tape["attempts"][0]["is_local"] is True

    run(work())


def test_while_an_answer_is_given_its_tape_grows(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [MockReply((ROLE, HELLO), end="hang")]) as serving:
            reader, writer = await serving.send(STREAM, headers=WATCHED)
            await reader.readuntil(b"Hello")
            found = (await serving.get(f"/page/api/tapes/{NAME}")).json
            assert (found["is_done"], found["next"]) == (False, 2)
            again = (await serving.get(f"/page/api/tapes/{NAME}?from=2")).json
            assert (again["is_done"], again["steps"], again["next"]) == (False, [], 2)
            writer.close()  # Stop
            assert (await taped(serving))["attempts"][0]["error"] == "The client left."

    run(work())


def test_without_the_header_nothing_is_kept(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [GOOD]) as serving:
            await serving.ask(STREAM)
            await serving.ask(STREAM, headers="x-welldone-tape: short\r\n")
            assert (await serving.get(f"/page/api/tapes/{NAME}")).status == 404
            assert (await serving.get("/page/api/tapes/short")).status == 404

    run(work())


def test_without_a_page_the_header_means_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [GOOD], no_page=True) as serving:
            assert (await serving.ask(STREAM, headers=WATCHED)).status == 200
            assert (await serving.get(f"/page/api/tapes/{NAME}")).status == 404

    run(work())


async def _with_keys(serving: Gateway, key: str) -> Heard:
    return await serving.ask(STREAM, headers=WATCHED + _by(key))


def test_a_tape_is_for_who_asked_for_it(tmp_path: Path) -> None:
    async def work() -> None:
        named = (KeySettings(name="ci", key=NAMED),)
        async with gateway(tmp_path, [GOOD], keys=[PLAIN], config={"keys": named}) as serving:
            await _with_keys(serving, PLAIN)
            assert (await serving.get(f"/page/api/tapes/{NAME}", _by(PLAIN))).status == 200
            assert (await serving.get(f"/page/api/tapes/{NAME}", _by(NAMED))).status == 404
            assert (await serving.get(f"/page/api/tapes/{NAME}")).status == 401

    run(work())


@pytest.mark.parametrize("key", [PLAIN, NAMED], ids=["admin", "named"])
def test_only_admins_hear_of_the_servers_behind(tmp_path: Path, key: str) -> None:
    async def work() -> None:
        named = (KeySettings(name="ci", key=NAMED),)
        error = {"error": {"message": f"Incorrect API key provided: {UPSTREAM_KEY}"}}
        async with gateway(
            tmp_path, [refusal(401, error)], keys=[PLAIN], config={"keys": named}, each={"key": UPSTREAM_KEY}
        ) as serving:
            heard = await _with_keys(serving, key)
            tape = await taped(serving, key)
        assert heard.status == 502
        assert said(tape) == heard.body.decode()
        assert UPSTREAM_KEY not in json.dumps(tape)
        is_admin = key == PLAIN
        assert tape["attempts"][0]["server"] == ("a" if is_admin else "")
        assert bool(tape["attempts"][0]["headers"]) is is_admin
        assert tape["attempts"][0]["error"]  # that it failed is for everyone
        assert (tape["attempts"][0]["error"] == "the attempt failed") is not is_admin
        assert ("Incorrect API key provided" in heard_in(tape).decode()) is is_admin

    run(work())


def test_a_secret_in_a_stream_is_blotted_out_of_what_was_heard(tmp_path: Path) -> None:
    leak = MockChunk("data: " + json.dumps({"error": {"message": f"key {UPSTREAM_KEY} is bad"}}) + "\n\n")
    _, tape = ask(tmp_path, [MockReply((ROLE, HELLO, leak))], each={"key": UPSTREAM_KEY})
    assert UPSTREAM_KEY not in json.dumps(tape)
    assert "[hidden]" in heard_in(tape).decode()


def test_bytes_that_are_no_text_are_told_in_base64(tmp_path: Path) -> None:
    odd = MockChunk(base64=b'data: {"choices":[{"index":0,"delta":{"content":"\xff"},"finish_reason":null}]}\n\n')
    heard, tape = ask(tmp_path, [MockReply((ROLE, odd, STOP, USAGE, DONE))])
    assert said(tape) == heard.body.decode()
    assert [step["n"] for step in tape["steps"] if "heard_base64" in step] == [1]


def test_a_note_on_half_a_character_is_told(tmp_path: Path) -> None:
    odd = MockChunk(base64=HELLO.data.replace(b"chat.completion.chunk", b"chat\xd0"))
    heard, tape = ask(tmp_path, [MockReply((ROLE, odd, STOP, USAGE, DONE))])
    assert said(tape) == heard.body.decode()
    assert [
        note["heard"] for step in tape["steps"] for note in step["notes"] if note["rule"] == "env-object-const"
    ] == ["chat\ufffd"]


# What is kept, and for how long.


def pipe() -> StreamPipeline:
    return StreamPipeline(Endpoint.CHAT, fallback=HEAD)


def begin(tapes: CaptureStore, name: str = NAME, principal: str = "me") -> StreamCapture:
    watch = tapes.begin(principal, name, endpoint="chat", model="m", is_stream=True, began=0.0)
    assert watch is not None
    watch.pipeline_created(pipe)
    return watch


def hear(watch: StreamCapture, *pieces: bytes) -> None:
    tape = watch.begin_attempt(0, "a", b"{}", is_local=False)
    for piece in pieces:
        tape.data(piece)
        watch.feed(piece, 0)


def tapes() -> CaptureStore:
    return CaptureStore(SecretRedactor([]), clock=lambda: 1.0)


def told(watch: StreamCapture, start: int = 0, *, is_admin: bool = True) -> CaptureView:
    return run(watch.read_steps(start, is_admin=is_admin))


def lengths(watch: StreamCapture) -> list[int]:
    """How many steps a page is told each time, until it has all."""
    found = [told(watch)]
    while not found[-1].is_done:
        found.append(told(watch, found[-1].next))
    return [len(one.steps) for one in found if one.steps]


def test_what_no_pipe_was_given_stands_where_it_came() -> None:
    watch = begin(tapes())
    tape = watch.begin_attempt(0, "a", b"{}", is_local=False)
    for piece, is_given in ((b" ", False), (b"\n" + ROLE.data, True), (b": ping\n\n", False), (HELLO.data, True)):
        tape.data(piece)
        if is_given:
            watch.feed((b" " + piece) if piece.startswith(b"\n") else piece, 0)
    tape.data(b": pong\n\n")
    watch.end()
    found = told(watch, is_admin=False)
    assert [step.received for step in found.steps] == [
        " \n" + ROLE.text,
        ": ping\n\n",
        HELLO.text,
        ": pong\n\n",
    ]
    ends = [step.byte + len(step.received) for step in found.steps]
    assert [step.byte for step in found.steps] == [0, *ends[:-1]]
    assert found.is_done


def test_the_oldest_tape_goes_first() -> None:
    kept = tapes()
    names = [f"{number:022}" for number in range(tapes_file.CAPTURES_LIMIT + 1)]
    for name in names:
        begin(kept, name)
    assert kept.find("me", names[0]) is None
    assert kept.find("me", names[1]) is not None
    assert kept.find("me", names[-1]) is not None


def test_a_name_that_is_used_again_is_of_the_last_answer() -> None:
    kept = tapes()
    first, second = begin(kept), begin(kept)
    assert kept.find("me", NAME) is second
    hear(first, ROLE.data)
    assert first.size < 2000


def test_a_tape_that_grows_too_long_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_file, "TAPE_BYTES", 20_000)
    watch = begin(tapes())
    hear(watch, ROLE.data, *[HELLO.data] * 1000)
    found = told(watch)
    assert (found.is_cut, found.is_done) == (True, True)
    assert 40 < len(found.steps) < 50
    assert watch.size < 60_000


def test_steps_count_as_well_as_what_they_are_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_file, "STEPS_BYTES", 50_000)
    watch = begin(tapes())
    hear(watch, *[b": x\n\n" * 100] * 8)
    found = told(watch)
    assert found.is_cut
    assert 50 < len(found.steps) < 100


def test_a_whole_reply_that_is_too_long_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_file, "TAPE_BYTES", 20_000)
    watch = begin(tapes())
    tape = watch.begin_attempt(0, "a", b"{}", is_local=False)
    for _ in range(10):
        tape.data(b"x" * 5000)
    watch.buffered_reply(b"x" * 50_000, 0)
    watch.end()
    found = told(watch)
    assert (found.is_cut, found.is_done, found.steps) == (True, True, [])


def test_all_tapes_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tapes_file, "ALL_BYTES", 30_000)
    kept = tapes()
    old, new = begin(kept, "o" * 22), begin(kept, "n" * 22)
    hear(old, b"x" * 20_000)
    hear(new, b"x" * 20_000)
    assert kept.find("me", "o" * 22) is None
    assert kept.find("me", "n" * 22) is new


def test_a_long_tape_is_told_in_several_answers_of_bounded_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_file, "STEPS", 30)
    watch = begin(tapes())
    hear(watch, ROLE.data, HELLO.data * 99)
    watch.end()
    assert lengths(watch) == [30, 30, 30, 10]
    monkeypatch.setattr(watch_file, "TOLD_BYTES", 4 * told(watch, 1).steps[0].size)
    assert lengths(watch) == [3, *[4] * 24, 1]  # the first is longer
    monkeypatch.setattr(watch_file, "TOLD_BYTES", 1)
    assert lengths(watch) == [1] * 100


def test_others_have_their_turn_while_a_long_tape_is_played() -> None:
    ticks = itertools.count()
    watch = begin(CaptureStore(SecretRedactor([]), clock=lambda: next(ticks) * watch_file.REPLAY_TURN_S / 10))
    hear(watch, ROLE.data, HELLO.data * 99)
    watch.end()

    async def work() -> int:
        telling = asyncio.create_task(watch.read_steps(0, is_admin=True))
        turns = 0
        while not telling.done():
            await asyncio.sleep(0)
            turns += 1
        assert len((await telling).steps) == 100
        return turns

    assert run(work()) >= 10


def test_two_who_ask_at_once_are_told_the_same() -> None:
    ticks = itertools.count()
    watch = begin(CaptureStore(SecretRedactor([]), clock=lambda: next(ticks) * watch_file.REPLAY_TURN_S / 10))
    hear(watch, ROLE.data, *[HELLO.data] * 99)
    watch.end()

    async def work() -> None:
        one, other = await asyncio.gather(watch.read_steps(0, is_admin=True), watch.read_steps(0, is_admin=True))
        assert [step.n for step in one.steps] == list(range(100))
        assert one == other

    run(work())


def test_a_tape_that_goes_while_it_is_told_is_told_as_far_as_it_was_played() -> None:
    ticks = itertools.count()
    watch = begin(CaptureStore(SecretRedactor([]), clock=lambda: next(ticks) * watch_file.REPLAY_TURN_S / 10))
    hear(watch, ROLE.data, HELLO.data * 99)

    async def work() -> None:
        telling = asyncio.create_task(watch.read_steps(0, is_admin=True))
        await asyncio.sleep(0)
        watch.stop()
        found = await telling
        assert 0 < len(found.steps) < 100
        assert (found.is_cut, found.is_done) == (True, True)

    run(work())


def test_a_long_request_is_not_shown() -> None:
    watch = begin(tapes())
    watch.begin_attempt(0, "a", b'{"x":"' + b"x" * watch_file.REQUEST_LIMIT_BYTES + b'"}', is_local=False)
    assert bytes(told(watch).request) == b"{}"


def test_a_failure_of_ours_ends_the_tape_with_its_error() -> None:
    watch = begin(tapes())
    hear(watch, ROLE.data, HELLO.data)
    watch.fail(Failure("gone"))
    watch.end()
    found = json.loads(msgspec.json.encode(told(watch)))
    assert found["steps"][-1]["events"][-1]["error_type"] == "server_error"
    assert "gone" in found["steps"][-1]["said"]


def test_an_event_that_ends_within_a_character_is_only_named() -> None:
    watch = tapes().begin("me", NAME, endpoint="messages", model="m", is_stream=True, began=0.0)
    assert watch is not None
    watch.pipeline_created(lambda: passthrough_repairer_for(Endpoint.MESSAGES, fallback=Envelope("msg_1", 1, "m")))
    half = b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"\xf0\x9f"}}'
    hear(watch, b"event: content_block_delta\ndata: " + half + b"\n\n")
    (step,) = told(watch).steps
    assert bytes(step.events) == b'[{"type":"unshown"}]'
    assert step.received_base64


def test_what_several_parts_may_yet_need_is_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_file, "TAPE_BYTES", 20_000)
    watch = begin(tapes())
    for part in range(5):
        watch.begin_attempt(part, "a", b"{}", is_local=False).data(b"x" * 5000)
    assert watch.size < 25_000
    assert told(watch).is_cut
    watch.end()
    assert told(watch).is_done


def test_when_all_was_told_only_the_steps_are_kept() -> None:
    made: list[weakref.ref[StreamPipeline]] = []

    def make() -> StreamPipeline:
        made.append(weakref.ref(new := pipe()))
        return new

    watch = begin(tapes())
    watch.pipeline_created(make)
    hear(watch, ROLE.data, HELLO.data)
    watch.end()
    assert len(told(watch).steps) == 2
    gc.collect()
    assert made[0]() is None
