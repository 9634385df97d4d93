"""Requests to the reference server, with the schemas and the translators of the product.

A request of another dialect becomes a chat. Unknown fields are ignored, and more is allowed than for local models: as
many choices as OpenAI allows, and custom tools.
"""

from collections.abc import Mapping
from itertools import takewhile
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from welldone.core.events import Json
from welldone.core.request_facts import CHAT_CHOICES_LIMIT
from welldone.engines.capabilities import ModelCapabilities
from welldone.gateway.errors import ApiError, invalid_request
from welldone.schemas import messages
from welldone.schemas.chat import ChatRequest, CompletionRequest, GenerationBody, JsonSchemaFormat, ToolChoiceMode
from welldone.schemas.messages import TOOLS_LIMIT, Function, NamedFunction
from welldone.server.requests import fields, sampling

_ChoiceCount: TypeAlias = Annotated[int, Meta(ge=1, le=CHAT_CHOICES_LIMIT)]
_TokenLimit: TypeAlias = Annotated[int, Meta(ge=1)]
_CAPABILITIES = ModelCapabilities(kind="command")


def stop_strings(request: GenerationBody) -> list[str]:
    """Return `stop` as a list."""
    return [request.stop] if isinstance(request.stop, str) else request.stop or []


def includes_usage(request: GenerationBody) -> bool:
    """Whether a stream ends with a usage chunk."""
    return request.stream_options is not None and request.stream_options.include_usage is True


def message_text(message: messages.Message) -> str:
    """Return the text of a message."""
    if isinstance(message.content, list):
        text_parts = [content_part for content_part in message.content if isinstance(content_part, messages.TextPart)]
        return "\n".join(text_part.text for text_part in text_parts)
    return message.content if isinstance(message.content, str) else ""


def _check_content(message: messages.Message, param: str) -> None:
    """Raise `ApiError` for content that is missing or not text."""
    if isinstance(message.content, list):
        for index, content_part in enumerate(message.content):
            if not isinstance(content_part, messages.TextPart):
                raise fields.invalid(f"{param}[{index}]", "this model supports text only.")
    elif (
        isinstance(message, messages.AssistantMessage)
        and not isinstance(message.content, str)
        and not (message.tool_calls or message.refusal)
    ):
        raise fields.missing(param)


class MockCustomTool(Function):
    """Definition of a custom tool, whose input is free text."""


class MockTool(msgspec.Struct):
    """A tool. Types other than `function` and `custom` are ignored."""

    type: str
    function: Function | None = None
    custom: MockCustomTool | None = None

    @property
    def definition(self) -> Function | None:
        """The definition of the function or custom tool."""
        return {"function": self.function, "custom": self.custom}.get(self.type)


class MockToolChoice(msgspec.Struct):
    """`tool_choice` that names a tool."""

    type: Literal["function", "custom"]
    function: NamedFunction | None = None
    custom: NamedFunction | None = None

    @property
    def name(self) -> str:
        """The name of the tool; empty if it is missing."""
        tool = self.custom if self.type == "custom" else self.function
        return "" if tool is None else tool.name


class MockChatRequest(ChatRequest, kw_only=True):
    """A request to /v1/chat/completions."""

    n: _ChoiceCount | None = None
    max_tokens: _TokenLimit | None = None
    max_completion_tokens: _TokenLimit | None = None
    tools: Annotated[list[MockTool], Meta(max_length=TOOLS_LIMIT)] | None = None  # type: ignore[assignment]
    tool_choice: ToolChoiceMode | MockToolChoice | None = None

    @property
    def token_limit(self) -> int | None:
        """The token limit of the answer."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def callable_functions(self) -> list[Function]:
        """The definitions of all usable tools."""
        return [tool.definition for tool in self.tools or () if tool.definition is not None]

    @property
    def prompt(self) -> str:
        """The text of the last user message."""
        texts = [message_text(item) for item in self.messages if isinstance(item, messages.UserMessage)]
        return texts[-1] if texts else ""

    @property
    def tool_results(self) -> list[str]:
        """The tool results at the end of the messages."""
        last = takewhile(lambda message: isinstance(message, messages.ToolMessage), reversed(self.messages))
        return [message_text(message) for message in last][::-1]

    def check(self) -> None:
        """Raise `ApiError` for inconsistent fields."""
        for index, message in enumerate(self.messages):
            _check_content(message, f"messages[{index}].content")
        if self.top_logprobs is not None and not self.logprobs:
            raise fields.invalid("top_logprobs", "it is only allowed when 'logprobs' is true.")
        if isinstance(self.response_format, JsonSchemaFormat) and self.response_format.json_schema.name is None:
            raise fields.missing("response_format.json_schema.name")
        for index, tool in enumerate(self.tools or ()):
            if tool.type in ("function", "custom") and tool.definition is None:
                raise fields.missing(f"tools[{index}].{tool.type}")
        names = [function.name for function in self.callable_functions]
        if self.tool_choice == "required" and not names:
            raise fields.invalid("tool_choice", "it is only allowed when 'tools' are specified.")
        if isinstance(self.tool_choice, MockToolChoice) and self.tool_choice.name not in names:
            raise fields.invalid("tool_choice", "there is no tool with this name.")


class MockCompletionRequest(CompletionRequest, kw_only=True):
    """A request to /v1/completions."""

    n: _ChoiceCount | None = None
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    best_of: _ChoiceCount | None = None
    suffix: str | None = None

    @property
    def token_limit(self) -> int:
        """The token limit of an answer; 16 is OpenAI's default."""
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def prompts(self) -> list[str]:
        """All prompts as strings. Without a vocabulary, each token id stands for its number."""
        prompts = sampling.read_prompts(self.prompt, "prompt", CHAT_CHOICES_LIMIT, _CAPABILITIES)
        return [prompt if isinstance(prompt, str) else " ".join(map(str, prompt)) for prompt in prompts]

    def check(self) -> None:
        """Raise `ApiError` for unsupported and inconsistent fields."""
        if self.suffix:
            raise invalid_request("This model does not support 'suffix'.", param="suffix")
        if len(self.prompts) * (self.n or 1) > CHAT_CHOICES_LIMIT:
            raise fields.invalid("prompt", f"a request has at most {CHAT_CHOICES_LIMIT} choices.")
        if self.best_of is not None and self.best_of < (self.n or 1):
            raise fields.invalid("best_of", "it must be at least 'n'.")


def read_chat(body: Json, param_names: Mapping[str, str] | None = None) -> MockChatRequest:
    """Validate a chat request, or one that was translated to a chat. Raises `ApiError`.

    `param_names`: the client's names for its fields.
    """
    try:
        request = sampling.read_generation_request(sampling.with_defaults(body, {}), MockChatRequest)
        request.check()
    except ApiError as error:
        fields.rename_error_param(error, param_names or {})
        raise
    return request


def read_completion(body: Json) -> MockCompletionRequest:
    """Validate a completions request. Raises `ApiError`."""
    request = sampling.read_generation_request(sampling.with_defaults(body, {}), MockCompletionRequest)
    request.check()
    return request
