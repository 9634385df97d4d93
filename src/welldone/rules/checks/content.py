"""Checks of what stands beside the text: reasoning, refusal, logprobs and the extras of servers."""

import math
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from welldone.protocol import catalog
from welldone.rules.rule_check import RuleCheck, Violation
from welldone.rules.view.choices import (
    KNOWN_FIELDS,
    ChoiceDelta,
    ChoiceView,
    as_list,
    as_object,
    as_text,
    is_int,
    is_null_or_empty,
)
from welldone.rules.view.view import TraceView

# Checks of role and content: what the chunks say of a choice before its end.


NOOPS_LIMIT = 16
"""No-op chunks in a row that pass as keep-alives."""
MIN_CUMULATIVE_CONTENTS = 4
"""Contents that each begin with the one before: fewer are common where a model repeats itself."""
REPETITION_CHARACTERS = 64
"""Characters in which a repetition is looked for."""

_ROLE = '"delta":{"role":"assistant","content":""}'


def _role_first(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        if is_null_or_empty(choice.deltas[0].role):
            yield Violation(choice.deltas[0], choice.deltas[0].choice, f"{_ROLE} on the first chunk of the choice")


def _role_once(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        with_role = [part for part in choice.deltas if not is_null_or_empty(part.role)]
        for part in with_role[1:]:
            yield Violation(part, {"delta": part.delta}, "the delta without role")


def _role_absent_later(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        for part in choice.deltas[1:]:
            if "role" in part.delta and is_null_or_empty(part.role):
                yield Violation(part, {"delta": part.delta}, "the delta without role")


def _role_assistant(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        if not is_null_or_empty(part.role) and part.role != "assistant":
            yield Violation(part, {"role": part.role}, '"role":"assistant"')


def _role_content_empty(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        role = next((place for place, part in enumerate(choice.deltas) if not is_null_or_empty(part.role)), None)
        if role is not None and choice.deltas[role].delta.get("content", ...) != "" and _opens_text(choice, role):
            yield Violation(choice.deltas[role], {"delta": choice.deltas[role].delta}, _ROLE)


def _opens_text(choice: ChoiceView, role: int) -> bool:
    """Whether the first thing that the choice says, from its role chunk on, is text."""
    for part in choice.deltas[role:]:
        if part.tool_call_entries or part.reasoning or part.delta.get("refusal"):
            return False
        if part.text:
            return True
    return False


def _content_string(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        content = part.delta.get("content")
        if content is not None and not isinstance(content, str):
            yield Violation(part, {"content": content}, '"content":"<text>"')


def _content_incremental(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        said = [part for part in choice.deltas if part.text]
        grows = len(said) >= MIN_CUMULATIVE_CONTENTS and all(
            _extends(new.text, old.text) for old, new in pairwise(said)
        )
        if grows and not _is_repetition(said[-1].text[:REPETITION_CHARACTERS]):
            yield Violation(said[1], {"content": said[1].text}, f'"content":"{said[1].text[len(said[0].text) :][:80]}"')


def _is_repetition(text: str) -> bool:
    """Whether a text is one short unit again and again: so it grows where a model says several at a time."""
    return any(text[size:] == text[:-size] for size in range(1, len(text) // 2 + 1))


def _extends(new: str, old: str) -> bool:
    return len(new) > len(old) and new.startswith(old)


def _object_present(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        # Where a message stands in its place, delta-not-message speaks.
        if not isinstance(part.choice.get("delta"), dict) and not _has_message(part):
            yield Violation(part, part.choice, '"delta":{}')


def _has_message(part: ChoiceDelta) -> bool:
    return part.choice.get("message") is not None


def _not_message(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        if _has_message(part):
            yield Violation(part, {"message": part.choice["message"]}, '"delta":{"content":"<the new text>"}')


def _final_empty(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        if (
            part.finish_reason is not None
            and part.delta
            and all(is_null_or_empty(value) for value in part.delta.values())
        ):
            yield Violation(part, {"delta": part.delta}, '"delta":{}')


def _noop_flood(view: TraceView) -> Iterator[Violation]:
    run = 0
    for chunk, parts in view.deltas_by_chunk:
        run = run + 1 if parts and all(part.is_noop for part in parts) else 0
        if run == NOOPS_LIMIT + 1:
            yield Violation(
                chunk, f"more than {NOOPS_LIMIT} chunks in a row that say nothing", "fewer of them, or comments"
            )


DELTA_CHECKS = (
    RuleCheck(catalog.delta.ROLE_FIRST, _role_first),
    RuleCheck(catalog.delta.ROLE_ONCE, _role_once),
    RuleCheck(catalog.delta.ROLE_ABSENT_LATER, _role_absent_later),
    RuleCheck(catalog.delta.ROLE_ASSISTANT, _role_assistant),
    RuleCheck(catalog.delta.ROLE_CONTENT_EMPTY, _role_content_empty),
    RuleCheck(catalog.delta.CONTENT_STRING, _content_string),
    RuleCheck(catalog.delta.CONTENT_INCREMENTAL, _content_incremental),
    RuleCheck(catalog.delta.OBJECT_PRESENT, _object_present),
    RuleCheck(catalog.delta.NOT_MESSAGE, _not_message),
    RuleCheck(catalog.delta.FINAL_EMPTY, _final_empty),
    RuleCheck(catalog.delta.NO_NOOP_FLOOD, _noop_flood),
)


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
    RuleCheck(catalog.ext.REASONING_FIELD, _reasoning_field),
    RuleCheck(catalog.ext.NO_THINK_TAGS, _think_tags),
    RuleCheck(catalog.ext.REASONING_BEFORE_CONTENT, _reasoning_before),
    RuleCheck(catalog.ext.REFUSAL, _refusal),
    RuleCheck(catalog.ext.LOGPROBS_SHAPE, _logprobs_shape),
    RuleCheck(catalog.ext.LOGPROBS_ENTRY, _logprobs_entry),
    RuleCheck(catalog.ext.LOGPROBS_FINITE, _logprobs_finite),
    RuleCheck(catalog.ext.LOGPROBS_ALIGN, _logprobs_align),
    RuleCheck(catalog.ext.LIST_FIELDS_INDEXED, _list_fields),
    RuleCheck(catalog.ext.NUMBER_FIELDS, _number_fields),
    RuleCheck(catalog.ext.ANNOTATIONS, _annotations),
    RuleCheck(catalog.ext.AUDIO, _audio),
)


# Checks of finish_reason.


FINISH_REASONS = ("stop", "length", "tool_calls", "content_filter", "function_call")


def _key_present(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        if "finish_reason" not in part.choice:
            yield Violation(part, part.choice, '"finish_reason":null')


def _not_empty(view: TraceView) -> Iterator[Violation]:
    yield from _null_placeholder(view, "")


def _not_string(view: TraceView) -> Iterator[Violation]:
    yield from _null_placeholder(view, "null")


def _null_placeholder(view: TraceView, reason: str) -> Iterator[Violation]:
    for part in view.choice_deltas:
        if part.choice.get("finish_reason") == reason:
            yield Violation(part, {"finish_reason": reason}, '"finish_reason":null')


def _closed_enum(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        if part.finish_reason is not None and part.finish_reason not in FINISH_REASONS:
            yield Violation(part, {"finish_reason": part.finish_reason}, f"one of {', '.join(FINISH_REASONS)}")


def _exactly_once(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        for part in choice.after_finish:
            if part.finish_reason is not None:
                yield Violation(part, {"finish_reason": part.finish_reason}, "one finish chunk for each choice")


def _always_sent(view: TraceView) -> Iterator[Violation]:
    if view.done_messages:
        for choice in view.unfinished_choices:
            wanted = '"delta":{},"finish_reason":"stop" on a chunk before [DONE]'
            yield Violation(choice.deltas[-1], f"no finish_reason for choice {choice.index}", wanted)


def _last_of_choice(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        for part in choice.after_finish:
            yield Violation(part, part.choice, f"nothing for choice {choice.index} after its finish chunk")


def _own_chunk(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        if part.finish_reason is not None and any(not is_null_or_empty(part.delta.get(key)) for key in KNOWN_FIELDS):
            yield Violation(part, {"delta": part.delta}, '"delta":{} and the finish_reason on a chunk of their own')


def _tool_calls(view: TraceView) -> Iterator[Violation]:
    request = view.trace.request or {}
    if isinstance(request.get("tool_choice"), dict):
        return  # with a named tool OpenAI itself says stop
    for choice in view.choices:
        # Calls that were cut are no calls: their arguments say so under a rule of their own.
        is_called = bool(choice.tool_calls) and all(call.has_valid_arguments for call in choice.tool_calls)
        if choice.finish_delta and choice.finish_delta.finish_reason == "stop" and is_called:
            yield Violation(choice.finish_delta, {"finish_reason": "stop"}, '"finish_reason":"tool_calls"')


def _function_call(view: TraceView) -> Iterator[Violation]:
    if not (view.trace.request or {}).get("functions"):
        for part in view.choice_deltas:
            if part.finish_reason == "function_call":
                yield Violation(part, {"finish_reason": "function_call"}, '"finish_reason":"tool_calls"')


FINISH_CHECKS = (
    RuleCheck(catalog.fin.KEY_PRESENT, _key_present),
    RuleCheck(catalog.fin.NULL_NOT_EMPTY, _not_empty),
    RuleCheck(catalog.fin.NULL_NOT_STRING, _not_string),
    RuleCheck(catalog.fin.CLOSED_ENUM, _closed_enum),
    RuleCheck(catalog.fin.EXACTLY_ONCE, _exactly_once),
    RuleCheck(catalog.fin.ALWAYS_SENT, _always_sent),
    RuleCheck(catalog.fin.LAST_OF_CHOICE, _last_of_choice),
    RuleCheck(catalog.fin.OWN_CHUNK, _own_chunk),
    RuleCheck(catalog.fin.TOOL_CALLS, _tool_calls),
    RuleCheck(catalog.fin.FUNCTION_CALL_LEGACY, _function_call, required_fields=("request",)),
)
