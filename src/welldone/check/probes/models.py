"""A probe of the list of models."""

from typing import Any

from welldone.check.probe import Probe
from welldone.check.reply import ProbeRequest
from welldone.check.session import Session
from welldone.rules.choices import as_object

MODELS_LIST = "ns-models-list"


async def _probe_models(session: Session) -> None:
    reply = session.require_ok(await session.send(ProbeRequest(method="GET", path="/models"), is_judged=False))
    wanted = '{"object":"list","data":[{"id":"…","object":"model","created":1700000000,"owned_by":"…"}]}'
    problem = _models_problem(reply.json)
    session.check_rule(MODELS_LIST, reply, not problem, observed=problem, expected=wanted)


def _models_problem(listed: dict[str, Any]) -> str:
    """What is wrong with the list; empty: nothing."""
    if listed.get("object") != "list":
        return "object is not 'list'"
    data = listed.get("data")
    if not isinstance(data, list):
        return "data is no list"
    problems = ((number, _model_problem(as_object(model))) for number, model in enumerate(data))
    return next((f"data[{number}]: {problem}" for number, problem in problems if problem), "")


def _model_problem(model: dict[str, Any]) -> str:
    created = model.get("created")
    if not isinstance(model.get("id"), str) or not model["id"]:
        return "id is no text"
    if model.get("object") != "model":
        return "object is not 'model'"
    if not isinstance(created, int) or isinstance(created, bool):
        return "created is no whole number"
    return "" if isinstance(model.get("owned_by"), str) else "owned_by is no text"


MODEL_LIST_PROBES = (Probe(name="models", description="the list of models", run=_probe_models, rules=(MODELS_LIST,)),)
