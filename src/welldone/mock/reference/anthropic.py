"""A request to /v1/messages: what may stand in it, and the chat that it means."""

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
        """Its text. Raises `RefusedError` where it has none."""
        if self.type != "text" or self.text is None:
            raise invalid_request(f"{param}: this model reads text only.", param)
        return self.text

    def to_tool_call(self, param: str) -> MockMessageToolCall:
        """The call that was made. Raises `RefusedError` where something of it is missing."""
        if self.id is None or self.name is None or self.input is None:
            raise invalid_request(f"{param}: a tool_use block has an id, a name and an input.", param)
        return MockMessageToolCall(self.id, MockFunctionCall(self.name, json.dumps(self.input)))

    def to_tool_message(self, param: str) -> MockMessage:
        """What a tool gave. Raises `RefusedError` where it does not say which, or is no text."""
        if self.tool_use_id is None:
            raise invalid_request(f"{param}.tool_use_id: Field required", param)
        return MockMessage("tool", join_block_texts(self.content, param), tool_call_id=self.tool_use_id)


AnthropicContent = str | Annotated[list[MockAnthropicBlock], Meta(min_length=1)]


def join_block_texts(content: str | list[MockAnthropicBlock] | None, param: str) -> str:
    """The text of some blocks. Raises `RefusedError` where one of them has none."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(block.require_text(f"{param}.{place}") for place, block in enumerate(content))


class MockAnthropicMessage(msgspec.Struct):
    """What one side said."""

    role: Literal["user", "assistant"]
    content: AnthropicContent

    def to_chat_messages(self, param: str) -> Iterator[MockMessage]:
        """The same in a chat: the results of tools, then the rest."""
        if isinstance(self.content, str):
            yield MockMessage(self.role, self.content)
            return
        blocks = [(f"{param}.content.{place}", block) for place, block in enumerate(self.content)]
        yield from (block.to_tool_message(where) for where, block in blocks if block.type == "tool_result")
        calls = [block.to_tool_call(where) for where, block in blocks if block.type == "tool_use"]
        known = ("tool_result", "tool_use", *_THINKING_TYPES)
        texts = [block.require_text(where) for where, block in blocks if block.type not in known]
        if texts or calls:
            yield MockMessage(self.role, "\n".join(texts) if texts else None, tool_calls=calls or None)


class MockAnthropicTool(msgspec.Struct):
    """A tool. One without a schema is Anthropic's own, and is not used."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
    description: str | None = None
    input_schema: Json | None = None


class MockAnthropicToolChoice(msgspec.Struct):
    """Whether a tool must be called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class MockThinkingOptions(msgspec.Struct):
    """`thinking`. Whether a model thinks is its own business."""

    type: Literal["enabled", "disabled", "adaptive"]


class MockCountTokensRequest(MockRequestBody, kw_only=True):
    """A request to /v1/messages/count_tokens, and what is common with one that is answered."""

    messages: Annotated[list[MockAnthropicMessage], Meta(min_length=1)]
    system: str | list[MockAnthropicBlock] | None = None
    tools: list[MockAnthropicTool] | None = None
    tool_choice: MockAnthropicToolChoice | None = None
    thinking: MockThinkingOptions | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    stop_sequences: list[StopString] | None = None
    top_k: int | None = None

    def check(self) -> None:
        """Raises `RefusedError` for members that do not go together."""
        self.as_chat.check()

    @property
    def as_chat(self) -> MockChatRequest:
        """The same as a chat. Raises `RefusedError` for what cannot be said there."""
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
        for place, turn in enumerate(self.messages):
            yield from turn.to_chat_messages(f"messages.{place}")


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
