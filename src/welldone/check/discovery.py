"""Discovery: reachability, key, model, and the request fields that the server accepts, before the probes run.

A problem found here breaks no rule. It ends the check with a one-line message with a hint for the user.
"""

import math

import msgspec

from welldone.check import settings
from welldone.check.probe_client import ProbeClient, ServerFacts
from welldone.check.reply import OVERLOAD_STATUSES, ExpectedReply, ProbeReply, ProbeRequest
from welldone.check.settings import CHAT, GEMINI
from welldone.gateway.model_list import detect_server_kind, parse_model_list
from welldone.http.connect import HttpClientError
from welldone.reporting import single_line
from welldone.rules.view.choices import as_object

_DISCOVERY_PROBE = "discovery"
_GREETING_TOKENS = 16
_REASONING_TOKENS = 512
"""Token limit for reasoning before the first word. Small models take some hundred tokens for a greeting."""
_ALLOWANCE_LIMIT = 1024
_UNKNOWN_FIELD_STATUSES = (400, 422)
"""Statuses for an unknown field: 400 from most servers, 422 from those based on FastAPI."""
_MAX_MODELS_NAMED = 5  # in an error message
_MAX_NAME_CHARS = 100  # of a model, a URL or a server


class CheckUnreachableError(Exception):
    """The server cannot be checked. The message is one line, with a hint for the user."""


async def discover(client: ProbeClient) -> ServerFacts:
    """Find the model and the request fields that the server accepts.

    Raises:
        CheckUnreachableError: the server cannot be checked.
    """
    listed = await _send_discovery(client, ProbeRequest(method="GET", path="/models"))
    url = client.settings.url
    if listed.recording.is_timed_out:
        raise CheckUnreachableError(f"{url}/models {client.timeout_message()}")
    if listed.status is None:
        raise CheckUnreachableError(f"{url}: {listed.recording.error}")
    if problem := _access_problem(client, listed):
        raise CheckUnreachableError(problem)
    if listed.is_ok and listed.trace.media_type == "text/html":
        raise CheckUnreachableError(f"{url} answers with a web page, not with JSON: pass the base URL, including /v1")
    models = (parse_model_list(listed.recording.body, client.settings.secrets.values) or ()) if listed.is_ok else ()
    names = [model.id.removeprefix("models/") for model in models]  # Google's names have this prefix
    model = client.settings.model or (names[0] if names else None)
    if model is None and listed.status == 404:
        hint = "pass the base URL, including /v1, or name a model with --model"
        raise CheckUnreachableError(f"there is no {url}/models: {hint}")
    if model is None:
        reason = "" if listed.is_ok else f" ({listed.error_summary})"
        raise CheckUnreachableError(f"{url} lists no models{reason}: name one with --model")
    members, limit_name = client.settings.dialect.request_variants[0]
    server = detect_server_kind(models) or single_line(listed.header("server") or "", _MAX_NAME_CHARS)
    facts = ServerFacts(model=model, server=server, members=members, limit_field=limit_name)
    facts, reply = await _first_answer(client, facts, names)
    if reply.first_choice.reasoning or reply.text.lstrip().startswith("<think>"):
        return msgspec.structs.replace(facts, reasoning_allowance=await _measure_reasoning_allowance(client, facts))
    # Some models do not send their reasoning: a greeting that reaches its limit without text shows it.
    is_hidden = not reply.text and reply.finish_reason == client.settings.dialect.length_reason
    return msgspec.structs.replace(facts, reasoning_allowance=_ALLOWANCE_LIMIT) if is_hidden else facts


def _access_problem(client: ProbeClient, reply: ProbeReply) -> str | None:
    """The message for a reply that refuses the key, or redirects."""
    url, status = client.settings.url, reply.status or 0
    if status in (401, 403):
        has_key = client.address.key is not None
        hint = "does not accept this key" if has_key else "requires a key: pass --api-key KEY, or set WELLDONE_API_KEY"
        return f"{url} {hint} ({reply.error_summary})"
    if 300 <= status < 400:
        location = single_line(reply.header("location") or "?", _MAX_NAME_CHARS)
        return f"{url} redirects to {location}: check that URL instead"
    return None


async def _first_answer(client: ProbeClient, facts: ServerFacts, names: list[str]) -> tuple[ServerFacts, ProbeReply]:
    """The reply to a first complete request, and the facts with the fields that it was accepted with."""
    first = reply = await _send_greeting(client, facts, _GREETING_TOKENS, stream=False)
    for members, limit_name in client.settings.dialect.request_variants[1:]:
        if reply.status not in _UNKNOWN_FIELD_STATUSES:
            break
        facts = msgspec.structs.replace(facts, members=members, limit_field=limit_name)
        reply = await _send_greeting(client, facts, _GREETING_TOKENS, stream=False)
    if reply.status is not None and not (_is_checkable(reply) or 300 <= reply.status < 500):
        streamed = await _send_greeting(client, facts, _GREETING_TOKENS, stream=True)  # some servers only stream
        reply = streamed if _is_checkable(streamed) or not reply.is_ok else reply
    url, name = client.settings.url, client.settings.endpoint
    if reply.status is not None and reply.failure and facts.model in names:
        return facts, reply  # the probes show which requests fail
    if reply.recording.is_timed_out:
        raise CheckUnreachableError(f"{url}: a {name} request {client.timeout_message()}")
    if not reply.is_ok:
        raise CheckUnreachableError(_refusal_message(client, facts, first, names))
    if not _is_checkable(reply):
        if not reply.recording.is_complete:
            raise CheckUnreachableError(f"{url} answers a {name} request: {reply.recording.error}")
        content = "text that is not JSON" if reply.recording.body.strip() else "an empty body"
        content = "a web page" if reply.trace.media_type == "text/html" else content
        raise CheckUnreachableError(f"{url} answers a {name} request with {content}: is it a {name} server?")
    return facts, reply


def _is_checkable(reply: ProbeReply) -> bool:
    """Whether the reply has the form of an answer, correct or not."""
    has_events = reply.is_stream and bool(reply.view.chunks or reply.view.events)
    return reply.is_ok and (has_events or bool(reply.choices or reply.json))


def _refusal_message(client: ProbeClient, facts: ServerFacts, reply: ProbeReply, names: list[str]) -> str:
    """The message for a refused greeting."""
    url, dialect, status = client.settings.url, client.settings.dialect, reply.status
    if status is None:
        return f"{url} does not answer a {dialect.name} request: {reply.recording.error}"
    if problem := _access_problem(client, reply):
        return problem
    if status in OVERLOAD_STATUSES:
        return f"{url} is overloaded ({reply.error_summary}): try again later"
    if status in (404, 405) and "error" not in reply.json and dialect is CHAT:
        return f"there is no {url}{dialect.path}: pass the base URL, including /v1"
    is_about_model = facts.model in reply.error_summary
    if dialect is GEMINI:  # the path, which an error may quote, has the name of the model
        is_about_model = is_about_model and "status" in as_object(reply.json.get("error"))
    if status in (404, 405, 501) and dialect is not CHAT and not is_about_model:
        return f"not offered: {url} has no {dialect.path} ({reply.error_summary})"
    message = f"{url} does not answer for {facts.model!r} ({reply.error_summary})"
    if facts.model in names or not names:
        return message
    listed = ", ".join(single_line(name, _MAX_NAME_CHARS) for name in names[:_MAX_MODELS_NAMED])
    return f"{message}; it lists {listed}{', …' if len(names) > _MAX_MODELS_NAMED else ''}"


async def _measure_reasoning_allowance(client: ProbeClient, facts: ServerFacts) -> int:
    """Tokens that a reasoning model needs before its first text."""
    reply = await _send_greeting(client, facts, _REASONING_TOKENS, stream=True)
    pieces = [piece for piece in reply.deltas if piece.index == reply.first_choice.index]
    until_text = next((number for number, piece in enumerate(pieces) if piece.text and not piece.reasoning), None)
    if until_text is None:
        return _ALLOWANCE_LIMIT
    # Half as much again: other prompts may need more reasoning than a greeting.
    return min(_ALLOWANCE_LIMIT, math.ceil(until_text * 1.5) + _GREETING_TOKENS)


async def _send_greeting(client: ProbeClient, facts: ServerFacts, tokens: int, *, stream: bool) -> ProbeReply:
    dialect = client.settings.dialect
    body = {
        "model": facts.model,
        **dialect.prompt_members(settings.HELLO_PROMPT),
        "stream": stream,
        **facts.members,
        facts.limit_field: max(tokens, dialect.min_tokens),
        **client.settings.extra,
    }
    path, body = dialect.write_request(body)
    data, expected = msgspec.json.encode(body), ExpectedReply.ANSWER
    request = ProbeRequest(method="POST", path=path, body=data, endpoint=dialect.name, expected=expected)
    return await _send_discovery(client, request)


async def _send_discovery(client: ProbeClient, request: ProbeRequest) -> ProbeReply:
    try:
        recordings = await client.send(request, _DISCOVERY_PROBE)
    except HttpClientError as error:
        hint = "is the server running there?" if client.address.tls is None else "does the server use TLS?"
        hint = "trust it with --ca-file FILE" if error.is_untrusted else hint
        raise CheckUnreachableError(f"{client.settings.url}: {error}; {hint}") from None
    return ProbeReply(request, recordings[-1], 1)
