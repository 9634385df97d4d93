"""Estimated token cost of a response without usage, for the token limit of its API key.

A stream that a client aborts has no usage chunk, but the upstream has generated tokens all the same.
"""

import msgspec

from welldone.core.events import Json, Usage

_TOKEN_BYTES = 4
"""OpenAI's rule of thumb for English. The JSON syntax of a request is counted too: it is small beside long texts."""
_MEDIA_MEMBERS = frozenset(("url", "image_url", "data", "file_data"))
_MEDIA_LENGTH = 1024
"""Shortest value that is embedded media and no address."""
_CONTAINERS = frozenset((dict, list))
_MEDIA_TOKENS = 1_000
"""Cost of an embedded image or file: about that of a full-size image at OpenAI."""
_ENVELOPE_BYTES = 512
"""Upper bound for the part of a chunk that is not text. Servers use 150 to 400 bytes."""


def estimate_prompt_tokens(body: Json, size_bytes: int) -> int:
    """Estimate the prompt tokens of a request. `size_bytes` is the size of its JSON."""
    media: list[int] = []
    nodes: list[object] = [body]
    while nodes:
        node = nodes.pop()
        if isinstance(node, list):
            if not _CONTAINERS.isdisjoint(map(type, node)):  # a list may have a million numbers
                nodes += node
        elif isinstance(node, dict):
            for name, value in node.items():
                if not isinstance(value, str):
                    nodes.append(value)
                elif len(value) >= _MEDIA_LENGTH and name in _MEDIA_MEMBERS:
                    media.append(len(value))
    return (size_bytes - sum(media)) // _TOKEN_BYTES + len(media) * _MEDIA_TOKENS


class OutputTokenEstimator:
    """Counts chunks and bytes of one reply, to estimate its tokens."""

    def __init__(self) -> None:
        self.prompt_tokens: int = 0
        """Estimate for the request. It is made when that is sent: many answers may end at once, with long requests."""
        self.has_long_chunks: bool = False
        """Whether chunks are longer than their text: by log probabilities, or in events that repeat the request."""
        self.chunks: int = 0
        self.bytes: int = 0
        self._shortest_chunk = _ENVELOPE_BYTES  # most streams start with a chunk without text

    def add(self, data: bytes) -> None:
        """Count bytes of the reply."""
        chunks = data.count(b"data:")
        self.bytes += len(data)
        if chunks:
            self.chunks += chunks
            self._shortest_chunk = min(self._shortest_chunk, len(data) // chunks)

    @property
    def tokens(self) -> int:
        """Estimate of the tokens: one per chunk, or more for longer chunks."""
        text_bytes = 0 if self.has_long_chunks else self.bytes - self.chunks * self._shortest_chunk
        return max(self.chunks, text_bytes // _TOKEN_BYTES)


class TokenCost(msgspec.Struct):
    """Estimated cost of all attempts at a response."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    wasted_tokens: int = 0
    """Tokens of attempts that failed and were retried."""
    prompt_copies: int = 1
    """Requests per prompt, which usage counts once: choices may be requested one by one."""

    def billed_tokens(self, usage: Usage | None, *, is_complete: bool) -> int:
        """Return the tokens to charge. The usage of an incomplete response is only a lower bound."""
        counted = 0 if usage is None else usage.max_tokens_counted + usage.prompt_tokens * (self.prompt_copies - 1)
        if not (is_complete and counted):
            counted = max(counted, self.prompt_tokens + self.completion_tokens)
        return self.wasted_tokens + counted

    def add_incomplete(self, output: OutputTokenEstimator) -> None:
        """Add an attempt without usage."""
        self.prompt_tokens += output.prompt_tokens
        self.completion_tokens += output.tokens

    def add_continued(self, output: OutputTokenEstimator) -> None:
        """Add the output of a failed attempt that another one continues."""
        self.completion_tokens += output.tokens

    def add_wasted(self, output: OutputTokenEstimator) -> None:
        """Add a failed attempt that is retried."""
        self.wasted_tokens += output.prompt_tokens + output.tokens
