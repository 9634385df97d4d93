"""The first look at a server: who is there, which model is asked, and what every request to it has in common."""

from typing import Any

import msgspec

from welldone.bench.dialects import DIALECTS, BenchDialect
from welldone.bench.settings import BenchSettings
from welldone.drawing.texts import single_line
from welldone.engines.listed import parse_model_list
from welldone.net.address import Address, parse_url
from welldone.net.outbound import BufferedResponse, HttpClientError, fetch
from welldone.net.secrets import SecretRedactor

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
