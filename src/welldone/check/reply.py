"""A reply to a probe: what was asked, what was heard, when, and what a client would make of it.

It is read with the eyes of the judge (`rules/heard`), stream or not: probes ask for the text, the reason, the calls.
"""

import json
from bisect import bisect_left
from functools import cached_property
from itertools import pairwise
from typing import Any

import msgspec

from welldone.check.reading import CHOICES, PIECES, USAGE, Piece, Said
from welldone.drawing.texts import in_a_line
from welldone.net.ear import Recording
from welldone.rules.capture import whole_frames
from welldone.rules.choices import as_object, as_text
from welldone.rules.heard import Form, Heard
from welldone.rules.trace import Trace

_SHOWN = 160  # characters of a server's error message: it is quoted in a line


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request."""

    method: str
    path: str
    """Below the server's URL, or from its root where `is_root`."""
    body: bytes | None = None
    headers: tuple[tuple[str, str | None], ...] = ()
    is_root: bool = False
    endpoint: str = "chat"
    """Which rules speak about the reply."""

    @property
    def json(self) -> dict[str, Any] | None:
        """The body, where it is a JSON object."""
        try:
            value = None if self.body is None else json.loads(self.body)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None


class Reply:
    """One reply, from all the sides that probes look at."""

    def __init__(self, asked: Asked, recording: Recording, number: int, *, is_judged: bool = True) -> None:
        self.is_judged = is_judged
        """Whether it comes from an endpoint that the rules speak about."""
        self.asked = asked
        self.recording = recording
        self.number = number
        """Which of the probe's requests it answers, from 1."""

    @property
    def is_unended(self) -> bool:
        """Whether we did not hear it to its end, which says nothing of how it would have ended."""
        return self.recording.is_left or self.recording.is_given_up

    @property
    def can_be_judged(self) -> bool:
        """Whether the rules can be applied. The beginning of a JSON body breaks rules that the whole one keeps."""
        if self.status is None:
            return False
        return not self.is_unended or bool(self.trace.body and not self.heard.looks_like_json)

    @cached_property
    def trace(self) -> Trace:
        """The reply as the judge wants it. Of one without an end only the whole frames count."""
        recording, is_unended = self.recording, self.is_unended
        body = recording.body
        return Trace(
            body=whole_frames(body) if is_unended else body,
            endpoint=self.asked.endpoint,
            request=self.asked.json,
            status=recording.status,
            headers=recording.headers,
            complete=None if is_unended else recording.is_complete,
            end=None if is_unended else True,
            pieces=None if is_unended else recording.pieces,
        )

    @cached_property
    def heard(self) -> Heard:
        return Heard(self.trace)

    @property
    def status(self) -> int | None:
        """None: there was no reply."""
        return self.recording.status

    @property
    def is_ok(self) -> bool:
        """Whether the server took the request."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def is_stream(self) -> bool:
        return self.heard.form is Form.STREAM

    def header(self, name: str) -> str | None:
        """The value of a header; `name` in lower case."""
        return self.trace.header(name)

    @cached_property
    def json(self) -> dict[str, Any]:
        """The body as a JSON object; an empty one where it is something else."""
        try:
            return as_object(json.loads(self.recording.body))
        except (ValueError, RecursionError):
            return {}

    @property
    def complaint(self) -> str:
        """What the server says is wrong, in a line."""
        error = self.json.get("error", self.json)
        text = as_text(error if isinstance(error, str) else as_object(error).get("message"))
        text = text or self.recording.body[:1000].decode("utf-8", "replace")
        shown = in_a_line(text, _SHOWN)
        return f"{self.status}: {shown}" if shown else f"status {self.status}"

    # ---- what it says

    @cached_property
    def choices(self) -> list[Said]:
        """By their index."""
        return CHOICES[self.asked.endpoint](self.heard)

    @cached_property
    def pieces(self) -> list[Piece]:
        """What each frame of a stream added."""
        return PIECES[self.asked.endpoint](self.heard) if self.is_stream else []

    @property
    def first(self) -> Said:
        """The first choice; one that says nothing where there is none."""
        return self.choices[0] if self.choices else Said(0, None, "", "", (), None)

    @property
    def text(self) -> str:
        return self.first.text

    @property
    def finish(self) -> object:
        return self.first.finish

    @cached_property
    def usage(self) -> dict[str, Any] | None:
        """The last usage that was sent, in the dialect's own names."""
        usage = USAGE[self.asked.endpoint](self.heard)
        return usage if isinstance(usage, dict) else None

    def tokens(self, name: str) -> int | None:
        """A number of the usage."""
        value = (self.usage or {}).get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    # ---- when it came

    def at(self, byte: int) -> float:
        """Seconds after the request until so many bytes of the body were there."""
        arrivals = self.recording.arrivals
        place = bisect_left(arrivals, byte, key=lambda arrival: arrival[1])
        return arrivals[place][0] if place < len(arrivals) else self.recording.ended_s

    @cached_property
    def text_times(self) -> list[float]:
        """For each frame with new text (or reasoning, or a piece of a call): when it was there."""
        frames = self.heard.frames
        ends = [following.byte for _, following in pairwise(frames)] + [len(self.trace.body)]
        return [self.at(ends[frame - 1]) for frame in sorted({one.frame for one in self.pieces if one.is_spoken})]

    @cached_property
    def silence_s(self) -> float:
        """The longest time in which nothing came, from the request on."""
        head_s = self.recording.head_s
        times = [0.0, *([] if head_s is None else [head_s]), *(seconds for seconds, _ in self.recording.arrivals)]
        if not self.recording.is_timed_out:  # the silence before a timeout is the timeout itself
            times.append(self.recording.ended_s)
        return max((later - earlier for earlier, later in pairwise(times)), default=0.0)
