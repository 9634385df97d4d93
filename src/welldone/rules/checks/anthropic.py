"""Checks of /v1/messages (Anthropic): streams, non-streamed replies and errors (`msg-`)."""

from collections.abc import Iterator
from typing import Any

from welldone.rules.checks.framing import truncated_reply
from welldone.rules.rule_check import ACCEPTED, CheckList, Violation, accepted_if, member
from welldone.rules.view import anthropic
from welldone.rules.view.anthropic import AnthropicBlock, AnthropicEvent
from welldone.rules.view.choices import as_list, as_object, as_text, is_int, is_json
from welldone.rules.view.stream import MessageKind, StreamMessage, event_type
from welldone.rules.view.view import ReplyKind, TraceView

_MESSAGE_MEMBERS = {"id": str, "model": str, "content": list}
_EXPECTED_ERROR = '{"type":"error","error":{"type":"api_error","message":"..."}}'
_IGNORED_EVENT_NAMES = ("", anthropic.PING_EVENT, anthropic.ANTHROPIC_ERROR_EVENT)
"""Names of frames that clients do not read as message events."""
_TOLERATED_MEMBERS = frozenset(
    ("id", "type", "role", "model", "stop_reason", "stop_sequence", "signature", "output_tokens")
)
"""Members of a stream that no known client needs."""
_TOLERATED_WHOLE_MEMBERS = frozenset(("id", "role", "model", "stop_sequence"))

CHECKS = CheckList()


# Events


@CHECKS.each("msg-event-name", lambda view: view.anthropic_stream.all_events)
def _event_name(event: AnthropicEvent) -> Iterator[Violation]:
    name, type = event.message.frame.event, event.json.get("type")
    # Other rules cover pings, errors and data without a type.
    if not isinstance(type, str) and name not in _IGNORED_EVENT_NAMES:
        yield Violation(event, member(event.json, "type"), f'"type":"{name[:80]}"')
    elif isinstance(type, str) and type not in (name, anthropic.ANTHROPIC_ERROR_EVENT):
        form = accepted_if(name not in _IGNORED_EVENT_NAMES or type == anthropic.PING_EVENT)
        yield Violation(event, f"event: {name[:80]}" if name else "no event: line", f"event: {type[:80]}", form)


@CHECKS.rule("msg-start-first")
def _start_first(view: TraceView) -> Iterator[Violation]:
    events = [event for event in view.anthropic_stream.events if event.type in anthropic.MESSAGE_EVENTS]
    if events and events[0].type != anthropic.MESSAGE_START:
        yield Violation(events[0], events[0].json, "message_start before it")


@CHECKS.each("msg-start-once", lambda view: view.anthropic_stream.of_type(anthropic.MESSAGE_START)[1:])
def _start_once(event: AnthropicEvent) -> Iterator[Violation]:
    yield Violation(event, event.json, "one message_start")


@CHECKS.each("msg-start-full", lambda view: view.anthropic_stream.of_type(anthropic.MESSAGE_START))
def _start_full(event: AnthropicEvent) -> Iterator[Violation]:
    message = event.json.get("message")
    if not isinstance(message, dict):
        yield Violation(event, event.json, '"message":{...}')
        return
    wrong = [*anthropic.missing_members(message, _MESSAGE_MEMBERS), *_wrong_constants(message)]
    wrong += [key for key in ("stop_reason", "stop_sequence") if message.get(key, "") is not None]
    if any(block.get("type") != "tool_use" for block in anthropic.content_blocks(message)):
        wrong.append("content")
    # Clients cannot parse an id that is not a string.
    is_tolerated = _TOLERATED_MEMBERS.issuperset(wrong) and isinstance(message.get("id", ""), str | None)
    if wrong:
        expected = '"type":"message","role":"assistant","content":[],"stop_reason":null and the rest'
        form = accepted_if(is_tolerated)
        yield Violation(event, {key: message.get(key) for key in wrong}, expected, form)


def _wrong_constants(message: dict[str, Any]) -> list[str]:
    expected = {"type": "message", "role": "assistant"}
    return [key for key, value in expected.items() if message.get(key) != value]


# Blocks


@CHECKS.rule("msg-block-index")
def _block_index(view: TraceView) -> Iterator[Violation]:
    for event, number in view.anthropic_stream.misindexed:
        yield Violation(event, member(event.json, "index"), f'"index":{number}')


@CHECKS.rule("msg-block-start-first")
def _block_start_first(view: TraceView) -> Iterator[Violation]:
    indexes = [block.start.json.get("index") for block in view.anthropic_stream.blocks]
    started = set(filter(is_int, indexes))
    for event in view.anthropic_stream.stray_events:
        index = event.json.get("index")
        # A second stop is harmless.
        is_second_stop = event.type == anthropic.BLOCK_STOP and is_int(index) and index in started
        yield Violation(event, event.json, "the event of a block that is open", accepted_if(is_second_stop))


@CHECKS.each("msg-block-start-full", lambda view: view.anthropic_stream.blocks)
def _block_start_full(block: AnthropicBlock) -> Iterator[Violation]:
    members = anthropic.BLOCK_MEMBERS.get(block.type, {})
    if not block.type:
        yield Violation(block.start, block.start.json, '"content_block":{"type":"text","text":""}, or another')
    elif wrong := anthropic.missing_members(block.start_block, members):
        # Deltas supply an input that is missing in the start.
        is_supplied = wrong == ["input"] and "input" not in block.start_block and bool(block.input_json)
        is_tolerated = is_supplied or _TOLERATED_MEMBERS.issuperset(wrong)
        expected = f"a {block.type} block with {' and '.join(members)}"
        yield Violation(block.start, block.start_block, expected, accepted_if(is_tolerated))


@CHECKS.each("msg-block-start-empty", lambda view: view.anthropic_stream.blocks)
def _block_start_empty(block: AnthropicBlock) -> Iterator[Violation]:
    members = anthropic.BLOCK_MEMBERS[block.type] if block.type in anthropic.BLOCK_DELTAS else {}
    full = [key for key in ("text", "thinking", "input") if block.start_block.get(key) and key in members]
    # All clients accept input in the start if no delta repeats it.
    form = accepted_if(full == ["input"] and not block.input_json)
    for key in full:
        yield Violation(block.start, {key: block.start_block[key]}, f"an empty {key}, and a delta", form)


@CHECKS.each("msg-block-sequential", lambda view: view.anthropic_stream.overlapping)
def _block_sequential(event: AnthropicEvent) -> Iterator[Violation]:
    yield Violation(event, event.json, "content_block_stop of the block before it")


@CHECKS.rule("msg-block-stop")
def _block_stop(view: TraceView) -> Iterator[Violation]:
    # A truncated stream truncates its open blocks.
    for block in view.anthropic_stream.blocks if view.anthropic_stream.stop_event is not None else ():
        if not block.is_stopped:
            yield Violation(block.start, "a block that is never stopped", "content_block_stop with its index")


def _blocks(view: TraceView) -> Iterator[tuple[StreamMessage | None, dict[str, Any]]]:
    """Yield the blocks of a stream or of a non-streamed reply."""
    if view.reply_kind is ReplyKind.WHOLE:
        yield from ((None, block) for block in anthropic.content_blocks(view.reply_object))
    else:
        yield from ((block.start.message, block.start_block) for block in view.anthropic_stream.blocks)


@CHECKS.rule("msg-block-known", ReplyKind.STREAM, ReplyKind.WHOLE)
def _block_known(view: TraceView) -> Iterator[Violation]:
    for location, block in _blocks(view):
        if as_text(block.get("type")) not in ("", *anthropic.BLOCK_TYPES):
            yield Violation(location, {"type": block["type"]}, "text, thinking, tool_use or another block of the API")


@CHECKS.each("msg-delta-type", lambda view: view.anthropic_stream.blocks)
def _delta_type(block: AnthropicBlock) -> Iterator[Violation]:
    allowed = anthropic.BLOCK_DELTAS.get(block.type, {})
    for event in block.deltas if allowed else ():
        key, member_type = allowed.get(as_text(event.delta.get("type")), ("", str))
        if not key or not isinstance(event.delta.get(key), member_type):
            yield Violation(event, member(event.json, "delta"), f"{' or '.join(allowed)} with its text")


# Tools


@CHECKS.rule("msg-tool-ids", ReplyKind.STREAM, ReplyKind.WHOLE)
def _tool_ids(view: TraceView) -> Iterator[Violation]:
    seen = {""}
    for location, block in _blocks(view):
        if block.get("type") in anthropic.TOOL_USE_BLOCKS:
            if as_text(block.get("id")) in seen:
                yield Violation(location, member(block, "id"), '"id":"toolu_...", another for each call')
            seen.add(as_text(block.get("id")))


@CHECKS.rule("msg-tool-input-json")
def _tool_input_json(view: TraceView) -> Iterator[Violation]:
    # With eager_input_streaming the API streams tool input without validating it.
    tools = as_list((view.trace.request or {}).get("tools"))
    is_eager = any(as_object(tool).get("eager_input_streaming") is True for tool in tools)
    # The stop reason comes after the blocks; without it a call may be truncated.
    stream = view.anthropic_stream
    is_known = stream.stop_reason != "" or stream.stop_event is not None
    if is_eager or not is_known or stream.stop_reason in anthropic.TRUNCATING_STOP_REASONS:
        return
    for block in stream.blocks:
        is_input = block.is_stopped and block.type in anthropic.TOOL_USE_BLOCKS and block.input_json.strip()
        if is_input and not is_json(block.input_json, dict):
            # JSON of another type is readable, and more often the model's doing than the server's.
            is_readable = is_json(block.input_json, object)
            yield Violation(block.deltas[-1], block.input_json, "one JSON object when joined", accepted_if(is_readable))


# End of the message


@CHECKS.rule("msg-delta-sent")
def _delta_sent(view: TraceView) -> Iterator[Violation]:
    stream = view.anthropic_stream
    expected = '"delta":{"stop_reason":"end_turn","stop_sequence":null}'
    deltas = stream.of_type(anthropic.MESSAGE_DELTA)
    for event in deltas:
        if not isinstance(event.json.get("delta"), dict):
            yield Violation(event, event.json, expected)
    if stream.stop_event is not None and not deltas:
        observed = "message_stop without a message_delta"
        yield Violation(stream.stop_event, observed, f"message_delta with {expected} before it")
    elif stream.stop_event is not None and deltas[-1].delta and deltas[-1].delta.get("stop_reason") is None:
        yield Violation(deltas[-1], deltas[-1].json, expected)
    for event in stream.of_type(anthropic.BLOCK_START):
        if deltas and event.frame_number > deltas[0].frame_number:
            yield Violation(event, event.json, "all blocks before message_delta", ACCEPTED)


def _stop_values(view: TraceView) -> Iterator[tuple[StreamMessage | None, dict[str, Any]]]:
    """Yield the objects with a stop reason, of a stream or of a non-streamed reply."""
    if view.reply_kind is ReplyKind.WHOLE:
        if not view.is_error_reply:
            yield None, view.reply_object
    else:
        yield from ((event.message, event.delta) for event in view.anthropic_stream.of_type(anthropic.MESSAGE_DELTA))


@CHECKS.rule("msg-stop-reason", ReplyKind.STREAM, ReplyKind.WHOLE)
def _stop_reason(view: TraceView) -> Iterator[Violation]:
    expected = f"one of {', '.join(anthropic.STOP_REASONS)}"
    for location, stop in _stop_values(view):
        if stop.get("stop_reason") not in (None, *anthropic.STOP_REASONS):
            yield Violation(location, {"stop_reason": stop["stop_reason"]}, expected)


@CHECKS.rule("msg-stop-reason-tool-use", ReplyKind.STREAM, ReplyKind.WHOLE)
def _stop_reason_tool_use(view: TraceView) -> Iterator[Violation]:
    is_whole = view.reply_kind is ReplyKind.WHOLE
    content = anthropic.content_blocks(view.reply_object) if is_whole else view.anthropic_stream.content
    has_call = any(block.get("type") == "tool_use" for block in content)
    right, article = ("tool_use", "a") if has_call else ("end_turn", "no")
    for location, stop in list(_stop_values(view))[-1:]:
        reason = stop.get("stop_reason")
        if reason in ("end_turn", "stop_sequence") if has_call else reason == "tool_use":
            expected = f'"stop_reason":"{right}", as there is {article} tool_use block'
            yield Violation(location, {"stop_reason": reason}, expected)


@CHECKS.rule("msg-stop-sequence", ReplyKind.STREAM, ReplyKind.WHOLE)
def _stop_sequence(view: TraceView) -> Iterator[Violation]:
    for location, stop in _stop_values(view):
        if stop.get("stop_reason") == "stop_sequence" and not isinstance(stop.get("stop_sequence"), str):
            yield Violation(location, member(stop, "stop_sequence"), "the string that stopped it")


@CHECKS.each("msg-usage-start", lambda view: view.anthropic_stream.of_type(anthropic.MESSAGE_START))
def _usage_start(event: AnthropicEvent) -> Iterator[Violation]:
    message = event.json.get("message")
    if isinstance(message, dict) and (wrong := _invalid_counts(message, "input_tokens", "output_tokens")):
        expected = '"usage":{"input_tokens":5,"output_tokens":0}'
        yield Violation(event, member(message, "usage"), expected, accepted_if(_TOLERATED_MEMBERS.issuperset(wrong)))


@CHECKS.each("msg-usage-delta", lambda view: view.anthropic_stream.of_type(anthropic.MESSAGE_DELTA))
def _usage_delta(event: AnthropicEvent) -> Iterator[Violation]:
    if _invalid_counts(event.json, "output_tokens"):
        yield Violation(event, member(event.json, "usage"), '"usage":{"output_tokens":3}')


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


@CHECKS.rule("msg-stop-last")
def _stop_last(view: TraceView) -> Iterator[Violation]:
    if view.anthropic_stream.stop_event is not None:
        for message in _messages_after(view, view.anthropic_stream.stop_event.message):
            is_harmless = event_type(message) in (anthropic.MESSAGE_STOP, anthropic.PING_EVENT)
            yield Violation(message, message.value.source, "nothing after message_stop", accepted_if(is_harmless))


@CHECKS.each("msg-no-done", lambda view: view.done_messages)
def _no_done(message: StreamMessage) -> Iterator[Violation]:
    yield Violation(message, message.value.source, "no [DONE]", accepted_if(not message.frame.event))


@CHECKS.rule("msg-no-early-eof", ReplyKind.STREAM, ReplyKind.WHOLE, needs=("end",))
def _no_early_eof(view: TraceView) -> Iterator[Violation]:
    yield from truncated_reply(view)
    if view.events and view.anthropic_stream.stop_event is None and not _stream_errors(view):
        yield Violation(view.events[-1], "the end of the stream before message_stop", "message_stop, or an error event")


@CHECKS.each("msg-no-unknown-events", lambda view: view.anthropic_stream.all_events)
def _no_unknown_events(event: AnthropicEvent) -> Iterator[Violation]:
    if event.type not in anthropic.ANTHROPIC_EVENT_TYPES:
        yield Violation(event, event.message.value.source, "an event of the API, or nothing")


@CHECKS.each("msg-ping-form", lambda view: view.messages)
def _ping_form(message: StreamMessage) -> Iterator[Violation]:
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


@CHECKS.rule("msg-error-event")
def _error_event(view: TraceView) -> Iterator[Violation]:
    for message in _stream_errors(view):
        if not _is_anthropic_error(message.json) or message.frame.event != anthropic.ANTHROPIC_ERROR_EVENT:
            name = f"event: {message.frame.event[:80]}, data: " if message.frame.event else "data: "
            yield Violation(message, name + message.value.source, f"event: error, data: {_EXPECTED_ERROR}")


@CHECKS.rule("msg-error-last")
def _error_last(view: TraceView) -> Iterator[Violation]:
    if errors := _stream_errors(view):
        for message in _messages_after(view, errors[0]):
            yield Violation(message, message.value.source, "nothing after the error event")


@CHECKS.rule("msg-error-type", *ReplyKind)
def _error_type(view: TraceView) -> Iterator[Violation]:
    replies = [(None, view.reply_object)] if view.reply_kind is not ReplyKind.STREAM else []
    for location, value in [*((message, message.json) for message in _stream_errors(view)), *replies]:
        if _is_anthropic_error(value) and value["error"]["type"] not in anthropic.ANTHROPIC_ERROR_TYPES:
            expected = f"one of {', '.join(anthropic.ANTHROPIC_ERROR_TYPES)}"
            yield Violation(location, {"type": value["error"]["type"]}, expected)


@CHECKS.rule("msg-error-body", ReplyKind.WHOLE, ReplyKind.JSON_INSTEAD_OF_STREAM, ReplyKind.HTTP_ERROR)
def _error_body(view: TraceView) -> Iterator[Violation]:
    if (view.reply_kind is ReplyKind.HTTP_ERROR or view.is_error_reply) and not _is_anthropic_error(view.reply_object):
        yield Violation(None, view.body_text[:1000], _EXPECTED_ERROR)


# Non-streamed replies


@CHECKS.rule("msg-whole-shape", ReplyKind.WHOLE)
def _whole_shape(view: TraceView) -> Iterator[Violation]:
    reply = view.reply_object
    wrong = [*anthropic.missing_members(reply, {"id": str, "model": str, "stop_reason": str}), *_wrong_constants(reply)]
    wrong += ["content"] * ("content" not in reply)
    wrong += ["usage"] * bool(_invalid_counts(reply, "input_tokens", "output_tokens"))
    wrong += ["stop_sequence"] * (not isinstance(reply.get("stop_sequence", ...), str | None))
    if wrong and not view.is_error_reply:
        observed = {key: reply.get(key) for key in wrong}
        expected = "a message with id, type, role, model, content, stop_reason, stop_sequence and usage"
        yield Violation(None, observed, expected, accepted_if(_TOLERATED_WHOLE_MEMBERS.issuperset(wrong)))


@CHECKS.rule("msg-whole-content", ReplyKind.WHOLE)
def _whole_content(view: TraceView) -> Iterator[Violation]:
    if not isinstance(view.reply_object.get("content", []), list):
        yield Violation(None, member(view.reply_object, "content"), '"content":[{"type":"text","text":"..."}]')
    for block in anthropic.content_blocks(view.reply_object):
        block_type = as_text(block.get("type"))
        members = anthropic.BLOCK_MEMBERS.get(block_type, {}) if block_type else {"type": str}
        if anthropic.missing_members(block, members):
            yield Violation(None, block, f"a block with {' and '.join(members)}")
