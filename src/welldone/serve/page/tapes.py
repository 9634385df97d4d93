"""The answers that pages have watched: kept in memory for a while, each for who asked for it.

Without a page there is no watch, and nothing is kept.
"""

import re
import time
from collections import OrderedDict
from collections.abc import Callable

from welldone.net.secrets import Secrets
from welldone.serve.page.watch import Watch

HEADER = "x-welldone-tape"
"""The header by which a page asks for a tape, with the name under which it will look for it."""
TAPES = 64
"""As many as are kept: of a few pages, the last few answers each."""
ALL_BYTES = 64 * 2**20
"""What all of them may take in memory; the oldest goes first."""
_ID = re.compile(r"[A-Za-z0-9_-]{22,64}")


class Tapes:
    """The last answers that were watched."""

    def __init__(self, secrets: Secrets, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._secrets = secrets
        self._clock = clock
        self._watches: OrderedDict[tuple[str, str], Watch] = OrderedDict()

    def begin(
        self, principal: str, id: str, *, endpoint: str, model: str, is_stream: bool, began: float
    ) -> Watch | None:
        """A watch of an answer; None where nothing can be called `id`. `began`: when its request came."""
        if _ID.fullmatch(id) is None:
            return None
        watch = Watch(
            id,
            endpoint=endpoint,
            model=model,
            is_stream=is_stream,
            secrets=self._secrets,
            now=lambda: round(self._clock() - began, 6),
            on_growth=self._tidy,
        )
        old = self._watches.pop((principal, id), None)
        if old is not None:
            old.forget()
        self._watches[principal, id] = watch
        self._tidy()
        return watch

    def find(self, principal: str, id: str) -> Watch | None:
        """The watch of this name that is theirs."""
        return self._watches.get((principal, id))

    def _tidy(self) -> None:
        """Let the oldest go, where there is too much."""
        total = sum(watch.size for watch in self._watches.values())
        while len(self._watches) > TAPES or total > ALL_BYTES:
            _, oldest = self._watches.popitem(last=False)
            total -= oldest.size
            oldest.forget()
