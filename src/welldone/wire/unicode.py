"""Text that arrives in halves: bytes of a character, or of a surrogate pair, split over two deltas."""

import re

from welldone.wire.events import Json

# Bytes that are no UTF-8 were read as U+DC80 to U+DCFF, as the codec error handler "surrogateescape" does.
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_BYTES = re.compile("[\udc80-\udcff]+")
_LONE = re.compile("[\ud800-\udfff]")
_TAIL = re.compile("[\udc80-\udcff]{1,3}$")
_NUMBER_TYPES = frozenset((int, float))  # log probabilities are thousands of them: they are not looked at one by one
_DEPTH_LIMIT = 64  # nesting that unknown fields may keep; deeper is no field that a client reads


class CharacterJoiner:
    """Joins halves: what cannot be a character yet is held back until the next piece."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """What of the text so far is whole."""
        text = self._held + text
        keep = _incomplete_tail_length(text)
        self._held = text[len(text) - keep :] if keep else ""
        return clean_unicode(text[: len(text) - keep] if keep else text)

    def close(self) -> str:
        """The rest: a half that never found its other one becomes U+FFFD."""
        rest, self._held = clean_unicode(self._held), ""
        return rest


def clean_unicode(text: str) -> str:
    """The text with its halves joined, and what finds no other half as U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        text = _PAIR.sub(_join_pair, text)
        text = _BYTES.sub(_join_bytes, text)
        return _LONE.sub("\ufffd", text)
    return text


def scrub_object(value: Json) -> Json:
    """A JSON object, scrubbed."""
    return {clean_unicode(key): scrub_json(item, 1) for key, item in value.items()}


def scrub_json(value: object, depth: int = 0) -> object:
    """A JSON value with every string clean and no nesting beyond what an encoder takes."""
    if isinstance(value, str):
        return clean_unicode(value)
    if not isinstance(value, (list, dict)):
        return value
    if depth >= _DEPTH_LIMIT:
        return None
    deeper = depth + 1
    if isinstance(value, list):
        return [item if type(item) in _NUMBER_TYPES else scrub_json(item, deeper) for item in value]
    return {
        clean_unicode(key): item if type(item) in _NUMBER_TYPES else scrub_json(item, deeper)
        for key, item in value.items()
    }


def _join_pair(found: re.Match[str]) -> str:
    return found[0].encode("utf-16", "surrogatepass").decode("utf-16")


def _join_bytes(found: re.Match[str]) -> str:
    return found[0].encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _incomplete_tail_length(text: str) -> int:
    """How many characters at the end wait for their other half."""
    if "\ud800" <= text[-1:] <= "\udbff":
        return 1
    tail = _TAIL.search(text[-3:])  # no more can wait, and a search looks at all that it is given
    if tail is None:
        return 0
    raw = tail[0].encode("utf-8", "surrogateescape")
    for count in range(1, len(raw) + 1):
        lead = raw[-count]
        if lead >= 0xC2:  # the first byte of a sequence; it says how many there are
            return count if count < 2 + (lead >= 0xE0) + (lead >= 0xF0) else 0
    return 0
