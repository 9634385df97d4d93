"""Static files of the page over HTTP: access, headers, caching."""

import gzip
import re
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.server import KEY, LIMIT_S, Running
from tests.web.stage import staged

POLICY = [
    "default-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "object-src 'none'",
    "require-trusted-types-for 'script'",
]


class Response(NamedTuple):
    """A response with its body."""

    head: HTTPResponse
    body: bytes

    @property
    def status(self) -> int:
        return self.head.status

    def header(self, name: str) -> str:
        """A header; empty if missing."""
        return self.head.getheader(name) or ""


def fetch(server: Running, path: str, *, method: str = "GET", **headers: str) -> Response:
    """Request exactly this path, without normalization."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        reply = connection.getresponse()
        return Response(reply, reply.read())
    finally:
        connection.close()


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server with a key."""
    with staged(tmp_path_factory.mktemp("locked"), key=KEY) as stage:
        yield stage.server


@pytest.fixture(scope="module")
def assets(locked: Running) -> list[str]:
    """Paths of all files that the document refers to."""
    found = re.findall(r'(?:href|src)="([^"#]+)"', fetch(locked, "/").body.decode())
    assert len(found) > 5
    return sorted({"/" + path.lstrip("./") for path in found})


def test_the_document_needs_no_key_and_names_no_models(locked: Running) -> None:
    reply = fetch(locked, "/")
    assert (reply.status, reply.header("Content-Type")) == (200, "text/html; charset=utf-8")
    assert b"scripted" not in reply.body


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/page/api/state", "GET"),
        ("/page/api/lint", "POST"),
        ("/page/api/rules/data-json", "GET"),
        ("/page/api/tapes/0123456789abcdef0123456789abcdef", "GET"),
        ("/page/api/recordings/1", "GET"),
        ("/models/load", "POST"),
        ("/models/unload", "POST"),
        ("/keys", "GET"),
        ("/keys", "POST"),
        ("/keys/ci", "DELETE"),
        ("/v1/models", "GET"),
    ],
)
def test_the_api_of_the_page_needs_the_key(locked: Running, path: str, method: str) -> None:
    assert fetch(locked, path, method=method).status == 401
    assert fetch(locked, path, method=method, Authorization="Bearer wrong").status == 401
    assert fetch(locked, path, method=method, Authorization=f"Bearer {KEY}").status != 401


def test_the_document_is_revalidated_and_its_files_are_immutable(locked: Running, assets: list[str]) -> None:
    assert fetch(locked, "/").header("Cache-Control") == "no-cache"
    for path in assets:
        reply = fetch(locked, path)
        assert (reply.status, "immutable" in reply.header("Cache-Control")) == (200, True), path


def test_paths_of_files_contain_one_version(assets: list[str]) -> None:
    versions = {re.fullmatch(r"/page/assets/([0-9a-f]{16})/[a-z/_-]+\.(?:js|css|svg)", path) for path in assets}
    assert len({found[1] for found in versions if found}) == 1
    assert None not in versions


def test_the_document_loads_nothing_but_its_own_files(assets: list[str]) -> None:
    assert all(path.startswith("/page/assets/") for path in assets)


def test_the_content_security_policy_allows_only_the_same_origin(locked: Running, assets: list[str]) -> None:
    for path in ["/", *assets]:
        reply = fetch(locked, path)
        assert reply.header("Content-Security-Policy").split("; ") == POLICY
        assert reply.header("X-Content-Type-Options") == "nosniff"
        assert reply.header("Referrer-Policy") == "no-referrer"
        assert reply.header("Cross-Origin-Resource-Policy") == "same-origin"


def test_files_are_compressed_if_the_client_accepts_gzip(locked: Running, assets: list[str]) -> None:
    for path in ["/", *assets]:
        plain, packed = fetch(locked, path), fetch(locked, path, Accept_Encoding="br, gzip")
        assert (plain.header("Content-Encoding"), packed.header("Content-Encoding")) == ("", "gzip")
        assert gzip.decompress(packed.body) == plain.body
        assert "accept-encoding" in packed.header("Vary").lower()
        assert fetch(locked, path, Accept_Encoding="gzip;q=0").body == plain.body


def test_a_matching_etag_gets_304(locked: Running, assets: list[str]) -> None:
    for path in ["/", *assets]:
        etag = fetch(locked, path).header("ETag")
        again = fetch(locked, path, If_None_Match=etag)
        assert (again.status, again.body, again.header("ETag")) == (304, b"", etag)
        assert fetch(locked, path, If_None_Match='"another"').status == 200


def test_head_returns_headers_without_a_body(locked: Running, assets: list[str]) -> None:
    for path in ["/", assets[0]]:
        whole, head = fetch(locked, path), fetch(locked, path, method="HEAD")
        assert (head.status, head.body) == (200, b"")
        assert head.header("ETag") == whole.header("ETag")


@pytest.mark.parametrize(
    "path",
    [
        "/index.html",
        "/page",
        "/page/assets/",
        "/page/assets/0000000000000000/js/main.js",
        "/page/assets/{version}/",
        "/page/assets/{version}/index.html",
        "/page/assets/{version}/js/none.js",
        "/page/assets/{version}/../../site.py",
        "/page/assets/{version}/..%2f..%2fsite.py",
        "/page/assets/{version}/%2e%2e/site.py",
        "/page/assets/../../etc/passwd",
        "/page/assets//etc/passwd",
        "/page/assets/{version}/js/main.js%00.css",
        "/page/assets/{version}/js\\main.js",
    ],
)
def test_other_paths_are_not_found(locked: Running, assets: list[str], path: str) -> None:
    reply = fetch(locked, path.format(version=assets[0].split("/")[3]), Authorization=f"Bearer {KEY}")
    assert (reply.status, reply.header("Content-Type")) == (404, "application/json")


def test_no_page_serves_no_files(tmp_path: Path) -> None:
    with staged(tmp_path, "--no-page") as stage:
        reply = fetch(stage.server, "/")
        assert "html" not in reply.header("Content-Type")
        for path in ("/page/api/state", "/page/api/rules/data-json", "/page/assets/1/js/main.js"):
            assert fetch(stage.server, path).status == 404, path
