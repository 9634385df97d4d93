"""What a dialect is to a load test: where it is asked, in which words, and who hears the answer."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from welldone.bench.dialects.ear import StreamTimer
from welldone.bench.record import BenchRecord

JsonBody: TypeAlias = dict[str, Any]
HeaderPairs: TypeAlias = tuple[tuple[str, str], ...]


class BenchDialect(Protocol):
    """How a server is asked and heard."""

    path: str
    preferred_fields: Mapping[str, Any]
    """Members that every request has, unless the server does not understand them."""
    min_max_tokens: int
    """The smallest limit that servers take."""

    def headers(self, key: str | None) -> HeaderPairs:
        """What every request has besides, by the key of the server."""

    def body(self, common_fields: JsonBody, messages: list[JsonBody], max_tokens: int | None) -> JsonBody:
        """A request for a stream: what all have in common, and what is said in this one, as chat says it."""

    def stream_timer(self, record: BenchRecord, body: JsonBody) -> StreamTimer:
        """Who hears the answer to this request."""


def split_system_prompt(messages: list[JsonBody]) -> tuple[str, list[JsonBody]]:
    """What the system says, and what the others do: some dialects have another place for the first."""
    system = [message["content"] for message in messages if message["role"] == "system"]
    return "\n\n".join(system), [message for message in messages if message["role"] != "system"]
