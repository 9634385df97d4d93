"""Validation of `/v1/messages` (Anthropic's API), and translation into a chat request.

The chat request is validated again by the endpoint that serves it. Content blocks become text, images, calls and
results. Consecutive messages of one role are one turn, as in Anthropic's API. Blocks without an equivalent in a chat
are rejected; details without a field of their own (a document's title, a failed tool) become text.
"""

from itertools import groupby, takewhile
from typing import TypeAlias

import msgspec

from welldone.core.events import Json
from welldone.gateway.errors import ApiError, invalid_request
from welldone.schemas import anthropic as schema
from welldone.schemas.errors import string_or_type_name
from welldone.server.requests import fields
from welldone.server.requests.tools import unsupported_tool_type, user_turn

USER_ID_LENGTH = 64
"""OpenAI's limit for `user`. Claude Code sends longer ids; they do not affect the answer, and are dropped."""

_COMMON_EFFORTS = ("low", "medium", "high")  # those that all servers support
_TOOL_CHOICE_MODES = {"auto": "auto", "any": "required", "none": "none", "tool": "tool"}
_THINKING_ON = ("enabled", "adaptive", "between_tools")
_CLIENT_PARAM_NAMES = {
    "stop": "stop_sequences",
    "user": "metadata.user_id",
    "max_completion_tokens": "max_tokens",
    "thinking_budget_tokens": "thinking.budget_tokens",
    "reasoning_effort": "output_config.effort",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "tool_choice.function": "tool_choice",
    "response_format": "output_config.format",
    "response_format.json_schema": "output_config.format",
}
"""The client's names for fields of the chat request."""

_BILLING_PREFIX = "x-anthropic-billing-header:"
"""First line of Claude Code's system prompt. It is not for the model, and changes with each request, which would defeat
every prompt cache."""
_NO_FILE_REASON = "is an uploaded file, which is not supported: send its text, or an image as base64."
_NO_PDF_REASON = "is a PDF or a URL, which is not supported: send its text."
_IMAGE_FOLLOWS_TEXT = "The result is a picture. It follows in the next message."
_IMAGE_OF_CALL_TEXT = "The picture that the tool gave for the call {}:"

_NamedMessage: TypeAlias = tuple[schema.AnthropicMessage, str]
"""A message and its parameter name."""


def anthropic_to_chat(
    body: Json, upstream_kind: str, *, ignores_unknown_tools: bool, is_count_only: bool = False
) -> fields.ChatTranslation:
    """Translate a request into a chat request.

    Args:
        body: the decoded body.
        upstream_kind: the kind of server, as in `Upstream.kind`; `llamacpp` for a local model.
        ignores_unknown_tools: drop tools that only a server can run, instead of rejecting them.
        is_count_only: the request counts prompt tokens.
    """
    try:
        fields.check_supported(body, schema.AnthropicRequest)
    except ApiError as error:
        if error.param == "thread":  # the tool runners of Anthropic's SDKs then continue without it
            error.details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
        raise
    config = body.get("output_config")
    if isinstance(config, dict) and config.get("format") is not None:  # the older name is ignored beside the new one
        body = {name: value for name, value in body.items() if name != "output_format"}
    request = fields.read_fields(body, schema.AnthropicTokensRequest if is_count_only else schema.AnthropicRequest)
    turns = _chat_turns(request, allows_system=upstream_kind == "openai")
    chat: Json = {"model": request.model, "messages": [message for message, _ in turns]}
    chat |= _sampling_fields(request, upstream_kind)
    chat |= _reasoning_fields(request, upstream_kind)
    names = _CLIENT_PARAM_NAMES | {f"messages[{index}]": param for index, (_, param) in enumerate(turns)}
    chat |= _tool_fields(request, ignores_unknown_tools, names)
    output_format = request.output_config.format if request.output_config is not None else None
    if (output_format := output_format or request.output_format) is not None:
        json_schema = {"name": "answer", "schema": output_format.schema, "strict": True}
        chat["response_format"] = {"type": "json_schema", "json_schema": json_schema}
    if turns and turns[-1][0]["role"] == "assistant":  # a prefill, which the model continues; llama.cpp always does
        if upstream_kind == "openai":
            reason = "the last message is the assistant's, and the upstream cannot continue one."
            raise fields.invalid("messages", reason, "unsupported_value")
        if upstream_kind in ("vllm", "sglang"):
            chat |= {"continue_final_message": True, "add_generation_prompt": False}
    shows_reasoning = request.thinking is not None and request.thinking.type in _THINKING_ON
    ignored_tools = len(request.tools or ()) - len(chat.get("tools", ()))
    return fields.ChatTranslation(chat, names, shows_reasoning, ignored_tools)


def _sampling_fields(request: schema.AnthropicTokensRequest, upstream_kind: str) -> Json:
    out: Json = {"stream": request.stream is True}
    if request.max_tokens is not None:
        out[fields.max_tokens_field(upstream_kind)] = request.max_tokens
    user = (request.metadata or {}).get("user_id")
    return out | fields.given(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        stop=request.stop_sequences or None,
        user=user if isinstance(user, str) and len(user) <= USER_ID_LENGTH else None,
    )


def _reasoning_fields(request: schema.AnthropicTokensRequest, upstream_kind: str) -> Json:
    """Translate `thinking` and `effort`. Only llama.cpp gets a budget: others reject it, or need special settings."""
    thinking = request.thinking or schema.Thinking()
    effort = request.output_config.effort if request.output_config is not None else None
    out: Json = {}
    if thinking.type == "disabled" or (thinking.type is None and upstream_kind in fields.TEMPLATE_KWARGS_KINDS):
        out = fields.thinking_off_fields(upstream_kind)  # the default of this API
    if effort is not None and "reasoning_effort" not in out:
        highest = "xhigh" if upstream_kind == "openai" else "high"
        out["reasoning_effort"] = effort if effort in _COMMON_EFFORTS else highest
    if thinking.type == "enabled" and thinking.budget_tokens is not None and upstream_kind == "llamacpp":
        out["thinking_budget_tokens"] = thinking.budget_tokens
    return out


def _tool_fields(
    request: schema.AnthropicTokensRequest, ignores_unknown_tools: bool, param_names: dict[str, str]
) -> Json:
    tools: list[Json] = []
    skipped: set[object] = set()
    for index, tool in enumerate(request.tools or ()):
        param, callers = f"tools[{index}]", tool.get("allowed_callers")
        is_custom = tool.get("type") in (None, "custom")
        if is_custom and (not isinstance(callers, list) or "direct" in callers):  # the client runs it, when called
            chat_param = f"tools[{len(tools)}]"
            param_names |= {
                chat_param: param,
                f"{chat_param}.function": param,
                f"{chat_param}.function.parameters": f"{param}.input_schema",
            }
            tools.append(_function_tool(fields.read_fields(tool, schema.AnthropicTool, f"{param}.")))
        elif not ignores_unknown_tools:
            if not is_custom:
                raise unsupported_tool_type(f"{param}.type", string_or_type_name(tool["type"]), "custom")
            reason = "must contain 'direct': this server has no tools that call others."
            raise fields.unsupported(f"{param}.allowed_callers", reason)
        elif not isinstance(tool.get("name"), str | None):
            raise fields.wrong_type(f"{param}.name", "a string", tool["name"])
        else:
            skipped.add(tool.get("name"))
    choice = _tool_choice_fields(request.tool_choice or schema.AnthropicToolChoice(), skipped)
    if not tools and choice.get("tool_choice") not in (None, "auto", "none"):
        raise invalid_request(
            "'tool_choice' is only allowed when 'tools' are specified.", param="tool_choice", code="invalid_value"
        )
    return {"tools": tools, **choice} if tools else {}


def _tool_choice_fields(choice: schema.AnthropicToolChoice, skipped: set[object]) -> Json:
    """Translate `tool_choice`; one of the `skipped` tools becomes auto."""
    out: Json = {} if choice.type is None else {"tool_choice": _TOOL_CHOICE_MODES[choice.type]}
    if choice.type == "tool":
        if choice.name is None:
            raise fields.missing("tool_choice.name")
        function = {"type": "function", "function": {"name": choice.name}}
        out["tool_choice"] = "auto" if choice.name in skipped else function
    if choice.disable_parallel_tool_use:
        out["parallel_tool_calls"] = False
    return out


def _function_tool(tool: schema.AnthropicTool) -> Json:
    texts = [tool.description]
    if tool.input_examples:
        texts.append(f"Examples of its input: {msgspec.json.encode(tool.input_examples).decode()}")
    function = {"name": tool.name, "parameters": tool.input_schema}
    function |= fields.given(description="\n".join(filter(None, texts)) or None, strict=tool.strict)
    return {"type": "function", "function": function}


def _chat_turns(request: schema.AnthropicTokensRequest, *, allows_system: bool) -> list[tuple[Json, str]]:
    """Convert `system` and `messages` to chat messages, each with the client's name for it.

    `allows_system`: the chat may have system messages in the middle. The templates of many models reject that; for them
    such a message becomes a part of the user's turn.
    """
    system = [request.system] if isinstance(request.system, str) else [block.text for block in request.system or ()]
    texts = [text.partition("\n")[2] if text.startswith(_BILLING_PREFIX) else text for text in system]
    leading = list(takewhile(lambda message: isinstance(message, schema.AnthropicSystemMessage), request.messages))
    messages = [(message, f"messages[{index}]") for index, message in enumerate(request.messages)]
    texts += [_system_text([message]) for message in messages[: len(leading)]]
    messages = messages[len(leading) :]
    if not messages:
        raise fields.invalid("messages", "expected at least 1 message.", "empty_array")
    if not allows_system:
        messages = [(_system_as_user(message), param) for message, param in messages]
    turns: list[tuple[Json, str]] = []
    if text := "\n".join(filter(None, texts)):
        turns.append(({"role": "system", "content": text}, "system"))
    for message_type, group in groupby(messages, key=lambda message: type(message[0])):
        turn = list(group)
        if message_type is schema.AnthropicUserMessage:
            converted = _user_messages(turn)
        elif message_type is schema.AnthropicAssistantMessage:
            converted = [_assistant_message(turn)]
        else:
            converted = [{"role": "system", "content": _system_text(turn)}]
        turns += [(message, turn[0][1]) for message in converted]
    last = turns[-1][0]
    if last["role"] == "assistant" and last.get("tool_calls"):
        raise fields.invalid("messages", "the last message has tool calls without results.")
    if last["role"] == "assistant" and not last["content"] and "reasoning_content" not in last:
        turns.pop()  # an empty prefill is none
    return turns


def _system_text(turn: list[_NamedMessage]) -> str:
    texts = [_joined_text(message.content) for message, _ in turn if isinstance(message, schema.AnthropicSystemMessage)]
    return "\n".join(texts)


def _joined_text(content: str | list[schema.OnlyTextBlock]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content if block.text)


def _system_as_user(message: schema.AnthropicMessage) -> schema.AnthropicMessage:
    if not isinstance(message, schema.AnthropicSystemMessage):
        return message
    return schema.AnthropicUserMessage(f"<system>\n{_joined_text(message.content)}\n</system>")


def _user_messages(turn: list[_NamedMessage]) -> list[Json]:
    """Return a message per tool result, then one with the rest and all images: tool messages have text only."""
    results: list[Json] = []
    images: list[Json] = []
    rest: list[Json] = []
    for message, param in turn:
        assert isinstance(message, schema.AnthropicUserMessage)
        content = [schema.TextBlock(message.content)] if isinstance(message.content, str) else message.content
        for index, block in enumerate(content):
            if isinstance(block, schema.ToolResultBlock):
                result, result_images = _tool_result(block, f"{param}.content[{index}]")
                results.append(result)
                images += result_images
            else:
                rest += _user_parts(block, f"{param}.content[{index}]")
    return user_turn(results, images + rest, f"{turn[0][1]}.content")


def _tool_result(block: schema.ToolResultBlock, param: str) -> tuple[Json, list[Json]]:
    """Return the tool message, and the images of the result for the next user message."""
    parts: list[Json] = []
    if isinstance(block.content, str):
        parts = _text_parts(block.content)
    else:
        for index, inner in enumerate(block.content or ()):
            parts += _user_parts(inner, f"{param}.content[{index}]")
    text = "\n".join(content_part["text"] for content_part in parts if content_part["type"] == "text")
    images = [content_part for content_part in parts if content_part["type"] != "text"]
    if images:
        text = text or _IMAGE_FOLLOWS_TEXT
        images.insert(0, {"type": "text", "text": _IMAGE_OF_CALL_TEXT.format(block.tool_use_id)})
    if block.is_error and "error" not in text.lower():
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": text}, images


def _user_parts(block: schema.ResultBlock, param: str) -> list[Json]:
    match block:
        case schema.TextBlock():
            return _text_parts(block.text)
        case schema.ToolReferenceBlock():  # of a tool search: the model has all tools anyway
            return _text_parts(block.tool_name)
        case schema.ImageBlock():
            return [_image_part(block, param)]
        case schema.DocumentBlock():
            return _document_parts(block, param)
        case schema.SearchResultBlock():
            _check_no_citations(block, param)
            return _text_parts(block.title, block.source, _joined_text(block.content))


def _text_parts(*texts: str | None) -> list[Json]:
    text = "\n".join(filter(None, texts))
    return [{"type": "text", "text": text}] if text else []


def _image_part(block: schema.ImageBlock, param: str) -> Json:
    source = block.source
    if isinstance(source, schema.FileSource):
        raise fields.unsupported(f"{param}.source", _NO_FILE_REASON)
    url = source.url if isinstance(source, schema.UrlSource) else f"data:{source.media_type};base64,{source.data}"
    return {"type": "image_url", "image_url": {"url": url}}


def _document_parts(block: schema.DocumentBlock, param: str) -> list[Json]:
    _check_no_citations(block, param)
    source = block.source
    if isinstance(source, schema.TextSource):
        return _text_parts(block.title, block.context, source.data)
    if not isinstance(source, schema.ContentSource):
        raise fields.unsupported(
            f"{param}.source", _NO_FILE_REASON if isinstance(source, schema.FileSource) else _NO_PDF_REASON
        )
    parts = _text_parts(block.title, block.context)
    inner_blocks = [schema.TextBlock(source.content)] if isinstance(source.content, str) else source.content
    for index, inner in enumerate(inner_blocks):
        parts += _user_parts(inner, f"{param}.source.content[{index}]")
    return parts


def _check_no_citations(block: schema.DocumentBlock | schema.SearchResultBlock, param: str) -> None:
    """Reject citations: a chat cannot request them."""
    if block.citations is not None and block.citations.enabled:
        raise fields.unsupported(f"{param}.citations", "cannot be enabled: this model has no citations.")


def _assistant_message(turn: list[_NamedMessage]) -> Json:
    """Merge a turn into one message. Text blocks of one message are joined without a gap: the server split them."""
    texts, reasoning, calls = [], [], []
    for message, _ in turn:
        assert isinstance(message, schema.AnthropicAssistantMessage)
        text = message.content if isinstance(message.content, str) else ""
        for block in () if isinstance(message.content, str) else message.content:
            match block:
                case schema.TextBlock():
                    text += block.text
                case schema.ThinkingBlock():
                    reasoning.append(block.thinking)
                case schema.RedactedThinkingBlock():
                    pass
                case _:
                    function = {"name": block.name, "arguments": msgspec.json.encode(block.input).decode()}
                    calls.append({"id": block.id, "type": "function", "function": function})
        texts.append(text)
    out: Json = {"role": "assistant", "content": "\n".join(filter(None, texts))}
    if reasoning_text := "".join(reasoning):
        out["reasoning_content"] = reasoning_text
    if calls:
        out["tool_calls"] = calls
    return out
