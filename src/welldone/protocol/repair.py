"""Any events, as a legal sequence: what is out of turn is moved, what is missing is filled in, what is twice goes.

Nothing is invented that the server did not mean: where an answer is not whole, the sequence ends with a `Failure`.
Each mend is noted by the id of the rule that was broken.
"""

from collections.abc import Callable
from typing import assert_never

import msgspec

from welldone.protocol import catalog
from welldone.protocol.deltas import UnknownDeltaFields
from welldone.protocol.envelope import Endpoint
from welldone.protocol.events import (
    ChoiceEvent,
    ChoiceStart,
    Event,
    Failure,
    FailureMapper,
    FieldLocation,
    Finish,
    KeepAlive,
    Logprobs,
    Reasoning,
    Refusal,
    Text,
    ToolArguments,
    ToolCall,
    UnknownFields,
    Usage,
)
from welldone.protocol.fields import bad_stream_failure, incomplete_stream_failure, limit_top_logprobs
from welldone.protocol.repair_log import RepairLog
from welldone.protocol.request_facts import TRUNCATED_REASONS, RequestFacts
from welldone.protocol.text_filters import (
    CumulativeTextDetector,
    CumulativeTextFilter,
    JsonOutputChecker,
    TextMode,
    ThinkMode,
    ThinkTagFilter,
)
from welldone.protocol.tool_calls import HeldBytesBudget, ToolCallAssembler

_COMMENTS_LIMIT = 40  # in a row; two lines each, and clients give up at some hundred lines without data
_NOOPS_LIMIT = 16  # chunks without content in a row; more is a flood

_CONTENT_EVENTS = (Text, Reasoning, Refusal, ToolCall, ToolArguments)
_CHAT_CONTENT_EVENTS = (*_CONTENT_EVENTS, ChoiceStart)


class _ChoiceRepair:
    """What is known of one choice. `is_cumulative`: its texts are all of the text so far."""

    def __init__(self, index: int, calls: ToolCallAssembler, repair_log: RepairLog, *, is_cumulative: bool) -> None:
        self.index = index
        self.calls = calls
        self.text_filter = CumulativeTextFilter(repair_log) if is_cumulative else None
        self.reasoning_filter = CumulativeTextFilter(repair_log) if is_cumulative else None
        self.cumulative_detector = CumulativeTextDetector(repair_log)
        self.think_filter: ThinkTagFilter | None = None
        self.delta_fields = UnknownDeltaFields(repair_log)
        self.is_open = False
        self.has_events = False  # something was heard of it: it was not opened only for its place in the order
        self.finish_reason: str | None = None  # why it finished, held back until it really has
        self.stop_string: str | None = None  # and at which stop string
        self.has_text = False
        self.has_reasoning = False
        self.can_pass_text = False  # text may pass as it is

    def pause(self, out: list[Event]) -> None:
        """Something else than text comes: what was held back of the text comes first."""
        if self.think_filter is not None:
            out += self.think_filter.pause()

    def flush_text(self, out: list[Event]) -> None:
        """Say what was held back of its text."""
        if self.think_filter is not None:
            out += self.think_filter.close()

    def add_text(self, text: str, think: ThinkMode, out: list[Event]) -> None:
        """More text."""
        if not self.has_text:
            self.has_text = True
            # A server with a field for reasoning has sent the thoughts of an open text there.
            if think == "tags" or (think == "open" and not self.has_reasoning):
                self.think_filter = ThinkTagFilter(self.index, is_open=think == "open")
        if self.text_filter is None:
            self.cumulative_detector.feed(text)
        else:
            text = self.text_filter.feed(text)
        if self.think_filter is not None:
            out += self.think_filter.feed(text)
        elif text:
            out.append(Text(self.index, text))
        self.can_pass_text = (
            self.cumulative_detector.is_finished
            and self.finish_reason is None
            and (self.think_filter is None or self.think_filter.is_past_thinking)
        )

    def add_reasoning(self, text: str, out: list[Event]) -> None:
        """More reasoning, in a field of its own."""
        self.pause(out)
        self.has_reasoning = True
        new = text if self.reasoning_filter is None else self.reasoning_filter.feed(text)
        if new:
            out.append(Reasoning(self.index, new))


class EventRepairer:
    """A legal sequence of events out of any.

    `mint` makes ids for tool calls that have none.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        facts: RequestFacts,
        repair_log: RepairLog,
        new_call_id: Callable[[], str],
        is_stream: bool = True,
    ) -> None:
        self.usage: Usage | None = None
        """The last count that was heard, sent or not."""
        self.failure: Failure | None = None
        """Why the answer broke off, if it did."""
        self.think_mode: ThinkMode = "no"
        """Whether thoughts are taken out of the text."""
        self.text_mode: TextMode = "delta"
        """What each text of the upstream is."""
        self.map_failure: FailureMapper | None = None
        """How the server's own words for a failure go out."""
        self.invalid_arguments_count = 0
        """How many tool calls had arguments that are no JSON object, though nothing had cut them."""
        self._json_checker = JsonOutputChecker(is_object=facts.is_json_object) if facts.is_json_output else None
        self._is_chat = endpoint is Endpoint.CHAT
        self._is_stream = is_stream
        self._content_events = (
            _CHAT_CONTENT_EVENTS if self._is_chat else _CONTENT_EVENTS
        )  # what always goes out as a chunk
        self._facts = facts
        self._repair_log = repair_log
        self._new_call_id = new_call_id
        self._choices: dict[int, _ChoiceRepair] = {}
        self._held_budget = HeldBytesBudget()
        self._index_map: dict[int, int] = {}  # the indices that a server gives to choices, and ours
        self._is_renumbered = False  # ours are others
        self._finished_count = 0  # choices that have said why they finished
        self._comment_count = 0  # since something went out as a chunk
        self._noop_count = 0  # chunks since something was said

    @property
    def invalid_json_count(self) -> int:
        """How many choices should have been JSON, and are not."""
        return 0 if self._json_checker is None else self._json_checker.invalid_count

    @property
    def is_complete(self) -> bool:
        """Whether each choice that was requested has said why it finished."""
        return self.failure is None and self._finished_count >= max(len(self._choices), self._facts.choice_count or 1)

    def can_use_fast_path(self, index: int) -> bool:
        """Whether text of this choice would pass as it is, and change nothing."""
        choice = self._choices.get(index)
        is_watched = self.failure is not None or self._json_checker is not None or self._is_renumbered
        return choice is not None and choice.can_pass_text and not is_watched

    def record_fast_path(self) -> None:
        """Text took a shorter way."""
        self._comment_count = self._noop_count = 0

    def feed(self, events: list[Event]) -> list[Event]:
        """What may be said after `events`."""
        out: list[Event] = []
        for event in events:
            if self.failure is not None:
                break
            if type(event) is Text:
                choice = self._choices.get(event.index)
                if choice is not None and choice.can_pass_text and not self._is_renumbered:
                    # The common case: text in the middle of an answer.
                    self._comment_count = self._noop_count = 0
                    out.append(event)
                    continue
            before = len(out)
            self._repair_event(event, out)
            if any(isinstance(said, self._content_events) for said in out[before:]):
                self._comment_count = self._noop_count = 0
        if self._json_checker is not None:
            self._json_checker.observe(out)
        return out

    def close(self, *, is_done: bool) -> list[Event]:
        """The end: each choice is finished, or the answer has failed. `is_done`: the server said `[DONE]`."""
        out = self._close(is_done=is_done)
        if self._json_checker is not None:
            self._json_checker.observe(out)
        return out

    def _close(self, *, is_done: bool) -> list[Event]:
        out: list[Event] = []
        if self.failure is not None:
            return out
        choices = self._open_choices()
        if not choices:
            self._repair_log.record(catalog.err.EMPTY_STREAM)
            self._fail(incomplete_stream_failure("the server sent no answer"), out)
            return out
        failures = []
        self._flush_riders(
            [choice for choice in choices if choice.finish_reason is None or choice.calls.has_nameless], out
        )
        for choice in choices:
            choice.flush_text(out)
            choice.calls.close(
                out, is_cut=choice.finish_reason in TRUNCATED_REASONS or (choice.finish_reason is None and not is_done)
            )
            failures += self._finish_choice(choice, out, is_done=is_done)
        failures += self._missing_choices(choices)
        if failures:
            self._fail(failures[0], out)
        else:
            self._finish_stream(out, is_done=is_done)
        return out

    def _repair_event(self, event: Event, out: list[Event]) -> None:
        match event:
            case KeepAlive():
                self._keep_alive(event, out)
            case Usage():
                self.usage = event
            case Failure():
                self._abort(event if self.map_failure is None else self.map_failure(event), out)
            case UnknownFields(location=FieldLocation.CHUNK):
                index = (self._map_index(event.index) or 0) if event.in_own_chunk else event.index
                if event.in_own_chunk and not self._get_choice(index).is_open:
                    self._open_choice(self._get_choice(index), out)
                out.append(msgspec.structs.replace(event, index=index))
            case _:
                self._repair_choice_event(event, out)

    def _abort(self, failure: Failure, out: list[Event]) -> None:
        """Say what can still be said of the answer, and why there is no more of it."""
        choices = self._open_choices()
        self._flush_riders(choices, out)
        for choice in choices:
            choice.flush_text(out)
            choice.calls.close(out, is_cut=choice.finish_reason is None or choice.finish_reason in TRUNCATED_REASONS)
            if choice.finish_reason is not None:
                self._finish_choice(choice, out, is_done=True)
        self._fail(failure, out)

    def _flush_riders(self, choices: list[_ChoiceRepair], out: list[Event]) -> None:
        """Let out what rides on the next chunk, before what was held back: there may be no next chunk."""
        out += [UnknownFields(choice.index, FieldLocation.CHOICE, {}, in_own_chunk=True) for choice in choices]

    def _repair_choice_event(self, event: ChoiceEvent, out: list[Event]) -> None:
        index = self._map_index(event.index)
        if index is None:
            return
        choice = self._get_choice(index)
        if isinstance(event, UnknownFields) and not event.in_own_chunk:
            self._emit(choice, event, out)
            return
        if isinstance(event, ChoiceStart) and choice.is_open:
            if choice.has_events:
                self._repair_log.record(catalog.delta.ROLE_ONCE)
        elif not choice.is_open:
            if self._is_chat and not isinstance(event, ChoiceStart):
                self._repair_log.record(catalog.delta.ROLE_FIRST)
            self._open_choice(choice, out)
        choice.has_events = True
        self._emit(choice, event, out)
        if choice.calls.failure is not None:
            self._fail(choice.calls.failure, out)

    def _emit(self, choice: _ChoiceRepair, event: ChoiceEvent, out: list[Event]) -> None:  # noqa: C901, PLR0912 - a case per event
        """Hand on what happens in an open choice."""
        index = choice.index
        match event:
            case ChoiceStart():
                pass
            case Text(text=text):
                choice.add_text(text, self.think_mode, out)
            case Logprobs(value=value):
                most = self._facts.top_logprobs
                out.append(Logprobs(index, value if most is None else limit_top_logprobs(value, most)))
            case UnknownFields(location=FieldLocation.DELTA) if self._is_stream:
                out.append(choice.delta_fields.normalise(msgspec.structs.replace(event, index=index)))
            case UnknownFields():
                out.append(msgspec.structs.replace(event, index=index))
            case Finish(reason=reason, stop_string=stop):
                self._hold_finish(choice, reason)
                choice.stop_string = stop
            case Reasoning() | Refusal() | ToolCall() | ToolArguments() if not self._is_chat:
                pass  # a completion has no place for them, and its reader never gives them
            case Reasoning(text=text):
                choice.add_reasoning(text, out)
            case Refusal(text=text):
                choice.pause(out)
                out.append(Refusal(index, text))
            case ToolCall():
                choice.pause(out)
                choice.calls.start_call(event, out)
            case ToolArguments():
                choice.calls.add_arguments(event, out)
            case _:
                assert_never(event)

    def _open_choices(self) -> list[_ChoiceRepair]:
        return sorted((choice for choice in self._choices.values() if choice.is_open), key=lambda one: one.index)

    def _get_choice(self, index: int) -> _ChoiceRepair:
        choice = self._choices.get(index)
        if choice is None:
            calls = ToolCallAssembler(
                index,
                self._repair_log,
                self._new_call_id,
                self._held_budget,
                is_legacy=self._facts.uses_legacy_functions,
            )
            choice = _ChoiceRepair(index, calls, self._repair_log, is_cumulative=self.text_mode == "cumulative")
            self._choices[index] = choice
        return choice

    def _map_index(self, index: int) -> int | None:
        """The index of a choice. Where one was requested, the first that comes is 0, whatever the server calls it;
        None for a choice beyond those that were requested: clients that read one would mix it into theirs."""
        known = self._index_map.get(index)
        if known == index:
            return index
        wanted = self._facts.choice_count
        if known is None and (wanted is None or len(self._index_map) < wanted):
            known = self._index_map[index] = 0 if wanted == 1 else index
            self._is_renumbered |= known != index
        if known != index:
            self._repair_log.record(catalog.n.INDEX_INT if self._is_chat else catalog.cmpl.INDEX, index)
        return known

    def _missing_choices(self, choices: list[_ChoiceRepair]) -> list[Failure]:
        """A failure where fewer choices came than were requested."""
        wanted = self._facts.choice_count or 0
        if len(choices) >= wanted:
            return []
        self._repair_log.record(catalog.n.REFUSE_IF_UNSUPPORTED, len(choices))
        return [incomplete_stream_failure(f"the server sent {len(choices)} of {wanted} requested choices")]

    def _open_choice(self, choice: _ChoiceRepair, out: list[Event]) -> None:
        """Open a choice, and before it those with a lower index: clients keep choices in a list."""
        if self._is_chat:
            for index in range(choice.index):
                if index not in self._choices or not self._choices[index].is_open:
                    self._repair_log.record(catalog.n.FIRST_ORDER, choice.index)
                    self._open_choice(self._get_choice(index), out)
        choice.is_open = True
        out.append(ChoiceStart(choice.index))

    def _hold_finish(self, choice: _ChoiceRepair, reason: str) -> None:
        """Keep why a choice finished until nothing can follow; a call outweighs a stop."""
        choice.can_pass_text = False
        if choice.finish_reason is None:
            choice.finish_reason = reason
            self._finished_count += 1
            return
        self._repair_log.record(catalog.fin.EXACTLY_ONCE, reason)
        if reason == "tool_calls":
            choice.finish_reason = reason

    def _finish_choice(self, choice: _ChoiceRepair, out: list[Event], *, is_done: bool) -> list[Failure]:
        """Say why a choice finished; a failure where nobody can know."""
        if choice.calls.failure is not None:
            return [choice.calls.failure]
        reason = choice.finish_reason
        is_called = len(choice.calls) > 0
        is_whole = choice.calls.are_complete()
        if reason is None:
            self._repair_log.record(catalog.fin.ALWAYS_SENT if is_done else catalog.end.NO_EARLY_EOF)
            self._repair_log.record(catalog.err.NOT_SILENT)
            if is_called:
                self._repair_log.record(catalog.tool.FINISH_FOLLOWS)
            if not (is_done and is_whole):
                return [incomplete_stream_failure("the server's stream ended before the answer was whole")]
            reason = "tool_calls" if is_called else "stop"
        elif reason == "stop" and is_called and is_whole and not self._facts.has_named_tool:
            self._repair_log.record(catalog.fin.TOOL_CALLS)
            reason = "tool_calls"
        if choice.calls.invalid_arguments and reason not in TRUNCATED_REASONS:
            self.invalid_arguments_count += choice.calls.invalid_arguments
            self._repair_log.record(catalog.tool.ARGS_JSON_OBJECT)
            if choice.calls.unreadable and self._facts.needs_object_arguments:
                return [bad_stream_failure("a tool call whose arguments are not a JSON object")]
        out.append(Finish(choice.index, reason, choice.stop_string if reason == "stop" else None))
        return []

    def _finish_stream(self, out: list[Event], *, is_done: bool) -> None:
        if not is_done:
            self._repair_log.record(catalog.end.DONE_SENT)
            if not self._is_chat:
                self._repair_log.record(catalog.cmpl.DONE)
        if self.usage is not None and self._facts.include_usage is not False:
            out.append(self.usage)

    def _keep_alive(self, event: KeepAlive, out: list[Event]) -> None:
        """Let out signs of life, in runs that clients stand: after some comments one goes out as a chunk."""
        is_full = self._comment_count >= _COMMENTS_LIMIT
        if is_full and not event.is_chunk:
            self._repair_log.record(catalog.sse.KEEPALIVE_RUN_LIMIT)
        # A chunk needs a choice that is open: before the first one there are only comments.
        if (event.is_chunk or is_full) and self._noop_count < _NOOPS_LIMIT and self._open_choices():
            self._noop_count += 1
            self._comment_count = 0
            out.append(KeepAlive(is_chunk=True))
            return
        if event.is_chunk and self._noop_count >= _NOOPS_LIMIT:
            self._repair_log.record(catalog.delta.NO_NOOP_FLOOD)
        if not is_full:
            self._comment_count += 1
            out.append(KeepAlive())

    def _fail(self, failure: Failure, out: list[Event]) -> None:
        out.append(failure)
        self.failure = failure
