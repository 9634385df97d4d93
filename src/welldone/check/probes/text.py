"""Probes of plain text: the stream that every client reads first."""

from welldone.check import prompts
from welldone.check.probe import Probe
from welldone.check.session import Session


async def _text(session: Session) -> None:
    session.answered(await session.chat(prompts.HELLO))


async def _text_whole(session: Session) -> None:
    session.answered(await session.chat(prompts.HELLO, stream=False))


PROBES = (
    Probe(name="text", says="a short answer, streamed", work=_text),
    Probe(name="text-whole", says="a short answer in one piece", work=_text_whole),
)
