"""Probes of answers that must be JSON. No rule speaks about that, so that only the form of the replies is judged."""

from functools import partial
from typing import Any

from welldone.check.probe import Probe
from welldone.check.reply import Reply
from welldone.check.session import NotHeardError, Session
from welldone.rules.choices import is_json

PROMPT = "Describe a cat as JSON, with its colour and its age in years."
CAT = {
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
_SCHEMA = {"type": "json_schema", "json_schema": CAT}
_OBJECT = {"type": "json_object"}
TOKENS = 32  # enough for this cat. A small model may write blanks for ever


async def _ask(session: Session, *, response_format: dict[str, Any], stream: bool) -> None:
    reply = session.answered(
        await session.ask(PROMPT, stream=stream, max_tokens=TOKENS, response_format=response_format)
    )
    want_json(reply, "stop", response_format["type"])


def want_json(reply: Reply, finish: str, kind: str) -> None:
    """Raises `NotHeardError` where an answer that came to its end is no JSON object."""
    if reply.finish == finish and not is_json(reply.text, dict):
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
