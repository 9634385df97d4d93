"""Checks of /v1/responses: its events, the Response that they hold, its end and its errors. Items: `resp_items`."""

from collections.abc import Iterator
from typing import Any

from welldone.rules.checks import resp_items as items
from welldone.rules.checks.end import broken_off
from welldone.rules.checks.sse import empty_data
from welldone.rules.choices import as_object, as_text, is_int
from welldone.rules.heard import Form, Heard
from welldone.rules.messages import FAILURES, Kind, Message
from welldone.rules.responses import CREATED, ENDS, ERROR, ITEM_ADDED, ITEM_DONE, KEEPALIVE, KNOWN, PARTS, Event
from welldone.rules.rule import Place, Rule
from welldone.rules.shapes import item_mismatches, part_mismatches, response_mismatches
from welldone.wire.faults import Severity
from welldone.wire.faults import resp as faults

NEEDED = ("id", "object", "created_at", "model", "status", "output")
"""Members of a Response without which clients fail."""
COUNTS = ("input_tokens", "output_tokens", "total_tokens")
DETAILS = {"input_tokens_details": "cached_tokens", "output_tokens_details": "reasoning_tokens"}

_COUNTED = ("completed", "incomplete")
"""How a Response may have ended that has usage."""
_BOTH = (Form.STREAM, Form.WHOLE)
_FAILED = "response.failed with response.error {code, message}"


def _created_first(heard: Heard) -> Iterator[Place]:
    events = [event for event in heard.output.events if event.type != KEEPALIVE]
    if events and events[0].type != CREATED:
        yield Place(events[0].message, events[0].type or events[0].json, f"{CREATED} before it")
    for event in events[1:]:
        if event.type == CREATED:
            yield Place(event.message, event.type, f"{CREATED} once, at the beginning")


def _responses(heard: Heard) -> Iterator[tuple[Message | None, dict[str, Any]]]:
    """Each Response that was heard, and the message that holds it."""
    if heard.form is Form.WHOLE:
        if not heard.reply_fails:
            yield None, heard.reply
    else:
        yield from ((event.message, event.response) for event in heard.output.lifecycle)


def _created_full(heard: Heard) -> Iterator[Place]:
    for at, response in _responses(heard):
        if wrong := _unmet(response):
            yield Place(at, _without(response, "output"), f"a whole Response, with {', '.join(wrong)}")


def _unmet(response: dict[str, Any]) -> list[str]:
    return [name for name in NEEDED if not _is_needed(name, response.get(name))]


def _object_schema(heard: Heard) -> Iterator[Place]:
    whole = ((at, response) for at, response in _responses(heard) if not _unmet(response))
    for at, response in whole:
        if wrong := response_mismatches(response, has_ids=at is None):
            yield _mismatched(at, response, wrong)
    for event, _ in heard.output.about:
        wrong = part_mismatches(event.json.get("part"), "part.") if event.name in PARTS else []
        if event.type in (ITEM_ADDED, ITEM_DONE):
            wrong = item_mismatches(event.item, "item.", has_ids=False)
        if wrong:
            yield _mismatched(event.message, event.json, wrong)


def _mismatched(at: Message | None, value: dict[str, Any], wrong: list[str]) -> Place:
    names = [name.partition(" ")[0] for name in wrong]
    is_missing = all("." not in name and name not in value for name in names)
    return Place(at, f"no {', '.join(names)}" if is_missing else value, ", ".join(wrong))


def _is_needed(name: str, value: object) -> bool:
    if name == "created_at":
        return is_int(value) or isinstance(value, float)
    if name == "output":
        return isinstance(value, list)
    return value == "response" if name == "object" else isinstance(value, str) and value != ""


def _without(response: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in response.items() if key != name}


def _event_name(heard: Heard) -> Iterator[Place]:
    for event in heard.output.events:
        told = event.message.frame.event
        if told != event.type:
            yield Place(event.message, f"event: {told}" if told else "no event: line", f"event: {event.type[:80]}")


def _sequence_number(heard: Heard) -> Iterator[Place]:
    wanted = 0
    for event in heard.output.events:
        number = event.json.get("sequence_number")
        if number is None and event.type == KEEPALIVE:
            continue
        if not is_int(number) or number != wanted:
            shown = "no sequence_number" if number is None else {"sequence_number": number}
            yield Place(event.message, shown, f'"sequence_number":{wanted}')
        wanted = (number if is_int(number) else wanted) + 1


def _terminal_once(heard: Heard) -> Iterator[Place]:
    yield from broken_off(heard)
    end = heard.output.end
    if end is None:
        # How a failure is said is a matter of resp-error.
        if heard.events and not heard.failures:
            yield Place(heard.events[-1], "the end of the stream", f"one of {', '.join(ENDS)}")
        return
    status = end.response.get("status")
    if isinstance(status, str) and status and end.type != f"response.{status}":
        yield Place(end.message, {"type": end.type, "status": status}, f"response.{status[:80]}")
    place = next(place for place, message in enumerate(heard.messages) if message is end.message)
    for message in heard.messages[place + 1 :]:
        # Clients drop what they cannot read here; some take the sentinel of chat for broken JSON.
        severity = Severity.TOLERATED if message.kind is Kind.DONE else None
        yield Place(message, message.value.source, f"nothing after {end.type}", severity)


def _usage(heard: Heard) -> Iterator[Place]:
    last = None if heard.output.end is None else heard.output.end.message
    for at, response in _responses(heard):
        usage = response.get("usage")
        is_ended = response.get("status") in _COUNTED if at is None else heard.output.is_whole
        if at is not last or not is_ended:
            continue  # only the last event has to tell
        if usage is None:
            yield Place(at, "no usage", "usage with its counts and details", Severity.TOLERATED)
        elif wrong := _uncounted(as_object(usage)):
            yield Place(at, {"usage": usage}, f"{', '.join(wrong)} as integers")


def _uncounted(usage: dict[str, Any]) -> list[str]:
    wrong = [name for name in COUNTS if not is_int(usage.get(name))]
    details = {f"{name}.{count}": as_object(usage.get(name)).get(count) for name, count in DETAILS.items()}
    return wrong + [name for name, count in details.items() if not is_int(count)]


def _response_id(heard: Heard) -> Iterator[Place]:
    told = [event for event in heard.output.lifecycle if as_text(event.response.get("id"))]
    for event in told:
        first = told[0].response["id"]
        if event.response["id"] != first:
            yield Place(event.message, {"id": event.response["id"]}, f'"id":"{first[:80]}", as before')


def _unknown_events(heard: Heard) -> Iterator[Place]:
    for message in heard.messages:
        if message.kind is Kind.FOREIGN:
            yield Place(message, message.value.source, "an object with a type of the specification")
    for event in heard.output.events:
        if event.type not in KNOWN or "type" not in event.json:
            shown = {"type": event.type} if "type" in event.json else "an event without a type"
            yield Place(event.message, shown, "an event with a type of the specification")


def _keepalive(heard: Heard) -> Iterator[Place]:
    yield from empty_data(heard)
    for event in heard.output.events:
        if event.type == CREATED:
            return
        if event.type == KEEPALIVE:
            yield Place(event.message, event.type, f"a comment, as long as {CREATED} has not come")


def _error(heard: Heard) -> Iterator[Place]:
    for message in heard.messages:
        if message.kind in FAILURES:
            yield Place(message, message.value.source, _FAILED)
    for event in heard.output.events:
        if event.type == ERROR:
            yield from _error_event(heard, event)
        elif event.type == "response.failed" and not _is_error(event.response.get("error")):
            yield Place(event.message, {"error": event.response.get("error")}, _FAILED)


def _error_event(heard: Heard, event: Event) -> Iterator[Place]:
    # OpenAI's server sends both: the error as a member of its own, or in the event itself.
    inner = as_object(event.json.get("error"))
    error = inner or event.json
    is_whole = isinstance(error.get("type"), str) if inner else all(name in error for name in ("code", "param"))
    if not is_whole or not isinstance(error.get("message"), str) or not isinstance(error.get("code"), str | None):
        yield Place(event.message, event.json, 'code, message and param beside "type":"error"')
    elif heard.output.end is None and heard.trace.end is not None:
        yield Place(event.message, "the end of the stream after it", _FAILED, Severity.TOLERATED)


def _is_error(error: object) -> bool:
    told = as_object(error)
    return isinstance(told.get("message"), str) and isinstance(told.get("code"), str)


def _logprobs(heard: Heard) -> Iterator[Place]:
    for event in heard.output.events:
        is_text = event.type in ("response.output_text.delta", "response.output_text.done")
        if is_text and not isinstance(event.json.get("logprobs"), list):
            shown = {"logprobs": event.json["logprobs"]} if "logprobs" in event.json else "no logprobs"
            yield Place(event.message, shown, '"logprobs":[]')


RULES = (
    Rule(faults.CREATED_FIRST, _created_first),
    Rule(faults.CREATED_FULL, _created_full, _BOTH),
    Rule(faults.OBJECT_SCHEMA, _object_schema, _BOTH),
    Rule(faults.EVENT_NAME, _event_name),
    Rule(faults.SEQUENCE_NUMBER, _sequence_number),
    Rule(faults.OUTPUT_INDEX, items.output_index),
    Rule(faults.CONTENT_INDEX, items.content_index),
    Rule(faults.ITEM_ID_STABLE, items.item_ids),
    Rule(faults.ITEM_ADDED_FIRST, items.item_added),
    Rule(faults.PART_ADDED_FIRST, items.part_added),
    Rule(faults.DELTAS, items.deltas),
    Rule(faults.DONE_EVENTS, items.done_events),
    Rule(faults.TERMINAL_ONCE, _terminal_once, _BOTH, needs=("end",)),
    Rule(faults.FINAL_OUTPUT, items.final_output),
    Rule(faults.USAGE, _usage, _BOTH),
    Rule(faults.RESPONSE_ID, _response_id),
    Rule(faults.FUNCTION_IDS, items.function_ids, _BOTH),
    Rule(faults.ARGS_DONE, items.args_done),
    Rule(faults.ITEM_STATUS, items.item_status, _BOTH),
    Rule(faults.NO_UNKNOWN_EVENTS, _unknown_events),
    Rule(faults.KEEPALIVE, _keepalive),
    Rule(faults.ERROR, _error),
    Rule(faults.LOGPROBS_ARRAY, _logprobs),
    Rule(faults.REASONING_PARTS, items.reasoning_parts),
    Rule(faults.DELTA_EQUALS_DONE, items.deltas_equal_done),
)
