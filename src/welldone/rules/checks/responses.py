"""Checks of /v1/responses: items and parts, lifecycle events, Response objects and errors (`resp-`)."""

from collections.abc import Iterator
from typing import Any

from welldone.protocol.catalog import Severity
from welldone.rules.checks.framing import empty_data, truncated_reply
from welldone.rules.rule_check import RuleCheck, Violation
from welldone.rules.schemas import item_mismatches, part_mismatches, response_mismatches
from welldone.rules.view.choices import as_list, as_object, as_text, is_int
from welldone.rules.view.responses import (
    ITEM_ADDED,
    ITEM_DONE,
    KEEPALIVE_EVENT,
    PART_EVENTS,
    RESPONSE_CREATED,
    RESPONSE_END_EVENTS,
    RESPONSES_ERROR_EVENT,
    RESPONSES_EVENT_TYPES,
    TEXT_EVENTS,
    ResponsesEvent,
    ResponsesItem,
    StreamedText,
    part_text,
    text_at,
)
from welldone.rules.view.stream import ERROR_KINDS, MessageKind, StreamMessage
from welldone.rules.view.view import ReplyKind, TraceView

FINAL_ITEM_STATUSES = ("completed", "incomplete")
_EXPECTED_FINAL_STATUS = " or ".join(f'"status":"{status}"' for status in FINAL_ITEM_STATUSES)
_ITEMS_WITH_STATUS = ("message", "function_call")
"""Item types with a required status."""
_ITEMS_WITH_PARTS = ("message", "reasoning")
"""Item types whose parts have text."""
_STABLE_ITEM_MEMBERS = ("id", "type", "call_id", "name", "arguments", "input")
"""Members that are equal in output_item.done and in the final output."""


def output_index(view: TraceView) -> Iterator[Violation]:
    """Report events whose `output_index` is not that of their item."""
    for event, item in view.responses_stream.item_events:
        if event.output_index != item.index:
            yield Violation(event.message, _event_member(event, "output_index"), f'"output_index":{item.index}')


def content_index(view: TraceView) -> Iterator[Violation]:
    """Report events whose index is not that of their part."""
    for event, text in view.responses_stream.part_events:
        if event.part_index != text.index:
            name = f"{event.part_list}_index"
            yield Violation(event.message, _event_member(event, name), f'"{name}":{text.index}')


def _event_member(event: ResponsesEvent, name: str) -> object:
    return {name: event.json[name]} if name in event.json else f"{event.type} without {name}"


def item_ids(view: TraceView) -> Iterator[Violation]:
    """Report items without a unique id, and events with another id than their item."""
    used: set[str] = set()
    for event, item in view.responses_stream.item_events:
        expected = item.id
        if event is item.first_event and expected:
            if expected in used:
                yield Violation(event.message, expected, "an id of its own for each item")
            used.add(expected)
        # resp-function-ids reports a call without an id.
        is_call = event.item.get("type") == "function_call" and not event.item_id
        if (event.item_id != expected or not expected) and not is_call:
            name = "item_id" if event.has_item_id else "item.id"
            observed = f"{name} {event.item_id}" if event.item_id else f"{event.type} without {name}"
            if event.has_item_id or event.type in (ITEM_ADDED, ITEM_DONE):
                yield Violation(event.message, observed, f'"{expected[:80] or "…"}", the id of the item')


def item_added(view: TraceView) -> Iterator[Violation]:
    """Report items whose first event is not output_item.added."""
    for item in view.responses_stream.items:
        if item.first_event.type != ITEM_ADDED:
            yield Violation(item.first_event.message, item.first_event.type, f"{ITEM_ADDED} before it")


def part_added(view: TraceView) -> Iterator[Violation]:
    """Report text and refusals outside a part, or in a part of another type."""
    for text in _all_texts(view):
        if not text.is_reasoning:
            yield from _missing_part_added(text)


def _all_texts(view: TraceView) -> Iterator[StreamedText]:
    return (text for item in view.responses_stream.items for text in item.all_texts)


def _missing_part_added(text: StreamedText) -> Iterator[Violation]:
    event = text.mismatched_event if text.first_event is text.part_added else text.first_event
    if event is not None:
        name = PART_EVENTS[1] if event.part_list == "summary" else PART_EVENTS[0]
        yield Violation(event.message, event.type, f"{name}.added of type {event.part_type[:80]} before it")


def reasoning_parts(view: TraceView) -> Iterator[Violation]:
    """Report reasoning outside a part, or in a part of another type."""
    for text in _all_texts(view):
        if text.is_reasoning:
            yield from _missing_part_added(text)


def text_deltas(view: TraceView) -> Iterator[Violation]:
    """Report text that is only in done events."""
    for item in view.responses_stream.items:
        for text in item.all_texts:
            event = text.text_done or text.part_done
            if event is not None and not text.deltas and _full_text(event):
                yield Violation(
                    event.message, {"text": _full_text(event)}, f"{_delta_event(text.part_type)} events before it"
                )
        if item.done is not None:
            yield from _unstreamed_parts(item, item.done)


def _unstreamed_parts(item: ResponsesItem, done: ResponsesEvent) -> Iterator[Violation]:
    """Report parts of output_item.done without earlier events."""
    for part_list, texts in item.texts.items() if item.type in _ITEMS_WITH_PARTS else ():
        for part in as_list(done.item.get(part_list))[len(texts) :]:
            if part_text(part):
                yield Violation(done.message, part, "the events that open this part and carry its text before it")


def _full_text(event: ResponsesEvent) -> str:
    return part_text(event.json.get("part")) if event.event_prefix in PART_EVENTS else as_text(event.full_value)


def _delta_event(part_type: str) -> str:
    name = "reasoning_summary_text" if part_type == "summary_text" else part_type
    return f"response.{name[:80]}.delta"


def done_events(view: TraceView) -> Iterator[Violation]:
    """Report missing done events, done events without their value, and events after done."""
    stream = view.responses_stream
    yield from (
        Violation(event.message, event.type, "no event about it after it is done") for event in stream.late_events
    )
    if not stream.is_complete:
        return
    for item in stream.items:
        for text in item.all_texts:
            yield from _missing_done_events(text)
        if item.done is None:
            yield Violation(
                item.last_event.message, f"item {item.index} is never done", f"{ITEM_DONE} with the whole item"
            )
        else:
            yield from _missing_item_text(item, item.done)


def _missing_done_events(text: StreamedText) -> Iterator[Violation]:
    last = text.text_done or text.part_done or text.first_event
    if text.text_done is None and text.part_type in TEXT_EVENTS.values():
        yield Violation(
            last.message, f"{text.part_type[:80]} without its whole value", _delta_event(text.part_type)[:-5] + "done"
        )
    if text.part_done is None:
        name = PART_EVENTS[1] if last.part_list == "summary" else PART_EVENTS[0]
        yield Violation(last.message, f"a part of type {text.part_type[:80]} that is not closed", f"{name}.done")
    for event in (text.text_done, text.part_done):
        if event is not None and text.text and not _full_text(event):
            yield Violation(event.message, f"{event.type} without the text", "the whole text that was streamed")


def _missing_item_text(item: ResponsesItem, done: ResponsesEvent) -> Iterator[Violation]:
    for part_list, texts in item.texts.items():
        for text in texts:
            if text.text and not text_at(done.item, part_list, text.index):
                yield Violation(done.message, f"{done.type} without the text", f"the whole item, with its {part_list}")
    if item.input_text is not None and item.input_text.text and not _tool_input(done.item):
        yield Violation(done.message, f"{done.type} without the arguments", "the whole item, with its arguments")


def _tool_input(item: dict[str, Any]) -> str:
    return next((text for name in ("arguments", "input", "code") if (text := as_text(item.get(name)))), "")


def deltas_equal_done(view: TraceView) -> Iterator[Violation]:
    """Report done events whose value differs from the joined deltas."""
    for item in view.responses_stream.items:
        for part_list, texts in item.texts.items():
            for text in texts:
                whole = [(event, _full_text(event)) for event in (text.text_done, text.part_done) if event is not None]
                if item.done is not None:
                    whole.append((item.done, text_at(item.done.item, part_list, text.index)))
                yield from _differing_texts(text, whole)
        if item.input_text is not None:
            input_done = item.input_text.text_done
            whole = [] if input_done is None else [(input_done, as_text(input_done.full_value))]
            whole += [] if item.done is None else [(item.done, _tool_input(item.done.item))]
            yield from _differing_texts(item.input_text, whole)


def _differing_texts(streamed: StreamedText, full_texts: list[tuple[ResponsesEvent, str]]) -> Iterator[Violation]:
    for event, full_text in full_texts:
        if streamed.deltas and full_text and full_text != streamed.text:
            yield Violation(event.message, full_text, f"the deltas joined: {streamed.text[:100]}")


def function_ids(view: TraceView) -> Iterator[Violation]:
    """Report function calls with missing or changing members."""
    for whole_item in _whole_items(view):
        if whole_item.get("type") == "function_call":
            yield from _incomplete_call(None, whole_item)
    for item in view.responses_stream.items:
        events = [event for event in (item.added, item.done) if event and event.item.get("type") == "function_call"]
        for event in events:
            yield from _incomplete_call(event.message, event.item)
            yield from _changed_call_members(events[0].item, event)
        if events and events[0] is item.added and events[0].item.get("arguments"):
            yield Violation(events[0].message, {"arguments": events[0].item["arguments"]}, '"arguments":"" at first')


def _incomplete_call(location: StreamMessage | None, item: dict[str, Any]) -> Iterator[Violation]:
    missing = [name for name in ("id", "call_id", "name") if not as_text(item.get(name))]
    missing += [] if isinstance(item.get("arguments"), str) else ["arguments"]
    if missing:
        yield Violation(location, item, f"{', '.join(missing)} as a string")


def _changed_call_members(first: dict[str, Any], event: ResponsesEvent) -> Iterator[Violation]:
    for name in ("call_id", "name"):
        before, now = as_text(first.get(name)), as_text(event.item.get(name))
        if now and now != before:
            yield Violation(event.message, {name: now}, f'"{name}":"{before[:80]}", as before')


def _whole_items(view: TraceView) -> list[dict[str, Any]]:
    """Return the output items of a non-streamed reply."""
    output = as_list(view.reply_object.get("output")) if view.reply_kind is ReplyKind.WHOLE else []
    return [as_object(item) for item in output]


def args_done(view: TraceView) -> Iterator[Violation]:
    """Report function calls without a complete function_call_arguments.done."""
    expected = "response.function_call_arguments.done with the arguments"
    for item in view.responses_stream.items if view.responses_stream.is_complete else ():
        if item.type != "function_call":
            continue
        input_done = item.input_text.text_done if item.input_text is not None else None
        if input_done is None:
            yield Violation(item.last_event.message, f"call {item.index} has no end of its arguments", expected)
        elif not isinstance(input_done.json.get("arguments"), str):
            yield Violation(input_done.message, input_done.json, expected)


def item_status(view: TraceView) -> Iterator[Violation]:
    """Report items whose status does not match their state."""
    for whole_item in _whole_items(view):
        if whole_item.get("type") in _ITEMS_WITH_STATUS and whole_item.get("status") not in FINAL_ITEM_STATUSES:
            yield Violation(None, _status_fragment(whole_item), _EXPECTED_FINAL_STATUS)
    for item in view.responses_stream.items:
        if item.added and item.type in _ITEMS_WITH_STATUS and item.added.item.get("status") != "in_progress":
            yield Violation(item.added.message, _status_fragment(item.added.item), '"status":"in_progress"')
        if item.done is not None:
            yield from _done_status(item, item.done)


def _done_status(item: ResponsesItem, done: ResponsesEvent) -> Iterator[Violation]:
    status = done.item.get("status")
    was_open = item.added is not None and item.added.item.get("status") == "in_progress"
    is_ended = status in FINAL_ITEM_STATUSES if item.type in _ITEMS_WITH_STATUS else status not in ("in_progress", None)
    if not is_ended and (item.type in _ITEMS_WITH_STATUS or was_open or status is not None):
        yield Violation(done.message, _status_fragment(done.item), _EXPECTED_FINAL_STATUS)


def _status_fragment(item: dict[str, Any]) -> object:
    return {"status": item["status"]} if "status" in item else f"{as_text(item.get('type'))[:80]} without status"


def final_output(view: TraceView) -> Iterator[Violation]:
    """Report a final output that differs from the streamed items."""
    stream = view.responses_stream
    if not stream.is_complete or stream.end_event is None:
        return
    final_items = [as_object(item) for item in as_list(stream.end_event.response.get("output"))]
    if len(final_items) != len(stream.items):
        yield Violation(
            stream.end_event.message,
            f"{len(final_items)} items in the output",
            f"the {len(stream.items)} that were streamed",
        )
        return
    for item, final in zip(stream.items, final_items, strict=True):
        yield from _differing_output(item, final, stream.end_event)


def _differing_output(item: ResponsesItem, final: dict[str, Any], end: ResponsesEvent) -> Iterator[Violation]:
    streamed = item.done.item if item.done is not None else {"id": item.id}
    for name in _STABLE_ITEM_MEMBERS:
        value = as_text(streamed.get(name))
        if value and as_text(final.get(name)) != value:
            yield Violation(end.message, {name: final.get(name)}, f"{name} as it was streamed: {value[:80]}")
    for part_list, texts in item.texts.items():
        for text in texts:
            expected = text_at(streamed, part_list, text.index) or text.text
            if text_at(final, part_list, text.index) != expected:
                yield Violation(end.message, final, f"the text that was streamed: {expected[:80]}")


# Lifecycle events, Response objects, errors

REQUIRED_RESPONSE_MEMBERS = ("id", "object", "created_at", "model", "status", "output")
"""Members of a Response that clients need."""
RESPONSES_USAGE_COUNTS = ("input_tokens", "output_tokens", "total_tokens")
RESPONSES_USAGE_DETAILS = {"input_tokens_details": "cached_tokens", "output_tokens_details": "reasoning_tokens"}

_STATUSES_WITH_USAGE = ("completed", "incomplete")
_STREAM_AND_WHOLE = (ReplyKind.STREAM, ReplyKind.WHOLE)
_EXPECTED_FAILURE = "response.failed with response.error {code, message}"


def _created_first(view: TraceView) -> Iterator[Violation]:
    events = [event for event in view.responses_stream.events if event.type != KEEPALIVE_EVENT]
    if events and events[0].type != RESPONSE_CREATED:
        yield Violation(events[0].message, events[0].type or events[0].json, f"{RESPONSE_CREATED} before it")
    for event in events[1:]:
        if event.type == RESPONSE_CREATED:
            yield Violation(event.message, event.type, f"{RESPONSE_CREATED} once, at the beginning")


def _response_objects(view: TraceView) -> Iterator[tuple[StreamMessage | None, dict[str, Any]]]:
    """Yield each Response with its message."""
    if view.reply_kind is ReplyKind.WHOLE:
        if not view.is_error_reply:
            yield None, view.reply_object
    else:
        yield from ((event.message, event.response) for event in view.responses_stream.lifecycle_events)


def _created_full(view: TraceView) -> Iterator[Violation]:
    for location, response in _response_objects(view):
        if wrong := _missing_response_members(response):
            yield Violation(location, _without_member(response, "output"), f"a whole Response, with {', '.join(wrong)}")


def _missing_response_members(response: dict[str, Any]) -> list[str]:
    return [name for name in REQUIRED_RESPONSE_MEMBERS if not _is_member_valid(name, response.get(name))]


def _object_schema(view: TraceView) -> Iterator[Violation]:
    whole = (
        (location, response)
        for location, response in _response_objects(view)
        if not _missing_response_members(response)
    )
    for location, response in whole:
        if wrong := response_mismatches(response, has_ids=location is None):
            yield _schema_violation(location, response, wrong)
    for event, _ in view.responses_stream.item_events:
        wrong = part_mismatches(event.json.get("part"), "part.") if event.event_prefix in PART_EVENTS else []
        if event.type in (ITEM_ADDED, ITEM_DONE):
            wrong = item_mismatches(event.item, "item.", has_ids=False)
        if wrong:
            yield _schema_violation(event.message, event.json, wrong)


def _schema_violation(location: StreamMessage | None, value: dict[str, Any], wrong: list[str]) -> Violation:
    names = [name.partition(" ")[0] for name in wrong]
    is_missing = all("." not in name and name not in value for name in names)
    return Violation(location, f"no {', '.join(names)}" if is_missing else value, ", ".join(wrong))


def _is_member_valid(name: str, value: object) -> bool:
    if name == "created_at":
        return is_int(value) or isinstance(value, float)
    if name == "output":
        return isinstance(value, list)
    return value == "response" if name == "object" else isinstance(value, str) and value != ""


def _without_member(response: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in response.items() if key != name}


def _event_name(view: TraceView) -> Iterator[Violation]:
    for event in view.responses_stream.events:
        name = event.message.frame.event
        if name != event.type:
            yield Violation(event.message, f"event: {name}" if name else "no event: line", f"event: {event.type[:80]}")


def _sequence_number(view: TraceView) -> Iterator[Violation]:
    expected = 0
    for event in view.responses_stream.events:
        number = event.json.get("sequence_number")
        if number is None and event.type == KEEPALIVE_EVENT:
            continue
        if not is_int(number) or number != expected:
            observed = "no sequence_number" if number is None else {"sequence_number": number}
            yield Violation(event.message, observed, f'"sequence_number":{expected}')
        expected = (number if is_int(number) else expected) + 1


def _terminal_once(view: TraceView) -> Iterator[Violation]:
    yield from truncated_reply(view)
    end = view.responses_stream.end_event
    if end is None:
        # resp-error covers failures.
        if view.events and not view.all_errors:
            yield Violation(view.events[-1], "the end of the stream", f"one of {', '.join(RESPONSE_END_EVENTS)}")
        return
    status = end.response.get("status")
    if isinstance(status, str) and status and end.type != f"response.{status}":
        yield Violation(end.message, {"type": end.type, "status": status}, f"response.{status[:80]}")
    for message in view.messages_after(end.message):
        # Most clients ignore the sentinel of chat here; some fail to parse it as JSON.
        severity = Severity.TOLERATED if message.kind is MessageKind.DONE else None
        yield Violation(message, message.value.source, f"nothing after {end.type}", severity)


def _usage(view: TraceView) -> Iterator[Violation]:
    last = None if view.responses_stream.end_event is None else view.responses_stream.end_event.message
    for location, response in _response_objects(view):
        usage = response.get("usage")
        is_ended = (
            response.get("status") in _STATUSES_WITH_USAGE if location is None else view.responses_stream.is_complete
        )
        if location is not last or not is_ended:
            continue  # only the terminal event needs usage
        if usage is None:
            yield Violation(location, "no usage", "usage with its counts and details", Severity.TOLERATED)
        elif wrong := _invalid_counts(as_object(usage)):
            yield Violation(location, {"usage": usage}, f"{', '.join(wrong)} as integers")


def _invalid_counts(usage: dict[str, Any]) -> list[str]:
    wrong = [name for name in RESPONSES_USAGE_COUNTS if not is_int(usage.get(name))]
    details = {
        f"{name}.{count}": as_object(usage.get(name)).get(count) for name, count in RESPONSES_USAGE_DETAILS.items()
    }
    return wrong + [name for name, count in details.items() if not is_int(count)]


def _response_id(view: TraceView) -> Iterator[Violation]:
    with_id = [event for event in view.responses_stream.lifecycle_events if as_text(event.response.get("id"))]
    for event in with_id:
        first = with_id[0].response["id"]
        if event.response["id"] != first:
            yield Violation(event.message, {"id": event.response["id"]}, f'"id":"{first[:80]}", as before')


def _unknown_events(view: TraceView) -> Iterator[Violation]:
    for message in view.messages:
        if message.kind is MessageKind.FOREIGN:
            yield Violation(message, message.value.source, "an object with a type of the specification")
    for event in view.responses_stream.events:
        if event.type not in RESPONSES_EVENT_TYPES or "type" not in event.json:
            observed = {"type": event.type} if "type" in event.json else "an event without a type"
            yield Violation(event.message, observed, "an event with a type of the specification")


def _keepalive(view: TraceView) -> Iterator[Violation]:
    yield from empty_data(view)
    for event in view.responses_stream.events:
        if event.type == RESPONSE_CREATED:
            return
        if event.type == KEEPALIVE_EVENT:
            yield Violation(event.message, event.type, f"a comment, as long as {RESPONSE_CREATED} has not come")


def _error(view: TraceView) -> Iterator[Violation]:
    for message in view.messages:
        if message.kind in ERROR_KINDS:
            yield Violation(message, message.value.source, _EXPECTED_FAILURE)
    for event in view.responses_stream.events:
        if event.type == RESPONSES_ERROR_EVENT:
            yield from _error_event(view, event)
        elif event.type == "response.failed" and not _is_response_error(event.response.get("error")):
            yield Violation(event.message, {"error": event.response.get("error")}, _EXPECTED_FAILURE)


def _error_event(view: TraceView, event: ResponsesEvent) -> Iterator[Violation]:
    # OpenAI's server uses both forms: the members in `error`, or in the event itself.
    inner = as_object(event.json.get("error"))
    error = inner or event.json
    is_whole = isinstance(error.get("type"), str) if inner else all(name in error for name in ("code", "param"))
    if not is_whole or not isinstance(error.get("message"), str) or not isinstance(error.get("code"), str | None):
        yield Violation(event.message, event.json, 'code, message and param beside "type":"error"')
    elif view.responses_stream.end_event is None and view.trace.end is not None:
        yield Violation(event.message, "the end of the stream after it", _EXPECTED_FAILURE, Severity.TOLERATED)


def _is_response_error(error: object) -> bool:
    members = as_object(error)
    return isinstance(members.get("message"), str) and isinstance(members.get("code"), str)


def _logprobs(view: TraceView) -> Iterator[Violation]:
    for event in view.responses_stream.events:
        is_text = event.type in ("response.output_text.delta", "response.output_text.done")
        if is_text and not isinstance(event.json.get("logprobs"), list):
            observed = {"logprobs": event.json["logprobs"]} if "logprobs" in event.json else "no logprobs"
            yield Violation(event.message, observed, '"logprobs":[]')


RESPONSES_CHECKS = (
    RuleCheck("resp-created-first", _created_first),
    RuleCheck("resp-created-full", _created_full, _STREAM_AND_WHOLE),
    RuleCheck("resp-object-schema", _object_schema, _STREAM_AND_WHOLE),
    RuleCheck("resp-event-name", _event_name),
    RuleCheck("resp-sequence-number", _sequence_number),
    RuleCheck("resp-output-index", output_index),
    RuleCheck("resp-content-index", content_index),
    RuleCheck("resp-item-id-stable", item_ids),
    RuleCheck("resp-item-added-first", item_added),
    RuleCheck("resp-part-added-first", part_added),
    RuleCheck("resp-deltas", text_deltas),
    RuleCheck("resp-done-events", done_events),
    RuleCheck("resp-terminal-once", _terminal_once, _STREAM_AND_WHOLE, required_fields=("end",)),
    RuleCheck("resp-final-output", final_output),
    RuleCheck("resp-usage", _usage, _STREAM_AND_WHOLE),
    RuleCheck("resp-response-id", _response_id),
    RuleCheck("resp-function-ids", function_ids, _STREAM_AND_WHOLE),
    RuleCheck("resp-args-done", args_done),
    RuleCheck("resp-item-status", item_status, _STREAM_AND_WHOLE),
    RuleCheck("resp-no-unknown-events", _unknown_events),
    RuleCheck("resp-keepalive", _keepalive),
    RuleCheck("resp-error", _error),
    RuleCheck("resp-logprobs-array", _logprobs),
    RuleCheck("resp-reasoning-parts", reasoning_parts),
    RuleCheck("resp-delta-equals-done", deltas_equal_done),
)
