"""Probes of the token limit: an answer that reaches it, by either of its names."""

from functools import partial

from welldone.check import prompts
from welldone.check.probe import Probe
from welldone.check.probes.refusals import is_refused
from welldone.check.reply import Reply
from welldone.check.session import Session

LENGTH = "fin-length"
MAX_TOKENS_BOTH = "req-max-tokens-both"

_TOKENS = 8
_LONGER = 40
_TOO_MANY_FRAMES = 64
"""No server sends that many for eight tokens. Who does not know the limit would go on for minutes."""
_TOO_MANY_TOKENS = 2 * _TOKENS
"""Servers differ by one or two in what they count."""
_TOO_MANY_CHARACTERS = 16 * _TOKENS
"""Few words are that long, and a number is far shorter. It counts where many tokens come in one chunk."""
_NAMES = ("max_tokens", "max_completion_tokens")


async def _limits(session: Session) -> None:
    for name in _NAMES:
        reply = await _ask(session, name, _TOKENS)
        if is_refused(reply) and name != session.facts.limit_name:
            heard, wanted = reply.complaint, f"an answer within {name}"
            session.hold(MAX_TOKENS_BOTH, reply, is_kept=False, heard=heard, wanted=wanted)
            continue
        session.answered(reply)
        if _hold_limit(session, reply, name):
            await _hold_cut(session, reply, LENGTH)


async def _cut(session: Session, *, rule: str, stream: bool) -> None:
    reply = session.answered(await _ask(session, session.facts.limit_name, _TOKENS, stream=stream))
    await _hold_cut(session, reply, rule)


async def _ask(session: Session, name: str, tokens: int, *, stream: bool = True) -> Reply:
    leave = _goes_on if stream else None
    return await session.ask(
        prompts.COUNT, stream=stream, max_tokens=tokens, limit_name=name, is_exact=True, leave=leave
    )


def _goes_on(body: bytes) -> bool:
    return body.count(b"\ndata:") > _TOO_MANY_FRAMES


def _hold_limit(session: Session, reply: Reply, name: str) -> bool:
    """Whether the answer kept within its limit."""
    counted, said = reply.tokens("completion_tokens") or 0, len(_said(reply))
    is_kept = not reply.recording.is_left and counted <= _TOO_MANY_TOKENS and said <= _TOO_MANY_CHARACTERS
    heard = f"more than {_TOO_MANY_FRAMES} chunks" if reply.recording.is_left else f"{said} characters"
    heard = f"{counted} tokens" if counted > _TOO_MANY_TOKENS else heard
    session.hold(MAX_TOKENS_BOTH, reply, is_kept, heard=heard, wanted=f"an answer within {name} {_TOKENS}")
    return is_kept


async def _hold_cut(session: Session, reply: Reply, rule: str) -> None:
    """Where another reason is given, the same answer with more room tells whether it was cut."""
    word = session.dialect.cut
    if reply.finish != word and (why := await _why_uncut(session, reply)):
        session.not_heard(rule, why)
        return
    session.hold(rule, reply, reply.finish == word, heard=reply.finish, wanted=f"{word}: the text is cut")


async def _why_uncut(session: Session, reply: Reply) -> str | None:
    """Why an answer cannot be said to be cut; None where it surely is."""
    if reply.finish is None:
        return "the answer came without a reason for its end"
    longer, again = [
        session.answered(await _ask(session, session.facts.limit_name, tokens, stream=reply.is_stream))
        for tokens in (_LONGER, _TOKENS)
    ]
    if _said(again) != _said(reply) or not _said(longer).startswith(_said(reply)):
        return "the server does not repeat itself at temperature 0"
    return "the answer ended before its limit" if _said(longer) == _said(reply) else None


def _said(reply: Reply) -> str:
    return reply.first.reasoning + reply.text


def cut_probes(rule: str) -> tuple[Probe, ...]:
    """The probes of a dialect in which this rule speaks about answers that are cut."""
    streamed, whole = (partial(_cut, rule=rule, stream=stream) for stream in (True, False))
    return (
        Probe(name="limits", says="an answer that is cut at its limit", work=streamed, rules=(rule,), is_alone=True),
        Probe(
            name="limits-whole",
            says="an answer that is cut at its limit, in one piece",
            work=whole,
            rules=(rule,),
            is_alone=True,
        ),
    )


PROBES = (
    Probe(
        name="limits",
        says="an answer that is cut at its limit, by both of its names",
        work=_limits,
        rules=(LENGTH, MAX_TOKENS_BOTH),
        is_alone=True,
    ),
    *cut_probes(LENGTH)[1:],
)
