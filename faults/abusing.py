"""Requests and replies that do harm to servers that trust them, beside a stream that must not notice."""

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence

import msgspec

from faults.asking import CHAT, Heard, ask, chat
from faults.case import Case, Figure, Outcome, Stage
from faults.dialects import MESSAGES, RESPONSES
from faults.foreign_abuses import foreign_abuses
from faults.hostile_streams import KINDS, Kind
from faults.pulse import Pulse, beating, listening
from tests.live.faults import LONG, RESTARTS, cpu_of, engine_of, memory_of, metric, small
from tests.live.server import Running
from tests.live.upstream import gateway, upstream
from tests.server.abuse import Abuse, abuses
from welldone.mock.script import HELLO_REPLY, MockReply
from welldone.mock.server import MockHttpRequest

AT_ONCE = 8
"""As many of the same: what one may cost, eight must not make a crash of."""
SILENCE_MS = 200
GROWTH_MB = 256
"""Eight bodies of the longest that is taken, as bytes, as text and as values; and two captures that are judged at once,
which are twenty times as large as their bytes."""
EVERY = 3
"""The short form has every third request, and every sixth stream."""
LARGER = 4
STEEPEST = 8
"""Time that grows as the size does would be 4 times at 4 times the size, and as its square 16 times."""
WORTH_S = 0.5  # less is not told from noise
ENDS = (b"data: [DONE]\n\n", b"event: message_stop\n", b"event: error\n", b"event: response.")
"""How streams end, in each dialect."""
ENDING_BYTES = 2**22  # the last event of Responses repeats all that was said
FORMS = tuple((path, is_stream) for path in (CHAT, MESSAGES, RESPONSES) for is_stream in (True, False))


class Found(msgspec.Struct):
    """What came of it so far."""

    count: int = 0
    troubles: list[str] = []


def local(stage: Stage) -> Outcome:
    """Every request to a server with a local model."""
    with small(stage.model, "-np", "2", "-c", "4096") as server, engine_of(server) as engine:
        peak = Peak(server)
        body = chat("tiny", max_tokens=LONG, temperature=0)
        found, pulse = asyncio.run(_abuse(stage, server, _chosen(stage), body, _trouble))
        with engine_of(server) as now:
            is_same = now.pid == engine.pid
        restarts = metric(server, RESTARTS) + (not is_same)
        more = (Figure("engine restarts", restarts, most=0),)
        return _outcome(found, pulse, (*more, peak.growth()), _failures(server))


def through(stage: Stage) -> Outcome:
    """Every request to a gateway, whose upstream answers all of them."""
    with beating() as beats, upstream(_forget) as fine, gateway(stage.folder, fine.url, more=_pulse(beats)) as server:
        peak = Peak(server)
        abuses = [_named(abuse) for abuse in _chosen(stage)]
        found, pulse = asyncio.run(_abuse(stage, server, abuses, chat("pulse"), _trouble_of_a_gateway))
        return _outcome(found, pulse, (peak.growth(),), _failures(server))


def behind(stage: Stage) -> Outcome:
    """Every hostile stream, from an upstream through the gateway: as a stream and whole."""
    kinds = KINDS[:: 2 * EVERY] if stage.is_short else KINDS
    with beating() as beats, upstream(_hostile) as bad, gateway(stage.folder, bad.url, more=_pulse(beats)) as server:
        peak = Peak(server)
        found, pulse, steepest = asyncio.run(_suffer(stage, server, kinds))
        growth = Figure("CPU time at four times the size", steepest, "times", most=STEEPEST, is_timing=True)
        return _outcome(found, pulse, (*_larger(pulse), growth, peak.growth()), _failures(server))


def _larger(pulse: Pulse) -> tuple[Figure, ...]:
    """What frames of some megabytes do, taken out of what is judged: time grows with the size, and has no bar there."""
    larger = {name: pulse.worst.pop(name) for name in tuple(pulse.worst) if f", {LARGER} times, " in name}
    return (Figure("the same at four times the size", max(larger.values()), "ms"),) if larger else ()


def _pulse(url: str) -> str:
    return f'[upstreams.pulse]\nurl = "{url}"\nmodels = ["pulse"]\nprobe_s = 0\n'


def _hostile(seen: MockHttpRequest) -> MockReply:
    """The stream that the model's name asks for: which kind, and how many times its size."""
    model = re.search(r'"model":"(\d+) times (\d+)"', seen.body)
    assert model is not None
    kind = KINDS[int(model[1])]
    return kind.make(kind.size * int(model[2]))


async def _suffer(stage: Stage, server: Running, kinds: Sequence[Kind]) -> tuple[Found, Pulse, float]:
    """Each kind in both forms of a chat, and in the whole plan four times as large, and in other dialects."""
    found, steepest = Found(), 0.0
    async with listening(server, chat("pulse")) as pulse:
        for place, kind in enumerate(kinds):
            stage.note(f"{place + 1} of {len(kinds)}: {kind.name}")
            for path, is_stream in FORMS[: stage.times(len(FORMS), 2)]:
                took = []
                for size in (1,) if stage.is_short or path != CHAT else (1, LARGER):
                    name = f"{kind.name}, {size} times, {path}{' as a stream' if is_stream else ''}"
                    await pulse.beat(name)
                    before = cpu_of(server.process.pid)
                    heard = await _ask(server, path, f"{KINDS.index(kind)} times {size}", is_stream=is_stream)
                    took.append(cpu_of(server.process.pid) - before)
                    found.count += 1
                    if why := _trouble_of_a_stream(heard):
                        found.troubles.append(f"{name}: {why}")
                if took[-1] > WORTH_S:
                    steepest = max(steepest, took[-1] / max(took[0], WORTH_S / LARGER))
    return found, pulse, steepest


async def _ask(server: Running, path: str, model: str, *, is_stream: bool) -> Heard:
    turns = [{"role": "user", "content": "hi"}]
    is_responses = path == RESPONSES
    words = {"input": "hi", "store": False} if is_responses else {"messages": turns, "max_tokens": 16}
    body = msgspec.json.encode({"model": model, "stream": is_stream, **words})
    return await ask(server, body, path=path)


def _trouble_of_a_stream(heard: Heard) -> str | None:
    """It ends whole, or it says why not."""
    is_ended = not heard.is_stream or any(end in heard.body[-ENDING_BYTES:] for end in ENDS)
    if heard.status in (200, 502) and heard.is_whole and is_ended:
        return None
    return f"{heard.status}, {heard.ending}: …{heard.body[-150:]!r}"


def _chosen(stage: Stage) -> Sequence[Abuse]:
    every = abuses() + foreign_abuses()
    return every[::EVERY] if stage.is_short else every


def _forget(seen: MockHttpRequest) -> MockReply:
    """Say hello to all, and keep nothing of what was said: bodies are long here."""
    seen.body = ""
    return HELLO_REPLY


def _named(abuse: Abuse) -> Abuse:
    """The same, to a model's name: a gateway must know whom to ask."""
    if not abuse.body.startswith(b"{") or b'"model":' in abuse.body:
        return abuse
    return abuse._replace(body=b'{"model":"hello",' + abuse.body[1:] if abuse.body[1:2] != b"}" else abuse.body)


async def _abuse(
    stage: Stage,
    server: Running,
    abuses: Sequence[Abuse],
    beat: bytes,
    trouble: Callable[[Abuse, Heard], str | None],
) -> tuple[Found, Pulse]:
    """Each alone, and then in the whole plan eight at once."""
    found = Found()
    rounds = (1,) if stage.is_short else (1, AT_ONCE)
    async with listening(server, beat) as pulse:
        for at_once in rounds:
            for place, abuse in enumerate(abuses):
                stage.note(f"{place + 1} of {len(abuses)}, {at_once} at once: {abuse.name}")
                name = abuse.name if at_once == 1 else f"{abuse.name}, {at_once} at once"
                await pulse.beat(name)
                heard = await asyncio.gather(*(_send(server, abuse) for _ in range(at_once)))
                found.count += at_once
                found.troubles += [f"{name}: {why}" for one in heard if (why := trouble(abuse, one))][:1]
    return found, pulse


async def _send(server: Running, abuse: Abuse) -> Heard:
    return await ask(server, abuse.body, path=abuse.path, headers=abuse.headers)


def _trouble(abuse: Abuse, heard: Heard) -> str | None:
    """What is wrong with the answer of a server that checks every field."""
    is_unknown = heard.status == 404 and b'"model":' in abuse.body  # the server looks for the model first
    if heard.status in (429, 503) or heard.status in abuse.statuses or is_unknown:
        return _untold(heard)
    return f"{heard.status} {heard.body[:150]!r}"


def _trouble_of_a_gateway(abuse: Abuse, heard: Heard) -> str | None:
    """What is wrong with the answer of one who leaves most fields to the server behind it."""
    if 200 <= heard.status < 500 or heard.status == 503:
        return _untold(heard)
    return f"{heard.status} {heard.body[:150]!r}"


def _untold(heard: Heard) -> str | None:
    """An answer must be whole, and a refusal must say why."""
    if not heard.is_whole:
        return f"{heard.status}, and the answer breaks off"
    if heard.status >= 400 and not re.search(rb'"(?:message|error)":\s*"[^"]', heard.body):
        return f"{heard.status} without a word: {heard.body[:100]!r}"
    return None


class Peak:
    """How much memory a server takes more than at its start, at most."""

    def __init__(self, server: Running) -> None:
        self._pid = server.process.pid
        self._before = memory_of(self._pid)

    def growth(self) -> Figure:
        """As a figure."""
        grown = memory_of(self._pid, "VmHWM") - self._before
        return Figure("most memory on top", grown / 2**20, "MB", most=GROWTH_MB)


def _failures(server: Running) -> Iterable[str]:
    """What the server's log says of itself that it must not say."""
    return (line[:300] for line in server.log.all if "a request failed" in line or "Traceback" in line)


def _outcome(found: Found, pulse: Pulse, figures: tuple[Figure, ...], failures: Iterable[str]) -> Outcome:
    broken = [f"a stream beside it ended with {end}" for end in pulse.endings if end != "whole"]
    troubles = (*found.troubles, *failures, *broken)
    slowest = max(pulse.worst, key=lambda name: pulse.worst[name])
    silence = Figure(
        "longest silence of a stream beside it", pulse.worst[slowest], "ms", most=SILENCE_MS, is_timing=True
    )
    happened = (
        f"each was refused or made harmless; the stream beside was held up most by {slowest}"
        if not troubles
        else f"{len(troubles)} did harm"
    )
    return Outcome(found.count, happened, (Figure("wrong answers", len(troubles), most=0), silence, *figures), troubles)


CASES = (
    Case("abuse-local", "requests that do harm elsewhere, to a local model", local),
    Case("abuse-gateway", "the same requests to a gateway", through),
    Case("abuse-upstream", "streams of an upstream that means ill, through the gateway", behind),
)
