"""Base of fake stores for tests in which no stream is resumed and no response is shared."""

from welldone.server.access.store import ResponseLimits, StoreClient
from welldone.server.resume.streams import EventBatch


class StoreWithoutEvents(StoreClient):
    """A store whose operations on streams and responses must not be called."""

    async def append_events(self, name: str, batch: EventBatch, ttl_s: float) -> bytes | None:
        raise AssertionError

    async def read_events(self, name: str, after: int) -> EventBatch | None:
        raise AssertionError

    async def message_writer(self, name: str, message: bytes) -> float:
        raise AssertionError

    async def drop_events(self, name: str) -> None:
        raise AssertionError

    async def put_response(self, owner: str, name: str, value: bytes, limits: ResponseLimits) -> None:
        raise AssertionError

    async def get_response(self, name: str) -> bytes | None:
        raise AssertionError

    async def drop_response(self, name: str, ttl_s: float) -> None:
        raise AssertionError
