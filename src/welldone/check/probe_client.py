"""Asks the server for all probes: never more at once than allowed, and again where it is only busy."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from welldone import __version__
from welldone.check.reply import ProbeRequest
from welldone.check.settings import CHAT, CheckSettings
from welldone.http.address import Address, parse_url
from welldone.http.recording_client import ConnectError, RecordedResponse

MAX_REPLY_BYTES = 2 * 2**20
"""Of a reply. The longest answer that a probe asks for has some hundred chunks of less than 1 KB."""
OVERLOAD_STATUSES = (429, 503, 529)
"""To ask again later may help. The last is Anthropic's."""
_MAX_ATTEMPTS = 4
_DEFAULT_RETRY_S = 1.0  # after a 429 or 503 that does not say how long
_MAX_RETRY_AFTER_S = 10.0  # a server that is busy for longer is not to be checked now
_RETRY_BUDGET_S = 300.0  # of all requests together: a whole run should take a third of that
_FAILED_REQUESTS_LIMIT = 8
"""Requests without a reply: twice as many as there are at once by default. To wait for all of them would take half an
hour, and it would say no more."""
SLOW_SERVER_HINT = "the server may be slow or busy: raise --timeout"
_NOT_SENT = f"not sent: {_FAILED_REQUESTS_LIMIT} requests before it got no whole reply"


class RecordResponse(Protocol):
    """`net.ear.listen`, or what stands in for it."""

    def __call__(
        self,
        address: Address,
        method: str,
        path: str,
        *,
        body: bytes | None,
        headers: tuple[tuple[str, str | None], ...],
        timeout_s: float,
        idle_timeout_s: float,
        limit_bytes: int,
        after_done_s: float,
        leave: Callable[[bytes], bool] | None,
    ) -> Awaitable[RecordedResponse]: ...


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the server before the probes begin."""

    model: str
    server: str = ""
    """What it calls itself."""
    members: Mapping[str, Any] = msgspec.field(default_factory=lambda: CHAT.request_variants[0][0])
    """What every request has that should be answered: what the server took of it."""
    limit_field: str = "max_tokens"
    """How it wants to be told how much to say."""
    reasoning_allowance: int = 0
    """How many tokens more an answer gets, for a model that thinks before it speaks."""


class ProbeClient:
    """The way to the server."""

    def __init__(
        self,
        settings: CheckSettings,
        record_response: RecordResponse,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Raises `ValueError` where the URL, the key or a header cannot be used."""
        self.settings = settings
        self.address = parse_url(
            settings.url,
            key=settings.key,
            ca_file=settings.ca_file,
            is_verified=settings.is_verified,
            headers=(*settings.dialect.request_headers(settings.key), *settings.headers),
        )
        self._root = msgspec.structs.replace(self.address, prefix=self.address.prefix.removesuffix("/v1"))
        self._record_response = record_response
        self._sleep = sleep
        self._semaphore = asyncio.Semaphore(settings.jobs)
        self._failed_requests = 0
        self._has_timed_out = False
        self._retry_waited_s = 0.0

    async def send(
        self,
        request: ProbeRequest,
        probe: str,
        abort_when: Callable[[bytes], bool] | None = None,
    ) -> list[RecordedResponse]:
        """The reply, and before it those that only said to come again later.

        Raises:
            ListenError: there is no connection, or there have been too many requests without a reply.
        """
        heard = [await self._send_limited(request, probe, abort_when)]
        while len(heard) < _MAX_ATTEMPTS and (wait_s := _retry_delay_s(heard[-1])) is not None:
            self._retry_waited_s += wait_s
            if self._retry_waited_s > _RETRY_BUDGET_S:
                break
            await self._sleep(wait_s)
            heard.append(await self._send_limited(request, probe, abort_when))
        return heard

    def timeout_message(self) -> str:
        """What to report of a reply that was not whole in time."""
        return f"timed out after {self.settings.timeouts.reply_s:g} s; {SLOW_SERVER_HINT}"

    async def _send_limited(
        self, request: ProbeRequest, probe: str, abort_when: Callable[[bytes], bool] | None
    ) -> RecordedResponse:
        async with self._semaphore:
            if self._failed_requests >= _FAILED_REQUESTS_LIMIT:
                raise ConnectError(f"{_NOT_SENT}; {SLOW_SERVER_HINT}" if self._has_timed_out else _NOT_SENT)
            try:
                recording = await self._send_once(request, probe, abort_when)
            except ConnectError:
                self._failed_requests += 1
                raise
            self._failed_requests += recording.is_abandoned
            self._has_timed_out = self._has_timed_out or recording.is_timed_out
            return recording

    async def _send_once(
        self, request: ProbeRequest, probe: str, abort_when: Callable[[bytes], bool] | None
    ) -> RecordedResponse:
        patience = self.settings.timeouts
        return await self._record_response(
            self._root if request.is_root else self.address,
            request.method,
            request.path,
            body=request.body,
            # Who looks into the server's log finds the probe there.
            headers=(("User-Agent", f"welldone/{__version__} check ({probe})"), *request.headers),
            timeout_s=patience.reply_s,
            idle_timeout_s=patience.reply_s,
            limit_bytes=MAX_REPLY_BYTES,
            after_done_s=patience.after_done_s,
            leave=abort_when,
        )


def _retry_delay_s(recording: RecordedResponse) -> float | None:
    """How long to wait before the request is made again; None: it is answered."""
    if recording.status not in OVERLOAD_STATUSES:
        return None
    said = next((value for name, value in recording.headers if name.lower() == "retry-after"), "")
    asked_s = float(said) if said.isascii() and said.isdigit() and len(said) < 6 else _DEFAULT_RETRY_S
    return asked_s if asked_s <= _MAX_RETRY_AFTER_S else None
