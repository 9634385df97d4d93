"""Endpoints of local models without streaming: embeddings, rerank, tokenize, detokenize and token counts.

Each `read_` function validates a request. It returns the fields of the request, and the engine's body.
"""

import asyncio
import base64
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from welldone.config.model import ModelSettings
from welldone.config.server import ServeSettings
from welldone.core.events import Json
from welldone.engines.capabilities import ModelCapabilities
from welldone.engines.errors import EngineError
from welldone.engines.supervisor import LocalModel
from welldone.gateway.backends import LocalBackend, UnqueuedEngine, UpstreamBackend
from welldone.gateway.error_mapping import context_length_exceeded, engine_unavailable, invalid_engine_reply
from welldone.gateway.errors import ApiError
from welldone.gateway.queue import RequestQueue
from welldone.http.messages import HttpResponse
from welldone.schemas import utilities as schema
from welldone.schemas.utilities import EmbeddingsRequest
from welldone.server.api.dialect import count_upstream, vllm_tokenize_body
from welldone.server.context import RequestContext, json_response
from welldone.server.generation.retry import INPUT_TOKENS_PATH, JsonRequest, RetryLoop
from welldone.server.generation.service import capabilities_of
from welldone.server.generation.targets import BackendResolver
from welldone.server.generation.token_cost import estimate_prompt_tokens
from welldone.server.requests import fields, sampling
from welldone.server.requests.chat import read_chat

# Tokenising may exceed the context, since clients count with it; but it blocks the engine, for seconds at 4 MB.
TOKENIZE_LIMIT_BYTES = 256 * 2**10
"""Size of a text to tokenise, unless the context is larger: some chapters of a book, which take 0.3 to 0.5 s."""
DETOKENIZE_LIMIT = 65_536
"""The same in tokens of four bytes."""


def read_embeddings(
    body: Json, model: ModelSettings, capabilities: ModelCapabilities
) -> tuple[schema.EmbeddingsRequest, Json]:
    """Validate an embeddings request."""
    if not capabilities.embeddings:
        raise sampling.unsupported_by_model("embeddings; start it with --embeddings")
    request = fields.read_fields(body, schema.EmbeddingsRequest)
    inputs = sampling.read_prompts(request.input, "input", schema.INPUTS_LIMIT, capabilities)
    if "" in inputs:
        param = f"input[{inputs.index('')}]" if len(inputs) > 1 else "input"
        raise fields.invalid(param, "an empty string has no embedding.")
    if request.dimensions is not None and capabilities.embedding_size:
        fields.check_range(request.dimensions, 1, capabilities.embedding_size, "dimensions", "integer")
    return request, {"input": inputs, "encoding_format": "float"}


def read_rerank(body: Json, model: ModelSettings, capabilities: ModelCapabilities) -> tuple[schema.RerankRequest, Json]:
    """Validate a rerank request in the format of Jina and Cohere."""
    if not capabilities.reranking:
        raise sampling.unsupported_by_model("reranking; start it with --reranking")
    if body.get("documents") is None and "texts" in body:
        reason = "(text-embeddings-inference) is not supported: send 'documents', as for Jina and Cohere."
        raise fields.unsupported("texts", reason)
    request = fields.read_fields(body, schema.RerankRequest)
    documents = []
    query_bytes = len(request.query.encode())
    for index, value in enumerate(request.documents):
        text = value.get("text") if isinstance(value, dict) else value
        if not isinstance(text, str):
            raise fields.wrong_type(f"documents[{index}]", "a string or an object with text", value)
        sampling.check_context_length(query_bytes + len(text.encode()), capabilities.context, "documents")
        documents.append(text)
    top = min(request.top_n or len(documents), len(documents))
    return request, {"query": request.query, "documents": documents, "top_n": top}


def read_tokenize(
    body: Json, model: ModelSettings, capabilities: ModelCapabilities
) -> tuple[schema.TokenizeRequest, Json]:
    """Validate a tokenize request, with llama.cpp's or vLLM's field names."""
    limit = max(TOKENIZE_LIMIT_BYTES, sampling.BYTES_PER_TOKEN * capabilities.context)
    request = fields.read_fields(body, schema.TokenizeRequest)
    param, content = ("prompt", request.prompt) if request.content is None else ("content", request.content)
    if content is None:
        raise fields.missing("content")
    if len(content) > limit or len(content.encode()) > limit:
        raise fields.invalid(param, f"text too long. Expected at most {limit} bytes.", "string_above_max_length")
    return request, fields.given(
        content=content,
        add_special=request.add_special if request.add_special_tokens is None else request.add_special_tokens,
        parse_special=request.parse_special,
        with_pieces=request.with_pieces or request.return_token_strs or None,
    )


def read_detokenize(
    body: Json, model: ModelSettings, capabilities: ModelCapabilities
) -> tuple[schema.DetokenizeRequest, Json]:
    """Validate a detokenize request."""
    request = fields.read_fields(body, schema.DetokenizeRequest)
    if len(request.tokens) > (limit := max(DETOKENIZE_LIMIT, capabilities.context)):
        raise fields.too_many("tokens", limit, len(request.tokens))
    tokens = sampling.check_tokens(request.tokens, "tokens", capabilities.vocabulary_size)
    return request, {"tokens": tokens}


_INPUTS_PER_BATCH = 32
_MAX_TOKENIZE = 4  # concurrent requests: they need no slot, but memory
_VALUES_LIMIT = 500_000  # elements of a reply: as many tokens, or half as many with their texts
_REPLY_LIMIT_BYTES = 32 * 2**20  # 32 vectors of 16,384 numbers, or a million tokens with their texts

RequestType = TypeVar("RequestType", bound=msgspec.Struct)


class EmbeddingsApi(msgspec.Struct):
    """The handlers of these endpoints, for a decoded body."""

    settings: ServeSettings
    targets: BackendResolver
    queues: Mapping[str, RequestQueue]
    charge_tokens: Callable[[RequestContext, int], None]
    tokenize_slots: asyncio.Semaphore = msgspec.field(default_factory=lambda: asyncio.Semaphore(_MAX_TOKENIZE))

    async def embed(self, ctx: RequestContext, body: Json) -> HttpResponse:
        """POST /v1/embeddings."""
        model, request, engine_body = await self._read(ctx, body, read_embeddings)
        inputs = engine_body["input"]
        embeddings: list[bytes] = []
        tokens = 0
        with model.in_use():
            for text in inputs:
                await self._check_length(model, text, _max_tokens(text), "input")
            async with self.queues[model.name].slot():
                # In batches: decoding a million numbers at once would block the event loop.
                for start in range(0, len(inputs), _INPUTS_PER_BATCH):
                    batch = {**engine_body, "input": inputs[start : start + _INPUTS_PER_BATCH]}
                    try:
                        reply = await self._fetch(model, "/embeddings", batch)
                    except asyncio.CancelledError:  # the client has disconnected, but the engine has worked
                        self.charge_tokens(ctx, tokens + estimate_prompt_tokens(batch, len(msgspec.json.encode(batch))))
                        raise
                    embeddings += [
                        _embedding_object(item, start + index, request)
                        for index, item in enumerate(_list_field(reply, "data"))
                    ]
                    tokens += _prompt_tokens(reply)
        usage = self._record_usage(ctx, tokens)
        tail = msgspec.json.encode({"model": model.name, "usage": usage})
        return HttpResponse(200, b'{"object":"list","data":[' + b",".join(embeddings) + b"]," + tail[1:])

    async def rerank(self, ctx: RequestContext, body: Json) -> HttpResponse:
        """POST /v1/rerank, in the format of Jina and Cohere."""
        model, request, engine_body = await self._read(ctx, body, read_rerank)
        documents, query_bytes = engine_body["documents"], _max_tokens(request.query)
        with model.in_use():
            for text in documents:
                await self._check_length(model, request.query + text, query_bytes + _max_tokens(text), "documents")
            async with self.queues[model.name].slot():
                try:
                    reply = await self._fetch(model, "/rerank", engine_body)
                except asyncio.CancelledError:
                    self.charge_tokens(ctx, estimate_prompt_tokens(engine_body, len(msgspec.json.encode(engine_body))))
                    raise
        results: list[Json] = [
            {"index": int(item["index"]), "relevance_score": float(item["relevance_score"])}
            for item in _list_field(reply, "results")
        ]
        results.sort(key=lambda result: (-result["relevance_score"], result["index"]))
        results = results[: engine_body["top_n"]]
        if request.return_documents:
            for result in results:
                result["document"] = {"text": documents[result["index"]]}
        usage = self._record_usage(ctx, _prompt_tokens(reply))
        return json_response({"object": "list", "model": model.name, "results": results, "usage": usage})

    async def tokenize(self, ctx: RequestContext, body: Json) -> HttpResponse:
        """POST /tokenize: llama.cpp's reply, with vLLM's counts."""
        model, request, engine_body = await self._read(ctx, body, read_tokenize)
        if model.settings.command:  # vLLM's fields too: each server ignores those of the other
            content, add_special = engine_body["content"], engine_body.get("add_special", False)
            engine_body |= {"prompt": content, "add_special_tokens": add_special}
            if request.return_token_strs:
                engine_body["return_token_strs"] = True
        async with self.tokenize_slots:
            reply = await self._fetch(model, "/tokenize", engine_body, is_root=True)
        tokens = _list_field(reply, "tokens")
        context = capabilities_of(model).context
        texts: Json = {}
        if request.return_token_strs:
            texts = {"token_strs": reply.get("token_strs") or [_token_text(token) for token in tokens]}
        if not request.with_pieces:
            tokens = [token.get("id") if isinstance(token, dict) else token for token in tokens]
        return json_response({"tokens": tokens, "count": len(tokens), "max_model_len": context, **texts})

    async def check_prompts(self, model: LocalModel, body: Json) -> None:
        """Raise ApiError for a prompt without tokens: llama.cpp would send an empty answer with `length`.

        An empty text has none, unless the model adds a BOS token.
        """
        prompt = body.get("prompt")
        if (prompt != "" and not (isinstance(prompt, list) and "" in prompt)) or model.settings.command:
            return
        await self._wait_loaded(model)
        if not await self._count_text(model, ""):
            raise fields.invalid("prompt", "it is empty, and this model has no BOS token.")

    async def detokenize(self, ctx: RequestContext, body: Json) -> HttpResponse:
        """POST /detokenize: the text as llama.cpp's `content` and as vLLM's `prompt`."""
        model, _, engine_body = await self._read(ctx, body, read_detokenize)
        async with self.tokenize_slots:
            reply = await self._fetch(model, "/detokenize", engine_body, is_root=True)
        text = reply.get("content", reply.get("prompt"))  # the latter is vLLM's
        return json_response({"content": text, "prompt": text})

    async def count_chat(self, ctx: RequestContext, backend: LocalBackend | UpstreamBackend, chat: Json) -> int:
        """Return the prompt tokens of a chat, images included, exactly as usage would report them."""
        if isinstance(backend, UpstreamBackend):
            return await count_upstream(ctx, backend, chat)
        model = backend.model
        await self._wait_loaded(model)
        request = read_chat(chat, model.settings, capabilities_of(model))
        with model.in_use():
            async with self.tokenize_slots:
                count = await self._count_prompt(model, request.bodies[0])
        if not isinstance(count, int):
            raise invalid_engine_reply()
        return count

    async def _count_prompt(self, model: LocalModel, chat: Json) -> object:
        """Count with llama.cpp's endpoint, or with vLLM's if a command does not have that."""
        try:
            return (await self._fetch(model, INPUT_TOKENS_PATH, chat, "messages")).get("input_tokens")
        except ApiError as error:
            if error.status != 404 or not model.settings.command:
                raise
        body = vllm_tokenize_body(chat)
        return (await self._fetch(model, "/tokenize", body, "messages", is_root=True)).get("count")

    async def _read(
        self, ctx: RequestContext, body: Json, read: Callable[..., tuple[RequestType, Json]]
    ) -> tuple[LocalModel, RequestType, Json]:
        """Find and load the model, and validate the body for it."""
        backend = self.targets.find(ctx, body.get("model"))
        assert isinstance(backend, LocalBackend)  # requests for other models are passed through
        await self._wait_loaded(backend.model)
        return backend.model, *read(body, backend.model.settings, capabilities_of(backend.model))

    async def _wait_loaded(self, model: LocalModel) -> None:
        try:
            await model.ensure_ready()
        except EngineError as error:
            raise engine_unavailable(error) from None

    async def _check_length(self, model: LocalModel, text: str | list[int], size: int, param: str) -> None:
        """Reject text that does not fit: the engine would return a 500. `size`: upper bound of its tokens."""
        limit = capabilities_of(model).context
        if not limit or size <= limit or model.settings.command:  # a command checks the length itself
            return
        count = size if isinstance(text, list) else await self._count_text(model, text)
        if count > limit:
            raise context_length_exceeded(count, limit, param)

    async def _count_text(self, model: LocalModel, text: str) -> int:
        async with self.tokenize_slots:
            reply = await self._fetch(model, "/tokenize", {"content": text, "add_special": True}, is_root=True)
        return len(_list_field(reply, "tokens"))

    def _record_usage(self, ctx: RequestContext, tokens: int) -> Json:
        ctx.log_fields["prompt_tokens"] = tokens
        self.charge_tokens(ctx, tokens)
        return {"prompt_tokens": tokens, "total_tokens": tokens}

    async def _fetch(
        self, model: LocalModel, path: str, payload: Json, param: str = "input", *, is_root: bool = False
    ) -> Json:
        request = JsonRequest(
            path=path,
            body=payload,
            is_root=is_root,
            param=param,
            values_limit=_VALUES_LIMIT,
            limit_bytes=_REPLY_LIMIT_BYTES,
        )
        try:
            await RetryLoop(UnqueuedEngine(model, self.settings)).run(request)
        except ApiError:
            if request.status == 404 and model.settings.command:
                message = "The engine of this model does not support this endpoint."
                raise ApiError(404, message, code="not_found") from None
            raise
        return request.reply


def _list_field(reply: Json, name: str) -> list[Any]:
    value = reply.get(name)
    if not isinstance(value, list):
        raise invalid_engine_reply()
    return value


def _token_text(token: object) -> str:
    """Return the text of a token of llama.cpp, which sends bytes for a part of a character."""
    piece = token.get("piece") if isinstance(token, dict) else None
    if isinstance(piece, list):
        return bytes(byte for byte in piece if isinstance(byte, int) and 0 <= byte < 256).decode(errors="replace")
    return piece if isinstance(piece, str) else ""


def _embedding_object(reply_item: Json, index: int, request: EmbeddingsRequest) -> bytes:
    """Return an embedding; a shorter one (`dimensions`) is truncated and renormalised, as OpenAI does."""
    value, dimensions = reply_item.get("embedding"), request.dimensions
    if isinstance(value, list) and value and isinstance(value[0], list):
        value = value[0]  # without pooling llama.cpp sends a vector per token
    vector = [float(number) for number in value] if isinstance(value, list) else []
    if dimensions is not None and dimensions < len(vector):
        norm = math.sqrt(sum(number * number for number in vector[:dimensions])) or 1.0
        vector = [number / norm for number in vector[:dimensions]]
    embedding: object = vector
    if request.encoding_format == "base64":
        embedding = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
    return msgspec.json.encode({"object": "embedding", "index": index, "embedding": embedding})


def _max_tokens(text: str | list[int]) -> int:
    """Return an upper bound: no token is shorter than a byte."""
    return len(text.encode()) if isinstance(text, str) else len(text)


def _prompt_tokens(reply: Json) -> int:
    usage = reply.get("usage")
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else 0
    return count if isinstance(count, int) else 0
