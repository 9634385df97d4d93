"""Probes of single dialects: the legacy /completions, /v1/messages, /v1/responses and Gemini."""

from functools import partial
from typing import Any

import msgspec

from welldone.check import settings
from welldone.check.probes import text
from welldone.check.probes.errors import is_refused
from welldone.check.probes.limits import UNMATCHED_STOP
from welldone.check.reply import ProbeReply, ProbeRequest
from welldone.check.session import NOT_REPRODUCIBLE, NotApplicableError, Probe, Session, stream_and_whole
from welldone.rules.view.choices import as_list, as_object, is_int

COMPLETION_PROMPT = "The capital of France is"
BATCH_PROMPTS = ("One, two, three,", "Red, green, blue,")
_COMPLETION_TOKENS = 4  # fewer than COMPLETION_PROMPT has words


async def _probe_completion(session: Session, **fields: Any) -> None:  # noqa: ANN401 - JSON
    session.require_ok(await session.complete(COMPLETION_PROMPT, **fields))


# ---- echo


async def _probe_echo(session: Session) -> None:
    request = partial(session.complete, COMPLETION_PROMPT, max_tokens=_COMPLETION_TOKENS, echo=True)
    reply = session.require_ok(await request())
    has_prompt = _starts_with(reply.text, COMPLETION_PROMPT)
    session.check_rule("cmpl-echo", reply, has_prompt, reply.text, f"a text that begins with {COMPLETION_PROMPT!r}")
    if has_prompt:
        _check_offsets(session, await request(stream=False, logprobs=1))


def _check_offsets(session: Session, reply: ProbeReply) -> None:
    """The first text_offset is 0 if the logprobs include the prompt, and not 0 if they cover only the answer."""
    logprobs = as_object(reply.first_choice.logprobs[0]) if reply.is_ok and reply.first_choice.logprobs else {}
    tokens, offsets = as_list(logprobs.get("tokens")), as_list(logprobs.get("text_offset"))
    if tokens and offsets:
        is_correct = (offsets[0] == 0) is (len(tokens) > _COMPLETION_TOKENS)
        expected = "offsets that count from the start of the prompt"
        session.check_rule("cmpl-echo", reply, is_correct, {"text_offset": offsets[:8]}, expected)


def _starts_with(text: str, beginning: str) -> bool:
    """Whether the text begins with `beginning`, ignoring spaces that a tokenizer adds before it."""
    return text.lstrip().startswith(beginning.lstrip())


# ---- several prompts


async def _probe_batch(session: Session) -> None:
    request = partial(session.complete, list(BATCH_PROMPTS), max_tokens=_COMPLETION_TOKENS)
    reply = session.require_ok(await request())
    if not reply.choices:
        raise NotApplicableError("the reply had no choices")
    _check_indices(session, reply, len(BATCH_PROMPTS))
    for n in (1, 2):
        reply = await request(stream=False, n=n, echo=True)
        # A server without `n` answers once for each prompt.
        if reply.is_ok and reply.choices and (n == 1 or len(reply.choices) != len(BATCH_PROMPTS)):
            _check_indices(session, reply, len(BATCH_PROMPTS) * n)
            _check_prompt_order(session, reply, n)


def _check_indices(session: Session, reply: ProbeReply, count: int) -> None:
    indices = [choice.index for choice in reply.choices]
    expected = f"{', '.join(map(str, range(count)))}: one for each answer"
    session.check_rule("cmpl-batch-index", reply, indices == list(range(count)), {"indices": indices}, expected)


def _check_prompt_order(session: Session, reply: ProbeReply, n: int) -> None:
    """With echo, the index of an answer must be that of the prompt that it begins with."""
    for choice in reply.choices:
        owner = next((number for number, prompt in enumerate(BATCH_PROMPTS) if _starts_with(choice.text, prompt)), None)
        if owner is not None:
            observed = {"index": choice.index, "text": choice.text}
            expected = f"index {owner * n} to {owner * n + n - 1} for {BATCH_PROMPTS[owner]!r}"
            session.check_rule("cmpl-batch-index", reply, choice.index // n == owner, observed, expected)


# ---- suffix


async def _probe_suffix(session: Session) -> None:
    request = partial(session.complete, "def add(a, b):\n    return", stream=False, max_tokens=8)
    reply = await request(suffix="\n\nprint('The sum is', add(40, 2))\n")
    plain = session.require_ok(await request())
    if is_refused(reply):
        session.check_rule("cmpl-suffix", reply, passed=True)
        return
    session.require_ok(reply)
    again = session.require_ok(await request())
    if not plain.text:
        raise NotApplicableError("the answer had no text")
    if plain.text != again.text:
        raise NotApplicableError(NOT_REPRODUCIBLE)
    counts = plain.usage_count("prompt_tokens"), reply.usage_count("prompt_tokens")
    if reply.text == plain.text and None in counts:
        # The same text may be correct. Only the prompt tokens show whether the suffix was read.
        raise NotApplicableError("the same text as without suffix, and no usage that counts the suffix")
    has_effect = reply.text != plain.text or len({*counts}) > 1
    observed, expected = "the same text as without suffix", "another text, or status 400"
    session.check_rule("cmpl-suffix", reply, has_effect, observed, expected)


_with_logprobs = partial(_probe_completion, max_tokens=_COMPLETION_TOKENS, logprobs=2)
COMPLETION_PROBES = (
    *stream_and_whole("completions", "a completion", _probe_completion),
    Probe("completions-logprobs", "a completion with logprobs", _with_logprobs),
    Probe("completions-echo", "a completion that begins with its prompt", _probe_echo, ("cmpl-echo",)),
    Probe("completions-list", "completions of several prompts", _probe_batch, ("cmpl-batch-index",)),
    Probe("completions-suffix", "a completion with a suffix", _probe_suffix, ("cmpl-suffix",), is_exclusive=True),
)


# ---- /v1/messages


async def _probe_content_blocks(session: Session) -> None:
    conversation: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "My name is Ann."}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Hello, Ann."}]},
        {"role": "user", "content": "What is my name?"},
    ]
    system = [{"type": "text", "text": "Be brief."}]
    await session.answer(conversation, max_tokens=16, system=system, metadata={"user_id": "check"})


async def _probe_stop_sequences(session: Session, *, field: str = "stop_sequences") -> None:
    """Request an answer again with a stop sequence taken from it. The general rules judge the replies."""
    request = partial(session.answer, settings.COUNT_PROMPT, max_tokens=24)
    baseline = (await request()).text
    stop = baseline[len(baseline) // 2 :][:3]
    if not stop.strip():
        raise NotApplicableError("the answer is too short to take a stop sequence from it")
    for stream in (True, False):
        reply = await request(stream=stream, **{field: [UNMATCHED_STOP, stop]})
        if stop in reply.text:
            raise NotApplicableError(f"the server does not stop at {field}")


async def _probe_count_tokens(session: Session) -> None:
    path = "/messages/count_tokens"
    await _check_counts(session, "msg-count-tokens", path, "input_tokens", {"model": session.facts.model})


async def _check_counts(session: Session, rule: str, path: str, member: str, fields: dict[str, Any]) -> None:
    """Judge the token counts of a short and a longer prompt."""
    _, short = await _count_tokens(session, settings.HELLO_PROMPT, path, member, fields)
    reply, longer = await _count_tokens(session, settings.COUNT_PROMPT, path, member, fields)
    is_correct = short is not None and longer is not None and 0 < short < longer
    observed = {member: [short, longer]} if reply.is_ok else reply.error_summary
    expected = f'{{"{member}":n}}, and more for a longer text'
    session.check_rule(rule, reply, is_correct, observed, expected)


async def _count_tokens(
    session: Session, content: str, path: str, member: str, fields: dict[str, Any]
) -> tuple[ProbeReply, int | None]:
    body = msgspec.json.encode({**fields, **session.dialect.prompt_members(content)})
    request = ProbeRequest(method="POST", path=path, body=body, endpoint=session.dialect.name)
    reply = await session.send(request, is_judged=False)
    if not is_refused(reply):  # a refusal breaks the rule; other errors do not
        session.require_ok(reply)
    count = reply.json.get(member)
    return reply, count if reply.is_ok and is_int(count) else None


MESSAGES_PROBES = (
    Probe("blocks", "a system prompt and a conversation in content blocks", _probe_content_blocks),
    Probe("stops", "an answer that ends at one of the stop_sequences", _probe_stop_sequences, is_exclusive=True),
    Probe("count-tokens", "/v1/messages/count_tokens", _probe_count_tokens, ("msg-count-tokens",)),
)


# ---- /v1/responses


async def _probe_items(session: Session) -> None:
    conversation: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "input_text", "text": "My name is Ann."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello, Ann."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What is my name?"}]},
    ]
    await session.answer(conversation, max_tokens=16, instructions="Be brief.", metadata={"probe": "items"})


async def _probe_responses_logprobs(session: Session) -> None:
    include = ["message.output_text.logprobs"]
    await session.answer(settings.HELLO_PROMPT, max_tokens=16, include=include, top_logprobs=2)


_TEXT_FORMAT = {"format": {"type": "json_schema", **text.CAT_SCHEMA}}
RESPONSES_PROBES = (
    Probe("items", "instructions and a conversation as items", _probe_items),
    *stream_and_whole("schema", text.SCHEMA_DESCRIPTION, partial(text.probe_schema, fields={"text": _TEXT_FORMAT})),
    Probe("logprobs", "an answer with logprobs", _probe_responses_logprobs),
)


# ---- Gemini


async def _probe_array(session: Session, *, prompt: str = settings.HELLO_PROMPT) -> None:
    await session.answer(prompt, alt="json")


async def _probe_contents(session: Session) -> None:
    turns = (("user", "My name is Ann."), ("model", "Hello, Ann."), ("user", "What is my name?"))
    conversation: list[dict[str, Any]] = [{"role": role, "parts": [{"text": text}]} for role, text in turns]
    system = {"parts": [{"text": "Be brief."}]}
    for stream in (True, False):
        await session.answer(conversation, stream=stream, max_tokens=16, systemInstruction=system)


async def _probe_candidates(session: Session) -> None:
    for options in ({"stream": True}, {"stream": True, "alt": "json"}, {"stream": False}):
        reply = await session.answer(settings.HELLO_PROMPT, max_tokens=16, candidateCount=2, **options)
        if len(reply.choices) < 2:
            raise NotApplicableError("the server gives one candidate")


async def _probe_gemini_tokens(session: Session) -> None:
    path, _ = session.dialect.write_request({"model": session.facts.model})
    path = path.replace(":generateContent", ":countTokens")
    await _check_counts(session, "gem-count-tokens", path, "totalTokens", {})


_gemini_stops = partial(_probe_stop_sequences, field="stopSequences")
GEMINI_PROBES = (
    Probe("array", "a short answer, streamed as a JSON array", _probe_array),
    Probe("array-emoji", "emoji as a JSON array", partial(_probe_array, prompt=settings.EMOJI_PROMPT)),
    Probe("contents", "a system instruction and a conversation", _probe_contents),
    Probe("candidates", "several candidates", _probe_candidates),
    Probe("stops", "an answer that ends at one of the stopSequences", _gemini_stops, is_exclusive=True),
    Probe("count-tokens", "countTokens", _probe_gemini_tokens, ("gem-count-tokens",)),
)
