"""Checks of what stands beside the text: reasoning, refusal, logprobs and the extras of servers."""

import math
import re
from collections.abc import Iterator
from typing import Any

from welldone.rules.choices import (
    KNOWN_FIELDS,
    ChoiceView,
    ChoiceDelta,
    as_list,
    as_object,
    as_text,
    is_int,
    is_null_or_empty,
)
from welldone.rules.heard import TraceView
from welldone.rules.rule import Violation, RuleCheck
from welldone.wire import faults

CITATION_MEMBERS = ("start_index", "end_index", "url", "title")
AUDIO_MEMBERS = ("id", "data", "transcript", "expires_at")

_THINK = re.compile(r"\s*+<think>.*?</think>", re.DOTALL)
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_EXPECTED_LOGPROBS = '"logprobs":{"content":[...],"refusal":null}, or null'
_EXPECTED_LOGPROBS_ENTRY = '{"token":"Hi","logprob":-0.1,"bytes":[72,105],"top_logprobs":[]}'


def _reasoning_field(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        if as_text(part.delta.get("reasoning")):
            yield Violation(part, {"delta": part.delta}, '"reasoning_content" in place of "reasoning"')


def _think_tags(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        first = next((part for part in choice.deltas if part.reasoning or part.text), None)
        if first is not None and first.reasoning and _THINK.match(choice.text):
            with_text = next(part for part in choice.deltas if part.text)
            yield Violation(with_text, {"content": choice.text}, "no <think> in content: reasoning has its own field")


def _reasoning_before(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        spoken = False
        for part in choice.deltas:
            if spoken and part.reasoning:
                yield Violation(part, {"delta": part.delta}, "all reasoning before the first content or tool call")
            spoken = spoken or bool(part.text or part.tool_call_entries)


def _refusal(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        refusal = part.delta.get("refusal")
        if refusal is not None and not isinstance(refusal, str):
            yield Violation(part, {"refusal": refusal}, '"refusal":"<text>", or null')


def _logprobs_shape(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        logprobs = part.choice.get("logprobs")
        if logprobs is not None and not _has_logprobs_shape(logprobs):
            yield Violation(part, {"logprobs": logprobs}, _EXPECTED_LOGPROBS)


def _has_logprobs_shape(logprobs: object) -> bool:
    if not isinstance(logprobs, dict):
        return False
    return all(key in logprobs and isinstance(logprobs[key], list | None) for key in ("content", "refusal"))


def _logprobs_entries(part: ChoiceDelta) -> list[Any]:
    logprobs = as_object(part.choice.get("logprobs"))
    return as_list(logprobs.get("content")) + as_list(logprobs.get("refusal"))


def _logprobs_entry(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        for entry in _logprobs_entries(part):
            if not _is_logprobs_entry(entry):
                yield Violation(part, entry if isinstance(entry, dict) else {"entry": entry}, _EXPECTED_LOGPROBS_ENTRY)


def _is_logprobs_entry(entry: object) -> bool:
    if not _is_token_logprob(entry) or not isinstance(entry, dict):
        return False
    tops = entry.get("top_logprobs")
    return isinstance(tops, list) and all(_is_token_logprob(top) for top in tops)


def _is_token_logprob(entry: object) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("token"), str):
        return False
    logprob = entry.get("logprob")
    is_number = is_int(logprob) or isinstance(logprob, float)
    return is_number and "bytes" in entry and isinstance(entry["bytes"], list | None)


def _logprobs_finite(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        bad = next(
            (value for value in _logprob_values(part) if isinstance(value, float) and not math.isfinite(value)), None
        )
        if bad is not None:
            yield Violation(part, {"logprob": bad}, "a finite number; -9999.0 for very unlikely")


def _logprob_values(part: ChoiceDelta) -> Iterator[object]:
    """Every log probability of a part, in the shape of chat and in that of completions."""
    for entry in _logprobs_entries(part):
        yield as_object(entry).get("logprob")
        for top in as_list(as_object(entry).get("top_logprobs")):
            yield as_object(top).get("logprob")
    logprobs = as_object(part.choice.get("logprobs"))
    yield from as_list(logprobs.get("token_logprobs"))
    for tops in as_list(logprobs.get("top_logprobs")):
        yield from as_object(tops).values()


def _logprobs_align(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        said = [part for part in choice.deltas if part.text]
        if said and _is_text_only(choice) and all(_content_logprobs(part) for part in said):
            tokens = b"".join(_token_bytes(entry) for part in choice.deltas for entry in _content_logprobs(part))
            if tokens != choice.text.encode("utf-8", "surrogatepass"):
                shown = tokens.decode("utf-8", "replace")
                yield Violation(said[0], f"tokens {shown}", f"tokens that join to {choice.text[:150]}")


def _is_text_only(choice: ChoiceView) -> bool:
    return not any(part.tool_call_entries or part.reasoning or part.delta.get("refusal") for part in choice.deltas)


def _content_logprobs(part: ChoiceDelta) -> list[Any]:
    return as_list(as_object(part.choice.get("logprobs")).get("content"))


def _token_bytes(entry: object) -> bytes:
    """The bytes of a token, by its own list of them or else by its text."""
    spelled = as_object(entry).get("bytes")
    if isinstance(spelled, list) and all(is_int(byte) and 0 <= byte < 256 for byte in spelled):
        return bytes(spelled)
    return as_text(as_object(entry).get("token")).encode("utf-8", "surrogatepass")


def _unknown_delta_fields(part: ChoiceDelta) -> Iterator[tuple[str, Any]]:
    """The members of a delta that the protocol does not know."""
    return ((key, value) for key, value in part.delta.items() if key not in KNOWN_FIELDS)


def _list_fields(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        seen: set[str] = set()
        for part in choice.deltas:
            for key, value in _unknown_delta_fields(part):
                if key in seen and _lacks_index(value):
                    yield Violation(part, {key: value}, "the whole list once, or an index in each entry")
                if not is_null_or_empty(value):
                    seen.add(key)


def _lacks_index(value: object) -> bool:
    return any(isinstance(entry, dict) and not is_int(entry.get("index")) for entry in as_list(value))


def _number_fields(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        for key, value in _unknown_delta_fields(part):
            if is_int(value) or isinstance(value, float):
                yield Violation(part, {key: value}, "a string, or the number outside the delta")


def _annotations(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        annotations = part.delta.get("annotations")
        if annotations is not None and not isinstance(annotations, list):
            yield Violation(part, {"annotations": annotations}, '"annotations":[...]')
        for entry in as_list(annotations):
            citation = as_object(as_object(entry).get("url_citation"))
            if as_object(entry).get("type") != "url_citation" or not all(key in citation for key in CITATION_MEMBERS):
                wanted = f'{{"type":"url_citation","url_citation":{{{", ".join(CITATION_MEMBERS)}}}}}'
                yield Violation(part, {"annotation": entry}, wanted)


def _audio(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        parts = [part for part in choice.deltas if part.delta.get("audio") is not None]
        for part in parts:
            audio = part.delta["audio"]
            data = audio.get("data", "") if isinstance(audio, dict) else None
            if not isinstance(data, str) or not _BASE64.fullmatch(data):
                yield Violation(part, {"audio": audio}, '"audio":{"data":"<base64>"}')
        given = {key for part in parts for key in as_object(part.delta["audio"])}
        missing = [key for key in AUDIO_MEMBERS if key not in given]
        if parts and choice.finish_delta and missing:
            yield Violation(
                parts[-1], f"audio without {', '.join(missing)}", f"{', '.join(AUDIO_MEMBERS)} over the stream"
            )


EXTENSION_CHECKS = (
    RuleCheck(faults.ext.REASONING_FIELD, _reasoning_field),
    RuleCheck(faults.ext.NO_THINK_TAGS, _think_tags),
    RuleCheck(faults.ext.REASONING_BEFORE_CONTENT, _reasoning_before),
    RuleCheck(faults.ext.REFUSAL, _refusal),
    RuleCheck(faults.ext.LOGPROBS_SHAPE, _logprobs_shape),
    RuleCheck(faults.ext.LOGPROBS_ENTRY, _logprobs_entry),
    RuleCheck(faults.ext.LOGPROBS_FINITE, _logprobs_finite),
    RuleCheck(faults.ext.LOGPROBS_ALIGN, _logprobs_align),
    RuleCheck(faults.ext.LIST_FIELDS_INDEXED, _list_fields),
    RuleCheck(faults.ext.NUMBER_FIELDS, _number_fields),
    RuleCheck(faults.ext.ANNOTATIONS, _annotations),
    RuleCheck(faults.ext.AUDIO, _audio),
)
