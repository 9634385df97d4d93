"""Real clients of the Responses, Messages and Gemini APIs, with their names for finish reasons and errors."""

from dataclasses import dataclass

import pytest

from tests.clients.client import Program

OPENAI_PYTHON = Program(name="openai-python-responses", home="clients", file="openai_responses")
OPENAI_NODE = Program(name="openai-node-responses", home="node", file="talk_responses.mjs")
AGENTS = Program(name="openai-agents", home="clients", file="openai_agents")
ANTHROPIC_PYTHON = Program(name="anthropic-python", home="clients", file="anthropic_sdk")
ANTHROPIC_NODE = Program(name="anthropic-node", home="node", file="talk_anthropic.mjs")
GOOGLE_PYTHON = Program(name="google-python", home="clients", file="google_genai")
GOOGLE_NODE = Program(name="google-node", home="node", file="talk_google.mjs")
AI_SDK = Program(name="ai-sdk-dialects", home="node", file="talk_ai_dialects.mjs")

ALL_MODES = ("whole", "stream", "helper")
TWO_MODES = ("whole", "stream")


@dataclass(frozen=True, kw_only=True)
class ApiClient:
    """Client of one API, with its names for finish reasons and errors."""

    name: str
    program: Program
    endpoint: str
    modes: tuple[str, ...]
    finish_reasons: tuple[str | None, str | None]
    """Of a complete answer, and of one that reached its limit; None if the client does not report it."""
    errors: tuple[str, str | None]
    """For an unknown model and for a temperature above the maximum; None if the client clamps it."""
    shows_thoughts: bool = True


_STATUS = ("completed", "incomplete")
_REASON = ("end_turn", "max_tokens")
_ERRORS = ("NotFoundError", "BadRequestError")
_AI_ERRORS = ("AI_APICallError", "AI_APICallError")
API_CLIENTS = (
    ApiClient(
        name="openai-python",
        program=OPENAI_PYTHON,
        endpoint="responses",
        modes=(*ALL_MODES, "socket"),
        finish_reasons=_STATUS,
        errors=_ERRORS,
    ),
    ApiClient(
        name="openai-node",
        program=OPENAI_NODE,
        endpoint="responses",
        modes=(*ALL_MODES, "socket"),
        finish_reasons=_STATUS,
        errors=_ERRORS,
    ),
    ApiClient(
        name="openai-agents",
        program=AGENTS,
        endpoint="responses",
        modes=TWO_MODES,
        finish_reasons=(None, None),
        errors=_ERRORS,
        shows_thoughts=False,
    ),
    # Reads summaries of reasoning only.
    ApiClient(
        name="ai-sdk-openai",
        program=AI_SDK,
        endpoint="responses",
        modes=TWO_MODES,
        finish_reasons=("stop", "length"),
        errors=_AI_ERRORS,
        shows_thoughts=False,
    ),
    ApiClient(
        name="anthropic-python",
        program=ANTHROPIC_PYTHON,
        endpoint="messages",
        modes=ALL_MODES,
        finish_reasons=_REASON,
        errors=_ERRORS,
    ),
    ApiClient(
        name="anthropic-node",
        program=ANTHROPIC_NODE,
        endpoint="messages",
        modes=ALL_MODES,
        finish_reasons=_REASON,
        errors=_ERRORS,
    ),
    ApiClient(
        name="ai-sdk-anthropic",
        program=AI_SDK,
        endpoint="messages",
        modes=TWO_MODES,
        finish_reasons=("stop", "length"),
        errors=("AI_APICallError", None),
    ),
    ApiClient(
        name="google-python",
        program=GOOGLE_PYTHON,
        endpoint="gemini",
        modes=ALL_MODES,
        finish_reasons=("STOP", "MAX_TOKENS"),
        errors=("ClientError", "ClientError"),
    ),
    ApiClient(
        name="google-node",
        program=GOOGLE_NODE,
        endpoint="gemini",
        modes=ALL_MODES,
        finish_reasons=("STOP", "MAX_TOKENS"),
        errors=("ApiError", "ApiError"),
    ),
)


def each_mode(*, streamed: bool = False) -> pytest.MarkDecorator:
    """Parametrise over all clients and their modes, or only the streaming modes."""
    cases = [
        pytest.param(client, mode, id=f"{client.name}-{mode}")
        for client in API_CLIENTS
        for mode in client.modes
        if mode != "whole" or not streamed
    ]
    return pytest.mark.parametrize(("client", "mode"), cases)


EACH_CLIENT = pytest.mark.parametrize("client", API_CLIENTS, ids=lambda client: client.name)
EACH_MODE = each_mode()
EACH_STREAM = each_mode(streamed=True)
