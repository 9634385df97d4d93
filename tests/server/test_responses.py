"""All paths of /v1/responses, in front of answers that a test makes up."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from tests.http.aio import run
from tests.table import table
from welldone.config.server import ServeSettings
from welldone.gateway.backends import LocalBackend, UpstreamBackend
from welldone.gateway.errors import ApiError
from welldone.http.server import HttpRequest, HttpResponse
from welldone.server.api.response_owners import UpstreamIdOwners
from welldone.server.api.response_store import ResponseStore
from welldone.server.api.responses import ResponsesApi
from welldone.server.app import RequestContext
from welldone.server.generation.service import GenerationRequest, ResponseGenerator
from welldone.server.generation.targets import BackendResolver

Body = dict[str, Any]
Answer = Callable[[GenerationRequest], Awaitable[None]]

NATIVE = SimpleNamespace(
    name="m", upstreams=[SimpleNamespace(settings=SimpleNamespace(speaks=("responses",)), name="u")]
)
PLAIN = SimpleNamespace(name="m", upstreams=[])


class Scene:
    """The paths, with what is behind them made up; `orders` has what was asked for."""

    def __init__(self, *, native: bool = False, **settings: Any) -> None:  # noqa: ANN401 - each its own
        self.settings = ServeSettings(**settings)
        self.backend = cast("LocalBackend | UpstreamBackend", NATIVE if native else PLAIN)
        self.orders: list[GenerationRequest] = []
        self.answer_with: Answer = self.complete
        self.store = ResponseStore(limit=self.settings.stored_responses, limit_bytes=self.settings.stored_bytes)
        targets = cast("BackendResolver", SimpleNamespace(find=lambda ask, name: self.backend))
        self.api = ResponsesApi(
            self.settings,
            targets,
            cast("ResponseGenerator", self),
            self.store,
            owners=UpstreamIdOwners(is_strict=False),
            count_tokens=self.count,
            now=lambda: 1_700_000_000.0,
        )

    # What the paths are given.

    async def read_body(self, ask: RequestContext) -> Body:
        found: Body = ask.log_fields["body"]
        return found

    async def generate(
        self, ask: RequestContext, backend: LocalBackend | UpstreamBackend, order: GenerationRequest
    ) -> HttpResponse | None:
        self.orders.append(order)
        await self.answer_with(order)
        return HttpResponse(200, b"{}")

    async def count(self, backend: LocalBackend | UpstreamBackend, chat: Body) -> int:
        return len(chat["messages"])

    async def complete(self, order: GenerationRequest, text: str = "hello") -> None:
        number = len(self.orders)
        content = [{"type": "output_text", "text": text, "annotations": []}]
        message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "content": content}
        assert order.on_end is not None
        order.on_end({"id": order.id, "object": "response", "status": "completed", "output": [message]})

    # What clients do.

    def ask(self, path: str = "", query: str = "", principal: str = "me", **body: Any) -> RequestContext:  # noqa: ANN401
        call = SimpleNamespace(path=f"/v1/responses{path}", query=query, headers={}, stream=None)
        return RequestContext(
            cast("HttpRequest", call),
            "req_1",
            0.0,
            {},
            principal=principal,
            log_fields={"body": {"model": "m", **body}},
        )

    async def create(self, principal: str = "me", **body: Any) -> str:  # noqa: ANN401 - each field its own
        """Have one made; its id."""
        await self.api.create(self.ask(principal=principal, **{"input": "hi", **body}))
        return self.orders[-1].id

    async def listed(self, name: str, query: str = "") -> Body:
        return said(await self.api.input_items(self.ask(f"/{name}/input_items", query)))

    async def get(self, name: str, principal: str = "me") -> Body:
        return said(await self.api.get(self.ask(f"/{name}", principal=principal)))


def said(reply: HttpResponse | None) -> Body:
    assert reply is not None
    assert reply.status == 200
    found: Body = msgspec.json.decode(reply.body)
    return found


async def refused(work: Awaitable[object]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await work
    return caught.value


def test_a_response_is_asked_for_in_chat() -> None:
    async def work() -> None:
        scene = Scene()
        name = await scene.create(instructions="be brief", max_output_tokens=5, stream=True)
        (order,) = scene.orders
        assert name.startswith("resp_")
        assert order.endpoint == "chat"
        assert order.dialect is not None
        assert order.field_names["messages"] == "input"
        assert order.body == {
            "model": "m",
            "stream": True,
            "max_completion_tokens": 5,
            "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        }

    run(work())


def test_a_response_can_be_asked_for_again_by_its_own_key_only() -> None:
    async def work() -> None:
        scene = Scene()
        name = await scene.create()
        assert (await scene.get(name))["id"] == name
        error = await refused(scene.get(name, principal="you"))
        assert (error.status, "not found" in error.message) == (404, True)

    run(work())


@pytest.mark.parametrize("body", [{"store": False}, {"store": False, "stream": True}])
def test_what_is_not_to_be_stored_is_not(body: Body) -> None:
    async def work() -> None:
        scene = Scene()
        name = await scene.create(**body)
        assert (await refused(scene.get(name))).status == 404
        assert len(scene.store) == 0

    run(work())


def test_of_an_answer_without_an_end_nothing_is_kept() -> None:
    async def work() -> None:
        scene = Scene()

        async def leave(order: GenerationRequest) -> None:
            assert order.on_end is not None
            order.on_end(None)

        scene.answer_with = leave
        await scene.create()
        assert len(scene.store) == 0

    run(work())


def test_a_response_goes_on_from_another() -> None:
    async def work() -> None:
        scene = Scene()
        first = await scene.create(instructions="old")
        second = await scene.create(input="more", previous_response_id=first)
        await scene.create(input="and", previous_response_id=second)
        assert [message["content"] for message in scene.orders[-1].body["messages"]] == [
            *("hi", "hello", "more", "hello", "and")
        ]

    run(work())


@pytest.mark.parametrize(("workers", "words"), [(1, "in memory."), (3, "each of its 3 processes")])
def test_a_previous_response_that_is_gone_is_a_clear_error(workers: int, words: str) -> None:
    async def work() -> None:
        scene = Scene(workers=workers)
        error = await refused(scene.create(previous_response_id="resp_gone"))
        assert (error.status, error.param) == (400, "previous_response_id")
        assert error.code == "previous_response_not_found"
        assert error.message.startswith("Previous response with id 'resp_gone' not found.")
        assert words in error.message

    run(work())


def test_without_a_store_nothing_is_kept_and_that_is_said() -> None:
    async def work() -> None:
        scene = Scene(stored_responses=0)
        name = await scene.create()
        assert "stores no responses" in (await refused(scene.get(name))).message
        assert (await refused(scene.create(background=True))).param == "background"

    run(work())


def test_a_conversation_longer_than_a_request_may_be_is_refused() -> None:
    async def work() -> None:
        scene = Scene(body_limit_bytes=2_000)
        first = await scene.create(input="x" * 1_500)
        second = await scene.create(input="more", previous_response_id=first)
        error = await refused(scene.create(input="x", previous_response_id=second))
        assert (error.param, error.code) == ("previous_response_id", "context_length_exceeded")

    run(work())


def test_an_item_is_found_by_its_name_in_what_is_stored() -> None:
    async def work() -> None:
        scene = Scene()
        await scene.create()
        await scene.create(input=[{"type": "item_reference", "id": "msg_1"}, {"role": "user", "content": "q"}])
        assert scene.orders[-1].body["messages"][0] == {"role": "assistant", "content": "hello"}
        other = scene.create(principal="you", input=[{"type": "item_reference", "id": "msg_1"}])
        assert (await refused(other)).code == "item_not_found"

    run(work())


@pytest.mark.parametrize(("way", "is_refused"), [("refuse", True), ("ignore", False)])
def test_tools_that_are_no_functions_are_refused_or_ignored_as_set(way: str, is_refused: bool) -> None:
    async def work() -> None:
        scene = Scene(unknown_tools=way)
        tools = [{"type": "web_search"}]
        if is_refused:
            assert (await refused(scene.create(tools=tools))).param == "tools[0].type"
        else:
            await scene.create(tools=tools)
            assert "tools" not in scene.orders[0].body

    run(work())


def test_a_response_can_be_deleted_once() -> None:
    async def work() -> None:
        scene = Scene()
        name = await scene.create()
        assert (await refused(scene.api.delete(scene.ask(f"/{name}", principal="you")))).status == 404
        deleted = said(await scene.api.delete(scene.ask(f"/{name}")))
        assert deleted == {"id": name, "object": "response", "deleted": True}
        assert (await refused(scene.api.delete(scene.ask(f"/{name}")))).status == 404

    run(work())


def test_a_stored_response_is_not_streamed() -> None:
    async def work() -> None:
        scene = Scene()
        name = await scene.create()
        assert (await refused(scene.api.get(scene.ask(f"/{name}", "stream=true")))).param == "stream"
        assert said(await scene.api.get(scene.ask(f"/{name}", "stream=false")))["id"] == name

    run(work())


def texts(page: Body) -> list[str]:
    return [item["content"][0]["text"] for item in page["data"]]


def test_the_items_of_an_input_are_listed_the_last_first_with_all_that_went_before() -> None:
    async def work() -> None:
        scene = Scene()
        first = await scene.create(input="one")
        second = await scene.create(input="two", previous_response_id=first)
        page = await scene.listed(second)
        assert texts(page) == ["two", "hello", "one"]
        assert (page["object"], page["has_more"]) == ("list", False)
        assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
        assert texts(await scene.listed(second, "order=asc")) == ["one", "hello", "two"]
        assert texts(await scene.listed(first)) == ["one"]

    run(work())


def test_the_items_of_an_input_are_listed_page_by_page() -> None:
    async def work() -> None:
        scene = Scene()
        name = await scene.create(input=[{"role": "user", "content": str(number)} for number in range(25)])
        first = await scene.listed(name, "order=asc")
        assert texts(first) == [str(number) for number in range(20)]
        assert first["has_more"]
        second = await scene.listed(name, f"order=asc&after={first['last_id']}")
        assert (texts(second), second["has_more"]) == (["20", "21", "22", "23", "24"], False)
        last = await scene.listed(name, f"order=asc&after={second['last_id']}&limit=1")
        assert (last["data"], last["first_id"], last["last_id"]) == ([], None, None)

    run(work())


@table(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=many", "limit"),
        ("order=up", "order"),
        ("after=msg_unknown", "after"),
        ("&".join(f"a{number}=1" for number in range(99)), None),
    ],
)
def test_a_page_that_cannot_be_is_refused(query: str, param: str | None) -> None:
    async def work() -> None:
        scene = Scene()
        error = await refused(scene.listed(await scene.create(), query))
        assert (error.status, error.param) == (400, param)

    run(work())


def test_the_items_of_an_unknown_response_are_not_found() -> None:
    assert run(refused(Scene().listed("resp_gone"))).status == 404


# In the background.


async def begun(scene: Scene, **body: Any) -> tuple[str, asyncio.Event, asyncio.Event]:  # noqa: ANN401
    """One that is being made; its name, what lets it end, and what tells that it has ended."""
    may_end, has_ended = asyncio.Event(), asyncio.Event()

    async def slowly(order: GenerationRequest) -> None:
        try:
            await may_end.wait()
            await scene.complete(order)
        finally:
            asyncio.get_running_loop().call_soon(has_ended.set)

    scene.answer_with = slowly
    response = said(await scene.api.create(scene.ask(input="hi", background=True, **body)))
    assert (response["status"], response["background"], response["created_at"]) == ("queued", True, 1_700_000_000)
    return response["id"], may_end, has_ended


def test_a_response_in_the_background_is_made_while_nobody_waits() -> None:
    async def work() -> None:
        scene = Scene()
        name, may_end, has_ended = await begun(scene)
        assert (await scene.get(name))["status"] == "in_progress"
        may_end.set()
        await has_ended.wait()
        done = await scene.get(name)
        assert (done["status"], done["background"]) == ("completed", True)
        assert texts(await scene.listed(name)) == ["hi"]
        assert said(await scene.api.cancel(scene.ask(f"/{name}/cancel")))["status"] == "completed"

    run(work())


def test_a_response_in_the_background_can_be_cancelled_and_again() -> None:
    async def work() -> None:
        scene = Scene()
        name, _, has_ended = await begun(scene)
        assert (await refused(scene.api.cancel(scene.ask(f"/{name}/cancel", principal="you")))).status == 404
        for _ in range(2):
            assert said(await scene.api.cancel(scene.ask(f"/{name}/cancel")))["status"] == "cancelled"
        await has_ended.wait()

    run(work())


def test_a_response_in_the_background_that_is_deleted_ends_and_is_gone() -> None:
    async def work() -> None:
        scene = Scene()
        name, _, has_ended = await begun(scene)
        await scene.api.delete(scene.ask(f"/{name}"))
        await has_ended.wait()
        assert (await refused(scene.get(name))).status == 404

    run(work())


def test_what_is_made_in_the_background_ends_with_the_server() -> None:
    async def work() -> None:
        scene = Scene()
        name, _, has_ended = await begun(scene)
        await scene.api.close()
        await has_ended.wait()
        assert (await scene.get(name))["status"] == "cancelled"

    run(work())


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ApiError(429, "Wait.", code="queue_full"), "queue_full", "Wait."),
        (ZeroDivisionError("secret"), "internal_error", "The server failed. Its log says why."),
    ],
)
def test_a_response_in_the_background_that_fails_says_why(error: Exception, code: str, message: str) -> None:
    async def work() -> None:
        scene = Scene()
        name, may_end, has_ended = await begun(scene)

        async def fail(order: GenerationRequest, text: str = "") -> None:
            raise error

        scene.complete = fail  # type: ignore[method-assign]
        may_end.set()
        await has_ended.wait()
        failed = await scene.get(name)
        assert (failed["status"], failed["error"]) == ("failed", {"code": code, "message": message})

    run(work())


def test_only_so_many_are_made_in_the_background() -> None:
    async def work() -> None:
        scene = Scene()
        for _ in range(64):
            await begun(scene)
        error = await refused(scene.api.create(scene.ask(input="hi", background=True)))
        assert (error.status, error.param) == (429, "background")
        await scene.api.close()
        await begun(scene)
        await scene.api.close()

    run(work())


def test_what_is_too_large_to_be_kept_is_not_made_in_the_background() -> None:
    async def work() -> None:
        scene = Scene(stored_bytes=2**20)
        error = await refused(scene.api.create(scene.ask(input="x" * 2**20, background=True)))
        assert (error.status, error.param) == (400, "background")
        assert scene.orders == []

    run(work())


def test_a_response_that_was_waited_for_cannot_be_cancelled() -> None:
    async def work() -> None:
        scene = Scene()
        name = await scene.create()
        assert (await refused(scene.api.cancel(scene.ask(f"/{name}/cancel")))).status == 400
        assert (await refused(scene.api.cancel(scene.ask("/resp_gone/cancel")))).status == 404

    run(work())


# An upstream that speaks this dialect.


def test_an_upstream_that_speaks_this_dialect_gets_the_clients_own_words() -> None:
    async def work() -> None:
        scene = Scene(native=True)
        body: Body = {
            "input": [{"type": "web_search_call"}],
            "tools": [{"type": "web_search"}],
            "conversation": "c",
            "user": "u",
        }
        await scene.create(**body)
        (order,) = scene.orders
        assert (order.endpoint, order.dialect) == ("responses", None)
        assert order.body == {"model": "m", **body}
        assert order.echo == {"tools": body["tools"], "user": "u"}

    run(work())


def test_a_previous_response_is_the_upstreams_business_unless_it_was_translated() -> None:
    async def work() -> None:
        scene = Scene()
        ours = await scene.create()
        scene.backend = cast("LocalBackend | UpstreamBackend", NATIVE)
        theirs = await scene.create(previous_response_id=ours)
        told = scene.orders[-1].body
        assert "previous_response_id" not in told
        assert [item["role"] for item in told["input"]] == ["user", "assistant", "user"]
        for known in (theirs, "resp_unknown"):
            await scene.create(previous_response_id=known)
            assert scene.orders[-1].body == {"model": "m", "input": "hi", "previous_response_id": known}
        scene.backend = cast("LocalBackend | UpstreamBackend", PLAIN)
        await scene.create(previous_response_id=theirs)
        assert len(scene.orders[-1].body["messages"]) == 5

    run(work())


def test_where_several_upstreams_may_answer_a_previous_response_is_told_anew() -> None:
    async def work() -> None:
        scene = Scene(native=True)
        name = await scene.create()
        scene.backend = cast(
            "LocalBackend | UpstreamBackend", SimpleNamespace(name="m", upstreams=NATIVE.upstreams * 2)
        )
        await scene.create(previous_response_id=name)
        told = scene.orders[-1].body
        assert "previous_response_id" not in told
        assert [item["role"] for item in told["input"]] == ["user", "assistant", "user"]

    run(work())


def test_in_the_background_an_upstreams_response_has_the_name_that_the_client_knows() -> None:
    async def work() -> None:
        scene = Scene(native=True)
        name, may_end, has_ended = await begun(scene)

        async def other(order: GenerationRequest, text: str = "") -> None:
            assert order.on_end is not None
            order.on_end({"id": "resp_theirs", "status": "completed", "output": []})

        scene.complete = other  # type: ignore[method-assign]
        may_end.set()
        await has_ended.wait()
        assert "background" not in scene.orders[0].body
        assert (await scene.get(name))["status"] == "completed"
        scene.answer_with = other
        await scene.create(previous_response_id=name)
        assert "previous_response_id" not in scene.orders[-1].body

    run(work())


def test_the_tokens_of_an_input_are_counted_as_those_of_its_chat() -> None:
    async def work() -> Body:
        scene = Scene()
        return said(await scene.api.input_tokens(scene.ask("/input_tokens", input="Hi", instructions="Be brief.")))

    assert run(work()) == {"object": "response.input_tokens", "input_tokens": 2}


@pytest.mark.parametrize(
    ("body", "param"), [({"messages": [1]}, "messages"), ({"prompt": {"id": "p"}}, "prompt"), ({}, "input")]
)
def test_what_has_another_name_here_is_said_before_what_is_missing(body: Body, param: str) -> None:
    async def work() -> None:
        scene = Scene()
        await scene.api.create(scene.ask(**body))

    with pytest.raises(ApiError) as caught:
        run(work())
    assert caught.value.param == param
