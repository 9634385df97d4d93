"""Probes of usage: asked for, not asked for, and the same in a stream as in a whole reply."""

from collections.abc import Awaitable, Callable, Mapping

from welldone.check import prompts
from welldone.check.probe import Probe
from welldone.check.probes.refusals import is_refused
from welldone.check.reply import Reply
from welldone.check.session import Session
from welldone.rules.choices import as_object, is_int

STREAM_OPTIONS = "req-stream-options"
WHOLE_REQUEST = "use-whole-request"

_USAGE = {"include_usage": True}
_ALL = {"include_usage": True, "include_obfuscation": False, "welldone_unknown": 1}
_TOKENS = 16
Ask = Callable[..., Awaitable[Reply]]


def _chat(session: Session) -> Ask:
    return lambda **members: session.ask(prompts.HELLO, max_tokens=_TOKENS, **members)


def _complete(session: Session) -> Ask:
    return lambda **members: session.complete(prompts.HELLO, max_tokens=_TOKENS, **members)


async def _asked(session: Session) -> None:
    await _offer(session, _chat(session), _USAGE)


async def _options(session: Session) -> None:
    await _offer(session, _chat(session), _ALL)


async def _completions(session: Session) -> None:
    await _offer(session, _complete(session), _ALL)


async def _unasked(session: Session) -> None:
    session.answered(await _chat(session)(stream_options={"include_usage": False}))


async def _offer(session: Session, ask: Ask, options: Mapping[str, object]) -> None:
    """The options must be taken, where the same request without them is."""
    reply = await ask(stream_options=options)
    if is_refused(reply):
        session.answered(await ask())
        session.hold(STREAM_OPTIONS, reply, is_kept=False, heard=reply.complaint, wanted="a stream: options are taken")
    else:
        session.answered(reply)
        session.hold(STREAM_OPTIONS, reply, is_kept=True)


async def _same(session: Session) -> None:
    await _compare(session, _chat(session))


async def _same_completions(session: Session) -> None:
    await _compare(session, _complete(session))


async def _compare(session: Session, ask: Ask) -> None:
    """The prompt is the same, and so is its count; the answer's count where it is the same answer."""
    streamed, whole = await _both(session, ask)
    if streamed.usage is None or whole.usage is None:
        which = "the stream" if streamed.usage is None else "the whole reply"
        session.not_heard(WHOLE_REQUEST, f"{which} came without usage")
        return
    is_kept = _counts(streamed) == _counts(whole)
    if not is_kept and not await _is_repeated(session, ask, streamed, whole):
        session.not_heard(WHOLE_REQUEST, "the server does not repeat itself at temperature 0")
        return
    session.hold(WHOLE_REQUEST, streamed, is_kept, heard=streamed.usage, wanted=f"as without stream: {_shown(whole)}")


async def _both(session: Session, ask: Ask) -> tuple[Reply, Reply]:
    streamed = session.answered(await ask(stream_options=_USAGE))
    return streamed, session.answered(await ask(stream=False))


async def _is_repeated(session: Session, ask: Ask, streamed: Reply, whole: Reply) -> bool:
    """Whether each counts the same again. They are asked in turned order, in case two machines take turns."""
    whole_again = session.answered(await ask(stream=False))
    streamed_again = session.answered(await ask(stream_options=_USAGE))
    pairs = (streamed, streamed_again), (whole, whole_again)
    if streamed.tokens("prompt_tokens") != whole.tokens("prompt_tokens"):
        return all(one.tokens("prompt_tokens") == other.tokens("prompt_tokens") for one, other in pairs)
    answers = {_answer(reply) for pair in pairs for reply in pair}
    return len(answers) == 1 and all(_counts(one) == _counts(other) for one, other in pairs)


def _counts(reply: Reply) -> tuple[int | None, int | None]:
    """Of the prompt, and of the answer without thoughts: those that are not shown differ from time to time."""
    completion = reply.tokens("completion_tokens")
    hidden = as_object((reply.usage or {}).get("completion_tokens_details")).get("reasoning_tokens")
    if completion is not None and is_int(hidden) and not reply.first.reasoning:
        completion -= hidden
    return reply.tokens("prompt_tokens"), completion


def _answer(reply: Reply) -> tuple[str, str, str]:
    return reply.text, reply.first.reasoning, str(reply.finish)


def _shown(reply: Reply) -> str:
    prompt, completion = _counts(reply)
    return f"prompt_tokens {prompt}, completion_tokens {completion}"


PROBES = (
    Probe(name="usage", says="usage, asked for", work=_asked, rules=(STREAM_OPTIONS,)),
    Probe(name="usage-unasked", says="a stream without usage", work=_unasked),
    Probe(
        name="usage-options", says="all stream_options, and one that is unknown", work=_options, rules=(STREAM_OPTIONS,)
    ),
    Probe(
        name="usage-completions",
        says="the same options, on the completions endpoint",
        work=_completions,
        rules=(STREAM_OPTIONS,),
    ),
    Probe(
        name="usage-same",
        says="usage of a stream and of the same answer in one piece",
        work=_same,
        rules=(WHOLE_REQUEST,),
        is_alone=True,
    ),
    Probe(
        name="usage-same-completions",
        says="the same, on the completions endpoint",
        work=_same_completions,
        rules=(WHOLE_REQUEST,),
        is_alone=True,
    ),
)
