"""Where things stand in an answer: the frame of a character, the borders between chunks, the first difference."""

from itertools import accumulate

from welldone.check.reading import Piece
from welldone.check.reply import Reply

_BEFORE = 20  # characters that are shown before the first one that differs: some words


def frame_of(reply: Reply, place: int) -> int | None:
    """The number of the frame that brings a character of the first choice's text; None where there are no frames."""
    pieces = _pieces(reply)
    return next((piece.frame for piece, end in zip(pieces, _ends(pieces), strict=True) if end > place), None)


def borders(reply: Reply) -> list[int]:
    """How long the first choice's text was before each of its chunks with text but the first."""
    return sorted({*_ends(_pieces(reply))} - {0, len(reply.text)})


def from_difference(text: str, other: str) -> str:
    """The text from a little before the place where the other one begins to differ, in quotes: spaces count."""
    same = next((place for place, (one, two) in enumerate(zip(text, other, strict=False)) if one != two), None)
    start = max((min(len(text), len(other)) if same is None else same) - _BEFORE, 0)
    return ("…" if start else "") + repr(text[start:])


def _pieces(reply: Reply) -> list[Piece]:
    return [piece for piece in reply.pieces if piece.index == reply.first.index]


def _ends(pieces: list[Piece]) -> list[int]:
    return list(accumulate(len(piece.text) for piece in pieces))
