"""Instructions to an upstream, sent as the text of the request through the gateway."""

import re
from typing import Any, TypeAlias

import msgspec

Json: TypeAlias = dict[str, Any]

MARKER = re.compile(rb"m\d{8}(?!\d)")
"""Pattern of the marker of a request."""
SIGN = "✓"
"""Three bytes long, so that a split character is visible."""


class UpstreamAction(msgspec.Struct, frozen=True):
    """An answer and its fault."""

    marker: str
    tokens: int = 8
    pad: int = 0
    """Padding per token."""
    pause_s: float = 0.0
    """Pause before each token."""
    shape: str = "plain"
    """Unusual but complete form of the answer."""
    fault: str = ""
    faulty: str = ""
    """Upstreams with the fault; the others answer correctly."""
    at: float = 0.0
    """Position of the fault, as a share of the bytes."""

    def token(self, tag: str, number: int) -> str:
        """Return a token; the tag names its attempt."""
        return f"{self.marker}:{tag}:{number}{SIGN}{'.' * self.pad} "

    def text(self, tag: str) -> str:
        """All tokens of the answer."""
        return "".join(self.token(tag, number) for number in range(self.tokens))

    def encode(self) -> str:
        """The text of a request."""
        return msgspec.json.encode(self).decode()


def read_upstream_action(body: Json) -> UpstreamAction:
    """The order in the body of a chat or a completion, which is ours: ValueError (of msgspec) where it is not."""
    text = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
    if not isinstance(text, str):
        text = "".join(part["text"] for part in text)
    return msgspec.json.decode(text, type=UpstreamAction)
