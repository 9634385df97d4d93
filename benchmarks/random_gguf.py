"""A language model of random weights: as much work for a GPU as a real one of its size, made in seconds.

`python -m benchmarks.random_gguf 1B model.gguf`. It says nonsense, in whole words, so that every token is sent at once.
One block of random numbers fills all matrices, over and over; its length is a prime, so that no two rows are alike.

The first number of every token's vector is the same, and no layer writes to it: by it the last step rules out what is
no word.
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
"""The largest prime below a million: made in a second, and longer than any row."""
SPREAD = 0.02
"""Of the weights: what most models are begun with before they learn."""
SAME, NEVER = 1.0, -100.0
"""The first number of all tokens, and what stands against those that are no words. Logits are else about 1."""
CONTEXT = 8192


@dataclass(frozen=True)
class Size:
    """The shape of a model."""

    width: int
    layers: int
    heads: int
    key_heads: int
    hidden: int


SIZES = {
    "tiny": Size(width=128, layers=2, heads=4, key_heads=2, hidden=256),
    "1B": Size(width=2048, layers=16, heads=32, key_heads=8, hidden=8192),  # Llama 3.2 1B, but for its vocabulary
}


@dataclass(frozen=True)
class Packed(Tensor):
    """A tensor whose bytes are there already: a thousand million numbers, one by one, would take minutes."""

    packed: bytes = b""

    def data(self) -> bytes:
        """The numbers as the file holds them."""
        return self.packed


class Matrices:
    """Makes matrices in half precision and keeps them in the order in which they were made."""

    def __init__(self) -> None:
        random = Random(SEED)
        self._block = _halves([random.gauss(0.0, SPREAD) for _ in range(BLOCK)])
        self._place = 0
        self.tensors: list[Tensor] = []

    def add(self, name: str, width: int, height: int) -> None:
        """Random numbers."""
        self._add(name, width, height, self._numbers(width * height))

    def add_writer(self, name: str, width: int, height: int) -> None:
        """Whose result is added to the vector: it leaves the first number alone."""
        self._add(name, width, height, _halves([0.0] * width) + self._numbers(width * (height - 1)))

    def add_led(self, name: str, width: int, firsts: list[float]) -> None:
        """Rows with a given first number."""
        rows = [_halves([first]) + self._numbers(width - 1) for first in firsts]
        self._add(name, width, len(rows), b"".join(rows))

    def add_norm(self, name: str, width: int) -> None:
        """It scales nothing. Norms have single precision: llama.cpp wants them so."""
        self.tensors.append(Tensor(name, (width,), [1.0] * width))

    def _add(self, name: str, width: int, height: int, packed: bytes) -> None:
        self.tensors.append(Packed(name, (width, height), (), Weight.F16, packed))

    def _numbers(self, count: int) -> bytes:
        start, size = self._place, 2 * count
        self._place = (start + size) % len(self._block)
        return (self._block * math.ceil((start + size) / len(self._block)))[start : start + size]


def random_model(size: Size) -> Gguf:
    """A chat model of the tiny models' vocabulary."""
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
    matrices = Matrices()
    matrices.add_led("token_embd.weight", size.width, [SAME] * len(words.tokens))
    for layer in range(size.layers):
        _add_layer(matrices, f"blk.{layer}", size)
    matrices.add_norm("output_norm.weight", size.width)
    matrices.add_led("output.weight", size.width, [0.0 if _is_word(token) else NEVER for token in words.tokens])
    return Gguf(metadata, matrices.tensors)


def _add_layer(matrices: Matrices, at: str, size: Size) -> None:
    key_width = size.width // size.heads * size.key_heads
    matrices.add_norm(f"{at}.attn_norm.weight", size.width)
    matrices.add(f"{at}.attn_q.weight", size.width, size.width)
    matrices.add(f"{at}.attn_k.weight", size.width, key_width)
    matrices.add(f"{at}.attn_v.weight", size.width, key_width)
    matrices.add_writer(f"{at}.attn_output.weight", size.width, size.width)
    matrices.add_norm(f"{at}.ffn_norm.weight", size.width)
    matrices.add(f"{at}.ffn_gate.weight", size.width, size.hidden)
    matrices.add(f"{at}.ffn_up.weight", size.width, size.hidden)
    matrices.add_writer(f"{at}.ffn_down.weight", size.hidden, size.width)


def _is_word(token: Token) -> bool:
    """Or a part of one: nothing that llama.cpp would hold back, as what may begin a call."""
    return token.mark is Mark.NORMAL and token.data.strip().isalnum()


def _halves(numbers: list[float]) -> bytes:
    return struct.pack(f"<{len(numbers)}e", *numbers)


def main() -> None:
    """Make a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("path", type=Path)
    given = parser.parse_args()
    random_model(SIZES[given.size]).write(given.path)


if __name__ == "__main__":
    main()
