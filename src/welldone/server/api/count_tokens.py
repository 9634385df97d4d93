"""Prompt token counts from the upstream that would serve the request. Counts are never estimated here."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeAlias

from welldone.engines.supervisor import LocalModel
from welldone.gateway.backends import LocalBackend, UpstreamBackend
from welldone.gateway.errors import ApiError, invalid_request
from welldone.protocol.envelope import Endpoint
from welldone.protocol.events import Json
from welldone.server.app import RequestContext
from welldone.server.generation.retry import JsonRequest, RetryLoop

_TOKENS_LIMIT = 1_100_000
_REPLY_LIMIT_BYTES = 16 * 2**20  # vLLM lists all token ids: a million of up to 7 digits, and commas
_VLLM_FIELDS = ("messages", "tools", "continue_final_message", "add_generation_prompt", "chat_template_kwargs")
"""Fields of a chat that vLLM's `/tokenize` reads."""


_count_request = partial(JsonRequest, param="messages", values_limit=_TOKENS_LIMIT, limit_bytes=_REPLY_LIMIT_BYTES)
_NATIVE_COUNTS = {
    Endpoint.MESSAGES: partial(_count_request, path="/messages/count_tokens", required_integer="input_tokens"),
    Endpoint.RESPONSES: partial(_count_request, path="/responses/input_tokens", required_integer="input_tokens"),
}
"""Requests to upstreams with the client's dialect."""
_CHAT_INPUT_TOKENS = partial(_count_request, path="/chat/completions/input_tokens", required_integer="input_tokens")
_CHAT_COUNTS = {
    "vllm": partial(_count_request, path="/tokenize", is_root=True, required_integer="count"),
    "llamacpp": _CHAT_INPUT_TOKENS,
    "welldone": _CHAT_INPUT_TOKENS,
}
"""Requests to upstreams by their kind."""


PromptTokenCounter: TypeAlias = Callable[[RequestContext, LocalBackend | UpstreamBackend, Json], Awaitable[int]]
"""Counts the prompt tokens of a chat. Raises ApiError if the backend cannot count."""


def make_token_counter(local: Callable[[LocalModel, Json], Awaitable[int]]) -> PromptTokenCounter:
    """Return a counter that calls `local` for local models, and the upstream for others."""

    async def count_tokens(ctx: RequestContext, backend: LocalBackend | UpstreamBackend, chat: Json) -> int:
        if isinstance(backend, LocalBackend):
            return await local(backend.model, chat)
        return await _count_chat(ctx, backend, chat)

    return count_tokens


def server_kind(backend: LocalBackend | UpstreamBackend) -> str:
    """Return the kind of server behind a backend; empty if it is unknown, or there are several kinds."""
    if isinstance(backend, LocalBackend):
        return "" if backend.model.settings.command else "llamacpp"
    kinds = {upstream.kind for upstream in backend.upstreams}
    return kinds.pop() if len(kinds) == 1 else ""


async def _count_chat(ctx: RequestContext, backend: UpstreamBackend, chat: Json) -> int:
    kind = server_kind(backend)
    if kind not in _CHAT_COUNTS:
        raise ApiError(404, "The upstream has no endpoint for token counts.", code="not_supported")
    request = _CHAT_COUNTS[kind](body=vllm_tokenize_body(chat) if kind == "vllm" else chat)
    await _run(ctx, backend, request)
    count: int = request.reply[request.required_integer]
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


async def count_native(
    ctx: RequestContext, backend: UpstreamBackend, endpoint: Endpoint, body: Json, headers: Mapping[str, str]
) -> Json:
    """Return the reply of an upstream with the client's dialect. Raises ApiError if all attempts fail."""
    request = _NATIVE_COUNTS[endpoint](body=body, headers=headers)
    await _run(ctx, backend, request)
    return request.reply


async def _run(ctx: RequestContext, backend: UpstreamBackend, request: JsonRequest) -> None:
    attempts = RetryLoop(backend)
    try:
        await attempts.run(request)
    finally:
        ctx.log_fields |= attempts.log_fields
