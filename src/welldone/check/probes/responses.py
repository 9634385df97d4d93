"""Probes of /v1/responses: what only this dialect says in its own way."""

from functools import partial
from typing import Any

from welldone.check import prompts
from welldone.check.probe import Probe
from welldone.check.probes import schema
from welldone.check.session import Session

INCOMPLETE = "resp-incomplete"

_FEW = 16  # tokens
_FORMAT = {"type": "json_schema", **schema.CAT}


async def _items(session: Session) -> None:
    talk: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "input_text", "text": "My name is Ann."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello, Ann."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What is my name?"}]},
    ]
    session.answered(await session.ask(talk, max_tokens=_FEW, instructions="Be brief.", metadata={"probe": "items"}))


async def _schema(session: Session, *, stream: bool) -> None:
    reply = await session.ask(schema.PROMPT, stream=stream, max_tokens=schema.TOKENS, text={"format": _FORMAT})
    schema.want_json(session.answered(reply), "completed", "json_schema")


async def _logprobs(session: Session) -> None:
    include = ["message.output_text.logprobs"]
    session.answered(await session.ask(prompts.HELLO, max_tokens=_FEW, include=include, top_logprobs=2))


PROBES = (
    Probe(name="items", says="instructions, and a talk as items", work=_items),
    Probe(name="schema", says="an answer by a JSON schema, streamed", work=partial(_schema, stream=True)),
    Probe(name="schema-whole", says="an answer by a JSON schema, in one piece", work=partial(_schema, stream=False)),
    Probe(name="logprobs", says="an answer with logprobs", work=_logprobs),
)
