"""Small GGUF files for tests that only read metadata."""

import hashlib

from tests.models.gguf_writer import Gguf, Tensor, Value

TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def metadata(**more: Value) -> dict[str, Value]:
    """Return the metadata of a small llama model. In keyword names two underscores stand for a dot."""
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
    """Return the file of a model with so many parameters."""
    weights = [number % 7 / 7 for number in range(count)]
    return Gguf(metadata(**more), [Tensor("token_embd.weight", (count,), weights)]).data()


def sha256(data: bytes) -> str:
    """Return the sha256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()
