"""A reply of HTTP/1.1 out of its bytes, however they are cut: head, body, the sizes of its chunks, and how it ended.

It is as lenient as the libraries of clients are: lines may end with LF alone, headers may be folded, chunks may have
extensions. What those refuse is no HTTP here either. Everything is bounded; what came before an error is kept.
"""

import re
import zlib
from collections.abc import Callable

# A compressed body, unpacked as it comes, and never to more than there is room for: a bomb is small until then.


CONTENT_CODINGS = frozenset({"gzip", "x-gzip", "deflate"})
"""Those that can be unpacked without another library."""

_GZIP_WBITS = 16 + zlib.MAX_WBITS
_RAW_DEFLATE_WBITS = -zlib.MAX_WBITS


class Decompressor:
    """Unpacks one body."""

    def __init__(self, coding: str) -> None:
        self._is_gzip = coding != "deflate"
        self._prefix = b""
        """The first byte of a body, where it takes two to know what it is."""
        self._is_format_known = self._is_gzip
        self._has_member = False
        self._is_done = False
        self._zlib = zlib.decompressobj(_GZIP_WBITS if self._is_gzip else zlib.MAX_WBITS)

    def feed(self, data: bytes, max_bytes: int) -> bytes:
        """What comes out of more of it: so many bytes at most, of which there is at least one.

        Raises:
            ValueError: the body is not packed as it says.
        """
        if not self._is_format_known:
            data = self._prefix = self._prefix + data
            if len(data) < 2:
                return b""
            self._detect_format(data)
        made = bytearray()
        while data and len(made) < max_bytes and not self._is_done:
            made += self._decompress(data, max_bytes - len(made))
            data = self._remaining_input()
        return bytes(made)

    def _detect_format(self, data: bytes) -> None:
        """Know zlib's frame by its first two bytes; some servers send `deflate` without it."""
        self._is_format_known = True
        self._prefix = b""
        if data[0] & 0x0F != zlib.DEFLATED or int.from_bytes(data[:2], "big") % 31:
            self._zlib = zlib.decompressobj(_RAW_DEFLATE_WBITS)

    def _decompress(self, data: bytes, max_bytes: int) -> bytes:
        try:
            return self._zlib.decompress(data, max_bytes)
        except zlib.error:
            if not self._has_member:
                raise ValueError("the body is not packed as it says") from None
            self._is_done = True  # padding after the last member, which all clients pass over
            return b""

    def _remaining_input(self) -> bytes:
        """What is left to unpack: gzip may have several members in a row."""
        if not self._zlib.eof:
            return self._zlib.unconsumed_tail
        rest = self._zlib.unused_data
        self._has_member = True
        self._is_done = not self._is_gzip
        if self._is_gzip:
            self._zlib = zlib.decompressobj(_GZIP_WBITS)
        return rest


CONNECTION_LOST = "the connection was lost before the reply was whole"
NOT_HTTP = "the reply is not HTTP"

_HEAD_LIMIT_BYTES = 65536  # of all heads together, or of trailers; aiohttp and nginx refuse 8 to 32 KB
_CHUNK_LINE_LIMIT_BYTES = 4096  # of the line before a chunk; clients take 4 to 64 KB
_CHUNKS_LIMIT = 2**20  # chunks of one body: a long answer has a hundredth of it
_STATUS_LINE = re.compile(rb"HTTP/\d(?:\.\d)? +(\d{3})(?: .*)?", re.DOTALL)
_HEADER_NAME = re.compile(rb"[!#$%&'*+.^_`|~\w-]+", re.ASCII)
_CONTENT_LENGTH = re.compile(r"\d{1,18}", re.ASCII)
_CHUNK_SIZE_LINE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;.*)?", re.DOTALL)
_BODILESS_STATUSES = frozenset({204, 304})


class _ParseError(Exception):
    """It is no reply, or too much of one."""


class _ParseLimitError(_ParseError):
    """It is longer than anyone should listen."""


class ResponseParser:
    """One reply, as its bytes come. All that is public is for reading."""

    def __init__(self, method: str, limit_bytes: int) -> None:
        self.status: int | None = None
        """None: no whole head came."""
        self.headers: list[tuple[str, str]] = []
        self.body = bytearray()
        self.is_done = False
        self.is_complete = False
        """The body ended as its framing says."""
        self.error: str | None = None
        self.is_over_limit = False
        """It was longer than we listen: it might have gone on, and well."""
        self._method = method
        self._limit_bytes = limit_bytes
        self._buffer = bytearray()
        self._head_bytes = 0
        self._is_chunked = False
        self._chunk_sizes: list[int] = []
        self._pending_status = 0  # the status of the head that is being read
        self._remaining = 0  # bytes of the body, or of this chunk, that are still to come
        self._decompressor: Decompressor | None = None
        self._state: Callable[[], bool] = self._read_status
        """Takes something from the buffer; False where there is too little in it."""

    @property
    def pieces(self) -> tuple[int, ...] | None:
        """How many bytes of the body each chunk gave; None where it has no chunks."""
        return tuple(filter(None, self._chunk_sizes)) if self._is_chunked else None

    def feed(self, data: bytes) -> None:
        """More of the reply."""
        self._buffer += data
        try:
            while not self.is_done and self._state():
                pass
        except _ParseError as error:
            self.is_over_limit = isinstance(error, _ParseLimitError)
            self.fail(str(error))
        if self.is_done:
            self._buffer.clear()  # what comes after the reply is none of it

    def feed_eof(self) -> None:
        """The server says no more. Without a length that is the end of the reply."""
        if not self.is_done and self._state == self._read_until_close:
            self._finish()
        self.fail(CONNECTION_LOST)

    def fail(self, error: str) -> None:
        """Nobody listens any more."""
        if not self.is_done:
            self.is_done = True
            self.error = error

    def _finish(self) -> bool:
        self.is_done = self.is_complete = True
        return True

    # The steps of the head.

    def _read_status(self) -> bool:
        line = self._take_line(_HEAD_LIMIT_BYTES)
        if line is None or not line:
            return line is not None  # an empty line before the head is passed over
        found = _STATUS_LINE.fullmatch(line)
        if found is None:
            raise _ParseError(NOT_HTTP)
        self._pending_status = int(found[1])
        self._state = self._read_header
        return True

    def _read_header(self) -> bool:
        line = self._take_line(_HEAD_LIMIT_BYTES)
        if line is None:
            return False
        if not line:
            self._finish_head()
            return True
        name, colon, value = line.partition(b":")
        text = value.strip(b" \t").decode("latin-1")
        if line[:1] in b" \t" and self.headers:
            before, begun = self.headers[-1]
            self.headers[-1] = before, f"{begun} {line.strip().decode('latin-1')}".strip()
        elif colon and _HEADER_NAME.fullmatch(name.rstrip(b" \t")):
            self.headers.append((name.rstrip(b" \t").decode("latin-1"), text))
        else:
            raise _ParseError(f"{NOT_HTTP}: a line of the head is no header")
        return True

    def _finish_head(self) -> None:
        if self._pending_status < 200:  # 100 Continue, early hints: the reply is yet to come
            self.headers.clear()
            self._state = self._read_status
            return
        self.status = self._pending_status
        self._head_bytes = 0
        coding = ", ".join(self._header_values("content-encoding")).lower()
        self._decompressor = Decompressor(coding) if coding in CONTENT_CODINGS else None
        self._state = self._body_state()

    def _body_state(self) -> Callable[[], bool]:
        """How the end of the body is known."""
        if self._method == "HEAD" or self._pending_status in _BODILESS_STATUSES:
            return self._finish
        if ", ".join(self._header_values("transfer-encoding")).lower().endswith("chunked"):
            self._is_chunked = True
            return self._read_chunk_size
        lengths = {part.strip() for value in self._header_values("content-length") for part in value.split(",")}
        if not lengths:
            return self._read_until_close
        length = lengths.pop()
        if lengths:
            raise _ParseError(f"{NOT_HTTP}: it has two lengths")
        if not _CONTENT_LENGTH.fullmatch(length):
            raise _ParseError(f"{NOT_HTTP}: its length is no number")
        self._remaining = int(length)
        return self._read_fixed_length

    def _header_values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]

    # The steps of the body.

    def _read_until_close(self) -> bool:
        self._append_body(len(self._buffer))
        return False

    def _read_fixed_length(self) -> bool:
        self._remaining -= self._append_body(self._remaining)
        return self._finish() if not self._remaining else False

    def _read_chunk_size(self) -> bool:
        line = self._take_line(_CHUNK_LINE_LIMIT_BYTES)
        if line is None:
            return False
        self._head_bytes = 0
        found = _CHUNK_SIZE_LINE.fullmatch(line)
        if found is None:
            raise _ParseError(f"{NOT_HTTP}: a chunk has no size")
        self._remaining = int(found[1], 16)
        if not self._remaining:
            self._state = self._read_trailer
            return True
        if len(self._chunk_sizes) >= _CHUNKS_LIMIT:
            raise _ParseLimitError(f"a reply of more than {_CHUNKS_LIMIT:,} chunks")
        self._chunk_sizes.append(0)
        self._state = self._read_chunk
        return True

    def _read_chunk(self) -> bool:
        before = len(self.body)
        try:
            self._remaining -= self._append_body(self._remaining)
        finally:
            self._chunk_sizes[-1] += len(self.body) - before
        if self._remaining:
            return False
        self._state = self._read_chunk_end
        return True

    def _read_chunk_end(self) -> bool:
        if not self._buffer or self._buffer == b"\r":
            return False
        size = 2 if self._buffer.startswith(b"\r\n") else 1
        if size == 1 and self._buffer[:1] != b"\n":
            raise _ParseError(f"{NOT_HTTP}: a chunk is longer than its size")
        del self._buffer[:size]
        self._state = self._read_chunk_size
        return True

    def _read_trailer(self) -> bool:
        line = self._take_line(_HEAD_LIMIT_BYTES)
        return line is not None and (bool(line) or self._finish())

    # What the steps share.

    def _take_line(self, limit_bytes: int) -> bytes | None:
        """The next line, without its end; None where it is not whole yet."""
        end = self._buffer.find(b"\n") + 1
        if self._head_bytes + (end or len(self._buffer)) > limit_bytes:
            what = "the head" if self.status is None else "a line"
            raise _ParseError(f"{what} of the reply is too long")
        if not end:
            return None
        line = bytes(self._buffer[: end - 1])
        del self._buffer[:end]
        self._head_bytes += end
        return line.removesuffix(b"\r")

    def _append_body(self, max_bytes: int) -> int:
        """Move so many bytes at most from the buffer to the body; how many they were."""
        data = bytes(self._buffer[:max_bytes])
        del self._buffer[:max_bytes]
        room = self._limit_bytes - len(self.body)
        try:
            body = data if self._decompressor is None else self._decompressor.feed(data, room + 1)
        except ValueError as error:
            raise _ParseError(str(error)) from None
        self.body += body[:room]
        if len(body) > room:
            raise _ParseLimitError(f"a reply of more than {self._limit_bytes:,} bytes")
        return len(data)
