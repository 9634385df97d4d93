"""A capture judged in a process of its own: what takes seconds must not hold up streams.

The request goes to the child's standard input, and its reply comes from standard output: a line with the status, and
the body, which is the error where the status is not 200.
"""

import asyncio
import base64
import os
import resource
import secrets
import sys
import time

import msgspec

from welldone.engines.plan import PYTHON_MODULE
from welldone.serve.errors import ApiError, invalid_request
from welldone.serve.page import linting
from welldone.serve.requests import fields, read_body
from welldone.wire.events import Json
from welldone.wire.head import Endpoint

LINT_TIMEOUT_S = 60.0
"""For a capture of the longest kind, on a busy machine; on a quiet one it takes two seconds."""
_CHILD_ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG")
"""Variables that the child gets: none has a secret."""
_CHILD_MODULE = "welldone.serve.page.lint_child"
_ENDPOINTS = tuple(endpoint.value for endpoint in Endpoint)
_CHILD_NICENESS = 10  # streams go before it


class LintJob(msgspec.Struct, frozen=True):
    """A request for a verdict, as it came."""

    data: bytes
    content_type: str | None
    is_browser: bool


class _LintError(msgspec.Struct, frozen=True):
    """An error of the request."""

    message: str
    param: str | None = None
    code: str | None = None


async def lint_in_child(job: LintJob) -> bytes:
    """What is said of a capture.

    Raises:
        ApiError: it cannot be read, takes too long, or there is no child.
    """
    try:
        child = await asyncio.create_subprocess_exec(
            *PYTHON_MODULE,
            _CHILD_MODULE,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={name: os.environ[name] for name in _CHILD_ENVIRONMENT if name in os.environ},
            start_new_session=True,
        )
    except OSError:
        raise ApiError(503, "No process can be started to judge it.", code="server_busy", retry_after_s=1.0) from None
    try:
        async with asyncio.timeout(LINT_TIMEOUT_S):
            said, _ = await child.communicate(msgspec.msgpack.encode(job))
    except TimeoutError:
        message = f"It takes more than {LINT_TIMEOUT_S:g} seconds to judge this capture: use welldone lint."
        raise ApiError(413, message) from None
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    status, _, body = said.partition(b"\n")
    if status == b"200":
        return body
    if not status:
        raise ApiError(413, "This capture takes too much memory or time to judge: use welldone lint.")
    refusal = msgspec.json.decode(body, type=_LintError)
    raise ApiError(int(status), refusal.message, param=refusal.param, code=refusal.code)


def run_lint_job(job: LintJob) -> bytes:
    """What is said of a capture. It takes a while: not for the event loop."""
    body = read_body(job.data, job.content_type, is_browser=job.is_browser)
    found = linting.lint_capture(
        _decode_capture(body),
        endpoint=fields.choice(body, "endpoint", _ENDPOINTS),
        request=fields.json_object(body, "request"),
        id_stem=secrets.token_hex(12),
        created=int(time.time()),
    )
    return msgspec.json.encode(found)


def _decode_capture(body: Json) -> bytes:
    """The bytes of the capture, which came as text or in base64."""
    text, encoded = body.get("capture"), body.get("capture_base64")
    if isinstance(text, str):
        capture = text.encode()
    elif isinstance(encoded, str):
        try:
            capture = base64.b64decode(encoded, validate=True)
        except ValueError:
            raise invalid_request("This is no base64.", param="capture_base64") from None
    else:
        raise invalid_request(
            "The capture is missing: send it as text in 'capture', or in 'capture_base64'.", param="capture"
        )
    if len(capture) > linting.LINT_LIMIT_BYTES:
        limit = linting.LINT_LIMIT_BYTES // 2**20
        raise ApiError(413, f"The capture has more than {limit} MiB: use welldone lint, which takes more.")
    return capture


def main() -> None:
    """What the child does."""
    os.nice(_CHILD_NICENESS)
    seconds = int(LINT_TIMEOUT_S)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))  # also where its parent is gone
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=LintJob)
    try:
        said = b"200\n" + run_lint_job(job)
    except ApiError as error:
        said = b"%d\n" % error.status + msgspec.json.encode(_LintError(error.message, error.param, error.code))
    sys.stdout.buffer.write(said)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
