"""`/v1/responses` and all below it: responses are made, kept, asked for again, listed and forgotten."""

import asyncio
import logging
import secrets
from collections.abc import Callable
from functools import cache
from urllib.parse import parse_qs

import msgspec

from welldone.net.inbound import Reply
from welldone.net.turns import in_turns
from welldone.serve import log
from welldone.serve.app import Ask, json_reply
from welldone.serve.backends import Local, Remote
from welldone.serve.background import Background
from welldone.serve.counting import Count, count_native
from welldone.serve.errors import ApiError, invalid
from welldone.serve.generate import Generate, Order, speaks
from welldone.serve.owners import Owners, references
from welldone.serve.requests import fields
from welldone.serve.requests.foreign import without_routing
from welldone.serve.requests.items import ITEMS_LIMIT, given_items, in_full, no_such_item, read_items
from welldone.serve.requests.names import rename
from welldone.serve.requests.responses import Keeping, check_fields, read_keeping, repeated, translate
from welldone.serve.settings import ServeSettings
from welldone.serve.stored import Store, Stored
from welldone.serve.targets import Targets
from welldone.wire.dialects.responses.objects import error_object, response_object
from welldone.wire.dialects.responses.writer import Responses
from welldone.wire.events import Json
from welldone.wire.head import ID_PREFIX, Endpoint, Head

_PAGE, PAGE_LIMIT = 20, 100  # OpenAI's
_QUERY_LIMIT = 32  # fields of a query; there are four
ORDERS = ("asc", "desc")
_FAILED = "a response in the background failed"


class _Job(msgspec.Struct):
    """A response that is to be made."""

    ask: Ask
    backend: Local | Remote
    keeping: Keeping
    order: Order
    echo: Json
    items: list[Json]
    """Of the input."""
    is_native: bool


class ResponsesApi:
    """What answers on these paths. `now` is the time of day."""

    def __init__(
        self,
        settings: ServeSettings,
        targets: Targets,
        generate: Generate,
        store: Store,
        *,
        owners: Owners,
        count: Count,
        now: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._targets = targets
        self._generate = generate
        self._store = store
        self._owners = owners
        self._count = count
        self._now = now
        self._background = Background()

    async def close(self) -> None:
        """End what is made in the background."""
        await self._background.close()

    async def create(self, ask: Ask) -> Reply | None:
        """`POST /responses`."""
        body = await self._generate.body(ask)
        backend = self._targets.find(ask, body.get("model"))
        keeping = read_keeping(body)
        job = await self._job(ask, body, backend, keeping)
        if keeping.is_background:
            return await self._begin(job)
        job.order.on_end = lambda final: self._keep(job, final)
        try:
            return await self._generate.answer(ask, backend, job.order)
        finally:
            job.order.on_end = None  # it holds the job, and so itself: rings are left to the collector

    async def input_tokens(self, ask: Ask) -> Reply:
        """`POST /responses/input_tokens`: what usage would say of the same request."""
        body = await self._generate.body(ask)
        backend = self._targets.find(ask, body.get("model"))
        job = await self._job(ask, body, backend, read_keeping(body))
        if isinstance(backend, Remote) and job.is_native:
            return json_reply(await count_native(backend, Endpoint.RESPONSES, without_routing(job.order.body), {}))
        try:
            tokens = await self._count(backend, job.order.body)
        except ApiError as error:
            rename(error, job.order.names)
            raise
        return json_reply({"object": "response.input_tokens", "input_tokens": tokens})

    async def get(self, ask: Ask) -> Reply:
        """`GET /responses/{id}`."""
        if _query(ask).get("stream", "false") != "false":
            raise fields.unsupported("stream", "cannot be used here: a response is given as a whole.")
        return Reply(200, self._found(ask).response)

    async def delete(self, ask: Ask) -> Reply:
        """`DELETE /responses/{id}`."""
        name = _name(ask)
        self._found(ask)
        await self._background.cancel(ask.principal, name)
        self._store.delete(ask.principal, name)
        return json_reply({"id": name, "object": "response", "deleted": True})

    async def cancel(self, ask: Ask) -> Reply:
        """`POST /responses/{id}/cancel`. One that has ended is given as it is."""
        if not self._found(ask).is_background:
            raise invalid("Cannot cancel a synchronous response: only one with 'background' can be.")
        await self._background.cancel(ask.principal, _name(ask))
        return Reply(200, self._found(ask).response)

    async def input_items(self, ask: Ask) -> Reply:
        """`GET /responses/{id}/input_items`: all that was said to the model, also in responses before."""
        self._found(ask)
        query = _query(ask)
        limit = fields.integer({"limit": _number(query.get("limit"))}, "limit", 1, PAGE_LIMIT) or _PAGE
        is_down = (fields.choice(dict(query), "order", ORDERS) or "desc") == "desc"
        items: dict[str, tuple[Stored, int]] = {}
        chain = self._store.since(ask.principal, _name(ask))
        for stored in chain:
            places = stored.inputs if stored is chain[-1] else len(stored.items)
            items |= {name: (stored, place) for place, name in enumerate(stored.items[:places]) if name}
            await asyncio.sleep(0)  # there may be thousands, of thousands of items
        page = _after(list(reversed(items) if is_down else items), query.get("after"))
        shown = page[:limit]
        ends = {"first_id": shown[0], "last_id": shown[-1]} if shown else {"first_id": None, "last_id": None}
        tail = msgspec.json.encode({**ends, "has_more": len(page) > limit})
        data = b",".join(stored.item(place) for stored, place in (items[name] for name in shown))
        return Reply(200, b'{"object":"list","data":[' + data + b"]," + tail[1:])

    # How a response is made.

    async def _job(self, ask: Ask, body: Json, backend: Local | Remote, keeping: Keeping) -> _Job:
        name = ID_PREFIX[Endpoint.RESPONSES] + secrets.token_hex(24)
        if speaks(backend, Endpoint.RESPONSES):
            items, echo = given_items(body), repeated(body)
            native = await self._native(ask, backend, body, keeping)
            order = Order(body=native, id=name, endpoint=Endpoint.RESPONSES, echo=echo)
            return _Job(ask, backend, keeping, order, echo, items, is_native=True)
        check_fields(body)
        limit = self._settings.body_limit_bytes
        history = await self._history(ask, keeping.previous)
        items = await in_turns(read_items(body, lambda item: self._store.item(ask.principal, item), limit))
        if len(history) + len(items) > ITEMS_LIMIT:
            message = f"What was said up to this request has more than {ITEMS_LIMIT} items."
            raise invalid(message, param="input", code="context_length_exceeded")
        is_lenient = self._settings.unknown_tools == "ignore"
        takes_custom = isinstance(backend, Remote)
        said = translate(body, history, items, ignores_unknown=is_lenient, takes_custom=takes_custom)
        if ignored := len(body.get("tools") or ()) - len(said.echo["tools"]):
            ask.facts["ignored_tools"] = ignored
        said.echo["store"] = keeping.is_stored and self._store.is_on
        dialect = Responses(said.echo, is_summary=said.is_summary, clock=cache(self._now))
        order = Order(body=said.chat, id=name, dialect=dialect, names=said.names)
        return _Job(ask, backend, keeping, order, said.echo, items, is_native=False)

    async def _native(self, ask: Ask, backend: Local | Remote, body: Json, keeping: Keeping) -> Json:
        """The client's own request. A response that the upstream cannot know is sent as input: one that we translated,
        or perhaps another upstream's.

        Raises:
            ApiError: it names state of the upstream that another key received, or that nobody here knows of.
        """
        await self._check_references(ask, body)
        out = {name: value for name, value in body.items() if name != "background"}
        if keeping.previous is None:
            return out
        previous = self._store.get(ask.principal, keeping.previous)
        is_foreign = await self._owners.foreign(ask.principal, [keeping.previous])
        is_known = previous is None or (previous.is_native and len(backend.upstreams) == 1)
        if is_foreign or not is_known:
            out["input"] = await self._history(ask, out.pop("previous_response_id")) + given_items(body)
        return out

    async def _check_references(self, ask: Ask, body: Json) -> None:
        """Refuse ids of an upstream's state that this key did not receive, as ids that do not exist."""
        found = dict(references(body))
        foreign = await self._owners.foreign(ask.principal, found.values())
        for param, name in found.items():
            if name not in foreign:
                continue
            if param == "conversation":
                message = f"Conversation with id '{fields.shown(name)}' not found."
                raise ApiError(404, message, param=param, code="not_found")
            raise no_such_item(name, param)

    async def _history(self, ask: Ask, previous: str | None) -> list[Json]:
        """All that was said up to a response, and by it."""
        if previous is None:
            return []
        found = self._store.chain(ask.principal, previous)
        if found is None:
            message = f"Previous response with id '{fields.shown(previous)}' not found. {self._why_gone()}"
            raise invalid(message, param="previous_response_id", code="previous_response_not_found")
        limit = self._settings.body_limit_bytes
        if sum(stored.said_bytes for stored in found) > limit:
            message = f"What was said up to this response has more than {limit} bytes, the longest request here."
            raise invalid(message, param="previous_response_id", code="context_length_exceeded")
        items: list[Json] = []
        for stored in found:
            items += await in_turns(stored.all_items())
            await asyncio.sleep(0)
        return items

    def _keep(self, job: _Job, final: Json | None) -> None:
        """Keep a response that came to its end; of one that did not there is nothing to keep."""
        if final is None:
            return
        if job.is_native:
            self._owners.claim(job.ask.principal, final)
        if not job.keeping.is_stored:
            return
        keeping = job.keeping
        self._store.put(
            job.ask.principal,
            final,
            in_full(job.items, job.order.id),
            previous=keeping.previous,
            is_native=job.is_native and not keeping.is_background,  # whose name is ours, and not the upstream's
            is_background=keeping.is_background,
        )

    # What is made in the background.

    async def _begin(self, job: _Job) -> Reply:
        self._background.check_room()
        if not self._store.is_on:
            raise fields.unsupported("background", "is not offered: this server stores no responses.")
        head = Head(job.order.id, int(self._now()), job.backend.name)
        response = response_object(head, job.echo | {"background": True})
        self._keep(job, response)
        if self._store.get(job.ask.principal, job.order.id) is None:
            limit = self._settings.stored_bytes
            raise fields.unsupported("background", f"cannot be used for so much: this server stores {limit} bytes.")
        await self._background.start(job.ask.principal, job.order.id, self._make(job, response))
        return json_reply(response | {"status": "queued"})

    async def _make(self, job: _Job, response: Json) -> None:
        """Make it, and keep it however it ends."""
        end = response | {"status": "cancelled"}

        def told(final: Json | None) -> None:
            nonlocal end
            if final is not None:  # an upstream has its own name for it, and the client ours
                end = final | {"id": response["id"], "background": True}

        job.order.on_end = told
        try:
            await self._generate.answer(job.ask, job.backend, job.order)
        except ApiError as error:
            log.event(logging.WARNING, _FAILED, {"request_id": job.ask.id, "error": error.code or error.message})
            end = response | {"status": "failed", "error": error_object(error.failure())}
        except Exception as error:  # noqa: BLE001 - the edge of a task: it logs, and the client gets an honest error
            log.event(logging.ERROR, _FAILED, {"request_id": job.ask.id}, error=error)
            failure = ApiError(500, "The server failed. Its log says why.", code="internal_error").failure()
            end = response | {"status": "failed", "error": error_object(failure)}
        finally:
            self._keep(job, end)

    # What is there.

    def _found(self, ask: Ask) -> Stored:
        stored = self._store.get(ask.principal, _name(ask))
        if stored is None:
            message = f"Response with id '{fields.shown(_name(ask))}' not found. {self._why_gone()}"
            raise ApiError(404, message, code="not_found")
        return stored

    def _why_gone(self) -> str:
        settings = self._settings
        if not self._store.is_on:
            return "This server stores no responses (--stored-responses)."
        most = f"{settings.stored_responses} responses, of up to {settings.stored_bytes} bytes in all"
        why = f"This server keeps the last {most}, in memory"
        if settings.workers > 1:
            return f"{why}, and each of its {settings.workers} processes its own."
        return f"{why}."


def _name(ask: Ask) -> str:
    return ask.call.path.partition("/responses/")[2].partition("/")[0]


def _query(ask: Ask) -> dict[str, str]:
    try:
        found = parse_qs(ask.call.query, max_num_fields=_QUERY_LIMIT)
    except ValueError:
        raise invalid(f"The query of this address has more than {_QUERY_LIMIT} fields.") from None
    return {name: values[-1] for name, values in found.items()}


def _number(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < _QUERY_LIMIT else text


def _after(items: list[str], name: str | None) -> list[str]:
    """Those that follow an item."""
    if name is None:
        return items
    if name not in items:
        message = f"Invalid 'after': there is no item '{fields.shown(name)}' here."
        raise invalid(message, param="after", code="invalid_value")
    return items[items.index(name) + 1 :]
