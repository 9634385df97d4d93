"""A Messages stream, mended within its own dialect: what only Anthropic's API can say is carried on."""

from collections.abc import Callable
from itertools import count
from typing import ClassVar

import msgspec

from welldone.wire import faults, sse
from welldone.wire.dialects.dialect import KEEP_ALIVE
from welldone.wire.dialects.messages.blocks import Blocks
from welldone.wire.dialects.messages.counts import COUNTS, counts_of, filled, usage_of
from welldone.wire.dialects.messages.keeper import Keeper
from welldone.wire.dialects.messages.objects import (
    ERROR_TYPES,
    STOP_REASONS,
    error_object,
    stop_reason_for,
)
from welldone.wire.dialects.messages.scribe import PIECES, PING, Scribe, last_words
from welldone.wire.events import Failure, Json
from welldone.wire.failures import cut_off, garbage, read_error, tells_error
from welldone.wire.head import Endpoint, Head
from welldone.wire.lenient import as_list, as_object, lenient
from welldone.wire.native import Native
from welldone.wire.notes import Notes
from welldone.wire.reasons import interrupted, word_of
from welldone.wire.unicode import clean, scrub_object

_WAITING_LIMIT = 64  # unknown events before a message has started; a server that sends more is broken
_WHY = ("stop_reason", "stop_sequence")
_SHAPE = ("id", "type", "role", *_WHY)
_ENDS = frozenset({"end_turn", "stop_sequence", "tool_use"})  # of a message that was not cut short
_TEXTS = dict(PIECES.values())
_NO_OBJECT = "a tool call whose input is not a JSON object"


class MessagesNative(Native):
    """Mends one stream, or one whole reply, of a server that speaks Anthropic's dialect.

    Why the message stopped is held back until its end, so that whatever comes late still finds its place before it.
    """

    _UNKNOWN: ClassVar[faults.Fault] = faults.msg.NO_UNKNOWN_EVENTS

    def __init__(
        self,
        *,
        fallback: Head,
        model: str | None = None,
        is_stream: bool = True,
        limit_bytes: int = sse.LIMIT_BYTES,
    ) -> None:
        super().__init__(
            Endpoint.MESSAGES, fallback=fallback, model=model, is_stream=is_stream, limit_bytes=limit_bytes
        )
        self._keeper = Keeper()
        self._scribe: Scribe = Scribe() if is_stream else self._keeper
        self._mint = _minter(fallback.id)
        self._blocks = Blocks(self._scribe, self.notes, self._mint)
        self._counted: dict[str, int] = {}
        self._waiting: list[Json] = []  # unknown events: the message must have started before them
        self._early: object = None  # a reason to stop that was told before anything was said
        # What message_delta tells, until the end.
        self._delta: Json = {}
        self._usage_at_end: Json = {}
        self._more: Json = {}
        self._has_delta = False
        self._is_ended = False
        self._has_error = False
        self._handlers: dict[str, Callable[[Json], bytes]] = {
            "message_start": self._start,
            "content_block_start": self._start_block,
            "content_block_delta": self._add,
            "content_block_stop": self._stop_block,
            "message_delta": self._learn,
            "message_stop": self._stop,
            "ping": self._ping,
            "error": self._error,
        }

    @property
    def is_done(self) -> bool:
        """Whether the message has ended, or failed."""
        return self._is_ended or self.failure is not None

    @property
    def is_complete(self) -> bool:
        """Whether it was said why the message stopped, and no block is open: only `message_stop` is missing."""
        return self._reason() is not None and self._scribe.block is None and not self.is_done

    @property
    def has_started(self) -> bool:
        """Whether something of a message was heard."""
        return self._scribe.has_started

    def _reply(self, failure: Failure | None) -> Json:
        return self._keeper.message if failure is None else error_object(failure)

    def _leave(self, frames: list[sse.Frame]) -> None:
        if self._has_error and any(frame.data and frame.data.strip() != b"[DONE]" for frame in frames):
            self.notes.note(faults.msg.ERROR_LAST)

    def _scrubbed(self, value: Json) -> Json:
        delta = as_object(value.get("delta")) if value.get("type") == "content_block_delta" else {}
        member = _TEXTS.get(str(delta.get("type")), "")
        text = delta.get(member)
        clean = scrub_object(value)
        return clean | {"delta": clean["delta"] | {member: text}} if isinstance(text, str) else clean

    def _event(self, value: Json, name: str) -> bytes:
        if self._is_ended:
            self.notes.note(faults.msg.STOP_LAST, value)
            return b""
        kind = value.get("type")
        if not isinstance(kind, str) or (kind not in self._handlers and name in self._handlers):
            kind = name
        handler = self._handlers.get(kind)
        if handler is None or (kind != "error" and tells_error(value)):
            return self._unknown(value, name)
        if kind == "error" and name != "error":
            self.notes.note(faults.msg.ERROR_EVENT, value)
        elif kind != name or (kind != value.get("type") and kind not in ("ping", "error")):
            self.notes.note(faults.msg.EVENT_NAME, value)
        out = handler(value)
        if self._blocks.failure is not None:
            out += self._fail(self._blocks.failure)
        return out

    def _unknown(self, value: Json, name: str) -> bytes:
        """Forward an event of a newer version of the API; what is of no version, or of another dialect, is dropped."""
        if read_error(value, b"", Notes()) is not None:
            return self._error(value)
        self.notes.note(faults.msg.NO_UNKNOWN_EVENTS, value)
        if not name or value.get("type") != name or name.startswith("response.") or "choices" in value:
            return b""
        if not self.has_started:
            if len(self._waiting) < _WAITING_LIMIT:
                self._waiting.append(value)
            return b""
        return self._scribe.forward(scrub_object(value))

    def _odd(self, data: bytes, value: object, frame: sse.Frame) -> bytes:
        if frame.event == "ping":
            self.notes.note(faults.msg.PING_FORM, data.decode("utf-8", "replace"))
            return self._silence()
        if frame.event == "error" and not any(isinstance(one, dict) for one in lenient(data)):
            said = data.decode("utf-8", "replace").strip()
            self.notes.note(faults.msg.ERROR_EVENT, said)
            self._has_error = True
            return self._fail(Failure(said or "unknown error"))
        return super()._odd(data, value, frame)

    def _sentinel(self) -> bytes:
        self.notes.note(faults.msg.NO_DONE)
        return self._end() if self.has_started and not self._is_ended else b""

    def _silence(self) -> bytes:
        if self.is_done:
            return b""
        return PING if self.has_started else KEEP_ALIVE

    # The events of a message.

    def _start(self, value: Json) -> bytes:
        if self.has_started:
            self.notes.note(faults.msg.START_ONCE)
            return b""
        message = as_object(value.get("message"))
        full = self._full(message)
        content = message.get("content")
        is_empty = isinstance(content, list) and all(as_object(block).get("type") == "tool_use" for block in content)
        is_full = is_empty and all(full[name] == message.get(name, ...) for name in _SHAPE)
        if not is_full or not _name(message.get("model")):
            self.notes.note(faults.msg.START_FULL, message)
        if full["usage"] != message.get("usage"):
            self.notes.note(faults.msg.USAGE_START, message.get("usage"))
        self._early = message.get("stop_reason")
        return self._started(full) + self._blocks.tell(as_list(content))

    def _started(self, message: Json) -> bytes:
        """The start of the message, and the unknown events that came before it."""
        waiting, self._waiting = self._waiting, []
        started = self._scribe.start(message)
        return started + b"".join([self._scribe.forward(scrub_object(value)) for value in waiting])

    def _begin(self) -> bytes:
        """The start of the message, where its server has forgotten it."""
        if self.has_started:
            return b""
        self.notes.note(faults.msg.START_FIRST)
        return self._started(self._full({}))

    def _start_block(self, value: Json) -> bytes:
        if self._has_delta:
            self.notes.note(faults.msg.DELTA_SENT, value)
        block = scrub_object(as_object(value.get("content_block")))
        return self._begin() + self._blocks.start(value.get("index"), block, _rest(value, "index", "content_block"))

    def _add(self, value: Json) -> bytes:
        begun = self._begin()
        delta = value.get("delta")
        if not isinstance(delta, dict):
            self.notes.note(faults.msg.DELTA_TYPE, value)
            return begun
        is_plain = all(type(item) is str for item in delta.values())  # the common case
        more = _rest(value, "index", "delta")
        return begun + self._blocks.delta(value.get("index"), delta if is_plain else scrub_object(delta), more)

    def _stop_block(self, value: Json) -> bytes:
        return self._begin() + self._blocks.stop(value.get("index"), _rest(value, "index"))

    def _learn(self, value: Json) -> bytes:
        """Why the message stopped, and what was counted: said at its end, once."""
        begun = self._begin()
        self._has_delta = True
        delta, usage = value.get("delta"), counts_of(as_object(value.get("usage")))
        if not isinstance(delta, dict):
            delta = {name: value.get(name) for name in _WHY}
            self.notes.note(faults.msg.DELTA_SENT, value)
        elif delta and delta.get("stop_reason") is None and self._reason() is not None:
            self.notes.note(faults.msg.DELTA_SENT, value)  # clients take the last word, which says nothing
        if "output_tokens" not in usage:
            self.notes.note(faults.msg.USAGE_DELTA, value.get("usage"))
        self._count(usage)
        _update(self._usage_at_end, usage)
        _update(self._delta, scrub_object(delta))
        _update(self._more, _rest(value, "delta", "usage", *_WHY))
        return begun

    def _stop(self, value: Json) -> bytes:
        return self._begin() + self._end(_rest(value))

    def _ping(self, value: Json) -> bytes:
        if value.get("type") != "ping":
            self.notes.note(faults.msg.PING_FORM, value)
        return self._silence()

    def _error(self, value: Json) -> bytes:
        self._has_error = True
        failure = read_error(value, b"", Notes()) or Failure("unknown error")
        return self._fail(self._told(failure, value, faults.msg.ERROR_EVENT))

    def _told(self, failure: Failure, value: Json, shape: faults.Fault) -> Failure:
        """A failure that the server told of; note in what `value`, which told it, is not of Anthropic's shape."""
        error = as_object(value.get("error"))
        if value.get("type") != "error" or not isinstance(error.get("message"), str):
            self.notes.note(shape, value)
        if failure.type not in ERROR_TYPES:
            self.notes.note(faults.msg.ERROR_TYPE, failure.type)
        request = _name(value.get("request_id"))
        if request is None:
            return failure
        return msgspec.structs.replace(failure, more={**failure.more, "request_id": request})

    # A reply that was not streamed.

    def _whole(self, value: Json) -> bytes:
        content = value.get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        # With a member `message` and a type it is an error to all who read it.
        failure = read_error(value, b"", Notes()) or read_error({"type": "error", **value}, b"", Notes())
        if failure is not None:
            return self._fail(self._told(failure, value, faults.msg.ERROR_BODY))
        if not isinstance(content, list):
            self.notes.note(faults.msg.WHOLE_SHAPE, value)
            return self._fail(garbage("a reply that is no message"))
        word = word_of(value.get("stop_reason"))
        kept = Blocks(self._keeper, Notes(), self._mint)
        self._keeper.start(self._full(value))
        kept.tell(content)
        if kept.failure is not None:
            return self._fail(kept.failure)
        if word is None and not kept.is_called:
            return self._fail(cut_off("the server's reply has no stop_reason"))
        reason = self._mended(word or "tool_use", kept)
        if reason is None:
            return self._fail(interrupted(str(word), value["stop_reason"], field="stop_reason"))
        if self._keeper.dropped and reason in _ENDS:
            return self._fail(garbage(_NO_OBJECT))
        why = {"stop_reason": reason, "stop_sequence": _name(value.get("stop_sequence"))}
        self._keeper.end(why, self._counts())
        self._note_whole(value)
        self._is_ended = True
        if not self._is_stream:
            return b""
        # What is wrong with the events of a whole message is no fault of a stream: nothing more is noted.
        told = Blocks(self._scribe, Notes(), self._mint)
        begun = self._scribe.start(self._full(value))
        return begun + told.tell(self._keeper.message["content"]) + self._scribe.end(why, self._counts())

    def _note_whole(self, value: Json) -> None:
        message = self._keeper.message
        shape = ("id", "type", "role", "stop_reason", "usage")
        if any(message[name] != value.get(name) for name in shape) or not _name(value.get("model")):
            self.notes.note(faults.msg.WHOLE_SHAPE, value)
        if message["content"] != value.get("content"):
            self.notes.note(faults.msg.WHOLE_CONTENT, value.get("content"))

    # The end.

    def _finish(self) -> bytes:
        if self._is_ended:
            return b""
        self.notes.note(faults.msg.NO_EARLY_EOF)
        if self._reason() is None:
            return self._cut("the server's stream ended before the message was whole")
        return self._end()

    def _broken(self, failure: Failure) -> bytes:
        return last_words(failure)

    def _end(self, last: Json | None = None) -> bytes:
        """What is open ends, and so does the message; `last` are unknown members of its last event."""
        out = self._blocks.close()
        word = self._reason()
        if word is None:
            self.notes.note(faults.msg.DELTA_SENT)
            word = word_of(self._early) or ("tool_use" if self._blocks.is_called else "end_turn")
        reason = self._mended(word, self._blocks)
        if reason is None:
            return out + self._fail(interrupted(word, self._delta.get("stop_reason"), field="stop_reason"))
        if self._blocks.broken and reason in _ENDS:
            self.broken_arguments = self._blocks.broken
            self.notes.note(faults.msg.TOOL_INPUT_JSON)
        if self._keeper.dropped and reason in _ENDS:
            return out + self._fail(garbage(_NO_OBJECT))
        self._is_ended = True
        stop = _name(self._delta.get("stop_sequence"))
        if reason == "stop_sequence" and stop is None:
            self.notes.note(faults.msg.STOP_SEQUENCE)
        delta = self._delta | {"stop_reason": reason, "stop_sequence": stop}
        return out + self._scribe.end(delta, self._counts(), self._more, last)

    def _reason(self) -> str | None:
        return word_of(self._delta.get("stop_reason"))

    def _mended(self, word: str, blocks: Blocks) -> str | None:
        """Why the message stopped, in Anthropic's words, and as its blocks say; None where it was interrupted."""
        if word not in STOP_REASONS:
            self.notes.note(faults.msg.STOP_REASON, word)
        reason = stop_reason_for(word)
        is_wrong = reason in _ENDS - {"tool_use"} if blocks.is_called else reason == "tool_use"
        if not is_wrong:
            return reason
        self.notes.note(faults.msg.STOP_REASON_TOOL_USE, reason)
        return "tool_use" if blocks.is_called else "end_turn"

    # What is told of a message.

    def _full(self, message: Json) -> Json:
        """A message with all that clients need, and nothing said yet."""
        usage = counts_of(as_object(message.get("usage")))
        self._count(usage)
        return scrub_object(message) | {
            "id": _name(message.get("id")) or self._fallback.id,
            "type": "message",
            "role": "assistant",
            "model": self._model or _name(message.get("model")) or self._fallback.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": filled(usage, input_tokens=0, output_tokens=0),
        }

    def _count(self, usage: Json) -> None:
        """Counts are of the whole message: later ones stand for those before."""
        self._counted |= {name: usage[name] for name in COUNTS if usage.get(name) is not None}
        self.usage = usage_of(self._counted)

    def _counts(self) -> Json:
        """The counts at the end of the message."""
        return filled(self._usage_at_end, output_tokens=self._counted.get("output_tokens", 0))


def _name(value: object) -> str | None:
    return clean(value) if isinstance(value, str) and value else None


def _rest(value: Json, *names: str) -> Json:
    """The members of an event that we do not know, less those by which an error is known."""
    known = ("type", "error", "message", *names)
    return scrub_object({name: item for name, item in value.items() if name not in known})


def _update(into: Json, fields: Json) -> None:
    """Add what was told later; null tells nothing."""
    into.update({name: value for name, value in fields.items() if value is not None or name not in into})


def _minter(message_id: str) -> Callable[[], str]:
    """Makes ids of tools out of a message's id, so that the same input gives the same bytes."""
    stem = message_id.rpartition("_")[2]
    numbers = count(1)
    return lambda: f"toolu_{stem}{next(numbers)}"
