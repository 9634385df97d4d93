"""Stop strings, found here: an answer's text ends before the first of them, and nothing of it is shown.

Text that may be the beginning of a stop string waits until that is known. If none comes of it, the text is said after
all. Only what the client reads as text counts, not thoughts or arguments. It goes out in the pieces in which it came,
so that the log probabilities of a token wait with it, or go with it.
"""

import msgspec

from welldone.wire.counts import usage_from_timings
from welldone.wire.events import (
    Event,
    UnknownFields,
    Failure,
    Finish,
    Json,
    KeepAlive,
    Logprobs,
    ChoiceStart,
    FieldLocation,
    Text,
    Usage,
)
from welldone.wire.logprobs import truncate_logprobs

_RIDERS_LIMIT = 64
"""Events that wait for their text. A character has up to four tokens, with at most three riders each; more is a flood,
and is let through."""


class _HeldText(msgspec.Struct, frozen=True):
    """A text, and what rides on its chunk."""

    riders: list[Event]
    text: Text

    def truncated(self, count: int) -> list[Event]:
        """The events of its first characters."""
        if count >= len(self.text.text):
            return [*self.riders, self.text]
        riders = [
            Logprobs(event.index, truncate_logprobs(event.value, count)) if isinstance(event, Logprobs) else event
            for event in self.riders
        ]
        return [*riders, Text(self.text.index, self.text.text[:count])]


class StopStringFilter:
    """The events of a stream with one choice, up to the first stop string in its text.

    The server was asked without them, and to count as it goes: when `is_over`, it is left, and says no usage any more.
    """

    def __init__(self, stop_strings: tuple[str, ...]) -> None:
        self.has_matched = False
        """Whether a stop string has come: nothing more is heard."""
        self._stop_strings = stop_strings
        self._longest = max(map(len, stop_strings))
        self._held: list[_HeldText] = []
        self._text = ""  # of the pieces that are held
        self._riders: list[Event] = []  # of a text that has not come yet
        self._timings: Json | None = None

    def feed(self, events: list[Event]) -> list[Event]:
        """What may be said after `events`."""
        out: list[Event] = []
        for event in events:
            if self.has_matched:
                break
            self._filter_event(event, out)
        return out

    def close(self) -> list[Event]:
        """What was held back, when nothing can follow it."""
        out: list[Event] = []
        place = self._find_stop()
        if place < len(self._text):
            self._emit_and_stop(place, out)
        else:
            self._emit_safe(place, out)
            out += self._riders
            self._riders = []
        return out

    def _filter_event(self, event: Event, out: list[Event]) -> None:
        match event:
            case Text():
                self._hold_text(event, out)
            case UnknownFields(location=FieldLocation.CHUNK, fields={"timings": dict(timings)}):
                self._timings = timings  # not for the client, who has not asked for them: only the last are
                fields = {name: value for name, value in event.fields.items() if name != "timings"}
                if fields:
                    self._hold_rider(msgspec.structs.replace(event, fields=fields), out)
            case UnknownFields() | Logprobs():
                self._hold_rider(event, out)
            case KeepAlive() | ChoiceStart():
                out.append(event)
            case Usage():
                self._emit_timings(0, out)
                out.append(event)
            case _:
                # A stop string is not looked for across thoughts or calls; and nothing that is held outlives the end.
                out += self.close()
                if not self.has_matched or isinstance(event, Failure):
                    out.append(event)

    def _hold_text(self, text: Text, out: list[Event]) -> None:
        self._held.append(_HeldText(self._riders, text))
        self._riders = []
        self._text += text.text
        found, begun = self._find_stop(), self._find_partial_stop()
        if found <= begun and found < len(self._text):
            self._emit_and_stop(found, out)
        else:
            self._emit_safe(min(found, begun), out)

    def _hold_rider(self, event: Event, out: list[Event]) -> None:
        self._riders.append(event)
        if len(self._riders) > _RIDERS_LIMIT:
            out += self._riders
            self._riders = []

    def _find_stop(self) -> int:
        """Where the first stop string begins; the end of the text, if there is none."""
        places = [place for stop in self._stop_strings if (place := self._text.find(stop)) >= 0]
        return min(places, default=len(self._text))

    def _find_partial_stop(self) -> int:
        """Where a stop string may have begun that is not whole yet; the end of the text, if nowhere."""
        length = len(self._text)
        for place in range(max(0, length - self._longest + 1), length):
            rest = self._text[place:]
            if any(stop.startswith(rest) for stop in self._stop_strings):
                return place
        return length

    def _emit_safe(self, safe: int, out: list[Event]) -> None:
        """Say the pieces that end within the first so many characters."""
        said = count = 0
        for piece in self._held:
            length = len(piece.text.text)
            if said + length > safe:
                break
            out += [*piece.riders, piece.text]
            said += length
            count += 1
        del self._held[:count]
        self._text = self._text[said:]

    def _emit_and_stop(self, place: int, out: list[Event]) -> None:
        """Say what stands before a stop string, and that this was all."""
        stop = next(one for one in self._stop_strings if self._text.startswith(one, place))
        index = self._held[0].text.index
        for piece in self._held:
            if place > 0:
                out += piece.truncated(place)
            place -= len(piece.text.text)
        self.has_matched = True
        self._held, self._text, self._riders = [], "", []
        self._emit_timings(index, out)
        out.append(Finish(index, "stop", stop))
        usage = None if self._timings is None else usage_from_timings(self._timings)
        if usage is not None:
            out.append(usage)

    def _emit_timings(self, index: int, out: list[Event]) -> None:
        if self._timings is not None:
            out.append(UnknownFields(index, FieldLocation.CHUNK, {"timings": self._timings}))
