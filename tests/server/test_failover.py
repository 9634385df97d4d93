"""What upstreams do wrong, and what the client gets of it."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.http.aio import run
from tests.server.gateways import Gateway, gateway
from tests.server.scripts import CHAT, DONE, HELLO, ROLE, STOP, USAGE, Heard, refusal
from tests.table import table
from welldone.config.server import KeySettings
from welldone.mock.script import MockChunk, MockReply, MockScript, json_reply

STREAM = {**CHAT, "stream": True}
WHOLE = MockReply((ROLE, HELLO, STOP, USAGE, DONE))
BOTH = pytest.mark.parametrize("request_body", [STREAM, CHAT], ids=["stream", "whole"])

FIRST: Any = {"each": {"weight": 0.01}, "first": {"weight": 1000.0}}
"""The first is asked first, but for one time in 100,000."""

BROKEN = {
    "closed before the head": MockReply(raw=True, end="cut"),
    "reset before the head": MockReply(raw=True, end="reset"),
    "not HTTP": MockReply((MockChunk("hello there\r\n\r\n"),), raw=True),
    "500": refusal(500, {"error": {"message": "oops"}}),
    "503": refusal(503, {"error": {"message": "Loading model"}}),
    "429": refusal(429, {"error": {"message": "slow down"}}),
    "401": refusal(401, {"error": {"message": "bad key sk-canary-123456"}}),
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


def ask(folder: Path, *scripts: Any, request: dict[str, Any] = STREAM, **settings: Any) -> tuple[Heard, list[int]]:  # noqa: ANN401 - each its own
    async def work() -> tuple[Heard, list[int]]:
        async with gateway(folder, *scripts, **settings) as serving:
            return await serving.ask(request), serving.asked

    return run(work())


@BOTH
def test_an_answer_is_right(tmp_path: Path, request_body: dict[str, Any]) -> None:
    heard, asked = ask(tmp_path, [WHOLE], request=request_body)
    assert heard.status == 200
    assert heard.findings() == []
    assert b"Hello" in heard.body
    assert asked == [1]


@BOTH
@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_before_the_first_byte_another_upstream_is_tried(
    tmp_path: Path, broken: MockReply, request_body: dict[str, Any]
) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [broken], [WHOLE], **FIRST, first_byte_s=0.3, early_s=5.0) as serving:
            heard = await serving.ask(request_body)
            assert heard.status == 200
            assert heard.findings() == []
            assert b"Hello" in heard.body
            assert serving.asked == [1, 1]

    run(work())


@BOTH
@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_where_both_fail_that_is_two_attempts_and_an_honest_error(
    tmp_path: Path, broken: MockReply, request_body: dict[str, Any]
) -> None:
    upstreams = [[broken], [broken], [broken]]
    heard, asked = ask(tmp_path, *upstreams, request=request_body, first_byte_s=0.3, early_s=5.0)
    assert heard.status in (429, 502, 503, 504)
    assert heard.findings() == []
    assert sum(asked) == 2
    assert "canary" not in heard.raw.decode()


@table("end", ["cut", "reset", "hang", "whole"])
def test_a_stream_that_breaks_off_is_an_error_event_and_nobody_else_is_asked(tmp_path: Path, end: Any) -> None:  # noqa: ANN401 - a literal
    pause = MockChunk(after_s=0.05)  # so that the client has heard something
    cut = [MockReply((ROLE, HELLO, pause), end=end)]
    heard, asked = ask(tmp_path, cut, cut, idle_s=0.3)
    assert heard.status == 200
    assert heard.findings() == []
    assert heard.error["type"] in ("server_error", "upstream_error")
    assert heard.body.endswith(b"data: [DONE]\n\n")
    assert sum(asked) == 1


@pytest.mark.parametrize("ending", ["data: [DONE]\r\n\r\n", "data: [DONE]\n\n"])
def test_an_answer_that_is_done_is_not_waited_for(tmp_path: Path, ending: str) -> None:
    left_open = MockReply((ROLE, HELLO, STOP, MockChunk(ending[:9]), MockChunk(ending[9:], after_s=0.02)), end="hang")
    heard, _ = ask(tmp_path, [left_open], idle_s=60.0)
    assert heard.findings() == []
    assert b'"error"' not in heard.body


def test_a_used_connection_that_is_lost_is_a_reason_to_ask_another(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [WHOLE, MockReply(raw=True, end="cut")], [WHOLE], **FIRST) as serving:
            for asked in ([1, 0], [2, 1]):
                assert (await serving.ask(CHAT)).status == 200
                assert serving.asked == asked

    run(work())


@table("end", ["cut", "reset", "hang", "whole"])
def test_a_whole_reply_is_asked_for_elsewhere_since_the_client_has_heard_nothing(tmp_path: Path, end: Any) -> None:  # noqa: ANN401 - a literal
    cut = MockReply((ROLE, HELLO), end=end)
    heard, asked = ask(tmp_path, [cut], [WHOLE], request=CHAT, idle_s=0.3, **FIRST)
    assert heard.status == 200
    assert heard.json["choices"][0]["message"]["content"] == "Hello"
    assert asked == [1, 1]


@BOTH
@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_what_the_client_did_wrong_is_not_asked_for_twice(
    tmp_path: Path, status: int, request_body: dict[str, Any]
) -> None:
    refused = [refusal(status, {"error": {"message": "no such thing", "param": "top_k", "code": "bad_value"}})]
    heard, asked = ask(tmp_path, refused, refused, request=request_body)
    assert 400 <= heard.status < 500
    assert heard.error["message"] == "no such thing"
    assert sum(asked) == 1


def test_an_upstream_that_is_busy_says_when_to_come_again(tmp_path: Path) -> None:
    busy = MockReply((MockChunk("{}"),), 429, {"Content-Type": "application/json", "Retry-After": "17"})
    heard, _ = ask(tmp_path, [busy])
    assert heard.status == 429
    assert "retry-after: 17" in heard.head.lower()


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
def test_another_upstream_is_tried_also_when_the_head_has_gone_out_and_nothing_else(
    tmp_path: Path, late: MockReply, request_body: dict[str, Any]
) -> None:
    async def work() -> None:
        settings: dict[str, Any] = {"first_byte_s": 0.5, "early_s": 0.02, "keep_alive_s": 0.05}
        async with gateway(tmp_path, [late], [WHOLE], **FIRST, **settings) as serving:
            heard = await serving.ask(request_body)
            assert (heard.status, serving.asked) == (200, [1, 1])
            assert heard.findings() == []
            assert b"Hello" in heard.body
            assert b'"error"' not in heard.body

    run(work())


@pytest.mark.tier3
@pytest.mark.parametrize("late", LATE.values(), ids=LATE.keys())
def test_where_both_fail_late_that_is_one_error_event(tmp_path: Path, late: MockReply) -> None:
    settings: dict[str, Any] = {"first_byte_s": 0.5, "early_s": 0.02, "keep_alive_s": 0.05}
    heard, asked = ask(tmp_path, [late], [late], **settings)
    assert asked == [1, 1]
    assert heard.status == 200
    assert heard.error
    assert heard.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.tier3
def test_an_upstream_that_only_shows_life_in_the_middle_is_given_up(tmp_path: Path) -> None:
    pings = [MockChunk(PING.text, after_s=0.1)] * 20
    heard, _ = ask(tmp_path, [MockReply((ROLE, HELLO, *pings), end="hang")], idle_s=0.5)
    assert heard.error["code"] == "timeout"


@pytest.mark.tier3
@BOTH
@pytest.mark.parametrize("first", [ROLE, PING, MockChunk(ROLE.text + PING.text)], ids=["role", "comment", "both"])
def test_until_the_first_content_an_upstream_has_the_longer_time(
    tmp_path: Path, first: MockChunk, request_body: dict[str, Any]
) -> None:
    slow = MockReply((first, MockChunk(HELLO.text, after_s=0.6), STOP, DONE))
    heard, _ = ask(tmp_path, [slow], request=request_body, idle_s=0.2, first_byte_s=60.0)
    assert b"Hello" in heard.body
    assert b'"error"' not in heard.body


@pytest.mark.tier3
@pytest.mark.parametrize("is_begun", [True, False])
def test_signs_of_life_show_that_an_upstream_works(tmp_path: Path, is_begun: bool) -> None:
    pings = [MockChunk(PING.text, after_s=0.1)] * 20
    start = (ROLE, HELLO) if is_begun else ()
    limits: dict[str, Any] = {"idle_s": 1.0, "first_byte_s": 60.0} if is_begun else {"first_byte_s": 1.0}
    heard, _ = ask(tmp_path, [MockReply((*start, *pings, HELLO, STOP, DONE))], **limits)
    assert b"Hello" in heard.body
    assert b'"error"' not in heard.body


EMPTY = MockChunk(HELLO.text.replace("Hello", ""), after_s=0.02)


@pytest.mark.tier3
@pytest.mark.parametrize("sign", [MockChunk(PING.text, after_s=0.02), EMPTY], ids=["comments", "empty chunks"])
@pytest.mark.parametrize("start", [(), (ROLE,), (ROLE, HELLO)], ids=["nothing", "a role", "content"])
def test_signs_of_life_without_content_are_not_believed_for_ever(
    tmp_path: Path, start: tuple[MockChunk, ...], sign: MockChunk
) -> None:
    heard, _ = ask(tmp_path, [MockReply((*start, sign), end="endless")], idle_s=0.2, first_byte_s=0.2)
    assert heard.error["code"] == "timeout"


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
@pytest.mark.parametrize("is_told", [True, False], ids=["as was said", "without a word"])
def test_an_upstream_that_cannot_stream_is_streamed_for(
    tmp_path: Path, request_body: dict[str, Any], is_told: bool
) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [json_reply(REPLY)], each={"stream": not is_told}) as serving:
            heard = await serving.ask(request_body)
            assert heard.status == 200
            assert heard.findings() == []
            assert b"Hello" in heard.body
            assert rb"{\"a\":1}" in heard.body
            assert json.loads(serving.upstreams[0].requests[-1].body)["stream"] is not is_told

    run(work())


@BOTH
@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "application/octet-stream"])
def test_a_stream_under_a_wrong_name_is_still_one(
    tmp_path: Path, content_type: str, request_body: dict[str, Any]
) -> None:
    odd = MockReply(WHOLE.pieces, headers={"Content-Type": content_type})
    heard, _ = ask(tmp_path, [odd], request=request_body)
    assert heard.findings() == []
    assert b"Hello" in heard.body


def test_usage_is_always_asked_for_and_shown_only_to_who_asked(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [WHOLE]) as serving:
            plain = await serving.ask(STREAM)
            asked = await serving.ask({**STREAM, "stream_options": {"include_usage": True}})
            assert b"usage" not in plain.body
            assert b'"usage":{"prompt_tokens":3' in asked.body
            for seen in serving.upstreams[0].requests:
                assert seen.method == "GET" or json.loads(seen.body)["stream_options"] == {"include_usage": True}

    run(work())


def test_usage_that_no_upstream_sent_is_left_out(tmp_path: Path) -> None:
    request = {**STREAM, "stream_options": {"include_usage": True}}
    heard, _ = ask(tmp_path, [MockReply((ROLE, HELLO, STOP, DONE))], request=request)
    assert b'"total_tokens"' not in heard.body
    whole, _ = ask(tmp_path, [MockReply((ROLE, HELLO, STOP, DONE))], request=CHAT)
    assert "usage" not in whole.json


def test_fields_that_nobody_knows_pass_on_both_ways(tmp_path: Path) -> None:
    odd = MockChunk(ROLE.text.replace('"created"', '"x_odd":{"a":[1]},"created"'))

    async def work() -> None:
        async with gateway(tmp_path, [MockReply((odd, HELLO, STOP, DONE))]) as serving:
            heard = await serving.ask({**STREAM, "guided_regex": "a+", "top_k": 7, "api_base": "http://evil"})
            assert b'"x_odd":{"a":[1]}' in heard.body
            sent = json.loads(serving.upstreams[0].requests[-1].body)
            assert (sent["guided_regex"], sent["top_k"]) == ("a+", 7)
            assert "api_base" not in sent

    run(work())


@BOTH
def test_an_upstream_that_makes_one_choice_is_asked_several_times(tmp_path: Path, request_body: dict[str, Any]) -> None:
    heard, asked = ask(tmp_path, [WHOLE], request={**request_body, "n": 3}, each={"n": "each"})
    assert heard.findings() == []
    assert heard.body.count(b"Hello") == 3
    assert asked == [3]


def test_with_several_parts_there_is_one_attempt_more_and_no_other(tmp_path: Path) -> None:
    broken = refusal(500, {})
    heard, asked = ask(tmp_path, [broken], [broken], request={**CHAT, "n": 4}, each={"n": "each", "limit": 1})
    assert heard.status == 502
    assert sum(asked) <= 4 + 1


def test_names_are_mapped_and_shown_as_the_client_knows_them(tmp_path: Path) -> None:
    async def work() -> None:
        routes = {"gpt-4o": ("scripted@a",), "gpt-*": ("scripted@b",)}
        each = {"models": ("scripted",)}
        async with gateway(tmp_path, [WHOLE], [WHOLE], config={"routes": routes}, each=each) as serving:
            for name, place in (("gpt-4o", 0), ("gpt-5", 1)):
                heard = await serving.ask({**CHAT, "model": name})
                assert heard.json["model"] == name
                assert json.loads(serving.upstreams[place].requests[-1].body)["model"] == "scripted"
            assert (await serving.ask({**CHAT, "model": "nope"})).status == 404

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
    """The names, once all upstreams have told theirs."""
    while True:
        names = [one["id"] for one in (await serving.get("/v1/models")).json["data"]]
        if len(names) >= count:
            return names


def test_what_should_be_json_and_is_not_is_told(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [WHOLE], report=True) as serving:
            heard = await serving.ask({**CHAT, "response_format": {"type": "json_object"}})
            assert "x-welldone-broken-json: content=1" in heard.head
            streamed = await serving.ask({**STREAM, "response_format": {"type": "json_object"}})
            assert b"x-welldone-broken-json: content=1" in streamed.raw.rpartition(b"\r\n0\r\n")[2].lower()
            page = (await serving.get("/metrics")).body.decode()
            assert 'welldone_broken_json_total{upstream="a",what="content"} 2.0' in page

    run(work())


@table("request_of", [STREAM, CHAT], ids=["stream", "whole"])
@table("is_shown", [False, True], ids=["", "--report"])
@table("is_admin", [True, False], ids=["admin", "named key"])
def test_a_report_names_the_upstream_to_those_who_may_see_upstreams(
    tmp_path: Path, request_of: dict[str, Any], is_shown: bool, is_admin: bool
) -> None:
    plain, named = "wd-plain-key-012345", "wd-named-key-012345"
    headers = f"x-welldone-report: 1\r\nAuthorization: Bearer {plain if is_admin else named}\r\n"

    async def work() -> None:
        keys = (KeySettings(name="ci", key=named),)
        async with gateway(
            tmp_path, [BROKEN["500"]], [WHOLE], keys=[plain], config={"keys": keys}, report=is_shown, **FIRST
        ) as serving:
            heard = await serving.ask(request_of, headers=headers)
            assert heard.status == 200
            told = re.findall(r"x-welldone-upstream: (\w+)\r\n", heard.raw.decode().lower())
            ways = 2 if request_of is STREAM else 1  # a stream has it in its head and at its end
            assert told == (["b"] * ways if is_shown or is_admin else [])
            assert b"127.0.0.1" not in heard.raw

    run(work())


def test_who_does_not_ask_for_a_report_gets_none(tmp_path: Path) -> None:
    heard, _ = ask(tmp_path, [WHOLE])
    assert "x-welldone" not in heard.head
    assert "server-timing" not in heard.head.lower()
    assert heard.raw.endswith(b"\r\n0\r\n\r\n")


def test_a_reply_that_comes_before_the_exchange_is_in_hand_stays_with_its_own_attempt(tmp_path: Path) -> None:
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
            heard = await serving.ask(STREAM)
            assert heard.status == 200
            assert heard.findings() == []
            assert serving.asked == [1, 1]

    run(work())


def test_a_rule_that_one_is_strict_about_is_an_error(tmp_path: Path) -> None:
    lax = MockReply((ROLE, MockChunk(HELLO.text.replace('"content"', '"role":"assistant","content"')), STOP, DONE))
    heard, _ = ask(tmp_path, [lax], each={"strict": ("delta-role-once",)})
    assert heard.error["code"] == "upstream_rule_broken"
    loose, _ = ask(tmp_path, [lax], each={"strict": ("end-done-sent",)})
    assert b"Hello" in loose.body
    assert b'"error"' not in loose.body


def test_a_breaker_opens_and_the_upstream_is_left_alone(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [refusal(500, {})], [WHOLE], **FIRST) as serving:
            for _ in range(20):
                assert (await serving.ask(CHAT)).status == 200
            assert serving.asked == [5, 20]

    run(work())


def test_the_last_upstream_is_asked_however_often_it_failed(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [*[refusal(500, {})] * 7, WHOLE]) as serving:
            statuses = [(await serving.ask(CHAT)).status for _ in range(8)]
            assert statuses == [502] * 7 + [200]

    run(work())


@pytest.mark.parametrize(
    "reply", [MockReply((ROLE, HELLO), end="hang"), MockReply((), end="hang")], ids=["in it", "before it"]
)
def test_who_leaves_is_counted_and_frees_the_upstream(tmp_path: Path, reply: MockReply) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [reply]) as serving:
            upstream = serving.upstreams[0]
            _, writer = await serving.send(STREAM)
            await upstream.wait_until(lambda: bool(serving.asked[0]))
            writer.close()
            await upstream.wait_until(lambda: any(one.end == "left" for one in upstream.requests))
            while serving.server.upstreams.all[0].running:
                await serving.get("/health")
            page = (await serving.get("/metrics")).body.decode()
            assert 'welldone_upstream_requests_total{status="left",upstream="a"} 1.0' in page

    run(work())
