"""Probes of single dialects: the legacy /completions, /v1/messages and /v1/responses."""

from functools import partial
from typing import Any

import msgspec

from welldone.check import settings
from welldone.check.probe import Probe
from welldone.check.probes import text
from welldone.check.probes.errors import is_refused
from welldone.check.probes.limits import UNMATCHED_STOP
from welldone.check.reply import ProbeReply, ProbeRequest
from welldone.check.session import NOT_REPRODUCIBLE, NotApplicableError, Session
from welldone.rules.view.choices import as_list, as_object, is_int

ECHO = "cmpl-echo"
BATCH_INDEX = "cmpl-batch-index"
SUFFIX = "cmpl-suffix"

COMPLETION_PROMPT = "The capital of France is"
BATCH_PROMPTS = ("One, two, three,", "Red, green, blue,")
_COMPLETION_TOKENS = 4  # fewer than COMPLETION_PROMPT has words


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
    """The first text_offset is 0 if the logprobs include the prompt, and not 0 if they cover only the answer."""
    logprobs = as_object(reply.first_choice.logprobs[0]) if reply.is_ok and reply.first_choice.logprobs else {}
    tokens, offsets = as_list(logprobs.get("tokens")), as_list(logprobs.get("text_offset"))
    if tokens and offsets:
        is_correct = (offsets[0] == 0) is (len(tokens) > _COMPLETION_TOKENS)
        expected = "offsets that count from the start of the prompt"
        session.check_rule(ECHO, reply, is_correct, observed={"text_offset": offsets[:8]}, expected=expected)


def _starts_with(text: str, beginning: str) -> bool:
    """Whether the text begins with `beginning`, ignoring spaces that a tokenizer adds before it."""
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
    """Whether the number of choices can be checked. A server without `n` answers once for each prompt."""
    return bool(reply.choices) and (n == 1 or len(reply.choices) != len(BATCH_PROMPTS))


async def _send_batch(session: Session, **members: Any) -> ProbeReply:  # noqa: ANN401 - JSON
    return await session.complete(list(BATCH_PROMPTS), max_tokens=_COMPLETION_TOKENS, **members)


def _check_indices(session: Session, reply: ProbeReply, count: int) -> None:
    indices = [choice.index for choice in reply.choices]
    expected = f"{', '.join(map(str, range(count)))}: one for each answer"
    session.check_rule(
        BATCH_INDEX, reply, indices == list(range(count)), observed={"indices": indices}, expected=expected
    )


def _check_prompt_order(session: Session, reply: ProbeReply, n: int) -> None:
    """With echo, the index of an answer must be that of the prompt that it begins with."""
    for choice in reply.choices:
        owner = next((number for number, prompt in enumerate(BATCH_PROMPTS) if _starts_with(choice.text, prompt)), None)
        if owner is not None:
            observed = {"index": choice.index, "text": choice.text}
            expected = f"index {owner * n} to {owner * n + n - 1} for {BATCH_PROMPTS[owner]!r}"
            session.check_rule(BATCH_INDEX, reply, choice.index // n == owner, observed=observed, expected=expected)


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
        raise NotApplicableError(NOT_REPRODUCIBLE)
    counts = plain.usage_count("prompt_tokens"), reply.usage_count("prompt_tokens")
    if reply.text == plain.text and None in counts:
        # The same text may be correct. Only the prompt tokens show whether the suffix was read.
        raise NotApplicableError("the same text as without suffix, and no usage that counts the suffix")
    has_effect = reply.text != plain.text or len({*counts}) > 1
    session.check_rule(
        SUFFIX, reply, has_effect, observed="the same text as without suffix", expected="another text, or status 400"
    )


async def _send_suffix(session: Session, **members: Any) -> ProbeReply:  # noqa: ANN401 - JSON
    return await session.complete("def add(a, b):\n    return", stream=False, max_tokens=8, **members)


COMPLETION_PROBES = (
    Probe(name="completions", description="a completion, streamed", run=_probe_completion),
    Probe(name="completions-whole", description="a completion, not streamed", run=_probe_completion_buffered),
    Probe(name="completions-logprobs", description="a completion with logprobs", run=_probe_completion_logprobs),
    Probe(
        name="completions-echo", description="a completion that begins with its prompt", run=_probe_echo, rules=(ECHO,)
    ),
    Probe(
        name="completions-list", description="completions of several prompts", run=_probe_batch, rules=(BATCH_INDEX,)
    ),
    Probe(
        name="completions-suffix",
        description="a completion with a suffix",
        run=_probe_suffix,
        rules=(SUFFIX,),
        is_exclusive=True,
    ),
)


# ---- /v1/messages


MSG_MAX_TOKENS = "msg-max-tokens"
MSG_COUNT_TOKENS = "msg-count-tokens"

_MESSAGES_TOKENS = 16
_STOP_SEQUENCE_TOKENS = 24


async def _probe_content_blocks(session: Session) -> None:
    conversation: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "My name is Ann."}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Hello, Ann."}]},
        {"role": "user", "content": "What is my name?"},
    ]
    system = [{"type": "text", "text": "Be brief."}]
    session.require_ok(
        await session.generate(conversation, max_tokens=_MESSAGES_TOKENS, system=system, metadata={"user_id": "check"})
    )


async def _probe_stop_sequences(session: Session) -> None:
    """Request an answer again with a stop sequence taken from it. The general rules judge the replies."""
    baseline = session.require_ok(await session.generate(settings.COUNT_PROMPT, max_tokens=_STOP_SEQUENCE_TOKENS)).text
    stop = baseline[len(baseline) // 2 :][:3]
    if not stop.strip():
        raise NotApplicableError("the answer is too short to take a stop sequence from it")
    for stream in (True, False):
        stops = [UNMATCHED_STOP, stop]
        reply = session.require_ok(
            await session.generate(
                settings.COUNT_PROMPT, stream=stream, max_tokens=_STOP_SEQUENCE_TOKENS, stop_sequences=stops
            )
        )
        if stop in reply.text:
            raise NotApplicableError("the server does not stop at stop_sequences")


async def _probe_count_tokens(session: Session) -> None:
    (_, short), (reply, longer) = [
        await _count_tokens(session, text) for text in (settings.HELLO_PROMPT, settings.COUNT_PROMPT)
    ]
    is_correct = short is not None and longer is not None and 0 < short < longer
    session.check_rule(
        MSG_COUNT_TOKENS,
        reply,
        is_correct,
        observed={"input_tokens": [short, longer]} if reply.is_ok else reply.error_summary,
        expected='{"input_tokens":n}, and more for a longer text',
    )


async def _count_tokens(session: Session, content: str) -> tuple[ProbeReply, int | None]:
    body = msgspec.json.encode({"model": session.facts.model, **session.dialect.prompt_members(content)})
    request = ProbeRequest(method="POST", path="/messages/count_tokens", body=body, endpoint=session.dialect.name)
    reply = await session.send(request, is_judged=False)
    if not is_refused(reply):  # a refusal breaks the rule; other errors do not
        session.require_ok(reply)
    count = reply.json.get("input_tokens")
    return reply, count if reply.is_ok and is_int(count) else None


MESSAGES_PROBES = (
    Probe(name="blocks", description="a system prompt and a conversation in content blocks", run=_probe_content_blocks),
    Probe(
        name="stops",
        description="an answer that ends at one of the stop_sequences",
        run=_probe_stop_sequences,
        is_exclusive=True,
    ),
    Probe(
        name="count-tokens",
        description="/v1/messages/count_tokens",
        run=_probe_count_tokens,
        rules=(MSG_COUNT_TOKENS,),
    ),
)


# ---- /v1/responses


RESP_INCOMPLETE = "resp-incomplete"

_RESPONSES_TOKENS = 16
_TEXT_FORMAT = {"type": "json_schema", **text.CAT_SCHEMA}


async def _probe_items(session: Session) -> None:
    conversation: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "input_text", "text": "My name is Ann."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello, Ann."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What is my name?"}]},
    ]
    session.require_ok(
        await session.generate(
            conversation, max_tokens=_RESPONSES_TOKENS, instructions="Be brief.", metadata={"probe": "items"}
        )
    )


async def _probe_text_format(session: Session, *, stream: bool) -> None:
    reply = await session.generate(
        text.SCHEMA_PROMPT, stream=stream, max_tokens=text.SCHEMA_TOKENS, text={"format": _TEXT_FORMAT}
    )
    text.require_json(session.require_ok(reply), "completed", "json_schema")


async def _probe_responses_logprobs(session: Session) -> None:
    include = ["message.output_text.logprobs"]
    session.require_ok(
        await session.generate(settings.HELLO_PROMPT, max_tokens=_RESPONSES_TOKENS, include=include, top_logprobs=2)
    )


RESPONSES_PROBES = (
    Probe(name="items", description="instructions and a conversation as items", run=_probe_items),
    Probe(
        name="schema",
        description="an answer with a JSON schema, streamed",
        run=partial(_probe_text_format, stream=True),
    ),
    Probe(
        name="schema-whole",
        description="an answer with a JSON schema, not streamed",
        run=partial(_probe_text_format, stream=False),
    ),
    Probe(name="logprobs", description="an answer with logprobs", run=_probe_responses_logprobs),
)
