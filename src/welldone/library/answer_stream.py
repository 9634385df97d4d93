"""Common part of the writers for server authors: choices, tool calls, the order of calls, and the end of a stream."""

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import Any, ClassVar, Literal, Self, TypeAlias

import msgspec

from welldone.core import events as ev
from welldone.core.answer_format import AnswerFormat
from welldone.core.collect import collect
from welldone.core.envelope import Envelope
from welldone.core.events import Event, EventOrderError, Failure, Json, Usage
from welldone.core.fields import openai_error_object, read_chat_logprobs, read_completions_logprobs, read_usage
from welldone.core.finish_reasons import finish_reason_for
from welldone.core.lenient_json import clean_unicode
from welldone.core.repair_log import RepairLog
from welldone.core.request_facts import TRUNCATED_REASONS, RequestFacts
from welldone.dialects.messages.objects import USAGE_COUNTS, usage_from_counts
from welldone.dialects.registry import DIALECTS
from welldone.dialects.responses.objects import parse_responses_usage
from welldone.library.arguments import current_time, new_id_stem, require_bytes
from welldone.library.iteration import (
    INTERRUPTED,
    require_async_iterable,
    require_iterable,
    run_to_end,
    run_to_end_async,
)

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter"]
"""Finish reasons of OpenAI. The writers also take those that other providers document, such as `end_turn`."""
UsageCounts: TypeAlias = Usage | Mapping[str, Any]
"""Token counts: `{"prompt_tokens": 3, "completion_tokens": 5}`, or with the names of Responses or Messages."""
SendFunction: TypeAlias = Callable[[bytes], Awaitable[object] | object]
"""Sends bytes to the client, such as `response.write` of aiohttp."""
LogprobEntries: TypeAlias = Sequence[Mapping[str, Any]] | Mapping[str, Any]
"""Entries such as `{"token": "Hi", "logprob": -0.1}`, or the `logprobs` object of a choice."""

_REASONS = "stop, length, tool_calls or content_filter"


@dataclass(slots=True)
class _ChoiceState:
    """What was written of a choice."""

    call_ids: list[str] = field(default_factory=list)
    has_arguments: bool = False
    """Whether the last call has arguments."""
    is_custom: bool = False
    """Whether the last call is one of a custom tool."""
    text_length: int = 0


class AnswerStream:
    """Common part of the writers. Use one of its subclasses."""

    _METHODS: ClassVar[str] = "text, reasoning, refusal, tool_call, finish or fail"
    _CALL_ID_PREFIX: ClassVar[str] = "call_"

    def __init__(
        self,
        dialect: AnswerFormat,
        facts: RequestFacts,
        send: SendFunction | None,
        model: str,
        id: str | None,
        created: int | None,
        *,
        fingerprint: str | None = None,
        start_usage: Usage | None = None,
    ) -> None:
        if not isinstance(model, str) or not model:
            raise TypeError(f"model must be the name of the model; got {model!r}")
        created = current_time() if created is None else created
        id = id or DIALECTS[dialect.endpoint].id_prefix + new_id_stem()
        self._envelope = Envelope(id, created, model, fingerprint)
        self._dialect = dialect
        self._choice_count = facts.choice_count or 1
        self._needs_usage = facts.include_usage is True
        self._has_named_tool = facts.has_named_tool
        self._send = send
        self._usage: Usage | None = None
        self._failure: Failure | None = None
        self._is_ended = False
        self._events: list[Event] = []  # for `to_response`
        self._choices = [_ChoiceState() for _ in range(self._choice_count)]
        self._has_started = False
        self._open: set[int] = set()  # choices that are not finished, after the start
        self._new_call_id = map(f"{self._CALL_ID_PREFIX}{new_id_stem()}{{}}".format, count(1)).__next__
        self._writer = dialect.make_writer(self._envelope, lambda: start_usage)  # no reference to self: a cycle

    @property
    def id(self) -> str:
        """Id of the answer."""
        return self._envelope.id

    @property
    def is_ended(self) -> bool:
        """Whether the stream has ended: its last choice is finished, or it failed."""
        return self._is_ended

    def text(self, text: str, index: int = 0) -> bytes:
        """Return a piece of the answer's text. Empty text gives no bytes."""
        return self._write_text(ev.Text(index, text), "text")

    def finish(
        self, reason: FinishReason | str | None = None, *, usage: UsageCounts | None = None, index: int = 0
    ) -> bytes:
        """Return the end of a choice and, if it is the last one, of the stream.

        The default reason is `tool_calls` after tool calls, else `stop`.
        """
        return self._finish(reason, usage, index)

    def fail(
        self, message: str, *, type: str = "server_error", code: str | None = None, param: str | None = None
    ) -> bytes:
        """Return the bytes that end the stream with an error; nothing if it has already ended.

        The client gets the message: it must not contain secrets.
        """
        if self._is_ended:
            return b""
        self._failure = Failure(clean_unicode(message), type, param, code)
        self._is_ended = True
        return self._writer.send(self._failure) + self._writer.end()

    def keep_alive(self) -> bytes:
        """Return a sign of life to send while the model is busy; nothing if the stream has ended."""
        if self._is_ended:
            return b""
        return self._writer.send(ev.KeepAlive()) if self._has_started else self._dialect.INITIAL_KEEP_ALIVE

    def to_response(self) -> dict[str, Any]:
        """Return the answer as a whole reply, for a request without `stream`; the error object if it failed.

        Raises:
            EventOrderError: the stream has not ended.
        """
        if not self._is_ended:
            raise EventOrderError("to_response()", "the answer is not finished", self._METHODS)
        return self._reply_object(self._failure)

    def _reply_object(self, failure: Failure | None) -> Json:
        if failure is not None:
            return openai_error_object(failure)
        reply = collect(self._events)
        reply.usage = self._usage
        decoded: Json = msgspec.json.decode(self._dialect.encode_reply(self._envelope, reply))
        return decoded

    # The end of the stream, whatever happens.

    def complete(self, chunks: Iterable[bytes]) -> Generator[bytes, None, None]:
        """Yield `chunks`, which were written with this object, and the end of the stream if they lack it.

        After an exception, which is logged, the stream ends with an error event. An exception before the first bytes
        is raised.
        """
        require_iterable(chunks, "complete")
        return run_to_end(chunks, feed=_complete_chunk, close=self._finish_all, fail=self.fail)

    def acomplete(self, chunks: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
        """Do the same as `complete` with an asynchronous iterable."""
        require_async_iterable(chunks, "acomplete")
        return run_to_end_async(chunks, feed=_complete_chunk, close=self._finish_all, fail=self.fail)

    def __enter__(self) -> Self:
        self._require_send("with")
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for result in self._send_end(self._require_send("with"), error):
            if isinstance(result, Coroutine):
                result.close()
            if isinstance(result, Awaitable):
                raise TypeError("send is asynchronous; use async with instead of with")

    async def __aenter__(self) -> Self:
        self._require_send("async with")
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for result in self._send_end(self._require_send("async with"), error):
            if isinstance(result, Awaitable):
                await result

    def _require_send(self, statement: str) -> SendFunction:
        if self._send is None:
            name = type(self).__name__
            raise TypeError(f"{statement} needs send=, which gets the end of the stream: {name}(model, send=write)")
        return self._send

    def _send_end(self, send: SendFunction, error: BaseException | None) -> Generator[object, None, None]:
        """Send the end of the stream at the end of a `with` block. After a cancellation the client is gone."""
        if self._is_ended or not (error is None or isinstance(error, Exception)):
            return
        try:
            last = self._finish_all() if error is None else self.fail(INTERRUPTED)
        except ValueError:  # no usage
            yield send(self.fail(INTERRUPTED))
            raise
        yield send(last)

    # For the subclasses.

    def _finish_all(self) -> bytes:
        """Finish what is not finished, with the default reason."""
        if self._is_ended:
            return b""
        indexes = sorted(self._open) if self._has_started else range(self._choice_count)
        return b"".join([self._finish(None, None, index) for index in indexes])

    def _write_text(self, event: ev.Text | ev.Reasoning | ev.Refusal, method: str) -> bytes:
        text = event.text
        if not isinstance(text, str):
            raise TypeError(f"{method} takes text as a str, not {type(text).__name__}")
        if not text:
            return b""
        self._check(event.index, method)
        return self._start() + self._write(type(event)(event.index, clean_unicode(text)))

    def _write_logprobs(self, logprobs: LogprobEntries, index: int) -> bytes:
        value = dict(logprobs) if isinstance(logprobs, Mapping) else {"content": list(logprobs)}
        self._check(index, "text")
        started = self._start()
        if self._dialect.endpoint.is_chat:
            complete = read_chat_logprobs(value, RepairLog())
        else:
            complete = read_completions_logprobs(value, self._choices[index].text_length, RepairLog())
        return started if complete is None else started + self._write(ev.Logprobs(index, complete))

    def _write(self, event: Event) -> bytes:
        self._events.append(event)
        return self._writer.send(event)

    def _check(self, index: int, method: str) -> None:
        """Raise an exception if this choice cannot be written now. Nothing is written before all checks."""
        if index in self._open:
            return
        if type(index) is not int or not 0 <= index < self._choice_count:
            raise ValueError(f"index {index!r} is out of range: the stream has n={self._choice_count} choices")
        if self._is_ended:
            raise EventOrderError(f"{method}()", "the stream has ended", f"a new {type(self).__name__}")
        if self._has_started:
            others = " or ".join(map(str, sorted(self._open)))
            raise EventOrderError(f"{method}()", f"choice {index} is finished", f"{self._METHODS}, of choice {others}")

    def _start(self) -> bytes:
        """Return the start of all choices, once, as OpenAI sends it."""
        if self._has_started:
            return b""
        self._has_started = True
        self._open.update(range(self._choice_count))
        return b"".join([self._write(ev.ChoiceStart(index)) for index in range(self._choice_count)])

    def _add_arguments(self, text: str, index: int) -> bytes:
        if not isinstance(text, str):
            raise TypeError(f"tool_arguments takes text as a str, not {type(text).__name__}")
        self._check(index, "tool_arguments")
        choice = self._choices[index]
        if not choice.call_ids:
            raise EventOrderError("tool_arguments()", f"choice {index} has no tool call", self._METHODS)
        if not text:
            return b""
        choice.has_arguments = True
        number = len(choice.call_ids) - 1
        return self._write(ev.ToolArguments(index, number, clean_unicode(text), is_custom=choice.is_custom))

    def _complete_arguments(self, index: int) -> bytes:
        """Return `{}` for a last call without arguments: an empty text is not JSON."""
        choice = self._choices[index]
        is_empty = choice.call_ids and not choice.has_arguments and not choice.is_custom
        return self._add_arguments("{}", index) if is_empty else b""

    def _finish(
        self, reason: str | None, usage: UsageCounts | None, index: int, stop_string: str | None = None
    ) -> bytes:
        self._check(index, "finish")
        word = self._parse_reason(reason, has_calls=bool(self._choices[index].call_ids))
        counts = self._usage if usage is None else _parse_usage(usage)
        is_last = (len(self._open) if self._has_started else self._choice_count) == 1
        if is_last and self._needs_usage and counts is None:
            raise ValueError(
                'the client needs the token counts; write finish(usage={"prompt_tokens": 3, "completion_tokens": 5})'
            )
        self._usage = counts
        finished = self._start() + (b"" if word in TRUNCATED_REASONS else self._complete_arguments(index))
        finished += self._write(ev.Finish(index, word, stop_string))
        self._open.discard(index)
        if not is_last:
            return finished
        self._is_ended = True
        if counts is not None and self._needs_usage:
            finished += self._writer.send(counts)
        return finished + self._writer.end()

    def _parse_reason(self, reason: str | None, *, has_calls: bool) -> str:
        if reason is None:
            return "tool_calls" if has_calls else "stop"
        if not isinstance(reason, str):
            raise TypeError(f"reason must be {_REASONS}; got {reason!r}")
        word = finish_reason_for(reason, self._dialect.endpoint)
        if word is None:
            raise ValueError(f"unknown finish reason {reason!r}; use {_REASONS}, or call fail() if it did not finish")
        if word == "tool_calls" and not has_calls:
            raise ValueError(
                f"the finish reason is {reason!r}, but the choice has no tool call; call tool_call() first"
            )
        # Engines report `stop` for a call that the server found in the text.
        return "tool_calls" if word == "stop" and has_calls and not self._has_named_tool else word


class TalkStream(AnswerStream):
    """An answer that may have reasoning, refusals and tool calls."""

    def reasoning(self, text: str, index: int = 0) -> bytes:
        """Return a piece of the reasoning. Clients expect it before the text."""
        return self._write_text(ev.Reasoning(index, text), "reasoning")

    def refusal(self, text: str, index: int = 0) -> bytes:
        """Return a piece of a refusal."""
        return self._write_text(ev.Refusal(index, text), "refusal")

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
        if not isinstance(name, str) or not name:
            raise TypeError(f"name must be the name of the tool; got {name!r}")
        if isinstance(arguments, Mapping):
            arguments = msgspec.json.encode(arguments).decode()
        elif not isinstance(arguments, str):
            raise TypeError(f"arguments must be JSON text or a dict; got {arguments!r}")
        self._check(index, "tool_call")
        call_id = id or self._new_call_id()
        choice = self._choices[index]
        if call_id in choice.call_ids:
            raise ValueError(f"choice {index} already has a tool call with the id {call_id!r}; each needs its own")
        started = self._start() + self._complete_arguments(index)
        number = len(choice.call_ids)
        choice.call_ids.append(call_id)
        choice.has_arguments, choice.is_custom = False, custom
        started += self._write(ev.ToolCall(index, number, call_id, clean_unicode(name), is_custom=custom))
        return started + self._add_arguments(arguments, index)

    def tool_arguments(self, text: str, index: int = 0) -> bytes:
        """Return a piece of the arguments (JSON text) of the last tool call."""
        return self._add_arguments(text, index)


def _complete_chunk(data: bytes) -> bytes:
    return require_bytes(data, "complete")


def _parse_usage(usage: UsageCounts) -> Usage:
    if isinstance(usage, Usage):
        return usage
    if not isinstance(usage, Mapping):
        raise TypeError(f"usage must be a dict of token counts; got {usage!r}")
    counts = dict(usage)
    if "input_tokens" not in counts:
        parsed = read_usage(counts, RepairLog())
    elif any(name in counts for name in USAGE_COUNTS if name.startswith("cache")):
        parsed = usage_from_counts(counts, counts)
    else:
        parsed = parse_responses_usage(counts)
    if parsed is None:
        raise ValueError(f'usage {counts!r} lacks counts; write {{"prompt_tokens": 3, "completion_tokens": 5}}')
    return parsed
