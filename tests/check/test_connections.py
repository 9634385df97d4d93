"""Connections: TLS and trusted certificates, IPv6, other base paths, and no proxy."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.check.serving import TEST_TIMEOUTS
from tests.http.aio import run, serving
from tests.http.certificates import make_pair
from welldone.check.discovery import CheckUnreachableError
from welldone.check.report import Report, Verdict
from welldone.check.run import check
from welldone.check.settings import CheckSettings
from welldone.http.address import normalize_base_url
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.script import with_raw_http
from welldone.mock.server import MockHttpRequest


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request with the reference server, below any path."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        method, path, _ = first.split()
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        http_request = MockHttpRequest(
            method, "/v1/" + path.removeprefix("/some/api/").removeprefix("/v1/"), headers, body.decode()
        )
        for piece in with_raw_http(ReferenceServer().answer(http_request)).pieces:
            writer.write(piece.data)
        await writer.drain()
    writer.close()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        await writer.wait_closed()


@contextlib.asynccontextmanager
async def _listening(host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    answers: list[asyncio.Future[None]] = []

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers.append(asyncio.ensure_future(_answer(reader, writer)))

    server = await asyncio.start_server(connected, host, 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.gather(*answers)


async def _check(url: str, **settings: Any) -> Report:  # noqa: ANN401 - any setting
    return await check(
        CheckSettings(url=normalize_base_url(url), only=("text-whole",), timeouts=TEST_TIMEOUTS, **settings)
    )


async def _check_tls(tls: ssl.SSLContext, **settings: Any) -> Report:  # noqa: ANN401 - any setting
    async with _listening(tls=tls) as port:
        return await _check(f"https://127.0.0.1:{port}", **settings)


@pytest.mark.tier2
def test_a_certificate_in_the_ca_file_is_trusted(tmp_path: Path) -> None:
    pair = make_pair(tmp_path)
    assert run(_check_tls(pair.serving(), ca_file=str(pair.certificate))).verdict is Verdict.PASS


@pytest.mark.tier2
def test_any_certificate_is_trusted_with_insecure(tmp_path: Path) -> None:
    assert run(_check_tls(make_pair(tmp_path).serving(), is_verified=False)).verdict is Verdict.PASS


@pytest.mark.tier2
def test_an_unknown_certificate_is_not_trusted(tmp_path: Path) -> None:
    with pytest.raises(CheckUnreachableError, match=r"certificate is not trusted; trust it with --ca-file FILE$"):
        run(_check_tls(make_pair(tmp_path).serving()))


@pytest.mark.tier2
def test_a_certificate_for_another_host_is_not_trusted(tmp_path: Path) -> None:
    pair = make_pair(tmp_path, names="DNS:elsewhere.test")
    with pytest.raises(CheckUnreachableError, match="certificate is not trusted"):
        run(_check_tls(pair.serving(), ca_file=str(pair.certificate)))


def test_a_server_without_tls_is_reported() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def work() -> None:
        async with serving(refuse) as port:
            await _check(f"https://127.0.0.1:{port}")

    with pytest.raises(
        CheckUnreachableError, match="the TLS handshake with the server failed; does the server use TLS"
    ):
        run(work())


@pytest.mark.parametrize(
    ("host", "form"),
    [
        ("127.0.0.1", "127.0.0.1:{}"),
        ("127.0.0.1", "http://127.0.0.1:{}/"),
        ("127.0.0.1", "http://127.0.0.1:{}/v1/"),
        ("127.0.0.1", "http://127.0.0.1:{}/some/api"),
        ("127.0.0.1", "localhost:{}"),
        ("::1", "http://[::1]:{}/v1"),
        ("::1", "[::1]:{}"),
    ],
)
def test_every_form_of_a_url_is_accepted(host: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def work() -> Report:
        try:
            listening = _listening(host)
            port = await listening.__aenter__()
        except OSError:
            pytest.skip(f"{host} is not available")
        try:
            return await _check(form.format(port))
        finally:
            await listening.__aexit__(None, None, None)

    assert run(work()).verdict is Verdict.PASS
