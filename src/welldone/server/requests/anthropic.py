"""Validation of `/v1/messages` (Anthropic's API), and translation into a chat request.

The chat request is validated again by the endpoint that serves it. So this module checks only fields that are not in
the chat request, or whose errors would name parameters that the client does not have.
"""

from typing import NamedTuple

import msgspec

from welldone.gateway.errors import ApiError, invalid_request
from welldone.protocol.events import Json
from welldone.server.requests import fields
from welldone.server.requests.anthropic_messages import ChatTurns, read_chat_turns
from welldone.server.requests.fields import FieldHandling, RequestField
from welldone.server.requests.tools import unsupported_tool_type

INT32_MAX = 2**31 - 1
"""Limit of `max_tokens` and others: the integers of engines have 32 bits."""
USER_ID_LENGTH = 64
"""OpenAI's limit for `user`. Claude Code sends longer ids; they do not affect the answer, and are dropped."""

ANTHROPIC_FIELDS: tuple[RequestField, ...] = (
    RequestField("model", FieldHandling.TRANSLATED, "the model's name"),
    RequestField("max_tokens", FieldHandling.TRANSLATED, "1 or more; required, except for token counting"),
    RequestField(
        "messages",
        FieldHandling.TRANSLATED,
        "text, images, documents with text, search results, thinking, tool_use, tool_result",
    ),
    RequestField("system", FieldHandling.TRANSLATED, "a string, or text blocks"),
    RequestField("stream", FieldHandling.TRANSLATED, "true or false"),
    RequestField("stop_sequences", FieldHandling.TRANSLATED, "the same as stop of chat"),
    RequestField("temperature", FieldHandling.FORWARDED, "0 to 1"),
    RequestField("top_p", FieldHandling.FORWARDED, "0 to 1"),
    RequestField("top_k", FieldHandling.FORWARDED, "0 or more"),
    RequestField("metadata", FieldHandling.TRANSLATED, "user_id: forwarded as user if it has at most 64 characters"),
    RequestField(
        "thinking", FieldHandling.TRANSLATED, "enabled, adaptive: the reply has thinking; budget_tokens: for llama.cpp"
    ),
    RequestField("tools", FieldHandling.TRANSLATED, "custom tools; others depend on --unknown-tools"),
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
    RequestField("mcp_servers", FieldHandling.REJECTED, "needs an MCP client, which this server does not have."),
    RequestField("thread", FieldHandling.REJECTED, "needs stored conversations, which this server does not have."),
)

OUTPUT_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_COMMON_EFFORTS = OUTPUT_EFFORTS[:3]  # those that all servers support
TOOL_CHOICE_MODES = {"auto": "auto", "any": "required", "none": "none", "tool": "tool"}
_CUSTOM_TOOL_TYPES = (None, "custom")
_THINKING_ON = ("enabled", "adaptive", "between_tools")
THINKING_MODES = (*_THINKING_ON, "disabled")
ANTHROPIC_TOOLS_LIMIT = 10_000  # Anthropic's limit, with tool search; chat requests have a lower one
_STOP_SEQUENCES_LIMIT = 8_191  # Anthropic's limit; chat requests have a lower one
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
    for row in ANTHROPIC_FIELDS:
        if row.handling is FieldHandling.REJECTED and body.get(row.name) not in (None, [], {}, ""):
            error = fields.unsupported(row.name, row.note)
            if row.name == "thread":  # the tool runners of Anthropic's SDKs then continue without it
                error.details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
            raise error
    turns = read_chat_turns(body, allows_system=upstream_kind == "openai")
    chat: Json = {"model": body.get("model"), "messages": turns.items}
    chat |= _sampling_fields(body, upstream_kind, is_count_only)
    chat |= _reasoning_fields(body, upstream_kind)
    names = _CLIENT_PARAM_NAMES | {f"messages[{index}]": param for index, param in enumerate(turns.params)}
    chat |= _tool_fields(body, ignores_unknown_tools, names)
    chat |= _output_format(body)
    chat |= _continuation_fields(turns, upstream_kind)
    return AnthropicTranslation(chat, names, shows_reasoning=_thinking_mode(body) in _THINKING_ON)


def _sampling_fields(body: Json, upstream_kind: str, is_count_only: bool) -> Json:
    out: Json = {"stream": fields.boolean(body, "stream") is True}
    max_tokens = fields.integer(body, "max_tokens", 1, INT32_MAX)
    if max_tokens is not None:  # OpenAI's reasoning models accept only the newer name, other servers only the older
        out["max_completion_tokens" if upstream_kind == "openai" else "max_tokens"] = max_tokens
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
    """Translate `thinking` and `effort`. Only llama.cpp gets a budget: others reject it, or need special settings."""
    thinking = fields.json_object(body, "thinking") or {}
    mode = _thinking_mode(body)
    budget = fields.integer(thinking, "budget_tokens", 0, INT32_MAX, "thinking.")
    config = fields.json_object(body, "output_config") or {}
    effort = fields.choice(config, "effort", OUTPUT_EFFORTS, "output_config.")
    out: Json = {}
    if mode in (None, "disabled") and upstream_kind in _TEMPLATE_KWARGS_KINDS:  # thinking is off by default
        out["chat_template_kwargs"] = {"enable_thinking": False}
    elif mode == "disabled":
        return {"reasoning_effort": "none"}
    if effort is not None:
        highest = "xhigh" if upstream_kind == "openai" else "high"
        out["reasoning_effort"] = effort if effort in _COMMON_EFFORTS else highest
    if mode == "enabled" and budget is not None and upstream_kind == "llamacpp":
        out["thinking_budget_tokens"] = budget
    return out


def _thinking_mode(body: Json) -> str | None:
    return fields.choice(fields.json_object(body, "thinking") or {}, "type", THINKING_MODES, "thinking.")


def _tool_fields(body: Json, ignores_unknown_tools: bool, param_names: dict[str, str]) -> Json:
    tools: list[Json] = []
    skipped: set[object] = set()
    for index, tool in enumerate(fields.array(body, "tools", ANTHROPIC_TOOLS_LIMIT) or ()):
        param = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise fields.wrong_type(param, "an object", tool)
        if _is_client_tool(tool):
            chat_param = f"tools[{len(tools)}]"
            param_names |= {
                chat_param: param,
                f"{chat_param}.function": param,
                f"{chat_param}.function.parameters": f"{param}.input_schema",
            }
            tools.append(_function_tool(tool, param))
        elif not ignores_unknown_tools:
            raise _server_tool_error(tool, param)
        else:
            skipped.add(fields.string(tool, "name", INT32_MAX, f"{param}."))
    choice = _tool_choice_fields(body, skipped)
    if not tools and choice.get("tool_choice") not in (None, "auto", "none"):
        raise invalid_request(
            "'tool_choice' is only allowed when 'tools' are specified.", param="tool_choice", code="invalid_value"
        )
    return {"tools": tools, **choice} if tools else {}


def _tool_choice_fields(body: Json, skipped: set[object]) -> Json:
    """Translate `tool_choice`; one of the `skipped` tools becomes auto."""
    tool_choice = fields.json_object(body, "tool_choice") or {}
    mode = fields.choice(tool_choice, "type", tuple(TOOL_CHOICE_MODES), "tool_choice.")
    out: Json = {} if mode is None else {"tool_choice": TOOL_CHOICE_MODES[mode]}
    if mode == "tool":
        name = fields.string(tool_choice, "name", INT32_MAX, "tool_choice.")
        if name is None:
            raise fields.missing("tool_choice.name")
        out["tool_choice"] = "auto" if name in skipped else {"type": "function", "function": {"name": name}}
    if fields.boolean(tool_choice, "disable_parallel_tool_use", "tool_choice."):
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
    config, path = fields.json_object(body, "output_config") or {}, "output_config.format"
    output_format = fields.json_object(config, "format", "output_config.")
    if output_format is None:
        output_format, path = fields.json_object(body, "output_format"), "output_format"
    if output_format is None:
        return {}
    if fields.choice(output_format, "type", ("json_schema",), f"{path}.") is None:
        raise fields.missing(f"{path}.type")
    schema = fields.json_object(output_format, "schema", f"{path}.")
    if schema is None:
        raise fields.missing(f"{path}.schema")
    json_schema = {"name": "answer", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": json_schema}}


def _continuation_fields(turns: ChatTurns, upstream_kind: str) -> Json:
    """Return the fields that make a server continue a final assistant message. llama.cpp needs none."""
    if not turns.is_prefilled:
        return {}
    if upstream_kind == "openai":
        raise invalid_request(_NO_PREFILL_MESSAGE, param="messages", code="unsupported_value")
    if upstream_kind in ("vllm", "sglang"):
        return {"continue_final_message": True, "add_generation_prompt": False}
    return {}
