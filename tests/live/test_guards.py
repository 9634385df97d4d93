"""Who may ask, from where, for what and how much; and HTTP as all kinds of clients speak it."""

import gzip
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.live.faults import answer, begin, post, replies, request, small, speak
from tests.live.raw import CHAT, Json, Line, Reply, ask, judged
from tests.live.routes import OPEN, all_routes
from tests.live.server import KEY, LIMIT_S, Running, serving
from welldone.gateway.errors import ErrorFormat
from welldone.rules.trace import read_capture

BEARER = f"Authorization: Bearer {KEY}"
OTHER = "Authorization: Bearer wd-somebody-elses-key"
PAGE = "https://app.example"
LIMIT_BYTES = 4096


@pytest.fixture(scope="module")
def guarded(tiny_model: Path) -> Iterator[Running]:
    """All that can be guarded: every path, pages of one site, and short bodies only."""
    options = ["--slots", "--cors-origins", PAGE, "--body-limit", str(LIMIT_BYTES), "--body-time", "1"]
    with small(tiny_model, *options) as running:
        yield running
        assert running.end() == 0


def say(server: Running, *lines: str, body: bytes = b"", host: str | None = None) -> Reply:
    """A request of exactly these lines, and its reply."""
    first, *rest = lines
    rest = [f"Host: {host or f'127.0.0.1:{server.port}'}", *rest, "Connection: close"]
    if body:
        rest.append(f"Content-Length: {len(body)}")
    return Reply(read_capture(speak(server, "\r\n".join([first, *rest, "", ""]).encode("latin-1") + body)))


# Keys.


def _says_key(reply: Reply, shape: ErrorFormat) -> bool:
    """Whether an error says, in the shape of its path, that it is about the key."""
    match shape:
        case ErrorFormat.OPENAI:
            return bool(reply.error()["code"] == "invalid_api_key")
        case ErrorFormat.ANTHROPIC:
            return bool(reply.json()["error"]["type"] == "authentication_error")
        case ErrorFormat.OLLAMA:
            return "API key" in reply.json()["error"]


@pytest.mark.parametrize("header", [None, OTHER, f"Authorization: Basic {KEY}", "x-api-key: wrong-key"])
def test_without_a_key_every_path_is_closed_but_health_and_the_page(
    guarded: Running, tmp_path: Path, header: str | None
) -> None:
    routes = all_routes(tmp_path)
    assert {path for path, route in routes.items() if route.is_public} == OPEN
    for path, route in routes.items():
        for prefix in ("", "/v1"):
            for method in route.handlers:
                reply = say(guarded, f"{method} {prefix}{path} HTTP/1.1", *([header] if header else []))
                if path in OPEN:
                    assert reply.status == (404 if path.endswith("*") else 200), path  # no file has that name
                else:
                    assert reply.status == 401, path
                    assert _says_key(reply, route.error_format), path
                    assert reply.header("www-authenticate") == "Bearer"
                    assert KEY not in reply.trace.body.decode()


def test_what_is_not_there_is_not_told_to_strangers(guarded: Running) -> None:
    for path in ("/nothing", "/v1/nothing", "/v1/models/x", "/props", "/v1/v1/models"):
        assert say(guarded, f"GET {path} HTTP/1.1").status == 401
        assert say(guarded, f"GET {path} HTTP/1.1", BEARER).status == 404


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([BEARER], 200),
        ([f"authorization: bearer {KEY}"], 200),
        ([f"x-api-key: {KEY}"], 200),
        ([f"api-key: {KEY}"], 200),
        ([BEARER, f"x-api-key: {KEY}"], 200),
        ([BEARER, "x-api-key: another-key"], 400),
        ([BEARER, OTHER], 400),
        ([f"Authorization: {KEY}"], 401),
        ([f"Authorization: Bearer {KEY}x"], 401),
        ([f"Authorization: Bearer {KEY[:-1]}"], 401),
        (["Authorization: Bearer "], 401),
        (["Authorization: Bearer \xff\xfe"], 401),
        ([f"Cookie: key={KEY}"], 401),
    ],
)
def test_a_key_counts_in_any_of_its_headers_and_nowhere_else(guarded: Running, headers: list[str], status: int) -> None:
    assert say(guarded, "GET /v1/models HTTP/1.1", *headers).status == status


def test_a_key_in_the_address_does_not_count(guarded: Running) -> None:
    assert say(guarded, f"GET /v1/models?api_key={KEY} HTTP/1.1").status == 401


@pytest.mark.parametrize("options", [(), ("--no-api-key",)], ids=["a key is made", "no key is wanted"])
def test_who_listens_to_others_has_a_key_unless_it_is_declined(tiny_model: Path, options: tuple[str, ...]) -> None:
    with small(tiny_model, "--host", "0.0.0.0", *options, key=None) as server:
        if options:
            server.said.wait("there is no API key")
            assert "wd-" not in "\n".join(server.said.all)
            assert ask(server, "/v1/models").status == 200
            return
        made = server.said.wait(r"API key +(wd-\S+)$")[1]
        server.said.wait(rf"Bearer {made}'")
        assert ask(server, "/v1/models").status == 401
        server.key = made
        assert ask(server, "/v1/models").status == 200
        assert server.end() == 0
        assert made not in server.log.join()


# Pages of other sites.


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
def test_only_its_own_names_reach_the_server(guarded: Running, host: str, status: int) -> None:
    for path in ("/health", "/v1/models"):
        assert say(guarded, f"GET {path} HTTP/1.1", BEARER, host=host).status == status


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
def test_a_page_of_another_site_may_not_ask(guarded: Running, origin: str, status: int) -> None:
    origin = origin.format(port=guarded.port)
    reply = say(guarded, "GET /v1/models HTTP/1.1", BEARER, f"Origin: {origin}")
    assert reply.status == status
    assert reply.header("access-control-allow-origin") == (PAGE if origin == PAGE else None)
    assert reply.header("access-control-allow-credentials") is None


def test_a_page_that_may_ask_is_told_so_on_streams_and_on_errors(guarded: Running) -> None:
    with Line(guarded, CHAT, request(guarded, stream=True, max_tokens=4), headers={"Origin": PAGE}) as line:
        reply = line.reply()
    assert judged(reply).one.finish == "length"
    failed = say(guarded, "GET /v1/nothing HTTP/1.1", BEARER, f"Origin: {PAGE}")
    assert failed.status == 404
    for one in (reply, failed):
        assert one.header("access-control-allow-origin") == PAGE
        assert one.header("vary") == "Origin"
        assert "x-request-id" in (one.header("access-control-expose-headers") or "")


def test_a_preflight_needs_no_key_and_opens_nothing_to_others(guarded: Running) -> None:
    wanted = ["Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization, content-type"]
    mine = say(guarded, f"OPTIONS {CHAT} HTTP/1.1", f"Origin: {PAGE}", *wanted)
    assert mine.status == 204
    assert mine.trace.body == b""
    assert mine.header("access-control-allow-origin") == PAGE
    assert "POST" in (mine.header("access-control-allow-methods") or "")
    assert mine.header("access-control-allow-headers") == "authorization, content-type"
    other = say(guarded, f"OPTIONS {CHAT} HTTP/1.1", "Origin: https://evil.example", *wanted)
    assert other.status == 403
    assert other.header("access-control-allow-origin") is None


def test_an_image_of_another_site_fetches_nothing(guarded: Running) -> None:
    assert say(guarded, "GET /metrics HTTP/1.1", BEARER, "Sec-Fetch-Site: cross-site").status == 403
    assert say(guarded, "GET / HTTP/1.1", "Sec-Fetch-Site: cross-site").status == 200


# What may be asked.


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_a_path_says_which_methods_it_takes(guarded: Running, method: str) -> None:
    reply = say(guarded, f"{method} {CHAT} HTTP/1.1", BEARER)
    assert reply.status == 405
    assert reply.header("allow") == "POST"


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions", "/v1/messages"])
def test_a_websocket_handshake_is_refused_with_426(guarded: Running, path: str) -> None:
    wanted = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: eDM0MDk=")
    reply = say(guarded, f"GET {path} HTTP/1.1", BEARER, *wanted)
    assert reply.status == 426
    assert reply.header("upgrade") == "HTTP/1.1"
    assert "WebSocket" in json.loads(reply.trace.body)["error"]["message"]
    assert say(guarded, f"GET {path} HTTP/1.1", *wanted).status == 401
    assert say(guarded, "GET /v1/models HTTP/1.1", BEARER, *wanted).status == 200


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/metrics", "/"])
def test_a_head_is_a_get_without_its_body(guarded: Running, path: str) -> None:
    reply = say(guarded, f"HEAD {path} HTTP/1.1", BEARER)
    assert reply.status == 200
    assert reply.trace.body == b""
    assert int(reply.header("content-length") or 0) > 0


@pytest.mark.parametrize("name", ["../../../../etc/passwd", "..%2f..%2fetc%2fpasswd", "/etc/passwd", "tiny.gguf", "."])
def test_the_name_of_a_model_is_never_a_path(guarded: Running, name: str) -> None:
    shown = ask(guarded, f"/v1/models/{name}")
    asked = ask(guarded, CHAT, {**request(guarded), "model": name})
    for reply in (shown, asked):
        assert reply.status == 404
        assert b"root:" not in reply.trace.body
    assert asked.error()["code"] == "model_not_found"


# Bodies.


def body_of(server: Running, *headers: str, body: bytes) -> Reply:
    return say(server, f"POST {CHAT} HTTP/1.1", BEARER, *headers, body=body)


def test_a_body_over_the_limit_is_not_read(guarded: Running) -> None:
    told = speak(guarded, post(guarded, {}).replace(b"Length: 2", b"Length: 1000000000"))
    assert read_capture(told).status == 413
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{BEARER}\r\nContent-Type: application/json\r\n"
    pieces = b"400\r\n" + b" " * 1024 + b"\r\n"
    grown = speak(guarded, f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + pieces * 5)
    assert read_capture(grown).status == 413


def test_a_body_that_does_not_come_is_not_waited_for(guarded: Running) -> None:
    assert read_capture(speak(guarded, post(guarded, {}).replace(b"Length: 2", b"Length: 20"))).status == 408


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
def test_a_body_is_plain_json(guarded: Running, headers: list[str], body: bytes, status: int) -> None:
    reply = body_of(guarded, *headers, body=body)
    assert reply.status == status
    assert reply.error()["type"] == "invalid_request_error"


def test_a_body_may_come_in_chunks_after_a_question(guarded: Running) -> None:
    data = json.dumps(request(guarded, max_tokens=4)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{BEARER}\r\nContent-Type: application/json\r\n"
    head += "Transfer-Encoding: chunked\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    framed = b"".join(b"%x\r\n%b\r\n" % (len(data[at : at + 7]), data[at : at + 7]) for at in range(0, len(data), 7))
    heard = speak(guarded, head.encode() + framed + b"0\r\n\r\n")
    assert heard.startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
    reply = Reply(msgspec.structs.replace(read_capture(heard), request=json.loads(data)))
    assert judged(reply).one.finish == "length"


# Requests by their names, and how many there may be.


@pytest.mark.parametrize(("given", "is_kept"), [("my-id_1", True), ("a" * 129, False), ("a b", False), ("\xe9", False)])
def test_a_request_keeps_the_id_that_its_client_gave(guarded: Running, given: str, is_kept: bool) -> None:
    found = say(guarded, "GET /v1/models HTTP/1.1", BEARER, f"x-request-id: {given}").header("x-request-id")
    assert found is not None
    assert (found == given) is is_kept
    assert is_kept or found.startswith("req_")


def test_each_request_without_an_id_gets_one(guarded: Running) -> None:
    ids = {ask(guarded, path).header("x-request-id") for path in ("/v1/models", "/nothing", "/health", CHAT)}
    assert len(ids) == 4
    assert None not in ids


def test_who_asks_too_often_is_told_when_to_come_again(tiny_model: Path) -> None:
    with small(tiny_model, "--requests-per-minute", "2", "--tokens-per-minute", "100000") as server:
        for left in (1, 0):
            reply = answer(server, stream=left == 1).reply
            assert reply.header("x-ratelimit-limit-requests") == "2"
            assert reply.header("x-ratelimit-remaining-requests") == str(left)
            assert reply.header("x-ratelimit-limit-tokens") == "100000"
            assert reply.header("x-ratelimit-reset-requests")
        with begin(server) as line:
            refused = line.reply()
        assert refused.status == 429
        assert refused.error()["code"] == "rate_limit_exceeded"
        assert 1 <= int(refused.header("retry-after") or 0) <= 60
        assert refused.header("x-ratelimit-remaining-requests") == "0"
        assert int(refused.header("x-ratelimit-remaining-tokens") or 0) < 100_000  # what the first two took
        assert ask(server, "/v1/models").status == 200  # looking costs nothing


# HTTP.


def test_a_client_of_http_1_0_gets_its_stream_without_chunks(guarded: Running) -> None:
    body = request(guarded, stream=True, max_tokens=4)
    heard = speak(guarded, post(guarded, body, version="1.0"))
    trace = read_capture(heard)
    assert trace.header("transfer-encoding") is None
    assert judged(Reply(msgspec.structs.replace(trace, request=body))).one.finish == "length"


@pytest.mark.parametrize("is_at_once", [False, True], ids=["one after the other", "all at once"])
def test_one_connection_carries_several_requests(guarded: Running, is_at_once: bool) -> None:
    bodies = [request(guarded, f"Number {number}", stream=number != 1, max_tokens=4) for number in range(4)]
    said = [post(guarded, body, *(["Connection: close"] if body is bodies[-1] else [])) for body in bodies]
    heard = speak(guarded, b"".join(said)) if is_at_once else _in_turn(guarded, said)
    found = replies(heard)
    assert len(found) == len(bodies)
    for body, raw in zip(bodies, found, strict=True):
        assert judged(Reply(msgspec.structs.replace(read_capture(raw), request=body))).one.finish == "length"


def _in_turn(server: Running, said: list[bytes]) -> bytes:
    """All replies on one connection, each request sent when the one before is answered."""
    heard = b""
    with socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as connection:
        for number, one in enumerate(said, 1):
            connection.sendall(one)
            while len(replies(heard)) < number:
                data = connection.recv(65536)
                assert data
                heard += data
        assert connection.recv(1) == b""
    return heard


def test_a_server_with_several_models_wants_to_know_which(tiny_model: Path, tmp_path: Path) -> None:
    tables = "".join(f'[models.{name}]\nfile = "{tiny_model}"\n' for name in ("one", "two"))
    (tmp_path / "welldone.toml").write_text(tables)
    body: Json = {"messages": [{"role": "user", "content": "Hello"}]}
    with serving([], folder=tmp_path, is_awaited=False) as server:
        assert ask(server, CHAT, body).error()["code"] == "missing_model"
        assert ask(server, CHAT, {**body, "model": "three"}).error()["code"] == "model_not_found"
