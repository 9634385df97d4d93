"""Validation of `/v1/chat/completions` and `/v1/completions` for local models.

Each reader returns the engine's bodies, one per prompt and choice.
"""

import re
from collections.abc import Callable, Mapping

import msgspec

from welldone.config.model import ModelSettings
from welldone.engines.capabilities import ModelCapabilities
from welldone.gateway.errors import ApiError, invalid_request
from welldone.protocol.events import Json
from welldone.server.requests import fields
from welldone.server.requests.fields import JsonSizeLimits, ValidatedRequest, decode_json
from welldone.server.requests.json_schema import SchemaBudget
from welldone.server.requests.media import MEDIA_LIMIT, read_audio, read_image
from welldone.server.requests.output_constraint import (
    ANY_OBJECT,
    VLLM_CONSTRAINT_FIELDS,
    OutputConstraint,
    read_output_constraint,
)
from welldone.server.requests.sampling import (
    CHOICES_LIMIT,
    TOP_LOGPROBS_LIMIT,
    TOTAL_CHOICES_LIMIT,
    UNKNOWN_CAPABILITIES,
    check_context_length,
    check_prompt_tokens,
    engine_request_facts,
    expand_choices,
    extract_stop_strings,
    model_name,
    read_prompts,
    read_sampling,
    read_stream_flag,
    unsupported_by_model,
    with_defaults,
)
from welldone.server.requests.tools import TOOLS_LIMIT, EngineTools, check_function_name, read_tools

MESSAGES_LIMIT = 4_096
"""No common context holds more: each message takes some tokens besides its text."""
CONTENT_PARTS_LIMIT = 1_024
"""Content parts of one message; a page of a book, one part per line, has 40."""
ALL_CONTENT_PARTS_LIMIT = 16_384
"""Content parts of all messages: 4 for each of `MESSAGES_LIMIT`."""
ALL_TOOL_CALLS_LIMIT = 4_096
"""Tool calls of all messages; one message may have `TOOLS_LIMIT`."""
NAME_LIMIT = 256
"""Characters of a name or an id; OpenAI's have at most 64."""

CHAT_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_ENGINE_ROLES = {"developer": "system", "function": "tool"}
_CONTENT_SUBSTITUTES = ("tool_calls", "function_call", "refusal", "reasoning_content", "reasoning")
_LEGACY_CALL_ID = "call_{}"


class ChatMessages(msgspec.Struct):
    """The messages for the engine, and the size of their text."""

    items: list[Json]
    text_bytes: int


def read_messages(body: Json, capabilities: ModelCapabilities) -> ChatMessages:
    """Validate `messages` and convert each to the form that all engines accept."""
    if body.get("messages") is None:
        raise fields.missing("messages")
    values = fields.array(body, "messages", MESSAGES_LIMIT)
    if not values:
        message = "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array."
        raise invalid_request(message, param="messages", code="empty_array")
    reader = _MessageReader(capabilities)
    items = [reader.read(value, f"messages[{index}]") for index, value in enumerate(values)]
    return ChatMessages(items, reader.text_bytes)


def prepend_system_text(items: list[Json], text: str) -> list[Json]:
    """Return the messages with `text` at the start of the system message; templates allow at most one of those."""
    if items[0]["role"] == "system" and isinstance(items[0]["content"], str):
        return [{**items[0], "content": f"{text}\n\n{items[0]['content']}"}, *items[1:]]
    return [{"role": "system", "content": text}, *items]


class _MessageReader:
    def __init__(self, capabilities: ModelCapabilities) -> None:
        self._capabilities = capabilities
        self.text_bytes = 0
        self._media_count = 0
        self._parts_read = 0
        self._calls_read = 0
        self._argument_limits = JsonSizeLimits("arguments")  # of all calls together
        self._legacy_calls = 0  # a `function_call` has no id: its number becomes the id

    def read(self, value: object, param: str) -> Json:
        if not isinstance(value, dict):
            raise fields.wrong_type(param, "an object", value)
        role = fields.choice(value, "role", CHAT_ROLES, f"{param}.")
        if role is None:
            raise fields.missing(f"{param}.role")
        out: Json = {"role": _ENGINE_ROLES.get(role, role), "content": self._content(value, role, param)}
        name = fields.string(value, "name", NAME_LIMIT, f"{param}.")
        if name is not None:
            out["name"] = name
        if role == "assistant":
            reasoning = value.get("reasoning_content")
            reasoning = value.get("reasoning") if reasoning is None else reasoning
            if reasoning is not None:
                out["reasoning_content"] = self._text(reasoning, f"{param}.reasoning_content")
            calls = self._tool_calls(value, param)
            if calls:
                out["tool_calls"] = calls
        elif role == "tool":
            out["tool_call_id"] = self._id(value, "tool_call_id", f"{param}.")
        elif role == "function":
            out["tool_call_id"] = _LEGACY_CALL_ID.format(max(self._legacy_calls - 1, 0))
        return out

    def _content(self, value: Json, role: str, param: str) -> str | list[Json]:
        content = value.get("content")
        match content:
            case str():
                return self._text(content, f"{param}.content")
            case list():
                return self._content_parts(content, role, f"{param}.content")
            case None if role == "assistant" and any(value.get(name) for name in _CONTENT_SUBSTITUTES):
                refusal = value.get("refusal")
                return "" if refusal is None else self._text(refusal, f"{param}.refusal")
            case None if "content" not in value:
                raise fields.missing(f"{param}.content")
            case _:
                raise fields.wrong_type(f"{param}.content", "one of a string or array of objects", content)

    def _content_parts(self, parts: list[object], role: str, param: str) -> str | list[Json]:
        """Join text parts with line breaks, as llama.cpp does. With images or audio among them they stay parts."""
        if len(parts) > CONTENT_PARTS_LIMIT:
            raise fields.too_many(param, CONTENT_PARTS_LIMIT, len(parts))
        self._parts_read += len(parts)
        if self._parts_read > ALL_CONTENT_PARTS_LIMIT:
            raise _too_many_in_total("parts", ALL_CONTENT_PARTS_LIMIT)
        if not parts and role in ("user", "system", "developer"):
            raise invalid_request(
                f"Invalid '{param}': empty array. Expected at least 1 part.", param=param, code="empty_array"
            )
        out = [self._content_part(part, role, f"{param}[{index}]") for index, part in enumerate(parts)]
        if all(part["type"] == "text" for part in out):
            return "\n".join(part["text"] for part in out)
        return out

    def _content_part(self, part: object, role: str, param: str) -> Json:
        if not isinstance(part, dict):
            raise fields.wrong_type(param, "an object", part)
        kind = part.get("type")
        if kind in ("text", "refusal"):
            return {"type": "text", "text": self._text(part.get(kind), f"{param}.{kind}")}
        if kind == "image_url" and role == "user":
            return self._media_part(read_image, part, param, self._capabilities.images, "images")
        if kind == "input_audio" and role == "user":
            return self._media_part(read_audio, part, param, self._capabilities.audio, "audio")
        if kind is None:
            raise fields.missing(f"{param}.type")
        allowed = ("text", "image_url", "input_audio") if role == "user" else ("text",)
        raise fields.wrong_value(f"{param}.type", fields.string_or_type_name(kind), allowed)

    def _media_part(self, read: Callable[[Json, str], Json], part: Json, param: str, is_able: bool, noun: str) -> Json:
        if not is_able:
            raise invalid_request(
                f"Invalid '{param}': this model cannot read {noun}.", param=param, code="unsupported_value"
            )
        self._media_count += 1
        if self._media_count > MEDIA_LIMIT:
            raise too_many_media()
        return read(part, param)

    def _tool_calls(self, value: Json, param: str) -> list[Json]:
        legacy_call = fields.json_object(value, "function_call", f"{param}.")
        if legacy_call is not None:
            self._legacy_calls += 1
            call = {"id": _LEGACY_CALL_ID.format(self._legacy_calls - 1), "function": legacy_call}
            return [self._tool_call(call, param, f"{param}.function_call")]
        calls = []
        given = fields.array(value, "tool_calls", TOOLS_LIMIT, f"{param}.") or []
        self._calls_read += len(given)
        if self._calls_read > ALL_TOOL_CALLS_LIMIT:
            raise _too_many_in_total("tool calls", ALL_TOOL_CALLS_LIMIT)
        for index, item in enumerate(given):
            call_param = f"{param}.tool_calls[{index}]"
            if not isinstance(item, dict):
                raise fields.wrong_type(call_param, "an object", item)
            calls.append(self._tool_call(item, call_param, f"{call_param}.function"))
        return calls

    def _tool_call(self, call: Json, param: str, function_param: str) -> Json:
        if (call.get("type") or "function") != "function":
            raise fields.wrong_value(f"{param}.type", fields.string_or_type_name(call["type"]), ("function",))
        function = fields.json_object(call, "function", f"{param}.")
        if function is None:
            raise fields.missing(function_param)
        name = check_function_name(function.get("name"), f"{function_param}.name")
        arguments = self._arguments(function.get("arguments"), f"{function_param}.arguments")
        return {
            "id": self._id(call, "id", f"{param}."),
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }

    def _arguments(self, value: object, param: str) -> str:
        """Validate tool call arguments: engines parse them, so they must be complete JSON of limited depth."""
        text = self._text(value, param).strip() or "{}"
        check_context_length(self.text_bytes, self._capabilities.context, "messages")
        data = text.encode()
        try:
            self._argument_limits.check(data)
            arguments = decode_json(data)
        except ApiError:
            arguments = None
        if not isinstance(arguments, dict):
            raise invalid_request(
                f"Invalid '{param}': expected a JSON object as a string.", param=param, code="invalid_value"
            )
        return text

    def _id(self, value: Json, name: str, path: str) -> str:
        text = fields.string(value, name, NAME_LIMIT, path)
        if text is None:
            raise fields.missing(path + name)
        return text

    def _text(self, value: object, param: str) -> str:
        if value is None:
            raise fields.missing(param)
        if not isinstance(value, str):
            raise fields.wrong_type(param, "a string", value)
        self.text_bytes += len(value.encode())
        return value


def _too_many_in_total(noun: str, limit: int) -> ApiError:
    message = f"Invalid 'messages': too many {noun}. Expected at most {limit} in one request."
    return invalid_request(message, param="messages", code="array_above_max_length")


def too_many_media() -> ApiError:
    """Return the error for more images and audio clips than a request may have."""
    return _too_many_in_total("images and audio clips", MEDIA_LIMIT)


REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
TEMPLATE_KWARG_NAME = re.compile(r"[a-z_]{1,64}")
TEMPLATE_KWARGS_LIMIT = 32
TEMPLATE_KWARG_LENGTH = 4_096
_END_TOKEN = re.compile(rb"<|\[EO")
"""The start of every end-of-generation token: <|im_end|>, </s>, [EOS]."""
_CONTINUATION_FIELDS = ("continue_final_message", "add_generation_prompt")
MODALITIES_LIMIT = 8  # there are two
# Set by the engine itself: a client could forge messages of other roles with them.
RESERVED_TEMPLATE_KWARGS = frozenset(
    ("tools", "messages", "add_generation_prompt", "tokenize", "bos_token", "eos_token")
)


def read_chat(body: Json, model: ModelSettings, capabilities: ModelCapabilities | None) -> ValidatedRequest:
    """Validate a chat request."""
    capabilities = capabilities or UNKNOWN_CAPABILITIES
    if not capabilities.chat:
        raise unsupported_by_model("chat: it is an embedding or reranking model")
    client_body = body
    body = with_defaults(body, model.defaults)
    stream = read_stream_flag(body)
    engine = read_sampling(body, "chat", capabilities)
    top_logprobs = _read_top_logprobs(body, engine)
    for index, value in enumerate(fields.array(body, "modalities", MODALITIES_LIMIT) or ()):
        if value != "text":
            raise fields.wrong_value(f"modalities[{index}]", fields.string_or_type_name(value), ("text",))
    messages = read_messages(body, capabilities)
    budget = SchemaBudget()
    tools = read_tools(body, capabilities, budget)
    if top_logprobs is not None and tools.body and capabilities.kind == "llama":
        raise fields.unsupported("logprobs", "cannot be used together with tools.")
    if tools.forced_call is not None:  # a stop string would truncate the JSON of the call
        engine.pop("stop", None)
    stops = extract_stop_strings(engine, capabilities)
    constraint = _apply_chat_constraint(body, engine, tools, budget, capabilities)
    if capabilities.kind == "llama":
        _check_jinja(model, tools, constraint)
        _check_continuation(body, messages.items[-1])
        if "response_format" in engine or "grammar" in engine:
            _check_prefill(messages.items[-1])
    tool_list = msgspec.json.encode(tools.body.get("tools") or tools.template_tools or ())
    check_context_length(messages.text_bytes + len(tool_list) - len("[]"), capabilities.context, "messages")
    kwargs = _template_kwargs(client_body, model.defaults, capabilities, tools)
    if kwargs:
        engine["chat_template_kwargs"] = kwargs
    items = messages.items if tools.system_text is None else prepend_system_text(messages.items, tools.system_text)
    bodies = expand_choices([{**engine, **tools.body, "messages": items}], body)
    facts = engine_request_facts(client_body, len(bodies), stops, tools.choice)
    return ValidatedRequest(
        endpoint="chat",
        model=model_name(body),
        is_stream=stream,
        facts=msgspec.structs.replace(facts, count_reasoning_tokens=capabilities.kind == "llama"),
        bodies=bodies,
        forced_call=tools.forced_call,
        top_logprobs=top_logprobs,
    )


def _apply_chat_constraint(
    body: Json, engine_body: Json, tools: EngineTools, budget: SchemaBudget, capabilities: ModelCapabilities
) -> OutputConstraint:
    """Add the constraint of the text to the engine's body. A forced call overrides it: OpenAI constrains text only."""
    is_command = capabilities.kind == "command"
    if is_command:  # it may be vLLM, which supports more constraints
        engine_body |= {
            name: body[name] for name in (*VLLM_CONSTRAINT_FIELDS, *_CONTINUATION_FIELDS) if body.get(name) is not None
        }
        body = {name: value for name, value in body.items() if name not in VLLM_CONSTRAINT_FIELDS}
    constraint = read_output_constraint(body, budget)
    schema = constraint.schema if tools.schema is None else tools.schema
    if schema == ANY_OBJECT and is_command:
        engine_body["response_format"] = {"type": "json_object"}  # more servers support this than schemas
    elif schema is not None:
        engine_body.pop("ignore_eos", None)  # llama.cpp fails at the end of a schema if EOS is not allowed
        json_schema = {"name": "answer", "schema": schema, "strict": True}
        engine_body["response_format"] = {"type": "json_schema", "json_schema": json_schema}
    elif constraint.grammar is not None:
        if tools.body:
            raise fields.unsupported(constraint.param, "cannot be used together with tools.")
        engine_body.pop("ignore_eos", None)
        engine_body["grammar"] = constraint.grammar
    return constraint


def _check_jinja(model: ModelSettings, tools: EngineTools, constraint: OutputConstraint) -> None:
    """Reject tools and constraints without Jinja: llama.cpp ignores them then."""
    is_constrained = constraint.schema is not None or constraint.grammar is not None
    if model.jinja or not (tools.body or tools.schema or is_constrained):
        return
    reason = "cannot be used with this model: the server runs it with --no-jinja. Start it with --jinja."
    raise fields.unsupported("tools" if tools.body or tools.schema else constraint.param, reason)


def _check_continuation(body: Json, last: Json) -> None:
    """Check vLLM's continuation fields: llama.cpp always continues a final assistant message, and no other."""
    continues, begins = (fields.boolean(body, name) for name in _CONTINUATION_FIELDS)
    if continues and begins:
        message = "'continue_final_message' and 'add_generation_prompt' cannot both be true."
        raise invalid_request(message, param=_CONTINUATION_FIELDS[0], code="invalid_value")
    is_prefilled = last["role"] == "assistant"
    for name, value in zip(_CONTINUATION_FIELDS, (continues, None if begins is None else not begins), strict=True):
        if value is not None and value is not is_prefilled:
            reason = "does not match the messages: the last one is continued if, and only if, it is the assistant's."
            raise fields.unsupported(name, reason)


def _check_prefill(last: Json) -> None:
    """Reject end tokens in a prefill with a constraint: llama.cpp runs it through the grammar and aborts at one."""
    if last["role"] == "assistant" and _END_TOKEN.search(msgspec.json.encode(last)):
        reason = "cannot be used if the last message is the assistant's and contains '<' or '[EO'."
        raise fields.unsupported("response_format", reason)


def _read_top_logprobs(body: Json, engine_body: Json) -> int | None:
    """Read `top_logprobs`. The engine gets at least 1: for 0 it sends no log probabilities at all."""
    has_logprobs = fields.boolean(body, "logprobs")
    top = fields.integer(body, "top_logprobs", 0, TOP_LOGPROBS_LIMIT)
    if not has_logprobs:
        if top:
            message = "'top_logprobs' is only allowed when 'logprobs' is true."
            raise invalid_request(message, param="top_logprobs", code="invalid_value")
        return None
    engine_body["logprobs"] = True
    engine_body["top_logprobs"] = max(top or 0, 1)
    return top or 0


def _template_kwargs(
    body: Json, defaults: Mapping[str, object], capabilities: ModelCapabilities, tools: EngineTools
) -> Json:
    """Return the variables of the chat template: the operator's unchanged, the client's if they are scalars."""
    given = fields.json_object(body, "chat_template_kwargs") or {}
    if len(given) > TEMPLATE_KWARGS_LIMIT:
        raise fields.too_many("chat_template_kwargs", TEMPLATE_KWARGS_LIMIT, len(given))
    out: Json = dict(fields.json_object(defaults, "chat_template_kwargs") or {})
    effort = fields.choice(body, "reasoning_effort", REASONING_EFFORTS)
    if effort is not None and capabilities.kind == "llama":
        out |= {"enable_thinking": False} if effort == "none" else {"reasoning_effort": effort}
    for name, value in given.items():
        param = f"chat_template_kwargs.{fields.shorten_value(name)}"
        if not TEMPLATE_KWARG_NAME.fullmatch(name) or name in RESERVED_TEMPLATE_KWARGS:
            raise fields.unsupported(param, "cannot be passed to the chat template.")
        if isinstance(value, list | dict):
            raise fields.wrong_type(param, "a string, number or boolean", value)
        if isinstance(value, str):
            fields.string(given, name, TEMPLATE_KWARG_LENGTH, "chat_template_kwargs.")
        out[name] = value
    if tools.template_tools is not None:
        out["tools"] = tools.template_tools
    return out


DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for completions."""

_COMPLETION_MAX_TOKENS_FIELDS = ("max_tokens", "max_completion_tokens", "n_predict")


def read_completions(body: Json, model: ModelSettings, capabilities: ModelCapabilities | None) -> ValidatedRequest:
    """Validate a completions request."""
    capabilities = capabilities or UNKNOWN_CAPABILITIES
    if not capabilities.chat:
        raise unsupported_by_model("completions: it is an embedding or reranking model")
    client_body = body
    body = with_defaults(body, model.defaults)
    stream = read_stream_flag(body)
    engine = read_sampling(body, "completions", capabilities)
    stops = extract_stop_strings(engine, capabilities)
    if not any(name in body for name in _COMPLETION_MAX_TOKENS_FIELDS):
        engine["max_tokens"] = DEFAULT_MAX_TOKENS
    _apply_completion_constraint(body, engine, capabilities.kind == "command")
    top_logprobs = fields.integer(body, "logprobs", 0, TOP_LOGPROBS_LIMIT)
    if top_logprobs is not None:
        engine["logprobs"] = max(top_logprobs, 1)
    best_of = fields.integer(body, "best_of", 1, CHOICES_LIMIT)
    if best_of is not None and best_of != (fields.integer(body, "n", 1, CHOICES_LIMIT) or 1):
        raise fields.unsupported("best_of", "must equal 'n': this server does not rank answers.")
    items = read_prompts(body, "prompt", TOTAL_CHOICES_LIMIT, capabilities.context)
    prompts = [
        _read_prompt(item, f"prompt[{index}]" if len(items) > 1 else "prompt", capabilities)
        for index, item in enumerate(items)
    ]
    bodies = expand_choices([{**engine, "prompt": prompt} for prompt in prompts], body)
    return ValidatedRequest(
        endpoint="completions",
        model=model_name(body),
        is_stream=stream,
        facts=engine_request_facts(client_body, len(bodies), stops),
        bodies=bodies,
        prompt_count=len(prompts),
        echo=_read_echo(body, prompts),
        top_logprobs=top_logprobs,
    )


def _apply_completion_constraint(body: Json, engine_body: Json, is_command: bool) -> None:
    if is_command:
        engine_body |= {name: body[name] for name in VLLM_CONSTRAINT_FIELDS if body.get(name) is not None}
        body = {name: value for name, value in body.items() if name not in VLLM_CONSTRAINT_FIELDS}
    constraint = read_output_constraint(body, SchemaBudget())
    if constraint.schema is not None:
        engine_body["json_schema"] = constraint.schema
    elif constraint.grammar is not None:
        engine_body["grammar"] = constraint.grammar
    if constraint.schema is not None or constraint.grammar is not None:
        engine_body.pop("ignore_eos", None)  # llama.cpp fails at the end of a grammar if EOS is not allowed


def _read_prompt(item: object, param: str, capabilities: ModelCapabilities) -> str | list[int]:
    if isinstance(item, str):
        check_context_length(len(item.encode()), capabilities.context, "prompt")
        return item
    if not isinstance(item, list) or not item:
        raise fields.wrong_type(param, "a string or an array of token ids", item)
    return check_prompt_tokens(item, param, capabilities)


def _read_echo(body: Json, prompts: list[str | list[int]]) -> list[str] | None:
    if not fields.boolean(body, "echo"):
        return None
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if len(texts) < len(prompts):
        raise fields.unsupported("echo", "needs prompts of text, not of token ids.")
    if fields.integer(body, "logprobs", 0, TOP_LOGPROBS_LIMIT) is not None:
        raise fields.unsupported("echo", "cannot be used with 'logprobs': the engine has none for the prompt.")
    return texts
