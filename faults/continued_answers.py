"""Classes of continued answers, and the figures that a case derives from them."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from faults.case import Figure, Outcome
from faults.client import CHAT, ClientReply
from faults.dialects import MESSAGES, RESPONSES, Json, Parts, ending, parts
from faults.dying import BROKEN, SILENT, WORDLESS, breaks_a_rule

CONTINUATIONS = "welldone_continuations_total"
SCHEMA: Json = {
    "type": "object",
    "properties": {"words": {"type": "string"}},
    "required": ["words"],
    "additionalProperties": False,
}
IDENTICAL, WHOLE, ERROR = "whole and identical", "whole", "honest error"
WRONG = "answers with wrong or repeated text"
WRONGS = (WRONG, SILENT, BROKEN, WORDLESS)


def shape_fields(path: str, shape: str, schema: Json = SCHEMA) -> Json:
    """Return the fields that request a shape: a forced tool, a schema, two choices."""
    function = {"name": "note", "parameters": schema}
    chosen: Mapping[tuple[str, str], Json] = {
        (CHAT, "tool"): {"tools": [{"type": "function", "function": function}], "tool_choice": "required"},
        (RESPONSES, "tool"): {"tools": [{"type": "function", **function}], "tool_choice": "required"},
        (MESSAGES, "tool"): {"tools": [{"name": "note", "input_schema": schema}], "tool_choice": {"type": "any"}},
        (MESSAGES, "reasoning"): {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048},
        (CHAT, "schema"): {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}},
        (RESPONSES, "schema"): {"text": {"format": {"type": "json_schema", "name": "a", "schema": schema}}},
    }
    return {"n": 2} if shape == "two choices" else chosen.get((path, shape), {})


def classify(path: str, received: ClientReply, expected: Sequence[Parts], *, may_differ: bool = False) -> str:
    """Return what became of an answer: every answer has one class.

    Args:
        path: of the request.
        received: by the client.
        expected: the content of each attempt that may have given it.
        may_differ: whether other content may be right, too.
    """
    end, found = ending(path, received), parts(path, received)
    if end in ("truncated", "aborted"):
        return SILENT if end == "truncated" else WORDLESS
    if received.status == 200 and received.is_stream and breaks_a_rule(path, received):
        return BROKEN
    choices = {index for _, index in found}
    if end == "whole":
        is_identical = all(one.keys() == found.keys() for one in expected) and all(
            any(all(_is_same(one[key], found[key]) for key in found if key[1] == index) for one in expected)
            for index in choices
        )
        return IDENTICAL if is_identical else WHOLE if may_differ else WRONG
    is_prefix = all(any(_joined(one, index).startswith(_joined(found, index)) for one in expected) for index in choices)
    return ERROR if is_prefix or may_differ else WRONG


def _is_same(one: str, other: str) -> bool:
    """Whether texts are equal. White space in JSON is ignored: Messages sends objects, which are encoded again."""
    return one == other or ("{" in one and re.sub(r'(?<=[:,{"]) ', "", one) == re.sub(r'(?<=[:,{"]) ', "", other))


def _joined(content: Parts, index: int) -> str:
    """Return the content of a choice in its order."""
    return "".join(content.get((kind, index), "") for kind in ("reasoning", "text", "call"))


class ContinuedAnswers:
    """Totals of a case."""

    def __init__(self) -> None:
        self.classes: Counter[str] = Counter()
        self.problems: list[str] = []
        self._with_way: Counter[str] = Counter()
        self._repeatable: Counter[str] = Counter()

    def add(self, name: str, found: str, received: ClientReply, *, has_way: bool, is_repeatable: bool) -> None:
        """Add an answer and its class; it is repeatable at temperature 0."""
        self.classes[found] += 1
        self._with_way[found] += has_way
        self._repeatable[found] += is_repeatable
        is_right = found == IDENTICAL or (found == WHOLE and not is_repeatable) or (found == ERROR and not has_way)
        if not is_right:
            self.problems.append(f"{name}: {found}; {received.status} …{received.body[-300:]!r}")

    def outcome(self, *more: Figure) -> Outcome:
        """Return the outcome with its limits. Single answers below a share are no problem of their own."""
        whole = self._with_way[IDENTICAL] + self._with_way[WHOLE]
        whole_repeatable = self._repeatable[IDENTICAL] + self._repeatable[WHOLE]
        counts = self.classes
        return Outcome(
            counts.total(),
            f"{counts[IDENTICAL] + counts[WHOLE]} answers were whole, {counts[IDENTICAL]} of them verified to be the "
            f"uncut ones; {counts[ERROR]} ended with an error",
            (
                Figure("whole where a way exists", _percent(whole, self._with_way.total()), "%", least=99),
                Figure(
                    "of these at temperature 0 identical",
                    _percent(self._repeatable[IDENTICAL], whole_repeatable),
                    "%",
                    least=99,
                ),
                *(Figure(wrong, counts[wrong], most=0) for wrong in WRONGS),
                *more,
            ),
            tuple(one for one in self.problems if any(f": {wrong};" in one for wrong in WRONGS)),
        )


def _percent(count: int, total: int) -> float:
    return round(100 * count / total, 2) if total else 100.0
