"""Where a model may come from, as a user writes it."""

import ipaddress
import re
from pathlib import Path
from typing import TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from welldone.engines.arrival import PullError, Trouble, clean_name
from welldone.engines.store import SUFFIX, parts

KNOWN = "default, hf:OWNER/REPOSITORY/FILE.gguf[@REVISION] and https://HOST/PATH/FILE.gguf"
_HUB = re.compile(r"hf:(?P<repository>[\w.-]+/[\w.-]+)/(?P<path>[^@]+)(?:@(?P<revision>[\w./-]+))?", re.ASCII)


class Web(msgspec.Struct, frozen=True):
    """A file on a web server."""

    url: str

    def __str__(self) -> str:
        """For a person, and for keeping: without what may be secret."""
        return shown(self.url)

    @property
    def path(self) -> str:
        """Where the file is on its server."""
        return unquote(urlsplit(self.url).path)

    def files(self) -> "list[Web]":
        """All files of the model that this one belongs to."""
        split = urlsplit(self.url)
        paths = _siblings(split.path)
        return [self] if len(paths) == 1 else [Web(split._replace(path=path).geturl()) for path in paths]


class Hub(msgspec.Struct, frozen=True):
    """A file on the Hugging Face hub."""

    repository: str
    path: str
    revision: str | None

    def __str__(self) -> str:
        """As a user writes it."""
        return f"hf:{self.repository}/{self.path}" + (f"@{self.revision}" if self.revision else "")

    def files(self) -> "list[Hub]":
        """All files of the model that this one belongs to."""
        return [Hub(self.repository, path, self.revision) for path in _siblings(self.path)]


Source: TypeAlias = Web | Hub


def read_source(text: str) -> Source:
    """What `text` names; `PullError` if it is nothing that a model can be fetched from."""
    source: Source
    if text.startswith(("https://", "http://")):
        split_url(text)
        source = Web(text)
    elif match := _HUB.fullmatch(text):
        source = Hub(match["repository"], match["path"], match["revision"])
        if ".." in source.path.split("/"):
            raise PullError(f"{text!r} leaves its repository", Trouble.MISTAKE)
    else:
        raise PullError(f"{_quoted(text)} is no source of a model{_hint(text)}; known are {KNOWN}", Trouble.MISTAKE)
    clean_name(source.path)
    return source


def split_url(url: str) -> SplitResult:
    """The parts of a URL that may be fetched from: https, or http on this machine; `PullError` for any other."""
    try:
        split = urlsplit(url)
        host, _ = split.hostname, split.port
    except ValueError as error:
        raise PullError(f"{shown(url)} is no URL: {error}", Trouble.MISTAKE) from None
    if not url.isascii() or not url.isprintable() or " " in url:
        raise PullError("the URL has characters that a URL has not; write them percent-encoded", Trouble.MISTAKE)
    if not host or split.scheme not in ("https", "http"):
        raise PullError(f"{shown(url)} is no URL of a file; write https://HOST/PATH/FILE.gguf", Trouble.MISTAKE)
    if split.username is not None:
        raise PullError("a password in a URL ends up in logs; leave it out", Trouble.MISTAKE)
    if split.scheme == "http" and not is_loopback(host):
        raise PullError(f"{shown(url)} is not encrypted; use https (http is for this machine only)", Trouble.MISTAKE)
    return split


def shown(url: str) -> str:
    """A URL for a person: without its query, which may hold a signature, and without a password."""
    return _quoted(re.sub(r"//[^/@]*@", "//", re.split(r"[?#]", url)[0]))


def is_loopback(host: str) -> bool:
    """Whether the host is this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _siblings(path: str) -> list[str]:
    folder, slash, name = path.rpartition("/")
    return [folder + slash + each for each in parts(name)]


def _hint(text: str) -> str:
    """What was meant, perhaps."""
    if re.fullmatch(r"[\w.-]+/[\w.-]+/[^@]+\.gguf(@.*)?", text) and not Path(text).exists():
        return f" (did you mean 'hf:{text}'?)"
    if text.endswith(SUFFIX):
        return f" (a file that is here already is served with: welldone serve -m {text})"
    return ""


def _quoted(text: str) -> str:
    return text if text and text.isprintable() else ascii(text)
