"""Probes of bad requests: what cannot be served is refused with a 4xx that says why. A server may also take it.

They hold no rule of their own: the session itself hears a 5xx, silence, and an error in a wrong shape.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from welldone.check import settings
from welldone.check.probe import Probe
from welldone.check.reply import ProbeReply, ProbeRequest
from welldone.check.session import REFUSED_4XX_RULE, NotApplicableError, Session, UnsupportedError
from welldone.rules.view.choices import as_list, as_object, is_int

JsonFields: TypeAlias = dict[str, Any]

_BAD_REQUEST_TOKENS = 16  # tokens, where a server takes what it could refuse
_MAX_STREAM_BYTES = 16_384  # of a stream: some 60 chunks, where a wrong limit means none
_NO_MODEL = "no-such-model-of-welldone-check"
_MAX_CONTEXT_TOKENS = 262_144  # tokens: what a context may hold to be filled twice with one letter each, in 1 MB
_CONTEXT_FIELDS = (
    *("max_model_len", "context_length", "context_window", "max_context_length", "n_ctx", "n_ctx_train"),
    "max_input_tokens",
)
"""How models lists say how long a prompt may be: vLLM and SGLang, OpenRouter, Groq, Mistral, llama.cpp, Anthropic."""
_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
_PIXEL_URL = f"data:image/png;base64,{_PIXEL}"
_IMAGE_PARTS: Mapping[str, tuple[JsonFields, JsonFields]] = {
    "chat": (
        {"type": "text", "text": settings.HELLO_PROMPT},
        {"type": "image_url", "image_url": {"url": _PIXEL_URL}},
    ),
    "responses": (
        {"type": "input_text", "text": settings.HELLO_PROMPT},
        {"type": "input_image", "image_url": _PIXEL_URL, "detail": "auto"},
    ),
    "messages": (
        {"type": "text", "text": settings.HELLO_PROMPT},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": _PIXEL}},
    ),
}
"""A text and an image, by dialect."""

_BAD_BODIES = (b'{"messages": [', b"", b"[]")
_BAD_CONVERSATIONS: tuple[object, ...] = (
    ...,
    [],
    [{"content": settings.HELLO_PROMPT}],
    [{"role": "nobody", "content": settings.HELLO_PROMPT}],
    [{"role": "user", "content": 7}],
)
"""What stands in the place of what is said."""
_NOT_A_CONVERSATION: Mapping[str, object] = {
    "chat": settings.HELLO_PROMPT,
    "responses": 7,
    "messages": settings.HELLO_PROMPT,
}
"""What is no talk at all, by dialect: one of them takes a text."""
_BAD_VALUES: tuple[JsonFields, ...] = ({"temperature": "hot"}, {"stream": "yes"}, {"tools": "none"})
_BAD_DIALECT_VALUES: Mapping[str, tuple[JsonFields, ...]] = {
    "chat": (
        {"n": 0},
        {"stop": 7},
        {"response_format": {"type": "poem"}},
        {"logprobs": True, "top_logprobs": 999},
    ),
    "responses": (
        {"text": {"format": {"type": "poem"}}},
        {"top_logprobs": 999},
        {"previous_response_id": "resp_of_nobody"},
    ),
    "messages": ({"stop_sequences": 7}, {"thinking": "hard"}),
}
_BAD_LIMITS = ("five", -5)  # of tokens


async def _probe_bad_bodies(session: Session) -> None:
    right = json.dumps(_valid_body(session)).encode()
    for body in (*_BAD_BODIES, right.replace(settings.HELLO_PROMPT.encode(), b"\xff\xfe")):
        await session.post(session.dialect.path, body, abort_when=_is_stream_too_long)
    _require_refusal(session)


async def _probe_bad_conversations(session: Session) -> None:
    for talk in (*_BAD_CONVERSATIONS, _NOT_A_CONVERSATION[session.dialect.name]):
        for stream in (True, False):
            await _send_bad_request(session, {session.dialect.input_field: talk, "stream": stream})
    _require_refusal(session)


async def _probe_bad_values(session: Session) -> None:
    limits = ({session.facts.limit_field: limit} for limit in _BAD_LIMITS)
    for members in (*_BAD_VALUES, *_BAD_DIALECT_VALUES[session.dialect.name], *limits):
        await _send_bad_request(session, members)
    _require_refusal(session)


async def _probe_unknown_model(session: Session) -> None:
    for stream in (True, False):
        await _send_bad_request(session, {"model": _NO_MODEL, "stream": stream})
    _require_refusal(session)


async def _probe_bad_path(session: Session) -> None:
    name, path = session.dialect.name, session.dialect.path
    wrong = [ProbeRequest(method="GET", path=path, endpoint=name)]
    if name != "messages":  # what has no path there has no dialect either
        wrong.append(ProbeRequest(method="POST", path="/no-such-path", body=b"{}", endpoint=name))
    for asked in wrong:
        # The rules speak about what failed. OpenAI itself answers this GET, with a list.
        reply = await session.send(asked, is_judged=False)
        if reply.status is not None and reply.status >= 400:
            await session.send(asked)
    _require_refusal(session)


async def _probe_bad_key(session: Session) -> None:
    if not session.has_key:
        raise NotApplicableError("no key was given")
    for key in (None, "wrong-key-of-welldone-check"):
        headers = (("Authorization", key and f"Bearer {key}"), *_key_headers(session, key))
        reply = await session.post(
            session.dialect.path, _valid_body(session), headers=headers, abort_when=_is_stream_too_long
        )
        if reply.is_ok:
            raise UnsupportedError("the server answers without the right key")
    _require_refusal(session)


def _key_headers(session: Session, key: str | None) -> tuple[tuple[str, str | None], ...]:
    name = session.dialect.key_header
    return () if name is None else ((name, key),)


async def _probe_image(session: Session) -> None:
    talk = [{"role": "user", "content": list(_IMAGE_PARTS[session.dialect.name])}]
    await _send_bad_request(session, session.dialect.prompt_members(talk))
    _require_refusal(session)


async def _probe_context_length(session: Session) -> None:
    context = await _context_tokens(session)
    await _send_bad_request(session, session.dialect.prompt_members("a " * (2 * context)))
    _require_refusal(session)


async def _context_tokens(session: Session) -> int:
    """How many tokens a prompt may have.

    One that is long enough for any context would cost a server with a large one minutes of work, and it would not be
    wrong to do that work. So only a server that says how much it takes is asked for more.
    """
    reply = session.require_ok(await session.send(ProbeRequest(method="GET", path="/models"), is_judged=False))
    models = [as_object(model) for model in as_list(reply.json.get("data"))]
    model = next((model for model in models if model.get("id") == session.facts.model), {})
    told = [place.get(name) for place in (model, as_object(model.get("meta"))) for name in _CONTEXT_FIELDS]
    context = max((value for value in told if is_int(value)), default=0)
    if context <= 0:
        raise NotApplicableError("the server does not say how long a prompt may be")
    if context > _MAX_CONTEXT_TOKENS:
        raise NotApplicableError(f"a context of {context} tokens is too long to fill")
    return context


async def _send_bad_request(session: Session, members: dict[str, Any]) -> None:
    await session.post(session.dialect.path, _valid_body(session) | members, abort_when=_is_stream_too_long)


def _valid_body(session: Session) -> dict[str, Any]:
    """A request that is right, for a short answer."""
    said = session.dialect.prompt_members(settings.HELLO_PROMPT)
    return {"model": session.facts.model, **said, "stream": True, session.facts.limit_field: _BAD_REQUEST_TOKENS}


def _is_stream_too_long(body: bytes) -> bool:
    """Whether a server that knows no limit has said enough."""
    return len(body) > _MAX_STREAM_BYTES and b"data:" in body[:_MAX_STREAM_BYTES]


def _require_refusal(session: Session) -> None:
    if REFUSED_4XX_RULE not in session.judged:
        session.not_applicable(REFUSED_4XX_RULE, "the server refused nothing")


def _bad_conversation_probe(field: str) -> Probe:
    return Probe(
        name=f"mistakes-{field}",
        description=f"{field} that is missing or wrong",
        run=_probe_bad_conversations,
        rules=_BAD_REQUEST_RULES,
    )


_BAD_REQUEST_RULES = (REFUSED_4XX_RULE,)
_OTHER_BAD_REQUEST_PROBES = (
    Probe(
        name="mistakes-json",
        description="bodies that are no JSON object",
        run=_probe_bad_bodies,
        rules=_BAD_REQUEST_RULES,
    ),
    Probe(
        name="mistakes-values",
        description="members with values that make no sense",
        run=_probe_bad_values,
        rules=_BAD_REQUEST_RULES,
    ),
    Probe(
        name="mistakes-model",
        description="a model that does not exist",
        run=_probe_unknown_model,
        rules=_BAD_REQUEST_RULES,
    ),
    Probe(
        name="mistakes-path",
        description="a wrong method, and a path that does not exist",
        run=_probe_bad_path,
        rules=_BAD_REQUEST_RULES,
    ),
    Probe(name="mistakes-key", description="no key, and a wrong one", run=_probe_bad_key, rules=_BAD_REQUEST_RULES),
    Probe(
        name="mistakes-length",
        description="a prompt that is twice too long",
        run=_probe_context_length,
        rules=_BAD_REQUEST_RULES,
    ),
    Probe(
        name="mistakes-image",
        description="an image, to what may be a model of text",
        run=_probe_image,
        rules=_BAD_REQUEST_RULES,
    ),
)
BAD_REQUEST_PROBES = (_bad_conversation_probe("messages"), *_OTHER_BAD_REQUEST_PROBES)
BAD_INPUT_PROBES = (_bad_conversation_probe("input"), *_OTHER_BAD_REQUEST_PROBES)
"""The same, where what is said stands in `input`."""


# Whether a server refuses what it was asked: not the key, not for lack of money, time or room.


_CLIENT_STATUSES = (401, 402, 403, 408, 429)
"""A run may end with its credit, or be asked to slow down. That says nothing of the request."""


def is_refused(reply: ProbeReply) -> bool:
    """Whether the server says with a 4xx that it does not do this."""
    status = reply.status
    return status is not None and 400 <= status < 500 and status not in _CLIENT_STATUSES


# Probes of what requests may hold besides the usual: unknown members, parts of content, headers, no `stream`.


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
    odd = partial(session.generate, settings.HELLO_PROMPT, max_tokens=_ANSWER_TOKENS, **member)
    plain = partial(session.generate, settings.HELLO_PROMPT, max_tokens=_ANSWER_TOKENS)
    await _require_accepted(session, UNKNOWN_IGNORED, odd, plain, "200, and the member x_unknown_to_all is ignored")
    odd = partial(plain, headers=_SDK_HEADERS)
    await _require_accepted(
        session, UNKNOWN_IGNORED, odd, plain, "200, and the headers x-stainless-* and OpenAI-Beta are ignored"
    )


async def _probe_content_parts(session: Session) -> None:
    parts = [{"type": "text", "text": settings.HELLO_PROMPT}]
    odd = partial(session.generate, [{"role": "user", "content": parts}], max_tokens=_ANSWER_TOKENS)
    plain = partial(session.generate, settings.HELLO_PROMPT, max_tokens=_ANSWER_TOKENS)
    await _require_accepted(session, CONTENT_PARTS, odd, plain, "200: content may be a list of parts")
    # Some models know no such role by any name, and their templates refuse it.
    odd, plain = (
        partial(session.generate, _conversation_with_role(role), max_tokens=_ANSWER_TOKENS)
        for role in ("developer", "system")
    )
    await _require_accepted(session, CONTENT_PARTS, odd, plain, "200: the role developer is the role system")


def _conversation_with_role(role: str) -> list[dict[str, Any]]:
    return [{"role": role, "content": "Be brief."}, {"role": "user", "content": settings.HELLO_PROMPT}]


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
        settings.HELLO_PROMPT, stream=stream, max_tokens=_ANSWER_TOKENS, headers=(("Accept", other),)
    )
    if reply.status is not None and (reply.status == 429 or reply.status >= 500):
        raise NotApplicableError(reply.error_summary)
    if _body_kind(reply) != wanted:
        # The header is to blame only where another one makes it right.
        again = await session.generate(
            settings.HELLO_PROMPT, stream=stream, max_tokens=_ANSWER_TOKENS, headers=(("Accept", usual),)
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
            await session.generate(settings.HELLO_PROMPT, stream=stream, max_tokens=_ANSWER_TOKENS)
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
