"""The cases of the Open Responses compliance suite, judged by our rules and by the required members of its schemas.

Two cases depend on what a model can do: calls of tools, and images. Tiny models that can do either serve them.
"""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.live.raw import STREAM, RawConnection
from tests.live.server import Running
from tests.models.picture import data_url, png
from tests.server import open_responses
from welldone.protocol.sse import SseDecoder
from welldone.rules.judge import judge

Json = dict[str, Any]
RESPONSES, COMPACT = "/v1/responses", "/v1/responses/compact"
SHORT = {"max_output_tokens": 24, "temperature": 0}
"""The answers of the tests are short; those of the suite have no limit."""
WEATHER: Json = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}


def message(role: str, content: object, **members: str) -> Json:
    """A message item."""
    return {"type": "message", "role": role, "content": content, **members}


def create(server: Running, body: Json) -> tuple[Json, list[Json]]:
    """Create a response; returns it with its events. Nothing of them breaks a rule or the schema."""
    body = {"model": server.model, **SHORT, **body}
    with RawConnection(server, RESPONSES, body) as connection:
        trace = msgspec.structs.replace(connection.reply().trace, request=body, endpoint="responses")
    assert trace.status == 200, trace.body
    assert [finding.rule for finding in judge(trace).findings] == []
    if not body.get("stream"):
        response: Json = json.loads(trace.body)
        events: list[Json] = []
    else:
        events = [json.loads(frame.data) for frame in SseDecoder().feed(trace.body) if frame.data]
        assert [wrong for event in events for wrong in open_responses.wrong_in_event(event)] == []
        response = events[-1]["response"]
    assert open_responses.wrong_in_response(response) == []
    assert response["output"]
    return response, events


def compact(server: Running, **body: Any) -> tuple[int, Json]:  # noqa: ANN401 - each field its own
    """Compact a conversation; returns the status and the reply."""
    with RawConnection(server, COMPACT, body) as connection:
        trace = connection.reply().trace
    assert trace.status is not None
    return trace.status, json.loads(trace.body)


@STREAM
@pytest.mark.parametrize(
    "items",
    [
        [message("user", "Say hello in exactly 3 words.")],
        [message("system", "You are a pirate."), message("user", "Say hello.")],
        [
            message("user", "My name is Alice."),
            message("assistant", "Hello Alice!"),
            message("user", "What is my name?"),
        ],
        [
            message("assistant", "I should answer with the saved number.", phase="commentary"),
            message("assistant", "The number is four.", phase="final_answer"),
            message("user", "Repeat only the number."),
        ],
    ],
    ids=["basic", "system-prompt", "multi-turn", "assistant-phase"],
)
def test_messages_are_answered(server: Running, items: list[Json], stream: bool) -> None:
    response, events = create(server, {"input": items, "stream": stream})
    assert response["status"] in ("completed", "incomplete")
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"][: 2 * stream]


@STREAM
def test_a_tool_is_called(zoo: Running, stream: bool) -> None:
    body: Json = {"model": "calling", "input": "What's the weather?", "tools": [WEATHER], "tool_choice": "required"}
    response, events = create(zoo, {**body, "stream": stream, "max_output_tokens": 200})
    assert [item["type"] for item in response["output"]][-1] == "function_call"
    kinds = [event["type"] for event in events]
    assert ("response.function_call_arguments.done" in kinds) == stream


@STREAM
def test_an_image_is_seen(zoo: Running, stream: bool) -> None:
    def answer(red: int) -> str:
        image = {"type": "input_image", "image_url": data_url(png(32, 32, (red, 10, 250 - red)))}
        content = [{"type": "input_text", "text": "What is this?"}, image]
        body: Json = {"model": "seeing", "input": [message("user", content)], "stream": stream}
        response, _ = create(zoo, {**body, "max_output_tokens": 40})
        text: str = response["output"][0]["content"][0]["text"]
        return text

    assert answer(250) != answer(0)


def test_a_conversation_is_compacted_and_goes_on(server: Running) -> None:
    asked = message("user", "We agreed to launch on Tuesday and notify support first.")
    answered = message("assistant", "Understood. The launch is Tuesday.")
    status, compacted = compact(server, model=server.model, prompt_cache_key="key", input=[asked, answered])
    assert status == 200
    assert open_responses.wrong_in_compacted(compacted) == []
    kept, summary = compacted["output"]
    assert kept["content"] == [{"type": "input_text", "text": asked["content"]}]
    assert summary["type"] == "compaction"
    assert "Tuesday" not in json.dumps(summary)  # it is opaque
    create(server, {"input": [*compacted["output"], message("user", "When is the launch?")]})
    again, _ = compact(server, model=server.model, input=[*compacted["output"], asked])
    assert again == 200


def test_a_stored_conversation_is_compacted(server: Running) -> None:
    first, _ = create(server, {"input": "The code word is slate."})
    status, compacted = compact(server, model=server.model, previous_response_id=first["id"], instructions="Be brief.")
    assert status == 200
    assert [item["type"] for item in compacted["output"]] == ["message", "compaction"]
    assert compacted["usage"]["input_tokens"] > 0


@pytest.mark.parametrize(
    ("change", "param"),
    [
        (lambda body: body.pop("model"), "model"),
        (lambda body: body.update(model=5), "model"),
        (lambda body: body.pop("input"), "input"),
        (lambda body: body.update(input=[]), "input"),
        (lambda body: body.update(input=[5]), "input[0]"),
        (lambda body: body.update(instructions=[]), "instructions"),
        (lambda body: body.update(previous_response_id="resp_gone"), "previous_response_id"),
        (lambda body: body.update(input=[{"type": "compaction"}]), "input[0].encrypted_content"),
        (
            lambda body: body.update(input=[{"type": "compaction", "encrypted_content": "gAAAA"}]),
            "input[0].encrypted_content",
        ),
    ],
)
def test_an_invalid_compaction_is_rejected(server: Running, change: Callable[[Json], object], param: str) -> None:
    body: Json = {"model": server.model, "input": [message("user", "Compact this conversation.")]}
    change(body)
    status, reply = compact(server, **body)
    assert status == 400
    assert reply["error"]["param"] == param
    assert reply["error"]["type"] == "invalid_request_error"
