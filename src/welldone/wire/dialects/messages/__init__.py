"""The dialect of Anthropic's Messages API: /v1/messages."""

from welldone.wire.dialects.messages.native import MessagesRepairer
from welldone.wire.dialects.messages.writer import MessagesDialect

__all__ = ["MessagesDialect", "MessagesRepairer"]
