"""Every fault by its name, and every recorded reply, through the gateway: what the client gets, and who was asked."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.http.aio import run
from tests.recorded.traces import RECORDED, Recorded, recorded, said
from tests.server.gateways import gateway
from tests.server.scripts import CHAT, Heard
from tests.server.told import Bench, benched
from tests.table import table
from welldone.mock.faults import ALL_FAULTS, FAULT_REPLIES
from welldone.mock.script import HELLO_REPLY, MockChunk, MockReply, MockScript, ReplyEnd, reply_from_trace
from welldone.mock.server import MockServer
from welldone.protocol import merger, sse
from welldone.protocol.catalog.rule import Severity
from welldone.protocol.catalog.use import FINAL_CHUNK
from welldone.protocol.envelope import Endpoint
from welldone.rules.judge import judge
from welldone.server.generation import attempt, response_task

STREAM = {**CHAT, "stream": True}
BOTH = table("request_body", [STREAM, CHAT], ids=["stream", "whole"])
FIRST: Any = {"each": {"weight": 0.01}, "first": {"weight": 1000.0}}
"""The first is asked first, but for one time in 100,000."""
UNCOUNTED = {"ns-usage", FINAL_CHUNK.id, "cmpl-usage-chunk"}
"""Usage that the upstream did not send is not made up."""
HEARD_S = 0.05  # between the first chunk and the next, so that the client has heard the first


class Fails(NamedTuple):
    """How an answer fails where nobody else is there: the status, and the code of the error."""

    status: int
    code: str | None


FINE = {
    *("no-done", "no-finish", "close-after", "slow", "wrong-type", "too-short", "no-length", "http-1.0", "whole"),
    "stream",
}
"""What is mended. `[DONE]` says that all was said: also where the reason, or a part of the HTTP, is missing."""

AT_ONCE = {
    "empty": Fails(502, "incomplete_stream"),
    "close-first": Fails(502, "upstream_died"),
    "reset-first": Fails(502, "upstream_died"),
    "hang-first": Fails(504, "timeout"),
    "cut-head": Fails(502, "upstream_died"),
    "not-http": Fails(502, "upstream_died"),
    "garbage": Fails(502, "incomplete_stream"),
    "limited": Fails(429, "rate_limit_exceeded"),
    "limited-silent": Fails(429, "rate_limit_exceeded"),
    "broken": Fails(502, "upstream_error"),
    "unavailable": Fails(503, "upstream_unavailable"),
    "unavailable-silent": Fails(503, "upstream_unavailable"),
    "html": Fails(502, "upstream_garbage"),
    "gzip": Fails(502, "upstream_garbage"),
    "gzip-bomb": Fails(502, "upstream_garbage"),
    "redirect-301": Fails(502, "upstream_redirect"),
    "redirect-302": Fails(502, "upstream_redirect"),
    "redirect-307": Fails(502, "upstream_redirect"),
    "redirect-308": Fails(502, "upstream_redirect"),
}
"""What fails before a first word: a status, or the answer of another upstream."""

ON_THE_WAY = {
    "cut": Fails(502, "upstream_died"),
    "reset": Fails(502, "upstream_died"),
    "hang": Fails(504, "timeout"),
    "bad-json": Fails(502, "bad_upstream_stream"),
    "error-event": Fails(502, None),
    "long-line": Fails(502, "bad_upstream_stream"),
    "too-long": Fails(502, "incomplete_stream"),
}
"""What fails when a client that streams has heard something: an error event. Who waits for all of it has not."""

LEFT_ALONE = {"endless"}
"""Ends when the client leaves."""


def test_each_fault_is_looked_at() -> None:
    assert {*FINE, *AT_ONCE, *ON_THE_WAY, *LEFT_ALONE} == {fault.name for fault in ALL_FAULTS}


def heard_first(reply: MockReply) -> MockReply:
    """The same reply; the client has heard its first piece before the second is sent."""
    first, *rest = reply.pieces
    rest[0] = msgspec.structs.replace(rest[0], after_s=HEARD_S)
    return msgspec.structs.replace(reply, pieces=(first, *rest))


def ask(folder: Path, name: str, request: dict[str, Any], others: int | str) -> tuple[Heard, list[int]]:
    """What the client hears, and how often each upstream was asked; `others` of them say hello, or the same."""
    reply = heard_first(FAULT_REPLIES[name]) if name in ON_THE_WAY else FAULT_REPLIES[name]
    # A byte at a time is too slow for a test: 20 times faster is still one by one.
    script = MockScript(posts=(reply,), speed=20.0 if name == "slow" else 1.0)
    more: list[Any] = [script] if others == "the same" else [[HELLO_REPLY]] * int(others)
    limits: Any = {"first_byte_s": 0.4, "idle_s": 0.4} if name.startswith("hang") else {}

    async def work() -> tuple[Heard, list[int]]:
        async with gateway(folder, script, *more, **FIRST, early_s=30.0, **limits) as serving:
            return await serving.ask(request), serving.asked

    return run(work())


def check(heard: Heard) -> None:
    """What was heard breaks no rule."""
    assert set(heard.findings()) <= UNCOUNTED
    assert heard.capture.complete


def is_success(heard: Heard) -> bool:
    return heard.status == 200 and b'"error"' not in heard.body and b"Hello" in heard.body


@BOTH
@table("others", [0, 1])
@table("name", sorted(FINE))
def test_what_can_be_mended_is_an_answer(tmp_path: Path, name: str, others: int, request_body: dict[str, Any]) -> None:
    heard, asked = ask(tmp_path, name, request_body, others)
    check(heard)
    assert is_success(heard)
    assert asked == [1, 0][: 1 + others]


@BOTH
@table("others", [0, 1, "the same"])
@table("name", sorted(AT_ONCE))
def test_what_fails_at_once_is_a_status_or_the_answer_of_another(
    tmp_path: Path, name: str, others: int | str, request_body: dict[str, Any]
) -> None:
    heard, asked = ask(tmp_path, name, request_body, others)
    check(heard)
    if others == 1:
        assert is_success(heard)
    else:
        assert (heard.status, heard.error["code"]) == AT_ONCE[name]
    assert asked == ([1] if others == 0 else [1, 1])


@BOTH
@table("others", [0, 1, "the same"])
@table("name", sorted(ON_THE_WAY))
def test_what_fails_on_the_way_is_an_error_event_and_for_who_does_not_stream_as_if_at_once(
    tmp_path: Path, name: str, others: int | str, request_body: dict[str, Any]
) -> None:
    heard, asked = ask(tmp_path, name, request_body, others)
    check(heard)
    if request_body is STREAM:
        assert (heard.status, heard.error["code"]) == (200, ON_THE_WAY[name].code)
        assert heard.body.endswith(sse.DONE)
        assert sum(asked) == 1
    elif others == 1:
        assert is_success(heard)
        assert asked == [1, 1]
    else:
        assert (heard.status, heard.error["code"]) == ON_THE_WAY[name]
        assert sum(asked) == (1 if others == 0 else 2)


@BOTH
@table("name", ["limited", "unavailable"])
def test_when_to_come_again_is_passed_on(tmp_path: Path, name: str, request_body: dict[str, Any]) -> None:
    heard, _ = ask(tmp_path, name, request_body, 0)
    assert heard.capture.header("retry-after") == "7"


@BOTH
def test_a_client_that_leaves_ends_what_is_endless(tmp_path: Path, request_body: dict[str, Any]) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [FAULT_REPLIES["endless"]]) as serving:
            upstream = serving.upstreams[0]
            reader, writer = await serving.send(request_body)
            await upstream.wait_until(lambda: serving.asked == [1])
            if request_body is STREAM:
                assert (await reader.readexactly(2**20)).count(b"Hello") > 1000
            writer.transport.abort()
            await _until_left(upstream)

    run(work())


async def _until_left(upstream: MockServer) -> None:
    """Waits until the gateway has left the upstream."""
    await upstream.wait_until(lambda: any(one.end == "left" for one in upstream.requests))


def endless(start: str, again: str, **fields: Any) -> MockReply:  # noqa: ANN401 - fields of a reply
    return MockReply((MockChunk(start), MockChunk(again)), end="endless", **fields)


JSON = {"Content-Type": "application/json"}
ENDLESS = {
    "a stream": (FAULT_REPLIES["endless"], "upstream_garbage"),
    "a line": (endless("data: ", "x" * 65536), "upstream_garbage"),
    "a JSON object": (endless('{"choices":[', "[" * 65536, headers=JSON), "upstream_garbage"),
    "blanks": (endless(" ", " " * 65536, headers=JSON), "upstream_garbage"),
    "an error": (endless("{", "x" * 65536, status=500, headers=JSON), "upstream_error"),
    "a head": (endless("HTTP/1.1 200 OK\r\n", "X-Odd: 1\r\n", raw=True), "upstream_died"),
    "hints": (endless("", "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", raw=True), "upstream_died"),
    "the size of a chunk": (
        endless("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "0" * 64, raw=True),
        "upstream_died",
    ),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_of_what_is_endless_only_so_much_is_kept_for_a_whole_reply(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_task, "_WHOLE_LIMIT_BYTES", 2**20)
    monkeypatch.setattr(attempt, "_WHOLE_LIMIT_BYTES", 2**20)
    reply, code = ENDLESS[name]

    async def work() -> None:
        async with gateway(tmp_path, [reply]) as serving:
            heard = await serving.ask(CHAT)
            check(heard)
            assert (heard.status, heard.error["code"]) == (502, code)
            await _until_left(serving.upstreams[0])

    run(work())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_of_an_answer_that_is_kept_the_text_is_bounded(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merger, "KEPT_LIMIT_CHARS", 3)
    whole = {"choices": [{"index": 0, "message": {"content": "x" * 11}, "finish_reason": "stop"}]}
    replies = [HELLO_REPLY, MockReply((MockChunk(json.dumps(whole)),), headers=JSON, framing="length")]
    body = {"model": CHAT["model"], "input": "hi"} if path == "/v1/responses" else CHAT

    async def work() -> None:
        for reply in replies:
            async with gateway(tmp_path, [reply]) as serving:
                heard = await serving.ask(body, path=path)
                assert (heard.status, heard.error["code"]) == (502, "bad_upstream_stream")
                heard = await serving.ask({**body, "stream": True}, path=path)
                is_kept = path == "/v1/responses"
                assert (b"more than 3 characters" in heard.raw) is is_kept

    run(work())


@pytest.mark.parametrize("end", ["hang", "endless"])
def test_an_error_whose_body_does_not_end_is_told_without_its_end(
    tmp_path: Path,
    end: ReplyEnd,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempt, "ERROR_S", 0.2)
    reply = MockReply((MockChunk('{"error":{"message":"oops"}}'), MockChunk(" ")), 500, JSON, end=end)

    async def work() -> None:
        async with gateway(tmp_path, [reply]) as serving:
            heard = await serving.ask(STREAM)
            check(heard)
            assert (heard.status, heard.error["message"]) == (502, "The upstream failed: oops")
            await _until_left(serving.upstreams[0])

    run(work())


def test_a_line_beyond_the_limit_is_an_error_event(tmp_path: Path) -> None:
    long = MockReply(
        (
            HELLO_REPLY.pieces[0],
            MockChunk("data: ", HEARD_S),
            MockChunk("x", times=sse.FRAME_LIMIT_BYTES),
            MockChunk("x"),
        )
    )

    async def work() -> None:
        async with gateway(tmp_path, [long]) as serving:
            heard = await serving.ask(STREAM)
            check(heard)
            assert heard.error["code"] == "bad_upstream_stream"

    run(work())


@BOTH
def test_signs_of_life_are_no_first_word(tmp_path: Path, request_body: dict[str, Any]) -> None:
    """Some servers send comments while they wait. One that then dies has not begun to answer."""
    dies = MockReply((MockChunk(": ping\n\n"), MockChunk(": ping\n\n", HEARD_S)), end="cut")

    async def work() -> None:
        async with gateway(tmp_path, [dies], [HELLO_REPLY], **FIRST, early_s=30.0) as serving:
            heard = await serving.ask(request_body)
            check(heard)
            assert is_success(heard)
            assert serving.asked == [1, 1]

    run(work())


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with benched(tmp_path_factory.mktemp("gateway")) as made:
        yield made


def _recorded(name: str) -> MockReply:
    record = json.loads((RECORDED / f"{name}.json").read_text("utf-8"))
    return reply_from_trace(record, (RECORDED / f"{name}.body").read_bytes())


def _is_whole(reply: Recorded) -> bool:
    return reply.trace.status == 200 and reply.trace.body.startswith(b"{")


REFUSED = {
    *("ik/bad_stream_options_string", "ik/bad_stream_string"),
    *("llamacpp/bad_messages_empty", "llamacpp/bad_stream_options_string"),
}
"""Requests that their server took, and that the gateway cannot: it must know whether to stream, and what."""
REPLIES = {reply.name: reply for reply in recorded() if reply.trace.request is not None and reply.trace.status}
STREAMS = sorted(name for name, reply in REPLIES.items() if reply.is_stream and name not in REFUSED)
WHOLE = sorted(name for name, reply in REPLIES.items() if _is_whole(reply) and name not in REFUSED)
ERRORS = sorted(REPLIES.keys() - {*STREAMS, *WHOLE})
CUT = {"ik/disconnect_stream", "llamacpp/disconnect_stream"}
"""Streams that their client left before their end."""


def hear(bench: Bench, name: str) -> Heard:
    """The reply to the recorded request, judged."""
    trace = REPLIES[name].trace
    request = {**(trace.request or {}), "model": "native"}
    heard = bench.ask(_recorded(name), request, Endpoint(trace.endpoint))
    judged = judge(msgspec.structs.replace(heard.capture, request=request, endpoint=trace.endpoint))
    assert [one for one in judged.findings if one.severity == Severity.BREAKS and one.rule not in UNCOUNTED] == []
    return heard


@table("name", STREAMS)
def test_a_recorded_stream_says_what_the_server_said(bench: Bench, name: str) -> None:
    heard = hear(bench, name)
    sent = said(REPLIES[name].trace.body)
    if heard.status != 200:
        assert heard.error["message"] == sent.error
        return
    kept = said(heard.body)
    assert kept.texts == sent.texts
    assert kept.arguments == sent.arguments
    if name in CUT:
        assert kept.error is not None
    else:
        assert (kept.error, kept.finishes.keys()) == (sent.error, sent.finishes.keys())


@table("name", ERRORS)
def test_a_recorded_error_or_nothing_at_all_is_an_error(bench: Bench, name: str) -> None:
    heard = hear(bench, name)
    assert 400 <= heard.status <= 504
    assert heard.error["message"]


@table("name", WHOLE)
def test_a_recorded_reply_says_what_the_server_said(bench: Bench, name: str) -> None:
    heard = hear(bench, name)
    sent = json.loads(REPLIES[name].trace.body)
    assert heard.status == 200
    for ours, theirs in zip(heard.json["choices"], sent["choices"], strict=True):
        assert ours["finish_reason"] == theirs["finish_reason"]
        assert ours.get("text") == theirs.get("text")
        message = theirs.get("message", {})
        assert ours.get("message", {}).get("content") == (message.get("content") or None)
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        assert [call["function"] for call in ours.get("message", {}).get("tool_calls") or ()] == calls


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_a_long_answer_is_whole(tmp_path: Path, path: str) -> None:
    role, text, *end = HELLO_REPLY.pieces
    long = MockReply((role, msgspec.structs.replace(text, times=3_000), *end))
    body = {"model": CHAT["model"], "input": "hi"} if path == "/v1/responses" else {**CHAT, "max_tokens": 9_000}

    async def work() -> None:
        async with gateway(tmp_path, [long]) as serving:
            whole, stream = [await serving.ask({**body, "stream": stream}, path=path) for stream in (False, True)]
            assert (whole.status, stream.status) == (200, 200)
            spoken = json.loads(text.text.removeprefix("data: "))["choices"][0]["delta"]["content"]
            assert spoken * 3_000 in whole.body.decode()

    run(work())
