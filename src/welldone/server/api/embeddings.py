"""What is answered at once and not as a stream: embeddings, ranks, texts as tokens, and how many there are."""

import asyncio
import base64
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from welldone.config.server import ServeSettings
from welldone.engines.errors import EngineError
from welldone.engines.supervisor import LocalModel
from welldone.gateway.error_mapping import context_length_exceeded, engine_died, engine_unavailable, map_engine_error
from welldone.gateway.errors import ApiError, invalid_request
from welldone.gateway.queue import RequestQueue
from welldone.http.client import BufferedResponse, HttpClientError, fetch
from welldone.http.cooperative import run_cooperatively
from welldone.http.server import HttpResponse
from welldone.protocol.events import Json
from welldone.protocol.json_budget import decode_in_steps
from welldone.server.api.count_tokens import vllm_tokenize_body
from welldone.server.app import RequestContext, json_response
from welldone.server.generation.token_cost import estimate_prompt_tokens
from welldone.server.requests.chat import read_chat
from welldone.server.requests.fields import ValidatedRequest
from welldone.server.requests.vectors import read_detokenize, read_embeddings, read_rerank, read_tokenize

_MAX_ATTEMPTS = 2
_INPUTS_PER_BATCH = 32
_MAX_TOKENIZE = 4  # texts that become tokens: they need no slot, but memory
_COUNT_PATH = "/v1/chat/completions/input_tokens"
_VALUES_LIMIT = 500_000  # of a reply: as many tokens, or half as many with their pieces
_REPLY_LIMIT_BYTES = 32 * 2**20  # 32 vectors of 16,384 numbers, or a million tokens with their pieces, as JSON text


class EmbeddingsApi:
    """The actions of these routes, for a body that was read. `model` finds whom it means."""

    def __init__(
        self,
        settings: ServeSettings,
        find_model: Callable[[RequestContext, Json], LocalModel],
        queues: Mapping[str, RequestQueue],
        *,
        charge_tokens: Callable[[RequestContext, int], None],
    ) -> None:
        self._settings = settings
        self._find_model = find_model
        self._queues = queues
        self._charge_tokens = charge_tokens
        self._tokenize_slots = asyncio.Semaphore(_MAX_TOKENIZE)

    async def embed(self, ctx: RequestContext, body: Json) -> HttpResponse:
        """POST /v1/embeddings."""
        model = self._find_model(ctx, body)
        await self._wait_loaded(model)
        request = read_embeddings(body, model.settings, model.capabilities)
        inputs = request.bodies[0]["input"]
        written: list[bytes] = []
        tokens = 0
        with model.in_use():
            for text in inputs:
                await self._check_length(model, text, _max_tokens(text), "input")
            async with self._queues[model.name].slot():
                # Some at a time: a million numbers in one piece would hold up all others.
                for start in range(0, len(inputs), _INPUTS_PER_BATCH):
                    some = {**request.bodies[0], "input": inputs[start : start + _INPUTS_PER_BATCH]}
                    try:
                        reply = await self._fetch(model, "/v1/embeddings", some)
                    except asyncio.CancelledError:  # the client has left, and the engine has worked
                        self._charge_tokens(ctx, tokens + estimate_prompt_tokens(some))
                        raise
                    written += [
                        _embedding_object(one, start + place, request)
                        for place, one in enumerate(_list_field(reply, "data"))
                    ]
                    tokens += _prompt_tokens(reply)
        usage = self._record_usage(ctx, tokens)
        tail = msgspec.json.encode({"model": model.name, "usage": usage})
        return HttpResponse(200, b'{"object":"list","data":[' + b",".join(written) + b"]," + tail[1:])

    async def rerank(self, ctx: RequestContext, body: Json) -> HttpResponse:
        """POST /v1/rerank, in the shape that Jina and Cohere share."""
        model = self._find_model(ctx, body)
        await self._wait_loaded(model)
        request = read_rerank(body, model.settings, model.capabilities)
        query = request.bodies[0]["query"]
        query_bytes = _max_tokens(query)
        with model.in_use():
            for text in request.bodies[0]["documents"]:
                await self._check_length(model, (query, text), query_bytes + _max_tokens(text), "documents")
            async with self._queues[model.name].slot():
                try:
                    reply = await self._fetch(model, "/v1/rerank", request.bodies[0])
                except asyncio.CancelledError:
                    self._charge_tokens(ctx, estimate_prompt_tokens(request.bodies[0]))
                    raise
        results: list[Json] = [
            {"index": int(one["index"]), "relevance_score": float(one["relevance_score"])}
            for one in _list_field(reply, "results")
        ]
        results.sort(key=lambda one: (-one["relevance_score"], one["index"]))
        results = results[: request.bodies[0]["top_n"]]
        if request.documents is not None:
            for one in results:
                one["document"] = {"text": request.documents[one["index"]]}
        usage = self._record_usage(ctx, _prompt_tokens(reply))
        return json_response({"object": "list", "model": model.name, "results": results, "usage": usage})

    async def tokenize(self, ctx: RequestContext, body: Json) -> HttpResponse:
        """POST /tokenize: llama.cpp's shape, with vLLM's counts."""
        model = self._find_model(ctx, body)
        await self._wait_loaded(model)
        request = read_tokenize(body, model.settings, model.capabilities)
        asked = request.bodies[0]
        if model.settings.command:  # in vLLM's words too: each server passes over those of the other
            asked |= {"prompt": asked["content"], "add_special_tokens": asked.get("add_special", False)}
        if model.settings.command and request.has_token_texts:
            asked["return_token_strs"] = True
        async with self._tokenize_slots:
            reply = await self._fetch(model, "/tokenize", asked)
        tokens = _list_field(reply, "tokens")
        length = model.capabilities.context if model.capabilities is not None else 0
        texts: Json = {}
        if request.has_token_texts:
            texts = {"token_strs": reply.get("token_strs") or [_token_text(token) for token in tokens]}
        if not request.has_pieces:
            tokens = [token.get("id") if isinstance(token, dict) else token for token in tokens]
        return json_response({"tokens": tokens, "count": len(tokens), "max_model_len": length, **texts})

    async def check_prompts(self, model: LocalModel, body: Json) -> None:
        """ApiError for a prompt without a token: llama.cpp would answer with nothing, as if it had run out of room.

        Of an empty text a model makes none, unless it begins every text with a token of its own (BOS).
        """
        prompt = body.get("prompt")
        if (prompt != "" and not (isinstance(prompt, list) and "" in prompt)) or model.settings.command:
            return
        await self._wait_loaded(model)
        async with self._tokenize_slots:
            reply = await self._fetch(model, "/tokenize", {"content": "", "add_special": True})
        if not _list_field(reply, "tokens"):
            message = "Invalid 'prompt': it is empty, and this model has no token that a text begins with."
            raise invalid_request(message, param="prompt", code="invalid_value")

    async def detokenize(self, ctx: RequestContext, body: Json) -> HttpResponse:
        """POST /detokenize: llama.cpp's `content`, and the same as vLLM's `prompt`."""
        model = self._find_model(ctx, body)
        await self._wait_loaded(model)
        request = read_detokenize(body, model.settings, model.capabilities)
        async with self._tokenize_slots:
            reply = await self._fetch(model, "/detokenize", request.bodies[0])
        text = reply.get("content", reply.get("prompt"))  # the latter is vLLM's
        return json_response({"content": text, "prompt": text})

    async def count_chat(self, model: LocalModel, body: Json) -> int:
        """How many tokens the prompt of a chat has: exactly what usage would say of it, pictures too."""
        await self._wait_loaded(model)
        request = read_chat(body, model.settings, model.capabilities)
        with model.in_use():
            async with self._tokenize_slots:
                found = await self._count_prompt(model, request.bodies[0])
        if not isinstance(found, int):
            raise ApiError(502, "The engine sent what cannot be read.", code="engine_error")
        return found

    async def _count_prompt(self, model: LocalModel, chat: Json) -> object:
        """As llama.cpp counts, or vLLM where a command knows no such path."""
        try:
            return (await self._fetch(model, _COUNT_PATH, chat, "messages")).get("input_tokens")
        except ApiError as error:
            if error.status != 404 or not model.settings.command:
                raise
        return (await self._fetch(model, "/tokenize", vllm_tokenize_body(chat), "messages")).get("count")

    async def _wait_loaded(self, model: LocalModel) -> None:
        try:
            await model.ensure_ready()
        except EngineError as error:
            raise engine_unavailable(error) from None

    async def _check_length(
        self, model: LocalModel, text: str | list[int] | tuple[str, str], size: int, param: str
    ) -> None:
        """Refuse what does not fit; the engine would call it a fault of its own. No token is shorter than a byte."""
        limit = model.capabilities.context if model.capabilities is not None else 0
        if not limit or size <= limit or model.settings.command:  # a command has its own way to count, and to refuse
            return
        count = size
        if not isinstance(text, list):
            content = text if isinstance(text, str) else "".join(text)
            async with self._tokenize_slots:
                reply = await self._fetch(model, "/tokenize", {"content": content, "add_special": True})
            count = len(_list_field(reply, "tokens"))
        if count > limit:
            raise context_length_exceeded(count, limit, param)

    def _record_usage(self, ctx: RequestContext, tokens: int) -> Json:
        """Usage; what was used is counted."""
        ctx.log_fields["prompt_tokens"] = tokens
        self._charge_tokens(ctx, tokens)
        return {"prompt_tokens": tokens, "total_tokens": tokens}

    async def _fetch(self, model: LocalModel, path: str, payload: Json, param: str = "input") -> Json:
        """The engine's reply."""
        body = msgspec.json.encode({**payload, "model": model.engine_model_name})
        reply = await self._fetch_with_retry(model, path, body)
        if reply.status == 404 and model.settings.command:
            raise ApiError(404, "The engine of this model does not offer this.", code="not_found")
        if reply.status != 200:
            raise map_engine_error(reply.status, reply.body, param)
        try:
            value = await run_cooperatively(
                decode_in_steps(reply.body, elements=_VALUES_LIMIT, limit_bytes=_REPLY_LIMIT_BYTES)
            )
        except (msgspec.DecodeError, RecursionError):
            raise ApiError(502, "The engine sent what cannot be read.", code="engine_error") from None
        return value if isinstance(value, dict) else {}

    async def _fetch_with_retry(self, model: LocalModel, path: str, body: bytes) -> BufferedResponse:
        """The engine's reply; from one that died it is asked for again, once."""
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            try:
                return await fetch(
                    await model.ensure_ready(),
                    "POST",
                    path,
                    body=body,
                    timeout_s=self._settings.first_byte_s,
                    limit_bytes=_REPLY_LIMIT_BYTES,
                )
            except EngineError as error:
                raise engine_unavailable(error) from None
            except HttpClientError:
                model.check_liveness(self._settings.idle_s)
                if attempt == _MAX_ATTEMPTS:
                    break
                await model.wait_for_exit_notice()
        raise engine_died()


def _list_field(reply: Json, name: str) -> list[Any]:
    found = reply.get(name)
    if not isinstance(found, list):
        raise ApiError(502, "The engine sent what cannot be read.", code="engine_error")
    return found


def _token_text(token: object) -> str:
    """The text of a token that llama.cpp shows with its id; bytes that are no text of their own as text with gaps."""
    piece = token.get("piece") if isinstance(token, dict) else None
    if isinstance(piece, list):
        return bytes(byte for byte in piece if isinstance(byte, int) and 0 <= byte < 256).decode(errors="replace")
    return piece if isinstance(piece, str) else ""


def _floats(value: object) -> list[float]:
    if isinstance(value, list) and value and isinstance(value[0], list):
        value = value[0]  # llama.cpp without pooling gives a vector for each token
    return [float(number) for number in value] if isinstance(value, list) else []


def _truncated(vector: list[float], dimensions: int | None) -> list[float]:
    """The first numbers of a vector, of length one again: what OpenAI does with `dimensions`."""
    if dimensions is None or dimensions >= len(vector):
        return vector
    cut = vector[:dimensions]
    length = math.sqrt(sum(number * number for number in cut)) or 1.0
    return [number / length for number in cut]


def _base64_floats(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _embedding_object(reply_item: Json, index: int, request: ValidatedRequest) -> bytes:
    """One embedding, in the form that was asked for."""
    vector = _truncated(_floats(reply_item.get("embedding")), request.dimensions)
    shown = _base64_floats(vector) if request.is_base64 else vector
    return msgspec.json.encode({"object": "embedding", "index": index, "embedding": shown})


def _max_tokens(text: str | list[int]) -> int:
    """The most tokens that it can have."""
    return len(text.encode()) if isinstance(text, str) else len(text)


def _prompt_tokens(reply: Json) -> int:
    usage = reply.get("usage")
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else 0
    return count if isinstance(count, int) else 0
