"""A probe of who leaves: whether a server stops when nobody listens any more.

A server that shows how many requests it works on is looked at. Of any other there are only times to see: a small
request that has to wait shows that something else runs.
"""

import asyncio
import itertools
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from welldone.check import settings
from welldone.check.probe import Probe
from welldone.check.reply import ProbeReply, ProbeRequest
from welldone.check.session import NotApplicableError, Session
from welldone.rules.view.choices import as_list, as_object, is_int

# A probe of times: whether words come when they are made.


FLUSH_EACH_EVENT = "http-flush-each-event"

_MIN_DELTAS = 8  # chunks with text: of fewer there is no saying that they were collected
_FLUSH_TOKENS = 48
_LONGER_FLUSH_TOKENS = 192  # where nothing is collected, they take longer than a network waits to fill a packet
_BURST_S = 0.005  # no model makes so many tokens in that time


async def _probe_flush(session: Session) -> None:
    reply = await _stream_deltas(session, _FLUSH_TOKENS)
    if not _is_burst(session, reply):
        session.check_rule(FLUSH_EACH_EVENT, reply, passed=True)
        return
    # A single burst may be the network's. Who collects twice does so always.
    reply = await _stream_deltas(session, _LONGER_FLUSH_TOKENS)
    times = reply.delta_times
    heard = f"nothing for {times[0]:.2f} s, then {len(times)} pieces of text within {times[-1] - times[0]:.3f} s"
    session.check_rule(
        FLUSH_EACH_EVENT, reply, not _is_burst(session, reply), observed=heard, expected="each piece when it is made"
    )


async def _stream_deltas(session: Session, tokens: int) -> ProbeReply:
    """A stream with many pieces of text."""
    reply = session.require_ok(await session.generate(settings.COUNT_PROMPT, max_tokens=tokens))
    if len(reply.delta_times) < _MIN_DELTAS:
        raise NotApplicableError(f"{len(reply.delta_times)} pieces of text are too few to show when each is sent")
    return reply


def _is_burst(session: Session, reply: ProbeReply) -> bool:
    """Whether all came at once, after a time in which some could have come."""
    times = reply.delta_times
    if times[-1] - times[0] > _BURST_S:
        return False
    if times[-1] < session.timeouts.stream_s:
        raise NotApplicableError("the answer came too quickly to tell")
    return True


FLUSH_PROBES = (
    Probe(
        name="flush",
        description="whether words come as they are made",
        run=_probe_flush,
        rules=(FLUSH_EACH_EVENT,),
        is_exclusive=True,
    ),
)


# How many requests a server says that it works on, where it says so.


Gauge: TypeAlias = Callable[[Session], Awaitable[float | None]]

_GAUGE_METRICS = (
    "llamacpp:requests_processing",  # of llama.cpp, and of welldone
    "vllm:num_requests_running",
    "sglang:num_running_reqs",
    "tgi_batch_current_size",
)
_METRIC_SAMPLE = re.compile(
    rf"^(?:{'|'.join(_GAUGE_METRICS)})(?:\{{.*\}})?[ \t]+([0-9]{{1,9}}(?:\.[0-9]{{1,9}})?)(?=[ \t\r]|$)", re.M
)
"""A line of Prometheus' text. Such a number is small; an exponent is never needed for it."""


async def find_gauge(session: Session) -> Gauge | None:
    """The one that the server has."""
    for gauge in (_slots_gauge, _metrics_gauge):
        if await gauge(session) is not None:
            return gauge
    return None


async def _slots_gauge(session: Session) -> float | None:
    """As llama.cpp shows it: a list of the places where it can work. Older versions have a number for its state."""
    reply = await session.send(ProbeRequest(method="GET", path="/slots", is_root=True), is_judged=False)
    slots = [as_object(slot) for slot in as_list(reply.view.first_value.json)] if reply.is_ok else []
    states = [slot.get("is_processing", slot.get("state")) for slot in slots]
    if not states or not all(isinstance(state, bool) or is_int(state) for state in states):
        return None
    return sum(bool(state) for state in states)


async def _metrics_gauge(session: Session) -> float | None:
    """As most servers count, for Prometheus."""
    headers = (("Accept", "text/plain"),)
    reply = await session.send(
        ProbeRequest(method="GET", path="/metrics", headers=headers, is_root=True), is_judged=False
    )
    numbers = _METRIC_SAMPLE.findall(reply.view.body_text) if reply.is_ok else []
    return sum(map(float, numbers)) if numbers else None


CANCEL_ON_DISCONNECT = "live-cancel-on-disconnect"
_CANCEL_EXPECTED = "a server that stops when its client goes away"

_LONG_ANSWER_TOKENS = 400  # of an answer that is left: it would go on for seconds
_FRAMES_BEFORE_DISCONNECT = 3  # that are heard before: by then it surely runs
_POLL_S = 0.05  # between two looks; they cost the server next to nothing
_CONCURRENT_STREAMS = 3  # that make it busy: with a small request there are four at once, as by default
_TIMING_NOISE_S = 0.1  # by which two times may differ for no reason

RunningRequest: TypeAlias = "asyncio.Task[ProbeReply]"


class _DisconnectingReader:
    """One who hears the beginning of long answers, and then leaves when told to."""

    def __init__(self) -> None:
        self.has_started = False
        self.is_disconnecting = False

    def should_abort(self, body: bytes) -> bool:
        self.has_started = self.has_started or body.count(b"data:") > _FRAMES_BEFORE_DISCONNECT
        return self.has_started and self.is_disconnecting

    async def generate(self, session: Session) -> ProbeReply:
        return await session.generate(
            settings.COUNT_PROMPT, max_tokens=_LONG_ANSWER_TOKENS, abort_when=self.should_abort
        )


async def _probe_disconnect(session: Session) -> None:
    if session.jobs == 1:
        raise NotApplicableError("it takes two requests at once: --jobs 2")
    gauge = await find_gauge(session)
    if gauge is None:
        await _check_by_timing(session)
    else:
        await _check_by_gauge(session, gauge)


# ---- with a gauge


async def _check_by_gauge(session: Session, gauge: Gauge) -> None:
    if await _seconds_until_idle(session, gauge) is None:
        raise NotApplicableError("the server has other work to do")
    left = await _disconnect_when_seen(session, gauge)
    idle_s = await _seconds_until_idle(session, gauge)
    if idle_s is not None:
        _check_cancelled(session, left, idle_s)
        return
    # Some gauges stand still while nothing is asked.
    session.require_ok(await _send_small_request(session))
    if not await gauge(session):
        raise NotApplicableError("the server's own count of its requests is late")
    heard = f"a request that still runs {session.timeouts.disconnect_s:g} s after its client went away"
    session.check_rule(CANCEL_ON_DISCONNECT, left, passed=False, observed=heard, expected=_CANCEL_EXPECTED)


async def _disconnect_when_seen(session: Session, gauge: Gauge) -> ProbeReply:
    """A long answer that was left once the gauge had shown it."""
    listener = _DisconnectingReader()
    async with _running_requests(listener.generate(session)) as (stream,):
        while not stream.done() and not listener.is_disconnecting:
            listener.is_disconnecting = bool(await gauge(session))
            await asyncio.sleep(_POLL_S)
        left = session.require_ok(await stream)
    if not left.recording.is_aborted:
        raise NotApplicableError("the answer was over before the server showed that it was at work")
    return left


async def _seconds_until_idle(session: Session, gauge: Gauge) -> float | None:
    """Seconds until the server works on nothing; None: it goes on for longer than we wait."""
    begun = time.monotonic()
    while await gauge(session):
        if time.monotonic() - begun > session.timeouts.disconnect_s:
            return None
        await asyncio.sleep(_POLL_S)
    return time.monotonic() - begun


# ---- with a clock


async def _check_by_timing(session: Session) -> None:
    alone_s = max([session.require_ok(await _send_small_request(session)).recording.ended_s for _ in range(2)])
    listener = _DisconnectingReader()
    count = min(_CONCURRENT_STREAMS, session.jobs - 1)
    async with _running_requests(*(listener.generate(session) for _ in range(count))) as streams:
        pending = set(streams)
        while pending and not listener.has_started:
            _, pending = await asyncio.wait(streams, timeout=_POLL_S)
        busy_s = await _time_under_load(session, alone_s)
        listener.is_disconnecting = True
        await asyncio.wait(streams, timeout=busy_s)  # those that wait for their turn are left by force
        left = [stream.result() for stream in streams if stream.done() and stream.exception() is None]
    left = [reply for reply in left if reply.recording.is_aborted]
    if not left:
        raise NotApplicableError("the answers were over before anybody could leave")
    free_s = await _seconds_until_free(session, (alone_s + busy_s) / 2)
    if free_s is not None:
        _check_cancelled(session, left[0], free_s)
        return
    heard = (
        f"a small request waits {session.timeouts.disconnect_s:g} s after all others were left; alone {alone_s:.2f} s"
    )
    session.check_rule(CANCEL_ON_DISCONNECT, left[0], passed=False, observed=heard, expected=_CANCEL_EXPECTED)


async def _time_under_load(session: Session, alone_s: float) -> float:
    """How long a small request takes while others run: at least so long, where it waits for them to end."""
    slow_s = max(2 * alone_s, alone_s + _TIMING_NOISE_S)
    begun = time.monotonic()
    async with _running_requests(_send_small_request(session)) as asked:
        done, _ = await asyncio.wait(asked, timeout=2 * slow_s)
        busy_s = time.monotonic() - begun
    for task in done:
        session.require_ok(task.result())
    if busy_s < slow_s:
        raise NotApplicableError(
            "nothing shows whether it still works: no /slots, no /metrics, and no request has to wait"
        )
    return busy_s


async def _seconds_until_free(session: Session, free_s: float) -> float | None:
    """Seconds until a small request is answered quickly again; None: it is not, for longer than we wait."""
    begun = time.monotonic()
    while session.require_ok(await _send_small_request(session)).recording.ended_s > free_s:
        if time.monotonic() - begun > session.timeouts.disconnect_s:
            return None
    return time.monotonic() - begun


# ---- both


def _check_cancelled(session: Session, disconnected: ProbeReply, after_s: float) -> None:
    """The server stopped: of its own accord only where there was much left to say."""
    times = disconnected.delta_times
    pace_s = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0
    if after_s > pace_s * (_LONG_ANSWER_TOKENS - len(times)) / 2:
        raise NotApplicableError("the answer may have been over by itself")
    session.check_rule(CANCEL_ON_DISCONNECT, disconnected, passed=True)


async def _send_small_request(session: Session) -> ProbeReply:
    return await session.generate(settings.HELLO_PROMPT, max_tokens=1, is_exact=True)


@asynccontextmanager
async def _running_requests(*work: Coroutine[Any, Any, ProbeReply]) -> AsyncIterator[list[RunningRequest]]:
    """Requests that run beside. Whatever happens, none is left behind."""
    tasks = [asyncio.create_task(request) for request in work]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


DISCONNECT_PROBES = (
    Probe(
        name="leaving",
        description="whether a long answer stops when its client goes away",
        run=_probe_disconnect,
        rules=(CANCEL_ON_DISCONNECT,),
        is_exclusive=True,
    ),
)


# A probe of times: what comes while a long prompt is read.


HEADERS_BEFORE_PREFILL = "http-headers-before-prefill"

_PROMPT_SENTENCES = 50  # of ten words: they take a second or so on a small machine
_LONGER_PROMPT_SENTENCES = 150  # for a fast one
_PREFILL_FACTOR = (
    3  # times `prefill_s`: a head that comes so soon is late for nobody, and lets a refusal have its status
)
_FILLER_NOUNS = (
    "house",
    "river",
    "letter",
    "garden",
    "engine",
    "window",
    "market",
    "bridge",
    "forest",
    "teacher",
    "kettle",
)
_FILLER_LOCATIONS = ("north", "old town", "valley", "harbour", "hills", "village", "station")


async def _probe_prefill(session: Session) -> None:
    reply = session.require_ok(await _send_long_prompt(session, _PROMPT_SENTENCES))
    if _is_inconclusive(session, reply):
        longer = await _send_long_prompt(session, _LONGER_PROMPT_SENTENCES)
        reply = longer if longer.is_ok else reply
    if _is_inconclusive(session, reply):
        raise NotApplicableError("a long prompt was read too quickly to tell")
    head_s = reply.recording.head_s or 0.0
    heard = f"the head after {head_s:.2f} s, and the first text after {reply.delta_times[0]:.2f} s"
    session.check_rule(
        HEADERS_BEFORE_PREFILL, reply, _has_early_headers(reply), observed=heard, expected="the head at once"
    )


def _is_inconclusive(session: Session, reply: ProbeReply) -> bool:
    """Whether it says nothing: the text came at once, or its head came late but soon enough."""
    if not reply.delta_times:
        raise NotApplicableError("the answer had no text")
    prefill_s, head_s = session.timeouts.prefill_s, reply.recording.head_s or 0.0
    return reply.delta_times[0] < prefill_s or (not _has_early_headers(reply) and head_s < _PREFILL_FACTOR * prefill_s)


def _has_early_headers(reply: ProbeReply) -> bool:
    return (reply.recording.head_s or 0.0) <= reply.delta_times[0] / 2


async def _send_long_prompt(session: Session, sentences: int) -> ProbeReply:
    return await session.generate(f"{filler_text(sentences)}\n\nSay OK.", max_tokens=8)


def filler_text(sentences: int) -> str:
    """Text that no server has read before: what it has read it may remember, and then there is no wait."""
    numbers = range(1, sentences + 1)
    words = zip(numbers, itertools.cycle(_FILLER_NOUNS), itertools.cycle(_FILLER_LOCATIONS), strict=False)
    story = " ".join(f"Number {number} is a {thing} from the {place}, seen today." for number, thing, place in words)
    return f"Note {secrets.token_hex(4)}. {story}"


PREFILL_PROBES = (
    Probe(
        name="long",
        description="a short answer to a long prompt",
        run=_probe_prefill,
        rules=(HEADERS_BEFORE_PREFILL,),
        is_exclusive=True,
    ),
)
