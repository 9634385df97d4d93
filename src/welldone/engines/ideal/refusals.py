"""What a request is told that cannot be answered: a status, and OpenAI's error body."""

import msgspec

from welldone.engines.scripts import Reply, json_reply
from welldone.wire.dialects.stream import error_object
from welldone.wire.events import Failure


class RefusedError(Exception):
    """A request that gets an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = headers or {}


def invalid(message: str, param: str | None = None, code: str | None = None) -> RefusedError:
    """The asker's fault."""
    return RefusedError(400, message, param=param, code=code)


def not_found(message: str, param: str | None = None, code: str | None = None) -> RefusedError:
    """There is no such thing."""
    return RefusedError(404, message, param=param, code=code)


def refusal(error: RefusedError) -> Reply:
    """The reply that says so."""
    said = error_object(Failure(error.message, error.kind, error.param, error.code))
    reply = json_reply(said, error.status)
    return msgspec.structs.replace(reply, headers=reply.headers | error.headers)
