"""A probe of HTTP itself: whether a page in a browser may ask."""

from typing import Any

from welldone.check import settings
from welldone.check.probe import Probe
from welldone.check.reply import ProbeReply, ProbeRequest
from welldone.check.session import NotApplicableError, Session, UnsupportedError
from welldone.check.settings import CheckDialect
from welldone.protocol.catalog.rule import Severity
from welldone.rules.view.choices import as_object

CORS_PREFLIGHT = "http-cors-preflight"

CORS_ORIGIN = "http://localhost:3000"
"""Where a page is served from while somebody builds it."""
_STAINLESS = (
    *("arch", "helper-method", "lang", "os", "package-version"),
    *("retry-count", "runtime", "runtime-version", "timeout"),
)
KEY_HEADER = "authorization"
CORS_HEADERS = (KEY_HEADER, "content-type", *(f"x-stainless-{name}" for name in _STAINLESS))
"""What openai-node sends from a browser; the SDK of Anthropic is made by the same hands."""
_CORS_EXPECTED = (
    f"2xx, Access-Control-Allow-Origin: {CORS_ORIGIN}, and every header that was asked for allowed by its name"
)


async def _probe_cors(session: Session) -> None:
    preflight = await session.send(_preflight(session.dialect), is_judged=False)
    if preflight.status in (429, 503):
        raise NotApplicableError(preflight.error_summary)
    if _refuses_origin(preflight):
        raise UnsupportedError(preflight.error_summary)
    problem = _preflight_problem(preflight, session.dialect)
    if problem:
        session.check_rule(CORS_PREFLIGHT, preflight, passed=False, observed=problem, expected=_CORS_EXPECTED)
        return
    # To the standard * does not stand for the header with the key; to the browsers of today it does.
    heard = "Access-Control-Allow-Headers: *, which does not stand for authorization"
    is_named = KEY_HEADER in _allowed_headers(preflight)
    session.check_rule(
        CORS_PREFLIGHT, preflight, is_named, observed=heard, expected=_CORS_EXPECTED, severity=Severity.TOLERATED
    )
    await _check_reply_cors(session)


async def _check_reply_cors(session: Session) -> None:
    """A page that may ask must also be allowed to read."""
    reply = session.require_ok(
        await session.generate(settings.HELLO_PROMPT, max_tokens=8, headers=(("Origin", CORS_ORIGIN),))
    )
    heard = f"a reply to {CORS_ORIGIN} with Access-Control-Allow-Origin: {reply.header('access-control-allow-origin')}"
    session.check_rule(
        CORS_PREFLIGHT, reply, _allows_origin(reply), observed=heard, expected=f"{CORS_ORIGIN} or * there"
    )


def _preflight(dialect: CheckDialect) -> ProbeRequest:
    """What a browser asks before it sends a request to another origin. It carries no key."""
    headers = (
        ("Authorization", None),
        *((name, None) for name, _ in dialect.request_headers("")),
        ("Accept", "*/*"),
        ("Origin", CORS_ORIGIN),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", ",".join(_requested_headers(dialect))),
    )
    return ProbeRequest(method="OPTIONS", path=dialect.path, headers=headers, endpoint=dialect.name)


def _requested_headers(dialect: CheckDialect) -> tuple[str, ...]:
    """What a page has to ask for."""
    return (*CORS_HEADERS, *(name for name, _ in dialect.request_headers("")))


def _preflight_problem(preflight: ProbeReply, dialect: CheckDialect) -> str:
    """Why a browser would not send its request; empty: it would."""
    if not preflight.is_ok:
        return f"status {preflight.status} for OPTIONS"
    if not _allows_origin(preflight):
        return f"Access-Control-Allow-Origin: {preflight.header('access-control-allow-origin')}"
    allowed = _allowed_headers(preflight)
    missing = [] if "*" in allowed else [name for name in _requested_headers(dialect) if name not in allowed]
    return f"not allowed: {', '.join(missing)}" if missing else ""


def _refuses_origin(preflight: ProbeReply) -> bool:
    """Whether the server takes nothing from such pages, and says so. Starlette does with 400 and a sentence."""
    is_told = preflight.status == 403 or (preflight.status == 400 and "origin" in preflight.error_summary.lower())
    return is_told and preflight.header("access-control-allow-origin") is None


def _allows_origin(reply: ProbeReply) -> bool:
    return reply.header("access-control-allow-origin") in (CORS_ORIGIN, "*")


def _allowed_headers(preflight: ProbeReply) -> set[str]:
    """The headers that may be sent, in lower case."""
    names = (preflight.header("access-control-allow-headers") or "").split(",")
    return {name.strip().lower() for name in names}


CORS_PROBES = (
    Probe(
        name="http-cors",
        description="the question of a browser whether its page may ask",
        run=_probe_cors,
        rules=(CORS_PREFLIGHT,),
    ),
)


# A probe of the list of models.


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
