"""HTTP client of the probes: limits concurrent requests, retries an overloaded server, gives up on a dead one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import msgspec

from welldone import __version__
from welldone.check.reply import ProbeRequest
from welldone.check.settings import CHAT, CheckSettings
from welldone.http import recording_client
from welldone.http.address import Address, parse_url
from welldone.http.connect import HttpClientError
from welldone.http.recording_client import RecordedResponse
from welldone.http.recording_socket import RecordingSocket, open_socket

MAX_REPLY_BYTES = 2 * 2**20
"""Limit of a reply. The longest answer that a probe requests has some hundred chunks of less than 1 KB."""
OVERLOAD_STATUSES = (429, 503, 529)
"""Statuses after which a request is retried. 529 is Anthropic's `overloaded_error`."""
_MAX_ATTEMPTS = 4
_DEFAULT_RETRY_S = 1.0  # without Retry-After
_MAX_RETRY_AFTER_S = 10.0  # with a longer Retry-After the request is not retried
_RETRY_BUDGET_S = 300.0  # for all requests together: a whole run should take a third of that
_FAILED_REQUESTS_LIMIT = 8
"""Requests without a complete reply after which no more are sent: twice the default concurrency. To wait for the
timeout of every request would take half an hour."""
SLOW_SERVER_HINT = "the server may be slow or busy: raise --timeout"
_NOT_SENT = f"not sent: {_FAILED_REQUESTS_LIMIT} earlier requests got no complete reply"


RecordResponse: TypeAlias = Callable[..., Awaitable[RecordedResponse]]
"""`recording_client.record_response`, or a function with its parameters."""
AbortPredicate: TypeAlias = Callable[[bytes], bool]
"""Returns whether to disconnect, given the body so far."""


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the server that discovery finds before the probes run."""

    model: str
    server: str = ""
    """The kind of server, or its `Server` header."""
    members: Mapping[str, Any] = msgspec.field(default_factory=lambda: CHAT.request_variants[0][0])
    """Fields of every valid request, such as `temperature`, as far as the server accepts them."""
    limit_field: str = "max_tokens"
    """Name of the token limit that the server accepts."""
    reasoning_allowance: int = 0
    """Additional tokens per answer, for a model that reasons before it answers."""


class ProbeClient:
    """Client of one server, shared by all probes."""

    def __init__(
        self,
        settings: CheckSettings,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        record_response: RecordResponse = recording_client.record_response,
    ) -> None:
        """Raises `ValueError` if the URL, the key or a header is invalid."""
        self.settings = settings
        self.address: Address = parse_url(
            settings.url,
            key=settings.key,
            ca_file=settings.ca_file,
            is_verified=settings.is_verified,
            headers=(*settings.dialect.request_headers(settings.key), *settings.headers),
        )
        self._root = msgspec.structs.replace(self.address, prefix=root_of(self.address.prefix))
        self._sleep = sleep
        self._record_response = record_response
        self._semaphore = asyncio.Semaphore(settings.jobs)
        self._failed_requests = 0
        self._has_timed_out = False
        self._retry_waited_s = 0.0

    async def send(
        self, request: ProbeRequest, probe: str, abort_when: AbortPredicate | None = None
    ) -> list[RecordedResponse]:
        """Responses of all attempts: overload responses, then the final one.

        Raises:
            HttpClientError: there is no connection, or too many requests got no complete reply.
        """
        responses = [await self._send_limited(request, probe, abort_when)]
        while len(responses) < _MAX_ATTEMPTS and (wait_s := _retry_delay_s(responses[-1])) is not None:
            self._retry_waited_s += wait_s
            if self._retry_waited_s > _RETRY_BUDGET_S:
                break
            await self._sleep(wait_s)
            responses.append(await self._send_limited(request, probe, abort_when))
        return responses

    @asynccontextmanager
    async def open_socket(self, path: str, probe: str) -> AsyncIterator[RecordingSocket]:
        """Open a WebSocket until the block ends; it counts as one request.

        Raises:
            HttpClientError: there is no connection, or none of the network: the server runs in this process.
            RefusedSocketError: the server answers without a WebSocket.
        """
        if self._record_response is not recording_client.record_response:
            raise HttpClientError("WebSockets are checked over the network only")
        timeout_s = self.settings.timeouts.reply_s
        async with (
            self._semaphore,
            open_socket(
                self.address, path, headers=(_user_agent(probe),), timeout_s=timeout_s, limit_bytes=MAX_REPLY_BYTES
            ) as socket,
        ):
            yield socket

    def timeout_message(self) -> str:
        """The error message for a reply that timed out."""
        return f"timed out after {self.settings.timeouts.reply_s:g} s; {SLOW_SERVER_HINT}"

    async def _send_limited(
        self, request: ProbeRequest, probe: str, abort_when: AbortPredicate | None
    ) -> RecordedResponse:
        async with self._semaphore:
            if self._failed_requests >= _FAILED_REQUESTS_LIMIT:
                raise HttpClientError(f"{_NOT_SENT}; {SLOW_SERVER_HINT}" if self._has_timed_out else _NOT_SENT)
            timeouts = self.settings.timeouts
            try:
                recording = await self._record_response(
                    self._root if request.is_root else self.address,
                    request.method,
                    request.path,
                    body=request.body,
                    headers=(_user_agent(probe), *request.headers),
                    timeout_s=timeouts.reply_s,
                    idle_timeout_s=timeouts.reply_s,
                    limit_bytes=MAX_REPLY_BYTES,
                    after_done_s=timeouts.after_done_s,
                    leave=abort_when,
                )
            except HttpClientError:
                self._failed_requests += 1
                raise
            self._failed_requests += recording.is_abandoned
            self._has_timed_out = self._has_timed_out or recording.is_timed_out
            return recording


def root_of(prefix: str) -> str:
    """The prefix of paths outside of the API: without its version."""
    return prefix.removesuffix("/v1").removesuffix("/v1beta")


def _user_agent(probe: str) -> tuple[str, str]:
    """The header that names the probe in the server's log."""
    return "User-Agent", f"welldone/{__version__} check ({probe})"


def _retry_delay_s(recording: RecordedResponse) -> float | None:
    """Delay before the request is retried; None: it is not retried."""
    if recording.status not in OVERLOAD_STATUSES:
        return None
    value = next((value for name, value in recording.headers if name.lower() == "retry-after"), "")
    delay_s = float(value) if value.isascii() and value.isdigit() and len(value) < 6 else _DEFAULT_RETRY_S
    return delay_s if delay_s <= _MAX_RETRY_AFTER_S else None
