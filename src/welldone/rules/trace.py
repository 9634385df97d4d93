"""A trace: all that was heard of one reply, and what its request had asked for."""

from typing import Any

import msgspec


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """All that was heard of one reply. None means: not known."""

    body: bytes
    endpoint: str = "chat"
    """`chat`, `completions`, `responses` or `messages`."""
    request: dict[str, Any] | None = None
    """The JSON body of the request."""
    status: int | None = None
    headers: tuple[tuple[str, str], ...] | None = None
    complete: bool | None = None
    """Whether the HTTP body ended as it should."""
    end: bool | None = True
    """None: who listened left before the end, so that nothing can be said of it."""
    chunk_sizes: tuple[int, ...] | None = None
    """The sizes of the HTTP chunks of the body."""

    def header(self, name: str) -> str | None:
        """The value of a header; None where it is absent, or where the headers are not known."""
        values = [value for key, value in self.headers or () if key.lower() == name]
        return ", ".join(values) if values else None

    @property
    def media_type(self) -> str:
        """The Content-Type without its parameters, in lower case."""
        return (self.header("content-type") or "").partition(";")[0].strip().lower()

    @property
    def wants_stream(self) -> bool | None:
        """Whether the request asked for a stream."""
        return None if self.request is None else self.request.get("stream") is True

    @property
    def wants_usage(self) -> bool | None:
        """Whether the request asked for a usage chunk."""
        return None if self.request is None else self.stream_option("include_usage") is True

    def stream_option(self, name: str) -> object:
        """One of the request's `stream_options`; None where it is absent."""
        options = (self.request or {}).get("stream_options")
        return options.get(name) if isinstance(options, dict) else None
