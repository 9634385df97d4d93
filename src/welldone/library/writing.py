"""Writers for server authors: one object per answer, whose methods return the bytes to send.

A stream opens with its first content and ends with the `finish` of its last choice. The methods check the order of the
calls; an illegal one raises `EventOrderError`. `to_response` returns the same answer as a whole reply.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from welldone.core import sse
from welldone.core.envelope import Endpoint
from welldone.core.events import Failure, Json, Text, Usage
from welldone.core.fields import openai_error_object
from welldone.core.lenient_json import as_list, as_object, clean_unicode
from welldone.core.request_facts import (
    CHAT_CHOICES_LIMIT,
    COMPLETIONS_CHOICES_LIMIT,
    RequestFacts,
    read_request_facts,
)
from welldone.dialects.chat.writer import REASONING_FIELDS, ChunkFormat
from welldone.dialects.messages.objects import anthropic_error_object
from welldone.dialects.messages.writer import MessagesFormat
from welldone.dialects.responses.objects import RESPONSE_DEFAULTS
from welldone.dialects.responses.writer import ResponsesFormat
from welldone.library.answer_stream import (
    AnswerStream,
    FinishReason,
    LogprobEntries,
    SendFunction,
    TalkStream,
    UsageCounts,
)
from welldone.library.arguments import RequestBody, current_time, parse_request

STREAM_HEADERS: Mapping[str, str] = MappingProxyType(dict(sse.HEADERS))
"""HTTP response headers of a stream: its type, and that proxies neither buffer nor change it."""

_USAGE_REQUIRED = RequestFacts(include_usage=True)


class ChatStream(TalkStream):
    """Writes an answer of /v1/chat/completions.

    `request` is the body of the request: it decides the number of choices, and whether the client gets a usage chunk.
    `include_usage` and `n` override it. `reasoning_fields` are the members of a delta that carry reasoning.
    """

    def __init__(
        self,
        model: str,
        *,
        request: RequestBody = None,
        include_usage: bool | None = None,
        n: int | None = None,
        id: str | None = None,
        created: int | None = None,
        fingerprint: str | None = None,
        reasoning_fields: Sequence[str] = REASONING_FIELDS,
        send: SendFunction | None = None,
    ) -> None:
        facts = _read_facts(request, include_usage, n, CHAT_CHOICES_LIMIT)
        fields = (reasoning_fields,) if isinstance(reasoning_fields, str) else tuple(reasoning_fields)
        dialect = ChunkFormat(facts, reasoning=fields)
        super().__init__(dialect, facts, send, model, id, created, fingerprint=fingerprint)

    def text(self, text: str, index: int = 0, *, logprobs: LogprobEntries | None = None) -> bytes:
        """Return a piece of the answer's text. Empty text gives no bytes."""
        if index in self._open and type(text) is str and text and logprobs is None:  # common case
            event = Text(index, text if text.isascii() else clean_unicode(text))
            self._events.append(event)
            return self._writer.send(event)
        started = b"" if logprobs is None else self._write_logprobs(logprobs, index)
        return started + self._write_text(Text(index, text), "text")


class CompletionsStream(AnswerStream):
    """Writes an answer of /v1/completions. For the parameters see `ChatStream`."""

    _METHODS = "text, finish or fail"

    def __init__(
        self,
        model: str,
        *,
        request: RequestBody = None,
        include_usage: bool | None = None,
        n: int | None = None,
        id: str | None = None,
        created: int | None = None,
        fingerprint: str | None = None,
        send: SendFunction | None = None,
    ) -> None:
        facts = _read_facts(request, include_usage, n, COMPLETIONS_CHOICES_LIMIT)
        dialect = ChunkFormat(facts, Endpoint.COMPLETIONS)
        super().__init__(dialect, facts, send, model, id, created, fingerprint=fingerprint)

    def text(self, text: str, index: int = 0, *, logprobs: LogprobEntries | None = None) -> bytes:
        """Return a piece of the answer's text. Empty text gives no bytes."""
        started = b"" if logprobs is None else self._write_logprobs(logprobs, index)
        written = started + self._write_text(Text(index, text), "text")
        if text:
            self._choices[index].text_length += len(text)
        return written


class ResponsesStream(TalkStream):
    """Writes an answer of /v1/responses. The Response repeats members of `request`, as the API requires."""

    def __init__(
        self,
        model: str,
        *,
        request: RequestBody = None,
        id: str | None = None,
        created: int | None = None,
        send: SendFunction | None = None,
    ) -> None:
        body = parse_request(request) or {}
        echo: Json = {name: value for name, value in body.items() if name in RESPONSE_DEFAULTS}
        is_summary = as_object(body.get("reasoning")).get("summary") is not None
        self._responses = ResponsesFormat(echo, is_summary=is_summary, clock=current_time)
        super().__init__(self._responses, _USAGE_REQUIRED, send, model, id, created)

    def _reply_object(self, failure: Failure | None) -> Json:
        return openai_error_object(failure) if failure is not None else dict(self._responses.final_object or {})


class MessagesStream(TalkStream):
    """Writes an answer of /v1/messages. Without `thinking` in `request`, reasoning is left out.

    The first event has the number of prompt tokens: pass `prompt_tokens` if it is known by then.
    """

    _CALL_ID_PREFIX = "toolu_"

    def __init__(
        self,
        model: str,
        *,
        request: RequestBody = None,
        prompt_tokens: int = 0,
        id: str | None = None,
        created: int | None = None,
        send: SendFunction | None = None,
    ) -> None:
        body = parse_request(request)
        thinking = as_object((body or {}).get("thinking")).get("type")
        stops = as_list((body or {}).get("stop_sequences"))
        dialect = MessagesFormat(
            stop_sequences=tuple(stop for stop in stops if isinstance(stop, str)),
            includes_thinking=body is None or thinking in ("enabled", "adaptive"),
        )
        usage = Usage(prompt_tokens, 0, prompt_tokens, {})
        super().__init__(dialect, _USAGE_REQUIRED, send, model, id, created, start_usage=usage)

    def finish(
        self,
        reason: FinishReason | str | None = None,
        *,
        usage: UsageCounts | None = None,
        index: int = 0,
        stop_sequence: str | None = None,
    ) -> bytes:
        """Return the end of the stream. The token counts are required.

        The reason may be OpenAI's or Anthropic's (`end_turn`). `stop_sequence` is the one that ended the answer.
        """
        return self._finish(reason, usage, index, stop_sequence)

    def _reply_object(self, failure: Failure | None) -> Json:
        return super()._reply_object(None) if failure is None else anthropic_error_object(failure)


def _read_facts(request: RequestBody, include_usage: bool | None, n: int | None, limit: int) -> RequestFacts:
    body = parse_request(request)
    facts = RequestFacts() if body is None else read_request_facts(body)
    if n is not None and (type(n) is not int or not 0 < n <= limit):
        raise ValueError(f"n must be a number from 1 to {limit}; got {n!r}")
    return msgspec.structs.replace(
        facts,
        include_usage=facts.include_usage if include_usage is None else include_usage,
        choice_count=min(facts.choice_count or 1, limit) if n is None else n,
    )
