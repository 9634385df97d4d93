"""`/v1/responses` and all below it: responses are made, kept, asked for again, listed and forgotten."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any, TypeAlias
from urllib.parse import parse_qs

import msgspec

from welldone.config.server import ServeSettings
from welldone.gateway.backends import LocalBackend, UpstreamBackend
from welldone.gateway.errors import ApiError, invalid_request
from welldone.http.cooperative import run_cooperatively
from welldone.http.server import HttpResponse
from welldone.protocol.dialects.responses.objects import response_error_object, response_object
from welldone.protocol.dialects.responses.writer import ResponsesDialect
from welldone.protocol.envelope import ID_PREFIX, Endpoint, Envelope
from welldone.protocol.events import Json
from welldone.server.api.count_tokens import PromptTokenCounter, count_native
from welldone.server.api.response_owners import UpstreamIdOwners, state_references
from welldone.server.api.response_store import ResponseStore, StoredResponse
from welldone.server.app import RequestContext, json_response
from welldone.server.generation.service import GenerationRequest, ResponseGenerator, speaks_natively
from welldone.server.generation.targets import BackendResolver
from welldone.server.observe import log
from welldone.server.requests import fields
from welldone.server.requests.fields import rename_error_param
from welldone.server.requests.responses import (
    ITEMS_LIMIT,
    ResponseStorageOptions,
    check_responses_fields,
    complete_items,
    echoed_fields,
    item_not_found,
    raw_input_items,
    read_input_items,
    read_storage_options,
    responses_to_chat,
)
from welldone.server.requests.upstream_body import without_routing_fields

# Answers that are made while nobody waits for them.


_MAX_BACKGROUND = 64
"""At once, of all clients. Each waits for a seat like any other; but no open connection bounds their number."""

_TaskKey: TypeAlias = tuple[str, str]


class BackgroundResponses:
    """Runs them, by whom they belong to and what they are called."""

    def __init__(self) -> None:
        self._tasks: dict[_TaskKey, asyncio.Task[None]] = {}

    def check_capacity(self) -> None:
        """ApiError where too many run."""
        if len(self._tasks) >= _MAX_BACKGROUND:
            message = (
                f"{_MAX_BACKGROUND} responses are being made in the background. Try again when some of them are done."
            )
            raise ApiError(429, message, param="background", code="rate_limit_exceeded", retry_after_s=10.0)

    async def start(self, principal: str, response_id: str, work: Coroutine[Any, Any, None]) -> None:
        """Begin with one; it has begun then. One that is cancelled before does nothing at its end."""
        key = (principal, response_id)
        task = self._tasks[key] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._tasks.pop(key, None))
        await asyncio.sleep(0)

    async def cancel(self, principal: str, response_id: str) -> bool:
        """End one; whether it was running. What it does at its end is done then."""
        task = self._tasks.get((principal, response_id))
        if task is None:
            return False
        await _cancel_all([task])
        return True

    async def close(self) -> None:
        """End them all."""
        await _cancel_all(list(self._tasks.values()))


async def _cancel_all(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


_PAGE_SIZE, PAGE_LIMIT = 20, 100  # OpenAI's
_QUERY_LIMIT = 32  # fields of a query; there are four
SORT_ORDERS = ("asc", "desc")
_BACKGROUND_FAILED = "a response in the background failed"


class _ResponseJob(msgspec.Struct):
    """A response that is to be made."""

    ctx: RequestContext
    backend: LocalBackend | UpstreamBackend
    keeping: ResponseStorageOptions
    gen_request: GenerationRequest
    echo: Json
    items: list[Json]
    """Of the input."""
    is_native: bool


class ResponsesApi:
    """What answers on these paths. `now` is the time of day."""

    def __init__(
        self,
        settings: ServeSettings,
        targets: BackendResolver,
        generator: ResponseGenerator,
        store: ResponseStore,
        *,
        owners: UpstreamIdOwners,
        count_tokens: PromptTokenCounter,
        now: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._targets = targets
        self._generator = generator
        self._store = store
        self._owners = owners
        self._count_tokens = count_tokens
        self._now = now
        self._background = BackgroundResponses()

    async def close(self) -> None:
        """End what is made in the background."""
        await self._background.close()

    async def create(self, ctx: RequestContext) -> HttpResponse | None:
        """`POST /responses`."""
        body = await self._generator.read_body(ctx)
        backend = self._targets.find(ctx, body.get("model"))
        keeping = read_storage_options(body)
        job = await self._prepare(ctx, body, backend, keeping)
        if keeping.is_background:
            return await self._start_background(job)
        job.gen_request.on_end = lambda final: self._store_response(job, final)
        try:
            return await self._generator.generate(ctx, backend, job.gen_request)
        finally:
            job.gen_request.on_end = None  # it holds the job, and so itself: rings are left to the collector

    async def input_tokens(self, ctx: RequestContext) -> HttpResponse:
        """`POST /responses/input_tokens`: what usage would say of the same request."""
        body = await self._generator.read_body(ctx)
        backend = self._targets.find(ctx, body.get("model"))
        job = await self._prepare(ctx, body, backend, read_storage_options(body))
        if isinstance(backend, UpstreamBackend) and job.is_native:
            return json_response(
                await count_native(backend, Endpoint.RESPONSES, without_routing_fields(job.gen_request.body), {})
            )
        try:
            tokens = await self._count_tokens(backend, job.gen_request.body)
        except ApiError as error:
            rename_error_param(error, job.gen_request.field_names)
            raise
        return json_response({"object": "response.input_tokens", "input_tokens": tokens})

    async def get(self, ctx: RequestContext) -> HttpResponse:
        """`GET /responses/{id}`."""
        if _query_fields(ctx).get("stream", "false") != "false":
            raise fields.unsupported("stream", "cannot be used here: a response is given as a whole.")
        return HttpResponse(200, self._get_stored(ctx).response)

    async def delete(self, ctx: RequestContext) -> HttpResponse:
        """`DELETE /responses/{id}`."""
        name = _response_id(ctx)
        self._get_stored(ctx)
        await self._background.cancel(ctx.principal, name)
        self._store.delete(ctx.principal, name)
        return json_response({"id": name, "object": "response", "deleted": True})

    async def cancel(self, ctx: RequestContext) -> HttpResponse:
        """`POST /responses/{id}/cancel`. One that has ended is given as it is."""
        if not self._get_stored(ctx).is_background:
            raise invalid_request("Cannot cancel a synchronous response: only one with 'background' can be.")
        await self._background.cancel(ctx.principal, _response_id(ctx))
        return HttpResponse(200, self._get_stored(ctx).response)

    async def input_items(self, ctx: RequestContext) -> HttpResponse:
        """`GET /responses/{id}/input_items`: all that was said to the model, also in responses before."""
        self._get_stored(ctx)
        query = _query_fields(ctx)
        limit = fields.integer({"limit": _parse_int(query.get("limit"))}, "limit", 1, PAGE_LIMIT) or _PAGE_SIZE
        is_down = (fields.choice(dict(query), "order", SORT_ORDERS) or "desc") == "desc"
        items: dict[str, tuple[StoredResponse, int]] = {}
        chain = self._store.available_chain(ctx.principal, _response_id(ctx))
        for stored in chain:
            places = stored.input_count if stored is chain[-1] else len(stored.item_ids)
            items |= {name: (stored, place) for place, name in enumerate(stored.item_ids[:places]) if name}
            await asyncio.sleep(0)  # there may be thousands, of thousands of items
        page = _items_after(list(reversed(items) if is_down else items), query.get("after"))
        shown = page[:limit]
        ends = {"first_id": shown[0], "last_id": shown[-1]} if shown else {"first_id": None, "last_id": None}
        tail = msgspec.json.encode({**ends, "has_more": len(page) > limit})
        data = b",".join(stored.item(place) for stored, place in (items[name] for name in shown))
        return HttpResponse(200, b'{"object":"list","data":[' + data + b"]," + tail[1:])

    # How a response is made.

    async def _prepare(
        self, ctx: RequestContext, body: Json, backend: LocalBackend | UpstreamBackend, keeping: ResponseStorageOptions
    ) -> _ResponseJob:
        name = ID_PREFIX[Endpoint.RESPONSES] + secrets.token_hex(24)
        if speaks_natively(backend, Endpoint.RESPONSES):
            items, echo = raw_input_items(body), echoed_fields(body)
            native = await self._native_body(ctx, backend, body, keeping)
            order = GenerationRequest(body=native, id=name, endpoint=Endpoint.RESPONSES, echo=echo)
            return _ResponseJob(ctx, backend, keeping, order, echo, items, is_native=True)
        check_responses_fields(body)
        limit = self._settings.body_limit_bytes
        history = await self._history(ctx, keeping.previous_response_id)
        items = await run_cooperatively(
            read_input_items(body, lambda item: self._store.item(ctx.principal, item), limit)
        )
        if len(history) + len(items) > ITEMS_LIMIT:
            message = f"What was said up to this request has more than {ITEMS_LIMIT} items."
            raise invalid_request(message, param="input", code="context_length_exceeded")
        is_lenient = self._settings.unknown_tools == "ignore"
        takes_custom = isinstance(backend, UpstreamBackend)
        said = responses_to_chat(
            body, history, items, ignores_unknown_tools=is_lenient, allows_custom_tools=takes_custom
        )
        if ignored := len(body.get("tools") or ()) - len(said.echo["tools"]):
            ctx.log_fields["ignored_tools"] = ignored
        said.echo["store"] = keeping.is_stored and self._store.is_enabled
        dialect = ResponsesDialect(said.echo, is_summary=said.wants_summary, clock=cache(self._now))
        order = GenerationRequest(body=said.chat, id=name, dialect=dialect, field_names=said.param_names)
        return _ResponseJob(ctx, backend, keeping, order, said.echo, items, is_native=False)

    async def _native_body(
        self, ctx: RequestContext, backend: LocalBackend | UpstreamBackend, body: Json, keeping: ResponseStorageOptions
    ) -> Json:
        """The client's own request. A response that the upstream cannot know is sent as input: one that we translated,
        or perhaps another upstream's.

        Raises:
            ApiError: it names state of the upstream that another key received, or that nobody here knows of.
        """
        await self._check_references(ctx, body)
        out = {name: value for name, value in body.items() if name != "background"}
        if keeping.previous_response_id is None:
            return out
        previous = self._store.get(ctx.principal, keeping.previous_response_id)
        is_foreign = await self._owners.not_owned(ctx.principal, [keeping.previous_response_id])
        is_known = previous is None or (previous.is_native and len(backend.upstreams) == 1)
        if is_foreign or not is_known:
            out["input"] = await self._history(ctx, out.pop("previous_response_id")) + raw_input_items(body)
        return out

    async def _check_references(self, ctx: RequestContext, body: Json) -> None:
        """Refuse ids of an upstream's state that this key did not receive, as ids that do not exist."""
        found = dict(state_references(body))
        foreign = await self._owners.not_owned(ctx.principal, found.values())
        for param, name in found.items():
            if name not in foreign:
                continue
            if param == "conversation":
                message = f"Conversation with id '{fields.shorten_value(name)}' not found."
                raise ApiError(404, message, param=param, code="not_found")
            raise item_not_found(name, param)

    async def _history(self, ctx: RequestContext, previous: str | None) -> list[Json]:
        """All that was said up to a response, and by it."""
        if previous is None:
            return []
        found = self._store.chain(ctx.principal, previous)
        if found is None:
            message = (
                f"Previous response with id '{fields.shorten_value(previous)}' not found. {self._retention_hint()}"
            )
            raise invalid_request(message, param="previous_response_id", code="previous_response_not_found")
        limit = self._settings.body_limit_bytes
        if sum(stored.items_bytes for stored in found) > limit:
            message = f"What was said up to this response has more than {limit} bytes, the longest request here."
            raise invalid_request(message, param="previous_response_id", code="context_length_exceeded")
        items: list[Json] = []
        for stored in found:
            items += await run_cooperatively(stored.decode_items())
            await asyncio.sleep(0)
        return items

    def _store_response(self, job: _ResponseJob, final: Json | None) -> None:
        """Keep a response that came to its end; of one that did not there is nothing to keep."""
        if final is None:
            return
        if job.is_native:
            self._owners.claim(job.ctx.principal, final)
        if not job.keeping.is_stored:
            return
        keeping = job.keeping
        self._store.put(
            job.ctx.principal,
            final,
            complete_items(job.items, job.gen_request.id),
            previous=keeping.previous_response_id,
            is_native=job.is_native and not keeping.is_background,  # whose name is ours, and not the upstream's
            is_background=keeping.is_background,
        )

    # What is made in the background.

    async def _start_background(self, job: _ResponseJob) -> HttpResponse:
        self._background.check_capacity()
        if not self._store.is_enabled:
            raise fields.unsupported("background", "is not offered: this server stores no responses.")
        head = Envelope(job.gen_request.id, int(self._now()), job.backend.name)
        response = response_object(head, job.echo | {"background": True})
        self._store_response(job, response)
        if self._store.get(job.ctx.principal, job.gen_request.id) is None:
            limit = self._settings.stored_bytes
            raise fields.unsupported("background", f"cannot be used for so much: this server stores {limit} bytes.")
        await self._background.start(job.ctx.principal, job.gen_request.id, self._run_background(job, response))
        return json_response(response | {"status": "queued"})

    async def _run_background(self, job: _ResponseJob, response: Json) -> None:
        """Make it, and keep it however it ends."""
        end = response | {"status": "cancelled"}

        def told(final: Json | None) -> None:
            nonlocal end
            if final is not None:  # an upstream has its own name for it, and the client ours
                end = final | {"id": response["id"], "background": True}

        job.gen_request.on_end = told
        try:
            await self._generator.generate(job.ctx, job.backend, job.gen_request)
        except ApiError as error:
            log.event(
                logging.WARNING, _BACKGROUND_FAILED, {"request_id": job.ctx.id, "error": error.code or error.message}
            )
            end = response | {"status": "failed", "error": response_error_object(error.to_failure())}
        except Exception as error:  # noqa: BLE001 - the edge of a task: it logs, and the client gets an honest error
            log.event(logging.ERROR, _BACKGROUND_FAILED, {"request_id": job.ctx.id}, error=error)
            failure = ApiError(500, "The server failed. Its log says why.", code="internal_error").to_failure()
            end = response | {"status": "failed", "error": response_error_object(failure)}
        finally:
            self._store_response(job, end)

    # What is there.

    def _get_stored(self, ctx: RequestContext) -> StoredResponse:
        stored = self._store.get(ctx.principal, _response_id(ctx))
        if stored is None:
            message = (
                f"Response with id '{fields.shorten_value(_response_id(ctx))}' not found. {self._retention_hint()}"
            )
            raise ApiError(404, message, code="not_found")
        return stored

    def _retention_hint(self) -> str:
        settings = self._settings
        if not self._store.is_enabled:
            return "This server stores no responses (--stored-responses)."
        most = f"{settings.stored_responses} responses, of up to {settings.stored_bytes} bytes in all"
        why = f"This server keeps the last {most}, in memory"
        if settings.workers > 1:
            return f"{why}, and each of its {settings.workers} processes its own."
        return f"{why}."


def _response_id(ctx: RequestContext) -> str:
    return ctx.request.path.partition("/responses/")[2].partition("/")[0]


def _query_fields(ctx: RequestContext) -> dict[str, str]:
    try:
        found = parse_qs(ctx.request.query, max_num_fields=_QUERY_LIMIT)
    except ValueError:
        raise invalid_request(f"The query of this address has more than {_QUERY_LIMIT} fields.") from None
    return {name: values[-1] for name, values in found.items()}


def _parse_int(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < _QUERY_LIMIT else text


def _items_after(items: list[str], name: str | None) -> list[str]:
    """Those that follow an item."""
    if name is None:
        return items
    if name not in items:
        message = f"Invalid 'after': there is no item '{fields.shorten_value(name)}' here."
        raise invalid_request(message, param="after", code="invalid_value")
    return items[items.index(name) + 1 :]
