"""Repair of events: normalises any events into a legal sequence (reorder, fill gaps, drop duplicates).

Content is never invented: an incomplete answer ends with a `Failure`. Each repair is recorded under the violated rule.
"""

from collections.abc import Callable, Iterator
from typing import assert_never

import msgspec

from welldone.core import events as ev
from welldone.core import text_filters
from welldone.core.envelope import Endpoint
from welldone.core.events import Event, Failure, Usage
from welldone.core.fields import BROKEN_OFF, bad_stream_failure, incomplete_stream_failure, limit_top_logprobs
from welldone.core.repair_log import RepairLog
from welldone.core.request_facts import DEFAULT_OPTIONS, TRUNCATED_REASONS, RequestFacts
from welldone.core.tool_calls import HeldBytesBudget, ToolCallAssembler

_COMMENTS_LIMIT = 40  # consecutive, of two lines each; some clients fail after about 100 lines without data
_NOOPS_LIMIT = 16  # consecutive chunks without content
_LIST_FIELDS_LIMIT = 1024  # list fields of one choice whose entries are counted

_CONTENT_EVENTS: frozenset[type[Event]] = frozenset({ev.Text, ev.Reasoning, ev.Refusal, ev.ToolCall, ev.ToolArguments})
_CHAT_CONTENT_EVENTS = _CONTENT_EVENTS | {ev.ChoiceStart}


class UnknownDeltaFields:
    """Normalises the unknown fields of one choice's deltas for clients that accumulate deltas.

    openai-python joins strings, adds numbers, and merges lists by the `index` of their entries; it raises if an entry
    has none.
    """

    def __init__(self, repair_log: RepairLog) -> None:
        self._repair_log = repair_log
        self._entry_counts: dict[str, int] = {}

    def normalise(self, event: ev.UnknownFields) -> ev.UnknownFields:
        """Return the event with fields that clients can accumulate."""
        fields = {key: self._normalise_value(key, value) for key, value in event.fields.items()}
        return msgspec.structs.replace(event, fields=fields)

    def _normalise_value(self, name: str, value: object) -> object:
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._repair_log.record("ext-number-fields", {name: value})
        if not isinstance(value, list) or not any(isinstance(item, dict) for item in value):
            return value
        before = self._entry_counts.get(name, 0)
        if before or len(self._entry_counts) < _LIST_FIELDS_LIMIT:
            self._entry_counts[name] = before + len(value)
        if before == 0 or all(isinstance(item, dict) and type(item.get("index")) is int for item in value):
            return value
        self._repair_log.record("ext-list-fields-indexed", {name: value})
        return [
            {**item, "index": index} if isinstance(item, dict) and type(item.get("index")) is not int else item
            for index, item in enumerate(value, before)
        ]


class _ChoiceRepair:
    """State of one choice. `is_cumulative`: each text contains all of the text so far."""

    def __init__(self, index: int, calls: ToolCallAssembler, repair_log: RepairLog, *, is_cumulative: bool) -> None:
        self.index = index
        self.calls = calls
        self.text_filter = text_filters.CumulativeTextFilter(repair_log) if is_cumulative else None
        self.reasoning_filter = text_filters.CumulativeTextFilter(repair_log) if is_cumulative else None
        self.cumulative_detector = text_filters.CumulativeTextDetector(repair_log)
        self.think_filter: text_filters.ThinkTagFilter | None = None
        self.thought_filter = text_filters.RepeatedThoughtFilter(repair_log)
        self.delta_fields = UnknownDeltaFields(repair_log)
        self.is_open = False
        self.has_events = False  # False while it was opened only to keep the order of choices
        self.finish_reason: str | None = None  # held back until nothing can follow
        self.stop_string: str | None = None
        self.has_text = False
        self.has_answer = False  # text outside of thoughts
        self.has_reasoning = False
        self.can_pass_text = False  # text needs no repair

    def can_pass_reasoning(self, think: text_filters.ThinkMode) -> bool:
        """Whether reasoning needs no repair and changes no state."""
        is_filtered = self.reasoning_filter is not None or self.think_filter is not None or think != "no"
        return self.has_reasoning and self.finish_reason is None and not is_filtered

    def pause(self, out: list[Event]) -> None:
        """Emit white space that was held back, before an event that is not text."""
        if self.think_filter is not None:
            out += self.think_filter.pause()

    def add_text(self, text: str, think: text_filters.ThinkMode, out: list[Event]) -> None:
        if not self.has_text:
            self.has_text = True
            # A server with a reasoning field sends the reasoning there, and the text starts outside of the tags.
            if think == "tags" or (think == "open" and not self.has_reasoning):
                self.think_filter = text_filters.ThinkTagFilter(self.index, is_open=think == "open")
        if self.text_filter is None:
            self.cumulative_detector.feed(text)
        else:
            text = self.text_filter.feed(text)
        if self.think_filter is not None:
            out += self._new_thoughts(self.think_filter.feed(text))
        elif text:
            self.has_answer = True
            out.append(ev.Text(self.index, text))
        self.can_pass_text = (
            self.cumulative_detector.is_finished
            and self.finish_reason is None
            and (self.think_filter is None or self.think_filter.is_past_thinking)
        )

    def _new_thoughts(self, events: list[Event]) -> Iterator[Event]:
        """Drop the thoughts in tags that were received in a field."""
        for event in events:
            if not isinstance(event, ev.Reasoning):
                self.has_answer |= isinstance(event, ev.Text) and not event.text.isspace()
                yield event
            elif new := self.thought_filter.feed(event.text, in_tags=True):
                yield ev.Reasoning(self.index, new)

    def close(self, out: list[Event], *, is_cut: bool) -> None:
        """Emit what was held back. `is_cut`: the answer ended early, so tool calls may be incomplete."""
        if self.think_filter is not None:
            out += self._new_thoughts(self.think_filter.close())
        self.calls.close(out, is_cut=is_cut or self.finish_reason in TRUNCATED_REASONS)


class EventRepairer:
    """Turns any sequence of events into a legal one.

    `new_call_id` makes ids for tool calls without one.
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
        """The last usage received, even if it is not sent."""
        self.failure: Failure | None = None
        """The failure that ended the answer, if any."""
        self.options = DEFAULT_OPTIONS
        """Settings of the upstream."""
        self.invalid_arguments_count: int = 0
        """Number of tool calls whose arguments are not a JSON object although the answer was not truncated."""
        self._json_checker = (
            text_filters.JsonOutputChecker(is_object=facts.is_json_object) if facts.is_json_output else None
        )
        self._is_chat = endpoint.is_chat
        self._is_stream = is_stream
        # Events that are always sent as a chunk.
        self._content_events = _CHAT_CONTENT_EVENTS if self._is_chat else _CONTENT_EVENTS
        self._facts = facts
        self._repair_log = repair_log
        self._new_call_id = new_call_id
        self._choices: dict[int, _ChoiceRepair] = {}
        self._held_budget = HeldBytesBudget()
        self._index_map: dict[int, int] = {}  # choice indices of the server to those that are sent
        self._is_renumbered = False  # some index differs
        self._has_unrequested = False  # content of a choice beyond the requested number was dropped
        self._finished_count = 0  # choices with a finish reason
        self._comment_count = 0  # since the last chunk
        self._noop_count = 0  # empty chunks since the last content

    @property
    def invalid_json_count(self) -> int:
        """Number of choices whose text should be JSON and is not."""
        return 0 if self._json_checker is None else self._json_checker.invalid_count

    @property
    def is_finished(self) -> bool:
        """Whether every requested choice has a finish reason."""
        return self._finished_count >= max(len(self._choices), self._facts.choice_count or 1)

    @property
    def is_complete(self) -> bool:
        """Whether every requested choice has a finish reason, and none has failed."""
        return self.failure is None and self.is_finished

    def can_use_fast_path(self, index: int, text_type: type[ev.TextEvent]) -> bool:
        """Whether text or reasoning of this choice passes unchanged and changes no state."""
        choice = self._choices.get(index)
        if choice is None or self.failure is not None or self._json_checker is not None or self._is_renumbered:
            return False
        return choice.can_pass_text if text_type is ev.Text else choice.can_pass_reasoning(self.options.think)

    def record_fast_path(self) -> None:
        """Update the state after text that the fast path handled."""
        self._comment_count = self._noop_count = 0

    def feed(self, events: list[Event]) -> list[Event]:
        """Return the legal events for `events`."""
        out: list[Event] = []
        for event in events:
            if self.failure is not None:
                break
            if type(event) is ev.Text:
                choice = self._choices.get(event.index)
                if choice is not None and choice.can_pass_text and not self._is_renumbered:
                    # Common case: text in the middle of an answer.
                    self._comment_count = self._noop_count = 0
                    out.append(event)
                    continue
            before = len(out)
            self._repair_event(event, out)
            if not self._content_events.isdisjoint(map(type, out[before:])):
                self._comment_count = self._noop_count = 0
        if self._json_checker is not None:
            self._json_checker.observe(out)
        return out

    def close(self, *, is_done: bool, is_cut: bool = False) -> list[Event]:
        """Finish every choice, or fail. `is_done`: the server sent `[DONE]`; `is_cut`: it ended within a frame."""
        out: list[Event] = []
        if self.failure is not None:
            return out
        has_answer = any(choice.has_events for choice in self._choices.values())
        choices = self._open_choices() if has_answer else []  # a foreign object opens a choice, but is no answer
        failures = []
        incomplete = [choice for choice in choices if choice.finish_reason is None or choice.calls.has_nameless]
        self._flush_pending_fields(incomplete, out)
        for choice in choices:
            last: list[Event] = []
            choice.close(last, is_cut=choice.finish_reason is None and not is_done)
            if self._json_checker is not None:
                self._json_checker.observe(last)
            out += last
            failures += self._finish_choice(choice, out, is_done=is_done, is_cut=is_cut)
        requested = self._facts.choice_count or 0
        if not choices:
            self._repair_log.record("err-empty-stream")
            failures.append(incomplete_stream_failure("the server sent no answer"))
        elif len(choices) < requested:
            self._repair_log.record("n-refuse-if-unsupported", len(choices))
            if not self.options.accept_fewer_choices:
                message = f"the server sent {len(choices)} of {requested} requested choices"
                failures.append(incomplete_stream_failure(message))
        if failures:
            self._fail(failures[0], out)
        elif not is_done:
            self._repair_log.record("end-done-sent")
            self._repair_log.record_if(not self._is_chat, "cmpl-done")
        if not failures and self.usage is not None and self._facts.include_usage is not False:
            out.append(self.usage)
        if self._json_checker is not None:
            self._json_checker.observe([event for event in out if isinstance(event, ev.Finish)])
        return out

    def _repair_event(self, event: Event, out: list[Event]) -> None:
        match event:
            case ev.KeepAlive():
                self._keep_alive(event, out)
            case Usage():
                self.usage = event
            case Failure():
                self._abort(event if self.options.map_failure is None else self.options.map_failure(event), out)
            case ev.UnknownFields(location=ev.FieldLocation.CHUNK):
                index = (self._map_index(event.index) or 0) if event.in_own_chunk else event.index
                if event.in_own_chunk and not self._get_choice(index).is_open:
                    self._open_choice(self._get_choice(index), out)
                out.append(msgspec.structs.replace(event, index=index))
            case _:
                self._repair_choice_event(event, out)

    def _abort(self, failure: Failure, out: list[Event]) -> None:
        """Emit what was held back, then the failure."""
        choices = self._open_choices()
        self._flush_pending_fields(choices, out)
        for choice in choices:
            choice.close(out, is_cut=choice.finish_reason is None)
            if choice.finish_reason is not None:
                self._finish_choice(choice, out, is_done=True, is_cut=False)
        self._fail(failure, out)

    def _flush_pending_fields(self, choices: list[_ChoiceRepair], out: list[Event]) -> None:
        """Send fields that are pending for the next chunk: there may be no next chunk."""
        out += [ev.UnknownFields(choice.index, ev.FieldLocation.CHOICE, {}, in_own_chunk=True) for choice in choices]

    def _repair_choice_event(self, event: ev.ChoiceEvent, out: list[Event]) -> None:
        index = self._map_index(event.index)
        if index is None:
            self._has_unrequested |= type(event) in _CONTENT_EVENTS
            return
        choice = self._choices.get(index) or self._get_choice(index)
        if not isinstance(event, ev.UnknownFields) or event.in_own_chunk:
            if not choice.is_open:
                if self._is_chat and not isinstance(event, ev.ChoiceStart):
                    self._repair_log.record("delta-role-first")
                self._open_choice(choice, out)
            elif isinstance(event, ev.ChoiceStart) and choice.has_events:
                self._repair_log.record("delta-role-once")
            choice.has_events = True
        self._emit(choice, event, out)
        if choice.calls.failure is not None:
            self._fail(choice.calls.failure, out)

    def _emit(self, choice: _ChoiceRepair, event: ev.ChoiceEvent, out: list[Event]) -> None:
        """Emit an event of an open choice."""
        index = choice.index
        match event:
            case ev.ChoiceStart():
                pass
            case ev.Text(text=text):
                choice.add_text(text, self.options.think if self._is_chat else "no", out)
            case ev.Logprobs(value=value):
                limit = self._facts.top_logprobs
                out.append(ev.Logprobs(index, value if limit is None else limit_top_logprobs(value, limit)))
            case ev.UnknownFields(location=ev.FieldLocation.DELTA) if self._is_stream:
                out.append(choice.delta_fields.normalise(msgspec.structs.replace(event, index=index)))
            case ev.UnknownFields():
                out.append(msgspec.structs.replace(event, index=index))
            case ev.Finish(reason=reason, stop_string=stop):
                choice.can_pass_text = False
                choice.stop_string = stop
                self._finished_count += choice.finish_reason is None
                self._repair_log.record_if(choice.finish_reason is not None, "fin-exactly-once", reason)
                if choice.finish_reason is None or reason == "tool_calls":  # which has precedence
                    choice.finish_reason = reason
            case ev.Reasoning() | ev.Refusal() | ev.ToolCall() | ev.ToolArguments() if not self._is_chat:
                pass  # completions have no such fields, and their reader emits none
            case ev.Reasoning(text=text):
                choice.pause(out)
                choice.has_reasoning = True
                new = text if choice.reasoning_filter is None else choice.reasoning_filter.feed(text)
                new = new if self.options.think == "no" else choice.thought_filter.feed(new, in_tags=False)
                if new:
                    out.append(ev.Reasoning(index, new))
            case ev.Refusal(text=text):
                choice.pause(out)
                out.append(ev.Refusal(index, text))
            case ev.ToolCall():
                choice.pause(out)
                choice.calls.start_call(event, out)
            case ev.ToolArguments():
                choice.calls.add_arguments(event, out)
            case _:
                assert_never(event)

    def _open_choices(self) -> list[_ChoiceRepair]:
        return sorted((choice for choice in self._choices.values() if choice.is_open), key=lambda choice: choice.index)

    def _get_choice(self, index: int) -> _ChoiceRepair:
        choice = self._choices.get(index)
        if choice is None:
            log = self._repair_log
            calls = ToolCallAssembler(index, log, self._new_call_id, self._held_budget, self._facts)
            choice = _ChoiceRepair(index, calls, log, is_cumulative=self.options.text == "cumulative")
            self._choices[index] = choice
        return choice

    def _map_index(self, index: int) -> int | None:
        """The index to send for a choice; None for a choice beyond the requested number.

        If one choice was requested, the first received one is 0, whatever index the server sends. Clients that read one
        choice would mix the text of a second one into it.
        """
        known = self._index_map.get(index)
        if known == index:
            return index
        requested = self._facts.choice_count
        if known is None and (requested is None or len(self._index_map) < requested):
            known = self._index_map[index] = 0 if requested == 1 else index
            self._is_renumbered |= known != index
        if known != index:
            self._repair_log.record("n-index-int" if self._is_chat else "cmpl-index", index)
        return known

    def _open_choice(self, choice: _ChoiceRepair, out: list[Event]) -> None:
        """Start a choice, after those with a lower index: clients store choices in a list."""
        if self._is_chat:
            for index in range(choice.index):
                if index not in self._choices or not self._choices[index].is_open:
                    self._repair_log.record("n-first-order", choice.index)
                    self._open_choice(self._get_choice(index), out)
        choice.is_open = True
        out.append(ev.ChoiceStart(choice.index))

    def _finish_choice(self, choice: _ChoiceRepair, out: list[Event], *, is_done: bool, is_cut: bool) -> list[Failure]:
        """Emit the finish of a choice; a failure if the choice is incomplete."""
        if choice.calls.failure is not None:
            return [choice.calls.failure]
        reason = choice.finish_reason
        has_calls = len(choice.calls) > 0
        is_complete = choice.calls.are_complete()
        if reason is None:
            # Without [DONE], an answer may be whole if nothing in it shows that something is missing.
            is_whole = (choice.has_answer or has_calls) and not is_cut and choice.calls.are_complete(is_certain=True)
            if self._json_checker is not None and not is_done:
                is_whole = is_whole and not self._json_checker.is_invalid(choice.index)
            may_end = is_done or (is_whole and self.options.unfinished is None)
            self._repair_log.record("fin-always-sent" if may_end else "end-no-early-eof")
            self._repair_log.record("err-not-silent")
            self._repair_log.record_if(has_calls, "tool-finish-follows")
            # A choice that was not requested may be the rest of this one.
            if not (may_end and is_complete) or self._has_unrequested:
                return [(is_whole and not self._has_unrequested and self.options.unfinished) or BROKEN_OFF]
            reason = "tool_calls" if has_calls else "stop"
        elif reason == "stop" and has_calls and is_complete and not self._facts.has_named_tool:
            self._repair_log.record("fin-tool-calls")
            reason = "tool_calls"
        if choice.calls.invalid_arguments and reason not in TRUNCATED_REASONS:
            self.invalid_arguments_count += choice.calls.invalid_arguments
            self._repair_log.record("tool-args-json-object")
            if choice.calls.unreadable and self._facts.needs_object_arguments:
                return [bad_stream_failure("a tool call whose arguments are not a JSON object")]
        out.append(ev.Finish(choice.index, reason, choice.stop_string if reason == "stop" else None))
        return []

    def _keep_alive(self, event: ev.KeepAlive, out: list[Event]) -> None:
        """Limit runs of keep-alives to what clients accept: after some comments, one is sent as a chunk."""
        is_full = self._comment_count >= _COMMENTS_LIMIT
        self._repair_log.record_if(is_full and not event.is_chunk, "sse-keepalive-run-limit")
        # A chunk needs an open choice; before the first one only comments are sent.
        if (event.is_chunk or is_full) and self._noop_count < _NOOPS_LIMIT and self._open_choices():
            self._noop_count += 1
            self._comment_count = 0
            out.append(ev.KeepAlive(is_chunk=True))
            return
        self._repair_log.record_if(event.is_chunk and self._noop_count >= _NOOPS_LIMIT, "delta-no-noop-flood")
        if not is_full:
            self._comment_count += 1
            out.append(ev.KeepAlive())

    def _fail(self, failure: Failure, out: list[Event]) -> None:
        out.append(failure)
        self.failure = failure
