"""Recent requests for the page: the fields of their log entries, never the content of a request or reply."""

import time
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from welldone.http.redaction import SecretRedactor
from welldone.server.observe.log import Redactor, RequestLogEntry

RECENT_LIMIT = 200
"""More than a screen shows, and about 100 KB as JSON."""

_CLIENT_FIELDS = ("request_id", "method", "path", "model", "error")
_TEXT_LIMIT = 256  # characters of a path, a name or an error


class RecentRequest(RequestLogEntry, frozen=True, kw_only=True, omit_defaults=True):
    """A completed request."""

    at: float
    """When it ended, in Unix time."""
    is_recorded: bool = False


class RecentRequests:
    """Ring buffer of completed requests. `add` is cheap: secrets are redacted when the rows are read."""

    def __init__(self, *, secrets: Iterable[str] = (), now: Callable[[], float] = time.time) -> None:
        self.secrets: SecretRedactor = SecretRedactor(secrets)
        self._redactor = Redactor()
        self._now = now
        self._pending: deque[tuple[float, RequestLogEntry]] = deque(maxlen=RECENT_LIMIT)
        self._rows: deque[RecentRequest] = deque(maxlen=RECENT_LIMIT)

    def add(self, entry: RequestLogEntry) -> None:
        """Add a request that has just ended."""
        self._pending.append((self._now(), entry))

    def rows(self, principal: str | None = None) -> list[RecentRequest]:
        """Return the requests of a principal, or all; the newest first."""
        while self._pending:
            self._rows.append(self._row(*self._pending.popleft()))
        return [row for row in reversed(self._rows) if principal in (None, row.principal)]

    def _row(self, at: float, entry: RequestLogEntry) -> RecentRequest:
        fields = msgspec.structs.asdict(entry)
        fields["path"] = entry.path.partition("?")[0]  # some clients put a key in the query
        # Fields that the client chose are redacted. Upstreams' messages and unknown model names are only logged.
        fields |= {name: self._clean(fields[name]) for name in _CLIENT_FIELDS if fields[name] is not None}
        return RecentRequest(at=at, **fields | {"reason": None, "requested_model": None})

    def _clean(self, text: str) -> str:
        # A path may contain lone surrogates, which JSON cannot encode.
        encodable = text.encode(errors="backslashreplace").decode()
        return self._redactor.start_of(self.secrets.redact(encodable), _TEXT_LIMIT)
