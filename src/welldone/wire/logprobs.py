"""Log probabilities in the two shapes that clients know: chat's entries and completions' four lists."""

import math
from collections.abc import Callable
from typing import Any

from welldone.wire import faults
from welldone.wire.events import Json
from welldone.wire.notes import Notes

UNLIKELY = -9999.0
"""OpenAI's own number for "very unlikely", where JSON has no minus infinity."""

_LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def read_chat(value: Any, notes: Notes) -> Json | None:
    """`{content, refusal}` with whole entries; None where it is nothing of the kind."""
    if not isinstance(value, dict):
        notes.note(faults.ext.LOGPROBS_SHAPE, value)
        return None
    lists: Json = {}
    for key in ("content", "refusal"):
        entries = value.get(key)
        if key not in value or not (entries is None or isinstance(entries, list)):
            notes.note(faults.ext.LOGPROBS_SHAPE, value)
            entries = None
        lists[key] = None if entries is None else _entries(entries, notes)
    others = {key: item for key, item in value.items() if key not in lists}
    return lists | others


def _entries(entries: list[Any], notes: Notes) -> list[Json]:
    whole = []
    for entry in entries:
        fixed = _entry(entry, notes)
        if fixed is None:
            notes.note(faults.ext.LOGPROBS_ENTRY, entry)
            continue
        if "top_logprobs" not in entry or not isinstance(entry["top_logprobs"], list):
            notes.note(faults.ext.LOGPROBS_ENTRY, entry)
        tops = entry.get("top_logprobs")
        tops = tops if isinstance(tops, list) else []
        fixed["top_logprobs"] = [top for top in (_entry(item, notes) for item in tops) if top is not None]
        whole.append(fixed)
    return whole


def _entry(entry: Any, notes: Notes) -> Json | None:
    """One token with its probability and bytes; what else it has stays."""
    if not isinstance(entry, dict) or not isinstance(entry.get("token"), str):
        return None
    fixed = dict(entry)
    fixed["logprob"] = _finite(entry.get("logprob"), notes)
    raw = entry.get("bytes")
    if "bytes" not in entry or not (raw is None or isinstance(raw, list)):
        notes.note(faults.ext.LOGPROBS_ENTRY, entry)
        fixed["bytes"] = list(entry["token"].encode("utf-8", "replace"))
    return fixed


def _finite(value: Any, notes: Notes) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return value
    notes.note(faults.ext.LOGPROBS_FINITE, value)
    return UNLIKELY


def read_completions(value: Any, offset: int, notes: Notes) -> Json | None:
    """The four lists, of one length; chat's shape is turned into them. `offset` is where the chunk's text begins."""
    if not isinstance(value, dict):
        notes.note(faults.cmpl.LOGPROBS, value)
        return None
    if isinstance(value.get("content"), list):
        notes.note(faults.cmpl.LOGPROBS, value)
        return _from_chat(_entries(value["content"], Notes()), offset)
    tokens = value.get("tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        notes.note(faults.cmpl.LOGPROBS, value)
        return None
    fill: dict[str, Callable[[], list[Any]]] = {
        "token_logprobs": lambda: [None] * len(tokens),
        "top_logprobs": lambda: [None] * len(tokens),
        "text_offset": lambda: _offsets(tokens, offset),
    }
    fixed = dict(value)
    for key, make in fill.items():
        items = value.get(key)
        if not isinstance(items, list) or len(items) != len(tokens):
            notes.note(faults.cmpl.LOGPROBS, value)
            fixed[key] = make()
    fixed["token_logprobs"] = [None if item is None else _finite(item, notes) for item in fixed["token_logprobs"]]
    fixed["top_logprobs"] = [
        {key: _finite(number, notes) for key, number in item.items()} if isinstance(item, dict) else None
        for item in fixed["top_logprobs"]
    ]
    return fixed


def _from_chat(entries: list[Json], offset: int) -> Json | None:
    if not entries:
        return None
    tokens = [entry["token"] for entry in entries]
    tops = [{top["token"]: top["logprob"] for top in entry["top_logprobs"]} for entry in entries]
    return {
        "tokens": tokens,
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": tops,
        "text_offset": _offsets(tokens, offset),
    }


def _offsets(tokens: list[str], offset: int) -> list[int]:
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return offsets
