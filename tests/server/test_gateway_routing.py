"""Gateway: reasoning fields, sticky routing, queues, keys, rate limits and routes."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.http.aio import run
from tests.server.running_gateway import Gateway, gateway
from tests.server.running_server import CHAT, DONE, HELLO, ROLE, STOP, RecordedReply, json_error
from tests.table import table
from welldone.config.server import KeySettings
from welldone.mock.script import CHUNK_TEMPLATE, MockChunk, MockReply, MockScript

STREAM = {**CHAT, "stream": True}
WHOLE = MockReply((ROLE, HELLO, STOP, DONE))
BOTH = table("request_body", [STREAM, CHAT], ids=["stream", "whole"])
HANGS = MockReply((ROLE, HELLO), end="hang")


async def send_request(
    serving: Gateway, request: dict[str, Any], path: str = "/v1/chat/completions", **headers: str
) -> RecordedReply:
    """Return the response to a request with these headers; `_` means `-` in their names."""
    body = json.dumps(request).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Connection: close", "Content-Type: application/json"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    reader, writer = await asyncio.open_connection("127.0.0.1", serving.server.port)
    writer.write("\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body)
    raw = await reader.read()
    writer.close()
    return RecordedReply(raw, request)


def texts_of(response: RecordedReply) -> dict[str, str]:
    """Return the texts of the only choice by field."""
    # Missing usage, and a configured reasoning field that is not the usual one.
    assert set(response.findings()) <= {"ns-usage", "ext-reasoning-field"}
    lines = [line[6:] for line in response.body.decode().splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"] for line in lines for choice in json.loads(line)["choices"]]
    texts: dict[str, str] = {}
    for delta in deltas or [response.json["choices"][0]["message"]]:
        for name in ("content", "reasoning", "reasoning_content"):
            if delta.get(name):
                texts[name] = texts.get(name, "") + delta[name]
    return texts


# Reasoning fields.


def thinks(name: str) -> MockReply:
    return MockReply((ROLE, MockChunk(CHUNK_TEMPLATE % (f'{{"{name}":"why"}}', "null")), HELLO, STOP, DONE))


@BOTH
@table("upstream", ["reasoning", "reasoning_content"])
@table(
    ("setting", "agent", "names"),
    [
        ("auto", "OpenAI/Python 2.7.1", ["reasoning_content"]),
        ("auto", "codex_cli_rs/0.50.0 (Debian 12; x86_64)", ["reasoning"]),
        ("auto", "ai-sdk/openai-compatible/1.0.0 runtime/node.js/22", ["reasoning_content"]),
        ("reasoning", "OpenAI/Python 2.7.1", ["reasoning"]),
        ("reasoning_content", "codex_cli_rs/0.50.0", ["reasoning_content"]),
        ("both", "curl/8.5.0", ["reasoning", "reasoning_content"]),
    ],
)
def test_reasoning_is_sent_in_the_field_that_the_client_reads(
    tmp_path: Path, upstream: str, setting: str, agent: str, names: list[str], request_body: dict[str, Any]
) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [thinks(upstream)], reasoning=setting) as serving:
            texts = texts_of(await send_request(serving, request_body, User_Agent=agent))
            assert texts == {**dict.fromkeys(names, "why"), "content": "Hello"}

    run(work())


@BOTH
@table(
    ("think", "pieces", "texts"),
    [
        ("tags", ["<thi", "nk>why</th", "ink>Hello"], {"reasoning_content": "why", "content": "Hello"}),
        ("tags", ["Hello <think>why</think>"], {"content": "Hello <think>why</think>"}),
        ("open", ["why</thi", "nk>Hello"], {"reasoning_content": "why", "content": "Hello"}),
        ("no", ["<think>why</think>Hello"], {"content": "<think>why</think>Hello"}),
    ],
)
def test_reasoning_is_extracted_from_text_if_configured(
    tmp_path: Path, think: str, pieces: list[str], texts: dict[str, str], request_body: dict[str, Any]
) -> None:
    deltas = [MockChunk(CHUNK_TEMPLATE % (json.dumps({"content": piece}), "null")) for piece in pieces]

    async def work() -> None:
        async with gateway(tmp_path, [MockReply((ROLE, *deltas, STOP, DONE))], each={"think": think}) as serving:
            assert texts_of(await send_request(serving, request_body)) == texts

    run(work())


HELLO_MESSAGES = [{"role": "user", "content": "Hi"}]
OLLAMA = {"model": "m", "messages": HELLO_MESSAGES}
TURNED_OFF: list[tuple[str, dict[str, Any]]] = [
    ("/v1/messages", {"model": "m", "max_tokens": 9, "messages": HELLO_MESSAGES}),
    ("/v1/messages", {"model": "m", "max_tokens": 9, "messages": HELLO_MESSAGES, "thinking": {"type": "disabled"}}),
    ("/v1/chat/completions", {**CHAT, "reasoning_effort": "none"}),
    ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"enable_thinking": False}}),
    ("/v1/responses", {"model": "m", "input": "Hi", "reasoning": {"effort": "none"}}),
    ("/api/chat", {**OLLAMA, "think": False}),
]


@table("is_stream", [True, False], ids=["stream", "whole"])
@table(("path", "request_body"), TURNED_OFF)
@table("kind", ["vllm", "openai"])
def test_text_is_not_reasoning_if_the_request_disables_thinking(
    tmp_path: Path, path: str, request_body: dict[str, Any], is_stream: bool, kind: str
) -> None:
    is_asked_to_think = path == "/v1/messages" and "thinking" not in request_body and kind == "openai"

    async def work() -> None:
        reply = MockReply(
            (
                ROLE,
                *([MockChunk(CHUNK_TEMPLATE % ('{"content":"why</think>"}', "null"))] * is_asked_to_think),
                HELLO,
                STOP,
                DONE,
            )
        )
        async with gateway(tmp_path, [reply], each={"think": "open"}) as serving:
            serving.server.upstreams.all[0].kind = kind
            response = await send_request(serving, {**request_body, "stream": is_stream}, path)
            assert response.status == 200
            assert b"Hello" in response.body
            assert b"why" not in response.body
            assert b'"reasoning' not in response.body.replace(b'"reasoning":{', b"").replace(b'"reasoning_tokens"', b"")

    run(work())


@BOTH
def test_repeated_text_of_an_upstream_is_removed_if_configured(tmp_path: Path, request_body: dict[str, Any]) -> None:
    deltas = [
        MockChunk(CHUNK_TEMPLATE % (json.dumps({"content": text}), "null")) for text in ("Hel", "Hello", "Hello you")
    ]

    async def work() -> None:
        for form, text in (("delta", "HelHelloHello you"), ("cumulative", "Hello you")):
            async with gateway(tmp_path, [MockReply((ROLE, *deltas, STOP, DONE))], each={"text": form}) as serving:
                assert texts_of(await send_request(serving, request_body)) == {"content": text}

    run(work())


@BOTH
@table(("strict", "is_error"), [(("all",), True), (("end-done-sent",), True), (("fin-enum",), False)])
def test_strict_rules_are_errors_and_others_are_repaired(
    tmp_path: Path, strict: tuple[str, ...], is_error: bool, request_body: dict[str, Any]
) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [MockReply((ROLE, HELLO, STOP))], each={"strict": strict}) as serving:
            response = await send_request(serving, request_body)
            if is_error:
                assert response.error["code"] == "upstream_rule_broken"
            else:
                assert texts_of(response) == {"content": "Hello"}

    run(work())


# Sticky routing.


async def serving_upstream(serving: Gateway, request: dict[str, Any], **headers: str) -> int:
    """Return the number of the upstream that served the request."""
    before = serving.post_counts
    assert (await send_request(serving, request, **headers)).status == 200
    (found,) = [number for number, (old, new) in enumerate(zip(before, serving.post_counts, strict=True)) if new > old]
    return found


def talk(name: str, turns: int = 1) -> dict[str, Any]:
    """Return a conversation after some turns."""
    more = [{"role": "assistant", "content": "Yes"}, {"role": "user", "content": "Go on"}] * (turns - 1)
    return {
        "model": "m",
        "messages": [{"role": "system", "content": "Be kind"}, {"role": "user", "content": name}, *more],
    }


Request = Callable[[str, int], tuple[dict[str, Any], dict[str, str]]]
STICKY_MODES: dict[str, tuple[str, Request]] = {
    "the key": ("key", lambda name, turn: (CHAT, {"Authorization": f"Bearer wd-{name}-0123456789"})),
    "how it begins": ("conversation", lambda name, turn: (talk(name, turn), {})),
    "a header": ("conversation", lambda name, turn: (talk(f"{turn}"), {"X_Session_Id": name})),
    "prompt_cache_key": ("conversation", lambda name, turn: ({**talk(f"{turn}"), "prompt_cache_key": name}, {})),
}
CLIENTS = [f"person-{number}" for number in range(12)]


@table("mode", STICKY_MODES)
def test_sticky_requests_go_to_the_same_upstream(tmp_path: Path, mode: str) -> None:
    sticky, make = STICKY_MODES[mode]
    keys = [f"wd-{name}-0123456789" for name in CLIENTS] if mode == "the key" else []

    async def work() -> None:
        async with gateway(tmp_path, [WHOLE], [WHOLE], [WHOLE], each={"sticky": sticky}, keys=keys) as serving:
            upstream_of = {}
            for name in CLIENTS:
                requested = [make(name, turn) for turn in (1, 2, 3)]
                found = {await serving_upstream(serving, request, **headers) for request, headers in requested}
                assert len(found) == 1
                upstream_of[name] = found.pop()
            assert len({*upstream_of.values()}) > 1

    run(work())


def test_only_conversations_of_a_failed_upstream_move(tmp_path: Path) -> None:
    async def work() -> None:
        scripts: list[Any] = [[WHOLE], [*[WHOLE] * 30, json_error(500, {})], [WHOLE]]
        async with gateway(tmp_path, *scripts, each={"sticky": "conversation"}) as serving:
            before = {name: await serving_upstream(serving, talk(name)) for name in CLIENTS}
            left = 30 - serving.post_counts[1]
            name = next(name for name, found in before.items() if found == 1)
            for _ in range(left):  # those that it still answers
                assert await serving_upstream(serving, talk(name)) == 1
            for name in CLIENTS:
                assert (await send_request(serving, talk(name))).status == 200
            # Its circuit breaker is open, or it fails again; conversations of the other upstream have not moved.
            for name in CLIENTS:
                count = serving.post_counts
                assert (await send_request(serving, talk(name, 2))).status == 200
                now = {
                    number
                    for number, (old, new) in enumerate(zip(count, serving.post_counts, strict=True))
                    if new > old
                }
                assert now == {before[name]} if before[name] != 1 else now & {0, 2}

    run(work())


# How much at once.


def test_a_full_queue_returns_429_with_retry_after(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [HANGS], each={"limit": 1, "queue": 0}) as serving:
            reader, writer = await serving.send(STREAM)
            await reader.readuntil(b"Hello")
            response = await send_request(serving, CHAT)
            assert response.status == 429
            assert response.findings() == []
            assert int(response.capture.header("retry-after") or 0) >= 1
            assert serving.post_counts == [1]
            writer.transport.abort()

    run(work())


def test_a_queue_timeout_returns_an_error(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [HANGS], each={"limit": 1, "queue": 4, "queue_wait_s": 0.2}) as serving:
            reader, writer = await serving.send(STREAM)
            await reader.readuntil(b"Hello")
            response = await send_request(serving, CHAT)
            assert response.status == 503
            assert response.capture.header("retry-after")
            assert serving.post_counts == [1]
            writer.transport.abort()

    run(work())


def test_a_queued_request_gets_the_slot_of_a_disconnected_client(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [HANGS, WHOLE], each={"limit": 1, "queue": 1}) as serving:
            reader, writer = await serving.send(STREAM)
            await reader.readuntil(b"Hello")
            waiting = asyncio.create_task(send_request(serving, CHAT))
            while serving.server.upstreams.all[0].running < 2:
                await serving.get("/health")
            writer.transport.abort()
            assert (await waiting).status == 200

    run(work())


def test_requests_go_to_the_other_upstream_if_one_is_full(tmp_path: Path) -> None:
    each = {"limit": 1, "queue": 0, "weight": 0.01}

    async def work() -> None:
        async with gateway(tmp_path, [HANGS], [WHOLE], each=each, first={"weight": 1000.0}) as serving:
            reader, writer = await serving.send(STREAM)
            await reader.readuntil(b"Hello")
            for _ in range(3):
                assert (await send_request(serving, CHAT)).status == 200
            writer.transport.abort()

    run(work())


# Keys and models.

CI = KeySettings(name="ci", key="wd-ci-0123456789", models=("qwen-*",), requests_per_minute=2)
TEAM = KeySettings(name="team", key="wd-team-0123456789", tokens_per_minute=10)


def bearer(key: KeySettings) -> dict[str, str]:
    return {"Authorization": f"Bearer {key.key}"}


@BOTH
def test_a_key_is_limited_to_its_models(tmp_path: Path, request_body: dict[str, Any]) -> None:
    async def work() -> None:
        each = {"models": ("qwen-*", "gpt-4o")}
        async with gateway(tmp_path, [WHOLE], each=each, config={"keys": (CI, TEAM)}) as serving:
            assert (await send_request(serving, {**request_body, "model": "qwen-7b"}, **bearer(CI))).status == 200
            response = await send_request(serving, {**request_body, "model": "gpt-4o"}, **bearer(CI))
            assert (response.status, response.error["code"]) == (403, "model_not_allowed")
            assert response.findings() == []
            assert (await send_request(serving, {**request_body, "model": "gpt-4o"}, **bearer(TEAM))).status == 200
            assert (await send_request(serving, request_body)).status == 401
            assert serving.post_counts == [2]

    run(work())


def test_models_that_a_key_does_not_allow_are_not_listed(tmp_path: Path) -> None:
    async def work() -> None:
        each = {"models": ("qwen-7b", "gpt-4o")}
        async with gateway(tmp_path, [WHOLE], each=each, config={"keys": (CI, TEAM)}) as serving:
            for key, names in ((CI, ["qwen-7b"]), (TEAM, ["qwen-7b", "gpt-4o"])):
                head = f"Authorization: Bearer {key.key}\r\n"
                listed = (await serving.get("/v1/models", head)).json["data"]
                assert [one["id"] for one in listed] == names
                assert (await serving.get("/v1/models/gpt-4o", head)).status == (200 if "gpt-4o" in names else 403)

    run(work())


def test_a_key_has_its_own_rate_limits(tmp_path: Path) -> None:
    usage = MockChunk(
        STOP.text.replace('"choices"', '"usage":{"prompt_tokens":9,"completion_tokens":9,"total_tokens":18},"choices"')
    )

    async def work() -> None:
        each, config = {"models": ("qwen-7b", "gpt-4o")}, {"keys": (CI, TEAM)}
        async with gateway(tmp_path, [MockReply((ROLE, HELLO, usage, DONE))], each=each, config=config) as serving:
            for key, model, allowed in ((CI, "qwen-7b", 2), (TEAM, "gpt-4o", 1)):
                response = [
                    await send_request(serving, {**CHAT, "model": model}, **bearer(key)) for _ in range(allowed + 1)
                ]
                assert [one.status for one in response] == [200] * allowed + [429]
                assert int(response[-1].capture.header("retry-after") or 0) >= 1
                assert response[-1].findings() == []
            assert serving.post_counts == [3]

    run(work())


# Names of models.

ROUTES = {"gpt-4o": ("qwen@a",), "gpt-4*": ("@b",), "gpt-*": ("qwen@a", "llama@b"), "fast": ("llama",)}


@table(
    ("name", "upstreams", "model"),
    [
        ("gpt-4o", {0}, {"qwen"}),
        ("gpt-4-turbo", {1}, {"gpt-4-turbo"}),
        ("gpt-5", {0, 1}, {"qwen", "llama"}),
        ("fast", {1}, {"llama"}),
        ("qwen", {0}, {"qwen"}),
    ],
)
def test_a_name_is_resolved_by_its_route(tmp_path: Path, name: str, upstreams: set[int], model: set[str]) -> None:
    settings: Any = {"config": {"routes": ROUTES}, "first": {"models": ("qwen",)}, "each": {"models": ("llama",)}}

    async def work() -> None:
        async with gateway(tmp_path, [WHOLE], [WHOLE], **settings) as serving:
            for _ in range(6):
                response = await send_request(serving, {**CHAT, "model": name})
                assert response.json["model"] == name  # the name in the upstream may be a file path
            requested = {number for number, count in enumerate(serving.post_counts) if count}
            assert requested <= upstreams
            seen = {json.loads(one.body)["model"] for upstream in serving.upstreams for one in upstream.requests}
            assert seen <= model
            one = await serving.get(f"/v1/models/{name}")
            assert (one.status, one.json["id"], one.json["object"]) == (200, name, "model")

    run(work())


@BOTH
def test_an_unknown_name_is_not_found_and_the_nearest_is_suggested(
    tmp_path: Path, request_body: dict[str, Any]
) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [WHOLE], each={"models": ("qwen-7b",)}) as serving:
            response = await send_request(serving, {**request_body, "model": "qwen-7"})
            assert (response.status, response.error["code"], response.error["param"]) == (
                404,
                "model_not_found",
                "model",
            )
            assert "did you mean 'qwen-7b'" in response.error["message"]
            assert response.findings() == []
            assert (await serving.get("/v1/models/qwen-7")).status == 404
            assert serving.post_counts == [0]

    run(work())


@BOTH
def test_the_model_is_optional_if_there_is_only_one(tmp_path: Path, request_body: dict[str, Any]) -> None:
    unnamed = {name: value for name, value in request_body.items() if name != "model"}

    async def work() -> None:
        async with gateway(tmp_path, [WHOLE], each={"models": ("qwen",)}) as serving:
            assert (await send_request(serving, unnamed)).status == 200
            assert json.loads(serving.upstreams[0].requests[-1].body)["model"] == "qwen"
        async with gateway(tmp_path, [WHOLE], each={"models": ("qwen", "llama")}) as serving:
            response = await send_request(serving, unnamed)
            assert (response.status, response.error["param"]) == (400, "model")

    run(work())


def test_a_model_is_listed_with_the_fields_of_its_upstream(tmp_path: Path) -> None:
    listed = MockScript(models={"object": "list", "data": [{"id": "x/y:z", "object": "model", "max_model_len": 7}]})

    async def work() -> None:
        async with gateway(tmp_path, listed, each={"models": ()}) as serving:
            while not (found := (await serving.get("/v1/models")).json["data"]):
                pass
            assert found[0]["max_model_len"] == 7
            one = await serving.get("/v1/models/x/y:z")
            assert (one.status, one.json) == (200, found[0])

    run(work())
