"""The first look at a server: who is there, which model is asked, and what every request to it has in common."""

from typing import Any

import msgspec

from welldone.bench.dialects import DIALECTS, Dialect
from welldone.bench.settings import BenchSettings
from welldone.drawing.texts import in_a_line
from welldone.engines.listed import read_models
from welldone.net.address import Address, read_url
from welldone.net.outbound import Fetched, OutboundError, fetch
from welldone.net.secrets import Secrets

_LOOK_S = 60.0  # a server that loads its model answers a first request late
_SHOWN = 160
_NOT_UNDERSTOOD = (400, 422)
"""How servers refuse a member that they do not know; 422 are those that let pydantic say it."""
_HELLO = [{"role": "user", "content": "Say hello."}]


class UnreachableError(Exception):
    """The server cannot be measured. The message is one line that says what to do."""


class Target(msgspec.Struct, frozen=True):
    """A server, and what every request to it has in common."""

    url: str
    address: Address
    dialect: Dialect
    members: dict[str, Any]

    @property
    def model(self) -> str:
        return str(self.members["model"])


def secrets_of(settings: BenchSettings) -> Secrets:
    """What must not be written."""
    keys = (settings.key, settings.against_key)
    return Secrets([*(key for key in keys if key), *(value for _, value in settings.headers)])


async def look(settings: BenchSettings) -> list[Target]:
    """The servers that these settings name: one, or two that are asked in turn.

    Raises:
        UnreachableError: one of them gives no answer.
        ValueError: a URL, a key or a header cannot be used.
    """
    secrets = secrets_of(settings)
    try:
        return [await _look(address, url, settings) for url, address in _addresses(settings)]
    except UnreachableError as error:
        raise UnreachableError(secrets.clean(str(error))) from None


def _addresses(settings: BenchSettings) -> list[tuple[str, Address]]:
    """Where they are. Key and headers are for the first host: another gets only what is meant for it."""
    trust: dict[str, Any] = {"ca_file": settings.ca_file, "is_verified": settings.is_verified}
    first = read_url(settings.url, key=settings.key, headers=settings.headers, **trust)
    if settings.against is None:
        return [(settings.url, _in_dialect(first, settings))]
    if settings.against.startswith("http:"):
        trust["ca_file"] = None
    other = read_url(settings.against, key=settings.against_key, **trust)
    if other.host == first.host:
        other = msgspec.structs.replace(other, key=other.key or first.key, headers=first.headers)
    return [(settings.url, _in_dialect(first, settings)), (settings.against, _in_dialect(other, settings))]


def _in_dialect(address: Address, settings: BenchSettings) -> Address:
    """The address, with what the dialect adds to every request; who names such a header knows better."""
    own = DIALECTS[settings.endpoint].headers(address.key)
    return msgspec.structs.replace(address, headers=(*own, *address.headers))


async def _look(address: Address, url: str, settings: BenchSettings) -> Target:
    model = settings.model or await _model(address, url, settings.tokenizer)
    dialect = DIALECTS[settings.endpoint]
    common = {"model": model, "temperature": 0.0}
    members = {**common, **dialect.wanted, **settings.extra}
    reply = await _try(address, url, dialect, members)
    if reply.status in _NOT_UNDERSTOOD and dialect.wanted:  # without usage nobody counts tokens; so be it
        members = {**common, **settings.extra}
        reply = await _try(address, url, dialect, members)
    if reply.status != 200:
        raise UnreachableError(f"{url} does not answer {dialect.path} for {model!r} ({_complaint(reply)})")
    return Target(url, address, dialect, members)


async def _model(address: Address, url: str, tokenizer: str | None) -> str:
    """The model that the tokenizer is of, if the server lists it; else the first."""
    reply = await _fetch(address, url, "GET", "/models", b"")
    models = read_models(reply.body) if reply.status == 200 else ()
    if not models:
        raise UnreachableError(f"{url} lists no models ({_complaint(reply)}): name one with --model-name")
    return next((model.id for model in models if model.id == tokenizer), models[0].id)


async def _try(address: Address, url: str, dialect: Dialect, members: dict[str, Any]) -> Fetched:
    body = dialect.body(members, _HELLO, dialect.least_tokens)
    return await _fetch(address, url, "POST", dialect.path, msgspec.json.encode(body))


async def _fetch(address: Address, url: str, method: str, path: str, body: bytes) -> Fetched:
    try:
        return await fetch(address, method, path, within_s=_LOOK_S, body=body)
    except OutboundError as error:
        raise UnreachableError(f"{url}: {error}; is the server running there?") from None


async def ask_root(target: Target, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
    """What the server says at a path of its root; None where it has no such thing."""
    address = target.address
    root = msgspec.structs.replace(address, prefix=address.prefix.removesuffix("/v1"))
    asked = msgspec.json.encode({"model": target.model, **body})
    try:
        reply = await fetch(root, "POST", path, within_s=_LOOK_S, body=asked)
        value = msgspec.json.decode(reply.body) if reply.status == 200 else None
    except (OutboundError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _complaint(reply: Fetched) -> str:
    return f"{reply.status}: {in_a_line(reply.body[:1000].decode('utf-8', 'replace'), _SHOWN)}"
