"""What is answered at once and not as a stream: embeddings, ranks, texts as tokens, and how many there are."""

import asyncio
import base64
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from welldone.engines.errors import EngineError
from welldone.engines.fleet import Model
from welldone.net.inbound import Reply
from welldone.net.outbound import Fetched, OutboundError, fetch
from welldone.net.turns import in_turns
from welldone.serve.admission import Gate
from welldone.serve.app import Ask, json_reply
from welldone.serve.charging import prompt_tokens
from welldone.serve.counting import for_vllm
from welldone.serve.errors import ApiError, invalid
from welldone.serve.refusals import died, from_engine, from_reply, too_long
from welldone.serve.requests import Request, read_chat, read_detokenize, read_embeddings, read_rerank, read_tokenize
from welldone.serve.settings import ServeSettings
from welldone.wire.budget import decoding
from welldone.wire.events import Json

_ATTEMPTS = 2
_INPUTS_AT_ONCE = 32
_COUNTS_AT_ONCE = 4  # texts that become tokens: they need no slot, but memory
_COUNT = "/v1/chat/completions/input_tokens"
_VALUES_LIMIT = 500_000  # of a reply: as many tokens, or half as many with their pieces
_REPLY_LIMIT_BYTES = 32 * 2**20  # 32 vectors of 16,384 numbers, or a million tokens with their pieces, as JSON text


class Vectors:
    """The actions of these routes, for a body that was read. `model` finds whom it means."""

    def __init__(
        self,
        settings: ServeSettings,
        model: Callable[[Ask, Json], Model],
        gates: Mapping[str, Gate],
        *,
        spend: Callable[[Ask, int], None],
    ) -> None:
        self._settings = settings
        self._model = model
        self._gates = gates
        self._spend = spend
        self._counting = asyncio.Semaphore(_COUNTS_AT_ONCE)

    async def embed(self, ask: Ask, body: Json) -> Reply:
        """POST /v1/embeddings."""
        model = self._model(ask, body)
        await self._loaded(model)
        request = read_embeddings(body, model.settings, model.abilities)
        inputs = request.parts[0]["input"]
        written: list[bytes] = []
        tokens = 0
        with model.using():
            for text in inputs:
                await self._check_length(model, text, _size(text), "input")
            async with self._gates[model.name].place():
                # Some at a time: a million numbers in one piece would hold up all others.
                for start in range(0, len(inputs), _INPUTS_AT_ONCE):
                    some = {**request.parts[0], "input": inputs[start : start + _INPUTS_AT_ONCE]}
                    try:
                        reply = await self._fetch(model, "/v1/embeddings", some)
                    except asyncio.CancelledError:  # the client has left, and the engine has worked
                        self._spend(ask, tokens + prompt_tokens(some))
                        raise
                    written += [_vector(one, start + place, request) for place, one in enumerate(_list(reply, "data"))]
                    tokens += _prompt_tokens(reply)
        usage = self._count(ask, tokens)
        tail = msgspec.json.encode({"model": model.name, "usage": usage})
        return Reply(200, b'{"object":"list","data":[' + b",".join(written) + b"]," + tail[1:])

    async def rerank(self, ask: Ask, body: Json) -> Reply:
        """POST /v1/rerank, in the shape that Jina and Cohere share."""
        model = self._model(ask, body)
        await self._loaded(model)
        request = read_rerank(body, model.settings, model.abilities)
        query = request.parts[0]["query"]
        query_bytes = _size(query)
        with model.using():
            for text in request.parts[0]["documents"]:
                await self._check_length(model, (query, text), query_bytes + _size(text), "documents")
            async with self._gates[model.name].place():
                try:
                    reply = await self._fetch(model, "/v1/rerank", request.parts[0])
                except asyncio.CancelledError:
                    self._spend(ask, prompt_tokens(request.parts[0]))
                    raise
        results: list[Json] = [
            {"index": int(one["index"]), "relevance_score": float(one["relevance_score"])}
            for one in _list(reply, "results")
        ]
        results.sort(key=lambda one: (-one["relevance_score"], one["index"]))
        results = results[: request.parts[0]["top_n"]]
        if request.documents is not None:
            for one in results:
                one["document"] = {"text": request.documents[one["index"]]}
        usage = self._count(ask, _prompt_tokens(reply))
        return json_reply({"object": "list", "model": model.name, "results": results, "usage": usage})

    async def tokenize(self, ask: Ask, body: Json) -> Reply:
        """POST /tokenize: llama.cpp's shape, with vLLM's counts."""
        model = self._model(ask, body)
        await self._loaded(model)
        request = read_tokenize(body, model.settings, model.abilities)
        asked = request.parts[0]
        if model.settings.command:  # in vLLM's words too: each server passes over those of the other
            asked |= {"prompt": asked["content"], "add_special_tokens": asked.get("add_special", False)}
        if model.settings.command and request.has_token_texts:
            asked["return_token_strs"] = True
        async with self._counting:
            reply = await self._fetch(model, "/tokenize", asked)
        tokens = _list(reply, "tokens")
        length = model.abilities.context if model.abilities is not None else 0
        texts: Json = {}
        if request.has_token_texts:
            texts = {"token_strs": reply.get("token_strs") or [_piece(token) for token in tokens]}
        if not request.has_pieces:
            tokens = [token.get("id") if isinstance(token, dict) else token for token in tokens]
        return json_reply({"tokens": tokens, "count": len(tokens), "max_model_len": length, **texts})

    async def check_prompts(self, model: Model, body: Json) -> None:
        """ApiError for a prompt without a token: llama.cpp would answer with nothing, as if it had run out of room.

        Of an empty text a model makes none, unless it begins every text with a token of its own (BOS).
        """
        prompt = body.get("prompt")
        if (prompt != "" and not (isinstance(prompt, list) and "" in prompt)) or model.settings.command:
            return
        await self._loaded(model)
        async with self._counting:
            reply = await self._fetch(model, "/tokenize", {"content": "", "add_special": True})
        if not _list(reply, "tokens"):
            message = "Invalid 'prompt': it is empty, and this model has no token that a text begins with."
            raise invalid(message, param="prompt", code="invalid_value")

    async def detokenize(self, ask: Ask, body: Json) -> Reply:
        """POST /detokenize: llama.cpp's `content`, and the same as vLLM's `prompt`."""
        model = self._model(ask, body)
        await self._loaded(model)
        request = read_detokenize(body, model.settings, model.abilities)
        async with self._counting:
            reply = await self._fetch(model, "/detokenize", request.parts[0])
        text = reply.get("content", reply.get("prompt"))  # the latter is vLLM's
        return json_reply({"content": text, "prompt": text})

    async def count_chat(self, model: Model, body: Json) -> int:
        """How many tokens the prompt of a chat has: exactly what usage would say of it, pictures too."""
        await self._loaded(model)
        request = read_chat(body, model.settings, model.abilities)
        with model.using():
            async with self._counting:
                found = await self._count_any(model, request.parts[0])
        if not isinstance(found, int):
            raise ApiError(502, "The engine sent what cannot be read.", code="engine_error")
        return found

    async def _count_any(self, model: Model, chat: Json) -> object:
        """As llama.cpp counts, or vLLM where a command knows no such path."""
        try:
            return (await self._fetch(model, _COUNT, chat, "messages")).get("input_tokens")
        except ApiError as error:
            if error.status != 404 or not model.settings.command:
                raise
        return (await self._fetch(model, "/tokenize", for_vllm(chat), "messages")).get("count")

    async def _loaded(self, model: Model) -> None:
        try:
            await model.ready()
        except EngineError as error:
            raise from_engine(error) from None

    async def _check_length(self, model: Model, text: str | list[int] | tuple[str, str], size: int, param: str) -> None:
        """Refuse what does not fit; the engine would call it a fault of its own. No token is shorter than a byte."""
        limit = model.abilities.context if model.abilities is not None else 0
        if not limit or size <= limit or model.settings.command:  # a command has its own way to count, and to refuse
            return
        count = size
        if not isinstance(text, list):
            content = text if isinstance(text, str) else "".join(text)
            async with self._counting:
                reply = await self._fetch(model, "/tokenize", {"content": content, "add_special": True})
            count = len(_list(reply, "tokens"))
        if count > limit:
            raise too_long(count, limit, param)

    def _count(self, ask: Ask, tokens: int) -> Json:
        """Usage; what was used is counted."""
        ask.facts["prompt_tokens"] = tokens
        self._spend(ask, tokens)
        return {"prompt_tokens": tokens, "total_tokens": tokens}

    async def _fetch(self, model: Model, path: str, asked: Json, param: str = "input") -> Json:
        """The engine's reply."""
        body = msgspec.json.encode({**asked, "model": model.inner_name})
        reply = await self._reply(model, path, body)
        if reply.status == 404 and model.settings.command:
            raise ApiError(404, "The engine of this model does not offer this.", code="not_found")
        if reply.status != 200:
            raise from_reply(reply.status, reply.body, param)
        try:
            value = await in_turns(decoding(reply.body, elements=_VALUES_LIMIT, limit_bytes=_REPLY_LIMIT_BYTES))
        except (msgspec.DecodeError, RecursionError):
            raise ApiError(502, "The engine sent what cannot be read.", code="engine_error") from None
        return value if isinstance(value, dict) else {}

    async def _reply(self, model: Model, path: str, body: bytes) -> Fetched:
        """The engine's reply; from one that died it is asked for again, once."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await fetch(
                    await model.ready(),
                    "POST",
                    path,
                    body=body,
                    within_s=self._settings.first_byte_s,
                    limit_bytes=_REPLY_LIMIT_BYTES,
                )
            except EngineError as error:
                raise from_engine(error) from None
            except OutboundError:
                model.doubt(self._settings.idle_s)
                if attempt == _ATTEMPTS:
                    break
                await model.check()
        raise died()


def _list(reply: Json, name: str) -> list[Any]:
    found = reply.get(name)
    if not isinstance(found, list):
        raise ApiError(502, "The engine sent what cannot be read.", code="engine_error")
    return found


def _piece(token: object) -> str:
    """The text of a token that llama.cpp shows with its id; bytes that are no text of their own as text with gaps."""
    piece = token.get("piece") if isinstance(token, dict) else None
    if isinstance(piece, list):
        return bytes(byte for byte in piece if isinstance(byte, int) and 0 <= byte < 256).decode(errors="replace")
    return piece if isinstance(piece, str) else ""


def _floats(value: object) -> list[float]:
    if isinstance(value, list) and value and isinstance(value[0], list):
        value = value[0]  # llama.cpp without pooling gives a vector for each token
    return [float(number) for number in value] if isinstance(value, list) else []


def _shorter(vector: list[float], dimensions: int | None) -> list[float]:
    """The first numbers of a vector, of length one again: what OpenAI does with `dimensions`."""
    if dimensions is None or dimensions >= len(vector):
        return vector
    cut = vector[:dimensions]
    length = math.sqrt(sum(number * number for number in cut)) or 1.0
    return [number / length for number in cut]


def _packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _vector(one: Json, index: int, request: Request) -> bytes:
    """One embedding, in the form that was asked for."""
    vector = _shorter(_floats(one.get("embedding")), request.dimensions)
    shown = _packed(vector) if request.is_base64 else vector
    return msgspec.json.encode({"object": "embedding", "index": index, "embedding": shown})


def _size(text: str | list[int]) -> int:
    """The most tokens that it can have."""
    return len(text.encode()) if isinstance(text, str) else len(text)


def _prompt_tokens(reply: Json) -> int:
    usage = reply.get("usage")
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else 0
    return count if isinstance(count, int) else 0
