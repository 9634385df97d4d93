"""Checks of Gemini's generateContent and streamGenerateContent: streams, whole replies and errors (`gem-`)."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from welldone.core import sse
from welldone.rules.checks.framing import truncated_reply
from welldone.rules.rule_check import ACCEPTED, CheckList, Violation, accepted_if, member
from welldone.rules.view import gemini
from welldone.rules.view.choices import as_list, as_object, is_int
from welldone.rules.view.gemini import GeminiCandidate, GeminiElement
from welldone.rules.view.stream import MessageKind, StreamMessage
from welldone.rules.view.view import STREAM_KINDS, ReplyKind, TraceView

_ANSWERS = (*STREAM_KINDS, ReplyKind.WHOLE)
_EXPECTED_CONTENT = '"content":{"parts":[{"text":"..."}],"role":"model"}'
_EXPECTED_ERROR = '{"error":{"code":503,"message":"...","status":"UNAVAILABLE"}}'
_OTHER_FIELDS = (b"event", b"id", b"retry")
_BASE64 = re.compile(
    "|".join(
        rf"(?:{symbol}{{4}})*+(?:{symbol}[AQgw](?:==)?|{symbol}{{2}}[AEIMQUYcgkosw048]=?)?"
        for symbol in ("[A-Za-z0-9+/]", "[A-Za-z0-9_-]")
    )
)
"""Base64, standard or URL-safe, with or without padding: what google-genai decodes."""
_STREAMED_CALL = frozenset(("partialArgs", "willContinue"))
"""Members of a call whose arguments are streamed, which Vertex AI offers: its later parts have no name."""

CHECKS = CheckList()


def _elements(view: TraceView) -> list[GeminiElement]:
    return view.gemini_reply.elements


def _candidates(view: TraceView) -> list[GeminiCandidate]:
    return view.gemini_reply.candidates


def _setting(view: TraceView, *names: str) -> object:
    """Return a member of the request, by its path in camelCase; clients may also write snake_case."""
    value: object = view.trace.request
    for name in names:
        members = as_object(value)
        value = members.get(name, members.get(re.sub("([A-Z])", r"_\1", name).lower()))
    return value


# Frames


@CHECKS.rule("gem-data-lines-only")
def _data_lines_only(view: TraceView) -> Iterator[Violation]:
    for number, frame in enumerate(view.frames, start=1):
        for line in sse.split_lines(frame.raw):
            if line.startswith(b":") or sse.parse_field(line)[0] in _OTHER_FIELDS:
                yield Violation(number, line.decode("utf-8", "replace"), "data: lines and empty lines only")
    for message in view.messages:
        if message.kind is MessageKind.COMMENT:
            yield Violation(message, f"data: {message.value.source}", "an empty line as a keep-alive")


@CHECKS.each("gem-no-done", lambda view: view.done_messages)
def _no_done(message: StreamMessage) -> Iterator[Violation]:
    yield Violation(message, message.value.source, "no [DONE]")


@CHECKS.rule("gem-stream-form", *STREAM_KINDS, needs=("path",))
def _stream_form(view: TraceView) -> Iterator[Violation]:
    is_array = view.reply_kind is ReplyKind.ARRAY
    if view.messages and view.trace.wants_array is not is_array:
        expected = "one JSON array" if view.trace.wants_array else "data: events, as alt=sse asks for"
        yield Violation(None, "a JSON array" if is_array else "server-sent events", expected)


@CHECKS.rule("gem-element", *STREAM_KINDS)
def _element(view: TraceView) -> Iterator[Violation]:
    for message in view.messages:
        if message.kind is MessageKind.FOREIGN:
            yield Violation(message, message.value.source, '{"candidates":[...]}')
    for element in _elements(view):
        if element.json.get("candidates") in (None, []) and element.block_reason is None:
            yield Violation(element.location, element.json, f'"candidates":[{{{_EXPECTED_CONTENT}}}]')


# Candidates


@CHECKS.each("gem-candidates", _elements, *_ANSWERS)
def _candidates_list(element: GeminiElement) -> Iterator[Violation]:
    candidates = element.json.get("candidates")
    if not isinstance(candidates, list | None) or not all(isinstance(entry, dict) for entry in as_list(candidates)):
        yield Violation(element.location, {"candidates": candidates}, f'"candidates":[{{{_EXPECTED_CONTENT}}}]')


@CHECKS.rule("gem-candidate-index", *_ANSWERS)
def _candidate_index(view: TraceView) -> Iterator[Violation]:
    for element in _elements(view):
        seen: set[int] = set()
        for candidate in element.candidates:
            index = candidate.json.get("index")
            if is_int(index) and index in seen:
                yield Violation(candidate.location, {"index": index}, "another index for each candidate")
            # Protobuf leaves out a 0.
            elif not (is_int(index) and index >= 0) and not (index is None and candidate.position == 0):
                expected, form = f'"index":{candidate.position}', accepted_if(index is None)
                yield Violation(candidate.location, member(candidate.json, "index"), expected, form)
            seen.add(candidate.index)
    if view.trace.request is not None:
        requested = _setting(view, "generationConfig", "candidateCount")
        count = requested if is_int(requested) and requested > 0 else 1
        for group in list(view.gemini_reply.by_index.values())[count:]:
            expected = f"no more than {count} candidates, as requested"
            yield Violation(group[0].location, {"index": group[0].index}, expected)


# Content and parts


@CHECKS.each("gem-content", _candidates, *_ANSWERS)
def _content(candidate: GeminiCandidate) -> Iterator[Violation]:
    content = candidate.json.get("content")
    parts = content.get("parts") if isinstance(content, dict) else content
    # The last element may have none: a filter removed them, or all tokens were thoughts.
    is_absent = parts in (None, []) and candidate.finish_reason is not None
    if not is_absent and (not isinstance(content, dict) or not isinstance(parts, list) or not parts):
        yield Violation(candidate.location, member(candidate.json, "content"), _EXPECTED_CONTENT)


@CHECKS.each("gem-role", _candidates, *_ANSWERS)
def _role(candidate: GeminiCandidate) -> Iterator[Violation]:
    if candidate.content and candidate.content.get("role") != "model":
        yield Violation(candidate.location, member(candidate.content, "role"), '"role":"model"')


@CHECKS.each("gem-parts", _candidates, *_ANSWERS)
def _parts(candidate: GeminiCandidate) -> Iterator[Violation]:
    for content_part in as_list(candidate.content.get("parts")):
        if not isinstance(content_part, dict) or all(value is None for value in content_part.values()):
            yield Violation(candidate.location, {"part": content_part}, '{"text":"..."}, or another part with its data')
        elif not isinstance(content_part.get("text"), str | None):
            yield Violation(candidate.location, {"text": content_part["text"]}, '"text":"..."')


@CHECKS.rule("gem-thoughts", *_ANSWERS)
def _thoughts(view: TraceView) -> Iterator[Violation]:
    is_unwanted = view.trace.request is not None and not _setting(
        view, "generationConfig", "thinkingConfig", "includeThoughts"
    )
    for candidate in _candidates(view):
        for content_part in candidate.parts:
            thought = content_part.get("thought")
            if not isinstance(thought, bool | None):
                yield Violation(candidate.location, {"thought": thought}, '"thought":true')
            elif thought and is_unwanted:
                expected = "no thoughts: the request has no includeThoughts"
                yield Violation(candidate.location, content_part, expected, ACCEPTED)


@CHECKS.each("gem-signature", _candidates, *_ANSWERS)
def _signature(candidate: GeminiCandidate) -> Iterator[Violation]:
    for content_part in candidate.parts:
        signature = content_part.get("thoughtSignature") or ""
        if not isinstance(signature, str) or not _BASE64.fullmatch(signature):
            yield Violation(candidate.location, {"thoughtSignature": signature}, '"thoughtSignature":"<base64>"')


# Function calls


@CHECKS.rule("gem-call", *_ANSWERS)
def _call(view: TraceView) -> Iterator[Violation]:
    for candidate in _candidates(view):
        for content_part in candidate.parts:
            if not isinstance(content_part.get("functionCall"), dict | None):
                yield Violation(candidate.location, member(content_part, "functionCall"), '"functionCall":{...}')
    for group in view.gemini_reply.by_index.values():
        calls = [(candidate, function_call) for candidate in group for function_call in candidate.calls]
        if any(function_call.keys() & _STREAMED_CALL for _, function_call in calls):
            continue
        for candidate, function_call in calls:
            name, args = function_call.get("name"), function_call.get("args")
            if not isinstance(name, str) or not name or not isinstance(args, dict | None):
                expected = '"functionCall":{"name":"...","args":{...}}'
                yield Violation(candidate.location, {"functionCall": function_call}, expected)


@CHECKS.each("gem-call-ids", lambda view: view.gemini_reply.by_index.values(), *_ANSWERS)
def _call_ids(group: list[GeminiCandidate]) -> Iterator[Violation]:
    seen: set[str] = set()
    for candidate in group:
        for function_call in candidate.calls:
            id = function_call.get("id")
            if id is None or function_call.keys() & _STREAMED_CALL:
                continue
            if not isinstance(id, str) or id == "" or id in seen:
                # Clients cannot read an id that is not a string.
                form = accepted_if(isinstance(id, str))
                yield Violation(candidate.location, {"id": id}, "another id for each call, or none", form)
            else:
                seen.add(id)


# Finish reason and end


@CHECKS.each("gem-finish-reason", _candidates, *_ANSWERS)
def _finish_reason(candidate: GeminiCandidate) -> Iterator[Violation]:
    reason = candidate.json.get("finishReason")
    if reason is not None and reason not in gemini.FINISH_REASONS:
        expected = "STOP, MAX_TOKENS, SAFETY or another of the API's, and none before the end"
        yield Violation(candidate.location, {"finishReason": reason}, expected, accepted_if(isinstance(reason, str)))


@CHECKS.rule("gem-finish-once", *STREAM_KINDS)
def _finish_once(view: TraceView) -> Iterator[Violation]:
    for group in view.gemini_reply.by_index.values():
        is_finished = False
        for candidate in group:
            if is_finished and (candidate.finish_reason is not None or candidate.has_content):
                yield Violation(candidate.location, candidate.json, "nothing for the candidate after its finishReason")
            is_finished = is_finished or candidate.finish_reason is not None


@CHECKS.rule("gem-no-early-eof", *_ANSWERS, needs=("end",))
def _no_early_eof(view: TraceView) -> Iterator[Violation]:
    yield from truncated_reply(view)
    if view.reply_kind is ReplyKind.ARRAY and not view.is_array_closed:
        yield Violation(len(view.frames) or None, "the end of the body before the end of the array", "]")
    elif view.reply_kind is not ReplyKind.WHOLE and not view.all_errors:
        for group in view.gemini_reply.unfinished:
            observed = f"the end of the stream before a finishReason for candidate {group[0].index}"
            yield Violation(group[-1].location, observed, '"finishReason":"STOP", or an error')


@CHECKS.rule("gem-blocked-prompt", *_ANSWERS)
def _blocked_prompt(view: TraceView) -> Iterator[Violation]:
    for element in _elements(view):
        reason = element.block_reason
        if reason is not None and reason not in gemini.BLOCK_REASONS:
            expected = "SAFETY, OTHER, BLOCKLIST or another of the API's"
            yield Violation(element.location, {"blockReason": reason}, expected, accepted_if(isinstance(reason, str)))
    if view.gemini_reply.is_blocked:
        for candidate in _candidates(view)[:1]:
            yield Violation(candidate.location, candidate.json, "no candidate for a blocked prompt", ACCEPTED)


@CHECKS.rule("gem-whole-reply", ReplyKind.WHOLE)
def _whole_reply(view: TraceView) -> Iterator[Violation]:
    if view.is_error_reply or view.gemini_reply.is_blocked:
        return
    if not view.gemini_reply.candidates:
        expected = f'{{"candidates":[{{{_EXPECTED_CONTENT},"finishReason":"STOP"}}]}}'
        yield Violation(None, view.body_text[:1000], expected)
    for group in view.gemini_reply.unfinished:
        yield Violation(None, group[0].json, '"finishReason":"STOP"')


# Envelope and usage


@CHECKS.rule("gem-envelope", *_ANSWERS)
def _envelope(view: TraceView) -> Iterator[Violation]:
    for name in ("modelVersion", "responseId"):
        first: str | None = None
        for element in _elements(view):
            value = element.json.get(name)
            if not isinstance(value, str | None):
                yield Violation(element.location, {name: value}, f'"{name}":"..."')
            elif value is not None and first is not None and value != first:
                yield Violation(element.location, {name: value}, f"{first[:80]} as before", ACCEPTED)
            else:
                first = first or value


def _usages(view: TraceView) -> Iterator[GeminiElement]:
    return (element for element in _elements(view) if element.json.get("usageMetadata") is not None)


def _count(usage: dict[str, Any], name: str) -> int:
    """Return a count; protobuf leaves out a 0."""
    value = usage.get(name)
    return value if is_int(value) else 0


def _has_valid_counts(usage: dict[str, Any]) -> bool:
    return all(usage.get(name) is None or is_int(usage[name]) for name in gemini.TOKEN_COUNTS)


@CHECKS.each("gem-usage-counts", _usages, *_ANSWERS)
def _usage_counts(element: GeminiElement) -> Iterator[Violation]:
    wrong = [name for name in gemini.TOKEN_COUNTS if not _is_count(element.usage.get(name))]
    if wrong or not isinstance(element.json["usageMetadata"], dict):
        observed = {"usageMetadata": element.json["usageMetadata"]}
        is_readable = bool(wrong) and _has_valid_counts(element.usage)
        yield Violation(element.location, observed, "counts as integers from 0 on", accepted_if(is_readable))


def _is_count(value: object) -> bool:
    return value is None or (is_int(value) and value >= 0)


@CHECKS.each("gem-usage-total", _usages, *_ANSWERS)
def _usage_total(element: GeminiElement) -> Iterator[Violation]:
    usage = element.usage
    total = sum(_count(usage, name) for name in gemini.SUMMED_COUNTS)
    if _has_valid_counts(usage) and usage and _count(usage, "totalTokenCount") != total:
        yield Violation(element.location, {"usageMetadata": usage}, f'"totalTokenCount":{total}')


@CHECKS.rule("gem-usage-cumulative", *STREAM_KINDS)
def _usage_cumulative(view: TraceView) -> Iterator[Violation]:
    for before, element in pairwise(_usages(view)):
        for name in gemini.TOKEN_COUNTS:
            old, new = _count(before.usage, name), _count(element.usage, name)
            if new < old and _has_valid_counts(element.usage):
                yield Violation(element.location, {name: new}, f"{old} or more, as before")


@CHECKS.rule("gem-usage-last", *STREAM_KINDS)
def _usage_last(view: TraceView) -> Iterator[Violation]:
    elements = _elements(view)
    is_sent = any(element.usage for element in elements)
    if is_sent and not elements[-1].usage and not view.all_errors and not view.gemini_reply.unfinished:
        yield Violation(elements[-1].location, "no usageMetadata", "usageMetadata on the last element too")


# Errors


def _error_problem(value: dict[str, Any]) -> bool | None:
    """Return None for an error in Google's shape, and otherwise whether clients can read it."""
    error = as_object(value.get("error"))
    code = error.get("code")
    is_readable = is_int(code) and 400 <= code < 600 and isinstance(error.get("message"), str)
    return None if is_readable and isinstance(error.get("status"), str) else is_readable


def _error_body(view: TraceView) -> dict[str, Any]:
    """Return the body of an error; of an array, which streams without alt=sse have, its only element."""
    value = view.first_value.json
    return as_object(value[0] if isinstance(value, list) and len(value) == 1 else value)


def _is_failed(view: TraceView) -> bool:
    return view.reply_kind is ReplyKind.HTTP_ERROR or (view.reply_kind not in STREAM_KINDS and view.is_error_reply)


@CHECKS.rule("gem-error-element", *STREAM_KINDS)
def _error_element(view: TraceView) -> Iterator[Violation]:
    for message in view.all_errors:
        problem = _error_problem(message.json)
        # google-genai for Python compares the first bytes.
        is_first = next(iter(message.json), None) == "error"
        if problem is not None or not is_first:
            yield Violation(message, message.value.source, _EXPECTED_ERROR, accepted_if(bool(problem) and is_first))


@CHECKS.rule("gem-error-last", *STREAM_KINDS)
def _error_last(view: TraceView) -> Iterator[Violation]:
    for first in view.all_errors[:1]:
        for message in view.messages_after(first):
            yield Violation(message, message.value.source, "nothing after the error")


@CHECKS.rule("gem-error-body", ReplyKind.WHOLE, ReplyKind.JSON_INSTEAD_OF_STREAM, ReplyKind.HTTP_ERROR)
def _error_shape(view: TraceView) -> Iterator[Violation]:
    if _is_failed(view) and (problem := _error_problem(_error_body(view))) is not None:
        yield Violation(None, view.body_text[:1000], _EXPECTED_ERROR, accepted_if(problem))


@CHECKS.rule("gem-error-status", *ReplyKind)
def _error_status(view: TraceView) -> Iterator[Violation]:
    errors: list[tuple[StreamMessage | None, dict[str, Any]]] = [(event, event.json) for event in view.error_events]
    http_status = view.trace.status if view.reply_kind is ReplyKind.HTTP_ERROR else None
    if _is_failed(view):
        errors.append((None, _error_body(view)))
    for location, value in errors:
        error = as_object(value.get("error"))
        code, status = error.get("code"), error.get("status")
        if not is_int(code) or not isinstance(status, str):
            continue  # gem-error-body or gem-error-element reports it
        allowed = gemini.STATUSES_BY_CODE.get(code, gemini.STATUSES)
        if status not in allowed:
            expected = f"one of {', '.join(sorted(allowed))}"
            yield Violation(location, {"code": code, "status": status}, expected)
        if http_status not in (None, code):
            yield Violation(location, {"code": code}, f'"code":{http_status}, the status of the response')
