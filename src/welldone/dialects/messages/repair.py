"""Pass-through repair of /v1/messages: features that only Anthropic's API has are kept."""

from collections.abc import Callable
from itertools import count
from typing import ClassVar

import msgspec

from welldone.core import sse
from welldone.core.answer_format import KEEP_ALIVE
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.error_types import ERROR_TYPES
from welldone.core.events import Failure, Json, Usage
from welldone.core.fields import bad_stream_failure, has_error, incomplete_stream_failure, read_error
from welldone.core.finish_reasons import finish_word, interrupted_failure
from welldone.core.lenient_json import as_object, clean_unicode, parse_lenient, scrub_object
from welldone.core.repair_log import RepairLog
from welldone.dialects.messages import emitter, objects
from welldone.dialects.messages.blocks import BlockSequencer
from welldone.dialects.same_dialect import PassthroughRepairer, has_content

_PENDING_EVENTS_LIMIT = 64  # unknown events before message_start; more come only from a broken server
_STOP_FIELDS = ("stop_reason", "stop_sequence")
_START_FIELDS = ("id", "type", "role", *_STOP_FIELDS)
_NORMAL_STOP_REASONS = frozenset({"end_turn", "stop_sequence", "tool_use"})  # of a complete message
_UNORDERED_EVENTS = ("message_start", "ping", "error")  # they need no message_start before them
_DELTA_TEXT_MEMBERS = dict(emitter.BLOCK_TEXT_DELTAS.values())
_INPUT_NOT_OBJECT = "a tool call whose input is not a JSON object"


class MessagesRepairer(PassthroughRepairer):
    """Repairs one stream or non-streamed reply of an Anthropic-compatible server.

    message_delta is held back until the end of the message, so that late blocks come before it. `output` replaces the
    emitter that writes the events.
    """

    _UNKNOWN_EVENT_RULE: ClassVar[str] = "msg-no-unknown-events"

    def __init__(
        self,
        *,
        fallback: Envelope,
        model: str | None = None,
        is_stream: bool = True,
        output: emitter.MessagesEmitter | None = None,
        repair_log: RepairLog | None = None,
    ) -> None:
        super().__init__(Endpoint.MESSAGES, fallback, model, is_stream=is_stream, repair_log=repair_log)
        self._accumulator = emitter.MessagesAccumulator()
        self._emitter: emitter.MessagesEmitter = emitter.MessagesEmitter() if is_stream else self._accumulator
        if output is not None:
            self._emitter = output
        stem, numbers = fallback.id.rpartition("_")[2], count(1)
        self._next_tool_id = lambda: f"toolu_{stem}{next(numbers)}"  # the same input gives the same bytes
        self._blocks = BlockSequencer(self._emitter, self.repair_log, self._next_tool_id)
        self._token_counts: dict[str, int] = {}
        self._usage_members: Json = {}
        self._pending_events: list[Json] = []  # unknown events before message_start
        self._early_stop_reason: object = None  # stop_reason in message_start
        # Merged members of message_delta, sent at the end.
        self._delta: Json = {}
        self._usage_at_end: Json = {}
        self._extra_members: Json = {}
        self._has_delta = False
        self._handlers: dict[str, Callable[[Json], bytes]] = {
            "message_start": self._on_message_start,
            "content_block_start": self._on_block_start,
            "content_block_delta": self._on_block_delta,
            "content_block_stop": self._on_block_stop,
            "message_delta": self._on_message_delta,
            "message_stop": self._on_message_stop,
            "ping": self._on_ping,
            "error": self._on_error,
        }

    @property
    def is_complete(self) -> bool:
        """Whether only message_stop is missing."""
        return self._stop_reason() is not None and self._emitter.block is None and not self.is_done

    @property
    def has_started(self) -> bool:
        """Whether the message has started."""
        return self._emitter.has_started

    def _reply_object(self, failure: Failure | None) -> Json:
        return self._accumulator.message if failure is None else objects.anthropic_error_object(failure)

    def _skip_frame(self, frame: sse.Frame) -> None:
        is_event = frame.data and frame.data.strip() != b"[DONE]"
        self.repair_log.record_if(self._has_error_event and is_event, "msg-error-last")

    def text_of(self, event: object) -> object:
        """Return the text of a delta of text or thinking."""
        match event:
            case {"delta": {"type": "text_delta", "text": text} | {"type": "thinking_delta", "thinking": text}}:
                return text
            case _:
                return None

    def _scrub_event(self, value: Json) -> Json:
        delta = as_object(value.get("delta")) if value.get("type") == "content_block_delta" else {}
        member = _DELTA_TEXT_MEMBERS.get(str(delta.get("type")), "")
        text, clean = delta.get(member), scrub_object(value)
        return clean | {"delta": clean["delta"] | {member: text}} if isinstance(text, str) else clean

    def _repair_event(self, value: Json, name: str) -> bytes:
        if self._is_ended:
            self.repair_log.record("msg-stop-last", value)
            return b""
        event_type = value.get("type")
        if not isinstance(event_type, str) or (event_type not in self._handlers and name in self._handlers):
            event_type = name
        handler = self._handlers.get(event_type)
        if handler is None or (event_type != "error" and has_error(value)):
            return self._forward_unknown_event(value, name)
        if event_type == "error" and name != "error":
            self.repair_log.record("msg-error-event", value)
        elif event_type != name or (event_type != value.get("type") and event_type not in ("ping", "error")):
            self.repair_log.record("msg-event-name", value)
        self._blocks.is_plain_text = False
        out = (b"" if event_type in _UNORDERED_EVENTS else self._ensure_started()) + handler(value)
        self._send_text = self._emitter.add_text if self._blocks.is_plain_text else None
        if self._blocks.failure is not None:
            out += self._fail(self._blocks.failure)
        return out

    def _forward_unknown_event(self, value: Json, name: str) -> bytes:
        """Forward an event of a newer API version; drop foreign data and events of other dialects."""
        if read_error(value, b"", RepairLog()) is not None:
            return self._on_error(value)
        event_type = value.get("type")
        is_event = isinstance(event_type, str) and not event_type.startswith("response.") and "choices" not in value
        if not is_event or (name != event_type and (name or not has_content(value))):
            self._leave_out(value)
            return b""
        self.repair_log.record("msg-no-unknown-events", value)
        if not self.has_started:
            if len(self._pending_events) < _PENDING_EVENTS_LIMIT:
                self._pending_events.append(value)
            return b""
        return self._emitter.forward_event(scrub_object(value))

    def _read_text(self, text: bytes, frame: sse.Frame, out: list[bytes]) -> None:
        if frame.event not in ("ping", "error") or any(isinstance(parsed, dict) for parsed in parse_lenient(text)):
            super()._read_text(text, frame, out)
        elif frame.event == "ping":
            self.repair_log.record("msg-ping-form", text.decode("utf-8", "replace"))
            self._add_keep_alive(out)
        else:
            message = text.decode("utf-8", "replace").strip()
            self.repair_log.record("msg-error-event", message)
            self._has_error_event = True
            out.append(self._fail(Failure(message or "unknown error")))

    def _read_done(self, text: bytes, frame: sse.Frame, out: list[bytes]) -> None:
        self.repair_log.record("msg-no-done")
        if text.strip() == b"[DONE]" and self.has_started and not self._is_ended:
            out.append(self._end_message())

    def _keep_alive_bytes(self) -> bytes:
        if self.is_done:
            return b""
        return emitter.PING if self.has_started else KEEP_ALIVE

    def _on_message_start(self, value: Json) -> bytes:
        if self.has_started:
            self.repair_log.drop("msg-start-once", as_object(value.get("message")).get("content"))
            return b""
        message = self.repair_log.read_object(value.get("message", {}), "msg-start-full")
        full = self._complete_message(message)
        content = _as_blocks(message.get("content"))
        is_empty = isinstance(content, list) and all(as_object(block).get("type") == "tool_use" for block in content)
        is_full = is_empty and all(full[name] == message.get(name, ...) for name in _START_FIELDS)
        self.repair_log.record_if(not is_full or not _nonempty_string(message.get("model")), "msg-start-full", message)
        self.repair_log.record_if(full["usage"] != message.get("usage"), "msg-usage-start", message.get("usage"))
        self._early_stop_reason = message.get("stop_reason")
        return self._emit_message_start(full, _unknown_members(value)) + self._blocks.add_whole_blocks(content or [])

    def _emit_message_start(self, message: Json, more: Json) -> bytes:
        """Write message_start, then the unknown events received before it."""
        pending, self._pending_events = self._pending_events, []
        started = self._emitter.start_message(message, more)
        return started + b"".join([self._emitter.forward_event(scrub_object(value)) for value in pending])

    def _ensure_started(self) -> bytes:
        """Write message_start if the server omitted it."""
        if self.has_started:
            return b""
        self.repair_log.record("msg-start-first")
        return self._emit_message_start(self._complete_message({}), {})

    def _on_block_start(self, value: Json) -> bytes:
        self.repair_log.record_if(self._has_delta, "msg-delta-sent", value)
        block = scrub_object(self.repair_log.read_object(value.get("content_block"), "msg-block-start-full"))
        more = _unknown_members(value, "index", "content_block")
        return self._blocks.start_block(value.get("index"), block, more)

    def _on_block_delta(self, value: Json) -> bytes:
        delta = self.repair_log.read_object(value.get("delta"), "msg-delta-type")
        if not delta:
            return b""
        is_plain = all(type(item) is str for item in delta.values())  # the common case
        more = _unknown_members(value, "index", "delta")
        return self._blocks.add_delta(value.get("index"), delta if is_plain else scrub_object(delta), more)

    def _on_block_stop(self, value: Json) -> bytes:
        return self._blocks.stop_block(value.get("index"), _unknown_members(value, "index"))

    def _on_message_delta(self, value: Json) -> bytes:
        self._has_delta = True
        delta, usage = value.get("delta"), objects.valid_counts(value.get("usage"))
        if not isinstance(delta, dict):
            beside = {name: value.get(name) for name in _STOP_FIELDS}
            delta = self.repair_log.read_object(delta, "msg-delta-sent") or beside
        elif delta and delta.get("stop_reason") is None and self._stop_reason() is not None:
            self.repair_log.record("msg-delta-sent", value)  # clients use the last stop_reason, which is null
        self.repair_log.record_if("output_tokens" not in usage, "msg-usage-delta", value.get("usage"))
        self._update_counts(usage)
        _merge_members(self._usage_at_end, usage)
        _merge_members(self._delta, scrub_object(delta))
        _merge_members(self._extra_members, _unknown_members(value, "delta", "usage", *_STOP_FIELDS))
        return b""

    def _on_message_stop(self, value: Json) -> bytes:
        return self._end_message(_unknown_members(value))

    def _on_ping(self, value: Json) -> bytes:
        self.repair_log.record_if(value.get("type") != "ping", "msg-ping-form", value)
        return self._keep_alive_bytes()

    def _on_error(self, value: Json) -> bytes:
        self._has_error_event = True
        failure = read_error(value, b"", RepairLog()) or Failure("unknown error")
        return self._fail(self._upstream_failure(failure, value, "msg-error-event"))

    def _upstream_failure(self, failure: Failure, value: Json, shape: str) -> Failure:
        """Log deviations of an error from Anthropic's format; return the failure with its request id."""
        error = as_object(value.get("error"))
        is_known = value.get("type") == "error" and isinstance(error.get("message"), str)
        self.repair_log.record_if(not is_known, shape, value)
        self.repair_log.record_if(failure.type not in ERROR_TYPES, "msg-error-type", failure.type)
        request = _nonempty_string(value.get("request_id"))
        if request is None:
            return failure
        return msgspec.structs.replace(failure, extra_fields={**failure.extra_fields, "request_id": request})

    def _repair_reply(self, value: Json) -> bytes:
        content = _as_blocks(value.get("content"))
        # Clients read any object with `message` and `type` as an error.
        failure = read_error(value, b"", RepairLog()) or read_error({"type": "error", **value}, b"", RepairLog())
        if failure is not None:
            return self._fail(self._upstream_failure(failure, value, "msg-error-body"))
        if not isinstance(content, list | dict):
            self.repair_log.record("msg-whole-shape", value)
            return self._fail(bad_stream_failure("a reply that is not a message"))
        word = finish_word(value.get("stop_reason"))
        blocks = BlockSequencer(self._accumulator, RepairLog(), self._next_tool_id)
        self._accumulator.start_message(self._complete_message(value))
        blocks.add_whole_blocks(content)
        if blocks.failure is not None:
            return self._fail(blocks.failure)
        if word is None and not blocks.has_tool_use:
            return self._fail(incomplete_stream_failure("the server's reply has no stop_reason"))
        reason = self._repaired_stop_reason(word or "tool_use", blocks)
        if reason is None:
            return self._fail(interrupted_failure(str(word), value["stop_reason"], field="stop_reason"))
        if self._accumulator.dropped_calls and reason in _NORMAL_STOP_REASONS:
            return self._fail(bad_stream_failure(_INPUT_NOT_OBJECT))
        delta = {"stop_reason": reason, "stop_sequence": _nonempty_string(value.get("stop_sequence"))}
        self._accumulator.end_message(delta, self._final_counts())
        message = self._accumulator.message
        shape = ("id", "type", "role", "stop_reason", "usage")
        if any(message[name] != value.get(name) for name in shape) or not _nonempty_string(value.get("model")):
            self.repair_log.record("msg-whole-shape", value)
        self.repair_log.record_if(message["content"] != value.get("content"), "msg-whole-content", value.get("content"))
        self._is_ended = True
        self._add_finish_reason(reason)
        if not self._is_stream:
            return b""
        # Stream rules do not apply to the generated events: use a log of their own.
        blocks = BlockSequencer(self._emitter, RepairLog(), self._next_tool_id)
        started = self._emitter.start_message(self._complete_message(value))
        content_events = blocks.add_whole_blocks(message["content"])
        return started + content_events + self._emitter.end_message(delta, self._final_counts())

    def _finish_stream(self) -> bytes:
        if self._is_ended:
            return b""
        self.repair_log.record("msg-no-early-eof")
        if self._stop_reason() is None:
            is_whole = self._blocks.may_be_whole and not self.is_cut
            broken_off = incomplete_stream_failure("the server's stream ended before the message was complete")
            if (failure := self.unfinished if is_whole else broken_off) is not None:
                return self._fail(failure, is_ours=True)
        return self._end_message()

    def _error_bytes(self, failure: Failure) -> bytes:
        return emitter.encode_error_event(failure)

    def _end_message(self, last: Json | None = None) -> bytes:
        """End the open blocks and the message; `last` has unknown members of message_stop."""
        out = self._blocks.close_all()
        if (failure := self._blocks.failure) is not None or self.repair_log.lost is not None:
            return out + (self._fail_if_strict() if failure is None else self._fail(failure))
        word = self._stop_reason()
        if word is None:
            self.repair_log.record("msg-delta-sent")
            word = finish_word(self._early_stop_reason) or ("tool_use" if self._blocks.has_tool_use else "end_turn")
        reason = self._repaired_stop_reason(word, self._blocks)
        if reason is None:
            return out + self._fail(interrupted_failure(word, self._delta.get("stop_reason"), field="stop_reason"))
        if self._blocks.broken_inputs and reason in _NORMAL_STOP_REASONS:
            self.invalid_arguments_count: int = self._blocks.broken_inputs
            self.repair_log.record("msg-tool-input-json")
        if self._accumulator.dropped_calls and reason in _NORMAL_STOP_REASONS:
            return out + self._fail(bad_stream_failure(_INPUT_NOT_OBJECT))
        self._is_ended = True
        self._add_finish_reason(reason)
        stop = _nonempty_string(self._delta.get("stop_sequence"))
        self.repair_log.record_if(reason == "stop_sequence" and stop is None, "msg-stop-sequence")
        delta = self._delta | {"stop_reason": reason, "stop_sequence": stop}
        return out + self._emitter.end_message(delta, self._final_counts(), self._extra_members, last)

    def _stop_reason(self) -> str | None:
        return finish_word(self._delta.get("stop_reason"))

    def _repaired_stop_reason(self, word: str, blocks: BlockSequencer) -> str | None:
        """Map the stop reason and make it consistent with the blocks; None for an interrupted message."""
        self.repair_log.record_if(word not in objects.STOP_REASONS, "msg-stop-reason", word)
        reason = objects.normalise_stop_reason(word)
        is_wrong = reason in _NORMAL_STOP_REASONS - {"tool_use"} if blocks.has_tool_use else reason == "tool_use"
        if not is_wrong:
            return reason
        self.repair_log.record("msg-stop-reason-tool-use", reason)
        return "tool_use" if blocks.has_tool_use else "end_turn"

    def _complete_message(self, message: Json) -> Json:
        """Add missing members to a message, and empty it."""
        usage = objects.valid_counts(message.get("usage"))
        self._update_counts(usage)
        id = _nonempty_string(message.get("id")) or self._fallback.id
        model = self._model or _nonempty_string(message.get("model")) or self._fallback.model
        usage = objects.with_default_counts(usage, input_tokens=0, output_tokens=0)
        return scrub_object(message) | objects.message_object(Envelope(id, self._fallback.created, model), usage, [])

    def _update_counts(self, usage: Json) -> None:
        # Counts are cumulative: later ones replace earlier ones.
        self._token_counts |= {name: usage[name] for name in objects.USAGE_COUNTS if usage.get(name) is not None}
        _merge_members(self._usage_members, usage)
        self.usage: Usage | None = objects.usage_from_counts(self._token_counts, self._usage_members)

    def _final_counts(self) -> Json:
        return objects.with_default_counts(self._usage_at_end, output_tokens=self._token_counts.get("output_tokens", 0))


def _nonempty_string(value: object) -> str | None:
    return clean_unicode(value) if isinstance(value, str) and value else None


def _as_blocks(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _unknown_members(value: Json, *names: str) -> Json:
    """Return the unknown members of an event, except those that identify an error."""
    known = ("type", "error", "message", *names)
    return scrub_object({name: item for name, item in value.items() if name not in known})


def _merge_members(into: Json, fields: Json) -> None:
    """Update members, ignoring null for those that are present."""
    into.update({name: value for name, value in fields.items() if value is not None or name not in into})
