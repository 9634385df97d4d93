"""What a dialect is to a load test: where it is asked, in which words, and who hears the answer."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from welldone.bench.dialects.ear import Ear
from welldone.bench.record import Record

Body: TypeAlias = dict[str, Any]
Headers: TypeAlias = tuple[tuple[str, str], ...]


class Dialect(Protocol):
    """How a server is asked and heard."""

    path: str
    wanted: Mapping[str, Any]
    """Members that every request has, unless the server does not understand them."""
    least_tokens: int
    """The smallest limit that servers take."""

    def headers(self, key: str | None) -> Headers:
        """What every request has besides, by the key of the server."""

    def body(self, members: Body, messages: list[Body], limit_tokens: int | None) -> Body:
        """A request for a stream: what all have in common, and what is said in this one, as chat says it."""

    def ear(self, record: Record, body: Body) -> Ear:
        """Who hears the answer to this request."""


def apart(messages: list[Body]) -> tuple[str, list[Body]]:
    """What the system says, and what the others do: some dialects have another place for the first."""
    system = [message["content"] for message in messages if message["role"] == "system"]
    return "\n\n".join(system), [message for message in messages if message["role"] != "system"]
