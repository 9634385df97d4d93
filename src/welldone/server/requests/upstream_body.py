"""Request bodies for upstreams: validated as far as a gateway must, with all other fields forwarded unchanged.

An upstream validates its own fields, and has more of them. Fields that select a server or carry a key are never
forwarded: the operator alone decides about routes and keys.
"""

import re
from collections.abc import Generator

import msgspec

from welldone.core.events import Json
from welldone.core.request_facts import COMPLETIONS_CHOICES_LIMIT, read_request_facts
from welldone.gateway.errors import ApiError, invalid_request
from welldone.schemas.chat import ModelRequest, SameDialectRequest, UpstreamRequest
from welldone.server.requests import fields
from welldone.server.requests.fields import ValidatedRequest, read_body_in_steps

UPSTREAM_REQUESTS_LIMIT = 128
"""Upstream requests for one client request: OpenAI's limit for `n`."""

_REQUIRED_FIELDS = {"chat": ("messages",), "completions": ("prompt", "prompt_embeds")}  # one of them
# LiteLLM accepted such fields from clients, and sent its keys to their servers (CVE-2024-6587).
_ROUTING_FIELDS = frozenset(
    (
        *("api_base", "api_key", "api_type", "api_version", "base_url", "custom_llm_provider", "extra_headers"),
        *("fallbacks", "headers", "litellm_params", "model_list", "models", "organization", "route", "user_config"),
    )
)
_ROUTING_PREFIXES = ("aws_", "azure_", "vertex_")
# Not available in streams: vLLM's `prompt_logprobs` and beam search, and five of the six formats of OpenAI's audio.
_NON_STREAMING_FIELDS = ("prompt_logprobs", "use_beam_search", "audio")


def read_upstream_request(body: Json, endpoint: str, *, supports_n: bool, wants_usage: bool = True) -> ValidatedRequest:
    """Validate a chat or completions request for an upstream.

    It is sent as a stream even if the client wants a whole reply: the upstream notices earlier that the client has
    disconnected, and the gateway that the upstream hangs.

    Args:
        body: the decoded body.
        endpoint: chat or completions.
        supports_n: the upstream supports several choices; otherwise it gets one request per choice.
        wants_usage: request usage from the upstream.
    """
    _check_required_fields(body, endpoint)
    request = fields.read_fields(body, UpstreamRequest)
    n, is_stream = request.n or 1, request.stream is True
    prompts: list[Json] = [{}]  # what each prompt changes in the body; an array of token ids is one prompt
    prompt = body.get("prompt")
    if endpoint == "completions" and isinstance(prompt, list) and not isinstance(prompt[0], int):
        prompts = [{"prompt": item} for item in prompt]
    limit = COMPLETIONS_CHOICES_LIMIT if supports_n else UPSTREAM_REQUESTS_LIMIT
    if len(prompts) * n > limit:
        reason = f"{len(prompts)} prompts with {n} choices each. Expected at most {limit} in total."
        raise fields.invalid("n", reason, "integer_above_max_value")
    base = without_routing_fields(body)
    base.pop("model", None)
    is_streamable = body.get("best_of") in (None, n) and not any(body.get(name) for name in _NON_STREAMING_FIELDS)
    base["stream"] = is_stream or is_streamable
    _set_stream_options(base, request.stream_options or {}, wants_usage)
    bodies = [base] if supports_n else _expand_choices(base, prompts, n)
    return ValidatedRequest(
        is_stream=is_stream,
        facts=msgspec.structs.replace(read_request_facts(body), is_usage_forced=True, choice_count=len(prompts) * n),
        bodies=bodies,
        prompt_count=1 if supports_n else len(prompts),
    )


def read_same_dialect_request(body: Json) -> ValidatedRequest:
    """Validate a request for an upstream with the client's dialect; its fields are forwarded unchanged."""
    request = fields.read_fields(body, SameDialectRequest)
    base = without_routing_fields(body)
    base.pop("model", None)
    return ValidatedRequest(is_stream=request.stream is True, bodies=[base])


def _check_required_fields(body: Json, endpoint: str) -> None:
    names = _REQUIRED_FIELDS[endpoint]
    value = next((body[name] for name in names if body.get(name) is not None), None)
    if value is None:
        raise fields.missing(names[0])
    if endpoint == "chat" and not isinstance(value, list):
        raise fields.wrong_type("messages", "an array of objects", value)
    if value == []:
        raise fields.empty_array(names[0])


def without_routing_fields(body: Json) -> Json:
    """Return a body without the fields that select a server or carry a key."""
    return {k: v for k, v in body.items() if k not in _ROUTING_FIELDS and not k.startswith(_ROUTING_PREFIXES)}


def _set_stream_options(base: Json, options: Json, wants_usage: bool) -> None:
    """Request usage, for the gateway's counters. Without a stream drop the options: vLLM and OpenAI reject them."""
    options = {key: value for key, value in options.items() if key != "include_usage"}
    if wants_usage:
        options["include_usage"] = True
    base.pop("stream_options", None)
    if base["stream"] and options:
        base["stream_options"] = options


def _expand_choices(base: Json, prompts: list[Json], n: int) -> list[Json]:
    """Return one body per choice, with distinct seeds."""
    best_of = base.pop("best_of", None)
    if best_of is not None and best_of != n:
        raise fields.unsupported("best_of", "must equal 'n': the upstream generates one choice per request.")
    base.pop("n", None)
    seed = base.get("seed")
    seeds: list[Json] = [{}] * n
    if n > 1 and type(seed) is int and seed != -1:  # llama.cpp reads -1 as "random seed"
        seeds = [{"seed": seed + number} for number in range(n)]
    return [{**base, **prompt, **choice_seed} for prompt in prompts for choice_seed in seeds]


# Bodies of passthrough endpoints: JSON, or a multipart form with files. Only the model name is read and replaced.
#
# JSON is encoded anew: for a duplicate key two parsers may read different values, and an API key for one model would
# give access to another. A form is forwarded byte for byte, so it must be unambiguous, or is rejected.

_MULTIPART_TYPE = "multipart/form-data"
_JSON_TYPE = "application/json"
_FORM_PARTS_LIMIT = 128  # OpenAI's largest form has 16 images and 15 fields
_PART_HEADERS_LIMIT_BYTES = 4_096  # browsers send two lines
_BOUNDARY = re.compile(
    r";\s*(boundary=(?:\"([0-9a-z'()+_,./:=?-]{1,70})\"|([0-9a-z'+_.-]{1,70})))\s*(?:;|$)", re.IGNORECASE
)
_PARAMETER = re.compile(r";[ \t]*([\w-]+)=(?:\"([^\"]*)\"|([^\";\s]+))[ \t]*")
_DISPOSITION = re.compile(rf"content-disposition:[ \t]*form-data((?:{_PARAMETER.pattern})+)", re.IGNORECASE)
_CRLF = b"\r\n"


class PassthroughBody(msgspec.Struct, frozen=True):
    """A body to forward: JSON or a form."""

    content_type: str = _JSON_TYPE
    model: str | None = None
    """The model name as the client sent it."""
    json: Json | None = None
    form: bytes = b""
    model_span: tuple[int, int] | None = None
    """Position of the model name in the form."""

    def encode(self, model: str) -> bytes:
        """Encode the body with the upstream's name of the model."""
        if self.json is not None:
            replaced: Json = {"model": model} if model else {}
            return msgspec.json.encode({**without_routing_fields(self.json), **replaced})
        if self.model_span is None or not model:
            return self.form
        start, end = self.model_span
        return self.form[:start] + model.encode() + self.form[end:]


def is_multipart_form(content_type: str | None) -> bool:
    """Whether the content type is multipart/form-data."""
    return (content_type or "").partition(";")[0].strip().lower() == _MULTIPART_TYPE


def read_upload_in_steps(
    data: bytes, content_type: str | None, *, is_browser: bool = False
) -> Generator[None, None, PassthroughBody]:
    """Read the body of a passthrough endpoint and its model. Yields between slow steps.

    Raises:
        ApiError: the body is neither JSON nor an unambiguous form.
    """
    if content_type is None or not is_multipart_form(content_type):
        body = yield from read_body_in_steps(data, content_type, is_browser=is_browser)
        return PassthroughBody(model=fields.read_fields(body, ModelRequest).model, json=body)
    match = _BOUNDARY.search(content_type)
    if match is None:
        raise _invalid_form("its Content-Type has no valid boundary")
    span = _find_model_span(data, (match[2] or match[3]).encode())
    model = None if span is None else _decode_model_name(data[slice(*span)])
    return PassthroughBody(content_type=f"{_MULTIPART_TYPE}; {match[1]}", model=model, form=data, model_span=span)


def _find_model_span(data: bytes, boundary: bytes) -> tuple[int, int] | None:
    """Return the position of the value of the field `model`."""
    line = b"--" + boundary
    if not data.startswith(line + _CRLF):
        raise _invalid_form("it does not start with its boundary")
    span: tuple[int, int] | None = None
    offset = len(line) + len(_CRLF)
    for _ in range(_FORM_PARTS_LIMIT):
        start = data.find(_CRLF * 2, offset, offset + _PART_HEADERS_LIMIT_BYTES)
        end = data.find(_CRLF + line, start + 4) if start >= 0 else -1
        if end < 0:
            raise _invalid_form("a part has no end")
        if _part_field_name(data[offset:start]) == "model":
            if span is not None:
                raise _invalid_form("it has two fields 'model'")
            span = (start + 4, end)
        offset = end + len(_CRLF + line) + 2
        if data[offset - 2 : offset] == b"--" and data[offset:] in (b"", _CRLF):
            return span
        if data[offset - 2 : offset] != _CRLF:
            raise _invalid_form("a boundary is followed by other data")
    raise _invalid_form(f"it has more than {_FORM_PARTS_LIMIT} parts")


def _part_field_name(part_headers: bytes) -> str:
    try:
        lines = part_headers.decode().split("\r\n")
    except UnicodeDecodeError:
        raise _invalid_form("the headers of a part are not UTF-8") from None
    dispositions = [line for line in lines if line.lower().startswith("content-disposition")]
    disposition = _DISPOSITION.fullmatch(dispositions[0]) if len(dispositions) == 1 else None
    parameters = _PARAMETER.findall(disposition[1]) if disposition is not None else []
    names: list[str] = [quoted or bare for name, quoted, bare in parameters if name.lower() == "name"]
    if len(names) != 1 or "\\" in names[0] or any("\n" in line or "\r" in line for line in lines):
        raise _invalid_form("the headers of a part are invalid or ambiguous")
    return names[0]


def _decode_model_name(value: bytes) -> str:
    try:
        name = value.decode()
    except UnicodeDecodeError:
        name = "\0"
    if not name.isprintable():
        raise _invalid_form("the model name is not printable text")
    return fields.read_fields({"model": name}, ModelRequest).model or ""


def _invalid_form(reason: str) -> ApiError:
    return invalid_request(f"Invalid form: {reason}.", code="invalid_form")
