"""The way of one answer: from the queue to the engine, and from the engine's bytes to the client's.

The handler's task sleeps until something happens; the bytes of the answer pass by it, from socket to socket. It wakes
to open the stream, to keep a silent line alive, to wait for a slow client, and at the end.
"""

import asyncio
import copy
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from typing import cast

import msgspec

from welldone.engines.errors import EngineError
from welldone.net.inbound import Call, Reply, Stream
from welldone.serve import log, refusals
from welldone.serve.backends import Backend, Seat, told
from welldone.serve.bodies import Bodies
from welldone.serve.charging import Cost, prompt_tokens
from welldone.serve.errors import ApiError
from welldone.serve.metrics import StreamTimes
from welldone.serve.page.watch import Watch
from welldone.serve.parts import Part, from_failure
from welldone.serve.recording import Recorder
from welldone.serve.refusals import from_engine, too_large
from welldone.serve.reports import Report
from welldone.serve.requests import Request
from welldone.serve.settings import ServeSettings
from welldone.serve.taping import Both, Taping
from welldone.serve.troubles import Trouble
from welldone.wire.asked import think_for
from welldone.wire.dialects.dialect import KEEP_ALIVE, Dialect
from welldone.wire.dialects.natives import NATIVE, native_for
from welldone.wire.events import Json
from welldone.wire.fold import Fold
from welldone.wire.head import Endpoint, Head
from welldone.wire.merge import Parts
from welldone.wire.native import Native
from welldone.wire.pipe import Pipe
from welldone.wire.texts import TextForm, Think

_PENDING_BYTES = 64 * 1024  # as much as asyncio lets wait for a client: more comes when the stream is open
_COMMENTS_LIMIT = 45  # in a row: clients give up at some hundred lines without data, and a comment has two
_WHOLE_LIMIT_BYTES = 256 * 2**20  # of a stream that is kept for a whole reply: a million tokens
_COMPLETE_S = 2.0  # for a [DONE] after the usage: servers send both at once
_UNCOUNTED_S = 10.0  # for the usage after the last finish_reason; some servers send that reason on each chunk
_GRACE_S = 0.5  # for what a server says after [DONE], which is nothing that counts
_NEVER_S = 86_400.0
_PATHS = {
    Endpoint.CHAT: "/chat/completions",
    Endpoint.COMPLETIONS: "/completions",
    Endpoint.RESPONSES: "/responses",
    Endpoint.MESSAGES: "/messages",
}
_PARAMS = {
    Endpoint.CHAT: "messages",
    Endpoint.COMPLETIONS: "prompt",
    Endpoint.RESPONSES: "input",
    Endpoint.MESSAGES: "messages",
}


class Answer:
    """One answer that is being given."""

    def __init__(
        self,
        call: Call,
        request: Request,
        backend: Backend,
        *,
        again: Callable[[], Request] | None = None,
        sticky: str | None = None,
        head: Head,
        dialect: Dialect | None = None,
        echo: Json | None = None,
        passed: Mapping[str, str] | None = None,
        reasoning: tuple[str, ...],
        settings: ServeSettings,
        report: Report,
        headers: Callable[[], Mapping[str, str]],
        recorder: Recorder | None = None,
        watch: Watch | None = None,
        bodies: Bodies | None = None,
    ) -> None:
        self._call = call
        self._bodies = bodies or Bodies()
        self._request = request
        self.backend = backend
        self._sticky = sticky
        self._settings = settings
        self.report = report
        self.times: StreamTimes = report.times
        self._headers = headers
        self._recorder = recorder
        self._watch = watch
        self._again = again  # reads the request once more, when the model is loaded and its abilities are known
        self._endpoint = Endpoint(request.endpoint)
        self._path = _PATHS[self._endpoint]
        self.param = _PARAMS[self._endpoint]
        self._head = head
        self._dialect = dialect
        self._echo = echo or {}
        self._passed = passed or {}
        self._reasoning = reasoning
        self._clock = cache(time.time)  # when the answer ended: a replay of it tells the same
        self.pipe = self._make_pipe()
        self.error: ApiError | None = None
        """Why there is no answer, if there is none."""
        self._stream: Stream | None = None
        self._pending = bytearray()  # what came before the stream was open
        self._parts = [Part(self, number) for number in range(len(request.parts))]
        self._ended = 0
        self._is_accepted = False  # the engine has begun
        self._has_said = False  # the client has heard something of the answer
        self._is_over = False
        self._changed = asyncio.Event()
        self._kept_at = time.monotonic()  # when something was last sent
        self._heard_bytes = 0
        self._comments = 0
        self._is_held = False  # nothing is heard until the client has read
        self._todo: deque[Part] = deque()
        self.is_whole = False
        """Whether all of it came."""
        self.cost = Cost(prompts=len(request.parts) // request.prompts)

    def _make_pipe(self) -> Pipe | Fold | Native:
        if self._watch is not None:
            self._watch.made(self._making())
        return self._making()()

    def _making(self) -> Callable[[], Pipe | Fold | Native]:
        """How a pipe for the request is made, once. It holds nothing of us: a watch may keep it for long."""
        request = self._request
        if self._endpoint in NATIVE:
            return partial(
                native_for,
                self._endpoint,
                fallback=self._head,
                request=self._echo,
                model=self.backend.shown,
                is_stream=request.is_stream,
                clock=self._clock,
            )
        return partial(
            Pipe if request.is_stream else Fold,
            self._endpoint,
            fallback=self._head,
            asked=msgspec.structs.replace(request.asked, is_usage_ours=True, top_logprobs=request.top_logprobs),
            parts=Parts(len(request.parts), request.prompts, tuple(request.echo or ())),
            forced=request.forced,
            model=self.backend.shown,
            dialect=copy.copy(self._dialect),  # it may keep the end of its answer: each pipe has one of its own
            reasoning=self._reasoning,
        )

    @property
    def final(self) -> Json | None:
        """The answer as an object, when it has come to its end, where its dialect has one."""
        return self.pipe.final

    async def run(self) -> Reply | None:
        """Give the answer; None where it was streamed.

        Raises:
            ApiError: there is none, and nothing was sent.
        """
        self.backend.check_room()
        self._todo = deque(self._parts)
        workers = min(len(self._parts), self.backend.slots)
        tasks = [asyncio.create_task(self._work(is_first=number == 0)) for number in range(workers)]
        try:
            if self._request.is_stream:
                await self._give_stream()
                return None
            return await self._give_whole()
        finally:
            self._is_over = True
            self._charge()
            for part in self._parts:
                part.close()
            for task in tasks:
                task.cancel()
            self._parts = []  # they hold us: rings are left to the collector
            self._pending.clear()

    def break_off(self, error: ApiError) -> None:
        """End the answer with an error, wherever it is."""
        if self._is_over or self.error is not None:
            return
        self.error = error
        if self._watch is not None:
            self._watch.fail(error.failure())
        try:
            self._say(self.pipe.fail(error.failure()))
        except Exception as mistake:  # noqa: BLE001 - whatever is wrong with us, the client hears an end
            log.event(logging.ERROR, "an answer could not be ended", error=mistake)
            self._say(self.pipe.last_words(error.failure()))
        finally:
            self._end()

    # What they cost.

    def _charge(self) -> None:
        """Estimate the cost of what was asked for, unless the usage of a whole answer says it."""
        if self.is_whole and self.pipe.usage is not None:
            return
        prompts: dict[int, int] = {}  # choices of one prompt are asked for one after the other
        for part in self._parts:
            if part.is_charged:
                number = part.number // self.cost.prompts
                if number not in prompts:
                    prompts[number] = prompt_tokens(self._request.parts[part.number])
                self.cost.prompt += prompts[number]
                self.cost.completion += part.received.tokens(has_logprobs=self._has_logprobs)

    def _waste(self, part: Part) -> None:
        """Another attempt is made at a part."""
        if part.is_charged:
            received = part.received.tokens(has_logprobs=self._has_logprobs)
            self.cost.wasted += prompt_tokens(self._request.parts[part.number]) + received

    @property
    def _has_logprobs(self) -> bool:
        """Whether the length of a chunk says little of its text. Events of native streams repeat the request."""
        body = self._request.parts[0]
        wanted = (body.get("logprobs"), body.get("top_logprobs"))
        return any(value not in (None, False) for value in wanted) or self._endpoint in NATIVE

    # How the parts are asked for.

    async def _work(self, *, is_first: bool) -> None:
        """Ask for one part after the other, in one seat. What goes wrong ends the whole answer."""
        avoid: set[str] = set()
        trouble: Trouble | None = None
        try:
            while self._todo and not self._is_over:
                async with self.backend.seat(avoid, self._sticky) as seat:
                    self.times.queued(seat.waited_s)
                    trouble = await self._ask_here(seat)
                avoid.add(seat.name)
        except ApiError as error:
            # One place is enough: who gets no second one has its parts asked for in the first.
            if is_first or trouble is not None or error.status not in (429, 503):
                self.break_off(error if trouble is None else trouble.error)
        except EngineError as error:
            self.break_off(from_engine(error))
        except Exception as error:  # noqa: BLE001 - the edge of a task: it logs, and the client gets an honest error
            self.fail(error)

    async def _ask_here(self, seat: Seat) -> Trouble | None:
        """Ask for parts in this seat, until there are no more, or one is better asked for elsewhere."""
        while self._todo and not self._is_over:
            part = self._todo.popleft()
            trouble = await self._ask(part, seat)
            if trouble is None:
                continue
            self.report.failed.append(f"{seat.name}:{trouble.outcome}")
            if self._is_over:
                continue
            if not self._may_retry(part, trouble, seat):
                self.break_off(trouble.error)
                return None
            if part.has_heard:
                self._take_back()
            self._waste(part)
            self._parts[part.number] = Part(self, part.number, attempt=part.attempt + 1)
            self._todo.appendleft(self._parts[part.number])
            if self.backend.has_another({seat.name}) or not await seat.again(trouble):
                return trouble
        return None

    async def _ask(self, part: Part, seat: Seat) -> Trouble | None:
        self.report.seat(seat)
        self.times.sent()
        self._tune(part, seat)
        async with self._bodies.holding(part):
            if self._is_over:
                return None
            body = self._body(part.number, seat)
            encoded = [msgspec.json.encode(body)]
            tape: Taping | None = None
            if self._recorder is not None and seat.upstream is not None:
                tape = self._recorder.begin(self._path, body, seat.name, self.report.request_id)
            if self._watch is not None:
                watching = self._watch.ask(part.number, seat.name, encoded[0], is_local=seat.upstream is None)
                tape = watching if tape is None else Both((tape, watching))
            # It is not held here while the answer comes: `n` parts would hold it n times.
            return await part.ask(seat, self._path, encoded.pop(), tape, told(seat, self._passed))

    def _tune(self, part: Part, seat: Seat) -> None:
        tuned = seat.upstream
        if tuned is None:
            return
        think = think_for(cast("Think", tuned.settings.think), self._request.parts[part.number])
        text = cast("TextForm", tuned.settings.text)
        strict = frozenset(tuned.settings.strict)
        reword = partial(refusals.reword, secrets=tuned.secrets)
        self.pipe.tune(part.number, think=think, text=text, strict=strict, reword=reword)
        if self._watch is not None:
            self._watch.tune(part.number, think=think, text=text, strict=strict, reword=reword)

    def _may_retry(self, part: Part, trouble: Trouble, seat: Seat) -> bool:
        """Where nothing of the part has gone out yet, and somebody may do better."""
        if (
            part.attempt >= self.backend.attempts
            or not trouble.is_worth_another
            or (part.has_heard and not self._is_unsaid)
        ):
            return False
        if seat.upstream is None:
            return trouble.is_lost
        return trouble.is_stale or seat.is_gone or self.backend.has_another({seat.name})

    @property
    def _is_unsaid(self) -> bool:
        """Whether the client has heard nothing of what an upstream said, so that it can be taken back."""
        return bool(self.backend.upstreams) and not self._has_said and len(self._parts) == 1

    def _take_back(self) -> None:
        """Forget what was heard of the answer."""
        self._pending.clear()
        self._is_held = False
        self._is_accepted = False
        self._ended = 0
        self.pipe = self._make_pipe()

    # What the parts call.

    def fail(self, error: Exception) -> None:
        """A mistake of ours."""
        log.event(logging.ERROR, "an answer failed", error=error)
        self.break_off(ApiError(500, "The server failed. Its log says why.", code="internal_error"))

    def _body(self, part: int, seat: Seat) -> Json:
        if self._again is not None:
            self._request = self._again()
            self._again = None
        return {**self._request.parts[part], "model": seat.model}

    def wake(self) -> None:
        """The silence that is allowed has changed."""
        self._changed.set()

    def accepted(self) -> None:
        """The engine has begun with a part."""
        # Of an upstream the first word is waited for as well: it may be an error, which still gets its status.
        if not self._is_accepted and not self.backend.upstreams:
            self._begin()

    def heard(self, data: bytes, part: int) -> bool:
        """More of a part's stream; whether it has said something by now."""
        if self._is_over:
            return False
        self._heard_bytes += len(data)
        if self._watch is not None:
            self._watch.feed(data, part)
        if self._heard_bytes > _WHOLE_LIMIT_BYTES and self.pipe.keeps:
            self.break_off(too_large())
            return False
        said = self.pipe.feed(data, part)
        if self.pipe.failure is not None:
            self._break(part, said)
            return True
        if not self.pipe.has_begun(part):
            if isinstance(self.pipe, Native):
                self._say(said)  # that an answer will come: it has events for that
            return False
        self.times.more()
        self._say(said)
        if self.pipe.is_stopped(part):
            self._parts[part].finish()  # the engine would go on, and is left at once
        elif self.pipe.is_part_done(part):
            # Some servers leave the body open after this: nobody waits for them.
            self._parts[part].finish_after(_GRACE_S)
        elif self.pipe.is_part_complete(part):
            # Some servers send no [DONE] and leave the body open: the answer is whole all the same.
            self._parts[part].finish_after(_COMPLETE_S if self.pipe.is_part_counted(part) else _UNCOUNTED_S)
        else:
            self._flow()
        return True

    def _flow(self) -> None:
        """Let plain text flow without a detour, once the stream is open."""
        if self._stream is not None and len(self._parts) == 1 and isinstance(self.pipe, Pipe) and self.pipe.may_flow:
            self._parts[0].flow(self.pipe, self._stream, self.times)

    def heard_whole(self, data: bytes, part: int) -> Iterator[None]:
        """A part's reply, which was not streamed; each step takes a turn."""
        if self._is_over:
            return
        self.times.more()
        if self._watch is not None:
            self._watch.whole(data, part)
        for said in self.pipe.take_whole(data, part):
            if self.pipe.failure is not None:
                self._break(part, said)
                return
            self._say(said)
            yield
            if self._is_over:
                return

    @property
    def has_content(self) -> bool:
        """Whether what was heard last had something of the answer in it."""
        return self.pipe.has_content

    @property
    def is_congested(self) -> bool:
        """Whether the client takes less than it is given."""
        return self._stream is not None and self._stream.is_congested

    def is_done(self, part: int) -> bool:
        """Whether a part has said `[DONE]`."""
        return self.pipe.is_part_done(part)

    def ended(self, part: int) -> None:
        """A part's stream has ended."""
        if self._is_over:
            return
        self._ended += 1
        said = self._close(part)
        if self.pipe.failure is not None:
            self._break(part, said)
            return
        self._say(said)
        if self._ended == len(self._parts):
            self.is_whole = True
            self._end()

    def _break(self, part: int, said: bytes | None) -> None:
        """A part has failed by what it said: if nothing went out yet, whoever waits for the part decides."""
        failure = self.pipe.failure
        assert failure is not None
        trouble = from_failure(failure)
        self._parts[part].give_up(trouble)
        if self._is_unsaid:
            self._take_back()  # whoever waits for the part decides: another is asked, or this is a status
            return
        if self.backend.upstreams and self._stream is None:
            self.error = trouble.error  # then it is a status
        self._say(said)
        self._say(self._close(part))
        self._end()

    def _close(self, part: int) -> bytes | None:
        if self._watch is not None:
            self._watch.close(part)
        return self.pipe.close(part)

    def _begin(self) -> None:
        self._is_accepted = True
        self._changed.set()

    # What the handler's task does.

    async def _give_whole(self) -> Reply:
        while not self._is_over:
            await self._sleep(_NEVER_S)
        if self.error is not None:
            raise self.error
        failure = self.pipe.failure
        if failure is not None:
            raise from_failure(failure).error
        assert not isinstance(self.pipe, Pipe)
        if self._watch is not None:
            self._watch.body()
        told = {**self.report.headers(), **self.report.trailers(self.pipe)}
        # The body of a long answer is made in a thread: that is Python code, so the event loop still gets its turns.
        is_long = isinstance(self.pipe, Fold) and self.pipe.is_long
        body = await asyncio.to_thread(self.pipe.body) if is_long else self.pipe.body()
        return Reply(200, body, headers={**self._headers(), **told})

    async def _give_stream(self) -> None:
        # A refusal that comes at once gets its status; who waits longer gets the head of the stream, and signs of life.
        late = time.monotonic() + self._settings.early_s
        while not (self._is_accepted or self._is_over) and (left_s := late - time.monotonic()) > 0:
            await self._sleep(left_s)
        if self.error is not None:
            raise self.error
        stream = await self._call.open(
            {**self.pipe.headers, **self._headers(), **self.report.headers()}, trailers=self.report.trailer_names
        )
        self._stream = stream
        stream.when_congested(self._hold)
        pending, self._pending = bytes(self._pending), bytearray()
        self._say(pending)
        self._flow()
        while not self._is_over:
            if self._is_held or stream.is_congested:
                await self._let_drain(stream)
            else:
                await self._sleep(self._keep_alive(stream))
        await stream.end(self.report.trailers(self.pipe))

    async def _sleep(self, limit_s: float) -> None:
        """Wait until something has changed, or the time is over. An engine that is silent for too long is given up."""
        self._changed.clear()
        if self._is_over:
            return
        now = time.monotonic()
        left_s = limit_s
        for part in self._parts:
            if part.is_asked and not part.has_ended:
                left_s = min(left_s, part.deadline - now)
                if part.deadline <= now:
                    part.time_out()
                    left_s = 0.0
        if left_s <= 0:
            await asyncio.sleep(0)  # whoever waits for the part decides what becomes of it
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await self._changed.wait()

    def _keep_alive(self, stream: Stream) -> float:
        """Send a sign of life if the line has been silent for so long; how long until the next is due."""
        now = time.monotonic()
        sent_at = max(part.sent_at for part in self._parts)
        if sent_at > self._kept_at:
            self._kept_at = sent_at
            self._comments = 0
        due_s = self._kept_at + self._settings.keep_alive_s - now
        if due_s > 0:
            return due_s
        self._kept_at = now
        if self._comments < _COMMENTS_LIMIT:
            self._comments += 1
            if self._watch is not None:
                self._watch.keep_alive()
            stream.write(self.pipe.keep_alive())
        return self._settings.keep_alive_s

    def _hold(self) -> None:
        """Hear no more until the client has read: now, since the loop may read megabytes more before the task wakes."""
        self._is_held = True
        for part in self._parts:
            part.pause()
        self._changed.set()

    async def _let_drain(self, stream: Stream) -> None:
        """Wait for a client that reads more slowly than the engine writes; one that does not read at all is left."""
        self._hold()
        self._is_held = False
        try:
            async with asyncio.timeout(self._settings.write_s):
                await stream.drain()
        except TimeoutError:
            self.error = ApiError(408, "The client does not read.", code="client_too_slow")
            self.pipe.fail(self.error.failure())  # nobody hears it, but it is counted and logged
            self._is_over = True
            stream.abort()
        for part in self._parts:
            part.resume()

    def _say(self, data: bytes | None) -> None:
        """Send bytes on, or keep them until the stream is open."""
        if not data:
            return
        stream = self._stream
        if stream is None:
            if not data.replace(KEEP_ALIVE, b""):
                return  # a sign of life is no answer: a failure is still a status
            self._pending += data
            self._begin()
            if len(self._pending) > _PENDING_BYTES:
                self._hold()
        else:
            self._has_said = True
            self._comments = 0
            self._kept_at = time.monotonic()
            stream.write(data)

    def _end(self) -> None:
        self._is_over = True
        self._changed.set()
