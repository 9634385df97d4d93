"""Certificates for tests, created with the openssl program."""

import shutil
import ssl
import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.http.aio import LIMIT_S


class Pair(msgspec.Struct, frozen=True):
    """A self-signed certificate and its key."""

    certificate: Path
    key: Path

    def serving(self) -> ssl.SSLContext:
        """Return the TLS context of a server with this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


def make_pair(folder: Path, *, names: str = "DNS:localhost,IP:127.0.0.1") -> Pair:
    """Create a certificate for these names; without openssl the test is skipped."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("the openssl program is not installed")
    pair = Pair(folder / "cert.pem", folder / "key.pem")
    arguments = [program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    arguments += ["-days", "2", "-subj", "/CN=test", "-addext", f"subjectAltName={names}"]
    arguments += ["-keyout", str(pair.key), "-out", str(pair.certificate)]
    subprocess.run(arguments, check=True, capture_output=True, timeout=LIMIT_S)
    return pair
