"""How upstreams are shown."""

from urllib.parse import urlsplit

from welldone.engines.upstream_settings import UpstreamSettings

_WORD = 16  # characters of a part of a path that is shown; keys are longer


def url_of(upstream: UpstreamSettings) -> str:
    """Where it is, without what may be a secret: a long word in the path."""
    split = urlsplit(upstream.url)
    path = "/".join(word if len(word) <= _WORD else "…" for word in split.path.split("/"))
    return f"{split.scheme}://{split.netloc}{path}"


def models(upstream: UpstreamSettings) -> str:
    """Which models it is asked for."""
    return ", ".join(upstream.models) or "its own list"
