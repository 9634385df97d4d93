"""The first look: is there a server, does it let us in, which model, and how does it want to be asked?

What is wrong here is nobody's broken rule. It ends the check with one line that says what to do.
"""

import math

import msgspec

from welldone.check import prompts
from welldone.check.desk import BUSY, Desk, Facts
from welldone.check.dialect import CHAT
from welldone.check.reply import Asked, Reply
from welldone.engines.listed import kind_of, read_models
from welldone.net.ear import ListenError

_PROBE = "first look"
_TOKENS = 16
_THINKING_TOKENS = 512
"""How long a model may think before its first word. Small ones take some hundred tokens for a greeting."""
_ALLOWANCE_LIMIT = 1024
_UNKNOWN_MEMBER = (400, 422)
"""What servers say to a member that they do not know: most the first, those made with FastAPI the second."""
_NAMED = 5  # models that a message names


class UnreachableError(Exception):
    """The server cannot be checked. The message is one line that says what to do."""


async def look(desk: Desk) -> Facts:
    """What there is to know before the probes begin.

    Raises:
        UnreachableError: there is nothing to check.
    """
    listed = await _ask(desk, Asked(method="GET", path="/models"))
    _check_door(desk, listed)
    models = (read_models(listed.recording.body, desk.settings.secrets.told) or ()) if listed.is_ok else ()
    names = [model.id for model in models]
    model = desk.settings.model or (names[0] if names else None)
    if model is None:
        raise UnreachableError(_no_model(desk.settings.url, listed))
    members, limit_name = desk.settings.dialect.ways[0]
    server = kind_of(models) or _printable(listed.header("server") or "")
    facts = Facts(model=model, server=server, members=members, limit_name=limit_name)
    facts, reply = await _first_answer(desk, facts, names)
    if reply.first.reasoning or reply.text.lstrip().startswith("<think>"):
        return msgspec.structs.replace(facts, allowance=await _allowance(desk, facts))
    # Some think and do not show it: a greeting that is cut before its first word gives them away.
    is_secret = not reply.text and reply.finish == desk.settings.dialect.cut
    return msgspec.structs.replace(facts, allowance=_ALLOWANCE_LIMIT) if is_secret else facts


def _check_door(desk: Desk, reply: Reply) -> None:
    """Whether a server of OpenAI's API answers at all, and takes the key."""
    url, status = desk.settings.url, reply.status
    if reply.recording.is_timed_out:
        raise UnreachableError(f"{url}/models {desk.timed_out()}")
    if status is None:
        raise UnreachableError(f"{url}: {reply.recording.error}")
    if status in (401, 403):
        raise UnreachableError(f"{url} {_about_the_key(desk)} ({reply.complaint})")
    if 300 <= status < 400:
        raise UnreachableError(_redirected(url, reply))
    if reply.is_ok and reply.trace.media_type == "text/html":
        raise UnreachableError(f"{url} answers with a web page, not with JSON: give the address up to and with /v1")


def _redirected(url: str, reply: Reply) -> str:
    return f"{url} redirects to {_printable(reply.header('location') or '?')}: check that address"


def _no_model(url: str, listed: Reply) -> str:
    if listed.status == 404:
        return f"there is no {url}/models: give the address up to and with /v1, or name a model with --model"
    why = "" if listed.is_ok else f" ({listed.complaint})"
    return f"{url} lists no models{why}: name one with --model"


def _about_the_key(desk: Desk) -> str:
    if desk.address.key is None:
        return "wants a key: --api-key KEY, or WELLDONE_API_KEY"
    return "does not take this key"


async def _first_answer(desk: Desk, facts: Facts, names: list[str]) -> tuple[Facts, Reply]:
    """A first whole answer, and how it was asked for."""
    first = reply = await _say_hello(desk, facts, _TOKENS, stream=False)
    for members, limit_name in desk.settings.dialect.ways[1:]:
        if reply.status not in _UNKNOWN_MEMBER:
            break
        facts = msgspec.structs.replace(facts, members=members, limit_name=limit_name)
        reply = await _say_hello(desk, facts, _TOKENS, stream=False)
    if reply.status is not None and (reply.status >= 500 or (reply.is_ok and not _is_answer(reply))):
        streamed = await _say_hello(desk, facts, _TOKENS, stream=True)  # some only stream
        reply = streamed if _is_answer(streamed) or not reply.is_ok else reply
    if reply.recording.is_timed_out:
        raise UnreachableError(f"{desk.settings.url}: a {desk.settings.endpoint} request {desk.timed_out()}")
    if not reply.is_ok:
        raise _refused(desk, facts, first, names)
    if not _is_answer(reply):
        kinds = {"text/html": "a web page"}
        what = kinds.get(reply.trace.media_type, "no JSON" if reply.recording.body.strip() else "nothing")
        name = desk.settings.endpoint
        if not reply.recording.is_complete:
            raise UnreachableError(f"{desk.settings.url} answers a {name} request: {reply.recording.error}")
        raise UnreachableError(f"{desk.settings.url} answers a {name} request with {what}: is it a {name} server?")
    return facts, reply


def _is_answer(reply: Reply) -> bool:
    """Whether it is something that can be checked, right or not."""
    is_begun = reply.is_stream and bool(reply.heard.chunks or reply.heard.events)
    return reply.is_ok and (is_begun or bool(reply.choices or reply.json))


def _refused(desk: Desk, facts: Facts, reply: Reply, names: list[str]) -> UnreachableError:
    """Why a plain question was not answered."""
    url, dialect = desk.settings.url, desk.settings.dialect
    if reply.status is None:
        return UnreachableError(f"{url} does not answer a {dialect.name} request: {reply.recording.error}")
    if reply.status in (401, 403):
        return UnreachableError(f"{url} {_about_the_key(desk)} ({reply.complaint})")
    if reply.status in BUSY:
        return UnreachableError(f"{url} is too busy to be checked now ({reply.complaint})")
    if 300 <= reply.status < 400:
        return UnreachableError(_redirected(url, reply))
    if reply.status in (404, 405) and "error" not in reply.json and dialect is CHAT:
        return UnreachableError(f"there is no {url}{dialect.path}: give the address up to and with /v1")
    if reply.status in (404, 405, 501) and dialect is not CHAT and facts.model not in reply.complaint:
        return UnreachableError(f"not offered: {url} has no {dialect.path} ({reply.complaint})")
    if facts.model not in names and names:
        more = ", …" if len(names) > _NAMED else ""
        lists = f"it lists {', '.join(map(_printable, names[:_NAMED]))}{more}"
        return UnreachableError(f"{url} does not answer for {facts.model!r} ({reply.complaint}); {lists}")
    return UnreachableError(f"{url} does not answer for {facts.model!r} ({reply.complaint})")


async def _allowance(desk: Desk, facts: Facts) -> int:
    """How many tokens a model that thinks needs before it speaks."""
    reply = await _say_hello(desk, facts, _THINKING_TOKENS, stream=True)
    pieces = [piece for piece in reply.pieces if piece.index == reply.first.index]
    until_text = next((place for place, piece in enumerate(pieces) if piece.text and not piece.reasoning), None)
    if until_text is None:
        return _ALLOWANCE_LIMIT
    # Half as much again: another question may need more thought than a greeting.
    return min(_ALLOWANCE_LIMIT, math.ceil(until_text * 1.5) + _TOKENS)


async def _say_hello(desk: Desk, facts: Facts, tokens: int, *, stream: bool) -> Reply:
    dialect = desk.settings.dialect
    body = {
        "model": facts.model,
        **dialect.said(prompts.HELLO),
        "stream": stream,
        **facts.members,
        facts.limit_name: max(tokens, dialect.least_tokens),
        **desk.settings.extra,
    }
    asked = Asked(method="POST", path=dialect.path, body=msgspec.json.encode(body), endpoint=dialect.name)
    return await _ask(desk, asked)


async def _ask(desk: Desk, asked: Asked) -> Reply:
    try:
        recordings = await desk.ask(asked, _PROBE)
    except ListenError as error:
        running = "is the server running there?" if desk.address.tls is None else "does a server speak TLS there?"
        hint = "name it with --ca-file FILE" if error.is_untrusted else running
        raise UnreachableError(f"{desk.settings.url}: {error}; {hint}") from None
    return Reply(asked, recordings[-1], 1)


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:100])
