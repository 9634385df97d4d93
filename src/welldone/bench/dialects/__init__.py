"""The dialects that a server can be asked in."""

from collections.abc import Mapping

from welldone.bench.dialects.chat import Chat
from welldone.bench.dialects.dialect import Dialect
from welldone.bench.dialects.messages import Messages
from welldone.bench.dialects.responses import Responses

DIALECTS: Mapping[str, Dialect] = {"chat": Chat(), "responses": Responses(), "messages": Messages()}
"""By the name of the endpoint."""

__all__ = ["DIALECTS", "Dialect"]
