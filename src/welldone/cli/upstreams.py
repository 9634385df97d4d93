"""How upstreams are shown."""

from urllib.parse import urlsplit

from welldone.engines.upstream_settings import UpstreamSettings


def origin(upstream: UpstreamSettings) -> str:
    """Its scheme and host, without the path, which says nothing to most and may be a secret."""
    split = urlsplit(upstream.url)
    return f"{split.scheme}://{split.netloc}"


def models(upstream: UpstreamSettings) -> str:
    """Which models it is asked for."""
    return ", ".join(upstream.models) or "its own list"
