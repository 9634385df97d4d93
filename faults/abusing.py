"""Expensive requests and replies, next to a stream that must not be delayed."""

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence

import msgspec

from faults.case import Case, CaseContext, Figure, Outcome
from faults.client import CHAT, ClientReply, chat, post
from faults.dialects import MESSAGES, RESPONSES
from faults.foreign_abuses import foreign_abuses
from faults.heartbeat import GapRecorder, beating, listening, sending
from faults.hostile_streams import KINDS, Kind
from faults.peak import Peak
from tests.server.abuse import BODY_LIMIT_BYTES, Abuse, abuses
from tests.support.faults import RESTARTS, cpu_of, engine_of, metric
from tests.support.server import Running, serving
from tests.support.upstream import gateway, upstream
from welldone.mock.script import HELLO_REPLY, MockReply
from welldone.mock.server import MockHttpRequest

AT_ONCE = 8
"""Concurrent copies of a request: eight expensive requests must not crash the server."""
SILENCE_MS = 50
"""Longest gap of a stream, less that of the idle server."""
EVERY = 3
"""The short form runs every third request and every sixth stream."""
LARGER = 4
STEEPEST = 8
"""At 4 times the size, linear time grows 4 times and quadratic time 16 times."""
WORTH_S = 0.5  # below this, noise dominates
ENDS = (b"data: [DONE]\n\n", b"event: message_stop\n", b"event: error\n", b"event: response.")
"""Last event of a stream, by dialect."""
ENDING_BYTES = 2**22  # the last event of Responses repeats the whole text
FORMS = tuple((path, is_stream) for path in (CHAT, MESSAGES, RESPONSES) for is_stream in (True, False))


class Results(msgspec.Struct):
    """Results so far."""

    count: int = 0
    problems: list[str] = []


def local(context: CaseContext) -> Outcome:
    """Send every request to a server with a local model, next to a stream of an upstream.

    A stream of the same engine waits for what the engine does for others, such as a grammar.
    """
    options = ["-m", str(context.model), "--alias", "tiny", "-t", "1", "-np", "2", "-c", "4096"]
    with beating() as beats:
        (context.folder / "welldone.toml").write_text(_heartbeat_upstream(beats))
        with serving(options, model="tiny", folder=context.folder) as server, engine_of(server) as engine:
            peak = Peak(server)
            abuses = [_named(abuse, "tiny") for abuse in _chosen(context)]
            results, recorder = asyncio.run(_abuse(context, server, abuses, chat("heartbeat"), _problem))
            with engine_of(server) as now:
                is_same = now.pid == engine.pid
            restarts = metric(server, RESTARTS) + (not is_same)
            more = (Figure("engine restarts", restarts, most=0),)
            return _outcome(results, recorder, (*more, peak.growth()), _failures(server))


def through(context: CaseContext) -> Outcome:
    """Send every request to a gateway whose upstream answers all of them."""
    with (
        beating() as beats,
        upstream(_forget) as fine,
        gateway(context.folder, fine.url, more=_heartbeat_upstream(beats)) as server,
    ):
        peak = Peak(server)
        abuses = [_named(abuse, "hello") for abuse in _chosen(context)]
        results, recorder = asyncio.run(_abuse(context, server, abuses, chat("heartbeat"), _gateway_problem))
        return _outcome(results, recorder, (peak.growth(),), _failures(server))


def hostile_upstream(context: CaseContext) -> Outcome:
    """Send every hostile stream of an upstream through the gateway, streamed and not streamed."""
    kinds = KINDS[:: 2 * EVERY] if context.is_short else KINDS
    with (
        beating() as beats,
        upstream(_hostile) as bad,
        gateway(context.folder, bad.url, more=_heartbeat_upstream(beats)) as server,
    ):
        peak = Peak(server)
        results, recorder, steepest = asyncio.run(_suffer(context, server, kinds))
        growth = Figure("CPU time at four times the size", steepest, "times", most=STEEPEST, is_timing=True)
        return _outcome(results, recorder, (*_larger(recorder), growth, peak.growth()), _failures(server))


def _larger(recorder: GapRecorder) -> tuple[Figure, ...]:
    """Time for frames of some megabytes, reported without a limit: it grows with the size."""
    larger = {name: recorder.worst.pop(name) for name in tuple(recorder.worst) if f", {LARGER} times, " in name}
    return (Figure("longest pause at four times the size", max(larger.values()), "ms"),) if larger else ()


def _heartbeat_upstream(url: str) -> str:
    return f'[upstreams.heartbeat]\nurl = "{url}"\nmodels = ["heartbeat"]\nprobe_s = 0\n'


def _hostile(seen: MockHttpRequest) -> MockReply:
    """Build the stream that the model name selects: the kind and a multiple of its size."""
    model = re.search(r'"model":"(\d+) times (\d+)"', seen.body)
    assert model is not None
    kind = KINDS[int(model[1])]
    return kind.make(kind.size * int(model[2]))


async def _suffer(context: CaseContext, server: Running, kinds: Sequence[Kind]) -> tuple[Results, GapRecorder, float]:
    """Each kind in both forms of chat; in the full plan also four times as large and in other dialects."""
    results, steepest = Results(), 0.0
    async with sending() as sender, listening(server, chat("heartbeat")) as recorder:
        for index, kind in enumerate(kinds):
            context.note(f"{index + 1} of {len(kinds)}: {kind.name}")
            for path, is_stream in FORMS[: context.times(len(FORMS), 2)]:
                took = []
                for size in (1,) if context.is_short or path != CHAT else (1, LARGER):
                    name = f"{kind.name}, {size} times, {path}{' as a stream' if is_stream else ''}"
                    await recorder.beat(name)
                    before = cpu_of(server.process.pid)
                    model = f"{KINDS.index(kind)} times {size}"
                    (received,) = await sender.send(server.port, _chat(server, path, model, is_stream=is_stream))
                    took.append(cpu_of(server.process.pid) - before)
                    results.count += 1
                    if why := _stream_problem(received):
                        results.problems.append(f"{name}: {why}")
                if took[-1] > WORTH_S:
                    steepest = max(steepest, took[-1] / max(took[0], WORTH_S / LARGER))
    return results, recorder, steepest


def _chat(server: Running, path: str, model: str, *, is_stream: bool) -> bytes:
    turns = [{"role": "user", "content": "hi"}]
    is_responses = path == RESPONSES
    words = {"input": "hi", "store": False} if is_responses else {"messages": turns, "max_tokens": 16}
    body = msgspec.json.encode({"model": model, "stream": is_stream, **words})
    return post(body, server.port, path=path, key=server.key)


def _stream_problem(received: ClientReply) -> str | None:
    """The stream is complete or ends with an error."""
    is_ended = not received.is_stream or any(end in received.body[-ENDING_BYTES:] for end in ENDS)
    if received.status in (200, 502) and received.is_whole and is_ended:
        return None
    return f"{received.status}, {received.ending}: …{received.body[-150:]!r}"


def _chosen(context: CaseContext) -> Sequence[Abuse]:
    every = abuses() + foreign_abuses()
    return every[::EVERY] if context.is_short else every


def _forget(seen: MockHttpRequest) -> MockReply:
    """Answer every request and record none, since bodies are long here."""
    seen.body = ""
    return HELLO_REPLY


def _named(abuse: Abuse, model: str) -> Abuse:
    """Set the model, by which the server routes."""
    if not abuse.body.startswith(b"{") or b'"model":' in abuse.body:
        return abuse
    start = b'{"model":"%b",' % model.encode()
    return abuse._replace(body=start + abuse.body[1:] if abuse.body[1:2] != b"}" else abuse.body)


async def _abuse(
    context: CaseContext,
    server: Running,
    abuses: Sequence[Abuse],
    beat: bytes,
    problem: Callable[[Abuse, ClientReply], str | None],
) -> tuple[Results, GapRecorder]:
    """Each request alone; in the full plan also eight at once."""
    results = Results()
    rounds = (1,) if context.is_short else (1, AT_ONCE)
    async with sending() as sender, listening(server, beat) as recorder:
        for at_once in rounds:
            for index, abuse in enumerate(abuses):
                context.note(f"{index + 1} of {len(abuses)}, {at_once} at once: {abuse.name}")
                name = abuse.name if at_once == 1 else f"{abuse.name}, {at_once} at once"
                await recorder.beat(name)
                data = post(abuse.body, server.port, path=abuse.path, key=server.key, headers=abuse.headers)
                received = await sender.send(server.port, data, at_once)
                results.count += at_once
                results.problems += [f"{name}: {why}" for one in received if (why := problem(abuse, one))][:1]
    return results, recorder


def _problem(abuse: Abuse, received: ClientReply) -> str | None:
    """Problem with the reply of a server that validates every field."""
    is_unknown = received.status == 404 and b'"model":' in abuse.body  # the server looks for the model first
    is_too_long = received.status == 413 and len(abuse.body) > BODY_LIMIT_BYTES  # with the name of the model
    if received.status in (429, 503) or received.status in abuse.statuses or is_unknown or is_too_long:
        return _unexplained(received)
    return f"{received.status} {received.body[:150]!r}"


def _gateway_problem(abuse: Abuse, received: ClientReply) -> str | None:
    """Problem with the reply of a gateway, which leaves most fields to its upstream."""
    if 200 <= received.status < 500 or received.status == 503:
        return _unexplained(received)
    return f"{received.status} {received.body[:150]!r}"


def _unexplained(received: ClientReply) -> str | None:
    """A reply must be complete, and an error must have a message."""
    if not received.is_whole:
        return f"{received.status}, and the answer breaks off"
    if received.status >= 400 and not re.search(rb'"(?:message|error)":\s*"[^"]', received.body):
        return f"{received.status} without a word: {received.body[:100]!r}"
    return None


def _failures(server: Running) -> Iterable[str]:
    """Internal errors in the server log."""
    return (line[:300] for line in server.log.all if "a request failed" in line or "Traceback" in line)


def _outcome(results: Results, recorder: GapRecorder, figures: tuple[Figure, ...], failures: Iterable[str]) -> Outcome:
    broken = [f"a stream beside it ended with {end}" for end in recorder.endings if end != "whole"]
    problems = (*results.problems, *failures, *broken)
    slowest = max(recorder.worst, key=lambda name: recorder.worst[name])
    silence = Figure(
        "longest pause of a concurrent stream", recorder.worst[slowest], "ms", most=SILENCE_MS, is_timing=True
    )
    happened = (
        f"every request was rejected or handled without harm; longest pause of the concurrent stream: {slowest}"
        if not problems
        else f"{len(problems)} requests did harm"
    )
    return Outcome(
        results.count, happened, (Figure("wrong responses", len(problems), most=0), silence, *figures), problems
    )


CASES = (
    Case("abuse-local", "hostile requests to a local model", local),
    Case("abuse-gateway", "the same requests to a gateway", through),
    Case("abuse-upstream", "hostile streams of an upstream, through the gateway", hostile_upstream),
)
