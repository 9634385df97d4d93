"""Request and reply of a probe, with the text, tool calls, finish reason, usage and timing of the reply.

The reply is parsed by the judge's view (`rules/view`), streamed or not.
"""

import math
import re
from bisect import bisect_left
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from functools import cached_property
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any, TypeAlias

import msgspec

from welldone.check.reading import READERS, ParsedChoice, ParsedDelta
from welldone.gateway.errors import BAD_REQUEST, OVERFLOW
from welldone.http.recording_client import RecordedResponse
from welldone.reporting import single_line
from welldone.rules.trace import Trace, complete_frames, parse_object
from welldone.rules.view.choices import as_object, as_text, is_int
from welldone.rules.view.view import STREAM_KINDS, TraceView

SPECIAL_TOKENS = re.compile(
    r"<\|[a-z0-9_]{2,40}\|>"  # ChatML, Llama 3, Phi, GPT: <|im_end|>, <|eot_id|>, <|end|>, <|endoftext|>
    r"|<\uff5c[^<>\n]{2,40}\uff5c>"  # DeepSeek: fullwidth bars
    r"|</?(?:start|end)_of_turn>|<(?:bos|eos|pad|unk)>"  # Gemma, SentencePiece
    r"|\[/?INST\]|<</?SYS>>"  # Llama 2, Mistral
    r"|\A\s*<s>|</s>\s*\Z"  # elsewhere they may be HTML
)
"""Special tokens of chat templates and tokenizers, which must not reach a client. No pattern matches normal text."""


OVERLOAD_STATUSES = (429, 503, 529)
"""Statuses after which a request is retried. 529 is Anthropic's `overloaded_error`."""
_MAX_ERROR_CHARS = 160  # of a server's error message that is quoted in a line


RequestHeaders: TypeAlias = tuple[tuple[str, str | None], ...]
"""A header without a value is not sent, although the client usually sends it."""


class ExpectedReply(Enum):
    """What a correct server may reply to a request."""

    ANY = auto()
    ANSWER = auto()
    """An answer, or a refusal by a server that lacks the feature. An error is a failure."""
    PLAIN_ANSWER = auto()
    """An answer. A refusal is a failure, too."""
    REFUSAL = auto()
    """A refusal. A server may still answer, and that answer has no rules of its own."""


class ProbeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of a probe."""

    method: str
    path: str
    """Relative to the base URL, or to the server's root where `is_root`."""
    body: bytes | None = None
    headers: RequestHeaders = ()
    is_root: bool = False
    endpoint: str = "chat"
    """The endpoint whose rules apply to the reply."""
    expected: ExpectedReply = ExpectedReply.ANY
    is_socket: bool = False
    """Send the body as a message on a WebSocket. Rules about HTTP and SSE do not apply to the reply."""

    @property
    def json(self) -> dict[str, Any] | None:
        """The body if it is a JSON object."""
        return None if self.body is None else parse_object(self.body)

    @property
    def expects_answer(self) -> bool:
        return self.expected in (ExpectedReply.ANSWER, ExpectedReply.PLAIN_ANSWER)


class ProbeReply:
    """One reply, as recorded and as parsed."""

    def __init__(self, request: ProbeRequest, recording: RecordedResponse, number: int, is_judged: bool = True) -> None:
        self.is_judged = is_judged
        """Whether the rules apply to its endpoint."""
        self.request = request
        self.recording = recording
        self.number = number
        """Number of the probe's request, from 1."""

    @property
    def is_partial(self) -> bool:
        """Whether reading stopped before the end of the reply. Rules about its end do not apply then."""
        return self.recording.is_aborted or self.recording.is_abandoned

    @property
    def can_be_judged(self) -> bool:
        """Whether the rules apply. A truncated JSON body breaks rules that the complete one does not break."""
        if self.status is None:
            return False
        return not self.is_partial or bool(self.trace.body and not self.view.looks_like_json)

    @cached_property
    def trace(self) -> Trace:
        """The reply as input of the judge; of a partial one only the complete frames."""
        recording, is_partial = self.recording, self.is_partial
        return Trace(
            body=complete_frames(recording.body) if is_partial else recording.body,
            endpoint=self.request.endpoint,
            path=self.request.path,
            request=self.request.json,
            status=recording.status,
            headers=recording.headers,
            complete=None if is_partial else recording.is_complete,
            end=None if is_partial else True,
            chunk_sizes=None if is_partial else recording.pieces,
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
        """Whether the status is 2xx, and the answer did not end in an error."""
        return self.status is not None and 200 <= self.status < 300 and not self.failure

    @property
    def is_stream(self) -> bool:
        return self.view.reply_kind in STREAM_KINDS

    def header(self, name: str) -> str | None:
        """The value of a header; `name` in lower case."""
        return self.trace.header(name)

    @cached_property
    def json(self) -> dict[str, Any]:
        """The body if it is a JSON object, else an empty object."""
        return parse_object(self.recording.body) or {}

    @property
    def error_summary(self) -> str:
        """Status and error message in one line."""
        shown = self._error_message
        return f"{self.status}: {shown}" if shown else f"status {self.status}"

    @property
    def _error_message(self) -> str:
        value = self._error or self.json
        error = value.get("error", value)
        text = as_text(error if isinstance(error, str) else as_object(error).get("message"))
        return single_line(text or self.recording.body[:1000].decode("utf-8", "replace"), _MAX_ERROR_CHARS)

    @property
    def _error(self) -> dict[str, Any]:
        """The error in a reply with status 2xx; empty if there is none."""
        if self.view.is_error_reply:
            return self.view.reply_object
        # A failed Response has its error inside, and its stream may have no other.
        end = self.view.responses_stream.end_event if self.is_stream else None
        response = self.view.reply_object if end is None else end.response
        errors = [as_object(message.json) for message in self.view.all_errors]
        return next(iter(errors), response if response.get("status") == "failed" else {})

    @cached_property
    def failure(self) -> str:
        """The message of the error in which an answer ended; empty for an answer and for a refusal.

        A refusal has a 4xx, a 501, or a 500 whose message blames the request. An overloaded server may answer later.
        """
        status, may_be_refused = self.status, self.request.expected is ExpectedReply.ANSWER
        if not self.request.expects_answer or status in OVERLOAD_STATUSES:
            return ""
        if status is None:
            return "" if self.is_partial else self.recording.error or "no reply"
        message = self._error_message
        is_refusal = status == 500 and (BAD_REQUEST.search(message) or OVERFLOW.search(message))
        if may_be_refused and (300 <= status < 500 or status == 501 or is_refusal):
            return ""
        return message or f"status {status}" if status >= 300 or self._error else ""

    # ---- content

    @cached_property
    def choices(self) -> list[ParsedChoice]:
        """Choices by index."""
        return READERS[self.request.endpoint].choices(self.view)

    @cached_property
    def deltas(self) -> list[ParsedDelta]:
        """Deltas of a stream; empty for a buffered reply."""
        return READERS[self.request.endpoint].deltas(self.view) if self.is_stream else []

    @property
    def first_choice(self) -> ParsedChoice:
        """The first choice, or an empty one."""
        return self.choices[0] if self.choices else ParsedChoice(0, None, "", "", (), None)

    @property
    def text(self) -> str:
        return self.first_choice.text

    @property
    def finish_reason(self) -> object:
        return self.first_choice.finish_reason

    @cached_property
    def usage(self) -> dict[str, Any] | None:
        """The last usage, with the dialect's field names."""
        usage = READERS[self.request.endpoint].usage(self.view)
        return usage if isinstance(usage, dict) else None

    def usage_count(self, name: str) -> int | None:
        """An integer field of the usage."""
        value = (self.usage or {}).get(name)
        return value if is_int(value) else None

    # ---- timing

    @cached_property
    def delta_times(self) -> list[float]:
        """Arrival times of the frames with generated content."""
        ends = [frame.byte for frame in self.view.frames[1:]] + [len(self.trace.body)]
        arrivals = [*self.recording.arrivals, (self.recording.ended_s, math.inf)]
        frames = sorted({delta.frame for delta in self.deltas if delta.is_generated})
        return [arrivals[bisect_left(arrivals, ends[frame - 1], key=itemgetter(1))][0] for frame in frames]

    @cached_property
    def longest_silence_s(self) -> float:
        """The longest time without data, from the request on."""
        head_s = self.recording.head_s
        times = [0.0, *([] if head_s is None else [head_s]), *(seconds for seconds, _ in self.recording.arrivals)]
        if not self.recording.is_timed_out:  # the silence before a timeout is the timeout itself
            times.append(self.recording.ended_s)
        return max((later - earlier for earlier, later in pairwise(times)), default=0.0)


RequestFunction: TypeAlias = Callable[..., Awaitable[ProbeReply]]
"""A request whose fields may be added: `Session.generate` or `Session.complete` with a prompt."""


# ---- positions in the text


_DIFF_CONTEXT_CHARS = 20  # characters before the first difference: a few words


def frame_at_offset(reply: ProbeReply, offset: int) -> int | None:
    """Number of the frame with that character of the first choice's text; None where there are no frames."""
    return next((frame for frame, end in _text_ends(reply) if end > offset), None)


def chunk_boundaries(reply: ProbeReply) -> list[int]:
    """Offsets in the first choice's text at which a new chunk begins, without 0."""
    return sorted({end for _, end in _text_ends(reply)} - {0, len(reply.text)})


def text_from_difference(text: str, reference: str) -> str:
    """The quoted end of `text`, from shortly before its first difference to `reference`."""
    pairs = enumerate(zip(text, reference, strict=False))
    difference = next((offset for offset, (first, second) in pairs if first != second), min(len(text), len(reference)))
    start = max(difference - _DIFF_CONTEXT_CHARS, 0)
    return ("…" if start else "") + repr(text[start:])


def _text_ends(reply: ProbeReply) -> list[tuple[int, int]]:
    """The frames of the first choice's text, each with the offset at which its part of the text ends."""
    deltas = [delta for delta in reply.deltas if delta.index == reply.first_choice.index]
    ends = accumulate(len(delta.text) for delta in deltas)
    return [(delta.frame, end) for delta, end in zip(deltas, ends, strict=True)]
