"""Probes of /v1/responses: what only this dialect says in its own way."""

from functools import partial
from typing import Any

from welldone.check import prompts
from welldone.check.probe import Probe
from welldone.check.probes import schema
from welldone.check.session import Session

RESP_INCOMPLETE = "resp-incomplete"

_RESPONSES_TOKENS = 16  # tokens
_TEXT_FORMAT = {"type": "json_schema", **schema.CAT_SCHEMA}


async def _probe_items(session: Session) -> None:
    talk: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "input_text", "text": "My name is Ann."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello, Ann."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What is my name?"}]},
    ]
    session.require_ok(
        await session.generate(
            talk, max_tokens=_RESPONSES_TOKENS, instructions="Be brief.", metadata={"probe": "items"}
        )
    )


async def _probe_text_format(session: Session, *, stream: bool) -> None:
    reply = await session.generate(
        schema.SCHEMA_PROMPT, stream=stream, max_tokens=schema.SCHEMA_TOKENS, text={"format": _TEXT_FORMAT}
    )
    schema.require_json(session.require_ok(reply), "completed", "json_schema")


async def _probe_responses_logprobs(session: Session) -> None:
    include = ["message.output_text.logprobs"]
    session.require_ok(
        await session.generate(prompts.HELLO_PROMPT, max_tokens=_RESPONSES_TOKENS, include=include, top_logprobs=2)
    )


RESPONSES_PROBES = (
    Probe(name="items", description="instructions, and a talk as items", run=_probe_items),
    Probe(
        name="schema", description="an answer by a JSON schema, streamed", run=partial(_probe_text_format, stream=True)
    ),
    Probe(
        name="schema-whole",
        description="an answer by a JSON schema, in one piece",
        run=partial(_probe_text_format, stream=False),
    ),
    Probe(name="logprobs", description="an answer with logprobs", run=_probe_responses_logprobs),
)
