"""With random invalid replies a run ends with a report or an error message, and every format can be rendered."""

import json
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from tests.check.serving import SHORT_TIMEOUTS
from tests.http.aio import run
from welldone.check import reports
from welldone.check.discovery import CheckUnreachableError
from welldone.check.report import Report
from welldone.check.reports import text
from welldone.check.run import NothingToCheckError, check
from welldone.check.settings import DIALECTS, CheckSettings
from welldone.http.address import Address
from welldone.http.connect import HttpClientError
from welldone.http.recording_client import RecordedResponse
from welldone.mock.reference.server import ReferenceServer
from welldone.mock.server import MockHttpRequest

pytestmark = pytest.mark.tier3

DEEP = b'{"choices":' * 5_000
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 7, 1.5, 10**30, -(10**400), 1e308, float("nan"), float("inf")),
    *("", "x", "assistant", "stop", "\ud800", "\x00\x1b[31m", "\u202e", "y" * 5_000, "data: [DONE]"),
    *([], {}, [[]], [None], {"a": {"b": [{}]}}, {"index": 10**20}, {"choices": [{"delta": {"content": 3}}]}),
)
"""Values that replace others in a reply."""
BODIES = (
    *(b"", b"\n\n", b"null", b"[]", b"{}", b"{", b"\xff\xfe\xfd", b"\xef\xbb\xbf{}", b"<html>", DEEP),
    *(b"data: [DONE]\n\n", b"data: {}\n\n", b"data:" * 1_000, b"data: " + DEEP + b"\n\n", b"9" * 6_000),
    *(b'{"error":{"message":["\\ud800"]}}', b'{"error":[]}', b'{"data":[{"id":"\\ud800"}]}', b'{"usage":7}'),
)
STATUSES = (200, 200, 200, 201, 204, 301, 400, 401, 404, 418, 429, 500, 503, 599, 999)
HEADERS = (
    ("Content-Type", "text/event-stream"),
    ("Content-Type", "application/json"),
    ("content-type", "text/html; charset=\xe9"),
    ("Server", "\x01\xff"),
    ("Location", "http://\x07/"),
    ("Access-Control-Allow-Origin", "*"),
    ("Content-Encoding", "br"),
)


class Hostile:
    """Returns replies of the reference server, modified ones, and unrelated ones."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._oddness = self._random.choice((0.02, 0.3, 0.9))
        self._ideal = ReferenceServer()

    async def __call__(
        self,
        address: Address,
        method: str,
        path: str,
        *,
        body: bytes | None,
        headers: tuple[tuple[str, str | None], ...],
        leave: Callable[[bytes], bool] | None,
        **_: float,
    ) -> RecordedResponse:
        """Replaces `recording_client.record_response`."""
        sent = {name.lower(): value or "" for name, value in headers}
        reply = self._ideal.answer(
            MockHttpRequest(method, address.prefix + path, sent, (body or b"").decode("utf-8", "replace"))
        )
        if self._random.random() > self._oddness:
            return self._recording(reply.status, tuple(reply.headers.items()), reply.body, leave)
        if self._random.random() < 0.05:
            raise HttpClientError("no connection to the server")
        status = self._random.choice((reply.status, *STATUSES))
        received = (*self._random.sample(HEADERS, 2), ("Retry-After", "0"), *reply.headers.items())
        return self._recording(status, received, self._body(reply.body), leave)

    def _recording(
        self,
        status: int,
        headers: tuple[tuple[str, str], ...],
        body: bytes,
        leave: Callable[[bytes], bool] | None,
    ) -> RecordedResponse:
        is_cut = self._random.random() < self._oddness / 4
        is_left = leave is not None and leave(body)
        return RecordedResponse(
            status=None if is_cut and self._random.random() < 0.3 else status,
            headers=headers,
            body=body,
            pieces=self._random.choice((None, (len(body),))),
            is_complete=not is_cut and not is_left,
            head_s=0.0,
            arrivals=((0.0, len(body) // 2), (0.1, len(body))),
            ended_s=0.1,
            error="the connection was lost before the reply was complete" if is_cut else None,
            is_aborted=is_left,
            is_abandoned=is_cut and self._random.random() < 0.1,
        )

    def _body(self, body: bytes) -> bytes:
        dice = self._random.random()
        if dice < 0.2:
            return self._random.choice(BODIES)
        if dice < 0.3:
            return self._random.randbytes(self._random.randrange(200))
        if dice < 0.4:
            return body[: self._random.randrange(len(body) + 1)]
        return b"\n".join(self._line(line) for line in body.split(b"\n"))

    def _line(self, line: bytes) -> bytes:
        start = b"data: " if line.startswith(b"data: ") else b""
        try:
            value = json.loads(line.removeprefix(start))
        except ValueError:
            return line
        return start + json.dumps(self._changed(value)).encode()

    def _changed(self, value: Any) -> Any:  # noqa: ANN401 - JSON
        """The value with a random part replaced."""
        if isinstance(value, dict | list) and value and self._random.random() < 0.9:
            key = self._random.choice(list(value) if isinstance(value, dict) else range(len(value)))
            value[key] = self._changed(value[key])
            return value
        return self._random.choice(ODD)


def render_all(report: Report) -> None:
    for render in reports.RENDERERS.values():
        assert render(report).encode()
    for line in text.render_terminal(report, lambda text, _: text, is_verbose=True):
        assert line.isprintable()


async def _report(record_response: Callable[..., Awaitable[RecordedResponse]], endpoint: str) -> Report | str:
    url, key = "http://127.0.0.1:9/v1", "a-key-of-some-length"
    settings = CheckSettings(url=url, endpoint=endpoint, timeouts=SHORT_TIMEOUTS, model="ideal", key=key)
    try:
        return await check(settings, record_response=record_response)
    except (CheckUnreachableError, NothingToCheckError) as error:
        return str(error)


@pytest.mark.parametrize("endpoint", DIALECTS)
@pytest.mark.parametrize("seed", range(12))
def test_every_hostile_server_gets_a_report_or_an_error_message(seed: int, endpoint: str) -> None:
    report = run(_report(Hostile(seed), endpoint))
    if isinstance(report, str):
        assert report.isprintable()
    else:
        render_all(report)
