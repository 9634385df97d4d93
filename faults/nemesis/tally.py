"""What came of all requests of a run, added up as they end: the requests themselves are not kept."""

from collections import Counter, defaultdict
from itertools import count

from faults.case import Figure
from faults.nemesis.history import ENDINGS, Heard, violations
from faults.nemesis.wish import Wish
from tests.live.server import Running


class Tally:
    """The account of a run."""

    def __init__(self) -> None:
        self.moments = count()
        self.requests = 0
        self.endings: Counter[str] = Counter()
        self.troubles: list[str] = []
        self._asked: defaultdict[str, list[int]] = defaultdict(list)
        self._judged: dict[str, int] = {}

    @property
    def attempts(self) -> int:
        """How often upstreams were asked."""
        return sum(len(moments) for moments in self._asked.values())

    @property
    def ends(self) -> str:
        """How many ended how, in words."""
        return ", ".join(f"{number} {name}" for name, number in sorted(self.endings.items()))

    def asked(self, marker: str) -> None:
        """An upstream is asked for a request."""
        self._asked[marker].append(next(self.moments))

    def ended(self, wish: Wish, heard: Heard) -> None:
        """A request has ended, as its client sees it."""
        marker = wish.order.marker
        self.requests += 1
        self.endings[heard.ending] += 1
        self.troubles += violations(wish, heard, self._asked[marker])
        if not heard.has_left:  # of who left, a last try may be on its way
            self._judged[marker] = len(self._asked[marker])

    def late(self) -> list[str]:
        """Requests for which an upstream was asked when their clients had all that they ever got."""
        return [
            f"{marker}: an upstream was asked after the end"
            for marker, known in self._judged.items()
            if len(self._asked[marker]) > known
        ]

    def figures(self) -> tuple[Figure, ...]:
        """The endings, and that none was wrong."""
        counted = tuple(Figure(f"ended: {name}", self.endings[name]) for name in ENDINGS if name != "broken")
        return (*counted, Figure("violations", len(self.troubles) + len(self.late()), most=0))


def check_alive(server: Running) -> None:
    """The server must have outlived it all: else there is nothing more to measure."""
    assert server.process.poll() is None, "the server is gone:\n" + "\n".join(server.log.all[-20:])
