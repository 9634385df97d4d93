"""Dialect of OpenAI's Responses API (/v1/responses)."""

from welldone.protocol.dialects.responses.repair import ResponsesRepairer
from welldone.protocol.dialects.responses.writer import ResponsesDialect

__all__ = ["ResponsesDialect", "ResponsesRepairer"]
