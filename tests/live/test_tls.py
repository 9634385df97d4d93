"""The same over TLS."""

import re
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.live.faults import post, request, small, speak
from tests.live.raw import Reply, judged
from tests.live.server import LIMIT_S
from tests.live.test_start import UNREACHABLE, mistake
from welldone.cli.main import run
from welldone.rules.trace import read_capture

pytestmark = pytest.mark.tier2


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for this machine that it has signed itself, and its key."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("there is no openssl program here to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    words = [program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(
        [*words, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True, timeout=LIMIT_S
    )
    return certificate, key


def openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=LIMIT_S)


def test_a_key_that_wants_a_passphrase_is_said_in_a_line_and_nobody_is_asked(
    tiny_model: Path, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    certificate, key = pair
    locked = tmp_path / "locked.pem"
    openssl("pkey", "-in", str(key), "-aes256", "-passout", "pass:hunter2", "-out", str(locked))
    line = mistake("-m", str(tiny_model), "--ssl-cert-file", str(certificate), "--ssl-key-file", str(locked))
    assert "locked.pem is encrypted" in line


def test_files_of_tls_that_do_not_fit_are_named(tiny_model: Path, pair: tuple[Path, Path], tmp_path: Path) -> None:
    certificate, key = pair
    other = tmp_path / "other.pem"
    openssl("genpkey", "-algorithm", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-out", str(other))
    for cert, own, said in (
        (certificate, other, "other.pem does not belong"),
        (certificate, certificate, "the key in .*cert.pem is no private key"),
        (key, key, "key.pem holds no certificate"),
    ):
        line = mistake("-m", str(tiny_model), "--ssl-cert-file", str(cert), "--ssl-key-file", str(own))
        assert re.search(said, line)


def test_a_list_of_models_names_a_certificate_that_is_not_trusted(
    tiny_model: Path, pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    certificate, key = pair
    with small(tiny_model, "--ssl-cert-file", str(certificate), "--ssl-key-file", str(key)) as server:
        assert run(["models", "--url", server.root]) == UNREACHABLE
    assert f"the certificate of the server at {server.root} is not trusted" in capsys.readouterr().err


def test_a_stream_over_tls_is_the_same(tiny_model: Path, pair: tuple[Path, Path]) -> None:
    certificate, key = pair
    context = ssl.create_default_context(cafile=str(certificate))
    options = ["--ssl-cert-file", str(certificate), "--ssl-key-file", str(key)]
    with small(tiny_model, *options) as server:
        assert server.url.startswith("https://127.0.0.1:")
        body = request(server, stream=True, max_tokens=8)
        heard = b""
        with (
            socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            assert connection.version() in ("TLSv1.2", "TLSv1.3")
            connection.sendall(post(server, body, "Connection: close"))
            while data := connection.recv(65536):
                heard += data
        assert judged(Reply(msgspec.structs.replace(read_capture(heard), request=body))).one.finish == "length"
        # Who speaks without TLS hears nothing that could be taken for an answer.
        assert b"HTTP/1.1 200" not in speak(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert server.end() == 0
        assert "Traceback" not in server.log.join()
