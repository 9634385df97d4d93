"""Streams of /v1/messages as Anthropic's server sends them, by its published types and its client libraries.

Each is a list of JSON events.
"""

from typing import Any

Json = dict[str, Any]

USAGE: Json = {
    "input_tokens": 472,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
    "output_tokens": 2,
    "service_tier": "standard",
    "inference_geo": "global",
}
PING: Json = {"type": "ping"}
END: Json = {"type": "message_stop"}


def start(content: list[Json] | None = None, **members: object) -> Json:
    """Start event of a message."""
    message = {"model": "claude-sonnet-4-5", "id": "msg_01", "type": "message", "role": "assistant"}
    rest = {"content": content or [], "stop_reason": None, "stop_sequence": None, "usage": USAGE, **members}
    return {"type": "message_start", "message": message | rest}


def block(index: int, value: Json, *deltas: Json) -> list[Json]:
    """Events of a block."""
    return [
        {"type": "content_block_start", "index": index, "content_block": value},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def text(index: int, *pieces: str) -> list[Json]:
    """Text block."""
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))


def thinking(index: int, *pieces: str) -> list[Json]:
    """Thinking block."""
    thinking_deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
    empty = {"type": "thinking", "thinking": "", "signature": ""}
    return block(index, empty, *thinking_deltas, {"type": "signature_delta", "signature": "EqQBCgIYAhIM"})


def typed(*pieces: str) -> list[Json]:
    """Input deltas of a tool; the first is empty."""
    return [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *pieces)]


def tool(index: int, kind: str, id: str, *pieces: str, **members: object) -> list[Json]:
    """Tool call block."""
    return block(index, {"type": kind, "id": id, "name": "get_weather", "input": {}, **members}, *typed(*pieces))


def end(reason: str, *, stop: str | None = None, more: Json | None = None, **delta: object) -> list[Json]:
    """Stop reason and end of a message."""
    stop_delta = {"stop_reason": reason, "stop_sequence": stop, **delta}
    return [{"type": "message_delta", "delta": stop_delta, "usage": {"output_tokens": 89}, **(more or {})}, END]


_FOUND = {
    "type": "web_search_result",
    "url": "https://example.com",
    "title": "t",
    "encrypted_content": "E",
    "page_age": None,
}
_CITED = {"type": "web_search_result_location", "url": "https://example.com", "title": "t", "cited_text": "c"}
_CITED |= {"encrypted_index": "i"}
_LIMIT = {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}
_RAN = {"type": "bash_code_execution_result", "stdout": "1", "stderr": "", "return_code": 0, "content": []}
_CONTAINER = {"id": "container_1", "expires_at": "2026-01-01T00:00:00Z"}
CALLED: Json = {"type": "tool_use", "id": "toolu_0", "name": "query", "input": {"sql": "select 1"}}
CALLED |= {"caller": {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}}
_EDITED = {"applied_edits": [{"type": "clear_tool_uses_20250919", "cleared_tool_uses": 2, "cleared_input_tokens": 9}]}
_MCP = {"server_name": "wiki"}


def _error(kind: str, message: str) -> Json:
    return {"type": "error", "error": {"details": None, "type": kind, "message": message}, "request_id": "req_1"}


STREAMS: dict[str, list[Json]] = {
    "text with a ping": [start(), *text(0)[:1], PING, *text(0, "Hello", "!")[1:], *end("end_turn")],
    "a ping before the first block": [start(), PING, *text(0, "Hi"), *end("stop_sequence", stop="END")],
    "thoughts between calls": [
        start(),
        *thinking(0, "Hm", "."),
        *text(1, "I look."),
        *tool(2, "tool_use", "toolu_1", '{"city": ', '"Rome"}', caller={"type": "direct"}),
        *thinking(3),
        *tool(4, "tool_use", "toolu_2"),
        *end("tool_use"),
    ],
    "thoughts that are hidden": [
        start(),
        *block(0, {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix"}),
        *text(1, "Hello."),
        *end("end_turn"),
    ],
    "a search with citations": [
        start(),
        *text(0),
        *tool(1, "server_tool_use", "srvtoolu_1", '{"query": "news"}'),
        *block(2, {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [_FOUND]}),
        *tool(3, "server_tool_use", "srvtoolu_2", '{"query": "more"}'),
        *block(4, {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_2", "content": _LIMIT}),
        *block(
            5,
            {"type": "text", "text": "", "citations": []},
            {"type": "citations_delta", "citation": _CITED},
            {"type": "text_delta", "text": "The news."},
        ),
        *end("end_turn", more={"usage": {"output_tokens": 9, "server_tool_use": {"web_search_requests": 2}}}),
    ],
    "a turn that pauses": [start(), *tool(0, "server_tool_use", "srvtoolu_1", '{"query": "a"}'), *end("pause_turn")],
    "code that runs on the server": [
        start(container=None, context_management=None),
        *tool(0, "server_tool_use", "srvtoolu_1", '{"command": "ls"}'),
        *block(1, {"type": "bash_code_execution_tool_result", "tool_use_id": "srvtoolu_1", "content": _RAN}),
        *block(2, {"type": "container_upload", "file_id": "file_1"}),
        *end("end_turn", container=_CONTAINER, stop_details=None, more={"context_management": _EDITED}),
    ],
    "a server of tools, its input at once": [
        start(),
        *block(0, {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "ask", "input": {"q": 1}, **_MCP}),
        *block(1, {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "is_error": False, "content": []}),
        *text(2, "Done."),
        *end("end_turn"),
    ],
    "a server of tools, its input in pieces": [
        start(),
        *tool(0, "mcp_tool_use", "mcptoolu_1", '{"q"', ": 1}", **_MCP),
        *end("end_turn"),
    ],
    "a refusal": [
        start(),
        *text(0, "I"),
        *end("refusal", stop_details={"type": "refusal", "category": "cyber", "explanation": "no"}),
    ],
    "nothing at all": [start(), *end("end_turn")],
    "a compaction": [
        start(),
        *block(0, {"type": "compaction", "content": None}, {"type": "compaction_delta", "content": "So far."}),
        *end("compaction", more={"usage": {"output_tokens": 9, "iterations": [{"type": "compaction"}]}}),
    ],
    "a context that is full": [start(), *text(0, "And"), *end("model_context_window_exceeded")],
    "a call that was cut": [start(), *tool(0, "tool_use", "toolu_1", '{"city": "Ro'), *end("max_tokens")],
    "unchecked input": [start(), *tool(0, "tool_use", "toolu_1", '{"city": Rome}'), *end("tool_use")],
    "a type of tomorrow": [
        start(),
        *block(0, {"type": "container_upload", "file_id": "f", "x": [1]}),
        *end("end_turn"),
    ],
    "metrics of a cloud": [
        start(),
        *text(0, "Hi"),
        end("end_turn")[0],
        END | {"amazon-bedrock-invocationMetrics": {"inputTokenCount": 5}},
    ],
    "a failure before the message": [_error("overloaded_error", "Overloaded")],
    "a failure in the middle": [start(), *text(0, "Hel")[:2], _error("api_error", "Internal server error")],
}
REQUESTS: dict[str, Json] = {
    "unchecked input": {"stream": True, "tools": [{"name": "get_weather", "eager_input_streaming": True}]}
}
RECORDED_RULES = {"unchecked input": ["msg-tool-input-json"]}
"""Rules that a repairer without the request records."""
