"""LangChain's standard tests of chat models, for a server of ours. pytest runs it in `.venv-langchain`.

The environment has the address of the server (`SERVER_URL`), its key, two names of a model, and whether the model is
`SMALL`: the words of such a model decide the tests in `DECIDED_BY_WORDS`.
"""

import os
from typing import Any

import openai
import pytest
from langchain_anthropic import ChatAnthropic  # type: ignore[import-not-found]  # not in this venv
from langchain_openai import ChatOpenAI  # type: ignore[import-not-found]  # not in this venv
from langchain_tests.integration_tests import (  # type: ignore[import-not-found]  # not in this venv
    ChatModelIntegrationTests,
)

URL, KEY, MODEL, OTHER = (os.environ[name] for name in ("SERVER_URL", "SERVER_KEY", "MODEL", "OTHER_MODEL"))
IS_SMALL = os.environ.get("SMALL") == "1"

_NEVER_ENDS = "a small model may repeat itself in a text of the JSON until the token limit"
_NO_CALL = "the tool is not forced, and a small model answers with text"
_OTHER_KEYS = "JSON mode has no schema, and a small model chooses other keys"
DECIDED_BY_WORDS = {
    "test_tool_calling": _NEVER_ENDS,
    "test_tool_calling_async": _NEVER_ENDS,
    "test_tool_choice": _NEVER_ENDS,
    "test_tool_calling_with_no_arguments": _NEVER_ENDS,
    "test_bind_runnables_as_tools": _NEVER_ENDS,
    "test_structured_output": _NEVER_ENDS,
    "test_structured_output_async": _NEVER_ENDS,
    "test_structured_output_pydantic_2_v1": _NEVER_ENDS,
    "test_structured_output_optional_param": _NEVER_ENDS,
    "test_unicode_tool_call_integration": _NEVER_ENDS,
    "test_json_mode": _OTHER_KEYS,
    "test_agent_loop": _NO_CALL,
}
"""Tests that a small model may fail, with the reason. Any model that calls tools passes them."""
WRONG_WORDS = (AssertionError, TypeError, ValueError, openai.LengthFinishReasonError)
"""How such a test fails. An error of the server or of its connection is none of them."""


class StandardTests(ChatModelIntegrationTests):  # type: ignore[misc]  # its type is unknown here
    """What the three clients have in common."""

    model_override_value = OTHER

    @pytest.fixture(autouse=True)
    def expect_words(self, request: pytest.FixtureRequest) -> None:
        """Allow a small model to fail a test that its words decide."""
        reason = DECIDED_BY_WORDS.get(request.function.__name__)
        if IS_SMALL and reason is not None:
            request.applymarker(pytest.mark.xfail(reason=reason, raises=WRONG_WORDS, strict=False))

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": MODEL, "base_url": URL, "api_key": KEY, "temperature": 0, "timeout": 300, "max_retries": 0}

    @property
    def standard_chat_model_params(self) -> dict[str, Any]:
        return {"max_tokens": 32}


class TestChat(StandardTests):
    """ChatOpenAI on `/v1/chat/completions`."""

    chat_model_class = ChatOpenAI
    supports_json_mode = True

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return super().chat_model_params | {"stream_usage": True}  # its default only for OpenAI's own address


class TestResponses(TestChat):
    """ChatOpenAI on `/v1/responses`."""

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return super().chat_model_params | {"use_responses_api": True}


class TestMessages(StandardTests):
    """ChatAnthropic on `/v1/messages`."""

    chat_model_class = ChatAnthropic
    supports_anthropic_inputs = True

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return super().chat_model_params | {"base_url": URL.removesuffix("/v1")}
