"""Upstreams that speak the client's dialect themselves: what goes to them, what comes back, and what is mended."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.http.aio import run
from tests.server.gateways import Gateway, gateway
from tests.server.scripts import CHAT, DONE, HELLO, ROLE, STOP, USAGE, Heard, refusal
from tests.table import table
from welldone.mock.script import MockChunk, MockReply, cut_at, json_reply

Json = dict[str, Any]

PATHS = {"responses": "/v1/responses", "messages": "/v1/messages"}
ASKED: dict[str, Json] = {
    "responses": {"model": "m", "input": "Hi", "tools": [{"type": "web_search"}]},
    "messages": {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], "speed": "fast"},
}
EACH = table("dialect", ["responses", "messages"])
BOTH = table("is_stream", [True, False], ids=["stream", "whole"])
FIRST: Any = {"weight": 1000.0}
"""The first is asked first, but for one time in 100,000."""


def frames(*events: Json) -> tuple[MockChunk, ...]:
    """Events as both APIs send them."""
    return tuple(MockChunk(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n") for event in events)


TEXT = {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
EMPTY = {**TEXT, "text": ""}
SEARCH = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}}
COUNTS = {"input_tokens": 3, "output_tokens": 1, "total_tokens": 4}
DETAILS = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}


def message(status: str, *content: Json) -> Json:
    return {"id": "msg_1", "type": "message", "status": status, "role": "assistant", "content": list(content)}


def response(status: str, *output: Json, **more: Any) -> Json:  # noqa: ANN401 - each its own
    """A Response without what it repeats of its request: that is ours to say, where the server does not."""
    begun = {"id": "resp_up", "object": "response", "created_at": 1, "model": "m", "error": None, "usage": None}
    return {**begun, "incomplete_details": None, "status": status, "output": list(output), **more}


def numbered(*events: Json) -> tuple[MockChunk, ...]:
    return frames(*({**event, "sequence_number": number} for number, event in enumerate(events)))


def responded() -> tuple[Json, ...]:
    where = {"item_id": "msg_1", "output_index": 1, "content_index": 0}
    found = message("completed", TEXT)
    return (
        {"type": "response.created", "response": response("in_progress")},
        {"type": "response.in_progress", "response": response("in_progress")},
        {"type": "response.output_item.added", "output_index": 0, "item": {**SEARCH, "status": "in_progress"}},
        {"type": "response.web_search_call.in_progress", "output_index": 0, "item_id": "ws_1"},
        {"type": "response.web_search_call.completed", "output_index": 0, "item_id": "ws_1"},
        {"type": "response.output_item.done", "output_index": 0, "item": SEARCH},
        {"type": "response.output_item.added", "output_index": 1, "item": message("in_progress")},
        {"type": "response.content_part.added", **where, "part": EMPTY},
        {"type": "response.output_text.delta", **where, "delta": "Hello", "logprobs": []},
        {"type": "response.output_text.done", **where, "text": "Hello", "logprobs": []},
        {"type": "response.content_part.done", **where, "part": TEXT},
        {"type": "response.output_item.done", "output_index": 1, "item": found},
        {"type": "response.completed", "response": response("completed", SEARCH, found, usage={**COUNTS, **DETAILS})},
    )


MESSAGE: Json = {
    "id": "msg_up",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [],
    "stop_reason": None,
    "stop_sequence": None,
    "usage": {"input_tokens": 3, "output_tokens": 1},
}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "sealed"}
ENDED = {"stop_reason": "end_turn", "stop_sequence": None}


def told() -> tuple[Json, ...]:
    blocks = [
        ({"type": "thinking", "thinking": "", "signature": ""}, {"type": "thinking_delta", "thinking": "hm"}),
        ({"type": "text", "text": ""}, {"type": "text_delta", "text": "Hello"}),
    ]
    said: list[Json] = []
    for index, (block, delta) in enumerate(blocks):
        said += [
            {"type": "content_block_start", "index": index, "content_block": block},
            {"type": "content_block_delta", "index": index, "delta": delta},
        ]
        if not index:
            sealed = {"type": "signature_delta", "signature": "sealed"}
            said.append({"type": "content_block_delta", "index": index, "delta": sealed})
        said.append({"type": "content_block_stop", "index": index})
    end: list[Json] = [
        {"type": "message_delta", "delta": ENDED, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]
    return ({"type": "message_start", "message": MESSAGE}, *said, *end)


RIGHT = {"responses": numbered(*responded()), "messages": frames(*told())}
WHOLE: dict[str, Json] = {
    "responses": response("completed", SEARCH, message("completed", TEXT), usage={**COUNTS, **DETAILS}),
    "messages": {**MESSAGE, "content": [THOUGHT, {"type": "text", "text": "Hello"}], **ENDED},
}
KEPT = {"responses": '"web_search_call"', "messages": '"sealed"'}
"""What only the dialect can say."""
ODD = {
    "responses": (*frames(*responded()[2:]), MockChunk("data: [DONE]\n\n")),  # no beginning, and no numbers
    "messages": (*frames(*told()[1:-1]), MockChunk("data: [DONE]\n\n")),
}
ERRORS = {
    "responses": frames({"type": "error", "code": "server_error", "message": "no", "param": None}),
    "messages": frames({"type": "error", "error": {"type": "api_error", "message": "no"}}),
}


def asked(dialect: str, *, is_stream: bool = True, **more: Any) -> Json:  # noqa: ANN401 - each field its own
    return {**ASKED[dialect], "stream": is_stream, **more}


def right(dialect: str, *, is_stream: bool) -> MockReply:
    """What a right upstream answers."""
    return MockReply(RIGHT[dialect]) if is_stream else json_reply(WHOLE[dialect])


def settings(dialect: str, **more: Any) -> Json:  # noqa: ANN401 - each its own
    return {"speaks": (dialect,), "weight": 0.01, **more}


def ask(
    folder: Path, dialect: str, *scripts: list[MockReply], request: Json, each: Json | None = None
) -> tuple[Heard, list[Json]]:
    """What a client hears, and what the upstreams were asked."""

    async def work() -> tuple[Heard, list[Json]]:
        async with gateway(folder, *scripts, each=settings(dialect, **(each or {})), first=FIRST) as serving:
            heard = await serving.ask(request, PATHS[dialect])
            return heard, [seen(serving, place) for place in range(len(scripts)) if serving.asked[place]]

    return run(work())


def seen(serving: Gateway, place: int = 0) -> Json:
    """The last request that an upstream had."""
    last = [one for one in serving.upstreams[place].requests if one.method == "POST"][-1]
    return {"path": last.path, "headers": last.headers, "body": json.loads(last.body)}


def error(heard: Heard, dialect: str) -> tuple[str, str]:
    """The type and the words of an error, in the dialect's shape."""
    body = heard.json
    assert (body.get("type") == "error") is (dialect == "messages")
    return body["error"]["type"], body["error"]["message"]


@EACH
@BOTH
def test_a_right_answer_passes_with_all_that_only_its_dialect_can_say(
    dialect: str, is_stream: bool, tmp_path: Path
) -> None:
    heard, (sent,) = ask(
        tmp_path, dialect, [right(dialect, is_stream=is_stream)], request=asked(dialect, is_stream=is_stream)
    )
    assert (heard.status, heard.findings(dialect)) == (200, [])
    assert sent["path"] == PATHS[dialect]
    assert sent["body"] == asked(dialect, is_stream=is_stream)
    assert KEPT[dialect] in heard.body.decode()
    assert '"Hello"' in heard.body.decode()
    assert "_up" in heard.body.decode()


@EACH
@BOTH
@table("comes_as_stream", [True, False], ids=["a stream comes", "a whole reply comes"])
def test_an_upstream_may_answer_otherwise_than_it_was_asked_to(
    dialect: str, is_stream: bool, comes_as_stream: bool, tmp_path: Path
) -> None:
    reply = right(dialect, is_stream=comes_as_stream)
    heard, _ = ask(tmp_path, dialect, [reply], request=asked(dialect, is_stream=is_stream))
    assert (heard.status, heard.findings(dialect)) == (200, [])
    assert KEPT[dialect] in heard.body.decode()


@EACH
def test_an_upstream_that_cannot_stream_is_asked_for_a_whole_reply(dialect: str, tmp_path: Path) -> None:
    reply = right(dialect, is_stream=False)
    heard, (sent,) = ask(tmp_path, dialect, [reply], request=asked(dialect), each={"stream": False})
    assert sent["body"]["stream"] is False
    assert (heard.status, heard.findings(dialect)) == (200, [])


@EACH
@BOTH
def test_what_is_wrong_is_mended_within_the_dialect(dialect: str, is_stream: bool, tmp_path: Path) -> None:
    heard, _ = ask(tmp_path, dialect, [MockReply(ODD[dialect])], request=asked(dialect, is_stream=is_stream))
    assert (heard.status, heard.findings(dialect)) == (200, [])
    assert KEPT[dialect] in heard.body.decode()


@EACH
def test_what_is_wrong_is_an_error_where_the_operator_wants_that(dialect: str, tmp_path: Path) -> None:
    rule = {"responses": "resp-sequence-number", "messages": "msg-start-first"}[dialect]
    heard, _ = ask(tmp_path, dialect, [MockReply(ODD[dialect])], request=asked(dialect), each={"strict": (rule,)})
    assert heard.status == 502
    assert rule in error(heard, dialect)[1]


@EACH
@BOTH
def test_an_answer_that_breaks_off_is_a_failure_in_its_dialect(dialect: str, is_stream: bool, tmp_path: Path) -> None:
    reply = cut_at(MockReply(RIGHT[dialect]), sum(len(piece.data) for piece in RIGHT[dialect][:-3]))
    heard, _ = ask(tmp_path, dialect, [reply], request=asked(dialect, is_stream=is_stream))
    if not is_stream:
        assert heard.status == 502
        assert "broke off" in error(heard, dialect)[1]
        return
    end = {"responses": "event: response.failed", "messages": "event: error"}[dialect]
    assert heard.body.decode().count(end) == 1
    assert end in heard.body.decode().split("\n\n")[-2]
    assert heard.findings(dialect) == []


STATUSES = [
    (400, 400, "invalid_request_error", "invalid_request_error"),
    (401, 502, "server_error", "api_error"),
    (404, 404, "invalid_request_error", "not_found_error"),
    (413, 413, "invalid_request_error", "request_too_large"),
    (429, 429, "rate_limit_error", "rate_limit_error"),
    (500, 502, "server_error", "api_error"),
    (503, 503, "server_error", "overloaded_error"),
    (529, 503, "server_error", "overloaded_error"),  # Anthropic's own status for it
]


@EACH
@BOTH
@table(("status", "wanted", "openai", "anthropic"), STATUSES)
def test_a_refusal_has_the_right_status_and_the_shape_of_the_dialect(
    dialect: str, is_stream: bool, status: int, wanted: int, openai: str, anthropic: str, tmp_path: Path
) -> None:
    ours = {"message": "because", "type": "x", "param": None, "code": None}
    theirs = {"type": "error", "error": {"type": "x", "message": "because"}, "request_id": "req_1"}
    reply = refusal(status, {"responses": {"error": ours}, "messages": theirs}[dialect])
    heard, _ = ask(tmp_path, dialect, [reply], request=asked(dialect, is_stream=is_stream))
    assert heard.status == wanted
    kind, words = error(heard, dialect)
    assert kind == {"responses": openai, "messages": anthropic}[dialect]
    assert status == 401 or "because" in words
    assert heard.findings(dialect) == []


@EACH
@BOTH
@table("kind", ["closed", "500", "529", "error event", "garbage"])
def test_before_the_first_byte_another_upstream_is_tried(
    dialect: str, is_stream: bool, kind: str, tmp_path: Path
) -> None:
    broken = {
        "closed": MockReply(raw=True, end="cut"),
        "500": refusal(500, {"error": {"message": "oops"}}),
        "529": refusal(529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
        "error event": MockReply(ERRORS[dialect]),
        "garbage": MockReply((MockChunk("data: {{{{\n\n"),)),
    }[kind]
    reply = right(dialect, is_stream=is_stream)
    heard, sent = ask(tmp_path, dialect, [broken], [reply], request=asked(dialect, is_stream=is_stream))
    assert len(sent) == 2
    assert (heard.status, heard.findings(dialect)) == (200, [])


@EACH
def test_an_error_that_comes_first_is_a_status(dialect: str, tmp_path: Path) -> None:
    heard, _ = ask(tmp_path, dialect, [MockReply(ERRORS[dialect])], request=asked(dialect))
    assert (heard.status, error(heard, dialect)[1]) == (502, "no")


@BOTH
@table(
    ("dialect", "event", "status"),
    [
        ("messages", {"type": "error", "error": {"type": "overloaded_error", "message": "no"}}, 503),
        ("messages", {"type": "error", "error": {"type": "rate_limit_error", "message": "no"}}, 429),
        ("messages", {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}, 400),
        ("responses", {"type": "error", "code": "rate_limit_exceeded", "message": "no", "param": None}, 429),
        ("responses", {"type": "response.failed", "response": {"error": {"code": "invalid_prompt"}}}, 400),
    ],
)
def test_an_error_that_comes_first_has_the_status_that_it_means(
    dialect: str, event: Json, status: int, is_stream: bool, tmp_path: Path
) -> None:
    heard, _ = ask(tmp_path, dialect, [MockReply(frames(event))], request=asked(dialect, is_stream=is_stream))
    assert heard.status == status


def test_a_model_that_not_all_upstreams_speak_for_is_asked_in_chat(tmp_path: Path) -> None:
    request = {"model": "m", "input": "Hi", "stream": True}

    async def work() -> None:
        each, chat = {"weight": 0.01}, MockReply((ROLE, HELLO, STOP, USAGE, DONE))
        async with gateway(tmp_path, [chat], [chat], each=each, first={**FIRST, "speaks": ("responses",)}) as serving:
            heard = await serving.ask(request, PATHS["responses"])
            assert (heard.status, heard.findings("responses")) == (200, [])
            assert seen(serving)["path"] == "/v1/chat/completions"

    run(work())


def test_keys_and_versions_go_where_they_belong(tmp_path: Path) -> None:
    async def work() -> None:
        each = {**settings("messages"), "key": "sk-upstream-0123"}
        given = "x-api-key: sk-client-012345\r\nanthropic-beta: one\r\nanthropic-beta: two\r\n"
        async with gateway(tmp_path, [MockReply(RIGHT["messages"])], each=each, keys=["sk-client-012345"]) as serving:
            heard = await serving.ask(asked("messages"), PATHS["messages"], f"{given}anthropic-version: 2023-06-01\r\n")
            assert heard.status == 200
            headers = seen(serving)["headers"]
            assert headers["x-api-key"] == "sk-upstream-0123"
            assert headers["anthropic-beta"] == "one,two"
            assert headers["anthropic-version"] == "2023-06-01"
            assert "client" not in json.dumps(seen(serving))
            assert (await serving.ask(asked("messages"), PATHS["messages"])).status == 401
            assert (await serving.ask(CHAT, headers="Authorization: Bearer sk-client-012345\r\n")).status != 401
            assert "x-api-key" not in seen(serving)["headers"]

    run(work())


@EACH
def test_fields_that_name_a_server_or_a_key_stay_here(dialect: str, tmp_path: Path) -> None:
    request = asked(dialect, api_base="http://evil", api_key="sk-client-012345", vertex_project="x")
    _, (sent,) = ask(tmp_path, dialect, [MockReply(RIGHT[dialect])], request=request)
    assert sent["body"] == asked(dialect)


def test_tokens_are_counted_by_the_upstream(tmp_path: Path) -> None:
    async def work() -> None:
        reply = json_reply({"input_tokens": 7, "context_management": {"original_input_tokens": 9}})
        async with gateway(tmp_path, [reply], each=settings("messages")) as serving:
            heard = await serving.ask(ASKED["messages"], "/v1/messages/count_tokens")
            assert heard.json == {"input_tokens": 7, "context_management": {"original_input_tokens": 9}}
            assert seen(serving)["path"] == "/v1/messages/count_tokens"

    run(work())


@BOTH
def test_a_response_is_kept_under_the_name_that_the_upstream_gave_it(is_stream: bool, tmp_path: Path) -> None:
    async def work() -> None:
        reply = right("responses", is_stream=is_stream)
        async with gateway(tmp_path, [reply], each=settings("responses")) as serving:
            await serving.ask(asked("responses", is_stream=is_stream), PATHS["responses"])
            kept = (await serving.get("/v1/responses/resp_up")).json
            assert (kept["status"], kept["output"][0]) == ("completed", SEARCH)
            assert kept["tools"] == ASKED["responses"]["tools"]
            again = asked("responses", is_stream=is_stream, previous_response_id="resp_up")
            await serving.ask(again, PATHS["responses"])
            assert seen(serving)["body"] == again
            items = (await serving.get("/v1/responses/resp_up/input_items")).json
            assert items["data"][0]["content"] == [{"type": "input_text", "text": "Hi"}]

    run(work())


@pytest.mark.parametrize("is_text", [True, False])
def test_a_conversation_stays_with_its_upstream(is_text: bool, tmp_path: Path) -> None:
    def said(name: str, turn: int) -> Any:  # noqa: ANN401 - a text, or items
        more = [{"role": "assistant", "content": "Yes"}, {"role": "user", "content": "Go on"}] * turn
        return name if is_text else [{"role": "user", "content": name}, *more]

    async def work() -> None:
        scripts = [[MockReply(RIGHT["responses"])]] * 3
        each = {"speaks": ("responses",), "sticky": "conversation"}
        async with gateway(tmp_path, *scripts, each=each) as serving:
            for name in (f"person-{number}" for number in range(12)):
                before = serving.asked
                for turn in range(3):
                    await serving.ask(asked("responses", input=said(name, turn)), PATHS["responses"])
                gained = sorted(new - old for old, new in zip(before, serving.asked, strict=True))
                assert gained == [0, 0, 3]
            assert sum(bool(count) for count in serving.asked) > 1

    run(work())


@EACH
def test_a_client_that_leaves_frees_the_upstream_and_nothing_is_kept(dialect: str, tmp_path: Path) -> None:
    async def work() -> None:
        reply = MockReply(RIGHT[dialect][:-3], end="hang")
        async with gateway(tmp_path, [reply], each=settings(dialect)) as serving:
            reader, writer = await serving.send(asked(dialect), PATHS[dialect])
            await reader.readuntil(b"Hello")
            writer.transport.abort()
            upstream = serving.upstreams[0]
            await upstream.wait_until(lambda: any(one.end == "left" for one in upstream.requests))
            assert serving.answers() == []
            assert (await serving.get("/v1/responses/resp_up")).status == 404
            assert 'welldone_upstream_running{upstream="a"} 0.0' in (await serving.get("/metrics")).body.decode()

    run(work())


@EACH
@BOTH
def test_until_the_first_content_a_native_upstream_has_the_longer_time(
    dialect: str, is_stream: bool, tmp_path: Path
) -> None:
    first, *rest = RIGHT[dialect]
    slow = MockReply((first, msgspec.structs.replace(rest[0], after_s=0.6), *rest[1:]))
    limits = {"idle_s": 0.2, "first_byte_s": 60.0}
    heard, _ = ask(tmp_path, dialect, [slow], request=asked(dialect, is_stream=is_stream), each=limits)
    assert (heard.status, heard.findings(dialect)) == (200, [])
    assert "Hello" in heard.body.decode()
