"""`/v1/messages`: a body of Anthropic's API as the body of a chat, or an error that says what a chat cannot say.

The chat is read again by those who answer it, with all their limits. So here only that is checked which they would not
see, or would name in words that the client does not know.
"""

from typing import NamedTuple

import msgspec

from welldone.serve.errors import ApiError, invalid
from welldone.serve.requests import fields
from welldone.serve.requests.blocks import Turns, read_turns
from welldone.serve.requests.flat_tools import unknown_tool
from welldone.serve.requests.table import Field, Use
from welldone.wire.events import Json

TOKENS_LIMIT = 2**31 - 1
"""Of `max_tokens` and the like: the integers of engines have 32 bits."""
USER_LIMIT = 64
"""Characters of `user` that OpenAI takes. Claude Code sends more; it means nothing to the answer, and is left out."""

FIELDS: tuple[Field, ...] = (
    Field("model", Use.READ, "the model's name"),
    Field("max_tokens", Use.READ, "1 or more; must be given, but not to count tokens"),
    Field("messages", Use.READ, "text, images, documents with text, search results, thinking, tool_use, tool_result"),
    Field("system", Use.READ, "a text, or blocks of text"),
    Field("stream", Use.READ, "true or false"),
    Field("stop_sequences", Use.READ, "the same as stop of a chat"),
    Field("temperature", Use.PASSED, "0 to 1"),
    Field("top_p", Use.PASSED, "0 to 1"),
    Field("top_k", Use.PASSED, "0 or more"),
    Field("metadata", Use.READ, "user_id, as user of a chat if it is short"),
    Field("thinking", Use.READ, "enabled, adaptive: thoughts are shown; budget_tokens: for llama.cpp"),
    Field("tools", Use.READ, "custom tools; others as --unknown-tools says"),
    Field("tool_choice", Use.READ, "auto, any, tool, none; disable_parallel_tool_use"),
    Field("output_config", Use.READ, "effort, and format with a json_schema"),
    Field("output_format", Use.READ, "the same as output_config.format"),
    *(
        Field(name, Use.IGNORED)
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
    Field("container", Use.REFUSED, "needs a container, which this server does not have."),
    Field("mcp_servers", Use.REFUSED, "needs MCP servers to be called from here, which is not offered."),
    Field("thread", Use.REFUSED, "needs conversations to be kept here, which they are not."),
)

EFFORTS = ("low", "medium", "high", "xhigh", "max")
_PLAIN_EFFORTS = EFFORTS[:3]  # those that all servers know
CHOICES = {"auto": "auto", "any": "required", "none": "none", "tool": "tool"}
_CUSTOM = (None, "custom")
_THINKS = ("enabled", "adaptive", "between_tools")
THINKING = (*_THINKS, "disabled")
TOOLS_LIMIT = 10_000  # Anthropic's own, for tools that are searched for; a local model takes fewer
_STOPS_LIMIT = 8_191  # Anthropic's own; a local model takes fewer
_TEMPLATED = ("llamacpp", "vllm", "sglang")
"""Servers that let a request set what its chat template knows."""
_NO_PREFILL = "Invalid 'messages': the last message is the assistant's, and the upstream cannot continue one."
_NAMES = {
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


class Translated(NamedTuple):
    """A chat, and what the client calls its fields, messages and tools."""

    chat: Json
    names: dict[str, str]

    shows_thoughts: bool

    @property
    def stops(self) -> tuple[str, ...]:
        """The client's stop strings."""
        return tuple(self.chat.get("stop") or ())


def read_anthropic(body: Json, kind: str, *, skips_tools: bool, is_counted: bool = False) -> Translated:
    """The chat that a body means.

    Args:
        body: what `read_body` gave.
        kind: the kind of server that answers, as `Upstream.kind` has it; our own engine is a `llamacpp`.
        skips_tools: whether tools that nobody here can run are left out; else they are refused.
        is_counted: whether only the tokens of the prompt are wanted.
    """
    for row in FIELDS:
        if row.use is Use.REFUSED and body.get(row.name) not in (None, [], {}, ""):
            raise _cannot(row)
    turns = read_turns(body, takes_system=kind == "openai")
    chat: Json = {"model": body.get("model"), "messages": turns.items}
    chat |= _sampling(body, kind, is_counted)
    chat |= _thoughts(body, kind)
    names = _NAMES | {f"messages[{place}]": told for place, told in enumerate(turns.places)}
    chat |= _tools(body, skips_tools, names)
    chat |= _form(body)
    chat |= _continued(turns, kind)
    return Translated(chat, names, shows_thoughts=_mode(body) in _THINKS)


def _cannot(row: Field) -> ApiError:
    error = fields.unsupported(row.name, row.note)
    if row.name == "thread":  # then the tool runners of Anthropic's SDKs go on without it
        error.details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return error


def _sampling(body: Json, kind: str, is_counted: bool) -> Json:
    out: Json = {"stream": fields.boolean(body, "stream") is True}
    most = fields.integer(body, "max_tokens", 1, TOKENS_LIMIT)
    if most is not None:  # OpenAI's models that think know only the newer name, and others only the older
        out["max_completion_tokens" if kind == "openai" else "max_tokens"] = most
    elif not is_counted:
        raise fields.missing("max_tokens")
    for name in ("temperature", "top_p"):
        if (value := fields.number(body, name, 0, 1)) is not None:
            out[name] = value
    if (top := fields.integer(body, "top_k", 0, TOKENS_LIMIT)) is not None:
        out["top_k"] = top
    if stops := fields.strings(body, "stop_sequences", _STOPS_LIMIT, TOKENS_LIMIT):
        out["stop"] = stops
    user = (fields.table(body, "metadata") or {}).get("user_id")
    if isinstance(user, str) and len(user) <= USER_LIMIT:
        out["user"] = user
    return out


def _thoughts(body: Json, kind: str) -> Json:
    """How much is thought. A budget is llama.cpp's alone: others refuse it, or need to be set up for it."""
    thinking = fields.table(body, "thinking") or {}
    mode = _mode(body)
    budget = fields.integer(thinking, "budget_tokens", 0, TOKENS_LIMIT, "thinking.")
    config = fields.table(body, "output_config") or {}
    effort = fields.choice(config, "effort", EFFORTS, "output_config.")
    out: Json = {}
    if mode in (None, "disabled") and kind in _TEMPLATED:  # who does not ask for thoughts gets none
        out["chat_template_kwargs"] = {"enable_thinking": False}
    elif mode == "disabled":
        return {"reasoning_effort": "none"}
    if effort is not None:
        most = "xhigh" if kind == "openai" else "high"
        out["reasoning_effort"] = effort if effort in _PLAIN_EFFORTS else most
    if mode == "enabled" and budget is not None and kind == "llamacpp":
        out["thinking_budget_tokens"] = budget
    return out


def _mode(body: Json) -> str | None:
    return fields.choice(fields.table(body, "thinking") or {}, "type", THINKING, "thinking.")


def _tools(body: Json, skips_tools: bool, names: dict[str, str]) -> Json:
    tools: list[Json] = []
    skipped: set[object] = set()
    for place, tool in enumerate(fields.array(body, "tools", TOOLS_LIMIT) or ()):
        param = f"tools[{place}]"
        if not isinstance(tool, dict):
            raise fields.wrong_type(param, "an object", tool)
        if _is_custom(tool):
            here = f"tools[{len(tools)}]"
            names |= {here: param, f"{here}.function": param, f"{here}.function.parameters": f"{param}.input_schema"}
            tools.append(_function(tool, param))
        elif not skips_tools:
            raise _not_run_here(tool, param)
        else:
            skipped.add(fields.string(tool, "name", TOKENS_LIMIT, f"{param}."))
    choice = _choice(body, skipped)
    if not tools and choice.get("tool_choice") not in (None, "auto", "none"):
        raise invalid("'tool_choice' needs 'tools' to choose from.", param="tool_choice", code="invalid_value")
    return {"tools": tools, **choice} if tools else {}


def _choice(body: Json, skipped: set[object]) -> Json:
    """Which tool is called. One that was left out cannot be."""
    given = fields.table(body, "tool_choice") or {}
    mode = fields.choice(given, "type", tuple(CHOICES), "tool_choice.")
    out: Json = {} if mode is None else {"tool_choice": CHOICES[mode]}
    if mode == "tool":
        name = fields.string(given, "name", TOKENS_LIMIT, "tool_choice.")
        if name is None:
            raise fields.missing("tool_choice.name")
        out["tool_choice"] = "auto" if name in skipped else {"type": "function", "function": {"name": name}}
    if fields.boolean(given, "disable_parallel_tool_use", "tool_choice."):
        out["parallel_tool_calls"] = False
    return out


def _is_custom(tool: Json) -> bool:
    """Whether the client runs a tool itself, and the model may call it."""
    callers = tool.get("allowed_callers")
    return tool.get("type") in _CUSTOM and (not isinstance(callers, list) or "direct" in callers)


def _not_run_here(tool: Json, param: str) -> ApiError:
    if tool.get("type") in _CUSTOM:
        return fields.unsupported(
            f"{param}.allowed_callers", "must have 'direct': no tool of a server calls others here."
        )
    return unknown_tool(f"{param}.type", fields.word(tool["type"]), "custom")


def _function(tool: Json, param: str) -> Json:
    schema = fields.table(tool, "input_schema", f"{param}.")
    if schema is None:
        raise fields.missing(f"{param}.input_schema")
    function: Json = {"name": tool.get("name"), "parameters": schema}
    texts = [fields.string(tool, "description", TOKENS_LIMIT, f"{param}.")]
    if examples := fields.array(tool, "input_examples", TOOLS_LIMIT, f"{param}."):
        texts.append(f"Examples of its input: {msgspec.json.encode(examples).decode()}")
    if description := "\n".join(filter(None, texts)):
        function["description"] = description
    if (strict := fields.boolean(tool, "strict", f"{param}.")) is not None:
        function["strict"] = strict
    return {"type": "function", "function": function}


def _form(body: Json) -> Json:
    """The schema that the answer must follow."""
    config, path = fields.table(body, "output_config") or {}, "output_config.format"
    wanted = fields.table(config, "format", "output_config.")
    if wanted is None:
        wanted, path = fields.table(body, "output_format"), "output_format"
    if wanted is None:
        return {}
    if fields.choice(wanted, "type", ("json_schema",), f"{path}.") is None:
        raise fields.missing(f"{path}.type")
    schema = fields.table(wanted, "schema", f"{path}.")
    if schema is None:
        raise fields.missing(f"{path}.schema")
    named = {"name": "answer", "schema": schema, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def _continued(turns: Turns, kind: str) -> Json:
    """How a server is asked to go on with a last message that is the assistant's. llama.cpp does so unasked."""
    if not turns.is_open:
        return {}
    if kind == "openai":
        raise invalid(_NO_PREFILL, param="messages", code="unsupported_value")
    if kind in ("vllm", "sglang"):
        return {"continue_final_message": True, "add_generation_prompt": False}
    return {}
