"""One model and its engine: loaded when it is asked for, watched, started again when it dies.

UNLOADED -> LOADING -> READY -> RESTARTING -> READY …
               |         |          |
             FAILED   UNLOADED    FAILED        and STOPPED from everywhere, for ever
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum

from welldone.engines.abilities import Abilities, read_abilities
from welldone.engines.address import Address
from welldone.engines.backoff import Backoff
from welldone.engines.errors import EngineError
from welldone.engines.gguf import Facts
from welldone.engines.plan import Plan
from welldone.engines.probe import is_answering, is_sick
from welldone.engines.process import Process, ending
from welldone.engines.settings import ModelSettings
from welldone.engines.tail import Tail

STOP_S = 10.0
"""Between SIGTERM and SIGKILL. llama.cpp ends at once; a command may have something to finish."""

NEWS_S = 1.0
"""The system tells of a child's death in milliseconds; on a busy machine it takes longer."""


class State(StrEnum):
    """Where a model is. Waiting helps with LOADING and RESTARTING; asking helps with UNLOADED and FAILED."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"


class Model:
    """A model that is there when it is needed. `make_plan` may block; it runs in a thread."""

    def __init__(
        self,
        settings: ModelSettings,
        make_plan: Callable[[ModelSettings], Plan],
        *,
        take_place: Callable[["Model"], Awaitable[None]],
        leave_place: Callable[["Model"], None],
        on_change: Callable[["Model"], None],
        on_idle: Callable[[], None],
        on_line: Callable[["Model", str], None],
        clock: Callable[[], float],
        pause: Callable[[float], Awaitable[None]],
        now: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.state = State.UNLOADED
        self.abilities: Abilities | None = None
        self.facts: Facts | None = None
        """What its file says of itself, also before it is loaded."""
        self.started_at: float | None = None
        """When it was last ready, in seconds since 1970."""
        self.restarts = 0
        """Deaths of an engine that was ready."""
        self.last_error: EngineError | None = None
        self.running = 0
        """Requests that use it now, and those that wait for it."""
        self.last_used = clock()
        self.process: Process | None = None
        self._tail = Tail()
        self._make_plan = make_plan
        self._take_place = take_place
        self._leave_place = leave_place
        self._on_change = on_change
        self._on_idle = on_idle
        self._on_line = on_line
        self._clock = clock
        self._pause = pause
        self._now = now
        self._backoff = Backoff(clock)
        self._retry_at = clock()
        self._settled = asyncio.Event()
        self._life: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._doubt: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The id that clients use."""
        return self.settings.name

    @property
    def is_idle(self) -> bool:
        """Loaded, and nobody uses it."""
        return self.state is State.READY and not self.running

    @property
    def address(self) -> Address | None:
        """Where the engine answers, if it does; asking for it is no use of the model."""
        return self.process.plan.address if self.state is State.READY and self.process is not None else None

    @property
    def inner_name(self) -> str:
        """What its engine calls it: a command has a name of its own."""
        if self.abilities is not None and self.abilities.kind == "command":
            return self.abilities.name or self.name
        return self.name

    @property
    def says(self) -> str:
        """What its engine says just now: the last line, or a bar that grows."""
        return self._tail.now

    @contextmanager
    def using(self) -> Iterator[None]:
        """Counts a request: while one runs, the model is not unloaded. Best entered before `ready` is awaited."""
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self.last_used = self._clock()
            if not self.running:
                self._on_idle()

    async def ready(self) -> Address:
        """Where the engine answers. Loads the model if need be: one load, however many wait for it.

        Who is cancelled leaves the load alone. Raises `EngineError` if the model cannot be had.
        """
        with self.using():
            self.load()
            while self.state in (State.LOADING, State.RESTARTING) or self._is_dead:
                self._settled.clear()
                await self._settled.wait()
            if self.state is State.READY and self.process is not None:
                return self.process.plan.address
            raise self._trouble()

    @property
    def _is_dead(self) -> bool:
        """Whether the engine ended and `_watch` does not know it yet."""
        return self.state is State.READY and self.process is not None and not self.process.is_running

    async def check(self) -> None:
        """After a connection was lost: wait a moment for the news of the engine's death, if it has died."""
        if self.process is not None:
            await self.process.ends_within(NEWS_S)

    def doubt(self, within_s: float) -> None:
        """After a request that was silent for too long: an engine that answers nobody so long is ended.

        It is then started again, as after any death. A `command` is ended only where it says itself that it is not
        well: there are servers that answer one after the other, and are only busy.
        """
        if self.process is not None and (self._doubt is None or self._doubt.done()):
            self._doubt = asyncio.create_task(self._end_if_lost(self.process, within_s))

    async def _end_if_lost(self, process: Process, within_s: float) -> None:
        if self.settings.command:
            is_lost, why = await is_sick(process.plan.address), "says that it is not well"
        else:
            is_lost, why = not await is_answering(process.plan.address, within_s), f"answers nobody for {within_s:g} s"
        if is_lost:
            self._on_line(self, f"{why}: it is ended")
            await process.stop(0)

    def load(self) -> None:
        """Begins to load the model, if it is not. `EngineError` if that failed a moment ago, or it was stopped."""
        if self.state is State.STOPPED or (self.state is State.FAILED and self._clock() < self._retry_at):
            raise self._trouble()
        if self.state in (State.UNLOADED, State.FAILED):
            self._move(State.LOADING)
            self._life = asyncio.create_task(self._live(self._ending), name=f"engine {self.name}")
            self._life.add_done_callback(self._is_over)

    def _trouble(self) -> EngineError:
        """The error for somebody who asks now."""
        error = self.last_error
        if self.state is not State.FAILED or error is None:
            return EngineError(f"the model {self.name} is not loaded any more", retry_after_s=1.0)
        return EngineError(
            error.message,
            is_permanent=error.is_permanent,
            retry_after_s=max(self._retry_at - self._clock(), 0.0),
            details=error.details,
        )

    async def _live(self, before: asyncio.Task[None] | None) -> None:
        """The engine's life, over all its deaths. Ends when it cannot be started; is cancelled to end it sooner."""
        if before is not None:
            await asyncio.shield(before)  # the memory that it gives back is needed
        await self._take_place_or_fail()
        while self.state in (State.LOADING, State.RESTARTING):
            try:
                self.process = await self._start()
            except EngineError as error:
                self._cannot_start(error)
            else:
                await self._watch(self.process)
            if self.state is State.RESTARTING:
                await self._pause(self._retry_at - self._clock())

    async def _take_place_or_fail(self) -> None:
        try:
            await self._take_place(self)
        except EngineError as error:
            self._fail(error, error.retry_after_s or 0.0)

    async def _start(self) -> Process:
        """A process that is ready, with `abilities` read."""
        plan = await asyncio.to_thread(self._make_plan, self.settings)
        self._tail = Tail(lambda line: self._on_line(self, line))
        process = await Process.start(plan, within_s=self.settings.load_limit_s, tail=self._tail)
        try:
            self.abilities = await read_abilities(plan.address, self.settings, plan.facts)
        except BaseException:
            await process.stop(0)
            raise
        return process

    def _cannot_start(self, error: EngineError) -> None:
        wait_s = self._backoff.died()
        named = EngineError(
            f"the model {self.name} cannot be loaded: {error.message}",
            is_permanent=error.is_permanent,
            details=error.details,
        )
        if error.is_permanent or self._backoff.is_hopeless:
            self._fail(named, wait_s)
        else:
            self._restart(named, wait_s)

    async def _watch(self, process: Process) -> None:
        """From ready to death."""
        self.started_at = self._now()
        self.last_used = self._clock()
        self._backoff.is_ready()
        self._move(State.READY)
        code = await process.wait()
        self.process = None
        self.restarts += 1
        wait_s = self._backoff.died()
        text = f"the engine of the model {self.name} {ending(code)}"
        self._restart(EngineError(text, details=process.log), wait_s)
        await process.stop(0)  # what is left of it: pipes, a socket, a command's workers

    def _fail(self, error: EngineError, wait_s: float) -> None:
        self._remember(error, wait_s)
        self._leave_place(self)
        self._move(State.FAILED)

    def _restart(self, error: EngineError, wait_s: float) -> None:
        self._remember(error, wait_s)
        self._move(State.RESTARTING)

    def _remember(self, error: EngineError, wait_s: float) -> None:
        self.last_error = error
        self._retry_at = self._clock() + wait_s

    def _move(self, state: State) -> None:
        self.state = state
        if state in (State.LOADING, State.RESTARTING):
            self._settled.clear()
        else:
            self._settled.set()
        self._on_change(self)

    def _is_over(self, life: asyncio.Task[None]) -> None:
        """A life that ends by a mistake of ours leaves nobody waiting. The loop's handler logs the mistake."""
        if life.cancelled() or life is not self._life or (error := life.exception()) is None:
            return
        self._fail(EngineError(f"the model {self.name} cannot be loaded: internal error"), self._backoff.died())
        asyncio.get_running_loop().call_exception_handler({"message": f"engine {self.name}", "exception": error})

    def begin_to_unload(self) -> None:
        """Ends the engine, soon. The next `ready` loads it again."""
        if self.state in (State.LOADING, State.READY, State.RESTARTING):
            self._begin_to_end(State.UNLOADED)

    async def unload(self) -> None:
        """Ends the engine, and waits for that."""
        self.begin_to_unload()
        if self._ending is not None:
            await asyncio.shield(self._ending)

    async def stop(self, within_s: float = STOP_S) -> None:
        """Ends the engine for good. When this returns, nothing of it is left."""
        if self.state is not State.STOPPED:
            self._begin_to_end(State.STOPPED, within_s)
        if self._ending is not None:
            await asyncio.shield(self._ending)

    def _begin_to_end(self, state: State, within_s: float = STOP_S) -> None:
        if self._doubt is not None:
            self._doubt.cancel()
        life, self._life = self._life, None
        process, self.process = self.process, None
        self._ending = asyncio.create_task(self._finish(life, process, self._ending, within_s))
        self._move(state)

    async def _finish(
        self,
        life: asyncio.Task[None] | None,
        process: Process | None,
        before: asyncio.Task[None] | None,
        within_s: float,
    ) -> None:
        if life is not None:
            life.cancel()
            await asyncio.wait({life})
        if process is not None:
            await process.stop(within_s)
        if before is not None:
            await asyncio.wait({before})
        self._leave_place(self)
