"""Streams of the Messages API for tests of their repair."""

import json
from pathlib import Path

from tests.protocol.build import rules
from welldone.core.envelope import Envelope
from welldone.core.events import Json
from welldone.core.request_facts import RepairOptions
from welldone.dialects.messages.repair import MessagesRepairer

OURS = Envelope("msg_ours", 1700000000, "ours")
RECORDED = Path(__file__).parent.parent / "recorded_dialects"
USAGE: Json = {"input_tokens": 5, "output_tokens": 1}
MESSAGE: Json = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "content": [],
    "model": "m",
    "stop_reason": None,
    "stop_sequence": None,
    "usage": USAGE,
}
START: Json = {"type": "message_start", "message": MESSAGE}
DELTA: Json = {
    "type": "message_delta",
    "delta": {"stop_reason": "end_turn", "stop_sequence": None},
    "usage": {"output_tokens": 3},
}
END: Json = {"type": "message_stop"}
CUT = "event: error"


def block_start(index: object, kind: str = "text", **members: object) -> Json:
    """Return content_block_start."""
    own: Json = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}}.get(kind, {})
    if kind.endswith("tool_use"):
        own = {"id": f"toolu_{index}", "name": "get", "input": {}}
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **own, **members}}


def block_delta(index: object, text: object, kind: str = "text_delta", member: str = "text") -> Json:
    """Return content_block_delta."""
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, member: text}}


def thinking_delta(index: object, text: str) -> Json:
    return block_delta(index, text, "thinking_delta", "thinking")


def input_delta(index: object, text: object) -> Json:
    return block_delta(index, text, "input_json_delta", "partial_json")


def signature_delta(index: object, text: str = "s") -> Json:
    return block_delta(index, text, "signature_delta", "signature")


def citation_delta(index: object, cited: object) -> Json:
    return block_delta(index, cited, "citations_delta", "citation")


def block_stop(index: object) -> Json:
    """Return content_block_stop."""
    return {"type": "content_block_stop", "index": index}


def message_delta(reason: object, **members: object) -> Json:
    """Return message_delta."""
    return {**DELTA, "delta": {"stop_reason": reason, "stop_sequence": None, **members}}


TOOL_USE = message_delta("tool_use")
TEXT = [block_start(0), block_delta(0, "a"), block_stop(0)]


def frame(value: Json, name: str | None = None) -> bytes:
    """Encode an event; its name is its type by default."""
    name = value["type"] if name is None else name
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(value).encode() + b"\n\n"


def stream(*parts: Json | bytes) -> bytes:
    """Encode events; bytes are kept."""
    return b"".join(part if isinstance(part, bytes) else frame(part) for part in parts)


class RepairedStream:
    """A stream after repair."""

    def __init__(self, *parts: Json | bytes, model: str | None = None, strict: frozenset[str] = frozenset()) -> None:
        self.repairer = MessagesRepairer(fallback=OURS, model=model)
        self.repairer.configure(0, RepairOptions(strict=strict))
        self.body = self.repairer.feed(stream(*parts)) + self.repairer.close()
        self.values = [json.loads(part.split("data: ")[1]) for part in self.body.decode().split("\n\n")[:-1]]
        self.rules = rules(self.repairer.repair_log)


def check_blocks(parts: list[Json], expected: list[Json], *logged: str) -> None:
    """Check the repair of block events within a correct message."""
    called = any(value.get("content_block", {}).get("type") == "tool_use" for value in expected)
    end = TOOL_USE if called else DELTA
    repaired = RepairedStream(START, *parts, end, END)
    assert repaired.values == [START, *expected, end, END]
    assert repaired.rules == sorted(logged)


OTHERS: list[list[Json]] = [
    [block_start(0, "thinking"), thinking_delta(0, "hm"), signature_delta(0), block_stop(0)],
    [block_start(0, "redacted_thinking", data="x"), block_stop(0)],
    [block_start(0, citations=[]), block_delta(0, "a"), citation_delta(0, {"type": "x"}), block_stop(0)],
    [
        block_start(0, "server_tool_use"),
        input_delta(0, ""),
        input_delta(0, '{"q":1}'),
        block_stop(0),
        block_start(1, "x_tool_result", content=[]),
        block_stop(1),
    ],
    [block_start(0, "tool_use", caller={"type": "direct"}), block_stop(0)],
    [block_start(0, "compaction", content=None), block_delta(0, "all", "compaction_delta", "content"), block_stop(0)],
    [{**block_start(0), "x": 1}, {**block_delta(0, "a"), "y": 2}, {**block_stop(0), "z": 3}],
]


def error(kind: str, message: str = "no", **more: object) -> Json:
    """Return an error event."""
    return {"type": "error", "error": {"type": kind, "message": message}, **more}
