"""What the handlers of all dialects share, and prompt token counts from the upstream that would serve the request.

Counts are never estimated here.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeAlias

import msgspec

from welldone.config.server import ServeSettings
from welldone.gateway.backends import LocalBackend, UpstreamBackend
from welldone.gateway.errors import ApiError, invalid_request
from welldone.protocol.deltas import REASONING_FIELDS
from welldone.protocol.envelope import Endpoint
from welldone.protocol.events import Json
from welldone.server.context import RequestContext
from welldone.server.generation.pipelines import GenerationRequest, with_reasoning_fields
from welldone.server.generation.retry import INPUT_TOKENS_PATH, JsonRequest, RetryLoop
from welldone.server.generation.service import GenerationService
from welldone.server.generation.targets import BackendResolver
from welldone.server.requests.fields import rename_error_param
from welldone.server.requests.upstream_body import without_routing_fields
from welldone.server.requests.upstream_dialects import UPSTREAM_DIALECTS, gemini_count_target, translate_request

_TOKENS_LIMIT = 1_100_000
_REPLY_LIMIT_BYTES = 16 * 2**20  # vLLM lists all token ids: a million of up to 7 digits, and commas
_VLLM_FIELDS = ("messages", "tools", "continue_final_message", "add_generation_prompt", "chat_template_kwargs")
"""Fields of a chat that vLLM's `/tokenize` reads."""

_count_request = partial(JsonRequest, param="messages", values_limit=_TOKENS_LIMIT, limit_bytes=_REPLY_LIMIT_BYTES)
GEMINI_COUNT = "totalTokens"
"""Member of a reply to Gemini's `countTokens`."""
_NATIVE_COUNT_PATHS = {Endpoint.MESSAGES: "/messages/count_tokens", Endpoint.RESPONSES: "/responses/input_tokens"}
"""Paths of upstreams with the client's dialect."""
_UNCOUNTED_FIELDS = frozenset(
    {"generationConfig", "max_tokens", "metadata", "stop_sequences", "store", "stream", "temperature", "top_p"}
)
"""Fields of a translated request that do not affect its prompt; Anthropic's endpoint rejects them."""
_CHAT_INPUT_TOKENS = partial(_count_request, path=INPUT_TOKENS_PATH, required_integer="input_tokens")
_CHAT_COUNTS = {
    "vllm": partial(_count_request, path="/tokenize", is_root=True, required_integer="count"),
    "llamacpp": _CHAT_INPUT_TOKENS,
    "welldone": _CHAT_INPUT_TOKENS,
}
"""Requests to upstreams by their kind."""

PromptTokenCounter: TypeAlias = Callable[[RequestContext, LocalBackend | UpstreamBackend, Json], Awaitable[int]]
"""Counts the prompt tokens of a chat. Raises ApiError if the backend cannot count."""


class DialectApi(msgspec.Struct):
    """The handlers of a dialect. `now` returns the Unix time."""

    settings: ServeSettings
    targets: BackendResolver
    generator: GenerationService
    count_chat: PromptTokenCounter
    now: Callable[[], float]

    async def read(self, ctx: RequestContext) -> tuple[Json, LocalBackend | UpstreamBackend]:
        """Read the body of a request, and find the backend of its model."""
        body = await self.generator.read_body(ctx)
        return body, self.targets.find(ctx, body.get("model"))

    async def count_prompt(
        self, ctx: RequestContext, backend: LocalBackend | UpstreamBackend, request: GenerationRequest
    ) -> Json:
        """Return the input tokens that usage would report, or the reply of an upstream with the client's dialect."""
        if isinstance(backend, UpstreamBackend) and request.endpoint in UPSTREAM_DIALECTS:
            body = without_routing_fields(request.body)
            return await _run(ctx, backend, _native_count(request.endpoint, body, request.forwarded_headers))
        try:
            return {"input_tokens": await self.count_chat(ctx, backend, request.body)}
        except ApiError as error:
            rename_error_param(error, request.field_names)
            raise


def server_kind(backend: LocalBackend | UpstreamBackend) -> str:
    """Return the kind of server behind a backend; empty if it is unknown, or there are several kinds."""
    if isinstance(backend, LocalBackend):
        return "" if backend.model.settings.command else "llamacpp"
    kinds = {upstream.kind for upstream in backend.upstreams}
    return kinds.pop() if len(kinds) == 1 else ""


async def count_upstream(ctx: RequestContext, backend: UpstreamBackend, chat: Json) -> int:
    """Return the prompt tokens of a chat. Raises ApiError if the upstream cannot count, or all attempts fail."""
    kind, dialect = server_kind(backend), backend.upstreams[0].chat_dialect
    if dialect is not None and all(upstream.chat_dialect is dialect for upstream in backend.upstreams):
        body = translate_request(chat, dialect, Endpoint.CHAT)
        body = {name: value for name, value in body.items() if name not in _UNCOUNTED_FIELDS}
        if dialect is Endpoint.GEMINI:
            body = {"generateContentRequest": body}
        request = _native_count(dialect, body, UPSTREAM_DIALECTS[dialect].headers)
    elif kind in _CHAT_COUNTS:
        request = _CHAT_COUNTS[kind](body=vllm_tokenize_body(chat) if kind == "vllm" else chat)
    else:
        raise ApiError(404, "The upstream has no endpoint for token counts.", code="not_supported")
    count: int = (await _run(ctx, backend, request))[request.required_integer]
    return count


def _native_count(dialect: Endpoint, body: Json, headers: Mapping[str, str]) -> JsonRequest:
    """Return the request for a count to an upstream with this dialect."""
    count = partial(_count_request, headers=headers, dialect=dialect)
    if dialect is Endpoint.GEMINI:
        return count(make_target=partial(gemini_count_target, body), required_integer=GEMINI_COUNT)
    return count(body=body, path=_NATIVE_COUNT_PATHS[dialect], required_integer="input_tokens")


def vllm_tokenize_body(chat: Json) -> Json:
    """Return the body of vLLM's `/tokenize` for a chat; its reply has `count`.

    Raises:
        ApiError: the chat has images or audio, or is invalid.
    """
    messages = chat.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise invalid_request("'messages' must be an array of objects.", param="messages")
    if any(isinstance(message.get("content"), list) for message in messages):  # text parts have been joined
        raise invalid_request("The server cannot count the tokens of images and audio.", param="messages")
    chat = with_reasoning_fields(chat, REASONING_FIELDS)  # `/tokenize` reads only `reasoning`
    return {name: chat[name] for name in _VLLM_FIELDS if name in chat}


async def fetch_json(ctx: RequestContext, backend: LocalBackend | UpstreamBackend, path: str, body: Json) -> Json:
    """Send a request to an upstream with the client's dialect, and return its reply unchanged."""
    assert isinstance(backend, UpstreamBackend)
    request = JsonRequest(
        path=path,
        body=without_routing_fields(body),
        param="input",
        values_limit=_TOKENS_LIMIT,
        limit_bytes=_REPLY_LIMIT_BYTES,
    )
    return await _run(ctx, backend, request)


async def _run(ctx: RequestContext, backend: UpstreamBackend, request: JsonRequest) -> Json:
    attempts = RetryLoop(backend, trace=ctx.trace)
    try:
        await attempts.run(request)
    finally:
        ctx.log_fields |= attempts.log_fields
    return request.reply
