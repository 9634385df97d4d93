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

from welldone.engines.plan import PYTHON
from welldone.serve.errors import ApiError, invalid
from welldone.serve.page import linting
from welldone.serve.requests import fields, read_body
from welldone.wire.events import Json
from welldone.wire.head import Endpoint

WITHIN_S = 60.0
"""For a capture of the longest kind, on a busy machine; on a quiet one it takes two seconds."""
_PASSED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG")
"""Variables that the child gets: none has a secret."""
_MODULE = "welldone.serve.page.lint_child"
_ENDPOINTS = tuple(endpoint.value for endpoint in Endpoint)
_NICE = 10  # streams go before it


class Job(msgspec.Struct, frozen=True):
    """A request for a verdict, as it came."""

    data: bytes
    content_type: str | None
    is_browser: bool


class _Refusal(msgspec.Struct, frozen=True):
    """An error of the request."""

    message: str
    param: str | None = None
    code: str | None = None


async def judge_in_child(job: Job) -> bytes:
    """What is said of a capture.

    Raises:
        ApiError: it cannot be read, takes too long, or there is no child.
    """
    try:
        child = await asyncio.create_subprocess_exec(
            *PYTHON,
            _MODULE,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={name: os.environ[name] for name in _PASSED if name in os.environ},
            start_new_session=True,
        )
    except OSError:
        raise ApiError(503, "No process can be started to judge it.", code="server_busy", retry_after_s=1.0) from None
    try:
        async with asyncio.timeout(WITHIN_S):
            said, _ = await child.communicate(msgspec.msgpack.encode(job))
    except TimeoutError:
        message = f"It takes more than {WITHIN_S:g} seconds to judge this capture: use welldone lint."
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
    refusal = msgspec.json.decode(body, type=_Refusal)
    raise ApiError(int(status), refusal.message, param=refusal.param, code=refusal.code)


def judged(job: Job) -> bytes:
    """What is said of a capture. It takes a while: not for the event loop."""
    body = read_body(job.data, job.content_type, is_browser=job.is_browser)
    found = linting.lint(
        _capture(body),
        endpoint=fields.choice(body, "endpoint", _ENDPOINTS),
        request=fields.table(body, "request"),
        stem=secrets.token_hex(12),
        created=int(time.time()),
    )
    return msgspec.json.encode(found)


def _capture(body: Json) -> bytes:
    """The bytes of the capture, which came as text or in base64."""
    text, encoded = body.get("capture"), body.get("capture_base64")
    if isinstance(text, str):
        capture = text.encode()
    elif isinstance(encoded, str):
        try:
            capture = base64.b64decode(encoded, validate=True)
        except ValueError:
            raise invalid("This is no base64.", param="capture_base64") from None
    else:
        raise invalid("The capture is missing: send it as text in 'capture', or in 'capture_base64'.", param="capture")
    if len(capture) > linting.LIMIT_BYTES:
        limit = linting.LIMIT_BYTES // 2**20
        raise ApiError(413, f"The capture has more than {limit} MiB: use welldone lint, which takes more.")
    return capture


def main() -> None:
    """What the child does."""
    os.nice(_NICE)
    seconds = int(WITHIN_S)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))  # also where its parent is gone
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Job)
    try:
        said = b"200\n" + judged(job)
    except ApiError as error:
        said = b"%d\n" % error.status + msgspec.json.encode(_Refusal(error.message, error.param, error.code))
    sys.stdout.buffer.write(said)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
