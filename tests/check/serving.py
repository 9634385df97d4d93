"""A server in this process, and one probe that asks it."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import msgspec

from welldone.check.probe import Probe
from welldone.check.probe_client import ProbeClient, ServerFacts
from welldone.check.probes import CHAT_PROBES
from welldone.check.session import NotApplicableError, Session, UnsupportedError
from welldone.check.settings import CheckSettings, Timeouts
from welldone.http import recording_client
from welldone.mock.script import MockChunk, MockReply, MockScript
from welldone.mock.server import MockHttpRequest, MockServer
from welldone.protocol.catalog import RULES_BY_ID

IMPATIENT = Timeouts(reply_s=20.0, silence_s=10.0, prefill_s=0.05, stream_s=0.05, disconnect_s=5.0, after_done_s=0.3)
"""Waits little for what should not come, and long for what must."""
HASTY = Timeouts(reply_s=0.3, silence_s=0.2, prefill_s=0.05, stream_s=0.05, disconnect_s=0.2, after_done_s=0.1)
"""For servers that may never answer."""
Choose: TypeAlias = Callable[[MockHttpRequest], MockReply]
Json: TypeAlias = dict[str, Any]
BY_NAME: dict[str, Probe] = {probe.name: probe for probe in CHAT_PROBES}


@asynccontextmanager
async def serving(choose: Choose, speed: float = 1.0) -> AsyncIterator[str]:
    """A server that answers every request as `choose` says; its URL."""
    async with await MockServer(MockScript(speed=speed), choose, handles_all=True).listen() as server:
        yield f"http://127.0.0.1:{server.port}/v1"


def session(name: str, url: str, patience: Timeouts = IMPATIENT, facts: ServerFacts | None = None) -> Session:
    """A probe's talk with a server, before its first word."""
    settings = CheckSettings(url=url, timeouts=patience)
    return Session(
        ProbeClient(settings, recording_client.record_response, no_pause),
        facts or ServerFacts(model="ideal"),
        name,
        frozenset(RULES_BY_ID),
    )


async def probe(name: str, url: str, patience: Timeouts = IMPATIENT, facts: ServerFacts | None = None) -> Session:
    """What a probe heard. `NotOfferedError` and `NotHeardError` pass."""
    talk = session(name, url, patience, facts)
    await BY_NAME[name].run(talk)
    return talk


async def outcome(
    name: str, url: str, patience: Timeouts = IMPATIENT, facts: ServerFacts | None = None
) -> tuple[Session, str]:
    """What a probe heard, and why it ended early; an empty text where it did not."""
    talk = session(name, url, patience, facts)
    try:
        await BY_NAME[name].run(talk)
    except (UnsupportedError, NotApplicableError) as error:
        return talk, str(error)
    return talk, ""


def found(talk: Session) -> set[str]:
    """The rules that were heard broken."""
    return {finding.rule for finding in talk.violations}


def edited(choose: Choose, change: Callable[[Json, Json], Json | None]) -> Choose:
    """The same server, each chunk (or whole reply) of which is changed; None leaves it out.

    `change` gets the request and what is said, which it may change in place.
    """

    def answer(seen: MockHttpRequest) -> MockReply:
        reply = choose(seen)
        request = body_of(seen)
        return msgspec.structs.replace(reply, pieces=tuple(_edit(piece, request, change) for piece in reply.pieces))

    return answer


def body_of(seen: MockHttpRequest) -> Json:
    """The JSON object that was asked with; an empty one where there was none."""
    try:
        value = json.loads(seen.body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def asked_as(choose: Choose, change: Callable[[Json], object]) -> Choose:
    """The same server, which reads each request otherwise. `change` changes it in place."""

    def answer(seen: MockHttpRequest) -> MockReply:
        request = body_of(seen)
        change(request)
        return choose(msgspec.structs.replace(seen, body=json.dumps(request)) if request else seen)

    return answer


def _edit(piece: MockChunk, request: Json, change: Callable[[Json, Json], Json | None]) -> MockChunk:
    """A piece is a whole reply, or some frames."""
    said = piece.data.decode()
    if not said.startswith("data:"):
        whole = change(request, json.loads(said))
        return MockChunk(base64=json.dumps(whole).encode())
    frames = []
    for frame in said.split("\n\n")[:-1]:
        data = frame.removeprefix("data: ")
        value = data if data == "[DONE]" else change(request, json.loads(data))
        if value is not None:
            frames.append(f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n")
    return MockChunk("".join(frames), piece.after_s)


async def no_pause(seconds: float) -> None:
    """A server that is busy is asked again at once."""
