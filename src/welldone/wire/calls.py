"""The tool calls of one choice: which call a piece belongs to, and when it may be said.

Servers number calls wrongly, not at all, or all alike; they repeat ids and names, split names, and mix the arguments
of two calls. What comes out is one call after the other, numbered from 0, each with one id and one whole name.
The input of a custom call is free text: nothing tells where it ends, so calls after it wait for the end of the answer.
"""

import re
from collections.abc import Callable

import msgspec

from welldone.wire import faults
from welldone.wire.events import Event, Failure, Json, ToolArguments, ToolCall
from welldone.wire.failures import cut_off, garbage
from welldone.wire.kept import Kept, Room, is_json
from welldone.wire.lenient import object_text
from welldone.wire.notes import Notes

CALLS_LIMIT = 1024
"""Calls in one choice; OpenAI's clients allow 128."""
_NAME_LIMIT = 1024  # characters; OpenAI allows 64
_PLACEHOLDER = "{}"
_SIGNS = '{}[]"'
_SIGNIFICANT = _SIGNS + "\\"
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


class JsonEnd:
    """Tells when the pieces of a JSON object or list make a whole one. Each character is looked at once."""

    def __init__(self) -> None:
        self.is_whole = False
        """Whether an object, list or string has been closed."""
        self._depth = 0
        self._in_string = False
        self._skip = 0  # characters to pass over: one behind a backslash

    def feed(self, text: str) -> None:
        """Read on. No loop in Python: a megabyte of brackets would hold up all other streams."""
        if all(text.find(sign, self._skip) < 0 for sign in _SIGNIFICANT):  # faster than a pattern, in a long text
            self._skip = max(0, self._skip - len(text))
            return
        rest = ('"' if self._in_string else "") + text[self._skip :]
        plain = _STRING.sub('"', rest + " ")  # a string that is still open takes the space too
        self._in_string = plain[-1] == '"'
        slashes = len(rest) - len(rest.rstrip("\\"))
        self._skip = slashes % 2 if self._in_string else 0
        self._depth += plain.count("{") + plain.count("[") - plain.count("}") - plain.count("]")
        last = max(plain.rfind(sign) for sign in _SIGNS)
        if last >= 0:
            self.is_whole = self._depth == 0 and not self._in_string and plain[last] not in "{["

    @property
    def is_open(self) -> bool:
        """Whether something has begun and not ended."""
        return self._depth != 0 or self._in_string


class Held:
    """How much of a reply waits to be said. A piece is charged for what it costs in memory, not only for its text."""

    LIMIT_BYTES = 16 * 1024 * 1024
    _PIECE_BYTES = 256

    def __init__(self) -> None:
        self.room = Room()
        """For arguments that are being said."""
        self._bytes = 0

    @property
    def is_too_much(self) -> bool:
        """Whether more waits than may be kept."""
        return self._bytes > self.LIMIT_BYTES

    def take(self, piece: ToolArguments) -> None:
        """Something waits."""
        self._bytes += self._cost(piece)

    def give_back(self, piece: ToolArguments) -> None:
        """It does not wait any more."""
        self._bytes -= self._cost(piece)

    def _cost(self, piece: ToolArguments) -> int:
        others = [members for members in (piece.more, piece.inner) if members]
        more = len(msgspec.json.encode(others)) if others else 0
        return self._PIECE_BYTES + len(piece.text) + more


class _Call:
    """One call as far as it was heard."""

    def __init__(self, number: int, before: "_Call | None", room: Room) -> None:
        self.number = number
        self.before = before  # the call that had the number before this one
        self.id = ""
        self.name = ""
        self.more: Json = {}
        self.inner: Json = {}
        self.is_custom = False  # its input is free text: it has no end that can be seen, and no placeholder
        self.waiting: list[ToolArguments] = []  # pieces that were not said yet
        self.end = JsonEnd()
        self.said = Kept(room)
        self.has_begun = False  # it was said: its id and name are fixed
        self.has_arguments = False
        self.has_placeholder = False  # its arguments so far are a `{}` that may be no more than a place-holder
        self.is_over = False
        self.is_doubtful = False  # perhaps only a name that was repeated

    @property
    def is_mere_repeat(self) -> bool:
        """Whether nothing but a repeated name stands behind it."""
        return self.is_doubtful and not self.id and not self.has_arguments


class Calls:
    """The calls of one choice.

    `mint` makes an id where the server gave none; `held` has what waits in the whole reply. Ids are unique within a
    choice only: each choice is a message of its own, and the results of its calls are sent back with that message.
    """

    def __init__(
        self,
        index: int,
        notes: Notes,
        mint: Callable[[], str],
        held: Held,
        *,
        is_legacy: bool = False,
    ) -> None:
        self.failure: Failure | None = None
        """Set when the calls cannot be told any more."""
        self.broken = 0
        """How many calls have arguments that are no JSON object."""
        self.unreadable = 0
        """In how many of them no object can be read at all."""
        self._index = index
        self._notes = notes
        self._mint = mint
        self._ids: set[str] = set()
        self._held = held
        self._is_legacy = is_legacy  # a deprecated `function_call` has no id
        self._calls: list[_Call] = []
        self._by_number: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}
        self._open = 0  # the place of the call that is being said
        self._said = 0  # how many calls were begun
        self._is_cut = False

    def __len__(self) -> int:
        return self._said

    @property
    def has_nameless(self) -> bool:
        """Whether some call has no name yet."""
        return any(not call.name for call in self._calls)

    def are_whole(self) -> bool:
        """Whether the arguments of each call may be a whole JSON value."""
        return not any(call.end.is_open for call in self._calls)

    def begin(self, event: ToolCall, out: list[Event]) -> None:
        """A piece that names a call: a new one, or one that we know."""
        call = self._find(event)
        if call is None:
            before = self._calls[-1].name if self._calls else ""
            call = self._new(event.call)
            call.id, call.name, call.is_custom = event.id, event.name, event.is_custom
            call.is_doubtful = call.is_doubtful and event.name == before
            self._by_id.setdefault(event.id, call)
        else:
            self._again(call, event)
        if call.has_begun and (event.more or event.inner):
            late = ToolArguments(event.index, event.call, "", event.more, call.is_custom, event.inner)
            call.waiting.append(late)
            self._held.take(late)
        else:
            call.more.update(event.more)
            call.inner.update(event.inner)
        self._say(out)

    def add(self, event: ToolArguments, out: list[Event]) -> None:
        """A piece of a call's arguments."""
        if event.call >= 0:
            call = self._by_number.get(event.call) or self._new(event.call)
        else:
            call = self._calls[-1] if self._calls else self._new(event.call)
        if call.is_over:
            # The next call has begun, since this one was whole: more would make it wrong.
            self._notes.note(faults.tool.ONE_AT_A_TIME, event.text)
            return
        call.is_custom |= event.is_custom and not (call.has_begun or call.has_arguments)
        if not call.is_custom:
            self._watch(call, event.text)
        call.has_arguments |= event.text != ""
        call.waiting.append(event)
        self._held.take(event)
        if call is not self._calls[-1] and not self._calls[-1].is_mere_repeat:
            self._notes.note(faults.tool.ONE_AT_A_TIME, event.text)
        self._say(out)

    def _watch(self, call: _Call, text: str) -> None:
        """Look for the end of a call's JSON, and for a placeholder before it."""
        if call.has_placeholder and text.lstrip().startswith("{"):
            self._notes.note(faults.tool.ARGS_FIRST_EMPTY)
            # What else came with it stays.
            waiting = [msgspec.structs.replace(piece, text="") for piece in call.waiting if piece.more or piece.inner]
            for piece in call.waiting:
                self._held.give_back(piece)
            for piece in waiting:
                self._held.take(piece)
            call.waiting = waiting
            call.end = JsonEnd()
        if text.strip():
            is_first = call.has_placeholder or not call.has_arguments
            call.has_placeholder = text == _PLACEHOLDER and is_first
        call.end.feed(text)

    def close(self, out: list[Event], *, is_cut: bool = False) -> None:
        """Say what was held back: no more pieces will come. `is_cut`: the answer was cut, so some may be missing."""
        self._drop_mere_repeat()
        self._is_cut = is_cut
        self._say(out, is_final=True)

    def _find(self, event: ToolCall) -> _Call | None:
        """The call that a named piece belongs to; None for a new one."""
        call = self._by_number.get(event.call) if event.call >= 0 else self._unnumbered(event)
        if call is None:
            return None
        if event.id and call.id and event.id != call.id:
            return None if event.name else call
        if event.name and not event.id and call.has_arguments and call.end.is_whole:
            return None
        return call

    def _unnumbered(self, event: ToolCall) -> _Call | None:
        """Where no number was given: the call with the same id, or the last if this piece completes it."""
        if not self._calls:
            return None
        last = self._calls[-1]
        if event.id:
            known = self._by_id.get(event.id)
            return last if known is None and not last.id and not event.name else known
        return last

    def _new(self, number: int) -> _Call:
        self._drop_mere_repeat()
        call = _Call(number, self._by_number.get(number), self._held.room)
        if call.before is not None:
            self._notes.note(faults.tool.INDEX_DISTINCT)
            call.is_doubtful = True
        elif number >= 0 and number != len(self._calls):
            self._notes.note(faults.tool.INDEX_CONTIGUOUS, str(number))
        if number >= 0:
            self._by_number[number] = call
        else:
            call.is_doubtful = bool(self._calls)
        self._calls.append(call)
        if len(self._calls) > CALLS_LIMIT:
            self.failure = garbage(f"more than {CALLS_LIMIT} tool calls in one choice")
        return call

    def _drop_mere_repeat(self) -> None:
        """What looked like a new call was only a repeated name."""
        if self._calls and self._calls[-1].is_mere_repeat:
            call = self._calls.pop()
            if call.before is not None:
                self._by_number[call.number] = call.before

    def _again(self, call: _Call, event: ToolCall) -> None:
        """A piece for a call that we know: what it repeats is dropped, what was missing is filled in."""
        note = self._notes.note
        call.is_custom |= event.is_custom and not (call.has_begun or call.has_arguments)
        if event.id and not call.id and not call.has_begun:
            note(faults.tool.ID_FIRST, event.id)
            call.id = event.id
            self._by_id.setdefault(event.id, call)
        elif event.id:
            note(faults.tool.ID_ONCE if event.id == call.id else faults.tool.ID_STABLE, event.id)
        if not event.name:
            return
        if call.has_begun or event.name == call.name:
            note(faults.tool.NAME_ONCE, event.name)
        else:
            note(faults.tool.NAME_WHOLE, event.name)
            call.name += event.name
            if len(call.name) > _NAME_LIMIT:
                self.failure = garbage(f"a tool's name of more than {_NAME_LIMIT} characters")

    def _say(self, out: list[Event], *, is_final: bool = False) -> None:
        """Say all that may be said now: the open call, and the next ones once it is whole."""
        if self._held.is_too_much:
            self.failure = garbage("tool calls that are mixed beyond what can be kept")
        while self._open < len(self._calls) and self.failure is None:
            call = self._calls[self._open]
            is_followed = len(self._calls) - self._calls[-1].is_mere_repeat > self._open + 1
            is_settled = is_final or is_followed
            if not call.has_begun and not self._begin(call, out, is_settled=is_settled, is_final=is_final):
                return
            self._flush(call, out)
            if not (is_final or (is_followed and call.end.is_whole)):
                return
            if not (call.has_arguments or call.is_custom or self._is_cut):
                self._notes.note(faults.tool.ARGS_NO_ARG_CALL)
                out.append(ToolArguments(self._index, self._said - 1, _PLACEHOLDER))
            if call.has_arguments and not call.is_custom:
                self._judge(call)
            call.is_over = True
            self._open += 1

    def _judge(self, call: _Call) -> None:
        """Count a call whose arguments are no JSON object."""
        text = call.said.take()
        if call.end.is_open or (text is not None and not is_json(text, is_object=True)):
            self.broken += 1
            self.unreadable += text is None or object_text(text) is None

    def _begin(self, call: _Call, out: list[Event], *, is_settled: bool, is_final: bool) -> bool:
        """Say that a call begins, if its name is whole: when its arguments come, or something after it."""
        if not call.name:
            if is_final:
                self.failure = cut_off("the server called a tool without naming it")
            return False
        if not is_settled and (call.has_placeholder or not call.has_arguments):
            return False
        if not call.id or call.id in self._ids:
            if not self._is_legacy:
                self._notes.note(faults.tool.ID_STABLE if call.id else faults.tool.ID_FIRST, call.id)
            call.id = self._mint()
        self._ids.add(call.id)
        call.has_begun = True
        out.append(ToolCall(self._index, self._said, call.id, call.name, call.more, call.is_custom, call.inner))
        self._said += 1
        return True

    def _flush(self, call: _Call, out: list[Event]) -> None:
        for piece in call.waiting:
            self._held.give_back(piece)
            if not call.is_custom:
                call.said.add(piece.text)
            out.append(ToolArguments(self._index, self._said - 1, piece.text, piece.more, call.is_custom, piece.inner))
        call.waiting.clear()
        call.has_placeholder = False
