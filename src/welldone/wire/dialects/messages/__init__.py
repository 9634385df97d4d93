"""The dialect of Anthropic's Messages API: /v1/messages."""

from welldone.wire.dialects.messages.native import MessagesNative
from welldone.wire.dialects.messages.writer import Messages

__all__ = ["Messages", "MessagesNative"]
