"""`RepairMiddleware` for WSGI applications (PEP 3333); Flask: `app.wsgi_app = RepairMiddleware(app.wsgi_app)`."""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from welldone.asgi.error_body import PHRASES
from welldone.asgi.response_repair import REQUEST_LIMIT_BYTES, AnswerMiddleware, AnswerReport, ResponseRepair

__all__ = ["AnswerReport", "RepairMiddleware"]

LOG = logging.getLogger("welldone")

WSGIEnvironment: TypeAlias = dict[str, Any]
StartResponse: TypeAlias = Callable[..., Callable[[bytes], object]]
WSGIApp: TypeAlias = Callable[[WSGIEnvironment, StartResponse], Iterable[bytes]]


class RepairMiddleware(AnswerMiddleware[WSGIApp]):
    """Repairs the answers of a WSGI application. For the parameters see `AnswerMiddleware`."""

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Run the application for one request."""
        path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
        method = environ["REQUEST_METHOD"]
        endpoint = self._find_endpoint(method, path)
        if endpoint is None:
            return self.app(environ, start_response)
        exchange = _Exchange(
            ResponseRepair(self._settings, endpoint, method, path),
            _RecordingInput(environ["wsgi.input"]),
            start_response,
        )
        environ["wsgi.input"] = exchange.request
        return self._run(environ, exchange)

    def _run(self, environ: WSGIEnvironment, exchange: "_Exchange") -> Iterator[bytes]:
        parts: Iterable[bytes] = ()
        try:
            parts = self.app(environ, exchange.start)
            for data in parts:
                if out := exchange.feed(data):
                    yield out
            if out := exchange.finish():
                yield out
        except Exception:
            # WSGI cannot say that a body is complete and also raise: the stream is completed, the exception logged.
            if not exchange.is_head_sent or not (out := exchange.repair.fail()):
                raise
            LOG.exception("exception in the WSGI application (%s)", environ.get("PATH_INFO"))
            yield out
        finally:
            if hasattr(parts, "close"):
                parts.close()
            self._report(exchange.repair, is_complete=exchange.is_complete)
        self._require_valid(exchange.repair, is_complete=exchange.is_complete)


class _Exchange:
    """One request and its response."""

    def __init__(self, repair: ResponseRepair, request: "_RecordingInput", start_response: StartResponse) -> None:
        self.repair = repair
        self.request = request
        self.is_head_sent = False
        self.is_complete = False
        self._start_response = start_response
        self._write: Callable[[bytes], object] | None = None
        self._exc_info: Any = None
        self._status_line = ""

    def start(
        self,
        status: str,
        headers: list[tuple[str, str]],
        exc_info: Any = None,  # noqa: ANN401 - of `sys.exc_info`
    ) -> Callable[[bytes], object]:
        """Implement `start_response`."""
        if self.is_head_sent:  # the server raises the exception, as PEP 3333 wants
            return self._start_response(status, headers, exc_info)
        self._status_line, self._exc_info = status, exc_info
        pairs = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        self.repair.start(int(status[:3]), pairs, self.request.body())
        return self._write_part

    def feed(self, data: bytes) -> bytes:
        """Return the bytes to send for a part of the body."""
        out = data if self.repair.feed is None else self.repair.feed(data)
        self._send_head()
        return out

    def finish(self) -> bytes:
        """Return the last bytes to send."""
        out = self.repair.finish()
        self._send_head()
        self.is_complete = True
        return out

    def _send_head(self) -> None:
        head = self.repair.head
        if head is None or self.is_head_sent:
            return
        self.is_head_sent = True
        is_same = self._status_line.startswith(str(head.status))
        status = self._status_line if is_same else f"{head.status} {PHRASES.get(head.status, 'Error')}"
        headers = [(name.decode("latin-1").title(), value.decode("latin-1")) for name, value in head.headers]
        self._write = self._start_response(status, headers, *([self._exc_info] if self._exc_info else []))

    def _write_part(self, data: bytes) -> None:
        """Implement the old way to send a body: the function that `start_response` returns."""
        out = self.feed(data)
        if out and self._write is not None:
            self._write(out)


class _RecordingInput:
    """Passes the body of a request on, and keeps it to read its fields."""

    def __init__(self, source: Any) -> None:  # noqa: ANN401 - any file
        self._source = source
        self._parts: list[bytes] = []
        self._size = 0

    def body(self) -> bytes | None:
        """Return what was read; None if it is too long."""
        return b"".join(self._parts) if self._size <= REQUEST_LIMIT_BYTES else None

    def read(self, *size: int) -> bytes:
        return self._keep(self._source.read(*size))

    def readline(self, *size: int) -> bytes:
        return self._keep(self._source.readline(*size))

    def readlines(self, *size: int) -> list[bytes]:
        return [self._keep(line) for line in self._source.readlines(*size)]

    def __iter__(self) -> Iterator[bytes]:
        return map(self._keep, self._source)

    def _keep(self, data: bytes) -> bytes:
        self._size += len(data)
        if self._size <= REQUEST_LIMIT_BYTES:
            self._parts.append(data)
        else:
            self._parts.clear()
        return data
