"""The way of one answer: from the queue to the engine, and from the engine's bytes to the client's.

The handler's task sleeps until something happens; the bytes of the answer pass by it, from socket to socket. It wakes
to open the stream, to keep a silent line alive, to wait for a slow client, and at the end.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from welldone.engines.errors import EngineError
from welldone.engines.fleet import Model, State
from welldone.net import outbound
from welldone.net.inbound import Call, Reply, Stream
from welldone.net.outbound import Exchange, OutboundError
from welldone.serve import log
from welldone.serve.admission import Gate
from welldone.serve.errors import ApiError
from welldone.serve.metrics import StreamTimes
from welldone.serve.refusals import died, from_engine, from_reply
from welldone.serve.requests import Request
from welldone.serve.settings import ServeSettings
from welldone.wire import sse
from welldone.wire.dialects.stream import KEEP_ALIVE
from welldone.wire.fold import Fold
from welldone.wire.head import Endpoint, Head
from welldone.wire.merge import Parts
from welldone.wire.pipe import Pipe

_ATTEMPTS = 2  # of which the second is for an engine that died before it said a word
_ERROR_LIMIT_BYTES = 65536  # of an engine's error; theirs have some hundred bytes
_COMMENTS_LIMIT = 45  # in a row: clients give up at some hundred lines without data, and a comment has two
_WHOLE_LIMIT_BYTES = 256 * 2**20  # of a stream that is kept for a whole reply: a million tokens
_GRACE_S = 0.5  # for what a server says after [DONE], which is nothing that counts
_NEVER_S = 86_400.0
_SSE = "text/event-stream"
_PATHS = {Endpoint.CHAT: "/v1/chat/completions", Endpoint.COMPLETIONS: "/v1/completions"}


class Answer:
    """One answer that is being given."""

    def __init__(
        self,
        call: Call,
        request: Request,
        model: Model,
        gate: Gate,
        *,
        again: Callable[[], Request] | None = None,
        head: Head,
        settings: ServeSettings,
        times: StreamTimes,
        headers: Callable[[], Mapping[str, str]],
    ) -> None:
        self._call = call
        self._request = request
        self._model = model
        self._gate = gate
        self._settings = settings
        self.times = times
        self._headers = headers
        self._again = again  # reads the request once more, when the model is loaded and its abilities are known
        self._loop = asyncio.get_running_loop()
        endpoint = Endpoint(request.endpoint)
        self._path = _PATHS[endpoint]
        self.param = "messages" if endpoint is Endpoint.CHAT else "prompt"
        kind = Pipe if request.is_stream else Fold
        self.pipe: Pipe | Fold = kind(
            endpoint,
            fallback=head,
            asked=msgspec.structs.replace(request.asked, is_usage_ours=True, top_logprobs=request.top_logprobs),
            parts=Parts(len(request.parts), request.prompts, tuple(request.echo or ())),
            forced=request.forced,
            model=model.name,
        )
        self.error: ApiError | None = None
        """Why there is no answer, if there is none."""
        self._stream: Stream | None = None
        self._pending: list[bytes] = []  # what came before the stream was open
        self._parts = [_Part(self, number) for number in range(len(request.parts))]
        self._ended = 0
        self._is_accepted = False  # the engine has begun
        self._is_over = False
        self._changed = asyncio.Event()
        self._heard_at = self._loop.time()
        self._kept_at = self._heard_at  # when the last sign of life was sent
        self._heard_bytes = 0
        self._comments = 0
        self._todo: deque[_Part] = deque()

    async def run(self) -> Reply | None:
        """Give the answer; None where it was streamed.

        Raises:
            ApiError: there is none, and nothing was sent.
        """
        self._check_room()
        self._todo = deque(self._parts)
        workers = min(len(self._parts), self._gate.slots)
        tasks = [asyncio.create_task(self._work(is_first=number == 0)) for number in range(workers)]
        try:
            if isinstance(self.pipe, Fold):
                return await self._give_whole(self.pipe)
            await self._give_stream()
            return None
        finally:
            self._is_over = True
            for part in self._parts:
                part.close()
            for task in tasks:
                task.cancel()

    @property
    def is_foreign(self) -> bool:
        """Whether the engine is not our own."""
        return bool(self._model.settings.command)

    def break_off(self, error: ApiError) -> None:
        """End the answer with an error, wherever it is."""
        if self._is_over or self.error is not None:
            return
        self.error = error
        try:
            self._say(self.pipe.fail(error.failure()))
        except Exception as mistake:  # noqa: BLE001 - whatever is wrong with us, the client hears an end
            log.event(logging.ERROR, "an answer could not be ended", error=mistake)
            self._say(sse.frame(error.body()) + sse.DONE)
        finally:
            self._end()

    # How the parts are asked for.

    def _check_room(self) -> None:
        """While a model is loaded nobody is at its gate yet: those who wait for it are bounded all the same."""
        if self._model.state is not State.READY and self._model.running > self._gate.room:
            raise self._gate.full()

    async def _work(self, *, is_first: bool) -> None:
        """Ask for one part after the other, in one place at the gate. What goes wrong ends the whole answer."""
        try:
            await self._model.ready()  # who waits for a model to be loaded needs no place yet
            async with self._gate.place() as waited_s:
                self.times.queued(waited_s)
                while self._todo and not self._is_over:
                    await self._ask(self._todo.popleft())
        except ApiError as error:
            # One place is enough: who gets no second one has its parts asked for in the first.
            if is_first or error.status not in (429, 503):
                self.break_off(error)
        except EngineError as error:
            self.break_off(from_engine(error))
        except OutboundError:
            self.break_off(died())
        except Exception as error:  # noqa: BLE001 - the edge of a task: it logs, and the client gets an honest error
            self.fail(error)

    async def _ask(self, part: "_Part") -> None:
        """Ask the engine for a part, and wait until all of it was heard."""
        for attempt in range(1, _ATTEMPTS + 1):
            address = await self._model.ready()
            body = self._body(part.number)
            part.is_asked = True
            self._heard_at = self._loop.time()
            self._changed.set()  # from now on there is a limit to the silence
            try:
                part.exchange = await outbound.send(address, "POST", self._path, part, body=body, accept=_SSE)
                await part.wait()
            except OutboundError:
                if attempt == _ATTEMPTS or part.status:
                    raise
                await self._model.check()
            else:
                return

    # What the parts call.

    def fail(self, error: Exception) -> None:
        """A mistake of ours."""
        log.event(logging.ERROR, "an answer failed", error=error)
        self.break_off(ApiError(500, "The server failed. Its log says why.", code="internal_error"))

    def _body(self, part: int) -> bytes:
        if self._again is not None:
            self._request = self._again()
            self._again = None
        abilities = self._model.abilities
        name = abilities.name if abilities is not None and abilities.kind == "command" else ""
        return msgspec.json.encode({**self._request.parts[part], "model": name or self._model.name})

    def wake(self) -> None:
        """The silence that is allowed has changed."""
        self._changed.set()

    def accepted(self) -> None:
        """The engine has begun with a part."""
        if not self._is_accepted:
            self._is_accepted = True
            self._changed.set()

    def heard(self, data: bytes, part: int) -> None:
        """More of a part's stream: the hot path."""
        if self._is_over:
            return
        self._heard_at = self._loop.time()
        self._heard_bytes += len(data)
        self.times.more()
        self._say(self.pipe.feed(data, part))
        if self._heard_bytes > _WHOLE_LIMIT_BYTES and isinstance(self.pipe, Fold):
            self.break_off(ApiError(502, "The engine's answer is longer than can be kept.", code="engine_error"))
        if self.pipe.failure is not None:
            self._say(self.pipe.close(part))
            self._end()
        elif data.endswith(sse.DONE):
            # Some servers leave the body open after this: nobody waits for them.
            self._loop.call_later(_GRACE_S, self._parts[part].give_up)

    def ended(self, part: int) -> None:
        """A part's stream has ended."""
        if self._is_over:
            return
        self._say(self.pipe.close(part))
        self._ended += 1
        if self._ended == len(self._parts) or self.pipe.failure is not None:
            self._end()

    # What the handler's task does.

    async def _give_whole(self, fold: Fold) -> Reply:
        while not self._is_over:
            await self._sleep(_NEVER_S)
        if self.error is not None:
            raise self.error
        failure = fold.failure
        if failure is not None:
            raise ApiError(502, failure.message, param=failure.param, code=failure.code)
        return Reply(200, fold.body(), headers=dict(self._headers()))

    async def _give_stream(self) -> None:
        # A refusal that comes at once gets its status; who waits longer gets the head of the stream, and signs of life.
        late = self._loop.time() + self._settings.early_s
        while not (self._is_accepted or self._is_over) and (left_s := late - self._loop.time()) > 0:
            await self._sleep(left_s)
        if self.error is not None:
            raise self.error
        stream = await self._call.open({**dict(sse.HEADERS), **self._headers()})
        for data in self._pending:
            stream.write(data)
        self._pending.clear()
        self._stream = stream
        while not self._is_over:
            if stream.is_congested:
                await self._let_drain(stream)
            else:
                await self._sleep(self._keep_alive(stream))
        await stream.end()

    async def _sleep(self, limit_s: float) -> None:
        """Wait until something has changed, or the time is over. An engine that is silent for too long is given up."""
        self._changed.clear()
        if self._is_over:
            return
        asked = [part for part in self._parts if part.is_asked and not part.has_ended]
        # While one of them reads its prompt, its silence is no sign of trouble.
        is_flowing = all(part.has_begun for part in asked)
        patience_s = self._settings.idle_s if is_flowing else self._settings.first_byte_s
        left_s = self._heard_at + patience_s - self._loop.time() if asked else _NEVER_S
        if left_s <= 0:
            message = f"The engine has said nothing for {patience_s:g} seconds."
            self.break_off(ApiError(504, message, code="timeout"))
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(min(limit_s, left_s)):
                await self._changed.wait()

    def _keep_alive(self, stream: Stream) -> float:
        """Send a sign of life if the line has been silent for so long; how long until the next is due."""
        now = self._loop.time()
        due_s = max(self._heard_at, self._kept_at) + self._settings.keep_alive_s - now
        if due_s > 0:
            return due_s
        self._kept_at = now
        if self._comments < _COMMENTS_LIMIT:
            self._comments += 1
            stream.write(KEEP_ALIVE)
        return self._settings.keep_alive_s

    async def _let_drain(self, stream: Stream) -> None:
        """Wait for a client that reads more slowly than the engine writes; one that does not read at all is left."""
        for part in self._parts:
            part.pause()
        try:
            async with asyncio.timeout(self._settings.write_s):
                await stream.drain()
        except TimeoutError:
            self.error = ApiError(408, "The client does not read.", code="client_too_slow")
            self.pipe.fail(self.error.failure())  # nobody hears it, but it is counted and logged
            self._is_over = True
            stream.abort()
        self._heard_at = self._loop.time()  # the silence was not the engine's
        for part in self._parts:
            part.resume()

    def _say(self, data: bytes | None) -> None:
        """Send bytes on, or keep them until the stream is open."""
        if not data:
            return
        self._comments = 0
        stream = self._stream
        if stream is None:
            self._pending.append(data)
            return
        stream.write(data)
        if stream.is_congested:
            self._changed.set()

    def _end(self) -> None:
        self._is_over = True
        self._changed.set()


class _Part:
    """One exchange with the engine."""

    def __init__(self, answer: Answer, number: int) -> None:
        self.number = number
        self.status = 0
        self.exchange: Exchange | None = None
        self._answer = answer
        self.is_asked = False
        self.has_begun = False
        self.has_ended = False
        self._retry_after = ""
        self._refusal = bytearray()
        self._whole: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Wait for the end.

        Raises:
            OutboundError: the connection was lost before.
        """
        self._whole = self._whole or asyncio.get_running_loop().create_future()
        try:
            await self._whole
        finally:
            self._whole = None

    def close(self) -> None:
        """Leave the engine."""
        if self.exchange is not None:
            self.exchange.close()

    def give_up(self) -> None:
        """Take the reply as whole, if it has not ended yet."""
        if not self.has_ended:
            self.close()
            self.end(None)

    def pause(self) -> None:
        """Hear no more for now."""
        if self.exchange is not None:
            self.exchange.pause()

    def resume(self) -> None:
        """Hear on."""
        if self.exchange is not None:
            self.exchange.resume()

    # What the exchange calls.

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The engine's reply begins."""
        self.status = status
        self._retry_after = headers.get("retry-after", "")
        if status == 200:
            self._answer.accepted()

    def data(self, data: bytes) -> None:
        """More of it."""
        if self.status == 200:
            is_first = not self.has_begun
            self.has_begun = True
            try:
                self._answer.heard(data, self.number)
            except Exception as error:  # noqa: BLE001 - a mistake of ours ends this answer, and is logged
                self._answer.fail(error)
            if is_first:
                self._answer.wake()
        elif len(self._refusal) < _ERROR_LIMIT_BYTES:
            self._refusal += data

    def end(self, error: OutboundError | None) -> None:
        """It has ended."""
        if self._whole is None:
            self._whole = asyncio.get_running_loop().create_future()
        if self._whole.done():
            return
        if error is not None:
            self._whole.set_exception(error)
            return
        self.has_ended = True
        try:
            self._tell_end()
        except Exception as mistake:  # noqa: BLE001 - as above
            self._answer.fail(mistake)
        self._whole.set_result(None)

    def _tell_end(self) -> None:
        if self.status == 200:
            self._answer.ended(self.number)
            return
        param, refusal = self._answer.param, bytes(self._refusal)
        self._answer.break_off(from_reply(self.status, refusal, param, retry_after=self._retry_after))
