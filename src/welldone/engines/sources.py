"""Where a model may come from, as a user writes it."""

import ipaddress
import re
from pathlib import Path
from typing import TypeAlias
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from welldone.engines.arrival import PullError, PullErrorKind, safe_file_name
from welldone.engines.store import GGUF_SUFFIX, split_file_names

SOURCE_FORMATS = "default, hf:OWNER/REPOSITORY/FILE.gguf[@REVISION] and https://HOST/PATH/FILE.gguf"
_HUB_SOURCE = re.compile(r"hf:(?P<repository>[\w.-]+/[\w.-]+)/(?P<path>[^@]+)(?:@(?P<revision>[\w./-]+))?", re.ASCII)


class WebSource(msgspec.Struct, frozen=True):
    """A file on a web server."""

    url: str

    def __str__(self) -> str:
        """For a person, and for keeping: without what may be secret."""
        return redact_url(self.url)

    @property
    def path(self) -> str:
        """Where the file is on its server."""
        return unquote(urlsplit(self.url).path)

    def files(self) -> "list[WebSource]":
        """All files of the model that this one belongs to."""
        split = urlsplit(self.url)
        paths = _split_model_paths(split.path)
        return [self] if len(paths) == 1 else [WebSource(split._replace(path=path).geturl()) for path in paths]


class HubSource(msgspec.Struct, frozen=True):
    """A file on the Hugging Face hub."""

    repository: str
    path: str
    revision: str | None

    def __str__(self) -> str:
        """As a user writes it."""
        return f"hf:{self.repository}/{self.path}" + (f"@{self.revision}" if self.revision else "")

    def files(self) -> "list[HubSource]":
        """All files of the model that this one belongs to."""
        return [HubSource(self.repository, path, self.revision) for path in _split_model_paths(self.path)]


ModelSource: TypeAlias = WebSource | HubSource


def parse_source(text: str) -> ModelSource:
    """What `text` names; `PullError` if it is nothing that a model can be fetched from."""
    source: ModelSource
    if text.startswith(("https://", "http://")):
        parse_download_url(text)
        source = WebSource(text)
    elif match := _HUB_SOURCE.fullmatch(text):
        source = HubSource(match["repository"], match["path"], match["revision"])
        if ".." in source.path.split("/"):
            raise PullError(f"{text!r} leaves its repository", PullErrorKind.USER_ERROR)
    else:
        raise PullError(
            f"{_printable(text)} is no source of a model{_source_hint(text)}; known are {SOURCE_FORMATS}",
            PullErrorKind.USER_ERROR,
        )
    safe_file_name(source.path)
    return source


def parse_download_url(url: str) -> SplitResult:
    """The parts of a URL that may be fetched from: https, or http on this machine; `PullError` for any other."""
    try:
        split = urlsplit(url)
        host, _ = split.hostname, split.port
    except ValueError as error:
        raise PullError(f"{redact_url(url)} is no URL: {error}", PullErrorKind.USER_ERROR) from None
    if not url.isascii() or not url.isprintable() or " " in url:
        raise PullError(
            "the URL has characters that a URL has not; write them percent-encoded", PullErrorKind.USER_ERROR
        )
    if not host or split.scheme not in ("https", "http"):
        raise PullError(
            f"{redact_url(url)} is no URL of a file; write https://HOST/PATH/FILE.gguf", PullErrorKind.USER_ERROR
        )
    if split.username is not None:
        raise PullError("a password in a URL ends up in logs; leave it out", PullErrorKind.USER_ERROR)
    if split.scheme == "http" and not is_loopback(host):
        raise PullError(
            f"{redact_url(url)} is not encrypted; use https (http is for this machine only)", PullErrorKind.USER_ERROR
        )
    return split


def redact_url(url: str) -> str:
    """A URL for a person: without its query, which may hold a signature, and without a password."""
    return _printable(re.sub(r"//[^/@]*@", "//", re.split(r"[?#]", url)[0]))


def is_loopback(host: str) -> bool:
    """Whether the host is this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _split_model_paths(path: str) -> list[str]:
    folder, slash, name = path.rpartition("/")
    return [folder + slash + each for each in split_file_names(name)]


def _source_hint(text: str) -> str:
    """What was meant, perhaps."""
    if re.fullmatch(r"[\w.-]+/[\w.-]+/[^@]+\.gguf(@.*)?", text) and not Path(text).exists():
        return f" (did you mean 'hf:{text}'?)"
    if text.endswith(GGUF_SUFFIX):
        return f" (a file that is here already is served with: welldone serve -m {text})"
    return ""


def _printable(text: str) -> str:
    return text if text and text.isprintable() else ascii(text)
