"""How upstreams are shown."""

from urllib.parse import urlsplit

from welldone.engines.upstream_settings import UpstreamSettings

_MAX_SEGMENT_CHARS = 16  # characters of a part of a path that is shown; keys are longer


def redacted_url(upstream: UpstreamSettings) -> str:
    """Where it is, without what may be a secret: a long word in the path."""
    split = urlsplit(upstream.url)
    path = "/".join(word if len(word) <= _MAX_SEGMENT_CHARS else "…" for word in split.path.split("/"))
    return f"{split.scheme}://{split.netloc}{path}"


def describe_models(upstream: UpstreamSettings) -> str:
    """Which models it is asked for."""
    return ", ".join(upstream.models) or "its own list"
