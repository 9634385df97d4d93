"""What determines how a stream is repaired: facts of its request, and settings of its upstream."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from welldone.core.envelope import Endpoint
from welldone.core.events import Failure, FailureMapper, Json
from welldone.core.fields import UNFINISHED
from welldone.core.json_tool_calls import CallableTools
from welldone.core.lenient_json import as_list, as_object
from welldone.core.text_filters import TextMode, ThinkMode

ReasoningListener: TypeAlias = Callable[[Sequence[str]], None]
"""Called once for a stream, with the members of the first delta that has reasoning: usually one, perhaps both."""

CHAT_CHOICES_LIMIT = 128
"""Limit of OpenAI for `n`."""
COMPLETIONS_CHOICES_LIMIT = 4096
"""Prompts times `n`: more than any known server accepts in one request."""

TRUNCATED_REASONS = ("length", "content_filter")
"""Finish reasons after which a tool call may be incomplete."""


class RequestFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a request that repair and the writers use. None stands for unknown."""

    include_usage: bool | None = None
    """Whether `stream_options.include_usage` is true."""
    is_usage_forced: bool = False
    """Whether usage is always requested from the upstream; unrequested usage is then no violation."""
    count_reasoning_tokens: bool = False
    """Whether to count reasoning tokens here, for an engine that does not report them."""
    continuous_usage: bool = False
    """Whether usage is requested on each chunk (vLLM's `continuous_usage_stats`, which needs `include_usage`)."""
    allow_obfuscation: bool | None = None
    """Whether the `obfuscation` padding against traffic analysis may be sent."""
    choice_count: int | None = None
    """Number of requested choices, over all prompts."""
    uses_legacy_functions: bool = False
    """Whether the request uses the deprecated `functions`; calls are then sent as `function_call`."""
    has_named_tool: bool = False
    """Whether `tool_choice` names a tool: OpenAI itself then finishes with `stop`."""
    top_logprobs: int | None = None
    """Number of requested alternatives per token, set where the server may send more."""
    is_json_output: bool = False
    """Whether the text must be JSON: `response_format` json_schema or json_object."""
    is_json_object: bool = False
    """Whether the text must be a JSON object without a schema: `response_format` json_object."""
    needs_object_arguments: bool = False
    """Whether the client's dialect sends tool arguments as an object, so that other arguments cannot be sent."""
    ends_calls: bool = False
    """Whether the client's dialect ends a tool call before the next one, so that nothing can be added to it."""
    stop_strings: tuple[str, ...] = ()
    """Stop strings to match here, in a stream with one choice; the upstream request has none."""
    tool_names: frozenset[str] = frozenset()
    """Names of the functions that the model may call."""
    model: str | None = None


class RepairOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that differ between upstreams."""

    think: ThinkMode = "no"
    """How reasoning in `<think>` tags is separated from the text (chat only)."""
    text: TextMode = "delta"
    """Whether texts are increments or cumulative (chat and completions)."""
    strict: frozenset[str] = frozenset()
    """Ids of rules whose violation is a failure; `all` stands for every rule with a repair."""
    map_failure: FailureMapper | None = None
    """Maps errors of the upstream to the errors that are sent."""
    upstream_dialect: Endpoint | None = None
    """Dialect of the stream, if it is not that of the pipeline's endpoint and has to be translated."""
    json_calls: CallableTools | None = None
    """Functions for which an answer that is only the JSON of a call becomes that call (chat only)."""
    on_reasoning: ReasoningListener | None = None
    """Called with the reasoning members of the first delta (chat only)."""
    finish_reasons: Mapping[str, str] = msgspec.field(default_factory=dict)
    """OpenAI's finish reasons by words of this upstream (chat and completions). They precede the table."""
    accept_fewer_choices: bool = False
    """Whether an answer with fewer choices than requested is sent on, where they cannot be requested again."""
    fingerprint: str | None = None
    """The build of the engine, in place of `envelope.UNKNOWN_BUILD`."""
    unfinished: Failure | None = UNFINISHED
    """Failure of an answer that ends without a finish reason. None: the end of the stream is the end of its answer."""


DEFAULT_OPTIONS = RepairOptions()
_NO_NAMES: frozenset[str] = frozenset()  # each call of `frozenset` makes a new one


def has_plain_text(facts: RequestFacts, options: RepairOptions) -> bool:
    """Whether nothing depends on the text: it is searched for no tags, stop strings, tool calls or JSON."""
    is_searched = facts.stop_strings or facts.tool_names or facts.is_json_output or options.think != "no"
    return not is_searched and options.text == "delta" and options.json_calls is None


def read_request_facts(body: Json) -> RequestFacts:
    """Read the facts from a request body; invalid fields count as absent."""
    options = as_object(body.get("stream_options"))
    include_usage = options.get("include_usage") is True
    n = body.get("n")
    prompts = body.get("prompt")
    count = len(prompts) if isinstance(prompts, list) and prompts and isinstance(prompts[0], str | list) else 1
    model = body.get("model")
    format_type = as_object(body.get("response_format")).get("type")
    tool_names = _NO_NAMES
    if body.get("tools") and body.get("tool_choice") != "none":
        names = [as_object(as_object(tool).get("function")).get("name") for tool in as_list(body["tools"])]
        tool_names = frozenset(name for name in names if isinstance(name, str))
    return RequestFacts(
        include_usage=include_usage,
        continuous_usage=include_usage and options.get("continuous_usage_stats") is True,
        allow_obfuscation=options.get("include_obfuscation") is not False,
        choice_count=count * n if type(n) is int and n > 0 else count,
        uses_legacy_functions=bool(body.get("functions")) and not body.get("tools"),
        has_named_tool=isinstance(body.get("tool_choice"), dict),
        tool_names=tool_names,
        is_json_output=format_type in ("json_schema", "json_object"),
        is_json_object=format_type == "json_object",
        model=model if isinstance(model, str) and model else None,
    )


def think_mode_for(think: ThinkMode, request: Json) -> ThinkMode:
    """Return the think mode for one request to an upstream that is configured as `think`.

    If the request turns thinking off, the chat template opens no tag, so the text does not start inside one.
    """
    return "tags" if think == "open" and is_thinking_off(request) else think


def is_thinking_off(body: Json) -> bool:
    """Whether a request turns thinking off, in any of the spellings of known servers."""
    names = "chat_template_kwargs", "thinking", "reasoning"
    kwargs, thinking, reasoning = (as_object(body.get(name)) for name in names)
    return (
        body.get("reasoning_effort") == "none"
        or body.get("enable_thinking") is False  # Qwen's own API
        or body.get("think") is False  # Ollama
        or any(kwargs.get(name) is False for name in ("enable_thinking", "thinking"))  # vLLM, SGLang, llama.cpp
        or thinking.get("type") == "disabled"  # Z.ai, DeepSeek
        or reasoning.get("effort") == "none"
        or reasoning.get("enabled") is False
    )
