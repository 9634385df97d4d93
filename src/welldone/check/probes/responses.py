"""Probes of /v1/responses: what only this dialect says in its own way."""

from functools import partial
from typing import Any

from welldone.check import prompts
from welldone.check.probe import Probe
from welldone.check.probes import calls, schema
from welldone.check.probes.calls import Json, Shapes
from welldone.check.reading import ToolCall
from welldone.check.session import Session

INCOMPLETE = "resp-incomplete"

_FEW = 16  # tokens
_FORMAT: Json = {"type": "json_schema", **schema.CAT}


# ---- tools


def _tool(name: str, says: str, parameters: Json) -> Json:
    # Strict schemas, which are the default here, allow no optional members, and these have none.
    closed = {**parameters, "additionalProperties": False}
    return {"type": "function", "name": name, "description": says, "parameters": closed, "strict": True}


def _named(name: str) -> Json:
    return {"type": "function", "name": name}


def _round(asked: str, call: ToolCall, result: str) -> list[Json]:
    made = {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
    return [
        {"role": "user", "content": asked},
        made,
        {"type": "function_call_output", "call_id": call.id, "output": result},
    ]


_TOOLS = Shapes(
    tool=_tool,
    choices={"auto": "auto", "required": "required", "none": "none"},
    named=_named,
    round=_round,
)


# ---- what is said


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
    *calls.probes_of(_TOOLS),
    Probe(name="schema", says="an answer by a JSON schema, streamed", work=partial(_schema, stream=True)),
    Probe(name="schema-whole", says="an answer by a JSON schema, in one piece", work=partial(_schema, stream=False)),
    Probe(name="logprobs", says="an answer with logprobs", work=_logprobs),
)
