"""Inspector API: lint of uploaded captures, rule pages, and captures of other workers."""

import asyncio
import base64
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from tests.http.aio import run
from tests.server import test_same_dialect as native
from tests.server.running_gateway import Gateway, gateway
from tests.server.running_server import DONE, HELLO, ROLE, STOP, USAGE, RecordedReply
from tests.table import table
from welldone.core.catalog import RULES
from welldone.gateway.errors import ApiError
from welldone.http.messages import HttpRequest
from welldone.http.redaction import SecretRedactor
from welldone.mock.script import CHUNK_TEMPLATE, MockReply
from welldone.rules.judge import judge
from welldone.rules.trace import Trace
from welldone.server.context import RequestContext
from welldone.server.inspector import api, lint
from welldone.server.inspector.api import InspectorApi
from welldone.server.inspector.captures import CaptureStore
from welldone.server.inspector.lint import lint_capture
from welldone.server.observe.workers import WorkerSync

Json = dict[str, Any]

GOOD = MockReply((ROLE, HELLO, STOP, USAGE, DONE)).body.decode()
SECOND_ROLE = CHUNK_TEMPLATE % ('{"role":"assistant","content":" you"}', "null")
BAD = ROLE.text + HELLO.text + SECOND_ROLE + STOP.text
WHOLE: Json = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
}
EMPTY = MockReply((ROLE,))


def post(folder: Path, body: Json) -> RecordedReply:
    """Upload a capture to a server."""

    async def work() -> RecordedReply:
        async with gateway(folder, [EMPTY]) as serving:
            return await serving.post(body, "/page/api/lint")

    return run(work())


def lint_by_upload(folder: Path, capture: str, **more: Any) -> Json:  # noqa: ANN401 - each its own
    response = post(folder, {"capture": capture, **more})
    assert response.status == 200, response.body
    found: Json = response.json
    return found


def lint_locally(capture: bytes, endpoint: str | None = None, request: Json | None = None) -> Json:
    """Lint a capture without a server."""
    found: Json = json.loads(
        msgspec.json.encode(lint_capture(capture, endpoint=endpoint, request=request, id_stem="1", created=1))
    )
    return found


def test_a_correct_stream_passes_and_is_not_changed(tmp_path: Path) -> None:
    found = lint_by_upload(tmp_path, GOOD, request={"stream": True, "stream_options": {"include_usage": True}})
    assert (found["endpoint"], found["reply_kind"], found["verdict"], found["is_cut"]) == (
        "chat",
        "stream",
        "pass",
        False,
    )
    assert found["findings"] == []
    assert found["error"] is None
    assert found["usage"]["total_tokens"] == 4
    assert "".join(step["received"] for step in found["steps"]) == GOOD
    assert "".join(step["sent"] for step in found["steps"]) == found["fixed"]
    assert {step["at_s"] for step in found["steps"]} == {None}


def test_violations_are_found_and_repaired_at_their_frame(tmp_path: Path) -> None:
    found = lint_by_upload(tmp_path, BAD)
    assert found["verdict"] == "fail"
    finding = next(one for one in found["findings"] if one["rule"] == "delta-role-once")
    assert (finding["frame"], finding["byte"]) == (3, len(ROLE.text + HELLO.text))
    assert finding["affects"]
    assert [repair["rule"] for repair in found["steps"][2]["repairs"]] == ["delta-role-once"]
    assert judge(Trace(body=found["fixed"].encode())).findings == ()


@table("dialect", ["responses", "messages"])
@table("is_stream", [True, False])
def test_other_dialects_are_detected_from_their_content(dialect: str, is_stream: bool) -> None:
    found = lint_locally(native.valid_reply(dialect, is_stream=is_stream).body)
    assert (found["endpoint"], found["reply_kind"]) == (dialect, "stream" if is_stream else "whole")
    assert "".join(step["sent"] for step in found["steps"]) == found["fixed"]
    assert "Hello" in found["fixed"]


def test_json_instead_of_a_stream_is_repaired_to_a_stream() -> None:
    found = lint_locally(json.dumps(WHOLE).encode(), request={"stream": True})
    assert (found["reply_kind"], found["fixed"][-14:]) == ("instead", "data: [DONE]\n\n")
    assert "".join(step["sent"] for step in found["steps"]) == found["fixed"]
    message = native.valid_reply("messages", is_stream=False).body
    assert "event: message_stop" in lint_locally(message, request={"stream": True})["fixed"]


@pytest.mark.parametrize(
    ("capture", "content"), [(json.dumps(WHOLE), "Hi"), ('{"error": {"message": "no"}}', None)], ids=["answer", "error"]
)
def test_a_reply_that_is_not_streamed_is_repaired_as_json(capture: str, content: str | None) -> None:
    found = lint_locally(capture.encode())
    assert found["reply_kind"] == "whole"
    fixed = json.loads(found["fixed"])
    if content is None:
        assert found["error"]["message"] == fixed["error"]["message"] == "no"
    else:
        assert fixed["choices"][0]["message"]["content"] == content
    assert found["steps"][0]["received"] == capture
    assert found["steps"][-1]["sent"] == found["fixed"]


def test_output_of_curl_with_headers_is_accepted() -> None:
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    found = lint_locally((head + GOOD).encode())
    assert "".join(step["received"] for step in found["steps"]) == GOOD


def test_a_status_without_a_body_is_linted() -> None:
    found = lint_locally(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n")
    assert (found["reply_kind"], found["verdict"]) == ("failure", "fail")
    assert found["error"] is not None


def test_steps_of_a_recorded_trace_have_times() -> None:
    pieces = [[0.5, len(ROLE.text)], [1.25, len(HELLO.text)], ["x", 1], [2, -1], 7]
    record = {"endpoint": "/v1/chat/completions", "request": {"stream": True}}
    found = lint_locally(json.dumps({**record, "body_text": GOOD, "pieces": pieces}).encode())
    assert [step["at_s"] for step in found["steps"]][:3] == [0.5, 1.25, None]
    assert "".join(step["received"] for step in found["steps"]) == GOOD
    encoded = base64.b64encode(GOOD.encode()).decode()
    assert lint_locally(json.dumps({**record, "body_base64": encoded}).encode())["fixed"] == found["fixed"]


REJECTED: dict[str, tuple[Json, int, str]] = {
    "nothing": ({}, 400, "missing"),
    "no base64": ({"capture_base64": "%"}, 400, "base64"),
    "empty": ({"capture": " \n"}, 400, "empty"),
    "compressed": ({"capture_base64": base64.b64encode(b"\x1f\x8b..").decode()}, 400, "compressed"),
    "a trace without its body": ({"capture": '{"body": "x.body"}'}, 400, "names the file"),
    "a trace with a broken body": ({"capture": '{"body_base64": "%"}'}, 400, "base64"),
    "another endpoint": ({"capture": GOOD, "endpoint": "embeddings"}, 400, "endpoint"),
    "no request": ({"capture": GOOD, "request": 5}, 400, "request"),
    "an array": ({"capture": '[{"candidates":[]}]'}, 400, "welldone lint"),
    "too long": ({"capture": "x" * (lint.LINT_LIMIT_BYTES + 1)}, 413, "welldone lint"),
    "far too long": ({"capture": "x" * (2 * lint.LINT_LIMIT_BYTES)}, 413, "limit"),
}


@table(("body", "status", "word"), REJECTED.values(), ids=REJECTED)
def test_a_capture_that_cannot_be_linted_is_rejected_with_a_reason(
    tmp_path: Path, body: Json, status: int, word: str
) -> None:
    response = post(tmp_path, body)
    assert response.status == status
    assert word in response.error["message"]


def test_bytes_that_are_not_utf8_are_returned_in_base64(tmp_path: Path) -> None:
    capture = GOOD.encode().replace(b"Hello", b"\xff")
    response = post(tmp_path, {"capture_base64": base64.b64encode(capture).decode(), "endpoint": "chat"})
    step = response.json["steps"][1]
    assert b"\xff" in base64.b64decode(step["received_base64"])


def test_steps_are_limited_and_the_repaired_stream_is_complete() -> None:
    found = lint_locally((ROLE.text + HELLO.text * 3000 + STOP.text + DONE.text).encode())
    assert found["is_cut"]
    assert len(found["steps"]) == lint.LINT_STEPS_LIMIT
    assert found["fixed"].count("Hello") == 3000


def test_arbitrary_bytes_are_linted() -> None:
    assert lint_locally(b"\xff\x00 what")["error"] is not None


def test_concurrent_lints_over_the_limit_get_429(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started, proceed = threading.Semaphore(0), threading.Event()

    def slow(*words: Any, **more: Any) -> lint.LintResult:  # noqa: ANN401 - forwarded
        started.release()
        proceed.wait(60)
        return lint_capture(*words, **more)

    monkeypatch.setattr(lint, "lint_capture", slow)

    async def lint_concurrently(serving: Gateway) -> None:
        sent = [await serving.send({"capture": GOOD}, "/page/api/lint") for _ in range(api.CONCURRENT_LINTS)]
        for _ in sent:
            assert await asyncio.to_thread(started.acquire, timeout=60)
        rejected = await serving.post({"capture": GOOD}, "/page/api/lint")
        assert (rejected.status, rejected.error["code"]) == (429, "too_many_lints")
        proceed.set()
        for reader, writer in sent:
            assert b" 200 " in await reader.readline()
            writer.close()
        assert (await serving.post({"capture": GOOD}, "/page/api/lint")).status == 200

    async def main() -> None:
        async with gateway(tmp_path, [EMPTY]) as serving:
            await lint_concurrently(serving)

    run(main())


def test_each_rule_has_a_page(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, [EMPTY]) as serving:
            for rule in list(RULES.values())[::20]:
                found = (await serving.get(f"/page/api/rules/{rule.id}")).json
                assert (found["id"], found["summary"], found["severity"]) == (rule.id, rule.summary, rule.severity)
                assert (found["affects"], found["repair"]) == (list(rule.affects), rule.repair)
                assert found["repairability"] == rule.repairability
                assert found["page"].startswith("# ")
            assert (await serving.get("/page/api/rules/no-such-rule")).status == 404
            assert (await serving.get("/page/api/rules/..%2f..%2fx")).status == 404

    run(main())


@table("query", ["from=x", "from=-1", "from=1&from=2", "from=" + "9" * 30])
def test_a_step_that_is_not_a_number_is_rejected(tmp_path: Path, query: str) -> None:
    async def main() -> RecordedReply:
        async with gateway(tmp_path, [EMPTY]) as serving:
            return await serving.get(f"/page/api/tapes/{'x' * 22}?{query}")

    assert run(main()).status == 400


class OtherWorkers:
    """Fake `WorkerSync` with scripted replies."""

    def __init__(self, *replies: bytes) -> None:
        self.replies = list(replies)
        self.handlers: dict[str, Any] = {}

    def register(self, topic: str, handler: Any) -> None:  # noqa: ANN401 - a query handler
        self.handlers[topic] = handler

    async def gather(self, topic: str, query: Any) -> list[bytes]:  # noqa: ANN401 - as sent
        assert (topic, query["id"]) == ("tape", "x" * 22)
        return self.replies


@pytest.mark.parametrize("replies", [[], [b'{"id":"there"}']])
def test_a_worker_without_the_capture_queries_the_others(replies: list[bytes]) -> None:
    inspector = InspectorApi(
        CaptureStore(SecretRedactor([])),
        worker_sync=cast("WorkerSync", OtherWorkers(*replies)),
        body_s=1.0,
        is_admin=lambda _: True,
    )
    request = cast("HttpRequest", SimpleNamespace(path="/page/api/tapes/" + "x" * 22, query=""))
    ctx = RequestContext(request, "req-1", 0.0, {})
    if replies:
        assert run(inspector.get_capture(ctx)).body == replies[0]
    else:
        with pytest.raises(ApiError, match="No capture has this id"):
            run(inspector.get_capture(ctx))


def test_a_worker_returns_its_capture_to_another_worker() -> None:
    store = CaptureStore(SecretRedactor([]))
    workers = OtherWorkers(b'{"id":"here"}')
    InspectorApi(store, worker_sync=cast("WorkerSync", workers), body_s=1.0, is_admin=lambda _: True)
    query = {"principal": "me", "id": "x" * 22, "from": 0}
    assert run(workers.handlers["tape"](query)) == b""
    store.begin("me", "x" * 22, endpoint="chat", model="m", is_stream=True, began=0.0)
    assert json.loads(run(workers.handlers["tape"](query)))["id"] == "x" * 22


def test_a_long_capture_is_linted_like_a_short_one(tmp_path: Path) -> None:
    long = "".join(f": {number:060}\n\n" for number in range(2_000)) + GOOD
    found, here = lint_by_upload(tmp_path, long), lint_locally(long.encode())
    assert (found["verdict"], found["reply_kind"], found["error"]) == (here["verdict"], here["reply_kind"], None)
    assert found["fixed"].endswith("data: [DONE]\n\n")


def test_a_long_capture_is_rejected_like_a_short_one(tmp_path: Path) -> None:
    response = post(tmp_path, {"capture": " " * 100_000, "endpoint": "chat"})
    assert (response.status, response.error["param"]) == (400, "capture")
