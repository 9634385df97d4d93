"""What a request is told that cannot be answered: a status, and the error body of its dialect."""

import msgspec

from welldone.engines.scripts import Reply, json_reply
from welldone.wire.dialects.messages import objects as messages
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


def refusal(error: RefusedError, *, is_anthropic: bool = False) -> Reply:
    """The reply that says so, in OpenAI's shape or in Anthropic's."""
    said = error_object(Failure(error.message, error.kind, error.param, error.code))
    if is_anthropic:
        said = messages.error_object(Failure(error.message, messages.error_type(error.status)))
    reply = json_reply(said, error.status)
    return msgspec.structs.replace(reply, headers=reply.headers | error.headers)
