"""The last requests, as the page shows them: what the log says of each, and never what was said in them."""

import time
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from welldone.http.redaction import SecretRedactor
from welldone.server.observe.log import Redactor, RequestLogEntry

RECENT_LIMIT = 200
"""More than a screen shows, and 100 KB as JSON."""

_CLIENT_FIELDS = ("request_id", "method", "path", "model", "error")
_TEXT_LIMIT = 256  # characters of a path, a name or an error


class RecentRequest(RequestLogEntry, frozen=True, kw_only=True, omit_defaults=True):
    """A request that is over."""

    at: float
    """When it was over, in seconds since 1970."""
    is_recorded: bool = False

    def without_upstreams(self) -> "RecentRequest":
        """The same, without a word of the servers behind this one."""
        return msgspec.structs.replace(self, upstream=None, failed=())


class RecentRequests:
    """A ring of them. To add one costs next to nothing: secrets are blotted out when somebody looks."""

    def __init__(self, *, secrets: Iterable[str] = (), now: Callable[[], float] = time.time) -> None:
        self._secrets = SecretRedactor(secrets)
        self._redactor = Redactor()
        self._now = now
        self._pending: deque[tuple[float, RequestLogEntry]] = deque(maxlen=RECENT_LIMIT)
        self._rows: deque[RecentRequest] = deque(maxlen=RECENT_LIMIT)

    def add(self, line: RequestLogEntry) -> None:
        """A request is over."""
        self._pending.append((self._now(), line))

    def rows(self, principal: str | None = None) -> list[RecentRequest]:
        """The last ones, the newest first; only those of a principal where one is given."""
        while self._pending:
            self._rows.append(self._row(*self._pending.popleft()))
        return [row for row in reversed(self._rows) if principal in (None, row.principal)]

    def _row(self, at: float, line: RequestLogEntry) -> RecentRequest:
        told = msgspec.structs.asdict(line)
        told["path"] = line.path.partition("?")[0]  # some put a key behind it
        # What clients chose is cleaned. Words of upstreams, and names that nobody has, are for the log alone.
        told |= {name: self._clean(told[name]) for name in _CLIENT_FIELDS if told[name] is not None}
        return RecentRequest(at=at, **told | {"reason": None, "wanted": None})

    def _clean(self, text: str) -> str:
        # A path may hold half a character, which JSON cannot.
        whole = text.encode(errors="backslashreplace").decode()
        return self._redactor.start_of(self._secrets.redact(whole), _TEXT_LIMIT)
