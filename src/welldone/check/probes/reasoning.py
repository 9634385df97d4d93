"""A probe of reasoning: where the thoughts of a model stand beside its answer."""

from collections.abc import Mapping
from typing import Any

from welldone.check.probe import Probe
from welldone.check.session import NotHeardError, NotOfferedError, Session

_TOKENS = 64
_BUDGET = 1024  # tokens: the fewest that Anthropic takes
_WAYS: Mapping[str, dict[str, Any]] = {
    "responses": {"reasoning": {"effort": "low", "summary": "auto"}},
    # A model of Anthropic's thinks at its own temperature only.
    "messages": {"thinking": {"type": "enabled", "budget_tokens": _BUDGET}, "temperature": ...},
}
"""How models are asked to think that do not do so by themselves."""
_PUZZLE = "Tom is taller than Ann, and Ann is taller than Bob. Who is the shortest? Answer with the name."


async def _reasoning(session: Session) -> None:
    reply = session.answered(await session.ask(_PUZZLE, max_tokens=_TOKENS))
    if reply.first.reasoning:
        return
    if way := _WAYS.get(session.dialect.name):
        reply = session.answered(await session.ask(_PUZZLE, max_tokens=_TOKENS + _BUDGET, **way))
        if reply.first.reasoning:
            return
    if reply.text.lstrip().startswith("<think>"):
        raise NotHeardError("the model thinks in its text, and the server has no field for it")
    raise NotOfferedError("the model does not think aloud")


PROBES = (Probe(name="reasoning", says="a puzzle, for models that think before they answer", work=_reasoning),)
