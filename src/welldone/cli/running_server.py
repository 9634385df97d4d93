"""The running server that a command asks: its address, requests to it, and what its replies and errors mean."""

import msgspec

from welldone.cli import ui
from welldone.cli.option_types import server_key
from welldone.cli.serve import read_server_config
from welldone.core.lenient_json import as_object
from welldone.http.address import Address, parse_url
from welldone.http.connect import HttpClientError
from welldone.http.recording_client import RecordedResponse, record_response

_MAX_REPLY_BYTES = 16 * 2**20  # hundreds of upstreams and models


class RunningServerError(Exception):
    """The server does not answer, or not as expected. The message says why, and what to do."""


class NoServerError(RunningServerError):
    """No server answers at the URL."""


def find_running_server(
    url: str | None, key: str | None, config_file: str | None, ca_file: str | None
) -> tuple[str, Address]:
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
    return url, root_address(url, key, ca_file)


def root_address(url: str, key: str | None, ca_file: str | None) -> Address:
    """Return the address of a server, whose URL may end in /v1. Raises `UsageError`."""
    with ui.usage_errors(ValueError):
        return parse_url(url.rstrip("/").removesuffix("/v1"), key=key, ca_file=ca_file)


async def ask_server(
    url: str, address: Address, method: str, path: str, *, timeout_s: float, needs_all: bool = True
) -> RecordedResponse:
    """Send a request and return the response, which is complete if the caller `needs_all`. Raises `RunningServerError`.

    Proxy settings do not apply: the key must not be sent to a proxy.
    """
    try:
        reply = await record_response(address, method, path, timeout_s=timeout_s, limit_bytes=_MAX_REPLY_BYTES)
    except HttpClientError as error:
        if error.is_untrusted:
            advice = "if it is yours, name its file with --ca-file"
            problem = f"the certificate of the server at {url} is not trusted: {error.detail}; {advice}"
            raise RunningServerError(problem) from None
        raise NoServerError(f"no server answers at {url}: {error}") from None
    if reply.status is None or (needs_all and not reply.is_complete):
        raise NoServerError(f"no server answers at {url}: {reply.error or 'the reply is incomplete'}")
    return reply


def error_field(body: bytes, name: str) -> str:
    """Return a field of the error in a reply; empty if there is none."""
    try:
        value = as_object(as_object(msgspec.json.decode(body)).get("error")).get(name)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    return value if isinstance(value, str) else ""
