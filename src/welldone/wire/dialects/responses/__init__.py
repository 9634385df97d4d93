"""The dialect of /v1/responses."""

from welldone.wire.dialects.responses.native import ResponsesNative
from welldone.wire.dialects.responses.writer import Responses

__all__ = ["Responses", "ResponsesNative"]
