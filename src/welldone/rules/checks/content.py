"""Checks of deltas, finish reasons and extensions such as reasoning and logprobs (`delta-`, `fin-`, `ext-`)."""

import math
import re
from collections.abc import Iterator
from itertools import dropwhile, pairwise
from typing import Any

from welldone.core.catalog import ANY
from welldone.rules import rule_check
from welldone.rules.rule_check import CheckList, Violation, choice_objects, delta_objects, form_of
from welldone.rules.view import choices
from welldone.rules.view.choices import KNOWN_FIELDS, ChoiceDelta, ChoiceView, as_list, as_object, as_text, is_int
from welldone.rules.view.view import TraceView

CHECKS = CheckList()


# Role and content

NOOPS_LIMIT = 16
"""No-op chunks in a row that are accepted as keep-alives."""
MIN_CUMULATIVE_CONTENTS = 4
"""Contents that each extend the previous one; fewer occur when a model repeats itself."""
REPETITION_CHARACTERS = 64
"""Length of the prefix that is searched for a repetition."""

_EXPECTED_DELTA = '"delta":{"content":"<the new text>"}'
_ROLE = '"delta":{"role":"assistant","content":""}'


def _has_role(delta: ChoiceDelta) -> bool:
    return not choices.is_null_or_empty(delta.role)


@CHECKS.each("delta-role-first", lambda view: view.choices)
def _role_first(choice: ChoiceView) -> Iterator[Violation]:
    if not _has_role(choice.deltas[0]):
        yield Violation(choice.deltas[0], choice.deltas[0].choice, f"{_ROLE} on the first chunk of the choice")


@CHECKS.each("delta-role-once", lambda view: view.choices)
def _role_once(choice: ChoiceView) -> Iterator[Violation]:
    for delta in list(filter(_has_role, choice.deltas))[1:]:
        yield Violation(delta, {"delta": delta.delta}, "the delta without role")


@CHECKS.each("delta-role-absent-later", lambda view: view.choices)
def _role_absent_later(choice: ChoiceView) -> Iterator[Violation]:
    for delta in choice.deltas[1:]:
        if "role" in delta.delta and not _has_role(delta):
            yield Violation(delta, {"delta": delta.delta}, "the delta without role", form_of(delta.delta["role"]))


@CHECKS.each("delta-role-assistant", lambda view: view.choice_deltas)
def _role_assistant(delta: ChoiceDelta) -> Iterator[Violation]:
    if _has_role(delta) and delta.role != "assistant":
        yield Violation(delta, {"role": delta.role}, '"role":"assistant"')


@CHECKS.each("delta-role-content-empty", lambda view: view.choices)
def _role_content_empty(choice: ChoiceView) -> Iterator[Violation]:
    from_role = list(dropwhile(lambda delta: not _has_role(delta), choice.deltas))
    first = next((delta for delta in from_role if delta.text or _has_other_output(delta)), None)
    starts_with_text = first is not None and not _has_other_output(first)
    if starts_with_text and from_role[0].delta.get("content", ...) != "":
        yield Violation(from_role[0], {"delta": from_role[0].delta}, _ROLE)


def _has_other_output(delta: ChoiceDelta) -> bool:
    return bool(delta.tool_call_entries or delta.reasoning or delta.delta.get("refusal"))


CHECKS.member("delta-content-string", delta_objects, "content", rule_check.is_optional_text, '"content":"<text>"')


@CHECKS.each("delta-content-incremental", lambda view: view.choices)
def _content_incremental(choice: ChoiceView) -> Iterator[Violation]:
    with_text = [delta for delta in choice.deltas if delta.text]
    texts = [delta.text for delta in with_text]
    grows = all(len(new) > len(old) and new.startswith(old) for old, new in pairwise(texts))
    if len(texts) >= MIN_CUMULATIVE_CONTENTS and grows and not _is_repetition(texts[-1][:REPETITION_CHARACTERS]):
        yield Violation(with_text[1], {"content": texts[1]}, f'"content":"{texts[1][len(texts[0]) :][:80]}"')


def _is_repetition(text: str) -> bool:
    """Whether a text repeats one short unit: contents of a repetitive model grow too if it sends several at a time."""
    return any(text[size:] == text[:-size] for size in range(1, len(text) // 2 + 1))


@CHECKS.each("delta-object-present", lambda view: view.choice_deltas)
def _object_present(delta: ChoiceDelta) -> Iterator[Violation]:
    # delta-not-message reports a message in place of the delta.
    if not isinstance(delta.choice.get("delta"), dict) and delta.choice.get("message") is None:
        yield Violation(delta, delta.choice, '"delta":{}', form_of(delta.choice.get("delta", ...)))


CHECKS.member("delta-not-message", choice_objects, "message", lambda it: it in (..., None), _EXPECTED_DELTA)


@CHECKS.each("delta-final-empty", lambda view: view.choice_deltas)
def _final_empty(delta: ChoiceDelta) -> Iterator[Violation]:
    if delta.finish_reason is not None and delta.delta and all(map(choices.is_null_or_empty, delta.delta.values())):
        yield Violation(delta, {"delta": delta.delta}, '"delta":{}')


@CHECKS.rule("delta-no-noop-flood")
def _noop_flood(view: TraceView) -> Iterator[Violation]:
    run = 0
    for chunk, deltas in view.deltas_by_chunk:
        run = run + 1 if deltas and all(delta.is_noop for delta in deltas) else 0
        if run == NOOPS_LIMIT + 1:
            observed = f"more than {NOOPS_LIMIT} chunks in a row without content"
            yield Violation(chunk, observed, "fewer of them, or comments")


# Extensions: reasoning, refusal, logprobs, annotations, audio, unknown fields

CITATION_MEMBERS = ("start_index", "end_index", "url", "title")
AUDIO_MEMBERS = ("id", "data", "transcript", "expires_at")

_THINK = re.compile(r"\s*+<think>.*?</think>", re.DOTALL)
_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_EXPECTED_LOGPROBS = '"logprobs":{"content":[...],"refusal":null}, or null'
_EXPECTED_LOGPROBS_ENTRY = '{"token":"Hi","logprob":-0.1,"bytes":[72,105],"top_logprobs":[]}'


@CHECKS.each("ext-reasoning-field", lambda view: view.choice_deltas)
def _reasoning_field(delta: ChoiceDelta) -> Iterator[Violation]:
    if as_text(delta.delta.get("reasoning")):
        form = "twice" if delta.delta.get("reasoning_content") else ANY
        yield Violation(delta, {"delta": delta.delta}, '"reasoning_content" in place of "reasoning"', form)


@CHECKS.each("ext-no-think-tags", lambda view: view.choices)
def _think_tags(choice: ChoiceView) -> Iterator[Violation]:
    first = next((delta for delta in choice.deltas if delta.reasoning or delta.text), None)
    if first is not None and first.reasoning and _THINK.match(choice.text):
        with_text = next(delta for delta in choice.deltas if delta.text)
        yield Violation(with_text, {"content": choice.text}, "no <think> in content: reasoning has its own field")


@CHECKS.each("ext-reasoning-before-content", lambda view: view.choices)
def _reasoning_before(choice: ChoiceView) -> Iterator[Violation]:
    has_content = False
    for delta in choice.deltas:
        if has_content and delta.reasoning:
            yield Violation(delta, {"delta": delta.delta}, "all reasoning before the first content or tool call")
        has_content = has_content or bool(delta.text or delta.tool_call_entries)


CHECKS.member("ext-refusal", delta_objects, "refusal", rule_check.is_optional_text, '"refusal":"<text>", or null')


@CHECKS.each("ext-logprobs-shape", lambda view: view.choice_deltas)
def _logprobs_shape(delta: ChoiceDelta) -> Iterator[Violation]:
    logprobs = delta.choice.get("logprobs")
    lists = [as_object(logprobs).get(key, ...) for key in ("content", "refusal")]
    if logprobs is not None and not all(isinstance(value, list | None) for value in lists):
        yield Violation(delta, {"logprobs": logprobs}, _EXPECTED_LOGPROBS)


def _logprobs_entries(delta: ChoiceDelta) -> list[Any]:
    logprobs = as_object(delta.choice.get("logprobs"))
    return as_list(logprobs.get("content")) + as_list(logprobs.get("refusal"))


@CHECKS.each("ext-logprobs-entry", lambda view: view.choice_deltas)
def _logprobs_entry(delta: ChoiceDelta) -> Iterator[Violation]:
    for entry in _logprobs_entries(delta):
        tops = as_object(entry).get("top_logprobs")
        if not _is_token_logprob(entry) or not isinstance(tops, list) or not all(map(_is_token_logprob, tops)):
            observed = entry if isinstance(entry, dict) else {"entry": entry}
            yield Violation(delta, observed, _EXPECTED_LOGPROBS_ENTRY)


def _is_token_logprob(value: object) -> bool:
    entry = as_object(value)
    logprob = entry.get("logprob")
    is_number = is_int(logprob) or isinstance(logprob, float)
    return isinstance(entry.get("token"), str) and is_number and isinstance(entry.get("bytes", ...), list | None)


@CHECKS.each("ext-logprobs-finite", lambda view: view.choice_deltas)
def _logprobs_finite(delta: ChoiceDelta) -> Iterator[Violation]:
    numbers = (value for value in _logprob_values(delta) if isinstance(value, float))
    bad = next((number for number in numbers if not math.isfinite(number)), None)
    if bad is not None:
        yield Violation(delta, {"logprob": bad}, "a finite number; -9999.0 for very unlikely")


def _logprob_values(delta: ChoiceDelta) -> Iterator[object]:
    """Yield every log probability, in the format of chat and in that of completions."""
    for entry in map(as_object, _logprobs_entries(delta)):
        yield entry.get("logprob")
        yield from (as_object(top).get("logprob") for top in as_list(entry.get("top_logprobs")))
    logprobs = as_object(delta.choice.get("logprobs"))
    yield from as_list(logprobs.get("token_logprobs"))
    for tops in as_list(logprobs.get("top_logprobs")):
        yield from as_object(tops).values()


@CHECKS.each("ext-logprobs-align", lambda view: view.choices)
def _logprobs_align(choice: ChoiceView) -> Iterator[Violation]:
    with_text = [delta for delta in choice.deltas if delta.text]
    is_text_only = with_text and not any(map(_has_other_output, choice.deltas))
    if is_text_only and all(map(_content_logprobs, with_text)):
        tokens = b"".join(_token_bytes(entry) for delta in choice.deltas for entry in _content_logprobs(delta))
        if tokens != choice.text.encode("utf-8", "surrogatepass"):
            observed = tokens.decode("utf-8", "replace")
            yield Violation(with_text[0], f"tokens {observed}", f"tokens that join to {choice.text[:150]}")


def _content_logprobs(delta: ChoiceDelta) -> list[Any]:
    return as_list(as_object(delta.choice.get("logprobs")).get("content"))


def _token_bytes(entry: object) -> bytes:
    """Return the bytes of a token, from its `bytes` list or else from its text."""
    spelled = as_object(entry).get("bytes")
    if isinstance(spelled, list) and all(is_int(byte) and 0 <= byte < 256 for byte in spelled):
        return bytes(spelled)
    return as_text(as_object(entry).get("token")).encode("utf-8", "surrogatepass")


def _unknown_delta_fields(delta: ChoiceDelta) -> Iterator[tuple[str, Any]]:
    """Yield the members of a delta that the protocol does not define."""
    return ((key, value) for key, value in delta.delta.items() if key not in KNOWN_FIELDS)


@CHECKS.each("ext-list-fields-indexed", lambda view: view.choices)
def _list_fields(choice: ChoiceView) -> Iterator[Violation]:
    seen: set[str] = set()
    for delta in choice.deltas:
        for key, value in _unknown_delta_fields(delta):
            lacks_index = any(isinstance(entry, dict) and not is_int(entry.get("index")) for entry in as_list(value))
            if key in seen and lacks_index:
                yield Violation(delta, {key: value}, "the whole list once, or an index in each entry")
            if not choices.is_null_or_empty(value):
                seen.add(key)


@CHECKS.each("ext-number-fields", lambda view: view.choice_deltas)
def _number_fields(delta: ChoiceDelta) -> Iterator[Violation]:
    for key, value in _unknown_delta_fields(delta):
        if is_int(value) or isinstance(value, float):
            yield Violation(delta, {key: value}, "a string, or the number outside the delta")


@CHECKS.each("ext-annotations", lambda view: view.choice_deltas)
def _annotations(delta: ChoiceDelta) -> Iterator[Violation]:
    annotations = delta.delta.get("annotations")
    if not isinstance(annotations, list | None):
        yield Violation(delta, {"annotations": annotations}, '"annotations":[...]')
    for entry in as_list(annotations):
        citation = as_object(as_object(entry).get("url_citation"))
        if as_object(entry).get("type") != "url_citation" or not all(key in citation for key in CITATION_MEMBERS):
            expected = f'{{"type":"url_citation","url_citation":{{{", ".join(CITATION_MEMBERS)}}}}}'
            yield Violation(delta, {"annotation": entry}, expected)


@CHECKS.each("ext-audio", lambda view: view.choices)
def _audio(choice: ChoiceView) -> Iterator[Violation]:
    deltas = [delta for delta in choice.deltas if delta.delta.get("audio") is not None]
    for delta in deltas:
        audio = delta.delta["audio"]
        data = audio.get("data", "") if isinstance(audio, dict) else None
        if not isinstance(data, str) or not _BASE64.fullmatch(data):
            yield Violation(delta, {"audio": audio}, '"audio":{"data":"<base64>"}')
    sent = {key for delta in deltas for key in as_object(delta.delta["audio"])}
    missing = ", ".join(key for key in AUDIO_MEMBERS if key not in sent)
    if deltas and choice.finish_delta and missing:
        yield Violation(deltas[-1], f"audio without {missing}", f"{', '.join(AUDIO_MEMBERS)} over the stream")


# finish_reason

FINISH_REASONS = ("stop", "length", "tool_calls", "content_filter", "function_call")


def _finished_parts(view: TraceView) -> Iterator[ChoiceDelta]:
    return (delta for delta in view.choice_deltas if delta.finish_reason is not None)


def _parts_after_finish(view: TraceView) -> Iterator[ChoiceDelta]:
    return (delta for choice in view.choices for delta in choice.after_finish)


@CHECKS.each("fin-key-present", lambda view: view.choice_deltas)
def _key_present(delta: ChoiceDelta) -> Iterator[Violation]:
    if "finish_reason" not in delta.choice:
        yield Violation(delta, delta.choice, '"finish_reason":null')


CHECKS.member("fin-null-not-empty", choice_objects, "finish_reason", lambda it: it != "", '"finish_reason":null')


CHECKS.member("fin-null-not-string", choice_objects, "finish_reason", lambda it: it != "null", '"finish_reason":null')


@CHECKS.each("fin-closed-enum", _finished_parts)
def _closed_enum(delta: ChoiceDelta) -> Iterator[Violation]:
    if delta.finish_reason not in FINISH_REASONS:
        yield Violation(delta, {"finish_reason": delta.finish_reason}, f"one of {', '.join(FINISH_REASONS)}")


@CHECKS.each("fin-exactly-once", _parts_after_finish)
def _exactly_once(delta: ChoiceDelta) -> Iterator[Violation]:
    if delta.finish_reason is not None:
        yield Violation(delta, {"finish_reason": delta.finish_reason}, "one finish chunk for each choice")


@CHECKS.rule("fin-always-sent")
def _always_sent(view: TraceView) -> Iterator[Violation]:
    expected = '"delta":{},"finish_reason":"stop" on a chunk before [DONE]'
    for choice in view.unfinished_choices if view.done_messages else ():
        yield Violation(choice.deltas[-1], f"no finish_reason for choice {choice.index}", expected)


@CHECKS.each("fin-last-of-choice", _parts_after_finish)
def _last_of_choice(delta: ChoiceDelta) -> Iterator[Violation]:
    yield Violation(delta, delta.choice, f"nothing for choice {delta.choice_index} after its finish chunk")


@CHECKS.each("fin-own-chunk", _finished_parts)
def _own_chunk(delta: ChoiceDelta) -> Iterator[Violation]:
    if any(not choices.is_null_or_empty(delta.delta.get(key)) for key in KNOWN_FIELDS):
        yield Violation(delta, {"delta": delta.delta}, '"delta":{} and the finish_reason on a chunk of their own')


@CHECKS.rule("fin-tool-calls")
def _tool_calls(view: TraceView) -> Iterator[Violation]:
    if isinstance((view.trace.request or {}).get("tool_choice"), dict):
        return  # with a named tool OpenAI itself sends "stop"
    for choice in view.choices:
        # Truncated calls do not count: tool-args-json-object reports them.
        is_called = bool(choice.tool_calls) and all(tool_call.has_valid_arguments for tool_call in choice.tool_calls)
        if choice.finish_delta and choice.finish_delta.finish_reason == "stop" and is_called:
            yield Violation(choice.finish_delta, {"finish_reason": "stop"}, '"finish_reason":"tool_calls"')


@CHECKS.rule("fin-function-call-legacy", needs=("request",))
def _function_call(view: TraceView) -> Iterator[Violation]:
    for delta in view.choice_deltas if not (view.trace.request or {}).get("functions") else ():
        if delta.finish_reason == "function_call":
            yield Violation(delta, {"finish_reason": "function_call"}, '"finish_reason":"tool_calls"')
