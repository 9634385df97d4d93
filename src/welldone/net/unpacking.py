"""A compressed body, unpacked as it comes, and never to more than there is room for: a bomb is small until then."""

import zlib

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
