"""Probes of usage and stream_options, and of equal usage in streamed and buffered replies."""

from collections.abc import Awaitable, Callable, Mapping

from welldone.check import settings
from welldone.check.probe import Probe
from welldone.check.probes.errors import is_refused
from welldone.check.reply import ProbeReply
from welldone.check.session import NOT_REPRODUCIBLE, Session
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


async def _check_stream_options(session: Session, request: UsageRequest, options: Mapping[str, object]) -> None:
    """The options must be accepted if the same request without them is."""
    reply = await request(stream_options=options)
    if is_refused(reply):
        session.require_ok(await request())
        session.check_rule(
            STREAM_OPTIONS, reply, passed=False, observed=reply.error_summary, expected="a stream: options are accepted"
        )
    else:
        session.require_ok(reply)
        session.check_rule(STREAM_OPTIONS, reply, passed=True)


async def _probe_usage_equality(session: Session) -> None:
    await _compare_usage(session, _usage_chat_request(session))


async def _probe_usage_equality_completions(session: Session) -> None:
    await _compare_usage(session, _usage_completion_request(session))


async def _compare_usage(session: Session, request: UsageRequest) -> None:
    """Prompt tokens must be equal, and completion tokens where the answers are equal."""
    streamed = session.require_ok(await request(stream_options=_INCLUDE_USAGE))
    buffered = session.require_ok(await request(stream=False))
    if streamed.usage is None or buffered.usage is None:
        which = "the stream" if streamed.usage is None else "the buffered reply"
        session.not_applicable(USAGE_WHOLE_REQUEST, f"{which} has no usage")
        return
    is_equal = _usage_counts(streamed) == _usage_counts(buffered)
    if not is_equal and not await _is_reproducible(session, request, streamed, buffered):
        session.not_applicable(USAGE_WHOLE_REQUEST, NOT_REPRODUCIBLE)
        return
    prompt, completion = _usage_counts(buffered)
    session.check_rule(
        USAGE_WHOLE_REQUEST,
        streamed,
        is_equal,
        observed=streamed.usage,
        expected=f"as without stream: prompt_tokens {prompt}, completion_tokens {completion}",
    )


async def _is_reproducible(session: Session, request: UsageRequest, streamed: ProbeReply, buffered: ProbeReply) -> bool:
    """Whether both counts repeat. The order is reversed, in case a load balancer alternates between two servers."""
    buffered_again = session.require_ok(await request(stream=False))
    streamed_again = session.require_ok(await request(stream_options=_INCLUDE_USAGE))
    pairs = (streamed, streamed_again), (buffered, buffered_again)
    if streamed.usage_count("prompt_tokens") != buffered.usage_count("prompt_tokens"):
        return all(one.usage_count("prompt_tokens") == other.usage_count("prompt_tokens") for one, other in pairs)
    answers = {_answer_identity(reply) for pair in pairs for reply in pair}
    return len(answers) == 1 and all(_usage_counts(one) == _usage_counts(other) for one, other in pairs)


def _usage_counts(reply: ProbeReply) -> tuple[int | None, int | None]:
    """Prompt tokens, and completion tokens without hidden reasoning, which varies between runs."""
    completion = reply.usage_count("completion_tokens")
    hidden = as_object((reply.usage or {}).get("completion_tokens_details")).get("reasoning_tokens")
    if completion is not None and is_int(hidden) and not reply.first_choice.reasoning:
        completion -= hidden
    return reply.usage_count("prompt_tokens"), completion


def _answer_identity(reply: ProbeReply) -> tuple[str, str, str]:
    return reply.text, reply.first_choice.reasoning, str(reply.finish_reason)


USAGE_PROBES = (
    Probe(name="usage", description="usage with include_usage", run=_probe_usage, rules=(STREAM_OPTIONS,)),
    Probe(name="usage-unasked", description="a stream without include_usage", run=_probe_without_usage),
    Probe(
        name="usage-options",
        description="all stream_options and an unknown one",
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
        description="usage of the same answer, streamed and not streamed",
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
