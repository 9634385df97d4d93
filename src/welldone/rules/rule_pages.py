"""The examples of a rule's page, read as traces: what each block holds, and whether it should be right."""

import json
import re
from importlib import resources
from typing import Any

import msgspec

from welldone.protocol.catalog import RULES_BY_ID
from welldone.protocol.catalog.rule import ALL_ENDPOINTS
from welldone.rules.trace import Trace, read_capture

_BLOCK = re.compile(r"^```(sse|http|json) (wrong|right)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ESCAPE = re.compile(r"\\(?:(\n)|([rnt\\])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4}))")
_LETTERS = {"r": b"\r", "n": b"\n", "t": b"\t", "\\": b"\\"}


class RuleExample(msgspec.Struct, frozen=True):
    """One block of a page."""

    rule: str
    number: int
    """Its place among the blocks of the page, from 1."""
    is_correct: bool
    trace: Trace

    @property
    def name(self) -> str:
        """What it is called where many are listed."""
        return f"{self.rule} block {self.number}"


def read_examples(rule: str, text: str) -> list[RuleExample]:
    """The blocks of the page of a rule that show bytes. Dialogues (`text` blocks) are for people to read."""
    found = _BLOCK.finditer(text)
    return [_example(rule, number, *match.groups()) for number, match in enumerate(found, start=1)]


def _example(rule: str, number: int, kind: str, outcome: str, options: str, text: str) -> RuleExample:
    words, _, request = options.partition("request=")
    body = _unescape(text) if "escaped" in words.split() else text.encode()
    trace = read_capture(body) if kind == "http" else Trace(body=body)
    endpoint = next((word for word in words.split() if word in ALL_ENDPOINTS), RULES_BY_ID[rule].endpoints[0])
    asked: dict[str, Any] | None = json.loads(request) if request else None
    trace = msgspec.structs.replace(trace, endpoint=endpoint, request=asked)
    return RuleExample(rule, number, outcome == "right", trace)


def _unescape(text: str) -> bytes:
    """Bytes that a page cannot hold, written as in Python; a backslash at the end of a line joins it to the next."""
    pieces: list[bytes] = []
    at = 0
    for match in _ESCAPE.finditer(text):
        pieces += [text[at : match.start()].encode(), _unescape_match(match)]
        at = match.end()
    return b"".join(pieces) + text[at:].encode()


def _unescape_match(match: re.Match[str]) -> bytes:
    line_break, letter, byte, code = match.groups()
    if line_break:
        return b""
    if letter:
        return _LETTERS[letter]
    return bytes([int(byte, 16)]) if byte else chr(int(code, 16)).encode()


# The page of a rule: what it wants, whom it hurts when it is broken, with examples.


def read_page(rule: str) -> str:
    """The page of a rule, as Markdown, without the marks that only its generator needs."""
    text = resources.files("welldone.rules").joinpath("pages", f"{rule}.md").read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if not line.startswith("<!--"))
