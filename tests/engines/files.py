"""Small GGUF files, for what only looks at files."""

import hashlib

from tests.models.gguf_writer import Gguf, Tensor, Value

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def metadata(**more: Value) -> dict[str, Value]:
    """What a small llama model says of itself; dots are written as two underscores."""
    plain: dict[str, Value] = {
        "general.architecture": "llama",
        "general.name": "Small",
        "general.type": "model",
        "general.file_type": 15,
        "llama.context_length": 2048,
        "llama.embedding_length": 64,
        "llama.block_count": 3,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.chat_template": TEMPLATE,
    }
    return plain | {name.replace("__", "."): value for name, value in more.items()}


def model(count: int = 1000, /, **more: Value) -> bytes:
    """The file of a model with so many parameters."""
    weights = [number % 7 / 7 for number in range(count)]
    return Gguf(metadata(**more), [Tensor("token_embd.weight", (count,), weights)]).data()


def sha256(data: bytes) -> str:
    """The hash of a file, as people write it."""
    return hashlib.sha256(data).hexdigest()
