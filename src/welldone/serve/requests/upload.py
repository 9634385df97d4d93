"""Bodies that pass to an upstream as they are: JSON, or a form with files. Only the model's name is read of them.

JSON is encoded anew: where a name stands twice, two parsers may take different ones, and a key that is good for one
model would do for another. A form is kept byte for byte, so it must be plain: what a parser could read in two ways is
refused.
"""

import re
from collections.abc import Generator

import msgspec

from welldone.serve.errors import ApiError, invalid
from welldone.serve.requests.body import reading_body
from welldone.serve.requests.foreign import without_routing
from welldone.serve.requests.sampling import model_name
from welldone.wire.events import Json

_FORM = "multipart/form-data"
_JSON = "application/json"
_PARTS_LIMIT = 128  # OpenAI's largest form has 16 images and 15 fields
_HEAD_LIMIT_BYTES = 4_096  # of one part; browsers write two lines
_BOUNDARY = re.compile(
    r";\s*(boundary=(?:\"([0-9a-z'()+_,./:=?-]{1,70})\"|([0-9a-z'+_.-]{1,70})))\s*(?:;|$)", re.IGNORECASE
)
_PARAMETER = re.compile(r";[ \t]*([\w-]+)=(?:\"([^\"]*)\"|([^\";\s]+))[ \t]*")
_DISPOSITION = re.compile(rf"content-disposition:[ \t]*form-data((?:{_PARAMETER.pattern})+)", re.IGNORECASE)
_END = b"\r\n"


class Upload(msgspec.Struct, frozen=True):
    """A body on its way to an upstream."""

    content_type: str = _JSON
    model: str | None = None
    """As the client wrote it."""
    json: Json | None = None
    """The body, where it is JSON."""
    form: bytes = b""
    """The body, where it is a form."""
    place: tuple[int, int] | None = None
    """Where in the form the model's name stands."""

    def body(self, model: str) -> bytes:
        """The bytes that go on, with the name that the upstream has for the model."""
        if self.json is not None:
            named: Json = {"model": model} if model else {}
            return msgspec.json.encode({**without_routing(self.json), **named})
        if self.place is None or not model:
            return self.form
        start, end = self.place
        return self.form[:start] + model.encode() + self.form[end:]


def is_form(content_type: str | None) -> bool:
    """Whether a body of this type is a form with files."""
    return (content_type or "").partition(";")[0].strip().lower() == _FORM


def reading_upload(data: bytes, content_type: str | None, *, is_browser: bool = False) -> Generator[None, None, Upload]:
    """A body, and the model that it names, in steps of which each takes a turn.

    Raises:
        ApiError: it is neither JSON nor a plain form.
    """
    if content_type is None or not is_form(content_type):
        body = yield from reading_body(data, content_type, is_browser=is_browser)
        return Upload(model=model_name(body), json=body)
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise _unclear("its Content-Type has no plain boundary")
    place = _find_model(data, (found[2] or found[3]).encode())
    model = None if place is None else _name(data[slice(*place)])
    return Upload(content_type=f"{_FORM}; {found[1]}", model=model, form=data, place=place)


def _find_model(data: bytes, boundary: bytes) -> tuple[int, int] | None:
    """Where the value of the field `model` stands."""
    line = b"--" + boundary
    if not data.startswith(line + _END):
        raise _unclear("it does not begin with its boundary")
    found: tuple[int, int] | None = None
    at = len(line) + len(_END)
    for _ in range(_PARTS_LIMIT):
        start = data.find(_END * 2, at, at + _HEAD_LIMIT_BYTES)
        end = data.find(_END + line, start + 4) if start >= 0 else -1
        if end < 0:
            raise _unclear("a part of it has no end")
        if _field(data[at:start]) == "model":
            if found is not None:
                raise _unclear("it names two models")
            found = (start + 4, end)
        at = end + len(_END + line) + 2
        if data[at - 2 : at] == b"--" and data[at:] in (b"", _END):
            return found
        if data[at - 2 : at] != _END:
            raise _unclear("something stands after its boundary")
    raise _unclear(f"it has more than {_PARTS_LIMIT} parts")


def _field(head: bytes) -> str:
    """The name of a part's field."""
    try:
        lines = head.decode().split("\r\n")
    except UnicodeDecodeError:
        raise _unclear("the head of a part is not UTF-8") from None
    said = [line for line in lines if line.lower().startswith("content-disposition")]
    disposition = _DISPOSITION.fullmatch(said[0]) if len(said) == 1 else None
    given = _PARAMETER.findall(disposition[1]) if disposition is not None else []
    names: list[str] = [quoted or bare for name, quoted, bare in given if name.lower() == "name"]
    if len(names) != 1 or "\\" in names[0] or any("\n" in line or "\r" in line for line in lines):
        raise _unclear("the head of a part is not plain")
    return names[0]


def _name(value: bytes) -> str:
    try:
        name = value.decode()
    except UnicodeDecodeError:
        name = "\0"
    if not name.isprintable():
        raise _unclear("the model's name is no plain text")
    return model_name({"model": name}) or ""


def _unclear(why: str) -> ApiError:
    return invalid(f"The form cannot be read: {why}.", code="invalid_form")
