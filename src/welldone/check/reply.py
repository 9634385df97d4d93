"""A reply to a probe: what was asked, what was heard, when, and what a client would make of it.

It is read with the eyes of the judge (`rules/heard`), stream or not: probes ask for the text, the reason, the calls.
"""

import json
import re
from bisect import bisect_left
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import msgspec

from welldone.check.reading import READ_CHOICES, READ_DELTAS, READ_USAGE, ParsedChoice, ParsedDelta
from welldone.http.recording_client import RecordedResponse
from welldone.reporting import single_line
from welldone.rules.trace import Trace, complete_frames
from welldone.rules.view.choices import as_object, as_text
from welldone.rules.view.view import ReplyKind, TraceView

# Markup that belongs to a model and its server: who reads an answer should never see it.


SPECIAL_TOKENS = re.compile(
    r"<\|[a-z0-9_]{2,40}\|>"  # ChatML, Llama 3, Phi, GPT: <|im_end|>, <|eot_id|>, <|end|>, <|endoftext|>
    r"|<\uff5c[^<>\n]{2,40}\uff5c>"  # DeepSeek writes its bars wide
    r"|</?(?:start|end)_of_turn>|<(?:bos|eos|pad|unk)>"  # Gemma, and the tokenizers of SentencePiece
    r"|\[/?INST\]|<</?SYS>>"  # Llama 2, Mistral
    r"|\A\s*<s>|</s>\s*\Z"  # elsewhere they may be HTML
)
"""Special tokens only, and no words that a model may say."""


def find_special_token(text: str) -> re.Match[str] | None:
    """The first special token in a text; None where there is none."""
    return SPECIAL_TOKENS.search(text)


_MAX_ERROR_CHARS = 160  # characters of a server's error message: it is quoted in a line


class ProbeRequest(msgspec.Struct, frozen=True, kw_only=True):
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


class ProbeReply:
    """One reply, from all the sides that probes look at."""

    def __init__(
        self, request: ProbeRequest, recording: RecordedResponse, number: int, *, is_judged: bool = True
    ) -> None:
        self.is_judged = is_judged
        """Whether it comes from an endpoint that the rules speak about."""
        self.request = request
        self.recording = recording
        self.number = number
        """Which of the probe's requests it answers, from 1."""

    @property
    def is_partial(self) -> bool:
        """Whether we did not hear it to its end, which says nothing of how it would have ended."""
        return self.recording.is_aborted or self.recording.is_abandoned

    @property
    def can_be_judged(self) -> bool:
        """Whether the rules can be applied. The beginning of a JSON body breaks rules that the whole one keeps."""
        if self.status is None:
            return False
        return not self.is_partial or bool(self.trace.body and not self.view.looks_like_json)

    @cached_property
    def trace(self) -> Trace:
        """The reply as the judge wants it. Of one without an end only the whole frames count."""
        recording, is_unended = self.recording, self.is_partial
        body = recording.body
        return Trace(
            body=complete_frames(body) if is_unended else body,
            endpoint=self.request.endpoint,
            request=self.request.json,
            status=recording.status,
            headers=recording.headers,
            complete=None if is_unended else recording.is_complete,
            end=None if is_unended else True,
            chunk_sizes=None if is_unended else recording.pieces,
        )

    @cached_property
    def view(self) -> TraceView:
        return TraceView(self.trace)

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
        return self.view.reply_kind is ReplyKind.STREAM

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
    def error_summary(self) -> str:
        """What the server says is wrong, in a line."""
        error = self.json.get("error", self.json)
        text = as_text(error if isinstance(error, str) else as_object(error).get("message"))
        text = text or self.recording.body[:1000].decode("utf-8", "replace")
        shown = single_line(text, _MAX_ERROR_CHARS)
        return f"{self.status}: {shown}" if shown else f"status {self.status}"

    # ---- what it says

    @cached_property
    def choices(self) -> list[ParsedChoice]:
        """By their index."""
        return READ_CHOICES[self.request.endpoint](self.view)

    @cached_property
    def deltas(self) -> list[ParsedDelta]:
        """What each frame of a stream added."""
        return READ_DELTAS[self.request.endpoint](self.view) if self.is_stream else []

    @property
    def first_choice(self) -> ParsedChoice:
        """The first choice; one that says nothing where there is none."""
        return self.choices[0] if self.choices else ParsedChoice(0, None, "", "", (), None)

    @property
    def text(self) -> str:
        return self.first_choice.text

    @property
    def finish_reason(self) -> object:
        return self.first_choice.finish_reason

    @cached_property
    def usage(self) -> dict[str, Any] | None:
        """The last usage that was sent, in the dialect's own names."""
        usage = READ_USAGE[self.request.endpoint](self.view)
        return usage if isinstance(usage, dict) else None

    def usage_count(self, name: str) -> int | None:
        """A number of the usage."""
        value = (self.usage or {}).get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    # ---- when it came

    def arrival_s(self, byte: int) -> float:
        """Seconds after the request until so many bytes of the body were there."""
        arrivals = self.recording.arrivals
        place = bisect_left(arrivals, byte, key=lambda arrival: arrival[1])
        return arrivals[place][0] if place < len(arrivals) else self.recording.ended_s

    @cached_property
    def delta_times(self) -> list[float]:
        """For each frame with new text (or reasoning, or a piece of a call): when it was there."""
        frames = self.view.frames
        ends = [following.byte for _, following in pairwise(frames)] + [len(self.trace.body)]
        return [
            self.arrival_s(ends[frame - 1]) for frame in sorted({one.frame for one in self.deltas if one.is_generated})
        ]

    @cached_property
    def longest_silence_s(self) -> float:
        """The longest time in which nothing came, from the request on."""
        head_s = self.recording.head_s
        times = [0.0, *([] if head_s is None else [head_s]), *(seconds for seconds, _ in self.recording.arrivals)]
        if not self.recording.is_timed_out:  # the silence before a timeout is the timeout itself
            times.append(self.recording.ended_s)
        return max((later - earlier for earlier, later in pairwise(times)), default=0.0)


# Where things stand in an answer: the frame of a character, the borders between chunks, the first difference.


_DIFF_CONTEXT_CHARS = 20  # characters that are shown before the first one that differs: some words


def frame_at_offset(reply: ProbeReply, offset: int) -> int | None:
    """The number of the frame that brings a character of the first choice's text; None where there are no frames."""
    pieces = _first_choice_deltas(reply)
    return next((piece.frame for piece, end in zip(pieces, _end_offsets(pieces), strict=True) if end > offset), None)


def chunk_boundaries(reply: ProbeReply) -> list[int]:
    """How long the first choice's text was before each of its chunks with text but the first."""
    return sorted({*_end_offsets(_first_choice_deltas(reply))} - {0, len(reply.text)})


def text_from_difference(text: str, other: str) -> str:
    """The text from a little before the place where the other one begins to differ, in quotes: spaces count."""
    same = next((place for place, (one, two) in enumerate(zip(text, other, strict=False)) if one != two), None)
    start = max((min(len(text), len(other)) if same is None else same) - _DIFF_CONTEXT_CHARS, 0)
    return ("…" if start else "") + repr(text[start:])


def _first_choice_deltas(reply: ProbeReply) -> list[ParsedDelta]:
    return [piece for piece in reply.deltas if piece.index == reply.first_choice.index]


def _end_offsets(deltas: list[ParsedDelta]) -> list[int]:
    return list(accumulate(len(piece.text) for piece in deltas))
