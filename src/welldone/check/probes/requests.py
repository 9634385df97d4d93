"""Probes of what requests may hold besides the usual: unknown members, parts of content, headers, no `stream`."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias

from welldone.check import prompts
from welldone.check.probe import Probe
from welldone.check.reply import ProbeReply
from welldone.check.session import NotApplicableError, Session

UNKNOWN_IGNORED = "req-unknown-ignored"
CONTENT_PARTS = "req-content-parts"
ACCEPT_IGNORED = "http-accept-ignored"
STREAM_DEFAULT_FALSE = "http-stream-default-false"

RequestVariant: TypeAlias = Callable[[], Awaitable[ProbeReply]]

_ANSWER_TOKENS = 8  # tokens: that there is an answer is enough
_OVERLOAD_STATUSES = (429, 503)
_EVENT_STREAM_TYPE = "text/event-stream"
_JSON_TYPE = "application/json"
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


async def _probe_unknown_fields(session: Session) -> None:
    member: dict[str, Any] = {"x_unknown_to_all": {"level": 1}}
    odd = partial(session.generate, prompts.HELLO_PROMPT, max_tokens=_ANSWER_TOKENS, **member)
    plain = partial(session.generate, prompts.HELLO_PROMPT, max_tokens=_ANSWER_TOKENS)
    await _require_accepted(session, UNKNOWN_IGNORED, odd, plain, "200, and the member x_unknown_to_all is ignored")
    odd = partial(plain, headers=_SDK_HEADERS)
    await _require_accepted(
        session, UNKNOWN_IGNORED, odd, plain, "200, and the headers x-stainless-* and OpenAI-Beta are ignored"
    )


async def _probe_content_parts(session: Session) -> None:
    parts = [{"type": "text", "text": prompts.HELLO_PROMPT}]
    odd = partial(session.generate, [{"role": "user", "content": parts}], max_tokens=_ANSWER_TOKENS)
    plain = partial(session.generate, prompts.HELLO_PROMPT, max_tokens=_ANSWER_TOKENS)
    await _require_accepted(session, CONTENT_PARTS, odd, plain, "200: content may be a list of parts")
    # Some models know no such role by any name, and their templates refuse it.
    odd, plain = (
        partial(session.generate, _conversation_with_role(role), max_tokens=_ANSWER_TOKENS)
        for role in ("developer", "system")
    )
    await _require_accepted(session, CONTENT_PARTS, odd, plain, "200: the role developer is the role system")


def _conversation_with_role(role: str) -> list[dict[str, Any]]:
    return [{"role": role, "content": "Be brief."}, {"role": "user", "content": prompts.HELLO_PROMPT}]


async def _require_accepted(
    session: Session, rule: str, variant: RequestVariant, plain: RequestVariant, expected: str
) -> None:
    """A request with something odd in it is taken where the same without it is."""
    reply = await variant()
    if not reply.is_ok and reply.status not in _OVERLOAD_STATUSES:
        session.require_ok(await plain())
        reply = await variant()  # once may be an accident
    if reply.status in _OVERLOAD_STATUSES:
        raise NotApplicableError(reply.error_summary)
    session.check_rule(rule, reply, reply.is_ok, observed=reply.error_summary, expected=expected)


# ---- what chooses between a stream and JSON


async def _probe_accept(session: Session) -> None:
    await _check_accept(session, stream=True, other=_JSON_TYPE, usual=_EVENT_STREAM_TYPE)
    await _check_accept(session, stream=False, other=_EVENT_STREAM_TYPE, usual=_JSON_TYPE)


async def _check_accept(session: Session, *, stream: bool, other: str, usual: str) -> None:
    wanted = _A_STREAM if stream else _AN_OBJECT
    reply = await session.generate(
        prompts.HELLO_PROMPT, stream=stream, max_tokens=_ANSWER_TOKENS, headers=(("Accept", other),)
    )
    if reply.status is not None and (reply.status == 429 or reply.status >= 500):
        raise NotApplicableError(reply.error_summary)
    if _body_kind(reply) != wanted:
        # The header is to blame only where another one makes it right.
        again = await session.generate(
            prompts.HELLO_PROMPT, stream=stream, max_tokens=_ANSWER_TOKENS, headers=(("Accept", usual),)
        )
        if _body_kind(session.require_ok(again)) != wanted:
            raise NotApplicableError("the reply is not what the field stream asks for, whatever Accept says")
    heard = f"{_body_kind(reply)} with Accept: {other}"
    session.check_rule(
        ACCEPT_IGNORED,
        reply,
        _body_kind(reply) == wanted,
        observed=heard,
        expected=f"{wanted}: the field stream alone counts",
    )


async def _probe_stream_default(session: Session) -> None:
    for stream in (None, False):
        reply = session.require_ok(
            await session.generate(prompts.HELLO_PROMPT, stream=stream, max_tokens=_ANSWER_TOKENS)
        )
        if _body_kind(reply) not in (_A_STREAM, _AN_OBJECT):
            raise NotApplicableError(_body_kind(reply))
        session.check_rule(
            STREAM_DEFAULT_FALSE,
            reply,
            _body_kind(reply) == _AN_OBJECT,
            observed=_body_kind(reply),
            expected=_AN_OBJECT,
        )


def _body_kind(reply: ProbeReply) -> str:
    """What came: a stream, an object, or what else, in a line."""
    if not reply.is_ok:
        return reply.error_summary
    if reply.view.chunks or reply.view.done_messages or (reply.is_stream and reply.choices):
        return _A_STREAM
    return _AN_OBJECT if not reply.is_stream and reply.view.reply_object else "the reply is neither a stream nor JSON"


STREAM_FIELD_PROBES = (
    Probe(
        name="requests-accept",
        description="Accept headers that do not fit the field stream",
        run=_probe_accept,
        rules=(ACCEPT_IGNORED,),
    ),
    Probe(
        name="requests-default",
        description="no field stream, and stream false",
        run=_probe_stream_default,
        rules=(STREAM_DEFAULT_FALSE,),
    ),
)
RESPONSES_REQUEST_PROBES = (
    Probe(
        name="requests-unknown",
        description="members and headers that a server need not know",
        run=_probe_unknown_fields,
        rules=(UNKNOWN_IGNORED,),
    ),
    *STREAM_FIELD_PROBES,
)
REQUEST_PROBES = (
    *RESPONSES_REQUEST_PROBES,
    Probe(
        name="requests-parts",
        description="content in parts, and the role developer",
        run=_probe_content_parts,
        rules=(CONTENT_PARTS,),
    ),
)
