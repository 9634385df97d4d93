"""Access to the page's API: other origins, other keys, hostile ids, and limits on expensive requests."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.http.aio import run
from tests.server import running_gateway
from tests.server.running_gateway import Gateway, gateway
from tests.server.running_server import CHAT, DONE, HELLO, ROLE, STOP, USAGE, RecordedReply
from tests.table import table
from welldone.config.server import KeySettings
from welldone.core.envelope import Endpoint
from welldone.http.redaction import SecretRedactor
from welldone.mock.script import JSON_HEADERS, MockChunk, MockReply
from welldone.server.inspector import api, captures, lint
from welldone.server.inspector.captures import CaptureStore, StreamCapture
from welldone.server.inspector.lint import LINT_LINES_LIMIT, lint_capture
from welldone.server.inspector.steps import step_view
from welldone.stream.pipeline import make_pipeline
from welldone.stream.replay import AnyPipeline, StreamReplayStep

Json = dict[str, Any]

GOOD = MockReply((ROLE, HELLO, STOP, USAGE, DONE))
STREAM = {**CHAT, "stream": True}
CAPTURE_ID = "n" * 30
PLAIN, GUEST = "wd-plain-0123456789abcdef", "wd-guest-0123456789abcdef"
LINT = "/page/api/lint"
GET_PATHS = (
    "/page/api/state",
    f"/page/api/tapes/{CAPTURE_ID}",
    "/page/api/rules/data-json",
    "/page/api/recordings/x",
    "/metrics",
)
POST_PATHS = (LINT, "/models/load", "/models/unload", "/keys")
CROSS_ORIGIN = {
    "another origin": "Origin: http://evil.example\r\n",
    "null origin": "Origin: null\r\n",
    "another port": "Origin: http://localhost:1\r\n",
    "an element of another site": "Sec-Fetch-Site: cross-site\r\n",
    "an element of the same site": "Sec-Fetch-Site: same-site\r\n",
}


def _auth(key: str) -> str:
    return f"Authorization: Bearer {key}\r\n" if key else ""


def _capture_header(name: str = CAPTURE_ID) -> str:
    return f"x-welldone-tape: {name}\r\n"


# Other origins.


@table("headers", CROSS_ORIGIN.values(), ids=CROSS_ORIGIN.keys())
def test_pages_of_other_sites_are_rejected(tmp_path: Path, headers: str) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [GOOD]) as serving:
            await serving.post(STREAM, headers=_capture_header())
            responses = [await serving.get(path, headers) for path in GET_PATHS]
            responses += [await serving.post({"capture": "x", "model": "m"}, path, headers) for path in POST_PATHS]
            for response in responses:
                assert response.status == 403
                assert "access-control-allow-origin" not in response.head.lower()

    run(work())


def test_dns_rebinding_is_rejected(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [GOOD]) as serving:
            for path in ("/", *GET_PATHS):
                reader, writer = await asyncio.open_connection("127.0.0.1", serving.server.port)
                writer.write(f"GET {path} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n".encode())
                assert b" 403 " in await reader.readline()
                writer.close()

    run(work())


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data"])
def test_content_types_of_html_forms_are_rejected(tmp_path: Path, kind: str) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [GOOD]) as serving:
            for path in POST_PATHS:
                reader, writer = await asyncio.open_connection("127.0.0.1", serving.server.port)
                head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {kind}\r\n"
                writer.write(f'{head}Content-Length: 13\r\n\r\n{{"model":"m"}}'.encode())
                assert b" 415 " in await reader.readline()
                writer.close()

    run(work())


# Other keys.


@pytest.mark.parametrize(
    "reply",
    [
        GOOD,
        MockReply((ROLE, HELLO), end="cut"),
        MockReply((), end="reset"),
        MockReply((MockChunk("{}"),), status=401, headers=JSON_HEADERS),
    ],
    ids=["good", "cut", "reset", "rejected"],
)
@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_without_admin_rights_never_sees_the_name_of_an_upstream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: MockReply, is_stream: bool
) -> None:
    monkeypatch.setattr(running_gateway, "NAMES", ["zebra"])

    async def work() -> None:
        more = {"keys": (KeySettings(name="guest", key=GUEST),)}
        async with gateway(tmp_path, [reply], keys=[PLAIN], config=more) as serving:
            address = f"127.0.0.1:{serving.upstreams[0].port}"
            answer = await serving.post({**CHAT, "stream": is_stream}, headers=_auth(GUEST) + _capture_header())
            capture = await serving.get(f"/page/api/tapes/{CAPTURE_ID}", _auth(GUEST))
            state = await serving.get("/page/api/state", _auth(GUEST))
            assert (capture.status, state.status, len(state.json["recent"])) == (200, 200, 1)
            for response in (answer, capture, state):
                for word in ("zebra", address):
                    assert word not in response.head + response.body.decode()
            admin = await serving.get("/page/api/state", _auth(PLAIN))
            assert "zebra" in json.dumps(admin.json["recent"]) or reply is not GOOD

    run(work())


def test_reads_of_the_page_do_not_count_against_the_rate_limit(tmp_path: Path) -> None:
    async def work() -> None:
        more = {"keys": (KeySettings(name="guest", key=GUEST, requests_per_minute=2),)}
        async with gateway(tmp_path, [GOOD], keys=[PLAIN], config=more) as serving:
            assert (await serving.post(STREAM, headers=_auth(GUEST) + _capture_header())).status == 200
            for _ in range(5):
                for path in ("/page/api/state", f"/page/api/tapes/{CAPTURE_ID}", "/metrics"):
                    assert (await serving.get(path, _auth(GUEST))).status == 200
            assert (await serving.post(STREAM, headers=_auth(GUEST))).status == 200
            assert (await serving.post(STREAM, headers=_auth(GUEST))).status == 429

    run(work())


# Captures.


@table("name", ["short", "n" * 65, "../" * 10, "n" * 30 + "%0a", "n n" * 10, "n" * 30 + ",x", "*" * 30])
def test_an_invalid_id_starts_no_capture(tmp_path: Path, name: str) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [GOOD]) as serving:
            assert (await serving.post(STREAM, headers=_capture_header(name))).status == 200
            assert (await serving.get(f"/page/api/tapes/{name.replace(' ', '%20')}")).status == 404

    run(work())


@table("path", ["tapes/%ff", "tapes/%00", "tapes/..%2f..", "rules/%ff", "recordings/%ff", "tapes//x"])
def test_an_invalid_path_is_not_found(tmp_path: Path, path: str) -> None:
    async def work() -> RecordedReply:
        async with gateway(tmp_path, [GOOD]) as serving:
            return await serving.get(f"/page/api/{path}")

    assert run(work()).status == 404


def _make_pipeline() -> AnyPipeline:
    return make_pipeline(Endpoint.CHAT, STREAM, id_stem="1", created=1, is_stream=True)


async def _capture(store: CaptureStore, name: str) -> StreamCapture:
    capture = store.begin("me", name, endpoint="chat", model="m", is_stream=True, began=0.0)
    assert capture is not None
    capture.pipeline_created(_make_pipeline)
    attempt = capture.begin_attempt(0, "a", b"{}", is_local=False)
    for chunk in [ROLE.data, *[HELLO.data] * 50]:
        attempt.data(chunk)
        capture.feed(chunk, 0)
    attempt.data(b": not fed")
    assert (await capture.read_steps(0, is_admin=True)).steps
    return capture


def test_a_discarded_capture_frees_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        monkeypatch.setattr(captures, "CAPTURES_LIMIT", 1)
        store = CaptureStore(SecretRedactor([]))
        old = await _capture(store, "o" * 30)
        assert old.size > 10_000
        await _capture(store, CAPTURE_ID)
        # A response in progress may still hold a reference.
        assert old.size == 0
        assert (await old.read_steps(0, is_admin=True)).steps == []
        old.feed(HELLO.data, 0)
        assert old.size == 0

    run(work())


@pytest.mark.parametrize("data", [b"x" * 9 + "\U0001f600".encode(), b"\xff" * 10], ids=["emoji", "not UTF-8"])
def test_the_size_of_a_step_is_its_memory(data: bytes) -> None:
    assert step_view(StreamReplayStep(0, 0, data * 1000), 0).size > 20_000


# Uploads.


def test_uploads_over_the_limit_are_rejected_before_they_are_read(tmp_path: Path) -> None:
    async def start_upload(serving: Gateway) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", serving.server.port)
        head = f"POST {LINT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
        writer.write(f"{head}Expect: 100-continue\r\nContent-Length: 20\r\n\r\n".encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        return reader, writer

    async def work() -> None:
        async with gateway(tmp_path, [GOOD]) as serving:
            slow = [await start_upload(serving) for _ in range(api.CONCURRENT_UPLOADS)]
            rejected = await serving.post({"capture": "data: 1\n\n"}, LINT)
            assert (rejected.status, rejected.error["code"]) == (429, "too_many_lints")
            for reader, writer in slow:
                writer.write(b'{"capture":"x"}     ')
                await reader.read()
                writer.close()
            assert (await serving.post({"capture": "data: 1\n\n"}, LINT)).status == 200

    run(work())


@pytest.mark.parametrize("end", ["\n\n", "\r\r", "\r\n\r\n"])
def test_a_stream_of_too_many_lines_is_rejected(tmp_path: Path, end: str) -> None:
    async def work() -> RecordedReply:
        async with gateway(tmp_path, [GOOD]) as serving:
            return await serving.post({"capture": f"data:{end}" * (LINT_LINES_LIMIT // len(end) + 1)}, LINT)

    response = run(work())
    assert response.status == 413
    assert "welldone lint" in response.error["message"]


def test_the_limit_on_lines_does_not_apply_to_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lint, "LINT_LINES_LIMIT", 3)
    capture = json.dumps({"error": {"message": "no"}}, indent=1).encode()
    assert lint_capture(capture, endpoint=None, request=None, id_stem="1", created=1).reply_kind == "whole"
