"""Writer of a GGUF model with random weights: the GPU load of a real model of its size.

`python -m benchmarks.random_gguf 1B model.gguf`. The model generates whole random words, so that llama.cpp sends every
token at once. One block of random numbers fills all matrices repeatedly; its length is prime, so that no two rows are
equal.

The first component of every token embedding is constant and no layer writes to it: the output matrix uses it to exclude
tokens that are not words.
"""

import argparse
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.models.gguf_writer import Gguf, Tensor, Value, Weight
from tests.models.tiny import HERE, SEED, tokenizer
from tests.models.vocabulary import Mark, Token, vocabulary

BLOCK = 999_983
"""Largest prime below a million: generated within a second, and longer than any row."""
SPREAD = 0.02
"""Standard deviation of the weights: the usual initialisation before training."""
SAME, NEVER = 1.0, -100.0
"""First component of all embeddings, and its output weight for excluded tokens. Other logits are about 1."""
CONTEXT = 8192


@dataclass(frozen=True)
class Size:
    """Dimensions of a model."""

    width: int
    layers: int
    heads: int
    key_heads: int
    hidden: int


SIZES = {
    "tiny": Size(width=128, layers=2, heads=4, key_heads=2, hidden=256),
    "1B": Size(width=2048, layers=16, heads=32, key_heads=8, hidden=8192),  # Llama 3.2 1B except for the vocabulary
}


@dataclass(frozen=True)
class Packed(Tensor):
    """Tensor with packed bytes: packing a billion numbers one by one would take minutes."""

    packed: bytes = b""

    def data(self) -> bytes:
        """Return the bytes of the file."""
        return self.packed


@dataclass(frozen=True)
class Blocks:
    """A quantised tensor type of ggml."""

    number: int
    values: int
    """Per block."""
    bytes: int


TYPES = {
    "F32": Blocks(0, 1, 4),
    "F16": Blocks(1, 1, 2),
    "BF16": Blocks(30, 1, 2),
    "Q8_0": Blocks(8, 32, 34),
    "Q6_K": Blocks(14, 256, 210),
    "Q5_K": Blocks(13, 256, 176),
    "Q5_0": Blocks(6, 32, 22),
    "Q5_1": Blocks(7, 32, 24),
    "Q4_K": Blocks(12, 256, 144),
    "Q4_0": Blocks(2, 32, 18),
    "Q4_1": Blocks(3, 32, 20),
    "IQ4_NL": Blocks(20, 32, 18),
    "IQ4_XS": Blocks(23, 256, 136),
    "Q3_K": Blocks(11, 256, 110),
    "IQ3_S": Blocks(21, 256, 110),
    "IQ3_XXS": Blocks(18, 256, 98),
    "Q2_K": Blocks(10, 256, 84),
    "IQ2_S": Blocks(22, 256, 82),
    "IQ2_XXS": Blocks(16, 256, 66),
    "TQ2_0": Blocks(35, 256, 66),
    "IQ1_S": Blocks(19, 256, 50),
}


class Matrices:
    """Builder of half-precision matrices, in file order. With `blocks`, those of the layers are zeros of that type."""

    def __init__(self, blocks: Blocks | None = None) -> None:
        self._blocks = blocks
        random = Random(SEED)
        self._block = _halves([random.gauss(0.0, SPREAD) for _ in range(BLOCK)])
        self._offset = 0
        self.tensors: list[Tensor] = []

    def add(self, name: str, width: int, height: int) -> None:
        """Add a random matrix."""
        if self._blocks is not None:
            data = bytes(width * height // self._blocks.values * self._blocks.bytes)
            self.tensors.append(Packed(name, (width, height), (), self._blocks.number, data))
        else:
            self._add(name, width, height, self._numbers(width * height))

    def add_residual(self, name: str, width: int, height: int) -> None:
        """Add a matrix whose product is added to the residual stream; it leaves the first component unchanged."""
        if self._blocks is not None:
            self.add(name, width, height)
            return
        self._add(name, width, height, _halves([0.0] * width) + self._numbers(width * (height - 1)))

    def add_rows(self, name: str, width: int, first_values: list[float]) -> None:
        """Add a random matrix with the given first value in each row."""
        rows = [_halves([first]) + self._numbers(width - 1) for first in first_values]
        self._add(name, width, len(rows), b"".join(rows))

    def add_norm(self, name: str, width: int) -> None:
        """Add a norm with scale 1, in single precision as llama.cpp requires."""
        self.tensors.append(Tensor(name, (width,), [1.0] * width))

    def _add(self, name: str, width: int, height: int, packed: bytes) -> None:
        self.tensors.append(Packed(name, (width, height), (), Weight.F16, packed))

    def _numbers(self, count: int) -> bytes:
        start, size = self._offset, 2 * count
        self._offset = (start + size) % len(self._block)
        return (self._block * math.ceil((start + size) / len(self._block)))[start : start + size]


def random_model(size: Size, blocks: Blocks | None = None) -> Gguf:
    """Build a chat model with the vocabulary of the tiny test models."""
    words = vocabulary()
    metadata: dict[str, Value] = {
        "general.architecture": "llama",
        "general.name": "random",
        "general.file_type": 1,  # matrices in half precision
        "llama.vocab_size": len(words.tokens),
        "llama.context_length": CONTEXT,
        "llama.embedding_length": size.width,
        "llama.block_count": size.layers,
        "llama.feed_forward_length": size.hidden,
        "llama.attention.head_count": size.heads,
        "llama.attention.head_count_kv": size.key_heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": size.width // size.heads,
        **tokenizer(words),
        "tokenizer.chat_template": (HERE / "chat.jinja").read_text(),
    }
    matrices = Matrices(blocks)
    matrices.add_rows("token_embd.weight", size.width, [SAME] * len(words.tokens))
    for layer in range(size.layers):
        _add_layer(matrices, f"blk.{layer}", size)
    matrices.add_norm("output_norm.weight", size.width)
    matrices.add_rows("output.weight", size.width, [0.0 if _is_word(token) else NEVER for token in words.tokens])
    return Gguf(metadata, matrices.tensors)


def _add_layer(matrices: Matrices, prefix: str, size: Size) -> None:
    key_width = size.width // size.heads * size.key_heads
    matrices.add_norm(f"{prefix}.attn_norm.weight", size.width)
    matrices.add(f"{prefix}.attn_q.weight", size.width, size.width)
    matrices.add(f"{prefix}.attn_k.weight", size.width, key_width)
    matrices.add(f"{prefix}.attn_v.weight", size.width, key_width)
    matrices.add_residual(f"{prefix}.attn_output.weight", size.width, size.width)
    matrices.add_norm(f"{prefix}.ffn_norm.weight", size.width)
    matrices.add(f"{prefix}.ffn_gate.weight", size.width, size.hidden)
    matrices.add(f"{prefix}.ffn_up.weight", size.width, size.hidden)
    matrices.add_residual(f"{prefix}.ffn_down.weight", size.hidden, size.width)


def _is_word(token: Token) -> bool:
    """A word or a part of one; llama.cpp would hold back other tokens, since they may start a tool call."""
    return token.mark is Mark.NORMAL and token.data.strip().isalnum()


def _halves(numbers: list[float]) -> bytes:
    return struct.pack(f"<{len(numbers)}e", *numbers)


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("path", type=Path)
    parser.add_argument("--type", choices=TYPES, help="of the layers, whose weights are zeros then [random F16]")
    arguments = parser.parse_args()
    random_model(SIZES[arguments.size], TYPES.get(arguments.type)).write(arguments.path)


if __name__ == "__main__":
    main()
