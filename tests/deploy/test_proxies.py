"""The files for nginx and Caddy: streams, errors, WebSockets and the page pass through the real programs unchanged."""

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.deploy.manifests import ROOT
from tests.deploy.proxies import (
    CADDY_FILE,
    CLIENT_ADDRESS,
    NGINX_FILE,
    SITE,
    Edits,
    GatedUpstream,
    Proxy,
    RunningProxy,
    caddy,
    gated_upstream,
    nginx,
)
from tests.support.faults import chat_body, start_chat
from tests.support.raw import CHAT, Json, RawConnection, Reply, fetch, parse_valid
from tests.support.server import KEY, LIMIT_S, Running
from tests.support.upstream import REPLIES, Upstream, gateway, upstream
from welldone.config.server import ServeSettings

DOCUMENT = (ROOT / "docs" / "proxies.md").read_text()
PROXIES: dict[str, Proxy] = {"nginx": nginx, "caddy": caddy}
EACH_PROXY = pytest.mark.parametrize("start", PROXIES.values(), ids=PROXIES.keys())
ORIGIN = {"Origin": f"https://{SITE}"}
LIMITED_KEYS = {name: {"Authorization": f"Bearer wd-limited-{name}"} for name in PROXIES}
"""Keys without admin rights, with a request per minute: for each proxy its own, since they share the gateway."""


def documented(language: str, containing: str) -> str:
    """The code block of docs/proxies.md that contains a text."""
    blocks: list[str] = re.findall(rf"(?ms)^```{language}\n(.*?)^```$", DOCUMENT)
    (block,) = (block for block in blocks if containing in block)
    return block


@pytest.fixture(scope="module")
def scripted() -> Iterator[Upstream]:
    """An upstream for each model but `gated`."""
    with upstream() as running:
        yield running


@pytest.fixture(scope="module")
def gated() -> Iterator[GatedUpstream]:
    """The upstream of the model `gated`."""
    with gated_upstream() as running:
        yield running


@pytest.fixture
def gate(gated: GatedUpstream) -> Iterator[threading.Semaphore]:
    """The gate of the next request for the model `gated`."""
    gated.gate = threading.Semaphore(0)
    yield gated.gate
    gated.gate.release(len(gated.words) + 1)


@pytest.fixture(scope="module")
def backend(scripted: Upstream, gated: GatedUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway with the documented settings."""
    tables = [documented("toml", "allowed_hosts")]
    tables += [f'[upstreams.gated]\nurl = "{gated.url}"\nmodels = ["gated"]\nprobe_s = 0\n']
    tables += [f'[keys.{name}]\nkey = "wd-limited-{name}"\nrequests_per_minute = 1\n' for name in PROXIES]
    with gateway(
        tmp_path_factory.mktemp("gateway"),
        scripted.url,
        each={"models": ["hello", *REPLIES]},
        more="".join(tables),
        options=["--keep-alive", "0.25"],
        environment={"CHAT_KEY": KEY},
    ) as running:
        yield running


@pytest.fixture(scope="module", params=PROXIES)
def proxy(
    request: pytest.FixtureRequest, backend: Running, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningProxy]:
    """Each proxy with its file."""
    with PROXIES[request.param](tmp_path_factory.mktemp("proxy"), backend) as running:
        yield running


# Streams.

GATED: Json = {"model": "gated", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize("path", [CHAT, "/api/chat", "/v1/audio/speech"])
def test_a_chunk_arrives_before_the_upstream_sends_the_next_one(
    path: str, proxy: RunningProxy, gated: GatedUpstream, gate: threading.Semaphore
) -> None:
    accepts_gzip = {"Accept-Encoding": "gzip"}
    with RawConnection(proxy, path, GATED, headers=accepts_gzip) as connection:
        for word in gated.words:
            gate.release()
            connection.wait(word.encode())
        gate.release()
        reply = connection.reply()
    if path == CHAT:
        assert parse_valid(reply).text == "".join(gated.words)
        assert reply.trace.body.endswith(b"data: [DONE]\n\n")
    elif path == "/api/chat":
        assert json.loads(reply.trace.body.splitlines()[-1])["done"] is True


def test_a_silent_stream_has_comments_and_its_end(
    proxy: RunningProxy, gated: GatedUpstream, gate: threading.Semaphore
) -> None:
    with RawConnection(proxy, CHAT, GATED) as connection:
        gate.release()
        connection.wait(rb"(?s)word-0(.*: keep-alive\n\n){3}")
        gate.release(len(gated.words))
        assert parse_valid(connection.reply()).text == "".join(gated.words)


def test_comments_keep_a_stream_open_beyond_the_timeout_of_nginx(
    backend: Running, gated: GatedUpstream, gate: threading.Semaphore, tmp_path: Path
) -> None:
    with (
        nginx(tmp_path, backend, {"proxy_read_timeout 3600s": "proxy_read_timeout 4s"}) as proxy,
        RawConnection(proxy, CHAT, GATED) as connection,
    ):
        gate.release()
        connection.wait(b"word-0")
        # Without comments: the timeout ends a request that began after the silence of the stream.
        timed_out = fetch(proxy, CHAT, chat_body(proxy, model="stalls"))
        assert (timed_out.status, timed_out.trace.media_type) == (504, "text/html")
        gate.release(len(gated.words))
        assert parse_valid(connection.reply()).text == "".join(gated.words)


def test_a_client_that_disconnects_cancels_the_request_to_the_upstream(proxy: RunningProxy, scripted: Upstream) -> None:
    for stream in (True, False):
        with start_chat(proxy, model="stalls", stream=stream):
            scripted.wait_until_running(1)
        scripted.wait_until_running(0)


def open_socket(proxy: RunningProxy) -> ClientConnection:
    """A WebSocket for responses."""
    headers = {"Authorization": f"Bearer {KEY}"}
    return connect(f"ws://{SITE}/v1/responses", sock=proxy.connect(), additional_headers=headers, open_timeout=LIMIT_S)


def test_the_events_of_a_websocket_arrive_one_by_one(
    proxy: RunningProxy, gated: GatedUpstream, gate: threading.Semaphore
) -> None:
    with open_socket(proxy) as client:

        def receive(kind: str) -> Any:  # noqa: ANN401 - differs by kind
            while (event := json.loads(client.recv(LIMIT_S)))["type"] != kind:
                assert event["type"] != "error", event
            return event

        client.send(json.dumps({"type": "response.create", "model": "gated", "input": "Hi"}))
        for word in gated.words:
            gate.release()
            assert receive("response.output_text.delta")["delta"] == word
        gate.release()
        assert receive("response.completed")["response"]["status"] == "completed"


def test_clients_may_use_http_2(proxy: RunningProxy) -> None:
    with proxy.connect("h2", "http/1.1") as connection:
        assert connection.selected_alpn_protocol() == "h2"


# Requests and errors.


def test_a_large_request_arrives_complete(proxy: RunningProxy, scripted: Upstream) -> None:
    content = "a" * (ServeSettings().body_limit_bytes - 1000)
    assert fetch(proxy, CHAT, chat_body(proxy, content)).ok()["choices"]
    assert json.loads(scripted.posts()[-1].body)["messages"][0]["content"] == content


def test_behind_nginx_an_error_needs_no_complete_request(backend: Running, tmp_path: Path) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nHost: {SITE}\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
    with nginx(tmp_path, backend) as proxy, proxy.connect() as connection:
        connection.sendall(head.encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 401 ")


TOO_LONG = "a" * (ServeSettings().body_limit_bytes + 1)


@pytest.mark.parametrize(
    ("status", "path", "fields", "headers"),
    [
        (400, CHAT, {"messages": "Hi"}, {}),
        (401, CHAT, {}, {"Authorization": "Bearer wrong-key-0123456789"}),
        (403, CHAT, {}, {"Origin": "https://evil.example"}),
        (404, CHAT, {"model": "unknown"}, {}),
        (404, "/v1/unknown", {}, {}),
        (413, CHAT, {"content": TOO_LONG}, {}),
        (429, CHAT, {"model": "limited"}, {}),
    ],
)
def test_an_error_keeps_its_status_and_body(
    status: int, path: str, fields: Json, headers: dict[str, str], proxy: RunningProxy, backend: Running
) -> None:
    body = chat_body(backend, **fields)

    def parts(reply: Reply) -> tuple[int, Json, str | None]:
        return reply.status, reply.error(), reply.header("retry-after")

    through_proxy = parts(fetch(proxy, path, body, headers=headers))
    assert through_proxy == parts(fetch(backend, path, body, headers=headers))
    assert through_proxy[0] == status
    assert (through_proxy[2] is not None) == (status == 429)


def test_a_rate_limit_is_that_of_the_key_whatever_address_a_client_claims(proxy: RunningProxy) -> None:
    key = LIMITED_KEYS[proxy.name]
    addresses = {"X-Forwarded-For": "203.0.113.7", "X-Real-IP": "203.0.113.7", "Forwarded": "for=203.0.113.7"}
    first, second = (fetch(proxy, CHAT, chat_body(proxy), headers=headers) for headers in (key, {**key, **addresses}))
    assert first.status == 200
    assert (second.status, second.error()["code"]) == (429, "rate_limit_exceeded")
    assert 0 < int(second.header("retry-after") or 0) <= 60


@EACH_PROXY
def test_the_log_has_the_address_of_the_client_and_the_request_id_but_no_key(
    start: Proxy, scripted: Upstream, tmp_path: Path
) -> None:
    with gateway(tmp_path, scripted.url, options=["--allowed-hosts", SITE]) as server, start(tmp_path, server) as proxy:
        headers = {"x-api-key": KEY, "x-goog-api-key": KEY, "X-Forwarded-For": "203.0.113.7"}
        path = f"/v1beta/models/hello:generateContent?key={KEY}"
        body = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}
        answered = fetch(proxy, path, body, headers=headers)
        assert answered.status == 200, answered.trace.body
        request_id = answered.header("x-request-id")
        server.end()
        assert fetch(proxy, CHAT, chat_body(proxy), headers=headers).status == 502
        proxy.end()
    assert request_id is not None
    assert request_id in "\n".join(server.log.all)
    (line,) = [line for line in proxy.logged() if request_id in line]
    assert CLIENT_ADDRESS in line
    assert "generateContent" in line
    assert [line for line in proxy.logged() if KEY in line or "203.0.113.7" in line] == []


# Names and the page.


@EACH_PROXY
def test_a_name_that_welldone_does_not_know_is_refused_with_the_setting(
    start: Proxy, scripted: Upstream, tmp_path: Path
) -> None:
    with gateway(tmp_path, scripted.url) as server, start(tmp_path, server) as proxy:
        reply = fetch(proxy, "/v1/models")
    assert (reply.status, reply.error()["code"]) == (403, "host_not_allowed")
    assert SITE in reply.error()["message"]
    assert "--allowed-hosts" in reply.error()["message"]


def script_of(document: Reply) -> str:
    """The path of a script of the page, relative to the document."""
    found = re.search(rb'"(page/assets/[^"]+\.js)"', document.trace.body)
    assert found is not None
    return found[1].decode()


def test_the_page_and_its_files_arrive_unchanged(proxy: RunningProxy, backend: Running) -> None:
    def parts(running: Running) -> list[object]:
        document = fetch(running, "/")
        script = fetch(running, f"/{script_of(document)}", headers={"Accept-Encoding": "gzip"})
        assert script.header("content-encoding") == "gzip"
        return [document.trace.body, document.header("content-security-policy"), script.trace.body]

    assert parts(proxy) == parts(backend)


def test_the_page_can_use_the_api_and_an_admin_sees_the_server(proxy: RunningProxy) -> None:
    assert parse_valid(fetch(proxy, CHAT, chat_body(proxy, stream=True), headers=ORIGIN)).text == "Hello"
    reload = "/admin/reload"
    assert fetch(proxy, reload, {}, headers=ORIGIN).status == 200
    assert fetch(proxy, reload, {}, headers={**ORIGIN, **LIMITED_KEYS[proxy.name]}).error()["code"] == "not_allowed"


def edits_for_a_path() -> dict[str, Edits]:
    """The documented edits, by proxy."""
    location = "    location / {\n        proxy_pass http://welldone;\n"
    reverse_proxy = re.search(r"(?ms)^\treverse_proxy.*?^\t}\n", CADDY_FILE.read_text())
    assert reverse_proxy is not None
    return {
        "nginx": {location: documented("nginx", "/llm/")},
        "caddy": {reverse_proxy[0]: documented("caddyfile", "/llm/")},
    }


@pytest.mark.parametrize("name", PROXIES)
def test_welldone_can_be_below_a_path(name: str, backend: Running, tmp_path: Path) -> None:
    with PROXIES[name](tmp_path, backend, edits_for_a_path()[name]) as proxy:
        assert fetch(proxy, f"/llm/{script_of(fetch(proxy, '/llm/'))}").status == 200
        assert parse_valid(fetch(proxy, f"/llm{CHAT}", chat_body(proxy, stream=True))).text == "Hello"
        moved = fetch(proxy, "/llm")
        assert (moved.status // 100, (moved.header("location") or "").endswith("/llm/")) == (3, True)


# The lines of the files.


def test_without_its_host_line_nginx_gets_an_error_that_names_it(backend: Running, tmp_path: Path) -> None:
    with nginx(tmp_path, backend, {"proxy_set_header Host $host;": ""}) as proxy:
        reply = fetch(proxy, CHAT, chat_body(proxy))
    assert (reply.status, reply.error()["code"]) == (403, "host_not_allowed")
    assert "'welldone'" in reply.error()["message"]
    assert "A reverse proxy must forward the client's Host header." in reply.error()["message"]


def test_without_its_limit_nginx_refuses_bodies_with_a_web_page(backend: Running, tmp_path: Path) -> None:
    with nginx(tmp_path, backend, {"client_max_body_size 0;": ""}) as proxy:
        reply = fetch(proxy, CHAT, chat_body(proxy, "a" * 2**20))
    assert (reply.status, reply.trace.media_type) == (413, "text/html")


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("proxy_http_version 1.1;", 400),
        ("proxy_set_header Upgrade $http_upgrade;", 405),
        ("proxy_set_header Connection $welldone_connection;", 426),
    ],
)
def test_without_a_line_for_upgrades_a_websocket_is_refused(
    line: str, status: int, backend: Running, tmp_path: Path
) -> None:
    with nginx(tmp_path, backend, {line: ""}) as proxy, pytest.raises(InvalidStatus) as caught, open_socket(proxy):
        pass
    assert caught.value.response.status_code == status


def test_the_times_fit_those_of_welldone() -> None:
    settings = ServeSettings()
    files = {path: path.read_text() for path in (NGINX_FILE, CADDY_FILE)}
    (silence_s,) = re.findall(r"proxy_read_timeout (\d+)s;", files[NGINX_FILE])
    assert int(silence_s) > max(settings.keep_alive_s, settings.first_byte_s)
    times = re.findall(r"(?m)^\s+(?:keepalive_timeout|keepalive) (\d+)s;?$", "".join(files.values()))
    assert len(times) == len(files)
    assert max(map(int, times)) < settings.head_s
