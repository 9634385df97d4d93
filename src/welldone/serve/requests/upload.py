"""Bodies that pass to an upstream as they are: JSON, or a form with files. Only the model's name is read of them.

JSON is encoded anew: where a name stands twice, two parsers may take different ones, and a key that is good for one
model would do for another. A form is kept byte for byte, so it must be plain: what a parser could read in two ways is
refused.
"""

import re
from collections.abc import Generator

import msgspec

from welldone.serve.errors import ApiError, invalid_request
from welldone.serve.requests.body import read_body_in_steps
from welldone.serve.requests.foreign import without_routing_fields
from welldone.serve.requests.sampling import model_name
from welldone.wire.events import Json

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
