"""Validation of `/v1/messages` (Anthropic's API), and translation into a chat request.

The chat request is validated again by the endpoint that serves it.
"""

from typing import NamedTuple

import msgspec

from welldone.gateway.errors import ApiError, invalid_request
from welldone.protocol.events import Json
from welldone.schemas import anthropic as schema
from welldone.schemas.errors import string_or_type_name
from welldone.server.requests import fields
from welldone.server.requests.anthropic_messages import ChatTurns, read_chat_turns
from welldone.server.requests.tools import unsupported_tool_type

USER_ID_LENGTH = 64
"""OpenAI's limit for `user`. Claude Code sends longer ids; they do not affect the answer, and are dropped."""

_COMMON_EFFORTS = ("low", "medium", "high")  # those that all servers support
_TOOL_CHOICE_MODES = {"auto": "auto", "any": "required", "none": "none", "tool": "tool"}
_CUSTOM_TOOL_TYPES = (None, "custom")
_THINKING_ON = ("enabled", "adaptive", "between_tools")
_TEMPLATE_KWARGS_KINDS = ("llamacpp", "vllm", "sglang")
"""Servers with `chat_template_kwargs`."""
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
"""The client's names for fields of the chat request."""


class AnthropicTranslation(NamedTuple):
    """A chat request, and the client's names for its fields, messages and tools."""

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
    turns = read_chat_turns(request, allows_system=upstream_kind == "openai")
    chat: Json = {"model": request.model, "messages": turns.items}
    chat |= _sampling_fields(request, upstream_kind)
    chat |= _reasoning_fields(request, upstream_kind)
    names = _CLIENT_PARAM_NAMES | {f"messages[{index}]": param for index, param in enumerate(turns.params)}
    chat |= _tool_fields(request, ignores_unknown_tools, names)
    output_format = request.output_config.format if request.output_config is not None else None
    if (output_format := output_format or request.output_format) is not None:
        json_schema = {"name": "answer", "schema": output_format.schema, "strict": True}
        chat["response_format"] = {"type": "json_schema", "json_schema": json_schema}
    chat |= _continuation_fields(turns, upstream_kind)
    shows_reasoning = request.thinking is not None and request.thinking.type in _THINKING_ON
    return AnthropicTranslation(chat, names, shows_reasoning)


def _sampling_fields(request: schema.AnthropicTokensRequest, upstream_kind: str) -> Json:
    out: Json = {"stream": request.stream is True}
    if request.max_tokens is not None:
        # OpenAI's reasoning models accept only the newer name, other servers only the older
        out["max_completion_tokens" if upstream_kind == "openai" else "max_tokens"] = request.max_tokens
    user = (request.metadata or {}).get("user_id")
    values = {
        **{name: getattr(request, name) for name in ("temperature", "top_p", "top_k")},
        "stop": request.stop_sequences or None,
        "user": user if isinstance(user, str) and len(user) <= USER_ID_LENGTH else None,
    }
    return out | {name: value for name, value in values.items() if value is not None}


def _reasoning_fields(request: schema.AnthropicTokensRequest, upstream_kind: str) -> Json:
    """Translate `thinking` and `effort`. Only llama.cpp gets a budget: others reject it, or need special settings."""
    thinking = request.thinking or schema.Thinking()
    effort = request.output_config.effort if request.output_config is not None else None
    out: Json = {}
    if thinking.type in (None, "disabled") and upstream_kind in _TEMPLATE_KWARGS_KINDS:  # thinking is off by default
        out["chat_template_kwargs"] = {"enable_thinking": False}
    elif thinking.type == "disabled":
        return {"reasoning_effort": "none"}
    if effort is not None:
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
        param = f"tools[{index}]"
        if _is_client_tool(tool):
            chat_param = f"tools[{len(tools)}]"
            param_names |= {
                chat_param: param,
                f"{chat_param}.function": param,
                f"{chat_param}.function.parameters": f"{param}.input_schema",
            }
            tools.append(_function_tool(fields.read_fields(tool, schema.AnthropicTool, f"{param}.")))
        elif not ignores_unknown_tools:
            raise _server_tool_error(tool, param)
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
        name = choice.name
        if name is None:
            raise fields.missing("tool_choice.name")
        out["tool_choice"] = "auto" if name in skipped else {"type": "function", "function": {"name": name}}
    if choice.disable_parallel_tool_use:
        out["parallel_tool_calls"] = False
    return out


def _is_client_tool(tool: Json) -> bool:
    """Whether the client runs the tool, and the model may call it directly."""
    callers = tool.get("allowed_callers")
    return tool.get("type") in _CUSTOM_TOOL_TYPES and (not isinstance(callers, list) or "direct" in callers)


def _server_tool_error(tool: Json, param: str) -> ApiError:
    if tool.get("type") in _CUSTOM_TOOL_TYPES:
        return fields.unsupported(
            f"{param}.allowed_callers", "must contain 'direct': this server has no tools that call others."
        )
    return unsupported_tool_type(f"{param}.type", string_or_type_name(tool["type"]), "custom")


def _function_tool(tool: schema.AnthropicTool) -> Json:
    function: Json = {"name": tool.name, "parameters": tool.input_schema}
    texts = [tool.description]
    if tool.input_examples:
        texts.append(f"Examples of its input: {msgspec.json.encode(tool.input_examples).decode()}")
    if description := "\n".join(filter(None, texts)):
        function["description"] = description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _continuation_fields(turns: ChatTurns, upstream_kind: str) -> Json:
    """Return the fields that make a server continue a final assistant message. llama.cpp needs none."""
    if not turns.is_prefilled:
        return {}
    if upstream_kind == "openai":
        raise invalid_request(_NO_PREFILL_MESSAGE, param="messages", code="unsupported_value")
    if upstream_kind in ("vllm", "sglang"):
        return {"continue_final_message": True, "add_generation_prompt": False}
    return {}
