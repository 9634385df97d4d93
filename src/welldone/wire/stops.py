"""Stop strings, found here: an answer's text ends before the first of them, and nothing of it is shown.

Text that may be the beginning of a stop string waits until that is known. If none comes of it, the text is said after
all. Only what the client reads as text counts, not thoughts or arguments. It goes out in the pieces in which it came,
so that the log probabilities of a token wait with it, or go with it.
"""

import msgspec

from welldone.wire.counts import read_timings
from welldone.wire.events import Event, Extra, Failure, Finish, Json, KeepAlive, Logprobs, Opening, Place, Text, Usage
from welldone.wire.logprobs import first_of

_RIDERS_LIMIT = 64
"""Events that wait for their text. A character has up to four tokens, with at most three riders each; more is a flood,
and is let through."""


class _Piece(msgspec.Struct, frozen=True):
    """A text, and what rides on its chunk."""

    riders: list[Event]
    text: Text

    def up_to(self, count: int) -> list[Event]:
        """The events of its first characters."""
        if count >= len(self.text.text):
            return [*self.riders, self.text]
        riders = [
            Logprobs(event.index, first_of(event.value, count)) if isinstance(event, Logprobs) else event
            for event in self.riders
        ]
        return [*riders, Text(self.text.index, self.text.text[:count])]


class Stops:
    """The events of a stream with one choice, up to the first stop string in its text.

    The server was asked without them, and to count as it goes: when `is_over`, it is left, and says no usage any more.
    """

    def __init__(self, strings: tuple[str, ...]) -> None:
        self.is_over = False
        """Whether a stop string has come: nothing more is heard."""
        self._strings = strings
        self._longest = max(map(len, strings))
        self._held: list[_Piece] = []
        self._text = ""  # of the pieces that are held
        self._riders: list[Event] = []  # of a text that has not come yet
        self._timings: Json | None = None

    def feed(self, events: list[Event]) -> list[Event]:
        """What may be said after `events`."""
        out: list[Event] = []
        for event in events:
            if self.is_over:
                break
            self._event(event, out)
        return out

    def close(self) -> list[Event]:
        """What was held back, when nothing can follow it."""
        out: list[Event] = []
        place = self._found()
        if place < len(self._text):
            self._cut(place, out)
        else:
            self._release(place, out)
            out += self._riders
            self._riders = []
        return out

    def _event(self, event: Event, out: list[Event]) -> None:
        match event:
            case Text():
                self._hear(event, out)
            case Extra(place=Place.CHUNK, fields={"timings": dict(timings)}):
                self._timings = timings  # not for the client, who has not asked for them: only the last are
                fields = {name: value for name, value in event.fields.items() if name != "timings"}
                if fields:
                    self._wait(msgspec.structs.replace(event, fields=fields), out)
            case Extra() | Logprobs():
                self._wait(event, out)
            case KeepAlive() | Opening():
                out.append(event)
            case Usage():
                self._tell_timings(0, out)
                out.append(event)
            case _:
                # A stop string is not looked for across thoughts or calls; and nothing that is held outlives the end.
                out += self.close()
                if not self.is_over or isinstance(event, Failure):
                    out.append(event)

    def _hear(self, text: Text, out: list[Event]) -> None:
        self._held.append(_Piece(self._riders, text))
        self._riders = []
        self._text += text.text
        found, begun = self._found(), self._begun()
        if found <= begun and found < len(self._text):
            self._cut(found, out)
        else:
            self._release(min(found, begun), out)

    def _wait(self, event: Event, out: list[Event]) -> None:
        self._riders.append(event)
        if len(self._riders) > _RIDERS_LIMIT:
            out += self._riders
            self._riders = []

    def _found(self) -> int:
        """Where the first stop string begins; the end of the text, if there is none."""
        places = [place for stop in self._strings if (place := self._text.find(stop)) >= 0]
        return min(places, default=len(self._text))

    def _begun(self) -> int:
        """Where a stop string may have begun that is not whole yet; the end of the text, if nowhere."""
        length = len(self._text)
        for place in range(max(0, length - self._longest + 1), length):
            rest = self._text[place:]
            if any(stop.startswith(rest) for stop in self._strings):
                return place
        return length

    def _release(self, safe: int, out: list[Event]) -> None:
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

    def _cut(self, place: int, out: list[Event]) -> None:
        """Say what stands before a stop string, and that this was all."""
        stop = next(one for one in self._strings if self._text.startswith(one, place))
        index = self._held[0].text.index
        for piece in self._held:
            if place > 0:
                out += piece.up_to(place)
            place -= len(piece.text.text)
        self.is_over = True
        self._held, self._text, self._riders = [], "", []
        self._tell_timings(index, out)
        out.append(Finish(index, "stop", stop))
        usage = None if self._timings is None else read_timings(self._timings)
        if usage is not None:
            out.append(usage)

    def _tell_timings(self, index: int, out: list[Event]) -> None:
        if self._timings is not None:
            out.append(Extra(index, Place.CHUNK, {"timings": self._timings}))
