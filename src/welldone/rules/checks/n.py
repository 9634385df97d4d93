"""Checks of several choices in one reply."""

from collections.abc import Iterator
from typing import Any

from welldone.rules.choices import as_list, is_int
from welldone.rules.heard import TraceView
from welldone.rules.rule import Violation, RuleCheck
from welldone.wire import faults


def is_choice_index(value: object) -> bool:
    """Whether it is an integer from 0 on."""
    return is_int(value) and value >= 0


def choice_index(view: TraceView) -> Iterator[Violation]:
    """The choices without an integer index, and those that were not requested."""
    for part in view.choice_deltas:
        if not is_choice_index(part.choice.get("index")):
            yield Violation(part, part.choice, '"index":0')
    if view.trace.request is not None:
        wanted = _requested_choices(view.trace.request)
        for choice in view.choices[wanted:]:
            yield Violation(choice.deltas[0], choice.deltas[0].choice, f"no more than {wanted} choices, as requested")


def _requested_choices(request: dict[str, Any]) -> int:
    """How many choices a request asks for. A list of numbers is one prompt, of token ids."""
    n, prompts = request.get("n"), as_list(request.get("prompt"))
    count = len(prompts) if prompts and isinstance(prompts[0], str | list) else 1
    return count * n if is_int(n) and n > 0 else count


def _first_order(view: TraceView) -> Iterator[Violation]:
    expected = 0
    for choice in view.choices:
        if is_choice_index(choice.deltas[0].choice.get("index")):
            # Only who comes too early is at fault, not who was overtaken.
            if choice.index > expected:
                yield Violation(choice.deltas[0], {"index": choice.index}, f'"index":{expected} first')
            expected = max(expected, choice.index + 1)


def _one_choice(view: TraceView) -> Iterator[Violation]:
    for chunk, parts in view.deltas_by_chunk:
        if len(parts) > 1:
            yield Violation(chunk, {"choices": chunk.json["choices"]}, "one choice in each chunk")


CHOICE_CHECKS = (
    RuleCheck(faults.n.INDEX_INT, choice_index),
    RuleCheck(faults.n.FIRST_ORDER, _first_order),
    RuleCheck(faults.n.ONE_CHOICE_PER_CHUNK, _one_choice),
)
