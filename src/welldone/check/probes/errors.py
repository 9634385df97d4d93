"""Probes of invalid requests, and of valid requests with uncommon fields and headers.

A server may accept an invalid request; if it refuses, it must do so with a 4xx and an error body. The session judges
5xx statuses, missing replies and the shape of errors for every reply.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from welldone.check import settings
from welldone.check.reply import (
    OVERLOAD_STATUSES,
    ExpectedReply,
    ProbeReply,
    ProbeRequest,
    RequestFunction,
    RequestHeaders,
)
from welldone.check.session import REFUSED_4XX_RULE, NotApplicableError, Probe, Session, UnsupportedError
from welldone.rules.view.choices import as_list, as_object, is_int

JsonFields: TypeAlias = dict[str, Any]

_BAD_REQUEST_TOKENS = 16  # limit for servers that accept an invalid request
_MAX_STREAM_BYTES = 16_384  # some 60 chunks: a server may ignore an invalid token limit
_NO_MODEL = "no-such-model-of-welldone-check"
_MAX_CONTEXT_TOKENS = 262_144  # twice as many one-letter tokens make a body of 1 MB
_CONTEXT_FIELDS = (
    *("max_model_len", "context_length", "context_window", "max_context_length", "n_ctx", "n_ctx_train"),
    *("max_input_tokens", "inputTokenLimit"),
)
"""Fields of model lists with the context length: vLLM and SGLang, OpenRouter, Groq, Mistral, llama.cpp, Anthropic,
Google."""
_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
_PIXEL_URL = f"data:image/png;base64,{_PIXEL}"
_IMAGE_PARTS: Mapping[str, JsonFields] = {
    "chat": {"type": "image_url", "image_url": {"url": _PIXEL_URL}},
    "responses": {"type": "input_image", "image_url": _PIXEL_URL, "detail": "auto"},
    "messages": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": _PIXEL}},
    "gemini": {"inlineData": {"mimeType": "image/png", "data": _PIXEL}},
}
"""An image part, by dialect."""

_BAD_BODIES = (b'{"messages": [', b"", b"[]")
_BAD_MESSAGES: tuple[JsonFields, ...] = (
    *({"content": settings.HELLO_PROMPT}, {"role": "nobody", "content": settings.HELLO_PROMPT}),
    {"role": "user", "content": 7},
)
_BAD_CONVERSATIONS: tuple[object, ...] = (..., [], *([message] for message in _BAD_MESSAGES))
"""Invalid values of the field with the conversation."""
_BAD_VALUES: tuple[JsonFields, ...] = ({"temperature": "hot"}, {"stream": "yes"}, {"tools": "none"})
_BAD_DIALECT_VALUES: Mapping[str, tuple[JsonFields, ...]] = {
    "chat": ({"n": 0}, {"stop": 7}, {"response_format": {"type": "poem"}}, {"logprobs": True, "top_logprobs": 999}),
    "responses": (
        *({"text": {"format": {"type": "poem"}}}, {"top_logprobs": 999}, {"previous_response_id": "resp_of_nobody"}),
    ),
    "messages": ({"stop_sequences": 7}, {"thinking": "hard"}),
    "gemini": ({"candidateCount": 0}, {"stopSequences": 7}, {"responseMimeType": "text/poem"}, {"toolConfig": 7}),
}
_BAD_LIMITS = ("five", -5)  # values of the token limit


async def _send_bad_bodies(session: Session) -> None:
    path, fields = session.dialect.write_request(_valid_body(session))
    valid = json.dumps(fields).encode()
    for body in (*_BAD_BODIES, valid.replace(settings.HELLO_PROMPT.encode(), b"\xff\xfe")):
        reply = await session.post(path, body, abort_when=_is_stream_too_long, expected=ExpectedReply.REFUSAL)
        if reply.is_ok and reply.choices and body in _BAD_BODIES:
            observed = f"{reply.status}: an answer to the body {body.decode()!r}"
            session.check_rule(REFUSED_4XX_RULE, reply, False, observed, "a 4xx with the reason")


async def _send_bad_conversations(session: Session) -> None:
    # `input` of /v1/responses may be a string.
    not_a_list = 7 if session.dialect.name == "responses" else settings.HELLO_PROMPT
    for conversation in (*_BAD_CONVERSATIONS, not_a_list):
        for stream in (True, False):
            await _send_bad_request(session, {session.dialect.input_field: conversation, "stream": stream})


async def _send_bad_values(session: Session) -> None:
    limits = ({session.facts.limit_field: limit} for limit in _BAD_LIMITS)
    for members in (*_BAD_VALUES, *_BAD_DIALECT_VALUES[session.dialect.name], *limits):
        await _send_bad_request(session, members)


async def _send_unknown_model(session: Session) -> None:
    for stream in (True, False):
        await _send_bad_request(session, {"model": _NO_MODEL, "stream": stream})


async def _send_bad_path(session: Session) -> None:
    name = session.dialect.name
    path, _ = session.dialect.write_request({"model": session.facts.model})
    requests = [ProbeRequest(method="GET", path=path, endpoint=name)]
    if name not in ("messages", "gemini"):  # errors of unknown paths need not have the shape of the dialect
        requests.append(ProbeRequest(method="POST", path="/no-such-path", body=b"{}", endpoint=name))
    for request in requests:
        # Only an error is judged: OpenAI answers the GET with a list of stored completions.
        reply = await session.send(request, is_judged=False)
        if reply.status is not None and reply.status >= 400:
            await session.send(request)


async def _send_bad_key(session: Session) -> None:
    if not session.has_key:
        raise NotApplicableError("no key was given")
    key_header = session.dialect.key_header
    for key in (None, "wrong-key-of-welldone-check"):
        headers = (("Authorization", key and f"Bearer {key}"), *([] if key_header is None else [(key_header, key)]))
        if (await _send_bad_request(session, {}, headers)).is_ok:
            raise UnsupportedError("the server answers without a valid key")


async def _send_image(session: Session) -> None:
    dialect = session.dialect.name
    text: JsonFields = {"text": settings.HELLO_PROMPT}
    if dialect != "gemini":
        text["type"] = "input_text" if dialect == "responses" else "text"
    content = [text, _IMAGE_PARTS[dialect]]
    conversation: list[JsonFields] = [{"role": "user", "parts" if dialect == "gemini" else "content": content}]
    await _send_bad_request(session, session.dialect.prompt_members(conversation))


async def _send_long_prompt(session: Session) -> None:
    context = await _context_tokens(session)
    await _send_bad_request(session, session.dialect.prompt_members("a " * (2 * context)))


async def _context_tokens(session: Session) -> int:
    """Context length of the model, from the model list.

    A prompt that exceeds any context could cost a server minutes of valid work. So the probe runs only where the
    length is known.
    """
    reply = await session.list_models()
    models = [as_object(model) for model in as_list(reply.json.get("data", reply.json.get("models")))]
    names = (session.facts.model, f"models/{session.facts.model}")
    model = next((model for model in models if model.get("id", model.get("name")) in names), {})
    values = [fields.get(name) for fields in (model, as_object(model.get("meta"))) for name in _CONTEXT_FIELDS]
    context = max((value for value in values if is_int(value)), default=0)
    if context <= 0:
        raise NotApplicableError("the model list has no context length")
    if context > _MAX_CONTEXT_TOKENS:
        raise NotApplicableError(f"a context of {context} tokens is too long to fill")
    return context


async def _send_bad_request(session: Session, members: JsonFields, headers: RequestHeaders = ()) -> ProbeReply:
    path, body = session.dialect.write_request(_valid_body(session) | members)
    refusal = ExpectedReply.REFUSAL
    return await session.post(path, body, headers=headers, abort_when=_is_stream_too_long, expected=refusal)


def _valid_body(session: Session) -> JsonFields:
    """A valid request for a short answer."""
    prompt = session.dialect.prompt_members(settings.HELLO_PROMPT)
    return {"model": session.facts.model, **prompt, "stream": True, session.facts.limit_field: _BAD_REQUEST_TOKENS}


def _is_stream_too_long(body: bytes) -> bool:
    return len(body) > _MAX_STREAM_BYTES and b"data:" in body[:_MAX_STREAM_BYTES]


def _bad_request_probe(name: str, description: str, send: Callable[[Session], Awaitable[None]]) -> Probe:
    async def run(session: Session) -> None:
        await send(session)
        if REFUSED_4XX_RULE not in session.judged:
            session.not_applicable(REFUSED_4XX_RULE, "the server refused no request")

    # One at a time: if one of them stops the server, it is known which.
    return Probe(f"mistakes-{name}", description, run, (REFUSED_4XX_RULE,), is_exclusive=True)


BAD_REQUEST_PROBES, BAD_INPUT_PROBES, BAD_CONTENTS_PROBES = (
    (
        _bad_request_probe(field, f"missing or invalid {field}", _send_bad_conversations),
        _bad_request_probe("json", "bodies that are not a JSON object", _send_bad_bodies),
        _bad_request_probe("values", "fields with invalid values", _send_bad_values),
        _bad_request_probe("model", "an unknown model", _send_unknown_model),
        _bad_request_probe("path", "a wrong method and an unknown path", _send_bad_path),
        _bad_request_probe("key", "no key and a wrong key", _send_bad_key),
        _bad_request_probe("length", "a prompt of twice the context length", _send_long_prompt),
        _bad_request_probe("image", "an image, which a text model refuses", _send_image),
    )
    for field in ("messages", "input", "contents")
)
"""The probes of chat and /v1/messages, and those of /v1/responses and Gemini, whose conversation has another field."""


_CLIENT_STATUSES = (401, 402, 403, 408, 429)
"""Statuses that concern the key, the credit or the load, not the request."""


def is_refused(reply: ProbeReply) -> bool:
    """Whether the server refuses the request itself with a 4xx."""
    status = reply.status
    return status is not None and 400 <= status < 500 and status not in _CLIENT_STATUSES


# ---- valid requests with uncommon fields and headers


_ANSWER_TOKENS = 8
_A_STREAM = "a stream"
_AN_OBJECT = "one JSON object"
_SDK_HEADERS = (
    *(("OpenAI-Beta", "assistants=v2"), ("x-stainless-lang", "python"), ("x-stainless-package-version", "1.0.0")),
    *(("x-stainless-os", "Linux"), ("x-stainless-arch", "x64"), ("x-stainless-runtime", "CPython")),
    *(("x-stainless-runtime-version", "3.12.0"), ("x-stainless-async", "false"), ("x-stainless-retry-count", "0")),
    ("x-stainless-read-timeout", "600"),
)


async def _probe_unknown_fields(session: Session) -> None:
    plain = partial(session.generate, settings.HELLO_PROMPT, max_tokens=_ANSWER_TOKENS)
    field, headers = partial(plain, x_unknown_to_all={"level": 1}), partial(plain, headers=_SDK_HEADERS)
    for variant, name in ((field, "field x_unknown_to_all is"), (headers, "headers x-stainless-* and OpenAI-Beta are")):
        await _require_accepted(session, "req-unknown-ignored", variant, plain, f"200, and the {name} ignored")


async def _probe_content_parts(session: Session) -> None:
    def request(content: str | list[JsonFields], system_role: str | None = None) -> RequestFunction:
        system = [{"role": system_role, "content": "Be brief."}] if system_role else []
        conversation = [*system, {"role": "user", "content": content}]
        return partial(session.generate, conversation, max_tokens=_ANSWER_TOKENS)

    plain, parts = request(settings.HELLO_PROMPT), request([{"type": "text", "text": settings.HELLO_PROMPT}])
    await _require_accepted(session, "req-content-parts", parts, plain, "200: content may be a list of parts")
    # Templates of some models refuse a system prompt under either name.
    variant, plain = (request(settings.HELLO_PROMPT, role) for role in ("developer", "system"))
    await _require_accepted(session, "req-content-parts", variant, plain, "200: the role developer is the role system")


async def _require_accepted(
    session: Session, rule: str, variant: RequestFunction, plain: RequestFunction, expected: str
) -> None:
    """The variant must be accepted if the plain request is."""
    reply = await variant()
    if not reply.is_ok and reply.status not in OVERLOAD_STATUSES:
        session.require_ok(await plain())
        reply = await variant()  # the first refusal may have been a coincidence
    if reply.status in OVERLOAD_STATUSES:
        raise NotApplicableError(reply.error_summary)
    session.check_rule(rule, reply, reply.is_ok, reply.error_summary, expected)


async def _probe_accept(session: Session) -> None:
    for stream in (True, False):
        await _check_accept(session, stream=stream)


async def _check_accept(session: Session, *, stream: bool) -> None:
    expected, opposite, usual = _AN_OBJECT, "text/event-stream", "application/json"
    if stream:
        expected, opposite, usual = _A_STREAM, usual, opposite
    request = partial(session.generate, settings.HELLO_PROMPT, stream=stream, max_tokens=_ANSWER_TOKENS)
    reply = await request(headers=(("Accept", opposite),))
    body = _body_kind(session.require_served(reply))
    if body != expected:
        # The header is the cause only if the reply is correct with the usual one.
        repeated = session.require_ok(await request(headers=(("Accept", usual),)))
        if _body_kind(repeated) != expected:
            raise NotApplicableError("the reply does not follow the field stream with any Accept header")
    decided = f"{expected}: only the field stream decides"
    session.check_rule("http-accept-ignored", reply, body == expected, f"{body} with Accept: {opposite}", decided)


async def _probe_stream_default(session: Session) -> None:
    for stream in (None, False):
        reply = await session.answer(settings.HELLO_PROMPT, stream=stream, max_tokens=_ANSWER_TOKENS)
        body = _body_kind(reply)
        if body not in (_A_STREAM, _AN_OBJECT):
            raise NotApplicableError(body)
        session.check_rule("http-stream-default-false", reply, body == _AN_OBJECT, body, _AN_OBJECT)


def _body_kind(reply: ProbeReply) -> str:
    """Kind of the reply's body: a stream, a JSON object, or a description of what else it is."""
    if not reply.is_ok:
        return reply.error_summary
    if reply.view.chunks or reply.view.done_messages or (reply.is_stream and reply.choices):
        return _A_STREAM
    return _AN_OBJECT if not reply.is_stream and reply.view.reply_object else "the reply is neither a stream nor JSON"


_ACCEPT, _DEFAULT = "Accept headers that contradict the field stream", "no field stream, and stream: false"
STREAM_FIELD_PROBES = (
    Probe("requests-accept", _ACCEPT, _probe_accept, ("http-accept-ignored",)),
    Probe("requests-default", _DEFAULT, _probe_stream_default, ("http-stream-default-false",)),
)
RESPONSES_REQUEST_PROBES = (
    Probe("requests-unknown", "unknown fields and headers", _probe_unknown_fields, ("req-unknown-ignored",)),
    *STREAM_FIELD_PROBES,
)
REQUEST_PROBES = (
    *RESPONSES_REQUEST_PROBES,
    Probe("requests-parts", "content parts and the role developer", _probe_content_parts, ("req-content-parts",)),
)
