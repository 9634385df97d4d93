"""The server over TLS, and errors about its certificate and key files."""

import re
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.live.test_start import UNREACHABLE, start_error
from tests.support.faults import chat_body, post_bytes, send_raw, small_server
from tests.support.raw import Reply, parse_valid
from tests.support.server import LIMIT_S
from welldone.cli.main import run
from welldone.rules.trace import read_capture

pytestmark = pytest.mark.tier2


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for localhost and its key."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("the openssl program is not installed")
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    command = [program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(
        [*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True, timeout=LIMIT_S
    )
    return certificate, key


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=LIMIT_S)


def test_an_encrypted_key_is_reported_in_one_line_without_a_passphrase_prompt(
    tiny_model: Path, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    certificate, key = pair
    locked = tmp_path / "locked.pem"
    openssl("pkey", "-in", str(key), "-aes256", "-passout", "pass:hunter2", "-out", str(locked))
    line = start_error("-m", str(tiny_model), "--ssl-cert-file", str(certificate), "--ssl-key-file", str(locked))
    assert "locked.pem is encrypted" in line


def test_tls_files_that_do_not_match_are_named(tiny_model: Path, pair: tuple[Path, Path], tmp_path: Path) -> None:
    certificate, key = pair
    other = tmp_path / "other.pem"
    openssl("genpkey", "-algorithm", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-out", str(other))
    for cert_file, key_file, pattern in (
        (certificate, other, "other.pem does not belong"),
        (certificate, certificate, "the key in .*cert.pem is not a usable private key"),
        (key, key, "key.pem does not hold a certificate"),
    ):
        line = start_error("-m", str(tiny_model), "--ssl-cert-file", str(cert_file), "--ssl-key-file", str(key_file))
        assert re.search(pattern, line)


def test_welldone_models_reports_an_untrusted_certificate(
    tiny_model: Path, pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    certificate, key = pair
    with small_server(tiny_model, "--ssl-cert-file", str(certificate), "--ssl-key-file", str(key)) as server:
        assert run(["models", "--url", server.root]) == UNREACHABLE
    assert f"the certificate of the server at {server.root} is not trusted" in capsys.readouterr().err


def test_a_stream_over_tls_is_valid(tiny_model: Path, pair: tuple[Path, Path]) -> None:
    certificate, key = pair
    context = ssl.create_default_context(cafile=str(certificate))
    options = ["--ssl-cert-file", str(certificate), "--ssl-key-file", str(key)]
    with small_server(tiny_model, *options) as server:
        assert server.url.startswith("https://127.0.0.1:")
        body = chat_body(server, stream=True, max_tokens=8)
        received = b""
        with (
            socket.create_connection(("127.0.0.1", server.port), LIMIT_S) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            assert connection.version() in ("TLSv1.2", "TLSv1.3")
            connection.sendall(post_bytes(server, body, "Connection: close"))
            while data := connection.recv(65536):
                received += data
        assert (
            parse_valid(Reply(msgspec.structs.replace(read_capture(received), request=body))).choice.finish == "length"
        )
        # A client without TLS receives no HTTP success.
        assert b"HTTP/1.1 200" not in send_raw(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert server.end() == 0
        assert "Traceback" not in server.log.join()
