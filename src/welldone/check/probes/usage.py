"""Probes of usage: asked for, not asked for, and the same in a stream as in a whole reply."""

from collections.abc import Awaitable, Callable, Mapping

from welldone.check import settings
from welldone.check.probe import Probe
from welldone.check.probes.errors import is_refused
from welldone.check.reply import ProbeReply
from welldone.check.session import Session
from welldone.rules.view.choices import as_object, is_int

STREAM_OPTIONS = "req-stream-options"
USAGE_WHOLE_REQUEST = "use-whole-request"

_INCLUDE_USAGE = {"include_usage": True}
_ALL_OPTIONS = {"include_usage": True, "include_obfuscation": False, "welldone_unknown": 1}
_USAGE_TOKENS = 16
UsageRequest = Callable[..., Awaitable[ProbeReply]]


def _usage_chat_request(session: Session) -> UsageRequest:
    return lambda **members: session.generate(settings.HELLO_PROMPT, max_tokens=_USAGE_TOKENS, **members)


def _usage_completion_request(session: Session) -> UsageRequest:
    return lambda **members: session.complete(settings.HELLO_PROMPT, max_tokens=_USAGE_TOKENS, **members)


async def _probe_usage(session: Session) -> None:
    await _check_stream_options(session, _usage_chat_request(session), _INCLUDE_USAGE)


async def _probe_stream_options(session: Session) -> None:
    await _check_stream_options(session, _usage_chat_request(session), _ALL_OPTIONS)


async def _probe_stream_options_completions(session: Session) -> None:
    await _check_stream_options(session, _usage_completion_request(session), _ALL_OPTIONS)


async def _probe_without_usage(session: Session) -> None:
    session.require_ok(await _usage_chat_request(session)(stream_options={"include_usage": False}))


async def _check_stream_options(session: Session, ask: UsageRequest, options: Mapping[str, object]) -> None:
    """The options must be taken, where the same request without them is."""
    reply = await ask(stream_options=options)
    if is_refused(reply):
        session.require_ok(await ask())
        session.check_rule(
            STREAM_OPTIONS, reply, passed=False, observed=reply.error_summary, expected="a stream: options are taken"
        )
    else:
        session.require_ok(reply)
        session.check_rule(STREAM_OPTIONS, reply, passed=True)


async def _probe_usage_equality(session: Session) -> None:
    await _compare_usage(session, _usage_chat_request(session))


async def _probe_usage_equality_completions(session: Session) -> None:
    await _compare_usage(session, _usage_completion_request(session))


async def _compare_usage(session: Session, ask: UsageRequest) -> None:
    """The prompt is the same, and so is its count; the answer's count where it is the same answer."""
    streamed, whole = await _send_both(session, ask)
    if streamed.usage is None or whole.usage is None:
        which = "the stream" if streamed.usage is None else "the whole reply"
        session.not_applicable(USAGE_WHOLE_REQUEST, f"{which} came without usage")
        return
    is_kept = _usage_counts(streamed) == _usage_counts(whole)
    if not is_kept and not await _is_reproducible(session, ask, streamed, whole):
        session.not_applicable(USAGE_WHOLE_REQUEST, "the server does not repeat itself at temperature 0")
        return
    session.check_rule(
        USAGE_WHOLE_REQUEST,
        streamed,
        is_kept,
        observed=streamed.usage,
        expected=f"as without stream: {_format_usage(whole)}",
    )


async def _send_both(session: Session, ask: UsageRequest) -> tuple[ProbeReply, ProbeReply]:
    streamed = session.require_ok(await ask(stream_options=_INCLUDE_USAGE))
    return streamed, session.require_ok(await ask(stream=False))


async def _is_reproducible(session: Session, ask: UsageRequest, streamed: ProbeReply, whole: ProbeReply) -> bool:
    """Whether each counts the same again. They are asked in turned order, in case two machines take turns."""
    whole_again = session.require_ok(await ask(stream=False))
    streamed_again = session.require_ok(await ask(stream_options=_INCLUDE_USAGE))
    pairs = (streamed, streamed_again), (whole, whole_again)
    if streamed.usage_count("prompt_tokens") != whole.usage_count("prompt_tokens"):
        return all(one.usage_count("prompt_tokens") == other.usage_count("prompt_tokens") for one, other in pairs)
    answers = {_answer_identity(reply) for pair in pairs for reply in pair}
    return len(answers) == 1 and all(_usage_counts(one) == _usage_counts(other) for one, other in pairs)


def _usage_counts(reply: ProbeReply) -> tuple[int | None, int | None]:
    """Of the prompt, and of the answer without thoughts: those that are not shown differ from time to time."""
    completion = reply.usage_count("completion_tokens")
    hidden = as_object((reply.usage or {}).get("completion_tokens_details")).get("reasoning_tokens")
    if completion is not None and is_int(hidden) and not reply.first_choice.reasoning:
        completion -= hidden
    return reply.usage_count("prompt_tokens"), completion


def _answer_identity(reply: ProbeReply) -> tuple[str, str, str]:
    return reply.text, reply.first_choice.reasoning, str(reply.finish_reason)


def _format_usage(reply: ProbeReply) -> str:
    prompt, completion = _usage_counts(reply)
    return f"prompt_tokens {prompt}, completion_tokens {completion}"


USAGE_PROBES = (
    Probe(name="usage", description="usage, asked for", run=_probe_usage, rules=(STREAM_OPTIONS,)),
    Probe(name="usage-unasked", description="a stream without usage", run=_probe_without_usage),
    Probe(
        name="usage-options",
        description="all stream_options, and one that is unknown",
        run=_probe_stream_options,
        rules=(STREAM_OPTIONS,),
    ),
    Probe(
        name="usage-completions",
        description="the same options, on the completions endpoint",
        run=_probe_stream_options_completions,
        rules=(STREAM_OPTIONS,),
    ),
    Probe(
        name="usage-same",
        description="usage of a stream and of the same answer in one piece",
        run=_probe_usage_equality,
        rules=(USAGE_WHOLE_REQUEST,),
        is_exclusive=True,
    ),
    Probe(
        name="usage-same-completions",
        description="the same, on the completions endpoint",
        run=_probe_usage_equality_completions,
        rules=(USAGE_WHOLE_REQUEST,),
        is_exclusive=True,
    ),
)
