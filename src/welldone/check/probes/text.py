"""Probes of plain text: the stream that every client reads first."""

from welldone.check import prompts
from welldone.check.markup import special_token
from welldone.check.places import frame_of
from welldone.check.probe import Probe
from welldone.check.reply import Reply
from welldone.check.session import Session

NO_SPECIAL_TOKENS = "live-no-special-tokens"


async def _text(session: Session) -> None:
    _look_for_markup(session, await session.ask(prompts.HELLO))


async def _text_whole(session: Session) -> None:
    _look_for_markup(session, await session.ask(prompts.HELLO, stream=False))


async def _emoji(session: Session) -> None:
    _look_for_markup(session, await session.ask(prompts.EMOJI))


async def _emoji_whole(session: Session) -> None:
    _look_for_markup(session, await session.ask(prompts.EMOJI, stream=False))


async def _numbers(session: Session) -> None:
    session.answered(await session.ask(prompts.COUNT))


def _look_for_markup(session: Session, reply: Reply) -> None:
    """Nobody asked for special tokens, and so none may be in the text."""
    session.answered(reply)
    if not reply.text:
        session.not_heard(NO_SPECIAL_TOKENS, "the answer has no text")
        return
    found = special_token(reply.text)
    session.hold(
        NO_SPECIAL_TOKENS,
        reply,
        found is None,
        heard=reply.text,
        wanted="" if found is None else f"the text without {found[0].strip()}",
        frame=None if found is None else frame_of(reply, found.start()),
    )


NUMBERS = Probe(name="text-numbers", says="an answer of many pieces, streamed", work=_numbers)
PROBES = (
    Probe(name="text", says="a short answer, streamed", work=_text, rules=(NO_SPECIAL_TOKENS,)),
    Probe(name="text-whole", says="a short answer in one piece", work=_text_whole, rules=(NO_SPECIAL_TOKENS,)),
    Probe(name="text-emoji", says="emoji and text in many scripts, streamed", work=_emoji, rules=(NO_SPECIAL_TOKENS,)),
    Probe(
        name="text-emoji-whole",
        says="emoji and text in many scripts in one piece",
        work=_emoji_whole,
        rules=(NO_SPECIAL_TOKENS,),
    ),
)
