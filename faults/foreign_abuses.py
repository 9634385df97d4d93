"""Expensive requests on all other endpoints and in headers."""

import functools
import json

from faults.client import CHAT
from faults.dialects import MESSAGES, OLLAMA_CHAT, OLLAMA_GENERATE, RESPONSES
from tests.server.abuse import BODY_LIMIT_BYTES, EITHER, FINE, NOT_JSON, REFUSED, TOO_LARGE, TYPE, Abuse

COUNT = "/v1/messages/count_tokens"
LINT = "/page/api/lint"
LOAD = "/models/load"
UNKNOWN = frozenset((400, 404))
HEADERS = frozenset((400, 401, 431))


def _post(name: str, path: str, statuses: frozenset[int] = REFUSED, **members: object) -> Abuse:
    return Abuse(name, path, json.dumps(members).encode(), statuses)


def _raw(name: str, path: str, data: bytes, statuses: frozenset[int] = REFUSED) -> Abuse:
    return Abuse(name, path, data, statuses)


def _responses(name: str, statuses: frozenset[int] = REFUSED, **members: object) -> Abuse:
    return _post(name, RESPONSES, statuses, **{"input": "hi", "max_output_tokens": 16, "store": False, **members})


def _messages(name: str, statuses: frozenset[int] = REFUSED, **members: object) -> Abuse:
    turns = [{"role": "user", "content": "hi"}]
    return _post(name, MESSAGES, statuses, **{"messages": turns, "max_tokens": 4, **members})


def _ollama(name: str, statuses: frozenset[int] = REFUSED, **members: object) -> Abuse:
    turns = [{"role": "user", "content": "hi"}]
    options = {"num_predict": 4}
    return _post(name, OLLAMA_CHAT, statuses, **{"messages": turns, "stream": False, "options": options, **members})


def _lint(name: str, capture: str, statuses: frozenset[int] = FINE, **members: object) -> Abuse:
    return _post(name, LINT, statuses, capture=capture, **members)


def _header(name: str, header: str, value: str, statuses: frozenset[int]) -> Abuse:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    return Abuse(name, CHAT, json.dumps(body).encode(), statuses, TYPE | {header: value})


def _deep(levels: int) -> dict[str, object]:
    schema: dict[str, object] = {}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


_CHUNK = 'data: {"id":"a","object":"chat.completion.chunk","created":1,"model":"m","choices":[%s]}\n\n'
_MANY = 'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'


@functools.cache
def foreign_abuses() -> tuple[Abuse, ...]:
    """Return all requests."""
    return (
        # bytes that are no request, on every path
        *(
            _raw(f"no body for {path}", path, b"")
            for path in (RESPONSES, MESSAGES, COUNT, OLLAMA_CHAT, OLLAMA_GENERATE, LINT)
        ),
        *(
            _raw(f"a million lists for {path}", path, b'{"a":[' + b"[]," * 10**6 + b"1]}")
            for path in (
                RESPONSES,
                MESSAGES,
                COUNT,
                OLLAMA_CHAT,
                OLLAMA_GENERATE,
                LINT,
                LOAD,
                "/v1/embeddings",
                "/tokenize",
            )
        ),
        *(
            _raw(f"a body over the limit for {path}", path, b'{"a":"' + b"x" * BODY_LIMIT_BYTES + b'"}', TOO_LARGE)
            for path in (RESPONSES, MESSAGES, OLLAMA_CHAT, LOAD, "/v1/rerank")
        ),
        _raw("a number without end for Responses", RESPONSES, b'{"input":"hi","temperature":1e999}'),
        _raw("brackets, 1,000,000 deep, for Messages", MESSAGES, b'{"messages":' + b"[" * 10**6),
        # Responses
        _responses("49,000 items", input=[{"role": "user", "content": "x"}] * 40_000 + [{}] * 9_000),
        _responses("an item that is none", input=[{"type": "shell_call", "command": "rm"}]),
        _responses(
            "5,000 results without calls",
            input=[{"type": "function_call_output", "call_id": "x", "output": "y"}] * 5000,
        ),
        _responses("a response from nowhere", UNKNOWN, previous_response_id="../../../../etc/passwd"),
        _responses("a response's name of a megabyte", UNKNOWN, previous_response_id="r" * 10**6),
        _responses("metadata of 10,000 names", metadata={str(number): "x" for number in range(10_000)}),
        _responses("a format 60 deep", text={"format": {"type": "json_schema", "name": "a", "schema": _deep(25)}}),
        _responses("10^18 tokens of output", EITHER, max_output_tokens=10**18, input="stop"),
        _responses("tools of another kind", EITHER, tools=[{"type": "computer_use_preview"}]),
        _responses("1,000 tools", tools=[{"type": "function", "name": f"f{number}"} for number in range(1000)]),
        _responses(
            "a picture of this machine for Responses",
            input=[{"role": "user", "content": [{"type": "input_image", "image_url": "http://127.0.0.1:22/"}]}],
        ),
        _responses(
            "a file of this machine",
            input=[{"role": "user", "content": [{"type": "input_file", "file_url": "file:///etc/passwd"}]}],
        ),
        _post("four megabytes to count", "/v1/responses/input_tokens", EITHER, input="word " * 800_000),
        # Messages
        _messages("40,000 turns", messages=[{"role": "user", "content": "x"}] * 40_000),
        _messages("no tokens for Messages", max_tokens=0),
        _messages(
            "20,000 tools",
            tools=[{"name": f"f{number}", "input_schema": {"type": "object"}} for number in range(20_000)],
        ),
        _messages("9,000 stops for Messages", stop_sequences=["x"] * 9000),
        _messages(
            "a schema 40 deep for a tool",
            EITHER,
            tools=[{"name": "f", "input_schema": {"type": "object", "properties": {"a": _deep(15)}}}],
        ),
        _messages(
            "a picture from a cloud for Messages",
            messages=[
                {
                    "role": "user",
                    "content": [{"type": "image", "source": {"type": "url", "url": "http://169.254.169.254/"}}],
                }
            ],
        ),
        _messages(
            "a result without a call for Messages",
            EITHER,  # the chat template of the model interprets it
            messages=[{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}],
        ),
        _messages("servers of tools", mcp_servers=[{"type": "url", "url": "http://127.0.0.1:22/", "name": "x"}]),
        _messages("a budget of thoughts of 2^40", thinking={"type": "enabled", "budget_tokens": 2**40}),
        _messages("a user of a megabyte", EITHER, metadata={"user_id": "u" * 10**6}),
        _post(
            "four megabytes to count for Messages",
            COUNT,
            EITHER,
            messages=[{"role": "user", "content": "word " * 800_000}],
        ),
        # Ollama
        _ollama("messages that are a text for Ollama", messages="hi"),
        _ollama("6,000 messages for Ollama", messages=[{"role": "user", "content": "x"}] * 6000),
        _ollama("100 pictures", messages=[{"role": "user", "content": "x", "images": ["AAAA"] * 100}]),
        _ollama("a format that is a number", format=5),
        _ollama("penalties over 2^31 tokens for Ollama", FINE, options={"num_predict": 4, "repeat_last_n": 2**31 - 1}),
        _ollama("a format 60 deep for Ollama", format=_deep(25)),
        _ollama("options that are a list", options=[1]),
        _post("a template of one's own", OLLAMA_GENERATE, prompt="x", template="{{ .System }}"),
        _post("a context of a million numbers", OLLAMA_GENERATE, prompt="x", context=[1] * 900_000),
        # the page
        _lint("two megabytes of brackets", "{" * 2_000_000, EITHER),
        _lint("two megabytes of < in a stream", _CHUNK % ('{"index":0,"delta":{"content":"' + "<" * 2_000_000 + '"}}')),
        _lint("50,000 chunks", _MANY * 50_000),
        _lint("a line of three megabytes", "data: " + "x" * 3_000_000, EITHER),
        _lint("a million empty lines", "\n" * 10**6, frozenset((200, 400, 413))),
        _lint(
            "40,000 choices in one chunk",
            _CHUNK % ",".join(f'{{"index":{number},"delta":{{}}}}' for number in range(40_000)),
            EITHER,
        ),
        _lint("an endpoint that is none", "data: {}\n\n", REFUSED, endpoint="../../etc/passwd"),
        _post("a capture that is no base64", LINT, capture_base64="@@@@"),
        # models
        _post("a path to load", LOAD, UNKNOWN, model="../../../../etc/passwd"),
        _post("a list of models to load", LOAD, UNKNOWN, model=["a"] * 1000),
        _post("an address to load", LOAD, UNKNOWN, model="http://127.0.0.1:22/model.gguf"),
        # headers
        _header("a header of 100 KB", "X-Long", "x" * 100_000, HEADERS),
        _header("a key of 60 KB", "Authorization", "Bearer " + "k" * 60_000, HEADERS),
        _header("a name for the request of 7 KB", "x-request-id", "é" * 3_500, EITHER),
        _header("a name for the request with marks in it", "x-request-id", "a\x1b[31m\x7fb", EITHER),
        _header("a packed body", "Content-Encoding", "gzip", frozenset((400, 415))),
        _header("two kinds of key", "x-api-key", "another", frozenset((400, 401))),
        _header("a type of a body of 7 KB", "Content-Type", "application/" + "x" * 7_000, NOT_JSON),
        _header("a version of the API of 7 KB", "anthropic-version", "9" * 7_000, EITHER),
    )
