"""Writers for server authors: one object per answer, whose methods return the bytes to send.

A stream opens with its first content and ends with the `finish` of its last choice. The methods check the order of the
calls; an illegal one raises `EventOrderError`. `to_response` returns the same answer as a whole reply.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec

from welldone.library.answer_stream import AnswerStream, FinishReason, SendFunction, UsageCounts
from welldone.library.arguments import RequestBody, current_time, parse_request
from welldone.protocol import sse
from welldone.protocol.dialects.anthropic.objects import anthropic_error_object
from welldone.protocol.dialects.anthropic.writer import MessagesDialect
from welldone.protocol.dialects.chat import REASONING_FIELDS, ChunkDialect, openai_error_object
from welldone.protocol.dialects.responses.objects import RESPONSE_DEFAULTS
from welldone.protocol.dialects.responses.writer import ResponsesDialect
from welldone.protocol.envelope import Endpoint
from welldone.protocol.events import Failure, Json, Logprobs, Reasoning, Refusal, Text, Usage
from welldone.protocol.fields import read_chat_logprobs, read_completions_logprobs
from welldone.protocol.lenient_json import as_list, as_object, clean_unicode
from welldone.protocol.repair_log import RepairLog
from welldone.protocol.request_facts import (
    CHAT_CHOICES_LIMIT,
    COMPLETIONS_CHOICES_LIMIT,
    RequestFacts,
    read_request_facts,
)

STREAM_HEADERS: Mapping[str, str] = MappingProxyType(dict(sse.HEADERS))
"""HTTP response headers of a stream: its type, and that proxies neither buffer nor change it."""

LogprobEntries: TypeAlias = Sequence[Mapping[str, Any]] | Mapping[str, Any]
"""Entries such as `{"token": "Hi", "logprob": -0.1}`, or the `logprobs` object of a choice."""

_USAGE_REQUIRED = RequestFacts(include_usage=True)


class _ChunkStream(AnswerStream):
    """An answer of chat or completions, which may have several choices."""

    def finish(
        self, reason: FinishReason | str | None = None, *, usage: UsageCounts | None = None, index: int = 0
    ) -> bytes:
        """Return the end of a choice and, if it is the last one, of the stream.

        The default reason is `tool_calls` after tool calls, else `stop`.
        """
        return self._finish(reason, usage, index)

    def _write_logprobs(self, logprobs: LogprobEntries, index: int) -> bytes:
        value = dict(logprobs) if isinstance(logprobs, Mapping) else {"content": list(logprobs)}
        self._check(index, "text")
        started = self._start()
        if self._ENDPOINT is Endpoint.CHAT:
            complete = read_chat_logprobs(value, RepairLog())
        else:
            complete = read_completions_logprobs(value, self._choices[index].text_length, RepairLog())
        return started if complete is None else started + self._write(Logprobs(index, complete))


class ChatStream(_ChunkStream):
    """Writes an answer of /v1/chat/completions.

    `request` is the body of the request: it decides the number of choices, and whether the client gets a usage chunk.
    `include_usage` and `n` override it. `reasoning_fields` are the members of a delta that carry reasoning.
    """

    _ENDPOINT = Endpoint.CHAT

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
        envelope = self._make_envelope(model, id, created, fingerprint)
        super().__init__(envelope, ChunkDialect(facts, Endpoint.CHAT, fields), facts, send)

    def text(self, text: str, index: int = 0, *, logprobs: LogprobEntries | None = None) -> bytes:
        """Return a piece of the answer's text. Empty text gives no bytes."""
        if index in self._open and type(text) is str and text and logprobs is None:  # common case
            event = Text(index, text if text.isascii() else clean_unicode(text))
            self._events.append(event)
            return self._writer.send(event)
        started = b"" if logprobs is None else self._write_logprobs(logprobs, index)
        return started + self._write_text(Text(index, text), "text")

    def reasoning(self, text: str, index: int = 0) -> bytes:
        """Return a piece of the reasoning. Clients expect it before the text."""
        return self._write_text(Reasoning(index, text), "reasoning")

    def refusal(self, text: str, index: int = 0) -> bytes:
        """Return a piece of a refusal."""
        return self._write_text(Refusal(index, text), "refusal")

    def tool_call(
        self,
        name: str,
        arguments: str | Mapping[str, Any] = "",
        *,
        id: str | None = None,
        index: int = 0,
        custom: bool = False,
    ) -> bytes:
        """Return a tool call: a whole one, or its start, to which `tool_arguments` adds.

        A call without arguments gets `{}`. With `custom` it calls a custom tool, whose input is free text.
        """
        return self._start_call(name, arguments, id, index, custom=custom)

    def tool_arguments(self, text: str, index: int = 0) -> bytes:
        """Return a piece of the arguments (JSON text) of the last tool call."""
        return self._add_arguments(text, index)


class CompletionsStream(_ChunkStream):
    """Writes an answer of /v1/completions. For the parameters see `ChatStream`."""

    _ENDPOINT = Endpoint.COMPLETIONS
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
        envelope = self._make_envelope(model, id, created, fingerprint)
        super().__init__(envelope, ChunkDialect(facts, Endpoint.COMPLETIONS), facts, send)

    def text(self, text: str, index: int = 0, *, logprobs: LogprobEntries | None = None) -> bytes:
        """Return a piece of the answer's text. Empty text gives no bytes."""
        started = b"" if logprobs is None else self._write_logprobs(logprobs, index)
        written = started + self._write_text(Text(index, text), "text")
        if text:
            self._choices[index].text_length += len(text)
        return written


class _SingleChoiceStream(AnswerStream):
    """An answer of one choice, of Responses or Messages."""

    def text(self, text: str) -> bytes:
        """Return a piece of the answer's text. Empty text gives no bytes."""
        return self._write_text(Text(0, text), "text")

    def reasoning(self, text: str) -> bytes:
        """Return a piece of the reasoning."""
        return self._write_text(Reasoning(0, text), "reasoning")

    def refusal(self, text: str) -> bytes:
        """Return a piece of a refusal."""
        return self._write_text(Refusal(0, text), "refusal")

    def tool_call(
        self, name: str, arguments: str | Mapping[str, Any] = "", *, id: str | None = None, custom: bool = False
    ) -> bytes:
        """Return a tool call: a whole one, or its start, to which `tool_arguments` adds."""
        return self._start_call(name, arguments, id, 0, custom=custom)

    def tool_arguments(self, text: str) -> bytes:
        """Return a piece of the arguments (JSON text) of the last tool call."""
        return self._add_arguments(text, 0)


class ResponsesStream(_SingleChoiceStream):
    """Writes an answer of /v1/responses. The Response repeats members of `request`, as the API requires."""

    _ENDPOINT = Endpoint.RESPONSES

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
        self._responses = ResponsesDialect(echo, is_summary=is_summary, clock=current_time)
        super().__init__(self._make_envelope(model, id, created), self._responses, _USAGE_REQUIRED, send)

    def finish(self, reason: FinishReason | str | None = None, *, usage: UsageCounts | None = None) -> bytes:
        """Return the end of the stream. The token counts are required."""
        return self._finish(reason, usage, 0)

    def _reply_object(self, failure: Failure | None) -> Json:
        return openai_error_object(failure) if failure is not None else dict(self._responses.final_object or {})


class MessagesStream(_SingleChoiceStream):
    """Writes an answer of /v1/messages. Without `thinking` in `request`, reasoning is left out.

    The first event has the number of prompt tokens: pass `prompt_tokens` if it is known by then.
    """

    _ENDPOINT = Endpoint.MESSAGES
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
        dialect = MessagesDialect(
            stop_sequences=tuple(stop for stop in stops if isinstance(stop, str)),
            includes_thinking=body is None or thinking in ("enabled", "adaptive"),
        )
        usage = Usage(prompt_tokens, 0, prompt_tokens, {})
        super().__init__(self._make_envelope(model, id, created), dialect, _USAGE_REQUIRED, send, usage)

    def finish(
        self,
        reason: FinishReason | str | None = None,
        *,
        usage: UsageCounts | None = None,
        stop_sequence: str | None = None,
    ) -> bytes:
        """Return the end of the stream. The token counts are required.

        The reason may be OpenAI's or Anthropic's (`end_turn`). `stop_sequence` is the one that ended the answer.
        """
        return self._finish(reason, usage, 0, stop_sequence)

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
