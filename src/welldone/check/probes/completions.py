"""Probes of the older endpoint, /completions."""

from typing import Any

from welldone.check.probe import Probe
from welldone.check.probes.refusals import is_refused
from welldone.check.reply import ProbeReply
from welldone.check.session import NotApplicableError, Session
from welldone.rules.choices import as_list, as_object

ECHO = "cmpl-echo"
BATCH_INDEX = "cmpl-batch-index"
SUFFIX = "cmpl-suffix"

COMPLETION_PROMPT = "The capital of France is"
BATCH_PROMPTS = ("One, two, three,", "Red, green, blue,")
_COMPLETION_TOKENS = 4  # tokens of an answer: fewer than PROMPT has words


async def _probe_completion(session: Session) -> None:
    session.require_ok(await session.complete(COMPLETION_PROMPT))


async def _probe_completion_buffered(session: Session) -> None:
    session.require_ok(await session.complete(COMPLETION_PROMPT, stream=False))


async def _probe_completion_logprobs(session: Session) -> None:
    session.require_ok(await session.complete(COMPLETION_PROMPT, max_tokens=_COMPLETION_TOKENS, logprobs=2))


# ---- echo


async def _probe_echo(session: Session) -> None:
    reply = session.require_ok(await _send_echo(session, stream=True))
    has_prompt = _starts_with(reply.text, COMPLETION_PROMPT)
    session.check_rule(
        ECHO, reply, has_prompt, observed=reply.text, expected=f"a text that begins with {COMPLETION_PROMPT!r}"
    )
    if has_prompt:
        _check_offsets(session, await _send_echo(session, stream=False, logprobs=1))


async def _send_echo(session: Session, **members: Any) -> ProbeReply:  # noqa: ANN401 - JSON
    return await session.complete(COMPLETION_PROMPT, max_tokens=_COMPLETION_TOKENS, echo=True, **members)


def _check_offsets(session: Session, reply: ProbeReply) -> None:
    """The first token is at 0 where it is the prompt's; where only the answer has logprobs it is not."""
    logprobs = as_object(reply.first_choice.logprobs[0]) if reply.is_ok and reply.first_choice.logprobs else {}
    tokens, offsets = as_list(logprobs.get("tokens")), as_list(logprobs.get("text_offset"))
    if tokens and offsets:
        is_kept = (offsets[0] == 0) is (len(tokens) > _COMPLETION_TOKENS)
        wanted = "offsets that count from the start of the prompt"
        session.check_rule(ECHO, reply, is_kept, observed={"text_offset": offsets[:8]}, expected=wanted)


def _starts_with(text: str, beginning: str) -> bool:
    """Whether it does, whatever blanks a tokenizer has put before it."""
    return text.lstrip().startswith(beginning.lstrip())


# ---- several prompts


async def _probe_batch(session: Session) -> None:
    reply = session.require_ok(await _send_batch(session, stream=True))
    if not reply.choices:
        raise NotApplicableError("the reply had no choices")
    _check_indices(session, reply, len(BATCH_PROMPTS))
    for n in (1, 2):
        reply = await _send_batch(session, stream=False, n=n, echo=True)
        if reply.is_ok and _has_batch(reply, n):
            _check_indices(session, reply, len(BATCH_PROMPTS) * n)
            _check_prompt_order(session, reply, n)


def _has_batch(reply: ProbeReply, n: int) -> bool:
    """Whether there is something to number. A server without `n` answers once for each prompt."""
    return bool(reply.choices) and (n == 1 or len(reply.choices) != len(BATCH_PROMPTS))


async def _send_batch(session: Session, **members: Any) -> ProbeReply:  # noqa: ANN401 - JSON
    return await session.complete(list(BATCH_PROMPTS), max_tokens=_COMPLETION_TOKENS, **members)


def _check_indices(session: Session, reply: ProbeReply, count: int) -> None:
    indices = [said.index for said in reply.choices]
    wanted = f"{', '.join(map(str, range(count)))}: one for each answer"
    session.check_rule(
        BATCH_INDEX, reply, indices == list(range(count)), observed={"indices": indices}, expected=wanted
    )


def _check_prompt_order(session: Session, reply: ProbeReply, n: int) -> None:
    """Each answer that repeats a prompt must repeat its own."""
    for said in reply.choices:
        owner = next((number for number, prompt in enumerate(BATCH_PROMPTS) if _starts_with(said.text, prompt)), None)
        if owner is not None:
            heard = {"index": said.index, "text": said.text}
            wanted = f"index {owner * n} to {owner * n + n - 1} for {BATCH_PROMPTS[owner]!r}"
            session.check_rule(BATCH_INDEX, reply, said.index // n == owner, observed=heard, expected=wanted)


# ---- suffix


async def _probe_suffix(session: Session) -> None:
    reply = await _send_suffix(session, suffix="\n\nprint('The sum is', add(40, 2))\n")
    plain = session.require_ok(await _send_suffix(session))
    if is_refused(reply):
        session.check_rule(SUFFIX, reply, passed=True)
        return
    session.require_ok(reply)
    again = session.require_ok(await _send_suffix(session))
    if not plain.text:
        raise NotApplicableError("the answer had no text")
    if plain.text != again.text:
        raise NotApplicableError("the server does not repeat itself at temperature 0")
    counts = plain.usage_count("prompt_tokens"), reply.usage_count("prompt_tokens")
    if reply.text == plain.text and None in counts:
        # What fits before the suffix may be what would come without it. Only the count tells that it was read.
        raise NotApplicableError("the same text as without suffix, and no count of what was read")
    is_kept = reply.text != plain.text or len({*counts}) > 1
    session.check_rule(
        SUFFIX, reply, is_kept, observed="the same text as without suffix", expected="another text, or status 400"
    )


async def _send_suffix(session: Session, **members: Any) -> ProbeReply:  # noqa: ANN401 - JSON
    return await session.complete("def add(a, b):\n    return", stream=False, max_tokens=8, **members)


COMPLETION_PROBES = (
    Probe(name="completions", description="a completion, streamed", run=_probe_completion),
    Probe(name="completions-whole", description="a completion in one piece", run=_probe_completion_buffered),
    Probe(name="completions-logprobs", description="a completion with logprobs", run=_probe_completion_logprobs),
    Probe(
        name="completions-echo", description="a completion that begins with its prompt", run=_probe_echo, rules=(ECHO,)
    ),
    Probe(
        name="completions-list", description="completions of several prompts", run=_probe_batch, rules=(BATCH_INDEX,)
    ),
    Probe(
        name="completions-suffix",
        description="a completion between two texts",
        run=_probe_suffix,
        rules=(SUFFIX,),
        is_exclusive=True,
    ),
)
