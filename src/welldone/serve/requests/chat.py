"""`/v1/chat/completions`: the body checked, and what the engine gets for each choice."""

import re
from collections.abc import Mapping

import msgspec

from welldone.engines.abilities import ModelCapabilities
from welldone.engines.settings import ModelSettings
from welldone.serve.errors import invalid_request
from welldone.serve.requests import fields
from welldone.serve.requests.formats import ANY_OBJECT, VLLM_CONSTRAINT_FIELDS, OutputConstraint, read_output_constraint
from welldone.serve.requests.messages import prepend_system_text, read_messages
from welldone.serve.requests.request import ValidatedRequest
from welldone.serve.requests.sampling import (
    TOP_LOGPROBS_LIMIT,
    UNKNOWN_ABILITIES,
    unsupported_by_model,
    check_context_length,
    read_stream_flag,
    model_name,
    engine_request_facts,
    read_sampling,
    expand_choices,
    extract_stop_strings,
    with_defaults,
)
from welldone.serve.requests.schema import SchemaBudget
from welldone.serve.requests.tools import EngineTools, read_tools
from welldone.wire.events import Json

REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
TEMPLATE_KWARG_NAME = re.compile(r"[a-z_]{1,64}")
TEMPLATE_KWARGS_LIMIT = 32
TEMPLATE_KWARG_LENGTH = 4_096
_END_TOKEN = re.compile(rb"<|\[EO")
"""How all words begin that end an answer of some model: <|im_end|>, </s>, [EOS]."""
_CONTINUATION_FIELDS = ("continue_final_message", "add_generation_prompt")
MODALITIES_LIMIT = 8  # there are two
# What the engine itself gives the template: a client that gave it could say what others said.
RESERVED_TEMPLATE_KWARGS = frozenset(
    ("tools", "messages", "add_generation_prompt", "tokenize", "bos_token", "eos_token")
)


def read_chat(body: Json, model: ModelSettings, abilities: ModelCapabilities | None) -> ValidatedRequest:
    """A request for a chat, checked."""
    able = abilities or UNKNOWN_ABILITIES
    if not able.chat:
        raise unsupported_by_model("chat: it makes embeddings or ranks")
    asked = body
    body = with_defaults(body, model.defaults)
    stream = read_stream_flag(body)
    engine = read_sampling(body, "chat", able)
    top = _read_top_logprobs(body, engine)
    _check_modalities(body)
    messages = read_messages(body, able)
    budget = SchemaBudget()
    tools = read_tools(body, able, budget)
    if top is not None and tools.body and able.kind == "llama":
        raise fields.unsupported("logprobs", "cannot be had together with tools.")
    if tools.forced_call is not None:  # what was to end a text would cut the JSON of the call
        engine.pop("stop", None)
    stops = extract_stop_strings(engine, able)
    form = _apply_chat_constraint(body, engine, tools, budget, able)
    if able.kind == "llama":
        _check_jinja(model, tools, form)
        _check_continuation(body, messages.items[-1])
        if "response_format" in engine or "grammar" in engine:
            _check_prefill(messages.items[-1])
    listed = msgspec.json.encode(tools.body.get("tools") or tools.template_tools or ())
    check_context_length(messages.text_bytes + len(listed) - len("[]"), able.context, "messages")
    kwargs = _template_kwargs(asked, model.defaults, able, tools)
    if kwargs:
        engine["chat_template_kwargs"] = kwargs
    items = messages.items if tools.system_text is None else prepend_system_text(messages.items, tools.system_text)
    parts = expand_choices([{**engine, **tools.body, "messages": items}], body)
    return ValidatedRequest(
        endpoint="chat",
        model=model_name(body),
        is_stream=stream,
        facts=msgspec.structs.replace(
            engine_request_facts(asked, len(parts), stops, tools.choice), count_reasoning_tokens=able.kind == "llama"
        ),
        bodies=parts,
        forced_call=tools.forced_call,
        top_logprobs=top,
    )


def _apply_chat_constraint(
    body: Json, engine_body: Json, tools: EngineTools, budget: SchemaBudget, abilities: ModelCapabilities
) -> OutputConstraint:
    """What the text must be, put into the engine's body. A forced call is stronger: OpenAI constrains texts only."""
    is_command = abilities.kind == "command"
    if is_command:  # it may be vLLM, which knows more of them
        engine_body |= {
            name: body[name] for name in (*VLLM_CONSTRAINT_FIELDS, *_CONTINUATION_FIELDS) if body.get(name) is not None
        }
        body = {name: value for name, value in body.items() if name not in VLLM_CONSTRAINT_FIELDS}
    form = read_output_constraint(body, budget)
    schema = form.schema if tools.schema is None else tools.schema
    if schema == ANY_OBJECT and is_command:
        engine_body["response_format"] = {"type": "json_object"}  # every server knows it, and not every one schemas
    elif schema is not None:
        engine_body.pop("ignore_eos", None)  # where a schema is at its end, llama.cpp fails if it may not end
        named = {"name": "answer", "schema": schema, "strict": True}
        engine_body["response_format"] = {"type": "json_schema", "json_schema": named}
    elif form.grammar is not None:
        if tools.body:
            raise fields.unsupported(form.param, "cannot be used together with tools.")
        engine_body.pop("ignore_eos", None)
        engine_body["grammar"] = form.grammar
    return form


def _check_jinja(model: ModelSettings, tools: EngineTools, constraint: OutputConstraint) -> None:
    """Without a template of its own an engine drops constraints, and answers as if there were none."""
    is_formed = constraint.schema is not None or constraint.grammar is not None
    if model.jinja or not (tools.body or tools.schema or is_formed):
        return
    why = "cannot be used with this model: the server runs it with --no-jinja. Start it with --jinja."
    raise fields.unsupported("tools" if tools.body or tools.schema else constraint.param, why)


def _check_continuation(body: Json, last: Json) -> None:
    """vLLM's fields for who speaks next. llama.cpp continues a last message of the assistant, and else begins one."""
    continues, begins = (fields.boolean(body, name) for name in _CONTINUATION_FIELDS)
    if continues and begins:
        message = "'continue_final_message' and 'add_generation_prompt' cannot both be true."
        raise invalid_request(message, param=_CONTINUATION_FIELDS[0], code="invalid_value")
    is_begun = last["role"] == "assistant"
    for name, value in zip(_CONTINUATION_FIELDS, (continues, None if begins is None else not begins), strict=True):
        if value is not None and value is not is_begun:
            why = "cannot be followed here: the last message is continued if it is the assistant's, and only then."
            raise fields.unsupported(name, why)


def _check_prefill(last: Json) -> None:
    """What the assistant has begun goes through the grammar first: a word that ends an answer ends llama.cpp there."""
    if last["role"] == "assistant" and _END_TOKEN.search(msgspec.json.encode(last)):
        why = "cannot be had where the last message is the assistant's and has '<' or '[EO' in it."
        raise fields.unsupported("response_format", why)


def _read_top_logprobs(body: Json, engine_body: Json) -> int | None:
    """How many alternatives to show. The engine gives none at all where 0 are asked for: so 1 is."""
    wanted = fields.boolean(body, "logprobs")
    top = fields.integer(body, "top_logprobs", 0, TOP_LOGPROBS_LIMIT)
    if not wanted:
        if top:
            message = "'top_logprobs' is only allowed when 'logprobs' is true."
            raise invalid_request(message, param="top_logprobs", code="invalid_value")
        return None
    engine_body["logprobs"] = True
    engine_body["top_logprobs"] = max(top or 0, 1)
    return top or 0


def _check_modalities(body: Json) -> None:
    for place, value in enumerate(fields.array(body, "modalities", MODALITIES_LIMIT) or ()):
        if value != "text":
            shown = value if isinstance(value, str) else fields.json_type_name(value)
            raise fields.wrong_value(f"modalities[{place}]", shown, ("text",))


def _template_kwargs(
    body: Json, defaults: Mapping[str, object], abilities: ModelCapabilities, tools: EngineTools
) -> Json:
    """Values for the chat template: the operator's as they are, the client's if they are plain."""
    given = fields.json_object(body, "chat_template_kwargs") or {}
    if len(given) > TEMPLATE_KWARGS_LIMIT:
        raise fields.too_many("chat_template_kwargs", TEMPLATE_KWARGS_LIMIT, len(given))
    out: Json = dict(fields.json_object(defaults, "chat_template_kwargs") or {})
    effort = fields.choice(body, "reasoning_effort", REASONING_EFFORTS)
    if effort is not None and abilities.kind == "llama":
        out |= {"enable_thinking": False} if effort == "none" else {"reasoning_effort": effort}
    for name, value in given.items():
        param = f"chat_template_kwargs.{fields.shorten_value(name)}"
        if not TEMPLATE_KWARG_NAME.fullmatch(name) or name in RESERVED_TEMPLATE_KWARGS:
            raise fields.unsupported(param, "cannot be given to the chat template.")
        if isinstance(value, list | dict):
            raise fields.wrong_type(param, "a plain value", value)
        if isinstance(value, str):
            fields.string(given, name, TEMPLATE_KWARG_LENGTH, "chat_template_kwargs.")
        out[name] = value
    if tools.template_tools is not None:
        out["tools"] = tools.template_tools
    return out
