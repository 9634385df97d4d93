"""Request bodies: validation and translation into the bodies for engines and upstreams. No I/O, no clock."""

from welldone.server.requests.chat import read_chat, read_completions
from welldone.server.requests.fields import ValidatedRequest, read_body
from welldone.server.requests.vectors import read_detokenize, read_embeddings, read_rerank, read_tokenize

__all__ = [
    "ValidatedRequest",
    "read_body",
    "read_chat",
    "read_completions",
    "read_detokenize",
    "read_embeddings",
    "read_rerank",
    "read_tokenize",
]
