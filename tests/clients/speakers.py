"""Real clients of the Responses and the Messages API, and what each calls the things that happen."""

from dataclasses import dataclass

import pytest

from tests.clients.client import Program

OPENAI_PYTHON = Program(name="openai-python-responses", home="clients", file="openai_responses")
OPENAI_NODE = Program(name="openai-node-responses", home="node", file="talk_responses.mjs")
AGENTS = Program(name="openai-agents", home="clients", file="openai_agents")
ANTHROPIC_PYTHON = Program(name="anthropic-python", home="clients", file="anthropic_sdk")
ANTHROPIC_NODE = Program(name="anthropic-node", home="node", file="talk_anthropic.mjs")
AI_SDK = Program(name="ai-sdk-dialects", home="node", file="talk_ai_dialects.mjs")

ALL_WAYS = ("whole", "stream", "helper")
TWO_WAYS = ("whole", "stream")


@dataclass(frozen=True, kw_only=True)
class Speaker:
    """A client, the API that it speaks, and its words."""

    name: str
    program: Program
    endpoint: str
    ways: tuple[str, ...]
    ends: tuple[str | None, str | None]
    """Of an answer that is whole, and of one that reached its limit; None where it tells nobody."""
    errors: tuple[str, str | None]
    """For a model that is not there, and for a temperature that is too high; None where it lowers that itself."""
    shows_thoughts: bool = True


_STATUS = ("completed", "incomplete")
_REASON = ("end_turn", "max_tokens")
_ERRORS = ("NotFoundError", "BadRequestError")
_AI_ERRORS = ("AI_APICallError", "AI_APICallError")
SPEAKERS = (
    Speaker(
        name="openai-python",
        program=OPENAI_PYTHON,
        endpoint="responses",
        ways=ALL_WAYS,
        ends=_STATUS,
        errors=_ERRORS,
    ),
    Speaker(name="openai-node", program=OPENAI_NODE, endpoint="responses", ways=ALL_WAYS, ends=_STATUS, errors=_ERRORS),
    Speaker(
        name="openai-agents",
        program=AGENTS,
        endpoint="responses",
        ways=TWO_WAYS,
        ends=(None, None),
        errors=_ERRORS,
        shows_thoughts=False,
    ),
    # Of reasoning it reads summaries only.
    Speaker(
        name="ai-sdk-openai",
        program=AI_SDK,
        endpoint="responses",
        ways=TWO_WAYS,
        ends=("stop", "length"),
        errors=_AI_ERRORS,
        shows_thoughts=False,
    ),
    Speaker(
        name="anthropic-python",
        program=ANTHROPIC_PYTHON,
        endpoint="messages",
        ways=ALL_WAYS,
        ends=_REASON,
        errors=_ERRORS,
    ),
    Speaker(
        name="anthropic-node", program=ANTHROPIC_NODE, endpoint="messages", ways=ALL_WAYS, ends=_REASON, errors=_ERRORS
    ),
    Speaker(
        name="ai-sdk-anthropic",
        program=AI_SDK,
        endpoint="messages",
        ways=TWO_WAYS,
        ends=("stop", "length"),
        errors=("AI_APICallError", None),
    ),
)


def each_way(*, streamed: bool = False) -> pytest.MarkDecorator:
    """All clients, each in all its ways, or in those that stream."""
    cases = [
        pytest.param(speaker, way, id=f"{speaker.name}-{way}")
        for speaker in SPEAKERS
        for way in speaker.ways
        if way != "whole" or not streamed
    ]
    return pytest.mark.parametrize(("speaker", "way"), cases)


EACH = pytest.mark.parametrize("speaker", SPEAKERS, ids=lambda speaker: speaker.name)
EACH_WAY = each_way()
EACH_STREAM = each_way(streamed=True)
