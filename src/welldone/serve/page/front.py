"""The page's files as replies. They are open to all and say nothing of the models: the page asks for that itself."""

import asyncio
from typing import Protocol

from welldone.net.inbound import HttpResponse
from welldone.serve.app import RequestContext
from welldone.serve.errors import ApiError

ASSETS_PATH = "/page/assets/"
"""Where the files are, but for the document itself."""

_CONTENT_SECURITY_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
    "require-trusted-types-for 'script'"
)
"""Nothing from elsewhere, no script or style in the document itself, no frame around it, and no text that becomes
markup: what a model says cannot do more than be read."""
_SECURITY_HEADERS = {
    "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept-Encoding, Origin",
}
_IMMUTABLE = "public, max-age=31536000, immutable"


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


class AssetSource(Protocol):
    """All files of the page."""

    @property
    def index(self) -> Asset:
        """The document."""

    def find(self, path: str) -> Asset | None:
        """The file at a path."""


class AssetHandlers:
    """Sends the page's files."""

    def __init__(self, site: AssetSource) -> None:
        self._site = site

    async def index(self, ctx: RequestContext) -> HttpResponse:
        """The document; it is asked for each time, since it names the files of this version."""
        # The first who asks has the files read and compressed, which takes a while.
        asset: Asset = await asyncio.to_thread(lambda: self._site.index)
        return _asset_reply(ctx, asset, "no-cache")

    async def asset(self, ctx: RequestContext) -> HttpResponse:
        """A file that the document names."""
        path = ctx.request.path.partition(ASSETS_PATH)[2]
        asset = await asyncio.to_thread(self._site.find, path)
        if asset is None:
            raise ApiError(404, "The page has no such file: load it again, it may be of another version.")
        return _asset_reply(ctx, asset, _IMMUTABLE)


def _asset_reply(ctx: RequestContext, asset: Asset, cache_control: str) -> HttpResponse:
    headers = {**_SECURITY_HEADERS, "Cache-Control": cache_control, "ETag": asset.etag}
    if asset.etag in ctx.request.headers.get("If-None-Match", ""):
        return HttpResponse(304, headers=headers)
    if not _accepts_gzip(ctx.request.headers.get("Accept-Encoding", "")):
        return HttpResponse(200, asset.body, asset.content_type, headers)
    return HttpResponse(200, asset.gzipped, asset.content_type, {**headers, "Content-Encoding": "gzip"})


def _accepts_gzip(accept_encoding: str) -> bool:
    """Whether a client reads gzip: it names it, and not with a weight of zero."""
    for item in accept_encoding.lower().split(","):
        name, _, weight = item.partition(";")
        if name.strip() == "gzip":
            return weight.replace(" ", "").rstrip("0.") != "q="
    return False
