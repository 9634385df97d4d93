"""Probes of /v1/messages: what only this dialect says in its own way."""

from typing import Any

import msgspec

from welldone.check import prompts
from welldone.check.probe import Probe
from welldone.check.probes.refusals import is_refused
from welldone.check.reply import Asked, Reply
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
    (_, short), (reply, longer) = [await _counted(session, text) for text in (prompts.HELLO, prompts.COUNT)]
    is_kept = short is not None and longer is not None and 0 < short < longer
    heard = {"input_tokens": [short, longer]} if reply.is_ok else reply.complaint
    session.hold(COUNT_TOKENS, reply, is_kept, heard=heard, wanted='{"input_tokens":n}, and more for a longer text')


async def _counted(session: Session, content: str) -> tuple[Reply, int | None]:
    body = msgspec.json.encode({"model": session.facts.model, **session.dialect.said(content)})
    asked = Asked(method="POST", path="/messages/count_tokens", body=body, endpoint=session.dialect.name)
    reply = await session.send(asked, is_judged=False)
    if not is_refused(reply):  # to have no such path is to break the rule
        session.answered(reply)
    count = reply.json.get("input_tokens")
    return reply, count if reply.is_ok and is_int(count) else None


PROBES = (
    Probe(name="blocks", says="a system prompt, and a talk in content blocks", work=_blocks),
    Probe(name="stops", says="an answer that ends at one of its stop_sequences", work=_stops, is_alone=True),
    Probe(name="count-tokens", says="the tokens of a request, counted beforehand", work=_count, rules=(COUNT_TOKENS,)),
)
