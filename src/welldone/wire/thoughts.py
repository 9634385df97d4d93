"""Counts reasoning tokens for an engine that does not.

llama.cpp sends one delta per token and counts all tokens of an answer together. A token that completes no character, or
is part of a tag, has no delta of its own; so the count may be some tokens too low, and never exceeds the answer's.
"""

import msgspec

from welldone.wire.events import Event, Reasoning, Refusal, Text, ToolCall, Usage
from welldone.wire.lenient import as_object

_DETAILS_FIELD, _REASONING_TOKENS_FIELD = "completion_tokens_details", "reasoning_tokens"


class ReasoningTokenCounter:
    """Adds `reasoning_tokens` to the usage of one choice. Each chunk with reasoning is one token."""

    def __init__(self) -> None:
        self._tokens = 0
        self._has_answer = False

    def feed(self, events: list[Event]) -> list[Event]:
        """The same events; usage with the count, where it has none."""
        for place, event in enumerate(events):
            if isinstance(event, Reasoning):
                self._tokens += 1
            elif isinstance(event, Text | Refusal | ToolCall):
                self._has_answer = True
            elif isinstance(event, Usage):
                events = [*events[:place], self._with_reasoning_tokens(event), *events[place + 1 :]]
        return events

    def _with_reasoning_tokens(self, usage: Usage) -> Usage:
        details = as_object(usage.extra_fields.get(_DETAILS_FIELD))
        if _REASONING_TOKENS_FIELD in details:
            return usage
        # An answer that was cut while the model reasoned is all reasoning.
        count = min(self._tokens, usage.completion_tokens) if self._has_answer else usage.completion_tokens
        more = usage.extra_fields | {_DETAILS_FIELD: details | {_REASONING_TOKENS_FIELD: count if self._tokens else 0}}
        return msgspec.structs.replace(usage, extra_fields=more)
