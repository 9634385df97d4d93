"""Upstreams with the client's dialect: requests, responses and repairs."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.http.aio import run
from tests.server.running_gateway import Gateway, gateway
from tests.server.running_server import CHAT, DONE, HELLO, ROLE, STOP, USAGE, RecordedReply, json_error
from tests.table import table
from welldone.mock.script import MockChunk, MockReply, cut_at, json_reply

Json = dict[str, Any]

PATHS = {"responses": "/v1/responses", "messages": "/v1/messages"}
REQUEST: dict[str, Json] = {
    "responses": {"model": "m", "input": "Hi", "tools": [{"type": "web_search"}]},
    "messages": {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], "speed": "fast"},
}
EACH = table("dialect", ["responses", "messages"])
BOTH = table("is_stream", [True, False], ids=["stream", "whole"])
FIRST: Any = {"weight": 1000.0}
"""The first upstream is chosen first, except once in 100,000 times."""


def frames(*events: Json) -> tuple[MockChunk, ...]:
    """Return events as SSE frames."""
    return tuple(MockChunk(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n") for event in events)


TEXT = {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
EMPTY = {**TEXT, "text": ""}
SEARCH = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}}
COUNTS = {"input_tokens": 3, "output_tokens": 1, "total_tokens": 4}
DETAILS = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}


def message(status: str, *content: Json) -> Json:
    return {"id": "msg_1", "type": "message", "status": status, "role": "assistant", "content": list(content)}


def response(status: str, *output: Json, **more: Any) -> Json:  # noqa: ANN401 - each its own
    """Return a response without echoed fields, which the gateway adds."""
    begun = {"id": "resp_up", "object": "response", "created_at": 1, "model": "m", "error": None, "usage": None}
    return {**begun, "incomplete_details": None, "status": status, "output": list(output), **more}


def numbered(*events: Json) -> tuple[MockChunk, ...]:
    return frames(*({**event, "sequence_number": number} for number, event in enumerate(events)))


def response_events() -> tuple[Json, ...]:
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


def message_events() -> tuple[Json, ...]:
    blocks = [
        ({"type": "thinking", "thinking": "", "signature": ""}, {"type": "thinking_delta", "thinking": "hm"}),
        ({"type": "text", "text": ""}, {"type": "text_delta", "text": "Hello"}),
    ]
    body_events: list[Json] = []
    for index, (block, delta) in enumerate(blocks):
        body_events += [
            {"type": "content_block_start", "index": index, "content_block": block},
            {"type": "content_block_delta", "index": index, "delta": delta},
        ]
        if not index:
            sealed = {"type": "signature_delta", "signature": "sealed"}
            body_events.append({"type": "content_block_delta", "index": index, "delta": sealed})
        body_events.append({"type": "content_block_stop", "index": index})
    end: list[Json] = [
        {"type": "message_delta", "delta": ENDED, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]
    return ({"type": "message_start", "message": MESSAGE}, *body_events, *end)


VALID = {"responses": numbered(*response_events()), "messages": frames(*message_events())}
WHOLE: dict[str, Json] = {
    "responses": response("completed", SEARCH, message("completed", TEXT), usage={**COUNTS, **DETAILS}),
    "messages": {**MESSAGE, "content": [THOUGHT, {"type": "text", "text": "Hello"}], **ENDED},
}
KEPT = {"responses": '"web_search_call"', "messages": '"sealed"'}
"""Content that only this dialect has."""
ODD = {
    "responses": (*frames(*response_events()[2:]), MockChunk("data: [DONE]\n\n")),  # no beginning, and no numbers
    "messages": (*frames(*message_events()[1:-1]), MockChunk("data: [DONE]\n\n")),
}
ERRORS = {
    "responses": frames({"type": "error", "code": "server_error", "message": "no", "param": None}),
    "messages": frames({"type": "error", "error": {"type": "api_error", "message": "no"}}),
}


def request_for(dialect: str, *, is_stream: bool = True, **more: Any) -> Json:  # noqa: ANN401 - each field its own
    return {**REQUEST[dialect], "stream": is_stream, **more}


def valid_reply(dialect: str, *, is_stream: bool) -> MockReply:
    """Return the reply of a valid upstream."""
    return MockReply(VALID[dialect]) if is_stream else json_reply(WHOLE[dialect])


def settings(dialect: str, **more: Any) -> Json:  # noqa: ANN401 - each its own
    return {"speaks": (dialect,), "weight": 0.01, **more}


def send_request(
    folder: Path, dialect: str, *scripts: list[MockReply], request: Json, each: Json | None = None
) -> tuple[RecordedReply, list[Json]]:
    """Return the response and the requests of the upstreams."""

    async def work() -> tuple[RecordedReply, list[Json]]:
        async with gateway(folder, *scripts, each=settings(dialect, **(each or {})), first=FIRST) as serving:
            received = await serving.post(request, PATHS[dialect])
            return received, [
                seen(serving, upstream_index)
                for upstream_index in range(len(scripts))
                if serving.post_counts[upstream_index]
            ]

    return run(work())


def seen(serving: Gateway, upstream_index: int = 0) -> Json:
    """Return the last request of an upstream."""
    last = [one for one in serving.upstreams[upstream_index].requests if one.method == "POST"][-1]
    return {"path": last.path, "headers": last.headers, "body": json.loads(last.body)}


def error(received: RecordedReply, dialect: str) -> tuple[str, str]:
    """Return type and message of an error in the dialect's format."""
    body = received.json
    assert (body.get("type") == "error") is (dialect == "messages")
    return body["error"]["type"], body["error"]["message"]


@EACH
@BOTH
def test_a_valid_response_keeps_all_fields_of_its_dialect(dialect: str, is_stream: bool, tmp_path: Path) -> None:
    received, (sent,) = send_request(
        tmp_path,
        dialect,
        [valid_reply(dialect, is_stream=is_stream)],
        request=request_for(dialect, is_stream=is_stream),
    )
    assert (received.status, received.findings(dialect)) == (200, [])
    assert sent["path"] == PATHS[dialect]
    assert sent["body"] == request_for(dialect, is_stream=is_stream)
    assert KEPT[dialect] in received.body.decode()
    assert '"Hello"' in received.body.decode()
    assert "_up" in received.body.decode()


@EACH
@BOTH
@table("comes_as_stream", [True, False], ids=["a stream comes", "a whole reply comes"])
def test_an_upstream_may_stream_or_not_regardless_of_the_request(
    dialect: str, is_stream: bool, comes_as_stream: bool, tmp_path: Path
) -> None:
    reply = valid_reply(dialect, is_stream=comes_as_stream)
    received, _ = send_request(tmp_path, dialect, [reply], request=request_for(dialect, is_stream=is_stream))
    assert (received.status, received.findings(dialect)) == (200, [])
    assert KEPT[dialect] in received.body.decode()


@EACH
def test_an_upstream_without_streaming_gets_requests_without_stream(dialect: str, tmp_path: Path) -> None:
    reply = valid_reply(dialect, is_stream=False)
    received, (sent,) = send_request(tmp_path, dialect, [reply], request=request_for(dialect), each={"stream": "false"})
    assert sent["body"]["stream"] is False
    assert (received.status, received.findings(dialect)) == (200, [])


@EACH
@BOTH
def test_violations_are_repaired_within_the_dialect(dialect: str, is_stream: bool, tmp_path: Path) -> None:
    received, _ = send_request(
        tmp_path, dialect, [MockReply(ODD[dialect])], request=request_for(dialect, is_stream=is_stream)
    )
    assert (received.status, received.findings(dialect)) == (200, [])
    assert KEPT[dialect] in received.body.decode()


@EACH
def test_violations_of_strict_rules_are_errors(dialect: str, tmp_path: Path) -> None:
    rule = {"responses": "resp-sequence-number", "messages": "msg-start-first"}[dialect]
    received, _ = send_request(
        tmp_path, dialect, [MockReply(ODD[dialect])], request=request_for(dialect), each={"strict": (rule,)}
    )
    assert received.status == 502
    assert rule in error(received, dialect)[1]


@BOTH
def test_a_message_that_breaks_off_before_its_last_event_is_complete(is_stream: bool, tmp_path: Path) -> None:
    cut = MockReply((*VALID["messages"][:-1], MockChunk(after_s=0.05)), end="cut")
    request = request_for("messages", is_stream=is_stream)
    received, _ = send_request(tmp_path, "messages", [cut], request=request)
    assert (received.status, received.findings("messages")) == (200, [])
    assert '"end_turn"' in received.body.decode()
    assert '"type":"error"' not in received.body.decode()


@EACH
@BOTH
def test_a_truncated_response_is_a_failure_in_its_dialect(dialect: str, is_stream: bool, tmp_path: Path) -> None:
    reply = cut_at(MockReply(VALID[dialect]), sum(len(piece.data) for piece in VALID[dialect][:-3]))
    received, _ = send_request(tmp_path, dialect, [reply], request=request_for(dialect, is_stream=is_stream))
    if not is_stream:
        assert received.status == 502
        assert "broke off" in error(received, dialect)[1]
        return
    end = {"responses": "event: response.failed", "messages": "event: error"}[dialect]
    assert received.body.decode().count(end) == 1
    assert end in received.body.decode().split("\n\n")[-2]
    assert received.findings(dialect) == []


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
def test_an_error_has_the_right_status_and_the_format_of_the_dialect(
    dialect: str, is_stream: bool, status: int, wanted: int, openai: str, anthropic: str, tmp_path: Path
) -> None:
    ours = {"message": "because", "type": "x", "param": None, "code": None}
    theirs = {"type": "error", "error": {"type": "x", "message": "because"}, "request_id": "req_1"}
    reply = json_error(status, {"responses": {"error": ours}, "messages": theirs}[dialect])
    received, _ = send_request(tmp_path, dialect, [reply], request=request_for(dialect, is_stream=is_stream))
    assert received.status == wanted
    kind, text = error(received, dialect)
    assert kind == {"responses": openai, "messages": anthropic}[dialect]
    assert status == 401 or "because" in text
    assert received.findings(dialect) == []


@EACH
@BOTH
@table("kind", ["closed", "500", "529", "error event", "garbage"])
def test_before_the_first_byte_another_upstream_is_tried(
    dialect: str, is_stream: bool, kind: str, tmp_path: Path
) -> None:
    broken = {
        "closed": MockReply(raw=True, end="cut"),
        "500": json_error(500, {"error": {"message": "oops"}}),
        "529": json_error(529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
        "error event": MockReply(ERRORS[dialect]),
        "garbage": MockReply((MockChunk("data: {{{{\n\n"),)),
    }[kind]
    reply = valid_reply(dialect, is_stream=is_stream)
    received, sent = send_request(
        tmp_path, dialect, [broken], [reply], request=request_for(dialect, is_stream=is_stream)
    )
    assert len(sent) == 2
    assert (received.status, received.findings(dialect)) == (200, [])


@EACH
def test_an_initial_error_event_becomes_a_status(dialect: str, tmp_path: Path) -> None:
    received, _ = send_request(tmp_path, dialect, [MockReply(ERRORS[dialect])], request=request_for(dialect))
    assert (received.status, error(received, dialect)[1]) == (502, "no")


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
def test_an_initial_error_event_is_mapped_to_its_status(
    dialect: str, event: Json, status: int, is_stream: bool, tmp_path: Path
) -> None:
    received, _ = send_request(
        tmp_path, dialect, [MockReply(frames(event))], request=request_for(dialect, is_stream=is_stream)
    )
    assert received.status == status


def test_chat_is_used_if_not_all_upstreams_support_the_dialect(tmp_path: Path) -> None:
    request = {"model": "m", "input": "Hi", "stream": True}

    async def work() -> None:
        each, chat = {"weight": 0.01}, MockReply((ROLE, HELLO, STOP, USAGE, DONE))
        async with gateway(tmp_path, [chat], [chat], each=each, first={**FIRST, "speaks": ("responses",)}) as serving:
            received = await serving.post(request, PATHS["responses"])
            assert (received.status, received.findings("responses")) == (200, [])
            assert seen(serving)["path"] == "/v1/chat/completions"

    run(work())


def test_keys_and_version_headers_are_forwarded_correctly(tmp_path: Path) -> None:
    async def work() -> None:
        each = {**settings("messages"), "key": "sk-upstream-0123"}
        given = "x-api-key: sk-client-012345\r\nanthropic-beta: one\r\nanthropic-beta: two\r\n"
        async with gateway(tmp_path, [MockReply(VALID["messages"])], each=each, keys=["sk-client-012345"]) as serving:
            received = await serving.post(
                request_for("messages"), PATHS["messages"], f"{given}anthropic-version: 2023-06-01\r\n"
            )
            assert received.status == 200
            headers = seen(serving)["headers"]
            assert headers["x-api-key"] == "sk-upstream-0123"
            assert headers["anthropic-beta"] == "one,two"
            assert headers["anthropic-version"] == "2023-06-01"
            assert "client" not in json.dumps(seen(serving))
            assert (await serving.post(request_for("messages"), PATHS["messages"])).status == 401
            assert (await serving.post(CHAT, headers="Authorization: Bearer sk-client-012345\r\n")).status != 401
            assert "x-api-key" not in seen(serving)["headers"]

    run(work())


@EACH
def test_fields_that_name_a_server_or_a_key_are_not_forwarded(dialect: str, tmp_path: Path) -> None:
    request = request_for(dialect, api_base="http://evil", api_key="sk-client-012345", vertex_project="x")
    _, (sent,) = send_request(tmp_path, dialect, [MockReply(VALID[dialect])], request=request)
    assert sent["body"] == request_for(dialect)


def test_tokens_are_counted_by_the_upstream(tmp_path: Path) -> None:
    async def work() -> None:
        reply = json_reply({"input_tokens": 7, "context_management": {"original_input_tokens": 9}})
        async with gateway(tmp_path, [reply], each=settings("messages")) as serving:
            received = await serving.post(REQUEST["messages"], "/v1/messages/count_tokens")
            assert received.json == {"input_tokens": 7, "context_management": {"original_input_tokens": 9}}
            assert seen(serving)["path"] == "/v1/messages/count_tokens"

    run(work())


COMPACTED: Json = {
    "id": "resp_up",
    "object": "response.compaction",
    "created_at": 1,
    "output": [message("completed", TEXT), {"id": "cmp_1", "type": "compaction", "encrypted_content": "gAAAA"}],
    "usage": {**COUNTS, **DETAILS},
    "unknown": 1.5,
}


def test_a_conversation_is_compacted_by_the_upstream(tmp_path: Path) -> None:
    async def work() -> None:
        replies = [json_reply(COMPACTED), json_error(404, {"error": {"message": "no such path"}})]
        async with gateway(tmp_path, replies, each=settings("responses")) as serving:
            body = {"model": "m", "input": [{"role": "user", "content": "Hi"}], "reasoning": {"effort": "low"}}
            received = await serving.post(body, "/v1/responses/compact")
            assert received.json == COMPACTED
            assert seen(serving)["path"] == "/v1/responses/compact"
            assert seen(serving)["body"] == body
            assert re.search(
                r"(?m)^llamacpp:prompt_tokens_total\{.*\} 4\.0$", (await serving.get("/metrics")).body.decode()
            )
            assert (await serving.post(body, "/v1/responses/compact")).status == 404

    run(work())


def test_a_compaction_of_ours_is_readable_for_an_upstream_of_any_kind(tmp_path: Path) -> None:
    async def work() -> None:
        chat = MockReply((ROLE, HELLO, STOP, USAGE, DONE))
        async with gateway(tmp_path, [chat]) as serving:
            compacted = (await serving.post({"model": "m", "input": "Hi"}, "/v1/responses/compact")).json
            asked, item = compacted["output"]
            assert asked["content"] == [{"type": "input_text", "text": "Hi"}]
            assert compacted["usage"]["total_tokens"] == 4
        async with gateway(
            tmp_path, [valid_reply("responses", is_stream=False)], each=settings("responses")
        ) as serving:
            await serving.post({"model": "m", "input": [item]}, "/v1/responses")
            (sent,) = seen(serving)["body"]["input"]
            assert sent["role"] == "assistant"
            assert sent["content"][0]["text"].endswith("\nHello")

    run(work())


def test_an_empty_summary_is_an_error(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [MockReply((ROLE, STOP, USAGE, DONE))]) as serving:
            reply = await serving.post({"model": "m", "input": "Hi"}, "/v1/responses/compact")
            assert (reply.status, reply.error["code"]) == (502, "empty_summary")

    run(work())


@BOTH
def test_a_response_is_stored_under_the_id_of_the_upstream(is_stream: bool, tmp_path: Path) -> None:
    async def work() -> None:
        reply = valid_reply("responses", is_stream=is_stream)
        async with gateway(tmp_path, [reply], each=settings("responses")) as serving:
            await serving.post(request_for("responses", is_stream=is_stream), PATHS["responses"])
            stored = (await serving.get("/v1/responses/resp_up")).json
            assert (stored["status"], stored["output"][0]) == ("completed", SEARCH)
            assert stored["tools"] == REQUEST["responses"]["tools"]
            again = request_for("responses", is_stream=is_stream, previous_response_id="resp_up")
            await serving.post(again, PATHS["responses"])
            assert seen(serving)["body"] == again
            items = (await serving.get("/v1/responses/resp_up/input_items")).json
            assert items["data"][0]["content"] == [{"type": "input_text", "text": "Hi"}]

    run(work())


@pytest.mark.parametrize("is_text", [True, False])
def test_a_conversation_stays_with_its_upstream(is_text: bool, tmp_path: Path) -> None:
    def body_events(name: str, turn: int) -> Any:  # noqa: ANN401 - a text, or items
        more = [{"role": "assistant", "content": "Yes"}, {"role": "user", "content": "Go on"}] * turn
        return name if is_text else [{"role": "user", "content": name}, *more]

    async def work() -> None:
        scripts = [[MockReply(VALID["responses"])]] * 3
        each = {"speaks": ("responses",), "sticky": "conversation"}
        async with gateway(tmp_path, *scripts, each=each) as serving:
            for name in (f"person-{number}" for number in range(12)):
                before = serving.post_counts
                for turn in range(3):
                    await serving.post(request_for("responses", input=body_events(name, turn)), PATHS["responses"])
                gained = sorted(new - old for old, new in zip(before, serving.post_counts, strict=True))
                assert gained == [0, 0, 3]
            assert sum(bool(count) for count in serving.post_counts) > 1

    run(work())


@EACH
def test_a_disconnected_client_frees_the_upstream_and_nothing_is_stored(dialect: str, tmp_path: Path) -> None:
    async def work() -> None:
        reply = MockReply(VALID[dialect][:-3], end="hang")
        async with gateway(tmp_path, [reply], each=settings(dialect)) as serving:
            reader, writer = await serving.send(request_for(dialect), PATHS[dialect])
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
def test_the_first_byte_timeout_applies_until_the_first_content(dialect: str, is_stream: bool, tmp_path: Path) -> None:
    first, *rest = VALID[dialect]
    slow = MockReply((first, msgspec.structs.replace(rest[0], after_s=0.6), *rest[1:]))
    limits = {"idle_s": 0.2, "first_byte_s": 60.0}
    received, _ = send_request(
        tmp_path, dialect, [slow], request=request_for(dialect, is_stream=is_stream), each=limits
    )
    assert (received.status, received.findings(dialect)) == (200, [])
    assert "Hello" in received.body.decode()
