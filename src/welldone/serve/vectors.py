"""What is answered at once and not as a stream: embeddings, ranks, and texts as tokens."""

import base64
import math
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from welldone.engines.errors import EngineError
from welldone.engines.fleet import Model
from welldone.net.inbound import Reply
from welldone.net.outbound import Fetched, OutboundError, fetch
from welldone.serve.admission import Gate
from welldone.serve.app import Ask
from welldone.serve.errors import ApiError
from welldone.serve.refusals import from_engine, from_reply
from welldone.serve.requests import Request, read_detokenize, read_embeddings, read_rerank, read_tokenize
from welldone.serve.settings import ServeSettings
from welldone.wire.events import Json

_ATTEMPTS = 2
_REPLY_LIMIT_BYTES = 256 * 2**20  # 2,048 vectors of 8,192 numbers as JSON text


class Vectors:
    """The actions of these routes. `body` reads a request, `model` finds whom it means."""

    def __init__(
        self,
        settings: ServeSettings,
        body: Callable[[Ask], Awaitable[Json]],
        model: Callable[[Ask, Json], Model],
        gates: Mapping[str, Gate],
    ) -> None:
        self._settings = settings
        self._body = body
        self._model = model
        self._gates = gates

    async def embed(self, ask: Ask) -> Reply:
        """POST /v1/embeddings."""
        body = await self._body(ask)
        model = self._model(ask, body)
        await self._loaded(model)
        request = read_embeddings(body, model.settings, model.abilities)
        reply = await self._ask(model, "/v1/embeddings", request)
        vectors = [_shorter(_floats(one.get("embedding")), request.dimensions) for one in _list(reply, "data")]
        data = [
            {"object": "embedding", "index": place, "embedding": _packed(vector) if request.is_base64 else vector}
            for place, vector in enumerate(vectors)
        ]
        usage = _usage(reply, ask)
        return _json({"object": "list", "data": data, "model": model.name, "usage": usage})

    async def rerank(self, ask: Ask) -> Reply:
        """POST /v1/rerank, in the shape that Jina and Cohere share."""
        body = await self._body(ask)
        model = self._model(ask, body)
        await self._loaded(model)
        request = read_rerank(body, model.settings, model.abilities)
        reply = await self._ask(model, "/v1/rerank", request)
        results: list[Json] = [
            {"index": int(one["index"]), "relevance_score": float(one["relevance_score"])}
            for one in _list(reply, "results")
        ]
        results.sort(key=lambda one: (-one["relevance_score"], one["index"]))
        results = results[: request.parts[0]["top_n"]]
        if request.documents is not None:
            for one in results:
                one["document"] = {"text": request.documents[one["index"]]}
        usage = _usage(reply, ask)
        return _json({"object": "list", "model": model.name, "results": results, "usage": usage})

    async def tokenize(self, ask: Ask) -> Reply:
        """POST /tokenize: llama.cpp's shape, with vLLM's counts."""
        body = await self._body(ask)
        model = self._model(ask, body)
        await self._loaded(model)
        request = read_tokenize(body, model.settings, model.abilities)
        tokens = _list(await self._ask(model, "/tokenize", request, is_work=False), "tokens")
        length = model.abilities.context if model.abilities is not None else 0
        return _json({"tokens": tokens, "count": len(tokens), "max_model_len": length})

    async def detokenize(self, ask: Ask) -> Reply:
        """POST /detokenize: llama.cpp's `content`, and the same as vLLM's `prompt`."""
        body = await self._body(ask)
        model = self._model(ask, body)
        await self._loaded(model)
        request = read_detokenize(body, model.settings, model.abilities)
        text = (await self._ask(model, "/detokenize", request, is_work=False)).get("content")
        return _json({"content": text, "prompt": text})

    async def _loaded(self, model: Model) -> None:
        try:
            await model.ready()
        except EngineError as error:
            raise from_engine(error) from None

    async def _ask(self, model: Model, path: str, request: Request, *, is_work: bool = True) -> Json:
        """The engine's reply. What is work waits for a slot."""
        gate = self._gates[model.name]
        with model.using():
            if not is_work:
                return await self._fetch(model, path, request)
            async with gate.place():
                return await self._fetch(model, path, request)

    async def _fetch(self, model: Model, path: str, request: Request) -> Json:
        body = msgspec.json.encode({**request.parts[0], "model": model.name})
        reply = await self._reply(model, path, body)
        if reply.status != 200:
            raise from_reply(reply.status, reply.body)
        try:
            value = msgspec.json.decode(reply.body)
        except msgspec.DecodeError:
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
                if attempt == _ATTEMPTS:
                    break
                await model.check()
        raise ApiError(502, "The engine stopped before its answer was whole.", code="engine_died")


def _list(reply: Json, name: str) -> list[Any]:
    found = reply.get(name)
    if not isinstance(found, list):
        raise ApiError(502, "The engine sent what cannot be read.", code="engine_error")
    return found


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


def _usage(reply: Json, ask: Ask) -> Json:
    usage = reply.get("usage")
    count = usage.get("prompt_tokens", 0) if isinstance(usage, dict) else 0
    ask.facts["prompt_tokens"] = count
    return {"prompt_tokens": count, "total_tokens": count}


def _json(value: object) -> Reply:
    return Reply(200, msgspec.json.encode(value))
