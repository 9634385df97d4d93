"""Probes of answers that must be JSON. No rule speaks about that, so that only the form of the replies is judged."""

from functools import partial
from typing import Any

from welldone.check.probe import Probe
from welldone.check.reply import ProbeReply
from welldone.check.session import NotApplicableError, Session
from welldone.rules.choices import is_json

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
