"""Connections to upstreams: TLS with private certificates, IPv6 and HTTP/1.0."""

import socket
from pathlib import Path

import pytest

from tests.http.certificates import make_pair
from tests.support.faults import chat_once, start_chat
from tests.support.raw import STREAM
from tests.support.upstream import chat_text, gateway, proxy, upstream

pytestmark = pytest.mark.tier3


def has_ipv6() -> bool:
    """Whether this machine can listen on ::1."""
    try:
        with socket.socket(socket.AF_INET6) as listener:
            listener.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.fixture(name="folder")
def gateway_folder(tmp_path: Path) -> Path:
    """Working directory of the gateway, apart from the certificates."""
    folder = tmp_path / "gateway"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
@STREAM
def test_an_upstream_over_tls_works_like_any_other(tmp_path: Path, folder: Path, host: str, stream: bool) -> None:
    pair = make_pair(tmp_path)
    with upstream() as one, proxy(one, tls=pair.serving()) as tls:
        each = {"ca_file": str(pair.certificate), "key": "canary-of-tls-0123"}
        with gateway(folder, f"https://{host}:{tls.port}/v1", each=each) as server:
            for _ in range(3):
                assert chat_text(server, stream=stream) == "Hello"
            assert {request.headers["authorization"] for request in one.posts()} == {"Bearer canary-of-tls-0123"}
            assert server.end() == 0
            assert "Traceback" not in server.log.join()


@pytest.mark.parametrize("mismatch", ["another certificate", "no ca_file", "another name"])
@STREAM
def test_an_untrusted_certificate_is_a_502_and_no_request_is_sent(
    tmp_path: Path, folder: Path, mismatch: str, stream: bool
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    names = "DNS:somewhere.else" if mismatch == "another name" else "DNS:localhost,IP:127.0.0.1"
    pair = make_pair(tmp_path, names=names)
    trusted = make_pair(other) if mismatch == "another certificate" else pair
    each = {"key": "canary-of-tls-0123"} | ({} if mismatch == "no ca_file" else {"ca_file": str(trusted.certificate)})
    with (
        upstream() as one,
        proxy(one, tls=pair.serving()) as tls,
        gateway(folder, f"https://127.0.0.1:{tls.port}/v1", each=each) as server,
    ):
        for _ in range(2):
            with start_chat(server, stream=stream) as connection:
                reply = connection.reply()
            assert reply.status == 502
            assert reply.error()["code"] == "upstream_unreachable"
            assert (
                reply.error()["message"] == "The upstream cannot be reached: the server's certificate is not trusted."
            )
        assert one.posts() == []
        assert server.end() == 0
        assert "Traceback" not in server.log.join()


def test_the_insecure_setting_skips_the_certificate_check(tmp_path: Path, folder: Path) -> None:
    pair = make_pair(tmp_path, names="DNS:somewhere.else")
    with (
        upstream() as one,
        proxy(one, tls=pair.serving()) as tls,
        gateway(folder, f"https://127.0.0.1:{tls.port}/v1", each={"insecure": True}) as server,
    ):
        assert chat_once(server).text == "Hello"


def test_tls_on_a_plain_http_url_is_a_502(tmp_path: Path, folder: Path) -> None:
    pair = make_pair(tmp_path)
    with (
        upstream() as one,
        proxy(one, tls=pair.serving()) as tls,
        gateway(folder, f"http://127.0.0.1:{tls.port}/v1") as server,
        start_chat(server) as connection,
    ):
        reply = connection.reply()
        assert reply.status == 502
        assert reply.error()["code"] == "upstream_died"


@STREAM
@pytest.mark.parametrize("model", ["http-1.0", "no-length", "close-after"])
def test_a_reply_that_ends_with_its_connection_is_complete(tmp_path: Path, model: str, stream: bool) -> None:
    with upstream() as one, gateway(tmp_path, one.url) as server:
        for _ in range(3):
            assert chat_text(server, model=model, stream=stream) == "Hello"
        assert len(one.posts()) == 3


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_an_upstream_with_an_ipv6_address_works(tmp_path: Path) -> None:
    with upstream() as one, proxy(one, host="::1") as ipv6:
        url = f"http://[::1]:{ipv6.port}/v1"
        with gateway(tmp_path, url) as server:
            assert chat_once(server).text == "Hello"
            assert one.posts()[0].headers["host"] == f"[::1]:{ipv6.port}"
