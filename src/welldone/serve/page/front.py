"""The page's files as replies. They are open to all and say nothing of the models: the page asks for that itself."""

import asyncio
from typing import Protocol

from welldone.net.inbound import Reply
from welldone.serve.app import Ask
from welldone.serve.errors import ApiError

ASSETS = "/page/assets/"
"""Where the files are, but for the document itself."""

_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
    "require-trusted-types-for 'script'"
)
"""Nothing from elsewhere, no script or style in the document itself, no frame around it, and no text that becomes
markup: what a model says cannot do more than be read."""
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept-Encoding, Origin",
}
_FOR_EVER = "public, max-age=31536000, immutable"


class Asset(Protocol):
    """A file as it is sent."""

    @property
    def body(self) -> bytes: ...

    @property
    def gzipped(self) -> bytes: ...

    @property
    def content_type(self) -> str: ...

    @property
    def etag(self) -> str: ...


class Site(Protocol):
    """All files of the page."""

    @property
    def index(self) -> Asset:
        """The document."""

    def find(self, path: str) -> Asset | None:
        """The file at a path."""


class Front:
    """Sends the page's files."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def index(self, ask: Ask) -> Reply:
        """The document; it is asked for each time, since it names the files of this version."""
        # The first who asks has the files read and compressed, which takes a while.
        asset: Asset = await asyncio.to_thread(lambda: self._site.index)
        return _reply(ask, asset, "no-cache")

    async def asset(self, ask: Ask) -> Reply:
        """A file that the document names."""
        path = ask.call.path.partition(ASSETS)[2]
        asset = await asyncio.to_thread(self._site.find, path)
        if asset is None:
            raise ApiError(404, "The page has no such file: load it again, it may be of another version.")
        return _reply(ask, asset, _FOR_EVER)


def _reply(ask: Ask, asset: Asset, cache: str) -> Reply:
    headers = {**_HEADERS, "Cache-Control": cache, "ETag": asset.etag}
    if asset.etag in ask.call.headers.get("If-None-Match", ""):
        return Reply(304, headers=headers)
    if not _takes_gzip(ask.call.headers.get("Accept-Encoding", "")):
        return Reply(200, asset.body, asset.content_type, headers)
    return Reply(200, asset.gzipped, asset.content_type, {**headers, "Content-Encoding": "gzip"})


def _takes_gzip(accepted: str) -> bool:
    """Whether a client reads gzip: it names it, and not with a weight of zero."""
    for item in accepted.lower().split(","):
        name, _, weight = item.partition(";")
        if name.strip() == "gzip":
            return weight.replace(" ", "").rstrip("0.") != "q="
    return False
