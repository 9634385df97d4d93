"""The running server that a command asks: its address, and what its replies and errors mean."""

import msgspec

from welldone.cli import ui
from welldone.cli.option_types import server_key
from welldone.cli.serve import read_server_config
from welldone.cli.ui import UsageError
from welldone.http.address import Address, parse_url
from welldone.http.connect import HttpClientError
from welldone.protocol.lenient_json import as_object


def find_running_server(url: str | None, key: str | None, config_file: str | None) -> tuple[str, Address]:
    """Return the URL of a running server, and its address with a key: those given, else those of the settings.

    Raises:
        UsageError: the URL or the settings are not valid.
    """
    key = server_key(key)
    if url is None:
        config = read_server_config(config_file)
        server = config.server
        url = ui.server_url(server.host, server.port, is_tls=server.ssl_cert_file is not None)
        keys = (key, *server.api_keys, *(named.key for named in config.keys if named.admin))
        key = next(filter(None, keys), None)
    return url, root_address(url, key)


def root_address(url: str, key: str | None) -> Address:
    """Return the address of a server, whose URL may end in /v1. Raises `UsageError`."""
    try:
        return parse_url(url.rstrip("/").removesuffix("/v1"), key=key)
    except ValueError as error:
        raise UsageError(str(error)) from None


def untrusted_message(url: str, error: HttpClientError) -> str:
    """Return what to do about a certificate that is not trusted."""
    return (
        f"the certificate of the server at {url} is not trusted: {error.detail}; "
        "if it is yours, name its file in SSL_CERT_FILE"
    )


def error_field(body: bytes, name: str) -> str:
    """Return a field of the error in a reply; empty if there is none."""
    try:
        value = as_object(as_object(msgspec.json.decode(body)).get("error")).get(name)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return value if isinstance(value, str) else ""
