"""A probe of sameness: the pieces of a stream make the text that comes without one."""

from welldone.check import prompts
from welldone.check.places import from_difference
from welldone.check.probe import Probe
from welldone.check.reply import Reply
from welldone.check.session import Session

CONCAT_EQUALS_FULL = "delta-concat-equals-full"

LINES = "Name three animals, each on a line of its own, with a short sentence about it."
"""White space within the answer: it gets lost more often than words do."""
_TOKENS = 24


async def _same(session: Session) -> None:
    for prompt in (LINES, prompts.EMOJI):
        await _compare(session, prompt)


async def _compare(session: Session, prompt: str) -> None:
    streamed = await _ask(session, prompt, stream=True)
    whole = await _ask(session, prompt, stream=False)
    is_kept = streamed.text == whole.text
    if is_kept and not streamed.text:
        session.not_heard(CONCAT_EQUALS_FULL, "the answers have no text")
        return
    if not is_kept:
        # In turned order, in case two machines take turns behind one address.
        whole_again = await _ask(session, prompt, stream=False)
        streamed_again = await _ask(session, prompt, stream=True)
        is_repeated = (streamed_again.text, whole_again.text) == (streamed.text, whole.text)
        if not is_repeated or not _is_whole(streamed):
            session.not_heard(CONCAT_EQUALS_FULL, "the server does not repeat itself at temperature 0")
            return
    session.hold(
        CONCAT_EQUALS_FULL,
        streamed,
        is_kept,
        heard=from_difference(streamed.text, whole.text),
        wanted=f"as without stream: {from_difference(whole.text, streamed.text)}",
    )


async def _ask(session: Session, prompt: str, *, stream: bool) -> Reply:
    return session.answered(await session.ask(prompt, max_tokens=_TOKENS, stream=stream))


def _is_whole(streamed: Reply) -> bool:
    """Whether the stream came to its end: of one that broke off other rules speak."""
    return streamed.is_stream and streamed.heard.is_whole


PROBES = (
    Probe(
        name="same",
        says="the same answer streamed and in one piece",
        work=_same,
        rules=(CONCAT_EQUALS_FULL,),
        is_alone=True,
    ),
)
