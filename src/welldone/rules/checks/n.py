"""Checks of several choices in one reply."""

from collections.abc import Iterator
from typing import Any

from welldone.rules.choices import as_list, is_int
from welldone.rules.heard import Heard
from welldone.rules.rule import Place, Rule
from welldone.wire.faults import n as faults


def is_index(value: object) -> bool:
    """Whether it is an integer from 0 on."""
    return is_int(value) and value >= 0


def index_missing(heard: Heard) -> Iterator[Place]:
    """The choices without an integer index, and those that were not requested."""
    for part in heard.parts:
        if not is_index(part.choice.get("index")):
            yield Place(part, part.choice, '"index":0')
    if heard.trace.request is not None:
        wanted = _requested(heard.trace.request)
        for choice in heard.choices[wanted:]:
            yield Place(choice.parts[0], choice.parts[0].choice, f"no more than {wanted} choices, as requested")


def _requested(request: dict[str, Any]) -> int:
    """How many choices a request asks for. A list of numbers is one prompt, of token ids."""
    n, prompts = request.get("n"), as_list(request.get("prompt"))
    count = len(prompts) if prompts and isinstance(prompts[0], str | list) else 1
    return count * n if is_int(n) and n > 0 else count


def _first_order(heard: Heard) -> Iterator[Place]:
    expected = 0
    for choice in heard.choices:
        if is_index(choice.parts[0].choice.get("index")):
            # Only who comes too early is at fault, not who was overtaken.
            if choice.key > expected:
                yield Place(choice.parts[0], {"index": choice.key}, f'"index":{expected} first')
            expected = max(expected, choice.key + 1)


def _one_choice(heard: Heard) -> Iterator[Place]:
    for chunk, parts in heard.by_chunk:
        if len(parts) > 1:
            yield Place(chunk, {"choices": chunk.json["choices"]}, "one choice in each chunk")


RULES = (
    Rule(faults.INDEX_INT, index_missing),
    Rule(faults.FIRST_ORDER, _first_order),
    Rule(faults.ONE_CHOICE_PER_CHUNK, _one_choice),
)
