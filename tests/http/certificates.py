"""Certificates for tests, made by the openssl program."""

import shutil
import ssl
import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.http.aio import LIMIT_S


class Pair(msgspec.Struct, frozen=True):
    """A certificate that has signed itself, and its key."""

    certificate: Path
    key: Path

    def serving(self) -> ssl.SSLContext:
        """What a server needs to show it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


def make_pair(folder: Path, *, names: str = "DNS:localhost,IP:127.0.0.1") -> Pair:
    """A certificate for names; the test is skipped where there is no openssl."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("there is no openssl program here to make a certificate with")
    pair = Pair(folder / "cert.pem", folder / "key.pem")
    words = [program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-days", "2", "-subj", "/CN=test", "-addext", f"subjectAltName={names}"]
    words += ["-keyout", str(pair.key), "-out", str(pair.certificate)]
    subprocess.run(words, check=True, capture_output=True, timeout=LIMIT_S)
    return pair
