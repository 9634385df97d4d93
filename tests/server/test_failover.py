"""Failures of upstreams: retries, timeouts and errors for the client."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.http.aio import run
from tests.server.running_gateway import Gateway, gateway
from tests.server.running_server import CHAT, DONE, HELLO, ROLE, STOP, USAGE, RecordedReply, json_error
from tests.table import table
from welldone.config.server import KeySettings
from welldone.mock.script import MockChunk, MockReply, MockScript, json_reply

STREAM = {**CHAT, "stream": True}
WHOLE = MockReply((ROLE, HELLO, STOP, USAGE, DONE))
BOTH = pytest.mark.parametrize("request_body", [STREAM, CHAT], ids=["stream", "whole"])

FIRST: Any = {"each": {"weight": 0.01}, "first": {"weight": 1000.0}}
"""The first upstream is chosen first, except once in 100,000 times."""

BROKEN = {
    "closed before the head": MockReply(raw=True, end="cut"),
    "reset before the head": MockReply(raw=True, end="reset"),
    "not HTTP": MockReply((MockChunk("hello there\r\n\r\n"),), raw=True),
    "500": json_error(500, {"error": {"message": "oops"}}),
    "503": json_error(503, {"error": {"message": "Loading model"}}),
    "429": json_error(429, {"error": {"message": "slow down"}}),
    "401": json_error(401, {"error": {"message": "bad key sk-canary-123456"}}),
    "a redirect": MockReply((), 307, {"Location": "http://127.0.0.1:1/v1"}),
    "a page": MockReply((MockChunk("<html>hello</html>"),), 200, {"Content-Type": "text/html"}),
    "gzip": MockReply((MockChunk("x"),), 200, {"Content-Type": "text/event-stream", "Content-Encoding": "gzip"}),
    "an empty body": MockReply((), 200),
    "an error as its first event": MockReply((MockChunk('data: {"error":{"message":"no","code":500}}\n\n'),)),
    "garbage as its first event": MockReply((MockChunk("data: {{{{\n\n"),)),
    "half a whole reply": MockReply(
        (MockChunk('{"choices":'),), headers={"Content-Type": "application/json"}, end="cut"
    ),
    "nothing for too long": MockReply((), end="hang"),
}


def send_request(
    folder: Path,
    *scripts: Any,  # noqa: ANN401 - each its own
    request: dict[str, Any] = STREAM,
    **settings: Any,  # noqa: ANN401 - each its own
) -> tuple[RecordedReply, list[int]]:
    async def work() -> tuple[RecordedReply, list[int]]:
        async with gateway(folder, *scripts, **settings) as serving:
            return await serving.post(request), serving.post_counts

    return run(work())


@BOTH
def test_a_response_is_valid(tmp_path: Path, request_body: dict[str, Any]) -> None:
    response, attempts = send_request(tmp_path, [WHOLE], request=request_body)
    assert response.status == 200
    assert response.findings() == []
    assert b"Hello" in response.body
    assert attempts == [1]


@BOTH
@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_before_the_first_byte_another_upstream_is_tried(
    tmp_path: Path, broken: MockReply, request_body: dict[str, Any]
) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [broken], [WHOLE], **FIRST, first_byte_s=0.3) as serving:
            response = await serving.post(request_body)
            assert response.status == 200
            assert response.findings() == []
            assert b"Hello" in response.body
            assert serving.post_counts == [1, 1]
            assert b"\nwelldone_retries_total 1.0\n" in (await serving.get("/metrics")).body

    run(work())


@BOTH
@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_an_error_is_returned_if_both_upstreams_fail(
    tmp_path: Path, broken: MockReply, request_body: dict[str, Any]
) -> None:
    upstreams = [[broken], [broken], [broken]]
    response, attempts = send_request(tmp_path, *upstreams, request=request_body, first_byte_s=0.3)
    assert response.status in (429, 502, 503, 504)
    assert response.findings() == []
    assert sum(attempts) == 2
    assert "canary" not in response.raw.decode()


@table("end", ["cut", "reset", "hang", "whole"])
def test_a_truncated_stream_is_an_error_event_without_a_retry(tmp_path: Path, end: Any) -> None:  # noqa: ANN401 - a literal
    pause = MockChunk(after_s=0.05)  # so that the client has received something
    cut = [MockReply((ROLE, HELLO, pause), end=end)]
    response, attempts = send_request(tmp_path, cut, cut, idle_s=0.3)
    assert response.status == 200
    assert response.findings() == []
    assert response.error["type"] in ("server_error", "upstream_error")
    assert response.body.endswith(b"data: [DONE]\n\n")
    assert sum(attempts) == 1


@pytest.mark.parametrize("ending", ["data: [DONE]\r\n\r\n", "data: [DONE]\n\n"])
def test_a_stream_that_stays_open_after_done_is_closed(tmp_path: Path, ending: str) -> None:
    left_open = MockReply((ROLE, HELLO, STOP, MockChunk(ending[:9]), MockChunk(ending[9:], after_s=0.02)), end="hang")
    response, _ = send_request(tmp_path, [left_open], idle_s=60.0)
    assert response.findings() == []
    assert b'"error"' not in response.body


def test_a_stale_connection_is_retried(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [WHOLE, MockReply(raw=True, end="cut")], [WHOLE], **FIRST) as serving:
            for attempts in ([1, 0], [2, 1]):
                assert (await serving.post(CHAT)).status == 200
                assert serving.post_counts == attempts

    run(work())


@table("end", ["cut", "reset", "hang", "whole"])
def test_a_truncated_stream_is_retried_for_a_whole_reply(tmp_path: Path, end: Any) -> None:  # noqa: ANN401 - a literal
    cut = MockReply((ROLE, HELLO), end=end)
    response, attempts = send_request(tmp_path, [cut], [WHOLE], request=CHAT, idle_s=0.3, **FIRST)
    assert response.status == 200
    assert response.json["choices"][0]["message"]["content"] == "Hello"
    assert attempts == [1, 1]


@BOTH
@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_a_client_error_is_not_retried(tmp_path: Path, status: int, request_body: dict[str, Any]) -> None:
    refused = [json_error(status, {"error": {"message": "no such thing", "param": "top_k", "code": "bad_value"}})]
    response, attempts = send_request(tmp_path, refused, refused, request=request_body)
    assert 400 <= response.status < 500
    assert response.error["message"] == "no such thing"
    assert sum(attempts) == 1


def test_an_error_event_that_blames_the_request_is_not_retried(tmp_path: Path) -> None:
    event = {"error": {"message": "logprobs is greater than 20", "type": "BadRequestError", "code": 400}}  # vLLM 0.32
    refused = [MockReply((MockChunk(f"data: {json.dumps(event)}\n\n"), DONE))]
    response, attempts = send_request(tmp_path, refused, refused)
    assert (response.status, response.error["message"]) == (400, "logprobs is greater than 20")
    assert sum(attempts) == 1


def test_retry_after_of_a_busy_upstream_is_forwarded(tmp_path: Path) -> None:
    busy = MockReply((MockChunk("{}"),), 429, {"Content-Type": "application/json", "Retry-After": "17"})
    response, _ = send_request(tmp_path, [busy])
    assert response.status == 429
    assert "retry-after: 17" in response.head.lower()


PING = MockChunk(": ping\n\n")
LATE = {
    "half a frame": MockReply((MockChunk('data: {"id":', after_s=0.1),), end="cut"),
    "half a frame, and nothing more": MockReply((MockChunk('data: {"id":', after_s=0.1),), end="hang"),
    "signs of life and no more": MockReply((PING, *[MockChunk(PING.text, after_s=0.1)] * 9), end="hang"),
    "signs of life in halves": MockReply((MockChunk(": pi"), MockChunk("ng\n\n", after_s=0.02)), end="cut"),
    "signs of life, then the end": MockReply((PING, MockChunk(PING.text, after_s=0.1))),
    "signs of life, then a cut": MockReply((PING, MockChunk(PING.text, after_s=0.1)), end="cut"),
    "an error": MockReply((PING, MockChunk('data: {"error":{"message":"no","code":500}}\n\n', after_s=0.1))),
    "garbage": MockReply((MockChunk("data: {{{{\n\n", after_s=0.1),)),
    "an empty stream": MockReply((MockChunk(after_s=0.1),)),
    "a refusal": MockReply((MockChunk("{}", after_s=0.1),), 500),
}


@BOTH
@pytest.mark.parametrize("late", LATE.values(), ids=LATE.keys())
def test_another_upstream_is_tried_after_the_headers_were_sent(
    tmp_path: Path, late: MockReply, request_body: dict[str, Any]
) -> None:
    async def work() -> None:
        settings: dict[str, Any] = {"first_byte_s": 0.5, "early_s": 0.02, "keep_alive_s": 0.05}
        async with gateway(tmp_path, [late], [WHOLE], **FIRST, **settings) as serving:
            response = await serving.post(request_body)
            assert (response.status, serving.post_counts) == (200, [1, 1])
            assert response.findings() == []
            assert b"Hello" in response.body
            assert b'"error"' not in response.body

    run(work())


@pytest.mark.tier3
@pytest.mark.parametrize("late", LATE.values(), ids=LATE.keys())
def test_two_late_failures_are_one_error_event(tmp_path: Path, late: MockReply) -> None:
    settings: dict[str, Any] = {"first_byte_s": 0.5, "early_s": 0.02, "keep_alive_s": 0.05}
    response, attempts = send_request(tmp_path, [late], [late], **settings)
    assert attempts == [1, 1]
    assert response.status == 200
    assert response.error
    assert response.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.tier3
def test_keep_alives_alone_in_the_middle_time_out(tmp_path: Path) -> None:
    pings = [MockChunk(PING.text, after_s=0.1)] * 20
    response, _ = send_request(tmp_path, [MockReply((ROLE, HELLO, *pings), end="hang")], idle_s=0.5)
    assert response.error["code"] == "timeout"


@pytest.mark.tier3
@BOTH
@pytest.mark.parametrize("first", [ROLE, PING, MockChunk(ROLE.text + PING.text)], ids=["role", "comment", "both"])
def test_the_first_byte_timeout_applies_until_the_first_content(
    tmp_path: Path, first: MockChunk, request_body: dict[str, Any]
) -> None:
    slow = MockReply((first, MockChunk(HELLO.text, after_s=0.6), STOP, DONE))
    response, _ = send_request(tmp_path, [slow], request=request_body, idle_s=0.2, first_byte_s=60.0)
    assert b"Hello" in response.body
    assert b'"error"' not in response.body


@pytest.mark.tier3
@pytest.mark.parametrize("is_begun", [True, False])
def test_keep_alives_extend_the_deadline(tmp_path: Path, is_begun: bool) -> None:
    pings = [MockChunk(PING.text, after_s=0.1)] * 20
    start = (ROLE, HELLO) if is_begun else ()
    limits: dict[str, Any] = {"idle_s": 1.0, "first_byte_s": 60.0} if is_begun else {"first_byte_s": 1.0}
    response, _ = send_request(tmp_path, [MockReply((*start, *pings, HELLO, STOP, DONE))], **limits)
    assert b"Hello" in response.body
    assert b'"error"' not in response.body


EMPTY = MockChunk(HELLO.text.replace("Hello", ""), after_s=0.02)


@pytest.mark.tier3
@pytest.mark.parametrize("sign", [MockChunk(PING.text, after_s=0.02), EMPTY], ids=["comments", "empty chunks"])
@pytest.mark.parametrize("start", [(), (ROLE,), (ROLE, HELLO)], ids=["nothing", "a role", "content"])
def test_keep_alives_without_content_time_out_in_the_end(
    tmp_path: Path, start: tuple[MockChunk, ...], sign: MockChunk
) -> None:
    response, _ = send_request(tmp_path, [MockReply((*start, sign), end="endless")], idle_s=0.2, first_byte_s=0.2)
    assert response.error["code"] == "timeout"


MESSAGE = {"role": "assistant", "content": "Hello", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}
REPLY = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "tool_calls"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}


@BOTH
@pytest.mark.parametrize("is_configured", [True, False], ids=["configured", "detected"])
def test_the_whole_reply_of_an_upstream_without_streaming_is_streamed(
    tmp_path: Path, request_body: dict[str, Any], is_configured: bool
) -> None:
    async def work() -> None:
        async with gateway(
            tmp_path, [json_reply(REPLY)], each={"stream": "false" if is_configured else "true"}
        ) as serving:
            response = await serving.post(request_body)
            assert response.status == 200
            assert response.findings() == []
            assert b"Hello" in response.body
            assert rb"{\"a\":1}" in response.body
            assert json.loads(serving.upstreams[0].requests[-1].body)["stream"] is not is_configured

    run(work())


@BOTH
@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "application/octet-stream"])
def test_a_stream_with_a_wrong_content_type_is_detected(
    tmp_path: Path, content_type: str, request_body: dict[str, Any]
) -> None:
    odd = MockReply(WHOLE.pieces, headers={"Content-Type": content_type})
    response, _ = send_request(tmp_path, [odd], request=request_body)
    assert response.findings() == []
    assert b"Hello" in response.body


def test_usage_is_always_requested_and_sent_only_on_request(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [WHOLE]) as serving:
            plain = await serving.post(STREAM)
            attempts = await serving.post({**STREAM, "stream_options": {"include_usage": True}})
            assert b"usage" not in plain.body
            assert b'"usage":{"prompt_tokens":3' in attempts.body
            for seen in serving.upstreams[0].requests:
                assert seen.method == "GET" or json.loads(seen.body)["stream_options"] == {"include_usage": True}

    run(work())


def test_missing_usage_is_not_invented(tmp_path: Path) -> None:
    request = {**STREAM, "stream_options": {"include_usage": True}}
    response, _ = send_request(tmp_path, [MockReply((ROLE, HELLO, STOP, DONE))], request=request)
    assert b'"total_tokens"' not in response.body
    whole, _ = send_request(tmp_path, [MockReply((ROLE, HELLO, STOP, DONE))], request=CHAT)
    assert "usage" not in whole.json


def test_unknown_fields_are_forwarded_both_ways(tmp_path: Path) -> None:
    odd = MockChunk(ROLE.text.replace('"created"', '"x_odd":{"a":[1]},"created"'))

    async def work() -> None:
        async with gateway(tmp_path, [MockReply((odd, HELLO, STOP, DONE))]) as serving:
            response = await serving.post({**STREAM, "guided_regex": "a+", "top_k": 7, "api_base": "http://evil"})
            assert b'"x_odd":{"a":[1]}' in response.body
            sent = json.loads(serving.upstreams[0].requests[-1].body)
            assert (sent["guided_regex"], sent["top_k"]) == ("a+", 7)
            assert "api_base" not in sent

    run(work())


@BOTH
def test_an_upstream_without_n_gets_several_requests(tmp_path: Path, request_body: dict[str, Any]) -> None:
    response, attempts = send_request(tmp_path, [WHOLE], request={**request_body, "n": 3}, each={"n": "each"})
    assert response.findings() == []
    assert response.body.count(b"Hello") == 3
    assert attempts == [3]


def test_with_several_parts_there_is_one_retry(tmp_path: Path) -> None:
    broken = json_error(500, {})
    response, attempts = send_request(
        tmp_path, [broken], [broken], request={**CHAT, "n": 4}, each={"n": "each", "limit": 1}
    )
    assert response.status == 502
    assert sum(attempts) <= 4 + 1


def test_model_names_are_mapped_and_the_client_sees_its_own(tmp_path: Path) -> None:
    async def work() -> None:
        routes = {"gpt-4o": ("scripted@a",), "gpt-*": ("scripted@b",)}
        each = {"models": ("scripted",)}
        async with gateway(tmp_path, [WHOLE], [WHOLE], config={"routes": routes}, each=each) as serving:
            for name, index in (("gpt-4o", 0), ("gpt-5", 1)):
                response = await serving.post({**CHAT, "model": name})
                assert response.json["model"] == name
                assert json.loads(serving.upstreams[index].requests[-1].body)["model"] == "scripted"
            assert (await serving.post({**CHAT, "model": "nope"})).status == 404

    run(work())


def test_the_models_of_all_upstreams_are_listed_once(tmp_path: Path) -> None:
    def listed(*names: str) -> MockScript:
        return MockScript(models={"object": "list", "data": [{"id": name, "object": "model"} for name in names]})

    async def work() -> None:
        scripts = (listed("x", "y"), listed("y", "z"))
        async with gateway(tmp_path, *scripts, each={"models": ()}, config={"routes": {"w": ("x@a",)}}) as serving:
            assert sorted(await _until_listed(serving, 4)) == ["w", "x", "y", "z"]

    run(work())


async def _until_listed(serving: Gateway, count: int) -> list[str]:
    """Return the model names once all upstreams have listed theirs."""
    while True:
        names = [one["id"] for one in (await serving.get("/v1/models")).json["data"]]
        if len(names) >= count:
            return names


def test_broken_json_is_reported(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [WHOLE], report=True) as serving:
            response = await serving.post({**CHAT, "response_format": {"type": "json_object"}})
            assert "x-welldone-broken-json: content=1" in response.head
            streamed = await serving.post({**STREAM, "response_format": {"type": "json_object"}})
            assert b"x-welldone-broken-json: content=1" in streamed.raw.rpartition(b"\r\n0\r\n")[2].lower()
            page = (await serving.get("/metrics")).body.decode()
            assert 'welldone_broken_json_total{upstream="a",what="content"} 2.0' in page

    run(work())


@table("request_of", [STREAM, CHAT], ids=["stream", "whole"])
@table("is_shown", [False, True], ids=["", "--report"])
@table("is_admin", [True, False], ids=["admin", "named key"])
def test_a_report_names_the_upstream_only_to_admins(
    tmp_path: Path, request_of: dict[str, Any], is_shown: bool, is_admin: bool
) -> None:
    plain, named = "wd-plain-key-012345", "wd-named-key-012345"
    headers = f"x-welldone-report: 1\r\nAuthorization: Bearer {plain if is_admin else named}\r\n"

    async def work() -> None:
        keys = (KeySettings(name="ci", key=named),)
        async with gateway(
            tmp_path, [BROKEN["500"]], [WHOLE], keys=[plain], config={"keys": keys}, report=is_shown, **FIRST
        ) as serving:
            response = await serving.post(request_of, headers=headers)
            assert response.status == 200
            upstream_names = re.findall(r"x-welldone-upstream: (\w+)\r\n", response.raw.decode().lower())
            expected_count = 2 if request_of is STREAM else 1  # a stream has it in its head and at its end
            assert upstream_names == (["b"] * expected_count if is_shown or is_admin else [])
            assert b"127.0.0.1" not in response.raw

    run(work())


def test_no_report_is_sent_by_default(tmp_path: Path) -> None:
    response, _ = send_request(tmp_path, [WHOLE])
    assert "x-welldone" not in response.head
    assert "server-timing" not in response.head.lower()
    assert response.raw.endswith(b"\r\n0\r\n\r\n")


def test_a_reply_before_send_returns_belongs_to_its_own_attempt(tmp_path: Path) -> None:
    async def work() -> None:
        bad = MockReply((MockChunk('data: {"error":{"message":"no","code":500}}\n\n'),), framing="close")
        async with gateway(tmp_path, [bad], [WHOLE], **FIRST) as serving:
            targets = serving.server.routes._targets
            send, upstream = targets._send, serving.upstreams[0]

            async def late(*given: Any, **more: Any) -> Any:  # noqa: ANN401 - as it came
                exchange = await send(*given, **more)
                await upstream.wait_until(lambda: bool(upstream.requests) and upstream.counts.open == 0)
                for _ in range(9):
                    await asyncio.sleep(0)
                return exchange

            targets._send = late
            response = await serving.post(STREAM)
            assert response.status == 200
            assert response.findings() == []
            assert serving.post_counts == [1, 1]

    run(work())


def test_a_violation_of_a_strict_rule_is_an_error(tmp_path: Path) -> None:
    lax = MockReply((ROLE, MockChunk(HELLO.text.replace('"content"', '"role":"assistant","content"')), STOP, DONE))
    response, _ = send_request(tmp_path, [lax], each={"strict": ("delta-role-once",)})
    assert response.error["code"] == "upstream_rule_broken"
    loose, _ = send_request(tmp_path, [lax], each={"strict": ("end-done-sent",)})
    assert b"Hello" in loose.body
    assert b'"error"' not in loose.body


def test_an_open_circuit_breaker_stops_requests(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [json_error(500, {})], [WHOLE], **FIRST) as serving:
            for _ in range(20):
                assert (await serving.post(CHAT)).status == 200
            assert serving.post_counts == [5, 20]

    run(work())


def test_the_last_upstream_gets_requests_however_often_it_fails(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [*[json_error(500, {})] * 7, WHOLE]) as serving:
            statuses = [(await serving.post(CHAT)).status for _ in range(8)]
            assert statuses == [502] * 7 + [200]

    run(work())


@pytest.mark.parametrize(
    "reply",
    [MockReply((ROLE, HELLO), end="hang"), MockReply((), end="hang")],
    ids=["during the stream", "before the stream"],
)
def test_a_disconnected_client_is_counted_and_frees_the_upstream(tmp_path: Path, reply: MockReply) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [reply]) as serving:
            upstream = serving.upstreams[0]
            _, writer = await serving.send(STREAM)
            await upstream.wait_until(lambda: bool(serving.post_counts[0]))
            writer.close()
            await upstream.wait_until(lambda: any(one.end == "left" for one in upstream.requests))
            while serving.server.upstreams.all[0].running:
                await serving.get("/health")
            page = (await serving.get("/metrics")).body.decode()
            assert 'welldone_upstream_requests_total{status="left",upstream="a"} 1.0' in page

    run(work())
