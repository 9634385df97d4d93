"""Checks of deltas, finish reasons and extensions such as reasoning and logprobs (`delta-`, `fin-`, `ext-`)."""

import math
import re
from collections.abc import Iterator
from itertools import dropwhile, pairwise
from typing import Any

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

# Role and content

NOOPS_LIMIT = 16
"""No-op chunks in a row that are accepted as keep-alives."""
MIN_CUMULATIVE_CONTENTS = 4
"""Contents that each extend the previous one; fewer occur when a model repeats itself."""
REPETITION_CHARACTERS = 64
"""Length of the prefix that is searched for a repetition."""

_ROLE = '"delta":{"role":"assistant","content":""}'


def _role_first(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        if is_null_or_empty(choice.deltas[0].role):
            yield Violation(choice.deltas[0], choice.deltas[0].choice, f"{_ROLE} on the first chunk of the choice")


def _role_once(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        with_role = [choice_delta for choice_delta in choice.deltas if not is_null_or_empty(choice_delta.role)]
        for choice_delta in with_role[1:]:
            yield Violation(choice_delta, {"delta": choice_delta.delta}, "the delta without role")


def _role_absent_later(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        for choice_delta in choice.deltas[1:]:
            if "role" in choice_delta.delta and is_null_or_empty(choice_delta.role):
                yield Violation(choice_delta, {"delta": choice_delta.delta}, "the delta without role")


def _role_assistant(view: TraceView) -> Iterator[Violation]:
    for choice_delta in view.choice_deltas:
        if not is_null_or_empty(choice_delta.role) and choice_delta.role != "assistant":
            yield Violation(choice_delta, {"role": choice_delta.role}, '"role":"assistant"')


def _role_content_empty(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        from_role = list(dropwhile(lambda choice_delta: is_null_or_empty(choice_delta.role), choice.deltas))
        if from_role and from_role[0].delta.get("content", ...) != "" and _starts_with_text(from_role):
            yield Violation(from_role[0], {"delta": from_role[0].delta}, _ROLE)


def _starts_with_text(choice_deltas: list[ChoiceDelta]) -> bool:
    for choice_delta in choice_deltas:
        if choice_delta.tool_call_entries or choice_delta.reasoning or choice_delta.delta.get("refusal"):
            return False
        if choice_delta.text:
            return True
    return False


def _content_string(view: TraceView) -> Iterator[Violation]:
    for choice_delta in view.choice_deltas:
        content = choice_delta.delta.get("content")
        if content is not None and not isinstance(content, str):
            yield Violation(choice_delta, {"content": content}, '"content":"<text>"')


def _content_incremental(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        with_text = [choice_delta for choice_delta in choice.deltas if choice_delta.text]
        texts = [choice_delta.text for choice_delta in with_text]
        grows = all(len(new) > len(old) and new.startswith(old) for old, new in pairwise(texts))
        if len(texts) >= MIN_CUMULATIVE_CONTENTS and grows and not _is_repetition(texts[-1][:REPETITION_CHARACTERS]):
            yield Violation(with_text[1], {"content": texts[1]}, f'"content":"{texts[1][len(texts[0]) :][:80]}"')


def _is_repetition(text: str) -> bool:
    """Whether a text repeats one short unit: contents of a repetitive model grow too if it sends several at a time."""
    return any(text[size:] == text[:-size] for size in range(1, len(text) // 2 + 1))


def _object_present(view: TraceView) -> Iterator[Violation]:
    for choice_delta in view.choice_deltas:
        # delta-not-message reports a message in place of the delta.
        if not isinstance(choice_delta.choice.get("delta"), dict) and not _has_message(choice_delta):
            yield Violation(choice_delta, choice_delta.choice, '"delta":{}')


def _has_message(choice_delta: ChoiceDelta) -> bool:
    return choice_delta.choice.get("message") is not None


def _not_message(view: TraceView) -> Iterator[Violation]:
    for choice_delta in view.choice_deltas:
        if _has_message(choice_delta):
            yield Violation(
                choice_delta, {"message": choice_delta.choice["message"]}, '"delta":{"content":"<the new text>"}'
            )


def _final_empty(view: TraceView) -> Iterator[Violation]:
    for choice_delta in view.choice_deltas:
        if (
            choice_delta.finish_reason is not None
            and choice_delta.delta
            and all(is_null_or_empty(value) for value in choice_delta.delta.values())
        ):
            yield Violation(choice_delta, {"delta": choice_delta.delta}, '"delta":{}')


def _noop_flood(view: TraceView) -> Iterator[Violation]:
    run = 0
    for chunk, choice_deltas in view.deltas_by_chunk:
        run = run + 1 if choice_deltas and all(choice_delta.is_noop for choice_delta in choice_deltas) else 0
        if run == NOOPS_LIMIT + 1:
            yield Violation(
                chunk, f"more than {NOOPS_LIMIT} chunks in a row without content", "fewer of them, or comments"
            )


DELTA_CHECKS = (
    RuleCheck("delta-role-first", _role_first),
    RuleCheck("delta-role-once", _role_once),
    RuleCheck("delta-role-absent-later", _role_absent_later),
    RuleCheck("delta-role-assistant", _role_assistant),
    RuleCheck("delta-role-content-empty", _role_content_empty),
    RuleCheck("delta-content-string", _content_string),
    RuleCheck("delta-content-incremental", _content_incremental),
    RuleCheck("delta-object-present", _object_present),
    RuleCheck("delta-not-message", _not_message),
    RuleCheck("delta-final-empty", _final_empty),
    RuleCheck("delta-no-noop-flood", _noop_flood),
)


# Extensions: reasoning, refusal, logprobs, annotations, audio, unknown fields

CITATION_MEMBERS = ("start_index", "end_index", "url", "title")
AUDIO_MEMBERS = ("id", "data", "transcript", "expires_at")

_THINK = re.compile(r"\s*+<think>.*?</think>", re.DOTALL)
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_EXPECTED_LOGPROBS = '"logprobs":{"content":[...],"refusal":null}, or null'
_EXPECTED_LOGPROBS_ENTRY = '{"token":"Hi","logprob":-0.1,"bytes":[72,105],"top_logprobs":[]}'


def _reasoning_field(view: TraceView) -> Iterator[Violation]:
    for choice_delta in view.choice_deltas:
        if as_text(choice_delta.delta.get("reasoning")):
            yield Violation(choice_delta, {"delta": choice_delta.delta}, '"reasoning_content" in place of "reasoning"')


def _think_tags(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        first = next(
            (choice_delta for choice_delta in choice.deltas if choice_delta.reasoning or choice_delta.text), None
        )
        if first is not None and first.reasoning and _THINK.match(choice.text):
            with_text = next(choice_delta for choice_delta in choice.deltas if choice_delta.text)
            yield Violation(with_text, {"content": choice.text}, "no <think> in content: reasoning has its own field")


def _reasoning_before(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        has_content = False
        for choice_delta in choice.deltas:
            if has_content and choice_delta.reasoning:
                yield Violation(
                    choice_delta, {"delta": choice_delta.delta}, "all reasoning before the first content or tool call"
                )
            has_content = has_content or bool(choice_delta.text or choice_delta.tool_call_entries)


def _refusal(view: TraceView) -> Iterator[Violation]:
    for choice_delta in view.choice_deltas:
        refusal = choice_delta.delta.get("refusal")
        if refusal is not None and not isinstance(refusal, str):
            yield Violation(choice_delta, {"refusal": refusal}, '"refusal":"<text>", or null')


def _logprobs_shape(view: TraceView) -> Iterator[Violation]:
    for choice_delta in view.choice_deltas:
        logprobs = choice_delta.choice.get("logprobs")
        if logprobs is not None and not _has_logprobs_shape(logprobs):
            yield Violation(choice_delta, {"logprobs": logprobs}, _EXPECTED_LOGPROBS)


def _has_logprobs_shape(logprobs: object) -> bool:
    if not isinstance(logprobs, dict):
        return False
    return all(key in logprobs and isinstance(logprobs[key], list | None) for key in ("content", "refusal"))


def _logprobs_entries(choice_delta: ChoiceDelta) -> list[Any]:
    logprobs = as_object(choice_delta.choice.get("logprobs"))
    return as_list(logprobs.get("content")) + as_list(logprobs.get("refusal"))


def _logprobs_entry(view: TraceView) -> Iterator[Violation]:
    for choice_delta in view.choice_deltas:
        for entry in _logprobs_entries(choice_delta):
            if not _is_logprobs_entry(entry):
                yield Violation(
                    choice_delta, entry if isinstance(entry, dict) else {"entry": entry}, _EXPECTED_LOGPROBS_ENTRY
                )


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
    for choice_delta in view.choice_deltas:
        bad = next(
            (value for value in _logprob_values(choice_delta) if isinstance(value, float) and not math.isfinite(value)),
            None,
        )
        if bad is not None:
            yield Violation(choice_delta, {"logprob": bad}, "a finite number; -9999.0 for very unlikely")


def _logprob_values(choice_delta: ChoiceDelta) -> Iterator[object]:
    """Yield every log probability, in the format of chat and in that of completions."""
    for entry in _logprobs_entries(choice_delta):
        yield as_object(entry).get("logprob")
        for top in as_list(as_object(entry).get("top_logprobs")):
            yield as_object(top).get("logprob")
    logprobs = as_object(choice_delta.choice.get("logprobs"))
    yield from as_list(logprobs.get("token_logprobs"))
    for tops in as_list(logprobs.get("top_logprobs")):
        yield from as_object(tops).values()


def _logprobs_align(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        with_text = [choice_delta for choice_delta in choice.deltas if choice_delta.text]
        if with_text and _is_text_only(choice) and all(map(_content_logprobs, with_text)):
            tokens = b"".join(
                _token_bytes(entry) for choice_delta in choice.deltas for entry in _content_logprobs(choice_delta)
            )
            if tokens != choice.text.encode("utf-8", "surrogatepass"):
                observed = tokens.decode("utf-8", "replace")
                yield Violation(with_text[0], f"tokens {observed}", f"tokens that join to {choice.text[:150]}")


def _is_text_only(choice: ChoiceView) -> bool:
    return not any(
        choice_delta.tool_call_entries or choice_delta.reasoning or choice_delta.delta.get("refusal")
        for choice_delta in choice.deltas
    )


def _content_logprobs(choice_delta: ChoiceDelta) -> list[Any]:
    return as_list(as_object(choice_delta.choice.get("logprobs")).get("content"))


def _token_bytes(entry: object) -> bytes:
    """Return the bytes of a token, from its `bytes` list or else from its text."""
    spelled = as_object(entry).get("bytes")
    if isinstance(spelled, list) and all(is_int(byte) and 0 <= byte < 256 for byte in spelled):
        return bytes(spelled)
    return as_text(as_object(entry).get("token")).encode("utf-8", "surrogatepass")


def _unknown_delta_fields(choice_delta: ChoiceDelta) -> Iterator[tuple[str, Any]]:
    """Yield the members of a delta that the protocol does not define."""
    return ((key, value) for key, value in choice_delta.delta.items() if key not in KNOWN_FIELDS)


def _list_fields(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        seen: set[str] = set()
        for choice_delta in choice.deltas:
            for key, value in _unknown_delta_fields(choice_delta):
                if key in seen and _lacks_index(value):
                    yield Violation(choice_delta, {key: value}, "the whole list once, or an index in each entry")
                if not is_null_or_empty(value):
                    seen.add(key)


def _lacks_index(value: object) -> bool:
    return any(isinstance(entry, dict) and not is_int(entry.get("index")) for entry in as_list(value))


def _number_fields(view: TraceView) -> Iterator[Violation]:
    for choice_delta in view.choice_deltas:
        for key, value in _unknown_delta_fields(choice_delta):
            if is_int(value) or isinstance(value, float):
                yield Violation(choice_delta, {key: value}, "a string, or the number outside the delta")


def _annotations(view: TraceView) -> Iterator[Violation]:
    for choice_delta in view.choice_deltas:
        annotations = choice_delta.delta.get("annotations")
        if annotations is not None and not isinstance(annotations, list):
            yield Violation(choice_delta, {"annotations": annotations}, '"annotations":[...]')
        for entry in as_list(annotations):
            citation = as_object(as_object(entry).get("url_citation"))
            if as_object(entry).get("type") != "url_citation" or not all(key in citation for key in CITATION_MEMBERS):
                expected = f'{{"type":"url_citation","url_citation":{{{", ".join(CITATION_MEMBERS)}}}}}'
                yield Violation(choice_delta, {"annotation": entry}, expected)


def _audio(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        choice_deltas = [choice_delta for choice_delta in choice.deltas if choice_delta.delta.get("audio") is not None]
        for choice_delta in choice_deltas:
            audio = choice_delta.delta["audio"]
            data = audio.get("data", "") if isinstance(audio, dict) else None
            if not isinstance(data, str) or not _BASE64.fullmatch(data):
                yield Violation(choice_delta, {"audio": audio}, '"audio":{"data":"<base64>"}')
        given = {key for choice_delta in choice_deltas for key in as_object(choice_delta.delta["audio"])}
        missing = [key for key in AUDIO_MEMBERS if key not in given]
        if choice_deltas and choice.finish_delta and missing:
            yield Violation(
                choice_deltas[-1], f"audio without {', '.join(missing)}", f"{', '.join(AUDIO_MEMBERS)} over the stream"
            )


EXTENSION_CHECKS = (
    RuleCheck("ext-reasoning-field", _reasoning_field),
    RuleCheck("ext-no-think-tags", _think_tags),
    RuleCheck("ext-reasoning-before-content", _reasoning_before),
    RuleCheck("ext-refusal", _refusal),
    RuleCheck("ext-logprobs-shape", _logprobs_shape),
    RuleCheck("ext-logprobs-entry", _logprobs_entry),
    RuleCheck("ext-logprobs-finite", _logprobs_finite),
    RuleCheck("ext-logprobs-align", _logprobs_align),
    RuleCheck("ext-list-fields-indexed", _list_fields),
    RuleCheck("ext-number-fields", _number_fields),
    RuleCheck("ext-annotations", _annotations),
    RuleCheck("ext-audio", _audio),
)


# finish_reason

FINISH_REASONS = ("stop", "length", "tool_calls", "content_filter", "function_call")


def _key_present(view: TraceView) -> Iterator[Violation]:
    for choice_delta in view.choice_deltas:
        if "finish_reason" not in choice_delta.choice:
            yield Violation(choice_delta, choice_delta.choice, '"finish_reason":null')


def _not_empty(view: TraceView) -> Iterator[Violation]:
    yield from _null_placeholder(view, "")


def _not_string(view: TraceView) -> Iterator[Violation]:
    yield from _null_placeholder(view, "null")


def _null_placeholder(view: TraceView, reason: str) -> Iterator[Violation]:
    for choice_delta in view.choice_deltas:
        if choice_delta.choice.get("finish_reason") == reason:
            yield Violation(choice_delta, {"finish_reason": reason}, '"finish_reason":null')


def _closed_enum(view: TraceView) -> Iterator[Violation]:
    for choice_delta in view.choice_deltas:
        if choice_delta.finish_reason is not None and choice_delta.finish_reason not in FINISH_REASONS:
            yield Violation(
                choice_delta, {"finish_reason": choice_delta.finish_reason}, f"one of {', '.join(FINISH_REASONS)}"
            )


def _exactly_once(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        for choice_delta in choice.after_finish:
            if choice_delta.finish_reason is not None:
                yield Violation(
                    choice_delta, {"finish_reason": choice_delta.finish_reason}, "one finish chunk for each choice"
                )


def _always_sent(view: TraceView) -> Iterator[Violation]:
    if view.done_messages:
        for choice in view.unfinished_choices:
            expected = '"delta":{},"finish_reason":"stop" on a chunk before [DONE]'
            yield Violation(choice.deltas[-1], f"no finish_reason for choice {choice.index}", expected)


def _last_of_choice(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        for choice_delta in choice.after_finish:
            yield Violation(
                choice_delta, choice_delta.choice, f"nothing for choice {choice.index} after its finish chunk"
            )


def _own_chunk(view: TraceView) -> Iterator[Violation]:
    for choice_delta in view.choice_deltas:
        if choice_delta.finish_reason is not None and any(
            not is_null_or_empty(choice_delta.delta.get(key)) for key in KNOWN_FIELDS
        ):
            yield Violation(
                choice_delta, {"delta": choice_delta.delta}, '"delta":{} and the finish_reason on a chunk of their own'
            )


def _tool_calls(view: TraceView) -> Iterator[Violation]:
    request = view.trace.request or {}
    if isinstance(request.get("tool_choice"), dict):
        return  # with a named tool OpenAI itself sends "stop"
    for choice in view.choices:
        # Truncated calls do not count: tool-args-json-object reports them.
        is_called = bool(choice.tool_calls) and all(call.has_valid_arguments for call in choice.tool_calls)
        if choice.finish_delta and choice.finish_delta.finish_reason == "stop" and is_called:
            yield Violation(choice.finish_delta, {"finish_reason": "stop"}, '"finish_reason":"tool_calls"')


def _function_call(view: TraceView) -> Iterator[Violation]:
    if not (view.trace.request or {}).get("functions"):
        for choice_delta in view.choice_deltas:
            if choice_delta.finish_reason == "function_call":
                yield Violation(choice_delta, {"finish_reason": "function_call"}, '"finish_reason":"tool_calls"')


FINISH_CHECKS = (
    RuleCheck("fin-key-present", _key_present),
    RuleCheck("fin-null-not-empty", _not_empty),
    RuleCheck("fin-null-not-string", _not_string),
    RuleCheck("fin-closed-enum", _closed_enum),
    RuleCheck("fin-exactly-once", _exactly_once),
    RuleCheck("fin-always-sent", _always_sent),
    RuleCheck("fin-last-of-choice", _last_of_choice),
    RuleCheck("fin-own-chunk", _own_chunk),
    RuleCheck("fin-tool-calls", _tool_calls),
    RuleCheck("fin-function-call-legacy", _function_call, required_fields=("request",)),
)
