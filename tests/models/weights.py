"""Random tensors from a seed: the same seed gives the same file."""

import math
from random import Random

from tests.models.gguf_writer import Tensor


class Weights:
    """Creates tensors and stores them in order."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.tensors: list[Tensor] = []

    def numbers(self, count: int, spread: float) -> list[float]:
        """Return normally distributed numbers."""
        return [self._random.gauss(0.0, spread) for _ in range(count)]

    def rows(self, count: int, width: int, spread: float) -> list[list[float]]:
        """Return random rows, which can be changed before they are added."""
        return [self.numbers(width, spread) for _ in range(count)]

    def add_rows(self, name: str, rows: list[list[float]]) -> None:
        """Add a matrix in single precision.

        With half precision, the logits of a text depend on how it is batched, and a model with random weights often has
        two tokens of nearly equal probability.
        """
        flat = [number for row in rows for number in row]
        self.tensors.append(Tensor(name, (len(rows[0]), len(rows)), flat))

    def add_matrix(self, name: str, width: int, height: int, gain: float = 1.0) -> None:
        """Add a random matrix that preserves the norm of its input, times `gain`."""
        self.add_rows(name, self.rows(height, width, gain / math.sqrt(width)))

    def add_random(self, name: str, shape: tuple[int, ...], spread: float) -> None:
        """Add a random tensor."""
        self.tensors.append(Tensor(name, shape, self.numbers(math.prod(shape), spread)))

    def add_same(self, name: str, width: int, number: float) -> None:
        """Add a constant vector: ones for a norm, zeros for a bias."""
        self.tensors.append(Tensor(name, (width,), [number] * width))

    def add_linear(self, name: str, width: int, height: int) -> None:
        """Add a random matrix and a bias of zeros."""
        self.add_matrix(f"{name}.weight", width, height)
        self.add_same(f"{name}.bias", height, 0.0)

    def add_norm(self, name: str, width: int) -> None:
        """Add a layer norm with weight 1 and bias 0."""
        self.add_same(f"{name}.weight", width, 1.0)
        self.add_same(f"{name}.bias", width, 0.0)
