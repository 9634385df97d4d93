"""A probe of reasoning: where the thoughts of a model stand beside its answer."""

from welldone.check.probe import Probe
from welldone.check.session import NotHeardError, NotOfferedError, Session

_PUZZLE = "Tom is taller than Ann, and Ann is taller than Bob. Who is the shortest? Answer with the name."


async def _reasoning(session: Session) -> None:
    reply = session.answered(await session.chat(_PUZZLE, max_tokens=64))
    if reply.first.reasoning:
        return
    if reply.text.lstrip().startswith("<think>"):
        raise NotHeardError("the model thinks in its text, and the server has no field for it")
    raise NotOfferedError("the model does not think aloud")


PROBES = (Probe(name="reasoning", says="a puzzle, for models that think before they answer", work=_reasoning),)
