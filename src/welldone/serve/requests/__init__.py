"""Bodies of requests: checked by a closed list of fields, and turned into what the engine gets. No I/O, no clock."""

from welldone.serve.requests.body import read_body
from welldone.serve.requests.chat import read_chat
from welldone.serve.requests.completions import read_completions
from welldone.serve.requests.embeddings import read_embeddings
from welldone.serve.requests.request import ValidatedRequest
from welldone.serve.requests.rerank import read_rerank
from welldone.serve.requests.table import GENERATION_FIELDS
from welldone.serve.requests.tokens import read_detokenize, read_tokenize

__all__ = [
    "GENERATION_FIELDS",
    "ValidatedRequest",
    "read_body",
    "read_chat",
    "read_completions",
    "read_detokenize",
    "read_embeddings",
    "read_rerank",
    "read_tokenize",
]
