"""The pages under docs/rules, read as cases: what each block holds, and whether it should be right."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from welldone.rules.capture import read_capture
from welldone.rules.trace import Trace
from welldone.wire.faults.catalogue import BY_ID

PAGES = Path(__file__).parents[2] / "docs" / "rules"

_BLOCK = re.compile(r"^```(sse|http|json) (wrong|right)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ESCAPE = re.compile(r"\\(?:(\n)|([rnt\\])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4}))")
_LETTERS = {"r": b"\r", "n": b"\n", "t": b"\t", "\\": b"\\"}


class Block(msgspec.Struct, frozen=True):
    """One case of a page."""

    rule: str
    number: int
    is_right: bool
    trace: Trace

    @property
    def name(self) -> str:
        return f"{self.rule} block {self.number}"


def read_page(path: Path) -> list[Block]:
    """The cases of one page."""
    found = _BLOCK.finditer(path.read_text())
    return [_block(path.stem, number, *match.groups()) for number, match in enumerate(found, start=1)]


def _block(rule: str, number: int, kind: str, outcome: str, options: str, text: str) -> Block:
    words, _, request = options.partition("request=")
    body = _unescape(text) if "escaped" in words.split() else text.encode()
    trace = read_capture(body) if kind == "http" else Trace(body=body)
    endpoint = "completions" if "completions" in words.split() else BY_ID[rule].endpoints[0]
    asked: dict[str, Any] | None = json.loads(request) if request else None
    trace = msgspec.structs.replace(trace, endpoint=endpoint, request=asked)
    return Block(rule, number, outcome == "right", trace)


def _unescape(text: str) -> bytes:
    pieces: list[bytes] = []
    at = 0
    for match in _ESCAPE.finditer(text):
        pieces += [text[at : match.start()].encode(), _meaning(match)]
        at = match.end()
    return b"".join(pieces) + text[at:].encode()


def _meaning(match: re.Match[str]) -> bytes:
    line_break, letter, byte, code = match.groups()
    if line_break:
        return b""
    if letter:
        return _LETTERS[letter]
    return bytes([int(byte, 16)]) if byte else chr(int(code, 16)).encode()
