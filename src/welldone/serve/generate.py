"""How an answer is given, whatever dialect its client speaks: from an order to what is counted of it in the end."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

import msgspec

from welldone.engines.fleet import Abilities, Model
from welldone.engines.settings import ModelSettings
from welldone.net.inbound import Reply
from welldone.net.turns import in_turns
from welldone.serve.answers import Answer
from welldone.serve.app import Ask
from welldone.serve.backends import Local, Remote
from welldone.serve.errors import ApiError
from welldone.serve.keys import Keys
from welldone.serve.limits import Limits
from welldone.serve.metrics import Metrics
from welldone.serve.page.tapes import HEADER, Tapes
from welldone.serve.page.watch import Watch
from welldone.serve.readers_of_reasoning import names_for
from welldone.serve.recording import Recorder
from welldone.serve.reports import WANTED, Report
from welldone.serve.requests import Request, read_chat, read_completions
from welldone.serve.requests.body import reading_body
from welldone.serve.requests.foreign import read_foreign, read_native
from welldone.serve.requests.names import rename
from welldone.serve.requests.sampling import UNKNOWN
from welldone.serve.settings import ServeSettings
from welldone.serve.sticky import sticky_text
from welldone.wire.dialects.dialect import Dialect
from welldone.wire.events import Json, Usage
from welldone.wire.faults.catalogue import BY_ID
from welldone.wire.faults.fault import Severity
from welldone.wire.head import Endpoint, Head

Reader: TypeAlias = Callable[[Json, ModelSettings, Abilities | None], Request]
"""Checks a body, and turns it into what the engine gets."""

_READERS: dict[Endpoint, Reader] = {Endpoint.CHAT: read_chat, Endpoint.COMPLETIONS: read_completions}


class Order(msgspec.Struct, kw_only=True):
    """An answer that is wanted."""

    body: Json
    """What the server is asked, in the words of `endpoint`."""
    id: str
    """What the answer is called."""
    endpoint: Endpoint = Endpoint.CHAT
    """What the server is asked in: chat, also where the client speaks another dialect, unless the server does too."""
    dialect: Dialect | None = None
    """How the client is answered, where that is not how the server was asked."""
    names: Mapping[str, str] = {}
    """What the client calls fields of the body, or their beginnings, where it has other names for them."""
    echo: Json = {}
    """What a native answer repeats of its request."""
    headers: Mapping[str, str] = {}
    """What goes on of the client's headers, to a server that speaks its dialect."""
    on_end: Callable[[Json | None], None] | None = None
    """Called at the end with the answer as an object, if its dialect has one and it came to its end."""


class Generate(Protocol):
    """Gives answers."""

    async def body(self, ask: Ask) -> Json:
        """The body of a request, as a JSON object."""

    async def answer(self, ask: Ask, backend: Local | Remote, order: Order) -> Reply | None:
        """Give an answer; None where it was streamed. ApiError where there is none, and nothing was sent."""


class Generator:
    """Gives answers, and counts what they cost."""

    def __init__(
        self,
        settings: ServeSettings,
        metrics: Metrics,
        limits: Limits,
        *,
        keys: Keys,
        recorder: Recorder | None,
        tapes: Tapes | None = None,
        head: Callable[[Ask], dict[str, str]],
        now: Callable[[], float] = time.time,
    ) -> None:
        self.answers: set[Answer] = set()
        """Those that are being given."""
        self._settings = settings
        self._metrics = metrics
        self._limits = limits
        self._keys = keys
        self._recorder = recorder
        self._tapes = tapes
        self._head = head
        self._now = now

    async def body(self, ask: Ask) -> Json:
        """The body of a request, as a JSON object."""
        headers = ask.call.headers
        if headers.get("Content-Encoding", "identity").lower() != "identity":
            raise ApiError(415, "Send the body as it is, without Content-Encoding.", code="unsupported_encoding")
        data = await ask.call.body(limit_bytes=self._settings.body_limit_bytes, within_s=self._settings.body_s)
        return await in_turns(reading_body(data, headers.get("Content-Type"), is_browser="Origin" in headers))

    async def answer(self, ask: Ask, backend: Local | Remote, order: Order) -> Reply | None:
        """Give an answer; None where it was streamed.

        Raises:
            ApiError: there is none, and nothing was sent.
        """
        watch = self._watch(ask, backend, order)
        try:
            return await self._answer(ask, backend, order, watch)
        except ApiError as error:
            rename(error, order.names)
            if watch is not None:
                watch.refused(error.body(ask.shape, ask.id))
            raise
        finally:
            if watch is not None:
                watch.end()

    def _watch(self, ask: Ask, backend: Local | Remote, order: Order) -> Watch | None:
        """What keeps the answer for the page, if that is how it was asked for."""
        if self._tapes is None or (name := ask.call.headers.get(HEADER)) is None:
            return None
        return self._tapes.begin(
            ask.principal,
            name,
            endpoint=order.endpoint.value,
            model=backend.name,
            is_stream=order.body.get("stream") is True,
            began=ask.began,
        )

    async def _answer(self, ask: Ask, backend: Local | Remote, order: Order, watch: Watch | None) -> Reply | None:
        if order.dialect is not None:
            await asyncio.sleep(0)  # the translation took a turn of its own
        reading = _reading(order, backend)
        request = reading()
        self._limits.owe(ask.principal, len(request.parts) - 1)
        times = self._metrics.times()
        headers = ask.call.headers
        is_known = not isinstance(backend, Local) or backend.model.abilities is not None
        answer = Answer(
            ask.call,
            request,
            backend,
            again=None if is_known else reading,  # what depends on the model is known only when it is loaded
            sticky=sticky_text(ask, order.body, backend.upstreams),
            head=Head(order.id, int(self._now()), backend.name),
            dialect=order.dialect,
            echo=order.echo,
            passed=order.headers,
            reasoning=names_for(headers.get("User-Agent"), self._settings.reasoning),
            settings=self._settings,
            report=Report(
                ask.id,
                times,
                is_wanted=self._settings.report or WANTED in headers,
                # As in /page/api/state: upstreams are for admins, unless the operator shows them to everyone.
                is_open=self._settings.report or self._keys.is_admin(ask.principal),
            ),
            headers=lambda: self._head(ask),
            recorder=self._recorder,
            watch=watch,
            bodies=ask.bodies,
        )
        self.answers.add(answer)
        self._metrics.start(times)  # not before: what fails until here never ends
        try:
            with backend.using():
                return await answer.run()
        finally:
            self.answers.discard(answer)
            if answer.error is None:  # a name that somebody answers for
                self._metrics.add_model(backend.name)
            self._metrics.end(times, backend.name)
            self._account(ask, answer)
            if order.on_end is not None:
                order.on_end(answer.final)

    def _account(self, ask: Ask, answer: Answer) -> None:
        """Count what an answer cost, and what was wrong with it."""
        times, pipe = answer.times, answer.pipe
        usage = pipe.usage
        mended = tuple(note.rule for note in pipe.notes.all())
        if answer.backend.is_foreign:
            self._metrics.findings(mended)
            ask.facts["mended"] = mended
        else:  # our own engine deviates in the same way in every answer: only what breaks clients is counted
            self._metrics.findings(rule for rule in mended if BY_ID[rule].severity is Severity.BREAKS)
        if upstream := answer.report.upstream:
            self._metrics.upstream_findings(upstream, mended)
            self._metrics.upstream_times(upstream, times)
            self._metrics.upstream_broken(upstream, content=pipe.broken_json, arguments=pipe.broken_arguments)
            ask.facts |= {"upstream": upstream, "failed": tuple(answer.report.failed)}
            if pipe.broken_json or pipe.broken_arguments:
                ask.facts["broken_json"] = pipe.broken_json + pipe.broken_arguments
        self._limits.spend(ask.principal, answer.cost.tokens(usage, is_whole=answer.is_whole))
        if pipe.printed_calls:
            ask.facts["printed_calls"] = pipe.printed_calls
        ask.facts |= {"ttft_ms": _ms(times.ttft_s), "queued_ms": _ms(times.queued_s)}
        if usage is not None:
            prompt_s = max(0.0, (times.ttft_s or 0.0) - (times.queued_s or 0.0))
            self._metrics.tokens(
                ask.model,
                usage.prompt_tokens,
                usage.completion_tokens,
                cached=_cached(usage),
                prompt_s=prompt_s,
                completion_s=times.gaps_s,
            )
            ask.facts |= {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
        failure = pipe.failure
        if failure is not None and ask.call.stream is not None:
            self._metrics.failure(failure.code or failure.type)
            ask.facts |= {"error": failure.code or failure.type, "reason": failure.message}


def speaks(backend: Local | Remote, endpoint: Endpoint) -> bool:
    """Whether all who answer for a model speak a dialect themselves. Our own engines are asked in chat."""
    upstreams = backend.upstreams
    return bool(upstreams) and all(endpoint.value in upstream.settings.speaks for upstream in upstreams)


def abilities_of(model: Model) -> Abilities:
    """What the model can do, as far as that is known before it is loaded."""
    if model.abilities is not None:
        return model.abilities
    return msgspec.structs.replace(UNKNOWN, kind="command") if model.settings.command else UNKNOWN


def _reading(order: Order, backend: Local | Remote) -> Callable[[], Request]:
    """Reads the body for those who answer: with strict rules for our own engines, freely for upstreams."""
    body, upstreams = order.body, backend.upstreams
    streams = all(upstream.settings.stream for upstream in upstreams)
    if order.endpoint in (Endpoint.RESPONSES, Endpoint.MESSAGES):
        return lambda: read_native(body, order.endpoint, streams=streams)
    if order.dialect is not None and body.get("stream") is True:  # what is translated is always counted
        body = {**body, "stream_options": {"include_usage": True}}
    if isinstance(backend, Local):
        model, read = backend.model, _READERS[order.endpoint]
        return lambda: _counting(order, read(body, model.settings, abilities_of(model)), abilities_of(model))
    # Any of the upstreams may be asked: what one of them cannot do is done here.
    if _counts_first(order) and "stream_options" in body and all(upstream.kind == "vllm" for upstream in upstreams):
        body["stream_options"]["continuous_usage_stats"] = True
    return lambda: read_foreign(
        body,
        "chat" if order.endpoint is Endpoint.CHAT else "completions",
        makes_choices=all(upstream.makes_choices for upstream in upstreams),
        streams=streams,
        wants_usage=all(upstream.settings.usage for upstream in upstreams),
    )


def _counts_first(order: Order) -> bool:
    return order.dialect is not None and order.dialect.COUNTS_FIRST


def _counting(order: Order, request: Request, abilities: Abilities) -> Request:
    """The same request; llama.cpp is asked to count as it goes, where that is to be known first."""
    if _counts_first(order) and request.is_stream and abilities.kind == "llama":
        for part in request.parts:
            part["timings_per_token"] = True
    return request


def _cached(usage: Usage) -> int:
    """The tokens of the prompt that the engine knew from before."""
    details = usage.more.get("prompt_tokens_details")
    count = details.get("cached_tokens") if isinstance(details, dict) else None
    return count if isinstance(count, int) else 0


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
