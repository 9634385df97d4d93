"""The first look at a server: who is there, which model is asked, and what every request to it has in common."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from welldone.bench.dialects import DIALECTS
from welldone.bench.dialects.base import MAX_MESSAGE_CHARS, BenchDialect, StreamTimer
from welldone.bench.record import BenchRecord, RequestOutcome
from welldone.bench.settings import BenchSettings
from welldone.gateway.upstream import parse_model_list
from welldone.http.address import Address, parse_url
from welldone.http.client import BufferedResponse, HttpClientError, fetch
from welldone.http.redaction import SecretRedactor
from welldone.reporting import single_line

# Hears one reply: its head, its end, and, where it is a stream, when each part of the answer came.
#
# The clock is read once for each read of the socket, before anything is made of its bytes: what this costs is not the
# server's.


_ERROR_LIMIT_BYTES = 4096  # of a refusal that is read for its message
_MAX_CHUNKS = 1_000_000  # of an answer: the longest contexts of today hold a million tokens
_LINGER_S = 0.1
"""How long the end of the reply is waited for after the answer's: it comes with it, or soon, and the connection can be
used again then. Who does not send it holds up a user for so long."""


class BenchReceiver:
    """The receiver of one reply. `over` is set when it has ended, however it did."""

    def __init__(self, record: BenchRecord, now: Callable[[], float], timer: StreamTimer) -> None:
        self.record = record
        self.timer = timer
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_stale = False
        """The connection had been used before and was dead: the request may be sent again."""
        self._now = now
        self._error_body = bytearray()
        self._content_type = ""
        self._is_stream = False
        self._is_settled = False
        self._done_s: float | None = None
        self._linger_timer: asyncio.TimerHandle | None = None

    # What the exchange calls.

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """The reply begins."""
        self.record.head_s = self._now()
        self.record.status = status
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        self._content_type = kind or "nothing"
        self._is_stream = status < 400 and kind == "text/event-stream"

    def data(self, data: bytes) -> None:
        """More of it."""
        now = self._now()
        if self._is_settled:
            return
        if self._is_stream:
            self.timer.feed(data, now)
            self._check_end(now)
            if len(self.record.times) > _MAX_CHUNKS:
                self.settle(RequestOutcome.BROKEN, f"an answer of more than {_MAX_CHUNKS:,} chunks")
        elif len(self._error_body) < _ERROR_LIMIT_BYTES:
            self._error_body += data[:_ERROR_LIMIT_BYTES]

    def _check_end(self, now: float) -> None:
        """After an error nothing counts, and after its end clients have left: some servers close much later."""
        if self.timer.failure is not None:
            self.end(None)
        elif self._done_s is None and self.timer.is_done:
            self._done_s = now
            self._linger_timer = asyncio.get_running_loop().call_later(_LINGER_S, self.end, None)

    def end(self, error: HttpClientError | None) -> None:
        """It has ended."""
        now = self._now()
        if self._is_settled:
            return
        self.is_stale = error is not None and error.is_stale
        if self._is_stream:
            self.timer.close(now)
        self.settle(*self._outcome(error))

    def settle(self, outcome: RequestOutcome, error: str = "") -> None:
        """Write down how it ended."""
        if self._is_settled:
            return
        self._is_settled = True
        if self._done_s is not None:  # whoever gave up waiting for more: the answer was whole
            outcome, error = self._outcome(None)
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None
        record = self.record
        record.ended_s = self._now() if self._done_s is None else self._done_s
        record.outcome, record.error = outcome, error
        record.rules = self.timer.rules
        if not self.done.done():  # who waits for it may have been cancelled, and it with them
            self.done.set_result(None)

    def _outcome(self, error: HttpClientError | None) -> tuple[RequestOutcome, str]:
        status = self.record.status
        if status is None:
            return RequestOutcome.CUT, str(error or "no reply")
        if status >= 400:
            return RequestOutcome.REFUSED, f"{status}: {self._error_message()}"
        if not self._is_stream:
            return RequestOutcome.BROKEN, f"the reply is no stream but {self._content_type}"[:MAX_MESSAGE_CHARS]
        if self.timer.failure is not None:
            return RequestOutcome.FAILED, self.timer.failure
        if self.timer.truncation:
            return RequestOutcome.CUT, str(error or self.timer.truncation)
        if not self.record.times and self.record.tool_s is None:
            return RequestOutcome.BROKEN, "the answer is empty"
        return RequestOutcome.OK, ""

    def _error_message(self) -> str:
        """What a refusal says, in a line."""
        try:
            said = msgspec.json.decode(bytes(self._error_body))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            said = None
        error = said.get("error", said) if isinstance(said, dict) else said
        message = error.get("message") if isinstance(error, dict) else error
        text = message if isinstance(message, str) else self._error_body.decode("utf-8", "replace")
        return single_line(text, MAX_MESSAGE_CHARS)


_PROBE_TIMEOUT_S = 60.0  # a server that loads its model answers a first request late
_MAX_ERROR_CHARS = 160
_UNKNOWN_FIELD_STATUSES = (400, 422)
"""How servers refuse a member that they do not know; 422 are those that let pydantic say it."""
_PROBE_MESSAGES = [{"role": "user", "content": "Say hello."}]


class BenchUnreachableError(Exception):
    """The server cannot be measured. The message is one line that says what to do."""


class BenchTarget(msgspec.Struct, frozen=True):
    """A server, and what every request to it has in common."""

    url: str
    address: Address
    dialect: BenchDialect
    common_fields: dict[str, Any]

    @property
    def model(self) -> str:
        return str(self.common_fields["model"])


def bench_secrets(settings: BenchSettings) -> SecretRedactor:
    """What must not be written."""
    keys = (settings.key, settings.against_key)
    return SecretRedactor([*(key for key in keys if key), *(value for _, value in settings.headers)])


async def probe_targets(settings: BenchSettings) -> list[BenchTarget]:
    """The servers that these settings name: one, or two that are asked in turn.

    Raises:
        UnreachableError: one of them gives no answer.
        ValueError: a URL, a key or a header cannot be used.
    """
    secrets = bench_secrets(settings)
    try:
        return [await _probe_target(address, url, settings) for url, address in _target_addresses(settings)]
    except BenchUnreachableError as error:
        raise BenchUnreachableError(secrets.redact(str(error))) from None


def _target_addresses(settings: BenchSettings) -> list[tuple[str, Address]]:
    """Where they are. Key and headers are for the first host: another gets only what is meant for it."""
    trust: dict[str, Any] = {"ca_file": settings.ca_file, "is_verified": settings.is_verified}
    first = parse_url(settings.url, key=settings.key, headers=settings.headers, **trust)
    if settings.against is None:
        return [(settings.url, _with_dialect_headers(first, settings))]
    if settings.against.startswith("http:"):
        trust["ca_file"] = None
    other = parse_url(settings.against, key=settings.against_key, **trust)
    if other.host == first.host:
        other = msgspec.structs.replace(other, key=other.key or first.key, headers=first.headers)
    return [
        (settings.url, _with_dialect_headers(first, settings)),
        (settings.against, _with_dialect_headers(other, settings)),
    ]


def _with_dialect_headers(address: Address, settings: BenchSettings) -> Address:
    """The address, with what the dialect adds to every request; who names such a header knows better."""
    own = DIALECTS[settings.endpoint].headers(address.key)
    return msgspec.structs.replace(address, headers=(*own, *address.headers))


async def _probe_target(address: Address, url: str, settings: BenchSettings) -> BenchTarget:
    model = settings.model or await _choose_model(address, url, settings.tokenizer)
    dialect = DIALECTS[settings.endpoint]
    common = {"model": model, "temperature": 0.0}
    members = {**common, **dialect.preferred_fields, **settings.extra}
    reply = await _try_request(address, url, dialect, members)
    if (
        reply.status in _UNKNOWN_FIELD_STATUSES and dialect.preferred_fields
    ):  # without usage nobody counts tokens; so be it
        members = {**common, **settings.extra}
        reply = await _try_request(address, url, dialect, members)
    if reply.status != 200:
        raise BenchUnreachableError(f"{url} does not answer {dialect.path} for {model!r} ({_error_summary(reply)})")
    return BenchTarget(url, address, dialect, members)


async def _choose_model(address: Address, url: str, tokenizer: str | None) -> str:
    """The model that the tokenizer is of, if the server lists it; else the first."""
    reply = await _fetch(address, url, "GET", "/models", b"")
    models = parse_model_list(reply.body) if reply.status == 200 else ()
    if not models:
        raise BenchUnreachableError(f"{url} lists no models ({_error_summary(reply)}): name one with --model-name")
    return next((model.id for model in models if model.id == tokenizer), models[0].id)


async def _try_request(
    address: Address, url: str, dialect: BenchDialect, common_fields: dict[str, Any]
) -> BufferedResponse:
    body = dialect.body(common_fields, _PROBE_MESSAGES, dialect.min_max_tokens)
    return await _fetch(address, url, "POST", dialect.path, msgspec.json.encode(body))


async def _fetch(address: Address, url: str, method: str, path: str, body: bytes) -> BufferedResponse:
    try:
        return await fetch(address, method, path, timeout_s=_PROBE_TIMEOUT_S, body=body)
    except HttpClientError as error:
        raise BenchUnreachableError(f"{url}: {error}; is the server running there?") from None


async def post_to_root(target: BenchTarget, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
    """What the server says at a path of its root; None where it has no such thing."""
    address = target.address
    root = msgspec.structs.replace(address, prefix=address.prefix.removesuffix("/v1"))
    asked = msgspec.json.encode({"model": target.model, **body})
    try:
        reply = await fetch(root, "POST", path, timeout_s=_PROBE_TIMEOUT_S, body=asked)
        value = msgspec.json.decode(reply.body) if reply.status == 200 else None
    except (HttpClientError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _error_summary(reply: BufferedResponse) -> str:
    return f"{reply.status}: {single_line(reply.body[:1000].decode('utf-8', 'replace'), _MAX_ERROR_CHARS)}"
