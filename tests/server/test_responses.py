"""The Responses API with a fake generator."""

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
from welldone.http.messages import HttpRequest, HttpResponse
from welldone.server.api.response_store import ResponseStore, UpstreamIdOwners
from welldone.server.api.responses import ResponsesApi
from welldone.server.context import RequestContext
from welldone.server.generation.pipelines import GenerationRequest
from welldone.server.generation.service import GenerationService
from welldone.server.generation.targets import BackendResolver
from welldone.server.observe.metrics import Metrics
from welldone.server.observe.workers import WorkerSync
from welldone.server.parts import BodyBudget, ServerParts
from welldone.server.resume.api import ResumeService

Body = dict[str, Any]
Answer = Callable[[GenerationRequest], Awaitable[None]]

NATIVE = SimpleNamespace(
    name="m", upstreams=[SimpleNamespace(settings=SimpleNamespace(speaks=("responses",)), name="u")]
)
PLAIN = SimpleNamespace(name="m", upstreams=[])


def alone() -> WorkerSync:
    return WorkerSync(None, Metrics([]).render)


def make_resume(settings: ServeSettings) -> ResumeService:
    parts = SimpleNamespace(
        settings=settings, metrics=Metrics([]), stream_store=None, worker_sync=alone(), body_budget=BodyBudget()
    )
    return ResumeService(cast("ServerParts", parts))


class Scene:
    """The paths, with what is behind them made up; `orders` has what was asked for."""

    def __init__(self, *, native: bool = False, **settings: Any) -> None:  # noqa: ANN401 - each its own
        self.settings = ServeSettings(**settings)
        self.backend = cast("LocalBackend | UpstreamBackend", NATIVE if native else PLAIN)
        self.requests: list[GenerationRequest] = []
        self.answer_with: Answer = self.complete
        self.charged: list[int] = []
        self.store = ResponseStore(limit=self.settings.stored_responses, limit_bytes=self.settings.stored_bytes)
        targets = cast("BackendResolver", SimpleNamespace(find=lambda context, name: self.backend))
        self.api = ResponsesApi(
            settings=self.settings,
            targets=targets,
            generator=cast("GenerationService", self),
            store=self.store,
            local_store=ResponseStore(limit=8, limit_bytes=2**20),
            owners=UpstreamIdOwners(alone(), is_strict=False),
            resume=make_resume(self.settings),
            charge_tokens=lambda context, tokens: self.charged.append(tokens),
            count_chat=self.count,
            now=lambda: 1_700_000_000.0,
        )

    # What the paths are given.

    async def read_body(self, context: RequestContext) -> Body:
        found: Body = context.log_fields["body"]
        return found

    async def generate(
        self, context: RequestContext, backend: LocalBackend | UpstreamBackend, gen_request: GenerationRequest
    ) -> HttpResponse | None:
        self.requests.append(gen_request)
        await self.answer_with(gen_request)
        return HttpResponse(200, b"{}")

    async def count(self, ctx: RequestContext, backend: LocalBackend | UpstreamBackend, chat: Body) -> int:
        return len(chat["messages"])

    async def complete(self, gen_request: GenerationRequest, text: str = "hello") -> None:
        number = len(self.requests)
        content = [{"type": "output_text", "text": text, "annotations": []}]
        message = {"id": f"msg_{number}", "type": "message", "role": "assistant", "content": content}
        assert gen_request.on_end is not None
        gen_request.on_end({"id": gen_request.id, "object": "response", "status": "completed", "output": [message]})

    # Requests of clients.

    def context(self, path: str = "", query: str = "", principal: str = "me", **body: Any) -> RequestContext:  # noqa: ANN401
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
        """Create a response; returns its id."""
        await self.api.create(self.context(principal=principal, **{"input": "hi", **body}))
        return self.requests[-1].id

    async def listed(self, name: str, query: str = "") -> Body:
        return decoded(await self.api.input_items(self.context(f"/{name}/input_items", query)))

    async def get(self, name: str, principal: str = "me") -> Body:
        return decoded(await self.api.get(self.context(f"/{name}", principal=principal)))


def decoded(reply: HttpResponse | None) -> Body:
    assert reply is not None
    assert reply.status == 200
    found: Body = msgspec.json.decode(reply.body)
    return found


async def rejection(work: Awaitable[object]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await work
    return caught.value


def test_a_response_becomes_a_chat_request() -> None:
    async def work() -> None:
        scene = Scene()
        name = await scene.create(instructions="be brief", max_output_tokens=5, stream=True)
        (gen_request,) = scene.requests
        assert name.startswith("resp_")
        assert gen_request.endpoint == "chat"
        assert gen_request.dialect is not None
        assert gen_request.field_names["messages"] == "input"
        assert gen_request.body == {
            "model": "m",
            "stream": True,
            "max_completion_tokens": 5,
            "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        }

    run(work())


def test_a_stored_response_is_available_to_its_own_key_only() -> None:
    async def work() -> None:
        scene = Scene()
        name = await scene.create()
        assert (await scene.get(name))["id"] == name
        error = await rejection(scene.get(name, principal="you"))
        assert (error.status, "not found" in error.message) == (404, True)

    run(work())


@pytest.mark.parametrize("body", [{"store": False}, {"store": False, "stream": True}])
def test_store_false_stores_nothing(body: Body) -> None:
    async def work() -> None:
        scene = Scene()
        name = await scene.create(**body)
        assert (await rejection(scene.get(name))).status == 404
        assert len(scene.store) == 0

    run(work())


def test_an_incomplete_response_is_not_stored() -> None:
    async def work() -> None:
        scene = Scene()

        async def leave(gen_request: GenerationRequest) -> None:
            assert gen_request.on_end is not None
            gen_request.on_end(None)

        scene.answer_with = leave
        await scene.create()
        assert len(scene.store) == 0

    run(work())


def test_a_response_continues_a_previous_one() -> None:
    async def work() -> None:
        scene = Scene()
        first = await scene.create(instructions="old")
        second = await scene.create(input="more", previous_response_id=first)
        await scene.create(input="and", previous_response_id=second)
        assert [message["content"] for message in scene.requests[-1].body["messages"]] == [
            *("hi", "hello", "more", "hello", "and")
        ]

    run(work())


@pytest.mark.parametrize(("workers", "expected"), [(1, "in memory."), (3, "each of its 3 worker processes")])
def test_an_unknown_previous_response_is_an_error(workers: int, expected: str) -> None:
    async def work() -> None:
        scene = Scene(workers=workers)
        error = await rejection(scene.create(previous_response_id="resp_gone"))
        assert (error.status, error.param) == (400, "previous_response_id")
        assert error.code == "previous_response_not_found"
        assert error.message.startswith("Previous response with id 'resp_gone' not found.")
        assert expected in error.message

    run(work())


def test_errors_mention_a_disabled_store() -> None:
    async def work() -> None:
        scene = Scene(stored_responses=0)
        name = await scene.create()
        assert "stores no responses" in (await rejection(scene.get(name))).message
        assert (await rejection(scene.create(background=True))).param == "background"

    run(work())


def test_a_conversation_larger_than_the_body_limit_is_rejected() -> None:
    async def work() -> None:
        scene = Scene(body_limit_bytes=2_000)
        first = await scene.create(input="x" * 1_500)
        second = await scene.create(input="more", previous_response_id=first)
        error = await rejection(scene.create(input="x", previous_response_id=second))
        assert (error.param, error.code) == ("previous_response_id", "context_length_exceeded")

    run(work())


def test_an_item_reference_is_resolved_from_the_store() -> None:
    async def work() -> None:
        scene = Scene()
        await scene.create()
        await scene.create(input=[{"type": "item_reference", "id": "msg_1"}, {"role": "user", "content": "q"}])
        assert scene.requests[-1].body["messages"][0] == {"role": "assistant", "content": "hello"}
        other = scene.create(principal="you", input=[{"type": "item_reference", "id": "msg_1"}])
        assert (await rejection(other)).code == "item_not_found"

    run(work())


CODEX_TOOLS = [{"type": "function", "name": "exec_command"}, {"type": "web_search", "external_web_access": False}]


@table(
    "setting, body, param",
    [
        ("refuse", {"tools": CODEX_TOOLS}, "tools[1].type"),
        # By default Codex offers a hosted tool, which it does not force.
        ("auto", {"tools": CODEX_TOOLS}, None),
        ("auto", {"tools": CODEX_TOOLS, "tool_choice": "auto"}, None),
        ("auto", {"tools": CODEX_TOOLS, "tool_choice": "required"}, None),
        ("auto", {"tools": CODEX_TOOLS[1:]}, None),
        ("auto", {"tools": CODEX_TOOLS[1:], "tool_choice": "required"}, "tool_choice"),
        ("auto", {"tools": CODEX_TOOLS, "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ("auto", {"tools": [*CODEX_TOOLS, {"type": "serch"}]}, "tools[2].type"),
        ("auto", {"tools": [{"type": "custom", "name": "sh"}]}, "tools[0].type"),
        ("ignore", {"tools": CODEX_TOOLS, "tool_choice": {"type": "web_search"}}, None),
        ("ignore", {"tools": [*CODEX_TOOLS[:1], {"type": "serch"}]}, None),
        (
            "auto",
            {"tools": CODEX_TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": CODEX_TOOLS}},
            None,
        ),
    ],
)
def test_tools_that_a_chat_has_not_are_left_out_or_refused(setting: str, body: Body, param: str | None) -> None:
    async def work() -> None:
        scene = Scene(unknown_tools=setting)
        context = scene.context(input="hi", **body)
        if param is not None:
            assert (await rejection(scene.api.create(context))).param == param
            return
        await scene.api.create(context)
        functions = [tool["type"] for tool in scene.requests[0].body.get("tools", [])]
        kept = [tool for tool in body["tools"] if tool["type"] == "function"]
        assert functions == [tool["type"] for tool in kept]
        index, hosted = len(kept), body["tools"][-1]["type"]
        assert scene.requests[0].ignored_fields == (f"tools[{index}].{hosted}",)
        assert context.log_fields["ignored_tools"] == 1

    run(work())


def test_a_type_that_no_header_can_have_is_not_named() -> None:
    async def work() -> None:
        scene = Scene(unknown_tools="ignore")
        await scene.create(tools=[{"type": "a\r\nX-Evil: 1"}, {"type": "x" * 100}])
        assert scene.requests[0].ignored_fields == ("tools[0]", "tools[1]")

    run(work())


def test_an_upstream_that_speaks_responses_gets_hosted_tools_unchanged() -> None:
    async def work() -> None:
        scene = Scene(native=True)
        await scene.create(tools=CODEX_TOOLS, tool_choice={"type": "web_search"})
        assert scene.requests[0].body["tools"] == CODEX_TOOLS
        assert scene.requests[0].ignored_fields == ()

    run(work())


def test_an_upstream_that_speaks_responses_gets_namespaces_unchanged() -> None:
    async def work() -> None:
        tools = [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}]
        native, translated = Scene(native=True), Scene()
        await native.create(tools=tools)
        assert native.requests[0].body["tools"] == tools
        await translated.create(tools=tools)
        assert [tool["function"]["name"] for tool in translated.requests[0].body["tools"]] == ["n__f"]

    run(work())


def test_a_response_can_be_deleted_once() -> None:
    async def work() -> None:
        scene = Scene()
        name = await scene.create()
        assert (await rejection(scene.api.delete(scene.context(f"/{name}", principal="you")))).status == 404
        deleted = decoded(await scene.api.delete(scene.context(f"/{name}")))
        assert deleted == {"id": name, "object": "response", "deleted": True}
        assert (await rejection(scene.api.delete(scene.context(f"/{name}")))).status == 404

    run(work())


def test_a_stored_response_is_not_streamed() -> None:
    async def work() -> None:
        scene = Scene()
        name = await scene.create()
        assert (await rejection(scene.api.get(scene.context(f"/{name}", "stream=true")))).param == "stream"
        assert decoded(await scene.api.get(scene.context(f"/{name}", "stream=false")))["id"] == name

    run(work())


def texts(page: Body) -> list[str]:
    return [item["content"][0]["text"] for item in page["data"]]


def test_input_items_include_the_history_newest_first() -> None:
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


def test_input_items_are_paginated() -> None:
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
def test_invalid_pagination_is_rejected(query: str, param: str | None) -> None:
    async def work() -> None:
        scene = Scene()
        error = await rejection(scene.listed(await scene.create(), query))
        assert (error.status, error.param) == (400, param)

    run(work())


def test_input_items_of_an_unknown_response_are_not_found() -> None:
    assert run(rejection(Scene().listed("resp_gone"))).status == 404


# In the background.


async def start_background(scene: Scene, **body: Any) -> tuple[str, asyncio.Event, asyncio.Event]:  # noqa: ANN401
    """Start a background response; returns its id, an event that lets it end, and one that is set at its end."""
    may_end, has_ended = asyncio.Event(), asyncio.Event()

    async def slowly(gen_request: GenerationRequest) -> None:
        try:
            await may_end.wait()
            await scene.complete(gen_request)
        finally:
            asyncio.get_running_loop().call_soon(has_ended.set)

    scene.answer_with = slowly
    response = decoded(await scene.api.create(scene.context(input="hi", background=True, **body)))
    assert (response["status"], response["background"], response["created_at"]) == ("queued", True, 1_700_000_000)
    return response["id"], may_end, has_ended


def test_a_background_response_is_generated_without_a_connection() -> None:
    async def work() -> None:
        scene = Scene()
        name, may_end, has_ended = await start_background(scene)
        assert (await scene.get(name))["status"] == "in_progress"
        may_end.set()
        await has_ended.wait()
        done = await scene.get(name)
        assert (done["status"], done["background"]) == ("completed", True)
        assert texts(await scene.listed(name)) == ["hi"]
        assert decoded(await scene.api.cancel(scene.context(f"/{name}/cancel")))["status"] == "completed"

    run(work())


def test_a_background_response_can_be_cancelled_twice() -> None:
    async def work() -> None:
        scene = Scene()
        name, _, has_ended = await start_background(scene)
        assert (await rejection(scene.api.cancel(scene.context(f"/{name}/cancel", principal="you")))).status == 404
        for _ in range(2):
            assert decoded(await scene.api.cancel(scene.context(f"/{name}/cancel")))["status"] == "cancelled"
        await has_ended.wait()

    run(work())


def test_deleting_a_background_response_cancels_it() -> None:
    async def work() -> None:
        scene = Scene()
        name, _, has_ended = await start_background(scene)
        await scene.api.delete(scene.context(f"/{name}"))
        await has_ended.wait()
        assert (await rejection(scene.get(name))).status == 404

    run(work())


def test_background_responses_are_cancelled_at_shutdown() -> None:
    async def work() -> None:
        scene = Scene()
        name, _, has_ended = await start_background(scene)
        await scene.api.background.close()
        await has_ended.wait()
        assert (await scene.get(name))["status"] == "cancelled"

    run(work())


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ApiError(429, "Wait.", code="queue_full"), "queue_full", "Wait."),
        (
            ZeroDivisionError("secret"),
            "internal_error",
            "Internal server error (request id req_1); see the server log.",
        ),
    ],
)
def test_a_failed_background_response_has_an_error(error: Exception, code: str, message: str) -> None:
    async def work() -> None:
        scene = Scene()
        name, may_end, has_ended = await start_background(scene)

        async def fail(gen_request: GenerationRequest, text: str = "") -> None:
            raise error

        scene.complete = fail  # type: ignore[method-assign]
        may_end.set()
        await has_ended.wait()
        failed = await scene.get(name)
        assert (failed["status"], failed["error"]) == ("failed", {"code": code, "message": message})

    run(work())


def test_background_responses_are_limited() -> None:
    async def work() -> None:
        scene = Scene()
        for _ in range(64):
            await start_background(scene)
        error = await rejection(scene.api.create(scene.context(input="hi", background=True)))
        assert (error.status, error.param) == (429, "background")
        await scene.api.background.close()
        await start_background(scene)
        await scene.api.background.close()

    run(work())


def test_a_background_response_must_fit_into_the_store() -> None:
    async def work() -> None:
        scene = Scene(stored_bytes=2**20)
        error = await rejection(scene.api.create(scene.context(input="x" * 2**20, background=True)))
        assert (error.status, error.param) == (400, "background")
        assert scene.requests == []

    run(work())


def test_a_synchronous_response_cannot_be_cancelled() -> None:
    async def work() -> None:
        scene = Scene()
        name = await scene.create()
        assert (await rejection(scene.api.cancel(scene.context(f"/{name}/cancel")))).status == 400
        assert (await rejection(scene.api.cancel(scene.context("/resp_gone/cancel")))).status == 404

    run(work())


# An upstream that speaks this dialect.


def test_an_upstream_with_the_same_dialect_gets_the_request_unchanged() -> None:
    async def work() -> None:
        scene = Scene(native=True)
        body: Body = {
            "input": [{"type": "web_search_call"}],
            "tools": [{"type": "web_search"}],
            "conversation": "c",
            "user": "u",
        }
        await scene.create(**body)
        (gen_request,) = scene.requests
        assert (gen_request.endpoint, gen_request.dialect) == ("responses", None)
        assert gen_request.body == {"model": "m", **body}
        assert gen_request.echo == {"tools": body["tools"], "user": "u"}

    run(work())


def test_previous_response_id_is_forwarded_unless_the_response_was_translated() -> None:
    async def work() -> None:
        scene = Scene()
        ours = await scene.create()
        scene.backend = cast("LocalBackend | UpstreamBackend", NATIVE)
        theirs = await scene.create(previous_response_id=ours)
        sent = scene.requests[-1].body
        assert "previous_response_id" not in sent
        assert [item["role"] for item in sent["input"]] == ["user", "assistant", "user"]
        for known in (theirs, "resp_unknown"):
            await scene.create(previous_response_id=known)
            assert scene.requests[-1].body == {"model": "m", "input": "hi", "previous_response_id": known}
        scene.backend = cast("LocalBackend | UpstreamBackend", PLAIN)
        await scene.create(previous_response_id=theirs)
        assert len(scene.requests[-1].body["messages"]) == 5

    run(work())


def test_history_is_sent_as_input_if_there_are_several_upstreams() -> None:
    async def work() -> None:
        scene = Scene(native=True)
        name = await scene.create()
        scene.backend = cast(
            "LocalBackend | UpstreamBackend", SimpleNamespace(name="m", upstreams=NATIVE.upstreams * 2)
        )
        await scene.create(previous_response_id=name)
        sent = scene.requests[-1].body
        assert "previous_response_id" not in sent
        assert [item["role"] for item in sent["input"]] == ["user", "assistant", "user"]

    run(work())


def test_a_background_response_of_an_upstream_keeps_our_id() -> None:
    async def work() -> None:
        scene = Scene(native=True)
        name, may_end, has_ended = await start_background(scene)

        async def other(gen_request: GenerationRequest, text: str = "") -> None:
            assert gen_request.on_end is not None
            gen_request.on_end({"id": "resp_theirs", "status": "completed", "output": []})

        scene.complete = other  # type: ignore[method-assign]
        may_end.set()
        await has_ended.wait()
        assert "background" not in scene.requests[0].body
        assert (await scene.get(name))["status"] == "completed"
        scene.answer_with = other
        await scene.create(previous_response_id=name)
        assert "previous_response_id" not in scene.requests[-1].body

    run(work())


def test_input_tokens_are_those_of_the_chat_request() -> None:
    async def work() -> Body:
        scene = Scene()
        return decoded(
            await scene.api.input_tokens(scene.context("/input_tokens", input="Hi", instructions="Be brief."))
        )

    assert run(work()) == {"object": "response.input_tokens", "input_tokens": 2}


@pytest.mark.parametrize(
    ("body", "param"), [({"messages": [1]}, "messages"), ({"prompt": {"id": "p"}}, "prompt"), ({}, "input")]
)
def test_a_renamed_field_is_reported_before_a_missing_one(body: Body, param: str) -> None:
    async def work() -> None:
        scene = Scene()
        await scene.api.create(scene.context(**body))

    with pytest.raises(ApiError) as caught:
        run(work())
    assert caught.value.param == param
