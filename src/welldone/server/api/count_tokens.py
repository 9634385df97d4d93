"""Prompt token counts from the upstream that would serve the request. Counts are never estimated here."""

import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, Protocol

import msgspec

from welldone.engines.supervisor import LocalModel
from welldone.gateway import error_mapping
from welldone.gateway.backends import BackendLease, LocalBackend, UpstreamBackend, upstream_headers
from welldone.gateway.error_mapping import AttemptFailure, connection_failure, status_failure
from welldone.gateway.errors import ApiError, invalid_request
from welldone.http.client import fetch
from welldone.http.connect import HttpClientError
from welldone.http.cooperative import run_cooperatively
from welldone.protocol.envelope import Endpoint
from welldone.protocol.events import Json
from welldone.protocol.json_budget import decode_in_steps

_TOKENS_LIMIT = 1_100_000
_REPLY_LIMIT_BYTES = 16 * 2**20  # vLLM lists all token ids: a million of up to 7 digits, and commas
_API_PREFIX = "/v1"
_VLLM_FIELDS = ("messages", "tools", "continue_final_message", "add_generation_prompt", "chat_template_kwargs")
"""Fields of a chat that vLLM's `/tokenize` reads."""


class CountEndpoint(NamedTuple):
    """The token counting endpoint of a kind of server."""

    path: str
    count_field: str
    """Field of the reply with the count."""
    is_root: bool = False
    """The path is at the server's root, not below `/v1`."""


_NATIVE_COUNT_ENDPOINTS = {
    Endpoint.MESSAGES: CountEndpoint("/messages/count_tokens", "input_tokens"),
    Endpoint.RESPONSES: CountEndpoint("/responses/input_tokens", "input_tokens"),
}
"""Endpoints of upstreams with the client's dialect."""
_CHAT_COUNT_ENDPOINTS = {
    "vllm": CountEndpoint("/tokenize", "count", is_root=True),
    "llamacpp": CountEndpoint("/chat/completions/input_tokens", "input_tokens"),
    "welldone": CountEndpoint("/chat/completions/input_tokens", "input_tokens"),
}


class PromptTokenCounter(Protocol):
    """Counts the prompt tokens of a chat."""

    async def __call__(self, backend: LocalBackend | UpstreamBackend, chat: Json) -> int:
        """Return the count. Raises ApiError if the backend cannot count."""


def make_token_counter(local: Callable[[LocalModel, Json], Awaitable[int]]) -> PromptTokenCounter:
    """Return a counter that calls `local` for local models, and the upstream for others."""

    async def count_tokens(backend: LocalBackend | UpstreamBackend, chat: Json) -> int:
        return await (local(backend.model, chat) if isinstance(backend, LocalBackend) else _count_chat(backend, chat))

    return count_tokens


def server_kind(backend: LocalBackend | UpstreamBackend) -> str:
    """Return the kind of server behind a backend; empty if it is unknown, or there are several kinds."""
    if isinstance(backend, LocalBackend):
        return "" if backend.model.settings.command else "llamacpp"
    kinds = {upstream.kind for upstream in backend.upstreams}
    return kinds.pop() if len(kinds) == 1 else ""


async def _count_chat(backend: UpstreamBackend, chat: Json) -> int:
    kind = server_kind(backend)
    endpoint = _CHAT_COUNT_ENDPOINTS.get(kind)
    if endpoint is None:
        raise ApiError(404, "The upstream has no endpoint for token counts.", code="not_supported")
    if kind == "vllm":
        chat = vllm_tokenize_body(chat)
    count: int = (await _count_upstream(backend, endpoint, chat))[endpoint.count_field]
    return count


def vllm_tokenize_body(chat: Json) -> Json:
    """Return the body of vLLM's `/tokenize` for a chat; its reply has `count`.

    Raises:
        ApiError: the chat has images or audio, or is invalid.
    """
    messages = chat.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise invalid_request("'messages' must be an array of objects.", param="messages")
    if any(isinstance(message.get("content"), list) for message in messages):  # text parts have been joined
        reason = "The server cannot count the tokens of images and audio."
        raise invalid_request(reason, param="messages")
    return {name: chat[name] for name in _VLLM_FIELDS if name in chat}


async def count_native(backend: UpstreamBackend, endpoint: Endpoint, body: Json, headers: Mapping[str, str]) -> Json:
    """Return the reply of an upstream with the client's dialect. Raises ApiError if all attempts fail."""
    return await _count_upstream(backend, _NATIVE_COUNT_ENDPOINTS[endpoint], body, headers)


async def _count_upstream(
    backend: UpstreamBackend, count_endpoint: CountEndpoint, body: Json, headers: Mapping[str, str] | None = None
) -> Json:
    """Return the reply of one of the upstreams, which has the count in its field.

    Raises:
        ApiError: all attempts failed.
    """
    avoid: set[str] = set()
    for attempt in itertools.count(1):
        async with backend.lease(avoid, None) as lease:
            result = await _fetch_count(lease, count_endpoint, body, headers or {})
            lease.report(result if isinstance(result, AttemptFailure) else None)
        if not isinstance(result, AttemptFailure):
            return result
        avoid.add(lease.name)
        may_succeed = lease.is_gone or backend.has_alternative(avoid)
        if attempt == backend.max_attempts or not (result.is_retryable and may_succeed):
            raise result.error
    raise AssertionError("unreachable: the last attempt returns or raises")


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
        value = await run_cooperatively(
            decode_in_steps(reply.body, elements=_TOKENS_LIMIT, limit_bytes=_REPLY_LIMIT_BYTES)
        )
    except (msgspec.DecodeError, RecursionError):
        value = None
    if isinstance(value, dict) and type(value.get(count_endpoint.count_field)) is int:
        return value
    return AttemptFailure(error_mapping.unrecognized_reply(), "garbage")
