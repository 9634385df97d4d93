"""Checks of /v1/messages, Anthropic's dialect: its stream, its whole replies and its errors."""

from collections.abc import Iterable, Iterator
from typing import Any

from welldone.rules import anthropic
from welldone.rules.anthropic import Block, Event
from welldone.rules.checks.end import broken_off
from welldone.rules.choices import as_list, as_object, is_int, is_json
from welldone.rules.heard import Form, Heard
from welldone.rules.messages import Kind, Message, type_of
from welldone.rules.rule import Place, Rule
from welldone.wire.faults import Severity
from welldone.wire.faults import msg as faults

_BOTH = (Form.STREAM, Form.WHOLE)
_ANYWHERE = (*_BOTH, Form.INSTEAD, Form.FAILURE)
_MESSAGE = {"id": str, "model": str, "content": list}
_ERROR = '{"type":"error","error":{"type":"api_error","message":"..."}}'
_SKIPPED = ("", anthropic.PING, anthropic.ERROR)
"""Names under which no event of a message is heard."""
_SOFT = frozenset(("id", "type", "role", "model", "stop_reason", "stop_sequence", "signature", "output_tokens"))
"""Members that no client is known to miss in a stream."""
_SOFT_WHOLE = frozenset(("id", "role", "model", "stop_sequence"))


def member(value: dict[str, Any], key: str) -> object:
    """A member as a fragment that can be shown."""
    return {key: value[key]} if key in value else f"no {key}"


def _milder(is_soft: bool) -> Severity | None:
    return Severity.TOLERATED if is_soft else None


# ---- events


def _event_name(heard: Heard) -> Iterator[Place]:
    for event in heard.turn.heard:
        name, said = event.message.frame.event, event.json.get("type")
        # Pings and errors have rules of their own, and so has what says no type at all.
        if said in (name, anthropic.ERROR) or (not isinstance(said, str) and name in _SKIPPED):
            continue
        if not isinstance(said, str):
            yield Place(event.message, member(event.json, "type"), f'"type":"{name[:80]}"')
            continue
        is_heard = name not in _SKIPPED or said == anthropic.PING
        shown = f"event: {name[:80]}" if name else "no event: line"
        yield Place(event.message, shown, f"event: {said[:80]}", _milder(is_heard))


def _start_first(heard: Heard) -> Iterator[Place]:
    events = [event for event in heard.turn.events if event.type in anthropic.OF_A_MESSAGE]
    if events and events[0].type != anthropic.START:
        yield Place(events[0].message, events[0].json, "message_start before it")


def _start_once(heard: Heard) -> Iterator[Place]:
    for event in heard.turn.all(anthropic.START)[1:]:
        yield Place(event.message, event.json, "one message_start")


def _start_full(heard: Heard) -> Iterator[Place]:
    for event in heard.turn.all(anthropic.START):
        message = event.json.get("message")
        if not isinstance(message, dict):
            yield Place(event.message, event.json, '"message":{...}')
            continue
        wrong = [*anthropic.lacks(message, _MESSAGE), *_constants(message)]
        wrong += [key for key in ("stop_reason", "stop_sequence") if message.get(key, "") is not None]
        if any(block.get("type") != "tool_use" for block in anthropic.blocks_of(message)):
            wrong.append("content")
        # An id that is there must be a string to be read at all.
        is_soft = _SOFT.issuperset(wrong) and isinstance(message.get("id", ""), str | None)
        if wrong:
            wanted = '"type":"message","role":"assistant","content":[],"stop_reason":null and the rest'
            yield Place(event.message, {key: message.get(key) for key in wrong}, wanted, _milder(is_soft))


def _constants(message: dict[str, Any]) -> list[str]:
    wanted = {"type": "message", "role": "assistant"}
    return [key for key, value in wanted.items() if message.get(key) != value]


# ---- blocks


def _block_index(heard: Heard) -> Iterator[Place]:
    for event, number in heard.turn.misnumbered:
        yield Place(event.message, member(event.json, "index"), f'"index":{number}')


def _block_start_first(heard: Heard) -> Iterator[Place]:
    started = {block.start.json.get("index") for block in heard.turn.blocks if is_int(block.start.json.get("index"))}
    for event in heard.turn.strays:
        index = event.json.get("index")
        # A second stop does no harm.
        is_again = event.type == anthropic.BLOCK_STOP and is_int(index) and index in started
        yield Place(event.message, event.json, "the event of a block that is open", _milder(is_again))


def _block_start_full(heard: Heard) -> Iterator[Place]:
    for block in heard.turn.blocks:
        if not block.type:
            yield Place(block.start.message, block.start.json, '"content_block":{"type":"text","text":""}, or another')
        elif wrong := anthropic.lacks(block.json, anthropic.MEMBERS.get(block.type, {})):
            wanted = f"a {block.type} block with {' and '.join(anthropic.MEMBERS[block.type])}"
            # Deltas bring the input that a start does not speak of.
            is_told = wrong == ["input"] and "input" not in block.json and bool(block.input)
            yield Place(block.start.message, block.json, wanted, _milder(is_told or _SOFT.issuperset(wrong)))


def _block_start_empty(heard: Heard) -> Iterator[Place]:
    for block in heard.turn.blocks:
        if block.type not in anthropic.DELTAS:
            continue
        full = [key for key in ("text", "thinking", "input") if block.json.get(key) and key in _members(block)]
        # Input that no delta repeats is taken by all.
        is_soft = full == ["input"] and not block.input
        for key in full:
            yield Place(block.start.message, member(block.json, key), f"an empty {key}, and a delta", _milder(is_soft))


def _members(block: Block) -> Iterable[str]:
    return anthropic.MEMBERS[block.type]


def _block_sequential(heard: Heard) -> Iterator[Place]:
    for event in heard.turn.overlapping:
        yield Place(event.message, event.json, "content_block_stop of the block before it")


def _block_stop(heard: Heard) -> Iterator[Place]:
    # Where the stream was cut, all that was open is cut with it.
    if heard.turn.end is not None:
        for block in heard.turn.blocks:
            if not block.is_stopped:
                yield Place(block.start.message, "a block that is never stopped", "content_block_stop with its index")


def _blocks(heard: Heard) -> Iterator[tuple[Message | None, dict[str, Any]]]:
    """The blocks of a stream or of a whole reply."""
    if heard.form is Form.WHOLE:
        yield from ((None, block) for block in anthropic.blocks_of(heard.reply))
    else:
        yield from ((block.start.message, block.json) for block in heard.turn.blocks)


def _block_known(heard: Heard) -> Iterator[Place]:
    for at, block in _blocks(heard):
        kind = block.get("type")
        if isinstance(kind, str) and kind and kind not in anthropic.KNOWN:
            yield Place(at, member(block, "type"), "text, thinking, tool_use or another block of the API")


def _delta_type(heard: Heard) -> Iterator[Place]:
    for block in heard.turn.blocks:
        allowed = anthropic.DELTAS.get(block.type)
        for event in block.deltas if allowed else ():
            key, kind = allowed.get(_type(event), ("", str)) if allowed else ("", str)
            if not key or not isinstance(event.delta.get(key), kind):
                yield Place(event.message, member(event.json, "delta"), f"{' or '.join(allowed or ())} with its text")


def _type(event: Event) -> str:
    kind = event.delta.get("type")
    return kind if isinstance(kind, str) else ""


# ---- tools


def _tool_ids(heard: Heard) -> Iterator[Place]:
    seen: set[str] = set()
    for at, block in _blocks(heard):
        if block.get("type") not in anthropic.CALLS:
            continue
        id = block.get("id")
        if not isinstance(id, str) or not id or id in seen:
            yield Place(at, member(block, "id"), '"id":"toolu_...", another for each call')
        else:
            seen.add(id)


def _is_unchecked(tool: object) -> bool:
    """Whether a request asks for the input of a tool as it comes, be it JSON or not."""
    return as_object(tool).get("eager_input_streaming") is True


def _tool_input_json(heard: Heard) -> Iterator[Place]:
    if any(map(_is_unchecked, as_list((heard.trace.request or {}).get("tools")))):
        return
    for block in heard.turn.blocks:
        # The stop reason comes after the blocks: without it nobody knows whether the call was cut short.
        is_known = heard.turn.reason != "" or heard.turn.end is not None
        is_ended = block.is_stopped and is_known and heard.turn.reason not in anthropic.CUT_SHORT
        if not is_ended or block.type not in anthropic.CALLS or not block.input.strip():
            continue
        if not is_json(block.input, dict):
            # Other JSON can at least be read: the model's choice more than the server's fault.
            is_readable = is_json(block.input, object)
            yield Place(block.deltas[-1].message, block.input, "one JSON object when joined", _milder(is_readable))


# ---- the end of the message


def _delta_sent(heard: Heard) -> Iterator[Place]:
    turn = heard.turn
    wanted = '"delta":{"stop_reason":"end_turn","stop_sequence":null}'
    deltas = turn.all(anthropic.DELTA)
    for event in deltas:
        if not isinstance(event.json.get("delta"), dict):
            yield Place(event.message, event.json, wanted)
    if turn.end is not None and not deltas:
        yield Place(turn.end.message, "message_stop without a message_delta", f"message_delta with {wanted} before it")
    elif turn.end is not None and deltas[-1].delta and deltas[-1].delta.get("stop_reason") is None:
        yield Place(deltas[-1].message, deltas[-1].json, wanted)
    for event in turn.all(anthropic.BLOCK_START):
        if deltas and event.message.number > deltas[0].message.number:
            yield Place(event.message, event.json, "all blocks before message_delta", Severity.TOLERATED)


def _stops(heard: Heard) -> Iterator[tuple[Message | None, dict[str, Any]]]:
    """What says why a message stopped, of a stream or of a whole reply."""
    if heard.form is Form.WHOLE:
        if not heard.reply_fails:
            yield None, heard.reply
    else:
        yield from ((event.message, event.delta) for event in heard.turn.all(anthropic.DELTA))


def _stop_reason(heard: Heard) -> Iterator[Place]:
    for at, stop in _stops(heard):
        if stop.get("stop_reason") not in (None, *anthropic.REASONS):
            yield Place(at, member(stop, "stop_reason"), f"one of {', '.join(anthropic.REASONS)}")


def _stop_reason_tool_use(heard: Heard) -> Iterator[Place]:
    content = anthropic.blocks_of(heard.reply) if heard.form is Form.WHOLE else heard.turn.content
    has_call = any(block.get("type") == "tool_use" for block in content)
    for at, stop in list(_stops(heard))[-1:]:
        reason = stop.get("stop_reason")
        if has_call and reason in ("end_turn", "stop_sequence"):
            yield Place(at, member(stop, "stop_reason"), '"stop_reason":"tool_use", as there is a tool_use block')
        elif not has_call and reason == "tool_use":
            yield Place(at, member(stop, "stop_reason"), '"stop_reason":"end_turn", as there is no tool_use block')


def _stop_sequence(heard: Heard) -> Iterator[Place]:
    for at, stop in _stops(heard):
        if stop.get("stop_reason") == "stop_sequence" and not isinstance(stop.get("stop_sequence"), str):
            yield Place(at, member(stop, "stop_sequence"), "the string that stopped it")


def _usage_start(heard: Heard) -> Iterator[Place]:
    for event in heard.turn.all(anthropic.START):
        message = event.json.get("message")
        if isinstance(message, dict) and (wrong := _uncounted(message, "input_tokens", "output_tokens")):
            is_soft = _SOFT.issuperset(wrong)
            wanted = '"usage":{"input_tokens":5,"output_tokens":0}'
            yield Place(event.message, member(message, "usage"), wanted, _milder(is_soft))


def _usage_delta(heard: Heard) -> Iterator[Place]:
    for event in heard.turn.all(anthropic.DELTA):
        if _uncounted(event.json, "output_tokens"):
            yield Place(event.message, member(event.json, "usage"), '"usage":{"output_tokens":3}')


def _uncounted(value: dict[str, Any], *names: str) -> list[str]:
    """The counts of its usage that are no whole numbers; `usage`, where it is no object."""
    usage = value.get("usage")
    if not isinstance(usage, dict):
        return ["usage"]
    return [name for name in names if not is_int(usage.get(name)) or usage[name] < 0]


# ---- the end of the stream


def _after(heard: Heard, first: Message) -> Iterator[Message]:
    """What comes after it. A [DONE] has a rule of its own."""
    place = next(place for place, message in enumerate(heard.messages) if message is first)
    return (message for message in heard.messages[place + 1 :] if message.kind is not Kind.DONE)


def _stop_last(heard: Heard) -> Iterator[Place]:
    if heard.turn.end is not None:
        for message in _after(heard, heard.turn.end.message):
            is_harmless = type_of(message) in (anthropic.STOP, anthropic.PING)
            yield Place(message, message.value.source, "nothing after message_stop", _milder(is_harmless))


def _no_done(heard: Heard) -> Iterator[Place]:
    for message in heard.dones:
        yield Place(message, message.value.source, "no [DONE]", _milder(not message.frame.event))


def _no_early_eof(heard: Heard) -> Iterator[Place]:
    yield from broken_off(heard)
    if heard.events and heard.turn.end is None and not _errors(heard):
        yield Place(heard.events[-1], "the end of the stream before message_stop", "message_stop, or an error event")


def _no_unknown_events(heard: Heard) -> Iterator[Place]:
    for event in heard.turn.heard:
        if event.type not in anthropic.KNOWN_EVENTS:
            yield Place(event.message, event.message.value.source, "an event of the API, or nothing")


def _ping_form(heard: Heard) -> Iterator[Place]:
    for message in heard.messages:
        if message.frame.event == anthropic.PING and not isinstance(message.json.get("type"), str):
            yield Place(message, f"event: ping, data: {message.value.source}", 'event: ping, data: {"type":"ping"}')


# ---- errors


def _errors(heard: Heard) -> list[Message]:
    """The errors of a stream, in whatever shape."""
    known = {id(message) for message in heard.failures}
    return [one for one in heard.messages if id(one) in known or one.frame.event == anthropic.ERROR]


def _is_error(value: dict[str, Any]) -> bool:
    error = as_object(value.get("error"))
    return value.get("type") == "error" and not anthropic.lacks(error, {"type": str, "message": str})


def _error_event(heard: Heard) -> Iterator[Place]:
    for message in _errors(heard):
        if not _is_error(message.json) or message.frame.event != anthropic.ERROR:
            name = f"event: {message.frame.event[:80]}, data: " if message.frame.event else "data: "
            yield Place(message, name + message.value.source, f"event: error, data: {_ERROR}")


def _error_last(heard: Heard) -> Iterator[Place]:
    if errors := _errors(heard):
        for message in _after(heard, errors[0]):
            yield Place(message, message.value.source, "nothing after the error event")


def _error_type(heard: Heard) -> Iterator[Place]:
    said: list[tuple[Message | None, dict[str, Any]]] = [(message, message.json) for message in _errors(heard)]
    if heard.form is not Form.STREAM:
        said.append((None, heard.reply))
    for at, value in said:
        if _is_error(value) and value["error"]["type"] not in anthropic.ERROR_TYPES:
            yield Place(at, member(value["error"], "type"), f"one of {', '.join(anthropic.ERROR_TYPES)}")


def _error_body(heard: Heard) -> Iterator[Place]:
    if (heard.form is Form.FAILURE or heard.reply_fails) and not _is_error(heard.reply):
        yield Place(None, heard.text[:1000], _ERROR)


# ---- whole replies


def _whole_shape(heard: Heard) -> Iterator[Place]:
    if heard.reply_fails:
        return
    reply = heard.reply
    wrong = [*anthropic.lacks(reply, {"id": str, "model": str, "stop_reason": str}), *_constants(reply)]
    wrong += ["content"] * ("content" not in reply) + ["usage"] * bool(
        _uncounted(reply, "input_tokens", "output_tokens")
    )
    wrong += ["stop_sequence"] * (not isinstance(reply.get("stop_sequence", ...), str | None))
    if wrong:
        shown = {key: reply.get(key) for key in wrong}
        wanted = "a message with id, type, role, model, content, stop_reason, stop_sequence and usage"
        yield Place(None, shown, wanted, _milder(_SOFT_WHOLE.issuperset(wrong)))


def _whole_content(heard: Heard) -> Iterator[Place]:
    if not isinstance(heard.reply.get("content", []), list):
        yield Place(None, member(heard.reply, "content"), '"content":[{"type":"text","text":"..."}]')
    for block in anthropic.blocks_of(heard.reply):
        kind = block.get("type")
        members = anthropic.MEMBERS.get(kind, {}) if isinstance(kind, str) and kind else {"type": str}
        if anthropic.lacks(block, members):
            yield Place(None, block, f"a block with {' and '.join(members)}")


RULES = (
    Rule(faults.EVENT_NAME, _event_name),
    Rule(faults.START_FIRST, _start_first),
    Rule(faults.START_FULL, _start_full),
    Rule(faults.START_ONCE, _start_once),
    Rule(faults.BLOCK_INDEX, _block_index),
    Rule(faults.BLOCK_START_FIRST, _block_start_first),
    Rule(faults.BLOCK_START_FULL, _block_start_full),
    Rule(faults.BLOCK_START_EMPTY, _block_start_empty),
    Rule(faults.BLOCK_SEQUENTIAL, _block_sequential),
    Rule(faults.BLOCK_STOP, _block_stop),
    Rule(faults.BLOCK_KNOWN, _block_known, _BOTH),
    Rule(faults.DELTA_TYPE, _delta_type),
    Rule(faults.TOOL_IDS, _tool_ids, _BOTH),
    Rule(faults.TOOL_INPUT_JSON, _tool_input_json),
    Rule(faults.DELTA_SENT, _delta_sent),
    Rule(faults.STOP_REASON, _stop_reason, _BOTH),
    Rule(faults.STOP_REASON_TOOL_USE, _stop_reason_tool_use, _BOTH),
    Rule(faults.STOP_SEQUENCE, _stop_sequence, _BOTH),
    Rule(faults.USAGE_START, _usage_start),
    Rule(faults.USAGE_DELTA, _usage_delta),
    Rule(faults.STOP_LAST, _stop_last),
    Rule(faults.NO_DONE, _no_done),
    Rule(faults.NO_EARLY_EOF, _no_early_eof, _BOTH, needs=("end",)),
    Rule(faults.NO_UNKNOWN_EVENTS, _no_unknown_events),
    Rule(faults.PING_FORM, _ping_form),
    Rule(faults.ERROR_EVENT, _error_event),
    Rule(faults.ERROR_LAST, _error_last),
    Rule(faults.ERROR_TYPE, _error_type, _ANYWHERE),
    Rule(faults.ERROR_BODY, _error_body, (Form.WHOLE, Form.INSTEAD, Form.FAILURE)),
    Rule(faults.WHOLE_SHAPE, _whole_shape, (Form.WHOLE,)),
    Rule(faults.WHOLE_CONTENT, _whole_content, (Form.WHOLE,)),
)
