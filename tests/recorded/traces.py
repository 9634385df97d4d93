"""Recorded replies of real servers, and the content of the streams, read without code under test."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from welldone.rules.trace import Trace, read_trace

RECORDED = Path(__file__).parent


@dataclass(frozen=True)
class RecordedTrace:
    """Recorded reply of a server."""

    name: str
    note: str
    trace: Trace

    @property
    def is_stream(self) -> bool:
        return self.trace.body.startswith((b"data:", b"event:", b"error:"))


def recorded_traces() -> list[RecordedTrace]:
    """Return all recorded replies, ordered by name."""
    replies = []
    for path in sorted(RECORDED.glob("*/*.json")):
        record = json.loads(path.read_text("utf-8"))
        trace = read_trace(record, path.with_suffix(".body").read_bytes())
        replies.append(RecordedTrace(f"{path.parent.name}/{path.stem}", record.get("note", ""), trace))
    return replies


@dataclass
class StreamContent:
    """Text, call arguments and finish reason of each choice of a stream; its usage and error."""

    texts: dict[int, str]
    arguments: dict[tuple[int, int], str]
    finishes: dict[int, str]
    usage: list[int] | None = None
    error: str | None = None


def read_content(body: bytes) -> StreamContent:
    """Read the content of a stream."""
    content = StreamContent({}, {}, {})
    for line in body.decode("utf-8").splitlines():
        name, _, data = line.partition(":")
        if name == "error":
            content.error = json.loads(data)["message"]
        elif name == "data" and data.strip() not in ("", "[DONE]", "null"):
            _add(content, json.loads(data))
    return content


def _add(content: StreamContent, chunk: dict[str, Any]) -> None:
    if chunk.get("error"):
        content.error = chunk["error"]["message"]
    if chunk.get("usage"):
        names = ("prompt_tokens", "completion_tokens", "total_tokens")
        content.usage = [chunk["usage"][name] for name in names]
    for choice in chunk.get("choices", []):
        index = choice.get("index", 0)
        delta = choice.get("delta") or {}
        content.texts[index] = content.texts.get(index, "") + (delta.get("content") or choice.get("text") or "")
        for call in delta.get("tool_calls") or []:
            key = index, call["index"]
            content.arguments[key] = content.arguments.get(key, "") + (call["function"].get("arguments") or "")
        if choice.get("finish_reason"):
            content.finishes[index] = choice["finish_reason"]
