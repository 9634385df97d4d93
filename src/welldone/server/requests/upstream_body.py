"""Requests for servers that others run: checked as far as a gateway must, and all else passed on as it came.

Such a server judges its own fields, and knows more of them than we do. Fields that name a server or carry a key never
go on: where a request goes, and with which key, is for the operator to say.
"""

import re
from collections.abc import Generator

import msgspec

from welldone.gateway.errors import ApiError, invalid_request
from welldone.protocol import envelope as wire
from welldone.protocol.events import Json
from welldone.protocol.request_facts import CHAT_CHOICES_LIMIT, COMPLETIONS_CHOICES_LIMIT, read_request_facts
from welldone.server.requests import fields
from welldone.server.requests.fields import TextEndpoint, ValidatedRequest, read_body_in_steps
from welldone.server.requests.sampling import model_name

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


# Bodies that pass to an upstream as they are: JSON, or a form with files. Only the model's name is read of them.
#
# JSON is encoded anew: where a name stands twice, two parsers may take different ones, and a key that is good for one
# model would do for another. A form is kept byte for byte, so it must be plain: what a parser could read in two ways is
# refused.


_MULTIPART_TYPE = "multipart/form-data"
_JSON_TYPE = "application/json"
_FORM_PARTS_LIMIT = 128  # OpenAI's largest form has 16 images and 15 fields
_PART_HEADERS_LIMIT_BYTES = 4_096  # of one part; browsers write two lines
_BOUNDARY = re.compile(
    r";\s*(boundary=(?:\"([0-9a-z'()+_,./:=?-]{1,70})\"|([0-9a-z'+_.-]{1,70})))\s*(?:;|$)", re.IGNORECASE
)
_PARAMETER = re.compile(r";[ \t]*([\w-]+)=(?:\"([^\"]*)\"|([^\";\s]+))[ \t]*")
_DISPOSITION = re.compile(rf"content-disposition:[ \t]*form-data((?:{_PARAMETER.pattern})+)", re.IGNORECASE)
_CRLF = b"\r\n"


class PassthroughBody(msgspec.Struct, frozen=True):
    """A body on its way to an upstream."""

    content_type: str = _JSON_TYPE
    model: str | None = None
    """As the client wrote it."""
    json: Json | None = None
    """The body, where it is JSON."""
    form: bytes = b""
    """The body, where it is a form."""
    model_span: tuple[int, int] | None = None
    """Where in the form the model's name stands."""

    def encode(self, model: str) -> bytes:
        """The bytes that go on, with the name that the upstream has for the model."""
        if self.json is not None:
            named: Json = {"model": model} if model else {}
            return msgspec.json.encode({**without_routing_fields(self.json), **named})
        if self.model_span is None or not model:
            return self.form
        start, end = self.model_span
        return self.form[:start] + model.encode() + self.form[end:]


def is_multipart_form(content_type: str | None) -> bool:
    """Whether a body of this type is a form with files."""
    return (content_type or "").partition(";")[0].strip().lower() == _MULTIPART_TYPE


def read_upload_in_steps(
    data: bytes, content_type: str | None, *, is_browser: bool = False
) -> Generator[None, None, PassthroughBody]:
    """A body, and the model that it names, in steps of which each takes a turn.

    Raises:
        ApiError: it is neither JSON nor a plain form.
    """
    if content_type is None or not is_multipart_form(content_type):
        body = yield from read_body_in_steps(data, content_type, is_browser=is_browser)
        return PassthroughBody(model=model_name(body), json=body)
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise _invalid_form("its Content-Type has no plain boundary")
    place = _find_model_span(data, (found[2] or found[3]).encode())
    model = None if place is None else _decode_model_name(data[slice(*place)])
    return PassthroughBody(content_type=f"{_MULTIPART_TYPE}; {found[1]}", model=model, form=data, model_span=place)


def _find_model_span(data: bytes, boundary: bytes) -> tuple[int, int] | None:
    """Where the value of the field `model` stands."""
    line = b"--" + boundary
    if not data.startswith(line + _CRLF):
        raise _invalid_form("it does not begin with its boundary")
    found: tuple[int, int] | None = None
    at = len(line) + len(_CRLF)
    for _ in range(_FORM_PARTS_LIMIT):
        start = data.find(_CRLF * 2, at, at + _PART_HEADERS_LIMIT_BYTES)
        end = data.find(_CRLF + line, start + 4) if start >= 0 else -1
        if end < 0:
            raise _invalid_form("a part of it has no end")
        if _part_field_name(data[at:start]) == "model":
            if found is not None:
                raise _invalid_form("it names two models")
            found = (start + 4, end)
        at = end + len(_CRLF + line) + 2
        if data[at - 2 : at] == b"--" and data[at:] in (b"", _CRLF):
            return found
        if data[at - 2 : at] != _CRLF:
            raise _invalid_form("something stands after its boundary")
    raise _invalid_form(f"it has more than {_FORM_PARTS_LIMIT} parts")


def _part_field_name(part_headers: bytes) -> str:
    """The name of a part's field."""
    try:
        lines = part_headers.decode().split("\r\n")
    except UnicodeDecodeError:
        raise _invalid_form("the head of a part is not UTF-8") from None
    said = [line for line in lines if line.lower().startswith("content-disposition")]
    disposition = _DISPOSITION.fullmatch(said[0]) if len(said) == 1 else None
    given = _PARAMETER.findall(disposition[1]) if disposition is not None else []
    names: list[str] = [quoted or bare for name, quoted, bare in given if name.lower() == "name"]
    if len(names) != 1 or "\\" in names[0] or any("\n" in line or "\r" in line for line in lines):
        raise _invalid_form("the head of a part is not plain")
    return names[0]


def _decode_model_name(value: bytes) -> str:
    try:
        name = value.decode()
    except UnicodeDecodeError:
        name = "\0"
    if not name.isprintable():
        raise _invalid_form("the model's name is no plain text")
    return model_name({"model": name}) or ""


def _invalid_form(reason: str) -> ApiError:
    return invalid_request(f"The form cannot be read: {reason}.", code="invalid_form")
