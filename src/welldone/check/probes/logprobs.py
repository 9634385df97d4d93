"""Probes of logprobs: the tokens of an answer, and how sure the model was of each."""

from welldone.check import prompts
from welldone.check.probe import Probe
from welldone.check.session import NotHeardError, Session


async def _streamed(session: Session) -> None:
    await _ask(session, stream=True)


async def _whole(session: Session) -> None:
    await _ask(session, stream=False)


async def _ask(session: Session, *, stream: bool) -> None:
    reply = await session.ask(prompts.HELLO, stream=stream, max_tokens=12, logprobs=True, top_logprobs=2)
    if not session.answered(reply).first.logprobs:
        raise NotHeardError("asked for logprobs, none came")


PROBES = (
    Probe(name="logprobs", says="logprobs of each token, streamed", work=_streamed),
    Probe(name="logprobs-whole", says="logprobs of each token in one piece", work=_whole),
)
