"""Probes of /v1/messages: what only this dialect says in its own way."""

from typing import Any

import msgspec

from welldone.check import prompts
from welldone.check.probe import Probe
from welldone.check.probes.refusals import is_refused
from welldone.check.reply import ProbeRequest, ProbeReply
from welldone.check.session import NotApplicableError, Session
from welldone.rules.choices import is_int

MSG_MAX_TOKENS = "msg-max-tokens"
MSG_COUNT_TOKENS = "msg-count-tokens"

_MESSAGES_TOKENS = 16  # tokens
_STOP_SEQUENCE_TOKENS = 24
_UNMATCHED_STOP_SEQUENCE = "~ZQ~"
"""No answer has it."""


async def _probe_content_blocks(session: Session) -> None:
    talk: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "My name is Ann."}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Hello, Ann."}]},
        {"role": "user", "content": "What is my name?"},
    ]
    system = [{"type": "text", "text": "Be brief."}]
    session.require_ok(
        await session.generate(talk, max_tokens=_MESSAGES_TOKENS, system=system, metadata={"user_id": "check"})
    )


async def _probe_stop_sequences(session: Session) -> None:
    """The stop string is cut out of what the model says. What came of it is judged as any reply."""
    known = session.require_ok(await session.generate(prompts.COUNT_PROMPT, max_tokens=_STOP_SEQUENCE_TOKENS)).text
    stop = known[len(known) // 2 :][:3]
    if not stop.strip():
        raise NotApplicableError("the answer is too short to cut a stop string out of it")
    for stream in (True, False):
        stops = [_UNMATCHED_STOP_SEQUENCE, stop]
        reply = session.require_ok(
            await session.generate(
                prompts.COUNT_PROMPT, stream=stream, max_tokens=_STOP_SEQUENCE_TOKENS, stop_sequences=stops
            )
        )
        if stop in reply.text:
            raise NotApplicableError("the server does not stop at stop_sequences")


async def _probe_count_tokens(session: Session) -> None:
    (_, short), (reply, longer) = [
        await _count_tokens(session, text) for text in (prompts.HELLO_PROMPT, prompts.COUNT_PROMPT)
    ]
    is_kept = short is not None and longer is not None and 0 < short < longer
    heard = {"input_tokens": [short, longer]} if reply.is_ok else reply.error_summary
    session.check_rule(
        MSG_COUNT_TOKENS, reply, is_kept, observed=heard, expected='{"input_tokens":n}, and more for a longer text'
    )


async def _count_tokens(session: Session, content: str) -> tuple[ProbeReply, int | None]:
    body = msgspec.json.encode({"model": session.facts.model, **session.dialect.prompt_members(content)})
    asked = ProbeRequest(method="POST", path="/messages/count_tokens", body=body, endpoint=session.dialect.name)
    reply = await session.send(asked, is_judged=False)
    if not is_refused(reply):  # to have no such path is to break the rule
        session.require_ok(reply)
    count = reply.json.get("input_tokens")
    return reply, count if reply.is_ok and is_int(count) else None


MESSAGES_PROBES = (
    Probe(name="blocks", description="a system prompt, and a talk in content blocks", run=_probe_content_blocks),
    Probe(
        name="stops",
        description="an answer that ends at one of its stop_sequences",
        run=_probe_stop_sequences,
        is_exclusive=True,
    ),
    Probe(
        name="count-tokens",
        description="the tokens of a request, counted beforehand",
        run=_probe_count_tokens,
        rules=(MSG_COUNT_TOKENS,),
    ),
)
