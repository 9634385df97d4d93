"""The documentation page of a rule, and its examples as traces.

An example is a fenced block such as ```` ```sse wrong ````: kind, expected outcome, options and an optional request.
"""

import json
import re
from pkgutil import get_data
from typing import Any

import msgspec

from welldone.core.catalog import ALL_ENDPOINTS, RULES
from welldone.rules.trace import Trace, read_capture

_BLOCK = re.compile(r"^```(sse|http|json) (wrong|right)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ESCAPE = re.compile(rb"\\(?:(\n)|([rnt\\])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4}))")
_LETTERS = {b"r": b"\r", b"n": b"\n", b"t": b"\t", b"\\": b"\\"}


class RuleExample(msgspec.Struct, frozen=True):
    """A code block of a page."""

    rule: str
    number: int
    """Position among the blocks of the page, from 1."""
    is_correct: bool
    trace: Trace

    @property
    def name(self) -> str:
        """Display name, such as `end-done-sent block 2`."""
        return f"{self.rule} block {self.number}"


def read_examples(rule: str, text: str) -> list[RuleExample]:
    """Parse the blocks that contain a reply. `text` blocks (dialogues) are skipped."""
    return [_example(rule, number, *match.groups()) for number, match in enumerate(_BLOCK.finditer(text), start=1)]


def _example(rule: str, number: int, block_kind: str, outcome: str, options: str, text: str) -> RuleExample:
    words, _, request = options.partition("request=")
    body = text.encode()
    if "escaped" in words.split():
        body = _ESCAPE.sub(_unescape, body)
    trace = read_capture(body) if block_kind == "http" else Trace(body=body)
    endpoint = next((word for word in words.split() if word in ALL_ENDPOINTS), RULES[rule].endpoints[0])
    request_body: dict[str, Any] | None = json.loads(request) if request else None
    path = next((word.removeprefix("path=") for word in words.split() if word.startswith("path=")), None)
    trace = msgspec.structs.replace(trace, endpoint=endpoint, request=request_body, path=path)
    return RuleExample(rule, number, outcome == "right", trace)


def _unescape(match: re.Match[bytes]) -> bytes:
    """Decode a Python-style escape; a backslash at the end of a line joins it to the next."""
    line_break, letter, byte, code = match.groups()
    if line_break:
        return b""
    if letter:
        return _LETTERS[letter]
    return bytes([int(byte, 16)]) if byte else chr(int(code, 16)).encode()


def read_page(rule: str) -> str:
    """Return the page of a rule as Markdown, without the generator's comments."""
    text = (get_data("welldone.rules", f"pages/{rule}.md") or b"").decode()
    return "\n".join(line for line in text.splitlines() if not line.startswith("<!--"))
