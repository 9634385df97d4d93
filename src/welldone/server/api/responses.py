"""The Responses API: create, retrieve, cancel and delete responses; background mode; input items and token counts."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import cache, partial
from typing import Any, ClassVar, TypeAlias
from urllib.parse import parse_qs

import msgspec

from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import ChoiceStart, Finish, Json, Usage
from welldone.core.lenient_json import as_object
from welldone.dialects.registry import DIALECTS
from welldone.dialects.responses.objects import (
    RESPONSE_DEFAULTS,
    parse_responses_usage,
    response_error_object,
    response_object,
)
from welldone.dialects.responses.writer import ResponsesFormat
from welldone.gateway.backends import LocalBackend, UpstreamBackend
from welldone.gateway.errors import ApiError, internal_error, invalid_request
from welldone.http.messages import HttpResponse
from welldone.http.turns import run_cooperatively
from welldone.schemas.errors import shorten_value
from welldone.schemas.responses import (
    ITEMS_LIMIT,
    CompactRequest,
    ItemsQuery,
    ResponseQuery,
    ResponseRequest,
    ResponseStorage,
)
from welldone.server.access.store import StoreUnavailableError
from welldone.server.api.dialect import DialectApi, fetch_json
from welldone.server.api.response_socket import SocketRequest
from welldone.server.api.response_store import (
    ResponseStore,
    SharedResponses,
    StoredResponse,
    UpstreamIdOwners,
    state_references,
)
from welldone.server.context import RequestContext, json_response
from welldone.server.generation.pipelines import GenerationRequest
from welldone.server.observe import log
from welldone.server.requests import fields, response_items
from welldone.server.requests import responses as requests
from welldone.server.resume.api import DetachedRequest, ResumeService, run_detached
from welldone.server.resume.streams import ReaderFormat, ResumableStream

_MAX_BACKGROUND = 64
"""Background responses of all clients at once. They queue like others, but no open connection limits their number."""
_PAGE_SIZE = 20  # OpenAI's
_ITEMS_AT_ONCE = 1_000  # more are converted in a thread: 8,000 would hold up the event loop for 40 ms
_QUERY_LIMIT = 32  # fields of a query string; there are four
_SEQUENCE_FORMAT = ReaderFormat(has_ids=False, first_number=0, param="starting_after")
"""Events of this API have their number in their JSON."""
_BACKGROUND_FAILED = "a background response failed"

_TaskKey: TypeAlias = tuple[str, str]


class BackgroundResponses:
    """Tasks of background responses, by principal and response id."""

    def __init__(self) -> None:
        self._tasks: dict[_TaskKey, asyncio.Task[None]] = {}

    def check_capacity(self) -> None:
        """Raise ApiError if too many are running."""
        if len(self._tasks) >= _MAX_BACKGROUND:
            message = (
                f"{_MAX_BACKGROUND} background responses are in progress, the limit of this server. Try again later."
            )
            raise ApiError(429, message, param="background", code="rate_limit_exceeded", retry_after_s=10.0)

    async def start(self, principal: str, response_id: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task, and let it run once: a task that is cancelled earlier would not run its cleanup."""
        key = (principal, response_id)
        task = self._tasks[key] = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._tasks.pop(key, None))
        await asyncio.sleep(0)
        return task

    async def cancel(self, *keys: _TaskKey) -> None:
        """Cancel those of the responses that are running, and wait for their cleanup."""
        tasks = [self._tasks[key] for key in keys if key in self._tasks]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Cancel all responses."""
        await self.cancel(*self._tasks)


class _ResponseJob(msgspec.Struct):
    """A response to be generated."""

    ctx: RequestContext
    backend: LocalBackend | UpstreamBackend
    options: ResponseStorage
    gen_request: GenerationRequest
    items: list[Json]
    """The input items."""
    history: list[Json]
    """The items before them, as far as they are known here."""


class _Status(msgspec.Struct):
    status: str = ""


_RUNNING_STATUSES = ("queued", "in_progress")


class ResponsesApi(DialectApi, kw_only=True):
    """The handlers of these endpoints."""

    ENDPOINT: ClassVar[Endpoint] = Endpoint.RESPONSES

    store: ResponseStore
    local_store: ResponseStore
    """The last response of each WebSocket with its whole conversation, unless it is stored."""
    owners: UpstreamIdOwners
    resume: ResumeService
    charge_tokens: Callable[[RequestContext, int], None]
    """Counts tokens of a reply that was not generated here."""
    shared: SharedResponses | None = None
    """The responses of other front ends."""
    background: BackgroundResponses = msgspec.field(default_factory=BackgroundResponses)

    async def create(self, ctx: RequestContext) -> HttpResponse | None:
        """`POST /responses`."""
        try:
            job = await self._prepare(ctx)
            if job.options.background:
                return await self._start_background(job)
            if isinstance(ctx.request, SocketRequest) and ctx.request.is_warm_up:
                await self._warm_up(job)
                return None
            job.gen_request.on_end = lambda final: self._store_response(job, final)
            try:
                return await self.generator.generate(ctx, job.backend, job.gen_request)
            finally:
                job.gen_request.on_end = None  # a reference cycle would wait for the garbage collector
        except ApiError:
            self._forget_local(ctx)
            raise

    async def _warm_up(self, job: _ResponseJob) -> None:
        """Send a response without output, which can be continued. Nothing is sent to the model yet."""
        gen_request = job.gen_request
        dialect = ResponsesFormat(gen_request.echo, clock=cache(self.now))
        envelope = Envelope(gen_request.id, int(self.now()), job.backend.name)
        writer = dialect.make_writer(envelope, lambda: Usage(0, 0, 0, {}))
        events = writer.send(ChoiceStart(0)) + writer.send(Finish(0, "stop")) + writer.end()
        self._store_response(job, dialect.final_object)
        stream = await job.ctx.request.start_stream({}, first=events)
        await stream.end()

    async def input_tokens(self, ctx: RequestContext) -> HttpResponse:
        """`POST /responses/input_tokens`: the input tokens that usage would report."""
        job = await self._prepare(ctx)
        count = await self.count_prompt(ctx, job.backend, job.gen_request)
        return json_response({"object": "response.input_tokens"} | count)

    async def compact(self, ctx: RequestContext) -> HttpResponse:
        """`POST /responses/compact`: the messages of the user, and one item with a summary of the conversation."""
        body = await self.generator.read_body(ctx)
        request = fields.read_fields(body, CompactRequest)
        previous = request.previous_response_id or None
        await self._import(ctx, previous)
        backend = self.targets.find(ctx, request.model)
        if self.is_native(backend):
            native_body = await self._native_body(ctx, backend, body, previous)
            reply = await fetch_json(ctx, backend, "/responses/compact", native_body)
            usage = parse_responses_usage(as_object(reply.get("usage")))
            self.charge_tokens(ctx, 0 if usage is None else usage.total_tokens)
            self.owners.claim(ctx.principal, reply)
            return json_response(reply)
        history, items = await self._read_items(ctx, body, previous)
        all_items = history + items
        response_id = self.new_id(24)
        chat = requests.compaction_chat(history, items, request.instructions)
        if isinstance(backend, LocalBackend):  # some upstreams have models that do not accept it
            chat["temperature"] = 0
        final: Json = {}
        gen_request = GenerationRequest(
            body={"model": request.model, **chat},
            id=response_id,
            dialect=ResponsesFormat({}),
            field_names={"messages": "input"},
            on_end=lambda response: final.update(response or {}),
        )
        try:
            await self.generator.generate(ctx, backend, gen_request)
        finally:
            gen_request.on_end = None  # a reference cycle would wait for the garbage collector
        summary = response_items.summary_text(final)
        if not summary:
            raise ApiError(502, "The model returned no summary of the conversation.", code="empty_summary")
        suffix = response_id.removeprefix(DIALECTS[self.ENDPOINT].id_prefix)
        kept = [item for item in all_items if response_items.is_user_message(item)]
        output = [response_items.complete_item(item, f"{suffix}_{index}") for index, item in enumerate(kept)]
        content = response_items.encode_summary(summary)
        output.append({"id": f"cmp_{suffix}", "type": response_items.COMPACTION, "encrypted_content": content})
        compacted = {"id": response_id, "object": "response.compaction", "created_at": int(self.now())}
        return json_response({**compacted, "output": output, "usage": final["usage"]})

    async def get(self, ctx: RequestContext) -> HttpResponse | None:
        """`GET /responses/{id}`; with `stream=true`, the events of a background response after `starting_after`."""
        parameters = _query_fields(ctx)
        query = fields.read_fields({**parameters, "stream": _parse_bool(parameters.get("stream"))}, ResponseQuery)
        await self._import(ctx, _response_id(ctx))
        if not query.stream:
            if query.starting_after is not None:
                raise fields.invalid("starting_after", "it needs 'stream=true'.")
            return HttpResponse(200, self._get_stored(ctx).response)
        # OpenAI's sequence numbers start at 0.
        after = 0
        if query.starting_after is not None:
            after = self.resume.read_event_number(query.starting_after, "starting_after") + 1
        try:
            source = await self.resume.find(ctx.principal, _response_id(ctx))
        except StoreUnavailableError:
            stored = self.store.get(ctx.principal, _response_id(ctx))
            if stored is None or (stored.is_background and stored.is_streamed):
                raise
            source = None  # no store has its events
        if source is None:
            raise self._not_streamed(ctx)
        return await self.resume.send_rest(ctx, source, after, _SEQUENCE_FORMAT)

    def _not_streamed(self, ctx: RequestContext) -> ApiError:
        """Return why the events of a response are not available."""
        stored = self._get_stored(ctx)
        for is_given, field in ((stored.is_background, "background"), (stored.is_streamed, "stream")):
            if not is_given:
                message = f"This response cannot be streamed because it was not created with '{field}': true."
                return invalid_request(message, param="stream")
        message = (
            f"The events of this response are no longer kept: it ended more than {self.settings.resume_s:g} seconds "
            "ago, or newer streams needed the memory. Retrieve it without 'stream'."
        )
        return ApiError(410, message, param="stream", code="events_dropped")

    async def delete(self, ctx: RequestContext) -> HttpResponse:
        """`DELETE /responses/{id}`."""
        response_id = _response_id(ctx)
        await self._import(ctx, response_id)
        self._get_stored(ctx)
        if self.shared is not None:  # first: while the store is unavailable, nothing is deleted
            await self.shared.delete(ctx.principal, response_id)
        await self._cancel_background(ctx)
        self.store.delete(ctx.principal, response_id)
        if (stream := self.resume.registry.get(ctx.principal, response_id)) is not None:
            self.resume.registry.remove(stream)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    async def cancel(self, ctx: RequestContext) -> HttpResponse:
        """`POST /responses/{id}/cancel`. A response that has ended is returned unchanged."""
        await self._import(ctx, _response_id(ctx))
        stored = self._get_stored(ctx)
        if not stored.is_background:
            raise invalid_request("Cannot cancel a synchronous response: it was created without 'background'.")
        if stored.is_imported and msgspec.json.decode(stored.response, type=_Status).status in _RUNNING_STATUSES:
            message = "This response is generated by another front end, which alone can cancel it."
            raise ApiError(409, message, code="not_here", retry_after_s=1.0)
        await self._cancel_background(ctx)
        return HttpResponse(200, self._get_stored(ctx).response)

    async def _cancel_background(self, ctx: RequestContext) -> None:
        """Cancel a response if it is running. Readers of its events get `response.failed`."""
        response_id = _response_id(ctx)
        stream = self.resume.registry.get(ctx.principal, response_id)
        if stream is not None and stream.task is not None and not stream.task.done():
            stream.stop_generation(ApiError(409, "The response was cancelled.", code="cancelled"))
            await asyncio.wait([stream.task])
        await self.background.cancel((ctx.principal, response_id))

    async def input_items(self, ctx: RequestContext) -> HttpResponse:
        """`GET /responses/{id}/input_items`: the whole input of the model, with that of earlier responses."""
        await self._import(ctx, _response_id(ctx))
        self._get_stored(ctx)
        parameters = _query_fields(ctx)
        query = fields.read_fields({**parameters, "limit": _parse_int(parameters.get("limit"))}, ItemsQuery)
        limit = query.limit or _PAGE_SIZE
        items: dict[str, tuple[StoredResponse, int]] = {}
        chain = self.store.available_chain(ctx.principal, _response_id(ctx))
        for stored in chain:
            count = stored.input_count if stored is chain[-1] else len(stored.item_ids)
            items |= {item_id: (stored, index) for index, item_id in enumerate(stored.item_ids[:count]) if item_id}
            await asyncio.sleep(0)  # there may be thousands of responses with thousands of items
        remaining = _items_after(list(items if query.order == "asc" else reversed(items)), query.after)
        page = remaining[:limit]
        ends = {"first_id": page[0], "last_id": page[-1]} if page else {"first_id": None, "last_id": None}
        tail = msgspec.json.encode({**ends, "has_more": len(remaining) > limit})
        data = b",".join(stored.items[index] for stored, index in (items[item_id] for item_id in page))
        return HttpResponse(200, b'{"object":"list","data":[' + data + b"]," + tail[1:])

    async def _prepare(self, ctx: RequestContext) -> _ResponseJob:
        body = await self.generator.read_body(ctx)
        if isinstance(ctx.request, SocketRequest):
            body = ctx.request.read_event(body)
        backend = self.targets.find(ctx, body.get("model"))
        options = requests.read_storage_options(body)
        await self._import(ctx, options.previous_response_id)
        if isinstance(ctx.request, SocketRequest):
            ctx.request.previous_id = options.previous_response_id
        response_id = self.new_id(24)
        if self.is_native(backend):
            items, echo = response_items.raw_input_items(body), requests.echoed_fields(body)
            native_body = await self._native_body(ctx, backend, body, options.previous_response_id)
            gen_request = GenerationRequest(body=native_body, id=response_id, endpoint=self.ENDPOINT, echo=echo)
            # The clock is read once: a replay in the inspector has the same time of completion.
            known = {name: value for name, value in echo.items() if name in RESPONSE_DEFAULTS}
            gen_request.repairer_options = {"echo": known, "clock": cache(self.now)}
            return _ResponseJob(ctx, backend, options, gen_request, items, await self._local_history(ctx))
        fields.check_supported(body, ResponseRequest)
        history, items = await self._read_items(ctx, body, options.previous_response_id)
        translate = partial(
            requests.responses_to_chat,
            body,
            history,
            items,
            unknown_tools=self.settings.unknown_tools,
            allows_custom_tools=isinstance(backend, UpstreamBackend),
        )
        is_long = len(history) + len(items) > _ITEMS_AT_ONCE
        translation = await self.generator.run_in_thread(translate) if is_long else translate()
        echo = translation.echo
        if ignored := translation.tools.ignored:
            ctx.log_fields["ignored_tools"] = len(ignored)
        echo["store"] = options.store is True and self.store.is_enabled
        dialect = ResponsesFormat(
            echo,
            is_summary=translation.wants_summary,
            clock=cache(self.now),
            call_names=translation.tools.call_names(),
        )
        gen_request = GenerationRequest(
            body=translation.chat,
            id=response_id,
            dialect=dialect,
            field_names=translation.param_names,
            echo=echo,
            is_long=is_long,
        )
        gen_request.ignored_fields = ignored
        return _ResponseJob(ctx, backend, options, gen_request, items, history)

    async def _read_items(self, ctx: RequestContext, body: Json, previous: str | None) -> tuple[list[Json], list[Json]]:
        """Return the items of the conversation so far, and those of the request."""
        limit = self.settings.body_limit_bytes
        history = await self._history(ctx, previous)

        def lookup(item_id: str) -> bytes | None:
            return self.store.item(ctx.principal, item_id) or self.local_store.item(_local_id(ctx), item_id)

        items = await run_cooperatively(response_items.read_input_items(body, lookup, limit))
        if len(history) + len(items) > ITEMS_LIMIT:
            message = f"The conversation has more than {ITEMS_LIMIT} items."
            raise invalid_request(message, param="input", code="context_length_exceeded")
        return history, items

    async def _native_body(
        self, ctx: RequestContext, backend: LocalBackend | UpstreamBackend, body: Json, previous_id: str | None
    ) -> Json:
        """Return the body for an upstream with the same dialect.

        A previous response that the upstream may not have (we translated it, or another upstream generated it) is sent
        as input.

        Raises:
            ApiError: the body refers to upstream state of another key, or to unknown state.
        """
        await self._check_references(ctx, body)
        out = {name: value for name, value in body.items() if name != "background"}
        if previous_id is None:
            return response_items.replace_own_summaries(out)
        previous = self.store.get(ctx.principal, previous_id)
        is_local = self.local_store.get(_local_id(ctx), previous_id) is not None
        is_foreign = await self.owners.not_owned(ctx.principal, [previous_id])
        is_upstream_state = previous is None or (previous.is_native and len(backend.upstreams) == 1)
        if is_local or is_foreign or not is_upstream_state:
            history = await self._history(ctx, out.pop("previous_response_id"))
            out["input"] = history + response_items.raw_input_items(body)
        return response_items.replace_own_summaries(out)

    async def _check_references(self, ctx: RequestContext, body: Json) -> None:
        """Reject ids of upstream state that this key did not receive, with the error for ids that do not exist."""
        references = dict(state_references(body))
        foreign = await self.owners.not_owned(ctx.principal, references.values())
        for param, state_id in references.items():
            if state_id not in foreign:
                continue
            if param == "conversation":
                message = f"Conversation with id '{shorten_value(state_id)}' not found."
                raise ApiError(404, message, param=param, code="not_found")
            raise response_items.item_not_found(state_id, param)

    async def _history(self, ctx: RequestContext, previous: str | None) -> list[Json]:
        """Return the items of a conversation up to and including a response."""
        if previous is None:
            return []
        local = self.local_store.get(_local_id(ctx), previous)
        chain = self.store.chain(ctx.principal, previous) if local is None else [local]
        if chain is None:
            message = f"Previous response with id '{shorten_value(previous)}' not found. {self._retention_hint()}"
            raise invalid_request(message, param="previous_response_id", code="previous_response_not_found")
        limit = self.settings.body_limit_bytes
        if sum(stored.items_bytes for stored in chain) > limit:
            message = f"The conversation has more than {limit} bytes, the size limit of a request."
            raise invalid_request(message, param="previous_response_id", code="context_length_exceeded")
        items: list[Json] = []
        for stored in chain:
            items += await run_cooperatively(stored.decode_items())
            await asyncio.sleep(0)
        return items

    async def _local_history(self, ctx: RequestContext) -> list[Json]:
        """Return the conversation so far, if it is that of a WebSocket."""
        if not isinstance(ctx.request, SocketRequest) or ctx.request.previous_id is None:
            return []
        local = self.local_store.get(ctx.request.local_id, ctx.request.previous_id)
        return [] if local is None else await run_cooperatively(local.decode_items())

    def _forget_local(self, ctx: RequestContext) -> None:
        """Forget the response that a request of a WebSocket continues: it has failed, or replaces that response."""
        if isinstance(ctx.request, SocketRequest) and ctx.request.previous_id is not None:
            self.local_store.delete(ctx.request.local_id, ctx.request.previous_id)

    def _store_response(self, job: _ResponseJob, final: Json | None) -> None:
        """Store a complete response. `final` is None for an incomplete one."""
        if final is None:
            return
        if job.gen_request.is_same_dialect:
            self.owners.claim(job.ctx.principal, final)
        options = job.options
        suffix = job.gen_request.id.removeprefix(DIALECTS[self.ENDPOINT].id_prefix)
        items = [response_items.complete_item(item, f"{suffix}_in{index}") for index, item in enumerate(job.items)]
        if isinstance(job.ctx.request, SocketRequest):
            self._forget_local(job.ctx)
            if final.get("status") != "failed" and not (options.store and self.store.is_enabled):
                self.local_store.put(job.ctx.request.local_id, final, job.history + items)
        if not options.store:
            return
        self.store.put(
            job.ctx.principal,
            final,
            items,
            previous=options.previous_response_id,
            # Background responses have an id of ours.
            is_native=job.gen_request.is_same_dialect and not options.background,
            is_background=options.background is True,
            is_streamed=options.stream is True,
        )
        if self.shared is not None and self.store.is_enabled:
            self.shared.put(job.ctx.principal, final["id"])

    async def _import(self, ctx: RequestContext, response_id: str | None) -> None:
        """Read a response of another front end, with those before it, unless it is that of a WebSocket."""
        if self.shared is None or response_id is None or self.local_store.get(_local_id(ctx), response_id) is not None:
            return
        await self.shared.fetch_chain(ctx.principal, response_id, self.settings.body_limit_bytes)

    async def _start_background(self, job: _ResponseJob) -> HttpResponse | None:
        self.background.check_capacity()
        if not self.store.is_enabled:
            raise fields.unsupported("background", "is not supported: this server stores no responses.")
        if job.options.stream and not self.resume.registry.is_enabled:
            reason = "cannot be used together with 'stream': this server keeps no streams (--resume-time)."
            raise fields.unsupported("background", reason)
        envelope = Envelope(job.gen_request.id, int(self.now()), job.backend.name)
        response = response_object(envelope, job.gen_request.echo | {"background": True})
        self._store_response(job, response)
        if self.store.get(job.ctx.principal, job.gen_request.id) is None:
            limit = self.settings.stored_bytes
            raise fields.unsupported("background", f"needs more storage than the {limit} bytes of this server.")
        if job.options.stream:
            await self._stream_background(job, response)
            return None
        await self.background.start(job.ctx.principal, job.gen_request.id, self._run_background(job, response))
        return json_response(response | {"status": "queued"})

    async def _stream_background(self, job: _ResponseJob, response: Json) -> None:
        """Generate a response whose events are kept, and send them to the client, as long as it is connected."""
        ctx, response_id = job.ctx, job.gen_request.id
        stream = self.resume.open(ctx.principal, response_id, is_background=True)
        if stream is None:
            self.store.delete(ctx.principal, response_id)
            limit = self.settings.resume_streams
            message = f"This API key has {limit} streams in progress that can be resumed, the limit of this server."
            raise ApiError(429, message, param="background", code="rate_limit_exceeded", retry_after_s=10.0)
        job.ctx = msgspec.structs.replace(ctx, request=DetachedRequest(ctx.request, stream))
        own_members = {"id": response_id, "background": True}
        job.gen_request.repairer_options = {**job.gen_request.repairer_options, "members": own_members}
        work = run_detached(stream, self._run_background(job, response, stream), ctx.id)
        stream.task = await self.background.start(ctx.principal, response_id, work)
        await self.resume.follow(ctx, stream, _SEQUENCE_FORMAT._replace(has_ids=self.resume.is_requested(ctx)))

    async def _run_background(self, job: _ResponseJob, response: Json, stream: ResumableStream | None = None) -> None:
        """Generate a response, and store it however it ends."""
        cancelled = result = response | {"status": "cancelled"}

        def on_end(final: Json | None) -> None:
            nonlocal result
            if final is not None:  # the client has our id, not the upstream's
                result = final | {"id": response["id"], "background": True}

        job.gen_request.on_end = on_end
        try:
            await self.generator.generate(job.ctx, job.backend, job.gen_request)
        except Exception as raised:  # noqa: BLE001 - outermost layer of a task: logged, and reported to the client
            logged: dict[str, log.FieldValue] = {"request_id": job.ctx.id}
            if isinstance(raised, ApiError):
                error = raised
                log.event(logging.WARNING, _BACKGROUND_FAILED, logged | {"error": error.code or error.message})
            else:
                error = internal_error(job.ctx.id)
                log.event(logging.ERROR, _BACKGROUND_FAILED, logged, error=raised)
            result = response | {"status": "failed", "error": response_error_object(error.to_failure())}
            if stream is not None:
                stream.fail(error)
        finally:
            self._store_response(job, cancelled if stream is not None and stream.is_stopped else result)

    def _get_stored(self, ctx: RequestContext) -> StoredResponse:
        stored = self.store.get(ctx.principal, _response_id(ctx))
        if stored is None:
            message = f"Response with id '{shorten_value(_response_id(ctx))}' not found. {self._retention_hint()}"
            raise ApiError(404, message, code="not_found")
        return stored

    def _retention_hint(self) -> str:
        settings = self.settings
        if not self.store.is_enabled:
            return "This server stores no responses (--stored-responses)."
        limits = f"{settings.stored_responses} responses, up to {settings.stored_bytes} bytes in total"
        hint = f"This server stores the last {limits}, in memory"
        if self.shared is not None:
            return f"{hint}, and shares them with others for {settings.stored_s:g} seconds."
        if settings.workers > 1:
            return f"{hint}, separately in each of its {settings.workers} worker processes."
        return f"{hint}."


def _local_id(ctx: RequestContext) -> str:
    return ctx.request.local_id if isinstance(ctx.request, SocketRequest) else ""


def _response_id(ctx: RequestContext) -> str:
    return ctx.request.path.partition("/responses/")[2].partition("/")[0]


def _query_fields(ctx: RequestContext) -> dict[str, str]:
    try:
        query = parse_qs(ctx.request.query, max_num_fields=_QUERY_LIMIT)
    except ValueError:
        raise invalid_request(f"The query string has more than {_QUERY_LIMIT} fields.") from None
    return {name: values[-1] for name, values in query.items()}


def _parse_int(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < _QUERY_LIMIT else text


def _parse_bool(text: str | None) -> bool | str | None:
    return {"true": True, "false": False}.get(text, text) if text is not None else None


def _items_after(item_ids: list[str], after: str | None) -> list[str]:
    if after is None:
        return item_ids
    if after not in item_ids:
        raise fields.invalid("after", f"this response has no item '{shorten_value(after)}'.")
    return item_ids[item_ids.index(after) + 1 :]
