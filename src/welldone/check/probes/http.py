"""A probe of HTTP itself: whether a page in a browser may ask."""

from welldone.check import prompts
from welldone.check.dialect import Dialect
from welldone.check.probe import Probe
from welldone.check.reply import Asked, Reply
from welldone.check.session import NotHeardError, NotOfferedError, Session
from welldone.wire.faults import Severity

CORS_PREFLIGHT = "http-cors-preflight"

ORIGIN = "http://localhost:3000"
"""Where a page is served from while somebody builds it."""
_STAINLESS = (
    *("arch", "helper-method", "lang", "os", "package-version"),
    *("retry-count", "runtime", "runtime-version", "timeout"),
)
KEY_HEADER = "authorization"
HEADERS = (KEY_HEADER, "content-type", *(f"x-stainless-{name}" for name in _STAINLESS))
"""What openai-node sends from a browser; the SDK of Anthropic is made by the same hands."""
_WANTED = f"2xx, Access-Control-Allow-Origin: {ORIGIN}, and every header that was asked for allowed by its name"


async def _cors(session: Session) -> None:
    preflight = await session.send(_preflight(session.dialect), is_judged=False)
    if preflight.status in (429, 503):
        raise NotHeardError(preflight.complaint)
    if _refuses_origin(preflight):
        raise NotOfferedError(preflight.complaint)
    problem = _problem(preflight, session.dialect)
    if problem:
        session.hold(CORS_PREFLIGHT, preflight, is_kept=False, heard=problem, wanted=_WANTED)
        return
    # To the standard * does not stand for the header with the key; to the browsers of today it does.
    heard = "Access-Control-Allow-Headers: *, which does not stand for authorization"
    is_named = KEY_HEADER in _allowed(preflight)
    session.hold(CORS_PREFLIGHT, preflight, is_named, heard=heard, wanted=_WANTED, severity=Severity.TOLERATED)
    await _cors_of_reply(session)


async def _cors_of_reply(session: Session) -> None:
    """A page that may ask must also be allowed to read."""
    reply = session.answered(await session.ask(prompts.HELLO, max_tokens=8, headers=(("Origin", ORIGIN),)))
    heard = f"a reply to {ORIGIN} with Access-Control-Allow-Origin: {reply.header('access-control-allow-origin')}"
    session.hold(CORS_PREFLIGHT, reply, _allows_origin(reply), heard=heard, wanted=f"{ORIGIN} or * there")


def _preflight(dialect: Dialect) -> Asked:
    """What a browser asks before it sends a request to another origin. It carries no key."""
    headers = (
        ("Authorization", None),
        *((name, None) for name, _ in dialect.own_headers("")),
        ("Accept", "*/*"),
        ("Origin", ORIGIN),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", ",".join(_headers(dialect))),
    )
    return Asked(method="OPTIONS", path=dialect.path, headers=headers, endpoint=dialect.name)


def _headers(dialect: Dialect) -> tuple[str, ...]:
    """What a page has to ask for."""
    return (*HEADERS, *(name for name, _ in dialect.own_headers("")))


def _problem(preflight: Reply, dialect: Dialect) -> str:
    """Why a browser would not send its request; empty: it would."""
    if not preflight.is_ok:
        return f"status {preflight.status} for OPTIONS"
    if not _allows_origin(preflight):
        return f"Access-Control-Allow-Origin: {preflight.header('access-control-allow-origin')}"
    allowed = _allowed(preflight)
    missing = [] if "*" in allowed else [name for name in _headers(dialect) if name not in allowed]
    return f"not allowed: {', '.join(missing)}" if missing else ""


def _refuses_origin(preflight: Reply) -> bool:
    """Whether the server takes nothing from such pages, and says so. Starlette does with 400 and a sentence."""
    is_told = preflight.status == 403 or (preflight.status == 400 and "origin" in preflight.complaint.lower())
    return is_told and preflight.header("access-control-allow-origin") is None


def _allows_origin(reply: Reply) -> bool:
    return reply.header("access-control-allow-origin") in (ORIGIN, "*")


def _allowed(preflight: Reply) -> set[str]:
    """The headers that may be sent, in lower case."""
    names = (preflight.header("access-control-allow-headers") or "").split(",")
    return {name.strip().lower() for name in names}


PROBES = (
    Probe(
        name="http-cors",
        says="the question of a browser whether its page may ask",
        work=_cors,
        rules=(CORS_PREFLIGHT,),
    ),
)
