"""Checks of role and content: what the chunks say of a choice before its end."""

from collections.abc import Iterator
from itertools import pairwise

from welldone.rules.choices import ChoiceView, ChoiceDelta, is_null_or_empty
from welldone.rules.heard import TraceView
from welldone.rules.rule import Violation, RuleCheck
from welldone.wire import faults

NOOPS_LIMIT = 16
"""No-op chunks in a row that pass as keep-alives."""
MIN_CUMULATIVE_CONTENTS = 4
"""Contents that each begin with the one before: fewer are common where a model repeats itself."""
REPETITION_CHARACTERS = 64
"""Characters in which a repetition is looked for."""

_ROLE = '"delta":{"role":"assistant","content":""}'


def _role_first(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        if is_null_or_empty(choice.deltas[0].role):
            yield Violation(choice.deltas[0], choice.deltas[0].choice, f"{_ROLE} on the first chunk of the choice")


def _role_once(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        with_role = [part for part in choice.deltas if not is_null_or_empty(part.role)]
        for part in with_role[1:]:
            yield Violation(part, {"delta": part.delta}, "the delta without role")


def _role_absent_later(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        for part in choice.deltas[1:]:
            if "role" in part.delta and is_null_or_empty(part.role):
                yield Violation(part, {"delta": part.delta}, "the delta without role")


def _role_assistant(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        if not is_null_or_empty(part.role) and part.role != "assistant":
            yield Violation(part, {"role": part.role}, '"role":"assistant"')


def _role_content_empty(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        role = next((place for place, part in enumerate(choice.deltas) if not is_null_or_empty(part.role)), None)
        if role is not None and choice.deltas[role].delta.get("content", ...) != "" and _opens_text(choice, role):
            yield Violation(choice.deltas[role], {"delta": choice.deltas[role].delta}, _ROLE)


def _opens_text(choice: ChoiceView, role: int) -> bool:
    """Whether the first thing that the choice says, from its role chunk on, is text."""
    for part in choice.deltas[role:]:
        if part.tool_call_entries or part.reasoning or part.delta.get("refusal"):
            return False
        if part.text:
            return True
    return False


def _content_string(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        content = part.delta.get("content")
        if content is not None and not isinstance(content, str):
            yield Violation(part, {"content": content}, '"content":"<text>"')


def _content_incremental(view: TraceView) -> Iterator[Violation]:
    for choice in view.choices:
        said = [part for part in choice.deltas if part.text]
        grows = len(said) >= MIN_CUMULATIVE_CONTENTS and all(
            _extends(new.text, old.text) for old, new in pairwise(said)
        )
        if grows and not _is_repetition(said[-1].text[:REPETITION_CHARACTERS]):
            yield Violation(said[1], {"content": said[1].text}, f'"content":"{said[1].text[len(said[0].text) :][:80]}"')


def _is_repetition(text: str) -> bool:
    """Whether a text is one short unit again and again: so it grows where a model says several at a time."""
    return any(text[size:] == text[:-size] for size in range(1, len(text) // 2 + 1))


def _extends(new: str, old: str) -> bool:
    return len(new) > len(old) and new.startswith(old)


def _object_present(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        # Where a message stands in its place, delta-not-message speaks.
        if not isinstance(part.choice.get("delta"), dict) and not _has_message(part):
            yield Violation(part, part.choice, '"delta":{}')


def _has_message(part: ChoiceDelta) -> bool:
    return part.choice.get("message") is not None


def _not_message(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        if _has_message(part):
            yield Violation(part, {"message": part.choice["message"]}, '"delta":{"content":"<the new text>"}')


def _final_empty(view: TraceView) -> Iterator[Violation]:
    for part in view.choice_deltas:
        if (
            part.finish_reason is not None
            and part.delta
            and all(is_null_or_empty(value) for value in part.delta.values())
        ):
            yield Violation(part, {"delta": part.delta}, '"delta":{}')


def _noop_flood(view: TraceView) -> Iterator[Violation]:
    run = 0
    for chunk, parts in view.deltas_by_chunk:
        run = run + 1 if parts and all(part.is_noop for part in parts) else 0
        if run == NOOPS_LIMIT + 1:
            yield Violation(
                chunk, f"more than {NOOPS_LIMIT} chunks in a row that say nothing", "fewer of them, or comments"
            )


DELTA_CHECKS = (
    RuleCheck(faults.delta.ROLE_FIRST, _role_first),
    RuleCheck(faults.delta.ROLE_ONCE, _role_once),
    RuleCheck(faults.delta.ROLE_ABSENT_LATER, _role_absent_later),
    RuleCheck(faults.delta.ROLE_ASSISTANT, _role_assistant),
    RuleCheck(faults.delta.ROLE_CONTENT_EMPTY, _role_content_empty),
    RuleCheck(faults.delta.CONTENT_STRING, _content_string),
    RuleCheck(faults.delta.CONTENT_INCREMENTAL, _content_incremental),
    RuleCheck(faults.delta.OBJECT_PRESENT, _object_present),
    RuleCheck(faults.delta.NOT_MESSAGE, _not_message),
    RuleCheck(faults.delta.FINAL_EMPTY, _final_empty),
    RuleCheck(faults.delta.NO_NOOP_FLOOD, _noop_flood),
)
