"""What an answer costs a key's limit of tokens where no usage says it: an estimate, made when the answer has ended.

A client that leaves early gets no usage chunk, and the upstream has worked all the same.
"""

import re

import msgspec

from welldone.protocol.events import Json, Usage

_TOKEN_BYTES = 4
"""Of English text; OpenAI's rule of thumb. A request counts with its JSON, which is small beside long texts."""
_EMBEDDED_MEDIA = re.compile(rb'"(?:url|image_url|data|file_data)": ?"[^"]{1024,}"')
_MEDIA_TOKENS = 1_000
"""Of a picture or a file that is sent as text: about what a picture of full size costs at OpenAI."""
_ENVELOPE_BYTES = 512
"""The most of a chunk that is not its text. Those of servers have 150 to 400 bytes."""


def estimate_prompt_tokens(body: Json) -> int:
    """About how many tokens the prompt of a request has."""
    encoded = msgspec.json.encode(body)
    media = [found.end() - found.start() for found in _EMBEDDED_MEDIA.finditer(encoded)]
    return (len(encoded) - sum(media)) // _TOKEN_BYTES + len(media) * _MEDIA_TOKENS


class OutputTokenEstimator:
    """What came of one reply."""

    def __init__(self) -> None:
        self.chunks = 0
        self.bytes = 0
        self._shortest_chunk = _ENVELOPE_BYTES  # bytes of the shortest chunk: most begin with one that has no text

    def add(self, data: bytes) -> None:
        """More of it."""
        chunks = data.count(b"data:")
        self.bytes += len(data)
        if chunks:
            self.chunks += chunks
            self._shortest_chunk = min(self._shortest_chunk, len(data) // chunks)

    def tokens(self, *, has_logprobs: bool) -> int:
        """About how many tokens these are: one in each chunk, or more where chunks have longer texts. With log
        probabilities the length of a chunk says nothing."""
        text_bytes = 0 if has_logprobs else self.bytes - self.chunks * self._shortest_chunk
        return max(self.chunks, text_bytes // _TOKEN_BYTES)


class TokenCost(msgspec.Struct):
    """What the attempts at an answer have cost, as far as one can tell."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    wasted_tokens: int = 0
    """Of attempts that began and did not end, after which another was made."""
    prompt_copies: int = 1
    """How often a prompt was sent that usage counts once: choices may be asked for one by one."""

    def billed_tokens(self, usage: Usage | None, *, is_complete: bool) -> int:
        """The tokens to charge, where this was counted. Before the end of an answer counts are not final."""
        counted = 0 if usage is None else usage.max_tokens_counted + usage.prompt_tokens * (self.prompt_copies - 1)
        return self.wasted_tokens + (
            counted if is_complete and counted else max(counted, self.prompt_tokens + self.completion_tokens)
        )
