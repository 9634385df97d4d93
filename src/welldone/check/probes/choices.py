"""Probes of `n`: several answers to one request."""

from collections.abc import Iterator

from welldone.check import prompts
from welldone.check.probe import Probe
from welldone.check.probes.refusals import is_refused
from welldone.check.reading import Said
from welldone.check.reply import Reply
from welldone.check.session import NotHeardError, Session

EACH_COMPLETE = "n-each-complete"
REFUSE_IF_UNSUPPORTED = "n-refuse-if-unsupported"
WHOLE_REQUEST = "use-whole-request"
RULES = (EACH_COMPLETE, REFUSE_IF_UNSUPPORTED, WHOLE_REQUEST)

_N = 2
_TOKENS = 8
_LEAST = _TOKENS * _N * 3 // 4
"""Of all answers together: well above what one may have, and a little below the exact number, as servers differ in
whether they count the end of a text."""


async def _streamed(session: Session) -> None:
    await _several(session, stream=True)


async def _whole(session: Session) -> None:
    await _several(session, stream=False)


async def _several(session: Session, *, stream: bool) -> None:
    # Some servers give no two answers where both would be the same: the temperature is theirs to choose.
    reply = await session.ask(
        prompts.COUNT,
        stream=stream,
        max_tokens=_TOKENS,
        is_exact=True,
        n=_N,
        temperature=...,
        stream_options={"include_usage": True} if stream else ...,
    )
    if is_refused(reply):
        session.hold(REFUSE_IF_UNSUPPORTED, reply, is_kept=True)
    session.answered(reply)
    if not reply.choices or (reply.is_stream and not reply.heard.is_whole):
        raise NotHeardError("the reply has no answers, or is not whole")
    count = len(reply.choices)
    session.hold(
        REFUSE_IF_UNSUPPORTED, reply, count > 1, heard=f"{count} of {_N} choices", wanted="400, or all of them"
    )
    if count > 1:
        lacking = "; ".join(_lacking(reply))
        session.hold(EACH_COMPLETE, reply, not lacking, heard=lacking, wanted="a role, text and a reason for each")
        _hold_counts(session, reply)


def _lacking(reply: Reply) -> Iterator[str]:
    """What the choices have not. A model that thinks in secret may not say a word in any of them."""
    has_words = any(map(_says_something, reply.choices))
    for said in reply.choices:
        if not said.role:
            yield f"choice {said.index} has no role"
        if said.finish is None:
            yield f"choice {said.index} has no finish_reason"
        elif said.finish == "length" and has_words and not _says_something(said):
            yield f"choice {said.index} reached its limit without a word"


def _says_something(said: Said) -> bool:
    return bool(said.text or said.reasoning or said.calls)


def _hold_counts(session: Session, reply: Reply) -> None:
    """Each answer that ends at its limit has that many tokens."""
    counted = reply.tokens("completion_tokens")
    if counted is None:
        session.not_heard(WHOLE_REQUEST, "no usage came")
    elif any(said.finish != "length" for said in reply.choices):
        session.not_heard(WHOLE_REQUEST, "an answer ended before its limit")
    else:
        heard = f"completion_tokens {counted}"
        wanted = f"{_TOKENS * _N}: {_N} answers of {_TOKENS} tokens"
        session.hold(WHOLE_REQUEST, reply, counted >= _LEAST, heard=heard, wanted=wanted)


PROBES = (
    Probe(name="choices", says="two answers at once (n=2), streamed", work=_streamed, rules=RULES),
    Probe(name="choices-whole", says="two answers at once (n=2) in one piece", work=_whole, rules=RULES),
)
