"""The dialect of /v1/responses."""

from welldone.wire.dialects.responses.native import ResponsesRepairer
from welldone.wire.dialects.responses.writer import ResponsesDialect

__all__ = ["ResponsesDialect", "ResponsesRepairer"]
