"""Upstream state belongs to the key that received its id."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.http.aio import run
from tests.server.running_gateway import Gateway, gateway
from tests.server.test_same_dialect import COUNTS, DETAILS, TEXT, message, numbered, response, response_events
from tests.table import table
from welldone.config.server import KeySettings
from welldone.http.shared_memory import SharedNumbers, WorkerLoads
from welldone.mock.script import MockReply, json_reply
from welldone.server.api.response_store import UpstreamIdOwners, state_references
from welldone.server.observe.metrics import Metrics
from welldone.server.observe.workers import Worker, WorkerSync

Json = dict[str, Any]
ALICE, BOB = "alice-key-0123456789", "bob-key-01234567890"
KEYS = (KeySettings(name="alice", key=ALICE), KeySettings(name="bob", key=BOB))
PATH = "/v1/responses"
REQUEST: Json = {"model": "m", "input": "Hi"}


def answer(name: str, item: str) -> MockReply:
    """Return a whole reply with these ids, in a conversation."""
    output = {**message("completed", TEXT), "id": item}
    made = response("completed", output, usage={**COUNTS, **DETAILS}, conversation={"id": f"conv_{name}"})
    return json_reply({**made, "id": name})


def by(key: str) -> str:
    return f"Authorization: Bearer {key}\r\n"


@asynccontextmanager
async def responses_gateway(folder: Path, *replies: MockReply, **more: Any) -> AsyncIterator[Gateway]:  # noqa: ANN401 - each its own
    config = {"keys": KEYS} if "config" not in more else more.pop("config")
    async with gateway(folder, replies, each={"speaks": ("responses",)}, config=config, **more) as serving:
        yield serving


def sent(serving: Gateway) -> Json:
    """Return the body of the last upstream request."""
    found: Json = json.loads([one for one in serving.upstreams[0].requests if one.method == "POST"][-1].body)
    return found


NAMED: list[Json] = [
    {"previous_response_id": "resp_1"},
    {"conversation": "conv_resp_1"},
    {"conversation": {"id": "conv_resp_1"}},
    {"input": [{"type": "item_reference", "id": "msg_a"}]},
    {"input": [{"id": "msg_a"}]},
    {"input": [{"type": None, "id": "msg_a", "x": 1}]},
    {"input": [{"role": "user", "content": "Hi"}, {"type": "item_reference", "role": "user", "id": "msg_a"}]},
]


@table("named", NAMED, ids=json.dumps)
@table("path", [PATH, f"{PATH}/input_tokens"])
@table("is_stored", [True, False], ids=["stored", "not stored here"])
def test_a_key_cannot_refer_to_state_of_another(tmp_path: Path, named: Json, path: str, is_stored: bool) -> None:
    async def work() -> None:
        limit = 4096 if is_stored else 0
        async with responses_gateway(tmp_path, answer("resp_1", "msg_a"), stored_responses=limit) as serving:
            assert (await serving.post(REQUEST, PATH, by(ALICE))).status == 200
            theirs = await serving.post({**REQUEST, **named}, path, by(BOB))
            assert serving.post_counts == [1]
            # It is refused as an id that does not exist.
            unknown = json.loads(json.dumps(named).replace("resp_1", "resp_2").replace("msg_a", "msg_b"))
            nobodys = await serving.post({**REQUEST, **unknown}, path, by(BOB))
            assert (theirs.status, theirs.error["code"]) == (nobodys.status, nobodys.error["code"])
            assert theirs.status in (400, 404)
            expected = theirs.error["message"].replace("resp_1", "resp_2").replace("msg_a", "msg_b")
            assert expected == nobodys.error["message"]
            assert serving.post_counts == [1]
            assert (await serving.post({**REQUEST, **named}, PATH, by(ALICE))).status == 200
            assert {name: sent(serving)[name] for name in named} == named

    run(work())


@pytest.mark.parametrize("what", ["", "/input_items"])
def test_a_key_cannot_get_responses_of_another(tmp_path: Path, what: str) -> None:
    async def work() -> None:
        async with responses_gateway(tmp_path, answer("resp_1", "msg_a")) as serving:
            await serving.post(REQUEST, PATH, by(ALICE))
            assert (await serving.get(f"{PATH}/resp_1{what}", by(BOB))).status == 404
            assert (await serving.get(f"{PATH}/resp_1", by(BOB), method="DELETE")).status == 404
            assert (await serving.post({}, f"{PATH}/resp_1/cancel", by(BOB))).status == 404
            assert (await serving.get(f"{PATH}/resp_1{what}", by(ALICE))).status == 200

    run(work())


def test_ids_of_a_stream_belong_to_the_key_that_received_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with responses_gateway(tmp_path, MockReply(numbered(*response_events()))) as serving:
            assert (await serving.post({**REQUEST, "stream": True}, PATH, by(ALICE))).status == 200
            named = {**REQUEST, "input": [{"type": "item_reference", "id": "ws_1"}]}
            assert (await serving.post(named, PATH, by(BOB))).status == 400
            assert (await serving.post(named, PATH, by(ALICE))).status == 200

    run(work())


def test_an_id_that_two_keys_received_is_resolved_from_the_store_of_each(tmp_path: Path) -> None:
    async def work() -> None:
        async with responses_gateway(tmp_path, answer("resp_1", "msg_a")) as serving:
            await serving.post({**REQUEST, "input": "of alice"}, PATH, by(ALICE))
            await serving.post({**REQUEST, "input": "of bob"}, PATH, by(BOB))
            again = {**REQUEST, "input": "more", "previous_response_id": "resp_1"}
            assert (await serving.post(again, PATH, by(ALICE))).status == 200
            assert "previous_response_id" not in sent(serving)
            assert "of alice" in json.dumps(sent(serving))
            assert "of bob" not in json.dumps(sent(serving))

    run(work())


@table("keys", [(), (ALICE,)], ids=["no key", "one key"])
@table("named", NAMED[:4], ids=json.dumps)
def test_unknown_ids_are_forwarded_with_a_single_key(tmp_path: Path, keys: tuple[str, ...], named: Json) -> None:
    async def work() -> None:
        async with responses_gateway(tmp_path, answer("resp_2", "msg_b"), config={}, keys=keys) as serving:
            assert (await serving.post({**REQUEST, **named}, PATH, by(ALICE))).status == 200
            assert {name: sent(serving)[name] for name in named} == named

    run(work())


def test_stored_ids_are_limited_and_the_oldest_are_rejected() -> None:
    async def work() -> None:
        owners = UpstreamIdOwners(WorkerSync(None, Metrics([]).render), is_strict=True, limit=3)
        for number in range(5):
            owners.claim("a", {"id": f"resp_{number}", "output": [{"id": "x" * 1000}, {"id": 5}, "odd"]})
        assert len(owners) == 3
        assert await owners.not_owned("a", ["resp_1", "resp_4"]) == {"resp_1"}
        assert await owners.not_owned("b", ["resp_4"]) == {"resp_4"}

    run(work())


def test_workers_query_each_other(short_path: Path) -> None:
    async def work() -> None:
        numbers = SharedNumbers(1)
        siblings = [
            WorkerSync(
                Worker(
                    number=number,
                    count=2,
                    sockets=(),
                    loads=WorkerLoads(4),
                    bucket_storage=numbers,
                    folder=short_path,
                    on_ready=lambda: None,
                ),
                lambda: ("", b""),
            )
            for number in (1, 2)
        ]
        one, other = (UpstreamIdOwners(sibling, is_strict=True) for sibling in siblings)
        for sibling in siblings:
            await sibling.start()
        one.claim("a", {"id": "resp_1", "output": [{"id": "msg_1"}]})
        assert await other.not_owned("a", ["resp_1", "msg_1", "resp_2"]) == {"resp_2"}
        assert await other.not_owned("b", ["resp_1"]) == {"resp_1"}
        for sibling in siblings:
            await sibling.stop()
        numbers.close()

    run(work())


@pytest.mark.parametrize(
    "body",
    [{}, {"conversation": None, "input": "x"}, {"conversation": {"id": 5}, "input": [5, {"id": 5}, {"role": "u"}]}],
)
def test_bodies_without_references_have_none(body: Json) -> None:
    assert dict(state_references(body)) == {}
