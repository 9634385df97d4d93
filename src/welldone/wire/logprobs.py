"""Log probabilities in the two shapes that clients know: chat's entries and completions' four lists."""

import math

from welldone.wire import faults
from welldone.wire.events import Json
from welldone.wire.notes import RepairLog

UNLIKELY_LOGPROB = -9999.0
"""OpenAI's own number for "very unlikely", where JSON has no minus infinity."""


def read_chat_logprobs(value: object, repair_log: RepairLog) -> Json | None:
    """`{content, refusal}` with whole entries; None where it is nothing of the kind."""
    if not isinstance(value, dict):
        repair_log.record(faults.ext.LOGPROBS_SHAPE, value)
        return None
    lists: Json = {}
    for key in ("content", "refusal"):
        entries = value.get(key)
        if key not in value or not (entries is None or isinstance(entries, list)):
            repair_log.record(faults.ext.LOGPROBS_SHAPE, value)
            entries = None
        lists[key] = None if entries is None else _read_entries(entries, repair_log)
    others = {key: item for key, item in value.items() if key not in lists}
    return lists | others


def _read_entries(entries: list[object], repair_log: RepairLog) -> list[Json]:
    """The entries that are tokens, each with all its members."""
    whole = []
    for entry in entries:
        fixed = _read_entry(entry, repair_log)
        if fixed is None:
            continue
        tops = fixed.get("top_logprobs")
        if not isinstance(tops, list):
            repair_log.record(faults.ext.LOGPROBS_ENTRY, entry)
            tops = []
        fixed["top_logprobs"] = [top for item in tops if (top := _read_entry(item, repair_log)) is not None]
        whole.append(fixed)
    return whole


def _read_entry(entry: object, repair_log: RepairLog) -> Json | None:
    """One token with its probability and bytes; what else it has stays. None where it is no token."""
    if not isinstance(entry, dict) or not isinstance(entry.get("token"), str):
        repair_log.record(faults.ext.LOGPROBS_ENTRY, entry)
        return None
    fixed = dict(entry)
    fixed["logprob"] = _finite_logprob(entry.get("logprob"), repair_log)
    raw = entry.get("bytes")
    if "bytes" not in entry or not (raw is None or isinstance(raw, list)):
        repair_log.record(faults.ext.LOGPROBS_ENTRY, entry)
        fixed["bytes"] = list(entry["token"].encode("utf-8", "replace"))
    return fixed


def _finite_logprob(value: object, repair_log: RepairLog) -> float:
    # An integer too large for a float is as little a probability as infinity is.
    is_number = isinstance(value, float) or (type(value) is int and abs(value) < 2**63)
    if is_number and math.isfinite(value):  # type: ignore[arg-type]  # is_number told
        return value  # type: ignore[return-value]  # as above
    repair_log.record(faults.ext.LOGPROBS_FINITE, value)
    return UNLIKELY_LOGPROB


def read_completions_logprobs(value: object, offset: int, repair_log: RepairLog) -> Json | None:
    """The four lists, of one length; chat's shape is turned into them. `offset` is where the chunk's text begins."""
    if not isinstance(value, dict):
        repair_log.record(faults.cmpl.LOGPROBS, value)
        return None
    if isinstance(value.get("content"), list):
        repair_log.record(faults.cmpl.LOGPROBS, value)
        return _chat_to_completions(_read_entries(value["content"], RepairLog()), offset)
    tokens = value.get("tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        repair_log.record(faults.cmpl.LOGPROBS, value)
        return None
    fixed = dict(value)
    empty = [None] * len(tokens)
    for key, fill in (
        ("token_logprobs", empty),
        ("top_logprobs", empty),
        ("text_offset", _text_offsets(tokens, offset)),
    ):
        items = value.get(key)
        if not isinstance(items, list) or len(items) != len(tokens):
            repair_log.record(faults.cmpl.LOGPROBS, value)
            fixed[key] = fill
    fixed["token_logprobs"] = [
        None if item is None else _finite_logprob(item, repair_log) for item in fixed["token_logprobs"]
    ]
    fixed["top_logprobs"] = [
        {key: _finite_logprob(number, repair_log) for key, number in item.items()} if isinstance(item, dict) else None
        for item in fixed["top_logprobs"]
    ]
    return fixed


def _chat_to_completions(entries: list[Json], offset: int) -> Json | None:
    if not entries:
        return None
    tokens = [entry["token"] for entry in entries]
    tops = [{top["token"]: top["logprob"] for top in entry["top_logprobs"]} for entry in entries]
    return {
        "tokens": tokens,
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": tops,
        "text_offset": _text_offsets(tokens, offset),
    }


def limit_top_logprobs(value: Json, limit: int) -> Json:
    """The same, with at most so many alternatives to each token; in either shape."""
    if "tokens" in value:
        # OpenAI: the token that was chosen is always among them, so that 0 alternatives are one entry.
        chosen = zip(value["tokens"], value.get("token_logprobs") or [], strict=False)
        if limit == 0:
            return value | {"top_logprobs": [None if worth is None else {token: worth} for token, worth in chosen]}
        tops = value.get("top_logprobs") or []
        return value | {"top_logprobs": [dict(list(top.items())[:limit]) if top else None for top in tops]}
    lists = {key: value[key] for key in ("content", "refusal") if value.get(key)}
    return value | {
        key: [entry | {"top_logprobs": entry["top_logprobs"][:limit]} for entry in entries]
        for key, entries in lists.items()
    }


def drop_leading_logprobs(value: Json, text: str) -> Json:
    """The same without the tokens before `text`, where a server has left out white space or a fence at the start."""
    entries = value.get("content") or []
    joined = "".join(entry["token"] for entry in entries)
    extra = len(joined) - len(text)
    if extra <= 0 or not joined.endswith(text):
        return value
    kept = []
    for entry in entries:
        token = entry["token"]
        if extra >= len(token):
            extra -= len(token)
            continue
        kept.append(entry | {"token": token[extra:], "bytes": list(token[extra:].encode())} if extra else entry)
        extra = 0
    return value | {"content": kept}


def truncate_logprobs(value: Json, count: int) -> Json:
    """The same for the first so many characters of its text; in either shape. A token that goes further is cut."""
    if "tokens" in value:
        tokens = _first_tokens(value["tokens"], count)
        lists = ("token_logprobs", "top_logprobs", "text_offset")
        return value | {"tokens": tokens} | {key: value[key][: len(tokens)] for key in lists}
    entries = value.get("content") or []
    tokens = _first_tokens([entry["token"] for entry in entries], count)
    kept = [
        entry if entry["token"] == token else entry | {"token": token, "bytes": list(token.encode())}
        for entry, token in zip(entries, tokens, strict=False)
    ]
    return value | {"content": kept}


def _first_tokens(tokens: list[str], count: int) -> list[str]:
    """Those that begin within the first so many characters."""
    return [
        token[: count - start] for token, start in zip(tokens, _text_offsets(tokens, 0), strict=True) if start < count
    ]


def _text_offsets(tokens: list[str], offset: int) -> list[int]:
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return offsets
