"""Static files of the page: versioned, compressed, and sent with a strict content security policy.

JavaScript modules import each other by relative paths. So the version is in the folder's name, which is a hash of all
files: browsers cache each file for ever and never mix files of two versions. The files are public and contain nothing
about the models; the page requests that from the API.
"""

import asyncio
import gzip
import hashlib
from collections.abc import Iterator
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from welldone.gateway.errors import ApiError
from welldone.http.messages import HttpResponse
from welldone.server.context import RequestContext

ASSETS_PATH = "/page/assets/"
"""Path of all files except the document."""

_CONTENT_SECURITY_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
    "require-trusted-types-for 'script'"
)
"""Same origin only, no inline script or style, no framing, no strings assigned as markup: the output of a model can
only be displayed."""
_SECURITY_HEADERS = {
    "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept-Encoding, Origin",
}
_IMMUTABLE = "public, max-age=31536000, immutable"
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
_GZIP_LEVEL = 9  # compressed once per process


class StaticAsset(NamedTuple):
    """A file, ready to be sent."""

    body: bytes
    gzipped: bytes
    content_type: str
    etag: str


class StaticSite:
    """All files of the page, read on first use.

    `prefix` is the path below which `find` looks files up. It is relative to the document, so that a reverse proxy can
    mount both below another path.
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
        """Return the file at a path below the prefix; None if this version has no such file."""
        return self._assets.get(path)

    async def get_index(self, ctx: RequestContext) -> HttpResponse:
        """`GET /`: the document. Never cached without revalidation, since it names the files of this version."""
        # In a thread: the first request reads and compresses all files.
        asset: StaticAsset = await asyncio.to_thread(lambda: self.index)
        return _asset_response(ctx, asset, "no-cache")

    async def get_asset(self, ctx: RequestContext) -> HttpResponse:
        """`GET /page/assets/*`: a file that the document refers to."""
        path = ctx.request.path.partition(ASSETS_PATH)[2]
        asset = await asyncio.to_thread(self.find, path)
        if asset is None:
            raise ApiError(404, "This version of the page has no such file. Reload the page.")
        return _asset_response(ctx, asset, _IMMUTABLE)

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
    content_type = _CONTENT_TYPES[name.rpartition(".")[2]]
    return StaticAsset(body, gzip.compress(body, _GZIP_LEVEL, mtime=0), content_type, etag)


def _asset_response(ctx: RequestContext, asset: StaticAsset, cache_control: str) -> HttpResponse:
    headers = {**_SECURITY_HEADERS, "Cache-Control": cache_control, "ETag": asset.etag}
    if asset.etag in ctx.request.headers.get("If-None-Match", ""):
        return HttpResponse(304, headers=headers)
    if not _accepts_gzip(ctx.request.headers.get("Accept-Encoding", "")):
        return HttpResponse(200, asset.body, asset.content_type, headers)
    return HttpResponse(200, asset.gzipped, asset.content_type, {**headers, "Content-Encoding": "gzip"})


def _accepts_gzip(accept_encoding: str) -> bool:
    for item in accept_encoding.lower().split(","):
        name, _, weight = item.partition(";")
        if name.strip() == "gzip":
            return weight.replace(" ", "").rstrip("0.") != "q="  # q=0: not acceptable (RFC 9110 §12.4.2)
    return False
