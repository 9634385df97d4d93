"""What must not be written or shown: the keys that we were told."""

import re
from collections.abc import Collection, Iterable
from itertools import takewhile

import msgspec

HIDDEN = "[hidden]"
"""What stands where a secret was."""

API_KEY_VARIABLE = "WELLDONE_API_KEY"
"""The environment variable in which a command looks for the key of a server."""

MIN_KEY_LENGTH = 8
"""Characters of a key at least: what is shorter is soon guessed over a network."""

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"')
_encode = msgspec.json.encode


def is_weak_key(key: str) -> bool:
    """Whether the key is so short that it could be guessed."""
    return len(key) < MIN_KEY_LENGTH


def any_of_pattern(words: Collection[str]) -> str:
    """A pattern for any of the words, of which there is one at least; of two that fit the longer.

    What they have in common stands in it once: to look for a thousand keys takes as long as to look for one.
    """
    low, high = min(words), max(words)
    start = low[: _common_prefix_length(low, high)]  # of both, and so of all between them
    rests: dict[str, set[str]] = {}
    for word in words:
        rest = word[len(start) :]
        rests.setdefault(rest[:1], set()).add(rest)
    is_one = rests.pop("", None) is not None
    inner = "|".join(any_of_pattern(rests[character]) for character in sorted(rests))
    if not inner:
        return re.escape(start)
    return f"{re.escape(start)}(?:{inner}){'?' if is_one else ''}"


def _common_prefix_length(text: str, secret: str) -> int:
    """How much of the secret the text begins with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, secret, strict=False)))


def _encodings(secret: str) -> set[bytes]:
    """A secret as it is, and as it stands in JSON; some put a backslash before each slash."""
    plain = _encode(secret)[1:-1]
    return {secret.encode(), plain, plain.replace(b"/", rb"\/")}


class SecretRedactor:
    """What must not be written."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # The longest first: one may be the beginning of another.
        # A weak one, such as `ollama`, is a common word: no trace with it would ever be written.
        self.values = sorted({secret for secret in secrets if not is_weak_key(secret)}, key=len, reverse=True)
        spelled = {spelling for secret in self.values for spelling in _encodings(secret)} or {b""}
        self.longest_bytes = max(map(len, spelled), default=0)
        self._pattern = re.compile(
            any_of_pattern([spelling.decode("latin-1") for spelling in spelled]).encode("latin-1")
        )
        self._prefix_pattern = re.compile(any_of_pattern({secret[:MIN_KEY_LENGTH] for secret in self.values} or {""}))

    def occur_in(self, data: bytes) -> bool:
        """Whether one of them is there."""
        return bool(self.values) and self._pattern.search(data) is not None

    def redact(self, text: str) -> str:
        """The text without them, also where it was cut within one of them."""
        if not self.values or self._prefix_pattern.search(text) is None:
            return text
        for secret in self.values:
            begun = text.find(secret[:MIN_KEY_LENGTH])
            while begun >= 0:
                text = text[:begun] + HIDDEN + text[begun + _common_prefix_length(text[begun:], secret) :]
                begun = text.find(secret[:MIN_KEY_LENGTH], begun + len(HIDDEN))
        return text

    def redact_json(self, text: bytes) -> bytes:
        """JSON without them. Each string is cleaned by itself, so that it stays JSON."""
        if not self.occur_in(text):
            return text
        return _STRING.sub(lambda found: _encode(self.redact(msgspec.json.decode(found[0], type=str))), text)
