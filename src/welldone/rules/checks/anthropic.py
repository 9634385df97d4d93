"""Checks of /v1/messages (Anthropic): streams, non-streamed replies and errors (`msg-`)."""

from collections.abc import Iterator
from typing import Any

from welldone.protocol.catalog import Severity
from welldone.rules.checks.framing import truncated_reply
from welldone.rules.rule_check import RuleCheck, Violation
from welldone.rules.view import anthropic
from welldone.rules.view.anthropic import AnthropicEvent
from welldone.rules.view.choices import as_list, as_object, is_int, is_json
from welldone.rules.view.stream import MessageKind, StreamMessage, event_type
from welldone.rules.view.view import ReplyKind, TraceView

_STREAM_AND_WHOLE = (ReplyKind.STREAM, ReplyKind.WHOLE)
_ALL_REPLY_KINDS = (*_STREAM_AND_WHOLE, ReplyKind.JSON_INSTEAD_OF_STREAM, ReplyKind.HTTP_ERROR)
_MESSAGE_MEMBERS = {"id": str, "model": str, "content": list}
_EXPECTED_ERROR = '{"type":"error","error":{"type":"api_error","message":"..."}}'
_IGNORED_EVENT_NAMES = ("", anthropic.PING_EVENT, anthropic.ANTHROPIC_ERROR_EVENT)
"""Names of frames that clients do not read as message events."""
_TOLERATED_MEMBERS = frozenset(
    ("id", "type", "role", "model", "stop_reason", "stop_sequence", "signature", "output_tokens")
)
"""Members of a stream that no known client needs."""
_TOLERATED_WHOLE_MEMBERS = frozenset(("id", "role", "model", "stop_sequence"))


def member_fragment(value: dict[str, Any], key: str) -> object:
    """Return a member as a JSON fragment for a finding."""
    return {key: value[key]} if key in value else f"no {key}"


def _tolerated_if(is_tolerated: bool) -> Severity | None:
    return Severity.TOLERATED if is_tolerated else None


# Events


def _event_name(view: TraceView) -> Iterator[Violation]:
    for event in view.anthropic_stream.all_events:
        name, type = event.message.frame.event, event.json.get("type")
        # Other rules cover pings, errors and data without a type.
        if type in (name, anthropic.ANTHROPIC_ERROR_EVENT):
            continue
        if not isinstance(type, str) and name in _IGNORED_EVENT_NAMES:
            continue
        if not isinstance(type, str):
            yield Violation(event.message, member_fragment(event.json, "type"), f'"type":"{name[:80]}"')
            continue
        is_read = name not in _IGNORED_EVENT_NAMES or type == anthropic.PING_EVENT
        observed = f"event: {name[:80]}" if name else "no event: line"
        yield Violation(event.message, observed, f"event: {type[:80]}", _tolerated_if(is_read))


def _start_first(view: TraceView) -> Iterator[Violation]:
    events = [event for event in view.anthropic_stream.events if event.type in anthropic.MESSAGE_EVENTS]
    if events and events[0].type != anthropic.MESSAGE_START:
        yield Violation(events[0].message, events[0].json, "message_start before it")


def _start_once(view: TraceView) -> Iterator[Violation]:
    for event in view.anthropic_stream.of_type(anthropic.MESSAGE_START)[1:]:
        yield Violation(event.message, event.json, "one message_start")


def _start_full(view: TraceView) -> Iterator[Violation]:
    for event in view.anthropic_stream.of_type(anthropic.MESSAGE_START):
        message = event.json.get("message")
        if not isinstance(message, dict):
            yield Violation(event.message, event.json, '"message":{...}')
            continue
        wrong = [*anthropic.missing_members(message, _MESSAGE_MEMBERS), *_wrong_constants(message)]
        wrong += [key for key in ("stop_reason", "stop_sequence") if message.get(key, "") is not None]
        if any(block.get("type") != "tool_use" for block in anthropic.content_blocks(message)):
            wrong.append("content")
        # Clients cannot parse an id that is not a string.
        is_tolerated = _TOLERATED_MEMBERS.issuperset(wrong) and isinstance(message.get("id", ""), str | None)
        if wrong:
            expected = '"type":"message","role":"assistant","content":[],"stop_reason":null and the rest'
            yield Violation(
                event.message, {key: message.get(key) for key in wrong}, expected, _tolerated_if(is_tolerated)
            )


def _wrong_constants(message: dict[str, Any]) -> list[str]:
    expected = {"type": "message", "role": "assistant"}
    return [key for key, value in expected.items() if message.get(key) != value]


# Blocks


def _block_index(view: TraceView) -> Iterator[Violation]:
    for event, number in view.anthropic_stream.misindexed:
        yield Violation(event.message, member_fragment(event.json, "index"), f'"index":{number}')


def _block_start_first(view: TraceView) -> Iterator[Violation]:
    started = {
        block.start.json.get("index") for block in view.anthropic_stream.blocks if is_int(block.start.json.get("index"))
    }
    for event in view.anthropic_stream.stray_events:
        index = event.json.get("index")
        # A second stop is harmless.
        is_second_stop = event.type == anthropic.BLOCK_STOP and is_int(index) and index in started
        yield Violation(event.message, event.json, "the event of a block that is open", _tolerated_if(is_second_stop))


def _block_start_full(view: TraceView) -> Iterator[Violation]:
    for block in view.anthropic_stream.blocks:
        if not block.type:
            yield Violation(
                block.start.message, block.start.json, '"content_block":{"type":"text","text":""}, or another'
            )
        elif wrong := anthropic.missing_members(block.start_block, anthropic.BLOCK_MEMBERS.get(block.type, {})):
            expected = f"a {block.type} block with {' and '.join(anthropic.BLOCK_MEMBERS[block.type])}"
            # Deltas supply an input that is missing in the start.
            is_supplied = wrong == ["input"] and "input" not in block.start_block and bool(block.input_json)
            yield Violation(
                block.start.message,
                block.start_block,
                expected,
                _tolerated_if(is_supplied or _TOLERATED_MEMBERS.issuperset(wrong)),
            )


def _block_start_empty(view: TraceView) -> Iterator[Violation]:
    for block in view.anthropic_stream.blocks:
        if block.type not in anthropic.BLOCK_DELTAS:
            continue
        full = [
            key
            for key in ("text", "thinking", "input")
            if block.start_block.get(key) and key in anthropic.BLOCK_MEMBERS[block.type]
        ]
        # All clients accept input in the start if no delta repeats it.
        is_tolerated = full == ["input"] and not block.input_json
        for key in full:
            yield Violation(
                block.start.message,
                member_fragment(block.start_block, key),
                f"an empty {key}, and a delta",
                _tolerated_if(is_tolerated),
            )


def _block_sequential(view: TraceView) -> Iterator[Violation]:
    for event in view.anthropic_stream.overlapping:
        yield Violation(event.message, event.json, "content_block_stop of the block before it")


def _block_stop(view: TraceView) -> Iterator[Violation]:
    # A truncated stream truncates its open blocks.
    if view.anthropic_stream.stop_event is not None:
        for block in view.anthropic_stream.blocks:
            if not block.is_stopped:
                yield Violation(
                    block.start.message, "a block that is never stopped", "content_block_stop with its index"
                )


def _blocks(view: TraceView) -> Iterator[tuple[StreamMessage | None, dict[str, Any]]]:
    """Yield the blocks of a stream or of a non-streamed reply."""
    if view.reply_kind is ReplyKind.WHOLE:
        yield from ((None, block) for block in anthropic.content_blocks(view.reply_object))
    else:
        yield from ((block.start.message, block.start_block) for block in view.anthropic_stream.blocks)


def _block_known(view: TraceView) -> Iterator[Violation]:
    for location, block in _blocks(view):
        kind = block.get("type")
        if isinstance(kind, str) and kind and kind not in anthropic.BLOCK_TYPES:
            yield Violation(
                location, member_fragment(block, "type"), "text, thinking, tool_use or another block of the API"
            )


def _delta_type(view: TraceView) -> Iterator[Violation]:
    for block in view.anthropic_stream.blocks:
        allowed = anthropic.BLOCK_DELTAS.get(block.type)
        for event in block.deltas if allowed else ():
            key, kind = allowed.get(_delta_type_name(event), ("", str)) if allowed else ("", str)
            if not key or not isinstance(event.delta.get(key), kind):
                yield Violation(
                    event.message, member_fragment(event.json, "delta"), f"{' or '.join(allowed or ())} with its text"
                )


def _delta_type_name(event: AnthropicEvent) -> str:
    kind = event.delta.get("type")
    return kind if isinstance(kind, str) else ""


# Tools


def _tool_ids(view: TraceView) -> Iterator[Violation]:
    seen: set[str] = set()
    for location, block in _blocks(view):
        if block.get("type") not in anthropic.TOOL_USE_BLOCKS:
            continue
        id = block.get("id")
        if not isinstance(id, str) or not id or id in seen:
            yield Violation(location, member_fragment(block, "id"), '"id":"toolu_...", another for each call')
        else:
            seen.add(id)


def _tool_input_json(view: TraceView) -> Iterator[Violation]:
    # With eager_input_streaming the API streams tool input without validating it.
    tools = as_list((view.trace.request or {}).get("tools"))
    if any(as_object(tool).get("eager_input_streaming") is True for tool in tools):
        return
    for block in view.anthropic_stream.blocks:
        # The stop reason comes after the blocks; without it a call may be truncated.
        is_known = view.anthropic_stream.stop_reason != "" or view.anthropic_stream.stop_event is not None
        is_ended = (
            block.is_stopped and is_known and view.anthropic_stream.stop_reason not in anthropic.TRUNCATING_STOP_REASONS
        )
        if not is_ended or block.type not in anthropic.TOOL_USE_BLOCKS or not block.input_json.strip():
            continue
        if not is_json(block.input_json, dict):
            # JSON of another type is readable, and more often the model's doing than the server's.
            is_readable = is_json(block.input_json, object)
            yield Violation(
                block.deltas[-1].message, block.input_json, "one JSON object when joined", _tolerated_if(is_readable)
            )


# End of the message


def _delta_sent(view: TraceView) -> Iterator[Violation]:
    stream = view.anthropic_stream
    expected = '"delta":{"stop_reason":"end_turn","stop_sequence":null}'
    deltas = stream.of_type(anthropic.MESSAGE_DELTA)
    for event in deltas:
        if not isinstance(event.json.get("delta"), dict):
            yield Violation(event.message, event.json, expected)
    if stream.stop_event is not None and not deltas:
        yield Violation(
            stream.stop_event.message,
            "message_stop without a message_delta",
            f"message_delta with {expected} before it",
        )
    elif stream.stop_event is not None and deltas[-1].delta and deltas[-1].delta.get("stop_reason") is None:
        yield Violation(deltas[-1].message, deltas[-1].json, expected)
    for event in stream.of_type(anthropic.BLOCK_START):
        if deltas and event.message.frame_number > deltas[0].message.frame_number:
            yield Violation(event.message, event.json, "all blocks before message_delta", Severity.TOLERATED)


def _stop_values(view: TraceView) -> Iterator[tuple[StreamMessage | None, dict[str, Any]]]:
    """Yield the objects with a stop reason, of a stream or of a non-streamed reply."""
    if view.reply_kind is ReplyKind.WHOLE:
        if not view.is_error_reply:
            yield None, view.reply_object
    else:
        yield from ((event.message, event.delta) for event in view.anthropic_stream.of_type(anthropic.MESSAGE_DELTA))


def _stop_reason(view: TraceView) -> Iterator[Violation]:
    for location, stop in _stop_values(view):
        if stop.get("stop_reason") not in (None, *anthropic.STOP_REASONS):
            yield Violation(
                location, member_fragment(stop, "stop_reason"), f"one of {', '.join(anthropic.STOP_REASONS)}"
            )


def _stop_reason_tool_use(view: TraceView) -> Iterator[Violation]:
    content = (
        anthropic.content_blocks(view.reply_object)
        if view.reply_kind is ReplyKind.WHOLE
        else view.anthropic_stream.content
    )
    has_call = any(block.get("type") == "tool_use" for block in content)
    for location, stop in list(_stop_values(view))[-1:]:
        reason = stop.get("stop_reason")
        if has_call and reason in ("end_turn", "stop_sequence"):
            yield Violation(
                location, member_fragment(stop, "stop_reason"), '"stop_reason":"tool_use", as there is a tool_use block'
            )
        elif not has_call and reason == "tool_use":
            yield Violation(
                location,
                member_fragment(stop, "stop_reason"),
                '"stop_reason":"end_turn", as there is no tool_use block',
            )


def _stop_sequence(view: TraceView) -> Iterator[Violation]:
    for location, stop in _stop_values(view):
        if stop.get("stop_reason") == "stop_sequence" and not isinstance(stop.get("stop_sequence"), str):
            yield Violation(location, member_fragment(stop, "stop_sequence"), "the string that stopped it")


def _usage_start(view: TraceView) -> Iterator[Violation]:
    for event in view.anthropic_stream.of_type(anthropic.MESSAGE_START):
        message = event.json.get("message")
        if isinstance(message, dict) and (wrong := _invalid_counts(message, "input_tokens", "output_tokens")):
            is_tolerated = _TOLERATED_MEMBERS.issuperset(wrong)
            expected = '"usage":{"input_tokens":5,"output_tokens":0}'
            yield Violation(event.message, member_fragment(message, "usage"), expected, _tolerated_if(is_tolerated))


def _usage_delta(view: TraceView) -> Iterator[Violation]:
    for event in view.anthropic_stream.of_type(anthropic.MESSAGE_DELTA):
        if _invalid_counts(event.json, "output_tokens"):
            yield Violation(event.message, member_fragment(event.json, "usage"), '"usage":{"output_tokens":3}')


def _invalid_counts(value: dict[str, Any], *names: str) -> list[str]:
    """List the usage counts that are not integers from 0 on; `usage` if it is not an object."""
    usage = value.get("usage")
    if not isinstance(usage, dict):
        return ["usage"]
    return [name for name in names if not is_int(usage.get(name)) or usage[name] < 0]


# End of the stream


def _messages_after(view: TraceView, first: StreamMessage) -> Iterator[StreamMessage]:
    # msg-no-done reports a [DONE].
    return (message for message in view.messages_after(first) if message.kind is not MessageKind.DONE)


def _stop_last(view: TraceView) -> Iterator[Violation]:
    if view.anthropic_stream.stop_event is not None:
        for message in _messages_after(view, view.anthropic_stream.stop_event.message):
            is_harmless = event_type(message) in (anthropic.MESSAGE_STOP, anthropic.PING_EVENT)
            yield Violation(message, message.value.source, "nothing after message_stop", _tolerated_if(is_harmless))


def _no_done(view: TraceView) -> Iterator[Violation]:
    for message in view.done_messages:
        yield Violation(message, message.value.source, "no [DONE]", _tolerated_if(not message.frame.event))


def _no_early_eof(view: TraceView) -> Iterator[Violation]:
    yield from truncated_reply(view)
    if view.events and view.anthropic_stream.stop_event is None and not _stream_errors(view):
        yield Violation(view.events[-1], "the end of the stream before message_stop", "message_stop, or an error event")


def _no_unknown_events(view: TraceView) -> Iterator[Violation]:
    for event in view.anthropic_stream.all_events:
        if event.type not in anthropic.ANTHROPIC_EVENT_TYPES:
            yield Violation(event.message, event.message.value.source, "an event of the API, or nothing")


def _ping_form(view: TraceView) -> Iterator[Violation]:
    for message in view.messages:
        if message.frame.event == anthropic.PING_EVENT and not isinstance(message.json.get("type"), str):
            yield Violation(message, f"event: ping, data: {message.value.source}", 'event: ping, data: {"type":"ping"}')


# Errors


def _stream_errors(view: TraceView) -> list[StreamMessage]:
    """Return the errors of a stream, in any shape."""
    known = {id(message) for message in view.all_errors}
    name = anthropic.ANTHROPIC_ERROR_EVENT
    return [message for message in view.messages if id(message) in known or message.frame.event == name]


def _is_anthropic_error(value: dict[str, Any]) -> bool:
    error = as_object(value.get("error"))
    return value.get("type") == "error" and not anthropic.missing_members(error, {"type": str, "message": str})


def _error_event(view: TraceView) -> Iterator[Violation]:
    for message in _stream_errors(view):
        if not _is_anthropic_error(message.json) or message.frame.event != anthropic.ANTHROPIC_ERROR_EVENT:
            name = f"event: {message.frame.event[:80]}, data: " if message.frame.event else "data: "
            yield Violation(message, name + message.value.source, f"event: error, data: {_EXPECTED_ERROR}")


def _error_last(view: TraceView) -> Iterator[Violation]:
    if errors := _stream_errors(view):
        for message in _messages_after(view, errors[0]):
            yield Violation(message, message.value.source, "nothing after the error event")


def _error_type(view: TraceView) -> Iterator[Violation]:
    errors: list[tuple[StreamMessage | None, dict[str, Any]]] = [
        (message, message.json) for message in _stream_errors(view)
    ]
    if view.reply_kind is not ReplyKind.STREAM:
        errors.append((None, view.reply_object))
    for location, value in errors:
        if _is_anthropic_error(value) and value["error"]["type"] not in anthropic.ANTHROPIC_ERROR_TYPES:
            yield Violation(
                location,
                member_fragment(value["error"], "type"),
                f"one of {', '.join(anthropic.ANTHROPIC_ERROR_TYPES)}",
            )


def _error_body(view: TraceView) -> Iterator[Violation]:
    if (view.reply_kind is ReplyKind.HTTP_ERROR or view.is_error_reply) and not _is_anthropic_error(view.reply_object):
        yield Violation(None, view.body_text[:1000], _EXPECTED_ERROR)


# Non-streamed replies


def _whole_shape(view: TraceView) -> Iterator[Violation]:
    if view.is_error_reply:
        return
    reply = view.reply_object
    wrong = [*anthropic.missing_members(reply, {"id": str, "model": str, "stop_reason": str}), *_wrong_constants(reply)]
    wrong += ["content"] * ("content" not in reply) + ["usage"] * bool(
        _invalid_counts(reply, "input_tokens", "output_tokens")
    )
    wrong += ["stop_sequence"] * (not isinstance(reply.get("stop_sequence", ...), str | None))
    if wrong:
        observed = {key: reply.get(key) for key in wrong}
        expected = "a message with id, type, role, model, content, stop_reason, stop_sequence and usage"
        yield Violation(None, observed, expected, _tolerated_if(_TOLERATED_WHOLE_MEMBERS.issuperset(wrong)))


def _whole_content(view: TraceView) -> Iterator[Violation]:
    if not isinstance(view.reply_object.get("content", []), list):
        yield Violation(None, member_fragment(view.reply_object, "content"), '"content":[{"type":"text","text":"..."}]')
    for block in anthropic.content_blocks(view.reply_object):
        kind = block.get("type")
        members = anthropic.BLOCK_MEMBERS.get(kind, {}) if isinstance(kind, str) and kind else {"type": str}
        if anthropic.missing_members(block, members):
            yield Violation(None, block, f"a block with {' and '.join(members)}")


ANTHROPIC_CHECKS = (
    RuleCheck("msg-event-name", _event_name),
    RuleCheck("msg-start-first", _start_first),
    RuleCheck("msg-start-full", _start_full),
    RuleCheck("msg-start-once", _start_once),
    RuleCheck("msg-block-index", _block_index),
    RuleCheck("msg-block-start-first", _block_start_first),
    RuleCheck("msg-block-start-full", _block_start_full),
    RuleCheck("msg-block-start-empty", _block_start_empty),
    RuleCheck("msg-block-sequential", _block_sequential),
    RuleCheck("msg-block-stop", _block_stop),
    RuleCheck("msg-block-known", _block_known, _STREAM_AND_WHOLE),
    RuleCheck("msg-delta-type", _delta_type),
    RuleCheck("msg-tool-ids", _tool_ids, _STREAM_AND_WHOLE),
    RuleCheck("msg-tool-input-json", _tool_input_json),
    RuleCheck("msg-delta-sent", _delta_sent),
    RuleCheck("msg-stop-reason", _stop_reason, _STREAM_AND_WHOLE),
    RuleCheck("msg-stop-reason-tool-use", _stop_reason_tool_use, _STREAM_AND_WHOLE),
    RuleCheck("msg-stop-sequence", _stop_sequence, _STREAM_AND_WHOLE),
    RuleCheck("msg-usage-start", _usage_start),
    RuleCheck("msg-usage-delta", _usage_delta),
    RuleCheck("msg-stop-last", _stop_last),
    RuleCheck("msg-no-done", _no_done),
    RuleCheck("msg-no-early-eof", _no_early_eof, _STREAM_AND_WHOLE, required_fields=("end",)),
    RuleCheck("msg-no-unknown-events", _no_unknown_events),
    RuleCheck("msg-ping-form", _ping_form),
    RuleCheck("msg-error-event", _error_event),
    RuleCheck("msg-error-last", _error_last),
    RuleCheck("msg-error-type", _error_type, _ALL_REPLY_KINDS),
    RuleCheck("msg-error-body", _error_body, (ReplyKind.WHOLE, ReplyKind.JSON_INSTEAD_OF_STREAM, ReplyKind.HTTP_ERROR)),
    RuleCheck("msg-whole-shape", _whole_shape, (ReplyKind.WHOLE,)),
    RuleCheck("msg-whole-content", _whole_content, (ReplyKind.WHOLE,)),
)
