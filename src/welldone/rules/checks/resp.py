"""Checks of /v1/responses: its events, the Response that they hold, its end and its errors. Items: `resp_items`."""

from collections.abc import Iterator
from typing import Any

from welldone.rules.checks import resp_items as items
from welldone.rules.checks.end import truncated_reply
from welldone.rules.checks.sse import empty_data
from welldone.rules.choices import as_object, as_text, is_int
from welldone.rules.heard import ReplyKind, TraceView
from welldone.rules.messages import ERROR_KINDS, MessageKind, StreamMessage
from welldone.rules.responses import (
    RESPONSE_CREATED,
    RESPONSE_END_EVENTS,
    RESPONSES_ERROR_EVENT,
    ITEM_ADDED,
    ITEM_DONE,
    KEEPALIVE_EVENT,
    RESPONSES_EVENT_TYPES,
    PART_EVENTS,
    ResponsesEvent,
)
from welldone.rules.rule import Violation, RuleCheck
from welldone.rules.shapes import item_mismatches, part_mismatches, response_mismatches
from welldone.wire.faults import Severity
from welldone.wire import faults

REQUIRED_RESPONSE_MEMBERS = ("id", "object", "created_at", "model", "status", "output")
"""Members of a Response without which clients fail."""
RESPONSES_USAGE_COUNTS = ("input_tokens", "output_tokens", "total_tokens")
RESPONSES_USAGE_DETAILS = {"input_tokens_details": "cached_tokens", "output_tokens_details": "reasoning_tokens"}

_STATUSES_WITH_USAGE = ("completed", "incomplete")
"""How a Response may have ended that has usage."""
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
    """Each Response that was heard, and the message that holds it."""
    if view.reply_kind is ReplyKind.WHOLE:
        if not view.is_error_reply:
            yield None, view.reply_object
    else:
        yield from ((event.message, event.response) for event in view.responses_stream.lifecycle_events)


def _created_full(view: TraceView) -> Iterator[Violation]:
    for at, response in _response_objects(view):
        if wrong := _missing_response_members(response):
            yield Violation(at, _without_member(response, "output"), f"a whole Response, with {', '.join(wrong)}")


def _missing_response_members(response: dict[str, Any]) -> list[str]:
    return [name for name in REQUIRED_RESPONSE_MEMBERS if not _is_member_valid(name, response.get(name))]


def _object_schema(view: TraceView) -> Iterator[Violation]:
    whole = ((at, response) for at, response in _response_objects(view) if not _missing_response_members(response))
    for at, response in whole:
        if wrong := response_mismatches(response, has_ids=at is None):
            yield _schema_violation(at, response, wrong)
    for event, _ in view.responses_stream.item_events:
        wrong = part_mismatches(event.json.get("part"), "part.") if event.event_prefix in PART_EVENTS else []
        if event.type in (ITEM_ADDED, ITEM_DONE):
            wrong = item_mismatches(event.item, "item.", has_ids=False)
        if wrong:
            yield _schema_violation(event.message, event.json, wrong)


def _schema_violation(at: StreamMessage | None, value: dict[str, Any], wrong: list[str]) -> Violation:
    names = [name.partition(" ")[0] for name in wrong]
    is_missing = all("." not in name and name not in value for name in names)
    return Violation(at, f"no {', '.join(names)}" if is_missing else value, ", ".join(wrong))


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
        told = event.message.frame.event
        if told != event.type:
            yield Violation(event.message, f"event: {told}" if told else "no event: line", f"event: {event.type[:80]}")


def _sequence_number(view: TraceView) -> Iterator[Violation]:
    wanted = 0
    for event in view.responses_stream.events:
        number = event.json.get("sequence_number")
        if number is None and event.type == KEEPALIVE_EVENT:
            continue
        if not is_int(number) or number != wanted:
            shown = "no sequence_number" if number is None else {"sequence_number": number}
            yield Violation(event.message, shown, f'"sequence_number":{wanted}')
        wanted = (number if is_int(number) else wanted) + 1


def _terminal_once(view: TraceView) -> Iterator[Violation]:
    yield from truncated_reply(view)
    end = view.responses_stream.end_event
    if end is None:
        # How a failure is said is a matter of resp-error.
        if view.events and not view.all_errors:
            yield Violation(view.events[-1], "the end of the stream", f"one of {', '.join(RESPONSE_END_EVENTS)}")
        return
    status = end.response.get("status")
    if isinstance(status, str) and status and end.type != f"response.{status}":
        yield Violation(end.message, {"type": end.type, "status": status}, f"response.{status[:80]}")
    place = next(place for place, message in enumerate(view.messages) if message is end.message)
    for message in view.messages[place + 1 :]:
        # Clients drop what they cannot read here; some take the sentinel of chat for broken JSON.
        severity = Severity.TOLERATED if message.kind is MessageKind.DONE else None
        yield Violation(message, message.value.source, f"nothing after {end.type}", severity)


def _usage(view: TraceView) -> Iterator[Violation]:
    last = None if view.responses_stream.end_event is None else view.responses_stream.end_event.message
    for at, response in _response_objects(view):
        usage = response.get("usage")
        is_ended = response.get("status") in _STATUSES_WITH_USAGE if at is None else view.responses_stream.is_complete
        if at is not last or not is_ended:
            continue  # only the last event has to tell
        if usage is None:
            yield Violation(at, "no usage", "usage with its counts and details", Severity.TOLERATED)
        elif wrong := _invalid_counts(as_object(usage)):
            yield Violation(at, {"usage": usage}, f"{', '.join(wrong)} as integers")


def _invalid_counts(usage: dict[str, Any]) -> list[str]:
    wrong = [name for name in RESPONSES_USAGE_COUNTS if not is_int(usage.get(name))]
    details = {
        f"{name}.{count}": as_object(usage.get(name)).get(count) for name, count in RESPONSES_USAGE_DETAILS.items()
    }
    return wrong + [name for name, count in details.items() if not is_int(count)]


def _response_id(view: TraceView) -> Iterator[Violation]:
    told = [event for event in view.responses_stream.lifecycle_events if as_text(event.response.get("id"))]
    for event in told:
        first = told[0].response["id"]
        if event.response["id"] != first:
            yield Violation(event.message, {"id": event.response["id"]}, f'"id":"{first[:80]}", as before')


def _unknown_events(view: TraceView) -> Iterator[Violation]:
    for message in view.messages:
        if message.kind is MessageKind.FOREIGN:
            yield Violation(message, message.value.source, "an object with a type of the specification")
    for event in view.responses_stream.events:
        if event.type not in RESPONSES_EVENT_TYPES or "type" not in event.json:
            shown = {"type": event.type} if "type" in event.json else "an event without a type"
            yield Violation(event.message, shown, "an event with a type of the specification")


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
    # OpenAI's server sends both: the error as a member of its own, or in the event itself.
    inner = as_object(event.json.get("error"))
    error = inner or event.json
    is_whole = isinstance(error.get("type"), str) if inner else all(name in error for name in ("code", "param"))
    if not is_whole or not isinstance(error.get("message"), str) or not isinstance(error.get("code"), str | None):
        yield Violation(event.message, event.json, 'code, message and param beside "type":"error"')
    elif view.responses_stream.end_event is None and view.trace.end is not None:
        yield Violation(event.message, "the end of the stream after it", _EXPECTED_FAILURE, Severity.TOLERATED)


def _is_response_error(error: object) -> bool:
    told = as_object(error)
    return isinstance(told.get("message"), str) and isinstance(told.get("code"), str)


def _logprobs(view: TraceView) -> Iterator[Violation]:
    for event in view.responses_stream.events:
        is_text = event.type in ("response.output_text.delta", "response.output_text.done")
        if is_text and not isinstance(event.json.get("logprobs"), list):
            shown = {"logprobs": event.json["logprobs"]} if "logprobs" in event.json else "no logprobs"
            yield Violation(event.message, shown, '"logprobs":[]')


RESPONSES_CHECKS = (
    RuleCheck(faults.resp.CREATED_FIRST, _created_first),
    RuleCheck(faults.resp.CREATED_FULL, _created_full, _STREAM_AND_WHOLE),
    RuleCheck(faults.resp.OBJECT_SCHEMA, _object_schema, _STREAM_AND_WHOLE),
    RuleCheck(faults.resp.EVENT_NAME, _event_name),
    RuleCheck(faults.resp.SEQUENCE_NUMBER, _sequence_number),
    RuleCheck(faults.resp.OUTPUT_INDEX, items.output_index),
    RuleCheck(faults.resp.CONTENT_INDEX, items.content_index),
    RuleCheck(faults.resp.ITEM_ID_STABLE, items.item_ids),
    RuleCheck(faults.resp.ITEM_ADDED_FIRST, items.item_added),
    RuleCheck(faults.resp.PART_ADDED_FIRST, items.part_added),
    RuleCheck(faults.resp.DELTAS, items.text_deltas),
    RuleCheck(faults.resp.DONE_EVENTS, items.done_events),
    RuleCheck(faults.resp.TERMINAL_ONCE, _terminal_once, _STREAM_AND_WHOLE, required_fields=("end",)),
    RuleCheck(faults.resp.FINAL_OUTPUT, items.final_output),
    RuleCheck(faults.resp.USAGE, _usage, _STREAM_AND_WHOLE),
    RuleCheck(faults.resp.RESPONSE_ID, _response_id),
    RuleCheck(faults.resp.FUNCTION_IDS, items.function_ids, _STREAM_AND_WHOLE),
    RuleCheck(faults.resp.ARGS_DONE, items.args_done),
    RuleCheck(faults.resp.ITEM_STATUS, items.item_status, _STREAM_AND_WHOLE),
    RuleCheck(faults.resp.NO_UNKNOWN_EVENTS, _unknown_events),
    RuleCheck(faults.resp.KEEPALIVE, _keepalive),
    RuleCheck(faults.resp.ERROR, _error),
    RuleCheck(faults.resp.LOGPROBS_ARRAY, _logprobs),
    RuleCheck(faults.resp.REASONING_PARTS, items.reasoning_parts),
    RuleCheck(faults.resp.DELTA_EQUALS_DONE, items.deltas_equal_done),
)
