"""Requests to `/keys`, with which admins manage stored API keys."""

from typing import Annotated

from msgspec import Meta, Struct

from welldone.schemas.fields import note

_PER_MINUTE_LIMIT = 10**12
"""More than any server handles."""
_MODELS_LIMIT = 1_000
"""Patterns of one key. A request is matched against each."""
_PerMinute = Annotated[int, note("0: no limit; absent: that of the server", ge=0, le=_PER_MINUTE_LIMIT)]


class AddKeyRequest(Struct, kw_only=True):
    """A request to add a key. The fields are those of `[keys.NAME]`."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}\Z")]
    models: (
        Annotated[list[str], note("names or patterns that the key may use; absent: all", max_length=_MODELS_LIMIT)]
        | None
    ) = None
    requests_per_minute: _PerMinute | None = None
    tokens_per_minute: _PerMinute | None = None
    admin: Annotated[bool | None, note("may see and control the whole server")] = None
    metrics: Annotated[bool | None, note("may read `/metrics` even if restricted to some models")] = None
