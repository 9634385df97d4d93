"""Checks of role and content: what the chunks say of a choice before its end."""

from collections.abc import Iterator
from itertools import pairwise

from welldone.rules.choices import Choice, Part, is_nothing
from welldone.rules.heard import Heard
from welldone.rules.rule import Place, Rule
from welldone.wire.faults import delta as faults

NOOPS_LIMIT = 16
"""No-op chunks in a row that pass as keep-alives."""
GROWN = 4
"""Contents that each begin with the one before: fewer are common where a model repeats itself."""
HEAD = 64
"""Characters in which a repetition is looked for."""

_ROLE = '"delta":{"role":"assistant","content":""}'


def _role_first(heard: Heard) -> Iterator[Place]:
    for choice in heard.choices:
        if is_nothing(choice.parts[0].role):
            yield Place(choice.parts[0], choice.parts[0].choice, f"{_ROLE} on the first chunk of the choice")


def _role_once(heard: Heard) -> Iterator[Place]:
    for choice in heard.choices:
        with_role = [part for part in choice.parts if not is_nothing(part.role)]
        for part in with_role[1:]:
            yield Place(part, {"delta": part.delta}, "the delta without role")


def _role_absent_later(heard: Heard) -> Iterator[Place]:
    for choice in heard.choices:
        for part in choice.parts[1:]:
            if "role" in part.delta and is_nothing(part.role):
                yield Place(part, {"delta": part.delta}, "the delta without role")


def _role_assistant(heard: Heard) -> Iterator[Place]:
    for part in heard.parts:
        if not is_nothing(part.role) and part.role != "assistant":
            yield Place(part, {"role": part.role}, '"role":"assistant"')


def _role_content_empty(heard: Heard) -> Iterator[Place]:
    for choice in heard.choices:
        role = next((place for place, part in enumerate(choice.parts) if not is_nothing(part.role)), None)
        if role is not None and choice.parts[role].delta.get("content", ...) != "" and _opens_text(choice, role):
            yield Place(choice.parts[role], {"delta": choice.parts[role].delta}, _ROLE)


def _opens_text(choice: Choice, role: int) -> bool:
    """Whether the first thing that the choice says, from its role chunk on, is text."""
    for part in choice.parts[role:]:
        if part.entries or part.reasoning or part.delta.get("refusal"):
            return False
        if part.text:
            return True
    return False


def _content_string(heard: Heard) -> Iterator[Place]:
    for part in heard.parts:
        content = part.delta.get("content")
        if content is not None and not isinstance(content, str):
            yield Place(part, {"content": content}, '"content":"<text>"')


def _content_incremental(heard: Heard) -> Iterator[Place]:
    for choice in heard.choices:
        said = [part for part in choice.parts if part.text]
        grows = len(said) >= GROWN and all(_extends(new.text, old.text) for old, new in pairwise(said))
        if grows and not _repeats(said[-1].text[:HEAD]):
            yield Place(said[1], {"content": said[1].text}, f'"content":"{said[1].text[len(said[0].text) :][:80]}"')


def _repeats(text: str) -> bool:
    """Whether a text is one short unit again and again: so it grows where a model says several at a time."""
    return any(text[size:] == text[:-size] for size in range(1, len(text) // 2 + 1))


def _extends(new: str, old: str) -> bool:
    return len(new) > len(old) and new.startswith(old)


def _object_present(heard: Heard) -> Iterator[Place]:
    for part in heard.parts:
        # Where a message stands in its place, delta-not-message speaks.
        if not isinstance(part.choice.get("delta"), dict) and not _has_message(part):
            yield Place(part, part.choice, '"delta":{}')


def _has_message(part: Part) -> bool:
    return part.choice.get("message") is not None


def _not_message(heard: Heard) -> Iterator[Place]:
    for part in heard.parts:
        if _has_message(part):
            yield Place(part, {"message": part.choice["message"]}, '"delta":{"content":"<the new text>"}')


def _final_empty(heard: Heard) -> Iterator[Place]:
    for part in heard.parts:
        if part.finish is not None and part.delta and all(is_nothing(value) for value in part.delta.values()):
            yield Place(part, {"delta": part.delta}, '"delta":{}')


def _noop_flood(heard: Heard) -> Iterator[Place]:
    run = 0
    for chunk, parts in heard.by_chunk:
        run = run + 1 if parts and all(part.is_noop for part in parts) else 0
        if run == NOOPS_LIMIT + 1:
            yield Place(
                chunk, f"more than {NOOPS_LIMIT} chunks in a row that say nothing", "fewer of them, or comments"
            )


RULES = (
    Rule(faults.ROLE_FIRST, _role_first),
    Rule(faults.ROLE_ONCE, _role_once),
    Rule(faults.ROLE_ABSENT_LATER, _role_absent_later),
    Rule(faults.ROLE_ASSISTANT, _role_assistant),
    Rule(faults.ROLE_CONTENT_EMPTY, _role_content_empty),
    Rule(faults.CONTENT_STRING, _content_string),
    Rule(faults.CONTENT_INCREMENTAL, _content_incremental),
    Rule(faults.OBJECT_PRESENT, _object_present),
    Rule(faults.NOT_MESSAGE, _not_message),
    Rule(faults.FINAL_EMPTY, _final_empty),
    Rule(faults.NO_NOOP_FLOOD, _noop_flood),
)
