"""Request schemas and errors of the reference server. Types and ranges are OpenAI's; unknown fields are ignored."""

from itertools import takewhile
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from welldone.mock.script import MockReply, json_reply
from welldone.protocol.dialects.anthropic import objects as messages
from welldone.protocol.dialects.chat import openai_error_object
from welldone.protocol.events import Failure, Json
from welldone.protocol.request_facts import CHAT_CHOICES_LIMIT
from welldone.schemas.chat import StreamOptions
from welldone.schemas.errors import FieldError, convert

Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
ShortName: TypeAlias = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
StopString: TypeAlias = Annotated[str, Meta(min_length=1)]


class MockApiError(Exception):
    """An API error that is sent to the client."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        error_type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.error_type = error_type
        self.param = param
        self.code = code
        self.headers = headers or {}


def invalid_request(message: str, param: str | None = None, code: str | None = None) -> MockApiError:
    """Return a 400 error."""
    return MockApiError(400, message, param=param, code=code)


def not_found(message: str, param: str | None = None, code: str | None = None) -> MockApiError:
    """Return a 404 error."""
    return MockApiError(404, message, param=param, code=code)


def render_error(error: MockApiError, *, is_anthropic: bool = False) -> MockReply:
    """Return the reply for an error in OpenAI's or Anthropic's format."""
    body = openai_error_object(Failure(error.message, error.error_type, error.param, error.code))
    if is_anthropic:
        body = messages.anthropic_error_object(Failure(error.message, messages.error_type_for_status(error.status)))
    reply = json_reply(body, error.status)
    return msgspec.structs.replace(reply, headers=reply.headers | error.headers)


class MockRequestBody(msgspec.Struct, kw_only=True):
    """Common fields of all generation requests."""

    model: str | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None

    def check(self) -> None:
        """Raise `MockApiError` for inconsistent fields."""


class MockGenerationRequest(MockRequestBody, kw_only=True):
    """Common fields of chat and completions."""

    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=CHAT_CHOICES_LIMIT)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=4)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    seed: int | None = None
    user: str | None = None

    @property
    def stop_strings(self) -> list[str]:
        """`stop` as a list."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage is True

    def check(self) -> None:
        """Raise `MockApiError` for inconsistent fields."""
        if self.stream_options is not None and not self.stream:
            raise invalid_request("'stream_options' is only allowed when 'stream' is true.", "stream_options")


class MockContentPart(msgspec.Struct):
    """A content part of a message."""

    type: str
    text: str | None = None


class MockFunctionCall(msgspec.Struct):
    """The function of a tool call."""

    name: str
    arguments: str


class MockCustomCall(msgspec.Struct):
    """The custom tool of a tool call."""

    name: str
    input: str


class MockMessageToolCall(msgspec.Struct):
    """A tool call in an assistant message."""

    id: str
    function: MockFunctionCall | None = None
    type: Literal["function", "custom"] = "function"
    custom: MockCustomCall | None = None


class MockMessage(msgspec.Struct):
    """A chat message."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[MockContentPart], Meta(min_length=1)] | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[MockMessageToolCall] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """The text of the content."""
        if isinstance(self.content, list):
            return "\n".join(part.text or "" for part in self.content)
        return self.content or ""

    def check(self, param: str) -> None:
        """Raise `MockApiError` for content that is not text, and for missing fields."""
        may_be_empty = self.role == "assistant" and (self.tool_calls or self.refusal is not None)
        if self.content is None and not may_be_empty:
            raise invalid_request(f"Missing required parameter: '{param}.content'.", f"{param}.content")
        if self.role == "tool" and self.tool_call_id is None:
            raise invalid_request(f"Missing required parameter: '{param}.tool_call_id'.", f"{param}.tool_call_id")
        for index, part in enumerate(self.content if isinstance(self.content, list) else ()):
            if part.type != "text" or part.text is None:
                raise invalid_request(
                    f"Invalid '{param}.content[{index}]': this model supports text only.", f"{param}.content"
                )


class MockFunction(msgspec.Struct):
    """Definition of a function tool."""

    name: ShortName
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None


class MockCustomTool(MockFunction):
    """Definition of a custom tool, whose input is free text."""


class MockTool(msgspec.Struct):
    """A tool. Types other than `function` and `custom` are ignored."""

    type: str
    function: MockFunction | None = None
    custom: MockCustomTool | None = None

    @property
    def definition(self) -> MockFunction | None:
        """The definition of the function or custom tool."""
        return {"function": self.function, "custom": self.custom}.get(self.type)


class MockToolName(msgspec.Struct):
    """The name of a tool in `tool_choice`."""

    name: str


class MockToolChoice(msgspec.Struct):
    """`tool_choice` that names a tool."""

    type: Literal["function", "custom"]
    function: MockToolName | None = None
    custom: MockToolName | None = None

    @property
    def name(self) -> str:
        """The name of the tool; empty if it is missing."""
        tool = self.custom if self.type == "custom" else self.function
        return "" if tool is None else tool.name


class MockJsonSchema(msgspec.Struct):
    """`response_format.json_schema`."""

    name: ShortName
    schema: Json | None = None
    strict: bool | None = None


class MockResponseFormat(msgspec.Struct):
    """`response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: MockJsonSchema | None = None


class MockChatRequest(MockGenerationRequest, kw_only=True):
    """A request to /v1/chat/completions."""

    messages: Annotated[list[MockMessage], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[MockTool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | MockToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: MockResponseFormat | None = None

    @property
    def token_limit(self) -> int | None:
        """The token limit of the answer."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def callable_functions(self) -> list[MockFunction]:
        """The definitions of all usable tools."""
        return [tool.definition for tool in self.tools or () if tool.definition is not None]

    @property
    def prompt(self) -> str:
        """The text of the last user message."""
        return next((message.text for message in reversed(self.messages) if message.role == "user"), "")

    @property
    def tool_results(self) -> list[str]:
        """The tool results at the end of the messages."""
        last = takewhile(lambda message: message.role == "tool", reversed(self.messages))
        return [message.text for message in last][::-1]

    def check(self) -> None:
        """Raise `MockApiError` for inconsistent fields."""
        super().check()
        for index, message in enumerate(self.messages):
            message.check(f"messages[{index}]")
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid_request("'top_logprobs' is only allowed when 'logprobs' is true.", "top_logprobs")
        response_format = self.response_format
        if (
            response_format is not None
            and response_format.type == "json_schema"
            and response_format.json_schema is None
        ):
            raise invalid_request(
                "Missing required parameter: 'response_format.json_schema'.", "response_format.json_schema"
            )
        self._check_tools()

    def _check_tools(self) -> None:
        for index, tool in enumerate(self.tools or ()):
            if tool.type in ("function", "custom") and tool.definition is None:
                param = f"tools[{index}].{tool.type}"
                raise invalid_request(f"Missing required parameter: '{param}'.", param)
        names = [function.name for function in self.callable_functions]
        if self.tool_choice == "required" and not names:
            raise invalid_request("'tool_choice' is only allowed when 'tools' are specified.", "tool_choice")
        if isinstance(self.tool_choice, MockToolChoice) and self.tool_choice.name not in names:
            raise invalid_request("Invalid 'tool_choice': there is no tool with this name.", "tool_choice")


class MockCompletionRequest(MockGenerationRequest, kw_only=True):
    """A request to /v1/completions."""

    prompt: str | Annotated[list[str | int | list[int]], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: Annotated[int, Meta(ge=1, le=20)] | None = None

    @property
    def token_limit(self) -> int:
        """The token limit of an answer; 16 is OpenAI's default."""
        return 16 if self.max_tokens is None else self.max_tokens

    @property
    def prompts(self) -> list[str]:
        """All prompts as strings."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if all(isinstance(item, int) for item in self.prompt):
            return [_token_ids_text(self.prompt)]
        return [
            item if isinstance(item, str) else _token_ids_text(item)
            for item in self.prompt
            if not isinstance(item, int)
        ]

    def check(self) -> None:
        """Raise `MockApiError` for unsupported and inconsistent fields."""
        super().check()
        if self.suffix:
            raise invalid_request("This model does not support 'suffix'.", "suffix")
        items = [] if isinstance(self.prompt, str) else self.prompt
        if len({type(item) for item in items}) > 1:
            raise invalid_request(
                "Invalid 'prompt': a list must contain only strings, only token ids, or only lists of token ids.",
                "prompt",
            )
        if len(self.prompts) * (self.n or 1) > CHAT_CHOICES_LIMIT:
            raise invalid_request(f"Invalid 'prompt': a request has at most {CHAT_CHOICES_LIMIT} choices.", "prompt")
        if self.best_of is not None and self.best_of < (self.n or 1):
            raise invalid_request("Invalid 'best_of': it must be at least 'n'.", "best_of")


def _token_ids_text(tokens: list[Any]) -> str:
    """Return a text for token ids: without a vocabulary, each one stands for its number."""
    return " ".join(map(str, tokens))


BodyType = TypeVar("BodyType", bound=MockRequestBody)


def parse_request(body: str, body_type: type[BodyType]) -> BodyType:
    """Parse and validate a body. Raises `MockApiError`."""
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise invalid_request("We could not parse the JSON body of your request.") from None
    request = convert(fields, body_type)
    if isinstance(request, FieldError):
        raise invalid_request(request.message, request.param, request.code)
    request.check()
    return request
