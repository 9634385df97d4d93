"""A request for a response, and the pipelines that repair and write its response."""

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from welldone.core.answer_format import AnswerFormat
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import Json
from welldone.core.json_tool_calls import callable_tools
from welldone.core.request_facts import DEFAULT_OPTIONS, RepairOptions, has_plain_text, think_mode_for
from welldone.core.text_filters import TextMode, ThinkMode
from welldone.dialects.chat.deltas import REASONING_FIELDS
from welldone.dialects.registry import SAME_DIALECT_ENDPOINTS, passthrough_repairer_for
from welldone.gateway.backends import Backend, BackendLease
from welldone.gateway.error_mapping import sanitize_failure, unfinished_upstream
from welldone.gateway.upstream import Upstream
from welldone.server.requests.fields import ValidatedRequest
from welldone.stream.fan_out import FanOut
from welldone.stream.pipeline import BufferedPipeline, StreamPipeline
from welldone.stream.replay import AnyPipeline

# The field of a chat delta that carries reasoning. OpenAI's API has none. Most clients read DeepSeek's
# `reasoning_content`; `reasoning` is OpenRouter's, and vLLM's since 2026. Some clients show the text twice if both are
# sent, so the default is one of them.

REASONING_CONTENT, REASONING = REASONING_FIELDS

_FIELDS_BY_SETTING = {
    REASONING_CONTENT: (REASONING_CONTENT,),
    REASONING: (REASONING,),
    "both": REASONING_FIELDS,
}

_FIELD_BY_CLIENT = (
    # The start of a product in the User-Agent, in lower case, and the field that this client reads.
    ("codex", REASONING),  # openai/codex, chat_completions.rs: reads no other
    ("pydantic-ai", REASONING),  # prefers it
    ("openrouter", REASONING),  # its own SDKs
    ("zed", REASONING_CONTENT),  # reads and shows both
    ("ai-sdk", REASONING_CONTENT),  # prefers it
    ("goose", REASONING_CONTENT),  # reads no other
    ("langchain4j", REASONING_CONTENT),  # reads no other
)
"""Known clients. All others get `reasoning_content`."""


def reasoning_fields_for(user_agent: str | None, setting: str) -> tuple[str, ...]:
    """Return the fields that carry reasoning. `setting`: reasoning_content, reasoning, both or auto."""
    fixed = _FIELDS_BY_SETTING.get(setting)
    if fixed is not None:
        return fixed
    for product in (user_agent or "").lower().split():
        for start, name in _FIELD_BY_CLIENT:
            if product.startswith(start):
                return (name,)
    return (REASONING_CONTENT,)


class GenerationRequest(msgspec.Struct, kw_only=True):
    """A translated request for a response."""

    body: Json
    """The body for the backend, in the format of `endpoint`."""
    id: str
    """Id of the response."""
    endpoint: Endpoint = Endpoint.CHAT
    """Endpoint of the backend: chat for all dialects, unless the upstream supports the client's."""
    dialect: AnswerFormat | None = None
    """Format of the answer, if the client has another dialect than the backend; for Gemini also of the same one."""
    field_names: Mapping[str, str] = {}
    """The client's names for fields of the body, or prefixes of them, where they differ."""
    ignored_fields: tuple[str, ...] = ()
    """The client's fields that have no effect, and are reported."""
    echo: Json = {}
    """Fields of the request that a response repeats."""
    is_long: bool = False
    """Whether its validation takes long, though the client's body is short: a stored conversation goes on."""
    repairer_options: Mapping[str, Any] = {}
    """Options of the repairer of a same-dialect response."""
    forwarded_headers: Mapping[str, str] = {}
    """The client's headers that an upstream with the same dialect receives."""
    on_end: Callable[[Json | None], None] | None = None
    """Called at the end with the complete response as an object, or None."""

    is_same_dialect: bool = False
    """Whether the upstream speaks the client's dialect, which is not that of chat. It follows from `endpoint`."""

    def __post_init__(self) -> None:
        self.is_same_dialect = self.endpoint in SAME_DIALECT_ENDPOINTS


def pipeline_factory(
    gen_request: GenerationRequest,
    request: ValidatedRequest,
    backend: Backend,
    envelope: Envelope,
    *,
    reasoning: tuple[str, ...],
    is_continuable: bool = False,
) -> Callable[[], AnyPipeline]:
    """Return a factory of identical pipelines. It has no reference to the bodies: a capture may keep it for long."""
    endpoint, dialect, model = gen_request.endpoint, gen_request.dialect, backend.reported_model
    if gen_request.is_same_dialect:
        return partial(
            passthrough_repairer_for,
            endpoint,
            fallback=envelope,
            model=model,
            is_stream=request.is_stream,
            **gen_request.repairer_options,
        )
    make = partial(
        StreamPipeline if request.is_stream else BufferedPipeline,
        endpoint,
        fallback=envelope,
        facts=request.facts,
        fan_out=FanOut(len(request.bodies), request.prompt_count, tuple(request.echo or ())),
        forced=request.forced_call,
        model=model,
        reasoning=reasoning,
        is_continuable=is_continuable,
    )
    return make if dialect is None else lambda: make(dialect=copy.copy(dialect))  # it has state


def reasoning_input_fields(upstream: Upstream, model: str) -> Sequence[str]:
    """Return the fields in which a model of an upstream reads the reasoning of earlier answers.

    They are those of its last answer, and before the first one both: Ollama reads only `reasoning`, llama.cpp only
    `reasoning_content`.
    """
    setting = upstream.settings.reasoning_input
    return _FIELDS_BY_SETTING.get(setting) or upstream.reasoning_fields.get(model, REASONING_FIELDS)


def with_reasoning_fields(body: Json, names: Sequence[str]) -> Json:
    """Return a chat request with the reasoning of earlier answers in these fields. Different texts are joined."""
    messages = [
        _with_reasoning(message, names) if isinstance(message, dict) and message.get("role") == "assistant" else message
        for message in body["messages"]
    ]
    return {**body, "messages": messages}


def _with_reasoning(message: Json, names: Sequence[str]) -> Json:
    sent = {name: message[name] for name in REASONING_FIELDS if message.get(name)}
    if not sent or not all(isinstance(value, str) for value in sent.values()):
        return message
    # Fields that stay keep their places: a message that needs no change has the same bytes.
    kept = {name: value for name, value in message.items() if name in names or name not in sent}
    return kept | dict.fromkeys(names, "\n\n".join(dict.fromkeys(sent.values())))


def template_key(
    gen_request: GenerationRequest,
    request: ValidatedRequest,
    lease: BackendLease,
    options: RepairOptions,
    reported_model: str | None,
) -> Hashable:
    """Return all that a stream of text depends on, for `TemplateCache`; None if it may depend on more."""
    facts = request.facts
    is_chat_stream = request.is_stream and gen_request.endpoint.is_chat and gen_request.dialect is None
    is_chat_stream = is_chat_stream and options.upstream_dialect is None
    is_single = len(request.bodies) == facts.choice_count == 1
    if not (is_chat_stream and is_single and request.forced_call is None and has_plain_text(facts, options)):
        return None
    words = tuple(options.finish_reasons.items())
    return lease.upstream is None, lease.name, lease.model, reported_model, facts, options.strict, words


def upstream_dialect(gen_request: GenerationRequest, upstream: Upstream | None) -> Endpoint | None:
    """Return the dialect to which a request is translated for an upstream; None if it is not."""
    return None if upstream is None or gen_request.is_same_dialect else upstream.chat_dialect


def repair_options(lease: BackendLease, body: Json, dialect: Endpoint | None) -> RepairOptions:
    """Return how the reply of a backend to this body is repaired. It was translated to `dialect`, if that is set."""
    upstream = lease.upstream
    if upstream is None:
        tools = callable_tools(body) if lease.converts_json_calls else None
        return RepairOptions(json_calls=tools, fingerprint=lease.fingerprint)
    settings = upstream.settings
    unfinished = unfinished_upstream(upstream.unfinished_count + 1) if settings.ends == "finish" else None
    return RepairOptions(
        think=think_mode_for(cast("ThinkMode", settings.think), body),
        text=cast("TextMode", settings.text),
        strict=frozenset(settings.strict) if settings.strict else DEFAULT_OPTIONS.strict,
        on_reasoning=partial(upstream.record_reasoning_fields, lease.model),
        map_failure=lambda failure: failure if failure is unfinished else sanitize_failure(failure, upstream.secrets),
        upstream_dialect=dialect,
        json_calls=callable_tools(body, is_upstream=True) if settings.json_tool_calls else None,
        unfinished=unfinished,
        finish_reasons=settings.finish_reasons,
    )
