"""Probes of usage and stream_options, and of equal usage in streamed and buffered replies."""

from collections.abc import Mapping
from functools import partial

from welldone.check import settings
from welldone.check.probes.errors import is_refused
from welldone.check.reply import ProbeReply, RequestFunction
from welldone.check.session import NOT_REPRODUCIBLE, Probe, Session
from welldone.rules.view.choices import as_object, is_int

USAGE_WHOLE_REQUEST = "use-whole-request"

_INCLUDE_USAGE = {"include_usage": True}
_ALL_OPTIONS = {"include_usage": True, "include_obfuscation": False, "welldone_unknown": 1}


def _usage_request(session: Session, *, is_completion: bool) -> RequestFunction:
    send = session.complete if is_completion else session.generate
    return partial(send, settings.HELLO_PROMPT, max_tokens=16)


async def _probe_without_usage(session: Session) -> None:
    await session.answer(settings.HELLO_PROMPT, max_tokens=16, stream_options={"include_usage": False})


async def _probe_stream_options(
    session: Session, *, options: Mapping[str, object], is_completion: bool = False
) -> None:
    """The options must be accepted if the same request without them is."""
    request = _usage_request(session, is_completion=is_completion)
    reply = await request(stream_options=options)
    has_refused = is_refused(reply)
    session.require_ok(await request() if has_refused else reply)
    expected = "a stream: options are accepted"
    session.check_rule("req-stream-options", reply, not has_refused, reply.error_summary, expected)


async def _probe_usage_equality(session: Session, *, is_completion: bool = False) -> None:
    """Prompt tokens must be equal, and completion tokens where the answers are equal."""
    request = _usage_request(session, is_completion=is_completion)
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
    expected = f"as without stream: prompt_tokens {prompt}, completion_tokens {completion}"
    session.check_rule(USAGE_WHOLE_REQUEST, streamed, is_equal, streamed.usage, expected)


async def _is_reproducible(
    session: Session, request: RequestFunction, streamed: ProbeReply, buffered: ProbeReply
) -> bool:
    """Whether both counts repeat. The order is reversed, in case a load balancer alternates between two servers."""
    buffered_again = session.require_ok(await request(stream=False))
    streamed_again = session.require_ok(await request(stream_options=_INCLUDE_USAGE))
    pairs = (streamed, streamed_again), (buffered, buffered_again)
    if streamed.usage_count("prompt_tokens") != buffered.usage_count("prompt_tokens"):
        return all(one.usage_count("prompt_tokens") == other.usage_count("prompt_tokens") for one, other in pairs)
    answers = {(reply.text, reply.first_choice.reasoning, str(reply.finish_reason)) for pair in pairs for reply in pair}
    return len(answers) == 1 and all(_usage_counts(one) == _usage_counts(other) for one, other in pairs)


def _usage_counts(reply: ProbeReply) -> tuple[int | None, int | None]:
    """Prompt tokens, and completion tokens without hidden reasoning, which varies between runs."""
    completion = reply.usage_count("completion_tokens")
    hidden = as_object((reply.usage or {}).get("completion_tokens_details")).get("reasoning_tokens")
    if completion is not None and is_int(hidden) and not reply.first_choice.reasoning:
        completion -= hidden
    return reply.usage_count("prompt_tokens"), completion


_OPTIONS, _WHOLE = ("req-stream-options",), (USAGE_WHOLE_REQUEST,)
_SAME = "usage of the same answer, streamed and not streamed"
_SAME_COMPLETIONS = "the same, on the completions endpoint"
_all_options = partial(_probe_stream_options, options=_ALL_OPTIONS)
_all_on_completions = partial(_all_options, is_completion=True)
_same_on_completions = partial(_probe_usage_equality, is_completion=True)
USAGE_PROBES = (
    Probe("usage", "usage with include_usage", partial(_probe_stream_options, options=_INCLUDE_USAGE), _OPTIONS),
    Probe("usage-unasked", "a stream without include_usage", _probe_without_usage),
    Probe("usage-options", "all stream_options and an unknown one", _all_options, _OPTIONS),
    Probe("usage-completions", "the same options, on the completions endpoint", _all_on_completions, _OPTIONS),
    Probe("usage-same", _SAME, _probe_usage_equality, _WHOLE, is_exclusive=True),
    Probe("usage-same-completions", _SAME_COMPLETIONS, _same_on_completions, _WHOLE, is_exclusive=True),
)
