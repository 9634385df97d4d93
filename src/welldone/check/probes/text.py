"""Probes of plain text: the stream that every client reads first."""

from welldone.check import prompts
from welldone.check.markup import find_special_token
from welldone.check.places import frame_at_offset
from welldone.check.probe import Probe
from welldone.check.reply import ProbeReply
from welldone.check.session import Session

NO_SPECIAL_TOKENS = "live-no-special-tokens"


async def _probe_text(session: Session) -> None:
    _check_special_tokens(session, await session.generate(prompts.HELLO_PROMPT))


async def _probe_text_buffered(session: Session) -> None:
    _check_special_tokens(session, await session.generate(prompts.HELLO_PROMPT, stream=False))


async def _probe_emoji(session: Session) -> None:
    _check_special_tokens(session, await session.generate(prompts.EMOJI_PROMPT))


async def _probe_emoji_buffered(session: Session) -> None:
    _check_special_tokens(session, await session.generate(prompts.EMOJI_PROMPT, stream=False))


async def _probe_numbers(session: Session) -> None:
    session.require_ok(await session.generate(prompts.COUNT_PROMPT))


def _check_special_tokens(session: Session, reply: ProbeReply) -> None:
    """Nobody asked for special tokens, and so none may be in the text."""
    session.require_ok(reply)
    if not reply.text:
        session.not_applicable(NO_SPECIAL_TOKENS, "the answer has no text")
        return
    found = find_special_token(reply.text)
    session.check_rule(
        NO_SPECIAL_TOKENS,
        reply,
        found is None,
        observed=reply.text,
        expected="" if found is None else f"the text without {found[0].strip()}",
        frame=None if found is None else frame_at_offset(reply, found.start()),
    )


NUMBERS_PROBE = Probe(name="text-numbers", description="an answer of many pieces, streamed", run=_probe_numbers)
TEXT_PROBES = (
    Probe(name="text", description="a short answer, streamed", run=_probe_text, rules=(NO_SPECIAL_TOKENS,)),
    Probe(
        name="text-whole",
        description="a short answer in one piece",
        run=_probe_text_buffered,
        rules=(NO_SPECIAL_TOKENS,),
    ),
    Probe(
        name="text-emoji",
        description="emoji and text in many scripts, streamed",
        run=_probe_emoji,
        rules=(NO_SPECIAL_TOKENS,),
    ),
    Probe(
        name="text-emoji-whole",
        description="emoji and text in many scripts in one piece",
        run=_probe_emoji_buffered,
        rules=(NO_SPECIAL_TOKENS,),
    ),
)
