"""Tensors of random numbers from a seed: the same seed makes the same file."""

import math
from random import Random

from tests.models.gguf_writer import Tensor


class Weights:
    """Makes tensors and keeps them in the order in which they were made."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.tensors: list[Tensor] = []

    def numbers(self, count: int, spread: float) -> list[float]:
        """Random numbers around zero."""
        return [self._random.gauss(0.0, spread) for _ in range(count)]

    def rows(self, count: int, width: int, spread: float) -> list[list[float]]:
        """Random rows, for who wants to change some before they are added."""
        return [self.numbers(width, spread) for _ in range(count)]

    def add_rows(self, name: str, rows: list[list[float]]) -> None:
        """A matrix of these rows.

        In single precision: with half of it the same text read in other portions gives other logits, and a model of
        random weights often has two tokens that are nearly as likely.
        """
        flat = [number for row in rows for number in row]
        self.tensors.append(Tensor(name, (len(rows[0]), len(rows)), flat))

    def add_matrix(self, name: str, width: int, height: int, gain: float = 1.0) -> None:
        """A random matrix that keeps the size of what it is applied to, times `gain`."""
        self.add_rows(name, self.rows(height, width, gain / math.sqrt(width)))

    def add_random(self, name: str, shape: tuple[int, ...], spread: float) -> None:
        """Random numbers of any shape."""
        self.tensors.append(Tensor(name, shape, self.numbers(math.prod(shape), spread)))

    def add_same(self, name: str, width: int, number: float) -> None:
        """A vector of one number: a norm's weight is ones, a bias zeros."""
        self.tensors.append(Tensor(name, (width,), [number] * width))

    def add_linear(self, name: str, width: int, height: int) -> None:
        """A random matrix and a bias of zeros."""
        self.add_matrix(f"{name}.weight", width, height)
        self.add_same(f"{name}.bias", height, 0.0)

    def add_norm(self, name: str, width: int) -> None:
        """A layer norm that scales and moves nothing."""
        self.add_same(f"{name}.weight", width, 1.0)
        self.add_same(f"{name}.bias", width, 0.0)
