"""Schema of requests to /v1/responses, and their conversion to a chat request."""

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from welldone.mock.reference.schemas import (
    MockApiError,
    MockChatRequest,
    MockContentPart,
    MockFunction,
    MockFunctionCall,
    MockJsonSchema,
    MockMessage,
    MockMessageToolCall,
    MockRequestBody,
    MockResponseFormat,
    MockTool,
    MockToolChoice,
    MockToolName,
    invalid_request,
)
from welldone.protocol.events import Json

_TEXT_TYPES = ("input_text", "output_text", "summary_text", "reasoning_text")
_LOGPROBS_INCLUDE = "message.output_text.logprobs"
_ECHOED_FIELDS = (
    *("frequency_penalty", "instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "presence_penalty"),
    *("reasoning", "store", "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p"),
)


class MockResponsesItem(msgspec.Struct):
    """An input item."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[MockContentPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[MockContentPart] | None = None

    def to_chat_messages(self, param: str) -> Iterator[MockMessage]:
        """Convert the item; reasoning is dropped. Raises `MockApiError` if a field is missing or not text."""
        if self.type == "message":
            if self.role is None:
                raise _missing_parameter(f"{param}.role")
            yield MockMessage(self.role, _joined_text(self.content, f"{param}.content"))
        elif self.type == "function_call":
            if self.call_id is None or self.name is None or self.arguments is None:
                raise invalid_request(
                    f"Invalid '{param}': a function_call needs a call_id, a name and arguments.", param
                )
            yield MockMessage(
                "assistant", tool_calls=[MockMessageToolCall(self.call_id, MockFunctionCall(self.name, self.arguments))]
            )
        elif self.type == "function_call_output":
            if self.call_id is None:
                raise _missing_parameter(f"{param}.call_id")
            yield MockMessage("tool", _joined_text(self.output, f"{param}.output"), tool_call_id=self.call_id)


def _missing_parameter(param: str) -> MockApiError:
    return invalid_request(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")


def _joined_text(content: str | list[MockContentPart] | None, param: str) -> str:
    if content is None:
        raise _missing_parameter(param)
    if isinstance(content, str):
        return content
    for index, part in enumerate(content):
        if part.type not in _TEXT_TYPES or part.text is None:
            raise invalid_request(f"Invalid '{param}[{index}]': this model supports text only.", param)
    return "\n".join(part.text or "" for part in content)


class MockResponsesTool(MockFunction, kw_only=True):
    """A function tool."""

    type: Literal["function"]


class MockResponsesToolChoice(msgspec.Struct):
    """`tool_choice` that names a function."""

    type: Literal["function"]
    name: str


class MockTextFormat(msgspec.Struct):
    """`text.format`."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: Json | None = None
    strict: bool | None = None


class MockTextOptions(msgspec.Struct):
    """`text`."""

    format: MockTextFormat | None = None


class MockReasoningOptions(msgspec.Struct):
    """`reasoning`."""

    effort: str | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class MockResponsesRequest(MockRequestBody, kw_only=True):
    """A request to /v1/responses. The mock stores no responses."""

    input: str | Annotated[list[MockResponsesItem], Meta(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    tools: Annotated[list[MockResponsesTool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | MockResponsesToolChoice | None = None
    parallel_tool_calls: bool | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    text: MockTextOptions | None = None
    reasoning: MockReasoningOptions | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    previous_response_id: str | None = None

    @property
    def includes_summary(self) -> bool:
        """Whether reasoning is sent as a summary."""
        return self.reasoning is not None and self.reasoning.summary is not None

    @property
    def echoed_fields(self) -> Json:
        """The fields of the request that a response repeats."""
        values = ((name, getattr(self, name)) for name in _ECHOED_FIELDS)
        return {name: msgspec.to_builtins(value) for name, value in values if value is not None}

    def check(self) -> None:
        """Raise `MockApiError` for unsupported and inconsistent fields."""
        if self.previous_response_id is not None:
            raise _previous_response_not_found(self.previous_response_id)
        self.as_chat.check()

    @property
    def as_chat(self) -> MockChatRequest:
        """The equivalent chat request. Raises `MockApiError` if there is none."""
        return MockChatRequest(
            model=self.model,
            stream=self.stream,
            messages=list(self._chat_messages()),
            max_tokens=self.max_output_tokens,
            tools=[MockTool("function", tool) for tool in self.tools or ()],
            tool_choice=self._chat_tool_choice(),
            parallel_tool_calls=self.parallel_tool_calls,
            response_format=self._response_format(),
            logprobs=_LOGPROBS_INCLUDE in (self.include or ()) or None,
            top_logprobs=self.top_logprobs if _LOGPROBS_INCLUDE in (self.include or ()) else None,
        )

    def _chat_messages(self) -> Iterator[MockMessage]:
        if self.instructions:
            yield MockMessage("system", self.instructions)
        if isinstance(self.input, str):
            yield MockMessage("user", self.input)
            return
        for index, item in enumerate(self.input):
            yield from item.to_chat_messages(f"input[{index}]")

    def _chat_tool_choice(self) -> Literal["none", "auto", "required"] | MockToolChoice | None:
        choice = self.tool_choice
        return (
            MockToolChoice("function", MockToolName(choice.name))
            if isinstance(choice, MockResponsesToolChoice)
            else choice
        )

    def _response_format(self) -> MockResponseFormat | None:
        text_format = None if self.text is None else self.text.format
        if text_format is None:
            return None
        if text_format.type != "json_schema":
            return MockResponseFormat(text_format.type)
        if text_format.name is None or text_format.schema is None:
            raise _missing_parameter(f"text.format.{'name' if text_format.name is None else 'schema'}")
        schema = MockJsonSchema(text_format.name, text_format.schema, text_format.strict)
        return MockResponseFormat("json_schema", schema)


def _previous_response_not_found(response_id: str) -> MockApiError:
    param = "previous_response_id"
    return invalid_request(
        f"Previous response with id '{response_id[:100]}' not found.", param, "previous_response_not_found"
    )
