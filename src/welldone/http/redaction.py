"""Redaction of API keys in traces, logs and on screens."""

import re
from collections.abc import Collection, Iterable
from itertools import takewhile

import msgspec

HIDDEN = "[hidden]"
"""Replacement for a secret."""

API_KEY_VARIABLE = "WELLDONE_API_KEY"
"""Environment variable from which commands read the key of a server."""

MIN_KEY_LENGTH = 8
"""Shorter keys can be guessed over a network."""

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"')
_encode = msgspec.json.encode


def is_weak_key(key: str) -> bool:
    """Return whether the key is short enough to be guessed."""
    return len(key) < MIN_KEY_LENGTH


def any_of_pattern(words: Collection[str]) -> str:
    """Return a regular expression that matches any of the words (at least one), preferring the longest.

    Common prefixes appear once, as in a trie: searching for a thousand keys takes as long as searching for one.
    """
    low, high = min(words), max(words)
    prefix = low[: _common_prefix_length(low, high)]  # shared by both, hence by all words that sort between them
    suffixes: dict[str, set[str]] = {}
    for word in words:
        suffix = word[len(prefix) :]
        suffixes.setdefault(suffix[:1], set()).add(suffix)
    is_prefix_a_word = suffixes.pop("", None) is not None
    inner = "|".join(any_of_pattern(suffixes[character]) for character in sorted(suffixes))
    if not inner:
        return re.escape(prefix)
    return f"{re.escape(prefix)}(?:{inner}){'?' if is_prefix_a_word else ''}"


def _common_prefix_length(text: str, secret: str) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, secret, strict=False)))


def _encodings(secret: str) -> set[bytes]:
    plain = _encode(secret)[1:-1]
    return {secret.encode(), plain, plain.replace(b"/", rb"\/")}  # some JSON encoders escape slashes


class SecretRedactor:
    """Finds and replaces a set of secrets, plain and JSON-encoded.

    Weak keys are left out: a key such as `ollama` is a common word, and no trace that contains it could be written.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        self.reload(secrets)

    def reload(self, secrets: Iterable[str]) -> None:
        """Find another set of secrets from now on."""
        # Longest first: one secret may be the prefix of another.
        self.values: list[str] = sorted(
            {secret for secret in secrets if not is_weak_key(secret)}, key=len, reverse=True
        )
        encoded = {encoding for secret in self.values for encoding in _encodings(secret)} or {b""}
        self.longest_bytes: int = max(map(len, encoded), default=0)
        self._pattern = re.compile(
            any_of_pattern([encoding.decode("latin-1") for encoding in encoded]).encode("latin-1")
        )
        self._prefix_pattern = re.compile(any_of_pattern({secret[:MIN_KEY_LENGTH] for secret in self.values} or {""}))

    def occur_in(self, data: bytes) -> bool:
        """Return whether the data contains a secret."""
        return bool(self.values) and self._pattern.search(data) is not None

    def redact(self, text: str) -> str:
        """Replace every secret, also one of which only a prefix of `MIN_KEY_LENGTH` or more characters is left."""
        if not self.values or self._prefix_pattern.search(text) is None:
            return text
        for secret in self.values:
            start = text.find(secret[:MIN_KEY_LENGTH])
            while start >= 0:
                text = text[:start] + HIDDEN + text[start + _common_prefix_length(text[start:], secret) :]
                start = text.find(secret[:MIN_KEY_LENGTH], start + len(HIDDEN))
        return text

    def redact_json(self, text: bytes) -> bytes:
        """Redact each string of a JSON text by itself, so that the result is still JSON."""
        if not self.occur_in(text):
            return text
        return _STRING.sub(lambda match: _encode(self.redact(msgspec.json.decode(match[0], type=str))), text)
