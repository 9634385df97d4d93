"""A probe of sameness: the pieces of a stream make the text that comes without one."""

from welldone.check import prompts
from welldone.check.places import text_from_difference
from welldone.check.probe import Probe
from welldone.check.reply import ProbeReply
from welldone.check.session import Session

CONCAT_EQUALS_FULL = "delta-concat-equals-full"

LINES_PROMPT = "Name three animals, each on a line of its own, with a short sentence about it."
"""White space within the answer: it gets lost more often than words do."""
_COMPARED_TOKENS = 24


async def _probe_stream_equality(session: Session) -> None:
    for prompt in (LINES_PROMPT, prompts.EMOJI_PROMPT):
        await _compare_texts(session, prompt)


async def _compare_texts(session: Session, prompt: str) -> None:
    streamed = await _send_compared(session, prompt, stream=True)
    whole = await _send_compared(session, prompt, stream=False)
    is_kept = streamed.text == whole.text
    if is_kept and not streamed.text:
        session.not_applicable(CONCAT_EQUALS_FULL, "the answers have no text")
        return
    if not is_kept:
        # In turned order, in case two machines take turns behind one address.
        whole_again = await _send_compared(session, prompt, stream=False)
        streamed_again = await _send_compared(session, prompt, stream=True)
        is_repeated = (streamed_again.text, whole_again.text) == (streamed.text, whole.text)
        if not is_repeated or not _is_complete_stream(streamed):
            session.not_applicable(CONCAT_EQUALS_FULL, "the server does not repeat itself at temperature 0")
            return
    session.check_rule(
        CONCAT_EQUALS_FULL,
        streamed,
        is_kept,
        observed=text_from_difference(streamed.text, whole.text),
        expected=f"as without stream: {text_from_difference(whole.text, streamed.text)}",
    )


async def _send_compared(session: Session, prompt: str, *, stream: bool) -> ProbeReply:
    return session.require_ok(await session.generate(prompt, max_tokens=_COMPARED_TOKENS, stream=stream))


def _is_complete_stream(streamed: ProbeReply) -> bool:
    """Whether the stream came to its end: of one that broke off other rules speak."""
    return streamed.is_stream and streamed.view.is_complete_stream


STREAM_EQUALITY_PROBES = (
    Probe(
        name="same",
        description="the same answer streamed and in one piece",
        run=_probe_stream_equality,
        rules=(CONCAT_EQUALS_FULL,),
        is_exclusive=True,
    ),
)
