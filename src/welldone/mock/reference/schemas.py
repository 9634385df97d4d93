"""Requests to the reference server: schemas, conversion of all dialects to a chat, and errors.

Limits are those of OpenAI and Anthropic; unknown fields are ignored.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from welldone.mock.script import MockReply, json_reply
from welldone.protocol.dialects.anthropic import objects as anthropic_objects
from welldone.protocol.dialects.chat import openai_error_object
from welldone.protocol.dialects.gemini.objects import error_object
from welldone.protocol.events import Failure, Json
from welldone.protocol.request_facts import CHAT_CHOICES_LIMIT
from welldone.schemas import anthropic, chat, errors, gemini, messages, responses
from welldone.schemas.chat import ToolChoiceMode, TopLogprobs

Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
ShortName: TypeAlias = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
StopString: TypeAlias = Annotated[str, Meta(min_length=1)]
_TokenLimit: TypeAlias = Annotated[int, Meta(ge=1)]


class MockApiError(Exception):
    """An API error that is sent to the client."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.failure: Failure = Failure(message, "invalid_request_error", param, code)
        self.headers: dict[str, str] = headers or {}


def invalid_request(message: str, param: str | None = None, code: str | None = None) -> MockApiError:
    """Return a 400 error."""
    return MockApiError(400, message, param, code)


def _missing(param: str) -> MockApiError:
    return invalid_request(*errors.missing(param))


def render_error(error: MockApiError, *, is_anthropic: bool = False, is_google: bool = False) -> MockReply:
    """Return the reply for an error in OpenAI's, Anthropic's or Google's format."""
    body = openai_error_object(error.failure)
    if is_google:
        body = error_object(error.status, error.failure.message, param=error.failure.param, reason=error.failure.code)
    if is_anthropic:
        error_type = anthropic_objects.error_type_for_status(error.status)
        body = anthropic_objects.anthropic_error_object(Failure(error.failure.message, error_type))
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

    stream_options: chat.StreamOptions | None = None
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


def message_text(message: messages.Message) -> str:
    """Return the text of a message."""
    if isinstance(message.content, list):
        return "\n".join(part.text for part in message.content if isinstance(part, messages.TextPart))
    return message.content if isinstance(message.content, str) else ""


def _check_content(message: messages.Message, param: str) -> None:
    """Raise `MockApiError` for content that is missing or not text."""
    if isinstance(message.content, list):
        for index, part in enumerate(message.content):
            if not isinstance(part, messages.TextPart):
                raise invalid_request(f"Invalid '{param}[{index}]': this model supports text only.", param)
    is_assistant = isinstance(message, messages.AssistantMessage)
    has_other = isinstance(message, messages.AssistantMessage) and (message.tool_calls or message.refusal is not None)
    if is_assistant and not has_other and not isinstance(message.content, str | list):
        raise _missing(param)


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


class MockToolChoice(msgspec.Struct):
    """`tool_choice` that names a tool."""

    type: Literal["function", "custom"]
    function: messages.NamedFunction | None = None
    custom: messages.NamedFunction | None = None

    @property
    def name(self) -> str:
        """The name of the tool; empty if it is missing."""
        tool = self.custom if self.type == "custom" else self.function
        return "" if tool is None else tool.name


def _named_choice(name: str | None) -> MockToolChoice:
    return MockToolChoice("function", messages.NamedFunction(name or ""))


class MockChatRequest(MockGenerationRequest, kw_only=True):
    """A request to /v1/chat/completions."""

    messages: Annotated[list[messages.Message], Meta(min_length=1)]
    max_tokens: _TokenLimit | None = None
    max_completion_tokens: _TokenLimit | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: Annotated[list[MockTool], Meta(max_length=128)] | None = None
    tool_choice: ToolChoiceMode | MockToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: chat.TextFormat | chat.JsonObjectFormat | chat.JsonSchemaFormat | None = None

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
        texts = [message_text(item) for item in self.messages if isinstance(item, messages.UserMessage)]
        return texts[-1] if texts else ""

    @property
    def tool_results(self) -> list[str]:
        """The tool results at the end of the messages."""
        last = takewhile(lambda message: isinstance(message, messages.ToolMessage), reversed(self.messages))
        return [message_text(message) for message in last][::-1]

    def check(self) -> None:
        """Raise `MockApiError` for inconsistent fields."""
        super().check()
        for index, message in enumerate(self.messages):
            _check_content(message, f"messages[{index}].content")
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid_request("'top_logprobs' is only allowed when 'logprobs' is true.", "top_logprobs")
        response_format = self.response_format
        if isinstance(response_format, chat.JsonSchemaFormat) and response_format.json_schema.name is None:
            raise _missing("response_format.json_schema.name")
        self._check_tools()

    def _check_tools(self) -> None:
        for index, tool in enumerate(self.tools or ()):
            if tool.type in ("function", "custom") and tool.definition is None:
                raise _missing(f"tools[{index}].{tool.type}")
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
        items = [item for item in self.prompt if not isinstance(item, int)]
        return [item if isinstance(item, str) else _token_ids_text(item) for item in items]

    def check(self) -> None:
        """Raise `MockApiError` for unsupported and inconsistent fields."""
        super().check()
        if self.suffix:
            raise invalid_request("This model does not support 'suffix'.", "suffix")
        items = [] if isinstance(self.prompt, str) else self.prompt
        if len({type(item) for item in items}) > 1:
            allowed = "only strings, only token ids, or only lists of token ids"
            raise invalid_request(f"Invalid 'prompt': a list must contain {allowed}.", "prompt")
        if len(self.prompts) * (self.n or 1) > CHAT_CHOICES_LIMIT:
            raise invalid_request(f"Invalid 'prompt': a request has at most {CHAT_CHOICES_LIMIT} choices.", "prompt")
        if self.best_of is not None and self.best_of < (self.n or 1):
            raise invalid_request("Invalid 'best_of': it must be at least 'n'.", "best_of")


def _token_ids_text(tokens: list[Any]) -> str:
    """Return a text for token ids: without a vocabulary, each one stands for its number."""
    return " ".join(map(str, tokens))


_TEXT_TYPES = ("input_text", "output_text", "summary_text", "reasoning_text")
_ECHOED_FIELDS = (
    *("frequency_penalty", "instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "presence_penalty"),
    *("reasoning", "store", "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p"),
)
_MESSAGES: dict[str, Callable[..., messages.Message]] = {
    "system": messages.SystemMessage,
    "developer": messages.SystemMessage,
    "user": messages.UserMessage,
    "assistant": messages.AssistantMessage,
}
"""Messages by their role."""


class MockContentPart(msgspec.Struct):
    """A content part of an item."""

    type: str
    text: str | None = None


class MockResponsesItem(msgspec.Struct):
    """An input item."""

    type: Literal["message", "function_call", "function_call_output", "reasoning", "compaction"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[MockContentPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[MockContentPart] | None = None

    def to_chat_messages(self, param: str) -> Iterator[messages.Message]:
        """Convert the item; reasoning and compactions are dropped. Raises `MockApiError` for a wrong field."""
        if self.type == "message":
            if self.role is None:
                raise _missing(f"{param}.role")
            yield _MESSAGES[self.role](content=_joined_text(self.content, f"{param}.content"))
        elif self.type == "function_call":
            if self.call_id is None or self.name is None or self.arguments is None:
                reason = "a function_call needs a call_id, a name and arguments"
                raise invalid_request(f"Invalid '{param}': {reason}.", param)
            yield messages.AssistantMessage(content="")
        elif self.type == "function_call_output":
            if self.call_id is None:
                raise _missing(f"{param}.call_id")
            yield messages.ToolMessage(content=_joined_text(self.output, f"{param}.output"), tool_call_id=self.call_id)


def _joined_text(content: str | list[MockContentPart] | None, param: str) -> str:
    if content is None:
        raise _missing(param)
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


class MockResponsesRequest(MockRequestBody, kw_only=True):
    """A request to /v1/responses. The mock stores no responses."""

    input: str | Annotated[list[MockResponsesItem], Meta(min_length=1)]
    instructions: str | None = None
    max_output_tokens: _TokenLimit | None = None
    tools: Annotated[list[MockResponsesTool], Meta(max_length=128)] | None = None
    tool_choice: ToolChoiceMode | MockResponsesToolChoice | None = None
    parallel_tool_calls: bool | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    text: responses.ResponseText | None = None
    reasoning: responses.ReasoningOptions | None = None
    include: list[str] | None = None
    top_logprobs: TopLogprobs | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    previous_response_id: str | None = None

    @property
    def echoed_fields(self) -> Json:
        """The fields of the request that a response repeats."""
        values = ((name, getattr(self, name)) for name in _ECHOED_FIELDS)
        return {name: msgspec.to_builtins(value) for name, value in values if value is not None}

    def check(self) -> None:
        """Raise `MockApiError` for unsupported and inconsistent fields."""
        if self.previous_response_id is not None:
            message = f"Previous response with id '{self.previous_response_id[:100]}' not found."
            raise invalid_request(message, "previous_response_id", "previous_response_not_found")
        self.as_chat.check()

    @property
    def as_chat(self) -> MockChatRequest:
        """The equivalent chat request. Raises `MockApiError` if there is none."""
        choice = self.tool_choice
        has_logprobs = responses.INCLUDE_LOGPROBS in (self.include or ())
        return MockChatRequest(
            model=self.model,
            stream=self.stream,
            messages=list(self._chat_messages()),
            max_tokens=self.max_output_tokens,
            tools=[MockTool("function", tool) for tool in self.tools or ()],
            tool_choice=_named_choice(choice.name) if isinstance(choice, MockResponsesToolChoice) else choice,
            parallel_tool_calls=self.parallel_tool_calls,
            response_format=self._response_format(),
            logprobs=has_logprobs or None,
            top_logprobs=self.top_logprobs if has_logprobs else None,
        )

    def _chat_messages(self) -> Iterator[messages.Message]:
        if self.instructions:
            yield messages.SystemMessage(content=self.instructions)
        if isinstance(self.input, str):
            yield messages.UserMessage(content=self.input)
            return
        for index, item in enumerate(self.input):
            yield from item.to_chat_messages(f"input[{index}]")

    def _response_format(self) -> chat.JsonObjectFormat | chat.JsonSchemaFormat | None:
        match None if self.text is None else self.text.format:
            case responses.ResponseObjectFormat():
                return chat.JsonObjectFormat()
            case responses.ResponseSchemaFormat(name=name, schema=schema):
                return chat.JsonSchemaFormat(chat.JsonSchemaDefinition(name, schema=schema))
            case _:
                return None


class MockAnthropicTool(msgspec.Struct):
    """A tool. Tools without a schema are built into Anthropic's API; the mock ignores them."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
    description: str | None = None
    input_schema: Json | None = None


_ANTHROPIC_MODES: dict[str, ToolChoiceMode] = {"auto": "auto", "any": "required", "none": "none"}


def anthropic_to_chat(request: anthropic.AnthropicTokensRequest) -> MockChatRequest:
    """Return the equivalent chat request. Raises `MockApiError` if there is none."""
    choice = request.tool_choice or anthropic.AnthropicToolChoice()
    tools = [convert(tool, MockAnthropicTool, f"tools[{index}].") for index, tool in enumerate(request.tools or ())]
    out = MockChatRequest(
        model=request.model,
        stream=request.stream,
        messages=list(_anthropic_messages(request)),
        max_tokens=request.max_tokens,
        stop=request.stop_sequences,
        tools=[
            MockTool("function", MockFunction(tool.name, tool.description, tool.input_schema))
            for tool in tools
            if tool.input_schema is not None
        ],
        tool_choice=_named_choice(choice.name) if choice.type == "tool" else _ANTHROPIC_MODES.get(choice.type or ""),
        parallel_tool_calls=None if request.tool_choice is None else not choice.disable_parallel_tool_use,
    )
    out.check()
    return out


def _anthropic_messages(request: anthropic.AnthropicTokensRequest) -> Iterator[messages.Message]:
    """Convert the messages: of each one, tool results first, then the rest."""
    if not request.messages:
        raise invalid_request("messages: at least one message is required", "messages")
    if request.system:
        yield messages.SystemMessage(content=_block_text(request.system, "system"))
    for index, message in enumerate(request.messages):
        param = f"messages.{index}.content"
        if isinstance(message, anthropic.AnthropicSystemMessage) or not message.content:
            raise invalid_request(f"{param}: expected content of the user or the assistant", param)
        blocks = [anthropic.TextBlock(message.content)] if isinstance(message.content, str) else message.content
        rest = []
        for block in blocks:
            if isinstance(block, anthropic.ToolResultBlock):
                text = _block_text(block.content or "", param)
                yield messages.ToolMessage(content=text, tool_call_id=block.tool_use_id)
            elif not isinstance(block, anthropic.ThinkingBlock | anthropic.RedactedThinkingBlock):
                rest.append(block)
        if rest:
            text = _block_text([block for block in rest if not isinstance(block, anthropic.ToolUseBlock)], param)
            yield _MESSAGES[str(message.__struct_config__.tag)](content=text)


def _block_text(blocks: str | Sequence[msgspec.Struct], param: str) -> str:
    """Join the texts of blocks. Raises `MockApiError` if one is not a text block."""
    if isinstance(blocks, str):
        return blocks
    texts = [block.text for block in blocks if isinstance(block, anthropic.TextBlock | anthropic.OnlyTextBlock)]
    if len(texts) < len(blocks):
        raise invalid_request(f"{param}: this model supports text only.", param)
    return "\n".join(texts)


_GEMINI_MODES: dict[str, ToolChoiceMode] = {"AUTO": "auto", "VALIDATED": "auto", "ANY": "required", "NONE": "none"}


def gemini_to_chat(body: Json, model: str, *, is_stream: bool) -> tuple[MockChatRequest, bool]:
    """Return the equivalent chat request, and whether its answer shows thoughts. Raises `MockApiError`."""
    request = convert(body, gemini.GeminiRequest)
    generation = request.generation_config or gemini.GenerationConfig()
    tool_config = request.tool_config or gemini.ToolConfig()
    calling = tool_config.function_calling_config or gemini.FunctionCallingConfig()
    functions = list(_gemini_functions(request.tools or []))
    if allowed := calling.allowed_function_names:
        functions = [function for function in functions if function.name in allowed]
    out = MockChatRequest(
        model=model,
        stream=is_stream,
        messages=list(_gemini_messages(request)),
        max_tokens=generation.max_output_tokens,
        n=generation.candidate_count,
        stop=generation.stop_sequences,
        logprobs=generation.response_logprobs,
        top_logprobs=generation.logprobs,
        tools=[MockTool("function", function) for function in functions],
        tool_choice=_GEMINI_MODES.get(calling.mode or ""),
        response_format=_gemini_format(generation),
    )
    out.check()
    return out, generation.thinking_config is not None and generation.thinking_config.include_thoughts is True


def gemini_tokens(body: Json, model: str) -> MockChatRequest:
    """Return the chat request whose tokens are counted. Raises `MockApiError`."""
    request = convert(body, gemini.GeminiTokensRequest)
    counted = request.generate_content_request or {"contents": body.get("contents")}
    return gemini_to_chat(counted, model, is_stream=False)[0]


def _gemini_functions(tools: list[Json]) -> Iterator[MockFunction]:
    """Yield the functions; tools that run in Google's API are ignored."""
    for number, tool in enumerate(tools):
        declarations = tool.get("functionDeclarations", [])
        if not isinstance(declarations, list) or not all(isinstance(one, dict) for one in declarations):
            param = f"tools[{number}].functionDeclarations"
            raise invalid_request(f"Invalid '{param}': it must be a list of functions.", param)
        for index, declared in enumerate(declarations):
            function = convert(declared, gemini.FunctionDeclaration, f"tools[{number}].functionDeclarations[{index}].")
            parameters = function.parameters_json_schema or function.parameters
            yield MockFunction(function.name, function.description, parameters)


def _gemini_format(generation: gemini.GenerationConfig) -> chat.JsonObjectFormat | chat.JsonSchemaFormat | None:
    if generation.response_json_schema is not None:
        return chat.JsonSchemaFormat(chat.JsonSchemaDefinition("answer", schema=generation.response_json_schema))
    return chat.JsonObjectFormat() if generation.response_mime_type == "application/json" else None


def _gemini_messages(request: gemini.GeminiRequest) -> Iterator[messages.Message]:
    """Convert the contents: of each one, function responses first, then the rest."""
    if request.system_instruction is not None:
        yield messages.SystemMessage(content=_parts_text(request.system_instruction.parts, "systemInstruction.parts"))
    for index, content in enumerate(request.contents):
        param = f"contents[{index}].parts"
        for part in content.parts or ():
            if (result := part.function_response) is not None:
                text = msgspec.json.encode(result.response or {}).decode()
                yield messages.ToolMessage(content=text, tool_call_id=result.id or result.name)
        rest = [part for part in content.parts or () if part.function_response is None]
        if rest or not content.parts:
            yield _MESSAGES["assistant" if content.role == "model" else "user"](content=_parts_text(rest, param))


def _parts_text(parts: list[gemini.Part] | None, param: str) -> str:
    """Join the texts of parts without thoughts and calls. Raises `MockApiError` if there is none, or other data."""
    if not parts:
        raise _missing(param)
    if any(part.text is None and part.function_call is None for part in parts):
        raise invalid_request(f"Invalid '{param}': this model supports text only.", param)
    return "".join(part.text or "" for part in parts if not part.thought)


BodyType = TypeVar("BodyType", bound=msgspec.Struct)


def convert(fields: Json, body_type: type[BodyType], path: str = "") -> BodyType:
    """Validate a body, or the part of one at `path`. Raises `MockApiError`."""
    request = errors.convert(fields, body_type, path)
    if isinstance(request, errors.FieldError):
        raise invalid_request(*request)
    return request
