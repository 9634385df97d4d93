"""Probes of `n`: several answers to one request."""

from collections.abc import Iterator

from welldone.check import prompts
from welldone.check.probe import Probe
from welldone.check.probes.refusals import is_refused
from welldone.check.reading import ParsedChoice
from welldone.check.reply import ProbeReply
from welldone.check.session import NotApplicableError, Session

EACH_COMPLETE = "n-each-complete"
REFUSE_IF_UNSUPPORTED = "n-refuse-if-unsupported"
CHOICES_WHOLE_REQUEST = "use-whole-request"
CHOICE_RULES = (EACH_COMPLETE, REFUSE_IF_UNSUPPORTED, CHOICES_WHOLE_REQUEST)

_CHOICES = 2
_CHOICE_TOKENS = 8
_MIN_TOTAL_TOKENS = _CHOICE_TOKENS * _CHOICES * 3 // 4
"""Of all answers together: well above what one may have, and a little below the exact number, as servers differ in
whether they count the end of a text."""


async def _probe_choices(session: Session) -> None:
    await _check_choices(session, stream=True)


async def _probe_choices_buffered(session: Session) -> None:
    await _check_choices(session, stream=False)


async def _check_choices(session: Session, *, stream: bool) -> None:
    # Some servers give no two answers where both would be the same: the temperature is theirs to choose.
    reply = await session.generate(
        prompts.COUNT_PROMPT,
        stream=stream,
        max_tokens=_CHOICE_TOKENS,
        is_exact=True,
        n=_CHOICES,
        temperature=...,
        stream_options={"include_usage": True} if stream else ...,
    )
    if is_refused(reply):
        session.check_rule(REFUSE_IF_UNSUPPORTED, reply, passed=True)
    session.require_ok(reply)
    if not reply.choices or (reply.is_stream and not reply.view.is_complete_stream):
        raise NotApplicableError("the reply has no answers, or is not whole")
    count = len(reply.choices)
    session.check_rule(
        REFUSE_IF_UNSUPPORTED,
        reply,
        count > 1,
        observed=f"{count} of {_CHOICES} choices",
        expected="400, or all of them",
    )
    if count > 1:
        lacking = "; ".join(_missing_in_choices(reply))
        session.check_rule(
            EACH_COMPLETE, reply, not lacking, observed=lacking, expected="a role, text and a reason for each"
        )
        _check_choice_usage(session, reply)


def _missing_in_choices(reply: ProbeReply) -> Iterator[str]:
    """What the choices have not. A model that thinks in secret may not say a word in any of them."""
    has_words = any(map(_has_content, reply.choices))
    for said in reply.choices:
        if not said.role:
            yield f"choice {said.index} has no role"
        if said.finish_reason is None:
            yield f"choice {said.index} has no finish_reason"
        elif said.finish_reason == "length" and has_words and not _has_content(said):
            yield f"choice {said.index} reached its limit without a word"


def _has_content(choice: ParsedChoice) -> bool:
    return bool(choice.text or choice.reasoning or choice.tool_calls)


def _check_choice_usage(session: Session, reply: ProbeReply) -> None:
    """Each answer that ends at its limit has that many tokens."""
    counted = reply.usage_count("completion_tokens")
    if counted is None:
        session.not_applicable(CHOICES_WHOLE_REQUEST, "no usage came")
    elif any(said.finish_reason != "length" for said in reply.choices):
        session.not_applicable(CHOICES_WHOLE_REQUEST, "an answer ended before its limit")
    else:
        heard = f"completion_tokens {counted}"
        wanted = f"{_CHOICE_TOKENS * _CHOICES}: {_CHOICES} answers of {_CHOICE_TOKENS} tokens"
        session.check_rule(CHOICES_WHOLE_REQUEST, reply, counted >= _MIN_TOTAL_TOKENS, observed=heard, expected=wanted)


CHOICE_PROBES = (
    Probe(name="choices", description="two answers at once (n=2), streamed", run=_probe_choices, rules=CHOICE_RULES),
    Probe(
        name="choices-whole",
        description="two answers at once (n=2) in one piece",
        run=_probe_choices_buffered,
        rules=CHOICE_RULES,
    ),
)
