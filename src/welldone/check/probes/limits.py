"""Probes of the token limit: an answer that reaches it, by either of its names."""

from functools import partial

from welldone.check import prompts
from welldone.check.probe import Probe
from welldone.check.probes.refusals import is_refused
from welldone.check.reply import ProbeReply
from welldone.check.session import Session

FIN_LENGTH = "fin-length"
MAX_TOKENS_BOTH = "req-max-tokens-both"

_LIMIT_TOKENS = 8
_LONGER_LIMIT_TOKENS = 40
_TOO_MANY_FRAMES = 64
"""No server sends that many for eight tokens. Who does not know the limit would go on for minutes."""
_TOO_MANY_TOKENS = 2 * _LIMIT_TOKENS
"""Servers differ by one or two in what they count."""
_TOO_MANY_CHARACTERS = 16 * _LIMIT_TOKENS
"""Few words are that long, and a number is far shorter. It counts where many tokens come in one chunk."""
_LIMIT_FIELDS = ("max_tokens", "max_completion_tokens")


async def _probe_limits(session: Session) -> None:
    for name in _LIMIT_FIELDS:
        reply = await _send_limited(session, name, _LIMIT_TOKENS)
        if is_refused(reply) and name != session.facts.limit_field:
            heard, wanted = reply.error_summary, f"an answer within {name}"
            session.check_rule(MAX_TOKENS_BOTH, reply, passed=False, observed=heard, expected=wanted)
            continue
        session.require_ok(reply)
        if _check_limit(session, reply, name):
            await _check_length_reason(session, reply, FIN_LENGTH)


async def _probe_truncation(session: Session, *, rule: str, stream: bool) -> None:
    reply = session.require_ok(await _send_limited(session, session.facts.limit_field, _LIMIT_TOKENS, stream=stream))
    await _check_length_reason(session, reply, rule)


async def _send_limited(session: Session, name: str, tokens: int, *, stream: bool = True) -> ProbeReply:
    leave = _is_over_limit if stream else None
    return await session.generate(
        prompts.COUNT_PROMPT, stream=stream, max_tokens=tokens, limit_field=name, is_exact=True, abort_when=leave
    )


def _is_over_limit(body: bytes) -> bool:
    return body.count(b"\ndata:") > _TOO_MANY_FRAMES


def _check_limit(session: Session, reply: ProbeReply, name: str) -> bool:
    """Whether the answer kept within its limit."""
    counted, said = reply.usage_count("completion_tokens") or 0, len(_generated_text(reply))
    is_kept = not reply.recording.is_aborted and counted <= _TOO_MANY_TOKENS and said <= _TOO_MANY_CHARACTERS
    heard = f"more than {_TOO_MANY_FRAMES} chunks" if reply.recording.is_aborted else f"{said} characters"
    heard = f"{counted} tokens" if counted > _TOO_MANY_TOKENS else heard
    session.check_rule(
        MAX_TOKENS_BOTH, reply, is_kept, observed=heard, expected=f"an answer within {name} {_LIMIT_TOKENS}"
    )
    return is_kept


async def _check_length_reason(session: Session, reply: ProbeReply, rule: str) -> None:
    """Where another reason is given, the same answer with more room tells whether it was cut."""
    word = session.dialect.length_reason
    if reply.finish_reason != word and (why := await _not_truncated_reason(session, reply)):
        session.not_applicable(rule, why)
        return
    session.check_rule(
        rule, reply, reply.finish_reason == word, observed=reply.finish_reason, expected=f"{word}: the text is cut"
    )


async def _not_truncated_reason(session: Session, reply: ProbeReply) -> str | None:
    """Why an answer cannot be said to be cut; None where it surely is."""
    if reply.finish_reason is None:
        return "the answer came without a reason for its end"
    longer, again = [
        session.require_ok(await _send_limited(session, session.facts.limit_field, tokens, stream=reply.is_stream))
        for tokens in (_LONGER_LIMIT_TOKENS, _LIMIT_TOKENS)
    ]
    if _generated_text(again) != _generated_text(reply) or not _generated_text(longer).startswith(
        _generated_text(reply)
    ):
        return "the server does not repeat itself at temperature 0"
    return "the answer ended before its limit" if _generated_text(longer) == _generated_text(reply) else None


def _generated_text(reply: ProbeReply) -> str:
    return reply.first_choice.reasoning + reply.text


def truncation_probes(rule: str) -> tuple[Probe, ...]:
    """The probes of a dialect in which this rule speaks about answers that are cut."""
    streamed, whole = (partial(_probe_truncation, rule=rule, stream=stream) for stream in (True, False))
    return (
        Probe(
            name="limits",
            description="an answer that is cut at its limit",
            run=streamed,
            rules=(rule,),
            is_exclusive=True,
        ),
        Probe(
            name="limits-whole",
            description="an answer that is cut at its limit, in one piece",
            run=whole,
            rules=(rule,),
            is_exclusive=True,
        ),
    )


LIMIT_PROBES = (
    Probe(
        name="limits",
        description="an answer that is cut at its limit, by both of its names",
        run=_probe_limits,
        rules=(FIN_LENGTH, MAX_TOKENS_BOTH),
        is_exclusive=True,
    ),
    *truncation_probes(FIN_LENGTH)[1:],
)
