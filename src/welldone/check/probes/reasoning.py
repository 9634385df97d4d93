"""A probe of reasoning: where the thoughts of a model stand beside its answer."""

from collections.abc import Mapping
from typing import Any

from welldone.check.probe import Probe
from welldone.check.session import NotApplicableError, UnsupportedError, Session

_ANSWER_TOKENS = 64
_REASONING_BUDGET = 1024  # tokens: the fewest that Anthropic takes
_REASONING_FIELDS: Mapping[str, dict[str, Any]] = {
    "responses": {"reasoning": {"effort": "low", "summary": "auto"}},
    # A model of Anthropic's thinks at its own temperature only.
    "messages": {"thinking": {"type": "enabled", "budget_tokens": _REASONING_BUDGET}, "temperature": ...},
}
"""How models are asked to think that do not do so by themselves."""
_PUZZLE = "Tom is taller than Ann, and Ann is taller than Bob. Who is the shortest? Answer with the name."


async def _probe_reasoning(session: Session) -> None:
    reply = session.require_ok(await session.generate(_PUZZLE, max_tokens=_ANSWER_TOKENS))
    if reply.first_choice.reasoning:
        return
    if way := _REASONING_FIELDS.get(session.dialect.name):
        reply = session.require_ok(
            await session.generate(_PUZZLE, max_tokens=_ANSWER_TOKENS + _REASONING_BUDGET, **way)
        )
        if reply.first_choice.reasoning:
            return
    if reply.text.lstrip().startswith("<think>"):
        raise NotApplicableError("the model thinks in its text, and the server has no field for it")
    raise UnsupportedError("the model does not think aloud")


REASONING_PROBES = (
    Probe(name="reasoning", description="a puzzle, for models that think before they answer", run=_probe_reasoning),
)
