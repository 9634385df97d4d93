"""Instructions to an upstream, sent as the text of the request through the gateway."""

import json
import re
from typing import Any, TypeAlias

import msgspec

Json: TypeAlias = dict[str, Any]

MARKER = re.compile(rb'marker\\*":\\*"(m\d{8})')
"""Pattern of the marker in a request. A delivered text that is to be continued has markers too."""
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
    is_repeatable: bool = False
    """All attempts have the same text."""
    ignores_prefill: bool = False
    """The answer begins again instead of continuing the text at the end of a request."""

    def token(self, tag: str, number: int) -> str:
        """Return a token; the tag names its attempt."""
        return f"{self.marker}:{tag}:{number}{SIGN}{'.' * self.pad} "

    def text(self, tag: str) -> str:
        """All tokens of the answer."""
        return "".join(self.token(tag, number) for number in range(self.tokens))

    def encode(self) -> str:
        """The text of a request."""
        return msgspec.json.encode(self).decode()


def read_upstream_action(body: Json) -> tuple[UpstreamAction, str]:
    """The order in the body of a chat or a completion, and the text to continue; ValueError if it is not ours."""
    prefix = ""
    if "messages" in body:
        *messages, last = body["messages"]
        if last["role"] == "assistant":
            prefix, last = last["content"], messages[-1]
        text = last["content"]
        if not isinstance(text, str):
            text = "".join(part["text"] for part in text)
        order, end = json.JSONDecoder().raw_decode(text)
    else:
        order, end = json.JSONDecoder().raw_decode(body["prompt"])
        prefix = body["prompt"][end:]
    return msgspec.convert(order, UpstreamAction), prefix
