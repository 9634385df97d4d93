"""Any server's streams in, one whole reply out: what a client gets that did not ask for a stream."""

from welldone.wire import sse
from welldone.wire.asked import Asked
from welldone.wire.collect import collect
from welldone.wire.dialects import chat, completions
from welldone.wire.events import Event, Failure, KeepAlive, Usage
from welldone.wire.forced import Forced
from welldone.wire.head import Endpoint, Head
from welldone.wire.merge import Merge, Parts
from welldone.wire.notes import Notes


class Fold:
    """Collects one stream, or several that make one answer."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        fallback: Head,
        asked: Asked,
        parts: Parts | None = None,
        forced: Forced | None = None,
        model: str | None = None,
        limit_bytes: int = sse.LIMIT_BYTES,
    ) -> None:
        self._endpoint = endpoint
        self._fallback = fallback
        self._asked = asked
        self._merge = Merge(
            endpoint,
            fallback=fallback,
            asked=asked,
            parts=parts,
            forced=forced,
            model=model,
            limit_bytes=limit_bytes,
        )
        self._events: list[Event] = []

    @property
    def notes(self) -> Notes:
        """What was mended."""
        return self._merge.notes

    @property
    def failure(self) -> Failure | None:
        """Why there is no whole answer, if there is none."""
        return self._merge.failure

    @property
    def usage(self) -> Usage | None:
        """What the server counted."""
        return self._merge.usage

    def feed(self, data: bytes, part: int = 0) -> None:
        """More of a part's stream."""
        self._keep(self._merge.feed(data, part))

    def close(self, part: int = 0) -> None:
        """A part's stream has ended, however it did."""
        self._keep(self._merge.close(part))

    def fail(self, failure: Failure) -> None:
        """The answer breaks off for a reason that the server did not tell."""
        self._keep(self._merge.fail(failure))

    def body(self) -> bytes:
        """The reply, when all parts have ended and none has failed."""
        reply = collect(self._events)
        reply.usage = self.usage
        head = self._merge.head or self._fallback
        if self._endpoint is Endpoint.CHAT:
            return chat.whole(head, reply, functions=self._asked.functions)
        return completions.whole(head, reply)

    def _keep(self, events: list[Event]) -> None:
        self._events += [event for event in events if type(event) is not KeepAlive]
