"""Passthrough endpoints: forwarded requests, replies and headers."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.http.aio import run
from tests.server.running_gateway import Gateway, gateway
from tests.server.running_server import RecordedReply, json_error
from tests.table import table
from welldone.config.server import KeySettings, ServeSettings
from welldone.core.events import Json
from welldone.gateway.backends import BackendLease, LocalBackend
from welldone.gateway.error_mapping import AttemptFailure
from welldone.gateway.errors import ApiError
from welldone.http.messages import HttpRequest
from welldone.mock.script import MockChunk, MockReply, MockScript, json_reply
from welldone.server.context import RequestContext
from welldone.server.generation.passthrough import (
    PASSTHROUGH_ENDPOINTS,
    PassthroughApi,
    PassthroughEndpoint,
    PassthroughRequest,
)
from welldone.server.generation.targets import BackendResolver
from welldone.server.requests.upstream_body import PassthroughBody

VECTOR = json_reply({"object": "list", "data": [], "usage": {"prompt_tokens": 900, "total_tokens": 900}})
SOUND = MockReply(
    (MockChunk(base64=bytes(range(256)), times=4096), MockChunk("end")), headers={"Content-Type": "audio/mpeg"}
)
INPUT = {"model": "m", "input": "hello"}
FORM = "multipart/form-data; boundary=AbC"
FILE = (
    b'--AbC\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    b"\x00\xff\r\n--Ab\r\n"
)
UPLOAD = FILE + b'--AbC\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--AbC--\r\n'


async def send(
    serving: Gateway, method: str, path: str, body: bytes = b"", kind: str = "application/json", **headers: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", serving.server.port)
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", f"Content-Type: {kind}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {len(body)}", "", ""]
    writer.write("\r\n".join(lines).encode() + body)
    return reader, writer


async def get(
    serving: Gateway, method: str, path: str, body: bytes = b"", kind: str = "application/json", **headers: str
) -> RecordedReply:
    """Send a request and return the whole reply."""
    reader, writer = await send(serving, method, path, body, kind, **headers)
    raw = await reader.read()
    writer.close()
    return RecordedReply(raw, {})


def ask(folder: Path, *scripts: Any, body: Any = INPUT, path: str = "/v1/embeddings", **settings: Any) -> RecordedReply:  # noqa: ANN401 - each its own
    async def work() -> RecordedReply:
        async with gateway(folder, *scripts, **settings) as serving:
            response = await get(serving, "POST", path, json.dumps(body).encode())
            response.request = {"asked": serving.post_counts}
            return response

    return run(work())


POSTS = [endpoint for endpoint in PASSTHROUGH_ENDPOINTS if "POST" in endpoint.methods and endpoint.has_model]


@table("prefix", ["/v1", ""])
@table("endpoint", POSTS, ids=lambda endpoint: endpoint.path)
def test_requests_and_replies_are_forwarded_unchanged(tmp_path: Path, endpoint: Any, prefix: str) -> None:  # noqa: ANN401
    async def work() -> None:
        async with gateway(tmp_path, [SOUND]) as serving:
            body = {**INPUT, "unknown": [1.5, None, "ü"], "documents": ["x"]}
            response = await get(serving, "POST", prefix + endpoint.path, json.dumps(body).encode(), Accept="audio/*")
            assert (response.status, response.body) == (200, SOUND.body)
            assert "Content-Type: audio/mpeg" in response.head
            (seen,) = serving.upstreams[0].requests
            assert seen.path == ("" if endpoint.is_root else "/v1") + endpoint.path
            assert json.loads(seen.body) == body
            assert (seen.headers["content-type"], seen.headers["accept"]) == ("application/json", "audio/*")

    run(work())


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/images/edits"])
def test_a_form_is_forwarded_byte_for_byte(tmp_path: Path, path: str) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [VECTOR]) as serving:
            response = await get(serving, "POST", path, UPLOAD, FORM)
            assert response.status == 200
            (seen,) = serving.upstreams[0].requests
            assert seen.headers["content-type"] == FORM
            assert int(seen.headers["content-length"]) == len(UPLOAD)
            assert seen.body.encode() == UPLOAD.decode(errors="replace").encode()

    run(work())


def test_model_names_are_mapped_in_json_and_in_forms(tmp_path: Path) -> None:
    async def work() -> None:
        routes = {"m": ("other@b",)}
        async with gateway(tmp_path, [VECTOR], [VECTOR], config={"routes": routes}) as serving:
            assert (await get(serving, "POST", "/v1/embeddings", json.dumps(INPUT).encode())).status == 200
            assert (await get(serving, "POST", "/v1/audio/translations", UPLOAD, FORM)).status == 200
            assert serving.post_counts == [0, 2]
            plain, form = serving.upstreams[1].requests
            assert json.loads(plain.body)["model"] == "other"
            assert '"model"\r\n\r\nother\r\n' in form.body

    run(work())


def test_only_a_few_headers_are_forwarded(tmp_path: Path) -> None:
    theirs = {
        "Content-Type": "application/json",
        "Content-Disposition": 'attachment; filename="x"',
        "Set-Cookie": "theirs=1",
        "Server": "theirs",
        "X-Request-Id": "theirs",
        "OpenAI-Organization": "theirs",
        "Access-Control-Allow-Origin": "theirs",
    }

    async def work() -> None:
        reply = MockReply((MockChunk("{}"),), 200, theirs)
        async with gateway(tmp_path, [reply], each={"key": "upstream-key-1"}, keys=("client-key-1",)) as serving:
            response = await get(
                serving,
                "POST",
                "/v1/embeddings",
                json.dumps({**INPUT, "api_key": "canary"}).encode(),
                Authorization="Bearer client-key-1",
                Cookie="canary=1",
                X_Forwarded_For="canary",
                Forwarded="canary",
                X_Custom="canary",
                X_Request_Id="mine-1",
            )
            assert response.status == 200
            assert "theirs" not in response.head
            assert "filename" in response.head
            assert "x-request-id: mine-1" in response.head
            (seen,) = serving.upstreams[0].requests
            assert seen.headers["authorization"] == "Bearer upstream-key-1"
            assert "canary" not in str(seen)
            assert "client-key" not in str(seen)

    run(work())


@table(
    ("kind", "disposition", "expected"),
    [
        ("image/svg+xml", None, "attachment"),
        ("IMAGE/SVG+XML; charset=utf-8", "inline", "attachment"),
        ("application/xhtml+xml", 'inline; filename="x"', "attachment"),
        ("text/xml", 'attachment; filename="x"', 'attachment; filename="x"'),
        ("image/png", "inline", "inline"),
        ("application/json", None, None),
    ],
)
@table("path", ["/v1/files/file-1/content", "/v1/audio/speech"])
def test_forwarded_content_cannot_run_scripts_in_the_web_page(
    tmp_path: Path, path: str, kind: str, disposition: str | None, expected: str | None
) -> None:
    headers = {"Content-Type": kind} | ({} if disposition is None else {"Content-Disposition": disposition})
    reply = MockReply((MockChunk("<svg/>"),), 200, headers)
    script = MockScript(posts=(reply,), paths={path: reply})

    async def work() -> None:
        async with gateway(tmp_path, script) as serving:
            is_file = "files" in path
            response = await get(
                serving, "GET" if is_file else "POST", path, b"" if is_file else json.dumps(INPUT).encode()
            )
            assert (response.status, response.body) == (200, b"<svg/>")
            assert response.capture.header("content-disposition") == expected
            assert (response.capture.header("content-security-policy") or "").startswith("sandbox;")
            assert response.capture.header("x-content-type-options") == "nosniff"

    run(work())


BROKEN = {
    "closed before the head": MockReply(raw=True, end="cut"),
    "not HTTP": MockReply((MockChunk("hello there\r\n\r\n"),), raw=True),
    "500": json_error(500, {"error": {"message": "oops"}}),
    "503": json_error(503, {"error": {"message": "Loading model"}}),
    "429": json_error(429, {"error": {"message": "slow down"}}),
    "401": json_error(401, {"error": {"message": "bad key sk-canary-123456"}}),
    "a redirect": MockReply((), 307, {"Location": "http://127.0.0.1:1/canary"}),
    "a page": MockReply((MockChunk("<html>canary</html>"),), 200, {"Content-Type": "text/html; charset=utf-8"}),
    "gzip": MockReply((MockChunk("canary"),), 200, {"Content-Type": "application/json", "Content-Encoding": "gzip"}),
    "silence": MockReply((), after_s=60.0),
    "an error that never ends": MockReply((MockChunk("canary "),), 500, end="endless"),
}


@table("broken", BROKEN.values(), ids=BROKEN.keys())
def test_another_upstream_is_tried_before_the_first_byte(tmp_path: Path, broken: MockReply) -> None:
    response = ask(tmp_path, [broken], [VECTOR], each={"weight": 0.01}, first={"weight": 1000.0}, first_byte_s=0.3)
    assert (response.status, response.body) == (200, VECTOR.body)
    assert response.request["asked"] == [1, 1]


@table("broken", BROKEN.values(), ids=BROKEN.keys())
def test_two_failed_attempts_are_an_error(tmp_path: Path, broken: MockReply) -> None:
    response = ask(tmp_path, [broken], [broken], [broken], first_byte_s=0.3)
    assert response.status in (429, 502, 503, 504)
    assert response.error["message"]
    assert "canary" not in response.raw.decode()
    assert sum(response.request["asked"]) == 2


def test_an_unreachable_upstream_is_skipped(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [VECTOR], [VECTOR], each={"weight": 0.01}, first={"weight": 1000.0}) as serving:
            await serving.upstreams[0].close()
            assert (await get(serving, "POST", "/v1/embeddings", json.dumps(INPUT).encode())).status == 200
            await serving.upstreams[1].close()
            response = await get(serving, "POST", "/v1/embeddings", json.dumps(INPUT).encode())
            assert (response.status, response.error["code"]) == (502, "upstream_unreachable")

    run(work())


def test_a_client_error_is_not_retried(tmp_path: Path) -> None:
    no = json_error(400, {"error": {"message": "no such voice", "param": "voice", "code": "bad_voice"}})
    response = ask(tmp_path, [no], [no], path="/v1/audio/speech")
    assert (response.status, response.error["message"], response.error["param"]) == (400, "no such voice", "voice")
    assert sum(response.request["asked"]) == 1


@pytest.mark.parametrize(
    "reply",
    [
        MockReply((MockChunk("some"),), headers={"Content-Type": "audio/mpeg"}, end="cut"),
        MockReply((MockChunk("some"),), headers={"Content-Type": "audio/mpeg"}, end="reset"),
        MockReply((MockChunk("some"),), headers={"Content-Type": "audio/mpeg"}, end="hang"),
    ],
    ids=["cut", "reset", "hang"],
)
def test_a_truncated_reply_does_not_look_complete(tmp_path: Path, reply: MockReply) -> None:
    response = ask(tmp_path, [reply], [SOUND], each={"weight": 0.01}, first={"weight": 1000.0}, idle_s=0.3)
    assert response.status == 200
    assert not response.raw.endswith(b"0\r\n\r\n")
    assert response.request["asked"] == [1, 0]


def test_a_disconnected_client_frees_the_upstream(tmp_path: Path) -> None:
    async def work() -> None:
        reply = MockReply((MockChunk("some"),), headers={"Content-Type": "audio/mpeg"}, end="hang")
        async with gateway(tmp_path, [reply]) as serving:
            reader, writer = await send(serving, "POST", "/v1/audio/speech", json.dumps(INPUT).encode())
            await reader.readuntil(b"some")
            writer.transport.abort()
            (seen,) = serving.upstreams[0].requests
            await serving.upstreams[0].wait_until(lambda: seen.end == "left")

    run(work())


def test_a_client_that_does_not_read_is_disconnected(tmp_path: Path) -> None:
    async def work() -> None:
        reply = MockReply((MockChunk("x" * 65536),), headers={"Content-Type": "audio/mpeg"}, end="endless")
        async with gateway(tmp_path, [reply], write_s=0.3) as serving:
            _, writer = await send(serving, "POST", "/v1/audio/speech", json.dumps(INPUT).encode())
            await serving.upstreams[0].wait_until(lambda: bool(serving.upstreams[0].requests))
            (seen,) = serving.upstreams[0].requests
            await serving.upstreams[0].wait_until(lambda: seen.end == "left")
            writer.close()

    run(work())


def test_tokens_count_towards_the_limit_of_the_key(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [VECTOR], tokens_per_minute=500) as serving:
            body = json.dumps(INPUT).encode()
            assert (await get(serving, "POST", "/v1/embeddings", body)).status == 200
            assert (await get(serving, "POST", "/v1/embeddings", body)).status == 429
            assert serving.post_counts == [1]

    run(work())


@table(
    ("body", "kind", "status"),
    [
        (b"x" * 2000, "application/json", 413),
        (b"x" * 5000, FORM, 413),
        (b"hello", "application/json", 400),
        (b"hello", FORM, 400),
        (b"hello", "text/plain", 415),
        (b'{"input":"x"}', "application/json", 400),
        (b'{"model":5}', "application/json", 400),
    ],
)
def test_invalid_bodies_are_not_forwarded(tmp_path: Path, body: bytes, kind: str, status: int) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [VECTOR], body_limit_bytes=1024, upload_limit_bytes=4096) as serving:
            assert (await get(serving, "POST", "/v1/embeddings", body, kind)).status == status
            assert serving.post_counts == [0]

    run(work())


def test_a_compressed_body_is_not_forwarded(tmp_path: Path) -> None:
    async def work() -> None:
        async with gateway(tmp_path, [VECTOR]) as serving:
            response = await get(serving, "POST", "/v1/embeddings", b"{}", Content_Encoding="gzip")
            assert response.status == 415
            assert serving.post_counts == [0]

    run(work())


@pytest.mark.parametrize("path", ["/embeddings", "/audio/speech"])
def test_a_local_model_serves_the_endpoints_that_it_supports(path: str) -> None:
    async def work() -> None:
        async def body(**_: object) -> bytes:
            return json.dumps(INPUT).encode()

        async def local(ask: RequestContext, body: Json) -> None:
            assert body == INPUT
            ask.log_fields["local"] = True

        here = SimpleNamespace(find=lambda *_: LocalBackend.__new__(LocalBackend))
        api = PassthroughApi(ServeSettings(), cast("BackendResolver", here), charge_tokens=lambda *_: None)
        call = SimpleNamespace(method="POST", headers={}, read_body=body)
        ask = RequestContext(cast("HttpRequest", call), "id", 0.0, {}, log_fields={})
        if path == "/embeddings":
            await api.route_with_local(path, local).handlers["POST"](ask)
            assert ask.log_fields == {"local": True}
            return
        route = api.find(path)
        assert route is not None
        with pytest.raises(ApiError, match="Local models do not support this"):
            await route.handlers["POST"](ask)

    run(work())


def test_every_path_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "passing.md").read_text("utf-8")
    expected = {endpoint.path.replace("*", "{id}") for endpoint in PASSTHROUGH_ENDPOINTS}
    assert {path for path in expected if f"`/v1{path}`" not in page} == set()


FILES = MockScript(
    posts=(json_reply({"id": "file-1"}),),
    paths={
        "/v1/files/file-1": json_reply({"id": "file-1"}),
        "/v1/files/file-1/content": SOUND,
    },
)


@table(
    ("method", "path", "seen"),
    [
        ("GET", "/v1/files/file-1", ("GET", "/v1/files/file-1")),
        ("DELETE", "/files/file-1", ("DELETE", "/v1/files/file-1")),
        ("GET", "/v1/files/file-1/content?a=b&c=%20", ("GET", "/v1/files/file-1/content?a=b&c=%20")),
        ("POST", "/v1/files", ("POST", "/v1/files")),
    ],
)
def test_files_are_forwarded_to_the_first_upstream(
    tmp_path: Path, method: str, path: str, seen: tuple[str, str]
) -> None:
    async def work() -> None:
        async with gateway(tmp_path, FILES, FILES) as serving:
            response = await get(serving, method, path, FILE + b"--AbC--\r\n" if method == "POST" else b"", FORM)
            assert response.status == 200
            assert [(one.method, one.path) for one in serving.upstreams[0].requests] == [seen]
            assert not serving.upstreams[1].requests

    run(work())


def test_a_reply_without_content_is_forwarded_as_its_head(tmp_path: Path) -> None:
    async def work() -> None:
        files = MockScript(paths={"/v1/files/file-1": MockReply((), 204, framing="length")})
        async with gateway(tmp_path, files) as serving:
            reader, writer = await send(serving, "DELETE", "/v1/files/file-1")
            head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
            assert head.startswith(b"HTTP/1.1 204 No Content\r\n")
            assert b"Transfer-Encoding" not in head
            assert rest == b""

    run(work())


@table(
    ("method", "path", "status"),
    [
        ("GET", "/v1/files/../models", 404),
        ("GET", "/v1/files/..%2fmodels", 404),
        ("GET", "/v1/files/%2e%2e", 404),
        ("GET", "/v1/files/a%0d%0ab", 404),
        ("GET", "/v1/files/a/b/c", 404),
        ("GET", "/v1/batches", 404),
        ("GET", "/v1/files/file-1?a='b'", 400),
        ("PUT", "/v1/files", 405),
        ("HEAD", "/v1/files/file-1", 405),
        ("GET", "/v1/embeddings", 405),
    ],
)
def test_no_other_path_or_method_is_forwarded(tmp_path: Path, method: str, path: str, status: int) -> None:
    async def work() -> None:
        async with gateway(tmp_path, FILES) as serving:
            reader, writer = await send(serving, method, path)
            raw = await reader.read()
            writer.close()
            assert int(raw.split()[1]) == status
            assert not serving.upstreams[0].requests

    run(work())


def test_a_key_for_some_models_allows_no_others_and_no_files(tmp_path: Path) -> None:
    async def work() -> None:
        named = (KeySettings(name="ci", key="ci-key-0123456789", models=("m",)),)
        async with gateway(tmp_path, [VECTOR], config={"keys": named}) as serving:
            bearer = "Bearer ci-key-0123456789"
            other = json.dumps({**INPUT, "model": "n"}).encode()
            assert (await get(serving, "GET", "/v1/files", Authorization=bearer)).status == 403
            assert (await get(serving, "POST", "/v1/embeddings", other, Authorization=bearer)).status == 403
            assert serving.post_counts == [0]
            right = json.dumps(INPUT).encode()
            assert (await get(serving, "POST", "/v1/embeddings", right, Authorization=bearer)).status == 200
            assert (await get(serving, "POST", "/v1/embeddings", right)).status == 401

    run(work())


class SlowStream:
    """The stream of a client that reads only during `drain`."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.has_backpressure = False

    def on_backpressure(self, callback: Callable[[], object]) -> None:
        self.pause = callback

    def write(self, data: bytes) -> None:
        self.log.append(f"write {len(data)}")
        self.has_backpressure = True
        self.pause()

    async def drain(self) -> None:
        self.log.append("drain")
        self.has_backpressure = False

    async def end(self, *_: object, **__: object) -> None:
        self.log.append("end")

    def abort(self) -> None:
        self.log.append("abort")


def test_a_slow_client_pauses_the_upstream() -> None:
    log: list[str] = []

    async def work() -> AttemptFailure | None:
        stream = SlowStream(log)

        async def open_stream(headers: dict[str, str], *, status: int, first: bytes, **_: object) -> SlowStream:
            log.append(f"open {status} with {len(first)}")
            stream.has_backpressure = True
            return stream

        call = SimpleNamespace(method="POST", headers={}, start_stream=open_stream)
        ctx = RequestContext(cast("HttpRequest", call), "id", 0.0, {}, log_fields={})
        endpoint = PassthroughEndpoint("/x", "x")
        exchange = PassthroughRequest(
            ctx, "/x", endpoint, PassthroughBody(), write_s=30.0, charge_tokens=lambda *_: None
        )

        class Sending:
            def pause_reading(self) -> None:
                log.append("pause")

            def resume_reading(self) -> None:
                log.append("resume")
                if "end" not in log and log.count("drain") == 2:
                    exchange.end(None)
                elif log[-2] == "drain":
                    exchange.data(b"22")

            def close(self) -> None:
                log.append("close")

        async def begin(*_: object, **__: object) -> Sending:
            exchange.head(200, {})
            exchange.data(b"1")
            return Sending()

        times = {"first_byte_s": 30.0, "idle_s": 30.0}
        rest: Any = {"upstream": None, "model": "m", "report": lambda _: None, "trace_headers": ()}
        lease = SimpleNamespace(address=None, send=begin, **rest, **times)
        return await exchange.run_attempt(cast("BackendLease", lease), 0, 1)

    assert run(work()) is None
    drained = ["pause", "drain", "resume"]
    # After a write it pauses at once, and again in the task, which wakes later.
    assert log == ["open 200 with 1", *drained, "write 2", "pause", *drained, "end", "close"]
