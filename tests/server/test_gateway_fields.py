"""What requests, keys and settings decide at the gateway: names of fields, who is asked, who may ask, and how much."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.http.aio import run
from tests.server.gateways import Gateway, gateway
from tests.server.scripts import CHAT, DONE, HELLO, ROLE, STOP, Heard, refusal
from tests.table import table
from welldone.config.server import KeySettings
from welldone.mock.script import CHUNK_TEMPLATE, MockChunk, MockReply, MockScript

STREAM = {**CHAT, "stream": True}
WHOLE = MockReply((ROLE, HELLO, STOP, DONE))
BOTH = table("request_body", [STREAM, CHAT], ids=["stream", "whole"])
HANGS = MockReply((ROLE, HELLO), end="hang")


async def ask(serving: Gateway, request: dict[str, Any], path: str = "/v1/chat/completions", **headers: str) -> Heard:
    """The reply to a request with headers of its own; `_` stands for `-` in their names."""
    body = json.dumps(request).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Connection: close", "Content-Type: application/json"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    reader, writer = await asyncio.open_connection("127.0.0.1", serving.server.port)
    writer.write("\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body)
    raw = await reader.read()
    writer.close()
    return Heard(raw, request)


def said(heard: Heard) -> dict[str, str]:
    """The texts of the only choice, by the names of their fields."""
    # Usage that was not sent, and a name for thoughts that is not the common one, but was asked for.
    assert set(heard.findings()) <= {"ns-usage", "ext-reasoning-field"}
    lines = [line[6:] for line in heard.body.decode().splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"] for line in lines for choice in json.loads(line)["choices"]]
    texts: dict[str, str] = {}
    for delta in deltas or [heard.json["choices"][0]["message"]]:
        for name in ("content", "reasoning", "reasoning_content"):
            if delta.get(name):
                texts[name] = texts.get(name, "") + delta[name]
    return texts


# The names of thoughts.


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
def test_thoughts_have_the_name_that_the_client_reads(
    tmp_path: Path, upstream: str, setting: str, agent: str, names: list[str], request_body: dict[str, Any]
) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [thinks(upstream)], reasoning=setting) as serving:
            texts = said(await ask(serving, request_body, User_Agent=agent))
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
def test_thoughts_are_taken_out_of_the_text_where_that_is_wanted(
    tmp_path: Path, think: str, pieces: list[str], texts: dict[str, str], request_body: dict[str, Any]
) -> None:
    deltas = [MockChunk(CHUNK_TEMPLATE % (json.dumps({"content": piece}), "null")) for piece in pieces]

    async def work() -> None:
        async with gateway(tmp_path, [MockReply((ROLE, *deltas, STOP, DONE))], each={"think": think}) as serving:
            assert said(await ask(serving, request_body)) == texts

    run(work())


ASKED = [{"role": "user", "content": "Hi"}]
OLLAMA = {"model": "m", "messages": ASKED}
TURNED_OFF: list[tuple[str, dict[str, Any]]] = [
    ("/v1/messages", {"model": "m", "max_tokens": 9, "messages": ASKED}),
    ("/v1/messages", {"model": "m", "max_tokens": 9, "messages": ASKED, "thinking": {"type": "disabled"}}),
    ("/v1/chat/completions", {**CHAT, "reasoning_effort": "none"}),
    ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"enable_thinking": False}}),
    ("/v1/responses", {"model": "m", "input": "Hi", "reasoning": {"effort": "none"}}),
    ("/api/chat", {**OLLAMA, "think": False}),
]


@table("is_stream", [True, False], ids=["stream", "whole"])
@table(("path", "request_body"), TURNED_OFF)
@table("kind", ["vllm", "openai"])
def test_an_answer_to_a_request_that_turns_thinking_off_is_no_thought(
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
            heard = await ask(serving, {**request_body, "stream": is_stream}, path)
            assert heard.status == 200
            assert b"Hello" in heard.body
            assert b"why" not in heard.body
            assert b'"reasoning' not in heard.body.replace(b'"reasoning":{', b"").replace(b'"reasoning_tokens"', b"")

    run(work())


@BOTH
def test_an_upstream_that_repeats_its_text_is_cut_where_it_is_set_so(
    tmp_path: Path, request_body: dict[str, Any]
) -> None:
    deltas = [
        MockChunk(CHUNK_TEMPLATE % (json.dumps({"content": text}), "null")) for text in ("Hel", "Hello", "Hello you")
    ]

    async def work() -> None:
        for form, text in (("delta", "HelHelloHello you"), ("cumulative", "Hello you")):
            async with gateway(tmp_path, [MockReply((ROLE, *deltas, STOP, DONE))], each={"text": form}) as serving:
                assert said(await ask(serving, request_body)) == {"content": text}

    run(work())


@BOTH
@table(("strict", "is_error"), [(("all",), True), (("end-done-sent",), True), (("fin-enum",), False)])
def test_what_one_is_strict_about_is_an_error_and_all_else_is_mended(
    tmp_path: Path, strict: tuple[str, ...], is_error: bool, request_body: dict[str, Any]
) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [MockReply((ROLE, HELLO, STOP))], each={"strict": strict}) as serving:
            heard = await ask(serving, request_body)
            if is_error:
                assert heard.error["code"] == "upstream_rule_broken"
            else:
                assert said(heard) == {"content": "Hello"}

    run(work())


# Who is asked.


async def place(serving: Gateway, request: dict[str, Any], **headers: str) -> int:
    """Which upstream answered."""
    before = serving.asked
    assert (await ask(serving, request, **headers)).status == 200
    (found,) = [number for number, (old, new) in enumerate(zip(before, serving.asked, strict=True)) if new > old]
    return found


def talk(name: str, turns: int = 1) -> dict[str, Any]:
    """A conversation after some turns."""
    more = [{"role": "assistant", "content": "Yes"}, {"role": "user", "content": "Go on"}] * (turns - 1)
    return {
        "model": "m",
        "messages": [{"role": "system", "content": "Be kind"}, {"role": "user", "content": name}, *more],
    }


Request = Callable[[str, int], tuple[dict[str, Any], dict[str, str]]]
WAYS: dict[str, tuple[str, Request]] = {
    "the key": ("key", lambda name, turn: (CHAT, {"Authorization": f"Bearer wd-{name}-0123456789"})),
    "how it begins": ("conversation", lambda name, turn: (talk(name, turn), {})),
    "a header": ("conversation", lambda name, turn: (talk(f"{turn}"), {"X_Session_Id": name})),
    "prompt_cache_key": ("conversation", lambda name, turn: ({**talk(f"{turn}"), "prompt_cache_key": name}, {})),
}
PEOPLE = [f"person-{number}" for number in range(12)]


@table("way", WAYS)
def test_what_belongs_together_stays_together(tmp_path: Path, way: str) -> None:
    sticky, make = WAYS[way]
    keys = [f"wd-{name}-0123456789" for name in PEOPLE] if way == "the key" else []

    async def work() -> None:
        async with gateway(tmp_path, [WHOLE], [WHOLE], [WHOLE], each={"sticky": sticky}, keys=keys) as serving:
            places = {}
            for name in PEOPLE:
                asked = [make(name, turn) for turn in (1, 2, 3)]
                found = {await place(serving, request, **headers) for request, headers in asked}
                assert len(found) == 1
                places[name] = found.pop()
            assert len({*places.values()}) > 1

    run(work())


def test_only_those_move_whose_upstream_fails(tmp_path: Path) -> None:
    async def work() -> None:
        scripts: list[Any] = [[WHOLE], [*[WHOLE] * 30, refusal(500, {})], [WHOLE]]
        async with gateway(tmp_path, *scripts, each={"sticky": "conversation"}) as serving:
            before = {name: await place(serving, talk(name)) for name in PEOPLE}
            left = 30 - serving.asked[1]
            name = next(name for name, found in before.items() if found == 1)
            for _ in range(left):  # those that it still answers
                assert await place(serving, talk(name)) == 1
            for name in PEOPLE:
                assert (await ask(serving, talk(name))).status == 200
            # Its breaker is open, or it is asked and fails: whoever was elsewhere is where they were.
            for name in PEOPLE:
                count = serving.asked
                assert (await ask(serving, talk(name, 2))).status == 200
                now = {number for number, (old, new) in enumerate(zip(count, serving.asked, strict=True)) if new > old}
                assert now == {before[name]} if before[name] != 1 else now & {0, 2}

    run(work())


# How much at once.


def test_who_finds_no_place_is_told_when_to_come_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [HANGS], each={"limit": 1, "queue": 0}) as serving:
            reader, writer = await serving.send(STREAM)
            await reader.readuntil(b"Hello")
            heard = await ask(serving, CHAT)
            assert heard.status == 429
            assert heard.findings() == []
            assert int(heard.capture.header("retry-after") or 0) >= 1
            assert serving.asked == [1]
            writer.transport.abort()

    run(work())


def test_who_waits_too_long_is_told_so(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [HANGS], each={"limit": 1, "queue": 4, "queue_wait_s": 0.2}) as serving:
            reader, writer = await serving.send(STREAM)
            await reader.readuntil(b"Hello")
            heard = await ask(serving, CHAT)
            assert heard.status == 503
            assert heard.capture.header("retry-after")
            assert serving.asked == [1]
            writer.transport.abort()

    run(work())


def test_who_waits_gets_the_place_of_one_who_leaves(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [HANGS, WHOLE], each={"limit": 1, "queue": 1}) as serving:
            reader, writer = await serving.send(STREAM)
            await reader.readuntil(b"Hello")
            waiting = asyncio.create_task(ask(serving, CHAT))
            while serving.server.upstreams.all[0].running < 2:
                await serving.get("/health")
            writer.transport.abort()
            assert (await waiting).status == 200

    run(work())


def test_where_one_is_full_the_other_is_asked(tmp_path: Path) -> None:
    each = {"limit": 1, "queue": 0, "weight": 0.01}

    async def work() -> None:
        async with gateway(tmp_path, [HANGS], [WHOLE], each=each, first={"weight": 1000.0}) as serving:
            reader, writer = await serving.send(STREAM)
            await reader.readuntil(b"Hello")
            for _ in range(3):
                assert (await ask(serving, CHAT)).status == 200
            writer.transport.abort()

    run(work())


# Who may ask, and for what.

CI = KeySettings(name="ci", key="wd-ci-0123456789", models=("qwen-*",), requests_per_minute=2)
TEAM = KeySettings(name="team", key="wd-team-0123456789", tokens_per_minute=10)


def bearer(key: KeySettings) -> dict[str, str]:
    return {"Authorization": f"Bearer {key.key}"}


@BOTH
def test_a_key_is_for_its_models(tmp_path: Path, request_body: dict[str, Any]) -> None:
    async def work() -> None:
        each = {"models": ("qwen-*", "gpt-4o")}
        async with gateway(tmp_path, [WHOLE], each=each, config={"keys": (CI, TEAM)}) as serving:
            assert (await ask(serving, {**request_body, "model": "qwen-7b"}, **bearer(CI))).status == 200
            heard = await ask(serving, {**request_body, "model": "gpt-4o"}, **bearer(CI))
            assert (heard.status, heard.error["code"]) == (403, "model_not_allowed")
            assert heard.findings() == []
            assert (await ask(serving, {**request_body, "model": "gpt-4o"}, **bearer(TEAM))).status == 200
            assert (await ask(serving, request_body)).status == 401
            assert serving.asked == [2]

    run(work())


def test_models_that_a_key_may_not_use_are_not_listed(tmp_path: Path) -> None:
    async def work() -> None:
        each = {"models": ("qwen-7b", "gpt-4o")}
        async with gateway(tmp_path, [WHOLE], each=each, config={"keys": (CI, TEAM)}) as serving:
            for key, names in ((CI, ["qwen-7b"]), (TEAM, ["qwen-7b", "gpt-4o"])):
                head = f"Authorization: Bearer {key.key}\r\n"
                listed = (await serving.get("/v1/models", head)).json["data"]
                assert [one["id"] for one in listed] == names
                assert (await serving.get("/v1/models/gpt-4o", head)).status == (200 if "gpt-4o" in names else 403)

    run(work())


def test_a_key_has_its_own_rates(tmp_path: Path) -> None:
    usage = MockChunk(
        STOP.text.replace('"choices"', '"usage":{"prompt_tokens":9,"completion_tokens":9,"total_tokens":18},"choices"')
    )

    async def work() -> None:
        each, config = {"models": ("qwen-7b", "gpt-4o")}, {"keys": (CI, TEAM)}
        async with gateway(tmp_path, [MockReply((ROLE, HELLO, usage, DONE))], each=each, config=config) as serving:
            for key, model, allowed in ((CI, "qwen-7b", 2), (TEAM, "gpt-4o", 1)):
                heard = [await ask(serving, {**CHAT, "model": model}, **bearer(key)) for _ in range(allowed + 1)]
                assert [one.status for one in heard] == [200] * allowed + [429]
                assert int(heard[-1].capture.header("retry-after") or 0) >= 1
                assert heard[-1].findings() == []
            assert serving.asked == [3]

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
def test_a_name_leads_where_its_route_says(tmp_path: Path, name: str, upstreams: set[int], model: set[str]) -> None:
    settings: Any = {"config": {"routes": ROUTES}, "first": {"models": ("qwen",)}, "each": {"models": ("llama",)}}

    async def work() -> None:
        async with gateway(tmp_path, [WHOLE], [WHOLE], **settings) as serving:
            for _ in range(6):
                heard = await ask(serving, {**CHAT, "model": name})
                assert heard.json["model"] == name  # what the upstream calls itself may be a path of its machine
            asked = {number for number, count in enumerate(serving.asked) if count}
            assert asked <= upstreams
            seen = {json.loads(one.body)["model"] for upstream in serving.upstreams for one in upstream.requests}
            assert seen <= model
            one = await serving.get(f"/v1/models/{name}")
            assert (one.status, one.json["id"], one.json["object"]) == (200, name, "model")

    run(work())


@BOTH
def test_a_name_that_nobody_has_is_not_found_and_the_nearest_is_named(
    tmp_path: Path, request_body: dict[str, Any]
) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [WHOLE], each={"models": ("qwen-7b",)}) as serving:
            heard = await ask(serving, {**request_body, "model": "qwen-7"})
            assert (heard.status, heard.error["code"], heard.error["param"]) == (404, "model_not_found", "model")
            assert "did you mean 'qwen-7b'" in heard.error["message"]
            assert heard.findings() == []
            assert (await serving.get("/v1/models/qwen-7")).status == 404
            assert serving.asked == [0]

    run(work())


@BOTH
def test_where_there_is_one_model_it_need_not_be_named(tmp_path: Path, request_body: dict[str, Any]) -> None:
    unnamed = {name: value for name, value in request_body.items() if name != "model"}

    async def work() -> None:
        async with gateway(tmp_path, [WHOLE], each={"models": ("qwen",)}) as serving:
            assert (await ask(serving, unnamed)).status == 200
            assert json.loads(serving.upstreams[0].requests[-1].body)["model"] == "qwen"
        async with gateway(tmp_path, [WHOLE], each={"models": ("qwen", "llama")}) as serving:
            heard = await ask(serving, unnamed)
            assert (heard.status, heard.error["param"]) == (400, "model")

    run(work())


def test_a_model_that_an_upstream_lists_is_shown_as_it_lists_it(tmp_path: Path) -> None:
    listed = MockScript(models={"object": "list", "data": [{"id": "x/y:z", "object": "model", "max_model_len": 7}]})

    async def work() -> None:
        async with gateway(tmp_path, listed, each={"models": ()}) as serving:
            while not (found := (await serving.get("/v1/models")).json["data"]):
                pass
            assert found[0]["max_model_len"] == 7
            one = await serving.get("/v1/models/x/y:z")
            assert (one.status, one.json) == (200, found[0])

    run(work())
