"""The dialect of /v1/responses."""

from typing import Any

from welldone.wire.dialects.responses.writer import Responses, ResponsesWriter

ResponsesNative: Any = None

__all__ = ["Responses", "ResponsesNative", "ResponsesWriter"]
