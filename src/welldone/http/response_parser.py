"""Incremental HTTP/1.1 response parser (RFC 9112): head, body, chunk sizes, and how the response ended.

It is as lenient as the HTTP libraries of clients: lines may end with LF alone, headers may be folded, chunks may have
extensions. What those libraries reject is rejected here. All sizes are bounded; what precedes an error is kept.
"""

import re
import zlib
from collections.abc import Callable

from welldone.http.address import BODILESS_STATUSES

CONNECTION_LOST = "the connection was lost before the reply was complete"
NOT_HTTP = "the reply is not HTTP"
HEAD_TOO_LONG = "the head of the reply is too long"
HEAD_LIMIT_BYTES = 65536
"""Limit of all heads together, or of trailers; nginx and Node.js reject 8 to 32 KB."""
_CONTENT_CODINGS = frozenset({"gzip", "x-gzip", "deflate"})
"""Content codings that zlib decompresses."""

_GZIP_WBITS = 16 + zlib.MAX_WBITS
_RAW_DEFLATE_WBITS = -zlib.MAX_WBITS


class Decompressor:
    """Incremental decompression of one body, with bounded output: a small input may be a decompression bomb."""

    def __init__(self, coding: str) -> None:
        self._is_gzip = coding != "deflate"
        self._prefix = b""  # first byte of a `deflate` body: the format shows in the first two
        self._is_format_known = self._is_gzip
        self._has_member = False
        self._is_done = False
        self._zlib = zlib.decompressobj(_GZIP_WBITS if self._is_gzip else zlib.MAX_WBITS)

    def feed(self, data: bytes, max_bytes: int) -> bytes:
        """Return at most `max_bytes` (at least 1) of output for more input.

        Raises:
            ValueError: the body is not compressed with its declared coding.
        """
        if not self._is_format_known:
            data = self._prefix = self._prefix + data
            if len(data) < 2:
                return b""
            self._is_format_known = True
            # RFC 1950 §2.2: the zlib header. Some servers send `deflate` without it.
            if data[0] & 0x0F != zlib.DEFLATED or int.from_bytes(data[:2], "big") % 31:
                self._zlib = zlib.decompressobj(_RAW_DEFLATE_WBITS)
        output = bytearray()
        while data and len(output) < max_bytes and not self._is_done:
            piece, data = self._decompress(data, max_bytes - len(output))
            output += piece
        return bytes(output)

    def _decompress(self, data: bytes, max_bytes: int) -> tuple[bytes, bytes]:
        """Return output, and the unused input. A gzip body may consist of several members (RFC 1952 §2.2)."""
        try:
            output = self._zlib.decompress(data, max_bytes)
        except zlib.error:
            if not self._has_member:
                raise ValueError("the body is not compressed as its Content-Encoding declares") from None
            self._is_done = True  # padding after the last member, which all clients ignore
            return b"", b""
        if not self._zlib.eof:
            return output, self._zlib.unconsumed_tail
        rest = self._zlib.unused_data
        self._has_member = True
        self._is_done = not self._is_gzip
        if self._is_gzip:
            self._zlib = zlib.decompressobj(_GZIP_WBITS)
        return output, rest


_CHUNK_LINE_LIMIT_BYTES = 4096  # of a chunk-size line; clients accept 4 to 64 KB
_CHUNKS_LIMIT = 2**20  # chunks of one body: a long answer has about 10,000
_STATUS_LINE = re.compile(rb"HTTP/\d(?:\.\d)? +(\d{3})(?: .*)?", re.DOTALL)
_HEADER_NAME = re.compile(rb"[!#$%&'*+.^_`|~\w-]+", re.ASCII)
_CONTENT_LENGTH = re.compile(r"\d{1,18}", re.ASCII)
_CHUNK_SIZE_LINE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;.*)?", re.DOTALL)


class _ParseError(Exception):
    """The bytes are not a valid response."""


class _ParseLimitError(_ParseError):
    """The response is longer than the limit."""


class ResponseParser:
    """Parser of one response. Public attributes are read-only for callers."""

    def __init__(self, method: str, limit_bytes: int) -> None:
        self.status: int | None = None
        """None: the head is not complete."""
        self.headers: list[tuple[str, str]] = []
        self.body: bytearray = bytearray()
        self.is_done: bool = False
        self.is_complete: bool = False
        """The body ended according to its framing."""
        self.error: str | None = None
        self.is_over_limit: bool = False
        """The response exceeded a limit: its rest, which was not read, may be valid."""
        self._method = method
        self._limit_bytes = limit_bytes
        self._buffer = bytearray()
        self._head_bytes = 0
        self._is_chunked = False
        self._chunk_sizes: list[int] = []
        self._pending_status = 0  # status of the head that is being read
        self._remaining = 0  # unread bytes of the body or the chunk
        self._decompressor: Decompressor | None = None
        self._state: Callable[[], bool] = self._read_status  # consumes from the buffer; False: more input is needed

    @property
    def pieces(self) -> tuple[int, ...] | None:
        """Decoded size of each chunk; None without chunked transfer encoding."""
        return tuple(filter(None, self._chunk_sizes)) if self._is_chunked else None

    def feed(self, data: bytes) -> None:
        """Parse more bytes."""
        self._buffer += data
        try:
            while not self.is_done and self._state():
                pass
        except _ParseError as error:
            self.is_over_limit = isinstance(error, _ParseLimitError)
            self.fail(str(error))
        if self.is_done:
            self._buffer.clear()  # bytes after the response do not belong to it

    def feed_eof(self) -> None:
        """End the input. Without a length that is the end of the body (RFC 9112 §6.3)."""
        if not self.is_done and self._state == self._read_until_close:
            self._finish()
        self.fail(CONNECTION_LOST)

    def fail(self, error: str) -> None:
        """End with an error, unless the response has ended already."""
        if not self.is_done:
            self.is_done = True
            self.error = error

    def _finish(self) -> bool:
        self.is_done = self.is_complete = True
        return True

    # States of the head.

    def _read_status(self) -> bool:
        line = self._take_line(HEAD_LIMIT_BYTES)
        if line is None or not line:
            return line is not None  # empty lines before the head are ignored
        match = _STATUS_LINE.fullmatch(line)
        if match is None:
            raise _ParseError(NOT_HTTP)
        self._pending_status = int(match[1])
        self._state = self._read_header
        return True

    def _read_header(self) -> bool:
        line = self._take_line(HEAD_LIMIT_BYTES)
        if line is None:
            return False
        if not line:
            self._finish_head()
            return True
        name, colon, value = line.partition(b":")
        text = value.strip(b" \t").decode("latin-1")
        if line[:1] in b" \t" and self.headers:
            folded_name, start = self.headers[-1]
            self.headers[-1] = folded_name, f"{start} {line.strip().decode('latin-1')}".strip()
        elif colon and _HEADER_NAME.fullmatch(name.rstrip(b" \t")):
            self.headers.append((name.rstrip(b" \t").decode("latin-1"), text))
        else:
            raise _ParseError(f"{NOT_HTTP}: a line of the head is not a header")
        return True

    def _finish_head(self) -> None:
        if self._pending_status < 200:  # 100 Continue, 103 Early Hints: the final response follows
            self.headers.clear()
            self._state = self._read_status
            return
        self.status = self._pending_status
        self._head_bytes = 0
        coding = ", ".join(self._header_values("content-encoding")).lower()
        if coding in _CONTENT_CODINGS:
            self._decompressor = Decompressor(coding)
        self._state = self._body_state()

    def _body_state(self) -> Callable[[], bool]:
        """Choose the framing of the body (RFC 9112 §6.3)."""
        if self._method == "HEAD" or self._pending_status in BODILESS_STATUSES:
            return self._finish
        if ", ".join(self._header_values("transfer-encoding")).lower().endswith("chunked"):
            self._is_chunked = True
            return self._read_chunk_size
        lengths = {word.strip() for value in self._header_values("content-length") for word in value.split(",")}
        if not lengths:
            return self._read_until_close
        length = lengths.pop()
        if lengths:
            raise _ParseError(f"{NOT_HTTP}: it has two different values of Content-Length")
        if not _CONTENT_LENGTH.fullmatch(length):
            raise _ParseError(f"{NOT_HTTP}: its Content-Length is not a number")
        self._remaining = int(length)
        return self._read_fixed_length

    def _header_values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name]

    # States of the body.

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
        match = _CHUNK_SIZE_LINE.fullmatch(line)
        if match is None:
            raise _ParseError(f"{NOT_HTTP}: a chunk has no valid size")
        self._remaining = int(match[1], 16)
        if not self._remaining:
            self._state = self._read_trailer
            return True
        if len(self._chunk_sizes) >= _CHUNKS_LIMIT:
            raise _ParseLimitError(f"a reply of more than {_CHUNKS_LIMIT:,} chunks")
        self._chunk_sizes.append(0)
        self._state = self._read_chunk
        return True

    def _read_chunk(self) -> bool:
        size_before = len(self.body)
        try:
            self._remaining -= self._append_body(self._remaining)
        finally:
            self._chunk_sizes[-1] += len(self.body) - size_before
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
        line = self._take_line(HEAD_LIMIT_BYTES)
        return line is not None and (bool(line) or self._finish())

    def _take_line(self, limit_bytes: int) -> bytes | None:
        """Take the next line without its terminator; None if it is incomplete."""
        end = self._buffer.find(b"\n") + 1
        if self._head_bytes + (end or len(self._buffer)) > limit_bytes:
            raise _ParseError(HEAD_TOO_LONG if self.status is None else "a line of the reply is too long")
        if not end:
            return None
        line = bytes(self._buffer[: end - 1])
        del self._buffer[:end]
        self._head_bytes += end
        return line.removesuffix(b"\r")

    def _append_body(self, max_bytes: int) -> int:
        """Move at most `max_bytes` from the buffer to the body; return how many were taken."""
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
