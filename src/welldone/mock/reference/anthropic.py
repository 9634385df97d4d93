"""Schema of requests to /v1/messages, and their conversion to a chat request."""

import json
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from welldone.mock.reference.schemas import (
    MockChatRequest,
    MockFunction,
    MockFunctionCall,
    MockMessage,
    MockMessageToolCall,
    MockRequestBody,
    MockTool,
    MockToolChoice,
    MockToolName,
    StopString,
    invalid_request,
)
from welldone.protocol.events import Json

_THINKING_TYPES = ("thinking", "redacted_thinking")


class MockAnthropicBlock(msgspec.Struct):
    """A block of content."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: Json | None = None
    tool_use_id: str | None = None
    content: "str | list[MockAnthropicBlock] | None" = None

    def require_text(self, param: str) -> str:
        """Return the text. Raises `MockApiError` if the block is not a text block."""
        if self.type != "text" or self.text is None:
            raise invalid_request(f"{param}: this model supports text only.", param)
        return self.text

    def to_tool_call(self, param: str) -> MockMessageToolCall:
        """Convert a `tool_use` block. Raises `MockApiError` if a field is missing."""
        if self.id is None or self.name is None or self.input is None:
            raise invalid_request(f"{param}: a tool_use block needs an id, a name and an input.", param)
        return MockMessageToolCall(self.id, MockFunctionCall(self.name, json.dumps(self.input)))

    def to_tool_message(self, param: str) -> MockMessage:
        """Convert a `tool_result` block. Raises `MockApiError` if its id is missing or it is not text."""
        if self.tool_use_id is None:
            raise invalid_request(f"{param}.tool_use_id: Field required", param)
        return MockMessage("tool", join_block_texts(self.content, param), tool_call_id=self.tool_use_id)


AnthropicContent = str | Annotated[list[MockAnthropicBlock], Meta(min_length=1)]


def join_block_texts(content: str | list[MockAnthropicBlock] | None, param: str) -> str:
    """Join the texts of blocks. Raises `MockApiError` if one is not a text block."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(block.require_text(f"{param}.{index}") for index, block in enumerate(content))


class MockAnthropicMessage(msgspec.Struct):
    """A message."""

    role: Literal["user", "assistant"]
    content: AnthropicContent

    def to_chat_messages(self, param: str) -> Iterator[MockMessage]:
        """Convert the message: tool results first, then the rest."""
        if isinstance(self.content, str):
            yield MockMessage(self.role, self.content)
            return
        blocks = [(f"{param}.content.{index}", block) for index, block in enumerate(self.content)]
        yield from (block.to_tool_message(path) for path, block in blocks if block.type == "tool_result")
        calls = [block.to_tool_call(path) for path, block in blocks if block.type == "tool_use"]
        other_types = ("tool_result", "tool_use", *_THINKING_TYPES)
        texts = [block.require_text(path) for path, block in blocks if block.type not in other_types]
        if texts or calls:
            yield MockMessage(self.role, "\n".join(texts) if texts else None, tool_calls=calls or None)


class MockAnthropicTool(msgspec.Struct):
    """A tool. Tools without a schema are built into Anthropic's API; the mock ignores them."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
    description: str | None = None
    input_schema: Json | None = None


class MockAnthropicToolChoice(msgspec.Struct):
    """`tool_choice`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class MockThinkingOptions(msgspec.Struct):
    """`thinking`. It has no effect: the model name decides."""

    type: Literal["enabled", "disabled", "adaptive"]


class MockCountTokensRequest(MockRequestBody, kw_only=True):
    """A request to /v1/messages/count_tokens."""

    messages: Annotated[list[MockAnthropicMessage], Meta(min_length=1)]
    system: str | list[MockAnthropicBlock] | None = None
    tools: list[MockAnthropicTool] | None = None
    tool_choice: MockAnthropicToolChoice | None = None
    thinking: MockThinkingOptions | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    stop_sequences: list[StopString] | None = None
    top_k: int | None = None

    def check(self) -> None:
        """Raise `MockApiError` for inconsistent fields."""
        self.as_chat.check()

    @property
    def as_chat(self) -> MockChatRequest:
        """The equivalent chat request. Raises `MockApiError` if there is none."""
        choice = self.tool_choice
        return MockChatRequest(
            model=self.model,
            stream=self.stream,
            messages=list(self._chat_messages()),
            max_tokens=self.max_tokens,
            stop=self.stop_sequences,
            tools=[
                MockTool("function", MockFunction(tool.name, tool.description, tool.input_schema))
                for tool in self.tools or ()
                if tool.input_schema is not None
            ],
            tool_choice=None if choice is None else _chat_tool_choice(choice),
            parallel_tool_calls=None if choice is None else not choice.disable_parallel_tool_use,
        )

    def _chat_messages(self) -> Iterator[MockMessage]:
        if self.system:
            yield MockMessage("system", join_block_texts(self.system, "system"))
        for index, message in enumerate(self.messages):
            yield from message.to_chat_messages(f"messages.{index}")


class MockMessagesRequest(MockCountTokensRequest, kw_only=True):
    """A request to /v1/messages."""

    max_tokens: Annotated[int, Meta(ge=1)]


def _chat_tool_choice(choice: MockAnthropicToolChoice) -> Literal["none", "auto", "required"] | MockToolChoice:
    match choice.type:
        case "tool":
            return MockToolChoice("function", MockToolName(choice.name or ""))
        case "any":
            return "required"
        case word:
            return word
