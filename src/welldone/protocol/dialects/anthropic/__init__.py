"""Dialect of Anthropic's Messages API (/v1/messages)."""

from welldone.protocol.dialects.anthropic.repair import MessagesRepairer
from welldone.protocol.dialects.anthropic.writer import MessagesDialect

__all__ = ["MessagesDialect", "MessagesRepairer"]
