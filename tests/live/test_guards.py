"""Access control and HTTP: keys, origins, methods, body limits, rate limits, and all kinds of HTTP clients."""

import gzip
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.live.routes import OPEN, all_routes
from tests.support.faults import chat_body, chat_once, post_bytes, send_raw, small_server, split_replies, start_chat
from tests.support.raw import CHAT, Json, RawConnection, Reply, fetch, parse_valid
from tests.support.server import KEY, LIMIT_S, Running, serving
from welldone.gateway.errors import ErrorFormat
from welldone.rules.trace import read_capture

BEARER = f"Authorization: Bearer {KEY}"
OTHER_KEY = "Authorization: Bearer wd-somebody-elses-key"
PAGE = "https://app.example"
LIMIT_BYTES = 4096


@pytest.fixture(scope="module")
def guarded(tiny_model: Path) -> Iterator[Running]:
    """A server with every path enabled, one allowed origin, and a low body limit."""
    options = ["--slots", "--cors-origins", PAGE, "--body-limit", str(LIMIT_BYTES), "--body-time", "1"]
    with small_server(tiny_model, *options) as running:
        yield running
        assert running.end() == 0


def send_lines(server: Running, *lines: str, body: bytes = b"", host: str | None = None) -> Reply:
    """Send a request with exactly these header lines and return the reply."""
    first, *rest = lines
    rest = [f"Host: {host or f'127.0.0.1:{server.port}'}", *rest, "Connection: close"]
    if body:
        rest.append(f"Content-Length: {len(body)}")
    return Reply(read_capture(send_raw(server, "\r\n".join([first, *rest, "", ""]).encode("latin-1") + body)))


# Keys.


def _is_key_error(reply: Reply, error_format: ErrorFormat) -> bool:
    """Whether the reply is an error about the API key, in the error format of its path."""
    match error_format:
        case ErrorFormat.OPENAI:
            return bool(reply.error()["code"] == "invalid_api_key")
        case ErrorFormat.ANTHROPIC:
            return bool(reply.json()["error"]["type"] == "authentication_error")
        case ErrorFormat.OLLAMA:
            return "API key" in reply.json()["error"]
        case ErrorFormat.GEMINI:
            return bool(reply.json()["error"]["status"] == "UNAUTHENTICATED")


@pytest.mark.parametrize("header", [None, OTHER_KEY, f"Authorization: Basic {KEY}", "x-api-key: wrong-key"])
def test_every_path_but_health_and_the_page_needs_a_key(guarded: Running, tmp_path: Path, header: str | None) -> None:
    routes = all_routes(tmp_path)
    assert {path for path, route in routes.items() if route.is_public} == OPEN
    for path, route in routes.items():
        for prefix in ("", "/v1"):
            for method in route.handlers:
                reply = send_lines(guarded, f"{method} {prefix}{path} HTTP/1.1", *([header] if header else []))
                if path in OPEN:
                    assert reply.status == (404 if path.endswith("*") else 200), path  # no file has that name
                else:
                    assert reply.status == 401, path
                    assert _is_key_error(reply, route.error_format), path
                    assert reply.header("www-authenticate") == "Bearer"
                    assert KEY not in reply.trace.body.decode()


def test_unknown_paths_are_401_without_a_key_and_404_with_one(guarded: Running) -> None:
    for path in ("/nothing", "/v1/nothing", "/v1/models/x", "/props", "/v1/v1/models"):
        assert send_lines(guarded, f"GET {path} HTTP/1.1").status == 401
        assert send_lines(guarded, f"GET {path} HTTP/1.1", BEARER).status == 404


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([BEARER], 200),
        ([f"authorization: bearer {KEY}"], 200),
        ([f"x-api-key: {KEY}"], 200),
        ([f"api-key: {KEY}"], 200),
        ([BEARER, f"x-api-key: {KEY}"], 200),
        ([BEARER, "x-api-key: another-key"], 400),
        ([BEARER, OTHER_KEY], 400),
        ([f"Authorization: {KEY}"], 401),
        ([f"Authorization: Bearer {KEY}x"], 401),
        ([f"Authorization: Bearer {KEY[:-1]}"], 401),
        (["Authorization: Bearer "], 401),
        (["Authorization: Bearer \xff\xfe"], 401),
        ([f"Cookie: key={KEY}"], 401),
    ],
)
def test_a_key_is_accepted_in_its_headers_only(guarded: Running, headers: list[str], status: int) -> None:
    assert send_lines(guarded, "GET /v1/models HTTP/1.1", *headers).status == status


def test_a_key_in_the_query_string_is_not_accepted(guarded: Running) -> None:
    assert send_lines(guarded, f"GET /v1/models?api_key={KEY} HTTP/1.1").status == 401


@pytest.mark.parametrize("options", [(), ("--no-api-key",)], ids=["generated key", "no key"])
def test_a_server_on_a_public_address_generates_a_key_unless_disabled(
    tiny_model: Path, options: tuple[str, ...]
) -> None:
    with small_server(tiny_model, "--host", "0.0.0.0", *options, key=None) as server:
        if options:
            server.stdout.wait("no API key: anyone")
            assert "wd-" not in "\n".join(server.stdout.all)
            assert fetch(server, "/v1/models").status == 200
            return
        generated = server.stdout.wait(r"API key +(wd-\S+)$")[1]
        server.stdout.wait(rf"Bearer {generated}'")
        server.stdout.wait("--api-key sets your own, --no-api-key allows requests without one")
        refused = fetch(server, "/v1/models")
        message = refused.error()["message"]
        assert (refused.status, generated in message) == (401, False)
        for word in ("'Authorization: Bearer", "--api-key", "--no-api-key", "generated is in its output"):
            assert word in message
        server.key = generated
        assert fetch(server, "/v1/models").status == 200
        assert server.end() == 0
        assert generated not in server.log.join()


# Hosts and origins.


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:1", 200),
        ("[::1]:8000", 200),
        ("127.0.0.1", 200),
        ("LOCALHOST.", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example:8000", 403),
        ("169.254.169.254", 403),
        ("a b", 400),
        ("user@localhost", 400),
        ("localhost:99999", 400),
    ],
)
def test_requests_with_another_host_name_are_rejected(guarded: Running, host: str, status: int) -> None:
    for path in ("/health", "/v1/models"):
        assert send_lines(guarded, f"GET {path} HTTP/1.1", BEARER, host=host).status == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (PAGE, 200),
        ("http://127.0.0.1:{port}", 200),
        ("https://evil.example", 403),
        ("null", 403),
        ("http://app.example", 403),
        ("https://app.example.evil.example", 403),
        ("http://127.0.0.1:1", 403),
    ],
)
def test_requests_from_another_origin_are_rejected(guarded: Running, origin: str, status: int) -> None:
    origin = origin.format(port=guarded.port)
    reply = send_lines(guarded, "GET /v1/models HTTP/1.1", BEARER, f"Origin: {origin}")
    assert reply.status == status
    assert reply.header("access-control-allow-origin") == (PAGE if origin == PAGE else None)
    assert reply.header("access-control-allow-credentials") is None


def test_streams_and_errors_have_cors_headers_for_an_allowed_origin(guarded: Running) -> None:
    with RawConnection(
        guarded, CHAT, chat_body(guarded, stream=True, max_tokens=4), headers={"Origin": PAGE}
    ) as connection:
        reply = connection.reply()
    assert parse_valid(reply).choice.finish == "length"
    failed = send_lines(guarded, "GET /v1/nothing HTTP/1.1", BEARER, f"Origin: {PAGE}")
    assert failed.status == 404
    for one in (reply, failed):
        assert one.header("access-control-allow-origin") == PAGE
        assert one.header("vary") == "Origin"
        assert "x-request-id" in (one.header("access-control-expose-headers") or "")


def test_a_preflight_needs_no_key_and_is_rejected_for_other_origins(guarded: Running) -> None:
    preflight = ["Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization, content-type"]
    allowed = send_lines(guarded, f"OPTIONS {CHAT} HTTP/1.1", f"Origin: {PAGE}", *preflight)
    assert allowed.status == 204
    assert allowed.trace.body == b""
    assert allowed.header("access-control-allow-origin") == PAGE
    assert "POST" in (allowed.header("access-control-allow-methods") or "")
    assert allowed.header("access-control-allow-headers") == "authorization, content-type"
    rejected = send_lines(guarded, f"OPTIONS {CHAT} HTTP/1.1", "Origin: https://evil.example", *preflight)
    assert rejected.status == 403
    assert rejected.header("access-control-allow-origin") is None


def test_cross_site_fetches_are_rejected(guarded: Running) -> None:
    assert send_lines(guarded, "GET /metrics HTTP/1.1", BEARER, "Sec-Fetch-Site: cross-site").status == 403
    assert send_lines(guarded, "GET / HTTP/1.1", "Sec-Fetch-Site: cross-site").status == 200


# Methods and paths.


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_a_405_lists_the_allowed_methods(guarded: Running, method: str) -> None:
    reply = send_lines(guarded, f"{method} {CHAT} HTTP/1.1", BEARER)
    assert reply.status == 405
    assert reply.header("allow") == "POST"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_websocket_handshake_is_rejected_with_426(guarded: Running, path: str) -> None:
    handshake = (
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: eDM0MDk=",
    )
    reply = send_lines(guarded, f"GET {path} HTTP/1.1", BEARER, *handshake)
    assert reply.status == 426
    assert reply.header("upgrade") == "HTTP/1.1"
    assert "WebSocket" in json.loads(reply.trace.body)["error"]["message"]
    assert send_lines(guarded, f"GET {path} HTTP/1.1", *handshake).status == 401
    assert send_lines(guarded, "GET /v1/models HTTP/1.1", BEARER, *handshake).status == 200


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/metrics", "/"])
def test_head_is_get_without_a_body(guarded: Running, path: str) -> None:
    reply = send_lines(guarded, f"HEAD {path} HTTP/1.1", BEARER)
    assert reply.status == 200
    assert reply.trace.body == b""
    assert int(reply.header("content-length") or 0) > 0


@pytest.mark.parametrize("name", ["../../../../etc/passwd", "..%2f..%2fetc%2fpasswd", "/etc/passwd", "tiny.gguf", "."])
def test_a_model_name_is_never_used_as_a_path(guarded: Running, name: str) -> None:
    listing = fetch(guarded, f"/v1/models/{name}")
    answer = fetch(guarded, CHAT, {**chat_body(guarded), "model": name})
    for reply in (listing, answer):
        assert reply.status == 404
        assert b"root:" not in reply.trace.body
    assert answer.error()["code"] == "model_not_found"


# Bodies.


def post_body(server: Running, *headers: str, body: bytes) -> Reply:
    return send_lines(server, f"POST {CHAT} HTTP/1.1", BEARER, *headers, body=body)


def test_a_body_over_the_limit_is_a_413(guarded: Running) -> None:
    declared = send_raw(guarded, post_bytes(guarded, {}).replace(b"Length: 2", b"Length: 1000000000"))
    assert read_capture(declared).status == 413
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{BEARER}\r\nContent-Type: application/json\r\n"
    pieces = b"400\r\n" + b" " * 1024 + b"\r\n"
    chunked = send_raw(guarded, f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + pieces * 5)
    assert read_capture(chunked).status == 413


def test_an_incomplete_body_is_a_408(guarded: Running) -> None:
    assert read_capture(send_raw(guarded, post_bytes(guarded, {}).replace(b"Length: 2", b"Length: 20"))).status == 408


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        (["Content-Type: application/json", "Content-Encoding: gzip"], gzip.compress(b"{}", mtime=0), 415),
        (["Content-Type: application/json", "Content-Encoding: br"], b"{}", 415),
        (["Content-Type: application/json"], b"{", 400),
        (["Content-Type: application/json"], b"", 400),
        (["Content-Type: application/json"], b"\xff", 400),
        (["Content-Type: application/json; charset=utf-8"], b"[]", 400),
        (["Content-Type: text/plain", f"Origin: {PAGE}"], b"{}", 415),
    ],
)
def test_a_body_that_is_not_plain_json_is_rejected(
    guarded: Running, headers: list[str], body: bytes, status: int
) -> None:
    reply = post_body(guarded, *headers, body=body)
    assert reply.status == status
    assert reply.error()["type"] == "invalid_request_error"


def test_a_chunked_body_with_expect_100_continue_is_accepted(guarded: Running) -> None:
    data = json.dumps(chat_body(guarded, max_tokens=4)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{BEARER}\r\nContent-Type: application/json\r\n"
    head += "Transfer-Encoding: chunked\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    framed = b"".join(
        b"%x\r\n%b\r\n" % (len(data[start : start + 7]), data[start : start + 7]) for start in range(0, len(data), 7)
    )
    received = send_raw(guarded, head.encode() + framed + b"0\r\n\r\n")
    # A server that has the body already may omit the interim response.
    reply = Reply(msgspec.structs.replace(read_capture(received), request=json.loads(data)))
    assert parse_valid(reply).choice.finish == "length"


# Request ids and rate limits.


@pytest.mark.parametrize(
    ("given", "is_accepted"), [("my-id_1", True), ("a" * 129, False), ("a b", False), ("\xe9", False)]
)
def test_a_valid_request_id_of_the_client_is_returned(guarded: Running, given: str, is_accepted: bool) -> None:
    returned = send_lines(guarded, "GET /v1/models HTTP/1.1", BEARER, f"x-request-id: {given}").header("x-request-id")
    assert returned is not None
    assert (returned == given) is is_accepted
    assert is_accepted or returned.startswith("req_")


def test_each_request_without_an_id_gets_its_own(guarded: Running) -> None:
    ids = {fetch(guarded, path).header("x-request-id") for path in ("/v1/models", "/nothing", "/health", CHAT)}
    assert len(ids) == 4
    assert None not in ids


def test_a_request_over_the_rate_limit_gets_429_with_retry_after(tiny_model: Path) -> None:
    with small_server(tiny_model, "--requests-per-minute", "2", "--tokens-per-minute", "100000") as server:
        for remaining in (1, 0):
            reply = chat_once(server, stream=remaining == 1).reply
            assert reply.header("x-ratelimit-limit-requests") == "2"
            assert reply.header("x-ratelimit-remaining-requests") == str(remaining)
            assert reply.header("x-ratelimit-limit-tokens") == "100000"
            assert reply.header("x-ratelimit-reset-requests")
        with start_chat(server) as connection:
            refused = connection.reply()
        assert refused.status == 429
        assert refused.error()["code"] == "rate_limit_exceeded"
        assert 1 <= int(refused.header("retry-after") or 0) <= 60
        assert refused.header("x-ratelimit-remaining-requests") == "0"
        assert 0 < int(refused.header("x-ratelimit-remaining-tokens") or 0) <= 100_000  # it may be full again
        assert fetch(server, "/v1/models").status == 200  # not rate-limited


# HTTP.


def test_an_http_1_0_client_gets_a_stream_without_chunked_encoding(guarded: Running) -> None:
    body = chat_body(guarded, stream=True, max_tokens=4)
    received = send_raw(guarded, post_bytes(guarded, body, version="1.0"))
    trace = read_capture(received)
    assert trace.header("transfer-encoding") is None
    assert parse_valid(Reply(msgspec.structs.replace(trace, request=body))).choice.finish == "length"


@pytest.mark.parametrize("is_pipelined", [False, True], ids=["sequential", "pipelined"])
def test_one_connection_serves_several_requests(guarded: Running, is_pipelined: bool) -> None:
    bodies = [chat_body(guarded, f"Number {number}", stream=number != 1, max_tokens=4) for number in range(4)]
    requests = [post_bytes(guarded, body, *(["Connection: close"] if body is bodies[-1] else [])) for body in bodies]
    received = send_raw(guarded, b"".join(requests)) if is_pipelined else _send_in_turn(guarded, requests)
    raw_replies = split_replies(received)
    assert len(raw_replies) == len(bodies)
    for body, raw in zip(bodies, raw_replies, strict=True):
        assert parse_valid(Reply(msgspec.structs.replace(read_capture(raw), request=body))).choice.finish == "length"


def _send_in_turn(server: Running, requests: list[bytes]) -> bytes:
    """Send each request after the reply to the previous one, on one connection, and return all received bytes."""
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as connection:
        for number, data in enumerate(requests, 1):
            connection.sendall(data)
            while len(split_replies(received)) < number:
                piece = connection.recv(65536)
                assert piece
                received += piece
        assert connection.recv(1) == b""
    return received


def test_a_server_with_several_models_requires_a_model_name(tiny_model: Path, tmp_path: Path) -> None:
    tables = "".join(f'[models.{name}]\nfile = "{tiny_model}"\n' for name in ("one", "two"))
    (tmp_path / "welldone.toml").write_text(tables)
    body: Json = {"messages": [{"role": "user", "content": "Hello"}]}
    with serving([], folder=tmp_path, is_awaited=False) as server:
        assert fetch(server, CHAT, body).error()["code"] == "missing_model"
        assert fetch(server, CHAT, {**body, "model": "three"}).error()["code"] == "model_not_found"
