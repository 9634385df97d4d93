"""How many tokens a request has, asked of the upstreams that would answer it. What none can tell is never guessed."""

import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol

import msgspec

from welldone.engines.supervisor import LocalModel
from welldone.gateway import error_mapping
from welldone.gateway.backends import BackendLease, LocalBackend, UpstreamBackend, upstream_headers
from welldone.gateway.error_mapping import AttemptFailure, connection_failure, status_failure
from welldone.gateway.errors import ApiError, invalid_request
from welldone.http.client import HttpClientError, fetch
from welldone.http.cooperative import run_cooperatively
from welldone.protocol.envelope import Endpoint
from welldone.protocol.events import Json
from welldone.protocol.json_budget import decode_in_steps

_TOKENS_LIMIT = 1_100_000
_REPLY_LIMIT_BYTES = 16 * 2**20  # vLLM lists all tokens: a million of up to 7 digits, and as many commas
_API_PREFIX = "/v1"
_VLLM_FIELDS = ("messages", "tools", "continue_final_message", "add_generation_prompt", "chat_template_kwargs")
"""What vLLM's counting reads of a chat."""


class CountEndpoint(NamedTuple):
    """How a kind of server counts."""

    path: str
    count_field: str
    """Where the number stands in its reply."""
    is_root: bool = False
    """Whether the path begins at the server's root, and not below `/v1`."""


_NATIVE_COUNT_ENDPOINTS = {
    Endpoint.MESSAGES: CountEndpoint("/messages/count_tokens", "input_tokens"),
    Endpoint.RESPONSES: CountEndpoint("/responses/input_tokens", "input_tokens"),
}
"""How servers count that speak a dialect."""
_CHAT_COUNT_ENDPOINTS = {
    "vllm": CountEndpoint("/tokenize", "count", is_root=True),
    "llamacpp": CountEndpoint("/chat/completions/input_tokens", "input_tokens"),
    "welldone": CountEndpoint("/chat/completions/input_tokens", "input_tokens"),
}


class PromptTokenCounter(Protocol):
    """Counts the tokens of a chat's prompt, for whoever answers."""

    async def __call__(self, backend: LocalBackend | UpstreamBackend, chat: Json) -> int:
        """How many there are. ApiError where nobody can tell."""


def make_token_counter(local: Callable[[LocalModel, Json], Awaitable[int]]) -> PromptTokenCounter:
    """Counts by `local` for a local model, and by asking the upstreams for theirs."""

    async def count_any(backend: LocalBackend | UpstreamBackend, chat: Json) -> int:
        return await (local(backend.model, chat) if isinstance(backend, LocalBackend) else _count_chat(backend, chat))

    return count_any


def server_kind(backend: LocalBackend | UpstreamBackend) -> str:
    """The kind of server that answers; empty where it is not known, or where it may be one of several."""
    if isinstance(backend, LocalBackend):
        return "" if backend.model.settings.command else "llamacpp"
    kinds = {upstream.kind for upstream in backend.upstreams}
    return kinds.pop() if len(kinds) == 1 else ""


async def _count_chat(backend: UpstreamBackend, chat: Json) -> int:
    """The tokens of a chat's prompt.

    Raises:
        ApiError: the upstreams cannot tell, or do not.
    """
    kind = server_kind(backend)
    way = _CHAT_COUNT_ENDPOINTS.get(kind)
    if way is None:
        raise ApiError(404, "Tokens cannot be counted here: the upstream has no way to do so.", code="not_supported")
    if kind == "vllm":
        chat = vllm_tokenize_body(chat)
    found: int = (await _count_upstream(backend, way, chat))[way.count_field]
    return found


def vllm_tokenize_body(chat: Json) -> Json:
    """What vLLM's `/tokenize` is told of a chat; its reply has `count`.

    Raises:
        ApiError: there are pictures in it, or it is no chat.
    """
    messages = chat.get("messages")
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise invalid_request("'messages' must be a list of objects.", param="messages")
    if any(isinstance(one.get("content"), list) for one in messages):  # texts are never parts here
        raise invalid_request("Tokens of pictures cannot be counted: the server has no way to do so.", param="messages")
    return {name: chat[name] for name in _VLLM_FIELDS if name in chat}


async def count_native(backend: UpstreamBackend, endpoint: Endpoint, body: Json, headers: Mapping[str, str]) -> Json:
    """What an upstream says that speaks the client's dialect. ApiError where none has answered."""
    return await _count_upstream(backend, _NATIVE_COUNT_ENDPOINTS[endpoint], body, headers)


async def _count_upstream(
    backend: UpstreamBackend, count_endpoint: CountEndpoint, body: Json, headers: Mapping[str, str] | None = None
) -> Json:
    """What one of the upstreams says, and in it a number at the field of that way.

    Raises:
        ApiError: none has answered.
    """
    avoid: set[str] = set()
    for attempt in itertools.count(1):
        async with backend.lease(avoid, None) as seat:
            found = await _fetch_count(seat, count_endpoint, body, headers or {})
            seat.report(found if isinstance(found, AttemptFailure) else None)
        if not isinstance(found, AttemptFailure):
            return found
        avoid.add(seat.name)
        may_do_better = seat.is_gone or backend.has_alternative(avoid)
        if attempt == backend.max_attempts or not (found.is_retryable and may_do_better):
            raise found.error
    raise AssertionError("a count ends by what is found")


async def _fetch_count(
    lease: BackendLease, count_endpoint: CountEndpoint, body: Json, headers: Mapping[str, str]
) -> Json | AttemptFailure:
    address = lease.address
    if count_endpoint.is_root:
        address = msgspec.structs.replace(address, prefix=address.prefix.removesuffix(_API_PREFIX))
    try:
        reply = await fetch(
            address,
            "POST",
            count_endpoint.path,
            body=msgspec.json.encode({**body, "model": lease.model}),
            headers=upstream_headers(lease, headers),
            timeout_s=lease.first_byte_s,
            limit_bytes=_REPLY_LIMIT_BYTES,
        )
    except HttpClientError as error:
        return connection_failure(error)
    if reply.status != 200:
        return status_failure(reply.status, reply.headers, reply.body, "messages", lease.upstream)
    try:
        found = await run_cooperatively(
            decode_in_steps(reply.body, elements=_TOKENS_LIMIT, limit_bytes=_REPLY_LIMIT_BYTES)
        )
    except (msgspec.DecodeError, RecursionError):
        found = None
    if isinstance(found, dict) and type(found.get(count_endpoint.count_field)) is int:
        return found
    return AttemptFailure(error_mapping.unrecognized_reply(), "garbage")
