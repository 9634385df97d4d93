"""Small PNG images."""

import base64
import struct
import zlib


def png(width: int, height: int, colour: tuple[int, int, int]) -> bytes:
    """Return an image in one colour."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits for each of red, green and blue
    row = b"\0" + bytes(colour) * width  # filter type 0: none
    parts = _part(b"IHDR", header), _part(b"IDAT", zlib.compress(row * height)), _part(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def data_url(image: bytes) -> str:
    """Return the image as a data URL."""
    return "data:image/png;base64," + base64.b64encode(image).decode()


def _part(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
