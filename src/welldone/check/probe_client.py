"""HTTP client of the probes: limits concurrent requests, retries an overloaded server, gives up on a dead one."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import msgspec

from welldone import __version__
from welldone.check.reply import OVERLOAD_STATUSES, ExpectedReply, ProbeRequest
from welldone.check.settings import CHAT, CheckSettings
from welldone.http import recording_client
from welldone.http.address import Address, parse_url
from welldone.http.connect import HttpClientError
from welldone.http.recording_client import RecordedResponse, RecordingSocket, open_socket

MAX_REPLY_BYTES = 2 * 2**20
"""Limit of a reply. The longest answer that a probe requests has some hundred chunks of less than 1 KB."""
_MAX_ATTEMPTS = 4
_DEFAULT_RETRY_S = 1.0  # without Retry-After
_MAX_RETRY_AFTER_S = 10.0  # with a longer Retry-After the request is not retried
_RETRY_BUDGET_S = 300.0  # for all requests together: a whole run should take a third of that
_FAILED_REQUESTS_LIMIT = 8
"""Requests without a complete reply after which no more are sent: twice the default concurrency. To wait for the
timeout of every request would take half an hour."""
_SILENT_REQUESTS = 2  # without a connection or a byte, after which a control request is sent
_MUCH_SLOWER = 10
"""A server that takes this many times as long as for its first answer is not just slow."""
_CONTROL = "control"  # its name in the server's log
_MAX_SHOWN_CHARS = 80
_NOT_SENT_TO_HANGING = "not sent: the server no longer answers"
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
        self.hang: str = ""
        """What happened to a server that answered at first and then stopped; empty if it did not."""
        self.hang_request: ProbeRequest | None = None
        """The last request, if its connection was lost or it was wrongly not refused; else the first silent one."""
        self._control: tuple[ProbeRequest, float] | None = None
        """A plain request that was answered, and the seconds that it took."""
        self._last_answered: tuple[ProbeRequest, str] | None = None
        self._is_last_suspect: bool = False
        self._silent: list[tuple[ProbeRequest, str]] = []
        """Requests without a connection or a byte of a body since the last reply."""

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
            if self.hang:
                raise HttpClientError(_NOT_SENT_TO_HANGING)
            if self._failed_requests >= _FAILED_REQUESTS_LIMIT:
                raise HttpClientError(f"{_NOT_SENT}; {SLOW_SERVER_HINT}" if self._has_timed_out else _NOT_SENT)
            try:
                recording = await self._record(request, probe, abort_when)
            except HttpClientError:
                self._failed_requests += 1
                await self._add_silent(request, probe)
                raise
            self._failed_requests += recording.is_abandoned
            self._has_timed_out = self._has_timed_out or recording.is_timed_out
            if recording.is_timed_out and not recording.body:
                await self._add_silent(request, probe)
            else:
                self._silent.clear()
                self._last_answered = request, probe
                is_refused = recording.status is not None and 400 <= recording.status < 500
                must_be_refused = request.expected is ExpectedReply.REFUSAL
                self._is_last_suspect = recording.status is None or (must_be_refused and not is_refused)
                if self._control is None and request.expects_answer and recording.status == 200:
                    self._control = request, recording.ended_s
            return recording

    async def _record(
        self, request: ProbeRequest, probe: str, abort_when: AbortPredicate | None = None
    ) -> RecordedResponse:
        timeouts = self.settings.timeouts
        return await self._record_response(
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

    async def _add_silent(self, silent: ProbeRequest, probe: str) -> None:
        """After several, repeat a request that was answered before. If it is silent as well, the server hangs."""
        self._silent.append((silent, probe))
        limit_s = self.settings.timeouts.reply_s
        if len(self._silent) != _SILENT_REQUESTS or self._control is None or self._last_answered is None:
            return
        if self._control[1] * _MUCH_SLOWER > limit_s:
            return  # the server may just be slow
        (request, quick_s), first, last = self._control, self._silent[0], self._last_answered
        try:
            repeated = await self._record(request, _CONTROL)
            is_silent, missing = repeated.is_timed_out and not repeated.body, f"none in {limit_s:g} s to"
        except HttpClientError:
            is_silent, missing = True, "no connection for"
        self._silent.clear()
        if is_silent and self._last_answered is last:
            self.hang_request = last[0] if self._is_last_suspect else first[0]
            self.hang = self.settings.secrets.redact(
                f"the server answered until {self._describe(*last)}, and nothing since: no reply to "
                f"{self._describe(*first)}, and {missing} a request that took {quick_s:.1f} s before; "
                "restart it before the next check"
            )

    def _describe(self, request: ProbeRequest, probe: str) -> str:
        """A request in a few words: how it differs from a usual one, and its probe."""
        fields, usual = request.json, self._control[0].json if self._control else None
        shown = f"{request.method} {request.path}"
        if request.expects_answer:
            shown = "a valid request"
        elif fields is None and request.body is not None:
            shown = f"the body {request.body[:_MAX_SHOWN_CHARS].decode('utf-8', 'replace')!r}"
        elif fields is not None and usual is not None:
            changed = {name: value for name, value in fields.items() if usual.get(name) != value}
            texts = [f"{name}: {json.dumps(value)}" for name, value in changed.items() if not isinstance(value, bool)]
            texts += [f"no {self.settings.dialect.input_field}"] * (self.settings.dialect.input_field not in fields)
            shown = f"`{', '.join(texts)[:_MAX_SHOWN_CHARS]}`" if texts else shown
        return f"{shown} ({probe})"


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
