"""Checks of /v1/responses: items and parts, lifecycle events, Response objects and errors (`resp-`)."""

from collections.abc import Iterable, Iterator
from typing import Any

from welldone.rules.checks.framing import empty_data, truncated_reply
from welldone.rules.rule_check import ACCEPTED, CheckList, Located, Violation, accepted_if, member
from welldone.rules.schemas import item_mismatches, part_mismatches, response_mismatches
from welldone.rules.view import responses
from welldone.rules.view.choices import as_list, as_object, as_text, is_int
from welldone.rules.view.responses import PART_EVENTS, ResponsesEvent, ResponsesItem, StreamedText, part_text, text_in
from welldone.rules.view.stream import ERROR_KINDS, MessageKind
from welldone.rules.view.view import ReplyKind, TraceView

CHECKS = CheckList()

FINAL_ITEM_STATUSES = ("completed", "incomplete")
_EXPECTED_FINAL_STATUS = " or ".join(f'"status":"{status}"' for status in FINAL_ITEM_STATUSES)
_ITEMS_WITH_STATUS = ("message", "function_call")
"""Item types with a required status."""
_ITEMS_WITH_PARTS = ("message", "reasoning")
"""Item types whose parts have text."""
_STABLE_ITEM_MEMBERS = ("id", "type", "call_id", "name", "arguments", "input")
"""Members that are equal in output_item.done and in the final output."""


@CHECKS.rule("resp-output-index")
def _output_index(view: TraceView) -> Iterator[Violation]:
    for event, item in view.responses_stream.item_events:
        if event.output_index != item.index:
            yield Violation(event, _event_member(event, "output_index"), f'"output_index":{item.index}')


@CHECKS.rule("resp-content-index")
def _content_index(view: TraceView) -> Iterator[Violation]:
    for event, text in view.responses_stream.part_events:
        if event.part_index != text.index:
            name = f"{event.part_list}_index"
            yield Violation(event, _event_member(event, name), f'"{name}":{text.index}')


def _event_member(event: ResponsesEvent, name: str) -> object:
    return {name: event.json[name]} if name in event.json else f"{event.type} without {name}"


@CHECKS.rule("resp-item-id-stable")
def _item_ids(view: TraceView) -> Iterator[Violation]:
    used: set[str] = set()
    for event, item in view.responses_stream.item_events:
        expected = item.id
        if event is item.first_event and expected:
            if expected in used:
                yield Violation(event, expected, "an id of its own for each item")
            used.add(expected)
        # resp-function-ids reports a call without an id.
        is_call = event.item.get("type") == "function_call" and not event.item_id
        if (event.item_id != expected or not expected) and not is_call:
            name = "item_id" if event.has_item_id else "item.id"
            observed = f"{name} {event.item_id}" if event.item_id else f"{event.type} without {name}"
            if event.has_item_id or event.type in (responses.ITEM_ADDED, responses.ITEM_DONE):
                yield Violation(event, observed, f'"{expected[:80] or "…"}", the id of the item')


@CHECKS.each("resp-item-added-first", lambda view: view.responses_stream.items)
def _item_added(item: ResponsesItem) -> Iterator[Violation]:
    if item.first_event.type != responses.ITEM_ADDED:
        yield Violation(item.first_event, item.first_event.type, f"{responses.ITEM_ADDED} before it")


@CHECKS.rule("resp-part-added-first")
def _part_added(view: TraceView) -> Iterator[Violation]:
    return _missing_part_added(text for text in _all_texts(view) if not text.is_reasoning)


def _all_texts(view: TraceView) -> Iterator[StreamedText]:
    return (text for item in view.responses_stream.items for text in item.all_texts)


def _missing_part_added(texts: Iterable[StreamedText]) -> Iterator[Violation]:
    """Report texts outside a part, or in a part of another type."""
    for text in texts:
        event = text.mismatched_event if text.first_event is text.part_added else text.first_event
        if event is not None:
            expected = f"{_part_event(event)}.added of type {event.part_type[:80]} before it"
            yield Violation(event, event.type, expected)


def _part_event(event: ResponsesEvent) -> str:
    return PART_EVENTS[1] if event.part_list == "summary" else PART_EVENTS[0]


@CHECKS.rule("resp-reasoning-parts")
def _reasoning_parts(view: TraceView) -> Iterator[Violation]:
    return _missing_part_added(text for text in _all_texts(view) if text.is_reasoning)


@CHECKS.each("resp-deltas", lambda view: view.responses_stream.items)
def _text_deltas(item: ResponsesItem) -> Iterator[Violation]:
    for text in item.all_texts:
        event = text.text_done or text.part_done
        if event is not None and not text.deltas and _full_text(event):
            yield Violation(event, {"text": _full_text(event)}, f"{_text_event(text.part_type)}.delta events before it")
    if item.done is not None and item.type in _ITEMS_WITH_PARTS:
        for part_list, texts in item.texts.items():
            for content_part in filter(part_text, as_list(item.done.item.get(part_list))[len(texts) :]):
                yield Violation(item.done, content_part, "the events that open this part and carry its text before it")


def _full_text(event: ResponsesEvent) -> str:
    return part_text(event.json.get("part")) if event.event_prefix in PART_EVENTS else as_text(event.full_value)


def _text_event(part_type: str) -> str:
    """Return the prefix of the events that carry the text of a part."""
    return f"response.{'reasoning_summary_text' if part_type == 'summary_text' else part_type[:80]}"


@CHECKS.rule("resp-done-events")
def _done_events(view: TraceView) -> Iterator[Violation]:
    stream = view.responses_stream
    yield from (Violation(event, event.type, "no event about it after it is done") for event in stream.late_events)
    for item in stream.items if stream.is_complete else ():
        for text in item.all_texts:
            yield from _missing_done_events(text)
        if item.done is None:
            yield Violation(
                item.last_event, f"item {item.index} is never done", f"{responses.ITEM_DONE} with the whole item"
            )
        else:
            yield from _missing_item_text(item, item.done)


def _missing_done_events(text: StreamedText) -> Iterator[Violation]:
    last = text.text_done or text.part_done or text.first_event
    part_type = text.part_type[:80]
    if text.text_done is None and text.part_type in responses.TEXT_EVENTS.values():
        yield Violation(last, f"{part_type} without its whole value", f"{_text_event(part_type)}.done")
    if text.part_done is None:
        yield Violation(last, f"a part of type {part_type} that is not closed", f"{_part_event(last)}.done")
    for event in (text.text_done, text.part_done):
        if event is not None and text.text and not _full_text(event):
            yield Violation(event, f"{event.type} without the text", "the whole text that was streamed")


def _missing_item_text(item: ResponsesItem, done: ResponsesEvent) -> Iterator[Violation]:
    for text in item.all_texts:
        if text.text and not text_in(done.item, text):
            yield Violation(done, f"{done.type} without the text", f"the whole item, with its {text.part_list}")
    if item.input_text is not None and item.input_text.text and not _tool_input(done.item):
        yield Violation(done, f"{done.type} without the arguments", "the whole item, with its arguments")


def _tool_input(item: dict[str, Any]) -> str:
    return next((text for name in ("arguments", "input", "code") if (text := as_text(item.get(name)))), "")


@CHECKS.each("resp-delta-equals-done", lambda view: view.responses_stream.items)
def _deltas_equal_done(item: ResponsesItem) -> Iterator[Violation]:
    for text in item.all_texts:
        whole = [(event, _full_text(event)) for event in (text.text_done, text.part_done) if event is not None]
        whole += [] if item.done is None else [(item.done, text_in(item.done.item, text))]
        yield from _differing_texts(text, whole)
    if item.input_text is not None:
        input_done = item.input_text.text_done
        whole = [] if input_done is None else [(input_done, as_text(input_done.full_value))]
        whole += [] if item.done is None else [(item.done, _tool_input(item.done.item))]
        yield from _differing_texts(item.input_text, whole)


def _differing_texts(streamed: StreamedText, full_texts: list[tuple[ResponsesEvent, str]]) -> Iterator[Violation]:
    for event, full_text in full_texts:
        if streamed.deltas and full_text and full_text != streamed.text:
            yield Violation(event, full_text, f"the deltas joined: {streamed.text[:100]}")


@CHECKS.rule("resp-function-ids", ReplyKind.STREAM, ReplyKind.WHOLE)
def _function_ids(view: TraceView) -> Iterator[Violation]:
    for whole_item in _whole_items(view):
        if whole_item.get("type") == "function_call":
            yield from _incomplete_call(None, whole_item)
    for item in view.responses_stream.items:
        events = [event for event in (item.added, item.done) if event and event.item.get("type") == "function_call"]
        for event in events:
            yield from _incomplete_call(event, event.item)
            for name in ("call_id", "name"):
                before, now = as_text(events[0].item.get(name)), as_text(event.item.get(name))
                if now and now != before:
                    yield Violation(event, {name: now}, f'"{name}":"{before[:80]}", as before')
        if events and events[0] is item.added and events[0].item.get("arguments"):
            yield Violation(events[0], {"arguments": events[0].item["arguments"]}, '"arguments":"" at first')


def _incomplete_call(location: ResponsesEvent | None, item: dict[str, Any]) -> Iterator[Violation]:
    missing = [name for name in ("id", "call_id", "name") if not as_text(item.get(name))]
    missing += [] if isinstance(item.get("arguments"), str) else ["arguments"]
    if missing:
        yield Violation(location, item, f"{', '.join(missing)} as a string")


def _whole_items(view: TraceView) -> list[dict[str, Any]]:
    """Return the output items of a non-streamed reply."""
    output = as_list(view.reply_object.get("output")) if view.reply_kind is ReplyKind.WHOLE else []
    return [as_object(item) for item in output]


@CHECKS.rule("resp-args-done")
def _args_done(view: TraceView) -> Iterator[Violation]:
    expected = "response.function_call_arguments.done with the arguments"
    for item in view.responses_stream.items if view.responses_stream.is_complete else ():
        done = item.input_text.text_done if item.input_text is not None else None
        if item.type == "function_call" and done is None:
            yield Violation(item.last_event, f"call {item.index} has no end of its arguments", expected)
        elif item.type == "function_call" and done and not isinstance(done.json.get("arguments"), str):
            yield Violation(done, done.json, expected)


@CHECKS.rule("resp-item-status", ReplyKind.STREAM, ReplyKind.WHOLE)
def _item_status(view: TraceView) -> Iterator[Violation]:
    for whole_item in _whole_items(view):
        if whole_item.get("type") in _ITEMS_WITH_STATUS and whole_item.get("status") not in FINAL_ITEM_STATUSES:
            yield Violation(None, _status_fragment(whole_item), _EXPECTED_FINAL_STATUS)
    for item in view.responses_stream.items:
        if item.added and item.type in _ITEMS_WITH_STATUS and item.added.item.get("status") != "in_progress":
            yield Violation(item.added, _status_fragment(item.added.item), '"status":"in_progress"')
        if item.done is not None:
            yield from _done_status(item, item.done)


def _done_status(item: ResponsesItem, done: ResponsesEvent) -> Iterator[Violation]:
    status = done.item.get("status")
    was_open = item.added is not None and item.added.item.get("status") == "in_progress"
    is_ended = status in FINAL_ITEM_STATUSES if item.type in _ITEMS_WITH_STATUS else status not in ("in_progress", None)
    if not is_ended and (item.type in _ITEMS_WITH_STATUS or was_open or status is not None):
        yield Violation(done, _status_fragment(done.item), _EXPECTED_FINAL_STATUS)


def _status_fragment(item: dict[str, Any]) -> object:
    return {"status": item["status"]} if "status" in item else f"{as_text(item.get('type'))[:80]} without status"


@CHECKS.rule("resp-final-output")
def _final_output(view: TraceView) -> Iterator[Violation]:
    stream = view.responses_stream
    end = stream.end_event if stream.is_complete else None
    if end is None:
        return
    final_items = [as_object(item) for item in as_list(end.response.get("output"))]
    if len(final_items) == len(stream.items):
        for item, final in zip(stream.items, final_items, strict=True):
            yield from _differing_output(item, final, end)
    else:
        yield Violation(end, f"{len(final_items)} items in the output", f"the {len(stream.items)} that were streamed")


def _differing_output(item: ResponsesItem, final: dict[str, Any], end: ResponsesEvent) -> Iterator[Violation]:
    streamed = item.done.item if item.done is not None else {"id": item.id}
    for name in _STABLE_ITEM_MEMBERS:
        value = as_text(streamed.get(name))
        if value and as_text(final.get(name)) != value:
            yield Violation(end, {name: final.get(name)}, f"{name} as it was streamed: {value[:80]}")
    for text in item.all_texts:
        expected = text_in(streamed, text) or text.text
        if text_in(final, text) != expected:
            yield Violation(end, final, f"the text that was streamed: {expected[:80]}")


# Lifecycle events, Response objects, errors

REQUIRED_RESPONSE_MEMBERS = ("id", "object", "created_at", "model", "status", "output")
"""Members of a Response that clients need."""
RESPONSES_USAGE_COUNTS = ("input_tokens", "output_tokens", "total_tokens")
RESPONSES_USAGE_DETAILS = {"input_tokens_details": "cached_tokens", "output_tokens_details": "reasoning_tokens"}

_STATUSES_WITH_USAGE = ("completed", "incomplete")
_EXPECTED_FAILURE = "response.failed with response.error {code, message}"


@CHECKS.rule("resp-created-first")
def _created_first(view: TraceView) -> Iterator[Violation]:
    events = [event for event in view.responses_stream.events if event.type != responses.KEEPALIVE_EVENT]
    if events and events[0].type != responses.RESPONSE_CREATED:
        yield Violation(events[0], events[0].type or events[0].json, f"{responses.RESPONSE_CREATED} before it")
    for event in events[1:]:
        if event.type == responses.RESPONSE_CREATED:
            yield Violation(event, event.type, f"{responses.RESPONSE_CREATED} once, at the beginning")


def _response_objects(view: TraceView) -> Iterator[tuple[ResponsesEvent | None, dict[str, Any]]]:
    """Yield each Response with its event."""
    if view.reply_kind is not ReplyKind.WHOLE:
        yield from ((event, event.response) for event in view.responses_stream.lifecycle_events)
    elif not view.is_error_reply:
        yield None, view.reply_object


@CHECKS.rule("resp-created-full", ReplyKind.STREAM, ReplyKind.WHOLE)
def _created_full(view: TraceView) -> Iterator[Violation]:
    for location, response in _response_objects(view):
        if wrong := _missing_response_members(response):
            observed = {name: value for name, value in response.items() if name != "output"}
            yield Violation(location, observed, f"a whole Response, with {', '.join(wrong)}")


def _missing_response_members(response: dict[str, Any]) -> list[str]:
    return [name for name in REQUIRED_RESPONSE_MEMBERS if not _is_member_valid(name, response.get(name))]


@CHECKS.rule("resp-object-schema", ReplyKind.STREAM, ReplyKind.WHOLE)
def _object_schema(view: TraceView) -> Iterator[Violation]:
    for location, response in _response_objects(view):
        if not _missing_response_members(response):
            yield from _schema_violation(location, response, response_mismatches(response, has_ids=location is None))
    for event, _ in view.responses_stream.item_events:
        if event.event_prefix in PART_EVENTS:
            yield from _schema_violation(event, event.json, part_mismatches(event.json.get("part"), "part."))
        elif event.type in (responses.ITEM_ADDED, responses.ITEM_DONE):
            yield from _schema_violation(event, event.json, item_mismatches(event.item, "item.", has_ids=False))


def _schema_violation(location: Located | None, value: dict[str, Any], wrong: list[str]) -> Iterator[Violation]:
    names = [name.partition(" ")[0] for name in wrong]
    is_missing = all("." not in name and name not in value for name in names)
    if wrong:
        yield Violation(location, f"no {', '.join(names)}" if is_missing else value, ", ".join(wrong))


def _is_member_valid(name: str, value: object) -> bool:
    if name == "created_at":
        return is_int(value) or isinstance(value, float)
    if name == "output":
        return isinstance(value, list)
    return value == "response" if name == "object" else isinstance(value, str) and value != ""


@CHECKS.each("resp-event-name", lambda view: view.responses_stream.events)
def _event_name(event: ResponsesEvent) -> Iterator[Violation]:
    name = event.message.frame.event
    if name != event.type:
        yield Violation(event, f"event: {name}" if name else "no event: line", f"event: {event.type[:80]}")


@CHECKS.rule("resp-sequence-number")
def _sequence_number(view: TraceView) -> Iterator[Violation]:
    expected = 0
    for event in view.responses_stream.events:
        number = event.json.get("sequence_number")
        if number is None and event.type == responses.KEEPALIVE_EVENT:
            continue
        if not is_int(number) or number != expected:
            observed = "no sequence_number" if number is None else {"sequence_number": number}
            yield Violation(event, observed, f'"sequence_number":{expected}')
        expected = (number if is_int(number) else expected) + 1


@CHECKS.rule("resp-terminal-once", ReplyKind.STREAM, ReplyKind.WHOLE, needs=("end",))
def _terminal_once(view: TraceView) -> Iterator[Violation]:
    yield from truncated_reply(view)
    end = view.responses_stream.end_event
    if end is None:
        # resp-error covers failures.
        if view.events and not view.all_errors:
            yield Violation(
                view.events[-1], "the end of the stream", f"one of {', '.join(responses.RESPONSE_END_EVENTS)}"
            )
        return
    status = end.response.get("status")
    if isinstance(status, str) and status and end.type != f"response.{status}":
        yield Violation(end, {"type": end.type, "status": status}, f"response.{status[:80]}")
    for message in view.messages_after(end.message):
        # Most clients ignore the sentinel of chat here; some fail to parse it as JSON.
        form = accepted_if(message.kind is MessageKind.DONE)
        yield Violation(message, message.value.source, f"nothing after {end.type}", form)


@CHECKS.rule("resp-usage", ReplyKind.STREAM, ReplyKind.WHOLE)
def _usage(view: TraceView) -> Iterator[Violation]:
    stream = view.responses_stream
    for location, response in _response_objects(view):
        is_ended = response.get("status") in _STATUSES_WITH_USAGE if location is None else stream.is_complete
        if location is not stream.end_event or not is_ended:
            continue  # only the terminal event needs usage
        usage = response.get("usage")
        if usage is None:
            yield Violation(location, "no usage", "usage with its counts and details", "missing")
        elif wrong := _invalid_counts(as_object(usage)):
            yield Violation(location, {"usage": usage}, f"{', '.join(wrong)} as integers")


def _invalid_counts(usage: dict[str, Any]) -> list[str]:
    counts = {name: usage.get(name) for name in RESPONSES_USAGE_COUNTS}
    for name, count in RESPONSES_USAGE_DETAILS.items():
        counts[f"{name}.{count}"] = as_object(usage.get(name)).get(count)
    return [name for name, count in counts.items() if not is_int(count)]


@CHECKS.rule("resp-response-id")
def _response_id(view: TraceView) -> Iterator[Violation]:
    with_id = [event for event in view.responses_stream.lifecycle_events if as_text(event.response.get("id"))]
    for event in with_id:
        first = with_id[0].response["id"]
        if event.response["id"] != first:
            yield Violation(event, {"id": event.response["id"]}, f'"id":"{first[:80]}", as before')


@CHECKS.rule("resp-no-unknown-events")
def _unknown_events(view: TraceView) -> Iterator[Violation]:
    for message in view.messages:
        if message.kind is MessageKind.FOREIGN:
            yield Violation(message, message.value.source, "an object with a type of the specification")
    for event in view.responses_stream.events:
        if event.type not in responses.RESPONSES_EVENT_TYPES or "type" not in event.json:
            observed = {"type": event.type} if "type" in event.json else "an event without a type"
            yield Violation(event, observed, "an event with a type of the specification")


@CHECKS.rule("resp-keepalive")
def _keepalive(view: TraceView) -> Iterator[Violation]:
    yield from empty_data(view)
    for event in view.responses_stream.events:
        if event.type == responses.RESPONSE_CREATED:
            return
        if event.type == responses.KEEPALIVE_EVENT:
            yield Violation(event, event.type, f"a comment, as long as {responses.RESPONSE_CREATED} has not come")


@CHECKS.rule("resp-error")
def _error(view: TraceView) -> Iterator[Violation]:
    for message in view.messages:
        if message.kind in ERROR_KINDS:
            yield Violation(message, message.value.source, _EXPECTED_FAILURE)
    for event in view.responses_stream.events:
        if event.type == responses.RESPONSES_ERROR_EVENT:
            yield from _error_event(view, event)
        elif event.type == "response.failed" and not _is_response_error(event.response.get("error")):
            yield Violation(event, {"error": event.response.get("error")}, _EXPECTED_FAILURE)


def _error_event(view: TraceView, event: ResponsesEvent) -> Iterator[Violation]:
    # OpenAI's server uses both forms: the members in `error`, or in the event itself.
    inner = as_object(event.json.get("error"))
    error = inner or event.json
    is_whole = isinstance(error.get("type"), str) if inner else all(name in error for name in ("code", "param"))
    if not is_whole or not isinstance(error.get("message"), str) or not isinstance(error.get("code"), str | None):
        yield Violation(event, event.json, 'code, message and param beside "type":"error"')
    elif view.responses_stream.end_event is None and view.trace.end is not None:
        yield Violation(event, "the end of the stream after it", _EXPECTED_FAILURE, ACCEPTED)


def _is_response_error(error: object) -> bool:
    members = as_object(error)
    return isinstance(members.get("message"), str) and isinstance(members.get("code"), str)


@CHECKS.each("resp-logprobs-array", lambda view: view.responses_stream.events)
def _logprobs(event: ResponsesEvent) -> Iterator[Violation]:
    is_text = event.type in ("response.output_text.delta", "response.output_text.done")
    if is_text and not isinstance(event.json.get("logprobs"), list):
        yield Violation(event, member(event.json, "logprobs"), '"logprobs":[]')
