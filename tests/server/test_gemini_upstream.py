"""Upstreams with Google's Gemini API: clients of all dialects, and pass-through for Google's clients."""

import json
from pathlib import Path
from typing import Any

from tests.http.aio import run
from tests.protocol.gemini_streams import ANSWER, CALL, ERROR, TEXT, WHOLE, Json, candidate, counts, element, frames
from tests.server.running_gateway import Gateway, gateway
from tests.server.running_server import RecordedReply, json_error
from tests.server.test_any_upstream import CHAT, ENDPOINTS, REQUESTS, bodies, only, posts, text_of
from tests.table import table
from welldone.mock.script import JSON_HEADERS, MockChunk, MockReply, MockScript, cut_at, json_reply

KEY = "AIza-theirs-0123456789"
STREAM_PATH, WHOLE_PATH = "/v1/models/m:streamGenerateContent?alt=sse", "/v1/models/m:generateContent"
BODY: Json = {
    "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
    "tools": [{"googleSearch": {}}],
    "generation_config": {"topK": 3},
}


def stream(*elements: object) -> MockReply:
    """Return a stream whose last element comes a little later, when the first ones have been sent on."""
    *first, last = [frames(one).decode() for one in elements]
    return MockReply((*map(MockChunk, first), MockChunk(last, after_s=0.05 if first else 0.0)))


VALID = stream(*ANSWER)


def headers_of(serving: Gateway, number: int = 0) -> list[dict[str, str]]:
    return [{name.lower(): value for name, value in one.headers.items()} for one in posts(serving, number)]


def elements(reply: RecordedReply) -> list[Json]:
    lines = [line for line in reply.body.decode().splitlines() if line]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_a_client_of_any_dialect_gets_the_answer_as_a_stream_and_whole(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [VALID], each=only("gemini", key=KEY)) as serving:
            for path, request in REQUESTS.items():
                for is_stream in (True, False):
                    reply = await serving.post({**request, "stream": is_stream}, path)
                    assert reply.status == 200
                    assert text_of(path, reply) == "Hello"
                    assert path not in ENDPOINTS or reply.findings(ENDPOINTS[path]) == []
            assert {one.path for one in posts(serving)} == {STREAM_PATH}
            keys = {(one.get("x-goog-api-key"), one.get("authorization")) for one in headers_of(serving)}
            assert keys == {(KEY, None)}
            assert all(body.keys() <= {"contents", "generationConfig"} for body in bodies(serving))
        for whole in (json_reply(WHOLE), json_reply(list(ANSWER))):
            async with gateway(tmp_path, [whole], each=only("gemini", stream="false")) as serving:
                for path, request in REQUESTS.items():
                    assert text_of(path, await serving.post({**request, "stream": True}, path)) == "Hello"
                assert {one.path for one in posts(serving)} == {WHOLE_PATH}
                assert all("x-goog-api-key" not in one for one in headers_of(serving))

    run(work())


def test_each_upstream_gets_its_own_key(tmp_path: Path) -> None:
    overloaded = json_error(503, ERROR)

    async def work() -> None:
        first = {**only("gemini", key=KEY), "weight": 1000.0}
        each = {**only("messages", key="sk-other-0123456789"), "weight": 0.01}
        async with gateway(tmp_path, [overloaded], [json_error(503, {})], each=each, first=first) as serving:
            assert (await serving.post(REQUESTS[CHAT])).status == 503
            assert headers_of(serving, 0)[0]["x-goog-api-key"] == KEY
            (other,) = headers_of(serving, 1)
            assert (other["x-api-key"], other["authorization"]) == ("sk-other-0123456789", "Bearer sk-other-0123456789")
            assert not any(KEY in value for value in other.values())
        configured = only("gemini", headers={"X-Goog-Api-Key": KEY, "Authorization": "Bearer oauth"})
        async with gateway(tmp_path, [VALID], each=configured) as serving:
            await serving.post(REQUESTS[CHAT])
            (own,) = headers_of(serving)
            assert (own["x-goog-api-key"], own["authorization"]) == (KEY, "Bearer oauth")

    run(work())


def test_signatures_and_calls_come_back_to_the_upstream(tmp_path: Path) -> None:
    called = stream(element(candidate(CALL, finishReason="STOP"), usageMetadata=counts(3, 2)))
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]

    async def work() -> None:
        async with gateway(tmp_path, [VALID, called, VALID], each=only("gemini")) as serving:
            user = REQUESTS[CHAT]["messages"]
            said = (await serving.post(REQUESTS[CHAT])).json["choices"][0]["message"]
            assert said["reasoning_content"] == "hm"
            second = {"model": "m", "messages": [*user, said, *user], "tools": tools}
            choice = (await serving.post(second)).json["choices"][0]
            assert choice["finish_reason"] == "tool_calls"
            (call,) = choice["message"]["tool_calls"]
            result = {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
            await serving.post({**second, "messages": [*second["messages"], choice["message"], result]})
            contents = bodies(serving)[-1]["contents"]
            assert contents[1]["parts"] == [
                {"text": "hm", "thought": True},
                {"text": "Hello", "thoughtSignature": "ZW5k"},
            ]
            sent = {"functionCall": {"id": call["id"], "name": "f", "args": {"a": 1}}, "thoughtSignature": "c2ln"}
            assert contents[3]["parts"] == [sent]
            response = {"id": call["id"], "name": "f", "response": {"result": "sunny"}}
            assert contents[4]["parts"] == [{"functionResponse": response}]

    run(work())


@table(
    ("status", "error", "expected", "words"),
    [
        (400, {"status": "INVALID_ARGUMENT", "message": "bad field"}, 400, "bad field"),
        (
            400,
            {"message": "The input token count (9) exceeds the maximum number of tokens allowed (8)."},
            400,
            "token count",
        ),
        (
            400,
            {"message": "API key not valid.", "details": [{"reason": "API_KEY_INVALID", "domain": "googleapis.com"}]},
            502,
            "rejected the gateway's key",
        ),
        (403, {"status": "PERMISSION_DENIED", "message": "no"}, 502, "key"),
        (404, {"status": "NOT_FOUND", "message": "models/m is not found"}, 404, "not found"),
        (429, {"status": "RESOURCE_EXHAUSTED", "message": "quota"}, 429, "quota"),
        (503, {"status": "UNAVAILABLE", "message": "overloaded"}, 503, "overloaded"),
        (500, {"status": "INTERNAL", "message": "An internal error"}, 502, "internal error"),
    ],
)
def test_errors_of_the_upstream_have_the_status_and_shape_of_the_client(
    tmp_path: Path, status: int, error: Json, expected: int, words: str
) -> None:
    async def work() -> None:
        body: Json = {"error": {"code": status, **error}}
        async with gateway(
            tmp_path, [json_error(status, body), json_error(status, [body])], each=only("gemini")
        ) as one:
            for path in (CHAT, "/v1/messages"):
                reply = await one.post(REQUESTS[path], path)
                assert (reply.status, words in reply.error["message"]) == (expected, True), reply.body

    run(work())


def test_failures_in_the_stream_are_errors_and_an_answer_can_be_continued(tmp_path: Path) -> None:
    plain = stream(*(element(candidate({"text": text})) for text in ("Hel", "lo")), ANSWER[-1])
    unsigned = stream(
        element(candidate({"text": "Hel"})),
        element(candidate({"text": "lo"})),
        element(candidate({"text": ""}, finishReason="STOP"), usageMetadata=counts(3, 2)),
    )
    cut = cut_at(unsigned, len(frames(element(candidate({"text": "Hel"})))))
    early = MockReply((*unsigned.pieces[:2], MockChunk("\n", after_s=0.05)))  # it ends without a finish reason
    request = {**REQUESTS[CHAT], "stream": True}

    async def work() -> None:
        replies = [stream(ERROR), stream(*ANSWER[:2], ERROR), cut, early, plain]
        async with gateway(tmp_path, replies, each=only("gemini", continues="off")) as serving:
            first = await serving.post(request)
            assert (first.status, first.error["message"]) == (503, "The model is overloaded.")
            for code in (None, "upstream_died", "incomplete_stream"):
                broken = await serving.post(request)
                assert text_of(CHAT, broken).startswith("Hel")
                assert broken.error["code"] == code
                assert broken.findings() == []
            assert text_of(CHAT, await serving.post(request)) == "Hello"
        for broken_off in (cut, early):
            async with gateway(tmp_path, [broken_off, unsigned], each=only("gemini")) as serving:
                continued = await serving.post({**request, "temperature": 0})
                assert text_of(CHAT, continued) == "Hello"
                assert b'"finish_reason":"stop"' in continued.body
                assert continued.findings() == []
                assert bodies(serving)[0] == bodies(serving)[1]
        async with gateway(tmp_path, [early], each=only("gemini")) as serving:  # at another temperature it would differ
            assert (await serving.post(request)).error["code"] == "incomplete_stream"

    run(work())


def test_blocked_prompts_and_answers_are_filtered(tmp_path: Path) -> None:
    blocked = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": counts(3)}
    unsafe = element(candidate(TEXT, finishReason="SAFETY"), usageMetadata=counts(3, 1))

    async def work() -> None:
        async with gateway(tmp_path, [stream(blocked), stream(unsafe), stream(unsafe)], each=only("gemini")) as serving:
            for text in ("", "Hello"):
                reply = await serving.post({**REQUESTS[CHAT], "stream": True})
                assert text_of(CHAT, reply) == text
                assert b'"finish_reason":"content_filter"' in reply.body
                assert reply.findings() == []
            message = await serving.post(REQUESTS["/v1/messages"], "/v1/messages")
            assert message.json["stop_reason"] == "refusal"

    run(work())


def test_prompt_tokens_are_counted_by_the_upstream(tmp_path: Path) -> None:
    path = "/v1/models/m:countTokens"
    counted = MockScript(paths={path: json_reply({"totalTokens": 7, "promptTokensDetails": []})})

    async def work() -> None:
        async with gateway(tmp_path, counted, each=only("gemini", key=KEY)) as serving:
            count = await serving.post(REQUESTS["/v1/messages"], "/v1/messages/count_tokens")
            assert count.json == {"input_tokens": 7}
            native = await serving.post({"contents": BODY["contents"]}, "/v1beta/models/m:countTokens")
            assert native.json == {"totalTokens": 7, "promptTokensDetails": []}
            request = {"contents": BODY["contents"], "model": "models/m"}
            assert bodies(serving) == [{"generateContentRequest": request}, {"contents": BODY["contents"]}]
            assert {one["x-goog-api-key"] for one in headers_of(serving)} == {KEY}

    run(work())


def test_the_models_of_the_upstream_are_listed_with_their_names_for_clients(tmp_path: Path) -> None:
    models = [{"name": f"models/gemini-{n}", "supportedGenerationMethods": ["generateContent"]} for n in (1, 2)]
    script = MockScript(posts=(VALID,), paths={"/v1/models": json_reply({"models": models})})

    async def work() -> None:
        each = only("gemini", key=KEY, models=(), probe_s=15.0)
        async with gateway(tmp_path, script, each=each) as serving:
            await serving.server.upstreams.wait_until_probed(30.0)
            listed = (await serving.get("/v1/models")).json["data"]
            assert [one["id"] for one in listed] == ["gemini-1", "gemini-2"]
            (probe,) = serving.upstreams[0].requests
            sent = {name.lower(): value for name, value in probe.headers.items()}
            assert (sent["x-goog-api-key"], "authorization" in sent) == (KEY, False)
            assert probe.path == "/v1/models?pageSize=1000"
            reply = await serving.post({**REQUESTS[CHAT], "model": "gemini-2"})
            assert reply.status == 200
            assert posts(serving)[0].path == "/v1/models/gemini-2:streamGenerateContent?alt=sse"

    run(work())


# Pass-through.


def send(folder: Path, path: str, reply: MockReply, body: Json = BODY, **each: Any) -> tuple[RecordedReply, Gateway]:  # noqa: ANN401 - settings
    async def work() -> tuple[RecordedReply, Gateway]:
        async with gateway(folder, [reply], each={"speaks": ("gemini",), **each}) as serving:
            return await serving.post(body, f"/v1beta/models/m:{path}"), serving

    return run(work())


def test_a_client_of_google_gets_its_answer_unchanged(tmp_path: Path) -> None:
    rich = element(candidate({"executableCode": {"code": "1"}}, TEXT, groundingMetadata={"a": 1}), newMember=[1.5])
    expected = [{**one, "modelVersion": "m"} for one in (rich, *ANSWER)]
    reply, serving = send(tmp_path, "streamGenerateContent?alt=sse", stream(rich, *ANSWER), key=KEY)
    assert "text/event-stream" in reply.head
    assert elements(reply) == expected
    assert [one.path for one in posts(serving)] == [STREAM_PATH]
    assert bodies(serving) == [BODY]
    assert headers_of(serving)[0]["x-goog-api-key"] == KEY
    array, _ = send(tmp_path, "streamGenerateContent", stream(rich, *ANSWER))
    assert "application/json" in array.head
    assert array.json == expected
    whole, serving = send(tmp_path, "generateContent", json_reply(WHOLE))
    assert whole.json == {**WHOLE, "modelVersion": "m"}
    assert [one.path for one in posts(serving)] == [WHOLE_PATH]
    assert bodies(serving) == [BODY]


def test_a_stream_of_google_is_repaired_and_never_ends_in_silence(tmp_path: Path) -> None:
    path = "streamGenerateContent?alt=sse"
    odd = MockReply((MockChunk(": hi\n\n"), *VALID.pieces, MockChunk("data: [DONE]\n\n")))
    reply, _ = send(tmp_path, path, odd)
    assert [one["candidates"] for one in elements(reply)] == [one["candidates"] for one in ANSWER]
    for broken, reason in ((stream(*ANSWER[:2], {}), "incomplete_stream"), (cut_at(VALID, 400), "upstream_died")):
        reply, _ = send(tmp_path, path, broken)
        error = elements(reply)[-1]["error"]
        assert (error["code"], error["details"][0]["reason"]) == (500, reason)
    failed, _ = send(tmp_path, path, stream(*ANSWER[:2], ERROR))
    assert elements(failed)[-1] == ERROR
    refused, _ = send(tmp_path, path, stream(ERROR))
    assert (refused.status, refused.json["error"]["status"]) == (503, "UNAVAILABLE")
    whole_stream, _ = send(tmp_path, "generateContent", VALID)  # a stream for a request without one
    assert whole_stream.json == {**WHOLE, "modelVersion": "m"}
    as_stream, _ = send(
        tmp_path, path, MockReply(json_reply(list(ANSWER)).pieces, headers=JSON_HEADERS), stream="false"
    )
    assert elements(as_stream) == [{**WHOLE, "modelVersion": "m"}]


def test_a_conversation_of_a_client_of_google_stays_at_its_upstream(tmp_path: Path) -> None:
    async def work() -> None:
        each = {"speaks": ("gemini",), "sticky": "conversation"}
        async with gateway(tmp_path, [json_reply(WHOLE)], [json_reply(WHOLE)], each=each) as serving:
            for text in "abcdefgh":
                question = {"role": "user", "parts": [{"text": text}]}
                before = serving.post_counts
                for contents in ([question], [question, WHOLE["candidates"][0]["content"], question]):
                    await serving.post({"contents": contents}, "/v1beta/models/m:generateContent")
                added = [now - then for now, then in zip(serving.post_counts, before, strict=True)]
                assert sorted(added) == [0, 2]
            assert all(serving.post_counts)

    run(work())


def test_without_native_support_a_client_of_google_is_translated(tmp_path: Path) -> None:
    async def work() -> None:
        second = {**only("messages"), "weight": 0.01}
        async with gateway(tmp_path, [VALID], [VALID], each=second, first=only("gemini", weight=1000.0)) as serving:
            body = {"contents": BODY["contents"], "generationConfig": {"thinkingConfig": {"includeThoughts": True}}}
            reply = await serving.post(body, "/v1beta/models/m:generateContent")
            (found,) = reply.json["candidates"]
            assert found["content"]["parts"] == WHOLE["candidates"][0]["content"]["parts"]
            assert [one.path for one in posts(serving)] == [STREAM_PATH]

    run(work())


def test_no_log_has_the_key(tmp_path: Path, caplog: Any) -> None:  # noqa: ANN401 - of pytest
    leaking = json_error(429, {"error": {"code": 429, "message": f"Quota of {KEY} exceeded", "status": "X"}})
    reply, _ = send(tmp_path, "generateContent", leaking, key=KEY)
    assert (reply.status, KEY.encode() in reply.body) == (429, False)
    assert KEY not in caplog.text
