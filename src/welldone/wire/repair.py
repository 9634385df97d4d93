"""Any events, as a legal sequence: what is out of turn is moved, what is missing is filled in, what is twice goes.

Nothing is invented that the server did not mean: where an answer is not whole, the sequence ends with a `Failure`.
Each mend is noted by the id of the rule that was broken.
"""

from collections.abc import Callable
from typing import assert_never

import msgspec

from welldone.wire import faults
from welldone.wire.asked import CUT_SHORT, Asked
from welldone.wire.calls import Calls, Held
from welldone.wire.events import (
    ChoiceEvent,
    Event,
    Extra,
    Failure,
    Finish,
    KeepAlive,
    Logprobs,
    Opening,
    Place,
    Reasoning,
    Refusal,
    Reword,
    Text,
    ToolArguments,
    ToolCall,
    Usage,
)
from welldone.wire.extras import DeltaFields
from welldone.wire.failures import cut_off, garbage
from welldone.wire.head import Endpoint
from welldone.wire.kept import JsonAnswers
from welldone.wire.logprobs import fewer
from welldone.wire.notes import Notes
from welldone.wire.texts import Cumulative, GrowthWatch, TextForm, Think, Thoughts

_COMMENTS_LIMIT = 40  # in a row; two lines each, and clients give up at some hundred lines without data
_NOOPS_LIMIT = 16  # chunks without content in a row; more is a flood

_SPOKEN = (Text, Reasoning, Refusal, ToolCall, ToolArguments)
_SPOKEN_IN_CHAT = (*_SPOKEN, Opening)


class _Choice:
    """What is known of one choice. `is_cumulative`: its texts are all of the text so far."""

    def __init__(self, index: int, calls: Calls, notes: Notes, *, is_cumulative: bool) -> None:
        self.index = index
        self.calls = calls
        self.text = Cumulative(notes) if is_cumulative else None
        self.reasoning = Cumulative(notes) if is_cumulative else None
        self.growth = GrowthWatch(notes)
        self.thoughts: Thoughts | None = None
        self.fields = DeltaFields(notes)
        self.is_open = False
        self.is_greeted = False  # something was heard of it: it was not opened only for its place in the order
        self.reason: str | None = None  # why it finished, held back until it really has
        self.stop: str | None = None  # and at which stop string
        self.has_spoken = False
        self.has_thought = False
        self.is_plain = False  # text may pass as it is

    def pause(self, out: list[Event]) -> None:
        """Something else than text comes: what was held back of the text comes first."""
        if self.thoughts is not None:
            out += self.thoughts.pause()

    def settle(self, out: list[Event]) -> None:
        """Say what was held back of its text."""
        if self.thoughts is not None:
            out += self.thoughts.close()

    def speak(self, text: str, think: Think, out: list[Event]) -> None:
        """More text."""
        if not self.has_spoken:
            self.has_spoken = True
            # A server with a field for reasoning has sent the thoughts of an open text there.
            if think == "tags" or (think == "open" and not self.has_thought):
                self.thoughts = Thoughts(self.index, is_open=think == "open")
        if self.text is None:
            self.growth.feed(text)
        else:
            text = self.text.feed(text)
        if self.thoughts is not None:
            out += self.thoughts.feed(text)
        elif text:
            out.append(Text(self.index, text))
        self.is_plain = (
            self.growth.is_over and self.reason is None and (self.thoughts is None or self.thoughts.is_plain)
        )

    def think(self, text: str, out: list[Event]) -> None:
        """More reasoning, in a field of its own."""
        self.pause(out)
        self.has_thought = True
        new = text if self.reasoning is None else self.reasoning.feed(text)
        if new:
            out.append(Reasoning(self.index, new))


class Repair:
    """A legal sequence of events out of any.

    `mint` makes ids for tool calls that have none.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        asked: Asked,
        notes: Notes,
        mint: Callable[[], str],
        is_stream: bool = True,
    ) -> None:
        self.usage: Usage | None = None
        """The last count that was heard, sent or not."""
        self.failure: Failure | None = None
        """Why the answer broke off, if it did."""
        self.think: Think = "no"
        """Whether thoughts are taken out of the text."""
        self.text: TextForm = "delta"
        """What each text of the upstream is."""
        self.reword: Reword | None = None
        """How the server's own words for a failure go out."""
        self.broken_arguments = 0
        """How many tool calls had arguments that are no JSON object, though nothing had cut them."""
        self._json = JsonAnswers(is_object=asked.json_object) if asked.json else None
        self._is_chat = endpoint is Endpoint.CHAT
        self._is_stream = is_stream
        self._spoken = _SPOKEN_IN_CHAT if self._is_chat else _SPOKEN  # what always goes out as a chunk
        self._asked = asked
        self._notes = notes
        self._mint = mint
        self._choices: dict[int, _Choice] = {}
        self._held = Held()
        self._indices: dict[int, int] = {}  # the indices that a server gives to choices, and ours
        self._is_renumbered = False  # ours are others
        self._finished = 0  # choices that have said why they finished
        self._comments = 0  # since something went out as a chunk
        self._noops = 0  # chunks since something was said

    @property
    def broken_json(self) -> int:
        """How many choices should have been JSON, and are not."""
        return 0 if self._json is None else self._json.broken

    @property
    def is_complete(self) -> bool:
        """Whether each choice that was requested has said why it finished."""
        return self.failure is None and self._finished >= max(len(self._choices), self._asked.choices or 1)

    def is_flowing(self, index: int) -> bool:
        """Whether text of this choice would pass as it is, and change nothing."""
        choice = self._choices.get(index)
        is_watched = self.failure is not None or self._json is not None or self._is_renumbered
        return choice is not None and choice.is_plain and not is_watched

    def passed(self) -> None:
        """Text took a shorter way."""
        self._comments = self._noops = 0

    def feed(self, events: list[Event]) -> list[Event]:
        """What may be said after `events`."""
        out: list[Event] = []
        for event in events:
            if self.failure is not None:
                break
            if type(event) is Text:
                choice = self._choices.get(event.index)
                if choice is not None and choice.is_plain and not self._is_renumbered:
                    # The common case: text in the middle of an answer.
                    self._comments = self._noops = 0
                    out.append(event)
                    continue
            before = len(out)
            self._event(event, out)
            if any(isinstance(said, self._spoken) for said in out[before:]):
                self._comments = self._noops = 0
        if self._json is not None:
            self._json.hear(out)
        return out

    def close(self, *, is_done: bool) -> list[Event]:
        """The end: each choice is finished, or the answer has failed. `is_done`: the server said `[DONE]`."""
        out = self._close(is_done=is_done)
        if self._json is not None:
            self._json.hear(out)
        return out

    def _close(self, *, is_done: bool) -> list[Event]:
        out: list[Event] = []
        if self.failure is not None:
            return out
        choices = self._open_choices()
        if not choices:
            self._notes.note(faults.err.EMPTY_STREAM)
            self._fail(cut_off("the server sent no answer"), out)
            return out
        failures = []
        self._flush([choice for choice in choices if choice.reason is None or choice.calls.has_nameless], out)
        for choice in choices:
            choice.settle(out)
            choice.calls.close(out, is_cut=choice.reason in CUT_SHORT or (choice.reason is None and not is_done))
            failures += self._finish(choice, out, is_done=is_done)
        failures += self._missing(choices)
        if failures:
            self._fail(failures[0], out)
        else:
            self._end(out, is_done=is_done)
        return out

    def _event(self, event: Event, out: list[Event]) -> None:
        match event:
            case KeepAlive():
                self._keep_alive(event, out)
            case Usage():
                self.usage = event
            case Failure():
                self._break_off(event if self.reword is None else self.reword(event), out)
            case Extra(place=Place.CHUNK):
                index = (self._index(event.index) or 0) if event.alone else event.index
                if event.alone and not self._state(index).is_open:
                    self._open(self._state(index), out)
                out.append(msgspec.structs.replace(event, index=index))
            case _:
                self._choice_event(event, out)

    def _break_off(self, failure: Failure, out: list[Event]) -> None:
        """Say what can still be said of the answer, and why there is no more of it."""
        choices = self._open_choices()
        self._flush(choices, out)
        for choice in choices:
            choice.settle(out)
            choice.calls.close(out, is_cut=choice.reason is None or choice.reason in CUT_SHORT)
            if choice.reason is not None:
                self._finish(choice, out, is_done=True)
        self._fail(failure, out)

    def _flush(self, choices: list[_Choice], out: list[Event]) -> None:
        """Let out what rides on the next chunk, before what was held back: there may be no next chunk."""
        out += [Extra(choice.index, Place.CHOICE, {}, alone=True) for choice in choices]

    def _choice_event(self, event: ChoiceEvent, out: list[Event]) -> None:
        index = self._index(event.index)
        if index is None:
            return
        choice = self._state(index)
        if isinstance(event, Extra) and not event.alone:
            self._say(choice, event, out)
            return
        if isinstance(event, Opening) and choice.is_open:
            if choice.is_greeted:
                self._notes.note(faults.delta.ROLE_ONCE)
        elif not choice.is_open:
            if self._is_chat and not isinstance(event, Opening):
                self._notes.note(faults.delta.ROLE_FIRST)
            self._open(choice, out)
        choice.is_greeted = True
        self._say(choice, event, out)
        if choice.calls.failure is not None:
            self._fail(choice.calls.failure, out)

    def _say(self, choice: _Choice, event: ChoiceEvent, out: list[Event]) -> None:  # noqa: C901, PLR0912 - a case per event
        """Hand on what happens in an open choice."""
        index = choice.index
        match event:
            case Opening():
                pass
            case Text(text=text):
                choice.speak(text, self.think, out)
            case Logprobs(value=value):
                most = self._asked.top_logprobs
                out.append(Logprobs(index, value if most is None else fewer(value, most)))
            case Extra(place=Place.DELTA) if self._is_stream:
                out.append(choice.fields.fit(msgspec.structs.replace(event, index=index)))
            case Extra():
                out.append(msgspec.structs.replace(event, index=index))
            case Finish(reason=reason, stop=stop):
                self._hold(choice, reason)
                choice.stop = stop
            case Reasoning() | Refusal() | ToolCall() | ToolArguments() if not self._is_chat:
                pass  # a completion has no place for them, and its reader never gives them
            case Reasoning(text=text):
                choice.think(text, out)
            case Refusal(text=text):
                choice.pause(out)
                out.append(Refusal(index, text))
            case ToolCall():
                choice.pause(out)
                choice.calls.begin(event, out)
            case ToolArguments():
                choice.calls.add(event, out)
            case _:
                assert_never(event)

    def _open_choices(self) -> list[_Choice]:
        return sorted((choice for choice in self._choices.values() if choice.is_open), key=lambda one: one.index)

    def _state(self, index: int) -> _Choice:
        choice = self._choices.get(index)
        if choice is None:
            calls = Calls(index, self._notes, self._mint, self._held, is_legacy=self._asked.functions)
            choice = _Choice(index, calls, self._notes, is_cumulative=self.text == "cumulative")
            self._choices[index] = choice
        return choice

    def _index(self, index: int) -> int | None:
        """The index of a choice. Where one was requested, the first that comes is 0, whatever the server calls it;
        None for a choice beyond those that were requested: clients that read one would mix it into theirs."""
        known = self._indices.get(index)
        if known == index:
            return index
        wanted = self._asked.choices
        if known is None and (wanted is None or len(self._indices) < wanted):
            known = self._indices[index] = 0 if wanted == 1 else index
            self._is_renumbered |= known != index
        if known != index:
            self._notes.note(faults.n.INDEX_INT if self._is_chat else faults.cmpl.INDEX, index)
        return known

    def _missing(self, choices: list[_Choice]) -> list[Failure]:
        """A failure where fewer choices came than were requested."""
        wanted = self._asked.choices or 0
        if len(choices) >= wanted:
            return []
        self._notes.note(faults.n.REFUSE_IF_UNSUPPORTED, len(choices))
        return [cut_off(f"the server sent {len(choices)} of {wanted} requested choices")]

    def _open(self, choice: _Choice, out: list[Event]) -> None:
        """Open a choice, and before it those with a lower index: clients keep choices in a list."""
        if self._is_chat:
            for index in range(choice.index):
                if index not in self._choices or not self._choices[index].is_open:
                    self._notes.note(faults.n.FIRST_ORDER, choice.index)
                    self._open(self._state(index), out)
        choice.is_open = True
        out.append(Opening(choice.index))

    def _hold(self, choice: _Choice, reason: str) -> None:
        """Keep why a choice finished until nothing can follow; a call outweighs a stop."""
        choice.is_plain = False
        if choice.reason is None:
            choice.reason = reason
            self._finished += 1
            return
        self._notes.note(faults.fin.EXACTLY_ONCE, reason)
        if reason == "tool_calls":
            choice.reason = reason

    def _finish(self, choice: _Choice, out: list[Event], *, is_done: bool) -> list[Failure]:
        """Say why a choice finished; a failure where nobody can know."""
        if choice.calls.failure is not None:
            return [choice.calls.failure]
        reason = choice.reason
        is_called = len(choice.calls) > 0
        is_whole = choice.calls.are_whole()
        if reason is None:
            self._notes.note(faults.fin.ALWAYS_SENT if is_done else faults.end.NO_EARLY_EOF)
            self._notes.note(faults.err.NOT_SILENT)
            if is_called:
                self._notes.note(faults.tool.FINISH_FOLLOWS)
            if not (is_done and is_whole):
                return [cut_off("the server's stream ended before the answer was whole")]
            reason = "tool_calls" if is_called else "stop"
        elif reason == "stop" and is_called and is_whole and not self._asked.named_tool:
            self._notes.note(faults.fin.TOOL_CALLS)
            reason = "tool_calls"
        if choice.calls.broken and reason not in CUT_SHORT:
            self.broken_arguments += choice.calls.broken
            self._notes.note(faults.tool.ARGS_JSON_OBJECT)
            if choice.calls.unreadable and self._asked.object_calls:
                return [garbage("a tool call whose arguments are not a JSON object")]
        out.append(Finish(choice.index, reason, choice.stop if reason == "stop" else None))
        return []

    def _end(self, out: list[Event], *, is_done: bool) -> None:
        if not is_done:
            self._notes.note(faults.end.DONE_SENT)
            if not self._is_chat:
                self._notes.note(faults.cmpl.DONE)
        if self.usage is not None and self._asked.usage is not False:
            out.append(self.usage)

    def _keep_alive(self, event: KeepAlive, out: list[Event]) -> None:
        """Let out signs of life, in runs that clients stand: after some comments one goes out as a chunk."""
        is_full = self._comments >= _COMMENTS_LIMIT
        if is_full and not event.is_chunk:
            self._notes.note(faults.sse.KEEPALIVE_RUN_LIMIT)
        # A chunk needs a choice that is open: before the first one there are only comments.
        if (event.is_chunk or is_full) and self._noops < _NOOPS_LIMIT and self._open_choices():
            self._noops += 1
            self._comments = 0
            out.append(KeepAlive(is_chunk=True))
            return
        if event.is_chunk and self._noops >= _NOOPS_LIMIT:
            self._notes.note(faults.delta.NO_NOOP_FLOOD)
        if not is_full:
            self._comments += 1
            out.append(KeepAlive())

    def _fail(self, failure: Failure, out: list[Event]) -> None:
        out.append(failure)
        self.failure = failure
