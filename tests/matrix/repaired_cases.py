"""The streams of the matrix after repair, as cases for real clients."""

from collections.abc import Iterable

from tests.matrix.cases import CASES, GIVEN, request
from tests.oracle.cases import Case
from tests.oracle.repaired import plain
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.request_facts import RepairOptions, read_request_facts
from welldone.core.text_filters import TextMode
from welldone.stream.pipeline import StreamPipeline

FALLBACK = Envelope(**GIVEN)


def matrix_cases() -> list[Case]:
    """Return every stream of the matrix after repair."""
    bodies = {name: fix(name, [body]) for name, body in CASES.items()}
    return [Case(f"matrix {name}", "chat", body, plain(body)) for name, body in bodies.items()]


def fix(name: str, pieces: Iterable[bytes]) -> bytes:
    """Repair a case that arrives in these pieces."""
    text: TextMode = "cumulative" if name == "content.cumulative" else "delta"  # not detectable from the stream
    pipeline = StreamPipeline(
        Endpoint.CHAT, fallback=FALLBACK, facts=read_request_facts(request(name)), options=RepairOptions(text=text)
    )
    return b"".join([pipeline.feed(piece) for piece in pieces]) + pipeline.close()
