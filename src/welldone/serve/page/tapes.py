"""The answers that pages have watched: kept in memory for a while, each for who asked for it.

Without a page there is no watch, and nothing is kept.
"""

import re
import time
from collections import OrderedDict
from collections.abc import Callable

from welldone.net.secrets import SecretRedactor
from welldone.serve.page.watch import StreamCapture

CAPTURE_HEADER = "x-welldone-tape"
"""The header by which a page asks for a tape, with the name under which it will look for it."""
CAPTURES_LIMIT = 64
"""As many as are kept: of a few pages, the last few answers each."""
ALL_CAPTURES_LIMIT_BYTES = 64 * 2**20
"""What all of them may take in memory; the oldest goes first."""
_CAPTURE_ID = re.compile(r"[A-Za-z0-9_-]{22,64}")


class CaptureStore:
    """The last answers that were watched."""

    def __init__(self, secrets: SecretRedactor, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._secrets = secrets
        self._clock = clock
        self._captures: OrderedDict[tuple[str, str], StreamCapture] = OrderedDict()

    def begin(
        self, principal: str, id: str, *, endpoint: str, model: str, is_stream: bool, began: float
    ) -> StreamCapture | None:
        """A watch of an answer; None where nothing can be called `id`. `began`: when its request came."""
        if _CAPTURE_ID.fullmatch(id) is None:
            return None
        watch = StreamCapture(
            id,
            endpoint=endpoint,
            model=model,
            is_stream=is_stream,
            secrets=self._secrets,
            now=lambda: round(self._clock() - began, 6),
            on_growth=self._evict,
        )
        old = self._captures.pop((principal, id), None)
        if old is not None:
            old.clear()
        self._captures[principal, id] = watch
        self._evict()
        return watch

    def find(self, principal: str, id: str) -> StreamCapture | None:
        """The watch of this name that is theirs."""
        return self._captures.get((principal, id))

    def _evict(self) -> None:
        """Let the oldest go, where there is too much."""
        total = sum(watch.size for watch in self._captures.values())
        while len(self._captures) > CAPTURES_LIMIT or total > ALL_CAPTURES_LIMIT_BYTES:
            _, oldest = self._captures.popitem(last=False)
            total -= oldest.size
            oldest.clear()
