"""The cases of the Open Responses compliance suite, judged by our rules and by the required members of its schemas.

Two cases depend on what a model can do: calls of tools, and images. Tiny models that can do either serve them.
"""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from websockets.sync.client import ClientConnection, connect

from tests.models.picture import data_url, png
from tests.server import open_responses
from tests.support.raw import LIMIT_S, STREAM, RawConnection
from tests.support.server import Running
from welldone.core.sse import SseDecoder
from welldone.rules.judge import judge

Json = dict[str, Any]
RESPONSES, COMPACT = "/v1/responses", "/v1/responses/compact"
SHORT = {"max_output_tokens": 12, "temperature": 0}
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
def test_messages_are_answered(tiny_server: Running, items: list[Json], stream: bool) -> None:
    response, events = create(tiny_server, {"input": items, "stream": stream})
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


ASKED = message("user", "We agreed to launch on Tuesday and notify support first.")
ANSWERED = message("assistant", "Understood. The launch is Tuesday.")
"""Of a conversation whose summary by the default model is short."""


@pytest.fixture(scope="module")
def compacted(server: Running) -> Json:
    """A compacted conversation."""
    status, reply = compact(server, model=server.model, prompt_cache_key="key", input=[ASKED, ANSWERED])
    assert status == 200
    return reply


def test_a_conversation_is_compacted_and_goes_on(server: Running, compacted: Json) -> None:
    assert open_responses.wrong_in_compacted(compacted) == []
    kept, summary = compacted["output"]
    assert kept["content"] == [{"type": "input_text", "text": ASKED["content"]}]
    assert summary["type"] == "compaction"
    assert "Tuesday" not in json.dumps(summary)  # it is opaque
    create(server, {"input": [*compacted["output"], message("user", "When is the launch?")]})


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
def test_an_invalid_compaction_is_rejected(tiny_server: Running, change: Callable[[Json], object], param: str) -> None:
    body: Json = {"model": tiny_server.model, "input": [message("user", "Compact this conversation.")]}
    change(body)
    status, reply = compact(tiny_server, **body)
    assert status == 400
    assert reply["error"]["param"] == param
    assert reply["error"]["type"] == "invalid_request_error"


# Over a WebSocket.


def socket(server: Running) -> ClientConnection:
    """Open a WebSocket."""
    url = f"{server.url.replace('http', 'ws', 1)}/responses"
    return connect(url, additional_headers=server.headers(), proxy=None)


def turn(connection: ClientConnection, server: Running, **body: Any) -> Json:  # noqa: ANN401 - each field its own
    """Create a response that is not stored; returns it, or its error event. Nothing of it breaks the schema."""
    request = {"model": server.model, "store": False, **SHORT, **body}
    connection.send(json.dumps({"type": "response.create", **request}))
    events: list[Json] = []
    while not events or events[-1]["type"] not in ("response.completed", "response.incomplete", "error"):
        events.append(json.loads(connection.recv(timeout=LIMIT_S)))
    return open_responses.checked_response(events, request)


def test_responses_follow_each_other_on_a_connection(tiny_server: Running) -> None:
    with socket(tiny_server) as connection:
        first, second = (turn(connection, tiny_server, input=f"Reply with: {word}") for word in ("first", "second"))
    assert first["id"] != second["id"]
    assert first["output"]
    assert second["output"]


def test_a_response_continues_on_its_connection_only(tiny_server: Running) -> None:
    with socket(tiny_server) as connection:
        first = turn(connection, tiny_server, input="Remember the code word: cobalt. Reply with OK.")
        second = turn(connection, tiny_server, input="What is the code word?", previous_response_id=first["id"])
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    with socket(tiny_server) as connection:
        lost = turn(connection, tiny_server, input="Go on.", previous_response_id=second["id"])
        assert lost["error"]["code"] == "previous_response_not_found"
        assert turn(connection, tiny_server, input="Begin again.")["output"]


def test_a_failed_continuation_ends_its_chain(tiny_server: Running) -> None:
    orphan = [{"type": "function_call_output", "call_id": "call_missing", "output": "no such call"}]
    with socket(tiny_server) as connection:
        first = turn(connection, tiny_server, input="Remember the code word: ember.")
        assert turn(connection, tiny_server, input=orphan, previous_response_id=first["id"])["status"] == 400
        lost = turn(connection, tiny_server, input="Go on.", previous_response_id=first["id"])
    assert lost["error"]["code"] == "previous_response_not_found"


def test_a_compacted_conversation_begins_a_chain(server: Running, compacted: Json) -> None:
    with socket(server) as connection:
        response = turn(connection, server, input=[*compacted["output"], message("user", "Continue.")], tools=[])
    assert response["output"]


def test_streamed_and_sent_responses_are_equal(tiny_server: Running) -> None:
    items = [message("user", "Name three colours.")]
    with socket(tiny_server) as connection:
        sent = turn(connection, tiny_server, input=items)
    streamed, _ = create(tiny_server, {"input": items, "stream": True, "store": False})
    assert [item["content"] for item in sent["output"]] == [item["content"] for item in streamed["output"]]


def test_an_image_is_seen_over_a_websocket(zoo: Running) -> None:
    image = {"type": "input_image", "image_url": data_url(png(32, 32, (250, 10, 10)))}
    with socket(zoo) as connection:
        response = turn(connection, zoo, model="seeing", input=[message("user", [image])])
    assert response["output"]
