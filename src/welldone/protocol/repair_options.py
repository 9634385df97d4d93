"""How the stream of one upstream is repaired."""

import msgspec

from welldone.protocol.events import FailureMapper
from welldone.protocol.text_filters import TextMode, ThinkMode


class RepairOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that differ between upstreams."""

    think: ThinkMode = "no"
    """How reasoning in `<think>` tags is separated from the text (chat only)."""
    text: TextMode = "delta"
    """Whether texts are increments or cumulative (chat and completions)."""
    strict: frozenset[str] = frozenset()
    """Ids of rules whose violation is a failure; `all` stands for every rule with a repair."""
    map_failure: FailureMapper | None = None
    """Maps errors of the upstream to the errors that are sent."""


DEFAULT_OPTIONS = RepairOptions()
