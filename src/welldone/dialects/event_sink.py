"""What emitters have in common that make events of a dialect's stream, for clients of other dialects."""

from collections import Counter

from welldone.core import events as ev
from welldone.core.collect import REASONING_DETAILS
from welldone.core.envelope import Endpoint, Envelope
from welldone.core.events import Event, Failure
from welldone.core.finish_reasons import finish_reason_for, interrupted_failure


class EventSink:
    """What an emitter of events has beside the methods of its dialect's emitter."""

    def __init__(self, fallback: Envelope, endpoint: Endpoint) -> None:
        self.events: list[Event] = []
        """Events since they were last taken."""
        self.envelope: Envelope | None = None
        """Set with the first event of the answer."""
        self.failure: Failure | None = None
        """Set if the end of the answer has no equivalent."""
        self._fallback = fallback
        self._endpoint = endpoint
        self._started: set[int] = set()  # choices
        self._detail_counts: Counter[int] = Counter()

    def _ensure_choice(self, index: int = 0) -> None:
        """Start a choice with its first content: an error before it becomes an HTTP status."""
        if self.envelope is None:
            self.envelope = self._fallback
        if index not in self._started:
            self._started.add(index)
            self.events.append(ev.ChoiceStart(index))

    def _add_detail(self, choice: int = 0, **members: object) -> None:
        """Make the event for a block of signed or encrypted reasoning."""
        details = [{**members, "index": self._detail_counts[choice]}]
        self._detail_counts[choice] += 1
        fields = {REASONING_DETAILS: details}
        self.events.append(ev.UnknownFields(choice, ev.FieldLocation.DELTA, fields, in_own_chunk=True))


def finish_reason_or_failure(word: str, endpoint: Endpoint, field: str) -> str | Failure:
    """Return the finish reason for a word of the server, or the failure of an answer that counts as interrupted."""
    return finish_reason_for(word, endpoint) or interrupted_failure(word, field=field)
