"""How upstreams are reached: over TLS with a certificate of one's own, over IPv6, and with an old HTTP."""

import socket
from pathlib import Path

import pytest

from tests.http.certificates import make_pair
from tests.live.faults import answer, begin
from tests.live.raw import STREAM
from tests.live.upstream import front, gateway, said, upstream

pytestmark = pytest.mark.tier3


def has_ipv6() -> bool:
    """Whether this machine can listen on its own IPv6 address."""
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.fixture(name="folder")
def own_folder(tmp_path: Path) -> Path:
    """For the gateway: certificates stand beside it."""
    folder = tmp_path / "gateway"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
@STREAM
def test_an_upstream_over_tls_is_asked_like_any_other(tmp_path: Path, folder: Path, host: str, stream: bool) -> None:
    pair = make_pair(tmp_path)
    with upstream() as one, front(one, tls=pair.serving()) as tls:
        each = {"ca_file": str(pair.certificate), "key": "canary-of-tls-0123"}
        with gateway(folder, f"https://{host}:{tls.port}/v1", each=each) as server:
            for _ in range(3):
                assert said(server, stream=stream) == "Hello"
            assert {seen.headers["authorization"] for seen in one.posts()} == {"Bearer canary-of-tls-0123"}
            assert server.end() == 0
            assert "Traceback" not in server.log.join()


@pytest.mark.parametrize("wrong", ["another certificate", "none", "another name"])
@STREAM
def test_a_certificate_that_is_not_trusted_is_told_and_nothing_is_sent(
    tmp_path: Path, folder: Path, wrong: str, stream: bool
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    names = "DNS:somewhere.else" if wrong == "another name" else "DNS:localhost,IP:127.0.0.1"
    pair = make_pair(tmp_path, names=names)
    trusted = make_pair(other) if wrong == "another certificate" else pair
    each = {"key": "canary-of-tls-0123"} | ({} if wrong == "none" else {"ca_file": str(trusted.certificate)})
    with (
        upstream() as one,
        front(one, tls=pair.serving()) as tls,
        gateway(folder, f"https://127.0.0.1:{tls.port}/v1", each=each) as server,
    ):
        for _ in range(2):
            with begin(server, stream=stream) as line:
                reply = line.reply()
            assert reply.status == 502
            assert reply.error()["code"] == "upstream_unreachable"
            assert (
                reply.error()["message"] == "The upstream cannot be reached: the server's certificate is not trusted."
            )
        assert one.posts() == []
        assert server.end() == 0
        assert "Traceback" not in server.log.join()


def test_who_does_not_want_to_check_a_certificate_need_not(tmp_path: Path, folder: Path) -> None:
    pair = make_pair(tmp_path, names="DNS:somewhere.else")
    with (
        upstream() as one,
        front(one, tls=pair.serving()) as tls,
        gateway(folder, f"https://127.0.0.1:{tls.port}/v1", each={"insecure": True}) as server,
    ):
        assert answer(server).text == "Hello"


def test_tls_where_it_is_not_expected_is_an_honest_error(tmp_path: Path, folder: Path) -> None:
    pair = make_pair(tmp_path)
    with (
        upstream() as one,
        front(one, tls=pair.serving()) as tls,
        gateway(folder, f"http://127.0.0.1:{tls.port}/v1") as server,
        begin(server) as line,
    ):
        reply = line.reply()
        assert reply.status == 502
        assert reply.error()["code"] == "upstream_died"


@STREAM
@pytest.mark.parametrize("model", ["http-1.0", "no-length", "close-after"])
def test_a_reply_that_ends_with_its_connection_is_whole(tmp_path: Path, model: str, stream: bool) -> None:
    with upstream() as one, gateway(tmp_path, one.url) as server:
        for _ in range(3):
            assert said(server, model=model, stream=stream) == "Hello"
        assert len(one.posts()) == 3


@pytest.mark.skipif(not has_ipv6(), reason="there is no IPv6 on this machine")
def test_an_upstream_with_an_address_of_ipv6(tmp_path: Path) -> None:
    with upstream() as one, front(one, host="::1") as there:
        url = f"http://[::1]:{there.port}/v1"
        with gateway(tmp_path, url) as server:
            assert answer(server).text == "Hello"
            assert one.posts()[0].headers["host"] == f"[::1]:{there.port}"
