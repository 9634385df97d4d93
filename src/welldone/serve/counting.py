"""How many tokens a request has, asked of the upstreams that would answer it. What none can tell is never guessed."""

import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol

import msgspec

from welldone.engines.fleet import Model
from welldone.net.outbound import OutboundError, fetch
from welldone.net.turns import in_turns
from welldone.serve import refusals
from welldone.serve.backends import Local, Remote, Seat, told
from welldone.serve.errors import ApiError, invalid
from welldone.serve.troubles import Trouble, refused, unreachable
from welldone.wire.budget import decoding
from welldone.wire.events import Json
from welldone.wire.head import Endpoint

_TOKENS_LIMIT = 1_100_000
_REPLY_LIMIT_BYTES = 16 * 2**20  # vLLM lists all tokens: a million of up to 7 digits, and as many commas
_API = "/v1"
_SHOWN = ("messages", "tools", "continue_final_message", "add_generation_prompt", "chat_template_kwargs")
"""What vLLM's counting reads of a chat."""


class Way(NamedTuple):
    """How a kind of server counts."""

    path: str
    field: str
    """Where the number stands in its reply."""
    is_root: bool = False
    """Whether the path begins at the server's root, and not below `/v1`."""


_NATIVE = {
    Endpoint.MESSAGES: Way("/messages/count_tokens", "input_tokens"),
    Endpoint.RESPONSES: Way("/responses/input_tokens", "input_tokens"),
}
"""How servers count that speak a dialect."""
_WAYS = {
    "vllm": Way("/tokenize", "count", is_root=True),
    "llamacpp": Way("/chat/completions/input_tokens", "input_tokens"),
    "welldone": Way("/chat/completions/input_tokens", "input_tokens"),
}


class Count(Protocol):
    """Counts the tokens of a chat's prompt, for whoever answers."""

    async def __call__(self, backend: Local | Remote, chat: Json) -> int:
        """How many there are. ApiError where nobody can tell."""


def counter(local: Callable[[Model, Json], Awaitable[int]]) -> Count:
    """Counts by `local` for a local model, and by asking the upstreams for theirs."""

    async def count_any(backend: Local | Remote, chat: Json) -> int:
        return await (local(backend.model, chat) if isinstance(backend, Local) else _count_chat(backend, chat))

    return count_any


def kind_of(backend: Local | Remote) -> str:
    """The kind of server that answers; empty where it is not known, or where it may be one of several."""
    if isinstance(backend, Local):
        return "" if backend.model.settings.command else "llamacpp"
    kinds = {upstream.kind for upstream in backend.upstreams}
    return kinds.pop() if len(kinds) == 1 else ""


async def _count_chat(backend: Remote, chat: Json) -> int:
    """The tokens of a chat's prompt.

    Raises:
        ApiError: the upstreams cannot tell, or do not.
    """
    kind = kind_of(backend)
    way = _WAYS.get(kind)
    if way is None:
        raise ApiError(404, "Tokens cannot be counted here: the upstream has no way to do so.", code="not_supported")
    if kind == "vllm":
        chat = for_vllm(chat)
    found: int = (await _count(backend, way, chat))[way.field]
    return found


def for_vllm(chat: Json) -> Json:
    """What vLLM's `/tokenize` is told of a chat; its reply has `count`.

    Raises:
        ApiError: there are pictures in it, or it is no chat.
    """
    messages = chat.get("messages")
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise invalid("'messages' must be a list of objects.", param="messages")
    if any(isinstance(one.get("content"), list) for one in messages):  # texts are never parts here
        raise invalid("Tokens of pictures cannot be counted: the server has no way to do so.", param="messages")
    return {name: chat[name] for name in _SHOWN if name in chat}


async def count_native(backend: Remote, endpoint: Endpoint, body: Json, headers: Mapping[str, str]) -> Json:
    """What an upstream says that speaks the client's dialect. ApiError where none has answered."""
    return await _count(backend, _NATIVE[endpoint], body, headers)


async def _count(backend: Remote, way: Way, body: Json, headers: Mapping[str, str] | None = None) -> Json:
    """What one of the upstreams says, and in it a number at the field of that way.

    Raises:
        ApiError: none has answered.
    """
    avoid: set[str] = set()
    for attempt in itertools.count(1):
        async with backend.seat(avoid, None) as seat:
            found = await _ask(seat, way, body, headers or {})
            seat.report(found if isinstance(found, Trouble) else None)
        if not isinstance(found, Trouble):
            return found
        avoid.add(seat.name)
        may_do_better = seat.is_gone or backend.has_another(avoid)
        if attempt == backend.attempts or not (found.is_worth_another and may_do_better):
            raise found.error
    raise AssertionError("a count ends by what is found")


async def _ask(seat: Seat, way: Way, body: Json, headers: Mapping[str, str]) -> Json | Trouble:
    address = seat.address
    if way.is_root:
        address = msgspec.structs.replace(address, prefix=address.prefix.removesuffix(_API))
    try:
        reply = await fetch(
            address,
            "POST",
            way.path,
            body=msgspec.json.encode({**body, "model": seat.model}),
            headers=told(seat, headers),
            within_s=seat.first_byte_s,
            limit_bytes=_REPLY_LIMIT_BYTES,
        )
    except OutboundError as error:
        return unreachable(error)
    if reply.status != 200:
        return refused(reply.status, reply.headers, reply.body, "messages", seat.upstream)
    try:
        found = await in_turns(decoding(reply.body, elements=_TOKENS_LIMIT, limit_bytes=_REPLY_LIMIT_BYTES))
    except (msgspec.DecodeError, RecursionError):
        found = None
    if isinstance(found, dict) and type(found.get(way.field)) is int:
        return found
    return Trouble(refusals.not_an_answer(), "garbage")
