"""What the inspector asks for besides tapes: the verdict on a captured stream, and the pages of rules."""

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
from tests.server import test_native as native
from tests.server.gateways import Gateway, gateway
from tests.server.scripts import DONE, HELLO, ROLE, STOP, USAGE, Heard
from tests.table import table
from welldone.gateway.errors import ApiError
from welldone.http.redaction import SecretRedactor
from welldone.http.server import HttpRequest
from welldone.mock.script import CHUNK_TEMPLATE, MockReply
from welldone.protocol.catalog import ALL_RULES
from welldone.rules.judge import judge
from welldone.rules.trace import Trace
from welldone.server.app import RequestContext
from welldone.server.inspector import api, lint
from welldone.server.inspector.api import InspectorApi
from welldone.server.inspector.captures import CaptureStore
from welldone.server.inspector.lint import lint_capture
from welldone.server.observe.workers import WorkerSync

Json = dict[str, Any]

GOOD = MockReply((ROLE, HELLO, STOP, USAGE, DONE)).body.decode()
TWICE = CHUNK_TEMPLATE % ('{"role":"assistant","content":" you"}', "null")
SPOILED = ROLE.text + HELLO.text + TWICE + STOP.text
WHOLE: Json = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
}
EMPTY = MockReply((ROLE,))


def post(folder: Path, body: Json) -> Heard:
    """What the server says of a capture."""

    async def work() -> Heard:
        async with gateway(folder, [EMPTY]) as serving:
            return await serving.ask(body, "/page/api/lint")

    return run(work())


def linted(folder: Path, capture: str, **more: Any) -> Json:  # noqa: ANN401 - each its own
    heard = post(folder, {"capture": capture, **more})
    assert heard.status == 200, heard.body
    found: Json = heard.json
    return found


def told(capture: bytes, endpoint: str | None = None, request: Json | None = None) -> Json:
    """The same, without a server."""
    found: Json = json.loads(
        msgspec.json.encode(lint_capture(capture, endpoint=endpoint, request=request, id_stem="1", created=1))
    )
    return found


def test_a_right_stream_is_right_and_goes_through_as_it_is(tmp_path: Path) -> None:
    found = linted(tmp_path, GOOD, request={"stream": True, "stream_options": {"include_usage": True}})
    assert (found["endpoint"], found["form"], found["verdict"], found["is_cut"]) == ("chat", "stream", "right", False)
    assert found["findings"] == []
    assert found["error"] is None
    assert found["usage"]["total_tokens"] == 4
    assert "".join(step["heard"] for step in found["steps"]) == GOOD
    assert "".join(step["said"] for step in found["steps"]) == found["fixed"]
    assert {step["at_s"] for step in found["steps"]} == {None}


def test_a_spoiled_stream_is_judged_and_mended_in_place(tmp_path: Path) -> None:
    found = linted(tmp_path, SPOILED)
    assert found["verdict"] == "wrong"
    finding = next(one for one in found["findings"] if one["rule"] == "delta-role-once")
    assert (finding["frame"], finding["byte"]) == (3, len(ROLE.text + HELLO.text))
    assert finding["hurts"]
    assert [note["rule"] for note in found["steps"][2]["notes"]] == ["delta-role-once"]
    assert judge(Trace(body=found["fixed"].encode())).findings == ()


@table("dialect", ["responses", "messages"])
@table("is_stream", [True, False])
def test_other_dialects_are_known_by_what_they_say(dialect: str, is_stream: bool) -> None:
    found = told(native.right(dialect, is_stream=is_stream).body)
    assert (found["endpoint"], found["form"]) == (dialect, "stream" if is_stream else "whole")
    assert "".join(step["said"] for step in found["steps"]) == found["fixed"]
    assert "Hello" in found["fixed"]


def test_a_whole_reply_where_a_stream_was_asked_for_becomes_one() -> None:
    found = told(json.dumps(WHOLE).encode(), request={"stream": True})
    assert (found["form"], found["fixed"][-14:]) == ("instead", "data: [DONE]\n\n")
    assert "".join(step["said"] for step in found["steps"]) == found["fixed"]
    message = native.right("messages", is_stream=False).body
    assert "event: message_stop" in told(message, request={"stream": True})["fixed"]


@pytest.mark.parametrize(
    ("capture", "content"), [(json.dumps(WHOLE), "Hi"), ('{"error": {"message": "no"}}', None)], ids=["answer", "error"]
)
def test_a_whole_reply_is_mended_as_one(capture: str, content: str | None) -> None:
    found = told(capture.encode())
    assert found["form"] == "whole"
    fixed = json.loads(found["fixed"])
    if content is None:
        assert found["error"]["message"] == fixed["error"]["message"] == "no"
    else:
        assert fixed["choices"][0]["message"]["content"] == content
    assert found["steps"][0]["heard"] == capture
    assert found["steps"][-1]["said"] == found["fixed"]


def test_what_curl_printed_is_read_with_its_head() -> None:
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    found = told((head + GOOD).encode())
    assert "".join(step["heard"] for step in found["steps"]) == GOOD


def test_a_status_without_a_body_can_be_judged() -> None:
    found = told(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n")
    assert (found["form"], found["verdict"]) == ("failure", "wrong")
    assert found["error"] is not None


def test_a_trace_with_its_body_in_it_has_times() -> None:
    pieces = [[0.5, len(ROLE.text)], [1.25, len(HELLO.text)], ["x", 1], [2, -1], 7]
    record = {"endpoint": "/v1/chat/completions", "request": {"stream": True}}
    found = told(json.dumps({**record, "body_text": GOOD, "pieces": pieces}).encode())
    assert [step["at_s"] for step in found["steps"]][:3] == [0.5, 1.25, None]
    assert "".join(step["heard"] for step in found["steps"]) == GOOD
    encoded = base64.b64encode(GOOD.encode()).decode()
    assert told(json.dumps({**record, "body_base64": encoded}).encode())["fixed"] == found["fixed"]


REFUSED: dict[str, tuple[Json, int, str]] = {
    "nothing": ({}, 400, "missing"),
    "no base64": ({"capture_base64": "%"}, 400, "base64"),
    "empty": ({"capture": " \n"}, 400, "empty"),
    "compressed": ({"capture_base64": base64.b64encode(b"\x1f\x8b..").decode()}, 400, "compressed"),
    "a trace without its body": ({"capture": '{"body": "x.body"}'}, 400, "names the file"),
    "a trace with a broken body": ({"capture": '{"body_base64": "%"}'}, 400, "base64"),
    "another endpoint": ({"capture": GOOD, "endpoint": "embeddings"}, 400, "endpoint"),
    "no request": ({"capture": GOOD, "request": 5}, 400, "request"),
    "too long": ({"capture": "x" * (lint.LINT_LIMIT_BYTES + 1)}, 413, "welldone lint"),
    "far too long": ({"capture": "x" * (2 * lint.LINT_LIMIT_BYTES)}, 413, "limit"),
}


@table(("body", "status", "word"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_judged_is_refused_with_a_reason(tmp_path: Path, body: Json, status: int, word: str) -> None:
    heard = post(tmp_path, body)
    assert heard.status == status
    assert word in heard.error["message"]


def test_bytes_that_are_no_text_come_in_base64(tmp_path: Path) -> None:
    capture = GOOD.encode().replace(b"Hello", b"\xff")
    heard = post(tmp_path, {"capture_base64": base64.b64encode(capture).decode(), "endpoint": "chat"})
    step = heard.json["steps"][1]
    assert b"\xff" in base64.b64decode(step["heard_base64"])


def test_a_long_stream_is_told_up_to_a_limit_and_mended_as_a_whole() -> None:
    found = told((ROLE.text + HELLO.text * 3000 + STOP.text + DONE.text).encode())
    assert found["is_cut"]
    assert len(found["steps"]) == lint.LINT_STEPS_LIMIT
    assert found["fixed"].count("Hello") == 3000


def test_a_fixed_stream_may_be_as_odd_as_it_likes() -> None:
    assert told(b"\xff\x00 what")["error"] is not None


def test_no_more_are_judged_at_once_than_there_is_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Semaphore(0), threading.Event()

    def slow(*words: Any, **more: Any) -> lint.LintResult:  # noqa: ANN401 - what lint takes
        begun.release()
        go.wait(60)
        return lint_capture(*words, **more)

    monkeypatch.setattr(lint, "lint", slow)

    async def both(serving: Gateway) -> None:
        sent = [await serving.send({"capture": GOOD}, "/page/api/lint") for _ in range(api.CONCURRENT_LINTS)]
        for _ in sent:
            assert await asyncio.to_thread(begun.acquire, timeout=60)
        refused = await serving.ask({"capture": GOOD}, "/page/api/lint")
        assert (refused.status, refused.error["code"]) == (429, "too_many_lints")
        go.set()
        for reader, writer in sent:
            assert b" 200 " in await reader.readline()
            writer.close()
        assert (await serving.ask({"capture": GOOD}, "/page/api/lint")).status == 200

    async def main() -> None:
        async with gateway(tmp_path, [EMPTY]) as serving:
            await both(serving)

    run(main())


def test_each_rule_has_a_page(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, [EMPTY]) as serving:
            for fault in ALL_RULES[::20]:
                found = (await serving.get(f"/page/api/rules/{fault.id}")).json
                assert (found["id"], found["severity"], found["hurts"]) == (
                    fault.id,
                    fault.severity,
                    list(fault.affects),
                )
                assert found["page"].startswith("# ")
            assert (await serving.get("/page/api/rules/no-such-rule")).status == 404
            assert (await serving.get("/page/api/rules/..%2f..%2fx")).status == 404

    run(main())


@table("query", ["from=x", "from=-1", "from=1&from=2", "from=" + "9" * 30])
def test_a_step_that_is_no_number_is_refused(tmp_path: Path, query: str) -> None:
    async def main() -> Heard:
        async with gateway(tmp_path, [EMPTY]) as serving:
            return await serving.get(f"/page/api/tapes/{'x' * 22}?{query}")

    assert run(main()).status == 400


class Others:
    """Siblings that say what they are told to."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.registered: dict[str, Any] = {}

    def register(self, what: str, answer: Any) -> None:  # noqa: ANN401 - what a sibling calls
        self.registered[what] = answer

    async def gather(self, what: str, question: Any) -> list[bytes]:  # noqa: ANN401 - as sent
        assert (what, question["id"]) == ("tape", "x" * 22)
        return self.answers


@pytest.mark.parametrize("answers", [[], [b'{"id":"there"}']])
def test_who_has_no_tape_asks_the_others(answers: list[bytes]) -> None:
    asking = InspectorApi(
        CaptureStore(SecretRedactor([])),
        worker_sync=cast("WorkerSync", Others(*answers)),
        body_s=1.0,
        is_admin=lambda _: True,
    )
    call = cast("HttpRequest", SimpleNamespace(path="/page/api/tapes/" + "x" * 22, query=""))
    ask = RequestContext(call, "req-1", 0.0, {})
    if answers:
        assert run(asking.get_capture(ask)).body == answers[0]
    else:
        with pytest.raises(ApiError, match="no such tape"):
            run(asking.get_capture(ask))


def test_a_tape_is_told_to_a_sibling_that_asks() -> None:
    tapes = CaptureStore(SecretRedactor([]))
    others = Others(b'{"id":"here"}')
    InspectorApi(tapes, worker_sync=cast("WorkerSync", others), body_s=1.0, is_admin=lambda _: True)
    question = {"principal": "me", "id": "x" * 22, "from": 0}
    assert run(others.registered["tape"](question)) == b""
    tapes.begin("me", "x" * 22, endpoint="chat", model="m", is_stream=True, began=0.0)
    assert json.loads(run(others.registered["tape"](question)))["id"] == "x" * 22


def test_a_long_capture_is_judged_as_a_short_one_is(tmp_path: Path) -> None:
    long = "".join(f": {number:060}\n\n" for number in range(2_000)) + GOOD
    found, here = linted(tmp_path, long), told(long.encode())
    assert (found["verdict"], found["form"], found["error"]) == (here["verdict"], here["form"], None)
    assert found["fixed"].endswith("data: [DONE]\n\n")


def test_a_long_capture_is_refused_as_a_short_one_is(tmp_path: Path) -> None:
    heard = post(tmp_path, {"capture": " " * 100_000, "endpoint": "chat"})
    assert (heard.status, heard.error["param"]) == (400, "capture")
