"""Handlers of Anthropic's Messages API, Google's Gemini API and Ollama's API, and what they share with Responses.

Prompt tokens are counted by the upstream that would serve the request, never estimated here. `ModelsApi` has the lists
of models: `GET /v1beta/models` and `/api/tags`.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import cache, partial
from typing import ClassVar, TypeAlias
from urllib.parse import parse_qsl

import msgspec

from welldone.config.server import ServeSettings
from welldone.core.answer_format import AnswerFormat
from welldone.core.envelope import Endpoint
from welldone.core.events import Json
from welldone.dialects.chat.deltas import REASONING_FIELDS
from welldone.dialects.gemini.objects import METHOD_PATH
from welldone.dialects.gemini.writer import GeminiArrayFormat, GeminiFormat
from welldone.dialects.messages.objects import ANTHROPIC_VERSION, ANTHROPIC_VERSION_HEADER
from welldone.dialects.messages.writer import MessagesFormat
from welldone.dialects.ollama.writer import OllamaFormat
from welldone.dialects.registry import DIALECTS
from welldone.gateway.backends import LocalBackend, UpstreamBackend
from welldone.gateway.errors import ApiError, invalid_request
from welldone.http.messages import HttpResponse
from welldone.server.api.models import format_timestamp
from welldone.server.context import RequestContext, json_response, random_hex
from welldone.server.generation.pipelines import GenerationRequest, with_reasoning_fields
from welldone.server.generation.retry import INPUT_TOKENS_PATH, JsonRequest, RetryLoop
from welldone.server.generation.service import GenerationService
from welldone.server.generation.targets import BackendResolver
from welldone.server.requests import fields
from welldone.server.requests.anthropic import anthropic_to_chat
from welldone.server.requests.fields import rename_error_param
from welldone.server.requests.gemini import counted_request, gemini_to_chat, read_gemini_body
from welldone.server.requests.ollama import OLLAMA_PARAM_NAMES, read_ollama_chat, read_ollama_generate
from welldone.server.requests.upstream_body import without_routing_fields
from welldone.server.requests.upstream_dialects import UPSTREAM_DIALECTS

_TOKENS_LIMIT = 1_100_000
_REPLY_LIMIT_BYTES = 16 * 2**20  # vLLM lists all token ids: a million of up to 7 digits, and commas
_VLLM_FIELDS = ("messages", "tools", "continue_final_message", "add_generation_prompt", "chat_template_kwargs")
"""Fields of a chat that vLLM's `/tokenize` reads."""

_json_request = partial(JsonRequest, param="messages", values_limit=_TOKENS_LIMIT, limit_bytes=_REPLY_LIMIT_BYTES)
_UNCOUNTED_FIELDS = frozenset(
    {"generationConfig", "max_tokens", "metadata", "stop_sequences", "store", "stream", "temperature", "top_p"}
)
"""Fields of a translated request that do not affect its prompt; Anthropic's endpoint rejects them."""
_CHAT_INPUT_TOKENS = partial(_json_request, path=INPUT_TOKENS_PATH, required_integer="input_tokens")
_CHAT_COUNTS = {
    "vllm": partial(_json_request, path="/tokenize", is_root=True, required_integer="count"),
    "llamacpp": _CHAT_INPUT_TOKENS,
    "welldone": _CHAT_INPUT_TOKENS,
}
"""Requests to upstreams by their kind."""

PromptTokenCounter: TypeAlias = Callable[[RequestContext, LocalBackend | UpstreamBackend, Json], Awaitable[int]]
"""Counts the prompt tokens of a chat. Raises ApiError if the backend cannot count."""


class DialectApi(msgspec.Struct):
    """The handlers of a dialect. `now` returns the Unix time."""

    ENDPOINT: ClassVar[Endpoint]
    """The endpoint of an upstream with this dialect."""

    settings: ServeSettings
    targets: BackendResolver
    generator: GenerationService
    count_chat: PromptTokenCounter
    now: Callable[[], float]

    async def read(self, ctx: RequestContext) -> tuple[Json, LocalBackend | UpstreamBackend]:
        """Read the body of a request, and find the backend of its model."""
        body = await self.generator.read_body(ctx)
        return body, self.targets.find(ctx, body.get("model"))

    def new_id(self, size: int = 12) -> str:
        """Return a new id of a response, of `size` random bytes."""
        return DIALECTS[self.ENDPOINT].id_prefix + random_hex(size)

    def is_native(self, backend: LocalBackend | UpstreamBackend) -> bool:
        """Whether all upstreams of a model support the dialect. Local engines support chat only."""
        upstreams = backend.upstreams
        return bool(upstreams) and all(self.ENDPOINT in upstream.settings.speaks for upstream in upstreams)

    async def count_prompt(
        self, ctx: RequestContext, backend: LocalBackend | UpstreamBackend, request: GenerationRequest
    ) -> Json:
        """Return the input tokens that usage would report, or the reply of an upstream with the client's dialect."""
        if isinstance(backend, UpstreamBackend) and request.is_same_dialect:
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
    upstream_kind, dialect = server_kind(backend), backend.upstreams[0].chat_dialect
    if dialect is not None and all(upstream.chat_dialect is dialect for upstream in backend.upstreams):
        translated = UPSTREAM_DIALECTS[dialect].translate(chat)
        body = {name: value for name, value in translated.items() if name not in _UNCOUNTED_FIELDS}
        if counted_member := DIALECTS[dialect].counted_member:
            body = {counted_member: body}
        request = _native_count(dialect, body)
    elif upstream_kind in _CHAT_COUNTS:
        request = _CHAT_COUNTS[upstream_kind](body=vllm_tokenize_body(chat) if upstream_kind == "vllm" else chat)
    else:
        raise ApiError(404, "The upstream has no endpoint for token counts.", code="not_supported")
    count: int = (await _run(ctx, backend, request))[request.required_integer]
    return count


def _native_count(endpoint: Endpoint, body: Json, headers: Mapping[str, str] = {}) -> JsonRequest:
    """Return the request for a count to an upstream with this dialect."""
    path, member = DIALECTS[endpoint].count_path, DIALECTS[endpoint].count_member
    return _json_request(endpoint=endpoint, headers=headers, path=path, body=body, required_integer=member)


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
    return await _run(ctx, backend, _json_request(path=path, body=without_routing_fields(body), param="input"))


async def _run(ctx: RequestContext, backend: UpstreamBackend, request: JsonRequest) -> Json:
    attempts = RetryLoop(backend, trace=ctx.trace)
    try:
        await attempts.run(request)
    finally:
        ctx.log_fields |= attempts.log_fields
    return request.reply


_BETA_HEADER = "anthropic-beta"
_HEADER_LIMIT = 2_048  # characters; Claude Code lists a dozen betas in 300


def _translated_request(
    ctx: RequestContext, translation: fields.ChatTranslation, request_id: str, dialect: AnswerFormat
) -> GenerationRequest:
    if translation.ignored_tools:
        ctx.log_fields["ignored_tools"] = translation.ignored_tools
    return GenerationRequest(
        body=translation.chat,
        id=request_id,
        dialect=dialect,
        field_names=translation.param_names,
        ignored_fields=translation.ignored_fields,
    )


class MessagesApi(DialectApi):
    """Anthropic's Messages API: `/v1/messages` and `/v1/messages/count_tokens`."""

    ENDPOINT: ClassVar[Endpoint] = Endpoint.MESSAGES

    async def create(self, ctx: RequestContext) -> HttpResponse | None:
        """POST /v1/messages."""
        return await self.generator.generate(ctx, *await self._prepare(ctx))

    async def count_tokens(self, ctx: RequestContext) -> HttpResponse:
        """POST /v1/messages/count_tokens: the input tokens that usage would report."""
        return json_response(await self.count_prompt(ctx, *await self._prepare(ctx, is_count_only=True)))

    async def _prepare(
        self, ctx: RequestContext, *, is_count_only: bool = False
    ) -> tuple[LocalBackend | UpstreamBackend, GenerationRequest]:
        body, backend = await self.read(ctx)
        message_id = self.new_id()
        if self.is_native(backend):
            headers = _forwarded_headers(ctx)
            return backend, GenerationRequest(
                body=body, id=message_id, endpoint=self.ENDPOINT, forwarded_headers=headers
            )
        translation = anthropic_to_chat(
            body,
            server_kind(backend),
            ignores_unknown_tools=self.settings.unknown_tools == "ignore",
            is_count_only=is_count_only,
        )
        stops = tuple(translation.chat.get("stop") or ())
        dialect = MessagesFormat(stop_sequences=stops, includes_thinking=translation.shows_reasoning)
        return backend, _translated_request(ctx, translation, message_id, dialect)


def _forwarded_headers(ctx: RequestContext) -> dict[str, str]:
    """Return the client's version headers for an upstream with the same dialect."""
    headers = {ANTHROPIC_VERSION_HEADER: ctx.request.headers.get(ANTHROPIC_VERSION_HEADER, ANTHROPIC_VERSION)}
    if betas := ",".join(ctx.request.header_values(_BETA_HEADER)):
        headers[_BETA_HEADER] = betas
    for name, value in headers.items():
        if len(value) > _HEADER_LIMIT or not value.isascii() or not value.isprintable():
            message = f"Invalid header '{name}': expected at most {_HEADER_LIMIT} printable ASCII characters."
            raise invalid_request(message, param=name)
    return headers


class GeminiApi(DialectApi):
    """Google's Gemini API: methods of `/v1beta/models/{model}`. The current SDKs use `/v1` in place of `/v1beta`."""

    ENDPOINT: ClassVar[Endpoint] = Endpoint.GEMINI

    async def generate(self, ctx: RequestContext) -> HttpResponse | None:
        """POST :generateContent."""
        return await self.generator.generate(ctx, *await self._prepare(ctx))

    async def stream(self, ctx: RequestContext) -> HttpResponse | None:
        """POST :streamGenerateContent: a JSON array, or server-sent events with `alt=sse`."""
        return await self.generator.generate(ctx, *await self._prepare(ctx, is_stream=True))

    async def count_tokens(self, ctx: RequestContext) -> HttpResponse:
        """POST :countTokens: the prompt tokens that usage would report."""
        backend, request = await self._prepare(ctx, is_count_only=True)
        counted = await self.count_prompt(ctx, backend, request)
        if request.is_same_dialect:
            return json_response(counted)
        return json_response({DIALECTS[self.ENDPOINT].count_member: counted["input_tokens"]})

    async def _prepare(
        self, ctx: RequestContext, *, is_stream: bool = False, is_count_only: bool = False
    ) -> tuple[LocalBackend | UpstreamBackend, GenerationRequest]:
        make_dialect = GeminiArrayFormat if is_stream and not _wants_events(ctx) else GeminiFormat
        client_body = await self.generator.read_body(ctx)
        path = METHOD_PATH.fullmatch(ctx.request.path)
        assert path is not None
        backend = self.targets.find(ctx, path[1])
        if self.is_native(backend):
            native: Json = client_body if is_count_only else {**client_body, "stream": is_stream}
            form = make_dialect()
            return backend, GenerationRequest(
                body=native, id=self.new_id(), endpoint=self.ENDPOINT, dialect=form, repairer_options={"dialect": form}
            )
        body = read_gemini_body(client_body)
        translation = gemini_to_chat(
            counted_request(body) if is_count_only else body,
            server_kind(backend),
            model=path[1],
            ignores_unknown_tools=self.settings.unknown_tools == "ignore",
        )
        translation.chat["stream"] = is_stream
        dialect = make_dialect(includes_thoughts=translation.shows_reasoning)
        return backend, _translated_request(ctx, translation, self.new_id(), dialect)


def _wants_events(ctx: RequestContext) -> bool:
    """Whether `alt` of the query asks for server-sent events; a JSON array is the default."""
    alt = next((value for name, value in parse_qsl(ctx.request.query) if name in ("alt", "$alt")), "json")
    if alt not in ("json", "sse"):
        raise fields.wrong_value("alt", alt, ("json", "sse"))
    return alt == "sse"


class OllamaApi(DialectApi):
    """Ollama's API, for clients without OpenAI's: `/api/chat` and `/api/generate`."""

    ENDPOINT: ClassVar[Endpoint] = Endpoint.CHAT

    async def respond(self, ctx: RequestContext, *, is_chat: bool) -> HttpResponse | None:
        """POST /api/chat, or /api/generate."""
        body = await self.generator.read_body(ctx)
        chat = read_ollama_chat(body) if is_chat else read_ollama_generate(body)
        backend = self.targets.find(ctx, body.get("model"))
        began = self.now()
        created_at = format_timestamp(began, "microseconds")

        @cache  # a replay for the inspector gives the same bytes
        def duration_ns() -> int:
            return max(0, round((self.now() - began) * 1e9))

        dialect = OllamaFormat(is_chat=is_chat, created_at=created_at, duration_ns=duration_ns)
        if not body.get("messages" if is_chat else "prompt"):  # Ollama's request to load a model
            reply = {"model": backend.name, "created_at": created_at, **dialect.content_fields("")}
            return json_response({**reply, "done": True, "done_reason": "load"})
        gen_request = GenerationRequest(body=chat, id=self.new_id(), dialect=dialect, field_names=OLLAMA_PARAM_NAMES)
        return await self.generator.generate(ctx, backend, gen_request)
