from typing import Any

ResponsesNative: Any = None
