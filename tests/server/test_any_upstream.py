"""Clients of every dialect with an upstream that has only the Messages or only the Responses API."""

import json
from pathlib import Path
from typing import Any

from tests.http.aio import run
from tests.server.running_gateway import Gateway, gateway
from tests.server.running_server import DONE, HELLO, ROLE, STOP, USAGE, RecordedReply, json_error
from tests.server.test_same_dialect import ERRORS, VALID, WHOLE
from tests.table import table
from welldone.mock.script import MockChunk, MockReply, MockScript, cut_at, json_reply

Json = dict[str, Any]

USER = [{"role": "user", "content": "Hi"}]
REQUESTS: dict[str, Json] = {
    "/v1/chat/completions": {"model": "m", "messages": USER},
    "/v1/completions": {"model": "m", "prompt": "Hi"},
    "/v1/responses": {"model": "m", "input": "Hi"},
    "/v1/messages": {"model": "m", "max_tokens": 9, "messages": USER},
    "/api/chat": {"model": "m", "messages": USER},
    "/api/generate": {"model": "m", "prompt": "Hi"},
}
UPSTREAM_PATHS = {"messages": "/v1/messages", "responses": "/v1/responses"}
CHAT = "/v1/chat/completions"
ENDPOINTS = {CHAT: "chat", "/v1/completions": "completions", "/v1/responses": "responses", "/v1/messages": "messages"}
EACH_DIALECT = table("dialect", ["messages", "responses"])
SEALED = {"type": "reasoning.text", "text": "hm", "signature": "sealed", "format": "anthropic-claude-v1", "index": 0}


def only(dialect: str, **more: Any) -> Json:  # noqa: ANN401 - settings of an upstream
    """Return the settings of an upstream with one dialect."""
    return {"chat": False, "speaks": (dialect,), **more}


def posts(serving: Gateway, number: int = 0) -> list[Any]:
    """Return the POSTs that an upstream got."""
    return [one for one in serving.upstreams[number].requests if one.method == "POST"]


def bodies(serving: Gateway, number: int = 0) -> list[Json]:
    """Return the bodies of these POSTs."""
    return [json.loads(one.body) for one in posts(serving, number)]


def error_body(dialect: str, kind: str, message: str) -> Json:
    """Return an error response of an upstream."""
    error = {"type": kind, "message": message}
    return {"type": "error", "error": error} if dialect == "messages" else {"error": {**error, "code": None}}


def text_of(path: str, reply: RecordedReply) -> str:
    """Return the text of a stream or a whole reply, in any dialect."""
    lines = [line.removeprefix("data: ") for line in reply.body.decode().splitlines()]
    values = [json.loads(line) for line in lines if line.startswith("{")]
    if path.startswith("/api"):
        return "".join(one.get("response") or one.get("message", {}).get("content", "") for one in values)
    return "".join(_text(value, is_whole=len(values) == 1) for value in values)


def _text(value: Json, *, is_whole: bool) -> str:
    match value:
        case {"choices": choices}:
            inner = [one.get("delta") or one.get("message") or {"content": one.get("text")} for one in choices]
            return "".join(one.get("content") or "" for one in inner)
        case {"type": "response.output_text.delta", "delta": text} | {"delta": {"type": "text_delta", "text": text}}:
            return str(text)
        case {"output": items} if is_whole:
            return "".join(part["text"] for item in items if item["type"] == "message" for part in item["content"])
        case {"content": blocks} if is_whole:
            return "".join(block["text"] for block in blocks if block["type"] == "text")
        case _:
            return ""


@EACH_DIALECT
def test_a_client_of_any_dialect_gets_the_answer_as_a_stream_and_whole(tmp_path: Path, dialect: str) -> None:
    async def work() -> None:
        own = UPSTREAM_PATHS[dialect]
        whole_of_own = {own: json_reply(WHOLE[dialect])}
        async with gateway(tmp_path, [MockReply(VALID[dialect])], each=only(dialect, key="sk-theirs")) as serving:
            for path, request in REQUESTS.items():
                for is_stream in (True, False):
                    if path == own and not is_stream:
                        continue  # the upstream gets the request as it is, and this one only streams
                    reply = await serving.post({**request, "stream": is_stream}, path)
                    assert reply.status == 200
                    assert text_of(path, reply) == "Hello"
                    assert path not in ENDPOINTS or reply.findings(ENDPOINTS[path]) == []
            sent = posts(serving)
            assert {one.path for one in sent} == {own}
            headers = [{name.lower(): value for name, value in one.headers.items()} for one in sent]
            assert {one["authorization"] for one in headers} == {"Bearer sk-theirs"}
            expected = {("2023-06-01", "sk-theirs")} if dialect == "messages" else {(None, None)}
            assert {(one.get("anthropic-version"), one.get("x-api-key")) for one in headers} == expected
            assert all(body["stream"] and body["model"] == "m" for body in bodies(serving))
        async with gateway(tmp_path, MockScript(paths=whole_of_own), each=only(dialect)) as serving:
            for path, request in REQUESTS.items():
                assert text_of(path, await serving.post({**request, "stream": path != own}, path)) == "Hello"

    run(work())


def test_a_client_of_the_upstreams_dialect_gets_its_answer_unchanged(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [MockReply(VALID["messages"])], each=only("messages")) as serving:
            request = {**REQUESTS["/v1/messages"], "stream": True, "top_k": 3, "speed": "fast"}
            reply = await serving.post(request, "/v1/messages")
            assert b'"sealed"' in reply.body
            assert bodies(serving) == [request]

    run(work())


def test_the_dialect_of_the_client_is_preferred_then_chat(tmp_path: Path) -> None:
    async def work() -> None:
        paths = {path: json_reply(error) for path, error in ((one, {"error": "no"}) for one in REQUESTS)}
        for speaks, path, expected in (
            (("messages", "responses"), "/v1/responses", "/v1/responses"),
            (("messages", "responses"), "/v1/messages", "/v1/messages"),
            (("messages", "responses"), CHAT, CHAT),
            (("messages",), "/v1/responses", CHAT),
        ):
            async with gateway(tmp_path, MockScript(paths=paths), each={"speaks": speaks}) as serving:
                await serving.post(REQUESTS[path], path)
                assert [one.path for one in posts(serving)] == [expected]
        for speaks, path, expected in (
            (("messages", "responses"), "/v1/responses", "/v1/responses"),
            (("messages", "responses"), CHAT, "/v1/messages"),
            (("responses", "messages"), CHAT, "/v1/responses"),
        ):
            each = {"speaks": speaks, "chat": False}
            async with gateway(tmp_path, MockScript(paths=paths), each=each) as serving:
                await serving.post(REQUESTS[path], path)
                assert [one.path for one in posts(serving)] == [expected]

    run(work())


def test_each_of_several_upstreams_gets_the_request_in_its_dialect(tmp_path: Path) -> None:
    overloaded = json_error(529, error_body("messages", "overloaded_error", "Overloaded"))

    async def work() -> None:
        first = {**only("messages"), "weight": 1000.0}
        async with gateway(
            tmp_path, [overloaded], [MockReply(VALID["responses"])], each=only("responses"), first=first
        ) as serving:
            reply = await serving.post({**REQUESTS[CHAT], "stream": True})
            assert text_of(CHAT, reply) == "Hello"
            assert [one.path for one in posts(serving, 0)] == ["/v1/messages"]
            assert [one.path for one in posts(serving, 1)] == ["/v1/responses"]

    run(work())


def test_a_chat_client_gets_the_signature_of_the_thinking_and_sends_it_back(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [MockReply(VALID["messages"])], each=only("messages")) as serving:
            message = (await serving.post(REQUESTS[CHAT])).json["choices"][0]["message"]
            assert (message["reasoning_content"], message["reasoning_details"]) == ("hm", [SEALED])
            await serving.post({"model": "m", "messages": [*USER, message, *USER]})
            thought = {"type": "thinking", "thinking": "hm", "signature": "sealed"}
            answer = {"role": "assistant", "content": [thought, {"type": "text", "text": "Hello"}]}
            assert bodies(serving)[-1]["messages"][1] == answer

    run(work())


@EACH_DIALECT
def test_several_choices_and_prompts_are_several_requests(tmp_path: Path, dialect: str) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [MockReply(VALID[dialect])], each=only(dialect)) as serving:
            reply = await serving.post({**REQUESTS[CHAT], "n": 2, "seed": 5}, headers="x-welldone-report: 1\r\n")
            assert [one["message"]["content"] for one in reply.json["choices"]] == ["Hello", "Hello"]
            assert len(posts(serving)) == 2
            assert "x-welldone-ignored-fields: seed" in reply.head
            prompts = {"model": "m", "prompt": ["a", "b"], "stream": True}
            reply = await serving.post(prompts, "/v1/completions")
            assert text_of("/v1/completions", reply) == "HelloHello"
            assert reply.findings("completions") == []

    run(work())


def test_each_of_several_choices_is_in_the_dialect_of_its_upstream(tmp_path: Path) -> None:
    async def work() -> None:
        answers = [MockReply(VALID["messages"])], [MockReply((ROLE, HELLO, STOP, USAGE, DONE))]
        async with gateway(tmp_path, *answers, each={"n": "each"}, first=only("messages")) as serving:
            for _ in range(6):
                assert (await serving.post({**REQUESTS[CHAT], "n": 4})).status == 200
            assert {one.path for one in posts(serving, 0)} <= {"/v1/messages"}
            assert {one.path for one in posts(serving, 1)} <= {"/v1/chat/completions"}

    run(work())


@EACH_DIALECT
def test_stop_strings_that_the_upstream_cannot_match_are_matched_here(tmp_path: Path, dialect: str) -> None:
    stops = {"messages": ["\n", "END"], "responses": ["ll"]}[dialect]
    pieces = tuple(
        MockChunk(one.text.replace("Hello", "He\\nllo" if dialect == "messages" else "Hello")) for one in VALID[dialect]
    )

    async def work() -> None:
        async with gateway(tmp_path, [MockReply(pieces)], each=only(dialect)) as serving:
            reply = await serving.post({**REQUESTS[CHAT], "stop": stops, "stream": True})
            assert text_of(CHAT, reply) == "He"
            assert b'"finish_reason":"stop"' in reply.body
            assert reply.findings() == []
            assert bodies(serving)[0].get("stop_sequences") == (["END"] if dialect == "messages" else None)

    run(work())


@EACH_DIALECT
def test_errors_of_the_upstream_have_the_status_and_shape_of_the_client(tmp_path: Path, dialect: str) -> None:
    cases = [
        (400, "invalid_request_error", "messages: bad", 400, "bad"),
        (400, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum", 400, "too long"),
        (401, "authentication_error", "invalid x-api-key", 502, "key"),
        (404, "not_found_error", "model: m", 404, "model"),
        (429, "rate_limit_error", "slow down", 429, "slow down"),
        (529, "overloaded_error", "Overloaded", 503, "Overloaded"),
        (500, "api_error", "Internal server error", 502, "Internal server error"),
    ]

    async def work() -> None:
        replies = [json_error(status, error_body(dialect, kind, text)) for status, kind, text, *_ in cases]
        async with gateway(tmp_path, replies, each=only(dialect)) as serving:
            for *_, expected, words in cases:
                reply = await serving.post(REQUESTS[CHAT])
                assert (reply.status, words in reply.error["message"]) == (expected, True), reply.body
        other = "/v1/responses" if dialect == "messages" else "/v1/messages"
        async with gateway(tmp_path, [replies[5]], each=only(dialect)) as serving:
            reply = await serving.post(REQUESTS[other], other)
            assert reply.status == 503
            assert reply.error["type"] == ("server_error" if dialect == "messages" else "overloaded_error")

    run(work())


@EACH_DIALECT
def test_failures_in_the_stream_are_errors_and_an_answer_can_be_continued(tmp_path: Path, dialect: str) -> None:
    whole = MockReply(VALID[dialect])
    cut = cut_at(whole, whole.body.index(b"\n\n", whole.body.index(b"Hello")) + 2)
    request = {**REQUESTS[CHAT], "stream": True}

    async def work() -> None:
        replies = [MockReply(ERRORS[dialect]), cut, whole]
        async with gateway(tmp_path, replies, each=only(dialect, continues="off")) as serving:
            first = await serving.post(request)
            assert (first.status, first.error["message"]) == (502, "no")
            second = await serving.post(request)
            assert text_of(CHAT, second) == "Hello"
            assert second.error["code"] == "upstream_died"
            assert second.findings() == []
            assert (await serving.post(request)).status == 200
        if dialect == "messages":
            return  # this answer has signed reasoning, which a replay would not repeat
        async with gateway(tmp_path, [cut, whole], each=only(dialect)) as serving:
            continued = await serving.post({**request, "temperature": 0})
            assert text_of(CHAT, continued) == "Hello"
            assert b'"finish_reason":"stop"' in continued.body
            assert continued.findings() == []
            first_body, second_body = bodies(serving)
            assert first_body == second_body

    run(work())


def test_what_the_upstream_cannot_do_is_refused_with_the_name_of_the_field(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [MockReply(VALID["messages"])], each=only("messages")) as serving:
            for path, more, param in (
                (CHAT, {"logprobs": True}, "logprobs"),
                (CHAT, {"temperature": 1.5}, "temperature"),
                ("/v1/completions", {"suffix": "x"}, "suffix"),
                ("/v1/completions", {"prompt": [1, 2]}, "prompt"),
                ("/v1/responses", {"text": {"format": {"type": "json_object"}}}, "text.format.type"),
                ("/v1/responses", {"tools": [{"type": "custom", "name": "f"}]}, "tools[0].type"),
            ):
                reply = await serving.post({**REQUESTS[path], **more}, path)
                assert (reply.status, reply.error["param"]) == (400, param), reply.body
            assert posts(serving) == []

    run(work())


def test_prompt_tokens_are_counted_by_the_upstream(tmp_path: Path) -> None:
    async def work() -> None:
        for dialect, path, own in (
            ("messages", "/v1/responses/input_tokens", "/v1/messages/count_tokens"),
            ("responses", "/v1/messages/count_tokens", "/v1/responses/input_tokens"),
        ):
            counted = MockScript(paths={own: json_reply({"input_tokens": 7})})
            async with gateway(tmp_path, counted, each=only(dialect)) as serving:
                request = REQUESTS["/v1/responses" if dialect == "messages" else "/v1/messages"]
                assert (await serving.post(request, path)).json["input_tokens"] == 7
                (body,) = bodies(serving)
                assert (
                    body.keys()
                    == {"messages": {"model", "messages"}, "responses": {"model", "input", "max_output_tokens"}}[
                        dialect
                    ]
                )

    run(work())
