"""Detection of servers that send one JSON reply, or lines of JSON, instead of an SSE stream."""

from welldone.protocol import sse
from welldone.protocol.lenient_json import as_list, as_object, parse_strict

_SPACE = b" \t\r\n"
_SPACE_LIMIT_BYTES = 65_536  # more white space than before any JSON reply
_EVENT_TYPES = ("response.", "message_", "content_block_")


class BodyStart:
    """Holds the first bytes of a body until it is known to be a stream. One JSON reply is held to its end."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._is_json = False  # starts with a JSON value, which may be a reply or a line of a stream
        self._is_reply = False

    def add(self, data: bytes) -> bytes | None:
        """Return all bytes so far if they begin a stream; None while that is unknown."""
        self._held += data
        return self._release() if self._is_stream(data) else None

    def close(self) -> tuple[bytes, bool]:
        """Return the bytes that were held back, and whether they are one JSON reply."""
        held = self._release()
        return held, starts_json(held)

    def _is_stream(self, data: bytes) -> bool:
        if len(self._held) > sse.FRAME_LIMIT_BYTES:
            return True  # the reader of the stream reports that it is too long
        if self._is_reply or (self._is_json and b"\n" not in data):
            return False
        start = _strip(bytes(self._held))
        if not start or sse.BOM.startswith(start):
            return len(self._held) > _SPACE_LIMIT_BYTES
        self._is_json = start.startswith((b"{", b"["))
        line, line_end, _ = start.partition(b"\n")
        self._is_reply = self._is_json and bool(line_end) and not _is_chunk(line)
        return not self._is_json or (bool(line_end) and not self._is_reply)

    def _release(self) -> bytes:
        held, self._held = bytes(self._held), bytearray()
        return held


def starts_json(body: bytes) -> bool:
    """Whether a body starts with a JSON object or list, as no SSE stream does."""
    return _strip(body).startswith((b"{", b"["))


def _strip(body: bytes) -> bytes:
    return body.lstrip(_SPACE).removeprefix(sse.BOM).lstrip(_SPACE)


def _is_chunk(line: bytes) -> bool:
    """Whether a line without `data:` is a chunk or an event of a stream."""
    value = as_object(parse_strict(line))
    has_delta = any("delta" in as_object(choice) for choice in as_list(value.get("choices")))
    is_event = str(value.get("type")).startswith(_EVENT_TYPES)
    return has_delta or is_event or str(value.get("object")).endswith(".chunk")
