"""`/v1/messages`: a body of Anthropic's API as the body of a chat, or an error that says what a chat cannot say.

The chat is read again by those who answer it, with all their limits. So here only that is checked which they would not
see, or would name in words that the client does not know.
"""

from itertools import groupby, takewhile
from typing import NamedTuple

import msgspec

from welldone.gateway.errors import ApiError, invalid_request
from welldone.protocol.events import Json
from welldone.server.requests import fields
from welldone.server.requests.fields import FieldHandling, RequestField
from welldone.server.requests.responses import unsupported_tool_type

# The messages of Anthropic's API as messages of a chat: content blocks become texts, pictures, calls and results.
#
# Messages of one role that follow each other are one turn, as Anthropic has it. What a chat cannot say is refused; what
# only its shape cannot say (a document's title, a failed tool) is said in words.


MESSAGES_LIMIT = 8_192
"""Anthropic takes 100,000. Each takes 4 us to read, in which no other stream is served."""

ROLES = ("user", "assistant", "system")
_IMAGE_MEDIA_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_USER_BLOCK_TYPES = ("text", "image", "document", "search_result")
_RESULT_BLOCK_TYPES = (*_USER_BLOCK_TYPES, "tool_reference")
_BILLING_PREFIX = "x-anthropic-billing-header:"
"""Claude Code begins its system prompt with such a line. It changes with each request, so that no cache would know the
rest again, and is not meant for the model."""
_NO_FILE_REASON = "is a file that was uploaded elsewhere: send its text, or a picture as base64."
_NO_PDF_REASON = "is a PDF or an address, which cannot be read here: send its text."
_IMAGE_FOLLOWS_TEXT = "The result is a picture. It follows in the next message."
_IMAGE_OF_CALL_TEXT = "The picture that the tool gave for the call {}:"


class RequestContentBlock(NamedTuple):
    """A content block, and where it stands."""

    value: Json
    param: str


class ChatTurns(NamedTuple):
    """The messages of a chat, and what the client calls each."""

    items: list[Json]
    params: list[str]
    is_prefilled: bool
    """Whether the last one is the assistant's, to be continued."""


class _AnthropicMessage(NamedTuple):
    role: str
    param: str
    blocks: list[RequestContentBlock]


def read_chat_turns(body: Json, *, allows_system: bool) -> ChatTurns:
    """What `system` and `messages` say.

    Args:
        body: the client's.
        takes_system: whether the chat may have a system message in its middle. The templates of many models refuse
            that; for them it becomes a part of the user's turn.
    """
    said = _read_messages(body)
    first = list(takewhile(lambda one: one.role == "system", said))
    texts = [_system_text(body), *map(_joined_text, first)]
    said = said[len(first) :]
    if not said:
        raise invalid_request("Invalid 'messages': expected at least 1 message.", param="messages", code="empty_array")
    if not allows_system:
        said = [_system_as_user(one) if one.role == "system" else one for one in said]
    turns = ChatTurns([], [], said[-1].role == "assistant")
    if text := "\n".join(filter(None, texts)):
        _add_turn(turns, "system", {"role": "system", "content": text})
    for role, group in groupby(said, key=lambda one: one.role):
        messages = list(group)
        place = messages[0].param
        if role == "user":
            _add_turn(turns, place, *_user_messages([block for one in messages for block in one.blocks], place))
        elif role == "assistant":
            _add_turn(turns, place, _assistant_message(messages))
        else:
            _add_turn(turns, place, {"role": "system", "content": "\n".join(map(_joined_text, messages))})
    return _check_last_turn(turns)


def _read_messages(body: Json) -> list[_AnthropicMessage]:
    if body.get("messages") is None:
        raise fields.missing("messages")
    said = []
    for place, value in enumerate(fields.array(body, "messages", MESSAGES_LIMIT) or ()):
        param = f"messages[{place}]"
        if not isinstance(value, dict):
            raise fields.wrong_type(param, "an object", value)
        role = fields.choice(value, "role", ROLES, f"{param}.")
        if role is None:
            raise fields.missing(f"{param}.role")
        said.append(_AnthropicMessage(role, param, _read_blocks(value, "content", param)))
    return said


def _read_blocks(value: Json, name: str, path: str) -> list[RequestContentBlock]:
    """What may be a text or a list of blocks: always as a list."""
    content, param = value.get(name), f"{path}.{name}" if path else name
    match content:
        case None:
            raise fields.missing(param)
        case str():
            return [RequestContentBlock({"type": "text", "text": content}, param)]
        case list():
            return [_read_block(item, f"{param}[{place}]") for place, item in enumerate(content)]
        case _:
            raise fields.wrong_type(param, "a string or an array of objects", content)


def _read_block(item: object, param: str) -> RequestContentBlock:
    if not isinstance(item, dict):
        raise fields.wrong_type(param, "an object", item)
    if not isinstance(item.get("type"), str):
        raise fields.missing(f"{param}.type")
    return RequestContentBlock(item, param)


def _add_turn(turns: ChatTurns, param: str, *items: Json) -> None:
    turns.items.extend(items)
    turns.params.extend([param] * len(items))


def _check_last_turn(turns: ChatTurns) -> ChatTurns:
    """The turns, checked as to how they end: an empty beginning of an answer is none."""
    if not turns.is_prefilled:
        return turns
    last = turns.items[-1]
    if last.get("tool_calls"):
        message = "Invalid 'messages': the last message calls tools, and their results do not follow."
        raise invalid_request(message, param="messages", code="invalid_value")
    if last["content"] or "reasoning_content" in last:
        return turns
    return ChatTurns(turns.items[:-1], turns.params[:-1], is_prefilled=False)


# What the system says.


def _system_text(body: Json) -> str:
    if body.get("system") is None:
        return ""
    texts = [_plain_text(block) for block in _read_blocks(body, "system", "")]
    texts = [text.partition("\n")[2] if text.startswith(_BILLING_PREFIX) else text for text in texts]
    return "\n".join(filter(None, texts))


def _joined_text(message: _AnthropicMessage) -> str:
    return "\n".join(filter(None, map(_plain_text, message.blocks)))


def _system_as_user(message: _AnthropicMessage) -> _AnthropicMessage:
    text = f"<system>\n{_joined_text(message)}\n</system>"
    return _AnthropicMessage(
        "user", message.param, [RequestContentBlock({"type": "text", "text": text}, f"{message.param}.content")]
    )


def _plain_text(block: RequestContentBlock) -> str:
    """The text of a block that may be nothing else."""
    if block.value["type"] != "text":
        raise _unknown_block_type(block, ("text",))
    return _required_text(block, "text")


# What the user says.


def _user_messages(blocks: list[RequestContentBlock], param: str) -> list[Json]:
    """The results of tools, each a message of its own; then all the rest. Chats have pictures only in the rest."""
    results: list[Json] = []
    pictures: list[Json] = []
    rest: list[Json] = []
    for block in blocks:
        if block.value["type"] == "tool_result":
            result, seen = _tool_result(block)
            results.append(result)
            pictures += seen
        else:
            rest += _user_parts(block, (*_USER_BLOCK_TYPES, "tool_result"))
    parts = pictures + rest
    if not results and not parts:
        raise invalid_request(
            f"Invalid '{param}.content': it is empty.", param=f"{param}.content", code="invalid_value"
        )
    return [*results, {"role": "user", "content": _joined_content(parts)}] if parts else results


def _joined_content(parts: list[Json]) -> str | list[Json]:
    """Texts as one: not every server reads parts."""
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _tool_result(block: RequestContentBlock) -> tuple[Json, list[Json]]:
    """A tool's result, and the pictures in it."""
    value, param = block
    parts = []
    if value.get("content") is not None:
        parts = [
            part for one in _read_blocks(value, "content", param) for part in _user_parts(one, _RESULT_BLOCK_TYPES)
        ]
    text = "\n".join(part["text"] for part in parts if part["type"] == "text")
    pictures = [part for part in parts if part["type"] != "text"]
    id_ = _required_text(block, "tool_use_id")
    if pictures:
        text = text or _IMAGE_FOLLOWS_TEXT
        pictures.insert(0, {"type": "text", "text": _IMAGE_OF_CALL_TEXT.format(id_)})
    if fields.boolean(value, "is_error", f"{param}.") and "error" not in text.lower():
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": id_, "content": text}, pictures


def _user_parts(block: RequestContentBlock, allowed: tuple[str, ...]) -> list[Json]:
    """What a block of the user says, as parts of a message."""
    match block.value["type"]:
        case kind if kind not in allowed:
            raise _unknown_block_type(block, allowed)
        case "text":
            return _text_parts(_required_text(block, "text"))
        case "image":
            return [_image_part(block)]
        case "document":
            return _document_parts(block)
        case "search_result":
            return _search_result_parts(block)
        case _:  # a tool that was searched for: all tools are shown from the start
            return _text_parts(_required_text(block, "tool_name"))


def _text_parts(*texts: str | None) -> list[Json]:
    text = "\n".join(filter(None, texts))
    return [{"type": "text", "text": text}] if text else []


def _image_part(block: RequestContentBlock) -> Json:
    source, param = _read_source(block, ("base64", "url", "file"))
    if source["type"] == "file":
        raise fields.unsupported(param, _NO_FILE_REASON)
    if source["type"] == "url":
        url = _required_text(RequestContentBlock(source, param), "url")
    else:
        kind = fields.choice(source, "media_type", _IMAGE_MEDIA_TYPES, f"{param}.")
        if kind is None:
            raise fields.missing(f"{param}.media_type")
        url = f"data:{kind};base64,{_required_text(RequestContentBlock(source, param), 'data')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _document_parts(block: RequestContentBlock) -> list[Json]:
    _check_no_citations(block)
    source, param = _read_source(block, ("text", "content", "base64", "url", "file"))
    title, context = (fields.string(block.value, name, 2**20, f"{block.param}.") for name in ("title", "context"))
    if source["type"] == "text":
        return _text_parts(title, context, _required_text(RequestContentBlock(source, param), "data"))
    if source["type"] == "content":
        inner = [part for one in _read_blocks(source, "content", param) for part in _user_parts(one, ("text", "image"))]
        return _text_parts(title, context) + inner
    raise fields.unsupported(param, _NO_FILE_REASON if source["type"] == "file" else _NO_PDF_REASON)


def _search_result_parts(block: RequestContentBlock) -> list[Json]:
    _check_no_citations(block)
    content = [_plain_text(one) for one in _read_blocks(block.value, "content", block.param)]
    return _text_parts(_required_text(block, "title"), _required_text(block, "source"), *content)


def _check_no_citations(block: RequestContentBlock) -> None:
    """Answers that cite, and say where, are nothing that a chat can ask for."""
    param = f"{block.param}.citations"
    cites = fields.json_object(block.value, "citations", f"{block.param}.") or {}
    if fields.boolean(cites, "enabled", f"{param}."):
        raise fields.unsupported(param, "cannot be enabled: the model behind this server does not cite.")


def _read_source(block: RequestContentBlock, kinds: tuple[str, ...]) -> RequestContentBlock:
    source = fields.json_object(block.value, "source", f"{block.param}.")
    param = f"{block.param}.source"
    if source is None:
        raise fields.missing(param)
    if fields.choice(source, "type", kinds, f"{param}.") is None:
        raise fields.missing(f"{param}.type")
    return RequestContentBlock(source, param)


# What the assistant has said.


def _assistant_message(messages: list[_AnthropicMessage]) -> Json:
    """One message. The texts of one answer were cut by their writer, so they are joined without a gap."""
    texts, thoughts, calls = [], [], []
    for said in messages:
        text = ""
        for block in said.blocks:
            match block.value["type"]:
                case "text":
                    text += _required_text(block, "text")
                case "thinking":
                    thoughts.append(_required_text(block, "thinking"))
                case "redacted_thinking":  # nobody but its writer can read it
                    pass
                case "tool_use":
                    calls.append(_tool_call(block))
                case _:
                    raise _unknown_block_type(block, ("text", "thinking", "redacted_thinking", "tool_use"))
        texts.append(text)
    out: Json = {"role": "assistant", "content": "\n".join(filter(None, texts))}
    if thought := "".join(thoughts):
        out["reasoning_content"] = thought
    if calls:
        out["tool_calls"] = calls
    return out


def _tool_call(block: RequestContentBlock) -> Json:
    given = fields.json_object(block.value, "input", f"{block.param}.")
    if given is None:
        raise fields.missing(f"{block.param}.input")
    arguments = msgspec.json.encode(given).decode()
    function = {"name": _required_text(block, "name"), "arguments": arguments}
    return {"id": _required_text(block, "id"), "type": "function", "function": function}


# What is wrong.


def _required_text(block: RequestContentBlock, name: str) -> str:
    text = block.value.get(name)
    if text is None:
        raise fields.missing(f"{block.param}.{name}")
    if not isinstance(text, str):
        raise fields.wrong_type(f"{block.param}.{name}", "a string", text)
    return text


def _unknown_block_type(block: RequestContentBlock, allowed: tuple[str, ...]) -> ApiError:
    return fields.wrong_value(f"{block.param}.type", block.value["type"], allowed)


INT32_MAX = 2**31 - 1
"""Of `max_tokens` and the like: the integers of engines have 32 bits."""
USER_ID_LENGTH = 64
"""Characters of `user` that OpenAI takes. Claude Code sends more; it means nothing to the answer, and is left out."""

ANTHROPIC_FIELDS: tuple[RequestField, ...] = (
    RequestField("model", FieldHandling.TRANSLATED, "the model's name"),
    RequestField("max_tokens", FieldHandling.TRANSLATED, "1 or more; must be given, but not to count tokens"),
    RequestField(
        "messages",
        FieldHandling.TRANSLATED,
        "text, images, documents with text, search results, thinking, tool_use, tool_result",
    ),
    RequestField("system", FieldHandling.TRANSLATED, "a text, or blocks of text"),
    RequestField("stream", FieldHandling.TRANSLATED, "true or false"),
    RequestField("stop_sequences", FieldHandling.TRANSLATED, "the same as stop of a chat"),
    RequestField("temperature", FieldHandling.FORWARDED, "0 to 1"),
    RequestField("top_p", FieldHandling.FORWARDED, "0 to 1"),
    RequestField("top_k", FieldHandling.FORWARDED, "0 or more"),
    RequestField("metadata", FieldHandling.TRANSLATED, "user_id, as user of a chat if it is short"),
    RequestField(
        "thinking", FieldHandling.TRANSLATED, "enabled, adaptive: thoughts are shown; budget_tokens: for llama.cpp"
    ),
    RequestField("tools", FieldHandling.TRANSLATED, "custom tools; others as --unknown-tools says"),
    RequestField("tool_choice", FieldHandling.TRANSLATED, "auto, any, tool, none; disable_parallel_tool_use"),
    RequestField("output_config", FieldHandling.TRANSLATED, "effort, and format with a json_schema"),
    RequestField("output_format", FieldHandling.TRANSLATED, "the same as output_config.format"),
    *(
        RequestField(name, FieldHandling.IGNORED)
        for name in (
            "betas",
            "cache_control",
            "compaction",
            "context_management",
            "diagnostics",
            "fallbacks",
            "inference_geo",
            "service_tier",
            "speed",
            "user_profile_id",
            "workspace_id",
        )
    ),
    RequestField("container", FieldHandling.REJECTED, "needs a container, which this server does not have."),
    RequestField(
        "mcp_servers", FieldHandling.REJECTED, "needs MCP servers to be called from here, which is not offered."
    ),
    RequestField("thread", FieldHandling.REJECTED, "needs conversations to be kept here, which they are not."),
)

OUTPUT_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_COMMON_EFFORTS = OUTPUT_EFFORTS[:3]  # those that all servers know
TOOL_CHOICE_MODES = {"auto": "auto", "any": "required", "none": "none", "tool": "tool"}
_CUSTOM_TOOL_TYPES = (None, "custom")
_THINKING_ON = ("enabled", "adaptive", "between_tools")
THINKING_MODES = (*_THINKING_ON, "disabled")
ANTHROPIC_TOOLS_LIMIT = 10_000  # Anthropic's own, for tools that are searched for; a local model takes fewer
_STOP_SEQUENCES_LIMIT = 8_191  # Anthropic's own; a local model takes fewer
_TEMPLATE_KWARGS_KINDS = ("llamacpp", "vllm", "sglang")
"""Servers that let a request set what its chat template knows."""
_NO_PREFILL_MESSAGE = "Invalid 'messages': the last message is the assistant's, and the upstream cannot continue one."
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
"""What the client calls fields of a chat."""


class AnthropicTranslation(NamedTuple):
    """A chat, and what the client calls its fields, messages and tools."""

    chat: Json
    param_names: dict[str, str]

    shows_reasoning: bool

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The client's stop strings."""
        return tuple(self.chat.get("stop") or ())


def anthropic_to_chat(
    body: Json, upstream_kind: str, *, ignores_unknown_tools: bool, is_count_only: bool = False
) -> AnthropicTranslation:
    """The chat that a body means.

    Args:
        body: what `read_body` gave.
        kind: the kind of server that answers, as `Upstream.kind` has it; our own engine is a `llamacpp`.
        skips_tools: whether tools that nobody here can run are left out; else they are refused.
        is_counted: whether only the tokens of the prompt are wanted.
    """
    for row in ANTHROPIC_FIELDS:
        if row.handling is FieldHandling.REJECTED and body.get(row.name) not in (None, [], {}, ""):
            raise _unsupported_field(row)
    turns = read_chat_turns(body, allows_system=upstream_kind == "openai")
    chat: Json = {"model": body.get("model"), "messages": turns.items}
    chat |= _sampling_fields(body, upstream_kind, is_count_only)
    chat |= _reasoning_fields(body, upstream_kind)
    names = _CLIENT_PARAM_NAMES | {f"messages[{place}]": told for place, told in enumerate(turns.params)}
    chat |= _tool_fields(body, ignores_unknown_tools, names)
    chat |= _output_format(body)
    chat |= _continuation_fields(turns, upstream_kind)
    return AnthropicTranslation(chat, names, shows_reasoning=_thinking_mode(body) in _THINKING_ON)


def _unsupported_field(field: RequestField) -> ApiError:
    error = fields.unsupported(field.name, field.note)
    if field.name == "thread":  # then the tool runners of Anthropic's SDKs go on without it
        error.details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return error


def _sampling_fields(body: Json, upstream_kind: str, is_count_only: bool) -> Json:
    out: Json = {"stream": fields.boolean(body, "stream") is True}
    most = fields.integer(body, "max_tokens", 1, INT32_MAX)
    if most is not None:  # OpenAI's models that think know only the newer name, and others only the older
        out["max_completion_tokens" if upstream_kind == "openai" else "max_tokens"] = most
    elif not is_count_only:
        raise fields.missing("max_tokens")
    for name in ("temperature", "top_p"):
        if (value := fields.number(body, name, 0, 1)) is not None:
            out[name] = value
    if (top := fields.integer(body, "top_k", 0, INT32_MAX)) is not None:
        out["top_k"] = top
    if stops := fields.strings(body, "stop_sequences", _STOP_SEQUENCES_LIMIT, INT32_MAX):
        out["stop"] = stops
    user = (fields.json_object(body, "metadata") or {}).get("user_id")
    if isinstance(user, str) and len(user) <= USER_ID_LENGTH:
        out["user"] = user
    return out


def _reasoning_fields(body: Json, upstream_kind: str) -> Json:
    """How much is thought. A budget is llama.cpp's alone: others refuse it, or need to be set up for it."""
    thinking = fields.json_object(body, "thinking") or {}
    mode = _thinking_mode(body)
    budget = fields.integer(thinking, "budget_tokens", 0, INT32_MAX, "thinking.")
    config = fields.json_object(body, "output_config") or {}
    effort = fields.choice(config, "effort", OUTPUT_EFFORTS, "output_config.")
    out: Json = {}
    if (
        mode in (None, "disabled") and upstream_kind in _TEMPLATE_KWARGS_KINDS
    ):  # who does not ask for thoughts gets none
        out["chat_template_kwargs"] = {"enable_thinking": False}
    elif mode == "disabled":
        return {"reasoning_effort": "none"}
    if effort is not None:
        most = "xhigh" if upstream_kind == "openai" else "high"
        out["reasoning_effort"] = effort if effort in _COMMON_EFFORTS else most
    if mode == "enabled" and budget is not None and upstream_kind == "llamacpp":
        out["thinking_budget_tokens"] = budget
    return out


def _thinking_mode(body: Json) -> str | None:
    return fields.choice(fields.json_object(body, "thinking") or {}, "type", THINKING_MODES, "thinking.")


def _tool_fields(body: Json, ignores_unknown_tools: bool, param_names: dict[str, str]) -> Json:
    tools: list[Json] = []
    skipped: set[object] = set()
    for place, tool in enumerate(fields.array(body, "tools", ANTHROPIC_TOOLS_LIMIT) or ()):
        param = f"tools[{place}]"
        if not isinstance(tool, dict):
            raise fields.wrong_type(param, "an object", tool)
        if _is_client_tool(tool):
            here = f"tools[{len(tools)}]"
            param_names |= {
                here: param,
                f"{here}.function": param,
                f"{here}.function.parameters": f"{param}.input_schema",
            }
            tools.append(_function_tool(tool, param))
        elif not ignores_unknown_tools:
            raise _server_tool_error(tool, param)
        else:
            skipped.add(fields.string(tool, "name", INT32_MAX, f"{param}."))
    choice = _tool_choice_fields(body, skipped)
    if not tools and choice.get("tool_choice") not in (None, "auto", "none"):
        raise invalid_request("'tool_choice' needs 'tools' to choose from.", param="tool_choice", code="invalid_value")
    return {"tools": tools, **choice} if tools else {}


def _tool_choice_fields(body: Json, skipped: set[object]) -> Json:
    """Which tool is called. One that was left out cannot be."""
    given = fields.json_object(body, "tool_choice") or {}
    mode = fields.choice(given, "type", tuple(TOOL_CHOICE_MODES), "tool_choice.")
    out: Json = {} if mode is None else {"tool_choice": TOOL_CHOICE_MODES[mode]}
    if mode == "tool":
        name = fields.string(given, "name", INT32_MAX, "tool_choice.")
        if name is None:
            raise fields.missing("tool_choice.name")
        out["tool_choice"] = "auto" if name in skipped else {"type": "function", "function": {"name": name}}
    if fields.boolean(given, "disable_parallel_tool_use", "tool_choice."):
        out["parallel_tool_calls"] = False
    return out


def _is_client_tool(tool: Json) -> bool:
    """Whether the client runs a tool itself, and the model may call it."""
    callers = tool.get("allowed_callers")
    return tool.get("type") in _CUSTOM_TOOL_TYPES and (not isinstance(callers, list) or "direct" in callers)


def _server_tool_error(tool: Json, param: str) -> ApiError:
    if tool.get("type") in _CUSTOM_TOOL_TYPES:
        return fields.unsupported(
            f"{param}.allowed_callers", "must have 'direct': no tool of a server calls others here."
        )
    return unsupported_tool_type(f"{param}.type", fields.string_or_type_name(tool["type"]), "custom")


def _function_tool(tool: Json, param: str) -> Json:
    schema = fields.json_object(tool, "input_schema", f"{param}.")
    if schema is None:
        raise fields.missing(f"{param}.input_schema")
    function: Json = {"name": tool.get("name"), "parameters": schema}
    texts = [fields.string(tool, "description", INT32_MAX, f"{param}.")]
    if examples := fields.array(tool, "input_examples", ANTHROPIC_TOOLS_LIMIT, f"{param}."):
        texts.append(f"Examples of its input: {msgspec.json.encode(examples).decode()}")
    if description := "\n".join(filter(None, texts)):
        function["description"] = description
    if (strict := fields.boolean(tool, "strict", f"{param}.")) is not None:
        function["strict"] = strict
    return {"type": "function", "function": function}


def _output_format(body: Json) -> Json:
    """The schema that the answer must follow."""
    config, path = fields.json_object(body, "output_config") or {}, "output_config.format"
    wanted = fields.json_object(config, "format", "output_config.")
    if wanted is None:
        wanted, path = fields.json_object(body, "output_format"), "output_format"
    if wanted is None:
        return {}
    if fields.choice(wanted, "type", ("json_schema",), f"{path}.") is None:
        raise fields.missing(f"{path}.type")
    schema = fields.json_object(wanted, "schema", f"{path}.")
    if schema is None:
        raise fields.missing(f"{path}.schema")
    named = {"name": "answer", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def _continuation_fields(turns: ChatTurns, upstream_kind: str) -> Json:
    """How a server is asked to go on with a last message that is the assistant's. llama.cpp does so unasked."""
    if not turns.is_prefilled:
        return {}
    if upstream_kind == "openai":
        raise invalid_request(_NO_PREFILL_MESSAGE, param="messages", code="unsupported_value")
    if upstream_kind in ("vllm", "sglang"):
        return {"continue_final_message": True, "add_generation_prompt": False}
    return {}
