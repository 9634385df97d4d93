"""A trace on the disk as one record with its body in it."""

import base64
from pathlib import Path
from typing import Any

import msgspec

from welldone.serve.errors import ApiError

RECORDING_LIMIT_BYTES = 16 * 2**20
"""Of a record and its body together: an answer of some 50,000 chunks. The page has to hold it several times."""


def read_recording(folder: Path, name: str) -> bytes:
    """The record of a trace, with `body_text`, or `body_base64` where the body is not text. It blocks.

    Raises:
        ApiError: 404 where the files are gone, 413 where they are too long.
    """
    try:
        record, body = (_read_limited(folder / f"{name}.{kind}") for kind in ("json", "body"))
    except FileNotFoundError:
        raise recording_not_found() from None
    if len(record) + len(body) > RECORDING_LIMIT_BYTES:
        size = f"more than {RECORDING_LIMIT_BYTES // 2**20} MiB"
        message = f"This recording has {size}. It is in the folder of recordings, in {name}.json and {name}.body."
        raise ApiError(413, message, code="recording_too_long")
    whole: dict[str, Any] = msgspec.json.decode(record, type=dict[str, msgspec.Raw])  # it may hold a long request
    del whole["body"]  # the name of a file that the client does not have
    return msgspec.json.encode(whole | _body_fields(body))


def recording_not_found() -> ApiError:
    """The error for a recording that there is not, or not any more."""
    return ApiError(404, "There is no recording of this request.", code="not_found")


def _read_limited(path: Path) -> bytes:
    """A file, and one byte more than is taken of longer ones."""
    with path.open("rb") as file:
        return file.read(RECORDING_LIMIT_BYTES + 1)


def _body_fields(body: bytes) -> dict[str, str]:
    try:
        return {"body_text": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}
