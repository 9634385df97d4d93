"""What a request is told that cannot be answered: a status, and the error body of its dialect."""

import msgspec

from welldone.engines.scripts import MockReply, json_reply
from welldone.wire.dialects.messages import objects as messages
from welldone.wire.dialects.stream import openai_error_object
from welldone.wire.events import Failure


class MockApiError(Exception):
    """A request that gets an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        error_type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.error_type = error_type
        self.param = param
        self.code = code
        self.headers = headers or {}


def invalid_request(message: str, param: str | None = None, code: str | None = None) -> MockApiError:
    """The asker's fault."""
    return MockApiError(400, message, param=param, code=code)


def not_found(message: str, param: str | None = None, code: str | None = None) -> MockApiError:
    """There is no such thing."""
    return MockApiError(404, message, param=param, code=code)


def render_error(error: MockApiError, *, is_anthropic: bool = False) -> MockReply:
    """The reply that says so, in OpenAI's shape or in Anthropic's."""
    said = openai_error_object(Failure(error.message, error.error_type, error.param, error.code))
    if is_anthropic:
        said = messages.anthropic_error_object(Failure(error.message, messages.error_type_for_status(error.status)))
    reply = json_reply(said, error.status)
    return msgspec.structs.replace(reply, headers=reply.headers | error.headers)
