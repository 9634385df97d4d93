"""Probes of what requests may hold besides the usual: unknown members, parts of content, headers, no `stream`."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

from welldone.check import prompts
from welldone.check.probe import Probe
from welldone.check.reply import Reply
from welldone.check.session import NotHeardError, Session

UNKNOWN = "req-unknown-ignored"
PARTS = "req-content-parts"
ACCEPT = "http-accept-ignored"
DEFAULT = "http-stream-default-false"

Ask: TypeAlias = Callable[[], Awaitable[Reply]]

_FEW = 8  # tokens: that there is an answer is enough
_BUSY = (429, 503)
_EVENTS = "text/event-stream"
_JSON = "application/json"
_A_STREAM = "a stream"
_AN_OBJECT = "one JSON object"
_SDK_HEADERS = (
    ("OpenAI-Beta", "assistants=v2"),
    ("x-stainless-lang", "python"),
    ("x-stainless-package-version", "1.0.0"),
    ("x-stainless-os", "Linux"),
    ("x-stainless-arch", "x64"),
    ("x-stainless-runtime", "CPython"),
    ("x-stainless-runtime-version", "3.12.0"),
    ("x-stainless-async", "false"),
    ("x-stainless-retry-count", "0"),
    ("x-stainless-read-timeout", "600"),
)


# ---- what must be taken


async def _unknown(session: Session) -> None:
    member: dict[str, Any] = {"x_unknown_to_all": {"level": 1}}
    odd = partial(session.ask, prompts.HELLO, max_tokens=_FEW, **member)
    plain = partial(session.ask, prompts.HELLO, max_tokens=_FEW)
    await _want_taken(session, UNKNOWN, odd, plain, "200, and the member x_unknown_to_all is ignored")
    odd = partial(plain, headers=_SDK_HEADERS)
    await _want_taken(session, UNKNOWN, odd, plain, "200, and the headers x-stainless-* and OpenAI-Beta are ignored")


async def _content_parts(session: Session) -> None:
    parts = [{"type": "text", "text": prompts.HELLO}]
    odd = partial(session.ask, [{"role": "user", "content": parts}], max_tokens=_FEW)
    plain = partial(session.ask, prompts.HELLO, max_tokens=_FEW)
    await _want_taken(session, PARTS, odd, plain, "200: content may be a list of parts")
    # Some models know no such role by any name, and their templates refuse it.
    odd, plain = (partial(session.ask, _told_by(role), max_tokens=_FEW) for role in ("developer", "system"))
    await _want_taken(session, PARTS, odd, plain, "200: the role developer is the role system")


def _told_by(role: str) -> list[dict[str, Any]]:
    return [{"role": role, "content": "Be brief."}, {"role": "user", "content": prompts.HELLO}]


async def _want_taken(session: Session, rule: str, odd: Ask, plain: Ask, wanted: str) -> None:
    """A request with something odd in it is taken where the same without it is."""
    reply = await odd()
    if not reply.is_ok and reply.status not in _BUSY:
        session.answered(await plain())
        reply = await odd()  # once may be an accident
    if reply.status in _BUSY:
        raise NotHeardError(reply.complaint)
    session.hold(rule, reply, reply.is_ok, heard=reply.complaint, wanted=wanted)


# ---- what chooses between a stream and JSON


async def _accept(session: Session) -> None:
    await _accept_other(session, stream=True, other=_JSON, usual=_EVENTS)
    await _accept_other(session, stream=False, other=_EVENTS, usual=_JSON)


async def _accept_other(session: Session, *, stream: bool, other: str, usual: str) -> None:
    wanted = _A_STREAM if stream else _AN_OBJECT
    reply = await session.ask(prompts.HELLO, stream=stream, max_tokens=_FEW, headers=(("Accept", other),))
    if reply.status is not None and (reply.status == 429 or reply.status >= 500):
        raise NotHeardError(reply.complaint)
    if _kind(reply) != wanted:
        # The header is to blame only where another one makes it right.
        again = await session.ask(prompts.HELLO, stream=stream, max_tokens=_FEW, headers=(("Accept", usual),))
        if _kind(session.answered(again)) != wanted:
            raise NotHeardError("the reply is not what the field stream asks for, whatever Accept says")
    heard = f"{_kind(reply)} with Accept: {other}"
    session.hold(ACCEPT, reply, _kind(reply) == wanted, heard=heard, wanted=f"{wanted}: the field stream alone counts")


async def _default(session: Session) -> None:
    for stream in (None, False):
        reply = session.answered(await session.ask(prompts.HELLO, stream=stream, max_tokens=_FEW))
        if _kind(reply) not in (_A_STREAM, _AN_OBJECT):
            raise NotHeardError(_kind(reply))
        session.hold(DEFAULT, reply, _kind(reply) == _AN_OBJECT, heard=_kind(reply), wanted=_AN_OBJECT)


def _kind(reply: Reply) -> str:
    """What came: a stream, an object, or what else, in a line."""
    if not reply.is_ok:
        return reply.complaint
    if reply.heard.chunks or reply.heard.dones or (reply.is_stream and reply.choices):
        return _A_STREAM
    return _AN_OBJECT if not reply.is_stream and reply.heard.reply else "the reply is neither a stream nor JSON"


FORMS = (
    Probe(
        name="requests-accept",
        says="Accept headers that do not fit the field stream",
        work=_accept,
        rules=(ACCEPT,),
    ),
    Probe(
        name="requests-default",
        says="no field stream, and stream false",
        work=_default,
        rules=(DEFAULT,),
    ),
)
OPEN = (
    Probe(
        name="requests-unknown",
        says="members and headers that a server need not know",
        work=_unknown,
        rules=(UNKNOWN,),
    ),
    *FORMS,
)
PROBES = (
    *OPEN,
    Probe(
        name="requests-parts",
        says="content in parts, and the role developer",
        work=_content_parts,
        rules=(PARTS,),
    ),
)
