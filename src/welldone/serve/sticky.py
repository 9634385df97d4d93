"""What a request has in common with those that should go where it goes, for the prompt cache that is there."""

import hashlib
from collections.abc import Sequence

import msgspec

from welldone.engines.upstream import Upstream
from welldone.serve.app import RequestContext
from welldone.wire.events import Json

_SESSION_HEADERS = ("x-session-id", "x-conversation-id", "x-session-affinity")
"""Under which clients name their conversation: opencode's, llama.cpp's page, Cloudflare's."""
_PROMPT_CHARACTERS = 1_024  # characters of a text that is continued: what cache blocks are made of


def sticky_key(ctx: RequestContext, body: Json, upstreams: Sequence[Upstream]) -> str | None:
    """The text by which an upstream is chosen; None where any will do."""
    wishes = {upstream.settings.sticky for upstream in upstreams} - {"none"}
    if not wishes or len(upstreams) < 2:
        return None
    if "conversation" in wishes:
        return f"conversation {ctx.principal} {_conversation_id(ctx, body)}"  # what another client says leads nowhere
    return f"key {ctx.principal}"


def _conversation_id(ctx: RequestContext, body: Json) -> str:
    """What the client calls it, else how it begins: that stays while it grows."""
    for given in (*(ctx.request.headers.get(name) for name in _SESSION_HEADERS), body.get("prompt_cache_key")):
        if isinstance(given, str) and given:
            return given
    return hashlib.blake2b(msgspec.json.encode(_conversation_start(body)), digest_size=16).hexdigest()


def _conversation_start(body: Json) -> object:
    """All up to the first word of the user."""
    said = body.get("messages") or body.get("input")
    if not isinstance(said, list):
        return str(said or body.get("prompt"))[:_PROMPT_CHARACTERS]
    users = (place for place, one in enumerate(said) if isinstance(one, dict) and one.get("role") == "user")
    return said[: next(users, 0) + 1]
