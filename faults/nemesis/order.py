"""What a client wants an upstream to do: it travels as the text of the request, through the gateway and unchanged."""

import re
from typing import Any, TypeAlias

import msgspec

Json: TypeAlias = dict[str, Any]

MARKER = re.compile(rb"m\d{8}(?!\d)")
"""The name of a request, wherever it stands in the bytes of one."""
SIGN = "✓"
"""Of three bytes, so that a character that was cut apart shows."""


class Order(msgspec.Struct, frozen=True):
    """An answer, and what is wrong with it."""

    marker: str
    tokens: int = 8
    pad: int = 0
    """Characters that each token has beside."""
    pause_s: float = 0.0
    """Before each token."""
    shape: str = "plain"
    """An odd form of the answer in which nothing is missing."""
    fault: str = ""
    faulty: str = ""
    """The upstreams that have the fault; the others answer well."""
    at: float = 0.0
    """Where the answer breaks, as a share of its bytes."""

    def token(self, tag: str, number: int) -> str:
        """A token. The tag names the attempt that it comes from."""
        return f"{self.marker}:{tag}:{number}{SIGN}{'.' * self.pad} "

    def text(self, tag: str) -> str:
        """All tokens of the answer."""
        return "".join(self.token(tag, number) for number in range(self.tokens))

    def encode(self) -> str:
        """The text of a request."""
        return msgspec.json.encode(self).decode()


def read_order(body: Json) -> Order:
    """The order in the body of a chat or a completion, which is ours: ValueError (of msgspec) where it is not."""
    text = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
    if not isinstance(text, str):
        text = "".join(part["text"] for part in text)
    return msgspec.json.decode(text, type=Order)
