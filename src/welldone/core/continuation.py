"""Continuation of an answer whose server failed after the client had received a part of it.

`Delivered` stores what a client has received of one upstream stream. `plan_continuation` decides how the answer can go
on: by prefill, a request that ends with the delivered text, or by replay, the same request again. `Seam` checks the
events of the next stream against what was delivered, drops what the client has, and passes the rest on. At the first
difference the answer ends with the failure of the first stream: nothing is repeated, left out or invented.
"""

import re
from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from typing import TypeAlias

import msgspec

from welldone.core import events as ev
from welldone.core.events import Event, Failure, FieldLocation, Json, Text, Usage
from welldone.core.lenient_json import as_list, as_object, decode_text

DELIVERED_LIMIT_BYTES = 2**20
"""Longest answer that is stored, and so can be continued: 250,000 tokens. It takes no more memory than its text."""
PENDING_LIMIT = 32
"""Event lists that are recorded together, for speed: at most 8 KB."""
_GUARD_CHARACTERS = 64  # a server that ignores the prefill repeats the start of the answer
_CONTENT_EVENTS = (ev.Text, ev.Reasoning, ev.Refusal, ev.ToolCall, ev.ToolArguments)
_ContentEvent: TypeAlias = ev.Text | ev.Reasoning | ev.Refusal | ev.ToolCall | ev.ToolArguments
_SegmentKind: TypeAlias = tuple[type[Event], int]
"""Kind of a piece of an answer: texts of the same kind that follow each other are one text."""
_TEXT: _SegmentKind = (Text, 0)
# A special token of a chat template, which the next server would not read as text.
_SPECIAL_TOKEN = re.compile(r"<[|\uff5c]|[|\uff5c]>|</?s>|\[/?INST\]|<(?:start|end)_of_turn>")


class ContinuationWay(StrEnum):
    """How an answer goes on."""

    PREFILL = "prefill"
    REPLAY = "replay"


class PrefillStyle(StrEnum):
    """How a server is asked to continue a text."""

    ENGINE = "engine"
    """The built-in engine: a final message of the assistant, which is continued exactly."""
    MESSAGE = "prefill"
    """A final message of the assistant."""
    FIELDS = "continue_final_message"
    """The same with the fields of vLLM and SGLang, whose chat templates may strip white space."""


class Continuation(msgspec.Struct, frozen=True, kw_only=True):
    """How one upstream stream is continued by another one."""

    way: ContinuationWay
    failure: Failure
    """The failure of the first stream, with which the answer ends if the next stream differs."""
    prefill: str = ""
    """Text at the end of the prompt."""
    is_guarded: bool = False
    """Whether the server may ignore the prefill."""
    can_fall_back: bool = False
    """Whether the answer can go on in another way if the next stream differs."""
    delivered_tokens: int = 0
    """Tokens of the prefill: usage counts them as completion, not as prompt."""
    prompt_tokens: int | None = None
    """Prompt tokens of the first request, if they are known."""


class _Segment(msgspec.Struct):
    kind: _SegmentKind
    data: bytearray  # UTF-8
    pieces: int = 1


class DeliveredChoice:
    """What a client has received of one choice, in order."""

    def __init__(self) -> None:
        self.segments: list[_Segment] = []
        self.logprobs_count = 0

    @property
    def text(self) -> str | None:
        """The text, if there is nothing else."""
        match self.segments:
            case [_Segment(kind=(event_type, _), data=data)] if event_type is Text:
                return data.decode()
            case _:
                return None


class FastPathText(msgspec.Struct, frozen=True, gc=False):
    """Text or reasoning of one choice that the fast path sent, as the content of a JSON string, and its chunks."""

    text_type: type[ev.TextEvent]
    index: int
    text: bytearray
    pieces: int


class Delivered:
    """What a client has received of one upstream stream."""

    def __init__(self) -> None:
        self.choices: dict[int, DeliveredChoice] = {}
        self.is_recorded: bool = True
        """Whether the record is complete; not if the answer is too long or has content of an unknown kind."""
        self.is_finished = False
        """Whether every choice has a finish reason, which is sent at the end: nothing may be added to the answer."""
        self.pending: list[list[Event] | FastPathText] = []
        """Events that are sent and not recorded yet; `record_pending` records them."""
        self._size = 0

    @property
    def has_content(self) -> bool:
        """Whether the client has received more than the role."""
        return any(choice.segments for choice in self.choices.values()) or not self.is_recorded

    @property
    def pieces(self) -> int:
        """Chunks with content: one per token, or fewer."""
        return sum(segment.pieces for choice in self.choices.values() for segment in choice.segments)

    def record(self, events: list[Event]) -> None:
        """Add events that are sent."""
        self.pending.append(events)
        self.record_pending()

    def record_pending(self) -> None:
        """Record the pending events."""
        texts: list[str] = []  # of one choice, in a row
        index = 0
        for events in self.pending:
            if isinstance(events, FastPathText):
                self._add_texts(index, texts)
                self._add(events.index, (events.text_type, 0), decode_text(bytes(events.text)), events.pieces)
                continue
            for event in events:
                if type(event) is Text and (event.index == index or not texts):
                    index = event.index
                    texts.append(event.text)
                else:
                    self._add_texts(index, texts)
                    self._record_event(event)
        self._add_texts(index, texts)
        self.pending.clear()

    def _add_texts(self, index: int, texts: list[str]) -> None:
        if texts:
            self._add(index, _TEXT, "".join(texts), len(texts))
            texts.clear()

    def drop(self) -> None:
        """Record no more: the answer cannot be continued."""
        self.is_recorded = False
        self.choices.clear()

    def _record_event(self, event: Event) -> None:
        if not self.is_recorded:
            return
        match event:
            case ev.ChoiceStart(index=index):
                self.choices.setdefault(index, DeliveredChoice())
            case ev.Logprobs(index=index, value=value):
                self.choices.setdefault(index, DeliveredChoice()).logprobs_count += _count_logprobs(value)
            case ev.UnknownFields() if _is_unknown_content(event):
                self.drop()
            case ev.Text() | ev.Reasoning() | ev.Refusal() | ev.ToolCall() | ev.ToolArguments():
                segment_kind, text = _segment_of(event)
                self._add(event.index, segment_kind, text, 1)
            case _:
                pass

    def _add(self, index: int, segment_kind: _SegmentKind, text: str, pieces: int) -> None:
        if not self.is_recorded:
            return
        segments = self.choices.setdefault(index, DeliveredChoice()).segments
        data = text.encode()
        if segments and segments[-1].kind == segment_kind and segment_kind[0] is not ev.ToolCall:
            segments[-1].data += data
            segments[-1].pieces += pieces
        else:
            segments.append(_Segment(segment_kind, bytearray(data), pieces))
        self._size += len(data)
        if self._size > DELIVERED_LIMIT_BYTES:
            self.drop()


def _segment_of(event: _ContentEvent) -> tuple[_SegmentKind, str]:
    if isinstance(event, ev.ToolCall):
        return (ev.ToolCall, event.is_custom), event.name
    return (type(event), event.call_index if isinstance(event, ev.ToolArguments) else 0), event.text


def _is_unknown_content(event: ev.UnknownFields) -> bool:
    return event.location is FieldLocation.DELTA and any(value for value in event.fields.values())


def _count_logprobs(value: Json) -> int:
    """Tokens in log probabilities of a chat or a completion."""
    return sum(len(as_list(value.get(name))) for name in ("content", "refusal", "tokens"))


# Requests.

_MAX_TOKENS_FIELDS = ("max_tokens", "max_completion_tokens", "n_predict")
_UNREPEATABLE_FIELDS = ("return_token_ids", "return_tokens_as_token_ids", "prompt_logprobs", "audio")
"""Fields after which a chunk has more than its text, or is not the next one of the answer."""
_PREFILL_EXCLUSIONS = (
    *("logprobs", "top_logprobs", "n_probs", "echo", "suffix", "truncate_prompt_tokens"),
    *("grammar", "json_schema", "regex", "ebnf", "structural_tag", "structured_outputs", "guided_json"),
    *("guided_regex", "guided_choice", "guided_grammar"),
)
"""Fields that do not hold for the rest of an answer alone, such as a grammar."""
_PENALTIES = ("presence_penalty", "frequency_penalty")
"""They count tokens of the answer, in most servers without those of the prompt."""


def may_repeat(body: Json, *, honours_seed: bool) -> bool:
    """Whether a server is expected to answer a request in the same way again."""
    temperature, seed = body.get("temperature"), body.get("seed")
    has_seed = type(seed) is int and seed >= 0
    return (type(temperature) in (int, float) and temperature == 0) or (honours_seed and has_seed)


def plan_continuation(
    body: Json,
    delivered: Delivered,
    failure: Failure,
    *,
    style: PrefillStyle | None,
    honours_seed: bool = False,
    is_replay_short: bool = False,
    has_differed: bool = False,
) -> Continuation | None:
    """Decide how an answer goes on; None if it cannot.

    Args:
        body: the first request.
        delivered: what the client has of its answer.
        failure: of the first stream.
        style: how the next server continues a text; None if it does not.
        honours_seed: whether the next server repeats an answer with the same seed.
        is_replay_short: whether a replay of what was delivered takes little time.
        has_differed: whether a replay has differed already.
    """
    if not delivered.is_recorded or any(body.get(name) for name in _UNREPEATABLE_FIELDS):
        return None
    if not delivered.has_content:
        return Continuation(way=ContinuationWay.REPLAY, failure=failure)
    repeats = may_repeat(body, honours_seed=honours_seed) and not has_differed
    if style is not None and (text := _prefill_text(body, delivered, style)):
        # After a restart, an engine reads the prefill in batches, which round differently: a close choice between two
        # tokens may fall otherwise than in the whole answer. A replay repeats the answer exactly.
        if repeats and is_replay_short and style is PrefillStyle.ENGINE:
            return Continuation(way=ContinuationWay.REPLAY, failure=failure, can_fall_back=True)
        # The end of the text, if it is left out, is generated again: about one token, which counts as one of the rest.
        is_whole = text == delivered.choices[0].text
        return Continuation(
            way=ContinuationWay.PREFILL,
            failure=failure,
            prefill=text,
            is_guarded=style is not PrefillStyle.ENGINE,
            delivered_tokens=delivered.pieces if is_whole else max(1, delivered.pieces - 1),
        )
    return Continuation(way=ContinuationWay.REPLAY, failure=failure) if repeats else None


def survives_failure(body: Json, delivered: Delivered, style: PrefillStyle | None) -> bool:
    """Whether an answer that is sent now could go on by prefill after a failure, if more text follows.

    `delivered` may lack the last text. A replay does not count: it takes as long as the answer so far.
    """
    if not delivered.is_recorded or delivered.is_finished or any(body.get(name) for name in _UNREPEATABLE_FIELDS):
        return False
    if style is None or not (_can_prefill(body, style) and _takes_text(body, style)) or delivered.choices.keys() - {0}:
        return False
    choice = delivered.choices.get(0)
    text = "" if choice is None or not choice.segments else choice.text
    return text is not None and not _SPECIAL_TOKEN.search(text)


def _prefill_text(body: Json, delivered: Delivered, style: PrefillStyle) -> str | None:
    """The delivered text up to where the next server can continue it; None if it cannot."""
    text = delivered.choices[0].text if delivered.choices.keys() == {0} else None
    if text is None or delivered.is_finished or not _can_prefill(body, style):
        return None
    if style is PrefillStyle.ENGINE:  # its stop strings are matched here, and its template keeps the text as it is
        return text
    if _SPECIAL_TOKEN.search(text):
        return None
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else [string for string in as_list(stop) if isinstance(string, str)]
    end = len(text.rstrip()) if style is PrefillStyle.FIELDS else len(text)
    # The start of a stop string is generated again, so that the server finds the whole of it.
    ends = [len(text) - size for string in stops for size in range(1, len(string)) if text.endswith(string[:size])]
    return text[: min([end, *ends])]


def _can_prefill(body: Json, style: PrefillStyle) -> bool:
    if any(body.get(name) is not None and body[name] is not False for name in _PREFILL_EXCLUSIONS):
        return False
    if as_object(body.get("response_format")).get("type", "text") != "text":
        return False
    if any(body.get(name) not in (None, "auto", "none") for name in ("tool_choice", "function_call")):
        return False
    if style is not PrefillStyle.ENGINE and any(body.get(name) for name in _PENALTIES):
        return False
    n = body.get("n")
    return n is None or n == 1


def continued_body(body: Json, continuation: Continuation, style: PrefillStyle | None) -> Json | None:
    """Return the request for the rest of an answer; None if the text cannot be added to it, or the limit is reached."""
    if continuation.way is ContinuationWay.REPLAY:
        return body
    out = dict(body)
    for name in _MAX_TOKENS_FIELDS:
        if type(limit := body.get(name)) is int and limit > 0:
            if limit <= continuation.delivered_tokens:
                return None
            out[name] = limit - continuation.delivered_tokens
    if type(least := body.get("min_tokens")) is int:
        out["min_tokens"] = max(0, least - continuation.delivered_tokens)
    if not _takes_text(body, style):
        return None
    if "messages" not in body:
        return {**out, "prompt": body["prompt"] + continuation.prefill}
    messages = body["messages"]
    last = as_object(messages[-1])
    if last.get("role") == "assistant" and _continues_last_message(body, style):
        out["messages"] = [*messages[:-1], {**last, "content": last["content"] + continuation.prefill}]
    else:
        out["messages"] = [*messages, {"role": "assistant", "content": continuation.prefill}]
    if style is PrefillStyle.FIELDS:
        out |= {"continue_final_message": True, "add_generation_prompt": False}
    return out


def _takes_text(body: Json, style: PrefillStyle | None) -> bool:
    """Whether text of the answer can be added to the request."""
    if "messages" not in body:
        return isinstance(body.get("prompt"), str)
    is_continued = _continues_last_message(body, style)
    if body.get("add_generation_prompt") is False and not is_continued:
        return False
    last = as_object(body["messages"][-1])
    if last.get("role") != "assistant" or not is_continued:
        return True
    return isinstance(last.get("content"), str) and not last.get("tool_calls")


def _continues_last_message(body: Json, style: PrefillStyle | None) -> bool:
    """Whether a final message of the assistant is the client's own prefill."""
    return body.get("continue_final_message") is True or style is not PrefillStyle.FIELDS


def continued_usage(usage: Usage, continuation: Continuation) -> Usage:
    """Return the usage of the whole answer: the client pays its prompt once, and what was delivered as completion."""
    if continuation.way is ContinuationWay.REPLAY:
        return usage
    known = continuation.prompt_tokens
    prompt = max(0, usage.prompt_tokens - continuation.delivered_tokens) if known is None else known
    extra_fields = dict(usage.extra_fields)
    details = as_object(extra_fields.get("prompt_tokens_details"))
    if type(cached := details.get("cached_tokens")) is int and cached > prompt:
        extra_fields["prompt_tokens_details"] = {**details, "cached_tokens": prompt}
    # The end of the prompt and the start of the text may be one token of the longer prompt.
    completion = max(continuation.delivered_tokens, usage.prompt_tokens - prompt) + usage.completion_tokens
    return Usage(prompt, completion, max(usage.total_tokens, prompt + completion), extra_fields)


# The next stream.


class _Difference(Exception):  # noqa: N818 - not an error: it ends one answer, and is caught in this module
    """The next stream differs from what was delivered."""


class _ChoiceSeam:
    """One choice of the next stream, against what was delivered of it."""

    def __init__(self, segments: Sequence[tuple[_SegmentKind, str]], logprobs_count: int, guard: str | None) -> None:
        self.has_continued = False
        """Whether content after the delivered one has come."""
        self._expected = deque(segments)
        self._offset = 0  # in the first of them
        self._logprobs_left = logprobs_count
        self._is_prefill = guard is not None
        self._guard = guard or ""
        self._held: list[Event] = []  # while it repeats the guard

    @property
    def is_passed(self) -> bool:
        return not self._expected and not self._guard

    def feed(self, event: ev.ChoiceEvent) -> list[Event]:
        """Return the events that are new to the client."""
        match event:
            case ev.UnknownFields():
                if not self._expected:
                    return self._pass(event)
                if _is_unknown_content(event):
                    raise _Difference
                return []
            case ev.Logprobs(value=value):
                count = _count_logprobs(value)
                if count > self._logprobs_left > 0:
                    raise _Difference
                is_new = self._logprobs_left == 0
                self._logprobs_left -= 0 if is_new else count
                return self._pass(event) if is_new else []
            case ev.Finish():
                if self._expected or self._logprobs_left:
                    raise _Difference
                self._guard = ""
                return self._pass(event)
            case ev.ChoiceStart():
                return []
            case _:
                return self._feed_content(event)

    def _feed_content(self, event: _ContentEvent) -> list[Event]:
        segment_kind, text = _segment_of(event)
        while text and self._expected:
            expected_kind, expected = self._expected[0]
            piece = expected[self._offset : self._offset + len(text)]
            if segment_kind != expected_kind or not text.startswith(piece):
                raise _Difference
            self._offset += len(piece)
            if self._offset == len(expected):
                self._expected.popleft()
                self._offset = 0
            text = text[len(piece) :]
            if isinstance(event, ev.ToolCall):  # its name is compared as a whole
                if text or self._offset:
                    raise _Difference
                return []
        has_text = not isinstance(event, ev.ToolArguments) or event.text != ""  # else it has extra fields only
        if self._expected or (has_text and not text):
            return []
        if self._logprobs_left or (self._is_prefill and isinstance(event, ev.Reasoning) and not self.has_continued):
            raise _Difference
        return self._pass(event if isinstance(event, ev.ToolCall) else msgspec.structs.replace(event, text=text))

    def _pass(self, event: Event) -> list[Event]:
        """Pass an event on, unless the text so far is the start of the answer again."""
        self._held.append(event)
        if self._guard:
            text = "".join(held.text for held in self._held if isinstance(held, Text))
            if not isinstance(event, _CONTENT_EVENTS):  # fields of the next chunk
                return []
            if isinstance(event, Text) and self._guard.startswith(text[: len(self._guard)]):
                if len(text) >= len(self._guard):
                    raise _Difference
                return []
            self._guard = ""
        self.has_continued |= isinstance(event, (*_CONTENT_EVENTS, ev.Finish))
        held, self._held = self._held, []
        return held


class Seam:
    """The point at which the next stream goes on where the first one broke off."""

    def __init__(self, delivered: Delivered, continuation: Continuation) -> None:
        self.has_differed: bool = False
        """Whether the next stream differs: the answer has failed."""
        self.failure: Failure = continuation.failure
        """The failure of the first stream."""
        self._choices: dict[int, _ChoiceSeam] = {}
        for index, choice in delivered.choices.items():
            segments = [(segment.kind, segment.data.decode()) for segment in choice.segments]
            guard: str | None = None
            if continuation.way is ContinuationWay.PREFILL:
                ((segment_kind, text),) = segments
                rest = text.removeprefix(continuation.prefill)
                segments = [(segment_kind, rest)] if rest else []
                guard = text[:_GUARD_CHARACTERS] if continuation.is_guarded else ""
            self._choices[index] = _ChoiceSeam(segments, choice.logprobs_count, guard)

    @property
    def is_passed(self) -> bool:
        """Whether all further events are new to the client."""
        return all(choice.is_passed and choice.has_continued for choice in self._choices.values())

    def feed(self, events: list[Event]) -> list[Event]:
        """Return the events that are new to the client; the failure of the first stream at a difference."""
        out: list[Event] = []
        try:
            for event in events:
                out += self._feed_event(event)
        except _Difference:
            self.has_differed = True
            out.append(self.failure)
        return out

    def _feed_event(self, event: Event) -> list[Event]:
        if isinstance(event, Failure | Usage | ev.KeepAlive):
            return [event]
        if isinstance(event, ev.UnknownFields) and event.location is FieldLocation.CHUNK:
            return [event] if all(choice.is_passed for choice in self._choices.values()) else []
        choice = self._choices.get(event.index)
        return [event] if choice is None else choice.feed(event)
