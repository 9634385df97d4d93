from typing import Any

MessagesNative: Any = None
