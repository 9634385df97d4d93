"""Probes of plain text: the stream that every client reads first."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from welldone.check import settings
from welldone.check.probe import Probe
from welldone.check.probes.errors import is_refused
from welldone.check.reading import ParsedChoice
from welldone.check.reply import ProbeReply, find_special_token, frame_at_offset, text_from_difference
from welldone.check.session import NotApplicableError, Session, UnsupportedError
from welldone.rules.view.choices import is_json

# Probes of `n`: several answers to one request.


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
        settings.COUNT_PROMPT,
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


# Probes of logprobs: the tokens of an answer, and how sure the model was of each.


async def _probe_logprobs(session: Session) -> None:
    await _check_logprobs(session, stream=True)


async def _probe_logprobs_buffered(session: Session) -> None:
    await _check_logprobs(session, stream=False)


async def _check_logprobs(session: Session, *, stream: bool) -> None:
    reply = await session.generate(settings.HELLO_PROMPT, stream=stream, max_tokens=12, logprobs=True, top_logprobs=2)
    if not session.require_ok(reply).first_choice.logprobs:
        raise NotApplicableError("asked for logprobs, none came")


LOGPROB_PROBES = (
    Probe(name="logprobs", description="logprobs of each token, streamed", run=_probe_logprobs),
    Probe(name="logprobs-whole", description="logprobs of each token in one piece", run=_probe_logprobs_buffered),
)


# A probe of reasoning: where the thoughts of a model stand beside its answer.


_ANSWER_TOKENS = 64
_REASONING_BUDGET = 1024  # tokens: the fewest that Anthropic takes
_REASONING_FIELDS: Mapping[str, dict[str, Any]] = {
    "responses": {"reasoning": {"effort": "low", "summary": "auto"}},
    # A model of Anthropic's thinks at its own temperature only.
    "messages": {"thinking": {"type": "enabled", "budget_tokens": _REASONING_BUDGET}, "temperature": ...},
}
"""How models are asked to think that do not do so by themselves."""
_PUZZLE = "Tom is taller than Ann, and Ann is taller than Bob. Who is the shortest? Answer with the name."


async def _probe_reasoning(session: Session) -> None:
    reply = session.require_ok(await session.generate(_PUZZLE, max_tokens=_ANSWER_TOKENS))
    if reply.first_choice.reasoning:
        return
    if way := _REASONING_FIELDS.get(session.dialect.name):
        reply = session.require_ok(
            await session.generate(_PUZZLE, max_tokens=_ANSWER_TOKENS + _REASONING_BUDGET, **way)
        )
        if reply.first_choice.reasoning:
            return
    if reply.text.lstrip().startswith("<think>"):
        raise NotApplicableError("the model thinks in its text, and the server has no field for it")
    raise UnsupportedError("the model does not think aloud")


REASONING_PROBES = (
    Probe(name="reasoning", description="a puzzle, for models that think before they answer", run=_probe_reasoning),
)


# A probe of sameness: the pieces of a stream make the text that comes without one.


CONCAT_EQUALS_FULL = "delta-concat-equals-full"

LINES_PROMPT = "Name three animals, each on a line of its own, with a short sentence about it."
"""White space within the answer: it gets lost more often than words do."""
_COMPARED_TOKENS = 24


async def _probe_stream_equality(session: Session) -> None:
    for prompt in (LINES_PROMPT, settings.EMOJI_PROMPT):
        await _compare_texts(session, prompt)


async def _compare_texts(session: Session, prompt: str) -> None:
    streamed = await _send_compared(session, prompt, stream=True)
    whole = await _send_compared(session, prompt, stream=False)
    is_kept = streamed.text == whole.text
    if is_kept and not streamed.text:
        session.not_applicable(CONCAT_EQUALS_FULL, "the answers have no text")
        return
    if not is_kept:
        # In turned order, in case two machines take turns behind one address.
        whole_again = await _send_compared(session, prompt, stream=False)
        streamed_again = await _send_compared(session, prompt, stream=True)
        is_repeated = (streamed_again.text, whole_again.text) == (streamed.text, whole.text)
        if not is_repeated or not _is_complete_stream(streamed):
            session.not_applicable(CONCAT_EQUALS_FULL, "the server does not repeat itself at temperature 0")
            return
    session.check_rule(
        CONCAT_EQUALS_FULL,
        streamed,
        is_kept,
        observed=text_from_difference(streamed.text, whole.text),
        expected=f"as without stream: {text_from_difference(whole.text, streamed.text)}",
    )


async def _send_compared(session: Session, prompt: str, *, stream: bool) -> ProbeReply:
    return session.require_ok(await session.generate(prompt, max_tokens=_COMPARED_TOKENS, stream=stream))


def _is_complete_stream(streamed: ProbeReply) -> bool:
    """Whether the stream came to its end: of one that broke off other rules speak."""
    return streamed.is_stream and streamed.view.is_complete_stream


STREAM_EQUALITY_PROBES = (
    Probe(
        name="same",
        description="the same answer streamed and in one piece",
        run=_probe_stream_equality,
        rules=(CONCAT_EQUALS_FULL,),
        is_exclusive=True,
    ),
)


# Probes of answers that must be JSON. No rule speaks about that, so that only the form of the replies is judged.


SCHEMA_PROMPT = "Describe a cat as JSON, with its colour and its age in years."
CAT_SCHEMA = {
    "name": "cat",
    "strict": True,
    "schema": {
        "type": "object",
        "properties": {
            "colour": {"type": "string", "enum": ["black", "white", "red"]},
            "age": {"type": "integer"},
        },
        "required": ["colour", "age"],
        "additionalProperties": False,
    },
}
_SCHEMA_FORMAT = {"type": "json_schema", "json_schema": CAT_SCHEMA}
_OBJECT_FORMAT = {"type": "json_object"}
SCHEMA_TOKENS = 32  # enough for this cat. A small model may write blanks for ever


async def _probe_schema(session: Session, *, response_format: dict[str, Any], stream: bool) -> None:
    reply = session.require_ok(
        await session.generate(SCHEMA_PROMPT, stream=stream, max_tokens=SCHEMA_TOKENS, response_format=response_format)
    )
    require_json(reply, "stop", response_format["type"])


def require_json(reply: ProbeReply, finish_reason: str, kind: str) -> None:
    """Raises `NotHeardError` where an answer that came to its end is no JSON object."""
    if reply.finish_reason == finish_reason and not is_json(reply.text, dict):
        raise NotApplicableError(f"asked for {kind}, and the answer is no JSON object: the server seems to ignore it")


SCHEMA_PROBES = (
    Probe(
        name="schema",
        description="an answer by a JSON schema, streamed",
        run=partial(_probe_schema, response_format=_SCHEMA_FORMAT, stream=True),
    ),
    Probe(
        name="schema-whole",
        description="an answer by a JSON schema, in one piece",
        run=partial(_probe_schema, response_format=_SCHEMA_FORMAT, stream=False),
    ),
    Probe(
        name="schema-object",
        description="an answer that is any JSON object, streamed",
        run=partial(_probe_schema, response_format=_OBJECT_FORMAT, stream=True),
    ),
    Probe(
        name="schema-object-whole",
        description="an answer that is any JSON object, in one piece",
        run=partial(_probe_schema, response_format=_OBJECT_FORMAT, stream=False),
    ),
)


NO_SPECIAL_TOKENS = "live-no-special-tokens"


async def _probe_text(session: Session) -> None:
    _check_special_tokens(session, await session.generate(settings.HELLO_PROMPT))


async def _probe_text_buffered(session: Session) -> None:
    _check_special_tokens(session, await session.generate(settings.HELLO_PROMPT, stream=False))


async def _probe_emoji(session: Session) -> None:
    _check_special_tokens(session, await session.generate(settings.EMOJI_PROMPT))


async def _probe_emoji_buffered(session: Session) -> None:
    _check_special_tokens(session, await session.generate(settings.EMOJI_PROMPT, stream=False))


async def _probe_numbers(session: Session) -> None:
    session.require_ok(await session.generate(settings.COUNT_PROMPT))


def _check_special_tokens(session: Session, reply: ProbeReply) -> None:
    """Nobody asked for special tokens, and so none may be in the text."""
    session.require_ok(reply)
    if not reply.text:
        session.not_applicable(NO_SPECIAL_TOKENS, "the answer has no text")
        return
    found = find_special_token(reply.text)
    session.check_rule(
        NO_SPECIAL_TOKENS,
        reply,
        found is None,
        observed=reply.text,
        expected="" if found is None else f"the text without {found[0].strip()}",
        frame=None if found is None else frame_at_offset(reply, found.start()),
    )


NUMBERS_PROBE = Probe(name="text-numbers", description="an answer of many pieces, streamed", run=_probe_numbers)
TEXT_PROBES = (
    Probe(name="text", description="a short answer, streamed", run=_probe_text, rules=(NO_SPECIAL_TOKENS,)),
    Probe(
        name="text-whole",
        description="a short answer in one piece",
        run=_probe_text_buffered,
        rules=(NO_SPECIAL_TOKENS,),
    ),
    Probe(
        name="text-emoji",
        description="emoji and text in many scripts, streamed",
        run=_probe_emoji,
        rules=(NO_SPECIAL_TOKENS,),
    ),
    Probe(
        name="text-emoji-whole",
        description="emoji and text in many scripts in one piece",
        run=_probe_emoji_buffered,
        rules=(NO_SPECIAL_TOKENS,),
    ),
)
