"""Assembler of the tool calls of one choice.

Servers send wrong, missing or equal call indices; they repeat ids and names, split names, and interleave the arguments
of two calls. The output is one call after the other, numbered from 0, each with one id and one complete name. The input
of a custom call is free text without a recognisable end, so calls after it are held until the end of the answer.
"""

import re
from collections.abc import Callable

import msgspec

from welldone.core.events import Event, Failure, Json, ToolArguments, ToolCall
from welldone.core.fields import bad_stream_failure, incomplete_stream_failure
from welldone.core.lenient_json import normalise_object_text
from welldone.core.repair_log import RepairLog
from welldone.core.request_facts import RequestFacts
from welldone.core.text_filters import BufferedText, ByteBudget, is_valid_json

CALLS_LIMIT = 1024
"""Most calls in one choice; OpenAI clients allow 128."""
_NAME_LIMIT = 1024  # characters; OpenAI allows 64
_PLACEHOLDER = "{}"
_DELIMITERS = '{}[]"'
_DELIMITERS_AND_ESCAPE = _DELIMITERS + "\\"
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


class JsonEndDetector:
    """Detects the end of a JSON object or list that arrives in pieces. Reads each character once."""

    def __init__(self) -> None:
        self.is_complete: bool = False
        """Whether an object, list or string is complete."""
        self._depth = 0
        self._in_string = False
        self._skip = 0  # characters to skip: one after a backslash

    def feed(self, text: str) -> None:
        """Read a piece. No Python loop: a megabyte of brackets would block other streams."""
        # Faster than a regular expression for long texts.
        if all(text.find(sign, self._skip) < 0 for sign in _DELIMITERS_AND_ESCAPE):
            self._skip = max(0, self._skip - len(text))
            return
        rest = ('"' if self._in_string else "") + text[self._skip :]
        plain = _STRING.sub('"', rest + " ")  # an unterminated string includes the space
        self._in_string = plain[-1] == '"'
        slashes = len(rest) - len(rest.rstrip("\\"))
        self._skip = slashes % 2 if self._in_string else 0
        self._depth += plain.count("{") + plain.count("[") - plain.count("}") - plain.count("]")
        last = max(plain.rfind(sign) for sign in _DELIMITERS)
        if last >= 0:
            self.is_complete = self._depth == 0 and not self._in_string and plain[last] not in "{["

    @property
    def is_open(self) -> bool:
        """Whether an object, list or string is incomplete."""
        return self._depth != 0 or self._in_string


class HeldBytesBudget:
    """Memory of held pieces, shared by all choices of a reply. A piece costs more than its text."""

    LIMIT_BYTES = 16 * 1024 * 1024
    _PIECE_BYTES = 256

    def __init__(self) -> None:
        self.text_budget: ByteBudget = ByteBudget()
        """Budget for arguments that are buffered for the JSON check."""
        self.held_bytes = 0
        """Memory of the held pieces."""

    def cost(self, piece: ToolArguments) -> int:
        """Return the memory of a piece."""
        fields = [members for members in (piece.extra_fields, piece.inner_extra_fields) if members]
        return self._PIECE_BYTES + len(piece.text) + (len(msgspec.json.encode(fields)) if fields else 0)


class _PartialToolCall:
    """One call as far as it was received."""

    def __init__(self, number: int, previous: "_PartialToolCall | None", budget: ByteBudget) -> None:
        self.number = number
        self.previous = previous  # the earlier call with the same number
        self.id = ""
        self.name = ""
        self.extra_fields: Json = {}
        self.inner_extra_fields: Json = {}
        self.is_custom = False  # the input is free text: it has no recognisable end and no placeholder
        self.pending: list[ToolArguments] = []  # pieces that were not emitted yet
        self.json_end = JsonEndDetector()
        self.arguments_text = BufferedText(budget)
        self.is_emitted = False  # id and name are fixed
        self.has_arguments = False
        self.has_placeholder = False  # the arguments so far are `{}`, which may be a placeholder
        self.is_closed = False
        self.arguments_hash: int | None = None  # once it is closed
        self.may_be_repeat = False  # may be a repeated name instead of a new call

    @property
    def is_only_repeat(self) -> bool:
        """Whether only a repeated name was received."""
        return self.may_be_repeat and not self.id and not self.has_arguments


class ToolCallAssembler:
    """Assembles the calls of one choice.

    `new_call_id` makes ids for calls without one; `budget` is shared by all choices of the reply. Ids are unique within
    a choice only: each choice is a separate message, and clients send tool results back with that message.
    """

    def __init__(
        self,
        index: int,
        repair_log: RepairLog,
        new_call_id: Callable[[], str],
        budget: HeldBytesBudget,
        facts: RequestFacts,
    ) -> None:
        self.failure: Failure | None = None
        """Set when the calls cannot be assembled."""
        self.invalid_arguments: int = 0
        """Number of calls whose arguments are not a JSON object."""
        self.unreadable: int = 0
        """Number of those in which even lenient parsing finds no object."""
        self._index = index
        self._repair_log = repair_log
        self._new_call_id = new_call_id
        self._ids: dict[str, None] = {}
        self._budget = budget
        self._is_legacy = facts.uses_legacy_functions  # a deprecated `function_call` has no id
        self._ends_calls = facts.ends_calls
        self._calls: list[_PartialToolCall] = []
        self._by_number: dict[int, _PartialToolCall] = {}
        self._by_id: dict[str, _PartialToolCall] = {}
        self._open_position = 0  # position of the call that is being emitted
        self._emitted_count = 0  # started calls
        self._is_cut = False

    def __len__(self) -> int:
        return self._emitted_count

    @property
    def has_nameless(self) -> bool:
        """Whether a call has no name yet."""
        return any(not tool_call.name for tool_call in self._calls)

    def are_complete(self, *, is_certain: bool = False) -> bool:
        """Whether no call has incomplete JSON arguments. `is_certain`: after `close`, whether all of them are whole."""
        if any(tool_call.json_end.is_open for tool_call in self._calls) or (is_certain and self.invalid_arguments):
            return False
        return not (is_certain and any(tool_call.is_custom or not tool_call.has_arguments for tool_call in self._calls))

    def start_call(self, event: ToolCall, out: list[Event]) -> None:
        """Read a piece with an id or a name, of a new or a known call."""
        tool_call = self._find_call(event)
        if tool_call is None:
            previous_name = self._calls[-1].name if self._calls else ""
            tool_call = self._new_call(event.call_index)
            tool_call.id, tool_call.name, tool_call.is_custom = event.id, event.name, event.is_custom
            tool_call.may_be_repeat = tool_call.may_be_repeat and event.name == previous_name
            self._by_id.setdefault(event.id, tool_call)
        else:
            self._merge_repeat(tool_call, event)
        if tool_call.is_emitted and (event.extra_fields or event.inner_extra_fields):
            fields = event.extra_fields, tool_call.is_custom, event.inner_extra_fields
            self._hold(tool_call, ToolArguments(event.index, event.call_index, "", *fields))
        else:
            tool_call.extra_fields.update(event.extra_fields)
            tool_call.inner_extra_fields.update(event.inner_extra_fields)
        self._emit_ready(out)

    def add_arguments(self, event: ToolArguments, out: list[Event]) -> None:
        """Read a piece of a call's arguments."""
        if event.call_index >= 0:
            tool_call = self._by_number.get(event.call_index) or self._new_call(event.call_index)
        else:
            tool_call = self._calls[-1] if self._calls else self._new_call(event.call_index)
        if event.text:
            tool_call = self._first_start(tool_call)
        text = event.text.strip()
        if tool_call.is_closed and text:
            if text in (_PLACEHOLDER, "null") or hash(text) == tool_call.arguments_hash:
                self._repair_log.record("tool-one-at-a-time", text)
                return
            self.failure = bad_stream_failure(f"more arguments of the tool call {tool_call.name!r} after the next call")
            return
        tool_call.is_custom |= event.is_custom and not (tool_call.is_emitted or tool_call.has_arguments)
        if not tool_call.is_custom:
            self._track_json(tool_call, event.text)
        tool_call.has_arguments |= event.text != ""
        self._hold(tool_call, event)
        last = self._calls[-1]
        is_trailing = not event.text.strip() and last.json_end.is_complete
        if tool_call is not last and not last.is_only_repeat and not is_trailing:
            self._repair_log.record("tool-one-at-a-time", event.text)
        self._emit_ready(out)

    def _first_start(self, start: _PartialToolCall) -> _PartialToolCall:
        """Return the first of several starts of one call, with different ids, that arguments follow.

        Without arguments between, they are one call. Without arguments at all, each may be a call without parameters.
        """
        first = start.previous
        while first is not None and first.id and start.id and first.name == start.name and not first.has_arguments:
            self._repair_log.record("tool-id-stable", start.id)
            first.extra_fields.update(start.extra_fields)
            first.inner_extra_fields.update(start.inner_extra_fields)
            first.pending += start.pending
            self._calls.remove(start)
            self._by_number[start.number] = self._by_id[start.id] = first
            start, first = first, first.previous
        return start

    def _hold(self, tool_call: _PartialToolCall, piece: ToolArguments) -> None:
        tool_call.pending.append(piece)
        self._budget.held_bytes += self._budget.cost(piece)

    def _take_pending(self, tool_call: _PartialToolCall) -> list[ToolArguments]:
        pieces, tool_call.pending = tool_call.pending, []
        self._budget.held_bytes -= sum(map(self._budget.cost, pieces))
        return pieces

    def _take_text(self, tool_call: _PartialToolCall) -> str:
        """Remove the text of what is pending, and return it. Extra fields stay."""
        pieces = self._take_pending(tool_call)
        for piece in pieces:
            if piece.extra_fields or piece.inner_extra_fields:
                self._hold(tool_call, msgspec.structs.replace(piece, text=""))
        return "".join([piece.text for piece in pieces])

    def _track_json(self, tool_call: _PartialToolCall, text: str) -> None:
        """Track the end of a call's JSON, and drop a placeholder before the real arguments."""
        if tool_call.has_placeholder and text.lstrip().startswith("{"):
            self._repair_log.record("tool-args-first-empty")
            self._take_text(tool_call)
            tool_call.json_end = JsonEndDetector()
        if text.strip():
            is_first = tool_call.has_placeholder or not tool_call.has_arguments
            tool_call.has_placeholder = text == _PLACEHOLDER and is_first
        tool_call.json_end.feed(text)

    def close(self, out: list[Event], *, is_cut: bool = False) -> None:
        """Emit what was held back. `is_cut`: the answer was truncated, so pieces may be missing."""
        self._drop_repeat()
        self._is_cut = is_cut
        self._emit_ready(out, is_final=True)
        # White space and fields of calls that had ended; the white space may be dropped, since their JSON is complete.
        for number, tool_call in enumerate([] if self._ends_calls else self._calls[: self._open_position]):
            if space := self._take_text(tool_call):
                self._hold(tool_call, ToolArguments(self._index, number, space))
            self._emit_arguments(tool_call, number, out)

    def _find_call(self, event: ToolCall) -> _PartialToolCall | None:
        """The call of a piece with an id or a name; None for a new call."""
        known = self._by_number.get(event.call_index) if event.call_index >= 0 else self._find_unnumbered_call(event)
        if known is None:
            return None
        if event.id and known.id and event.id != known.id and self._by_id.get(event.id) is not known:
            return None if event.name else known
        if event.name and not event.id and known.has_arguments and known.json_end.is_complete:
            return None
        return known

    def _find_unnumbered_call(self, event: ToolCall) -> _PartialToolCall | None:
        """Without an index: the call with the same id, or the last one if this piece completes it."""
        if not self._calls:
            return None
        last = self._calls[-1]
        if event.id:
            known = self._by_id.get(event.id)
            return last if known is None and not last.id and not event.name else known
        return last

    def _new_call(self, number: int) -> _PartialToolCall:
        self._drop_repeat()
        tool_call = _PartialToolCall(number, self._by_number.get(number), self._budget.text_budget)
        if tool_call.previous is not None:
            self._repair_log.record("tool-index-distinct")
            tool_call.may_be_repeat = True
        elif number >= 0 and number != len(self._calls):
            self._repair_log.record("tool-index-contiguous", str(number))
        if number >= 0:
            self._by_number[number] = tool_call
        else:
            tool_call.may_be_repeat = bool(self._calls)
        self._calls.append(tool_call)
        if len(self._calls) > CALLS_LIMIT:
            self.failure = bad_stream_failure(f"more than {CALLS_LIMIT} tool calls in one choice")
        return tool_call

    def _drop_repeat(self) -> None:
        """Remove the last call if it was only a repeated name."""
        if self._calls and self._calls[-1].is_only_repeat:
            tool_call = self._calls.pop()
            if tool_call.previous is not None:
                self._by_number[tool_call.number] = tool_call.previous

    def _merge_repeat(self, tool_call: _PartialToolCall, event: ToolCall) -> None:
        """Merge a piece into a known call: drop repetitions, fill in missing fields."""
        record = self._repair_log.record
        tool_call.is_custom |= event.is_custom and not (tool_call.is_emitted or tool_call.has_arguments)
        if event.id and not tool_call.id and not tool_call.is_emitted:
            record("tool-id-first", event.id)
            tool_call.id = event.id
            self._by_id.setdefault(event.id, tool_call)
        elif event.id:
            record("tool-id-once" if event.id == tool_call.id else "tool-id-stable", event.id)
        if not event.name:
            return
        if tool_call.is_emitted or event.name == tool_call.name:
            record("tool-name-once", event.name)
        else:
            record("tool-name-whole", event.name)
            tool_call.name += event.name
            if len(tool_call.name) > _NAME_LIMIT:
                self.failure = bad_stream_failure(f"a tool name of more than {_NAME_LIMIT} characters")

    def _emit_ready(self, out: list[Event], *, is_final: bool = False) -> None:
        """Emit the open call, and the next ones once it is complete."""
        if self._budget.held_bytes > self._budget.LIMIT_BYTES:
            self.failure = bad_stream_failure("interleaved tool calls that exceed the buffer limit")
        settled = 0
        while self._open_position < len(self._calls) and self.failure is None:
            active = self._calls[self._open_position]
            if self._open_position >= settled:
                settled = self._find_settled_position()
            is_followed = self._open_position < settled
            if not active.is_emitted and not self._emit_start(active, out, is_followed=is_followed, is_final=is_final):
                return
            self._emit_arguments(active, self._emitted_count - 1, out)
            if not (is_final or (is_followed and active.json_end.is_complete)):
                return
            if not (active.has_arguments or active.is_custom or self._is_cut):
                self._repair_log.record("tool-args-no-arg-call")
                out.append(ToolArguments(self._index, self._emitted_count - 1, _PLACEHOLDER))
            text = active.arguments_text.take()
            active.arguments_hash = hash((text or "").strip())
            is_invalid = text is not None and not is_valid_json(text, is_object=True)
            if active.has_arguments and not active.is_custom and (active.json_end.is_open or is_invalid):
                self.invalid_arguments += 1
                self.unreadable += text is None or normalise_object_text(text) is None
            active.is_closed = True
            self._open_position += 1

    def _find_settled_position(self) -> int:
        """Position of the next call with more arguments than a placeholder; 0 if an earlier one has none yet."""
        position = self._open_position + 1
        while position < len(self._calls) and self._calls[position].has_placeholder:
            position += 1
        return position if position < len(self._calls) and self._calls[position].has_arguments else 0

    def _emit_start(self, tool_call: _PartialToolCall, out: list[Event], *, is_followed: bool, is_final: bool) -> bool:
        """Start a call once its arguments show that its name is complete; return whether it started.

        An empty object waits for the arguments of a later call: each call that is sent is followed by what it waited
        for, so that repairing the output again moves nothing.
        """
        if not tool_call.name:
            if is_final:
                self.failure = incomplete_stream_failure("the server sent a tool call without a name")
            return False
        if not is_final and (not tool_call.has_arguments or (tool_call.has_placeholder and not is_followed)):
            return False
        if not tool_call.id or tool_call.id in self._ids:
            self._repair_log.record_if(
                not self._is_legacy, "tool-id-stable" if tool_call.id else "tool-id-first", tool_call.id
            )
            tool_call.id = self._new_call_id()
        self._ids[tool_call.id] = None
        tool_call.is_emitted = True
        fields = tool_call.extra_fields, tool_call.is_custom, tool_call.inner_extra_fields
        out.append(ToolCall(self._index, self._emitted_count, tool_call.id, tool_call.name, *fields))
        self._emitted_count += 1
        return True

    def _emit_arguments(self, tool_call: _PartialToolCall, number: int, out: list[Event]) -> None:
        for piece in self._take_pending(tool_call):
            if not tool_call.is_custom:
                tool_call.arguments_text.add(piece.text)
            out.append(
                msgspec.structs.replace(piece, index=self._index, call_index=number, is_custom=tool_call.is_custom)
            )
        tool_call.has_placeholder = False
