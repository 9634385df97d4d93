"""Requests for servers that others run: checked as far as a gateway must, and all else passed on as it came.

Such a server judges its own fields, and knows more of them than we do. Fields that name a server or carry a key never
go on: where a request goes, and with which key, is for the operator to say.
"""

import msgspec

from welldone.serve.errors import invalid_request
from welldone.serve.requests import fields
from welldone.serve.requests.request import ValidatedRequest
from welldone.serve.requests.sampling import model_name
from welldone.serve.requests.table import TextEndpoint
from welldone.wire import head as wire
from welldone.wire.asked import CHAT_CHOICES_LIMIT, COMPLETIONS_CHOICES_LIMIT, read_request_facts
from welldone.wire.events import Json

UPSTREAM_REQUESTS_LIMIT = 128
"""Requests that one request may become: as many as the answers that OpenAI gives to one."""

_REQUIRED_FIELDS = {
    "chat": ("messages",),
    "completions": ("prompt", "prompt_embeds"),
}  # one of them; the last is vLLM's
# LiteLLM took such fields from clients, and sent its keys where they said (CVE-2024-6587).
_ROUTING_FIELDS = frozenset(
    (
        "api_base",
        "api_key",
        "api_type",
        "api_version",
        "base_url",
        "custom_llm_provider",
        "extra_headers",
        "fallbacks",
        "headers",
        "litellm_params",
        "model_list",
        "models",
        "organization",
        "route",
        "user_config",
    )
)
_ROUTING_PREFIXES = ("aws_", "azure_", "vertex_")
# What servers refuse in a stream, or give in whole replies only: vLLM's `prompt_logprobs` and beam search, and OpenAI's
# audio, which is one format in a stream and six without.
_NON_STREAMING_FIELDS = ("prompt_logprobs", "use_beam_search", "audio")


def read_upstream_request(
    body: Json, endpoint: TextEndpoint, *, supports_n: bool, supports_streaming: bool, wants_usage: bool = True
) -> ValidatedRequest:
    """A request for an upstream.

    Args:
        body: what `read_body` gave.
        endpoint: chat or completions.
        makes_choices: whether the upstream makes several choices; else it is asked for one at a time.
        streams: whether the upstream streams; then it is asked to, whatever the client wants: it hears sooner that
            its client has left, and we hear sooner that it hangs.
        wants_usage: whether the upstream is asked for usage.
    """
    _check_required_fields(body, endpoint)
    is_stream = fields.boolean(body, "stream") is True
    options = fields.json_object(body, "stream_options") or {}
    n = fields.integer(body, "n", 1, CHAT_CHOICES_LIMIT) or 1
    prompts = _split_prompts(body) if endpoint == "completions" else [{}]
    _check_choice_count(len(prompts), n, COMPLETIONS_CHOICES_LIMIT if supports_n else UPSTREAM_REQUESTS_LIMIT)
    base = without_routing_fields(body)
    base.pop("model", None)
    base["stream"] = supports_streaming and (is_stream or not _needs_buffered_reply(body, n))
    _set_stream_options(base, options, wants_usage)
    parts = [base] if supports_n else _expand_choices(base, prompts, n)
    return ValidatedRequest(
        endpoint=endpoint,
        model=model_name(body),
        is_stream=is_stream,
        facts=msgspec.structs.replace(read_request_facts(body), choice_count=len(prompts) * n),
        bodies=parts,
        prompt_count=1 if supports_n else len(prompts),
    )


def read_same_dialect_request(body: Json, endpoint: wire.Endpoint, *, supports_streaming: bool) -> ValidatedRequest:
    """A request for an upstream that speaks the client's dialect: its own words go on. `streams`: it can stream."""
    is_stream = fields.boolean(body, "stream") is True
    base = without_routing_fields(body)
    base.pop("model", None)
    if is_stream:
        base["stream"] = supports_streaming
    return ValidatedRequest(endpoint=endpoint.value, model=model_name(body), is_stream=is_stream, bodies=[base])


def _check_required_fields(body: Json, endpoint: TextEndpoint) -> None:
    names = _REQUIRED_FIELDS[endpoint]
    value = next((body[name] for name in names if body.get(name) is not None), None)
    if value is None:
        raise fields.missing(names[0])
    if endpoint == "chat" and not isinstance(value, list):
        raise fields.wrong_type("messages", "an array of objects", value)
    if value == []:
        message = f"Invalid '{names[0]}': empty array. Expected an array with minimum length 1, but got an empty array."
        raise invalid_request(message, param=names[0], code="empty_array")


def _split_prompts(body: Json) -> list[Json]:
    """What each prompt changes in the body. A list of token ids is one prompt."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and not isinstance(prompt[0], int):
        return [{"prompt": item} for item in prompt]
    return [{}]


def _check_choice_count(prompts: int, n: int, limit: int) -> None:
    if prompts * n > limit:
        message = f"Invalid 'n': {prompts} prompts with {n} answers each; at most {limit} answers are given."
        raise invalid_request(message, param="n", code="integer_above_max_value")


def without_routing_fields(body: Json) -> Json:
    """A body without the fields that name a server or carry a key."""
    return {k: v for k, v in body.items() if k not in _ROUTING_FIELDS and not k.startswith(_ROUTING_PREFIXES)}


def _needs_buffered_reply(body: Json, n: int) -> bool:
    best = body.get("best_of")
    return (best is not None and best != n) or any(body.get(name) for name in _NON_STREAMING_FIELDS)


def _set_stream_options(base: Json, options: Json, wants_usage: bool) -> None:
    """What is said of the stream: usage for our own counting; and nothing where there is no stream, since vLLM and
    OpenAI refuse that."""
    options = {key: value for key, value in options.items() if key != "include_usage"}
    if wants_usage:
        options["include_usage"] = True
    base.pop("stream_options", None)
    if base["stream"] and options:
        base["stream_options"] = options


def _expand_choices(base: Json, prompts: list[Json], n: int) -> list[Json]:
    """One body for each choice, with seeds that differ."""
    best = base.pop("best_of", None)
    if best is not None and best != n:
        raise fields.unsupported("best_of", "must be the same as 'n' here: the upstream makes one answer at a time.")
    base.pop("n", None)
    return [{**base, **prompt, **_choice_seed(base, number, n)} for prompt in prompts for number in range(n)]


def _choice_seed(base: Json, number: int, n: int) -> Json:
    seed = base.get("seed")
    if n == 1 or type(seed) is not int or seed == -1:  # -1 is llama.cpp's word for "any"
        return {}
    return {"seed": seed + number}
