"""Streams of /v1/responses as OpenAI's server sends them, by its published types and its client libraries.

Each is a list of JSON events.
"""

import json
from typing import Any

Json = dict[str, Any]
Item = tuple[Json, list[Json], Json]
"""Item as added, its events, and the item as done."""

RESPONSE: Json = {
    "id": "resp_0a1",
    "object": "response",
    "created_at": 1760000000,
    "status": "in_progress",
    "background": False,
    "completed_at": None,
    "error": None,
    "frequency_penalty": 0.0,
    "incomplete_details": None,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "model": "gpt-5-2025-08-07",
    "output": [],
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "prompt_cache_retention": None,
    "reasoning": {"effort": "medium", "summary": "detailed"},
    "safety_identifier": None,
    "service_tier": "auto",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "usage": None,
    "user": None,
    "metadata": {},
}
USAGE: Json = {
    "input_tokens": 75,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 30,
    "output_tokens_details": {"reasoning_tokens": 20},
    "total_tokens": 105,
}
PADDING = {"obfuscation": "aB3xYz"}


def make_event(kind: str, **members: object) -> Json:
    """Event without its sequence number."""
    return {"type": f"response.{kind}", **members}


def numbered(events: list[Json]) -> list[Json]:
    """Events with sequence numbers."""
    return [{"type": event["type"], "sequence_number": number, **event} for number, event in enumerate(events)]


def answer(*items: Item, status: str = "completed", final: list[Json] | None = None, **members: object) -> list[Json]:
    """Stream of an answer with these items. `final`: the output at the end, if it differs."""
    events = [make_event("created", response=RESPONSE), make_event("in_progress", response=RESPONSE)]
    for index, (added, about, done) in enumerate(items):
        events.append(make_event("output_item.added", output_index=index, item=added))
        events += [event | {"output_index": index} for event in about]
        events.append(make_event("output_item.done", output_index=index, item=done))
    output = [done for _, _, done in items] if final is None else final
    ended = {"status": status, "service_tier": "default", "completed_at": 1760000009, "usage": USAGE, "output": output}
    return numbered([*events, make_event(status, response=RESPONSE | ended | members)])


def part(stem: str, kind: str, item_id: str, text: str, index: int = 0, **members: object) -> tuple[list[Json], Json]:
    """Events of a part of an item, and the part as done."""
    slot = "summary" if kind == "summary_text" else "content"
    member = "refusal" if kind == "refusal" else "text"
    address = {"item_id": item_id, f"{slot}_index": index}
    logprobs: Json = {"logprobs": []} if kind == "output_text" else {}
    empty: Json = {"type": kind, member: ""} | ({"annotations": [], **logprobs} if logprobs else {})
    done = empty | {member: text} | members
    parts = "reasoning_summary_part" if slot == "summary" else "content_part"
    half = len(text) // 2
    events = [
        make_event(f"{parts}.added", **address, part=empty),
        *(
            make_event(f"{stem}.delta", **address, delta=piece, **logprobs, **PADDING)
            for piece in (text[:half], text[half:])
        ),
        *(
            make_event("output_text.annotation.added", **address, annotation_index=number, annotation=annotation)
            for number, annotation in enumerate(done.get("annotations", []))
        ),
        make_event(f"{stem}.done", **address, **{member: text}, **logprobs),
        make_event(f"{parts}.done", **address, part=done),
    ]
    return events, done


def message(id: str, *parts: tuple[list[Json], Json], status: str = "completed", **members: object) -> Item:
    """Message item."""
    item: Json = {"id": id, "type": "message", "status": "in_progress", "content": [], "role": "assistant", **members}
    done = item | {"status": status, "content": [part for _, part in parts]}
    return item, [event for events, _ in parts for event in events], done


def text(id: str, content: str, index: int = 0, **members: object) -> tuple[list[Json], Json]:
    """Text part."""
    return part("output_text", "output_text", id, content, index, **members)


def steps(kind: str, id: str, *names: str) -> list[Json]:
    """Progress events of a server tool."""
    return [make_event(f"{kind}.{name}", item_id=id) for name in names]


def typed(stem: str, id: str, member: str, *pieces: str, **members: object) -> list[Json]:
    """Input of a tool: deltas and the done event."""
    deltas = [make_event(f"{stem}.delta", item_id=id, delta=piece, **PADDING) for piece in pieces]
    return [*deltas, make_event(f"{stem}.done", item_id=id, **{member: "".join(pieces)}, **members)]


def hosted(kind: str, id: str, events: list[Json], first: Json, last: Json) -> Item:
    """Item of a server tool."""
    return {"id": id, "type": kind, **first}, events, {"id": id, "type": kind, **first, **last}


def call(id: str, call_id: str, *pieces: str, **members: object) -> Item:
    """Function call. OpenAI's libraries differ on whether the done event of the arguments has the name."""
    item: Json = {"id": id, "type": "function_call", "status": "in_progress", "arguments": "", "call_id": call_id}
    item |= {"name": "get_weather", **members}
    events = typed("function_call_arguments", id, "arguments", *pieces, name="get_weather")
    return item, events, item | {"status": "completed", "arguments": "".join(pieces)}


REASONING: Json = {"id": "rs_1", "type": "reasoning", "encrypted_content": "gAAAAfirst", "summary": []}
_SUMMARIES = [
    part("reasoning_summary_text", "summary_text", "rs_1", content, index)
    for index, content in enumerate(("**Looking**\n\nFirst.", "**Deciding**\n\nThen."))
]
THINKING: Item = (
    REASONING,
    [event for events, _ in _SUMMARIES for event in events],
    REASONING | {"encrypted_content": "gAAAAlonger", "summary": [done for _, done in _SUMMARIES]},
)
BARE_REASONING: Item = (
    {"id": "rs_0", "type": "reasoning", "summary": []},
    [],
    {"id": "rs_0", "type": "reasoning", "summary": []},
)
_CITED = {"type": "url_citation", "start_index": 0, "end_index": 4, "title": "News", "url": "https://example.com/a"}
SEARCH = hosted(
    "web_search_call",
    "ws_1",
    steps("web_search_call", "ws_1", "in_progress", "searching", "completed"),
    {"status": "in_progress"},
    {"status": "completed", "action": {"type": "search", "query": "news", "sources": [{"type": "url", "url": "u"}]}},
)
CUSTOM = hosted(
    "custom_tool_call",
    "ctc_1",
    typed("custom_tool_call_input", "ctc_1", "input", "print(", "1)"),
    {"status": "in_progress", "call_id": "call_c", "input": "", "name": "python"},
    {"status": "completed", "input": "print(1)"},
)
_MORE_IMAGE = {"background": "opaque", "output_format": "png", "quality": "high", "size": "1024x1024"}
_PICTURE = {"status": "generating", **_MORE_IMAGE, "result": "iVBORw0KGgo=", "revised_prompt": "A cat."}
IMAGE = hosted(
    "image_generation_call",
    "ig_1",
    [
        *steps("image_generation_call", "ig_1", "in_progress", "generating"),
        make_event(
            "image_generation_call.partial_image",
            item_id="ig_1",
            partial_image_index=0,
            partial_image_b64="iVBORw0KGgo=",
            **_MORE_IMAGE,
        ),
        *steps("image_generation_call", "ig_1", "completed"),
    ],
    {"status": "in_progress"},
    _PICTURE,
)
_CALLED: Json = {"approval_request_id": None, "error": None, "name": "ask", "output": None, "server_label": "wiki"}
MCP = (
    hosted(
        "mcp_list_tools",
        "mcpl_1",
        steps("mcp_list_tools", "mcpl_1", "in_progress", "completed"),
        {"server_label": "wiki", "tools": []},
        {"tools": [{"name": "ask", "input_schema": {"type": "object"}, "description": None, "annotations": None}]},
    ),
    hosted(
        "mcp_call",
        "mcp_1",
        [
            *steps("mcp_call", "mcp_1", "in_progress"),
            *typed("mcp_call_arguments", "mcp_1", "arguments", '{"q":1}'),
            *steps("mcp_call", "mcp_1", "completed"),
        ],
        {"arguments": "", **_CALLED},
        {"arguments": '{"q":1}', "output": "It is one."},
    ),
    hosted("mcp_approval_request", "mcpr_1", [], {"arguments": '{"q":2}', "name": "ask", "server_label": "wiki"}, {}),
)
CODE = hosted(
    "code_interpreter_call",
    "ci_1",
    [
        *steps("code_interpreter_call", "ci_1", "in_progress"),
        *typed("code_interpreter_call_code", "ci_1", "code", "1", "+1"),
        *steps("code_interpreter_call", "ci_1", "interpreting", "completed"),
    ],
    {"status": "in_progress", "code": "", "container_id": "cntr_1", "outputs": None},
    {"status": "completed", "code": "1+1", "outputs": [{"type": "logs", "logs": "2"}]},
)
FILES = hosted(
    "file_search_call",
    "fs_1",
    steps("file_search_call", "fs_1", "in_progress", "searching", "completed"),
    {"status": "in_progress", "queries": [], "results": None},
    {"status": "completed", "queries": ["q"], "results": [{"file_id": "file-1", "text": "found", "score": 0.9}]},
)
_FILE: Json = {"type": "container_file_citation", "container_id": "cntr_1", "file_id": "cfile_1", "filename": "a.png"}
_FILE |= {"start_index": 0, "end_index": 3}
_OUTPUT = [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
LOCAL_TOOLS = (
    hosted(
        "shell_call",
        "sh_1",
        [
            make_event("shell_call_command.added", command_index=0, command=""),
            make_event("shell_call_command.delta", command_index=0, delta="ls", **PADDING),
            make_event("shell_call_command.done", command_index=0, command="ls"),
        ],
        {"status": "in_progress", "call_id": "call_s", "action": {"commands": []}, "environment": None},
        {"status": "completed", "action": {"commands": ["ls"], "timeout_ms": None, "max_output_length": None}},
    ),
    hosted(
        "shell_call_output",
        "sho_1",
        [
            make_event("shell_call_output_content.delta", item_id="sho_1", command_index=0, delta={"stdout": "a"}),
            make_event("shell_call_output_content.done", item_id="sho_1", command_index=0, output=_OUTPUT),
        ],
        {"status": "in_progress", "call_id": "call_s", "output": []},
        {"status": "completed", "output": _OUTPUT},
    ),
    hosted(
        "apply_patch_call",
        "apc_1",
        typed("apply_patch_call_operation_diff", "apc_1", "diff", "+a", "+b"),
        {"status": "in_progress", "call_id": "call_p", "operation": {"type": "create_file", "path": "a", "diff": ""}},
        {"status": "completed", "operation": {"type": "create_file", "path": "a", "diff": "+a+b"}},
    ),
    hosted(
        "computer_call",
        "cu_1",
        [],
        {"status": "in_progress", "call_id": "call_u", "action": {"type": "screenshot"}, "pending_safety_checks": []},
        {"status": "completed"},
    ),
    hosted(
        "local_shell_call",
        "lsh_1",
        [],
        {"status": "in_progress", "call_id": "call_l", "action": {"type": "exec", "command": ["ls"], "env": {}}},
        {"status": "completed"},
    ),
    hosted(
        "tool_search_call",
        "tsc_1",
        [],
        {"status": "in_progress", "call_id": None, "execution": "server", "arguments": {}},
        {"status": "completed", "arguments": {"paths": ["a"]}},
    ),
    hosted(
        "tool_search_output",
        "tso_1",
        [],
        {"status": "completed", "call_id": None, "execution": "server", "tools": [{"type": "function", "name": "a"}]},
        {},
    ),
    hosted("program", "prg_1", [], {"call_id": "call_g", "code": "1", "fingerprint": "f"}, {}),
    hosted("program_output", "pro_1", [], {"status": "completed", "call_id": "call_g", "result": "1"}, {}),
    # An unknown type whose content is not streamed.
    hosted("tomorrow", "to_1", [], {"status": "completed", "content": [{"type": "text", "text": "all at once"}]}, {}),
    hosted(
        "compaction",
        "cmp_1",
        [make_event("compaction.compacting", item_id="cmp_1")],
        {"encrypted_content": ""},
        {"encrypted_content": "gAAAA"},
    ),
)


def failed(*before: Json) -> list[Json]:
    """Stream of a failed answer."""
    error = {"code": "server_error", "message": "The model failed."}
    events = [make_event("created", response=RESPONSE), make_event("in_progress", response=RESPONSE), *before]
    return numbered([*events, make_event("failed", response=RESPONSE | {"status": "failed", "error": error})])


def background() -> list[Json]:
    """Stream of a background answer that was queued."""
    waiting = RESPONSE | {"status": "queued", "background": True}
    running = waiting | {"status": "in_progress"}
    item, events, done = message("msg_1", text("msg_1", "Late."))
    ended = running | {"status": "completed", "usage": USAGE, "output": [done]}
    return numbered(
        [
            make_event("created", response=waiting),
            make_event("queued", response=waiting),
            make_event("in_progress", response=running),
            {"type": "keepalive"},
            make_event("output_item.added", output_index=0, item=item),
            {"type": "keepalive"},
            *(event | {"output_index": 0} for event in events),
            make_event("output_item.done", output_index=0, item=done),
            make_event("completed", response=ended),
        ]
    )


_ERROR = {"code": "server_error", "message": "The model failed.", "param": None}
_CUT = message("msg_1", text("msg_1", "Once upon"), status="incomplete")
_DRAWN = {"id": "ig_1", "type": "image_generation_call", **_PICTURE, "status": "completed"}

STREAMS: dict[str, list[Json]] = {
    "reasoning with summaries": answer(THINKING, message("msg_1", text("msg_1", "Hello."))),
    "a function after hidden reasoning": answer(
        BARE_REASONING, call("fc_1", "call_1", '{"city"', ':"Rome"}'), call("fc_2", "call_2", "{}", namespace="crm")
    ),
    "a search, with what it found": answer(
        BARE_REASONING,
        SEARCH,
        message("msg_0", text("msg_0", "I looked."), phase="commentary"),
        message("msg_1", text("msg_1", "News of the day.", annotations=[_CITED]), phase="final_answer"),
    ),
    "a custom tool": answer(CUSTOM),
    "an image": answer(IMAGE, message("msg_1"), final=[_DRAWN, message("msg_1")[2]]),
    "a server of tools": answer(*MCP),
    "code and files": answer(CODE, FILES, message("msg_1", text("msg_1", "See it.", annotations=[_FILE]))),
    "tools of all kinds": answer(*LOCAL_TOOLS),
    "a refusal": answer(message("msg_1", part("refusal", "refusal", "msg_1", "I cannot."))),
    "text and a refusal in one message": answer(
        message("msg_1", text("msg_1", "Well."), part("refusal", "refusal", "msg_1", "No.", 1))
    ),
    "an answer that was cut": answer(
        _CUT, status="incomplete", incomplete_details={"reason": "max_output_tokens"}, completed_at=None
    ),
    "an answer that was cut in its thoughts": answer(
        BARE_REASONING, status="incomplete", incomplete_details={"reason": "max_output_tokens"}, completed_at=None
    ),
    "thoughts in full": answer(
        (
            {"id": "rs_1", "type": "reasoning", "summary": [], "content": []},
            part("reasoning_text", "reasoning_text", "rs_1", "Hm, so.")[0],
            {
                "id": "rs_1",
                "type": "reasoning",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "Hm, so."}],
            },
        )
    ),
    "an answer of the background": background(),
    "a failure": failed(),
    "a failure with an error event": failed({"type": "error", **_ERROR}),
    "a failure with an error event of the other shape": failed(
        {"type": "error", "error": {"type": "server_error", **_ERROR}}
    ),
}


def frames(events: list[Json]) -> bytes:
    """Bytes of a stream."""
    lines = ((event["type"], json.dumps(event, separators=(",", ":"))) for event in events)
    return b"".join(f"event: {name}\ndata: {data}\n\n".encode() for name, data in lines)
