"""Probes of answers that must be JSON. No rule speaks about that, so that only the form of the replies is judged."""

from functools import partial
from typing import Any

from welldone.check.probe import Probe
from welldone.check.session import NotHeardError, Session
from welldone.rules.choices import is_json

_PROMPT = "Describe a cat as JSON, with its colour and its age in years."
_SCHEMA = {
    "type": "json_schema",
    "json_schema": {
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
    },
}
_OBJECT = {"type": "json_object"}
_TOKENS = 32  # enough for this cat. A small model may write blanks for ever


async def _ask(session: Session, *, response_format: dict[str, Any], stream: bool) -> None:
    reply = session.answered(
        await session.chat(_PROMPT, stream=stream, max_tokens=_TOKENS, response_format=response_format)
    )
    if reply.finish == "stop" and not is_json(reply.text, dict):
        kind = response_format["type"]
        raise NotHeardError(f"asked for {kind}, and the answer is no JSON object: the server seems to ignore it")


PROBES = (
    Probe(
        name="schema",
        says="an answer by a JSON schema, streamed",
        work=partial(_ask, response_format=_SCHEMA, stream=True),
    ),
    Probe(
        name="schema-whole",
        says="an answer by a JSON schema, in one piece",
        work=partial(_ask, response_format=_SCHEMA, stream=False),
    ),
    Probe(
        name="schema-object",
        says="an answer that is any JSON object, streamed",
        work=partial(_ask, response_format=_OBJECT, stream=True),
    ),
    Probe(
        name="schema-object-whole",
        says="an answer that is any JSON object, in one piece",
        work=partial(_ask, response_format=_OBJECT, stream=False),
    ),
)
