"""What the request asked for, as far as it changes the stream. None: not known."""

import msgspec

from welldone.protocol.events import Json
from welldone.protocol.text_filters import ThinkMode

CHAT_CHOICES_LIMIT = 128
"""OpenAI's own limit for `n`."""
COMPLETIONS_CHOICES_LIMIT = 4096
"""A list of prompts times `n`; more than any server we know takes in one request."""

TRUNCATED_REASONS = ("length", "content_filter")
"""Finish reasons after which a call may be incomplete."""


class RequestFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a request that repair and the writers need."""

    include_usage: bool | None = None
    """Whether `stream_options.include_usage` was true."""
    is_usage_forced: bool = False
    """Whether the server was asked for usage whatever the client wants: then it is no fault that it comes."""
    count_reasoning_tokens: bool = False
    """Whether the tokens of the reasoning are counted here: the server is an engine that does not."""
    continuous_usage: bool = False
    """Whether counts were asked for on each chunk (vLLM's `continuous_usage_stats`, which needs `include_usage`)."""
    allow_obfuscation: bool | None = None
    """Whether padding against traffic analysis may be sent."""
    choice_count: int | None = None
    """How many choices were asked for, over all prompts."""
    uses_legacy_functions: bool = False
    """Whether the deprecated `functions` were used, so that calls go out as `function_call`."""
    has_named_tool: bool = False
    """Whether one tool was demanded by name: then OpenAI itself finishes with `stop`."""
    top_logprobs: int | None = None
    """How many alternatives to each token were asked for, where a server may send more."""
    is_json_output: bool = False
    """Whether the text was to be JSON: `response_format` json_schema or json_object."""
    is_json_object: bool = False
    """Whether it was to be an object, whatever is in it."""
    needs_object_arguments: bool = False
    """Whether the client's dialect has calls whose arguments are an object: then others cannot be sent."""
    stop_strings: tuple[str, ...] = ()
    """Stop strings that are looked for here, in a stream with one choice: its server was asked without them."""
    tool_names: frozenset[str] = frozenset()
    """The names of functions that the model may call."""
    model: str | None = None


def read_request_facts(body: Json) -> RequestFacts:
    """What a request's JSON asks for; what it has wrong is taken as not said."""
    options = body.get("stream_options")
    options = options if isinstance(options, dict) else {}
    n = body.get("n")
    prompts = body.get("prompt")
    count = len(prompts) if isinstance(prompts, list) and prompts and isinstance(prompts[0], str | list) else 1
    model = body.get("model")
    wanted = body.get("response_format")
    kind = wanted.get("type") if isinstance(wanted, dict) else None
    return RequestFacts(
        include_usage=options.get("include_usage") is True,
        continuous_usage=all(options.get(name) is True for name in ("include_usage", "continuous_usage_stats")),
        allow_obfuscation=options.get("include_obfuscation") is not False,
        choice_count=count * n if type(n) is int and n > 0 else count,
        uses_legacy_functions=bool(body.get("functions")) and not body.get("tools"),
        has_named_tool=isinstance(body.get("tool_choice"), dict),
        tool_names=_tool_names(body),
        is_json_output=kind in ("json_schema", "json_object"),
        is_json_object=kind == "json_object",
        model=model if isinstance(model, str) and model else None,
    )


def think_mode_for(think: ThinkMode, request: Json) -> ThinkMode:
    """How thoughts are found in the answer to a request, where the upstream is set to `think`.

    Where the request turns thinking off, the model's template opens no tag, so the text does not begin inside one.
    """
    return "tags" if think == "open" and is_thinking_off(request) else think


def is_thinking_off(body: Json) -> bool:
    """Whether a request turns thinking off, by any of the names that servers have for that."""
    kwargs, thinking, reasoning = (body.get(name) for name in ("chat_template_kwargs", "thinking", "reasoning"))
    kwargs = kwargs if isinstance(kwargs, dict) else {}
    return (
        body.get("reasoning_effort") == "none"
        or body.get("enable_thinking") is False  # Qwen's own API
        or body.get("think") is False  # Ollama
        or any(kwargs.get(name) is False for name in ("enable_thinking", "thinking"))  # vLLM, SGLang, llama.cpp
        or (isinstance(thinking, dict) and thinking.get("type") == "disabled")  # Z.ai, DeepSeek
        or (isinstance(reasoning, dict) and (reasoning.get("effort") == "none" or reasoning.get("enabled") is False))
    )


def _tool_names(body: Json) -> frozenset[str]:
    tools = body.get("tools")
    if body.get("tool_choice") == "none" or not isinstance(tools, list):
        return frozenset()
    functions = [tool.get("function") for tool in tools if isinstance(tool, dict)]
    names = [function.get("name") for function in functions if isinstance(function, dict)]
    return frozenset(name for name in names if isinstance(name, str))
