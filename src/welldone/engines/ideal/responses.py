"""A request to /v1/responses: what may stand in it, as the chat that it means, and what its answer repeats of it."""

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from welldone.engines.ideal.refusals import RefusedError, invalid
from welldone.engines.ideal.requests import (
    Body,
    Chat,
    Choice,
    Format,
    Function,
    Message,
    Named,
    Part,
    PastCall,
    PastFunction,
    Schema,
    Tool,
)
from welldone.wire.events import Json

_TEXTS = ("input_text", "output_text", "summary_text", "reasoning_text")
_LOGPROBS = "message.output_text.logprobs"
_REPEATED = (
    *("frequency_penalty", "instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "presence_penalty"),
    *("reasoning", "store", "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p"),
)


class Item(msgspec.Struct):
    """One thing that was said or done."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None

    def messages(self, param: str) -> Iterator[Message]:
        """The same in a chat, where thoughts have no place. Raises `RefusedError` for what is missing or no text."""
        if self.type == "message":
            if self.role is None:
                raise _missing(f"{param}.role")
            yield Message(self.role, _text(self.content, f"{param}.content"))
        elif self.type == "function_call":
            if self.call_id is None or self.name is None or self.arguments is None:
                raise invalid(f"Invalid '{param}': a function_call has a call_id, a name and arguments.", param)
            yield Message("assistant", tool_calls=[PastCall(self.call_id, PastFunction(self.name, self.arguments))])
        elif self.type == "function_call_output":
            if self.call_id is None:
                raise _missing(f"{param}.call_id")
            yield Message("tool", _text(self.output, f"{param}.output"), tool_call_id=self.call_id)


def _missing(param: str) -> RefusedError:
    return invalid(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def _text(content: str | list[Part] | None, param: str) -> str:
    if content is None:
        raise _missing(param)
    if isinstance(content, str):
        return content
    for place, part in enumerate(content):
        if part.type not in _TEXTS or part.text is None:
            raise invalid(f"Invalid '{param}[{place}]': this model reads text only.", param)
    return "\n".join(part.text or "" for part in content)


class FlatTool(Function, kw_only=True):
    """A function that may be called."""

    type: Literal["function"]


class FlatChoice(msgspec.Struct):
    """One function that must be called."""

    type: Literal["function"]
    name: str


class TextFormat(msgspec.Struct):
    """What the answer must be."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: Json | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct):
    """`text`."""

    format: TextFormat | None = None


class Reasoning(msgspec.Struct):
    """`reasoning`."""

    effort: str | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class Responses(Body, kw_only=True):
    """A request to /v1/responses. Nothing is stored."""

    input: str | Annotated[list[Item], Meta(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    tools: Annotated[list[FlatTool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | FlatChoice | None = None
    parallel_tool_calls: bool | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    previous_response_id: str | None = None

    @property
    def wants_summary(self) -> bool:
        """Whether thoughts shall come as a summary of them."""
        return self.reasoning is not None and self.reasoning.summary is not None

    @property
    def echo(self) -> Json:
        """What a response repeats of its request."""
        said = ((name, getattr(self, name)) for name in _REPEATED)
        return {name: msgspec.to_builtins(value) for name, value in said if value is not None}

    def check(self) -> None:
        """Raises `RefusedError` for what is not there, and for members that do not go together."""
        if self.previous_response_id is not None:
            raise _not_stored(self.previous_response_id)
        self.chat.check()

    @property
    def chat(self) -> Chat:
        """The same as a chat. Raises `RefusedError` for what cannot be said there."""
        return Chat(
            model=self.model,
            stream=self.stream,
            messages=list(self._messages()),
            max_tokens=self.max_output_tokens,
            tools=[Tool("function", tool) for tool in self.tools or ()],
            tool_choice=self._choice(),
            parallel_tool_calls=self.parallel_tool_calls,
            response_format=self._format(),
            logprobs=_LOGPROBS in (self.include or ()) or None,
            top_logprobs=self.top_logprobs if _LOGPROBS in (self.include or ()) else None,
        )

    def _messages(self) -> Iterator[Message]:
        if self.instructions:
            yield Message("system", self.instructions)
        if isinstance(self.input, str):
            yield Message("user", self.input)
            return
        for place, item in enumerate(self.input):
            yield from item.messages(f"input[{place}]")

    def _choice(self) -> Literal["none", "auto", "required"] | Choice | None:
        choice = self.tool_choice
        return Choice("function", Named(choice.name)) if isinstance(choice, FlatChoice) else choice

    def _format(self) -> Format | None:
        wanted = None if self.text is None else self.text.format
        if wanted is None or wanted.type != "json_schema":
            return None if wanted is None else Format(wanted.type)
        if wanted.name is None or wanted.schema is None:
            raise _missing(f"text.format.{'name' if wanted.name is None else 'schema'}")
        return Format("json_schema", Schema(wanted.name, wanted.schema, wanted.strict))


def _not_stored(name: str) -> RefusedError:
    param = "previous_response_id"
    return invalid(f"Previous response with id '{name[:100]}' not found.", param, "previous_response_not_found")
