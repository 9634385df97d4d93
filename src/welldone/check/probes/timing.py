"""Probes of timing: incremental delivery, cancellation after a disconnect, and the response head before prefill."""

import asyncio
import itertools
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from welldone.check import settings
from welldone.check.reply import ProbeReply, ProbeRequest
from welldone.check.session import NotApplicableError, Probe, Session
from welldone.rules.view.choices import as_list, as_object, is_int

# ---- incremental delivery


_MIN_DELTAS = 8  # fewer chunks with text do not show whether they were buffered
_FLUSH_TOKENS = 48
_LONGER_FLUSH_TOKENS = 192  # unbuffered, they take longer than the network coalesces packets
_BURST_S = 0.005  # no model generates `_MIN_DELTAS` tokens in that time


async def _probe_flush(session: Session) -> None:
    reply = await _stream_deltas(session, _FLUSH_TOKENS)
    if not _is_burst(session, reply):
        session.check_rule("http-flush-each-event", reply, passed=True)
        return
    # A single burst may come from the network, so the request is repeated with a longer answer.
    reply = await _stream_deltas(session, _LONGER_FLUSH_TOKENS)
    times = reply.delta_times
    observed = f"nothing for {times[0]:.2f} s, then {len(times)} chunks with text within {times[-1] - times[0]:.3f} s"
    is_burst = _is_burst(session, reply)
    session.check_rule("http-flush-each-event", reply, not is_burst, observed, "each chunk as soon as it is generated")


async def _stream_deltas(session: Session, tokens: int) -> ProbeReply:
    """A stream with at least `_MIN_DELTAS` chunks with text."""
    reply = await session.answer(settings.COUNT_PROMPT, max_tokens=tokens)
    if len(reply.delta_times) < _MIN_DELTAS:
        raise NotApplicableError(f"{len(reply.delta_times)} chunks with text are too few to measure their times")
    return reply


def _is_burst(session: Session, reply: ProbeReply) -> bool:
    """Whether all chunks arrived together, after a time in which some could have been sent."""
    times = reply.delta_times
    if times[-1] - times[0] > _BURST_S:
        return False
    if times[-1] < session.timeouts.stream_s:
        raise NotApplicableError("the answer was too fast to measure when its chunks were sent")
    return True


# ---- cancellation after a disconnect
#
# Where the server reports its running requests (/slots or /metrics), the probe reads that number. Otherwise it measures
# the time of a small request: if that has to wait, another request is still running.


Gauge: TypeAlias = Callable[[Session], Awaitable[float | None]]
"""Reads the number of running requests; None where the server does not report it."""

_GAUGE_METRICS = (
    "llamacpp:requests_processing",  # llama.cpp and welldone
    "vllm:num_requests_running",
    "sglang:num_running_reqs",
    "tgi_batch_current_size",
)
_METRIC_SAMPLE = re.compile(
    rf"^(?:{'|'.join(_GAUGE_METRICS)})(?:\{{.*\}})?[ \t]+([0-9]{{1,9}}(?:\.[0-9]{{1,9}})?)(?=[ \t\r]|$)", re.M
)
"""A sample in the Prometheus text format. The value is small, so exponents are not parsed."""


async def _slots_gauge(session: Session) -> float | None:
    """/slots of llama.cpp: a list with `is_processing`, in older versions with a numeric `state`."""
    reply = await session.send(ProbeRequest(method="GET", path="/slots", is_root=True), is_judged=False)
    slots = [as_object(slot) for slot in as_list(reply.view.first_value.json)] if reply.is_ok else []
    states = [slot.get("is_processing", slot.get("state")) for slot in slots]
    if not states or not all(isinstance(state, bool) or is_int(state) for state in states):
        return None
    return sum(bool(state) for state in states)


async def _metrics_gauge(session: Session) -> float | None:
    """/metrics in the Prometheus text format."""
    request = ProbeRequest(method="GET", path="/metrics", headers=(("Accept", "text/plain"),), is_root=True)
    reply = await session.send(request, is_judged=False)
    numbers = _METRIC_SAMPLE.findall(reply.view.body_text) if reply.is_ok else []
    return sum(map(float, numbers)) if numbers else None


CANCEL_ON_DISCONNECT = "live-cancel-on-disconnect"
_CANCEL_EXPECTED = "generation stops when the client disconnects"

_LONG_ANSWER_TOKENS = 400  # of the aborted answer: it would take seconds
_FRAMES_BEFORE_DISCONNECT = 3  # after which the answer is certainly running
_POLL_S = 0.05  # interval of gauge reads
_CONCURRENT_STREAMS = 3  # load on the server: with the small request four at once, the default of --jobs
_TIMING_NOISE_S = 0.1  # random difference between two times

RunningRequest: TypeAlias = "asyncio.Task[ProbeReply]"


class _DisconnectingReader:
    """Reads the beginning of long answers, and disconnects once `is_disconnecting` is set."""

    def __init__(self) -> None:
        self.has_started = False
        self.is_disconnecting = False

    def should_abort(self, body: bytes) -> bool:
        self.has_started = self.has_started or body.count(b"data:") > _FRAMES_BEFORE_DISCONNECT
        return self.has_started and self.is_disconnecting

    async def generate(self, session: Session) -> ProbeReply:
        tokens = _LONG_ANSWER_TOKENS
        return await session.generate(settings.COUNT_PROMPT, max_tokens=tokens, abort_when=self.should_abort)


async def _probe_disconnect(session: Session) -> None:
    if session.jobs == 1:
        raise NotApplicableError("the probe needs two concurrent requests: use --jobs 2")
    for gauge in (_slots_gauge, _metrics_gauge):
        if await gauge(session) is not None:
            await _check_by_gauge(session, gauge)
            return
    await _check_by_timing(session)


async def _check_by_gauge(session: Session, gauge: Gauge) -> None:
    async def is_idle() -> bool:
        return not await gauge(session)

    if await _seconds_until(session, is_idle) is None:
        raise NotApplicableError("the server is busy with other requests")
    aborted = await _disconnect_when_seen(session, gauge)
    idle_s = await _seconds_until(session, is_idle)
    if idle_s is None:
        # Some gauges are updated only by the next request.
        await _send_small_request(session)
        if await is_idle():
            raise NotApplicableError("the server reports its running requests with a delay")
    observed = f"a request that still runs {session.timeouts.disconnect_s:g} s after its client disconnected"
    _check_cancelled(session, aborted, idle_s, observed)


async def _disconnect_when_seen(session: Session, gauge: Gauge) -> ProbeReply:
    """A long answer, aborted once the gauge reports it."""
    reader = _DisconnectingReader()
    async with _running_requests(reader.generate(session)) as (stream,):
        while not stream.done() and not reader.is_disconnecting:
            reader.is_disconnecting = bool(await gauge(session))
            await asyncio.sleep(_POLL_S)
        aborted = session.require_ok(await stream)
    if not aborted.recording.is_aborted:
        raise NotApplicableError("the answer ended before the server reported it as running")
    return aborted


async def _seconds_until(session: Session, is_met: Callable[[], Awaitable[bool]]) -> float | None:
    """Seconds until the condition is met; None after `disconnect_s`."""
    started = time.monotonic()
    while not await is_met():
        if time.monotonic() - started > session.timeouts.disconnect_s:
            return None
        await asyncio.sleep(_POLL_S)
    return time.monotonic() - started


async def _check_by_timing(session: Session) -> None:
    alone_s = max([(await _send_small_request(session)).recording.ended_s for _ in range(2)])
    reader = _DisconnectingReader()
    count = min(_CONCURRENT_STREAMS, session.jobs - 1)
    async with _running_requests(*(reader.generate(session) for _ in range(count))) as streams:
        pending = set(streams)
        while pending and not reader.has_started:
            _, pending = await asyncio.wait(streams, timeout=_POLL_S)
        busy_s = await _time_under_load(session, alone_s)
        reader.is_disconnecting = True
        await asyncio.wait(streams, timeout=busy_s)  # queued streams have not started, and are cancelled
        replies = [stream.result() for stream in streams if stream.done() and stream.exception() is None]
    aborted = [reply for reply in replies if reply.recording.is_aborted]
    if not aborted:
        raise NotApplicableError("the answers ended before the client could disconnect")

    async def is_free() -> bool:
        return (await _send_small_request(session)).recording.ended_s <= (alone_s + busy_s) / 2

    observed = (
        f"a small request is still slow {session.timeouts.disconnect_s:g} s after all others were aborted; "
        f"alone it takes {alone_s:.2f} s"
    )
    _check_cancelled(session, aborted[0], await _seconds_until(session, is_free), observed)


async def _time_under_load(session: Session, alone_s: float) -> float:
    """Time of a small request while others run; a lower bound where it has to wait for them."""
    slow_s = max(2 * alone_s, alone_s + _TIMING_NOISE_S)
    started = time.monotonic()
    async with _running_requests(_send_small_request(session)) as tasks:
        done, _ = await asyncio.wait(tasks, timeout=2 * slow_s)
        busy_s = time.monotonic() - started
    for task in done:
        task.result()  # raises if it was refused
    if busy_s < slow_s:
        raise NotApplicableError(
            "running requests cannot be observed: no /slots, no /metrics, and concurrent requests do not wait"
        )
    return busy_s


def _check_cancelled(session: Session, disconnected: ProbeReply, after_s: float | None, observed: str) -> None:
    """Pass the rule if the server stopped long before the answer would have ended; None: it did not stop."""
    times = disconnected.delta_times
    interval_s = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0
    if after_s is not None and after_s > interval_s * (_LONG_ANSWER_TOKENS - len(times)) / 2:
        raise NotApplicableError("the answer may have ended by itself")
    session.check_rule(CANCEL_ON_DISCONNECT, disconnected, after_s is not None, observed, _CANCEL_EXPECTED)


async def _send_small_request(session: Session) -> ProbeReply:
    return await session.answer(settings.HELLO_PROMPT, max_tokens=1, is_exact=True)


@asynccontextmanager
async def _running_requests(*work: Coroutine[Any, Any, ProbeReply]) -> AsyncIterator[list[RunningRequest]]:
    """Run requests in tasks, which are cancelled on exit."""
    tasks = [asyncio.create_task(request) for request in work]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# ---- response head before prefill


_EARLY_HEADERS = "http-headers-before-prefill"
_PROMPT_SENTENCES = 50  # of ten words: their prefill takes about a second on a small machine
_LONGER_PROMPT_SENTENCES = 150  # for a fast machine
_PREFILL_FACTOR = 3
"""A head within so many times `prefill_s` is early enough, and lets the server send an error status."""
_FILLER_NOUNS = (
    *("house", "river", "letter", "garden", "engine", "window"),
    *("market", "bridge", "forest", "teacher", "kettle"),
)
_FILLER_LOCATIONS = ("north", "old town", "valley", "harbour", "hills", "village", "station")


async def _probe_prefill(session: Session) -> None:
    reply = await session.answer(f"{filler_text(_PROMPT_SENTENCES)}\n\nSay OK.", max_tokens=8)
    if _is_inconclusive(session, reply):
        longer = await session.generate(f"{filler_text(_LONGER_PROMPT_SENTENCES)}\n\nSay OK.", max_tokens=8)
        reply = longer if longer.is_ok else reply
    if _is_inconclusive(session, reply):
        raise NotApplicableError("the prefill of a long prompt was too fast to measure")
    head_s = reply.recording.head_s or 0.0
    observed = f"the head after {head_s:.2f} s, and the first text after {reply.delta_times[0]:.2f} s"
    session.check_rule(_EARLY_HEADERS, reply, _has_early_headers(reply), observed, "the head at once")


def _is_inconclusive(session: Session, reply: ProbeReply) -> bool:
    """Whether the text came at once, or the head came with the text but early enough."""
    if not reply.delta_times:
        raise NotApplicableError("the answer had no text")
    prefill_s, head_s = session.timeouts.prefill_s, reply.recording.head_s or 0.0
    return reply.delta_times[0] < prefill_s or (not _has_early_headers(reply) and head_s < _PREFILL_FACTOR * prefill_s)


def _has_early_headers(reply: ProbeReply) -> bool:
    return (reply.recording.head_s or 0.0) <= reply.delta_times[0] / 2


def filler_text(sentences: int) -> str:
    """Filler with a random beginning, so that it is not in the server's prompt cache."""
    numbers = range(1, sentences + 1)
    words = zip(numbers, itertools.cycle(_FILLER_NOUNS), itertools.cycle(_FILLER_LOCATIONS), strict=False)
    text = " ".join(f"Number {number} is a {noun} from the {location}, seen today." for number, noun, location in words)
    return f"Note {secrets.token_hex(4)}. {text}"


_LEAVING = "cancellation of a long answer after a disconnect"
TIMING_PROBES = (
    Probe("flush", "incremental delivery of chunks", _probe_flush, ("http-flush-each-event",), is_exclusive=True),
    Probe("long", "a short answer to a long prompt", _probe_prefill, (_EARLY_HEADERS,), is_exclusive=True),
    Probe("leaving", _LEAVING, _probe_disconnect, (CANCEL_ON_DISCONNECT,), is_exclusive=True),
)
