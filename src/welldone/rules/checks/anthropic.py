"""Checks of /v1/messages, Anthropic's dialect: its stream, its whole replies and its errors."""

from collections.abc import Iterable, Iterator
from typing import Any

from welldone.protocol import catalog
from welldone.protocol.catalog.rule import Severity
from welldone.rules.checks.framing import truncated_reply
from welldone.rules.rule_check import RuleCheck, Violation
from welldone.rules.view import anthropic
from welldone.rules.view.anthropic import AnthropicBlock, AnthropicEvent
from welldone.rules.view.choices import as_list, as_object, is_int, is_json
from welldone.rules.view.stream import MessageKind, StreamMessage, event_type
from welldone.rules.view.view import ReplyKind, TraceView

_STREAM_AND_WHOLE = (ReplyKind.STREAM, ReplyKind.WHOLE)
_ALL_REPLY_KINDS = (*_STREAM_AND_WHOLE, ReplyKind.JSON_INSTEAD_OF_STREAM, ReplyKind.HTTP_ERROR)
_MESSAGE_MEMBERS = {"id": str, "model": str, "content": list}
_EXPECTED_ERROR = '{"type":"error","error":{"type":"api_error","message":"..."}}'
_IGNORED_EVENT_NAMES = ("", anthropic.PING_EVENT, anthropic.ANTHROPIC_ERROR_EVENT)
"""Names under which no event of a message is heard."""
_TOLERATED_MEMBERS = frozenset(
    ("id", "type", "role", "model", "stop_reason", "stop_sequence", "signature", "output_tokens")
)
"""Members that no client is known to miss in a stream."""
_TOLERATED_WHOLE_MEMBERS = frozenset(("id", "role", "model", "stop_sequence"))


def member_fragment(value: dict[str, Any], key: str) -> object:
    """A member as a fragment that can be shown."""
    return {key: value[key]} if key in value else f"no {key}"


def _tolerated_if(is_tolerated: bool) -> Severity | None:
    return Severity.TOLERATED if is_tolerated else None


# ---- events


def _event_name(view: TraceView) -> Iterator[Violation]:
    for event in view.anthropic_stream.all_events:
        name, said = event.message.frame.event, event.json.get("type")
        # Pings and errors have rules of their own, and so has what says no type at all.
        if said in (name, anthropic.ANTHROPIC_ERROR_EVENT) or (
            not isinstance(said, str) and name in _IGNORED_EVENT_NAMES
        ):
            continue
        if not isinstance(said, str):
            yield Violation(event.message, member_fragment(event.json, "type"), f'"type":"{name[:80]}"')
            continue
        is_heard = name not in _IGNORED_EVENT_NAMES or said == anthropic.PING_EVENT
        shown = f"event: {name[:80]}" if name else "no event: line"
        yield Violation(event.message, shown, f"event: {said[:80]}", _tolerated_if(is_heard))


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
        # An id that is there must be a string to be read at all.
        is_soft = _TOLERATED_MEMBERS.issuperset(wrong) and isinstance(message.get("id", ""), str | None)
        if wrong:
            wanted = '"type":"message","role":"assistant","content":[],"stop_reason":null and the rest'
            yield Violation(event.message, {key: message.get(key) for key in wrong}, wanted, _tolerated_if(is_soft))


def _wrong_constants(message: dict[str, Any]) -> list[str]:
    wanted = {"type": "message", "role": "assistant"}
    return [key for key, value in wanted.items() if message.get(key) != value]


# ---- blocks


def _block_index(view: TraceView) -> Iterator[Violation]:
    for event, number in view.anthropic_stream.misindexed:
        yield Violation(event.message, member_fragment(event.json, "index"), f'"index":{number}')


def _block_start_first(view: TraceView) -> Iterator[Violation]:
    started = {
        block.start.json.get("index") for block in view.anthropic_stream.blocks if is_int(block.start.json.get("index"))
    }
    for event in view.anthropic_stream.stray_events:
        index = event.json.get("index")
        # A second stop does no harm.
        is_again = event.type == anthropic.BLOCK_STOP and is_int(index) and index in started
        yield Violation(event.message, event.json, "the event of a block that is open", _tolerated_if(is_again))


def _block_start_full(view: TraceView) -> Iterator[Violation]:
    for block in view.anthropic_stream.blocks:
        if not block.type:
            yield Violation(
                block.start.message, block.start.json, '"content_block":{"type":"text","text":""}, or another'
            )
        elif wrong := anthropic.missing_members(block.start_block, anthropic.BLOCK_MEMBERS.get(block.type, {})):
            wanted = f"a {block.type} block with {' and '.join(anthropic.BLOCK_MEMBERS[block.type])}"
            # Deltas bring the input that a start does not speak of.
            is_told = wrong == ["input"] and "input" not in block.start_block and bool(block.input_json)
            yield Violation(
                block.start.message,
                block.start_block,
                wanted,
                _tolerated_if(is_told or _TOLERATED_MEMBERS.issuperset(wrong)),
            )


def _block_start_empty(view: TraceView) -> Iterator[Violation]:
    for block in view.anthropic_stream.blocks:
        if block.type not in anthropic.BLOCK_DELTAS:
            continue
        full = [
            key
            for key in ("text", "thinking", "input")
            if block.start_block.get(key) and key in _required_members(block)
        ]
        # Input that no delta repeats is taken by all.
        is_soft = full == ["input"] and not block.input_json
        for key in full:
            yield Violation(
                block.start.message,
                member_fragment(block.start_block, key),
                f"an empty {key}, and a delta",
                _tolerated_if(is_soft),
            )


def _required_members(block: AnthropicBlock) -> Iterable[str]:
    return anthropic.BLOCK_MEMBERS[block.type]


def _block_sequential(view: TraceView) -> Iterator[Violation]:
    for event in view.anthropic_stream.overlapping:
        yield Violation(event.message, event.json, "content_block_stop of the block before it")


def _block_stop(view: TraceView) -> Iterator[Violation]:
    # Where the stream was cut, all that was open is cut with it.
    if view.anthropic_stream.stop_event is not None:
        for block in view.anthropic_stream.blocks:
            if not block.is_stopped:
                yield Violation(
                    block.start.message, "a block that is never stopped", "content_block_stop with its index"
                )


def _blocks(view: TraceView) -> Iterator[tuple[StreamMessage | None, dict[str, Any]]]:
    """The blocks of a stream or of a whole reply."""
    if view.reply_kind is ReplyKind.WHOLE:
        yield from ((None, block) for block in anthropic.content_blocks(view.reply_object))
    else:
        yield from ((block.start.message, block.start_block) for block in view.anthropic_stream.blocks)


def _block_known(view: TraceView) -> Iterator[Violation]:
    for at, block in _blocks(view):
        kind = block.get("type")
        if isinstance(kind, str) and kind and kind not in anthropic.BLOCK_TYPES:
            yield Violation(at, member_fragment(block, "type"), "text, thinking, tool_use or another block of the API")


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


# ---- tools


def _tool_ids(view: TraceView) -> Iterator[Violation]:
    seen: set[str] = set()
    for at, block in _blocks(view):
        if block.get("type") not in anthropic.TOOL_USE_BLOCKS:
            continue
        id = block.get("id")
        if not isinstance(id, str) or not id or id in seen:
            yield Violation(at, member_fragment(block, "id"), '"id":"toolu_...", another for each call')
        else:
            seen.add(id)


def _has_eager_input(tool: object) -> bool:
    """Whether a request asks for the input of a tool as it comes, be it JSON or not."""
    return as_object(tool).get("eager_input_streaming") is True


def _tool_input_json(view: TraceView) -> Iterator[Violation]:
    if any(map(_has_eager_input, as_list((view.trace.request or {}).get("tools")))):
        return
    for block in view.anthropic_stream.blocks:
        # The stop reason comes after the blocks: without it nobody knows whether the call was cut short.
        is_known = view.anthropic_stream.stop_reason != "" or view.anthropic_stream.stop_event is not None
        is_ended = (
            block.is_stopped and is_known and view.anthropic_stream.stop_reason not in anthropic.TRUNCATING_STOP_REASONS
        )
        if not is_ended or block.type not in anthropic.TOOL_USE_BLOCKS or not block.input_json.strip():
            continue
        if not is_json(block.input_json, dict):
            # Other JSON can at least be read: the model's choice more than the server's fault.
            is_readable = is_json(block.input_json, object)
            yield Violation(
                block.deltas[-1].message, block.input_json, "one JSON object when joined", _tolerated_if(is_readable)
            )


# ---- the end of the message


def _delta_sent(view: TraceView) -> Iterator[Violation]:
    turn = view.anthropic_stream
    wanted = '"delta":{"stop_reason":"end_turn","stop_sequence":null}'
    deltas = turn.of_type(anthropic.MESSAGE_DELTA)
    for event in deltas:
        if not isinstance(event.json.get("delta"), dict):
            yield Violation(event.message, event.json, wanted)
    if turn.stop_event is not None and not deltas:
        yield Violation(
            turn.stop_event.message, "message_stop without a message_delta", f"message_delta with {wanted} before it"
        )
    elif turn.stop_event is not None and deltas[-1].delta and deltas[-1].delta.get("stop_reason") is None:
        yield Violation(deltas[-1].message, deltas[-1].json, wanted)
    for event in turn.of_type(anthropic.BLOCK_START):
        if deltas and event.message.frame_number > deltas[0].message.frame_number:
            yield Violation(event.message, event.json, "all blocks before message_delta", Severity.TOLERATED)


def _stop_values(view: TraceView) -> Iterator[tuple[StreamMessage | None, dict[str, Any]]]:
    """What says why a message stopped, of a stream or of a whole reply."""
    if view.reply_kind is ReplyKind.WHOLE:
        if not view.is_error_reply:
            yield None, view.reply_object
    else:
        yield from ((event.message, event.delta) for event in view.anthropic_stream.of_type(anthropic.MESSAGE_DELTA))


def _stop_reason(view: TraceView) -> Iterator[Violation]:
    for at, stop in _stop_values(view):
        if stop.get("stop_reason") not in (None, *anthropic.STOP_REASONS):
            yield Violation(at, member_fragment(stop, "stop_reason"), f"one of {', '.join(anthropic.STOP_REASONS)}")


def _stop_reason_tool_use(view: TraceView) -> Iterator[Violation]:
    content = (
        anthropic.content_blocks(view.reply_object)
        if view.reply_kind is ReplyKind.WHOLE
        else view.anthropic_stream.content
    )
    has_call = any(block.get("type") == "tool_use" for block in content)
    for at, stop in list(_stop_values(view))[-1:]:
        reason = stop.get("stop_reason")
        if has_call and reason in ("end_turn", "stop_sequence"):
            yield Violation(
                at, member_fragment(stop, "stop_reason"), '"stop_reason":"tool_use", as there is a tool_use block'
            )
        elif not has_call and reason == "tool_use":
            yield Violation(
                at, member_fragment(stop, "stop_reason"), '"stop_reason":"end_turn", as there is no tool_use block'
            )


def _stop_sequence(view: TraceView) -> Iterator[Violation]:
    for at, stop in _stop_values(view):
        if stop.get("stop_reason") == "stop_sequence" and not isinstance(stop.get("stop_sequence"), str):
            yield Violation(at, member_fragment(stop, "stop_sequence"), "the string that stopped it")


def _usage_start(view: TraceView) -> Iterator[Violation]:
    for event in view.anthropic_stream.of_type(anthropic.MESSAGE_START):
        message = event.json.get("message")
        if isinstance(message, dict) and (wrong := _invalid_counts(message, "input_tokens", "output_tokens")):
            is_soft = _TOLERATED_MEMBERS.issuperset(wrong)
            wanted = '"usage":{"input_tokens":5,"output_tokens":0}'
            yield Violation(event.message, member_fragment(message, "usage"), wanted, _tolerated_if(is_soft))


def _usage_delta(view: TraceView) -> Iterator[Violation]:
    for event in view.anthropic_stream.of_type(anthropic.MESSAGE_DELTA):
        if _invalid_counts(event.json, "output_tokens"):
            yield Violation(event.message, member_fragment(event.json, "usage"), '"usage":{"output_tokens":3}')


def _invalid_counts(value: dict[str, Any], *names: str) -> list[str]:
    """The counts of its usage that are no whole numbers; `usage`, where it is no object."""
    usage = value.get("usage")
    if not isinstance(usage, dict):
        return ["usage"]
    return [name for name in names if not is_int(usage.get(name)) or usage[name] < 0]


# ---- the end of the stream


def _messages_after(view: TraceView, first: StreamMessage) -> Iterator[StreamMessage]:
    """What comes after it. A [DONE] has a rule of its own."""
    place = next(place for place, message in enumerate(view.messages) if message is first)
    return (message for message in view.messages[place + 1 :] if message.kind is not MessageKind.DONE)


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


# ---- errors


def _stream_errors(view: TraceView) -> list[StreamMessage]:
    """The errors of a stream, in whatever shape."""
    known = {id(message) for message in view.all_errors}
    return [one for one in view.messages if id(one) in known or one.frame.event == anthropic.ANTHROPIC_ERROR_EVENT]


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
    said: list[tuple[StreamMessage | None, dict[str, Any]]] = [
        (message, message.json) for message in _stream_errors(view)
    ]
    if view.reply_kind is not ReplyKind.STREAM:
        said.append((None, view.reply_object))
    for at, value in said:
        if _is_anthropic_error(value) and value["error"]["type"] not in anthropic.ANTHROPIC_ERROR_TYPES:
            yield Violation(
                at, member_fragment(value["error"], "type"), f"one of {', '.join(anthropic.ANTHROPIC_ERROR_TYPES)}"
            )


def _error_body(view: TraceView) -> Iterator[Violation]:
    if (view.reply_kind is ReplyKind.HTTP_ERROR or view.is_error_reply) and not _is_anthropic_error(view.reply_object):
        yield Violation(None, view.body_text[:1000], _EXPECTED_ERROR)


# ---- whole replies


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
        shown = {key: reply.get(key) for key in wrong}
        wanted = "a message with id, type, role, model, content, stop_reason, stop_sequence and usage"
        yield Violation(None, shown, wanted, _tolerated_if(_TOLERATED_WHOLE_MEMBERS.issuperset(wrong)))


def _whole_content(view: TraceView) -> Iterator[Violation]:
    if not isinstance(view.reply_object.get("content", []), list):
        yield Violation(None, member_fragment(view.reply_object, "content"), '"content":[{"type":"text","text":"..."}]')
    for block in anthropic.content_blocks(view.reply_object):
        kind = block.get("type")
        members = anthropic.BLOCK_MEMBERS.get(kind, {}) if isinstance(kind, str) and kind else {"type": str}
        if anthropic.missing_members(block, members):
            yield Violation(None, block, f"a block with {' and '.join(members)}")


ANTHROPIC_CHECKS = (
    RuleCheck(catalog.msg.EVENT_NAME, _event_name),
    RuleCheck(catalog.msg.START_FIRST, _start_first),
    RuleCheck(catalog.msg.START_FULL, _start_full),
    RuleCheck(catalog.msg.START_ONCE, _start_once),
    RuleCheck(catalog.msg.BLOCK_INDEX, _block_index),
    RuleCheck(catalog.msg.BLOCK_START_FIRST, _block_start_first),
    RuleCheck(catalog.msg.BLOCK_START_FULL, _block_start_full),
    RuleCheck(catalog.msg.BLOCK_START_EMPTY, _block_start_empty),
    RuleCheck(catalog.msg.BLOCK_SEQUENTIAL, _block_sequential),
    RuleCheck(catalog.msg.BLOCK_STOP, _block_stop),
    RuleCheck(catalog.msg.BLOCK_KNOWN, _block_known, _STREAM_AND_WHOLE),
    RuleCheck(catalog.msg.DELTA_TYPE, _delta_type),
    RuleCheck(catalog.msg.TOOL_IDS, _tool_ids, _STREAM_AND_WHOLE),
    RuleCheck(catalog.msg.TOOL_INPUT_JSON, _tool_input_json),
    RuleCheck(catalog.msg.DELTA_SENT, _delta_sent),
    RuleCheck(catalog.msg.STOP_REASON, _stop_reason, _STREAM_AND_WHOLE),
    RuleCheck(catalog.msg.STOP_REASON_TOOL_USE, _stop_reason_tool_use, _STREAM_AND_WHOLE),
    RuleCheck(catalog.msg.STOP_SEQUENCE, _stop_sequence, _STREAM_AND_WHOLE),
    RuleCheck(catalog.msg.USAGE_START, _usage_start),
    RuleCheck(catalog.msg.USAGE_DELTA, _usage_delta),
    RuleCheck(catalog.msg.STOP_LAST, _stop_last),
    RuleCheck(catalog.msg.NO_DONE, _no_done),
    RuleCheck(catalog.msg.NO_EARLY_EOF, _no_early_eof, _STREAM_AND_WHOLE, required_fields=("end",)),
    RuleCheck(catalog.msg.NO_UNKNOWN_EVENTS, _no_unknown_events),
    RuleCheck(catalog.msg.PING_FORM, _ping_form),
    RuleCheck(catalog.msg.ERROR_EVENT, _error_event),
    RuleCheck(catalog.msg.ERROR_LAST, _error_last),
    RuleCheck(catalog.msg.ERROR_TYPE, _error_type, _ALL_REPLY_KINDS),
    RuleCheck(
        catalog.msg.ERROR_BODY, _error_body, (ReplyKind.WHOLE, ReplyKind.JSON_INSTEAD_OF_STREAM, ReplyKind.HTTP_ERROR)
    ),
    RuleCheck(catalog.msg.WHOLE_SHAPE, _whole_shape, (ReplyKind.WHOLE,)),
    RuleCheck(catalog.msg.WHOLE_CONTENT, _whole_content, (ReplyKind.WHOLE,)),
)
