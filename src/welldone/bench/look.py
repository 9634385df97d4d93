"""The first look at a server: who is there, which model is asked, and what every request to it has in common."""

from typing import Any

import msgspec

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


class UnreachableError(Exception):
    """The server cannot be measured. The message is one line that says what to do."""


class Target(msgspec.Struct, frozen=True):
    """A server, and what every request to it has in common."""

    url: str
    address: Address
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
        return [(settings.url, first)]
    if settings.against.startswith("http:"):
        trust["ca_file"] = None
    other = read_url(settings.against, key=settings.against_key, **trust)
    if other.host == first.host:
        other = msgspec.structs.replace(other, key=other.key or first.key, headers=first.headers)
    return [(settings.url, first), (settings.against, other)]


async def _look(address: Address, url: str, settings: BenchSettings) -> Target:
    model = settings.model or await _model(address, url, settings.tokenizer)
    members: dict[str, Any] = {
        "model": model,
        "temperature": 0.0,
        "stream_options": {"include_usage": True},
        **settings.extra,
    }
    reply = await _try(address, url, members)
    if reply.status in _NOT_UNDERSTOOD and "stream_options" in members:  # then nobody counts tokens
        members = {name: value for name, value in members.items() if name != "stream_options"}
        reply = await _try(address, url, members)
    if reply.status != 200:
        raise UnreachableError(f"{url} does not answer for {model!r} ({_complaint(reply)})")
    return Target(url, address, members)


async def _model(address: Address, url: str, tokenizer: str | None) -> str:
    """The model that the tokenizer is of, if the server lists it; else the first."""
    reply = await _fetch(address, url, "GET", "/models", b"")
    models = read_models(reply.body) if reply.status == 200 else ()
    if not models:
        raise UnreachableError(f"{url} lists no models ({_complaint(reply)}): name one with --model-name")
    return next((model.id for model in models if model.id == tokenizer), models[0].id)


async def _try(address: Address, url: str, members: dict[str, Any]) -> Fetched:
    asked = [{"role": "user", "content": "Say hello."}]
    body = {**members, "messages": asked, "stream": True, "max_tokens": 1}
    return await _fetch(address, url, "POST", "/chat/completions", msgspec.json.encode(body))


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
