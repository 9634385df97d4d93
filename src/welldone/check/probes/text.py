"""Probes of answers: text, usage, choices, logprobs, reasoning, JSON, and equality of streamed and buffered replies."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from welldone.check import settings
from welldone.check.probes.errors import is_refused
from welldone.check.reading import ParsedChoice
from welldone.check.reply import (
    SPECIAL_TOKENS,
    ExpectedReply,
    ProbeReply,
    RequestFunction,
    frame_at_offset,
    text_from_difference,
)
from welldone.check.session import (
    NOT_REPRODUCIBLE,
    NotApplicableError,
    Probe,
    Session,
    UnsupportedError,
    stream_and_whole,
)
from welldone.rules.view.choices import as_object, is_int, is_json

# ---- usage and stream_options


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
        return all(first.usage_count("prompt_tokens") == second.usage_count("prompt_tokens") for first, second in pairs)
    answers = {(reply.text, reply.first_choice.reasoning, str(reply.finish_reason)) for pair in pairs for reply in pair}
    return len(answers) == 1 and all(_usage_counts(first) == _usage_counts(second) for first, second in pairs)


def _usage_counts(reply: ProbeReply) -> tuple[int | None, int | None]:
    """Prompt tokens, and completion tokens without hidden reasoning, which varies between runs."""
    completion = reply.usage_count("completion_tokens")
    hidden = as_object((reply.usage or {}).get("completion_tokens_details")).get("reasoning_tokens")
    if completion is not None and is_int(hidden) and not reply.first_choice.reasoning:
        completion -= hidden
    return reply.usage_count("prompt_tokens"), completion


_OPTIONS, _WHOLE = ("req-stream-options",), (USAGE_WHOLE_REQUEST,)
_SAME_USAGE = "usage of the same answer, streamed and not streamed"
_SAME_COMPLETIONS = "the same, on the completions endpoint"
_all_options = partial(_probe_stream_options, options=_ALL_OPTIONS)
_all_on_completions = partial(_all_options, is_completion=True)
_same_on_completions = partial(_probe_usage_equality, is_completion=True)
USAGE_PROBES = (
    Probe("usage", "usage with include_usage", partial(_probe_stream_options, options=_INCLUDE_USAGE), _OPTIONS),
    Probe("usage-unasked", "a stream without include_usage", _probe_without_usage),
    Probe("usage-options", "all stream_options and an unknown one", _all_options, _OPTIONS),
    Probe("usage-completions", "the same options, on the completions endpoint", _all_on_completions, _OPTIONS),
    Probe("usage-same", _SAME_USAGE, _probe_usage_equality, _WHOLE, is_exclusive=True),
    Probe("usage-same-completions", _SAME_COMPLETIONS, _same_on_completions, _WHOLE, is_exclusive=True),
)


# ---- several choices (n)


_CHOICES = 2
_CHOICE_TOKENS = 8
_MIN_TOTAL_TOKENS = _CHOICE_TOKENS * _CHOICES * 3 // 4
"""Of all answers together: well above the limit of one answer, and a little below the sum, since servers differ in
whether they count the end-of-text token."""


async def _probe_choices(session: Session, *, stream: bool) -> None:
    # Some servers do not send two equal answers, so the temperature is the server's default.
    fields: dict[str, Any] = {"n": _CHOICES, "temperature": ..., "max_tokens": _CHOICE_TOKENS, "is_exact": True}
    usage = {"include_usage": True} if stream else ...
    reply = await session.generate(settings.COUNT_PROMPT, stream=stream, stream_options=usage, **fields)
    if is_refused(reply):
        session.check_rule("n-refuse-if-unsupported", reply, passed=True)
    session.require_ok(reply)
    if not reply.choices or (reply.is_stream and not reply.view.is_complete_stream):
        raise NotApplicableError("the reply has no choices, or is incomplete")
    count = len(reply.choices)
    observed = f"{count} of {_CHOICES} choices"
    session.check_rule("n-refuse-if-unsupported", reply, count > 1, observed, "400, or all of them")
    if count > 1:
        missing = "; ".join(_missing_in_choices(reply))
        session.check_rule("n-each-complete", reply, not missing, missing, "a role, text and a finish_reason for each")
        _check_choice_usage(session, reply)


def _missing_in_choices(reply: ProbeReply) -> Iterator[str]:
    """Missing parts of the choices. With hidden reasoning all of them may reach the limit without text."""
    has_any_content = any(map(_has_content, reply.choices))
    for choice in reply.choices:
        if not choice.role:
            yield f"choice {choice.index} has no role"
        if choice.finish_reason is None:
            yield f"choice {choice.index} has no finish_reason"
        elif choice.finish_reason == "length" and has_any_content and not _has_content(choice):
            yield f"choice {choice.index} reached its limit without text"


def _has_content(choice: ParsedChoice) -> bool:
    return bool(choice.text or choice.reasoning or choice.tool_calls)


def _check_choice_usage(session: Session, reply: ProbeReply) -> None:
    """Usage must count the tokens of all choices."""
    tokens = reply.usage_count("completion_tokens")
    if tokens is None:
        session.not_applicable(USAGE_WHOLE_REQUEST, "the reply has no usage")
    elif any(choice.finish_reason != "length" for choice in reply.choices):
        session.not_applicable(USAGE_WHOLE_REQUEST, "an answer ended before its limit")
    else:
        expected = f"{_CHOICE_TOKENS * _CHOICES}: {_CHOICES} answers of {_CHOICE_TOKENS} tokens"
        is_enough = tokens >= _MIN_TOTAL_TOKENS
        session.check_rule(USAGE_WHOLE_REQUEST, reply, is_enough, f"completion_tokens {tokens}", expected)


CHOICE_PROBES = stream_and_whole(
    "choices", "two answers (n=2)", _probe_choices, ("n-each-complete", "n-refuse-if-unsupported", USAGE_WHOLE_REQUEST)
)


# ---- logprobs


async def _probe_logprobs(session: Session, *, stream: bool) -> None:
    reply = await session.answer(settings.HELLO_PROMPT, stream=stream, max_tokens=12, logprobs=True, top_logprobs=2)
    if not reply.first_choice.logprobs:
        raise NotApplicableError("logprobs were requested, but the reply has none")


LOGPROB_PROBES = stream_and_whole("logprobs", "logprobs", _probe_logprobs)


# ---- reasoning


_ANSWER_TOKENS = 64
_REASONING_BUDGET = 1024  # tokens: Anthropic's minimum
_REASONING_FIELDS: Mapping[str, dict[str, Any]] = {
    "responses": {"reasoning": {"effort": "low", "summary": "auto"}},
    # Anthropic refuses `temperature` together with `thinking`.
    "messages": {"thinking": {"type": "enabled", "budget_tokens": _REASONING_BUDGET}, "temperature": ...},
    "gemini": {"thinkingConfig": {"includeThoughts": True}},
}
"""Fields that enable reasoning, for models that do not reason by default."""
_PUZZLE = "Tom is taller than Ann, and Ann is taller than Bob. Who is the shortest? Answer with the name."


async def _probe_reasoning(session: Session) -> None:
    reply = await session.answer(_PUZZLE, max_tokens=_ANSWER_TOKENS)
    fields = _REASONING_FIELDS.get(session.dialect.name)
    if fields and not reply.first_choice.reasoning:
        reply = await session.answer(_PUZZLE, max_tokens=_ANSWER_TOKENS + _REASONING_BUDGET, **fields)
    if reply.first_choice.reasoning:
        return
    if reply.text.lstrip().startswith("<think>"):
        raise NotApplicableError("the reasoning is in the text (<think>), not in a field of its own")
    raise UnsupportedError("the model sends no reasoning")


REASONING_PROBES = (Probe("reasoning", "a puzzle, for reasoning models", _probe_reasoning),)


# ---- equality of streamed and buffered answers


CONCAT_EQUALS_FULL = "delta-concat-equals-full"

LINES_PROMPT = "Name three animals, each on a line of its own, with a short sentence about it."
"""The answer has line breaks: white space is lost more often than words."""
_COMPARED_TOKENS = 24


async def _probe_stream_equality(session: Session) -> None:
    for prompt in (LINES_PROMPT, settings.EMOJI_PROMPT):
        await _compare_texts(session, prompt)


async def _compare_texts(session: Session, prompt: str) -> None:
    request = partial(session.answer, prompt, max_tokens=_COMPARED_TOKENS)
    streamed, buffered = await request(stream=True), await request(stream=False)
    is_equal = streamed.text == buffered.text
    if is_equal and not streamed.text:
        session.not_applicable(CONCAT_EQUALS_FULL, "the answers have no text")
        return
    if not is_equal:
        # In reverse order, in case a load balancer alternates between two servers.
        buffered_again, streamed_again = await request(stream=False), await request(stream=True)
        is_repeated = (streamed_again.text, buffered_again.text) == (streamed.text, buffered.text)
        # A truncated stream breaks other rules.
        if not is_repeated or not (streamed.is_stream and streamed.view.is_complete_stream):
            session.not_applicable(CONCAT_EQUALS_FULL, NOT_REPRODUCIBLE)
            return
    observed = text_from_difference(streamed.text, buffered.text)
    expected = f"as without stream: {text_from_difference(buffered.text, streamed.text)}"
    session.check_rule(CONCAT_EQUALS_FULL, streamed, is_equal, observed, expected)


_SAME = "the same answer, streamed and not streamed"
STREAM_EQUALITY_PROBES = (Probe("same", _SAME, _probe_stream_equality, (CONCAT_EQUALS_FULL,), is_exclusive=True),)


# ---- JSON answers. No rule is about their content, so only the general rules judge the replies.


SCHEMA_PROMPT = "Describe a cat as JSON, with its colour and its age in years."
CAT_SCHEMA: dict[str, object] = {
    "name": "cat",
    "strict": True,
    "schema": {
        "type": "object",
        "properties": {"colour": {"type": "string", "enum": ["black", "white", "red"]}, "age": {"type": "integer"}},
        "required": ["colour", "age"],
        "additionalProperties": False,
    },
}
_SCHEMA_TOKENS = 32  # enough for this schema; a small model may generate white space without end


async def probe_schema(session: Session, *, stream: bool, fields: dict[str, Any], feature: str = "json_schema") -> None:
    """Request a JSON answer with `fields`; raises `NotApplicableError` if a complete answer is not a JSON object."""
    reply = await session.answer(SCHEMA_PROMPT, stream=stream, max_tokens=_SCHEMA_TOKENS, **fields)
    if reply.finish_reason in ("stop", "completed") and not is_json(reply.text, dict):
        raise NotApplicableError(f"the server seems to ignore {feature}: the answer is not a JSON object")


SCHEMA_DESCRIPTION = "an answer with a JSON schema"
_SCHEMA_FIELDS = {"response_format": {"type": "json_schema", "json_schema": CAT_SCHEMA}}
_OBJECT_FIELDS = {"response_format": {"type": "json_object"}}
_json_object = partial(probe_schema, fields=_OBJECT_FIELDS, feature="json_object")
SCHEMA_PROBES = (
    *stream_and_whole("schema", SCHEMA_DESCRIPTION, partial(probe_schema, fields=_SCHEMA_FIELDS)),
    *stream_and_whole("schema-object", "an answer that is a JSON object", _json_object),
)


# ---- plain text


NO_SPECIAL_TOKENS = "live-no-special-tokens"


async def _probe_text(session: Session, *, prompt: str, stream: bool) -> None:
    reply = await session.answer(prompt, stream=stream, expected=ExpectedReply.PLAIN_ANSWER)
    if not reply.text:
        session.not_applicable(NO_SPECIAL_TOKENS, "the answer has no text")
    elif token := SPECIAL_TOKENS.search(reply.text):
        expected, frame = f"the text without {token[0].strip()}", frame_at_offset(reply, token.start())
        session.check_rule(NO_SPECIAL_TOKENS, reply, False, reply.text, expected, frame=frame)
    else:
        session.check_rule(NO_SPECIAL_TOKENS, reply, passed=True)


NUMBERS_PROBE = Probe(
    "text-numbers", "an answer of many chunks, streamed", lambda session: session.answer(settings.COUNT_PROMPT)
)
TEXT_PROBES = tuple(
    probe
    for name, description, prompt in (
        ("text", "a short answer", settings.HELLO_PROMPT),
        ("text-emoji", "emoji and text in many scripts", settings.EMOJI_PROMPT),
    )
    for probe in stream_and_whole(name, description, partial(_probe_text, prompt=prompt), (NO_SPECIAL_TOKENS,))
)
