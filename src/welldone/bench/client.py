"""HTTP client of the load test: receiver of replies, and the probe of a server before the start."""

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from welldone.bench.dialects import DIALECTS
from welldone.bench.dialects.base import MAX_MESSAGE_CHARS, BenchDialect, StreamTimer
from welldone.bench.report import BenchRecord, RequestOutcome
from welldone.bench.settings import BenchSettings
from welldone.gateway.model_list import parse_model_list
from welldone.http.address import Address, parse_url
from welldone.http.client import BufferedResponse, fetch
from welldone.http.connect import HttpClientError
from welldone.http.redaction import SecretRedactor
from welldone.reporting import single_line

# Receiver of one reply: its head, its end, and the times of the parts of a stream.
#
# The clock is read once per socket read, before the bytes are processed: the cost of processing is not the server's.


_ERROR_LIMIT_BYTES = 4096  # read of an error reply, for its message
_MAX_CHUNKS = 1_000_000  # per answer: the longest contexts today have a million tokens
_LINGER_S = 0.1
"""Wait for the end of the reply after that of the answer: usually it comes with it, and the connection can be reused.
A server that does not send it delays a user by this time."""


class BenchReceiver:
    """Receiver of one reply. `done` is set when it has ended, in whatever way."""

    def __init__(self, record: BenchRecord, now: Callable[[], float], timer: StreamTimer) -> None:
        self.record = record
        self.timer = timer
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_stale: bool = False
        """The reused connection was dead: the request may be sent again."""
        self._now = now
        self._error_body = bytearray()
        self._content_type = ""
        self._is_stream = False
        self._is_settled = False
        self._done_s: float | None = None
        self._linger_timer: asyncio.TimerHandle | None = None

    # Called by the HTTP client.

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Process the head of the reply."""
        self.record.head_s = self._now()
        self.record.status = status
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        self._content_type = media_type or "nothing"
        self._is_stream = status < 400 and media_type == "text/event-stream"

    def data(self, data: bytes) -> None:
        """Process bytes of the body."""
        now = self._now()
        if self._is_settled:
            return
        if self._is_stream:
            self.timer.feed(data, now)
            if self.timer.failure is not None:
                self.end(None)
            elif self._done_s is None and self.timer.is_done:  # clients disconnect then; some servers close much later
                self._done_s = now
                self._linger_timer = asyncio.get_running_loop().call_later(_LINGER_S, self.end, None)
            if len(self.record.times) > _MAX_CHUNKS:
                self.settle(RequestOutcome.BROKEN, f"an answer of more than {_MAX_CHUNKS:,} chunks")
        elif len(self._error_body) < _ERROR_LIMIT_BYTES:
            self._error_body += data[:_ERROR_LIMIT_BYTES]

    def end(self, error: HttpClientError | None) -> None:
        """Process the end of the reply."""
        now = self._now()
        if self._is_settled:
            return
        self.is_stale = error is not None and error.is_stale
        if self._is_stream:
            self.timer.close(now)
        self.settle(*self._outcome(error))

    def settle(self, outcome: RequestOutcome, error: str = "") -> None:
        """Set the outcome, once."""
        if self._is_settled:
            return
        self._is_settled = True
        if self._done_s is not None:  # the answer was complete, whatever ended the wait for the rest
            outcome, error = self._outcome(None)
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None
        record = self.record
        record.ended_s = self._now() if self._done_s is None else self._done_s
        record.outcome, record.error = outcome, error
        record.rules = self.timer.rules
        if not self.done.done():  # the waiting task may have been cancelled, and the future with it
            self.done.set_result(None)

    def _outcome(self, error: HttpClientError | None) -> tuple[RequestOutcome, str]:
        status = self.record.status
        if status is None:
            return RequestOutcome.CUT, str(error or "no reply")
        if status >= 400:
            return RequestOutcome.REFUSED, f"{status}: {self._error_message()}"
        if not self._is_stream:
            return RequestOutcome.BROKEN, f"the reply is not a stream but {self._content_type}"[:MAX_MESSAGE_CHARS]
        if self.timer.failure is not None:
            return RequestOutcome.FAILED, self.timer.failure
        if self.timer.truncation:
            return RequestOutcome.CUT, str(error or self.timer.truncation)
        if not self.record.times and self.record.tool_s is None:
            return RequestOutcome.BROKEN, "the answer is empty"
        return RequestOutcome.OK, ""

    def _error_message(self) -> str:
        """Return the message of an error reply, in one line."""
        try:
            reply = msgspec.json.decode(bytes(self._error_body))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            reply = None
        error = reply.get("error", reply) if isinstance(reply, dict) else reply
        message = error.get("message") if isinstance(error, dict) else error
        text = message if isinstance(message, str) else self._error_body.decode("utf-8", "replace")
        return single_line(text, MAX_MESSAGE_CHARS)


_PROBE_TIMEOUT_S = 60.0  # a server that still loads its model answers the first request late
_MAX_ERROR_CHARS = 160
_UNKNOWN_FIELD_STATUSES = (400, 422)
"""Statuses for unknown fields; 422 from servers that validate with pydantic."""
_MAX_SLOT_DIGITS = 5
_PROBE_MESSAGES = [{"role": "user", "content": "Say hello."}]


class BenchUnreachableError(Exception):
    """The server cannot be measured. The message is one line that tells what to do."""


class BenchTarget(msgspec.Struct, frozen=True):
    """A server, and the fields of every request to it."""

    url: str
    address: Address
    dialect: BenchDialect
    common_fields: dict[str, Any]

    @property
    def model(self) -> str:
        return str(self.common_fields["model"])


def bench_secrets(settings: BenchSettings) -> SecretRedactor:
    """Return the secrets that must not appear in output."""
    keys = (settings.key, settings.against_key)
    return SecretRedactor([*(key for key in keys if key), *(value for _, value in settings.headers)])


async def probe_targets(settings: BenchSettings) -> list[BenchTarget]:
    """Probe the servers of the settings: one, or two that are measured in alternation.

    Raises:
        BenchUnreachableError: a server gives no answer.
        ValueError: a URL, a key or a header cannot be used.
    """
    try:
        return [await _probe_target(address, url, settings) for url, address in _target_addresses(settings)]
    except BenchUnreachableError as error:
        raise BenchUnreachableError(bench_secrets(settings).redact(str(error))) from None


def _target_addresses(settings: BenchSettings) -> list[tuple[str, Address]]:
    """Return the addresses. The key and the headers are for the first host only."""
    trust: dict[str, Any] = {"ca_file": settings.ca_file, "is_verified": settings.is_verified}
    first = parse_url(settings.url, key=settings.key, headers=settings.headers, **trust)
    addresses = [(settings.url, first)]
    if settings.against is not None:
        if settings.against.startswith("http:"):
            trust["ca_file"] = None
        second = parse_url(settings.against, key=settings.against_key, **trust)
        if second.host == first.host:
            second = msgspec.structs.replace(second, key=second.key or first.key, headers=first.headers)
        addresses.append((settings.against, second))
    return addresses


async def _probe_target(address: Address, url: str, settings: BenchSettings) -> BenchTarget:
    dialect = DIALECTS[settings.endpoint]
    # Headers of the settings take precedence over those of the dialect.
    address = msgspec.structs.replace(address, headers=(*dialect.headers(address.key), *address.headers))
    model = settings.model or await _choose_model(address, url, settings.tokenizer)
    required = {"model": model, "temperature": 0.0}
    fields = {**required, **dialect.preferred_fields, **settings.extra}
    reply = await _try_request(address, url, dialect, fields)
    if reply.status in _UNKNOWN_FIELD_STATUSES and dialect.preferred_fields:  # then without usage numbers
        fields = {**required, **settings.extra}
        reply = await _try_request(address, url, dialect, fields)
    if reply.status != 200:
        raise BenchUnreachableError(f"{url} does not answer {dialect.path} for {model!r} ({_error_summary(reply)})")
    return BenchTarget(url, address, dialect, fields)


async def _choose_model(address: Address, url: str, tokenizer: str | None) -> str:
    """Return the tokenizer's model if the server lists it, else the first one."""
    reply = await _fetch(address, url, "GET", "/models", b"")
    models = parse_model_list(reply.body) if reply.status == 200 else ()
    if not models:
        raise BenchUnreachableError(f"{url} lists no models ({_error_summary(reply)}): name one with --model-name")
    return next((model.id for model in models if model.id == tokenizer), models[0].id)


async def _try_request(address: Address, url: str, dialect: BenchDialect, fields: dict[str, Any]) -> BufferedResponse:
    body = dialect.body(fields, _PROBE_MESSAGES, dialect.min_max_tokens)
    return await _fetch(address, url, "POST", dialect.path, msgspec.json.encode(body))


async def _fetch(address: Address, url: str, method: str, path: str, body: bytes) -> BufferedResponse:
    try:
        return await fetch(address, method, path, timeout_s=_PROBE_TIMEOUT_S, body=body)
    except HttpClientError as error:
        raise BenchUnreachableError(f"{url}: {error}; is the server running there?") from None


async def find_slots(target: BenchTarget) -> int | None:
    """Return how many requests the server runs at once, as llama.cpp and welldone report it; None if it is unknown."""
    root = _root(target.address)
    metric = rb'(?m)^welldone_slots\{model="' + re.escape(target.model).encode() + rb'"\} (\d+)'
    for path, pattern in (("/props", rb'"total_slots":\s*(\d+)'), ("/metrics", metric)):
        try:
            reply = await fetch(root, "GET", path, timeout_s=_PROBE_TIMEOUT_S)
        except HttpClientError:
            continue
        match = re.search(pattern, reply.body) if reply.status == 200 else None
        if match is not None and 0 < len(match[1]) < _MAX_SLOT_DIGITS:
            return int(match[1]) or None
    return None


def _root(address: Address) -> Address:
    return msgspec.structs.replace(address, prefix=address.prefix.removesuffix("/v1"))


async def post_to_root(target: BenchTarget, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
    """Post JSON to a path of the server's root; return the JSON reply, None if there is none."""
    root = _root(target.address)
    data = msgspec.json.encode({"model": target.model, **body})
    try:
        reply = await fetch(root, "POST", path, timeout_s=_PROBE_TIMEOUT_S, body=data)
        value = msgspec.json.decode(reply.body) if reply.status == 200 else None
    except (HttpClientError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _error_summary(reply: BufferedResponse) -> str:
    return f"{reply.status}: {single_line(reply.body[:1000].decode('utf-8', 'replace'), _MAX_ERROR_CHARS)}"
