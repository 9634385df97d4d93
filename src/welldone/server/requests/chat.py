"""Validation of `/v1/chat/completions` and `/v1/completions` for local models.

Each reader returns the engine's bodies, one per prompt and choice.
"""

import re
from collections.abc import Mapping, Sequence

import msgspec

from welldone.config.model import ModelSettings
from welldone.core.events import Json
from welldone.core.request_facts import read_request_facts
from welldone.engines.capabilities import ModelCapabilities
from welldone.gateway.errors import ApiError, invalid_request
from welldone.schemas import chat as chat_schema
from welldone.schemas import messages as schema
from welldone.schemas.chat import ChatRequest, CompletionRequest
from welldone.schemas.errors import shorten_value
from welldone.server.requests import fields, sampling
from welldone.server.requests.fields import JsonSizeLimits, ValidatedRequest, decode_json
from welldone.server.requests.json_schema import SchemaBudget
from welldone.server.requests.sampling import OutputConstraint
from welldone.server.requests.tools import MEDIA_LIMIT, EngineTools, read_audio, read_image, read_tools

ALL_CONTENT_PARTS_LIMIT = 16_384
"""Content parts of all messages: 4 for each of `MESSAGES_LIMIT`."""
ALL_TOOL_CALLS_LIMIT = 4_096
"""Tool calls of all messages; one message may have `TOOLS_LIMIT`."""

_LEGACY_CALL_ID = "call_{}"


def prepend_system_text(items: list[Json], text: str) -> list[Json]:
    """Return the messages with `text` at the start of the system message; templates allow at most one of those."""
    if items[0]["role"] == "system" and isinstance(items[0]["content"], str):
        return [{**items[0], "content": f"{text}\n\n{items[0]['content']}"}, *items[1:]]
    return [{"role": "system", "content": text}, *items]


class _MessageReader:
    """Converts messages to the form that all engines accept."""

    def __init__(self, capabilities: ModelCapabilities) -> None:
        self._capabilities = capabilities
        self.text_bytes = 0
        self._media_count = 0
        self._parts_read = 0
        self._calls_read = 0
        self._argument_limits = JsonSizeLimits("arguments")  # of all calls together
        self._legacy_calls = 0  # a `function_call` has no id: its number becomes the id

    def read(self, message: schema.Message, param: str) -> Json:
        if isinstance(message, schema.AssistantMessage):
            return self._assistant_message(message, param)
        out: Json = {"role": message.__struct_config__.tag, "content": self._content(message.content, param)}
        if message.name is not None:
            out["name"] = message.name
        match message:
            case schema.DeveloperMessage():
                out["role"] = "system"
            case schema.ToolMessage():
                out["tool_call_id"] = message.tool_call_id
            case schema.FunctionMessage():
                out["role"] = "tool"
                out["tool_call_id"] = _LEGACY_CALL_ID.format(max(self._legacy_calls - 1, 0))
            case _:
                pass
        return out

    def _assistant_message(self, message: schema.AssistantMessage, param: str) -> Json:
        content = message.content
        reasoning = message.reasoning if message.reasoning_content is None else message.reasoning_content
        is_optional = message.tool_calls or message.function_call or message.refusal or reasoning or message.reasoning
        if content is None or isinstance(content, msgspec.UnsetType):
            if not is_optional and content is None:
                raise fields.wrong_type(f"{param}.content", "a string or an array", None)
            if not is_optional:
                raise fields.missing(f"{param}.content")
            content = "" if message.refusal is None else _text(message.refusal, f"{param}.refusal")
        out: Json = {"role": "assistant", "content": self._content(content, param)}
        if message.name is not None:
            out["name"] = message.name
        if reasoning is not None:
            out["reasoning_content"] = self._count(_text(reasoning, f"{param}.reasoning_content"))
        if message.function_call is not None:
            self._legacy_calls += 1
            call_id = _LEGACY_CALL_ID.format(self._legacy_calls - 1)
            out["tool_calls"] = [self._tool_call(call_id, message.function_call, f"{param}.function_call")]
        elif message.tool_calls:
            self._calls_read += len(message.tool_calls)
            if self._calls_read > ALL_TOOL_CALLS_LIMIT:
                raise _too_many_in_total("tool calls", ALL_TOOL_CALLS_LIMIT)
            out["tool_calls"] = calls = []
            for index, tool_call in enumerate(message.tool_calls):
                call_param = f"{param}.tool_calls[{index}]"
                if tool_call.type and tool_call.type != "function":
                    raise fields.wrong_value(f"{call_param}.type", tool_call.type, ("function",))
                if tool_call.function is None:
                    raise fields.missing(f"{call_param}.function")
                calls.append(self._tool_call(tool_call.id, tool_call.function, f"{call_param}.function"))
        return out

    def _content(self, content: str | Sequence[schema.UserContentPart], param: str) -> str | list[Json]:
        """Join text parts with line breaks, as llama.cpp does. With images or audio among them they stay parts."""
        if isinstance(content, str):
            return self._count(content)
        self._parts_read += len(content)
        if self._parts_read > ALL_CONTENT_PARTS_LIMIT:
            raise _too_many_in_total("parts", ALL_CONTENT_PARTS_LIMIT)
        out = [self._content_part(user_part, f"{param}.content[{index}]") for index, user_part in enumerate(content)]
        if all(content_part["type"] == "text" for content_part in out):
            return "\n".join(content_part["text"] for content_part in out)
        return out

    def _content_part(self, user_part: schema.UserContentPart, param: str) -> Json:
        if isinstance(user_part, schema.TextPart):
            return {"type": "text", "text": self._count(user_part.text)}
        if isinstance(user_part, schema.RefusalPart):
            return {"type": "text", "text": self._count(user_part.refusal)}
        is_image = isinstance(user_part, schema.ImagePart)
        if not (self._capabilities.images if is_image else self._capabilities.audio):
            reason = f"this model cannot read {'images' if is_image else 'audio'}."
            raise fields.invalid(param, reason, "unsupported_value")
        self._media_count += 1
        if self._media_count > MEDIA_LIMIT:
            raise _too_many_in_total("images and audio clips", MEDIA_LIMIT)
        return read_image(user_part, param) if isinstance(user_part, schema.ImagePart) else read_audio(user_part, param)

    def _tool_call(self, call_id: str, function: schema.FunctionCall, param: str) -> Json:
        """Return a call. Engines parse its arguments, so they must be complete JSON of limited depth."""
        text = self._count(function.arguments).strip() or "{}"
        sampling.check_context_length(self.text_bytes, self._capabilities.context, "messages")
        data = text.encode()
        try:
            self._argument_limits.check(data)
            arguments = decode_json(data)
        except ApiError:
            arguments = None
        if not isinstance(arguments, dict):
            raise fields.invalid(f"{param}.arguments", "expected a JSON object as a string.")
        return {"id": call_id, "type": "function", "function": {"name": function.name, "arguments": text}}

    def _count(self, text: str) -> str:
        self.text_bytes += len(text) if text.isascii() else len(text.encode())
        return text


def _text(value: object, param: str) -> str:
    if not isinstance(value, str):
        raise fields.wrong_type(param, "a string", value)
    return value


def _too_many_in_total(noun: str, limit: int) -> ApiError:
    reason = f"too many {noun}. Expected at most {limit} in one request."
    return fields.invalid("messages", reason, "array_above_max_length")


_END_TOKEN = re.compile(rb"<|\[EO")
"""The start of every end-of-generation token: <|im_end|>, </s>, [EOS]."""
_CONTINUATION_FIELDS = ("continue_final_message", "add_generation_prompt")
_TEMPLATE_KWARG_NAME = re.compile(chat_schema.TEMPLATE_KWARG_NAME)


def read_chat(body: Json, model: ModelSettings, capabilities: ModelCapabilities) -> ValidatedRequest:
    """Validate a chat request."""
    if not capabilities.chat:
        raise sampling.unsupported_by_model("chat: it is an embedding or reranking model")
    client_body = body
    body = sampling.with_defaults(body, model.defaults)
    forwarded = _take_command_fields(body, capabilities, (*sampling.VLLM_FIELDS, *_CONTINUATION_FIELDS))
    if body.get("tools"):  # the legacy form is ignored beside the new one
        body.pop("functions", None)
    elif body.get("tools") == {}:  # some clients send an empty object
        del body["tools"]
    request = sampling.read_generation_request(body, ChatRequest)
    engine = sampling.engine_sampling(request, body, capabilities) | forwarded
    top_logprobs = _read_top_logprobs(request, engine)
    _check_logprobs(top_logprobs, capabilities)
    for index, value in enumerate(request.modalities or ()):
        if value != "text":
            raise fields.wrong_value(f"modalities[{index}]", value, ("text",))
    reader = _MessageReader(capabilities)
    messages = [reader.read(message, f"messages[{index}]") for index, message in enumerate(request.messages)]
    budget = SchemaBudget()
    tools = read_tools(request, capabilities, budget)
    if top_logprobs is not None and tools.body and capabilities.kind == "llama":
        raise fields.unsupported("logprobs", "cannot be used together with tools.")
    if tools.forced_call is not None:  # a stop string would truncate the JSON of the call
        engine.pop("stop", None)
    stops = sampling.extract_stop_strings(engine, capabilities)
    constraint = _apply_chat_constraint(request, engine, tools, budget, capabilities)
    if capabilities.kind == "llama":
        _check_jinja(model, tools, constraint)
        _check_continuation(request, messages[-1])
        if "response_format" in engine or "grammar" in engine:
            _check_prefill(messages[-1])
    tool_list = msgspec.json.encode(tools.body.get("tools") or tools.template_tools or ())
    sampling.check_context_length(reader.text_bytes + len(tool_list) - len("[]"), capabilities.context, "messages")
    kwargs = _template_kwargs(client_body, model.defaults, capabilities, tools)
    if kwargs:
        engine["chat_template_kwargs"] = kwargs
    items = messages if tools.system_text is None else prepend_system_text(messages, tools.system_text)
    bodies = sampling.expand_choices([{**engine, **tools.body, "messages": items}], request)
    facts = read_request_facts({**client_body, "tool_choice": tools.choice})
    return ValidatedRequest(
        is_stream=request.stream is True,
        facts=msgspec.structs.replace(
            facts,
            is_usage_forced=True,
            choice_count=len(bodies),
            stop_strings=stops,
            count_reasoning_tokens=capabilities.kind == "llama",
            top_logprobs=top_logprobs,
        ),
        bodies=bodies,
        forced_call=tools.forced_call,
    )


def _take_command_fields(body: Json, capabilities: ModelCapabilities, names: tuple[str, ...]) -> Json:
    """Remove and return the fields that a user's command gets unchecked: it may be vLLM, which supports more."""
    if capabilities.kind != "command":
        return {}
    return {name: body.pop(name) for name in names if name in body}


def _apply_chat_constraint(
    request: ChatRequest, engine_body: Json, tools: EngineTools, budget: SchemaBudget, capabilities: ModelCapabilities
) -> OutputConstraint:
    """Add the constraint of the text to the engine's body. A forced call overrides it: OpenAI constrains text only."""
    is_command = capabilities.kind == "command"
    constraint = sampling.read_output_constraint(request, budget)
    schema = constraint.schema if tools.schema is None else tools.schema
    if schema == sampling.ANY_OBJECT and is_command:
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


def _check_continuation(request: ChatRequest, last: Json) -> None:
    """Check vLLM's continuation fields: llama.cpp always continues a final assistant message, and no other."""
    continues, begins = request.continue_final_message, request.add_generation_prompt
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


def _read_top_logprobs(request: ChatRequest, engine_body: Json) -> int | None:
    """Read `top_logprobs`. The engine gets at least 1: for 0 it sends no log probabilities at all."""
    top = request.top_logprobs
    if not request.logprobs:
        if top:
            message = "'top_logprobs' is only allowed when 'logprobs' is true."
            raise invalid_request(message, param="top_logprobs", code="invalid_value")
        return None
    engine_body["logprobs"] = True
    engine_body["top_logprobs"] = max(top or 0, 1)
    return top or 0


def _check_logprobs(top_logprobs: int | None, capabilities: ModelCapabilities) -> None:
    if top_logprobs is not None and not capabilities.logprobs:
        raise fields.unsupported("logprobs", "cannot be used with this model: it runs with speculative decoding.")


def _template_kwargs(
    body: Json, defaults: Mapping[str, object], capabilities: ModelCapabilities, tools: EngineTools
) -> Json:
    """Return the variables of the chat template: the operator's unchanged, the client's if they are scalars.

    `body`: the client's, without defaults.
    """
    default_kwargs = defaults.get("chat_template_kwargs")
    out: Json = dict(default_kwargs) if isinstance(default_kwargs, dict) else {}
    effort = body.get("reasoning_effort")
    if effort is not None and capabilities.kind == "llama":
        out |= {"enable_thinking": False} if effort == "none" else {"reasoning_effort": effort}
    client_kwargs = body.get("chat_template_kwargs") or {}
    for name, value in client_kwargs.items():
        param = f"chat_template_kwargs.{shorten_value(name)}"
        if not _TEMPLATE_KWARG_NAME.fullmatch(name) or name in chat_schema.RESERVED_TEMPLATE_KWARGS:
            raise fields.unsupported(param, "cannot be passed to the chat template.")
        if isinstance(value, list | dict):
            raise fields.wrong_type(param, "a string, number or boolean", value)
        if isinstance(value, str) and len(value) > (limit := chat_schema.TEMPLATE_KWARG_LENGTH):
            raise fields.too_long(param, limit, len(value))
        out[name] = value
    if tools.template_tools is not None:
        out["tools"] = tools.template_tools
    return out


DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for completions."""


def read_completions(body: Json, model: ModelSettings, capabilities: ModelCapabilities) -> ValidatedRequest:
    """Validate a completions request."""
    if not capabilities.chat:
        raise sampling.unsupported_by_model("completions: it is an embedding or reranking model")
    client_body = body
    body = sampling.with_defaults(body, model.defaults)
    forwarded = _take_command_fields(body, capabilities, sampling.VLLM_FIELDS)
    request = sampling.read_generation_request(body, CompletionRequest)
    engine = sampling.engine_sampling(request, body, capabilities) | forwarded
    stops = sampling.extract_stop_strings(engine, capabilities)
    if not any(name in body for name in sampling.MAX_TOKENS_FIELDS):
        engine["max_tokens"] = DEFAULT_MAX_TOKENS
    constraint = sampling.read_output_constraint(request, SchemaBudget())
    if constraint.schema is not None or constraint.grammar is not None:
        engine.pop("ignore_eos", None)  # llama.cpp fails at the end of a grammar if EOS is not allowed
        engine |= {"grammar": constraint.grammar} if constraint.schema is None else {"json_schema": constraint.schema}
    top_logprobs = request.logprobs
    _check_logprobs(top_logprobs, capabilities)
    if top_logprobs is not None:
        engine["logprobs"] = max(top_logprobs, 1)
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise fields.unsupported("best_of", "must equal 'n': this server does not rank answers.")
    prompts = sampling.read_prompts(request.prompt, "prompt", chat_schema.TOTAL_CHOICES_LIMIT, capabilities)
    bodies = sampling.expand_choices([{**engine, "prompt": prompt} for prompt in prompts], request)
    facts = read_request_facts({**client_body, "tool_choice": None})
    return ValidatedRequest(
        is_stream=request.stream is True,
        facts=msgspec.structs.replace(
            facts, is_usage_forced=True, choice_count=len(bodies), stop_strings=stops, top_logprobs=top_logprobs
        ),
        bodies=bodies,
        prompt_count=len(prompts),
        echo=_read_echo(request, prompts),
    )


def _read_echo(request: CompletionRequest, prompts: list[str | list[int]]) -> list[str] | None:
    if not request.echo:
        return None
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if len(texts) < len(prompts):
        raise fields.unsupported("echo", "needs prompts of text, not of token ids.")
    if request.logprobs is not None:
        raise fields.unsupported("echo", "cannot be used with 'logprobs': the engine has none for the prompt.")
    return texts
