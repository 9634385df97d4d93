"""The engine of a local model dies or stands still, by a signal or by a request. Only what it had begun is lost."""

import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from faults.asking import CHAT, Heard, ask, chat, post, say
from faults.case import Case, Figure, Outcome, Stage
from faults.hostile_requests import draw, shown
from tests.live.faults import LONG, RESTARTS, Child, children, metric
from tests.live.server import Running, serving
from tests.models import encoders, vision

SIGNALS = (signal.SIGSEGV, signal.SIGSTOP, signal.SIGKILL, signal.SIGABRT, signal.SIGBUS)
"""What native code dies of, what Linux ends it with when memory runs out, and standing still."""
IDLE_S = 1.0
"""Of silence within an answer: an engine that stands still is noticed after twice as long."""
SLOTS, WAITING, OTHERS = 2, 4, 8
HANG_S = 20.0
"""No request of a few tokens takes a tiny model that long, also on a busy machine."""
DEATHS = 5
"""Starts in a row that fail before an engine is left alone."""

PROGRAM = """
import http.server, os, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(b"{}", "application/json")

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if b"poison" in body:
            os._exit(139)
        if b"hog" in body:
            hoard = [os.urandom(2**20) for _ in range(4096)]
        chunk = '{"id":"a","object":"chat.completion.chunk","created":1,"model":"a","choices":[{"index":0,%s}]}'
        said = [chunk % '"delta":{"role":"assistant","content":"Hello"},"finish_reason":null',
                chunk % '"delta":{},"finish_reason":"stop"', "[DONE]"]
        self.answer("".join(f"data: {one}\\n\\n" for one in said).encode(), "text/event-stream")

    def answer(self, data, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words):
        pass

if sys.argv[3] == "dead":
    with open(sys.argv[2], "a") as starts:
        starts.write("start\\n")
    sys.exit(3)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
"""An engine that a word kills, or makes greedy, or that never gets ready. Such starts are noted."""


class Seen(msgspec.Struct):
    """What came of one death."""

    number: signal.Signals
    begun: list[str]
    """How the streams ended that had begun."""
    waiting: list[str]
    others: list[str]
    """Those of another model."""
    deaths: float
    back_s: float

    @property
    def is_right(self) -> bool:
        """Whether only what had begun was lost, and was told so."""
        return {*self.begun} == {"error event"} and {*self.waiting, *self.others} == {"whole"} and self.deaths == 1


def engine_crash(stage: Stage) -> Outcome:
    """Kill the engine of one of two models while it streams and others wait."""
    seen = []
    for number in SIGNALS[: stage.times(len(SIGNALS), 1)]:
        stage.note(number.name)
        with _two_models(stage) as (server, engine):
            seen.append(asyncio.run(_die(server, engine, number)))
    begun = Counter(ending for one in seen for ending in one.begun)
    answered = Counter(ending for one in seen for ending in one.waiting)
    others = Counter(ending for one in seen for ending in one.others)
    died = [one.back_s for one in seen if one.number != signal.SIGSTOP]
    stood = [one.back_s for one in seen if one.number == signal.SIGSTOP]
    return Outcome(
        count=len(seen),
        happened=(
            f"{begun['error event']} of {begun.total()} streams that had begun ended with an error event, "
            f"{answered['whole']} of {answered.total()} requests that waited were answered by the next engine, "
            f"{others['whole']} of {others.total()} of another model went on"
        ),
        figures=(
            Figure("begun and not told", begun.total() - begun["error event"], most=0),
            Figure("waited and lost", answered.total() - answered["whole"], most=0),
            Figure("other requests lost", others.total() - others["whole"], most=0),
            Figure("longest from a death to the next answer", round(max(died), 2), "s", most=5, is_timing=True),
            *(
                Figure(f"the same where it stood still, with --idle {IDLE_S:g}", round(one, 2), "s", is_timing=True)
                for one in stood
            ),
        ),
        troubles=tuple(
            f"{one.number.name}: begun {one.begun}, waiting {one.waiting}, others {one.others}, {one.deaths:g} deaths"
            for one in seen
            if not one.is_right
        ),
    )


@contextmanager
def _two_models(stage: Stage) -> Iterator[tuple[Running, int]]:
    """Two models, both loaded, and the process of the first one's engine."""
    each = f'file = "{stage.model}"\nthreads = 1\nparallel = {SLOTS}\nctx_size = {2048 * SLOTS}\n'
    (stage.folder / "welldone.toml").write_text(f"[models.one]\npreload = true\n{each}[models.other]\n{each}")
    options = ["--idle", str(IDLE_S), "--first-byte", "60", "--early", "0.1"]
    with serving(options, folder=stage.folder) as server:
        (engine,) = children(server.process.pid)
        assert asyncio.run(ask(server, chat("other", max_tokens=1))).ending == "whole"
        yield server, engine


async def _die(server: Running, engine: int, number: signal.Signals) -> Seen:
    """Streams that run and requests that wait: then the engine gets its signal."""
    with Child(engine) as child:
        talks = [await say(server.port, _post(server, "one", LONG)) for _ in range(SLOTS)]
        heads = [await talk.first(b"data: ") for talk in talks]
        child.hold()  # nothing of what runs ends before the signal
        queue = [await say(server.port, _post(server, "one", 4)) for _ in range(WAITING)]
        queue_heads = [await talk.first() for talk in queue]  # the head comes while they wait
        others = [asyncio.create_task(ask(server, chat("other", max_tokens=64))) for _ in range(OTHERS)]
        began = time.monotonic()
        if number != signal.SIGSTOP:
            os.kill(engine, number)
            with suppress(ProcessLookupError):  # SIGKILL does not wait for it
                child.go()
        begun = [await talk.heard(head) for talk, head in zip(talks, heads, strict=True)]
        waited = [await talk.heard(head) for talk, head in zip(queue, queue_heads, strict=True)]
        back_s = time.monotonic() - began
        elsewhere = await asyncio.gather(*others)
        for talk in (*talks, *queue):
            talk.leave()
    deaths = await asyncio.to_thread(metric, server, RESTARTS)
    return Seen(number, _endings(begun), _endings(waited), _endings(elsewhere), deaths, back_s)


def _post(server: Running, model: str, tokens: int) -> bytes:
    return post(chat(model, max_tokens=tokens, temperature=0), server.port, key=server.key)


def _endings(heard: list[Heard]) -> list[str]:
    return [one.ending for one in heard]


def poison(stage: Stage) -> Outcome:
    """A request that kills every engine that reads it; and an engine that dies whenever it is started."""
    program, starts = stage.folder / "engine.py", stage.folder / "starts"
    program.write_text(PROGRAM)
    starts.touch()
    command = [sys.executable, str(program), "{port}", str(starts)]
    (stage.folder / "welldone.toml").write_text(
        f"[models.fragile]\npreload = true\ncommand = {[*command, 'alive']}\n"
        f"[models.dead]\ncommand = {[*command, 'dead']}\n"
    )
    rounds = stage.times(3, 1)
    with serving([], folder=stage.folder) as server:
        told = [asyncio.run(ask(server, chat("fragile", "poison"))) for _ in stage.each(range(rounds))]
        after = asyncio.run(ask(server, chat("fragile")))
        deaths = metric(server, RESTARTS)
        refusals = [asyncio.run(ask(server, chat("dead", stream=False))) for _ in range(stage.times(5, 0))]
        failed = len(starts.read_text().splitlines())
    is_clear = all(one.status == 503 and b"\r\nretry-after:" in one.head.lower() for one in refusals)
    return Outcome(
        count=len(told) + len(refusals),
        happened=(
            f"each such request ended {deaths / rounds:.1f} engines and was told so; the next one was {after.ending}"
            + (f"; an engine that cannot start was tried {failed} times, and clients were told so" if refusals else "")
        ),
        figures=(
            Figure("engines that one request ends", round(deaths / rounds, 1), most=2),
            Figure("starts of an engine that cannot start", failed, most=DEATHS),
            Figure("clients without an error and a time to come again", int(not is_clear), most=0),
            Figure("requests lost afterwards", int(after.ending != "whole"), most=0),
        ),
        troubles=tuple(
            f"{one.status} {one.body[-300:].decode(errors='replace')}"
            for one in (*told, *refusals, after)
            if one.ending not in (("whole",) if one is after else ("refused", "error event"))
        ),
    )


def hostile_requests(stage: Stage) -> Outcome:
    """Odd requests out of all fields that are passed on, many at once, some of which leave: no engine may die."""
    chance = random.Random(stage.seed)
    statuses: Counter[str] = Counter()
    troubles: list[str] = []
    deaths = 0.0
    rounds = stage.times(400, 3)
    with _zoo(stage.folder, stage.model) as (server, models):
        for number in range(rounds):
            stage.note(f"{number + 1} of {rounds}: {dict(statuses)}")
            requests = [draw(chance, models) for _ in range(4)]
            leaving = [chance.random() < 0.1 for _ in requests]
            heard = asyncio.run(_all(server, [(one.path, one.data) for one in requests], leaving))
            statuses.update(heard)
            if metric(server, RESTARTS) > deaths:
                deaths = metric(server, RESTARTS)
                troubles += [f"died of one of: {words}" for words in shown(requests)]
            if "hang" in heard:
                troubles.append(f"hangs: {shown(requests)[heard.index('hang')]}")
                break  # whoever asks next would only wait behind it
        after = asyncio.run(_one(server, CHAT, chat(models["chat"], max_tokens=2), leaves=False))
    failed = sum(count for status, count in statuses.items() if status.startswith("5"))
    return Outcome(
        count=statuses.total(),
        happened=f"no engine was harmed: {_counted(statuses)}"
        if not troubles
        else f"an engine was: {_counted(statuses)}",
        figures=(
            Figure("engines that died", deaths, most=0),
            Figure("engines that stood still", statuses["hang"], most=0),
            Figure("ordinary requests lost afterwards", int(after != "200"), most=0),
            Figure("answers with a status of 5xx", failed),
        ),
        troubles=tuple(troubles),
    )


def _counted(statuses: Counter[str]) -> str:
    return ", ".join(f"{status} {count} times" for status, count in sorted(statuses.items()))


@contextmanager
def _zoo(folder: Path, model: Path) -> Iterator[tuple[Running, dict[str, str]]]:
    """Models that talk and see, embed and rank."""
    eye = vision.projector().write(folder / "eye.gguf")
    embedding = encoders.embedding_model().write(folder / "embedding.gguf")
    ranking = encoders.rerank_model().write(folder / "ranking.gguf")
    (folder / "welldone.toml").write_text(
        "[defaults]\nthreads = 1\nctx_size = 4096\nparallel = 2\n"
        f'[models.seeing]\nfile = "{model}"\nmmproj = "{eye}"\npreload = true\n'
        f'[models.embedding]\nfile = "{embedding}"\n[models.ranking]\nfile = "{ranking}"\n'
    )
    with serving([], folder=folder) as server:
        yield server, {"chat": "seeing", "seeing": "seeing", "embedding": "embedding", "ranking": "ranking"}


async def _all(server: Running, requests: list[tuple[str, bytes]], leaving: list[bool]) -> list[str]:
    return await asyncio.gather(
        *(_one(server, path, data, leaves=leaves) for (path, data), leaves in zip(requests, leaving, strict=True))
    )


async def _one(server: Running, path: str, data: bytes, *, leaves: bool) -> str:
    """The status of one request; `left` or `hang` where there is none."""
    talk = await say(server.port, post(data, server.port, path=path, key=server.key))
    try:
        if leaves:
            return "left"
        async with asyncio.timeout(HANG_S):
            return str((await talk.heard()).status)
    except TimeoutError:
        return "hang"
    finally:
        talk.leave(is_rude=leaves)


CASES = (
    Case("engine-crash", "an engine dies or stands still while it streams", engine_crash),
    Case("engine-poison", "a request that kills engines; an engine that never starts", poison),
    Case("hostile-requests", "odd requests out of all fields that an engine gets", hostile_requests),
)
