"""The dialect of Anthropic's Messages API: /v1/messages."""

from typing import Any

from welldone.wire.dialects.messages.writer import Messages

__all__ = ["Messages", "MessagesNative"]

MessagesNative: Any = None
