"""A mock server in this process, and helpers that run one probe against it."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import msgspec

from welldone.check.probe_client import ProbeClient, ServerFacts
from welldone.check.probes import CHAT_PROBES
from welldone.check.session import NotApplicableError, Probe, Session, UnsupportedError
from welldone.check.settings import CheckSettings, Timeouts
from welldone.core.catalog import RULES
from welldone.mock.script import MockChunk, MockReply, MockScript
from welldone.mock.server import MockHttpRequest, MockServer

TEST_TIMEOUTS = Timeouts(
    reply_s=20.0, silence_s=10.0, prefill_s=0.05, stream_s=0.05, disconnect_s=5.0, after_done_s=0.3
)
"""Long for events that must happen, short for those that must not."""
SHORT_TIMEOUTS = Timeouts(reply_s=0.3, silence_s=0.2, prefill_s=0.05, stream_s=0.05, disconnect_s=0.2, after_done_s=0.1)
"""For servers that may never answer."""
Handler: TypeAlias = Callable[[MockHttpRequest], MockReply]
Json: TypeAlias = dict[str, Any]
PROBES_BY_NAME: dict[str, Probe] = {probe.name: probe for probe in CHAT_PROBES}


@asynccontextmanager
async def serving(handler: Handler, speed: float = 1.0) -> AsyncIterator[str]:
    """Run a server whose replies come from `handler`; yields its URL."""
    async with await MockServer(MockScript(speed=speed), handler, handles_all=True).listen() as server:
        yield f"http://127.0.0.1:{server.port}/v1"


def make_session(name: str, url: str, timeouts: Timeouts = TEST_TIMEOUTS, facts: ServerFacts | None = None) -> Session:
    """A session of a probe, without requests."""
    settings = CheckSettings(url=url, timeouts=timeouts)
    return Session(
        ProbeClient(settings, no_pause),
        facts or ServerFacts(model="ideal"),
        name,
        frozenset(RULES),
    )


async def probe(name: str, url: str, timeouts: Timeouts = TEST_TIMEOUTS, facts: ServerFacts | None = None) -> Session:
    """Run a probe; returns its session. `UnsupportedError` and `NotApplicableError` are raised."""
    session = make_session(name, url, timeouts, facts)
    await PROBES_BY_NAME[name].run(session)
    return session


async def outcome(
    name: str, url: str, timeouts: Timeouts = TEST_TIMEOUTS, facts: ServerFacts | None = None
) -> tuple[Session, str]:
    """Run a probe; returns its session, and why it ended early or an empty text."""
    session = make_session(name, url, timeouts, facts)
    try:
        await PROBES_BY_NAME[name].run(session)
    except (UnsupportedError, NotApplicableError) as error:
        return session, str(error)
    return session, ""


def broken_rules(session: Session) -> set[str]:
    """Ids of the rules that are broken in a session."""
    return {finding.rule for finding in session.violations}


def rewriting_reply(handler: Handler, change: Callable[[Json, Json], Json | None]) -> Handler:
    """A handler that passes each chunk, or the buffered reply, through `change`; None drops a chunk.

    `change` gets the request and the JSON of the chunk, which it may modify in place.
    """

    def answer(http_request: MockHttpRequest) -> MockReply:
        reply = handler(http_request)
        request = request_json(http_request)
        return msgspec.structs.replace(reply, pieces=tuple(_edit(piece, request, change) for piece in reply.pieces))

    return answer


def request_json(http_request: MockHttpRequest) -> Json:
    """The JSON object of a request's body, or an empty object."""
    try:
        value = json.loads(http_request.body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def rewriting_request(handler: Handler, change: Callable[[Json], object]) -> Handler:
    """A handler that modifies the JSON of each request in place with `change`."""

    def answer(http_request: MockHttpRequest) -> MockReply:
        request = request_json(http_request)
        change(request)
        return handler(msgspec.structs.replace(http_request, body=json.dumps(request)) if request else http_request)

    return answer


def _edit(piece: MockChunk, request: Json, change: Callable[[Json, Json], Json | None]) -> MockChunk:
    """Apply `change` to a piece, which is a buffered reply or some frames."""
    text = piece.data.decode()
    if not text.startswith("data:"):
        return MockChunk(base64=json.dumps(change(request, json.loads(text))).encode())
    frames = []
    for frame in text.split("\n\n")[:-1]:
        data = frame.removeprefix("data: ")
        value = data if data == "[DONE]" else change(request, json.loads(data))
        if value is not None:
            frames.append(f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n")
    return MockChunk("".join(frames), piece.after_s)


async def no_pause(seconds: float) -> None:
    """Replaces the delay before a retry."""
