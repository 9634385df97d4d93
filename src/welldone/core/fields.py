"""Readers of usage, error and log probability objects in the shapes that servers send."""

import math
import re
from itertools import accumulate

from welldone.core.events import Failure, Json, Usage
from welldone.core.lenient_json import clean_unicode, parse_strict, scrub_json, scrub_object
from welldone.core.repair_log import RepairLog, format_json, is_empty

# Usage. Missing counts are computed from the others, or usage is dropped; counts are never guessed.

_MAX_COUNT = 2**53  # largest integer that all JSON clients represent exactly
_COUNT_FIELDS = ("prompt_tokens", "completion_tokens", "total_tokens")
_DETAIL_FIELDS = frozenset({"prompt_tokens_details", "completion_tokens_details"})


def read_usage(usage: Json, repair_log: RepairLog) -> Usage | None:
    """Read a usage object with all its members; None if a count is missing and cannot be computed."""
    counts = [parse_count(usage.get(name)) for name in _COUNT_FIELDS]
    prompt, completion, total = counts
    if prompt is None and completion is not None and total is not None:
        prompt = total - completion
    if completion is None and prompt is not None and total is not None:
        completion = total - prompt
    if None in counts or any(type(usage.get(name)) is not int for name in _COUNT_FIELDS):
        repair_log.record("use-ints", usage)
    if prompt is None or completion is None or prompt < 0 or completion < 0:
        return None
    if total is not None and total != prompt + completion:
        repair_log.record("use-total-sum", usage)
    if total is None or total < max(prompt, completion):
        total = prompt + completion
    extra_fields = {key: value for key, value in usage.items() if key not in _COUNT_FIELDS}
    for key in _DETAIL_FIELDS & extra_fields.keys():
        details = usage[key]
        extra_fields[key] = _fix_details(details)
        if not isinstance(details, dict) or any(type(count) is not int for count in details.values()):
            repair_log.record("use-details", {key: details})
    return Usage(prompt, completion, total, extra_fields)


def usage_from_timings(timings: Json) -> Usage | None:
    """Read the counts of llama.cpp's `timings`, which it can send with each token; None if one is missing."""
    uncached, cached, completion = (parse_count(timings.get(name)) for name in ("prompt_n", "cache_n", "predicted_n"))
    if uncached is None or cached is None or completion is None:
        return None
    prompt = cached + uncached
    return Usage(prompt, completion, prompt + completion, {"prompt_tokens_details": {"cached_tokens": cached}})


def usage_object(usage: Usage) -> Json:
    """Return the usage object of OpenAI's API."""
    return {name: getattr(usage, name) for name in _COUNT_FIELDS} | usage.extra_fields


def usage_detail(usage: Usage, group: str, name: str) -> int | None:
    """Return one of the counts beside the totals; None if it is unknown."""
    details = usage.extra_fields.get(group)
    count = details.get(name) if isinstance(details, dict) else None
    return count if type(count) is int and count >= 0 else None


def unread_usage(value: object) -> Json:
    """Return the field of this package for a usage, or counts of it, that cannot be read; none if it is empty."""
    return {} if is_empty(value) else {"unreadable_usage": scrub_json(value)}


def is_placeholder_usage(usage: Usage) -> bool:
    """Whether both counts are 0, which no real request has."""
    return usage.prompt_tokens == usage.completion_tokens == 0


def parse_count(value: object) -> int | None:
    """Read a count, which may be a string or a float; None if it is none."""
    if type(value) is int or (isinstance(value, float) and value.is_integer()):
        return int(value) if 0 <= value < _MAX_COUNT else None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < len(str(_MAX_COUNT)):
        return int(value)
    return None


def _fix_details(value: object) -> object:
    """Convert counts of a details object from strings to integers."""
    if not isinstance(value, dict):
        return value
    return {
        key: count if isinstance(item, str) and (count := parse_count(item)) is not None else item
        for key, item in value.items()
    }


# Errors, in any shape, as a `Failure`.

_ERROR_FIELDS = ("message", "type", "param", "code")
RULE_BROKEN_CODE = "upstream_rule_broken"
"""Error code of a stream that violates a rule configured as strict."""
_ERROR_START = re.compile(rb'\{\s*"(?:error"\s*:|type"\s*:\s*"error")')


def read_error(chunk: Json, data: bytes, repair_log: RepairLog) -> Failure | None:
    """Read the error of a JSON object, nested or flat; None if there is none."""
    error = chunk.get("error")
    if has_error(chunk):
        repair_log.record_if("choices" in chunk, "err-not-with-choices", chunk)
        has_message = isinstance(error, dict) and isinstance(error.get("message"), str)
        repair_log.record_if(not has_message or not data.startswith(b'{"error":'), "err-midstream-event", chunk)
        check_error_shape(error, repair_log)
        return _to_failure(error if isinstance(error, dict) else {"message": error})
    is_flat = chunk.get("object") == "error" or chunk.keys() == {"detail"}
    has_message = isinstance(chunk.get("message"), str) and any(key in chunk for key in ("code", "type", "status"))
    if "choices" in chunk or not (is_flat or has_message):
        return None
    repair_log.record("err-not-object-error", chunk)
    if "detail" in chunk and "message" not in chunk:
        return _to_failure({"message": chunk["detail"]})
    return _to_failure({key: value for key, value in chunk.items() if key != "object"})


def find_error(data: bytes) -> list[object]:
    """Return the error object at the end of data that is no JSON, which follows an event without its end.

    sub2api does so when its own upstream breaks off (Wei-Shaw/sub2api#1471).
    """
    match = _ERROR_START.search(data)
    value = parse_strict(data[match.start() :].strip()) if match else None
    return [value] if isinstance(value, dict) and read_error(value, b"", RepairLog()) else []


def has_error(chunk: Json) -> bool:
    """Whether an object has an `error` that is not empty. An empty one counts only without other members."""
    error = chunk.get("error")
    if error is None:
        return False
    is_empty = not any(error.values()) if isinstance(error, dict) else not error
    return not is_empty or chunk.get("type") == "error" or chunk.keys() == {"error"}


def openai_error_object(failure: Failure) -> Json:
    """Return an error in OpenAI's format. `error` comes first: some clients test the start of the data for it."""
    error = {"message": failure.message, "type": failure.type, "param": failure.param, "code": failure.code}
    return {"error": error | failure.extra_fields}


def bad_stream_failure(content: str) -> Failure:
    """Failure of an upstream that sent `content`, which cannot be read."""
    return Failure(f"the server sent {content}", type="upstream_error", code="bad_upstream_stream")


def incomplete_stream_failure(message: str) -> Failure:
    """Failure of an upstream that ended before the answer was complete."""
    return Failure(message, type="upstream_error", code="incomplete_stream")


BROKEN_OFF = incomplete_stream_failure("the server's stream ended before the answer was complete")
UNFINISHED = incomplete_stream_failure("the server's answer ended without a finish_reason")
"""Failure of an upstream that ended an answer normally, as far as can be seen, but without a finish reason."""


def broken_rule_failure(repair_log: RepairLog) -> Failure | None:
    """Failure of an upstream that sent content which cannot be read, or violated a rule configured as strict."""
    rule = repair_log.broken_rule
    if rule is None:
        return None
    if repair_log.lost is not None:
        return bad_stream_failure(f"content that cannot be read, against the rule {rule}: {repair_log.lost}")
    return Failure(f"The upstream violated the rule {rule}, which is configured as strict.", code=RULE_BROKEN_CODE)


def check_error_shape(error: object, repair_log: RepairLog) -> None:
    """Record where an error object differs from OpenAI's shape."""
    if not isinstance(error, dict) or any(key not in error for key in _ERROR_FIELDS):
        repair_log.record("err-body-shape", error)
    if isinstance(error, dict) and not isinstance(error.get("code"), str | None):
        repair_log.record("err-code-string", error.get("code"))


def _optional_text(value: object) -> str | None:
    if value is None:
        return None
    return clean_unicode(value) if isinstance(value, str) else format_json(value)


def _to_failure(error: Json) -> Failure:
    message, error_type, param, code = (_optional_text(error.get(key)) for key in _ERROR_FIELDS)
    others = scrub_object({key: value for key, value in error.items() if key not in _ERROR_FIELDS})
    return Failure(message or "unknown error", error_type or "server_error", param, code, others)


# Log probabilities, in the shape of chat (entries) and of completions (four lists).

UNLIKELY_LOGPROB = -9999.0
"""OpenAI's value for "very unlikely"; JSON has no minus infinity."""


def read_chat_logprobs(value: object, repair_log: RepairLog) -> Json | None:
    """Read `{content, refusal}` and complete the entries; None if `value` is not an object."""
    if not isinstance(value, dict):
        repair_log.record("ext-logprobs-shape", value)
        return None
    lists: Json = {}
    for key in ("content", "refusal"):
        entries = value.get(key)
        if key not in value or not (entries is None or isinstance(entries, list)):
            repair_log.record("ext-logprobs-shape", value)
            entries = None
        lists[key] = None if entries is None else _read_entries(entries, repair_log)
    others = {key: item for key, item in value.items() if key not in lists}
    return lists | others


def _read_entries(entries: list[object], repair_log: RepairLog) -> list[Json]:
    """Complete the entries; those without a token are dropped."""
    complete = []
    for entry in entries:
        fixed = _read_entry(entry, repair_log)
        if fixed is None:
            continue
        tops = fixed.get("top_logprobs")
        if not isinstance(tops, list):
            repair_log.record("ext-logprobs-entry", entry)
            tops = []
        fixed["top_logprobs"] = [top for item in tops if (top := _read_entry(item, repair_log)) is not None]
        complete.append(fixed)
    return complete


def _read_entry(entry: object, repair_log: RepairLog) -> Json | None:
    """Complete logprob and bytes of an entry; None if it has no token."""
    if not isinstance(entry, dict) or not isinstance(entry.get("token"), str):
        repair_log.record("ext-logprobs-entry", entry)
        return None
    fixed = dict(entry)
    fixed["logprob"] = _finite_logprob(entry.get("logprob"), repair_log)
    raw = entry.get("bytes")
    if "bytes" not in entry or not (raw is None or isinstance(raw, list)):
        repair_log.record("ext-logprobs-entry", entry)
        fixed["bytes"] = list(entry["token"].encode("utf-8", "replace"))
    return fixed


def _finite_logprob(value: object, repair_log: RepairLog) -> float:
    # math.isfinite raises on an integer that is too large for a float.
    is_number = isinstance(value, float) or (type(value) is int and abs(value) < 2**63)
    if is_number and math.isfinite(value):  # type: ignore[arg-type]  # is_number checked it
        return value  # type: ignore[return-value]  # as above
    repair_log.record("ext-logprobs-finite", value)
    return UNLIKELY_LOGPROB


def read_completions_logprobs(value: object, offset: int, repair_log: RepairLog) -> Json | None:
    """Read the four lists, of equal length, or convert chat's shape. `offset`: start of the chunk's text."""
    if not isinstance(value, dict):
        repair_log.record("cmpl-logprobs", value)
        return None
    if isinstance(value.get("content"), list):
        repair_log.record("cmpl-logprobs", value)
        return _chat_to_completions(_read_entries(value["content"], RepairLog()), offset)
    tokens = value.get("tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        repair_log.record("cmpl-logprobs", value)
        return None
    fixed = dict(value)
    empty = [None] * len(tokens)
    fills = {"token_logprobs": empty, "top_logprobs": empty, "text_offset": _text_offsets(tokens, offset)}
    for key, fill in fills.items():
        items = value.get(key)
        if not isinstance(items, list) or len(items) != len(tokens):
            repair_log.record("cmpl-logprobs", value)
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
    logprobs = [entry["logprob"] for entry in entries]
    tops = [{top["token"]: top["logprob"] for top in entry["top_logprobs"]} for entry in entries]
    offsets = _text_offsets(tokens, offset)
    return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}


def limit_top_logprobs(value: Json, limit: int) -> Json:
    """Limit the number of alternatives per token, in either shape."""
    if "tokens" in value:
        # OpenAI always includes the sampled token, so that 0 alternatives give one entry.
        chosen = zip(value["tokens"], value.get("token_logprobs") or [], strict=False)
        if limit == 0:
            only = [None if logprob is None else {token: logprob} for token, logprob in chosen]
            return value | {"top_logprobs": only}
        tops = value.get("top_logprobs") or []
        return value | {"top_logprobs": [dict(list(top.items())[:limit]) if top else None for top in tops]}
    lists = {key: value[key] for key in ("content", "refusal") if value.get(key)}
    return value | {
        key: [entry | {"top_logprobs": entry["top_logprobs"][:limit]} for entry in entries]
        for key, entries in lists.items()
    }


def drop_leading_logprobs(value: Json, text: str) -> Json:
    """Drop the tokens before `text`, for a server that strips leading white space or a code fence."""
    entries = value.get("content") or []
    joined = "".join(entry["token"] for entry in entries)
    extra = len(joined) - len(text)
    if extra <= 0 or not joined.endswith(text):
        return value
    remaining = []
    for entry in entries:
        token = entry["token"]
        if extra >= len(token):
            extra -= len(token)
            continue
        remaining.append(entry | {"token": token[extra:], "bytes": list(token[extra:].encode())} if extra else entry)
        extra = 0
    return value | {"content": remaining}


def truncate_logprobs(value: Json, count: int) -> Json:
    """Keep the log probabilities of the first `count` characters, in either shape; the last token is cut."""
    if "tokens" in value:
        tokens = _first_tokens(value["tokens"], count)
        lists = ("token_logprobs", "top_logprobs", "text_offset")
        return value | {"tokens": tokens} | {key: value[key][: len(tokens)] for key in lists}
    entries = value.get("content") or []
    tokens = _first_tokens([entry["token"] for entry in entries], count)
    truncated = [
        entry if entry["token"] == token else entry | {"token": token, "bytes": list(token.encode())}
        for entry, token in zip(entries, tokens, strict=False)
    ]
    return value | {"content": truncated}


def _first_tokens(tokens: list[str], count: int) -> list[str]:
    """The tokens that start within the first `count` characters."""
    starts = _text_offsets(tokens, 0)
    return [token[: count - start] for token, start in zip(tokens, starts, strict=True) if start < count]


def _text_offsets(tokens: list[str], offset: int) -> list[int]:
    return list(accumulate(map(len, tokens[:-1]), initial=offset)) if tokens else []
