"""Probes of invalid requests, and of valid requests with uncommon fields and headers.

A server may accept an invalid request; if it refuses, it must do so with a 4xx and an error body. The session judges
5xx statuses, missing replies and the shape of errors for every reply.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from welldone.check import settings
from welldone.check.probe import Probe
from welldone.check.probe_client import OVERLOAD_STATUSES
from welldone.check.reply import ProbeReply, ProbeRequest
from welldone.check.session import REFUSED_4XX_RULE, NotApplicableError, Session, UnsupportedError
from welldone.rules.view.choices import as_list, as_object, is_int

JsonFields: TypeAlias = dict[str, Any]

_BAD_REQUEST_TOKENS = 16  # limit for servers that accept an invalid request
_MAX_STREAM_BYTES = 16_384  # some 60 chunks: a server may ignore an invalid token limit
_NO_MODEL = "no-such-model-of-welldone-check"
_MAX_CONTEXT_TOKENS = 262_144  # twice as many one-letter tokens make a body of 1 MB
_CONTEXT_FIELDS = (
    *("max_model_len", "context_length", "context_window", "max_context_length", "n_ctx", "n_ctx_train"),
    "max_input_tokens",
)
"""Fields of model lists with the context length: vLLM and SGLang, OpenRouter, Groq, Mistral, llama.cpp, Anthropic."""
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
"""A text part and an image part, by dialect."""

_BAD_BODIES = (b'{"messages": [', b"", b"[]")
_BAD_CONVERSATIONS: tuple[object, ...] = (
    ...,
    [],
    [{"content": settings.HELLO_PROMPT}],
    [{"role": "nobody", "content": settings.HELLO_PROMPT}],
    [{"role": "user", "content": 7}],
)
"""Invalid values of the field with the conversation."""
_NOT_A_CONVERSATION: Mapping[str, object] = {
    "chat": settings.HELLO_PROMPT,
    "responses": 7,
    "messages": settings.HELLO_PROMPT,
}
"""A value that is no conversation, by dialect: `input` of /v1/responses may be a string."""
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
_BAD_LIMITS = ("five", -5)  # values of the token limit


async def _probe_bad_bodies(session: Session) -> None:
    valid = json.dumps(_valid_body(session)).encode()
    for body in (*_BAD_BODIES, valid.replace(settings.HELLO_PROMPT.encode(), b"\xff\xfe")):
        await session.post(session.dialect.path, body, abort_when=_is_stream_too_long)
    _require_refusal(session)


async def _probe_bad_conversations(session: Session) -> None:
    for conversation in (*_BAD_CONVERSATIONS, _NOT_A_CONVERSATION[session.dialect.name]):
        for stream in (True, False):
            await _send_bad_request(session, {session.dialect.input_field: conversation, "stream": stream})
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
    requests = [ProbeRequest(method="GET", path=path, endpoint=name)]
    if name != "messages":  # errors of unknown paths need not have Anthropic's shape
        requests.append(ProbeRequest(method="POST", path="/no-such-path", body=b"{}", endpoint=name))
    for request in requests:
        # Only an error is judged: OpenAI answers the GET with a list of stored completions.
        reply = await session.send(request, is_judged=False)
        if reply.status is not None and reply.status >= 400:
            await session.send(request)
    _require_refusal(session)


async def _probe_bad_key(session: Session) -> None:
    if not session.has_key:
        raise NotApplicableError("no key was given")
    for key in (None, "wrong-key-of-welldone-check"):
        key_header = session.dialect.key_header
        headers = (
            ("Authorization", key and f"Bearer {key}"),
            *([] if key_header is None else [(key_header, key)]),
        )
        reply = await session.post(
            session.dialect.path, _valid_body(session), headers=headers, abort_when=_is_stream_too_long
        )
        if reply.is_ok:
            raise UnsupportedError("the server answers without a valid key")
    _require_refusal(session)


async def _probe_image(session: Session) -> None:
    conversation = [{"role": "user", "content": list(_IMAGE_PARTS[session.dialect.name])}]
    await _send_bad_request(session, session.dialect.prompt_members(conversation))
    _require_refusal(session)


async def _probe_context_length(session: Session) -> None:
    context = await _context_tokens(session)
    await _send_bad_request(session, session.dialect.prompt_members("a " * (2 * context)))
    _require_refusal(session)


async def _context_tokens(session: Session) -> int:
    """Context length of the model, from the model list.

    A prompt that exceeds any context could cost a server minutes of valid work. So the probe runs only where the
    length is known.
    """
    reply = session.require_ok(await session.send(ProbeRequest(method="GET", path="/models"), is_judged=False))
    models = [as_object(model) for model in as_list(reply.json.get("data"))]
    model = next((model for model in models if model.get("id") == session.facts.model), {})
    values = [fields.get(name) for fields in (model, as_object(model.get("meta"))) for name in _CONTEXT_FIELDS]
    context = max((value for value in values if is_int(value)), default=0)
    if context <= 0:
        raise NotApplicableError("the model list has no context length")
    if context > _MAX_CONTEXT_TOKENS:
        raise NotApplicableError(f"a context of {context} tokens is too long to fill")
    return context


async def _send_bad_request(session: Session, members: dict[str, Any]) -> None:
    await session.post(session.dialect.path, _valid_body(session) | members, abort_when=_is_stream_too_long)


def _valid_body(session: Session) -> dict[str, Any]:
    """A valid request for a short answer."""
    prompt = session.dialect.prompt_members(settings.HELLO_PROMPT)
    return {"model": session.facts.model, **prompt, "stream": True, session.facts.limit_field: _BAD_REQUEST_TOKENS}


def _is_stream_too_long(body: bytes) -> bool:
    return len(body) > _MAX_STREAM_BYTES and b"data:" in body[:_MAX_STREAM_BYTES]


def _require_refusal(session: Session) -> None:
    if REFUSED_4XX_RULE not in session.judged:
        session.not_applicable(REFUSED_4XX_RULE, "the server refused no request")


def _bad_conversation_probe(field: str) -> Probe:
    return Probe(
        name=f"mistakes-{field}",
        description=f"missing or invalid {field}",
        run=_probe_bad_conversations,
        rules=_BAD_REQUEST_RULES,
    )


_BAD_REQUEST_RULES = (REFUSED_4XX_RULE,)
_OTHER_BAD_REQUEST_PROBES = (
    Probe(
        name="mistakes-json",
        description="bodies that are not a JSON object",
        run=_probe_bad_bodies,
        rules=_BAD_REQUEST_RULES,
    ),
    Probe(
        name="mistakes-values",
        description="fields with invalid values",
        run=_probe_bad_values,
        rules=_BAD_REQUEST_RULES,
    ),
    Probe(
        name="mistakes-model",
        description="an unknown model",
        run=_probe_unknown_model,
        rules=_BAD_REQUEST_RULES,
    ),
    Probe(
        name="mistakes-path",
        description="a wrong method and an unknown path",
        run=_probe_bad_path,
        rules=_BAD_REQUEST_RULES,
    ),
    Probe(name="mistakes-key", description="no key and a wrong key", run=_probe_bad_key, rules=_BAD_REQUEST_RULES),
    Probe(
        name="mistakes-length",
        description="a prompt of twice the context length",
        run=_probe_context_length,
        rules=_BAD_REQUEST_RULES,
    ),
    Probe(
        name="mistakes-image",
        description="an image, which a text model refuses",
        run=_probe_image,
        rules=_BAD_REQUEST_RULES,
    ),
)
BAD_REQUEST_PROBES = (_bad_conversation_probe("messages"), *_OTHER_BAD_REQUEST_PROBES)
BAD_INPUT_PROBES = (_bad_conversation_probe("input"), *_OTHER_BAD_REQUEST_PROBES)
"""The same probes for /v1/responses, where the conversation is in `input`."""


_CLIENT_STATUSES = (401, 402, 403, 408, 429)
"""Statuses that concern the key, the credit or the load, not the request."""


def is_refused(reply: ProbeReply) -> bool:
    """Whether the server refuses the request itself with a 4xx."""
    status = reply.status
    return status is not None and 400 <= status < 500 and status not in _CLIENT_STATUSES


# ---- valid requests with uncommon fields and headers


UNKNOWN_IGNORED = "req-unknown-ignored"
CONTENT_PARTS = "req-content-parts"
ACCEPT_IGNORED = "http-accept-ignored"
STREAM_DEFAULT_FALSE = "http-stream-default-false"

RequestVariant: TypeAlias = Callable[[], Awaitable[ProbeReply]]

_ANSWER_TOKENS = 8
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


async def _probe_unknown_fields(session: Session) -> None:
    field: dict[str, Any] = {"x_unknown_to_all": {"level": 1}}
    variant = partial(session.generate, settings.HELLO_PROMPT, max_tokens=_ANSWER_TOKENS, **field)
    plain = partial(session.generate, settings.HELLO_PROMPT, max_tokens=_ANSWER_TOKENS)
    await _require_accepted(session, UNKNOWN_IGNORED, variant, plain, "200, and the field x_unknown_to_all is ignored")
    variant = partial(plain, headers=_SDK_HEADERS)
    await _require_accepted(
        session, UNKNOWN_IGNORED, variant, plain, "200, and the headers x-stainless-* and OpenAI-Beta are ignored"
    )


async def _probe_content_parts(session: Session) -> None:
    parts = [{"type": "text", "text": settings.HELLO_PROMPT}]
    variant = partial(session.generate, [{"role": "user", "content": parts}], max_tokens=_ANSWER_TOKENS)
    plain = partial(session.generate, settings.HELLO_PROMPT, max_tokens=_ANSWER_TOKENS)
    await _require_accepted(session, CONTENT_PARTS, variant, plain, "200: content may be a list of parts")
    # Templates of some models refuse a system prompt under either name.
    variant, plain = (
        partial(session.generate, _conversation_with_role(role), max_tokens=_ANSWER_TOKENS)
        for role in ("developer", "system")
    )
    await _require_accepted(session, CONTENT_PARTS, variant, plain, "200: the role developer is the role system")


def _conversation_with_role(role: str) -> list[dict[str, Any]]:
    return [{"role": role, "content": "Be brief."}, {"role": "user", "content": settings.HELLO_PROMPT}]


async def _require_accepted(
    session: Session, rule: str, variant: RequestVariant, plain: RequestVariant, expected: str
) -> None:
    """The variant must be accepted if the plain request is."""
    reply = await variant()
    if not reply.is_ok and reply.status not in OVERLOAD_STATUSES:
        session.require_ok(await plain())
        reply = await variant()  # the first refusal may have been a coincidence
    if reply.status in OVERLOAD_STATUSES:
        raise NotApplicableError(reply.error_summary)
    session.check_rule(rule, reply, reply.is_ok, observed=reply.error_summary, expected=expected)


async def _probe_accept(session: Session) -> None:
    await _check_accept(session, stream=True, other=_JSON_TYPE, usual=_EVENT_STREAM_TYPE)
    await _check_accept(session, stream=False, other=_EVENT_STREAM_TYPE, usual=_JSON_TYPE)


async def _check_accept(session: Session, *, stream: bool, other: str, usual: str) -> None:
    expected = _A_STREAM if stream else _AN_OBJECT
    reply = await session.generate(
        settings.HELLO_PROMPT, stream=stream, max_tokens=_ANSWER_TOKENS, headers=(("Accept", other),)
    )
    if reply.status is not None and (reply.status == 429 or reply.status >= 500):
        raise NotApplicableError(reply.error_summary)
    if _body_kind(reply) != expected:
        # The header is the cause only if the reply is correct with the usual one.
        repeated = await session.generate(
            settings.HELLO_PROMPT, stream=stream, max_tokens=_ANSWER_TOKENS, headers=(("Accept", usual),)
        )
        if _body_kind(session.require_ok(repeated)) != expected:
            raise NotApplicableError("the reply does not follow the field stream with any Accept header")
    session.check_rule(
        ACCEPT_IGNORED,
        reply,
        _body_kind(reply) == expected,
        observed=f"{_body_kind(reply)} with Accept: {other}",
        expected=f"{expected}: only the field stream decides",
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
    """Kind of the reply's body: a stream, a JSON object, or a description of what else it is."""
    if not reply.is_ok:
        return reply.error_summary
    if reply.view.chunks or reply.view.done_messages or (reply.is_stream and reply.choices):
        return _A_STREAM
    return _AN_OBJECT if not reply.is_stream and reply.view.reply_object else "the reply is neither a stream nor JSON"


STREAM_FIELD_PROBES = (
    Probe(
        name="requests-accept",
        description="Accept headers that contradict the field stream",
        run=_probe_accept,
        rules=(ACCEPT_IGNORED,),
    ),
    Probe(
        name="requests-default",
        description="no field stream, and stream: false",
        run=_probe_stream_default,
        rules=(STREAM_DEFAULT_FALSE,),
    ),
)
RESPONSES_REQUEST_PROBES = (
    Probe(
        name="requests-unknown",
        description="unknown fields and headers",
        run=_probe_unknown_fields,
        rules=(UNKNOWN_IGNORED,),
    ),
    *STREAM_FIELD_PROBES,
)
REQUEST_PROBES = (
    *RESPONSES_REQUEST_PROBES,
    Probe(
        name="requests-parts",
        description="content parts and the role developer",
        run=_probe_content_parts,
        rules=(CONTENT_PARTS,),
    ),
)
