"""A reply that is not streamed, repaired: read as if it were one chunk, and folded again."""

import msgspec

from welldone.wire.asked import Asked
from welldone.wire.dialects.stream import error_object, escape
from welldone.wire.events import Failure, Usage
from welldone.wire.fold import Fold
from welldone.wire.head import Endpoint, Head
from welldone.wire.native import Native
from welldone.wire.notes import Notes


class Whole(msgspec.Struct, frozen=True):
    """A repaired reply: its body, and why it is an error if it is one."""

    body: bytes
    failure: Failure | None = None
    usage: Usage | None = None


def fix_whole(body: bytes, endpoint: Endpoint, *, fallback: Head, asked: Asked, notes: Notes) -> Whole:
    """The reply as it should have been, or an error in OpenAI's shape. What is mended goes to `notes`."""
    fold = Fold(endpoint, fallback=fallback, asked=asked)
    fold.whole(body)
    fold.close()
    for note in fold.notes.all():
        notes.add(note)
    return Whole(body_of(fold), fold.failure, fold.usage if fold.failure is None else None)


def body_of(pipe: Fold | Native) -> bytes:
    """The reply when all was heard: the answer, or the error that it failed with."""
    if isinstance(pipe, Native) or pipe.failure is None:
        return pipe.body()
    return escape(msgspec.json.encode(error_object(pipe.failure)))
