"""Probes of bad requests: what cannot be served is refused with a 4xx that says why. A server may also take it.

They hold no rule of their own: the session itself hears a 5xx, silence, and an error in a wrong shape.
"""

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from welldone.check import prompts
from welldone.check.probe import Probe
from welldone.check.reply import Asked
from welldone.check.session import REFUSED_4XX, NotHeardError, NotOfferedError, Session
from welldone.rules.choices import as_list, as_object, is_int

Members: TypeAlias = dict[str, Any]

_FEW = 16  # tokens, where a server takes what it could refuse
_ENOUGH_BYTES = 16_384  # of a stream: some 60 chunks, where a wrong limit means none
_NO_MODEL = "no-such-model-of-welldone-check"
_LONGEST = 262_144  # tokens: what a context may hold to be filled twice with one letter each, in 1 MB
_CONTEXTS = (
    *("max_model_len", "context_length", "context_window", "max_context_length", "n_ctx", "n_ctx_train"),
    "max_input_tokens",
)
"""How models lists say how long a prompt may be: vLLM and SGLang, OpenRouter, Groq, Mistral, llama.cpp, Anthropic."""
_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
_PIXEL_URL = f"data:image/png;base64,{_PIXEL}"
_IMAGES: Mapping[str, tuple[Members, Members]] = {
    "chat": (
        {"type": "text", "text": prompts.HELLO},
        {"type": "image_url", "image_url": {"url": _PIXEL_URL}},
    ),
    "responses": (
        {"type": "input_text", "text": prompts.HELLO},
        {"type": "input_image", "image_url": _PIXEL_URL, "detail": "auto"},
    ),
    "messages": (
        {"type": "text", "text": prompts.HELLO},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": _PIXEL}},
    ),
}
"""A text and an image, by dialect."""

_BODIES = (b'{"messages": [', b"", b"[]")
_TALKS: tuple[object, ...] = (
    ...,
    [],
    [{"content": prompts.HELLO}],
    [{"role": "nobody", "content": prompts.HELLO}],
    [{"role": "user", "content": 7}],
)
"""What stands in the place of what is said."""
_NO_TALK: Mapping[str, object] = {"chat": prompts.HELLO, "responses": 7, "messages": prompts.HELLO}
"""What is no talk at all, by dialect: one of them takes a text."""
_VALUES: tuple[Members, ...] = ({"temperature": "hot"}, {"stream": "yes"}, {"tools": "none"})
_OWN_VALUES: Mapping[str, tuple[Members, ...]] = {
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
_LIMITS = ("five", -5)  # of tokens


async def _bodies(session: Session) -> None:
    right = json.dumps(_body(session)).encode()
    for body in (*_BODIES, right.replace(prompts.HELLO.encode(), b"\xff\xfe")):
        await session.post(session.dialect.path, body, leave=_is_enough)
    _conclude(session)


async def _talk(session: Session) -> None:
    for talk in (*_TALKS, _NO_TALK[session.dialect.name]):
        for stream in (True, False):
            await _ask(session, {session.dialect.talk: talk, "stream": stream})
    _conclude(session)


async def _values(session: Session) -> None:
    limits = ({session.facts.limit_name: limit} for limit in _LIMITS)
    for members in (*_VALUES, *_OWN_VALUES[session.dialect.name], *limits):
        await _ask(session, members)
    _conclude(session)


async def _model(session: Session) -> None:
    for stream in (True, False):
        await _ask(session, {"model": _NO_MODEL, "stream": stream})
    _conclude(session)


async def _path(session: Session) -> None:
    name, path = session.dialect.name, session.dialect.path
    wrong = [Asked(method="GET", path=path, endpoint=name)]
    if name != "messages":  # what has no path there has no dialect either
        wrong.append(Asked(method="POST", path="/no-such-path", body=b"{}", endpoint=name))
    for asked in wrong:
        # The rules speak about what failed. OpenAI itself answers this GET, with a list.
        reply = await session.send(asked, is_judged=False)
        if reply.status is not None and reply.status >= 400:
            await session.send(asked)
    _conclude(session)


async def _key(session: Session) -> None:
    if not session.has_key:
        raise NotHeardError("no key was given")
    for key in (None, "wrong-key-of-welldone-check"):
        headers = (("Authorization", key and f"Bearer {key}"), *_key_headers(session, key))
        reply = await session.post(session.dialect.path, _body(session), headers=headers, leave=_is_enough)
        if reply.is_ok:
            raise NotOfferedError("the server answers without the right key")
    _conclude(session)


def _key_headers(session: Session, key: str | None) -> tuple[tuple[str, str | None], ...]:
    name = session.dialect.key_header
    return () if name is None else ((name, key),)


async def _image(session: Session) -> None:
    talk = [{"role": "user", "content": list(_IMAGES[session.dialect.name])}]
    await _ask(session, session.dialect.said(talk))
    _conclude(session)


async def _length(session: Session) -> None:
    context = await _context(session)
    await _ask(session, session.dialect.said("a " * (2 * context)))
    _conclude(session)


async def _context(session: Session) -> int:
    """How many tokens a prompt may have.

    One that is long enough for any context would cost a server with a large one minutes of work, and it would not be
    wrong to do that work. So only a server that says how much it takes is asked for more.
    """
    reply = session.answered(await session.send(Asked(method="GET", path="/models"), is_judged=False))
    models = [as_object(model) for model in as_list(reply.json.get("data"))]
    model = next((model for model in models if model.get("id") == session.facts.model), {})
    told = [place.get(name) for place in (model, as_object(model.get("meta"))) for name in _CONTEXTS]
    context = max((value for value in told if is_int(value)), default=0)
    if context <= 0:
        raise NotHeardError("the server does not say how long a prompt may be")
    if context > _LONGEST:
        raise NotHeardError(f"a context of {context} tokens is too long to fill")
    return context


async def _ask(session: Session, members: dict[str, Any]) -> None:
    await session.post(session.dialect.path, _body(session) | members, leave=_is_enough)


def _body(session: Session) -> dict[str, Any]:
    """A request that is right, for a short answer."""
    said = session.dialect.said(prompts.HELLO)
    return {"model": session.facts.model, **said, "stream": True, session.facts.limit_name: _FEW}


def _is_enough(body: bytes) -> bool:
    """Whether a server that knows no limit has said enough."""
    return len(body) > _ENOUGH_BYTES and b"data:" in body[:_ENOUGH_BYTES]


def _conclude(session: Session) -> None:
    if REFUSED_4XX not in session.judged:
        session.not_heard(REFUSED_4XX, "the server refused nothing")


def _wrong_talk(member: str) -> Probe:
    return Probe(name=f"mistakes-{member}", says=f"{member} that is missing or wrong", work=_talk, rules=_RULES)


_RULES = (REFUSED_4XX,)
_OTHERS = (
    Probe(name="mistakes-json", says="bodies that are no JSON object", work=_bodies, rules=_RULES),
    Probe(name="mistakes-values", says="members with values that make no sense", work=_values, rules=_RULES),
    Probe(name="mistakes-model", says="a model that does not exist", work=_model, rules=_RULES),
    Probe(name="mistakes-path", says="a wrong method, and a path that does not exist", work=_path, rules=_RULES),
    Probe(name="mistakes-key", says="no key, and a wrong one", work=_key, rules=_RULES),
    Probe(name="mistakes-length", says="a prompt that is twice too long", work=_length, rules=_RULES),
    Probe(name="mistakes-image", says="an image, to what may be a model of text", work=_image, rules=_RULES),
)
PROBES = (_wrong_talk("messages"), *_OTHERS)
INPUT_PROBES = (_wrong_talk("input"), *_OTHERS)
"""The same, where what is said stands in `input`."""
