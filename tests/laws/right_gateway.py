"""Law 3 through the gateway: a plain client reads what the upstream has sent, and nothing else.

One gateway gets all streams of a dialect, so that templates of earlier streams are in use. In the dialects that are
translated, `right_answers` defines what can be represented.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple, cast

from tests.laws import plain_client, right_answers, right_chunks, right_events, right_gemini
from tests.laws.plain_client import Answer, Choice, chunks_answer
from tests.laws.right_answers import Difference, Json, client_breaking_rules, compare, pieces, same
from tests.laws.right_chunks import Drawn
from tests.laws.right_events import DrawnEvents
from tests.laws.warm_streams import style, warm_streams
from tests.server.persistent_gateway import PersistentGateway, persistent_gateway
from welldone.core.envelope import Endpoint
from welldone.mock.script import MockChunk, MockReply

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
GEMINI, OLLAMA = "/v1beta/models/m:streamGenerateContent?alt=sse", "/api/chat"
_SHORTEST_S = 1e-6  # the gateway reads what was sent so far
_ASKED = [{"role": "user", "content": "x"}]
STREAMS_PER_SERVER = 10
SERVERS = "streams of one server of chat"


def send(gateway: PersistentGateway, draw: Random, path: str, request: Json, stream: bytes) -> bytes:
    """Return the body that the client gets when the upstream sends this stream in random pieces."""
    after_s = draw.choice((0.0, _SHORTEST_S))
    chunks = tuple(MockChunk(base64=piece, after_s=after_s) for piece in pieces(draw, stream))
    reply = gateway.post(MockReply(chunks), request, path)
    assert reply.status == 200, reply.raw
    return reply.body


def chat(gateway: PersistentGateway, seed: int) -> Iterator[Difference]:
    """A legal answer of chat."""
    draw = Random(f"gateway {seed}")
    drawn = right_chunks.chat(draw)
    sent = send(gateway, draw, CHAT, drawn.request, drawn.stream)
    yield from same("chat", chunks_answer(drawn.stream), chunks_answer(sent))


def server_of_chat(gateway: PersistentGateway, seed: int) -> Iterator[Difference]:
    """Streams of one server for like requests: the gateway has learnt their form."""
    draw = Random(f"server {seed}")
    model = f"m{seed}"  # templates are stored by model
    request = {"model": model, "messages": _ASKED, "stream": True, "stream_options": {"include_usage": True}}
    if seed % 4 == 0:  # with tools, texts are searched for calls, which needs a pipeline
        request["tools"] = [{"type": "function", "function": {"name": "f"}}]
    form = style(draw, model)
    for number, stream in enumerate(warm_streams(draw, form, STREAMS_PER_SERVER)):
        yield from client_breaking_rules(Endpoint.CHAT, request, stream)
        sent = send(gateway, draw, CHAT, request, stream)
        yield from same(f"stream {number}", chunks_answer(stream), chunks_answer(sent))
        if number == 0 and form.is_plain and "tools" not in request and not has_template(gateway, model):
            yield Difference("template", model, "learnt", None)


def has_template(gateway: PersistentGateway, model: str) -> bool:
    """Whether the gateway has learnt a template of the streams of this model."""
    slots = gateway.server._parts.templates._slots
    return any(slot._template is not None for key, slot in slots.items() if model in cast("tuple[object, ...]", key))


def completions(gateway: PersistentGateway, seed: int) -> Iterator[Difference]:
    """A legal answer of completions."""
    draw = Random(f"gateway {seed}")
    drawn = right_chunks.completions(draw)
    sent = send(gateway, draw, COMPLETIONS, drawn.request, drawn.stream)
    yield from same("completions", chunks_answer(drawn.stream), chunks_answer(sent))


# Translations.


def _translated(
    path: str, fields: Json, expected: Callable[[Drawn], Answer], read: Callable[[bytes, bool], Answer]
) -> Callable[[PersistentGateway, int], Iterator[Difference]]:
    def check(gateway: PersistentGateway, seed: int) -> Iterator[Difference]:
        draw = Random(f"gateway {seed}")
        contents = replace(right_chunks.ALL, trailing_space=path != RESPONSES)  # its calls end before the next one
        drawn = right_chunks.chat(draw, contents, most_choices=1)
        sent = send(gateway, draw, path, {"model": "m", "stream": True, **fields}, drawn.stream)
        yield from same(path, expected(drawn), read(sent, True))

    return check


# Pass-through.


def finer(draw: Random, events: list[Json]) -> list[Json]:
    """Split the texts of deltas into more deltas, so that the template of a delta is in use."""
    found: list[Json] = []
    for event in events:
        delta = event.get("delta")
        name = next((name for name in ("text", "thinking") if isinstance(delta, dict) and name in delta), None)
        text = delta if isinstance(delta, str) else delta[name] if isinstance(delta, dict) and name else ""
        if not text or event.get("logprobs") or draw.random() < 0.2:
            found.append(event)
            continue
        cuts = right_chunks.cut(draw, text, 12)
        found += [
            event | {"delta": cut if isinstance(delta, str) else {**(delta or {}), str(name): cut}} for cut in cuts
        ]
    return [
        event | ({"sequence_number": number} if "sequence_number" in event else {})
        for number, event in enumerate(found)
    ]


def _passthrough(
    draw_events: Callable[[Random], DrawnEvents], path: str, request: Json
) -> Callable[[PersistentGateway, int], Iterator[Difference]]:
    def check(gateway: PersistentGateway, seed: int) -> Iterator[Difference]:
        draw = Random(f"gateway {seed}")
        drawn = draw_events(draw)
        events = finer(draw, drawn.events)
        stream = right_events.stream_of(draw, events)
        sent = plain_client.objects(send(gateway, draw, path, request, stream))
        expected, received = (list(map(_without_identity, _no_pings(each))) for each in (events, sent))
        yield from compare("events", expected, received)

    return check


def _no_pings(events: list[Json]) -> list[Json]:
    return [event | {"sequence_number": 0} for event in events if event["type"] not in ("ping", "keepalive")]


def _without_identity(event: Json) -> Json:
    """An event without what the gateway sets: id and model of the answer, and members that repeat the request."""
    if "response" in event:
        kept = ("output", "status", "usage", "incomplete_details", "error", "x_response")
        return event | {"response": {name: event["response"][name] for name in kept if name in event["response"]}}
    return event


def gemini(gateway: PersistentGateway, seed: int) -> Iterator[Difference]:
    """A legal answer of Gemini: elements as the upstream sends them."""
    draw = Random(f"gateway {seed}")
    drawn = right_gemini.gemini(draw)
    request = {"contents": [{"role": "user", "parts": [{"text": "x"}]}]}
    sent = plain_client.objects(send(gateway, draw, GEMINI, request, drawn.stream))
    yield from compare("elements", [one | {"modelVersion": "m"} for one in drawn.events], sent)
    yield from same("content", plain_client.gemini_answer(drawn.events), plain_client.gemini_answer(sent))


# The other way round: upstreams of other dialects, and clients of chat.


def _content(choice: Choice) -> Json:
    """Content of a choice. Texts that are open at once may follow each other: only their characters are compared.

    A line break may separate two of them.
    """
    calls = [
        (call.id, call.name, call.text if call.type == "custom" else json.loads(call.text)) for call in choice.calls
    ]
    texts = {name: sorted(getattr(choice, name).replace("\n", "")) for name in ("text", "reasoning", "refusal")}
    return {**texts, "calls": calls}


def _content_of_responses(drawn: DrawnEvents) -> Json:
    content = _content(plain_client.responses_answer(_with_content(drawn.reply_object)).choices[0])
    if any(item.get("content") and item.get("summary") for item in drawn.reply_object["output"]):
        del content["reasoning"]  # of a text and its summary, the one that comes first is sent
    return content


def _with_content(response: Json) -> Json:
    """A Response whose items of reasoning have all members."""
    items = [{"content": []} | item if item["type"] == "reasoning" else item for item in response["output"]]
    return response | {"output": items}


def _content_of_messages(drawn: DrawnEvents) -> Json:
    blocks = [block for block in drawn.reply_object["content"] if block["type"] in ("text", "thinking", "tool_use")]
    return _content(plain_client.messages_answer(drawn.reply_object | {"content": blocks}).choices[0])


def _content_of_gemini(drawn: DrawnEvents) -> Json:
    return _content(plain_client.gemini_answer(drawn.events).choices[0])


def _to_chat(
    draw_events: Callable[[Random], DrawnEvents], content: Callable[[DrawnEvents], Json]
) -> Callable[[PersistentGateway, int], Iterator[Difference]]:
    def check(gateway: PersistentGateway, seed: int) -> Iterator[Difference]:
        draw = Random(f"gateway {seed}")
        drawn = draw_events(draw)
        tools = [{"type": "function", "function": {"name": name}} for name in "fg"]
        sent = send(
            gateway, draw, CHAT, {"model": "m", "messages": _ASKED, "stream": True, "tools": tools}, drawn.stream
        )
        answer = chunks_answer(sent)
        yield from compare("errors", [], answer.errors)
        expected, received = content(drawn), _content(answer.choices[0])
        yield from compare("content", expected, {name: received[name] for name in expected})

    return check


class Route(NamedTuple):
    """A check of one stream, and the settings of its upstream."""

    check: Callable[[PersistentGateway, int], Iterator[Difference]]
    settings: Json


_ASKS_RESPONSES: Json = {"input": "x", "include": ["message.output_text.logprobs"]}
ROUTES: dict[str, Route] = {
    "chat": Route(chat, {}),
    SERVERS: Route(server_of_chat, {}),
    "completions": Route(completions, {}),
    "Responses": Route(
        _passthrough(right_events.responses, RESPONSES, {"model": "m", "input": "x", "stream": True}),
        {"speaks": ("responses",)},
    ),
    "Messages": Route(
        _passthrough(
            right_events.messages,
            MESSAGES,
            {"model": "m", "max_tokens": 9, "messages": _ASKED, "stream": True, "stop_sequences": ["STOP"]},
        ),
        {"speaks": ("messages",)},
    ),
    "Gemini": Route(gemini, {"speaks": ("gemini",)}),
    "chat to Responses": Route(
        _translated(RESPONSES, _ASKS_RESPONSES, right_answers.expected_of_responses, right_answers.read_responses), {}
    ),
    "chat to Messages": Route(
        _translated(
            MESSAGES,
            {"max_tokens": 2048, "messages": _ASKED, "thinking": {"type": "enabled", "budget_tokens": 1024}},
            right_answers.expected_of_messages,
            right_answers.read_messages,
        ),
        {},
    ),
    "chat to Ollama": Route(
        _translated(OLLAMA, {"messages": _ASKED}, right_answers.expected_of_ollama, right_answers.read_ollama), {}
    ),
    "Responses to chat": Route(
        _to_chat(right_events.responses, _content_of_responses), {"chat": False, "speaks": ("responses",)}
    ),
    "Messages to chat": Route(
        _to_chat(right_events.messages, _content_of_messages), {"chat": False, "speaks": ("messages",)}
    ),
    "Gemini to chat": Route(_to_chat(right_gemini.gemini, _content_of_gemini), {"chat": False, "speaks": ("gemini",)}),
}


@contextmanager
def law_gateway(folder: Path, route: Route) -> Iterator[PersistentGateway]:
    """Run the gateway of a route."""
    settings = {"models": ("*",), "n": "native", **route.settings}
    with persistent_gateway(folder, {"up": settings}) as running:
        yield running
