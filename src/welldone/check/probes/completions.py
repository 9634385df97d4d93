"""Probes of the older endpoint, /completions."""

from typing import Any

from welldone.check.probe import Probe
from welldone.check.probes.refusals import is_refused
from welldone.check.reply import Reply
from welldone.check.session import NotHeardError, Session
from welldone.rules.choices import as_list, as_object

ECHO = "cmpl-echo"
BATCH_INDEX = "cmpl-batch-index"
SUFFIX = "cmpl-suffix"

PROMPT = "The capital of France is"
PROMPTS = ("One, two, three,", "Red, green, blue,")
_FEW = 4  # tokens of an answer: fewer than PROMPT has words


async def _text(session: Session) -> None:
    session.answered(await session.complete(PROMPT))


async def _whole(session: Session) -> None:
    session.answered(await session.complete(PROMPT, stream=False))


async def _logprobs(session: Session) -> None:
    session.answered(await session.complete(PROMPT, max_tokens=_FEW, logprobs=2))


# ---- echo


async def _echo(session: Session) -> None:
    reply = session.answered(await _echoed(session, stream=True))
    has_prompt = _begins(reply.text, PROMPT)
    session.hold(ECHO, reply, has_prompt, heard=reply.text, wanted=f"a text that begins with {PROMPT!r}")
    if has_prompt:
        _judge_offsets(session, await _echoed(session, stream=False, logprobs=1))


async def _echoed(session: Session, **members: Any) -> Reply:  # noqa: ANN401 - JSON
    return await session.complete(PROMPT, max_tokens=_FEW, echo=True, **members)


def _judge_offsets(session: Session, reply: Reply) -> None:
    """The first token is at 0 where it is the prompt's; where only the answer has logprobs it is not."""
    logprobs = as_object(reply.first.logprobs[0]) if reply.is_ok and reply.first.logprobs else {}
    tokens, offsets = as_list(logprobs.get("tokens")), as_list(logprobs.get("text_offset"))
    if tokens and offsets:
        is_kept = (offsets[0] == 0) is (len(tokens) > _FEW)
        wanted = "offsets that count from the start of the prompt"
        session.hold(ECHO, reply, is_kept, heard={"text_offset": offsets[:8]}, wanted=wanted)


def _begins(text: str, beginning: str) -> bool:
    """Whether it does, whatever blanks a tokenizer has put before it."""
    return text.lstrip().startswith(beginning.lstrip())


# ---- several prompts


async def _list(session: Session) -> None:
    reply = session.answered(await _listed(session, stream=True))
    if not reply.choices:
        raise NotHeardError("the reply had no choices")
    _judge_indices(session, reply, len(PROMPTS))
    for n in (1, 2):
        reply = await _listed(session, stream=False, n=n, echo=True)
        if reply.is_ok and _has_several(reply, n):
            _judge_indices(session, reply, len(PROMPTS) * n)
            _judge_owners(session, reply, n)


def _has_several(reply: Reply, n: int) -> bool:
    """Whether there is something to number. A server without `n` answers once for each prompt."""
    return bool(reply.choices) and (n == 1 or len(reply.choices) != len(PROMPTS))


async def _listed(session: Session, **members: Any) -> Reply:  # noqa: ANN401 - JSON
    return await session.complete(list(PROMPTS), max_tokens=_FEW, **members)


def _judge_indices(session: Session, reply: Reply, count: int) -> None:
    indices = [said.index for said in reply.choices]
    wanted = f"{', '.join(map(str, range(count)))}: one for each answer"
    session.hold(BATCH_INDEX, reply, indices == list(range(count)), heard={"indices": indices}, wanted=wanted)


def _judge_owners(session: Session, reply: Reply, n: int) -> None:
    """Each answer that repeats a prompt must repeat its own."""
    for said in reply.choices:
        owner = next((number for number, prompt in enumerate(PROMPTS) if _begins(said.text, prompt)), None)
        if owner is not None:
            heard = {"index": said.index, "text": said.text}
            wanted = f"index {owner * n} to {owner * n + n - 1} for {PROMPTS[owner]!r}"
            session.hold(BATCH_INDEX, reply, said.index // n == owner, heard=heard, wanted=wanted)


# ---- suffix


async def _suffix(session: Session) -> None:
    reply = await _before(session, suffix="\n\nprint('The sum is', add(40, 2))\n")
    plain = session.answered(await _before(session))
    if is_refused(reply):
        session.hold(SUFFIX, reply, is_kept=True)
        return
    session.answered(reply)
    again = session.answered(await _before(session))
    if not plain.text:
        raise NotHeardError("the answer had no text")
    if plain.text != again.text:
        raise NotHeardError("the server does not repeat itself at temperature 0")
    counts = plain.tokens("prompt_tokens"), reply.tokens("prompt_tokens")
    if reply.text == plain.text and None in counts:
        # What fits before the suffix may be what would come without it. Only the count tells that it was read.
        raise NotHeardError("the same text as without suffix, and no count of what was read")
    is_kept = reply.text != plain.text or len({*counts}) > 1
    session.hold(SUFFIX, reply, is_kept, heard="the same text as without suffix", wanted="another text, or status 400")


async def _before(session: Session, **members: Any) -> Reply:  # noqa: ANN401 - JSON
    return await session.complete("def add(a, b):\n    return", stream=False, max_tokens=8, **members)


PROBES = (
    Probe(name="completions", says="a completion, streamed", work=_text),
    Probe(name="completions-whole", says="a completion in one piece", work=_whole),
    Probe(name="completions-logprobs", says="a completion with logprobs", work=_logprobs),
    Probe(name="completions-echo", says="a completion that begins with its prompt", work=_echo, rules=(ECHO,)),
    Probe(name="completions-list", says="completions of several prompts", work=_list, rules=(BATCH_INDEX,)),
    Probe(
        name="completions-suffix",
        says="a completion between two texts",
        work=_suffix,
        rules=(SUFFIX,),
        is_alone=True,
    ),
)
