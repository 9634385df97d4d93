"""Totals of a run, counted as requests end; the requests themselves are not kept."""

from collections import Counter, defaultdict
from itertools import count

from faults.case import Figure
from faults.nemesis.client_actions import ClientAction
from faults.nemesis.history import ENDINGS, ObservedReply, violations
from tests.support.server import Running


class RunTotals:
    """Totals of a run."""

    def __init__(self) -> None:
        self.moments = count()
        self.requests = 0
        self.endings: Counter[str] = Counter()
        self.problems: list[str] = []
        self._asked: defaultdict[str, list[int]] = defaultdict(list)
        self._judged: dict[str, int] = {}

    @property
    def attempts(self) -> int:
        """Attempts at upstreams."""
        return sum(len(moments) for moments in self._asked.values())

    @property
    def ends(self) -> str:
        """Endings as text."""
        return ", ".join(f"{number} {name}" for name, number in sorted(self.endings.items()))

    def record_attempt(self, marker: str) -> None:
        """Record an attempt at an upstream."""
        self._asked[marker].append(next(self.moments))

    def ended(self, action: ClientAction, observed: ObservedReply) -> None:
        """Record the end of a request."""
        marker = action.order.marker
        self.requests += 1
        self.endings[observed.ending] += 1
        self.problems += violations(action, observed, self._asked[marker])
        if not observed.has_left:  # after a disconnect, one attempt may still be in flight
            self._judged[marker] = len(self._asked[marker])

    def late(self) -> list[str]:
        """Requests with an attempt after their client had received everything."""
        return [
            f"{marker}: an upstream was asked after the end"
            for marker, known in self._judged.items()
            if len(self._asked[marker]) > known
        ]

    def figures(self) -> tuple[Figure, ...]:
        """Return the endings and the number of violations."""
        counted = tuple(Figure(f"ended: {name}", self.endings[name]) for name in ENDINGS if name != "broken")
        return (*counted, Figure("violations", len(self.problems) + len(self.late()), most=0))


def check_alive(server: Running) -> None:
    """Assert that the server still runs."""
    assert server.process.poll() is None, "the server is gone:\n" + "\n".join(server.log.all[-20:])
