"""Probes of /v1/messages: what only this dialect says in its own way."""

from typing import Any

import msgspec

from welldone.check import prompts
from welldone.check.probe import Probe
from welldone.check.reply import Asked
from welldone.check.session import NotHeardError, Session
from welldone.rules.choices import is_int

MAX_TOKENS = "msg-max-tokens"
COUNT_TOKENS = "msg-count-tokens"

_FEW = 16  # tokens
_COUNTED = 24
_NEVER = "~ZQ~"
"""No answer has it."""


async def _blocks(session: Session) -> None:
    talk: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "My name is Ann."}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Hello, Ann."}]},
        {"role": "user", "content": "What is my name?"},
    ]
    system = [{"type": "text", "text": "Be brief."}]
    session.answered(await session.ask(talk, max_tokens=_FEW, system=system, metadata={"user_id": "check"}))


async def _stops(session: Session) -> None:
    """The stop string is cut out of what the model says. What came of it is judged as any reply."""
    known = session.answered(await session.ask(prompts.COUNT, max_tokens=_COUNTED)).text
    stop = known[len(known) // 2 :][:3]
    if not stop.strip():
        raise NotHeardError("the answer is too short to cut a stop string out of it")
    for stream in (True, False):
        stops = [_NEVER, stop]
        reply = session.answered(
            await session.ask(prompts.COUNT, stream=stream, max_tokens=_COUNTED, stop_sequences=stops)
        )
        if stop in reply.text:
            raise NotHeardError("the server does not stop at stop_sequences")


async def _count(session: Session) -> None:
    counts = []
    for content in (prompts.HELLO, f"{prompts.HELLO} {prompts.COUNT}"):
        body = msgspec.json.encode({"model": session.facts.model, **session.dialect.said(content)})
        asked = Asked(method="POST", path="/messages/count_tokens", body=body, endpoint=session.dialect.name)
        reply = await session.send(asked, is_judged=False)
        count = reply.json.get("input_tokens") if reply.is_ok else None
        if not is_int(count):
            heard = reply.json if is_refused(reply) or reply.is_ok else session.answered(reply)
            session.hold(COUNT_TOKENS, reply, is_kept=False, heard=heard, wanted='{"input_tokens":n}')
            return
        counts.append(count)
    is_kept = 0 < counts[0] < counts[1]
    wanted = "more tokens for a longer text"
    session.hold(COUNT_TOKENS, reply, is_kept, heard=f"{counts[0]} and {counts[1]} tokens", wanted=wanted)


PROBES = (
    Probe(name="blocks", says="a system prompt, and a talk in content blocks", work=_blocks),
    Probe(name="stops", says="an answer that ends at one of its stop_sequences", work=_stops, is_alone=True),
    Probe(name="count-tokens", says="the tokens of a request, counted beforehand", work=_count, rules=(COUNT_TOKENS,)),
)
