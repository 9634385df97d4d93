"""The recorded replies, and what the streams among them say, read as plainly as possible and by none of our code."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from welldone.rules.trace import Trace, read_trace

RECORDED = Path(__file__).parent


@dataclass(frozen=True)
class Recorded:
    """One recorded reply."""

    name: str
    note: str
    trace: Trace

    @property
    def is_stream(self) -> bool:
        return self.trace.body.startswith((b"data:", b"event:", b"error:"))


def recorded() -> list[Recorded]:
    """All of them, by name."""
    found = []
    for path in sorted(RECORDED.glob("*/*.json")):
        record = json.loads(path.read_text("utf-8"))
        trace = read_trace(record, path.with_suffix(".body").read_bytes())
        found.append(Recorded(f"{path.parent.name}/{path.stem}", record.get("note", ""), trace))
    return found


@dataclass
class Said:
    """What one stream says: by choice its text, calls and finish reason; its usage and error."""

    texts: dict[int, str]
    arguments: dict[tuple[int, int], str]
    finishes: dict[int, str]
    usage: list[int] | None = None
    error: str | None = None


def said(body: bytes) -> Said:
    """What `body` says."""
    heard = Said({}, {}, {})
    for line in body.decode("utf-8").splitlines():
        name, _, data = line.partition(":")
        if name == "error":
            heard.error = json.loads(data)["message"]
        elif name == "data" and data.strip() not in ("", "[DONE]", "null"):
            _add(heard, json.loads(data))
    return heard


def _add(heard: Said, chunk: dict[str, Any]) -> None:
    if chunk.get("error"):
        heard.error = chunk["error"]["message"]
    if chunk.get("usage"):
        names = ("prompt_tokens", "completion_tokens", "total_tokens")
        heard.usage = [chunk["usage"][name] for name in names]
    for choice in chunk.get("choices", []):
        index = choice.get("index", 0)
        delta = choice.get("delta") or {}
        heard.texts[index] = heard.texts.get(index, "") + (delta.get("content") or choice.get("text") or "")
        for call in delta.get("tool_calls") or []:
            key = index, call["index"]
            heard.arguments[key] = heard.arguments.get(key, "") + (call["function"].get("arguments") or "")
        if choice.get("finish_reason"):
            heard.finishes[index] = choice["finish_reason"]
