"""A request to /v1/messages: what may stand in it, and the chat that it means."""

import json
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from welldone.engines.ideal.refusals import invalid
from welldone.engines.ideal.requests import (
    Body,
    Chat,
    Choice,
    Function,
    Message,
    Named,
    PastCall,
    PastFunction,
    Stop,
    Tool,
)
from welldone.wire.events import Json

_THOUGHTS = ("thinking", "redacted_thinking")


class Block(msgspec.Struct):
    """A block of content."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: Json | None = None
    tool_use_id: str | None = None
    content: "str | list[Block] | None" = None

    def text_of(self, param: str) -> str:
        """Its text. Raises `RefusedError` where it has none."""
        if self.type != "text" or self.text is None:
            raise invalid(f"{param}: this model reads text only.", param)
        return self.text

    def call(self, param: str) -> PastCall:
        """The call that was made. Raises `RefusedError` where something of it is missing."""
        if self.id is None or self.name is None or self.input is None:
            raise invalid(f"{param}: a tool_use block has an id, a name and an input.", param)
        return PastCall(self.id, PastFunction(self.name, json.dumps(self.input)))

    def result(self, param: str) -> Message:
        """What a tool gave. Raises `RefusedError` where it does not say which, or is no text."""
        if self.tool_use_id is None:
            raise invalid(f"{param}.tool_use_id: Field required", param)
        return Message("tool", joined(self.content, param), tool_call_id=self.tool_use_id)


Content = str | Annotated[list[Block], Meta(min_length=1)]


def joined(content: str | list[Block] | None, param: str) -> str:
    """The text of some blocks. Raises `RefusedError` where one of them has none."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(block.text_of(f"{param}.{place}") for place, block in enumerate(content))


class Turn(msgspec.Struct):
    """What one side said."""

    role: Literal["user", "assistant"]
    content: Content

    def messages(self, param: str) -> Iterator[Message]:
        """The same in a chat: the results of tools, then the rest."""
        if isinstance(self.content, str):
            yield Message(self.role, self.content)
            return
        blocks = [(f"{param}.content.{place}", block) for place, block in enumerate(self.content)]
        yield from (block.result(where) for where, block in blocks if block.type == "tool_result")
        calls = [block.call(where) for where, block in blocks if block.type == "tool_use"]
        known = ("tool_result", "tool_use", *_THOUGHTS)
        texts = [block.text_of(where) for where, block in blocks if block.type not in known]
        if texts or calls:
            yield Message(self.role, "\n".join(texts) if texts else None, tool_calls=calls or None)


class OwnTool(msgspec.Struct):
    """A tool. One without a schema is Anthropic's own, and is not used."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
    description: str | None = None
    input_schema: Json | None = None


class ToolChoice(msgspec.Struct):
    """Whether a tool must be called, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct):
    """`thinking`. Whether a model thinks is its own business."""

    type: Literal["enabled", "disabled", "adaptive"]


class Messages(Body, kw_only=True):
    """A request to /v1/messages/count_tokens, and what is common with one that is answered."""

    messages: Annotated[list[Turn], Meta(min_length=1)]
    system: str | list[Block] | None = None
    tools: list[OwnTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    stop_sequences: list[Stop] | None = None
    top_k: int | None = None

    def check(self) -> None:
        """Raises `RefusedError` for members that do not go together."""
        self.chat.check()

    @property
    def chat(self) -> Chat:
        """The same as a chat. Raises `RefusedError` for what cannot be said there."""
        choice = self.tool_choice
        return Chat(
            model=self.model,
            stream=self.stream,
            messages=list(self._messages()),
            max_tokens=self.max_tokens,
            stop=self.stop_sequences,
            tools=[
                Tool("function", Function(tool.name, tool.description, tool.input_schema))
                for tool in self.tools or ()
                if tool.input_schema is not None
            ],
            tool_choice=None if choice is None else _choice(choice),
            parallel_tool_calls=None if choice is None else not choice.disable_parallel_tool_use,
        )

    def _messages(self) -> Iterator[Message]:
        if self.system:
            yield Message("system", joined(self.system, "system"))
        for place, turn in enumerate(self.messages):
            yield from turn.messages(f"messages.{place}")


class Answered(Messages, kw_only=True):
    """A request to /v1/messages."""

    max_tokens: Annotated[int, Meta(ge=1)]


def _choice(choice: ToolChoice) -> Literal["none", "auto", "required"] | Choice:
    match choice.type:
        case "tool":
            return Choice("function", Named(choice.name or ""))
        case "any":
            return "required"
        case word:
            return word
