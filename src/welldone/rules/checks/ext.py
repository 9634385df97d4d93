"""Checks of what stands beside the text: reasoning, refusal, logprobs and the extras of servers."""

import math
import re
from collections.abc import Iterator
from typing import Any

from welldone.rules.choices import (
    KNOWN_FIELDS,
    Choice,
    Part,
    as_list,
    as_object,
    as_text,
    is_int,
    is_nothing,
)
from welldone.rules.heard import Heard
from welldone.rules.rule import Place, Rule
from welldone.wire.faults import ext as faults

CITATION = ("start_index", "end_index", "url", "title")
AUDIO = ("id", "data", "transcript", "expires_at")

_THINK = re.compile(r"\s*+<think>.*?</think>", re.DOTALL)
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_LOGPROBS = '"logprobs":{"content":[...],"refusal":null}, or null'
_ENTRY = '{"token":"Hi","logprob":-0.1,"bytes":[72,105],"top_logprobs":[]}'


def _reasoning_field(heard: Heard) -> Iterator[Place]:
    for part in heard.parts:
        if as_text(part.delta.get("reasoning")):
            yield Place(part, {"delta": part.delta}, '"reasoning_content" in place of "reasoning"')


def _think_tags(heard: Heard) -> Iterator[Place]:
    for choice in heard.choices:
        first = next((part for part in choice.parts if part.reasoning or part.text), None)
        if first is not None and first.reasoning and _THINK.match(choice.text):
            with_text = next(part for part in choice.parts if part.text)
            yield Place(with_text, {"content": choice.text}, "no <think> in content: reasoning has its own field")


def _reasoning_before(heard: Heard) -> Iterator[Place]:
    for choice in heard.choices:
        spoken = False
        for part in choice.parts:
            if spoken and part.reasoning:
                yield Place(part, {"delta": part.delta}, "all reasoning before the first content or tool call")
            spoken = spoken or bool(part.text or part.entries)


def _refusal(heard: Heard) -> Iterator[Place]:
    for part in heard.parts:
        refusal = part.delta.get("refusal")
        if refusal is not None and not isinstance(refusal, str):
            yield Place(part, {"refusal": refusal}, '"refusal":"<text>", or null')


def _logprobs_shape(heard: Heard) -> Iterator[Place]:
    for part in heard.parts:
        logprobs = part.choice.get("logprobs")
        if logprobs is not None and not _has_shape(logprobs):
            yield Place(part, {"logprobs": logprobs}, _LOGPROBS)


def _has_shape(logprobs: object) -> bool:
    if not isinstance(logprobs, dict):
        return False
    return all(key in logprobs and isinstance(logprobs[key], list | None) for key in ("content", "refusal"))


def _entries(part: Part) -> list[Any]:
    logprobs = as_object(part.choice.get("logprobs"))
    return as_list(logprobs.get("content")) + as_list(logprobs.get("refusal"))


def _logprobs_entry(heard: Heard) -> Iterator[Place]:
    for part in heard.parts:
        for entry in _entries(part):
            if not _is_entry(entry):
                yield Place(part, entry if isinstance(entry, dict) else {"entry": entry}, _ENTRY)


def _is_entry(entry: object) -> bool:
    if not _is_token(entry) or not isinstance(entry, dict):
        return False
    tops = entry.get("top_logprobs")
    return isinstance(tops, list) and all(_is_token(top) for top in tops)


def _is_token(entry: object) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("token"), str):
        return False
    logprob = entry.get("logprob")
    is_number = is_int(logprob) or isinstance(logprob, float)
    return is_number and "bytes" in entry and isinstance(entry["bytes"], list | None)


def _logprobs_finite(heard: Heard) -> Iterator[Place]:
    for part in heard.parts:
        bad = next((value for value in _numbers(part) if isinstance(value, float) and not math.isfinite(value)), None)
        if bad is not None:
            yield Place(part, {"logprob": bad}, "a finite number; -9999.0 for very unlikely")


def _numbers(part: Part) -> Iterator[object]:
    """Every log probability of a part, in the shape of chat and in that of completions."""
    for entry in _entries(part):
        yield as_object(entry).get("logprob")
        for top in as_list(as_object(entry).get("top_logprobs")):
            yield as_object(top).get("logprob")
    logprobs = as_object(part.choice.get("logprobs"))
    yield from as_list(logprobs.get("token_logprobs"))
    for tops in as_list(logprobs.get("top_logprobs")):
        yield from as_object(tops).values()


def _logprobs_align(heard: Heard) -> Iterator[Place]:
    for choice in heard.choices:
        said = [part for part in choice.parts if part.text]
        if said and _is_text_only(choice) and all(_tokens(part) for part in said):
            tokens = b"".join(_spelling(entry) for part in choice.parts for entry in _tokens(part))
            if tokens != choice.text.encode("utf-8", "surrogatepass"):
                shown = tokens.decode("utf-8", "replace")
                yield Place(said[0], f"tokens {shown}", f"tokens that join to {choice.text[:150]}")


def _is_text_only(choice: Choice) -> bool:
    return not any(part.entries or part.reasoning or part.delta.get("refusal") for part in choice.parts)


def _tokens(part: Part) -> list[Any]:
    return as_list(as_object(part.choice.get("logprobs")).get("content"))


def _spelling(entry: object) -> bytes:
    """The bytes of a token, by its own list of them or else by its text."""
    spelled = as_object(entry).get("bytes")
    if isinstance(spelled, list) and all(is_int(byte) and 0 <= byte < 256 for byte in spelled):
        return bytes(spelled)
    return as_text(as_object(entry).get("token")).encode("utf-8", "surrogatepass")


def _extras(part: Part) -> Iterator[tuple[str, Any]]:
    """The members of a delta that the protocol does not know."""
    return ((key, value) for key, value in part.delta.items() if key not in KNOWN_FIELDS)


def _list_fields(heard: Heard) -> Iterator[Place]:
    for choice in heard.choices:
        seen: set[str] = set()
        for part in choice.parts:
            for key, value in _extras(part):
                if key in seen and _lacks_index(value):
                    yield Place(part, {key: value}, "the whole list once, or an index in each entry")
                if not is_nothing(value):
                    seen.add(key)


def _lacks_index(value: object) -> bool:
    return any(isinstance(entry, dict) and not is_int(entry.get("index")) for entry in as_list(value))


def _number_fields(heard: Heard) -> Iterator[Place]:
    for part in heard.parts:
        for key, value in _extras(part):
            if is_int(value) or isinstance(value, float):
                yield Place(part, {key: value}, "a string, or the number outside the delta")


def _annotations(heard: Heard) -> Iterator[Place]:
    for part in heard.parts:
        annotations = part.delta.get("annotations")
        if annotations is not None and not isinstance(annotations, list):
            yield Place(part, {"annotations": annotations}, '"annotations":[...]')
        for entry in as_list(annotations):
            citation = as_object(as_object(entry).get("url_citation"))
            if as_object(entry).get("type") != "url_citation" or not all(key in citation for key in CITATION):
                wanted = f'{{"type":"url_citation","url_citation":{{{", ".join(CITATION)}}}}}'
                yield Place(part, {"annotation": entry}, wanted)


def _audio(heard: Heard) -> Iterator[Place]:
    for choice in heard.choices:
        parts = [part for part in choice.parts if part.delta.get("audio") is not None]
        for part in parts:
            audio = part.delta["audio"]
            data = audio.get("data", "") if isinstance(audio, dict) else None
            if not isinstance(data, str) or not _BASE64.fullmatch(data):
                yield Place(part, {"audio": audio}, '"audio":{"data":"<base64>"}')
        given = {key for part in parts for key in as_object(part.delta["audio"])}
        missing = [key for key in AUDIO if key not in given]
        if parts and choice.finish and missing:
            yield Place(parts[-1], f"audio without {', '.join(missing)}", f"{', '.join(AUDIO)} over the stream")


RULES = (
    Rule(faults.REASONING_FIELD, _reasoning_field),
    Rule(faults.NO_THINK_TAGS, _think_tags),
    Rule(faults.REASONING_BEFORE_CONTENT, _reasoning_before),
    Rule(faults.REFUSAL, _refusal),
    Rule(faults.LOGPROBS_SHAPE, _logprobs_shape),
    Rule(faults.LOGPROBS_ENTRY, _logprobs_entry),
    Rule(faults.LOGPROBS_FINITE, _logprobs_finite),
    Rule(faults.LOGPROBS_ALIGN, _logprobs_align),
    Rule(faults.LIST_FIELDS_INDEXED, _list_fields),
    Rule(faults.NUMBER_FIELDS, _number_fields),
    Rule(faults.ANNOTATIONS, _annotations),
    Rule(faults.AUDIO, _audio),
)
