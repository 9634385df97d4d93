"""The page's files, ready to be sent: under a name that changes with their content, and compressed.

Modules import each other by relative paths. So it is the folder that has a name of its own, made of all that is in it:
a browser may keep each file for ever, and never mixes the files of two versions.
"""

import asyncio
import gzip
import hashlib
from collections.abc import Iterator
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple, Protocol

from welldone.gateway.errors import ApiError
from welldone.http.server import HttpResponse
from welldone.server.app import RequestContext

# The page's files as replies. They are open to all and say nothing of the models: the page asks for that itself.


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


_CONTENT_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_INDEX_FILE = "index.html"
_ASSETS_PLACEHOLDER = "{{assets}}"
_PRELOADS_PLACEHOLDER = "{{preloads}}"
_MODULES_PREFIX = "js/"
_GZIP_LEVEL = 9  # it is done once


class StaticAsset(NamedTuple):
    """A file as it is sent."""

    body: bytes
    gzipped: bytes
    content_type: str
    etag: str


class StaticSite:
    """All files of the page; they are read when the first is asked for.

    `prefix` is the path under which `find` is asked for, relative to the document so that a proxy may put both below
    another path.
    """

    def __init__(self, prefix: str, root: Traversable | None = None) -> None:
        self._prefix = prefix
        self._root = root or files("welldone.web") / "static"

    @cached_property
    def index(self) -> StaticAsset:
        """The document."""
        folder = f"{self._prefix}/{self._version}"
        modules = [name for name in self._files if name.startswith(_MODULES_PREFIX)]
        preloads = "\n".join(f'<link rel="modulepreload" href="{folder}/{name}">' for name in modules)
        text = (
            self._files[_INDEX_FILE]
            .decode()
            .replace(_ASSETS_PLACEHOLDER, folder)
            .replace(_PRELOADS_PLACEHOLDER, preloads)
        )
        return _build_asset(_INDEX_FILE, text.encode())

    def find(self, path: str) -> StaticAsset | None:
        """The file at a path below the prefix; None where there is none, or not in this version."""
        return self._assets.get(path)

    @cached_property
    def _files(self) -> dict[str, bytes]:
        return dict(sorted(_walk_files(self._root, "")))

    @cached_property
    def _version(self) -> str:
        digest = hashlib.sha256()
        for name, body in self._files.items():
            digest.update(b"%d %b %d " % (len(name), name.encode(), len(body)))
            digest.update(body)
        return digest.hexdigest()[:16]

    @cached_property
    def _assets(self) -> dict[str, StaticAsset]:
        named = ((name, body) for name, body in self._files.items() if name != _INDEX_FILE)
        return {f"{self._version}/{name}": _build_asset(name, body) for name, body in named}


def _walk_files(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk_files(entry, f"{path}{entry.name}/")
        elif entry.name.rpartition(".")[2] in _CONTENT_TYPES:
            yield path + entry.name, entry.read_bytes()


def _build_asset(name: str, body: bytes) -> StaticAsset:
    etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    kind = _CONTENT_TYPES[name.rpartition(".")[2]]
    return StaticAsset(body, gzip.compress(body, _GZIP_LEVEL, mtime=0), kind, etag)
