"""The tool calls of one choice: which call a piece belongs to, and when it may be said.

Servers number calls wrongly, not at all, or all alike; they repeat ids and names, split names, and mix the arguments
of two calls. What comes out is one call after the other, numbered from 0, each with one id and one whole name.
The input of a custom call is free text: nothing tells where it ends, so calls after it wait for the end of the answer.
"""

import re
from collections.abc import Callable

import msgspec

from welldone.protocol import catalog
from welldone.protocol.events import Event, Failure, Json, ToolArguments, ToolCall
from welldone.protocol.fields import bad_stream_failure, incomplete_stream_failure
from welldone.protocol.lenient_json import normalise_object_text
from welldone.protocol.repair_log import RepairLog
from welldone.protocol.text_filters import BufferedText, ByteBudget, is_valid_json

CALLS_LIMIT = 1024
"""Calls in one choice; OpenAI's clients allow 128."""
_NAME_LIMIT = 1024  # characters; OpenAI allows 64
_PLACEHOLDER = "{}"
_DELIMITERS = '{}[]"'
_DELIMITERS_AND_ESCAPE = _DELIMITERS + "\\"
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


class JsonEndDetector:
    """Tells when the pieces of a JSON object or list make a whole one. Each character is looked at once."""

    def __init__(self) -> None:
        self.is_complete = False
        """Whether an object, list or string has been closed."""
        self._depth = 0
        self._in_string = False
        self._skip = 0  # characters to pass over: one behind a backslash

    def feed(self, text: str) -> None:
        """Read on. No loop in Python: a megabyte of brackets would hold up all other streams."""
        if all(
            text.find(sign, self._skip) < 0 for sign in _DELIMITERS_AND_ESCAPE
        ):  # faster than a pattern, in a long text
            self._skip = max(0, self._skip - len(text))
            return
        rest = ('"' if self._in_string else "") + text[self._skip :]
        plain = _STRING.sub('"', rest + " ")  # a string that is still open takes the space too
        self._in_string = plain[-1] == '"'
        slashes = len(rest) - len(rest.rstrip("\\"))
        self._skip = slashes % 2 if self._in_string else 0
        self._depth += plain.count("{") + plain.count("[") - plain.count("}") - plain.count("]")
        last = max(plain.rfind(sign) for sign in _DELIMITERS)
        if last >= 0:
            self.is_complete = self._depth == 0 and not self._in_string and plain[last] not in "{["

    @property
    def is_open(self) -> bool:
        """Whether something has begun and not ended."""
        return self._depth != 0 or self._in_string


class HeldBytesBudget:
    """How much of a reply waits to be said. A piece is charged for what it costs in memory, not only for its text."""

    LIMIT_BYTES = 16 * 1024 * 1024
    _PIECE_BYTES = 256

    def __init__(self) -> None:
        self.text_budget = ByteBudget()
        """For arguments that are being said."""
        self._bytes = 0

    @property
    def is_exceeded(self) -> bool:
        """Whether more waits than may be kept."""
        return self._bytes > self.LIMIT_BYTES

    def charge(self, piece: ToolArguments) -> None:
        """Something waits."""
        self._bytes += self._cost(piece)

    def release(self, piece: ToolArguments) -> None:
        """It does not wait any more."""
        self._bytes -= self._cost(piece)

    def _cost(self, piece: ToolArguments) -> int:
        others = [members for members in (piece.extra_fields, piece.inner_extra_fields) if members]
        more = len(msgspec.json.encode(others)) if others else 0
        return self._PIECE_BYTES + len(piece.text) + more


class _PartialToolCall:
    """One call as far as it was heard."""

    def __init__(self, number: int, previous: "_PartialToolCall | None", budget: ByteBudget) -> None:
        self.number = number
        self.previous = previous  # the call that had the number before this one
        self.id = ""
        self.name = ""
        self.extra_fields: Json = {}
        self.inner_extra_fields: Json = {}
        self.is_custom = False  # its input is free text: it has no end that can be seen, and no placeholder
        self.pending: list[ToolArguments] = []  # pieces that were not said yet
        self.json_end = JsonEndDetector()
        self.arguments_text = BufferedText(budget)
        self.is_emitted = False  # it was said: its id and name are fixed
        self.has_arguments = False
        self.has_placeholder = False  # its arguments so far are a `{}` that may be no more than a place-holder
        self.is_closed = False
        self.may_be_repeat = False  # perhaps only a name that was repeated

    @property
    def is_only_repeat(self) -> bool:
        """Whether nothing but a repeated name stands behind it."""
        return self.may_be_repeat and not self.id and not self.has_arguments


class ToolCallAssembler:
    """The calls of one choice.

    `mint` makes an id where the server gave none; `held` has what waits in the whole reply. Ids are unique within a
    choice only: each choice is a message of its own, and the results of its calls are sent back with that message.
    """

    def __init__(
        self,
        index: int,
        repair_log: RepairLog,
        new_call_id: Callable[[], str],
        budget: HeldBytesBudget,
        *,
        is_legacy: bool = False,
    ) -> None:
        self.failure: Failure | None = None
        """Set when the calls cannot be told any more."""
        self.invalid_arguments = 0
        """How many calls have arguments that are no JSON object."""
        self.unreadable = 0
        """In how many of them no object can be read at all."""
        self._index = index
        self._repair_log = repair_log
        self._new_call_id = new_call_id
        self._ids: set[str] = set()
        self._budget = budget
        self._is_legacy = is_legacy  # a deprecated `function_call` has no id
        self._calls: list[_PartialToolCall] = []
        self._by_number: dict[int, _PartialToolCall] = {}
        self._by_id: dict[str, _PartialToolCall] = {}
        self._open_position = 0  # the place of the call that is being said
        self._emitted_count = 0  # how many calls were begun
        self._is_cut = False

    def __len__(self) -> int:
        return self._emitted_count

    @property
    def has_nameless(self) -> bool:
        """Whether some call has no name yet."""
        return any(not call.name for call in self._calls)

    def are_complete(self) -> bool:
        """Whether the arguments of each call may be a whole JSON value."""
        return not any(call.json_end.is_open for call in self._calls)

    def start_call(self, event: ToolCall, out: list[Event]) -> None:
        """A piece that names a call: a new one, or one that we know."""
        call = self._find_call(event)
        if call is None:
            before = self._calls[-1].name if self._calls else ""
            call = self._new_call(event.call_index)
            call.id, call.name, call.is_custom = event.id, event.name, event.is_custom
            call.may_be_repeat = call.may_be_repeat and event.name == before
            self._by_id.setdefault(event.id, call)
        else:
            self._merge_repeat(call, event)
        if call.is_emitted and (event.extra_fields or event.inner_extra_fields):
            late = ToolArguments(
                event.index, event.call_index, "", event.extra_fields, call.is_custom, event.inner_extra_fields
            )
            call.pending.append(late)
            self._budget.charge(late)
        else:
            call.extra_fields.update(event.extra_fields)
            call.inner_extra_fields.update(event.inner_extra_fields)
        self._emit_ready(out)

    def add_arguments(self, event: ToolArguments, out: list[Event]) -> None:
        """A piece of a call's arguments."""
        if event.call_index >= 0:
            call = self._by_number.get(event.call_index) or self._new_call(event.call_index)
        else:
            call = self._calls[-1] if self._calls else self._new_call(event.call_index)
        if call.is_closed:
            # The next call has begun, since this one was whole: more would make it wrong.
            self._repair_log.record(catalog.tool.ONE_AT_A_TIME, event.text)
            return
        call.is_custom |= event.is_custom and not (call.is_emitted or call.has_arguments)
        if not call.is_custom:
            self._track_json(call, event.text)
        call.has_arguments |= event.text != ""
        call.pending.append(event)
        self._budget.charge(event)
        if call is not self._calls[-1] and not self._calls[-1].is_only_repeat:
            self._repair_log.record(catalog.tool.ONE_AT_A_TIME, event.text)
        self._emit_ready(out)

    def _track_json(self, call: _PartialToolCall, text: str) -> None:
        """Look for the end of a call's JSON, and for a placeholder before it."""
        if call.has_placeholder and text.lstrip().startswith("{"):
            self._repair_log.record(catalog.tool.ARGS_FIRST_EMPTY)
            # What else came with it stays.
            waiting = [
                msgspec.structs.replace(piece, text="")
                for piece in call.pending
                if piece.extra_fields or piece.inner_extra_fields
            ]
            for piece in call.pending:
                self._budget.release(piece)
            for piece in waiting:
                self._budget.charge(piece)
            call.pending = waiting
            call.json_end = JsonEndDetector()
        if text.strip():
            is_first = call.has_placeholder or not call.has_arguments
            call.has_placeholder = text == _PLACEHOLDER and is_first
        call.json_end.feed(text)

    def close(self, out: list[Event], *, is_cut: bool = False) -> None:
        """Say what was held back: no more pieces will come. `is_cut`: the answer was cut, so some may be missing."""
        self._drop_repeat()
        self._is_cut = is_cut
        self._emit_ready(out, is_final=True)

    def _find_call(self, event: ToolCall) -> _PartialToolCall | None:
        """The call that a named piece belongs to; None for a new one."""
        call = self._by_number.get(event.call_index) if event.call_index >= 0 else self._find_unnumbered_call(event)
        if call is None:
            return None
        if event.id and call.id and event.id != call.id:
            return None if event.name else call
        if event.name and not event.id and call.has_arguments and call.json_end.is_complete:
            return None
        return call

    def _find_unnumbered_call(self, event: ToolCall) -> _PartialToolCall | None:
        """Where no number was given: the call with the same id, or the last if this piece completes it."""
        if not self._calls:
            return None
        last = self._calls[-1]
        if event.id:
            known = self._by_id.get(event.id)
            return last if known is None and not last.id and not event.name else known
        return last

    def _new_call(self, number: int) -> _PartialToolCall:
        self._drop_repeat()
        call = _PartialToolCall(number, self._by_number.get(number), self._budget.text_budget)
        if call.previous is not None:
            self._repair_log.record(catalog.tool.INDEX_DISTINCT)
            call.may_be_repeat = True
        elif number >= 0 and number != len(self._calls):
            self._repair_log.record(catalog.tool.INDEX_CONTIGUOUS, str(number))
        if number >= 0:
            self._by_number[number] = call
        else:
            call.may_be_repeat = bool(self._calls)
        self._calls.append(call)
        if len(self._calls) > CALLS_LIMIT:
            self.failure = bad_stream_failure(f"more than {CALLS_LIMIT} tool calls in one choice")
        return call

    def _drop_repeat(self) -> None:
        """What looked like a new call was only a repeated name."""
        if self._calls and self._calls[-1].is_only_repeat:
            call = self._calls.pop()
            if call.previous is not None:
                self._by_number[call.number] = call.previous

    def _merge_repeat(self, call: _PartialToolCall, event: ToolCall) -> None:
        """A piece for a call that we know: what it repeats is dropped, what was missing is filled in."""
        note = self._repair_log.record
        call.is_custom |= event.is_custom and not (call.is_emitted or call.has_arguments)
        if event.id and not call.id and not call.is_emitted:
            note(catalog.tool.ID_FIRST, event.id)
            call.id = event.id
            self._by_id.setdefault(event.id, call)
        elif event.id:
            note(catalog.tool.ID_ONCE if event.id == call.id else catalog.tool.ID_STABLE, event.id)
        if not event.name:
            return
        if call.is_emitted or event.name == call.name:
            note(catalog.tool.NAME_ONCE, event.name)
        else:
            note(catalog.tool.NAME_WHOLE, event.name)
            call.name += event.name
            if len(call.name) > _NAME_LIMIT:
                self.failure = bad_stream_failure(f"a tool's name of more than {_NAME_LIMIT} characters")

    def _emit_ready(self, out: list[Event], *, is_final: bool = False) -> None:
        """Say all that may be said now: the open call, and the next ones once it is whole."""
        if self._budget.is_exceeded:
            self.failure = bad_stream_failure("tool calls that are mixed beyond what can be kept")
        while self._open_position < len(self._calls) and self.failure is None:
            call = self._calls[self._open_position]
            is_followed = len(self._calls) - self._calls[-1].is_only_repeat > self._open_position + 1
            is_settled = is_final or is_followed
            if not call.is_emitted and not self._emit_start(call, out, is_settled=is_settled, is_final=is_final):
                return
            self._emit_arguments(call, out)
            if not (is_final or (is_followed and call.json_end.is_complete)):
                return
            if not (call.has_arguments or call.is_custom or self._is_cut):
                self._repair_log.record(catalog.tool.ARGS_NO_ARG_CALL)
                out.append(ToolArguments(self._index, self._emitted_count - 1, _PLACEHOLDER))
            if call.has_arguments and not call.is_custom:
                self._count_invalid_arguments(call)
            call.is_closed = True
            self._open_position += 1

    def _count_invalid_arguments(self, call: _PartialToolCall) -> None:
        """Count a call whose arguments are no JSON object."""
        text = call.arguments_text.take()
        if call.json_end.is_open or (text is not None and not is_valid_json(text, is_object=True)):
            self.invalid_arguments += 1
            self.unreadable += text is None or normalise_object_text(text) is None

    def _emit_start(self, call: _PartialToolCall, out: list[Event], *, is_settled: bool, is_final: bool) -> bool:
        """Say that a call begins, if its name is whole: when its arguments come, or something after it."""
        if not call.name:
            if is_final:
                self.failure = incomplete_stream_failure("the server called a tool without naming it")
            return False
        if not is_settled and (call.has_placeholder or not call.has_arguments):
            return False
        if not call.id or call.id in self._ids:
            if not self._is_legacy:
                self._repair_log.record(catalog.tool.ID_STABLE if call.id else catalog.tool.ID_FIRST, call.id)
            call.id = self._new_call_id()
        self._ids.add(call.id)
        call.is_emitted = True
        out.append(
            ToolCall(
                self._index,
                self._emitted_count,
                call.id,
                call.name,
                call.extra_fields,
                call.is_custom,
                call.inner_extra_fields,
            )
        )
        self._emitted_count += 1
        return True

    def _emit_arguments(self, call: _PartialToolCall, out: list[Event]) -> None:
        for piece in call.pending:
            self._budget.release(piece)
            if not call.is_custom:
                call.arguments_text.add(piece.text)
            out.append(
                ToolArguments(
                    self._index,
                    self._emitted_count - 1,
                    piece.text,
                    piece.extra_fields,
                    call.is_custom,
                    piece.inner_extra_fields,
                )
            )
        call.pending.clear()
        call.has_placeholder = False
