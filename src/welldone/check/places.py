"""Where things stand in an answer: the frame of a character, the borders between chunks, the first difference."""

from itertools import accumulate

from welldone.check.reading import ParsedDelta
from welldone.check.reply import ProbeReply

_DIFF_CONTEXT_CHARS = 20  # characters that are shown before the first one that differs: some words


def frame_at_offset(reply: ProbeReply, offset: int) -> int | None:
    """The number of the frame that brings a character of the first choice's text; None where there are no frames."""
    pieces = _first_choice_deltas(reply)
    return next((piece.frame for piece, end in zip(pieces, _end_offsets(pieces), strict=True) if end > offset), None)


def chunk_boundaries(reply: ProbeReply) -> list[int]:
    """How long the first choice's text was before each of its chunks with text but the first."""
    return sorted({*_end_offsets(_first_choice_deltas(reply))} - {0, len(reply.text)})


def text_from_difference(text: str, other: str) -> str:
    """The text from a little before the place where the other one begins to differ, in quotes: spaces count."""
    same = next((place for place, (one, two) in enumerate(zip(text, other, strict=False)) if one != two), None)
    start = max((min(len(text), len(other)) if same is None else same) - _DIFF_CONTEXT_CHARS, 0)
    return ("…" if start else "") + repr(text[start:])


def _first_choice_deltas(reply: ProbeReply) -> list[ParsedDelta]:
    return [piece for piece in reply.deltas if piece.index == reply.first_choice.index]


def _end_offsets(deltas: list[ParsedDelta]) -> list[int]:
    return list(accumulate(len(piece.text) for piece in deltas))
