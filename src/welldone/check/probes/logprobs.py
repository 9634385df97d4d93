"""Probes of logprobs: the tokens of an answer, and how sure the model was of each."""

from welldone.check import prompts
from welldone.check.probe import Probe
from welldone.check.session import NotApplicableError, Session


async def _probe_logprobs(session: Session) -> None:
    await _check_logprobs(session, stream=True)


async def _probe_logprobs_buffered(session: Session) -> None:
    await _check_logprobs(session, stream=False)


async def _check_logprobs(session: Session, *, stream: bool) -> None:
    reply = await session.generate(prompts.HELLO_PROMPT, stream=stream, max_tokens=12, logprobs=True, top_logprobs=2)
    if not session.require_ok(reply).first_choice.logprobs:
        raise NotApplicableError("asked for logprobs, none came")


LOGPROB_PROBES = (
    Probe(name="logprobs", description="logprobs of each token, streamed", run=_probe_logprobs),
    Probe(name="logprobs-whole", description="logprobs of each token in one piece", run=_probe_logprobs_buffered),
)
