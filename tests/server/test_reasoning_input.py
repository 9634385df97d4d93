"""Reasoning that clients send back reaches an upstream in the field that this upstream reads."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.http.aio import run
from tests.server.running_gateway import Gateway, gateway
from tests.server.running_server import CHAT, DONE, HELLO, ROLE, STOP, USAGE, json_error
from tests.table import table
from welldone.config.upstream import UpstreamSettings
from welldone.gateway.upstream import REMEMBERED_MODELS, Upstream
from welldone.mock.script import CHUNK_TEMPLATE, MockChunk, MockReply, json_reply

Json = dict[str, Any]

THOUGHT = "The user asks for the weather."
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
NAMES = ("reasoning", "reasoning_content")
USER = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "object", "properties": {}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}


def delta(value: Json, reason: str | None = None) -> MockChunk:
    return MockChunk(CHUNK_TEMPLATE % (json.dumps(value), json.dumps(reason)))


def streamed(*names: str) -> MockReply:
    """A thought in these fields, then a tool call."""
    thoughts = [delta(dict.fromkeys(names, piece)) for piece in (THOUGHT[:9], THOUGHT[9:])]
    return MockReply(
        (ROLE, *thoughts, delta({"tool_calls": [{"index": 0, **CALL}]}), delta({}, "tool_calls"), USAGE, DONE)
    )


def whole(*names: str) -> MockReply:
    message = {"role": "assistant", "content": None, **dict.fromkeys(names, THOUGHT), "tool_calls": [CALL]}
    return json_reply(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "scripted",
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
        }
    )


# The second turn of each dialect: the first request, and the answer to it as it was received.


def chat_turn(request: Json, reply: Json) -> Json:
    message = reply["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny"}
    return {**request, "messages": [*request["messages"], message, result]}


def messages_turn(request: Json, reply: Json) -> Json:
    call = next(block for block in reply["content"] if block["type"] == "tool_use")
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "sunny"}
    answer = {"role": "assistant", "content": reply["content"]}
    return {**request, "messages": [*request["messages"], answer, {"role": "user", "content": [result]}]}


def responses_turn(request: Json, reply: Json) -> Json:
    call = next(item for item in reply["output"] if item["type"] == "function_call")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    return {**request, "input": [*request["input"], *reply["output"], result]}


def stored_turn(request: Json, reply: Json) -> Json:
    return {**request, "input": responses_turn(request, reply)["input"][-1:], "previous_response_id": reply["id"]}


def gemini_turn(request: Json, reply: Json) -> Json:
    answer = reply["candidates"][0]["content"]
    result = {"functionResponse": {"name": "f", "response": {"text": "sunny"}}}
    return {**request, "contents": [*request["contents"], answer, {"role": "user", "parts": [result]}]}


def ollama_turn(request: Json, reply: Json) -> Json:
    result = {"role": "tool", "tool_name": "f", "content": "sunny"}
    return {**request, "messages": [*request["messages"], reply["message"], result]}


CLIENTS: dict[str, tuple[str, Json, Callable[[Json, Json], Json]]] = {
    "chat": ("/v1/chat/completions", {"messages": [USER], "tools": [TOOL]}, chat_turn),
    "messages": (
        "/v1/messages",
        {
            "max_tokens": 4096,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "messages": [USER],
            "tools": [{"name": "f", "input_schema": SCHEMA}],
        },
        messages_turn,
    ),
    "responses": (
        "/v1/responses",
        {"input": [USER], "tools": [{"type": "function", "name": "f", "parameters": SCHEMA, "strict": False}]},
        responses_turn,
    ),
    "gemini": (
        "/v1beta/models/gemini:generateContent",
        {
            "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
            "tools": [{"functionDeclarations": [{"name": "f"}]}],
            "generationConfig": {"thinkingConfig": {"includeThoughts": True}},
        },
        gemini_turn,
    ),
    "ollama": ("/api/chat", {"messages": [USER], "tools": [TOOL], "stream": False}, ollama_turn),
}
"""Path, request without the model, and the function for the second turn."""


def sent_thoughts(server: Gateway, upstream: int = 0, request: int = -1) -> Json:
    """The reasoning of the last assistant message in a request that an upstream has received."""
    bodies = [json.loads(one.body) for one in server.upstreams[upstream].requests if one.method == "POST"]
    answers = [message for message in bodies[request]["messages"] if message["role"] == "assistant"]
    return {name: value for name, value in answers[-1].items() if name in NAMES}


def second_turn(model: str, *fields: str, **thoughts: object) -> Json:
    """A chat request with an answer of the model, whose reasoning is in these fields."""
    answer = {"role": "assistant", "content": "Hello", **dict.fromkeys(fields, THOUGHT), **thoughts}
    return {"model": model, "messages": [USER, answer, USER]}


@table(
    ("reply", "names"),
    [
        (streamed("reasoning"), ("reasoning",)),
        (streamed("reasoning_content"), ("reasoning_content",)),
        (streamed(*NAMES), NAMES),
        (whole("reasoning"), ("reasoning",)),
        (whole("reasoning_content"), ("reasoning_content",)),
    ],
)
def test_the_second_turn_of_each_dialect_has_the_field_of_the_answers(
    tmp_path: Path, reply: MockReply, names: tuple[str, ...]
) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [reply], each={"stream": "event-stream" in str(reply.headers)}) as server:
            for model, (path, body, take_turn) in CLIENTS.items():
                request = {"model": model, **body} if model != "gemini" else body
                first = await server.post(request, path)
                assert first.status == 200, first.body
                for turn in [take_turn] + [stored_turn] * (model == "responses"):
                    second = await server.post(turn(request, first.json), path)
                    assert second.status == 200, second.body
                    assert sent_thoughts(server) == dict.fromkeys(names, THOUGHT), model

    run(work())


@table("is_stream", [True, False])
@table(
    ("setting", "reply", "before", "after"),
    [
        ("auto", "reasoning", NAMES, ("reasoning",)),
        ("auto", "reasoning_content", NAMES, ("reasoning_content",)),
        ("reasoning", "reasoning_content", ("reasoning",), ("reasoning",)),
        ("reasoning_content", "reasoning", ("reasoning_content",), ("reasoning_content",)),
        ("both", "reasoning", NAMES, NAMES),
    ],
)
def test_a_chat_client_may_use_either_field(
    tmp_path: Path, setting: str, reply: str, before: tuple[str, ...], after: tuple[str, ...], is_stream: bool
) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [streamed(reply)], each={"reasoning_input": setting}) as server:
            for fields in [("reasoning",), ("reasoning_content",), NAMES]:
                model = "-".join(fields)  # each has an answer of its own
                for names in (before, after):
                    await server.post({**second_turn(model, *fields), "stream": is_stream})
                    assert sent_thoughts(server) == dict.fromkeys(names, THOUGHT)

    run(work())


def test_the_field_is_known_as_soon_as_the_first_thought_has_arrived(tmp_path: Path) -> None:
    async def work() -> None:
        hanging = MockReply((ROLE, delta({"reasoning": THOUGHT})), end="hang")
        async with gateway(tmp_path, [hanging, streamed("reasoning")]) as server:
            reader, writer = await server.send({**CHAT, "stream": True})
            await reader.readuntil(THOUGHT.encode())
            await server.post(second_turn("m", "reasoning_content"))
            assert sent_thoughts(server) == {"reasoning": THOUGHT}
            writer.close()

    run(work())


def test_the_field_is_learnt_after_answers_that_followed_a_template(tmp_path: Path) -> None:
    async def work() -> None:
        text, usual = MockReply((ROLE, HELLO, STOP, USAGE, DONE)), streamed("reasoning_content")
        async with gateway(tmp_path, [usual, text, text, text, streamed("reasoning")]) as server:
            for _ in range(5):
                await server.post({**CHAT, "stream": True})
            await server.post(second_turn("m", "reasoning_content"))
            assert sent_thoughts(server) == {"reasoning": THOUGHT}

    run(work())


def test_an_answer_in_the_other_field_replaces_what_was_known(tmp_path: Path) -> None:
    async def work() -> None:
        replies = [streamed("reasoning"), streamed("reasoning_content"), streamed()]
        async with gateway(tmp_path, replies) as server:
            for names in (NAMES, ("reasoning",), ("reasoning_content",), ("reasoning_content",)):
                await server.post(second_turn("m", "reasoning_content"))
                assert sent_thoughts(server) == dict.fromkeys(names, THOUGHT)

    run(work())


def test_models_of_one_upstream_differ(tmp_path: Path) -> None:
    async def work() -> None:
        replies = [streamed("reasoning"), streamed("reasoning_content")]
        async with gateway(tmp_path, [*replies, *replies]) as server:
            for model in ("one", "two"):
                await server.post({**CHAT, "model": model})
            for model, name in zip(("one", "two", "one", "two"), NAMES * 2, strict=True):
                await server.post(second_turn(model, "reasoning_content"))
                assert sent_thoughts(server) == {name: THOUGHT}

    run(work())


def test_an_upstream_that_takes_over_gets_its_own_field(tmp_path: Path) -> None:
    async def work() -> None:
        first = [streamed("reasoning"), json_error(500, {"error": {"message": "oops"}})]
        config = {"routes": {"m": ["m@a", "m@b"], "second": ["m@b"]}}
        weights: Json = {"each": {"weight": 0.01}, "first": {"weight": 1000.0}}  # the first one is chosen first
        async with gateway(tmp_path, first, [streamed("reasoning_content")], config=config, **weights) as server:
            await server.post({**CHAT, "model": "m"})
            await server.post({**CHAT, "model": "second"})
            assert server.post_counts == [1, 1]
            assert (await server.post(second_turn("m", "reasoning_content"))).status == 200
            assert server.post_counts == [2, 2]
            assert sent_thoughts(server, 0) == {"reasoning": THOUGHT}
            assert sent_thoughts(server, 1) == {"reasoning_content": THOUGHT}

    run(work())


def test_a_mirror_gets_its_own_field(tmp_path: Path) -> None:
    async def work() -> None:
        first = {"models": ("m",), "mirror": "b@100%", "reasoning_input": "reasoning"}
        each = {"models": ("y",), "reasoning_input": "reasoning_content"}
        async with gateway(
            tmp_path, [streamed("reasoning")], [streamed("reasoning")], first=first, each=each
        ) as server:
            await server.post(second_turn("m", "reasoning_content"))
            while not server.post_counts[1]:
                await server.get("/livez")
            assert sent_thoughts(server, 0) == {"reasoning": THOUGHT}
            assert sent_thoughts(server, 1) == {"reasoning_content": THOUGHT}

    run(work())


@table(
    ("sent", "received"),
    [
        ({"reasoning_content": "a", "reasoning": "b"}, {"reasoning": "a\n\nb"}),  # nothing is lost
        ({"reasoning_content": "a", "reasoning": None}, {"reasoning": "a"}),
        ({"reasoning_content": "a", "reasoning": ""}, {"reasoning": "a"}),
        ({"reasoning_content": None, "reasoning": "a"}, {"reasoning_content": None, "reasoning": "a"}),
        # DeepSeek requires the field in a tool loop even if there was no thought.
        ({"reasoning_content": ""}, {"reasoning_content": ""}),
        ({"reasoning_content": None}, {"reasoning_content": None}),
        ({"reasoning_content": [{"text": "a"}]}, {"reasoning_content": [{"text": "a"}]}),
        ({"reasoning_content": "a", "reasoning": {"b": 1}}, {"reasoning_content": "a", "reasoning": {"b": 1}}),
        ({"reasoning": "a", "reasoning_details": [1], "x": 2}, {"reasoning": "a", "reasoning_details": [1], "x": 2}),
        ({"reasoning_content": "a", "reasoning_details": [1]}, {"reasoning_details": [1], "reasoning": "a"}),
    ],
)
def test_contents_are_never_lost(tmp_path: Path, sent: Json, received: Json) -> None:
    user = {"role": "user", "content": "Hi", "reasoning_content": "not of an assistant"}

    async def work() -> None:
        async with gateway(tmp_path, [streamed("reasoning")]) as server:
            await server.post(CHAT)
            answer = {"role": "assistant", "content": "Hello"}
            await server.post({"model": "m", "messages": [user, {**answer, **sent}, USER]})
            body = json.loads(server.upstreams[0].requests[-1].body)
            assert body["messages"] == [user, {**answer, **received}, USER]

    run(work())


@table(
    "messages",
    [
        [USER, {"role": "assistant", "content": "Hello"}, USER],
        [{**USER, "name": "x"}, {"role": "assistant", "reasoning": THOUGHT, "content": "Hello"}],
        [USER, "not an object", None, {"role": 5}],
    ],
)
def test_a_request_that_needs_no_change_passes_unchanged(tmp_path: Path, messages: list[Json]) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [streamed("reasoning")]) as server:
            await server.post(CHAT)
            await server.post({"model": "m", "messages": messages})
            encoded = json.dumps(messages, separators=(",", ":"))
            assert encoded in server.upstreams[0].requests[-1].body

    run(work())


def test_the_memory_is_bounded() -> None:
    upstream = Upstream(UpstreamSettings(name="a", url="http://a/v1"), clock=float, on_change=lambda _: None)
    for number in (*range(REMEMBERED_MODELS), 0, REMEMBERED_MODELS):
        upstream.record_reasoning_fields(str(number), ["reasoning"])
    assert len(upstream.reasoning_fields) == REMEMBERED_MODELS
    assert "1" not in upstream.reasoning_fields  # its answer is the oldest
