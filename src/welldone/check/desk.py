"""Asks the server for all probes: never more at once than allowed, and again where it is only busy."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from welldone import __version__
from welldone.check.dialect import CHAT
from welldone.check.reply import Asked
from welldone.check.settings import CheckSettings
from welldone.net.address import Address, read_url
from welldone.net.ear import ListenError, Recording

LIMIT_BYTES = 2 * 2**20
"""Of a reply. The longest answer that a probe asks for has some hundred chunks of less than 1 KB."""
BUSY = (429, 503, 529)
"""To ask again later may help. The last is Anthropic's."""
_TRIES = 4
_WAIT_S = 1.0  # after a 429 or 503 that does not say how long
_LONGEST_WAIT_S = 10.0  # a server that is busy for longer is not to be checked now
_ALL_WAITS_S = 300.0  # of all requests together: a whole run should take a third of that
_IN_VAIN_LIMIT = 8
"""Requests without a reply: twice as many as there are at once by default. To wait for all of them would take half an
hour, and it would say no more."""
SLOW = "the server may be slow or busy: raise --timeout"
_STOPPED = f"not sent: {_IN_VAIN_LIMIT} requests before it got no whole reply"


class Listen(Protocol):
    """`net.ear.listen`, or what stands in for it."""

    def __call__(
        self,
        address: Address,
        method: str,
        path: str,
        *,
        body: bytes | None,
        headers: tuple[tuple[str, str | None], ...],
        within_s: float,
        quiet_s: float,
        limit_bytes: int,
        after_done_s: float,
        leave: Callable[[bytes], bool] | None,
    ) -> Awaitable[Recording]: ...


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the server before the probes begin."""

    model: str
    server: str = ""
    """What it calls itself."""
    members: Mapping[str, Any] = msgspec.field(default_factory=lambda: CHAT.ways[0][0])
    """What every request has that should be answered: what the server took of it."""
    limit_name: str = "max_tokens"
    """How it wants to be told how much to say."""
    allowance: int = 0
    """How many tokens more an answer gets, for a model that thinks before it speaks."""


class Desk:
    """The way to the server."""

    def __init__(
        self, settings: CheckSettings, listen: Listen, pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """Raises `ValueError` where the URL, the key or a header cannot be used."""
        self.settings = settings
        self.address = read_url(
            settings.url,
            key=settings.key,
            ca_file=settings.ca_file,
            is_verified=settings.is_verified,
            headers=(*settings.dialect.own_headers(settings.key), *settings.headers),
        )
        self._root = msgspec.structs.replace(self.address, prefix=self.address.prefix.removesuffix("/v1"))
        self._listen = listen
        self._pause = pause
        self._places = asyncio.Semaphore(settings.side_by_side)
        self._in_vain = 0
        self._has_timed_out = False
        self._waited_s = 0.0

    async def ask(
        self,
        asked: Asked,
        probe: str,
        leave: Callable[[bytes], bool] | None = None,
    ) -> list[Recording]:
        """The reply, and before it those that only said to come again later.

        Raises:
            ListenError: there is no connection, or there have been too many requests without a reply.
        """
        heard = [await self._ask(asked, probe, leave)]
        while len(heard) < _TRIES and (wait_s := _wait_s(heard[-1])) is not None:
            self._waited_s += wait_s
            if self._waited_s > _ALL_WAITS_S:
                break
            await self._pause(wait_s)
            heard.append(await self._ask(asked, probe, leave))
        return heard

    def timed_out(self) -> str:
        """What to report of a reply that was not whole in time."""
        return f"timed out after {self.settings.patience.reply_s:g} s; {SLOW}"

    async def _ask(self, asked: Asked, probe: str, leave: Callable[[bytes], bool] | None) -> Recording:
        async with self._places:
            if self._in_vain >= _IN_VAIN_LIMIT:
                raise ListenError(f"{_STOPPED}; {SLOW}" if self._has_timed_out else _STOPPED)
            try:
                recording = await self._hear(asked, probe, leave)
            except ListenError:
                self._in_vain += 1
                raise
            self._in_vain += recording.is_given_up
            self._has_timed_out = self._has_timed_out or recording.is_timed_out
            return recording

    async def _hear(self, asked: Asked, probe: str, leave: Callable[[bytes], bool] | None) -> Recording:
        patience = self.settings.patience
        return await self._listen(
            self._root if asked.is_root else self.address,
            asked.method,
            asked.path,
            body=asked.body,
            # Who looks into the server's log finds the probe there.
            headers=(("User-Agent", f"welldone/{__version__} check ({probe})"), *asked.headers),
            within_s=patience.reply_s,
            quiet_s=patience.reply_s,
            limit_bytes=LIMIT_BYTES,
            after_done_s=patience.after_done_s,
            leave=leave,
        )


def _wait_s(recording: Recording) -> float | None:
    """How long to wait before the request is made again; None: it is answered."""
    if recording.status not in BUSY:
        return None
    said = next((value for name, value in recording.headers if name.lower() == "retry-after"), "")
    asked_s = float(said) if said.isascii() and said.isdigit() and len(said) < 6 else _WAIT_S
    return asked_s if asked_s <= _LONGEST_WAIT_S else None
