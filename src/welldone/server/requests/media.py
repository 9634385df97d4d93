"""Images and audio in a message: inline data only, validated before a decoder reads it.

The server never fetches a URL for a client: that would let clients reach the server's network (SSRF).
"""

import binascii
import struct

from welldone.protocol.events import Json
from welldone.schemas.messages import AudioPart, ImagePart
from welldone.server.requests import fields

MEDIA_LIMIT = 20
"""Images and audio clips per request; each takes hundreds of tokens, and no common context holds more."""
PIXELS_LIMIT = 64_000_000
"""Pixels of one image: 256 MB when decoded, however small the file. Cameras have up to 50 million."""

_MAGIC_NUMBERS = {
    b"\x89PNG\r\n\x1a\n": "png",
    b"\xff\xd8\xff": "jpeg",
    b"GIF87a": "gif",
    b"GIF89a": "gif",
    b"BM": "bmp",
}
_SIDE_LIMIT = 65_500  # of a JPEG, the lowest limit of all formats; larger values elsewhere are attacks


def read_image(part: ImagePart, param: str) -> Json:
    """Validate an `image_url` part and return it for the engine."""
    image = part.image_url
    url = image.get("url") if isinstance(image, dict) else image
    param = f"{param}.image_url.url" if isinstance(image, dict) else f"{param}.image_url"
    if not isinstance(url, str):
        raise fields.wrong_type(param, "a string", url)
    head, comma, data = url.partition(",")
    if not head.startswith("data:") or not comma:
        reason = "this server does not fetch images. Send the image as 'data:image/png;base64,…'."
        raise fields.invalid(param, reason, "invalid_image_url")
    if not head.endswith(";base64"):
        raise fields.invalid(param, "expected base64.", "invalid_image")
    decoded = _decode_base64(data, param)
    kind = image_format(decoded)
    if kind is None:
        raise fields.invalid(param, "expected a PNG, JPEG, WebP, GIF or BMP.", "invalid_image")
    size = image_size(decoded, kind)
    if size is None:
        raise fields.invalid(param, f"the {kind} is damaged.", "invalid_image")
    width, height = size
    if not 0 < width * height <= PIXELS_LIMIT or max(size) > _SIDE_LIMIT:
        raise fields.invalid(
            param, f"expected at most {PIXELS_LIMIT} pixels, but got {width} x {height}.", "invalid_image"
        )
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind};base64,{data}"}}


def read_audio(part: AudioPart, param: str) -> Json:
    """Validate an `input_audio` part and return it for the engine."""
    data = part.input_audio.data
    if not isinstance(data, str):
        raise fields.wrong_type(f"{param}.input_audio.data", "a string", data)
    if not _decode_base64(data, f"{param}.input_audio.data"):
        raise fields.missing(f"{param}.input_audio.data")
    return {"type": "input_audio", "input_audio": {"data": data, "format": part.input_audio.format or "wav"}}


def image_format(data: bytes) -> str | None:
    """Return the image format by magic number; the client's media type is ignored."""
    for magic, name in _MAGIC_NUMBERS.items():
        if data.startswith(magic):
            return name
    return "webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def image_size(data: bytes, image_format: str) -> tuple[int, int] | None:
    """Return width and height from the file header; None if it is truncated or damaged."""
    try:
        match image_format:
            case "png":
                return struct.unpack_from(">II", data, 16)
            case "gif":
                return struct.unpack_from("<HH", data, 6)
            case "bmp":
                width, height = struct.unpack_from("<ii", data, 18)
                return abs(width), abs(height)  # negative height: rows from top to bottom
            case "webp":
                return _webp_size(data)
            case _:
                return _jpeg_size(data)
    except struct.error:
        return None


def _webp_size(data: bytes) -> tuple[int, int] | None:
    match data[12:16]:
        case b"VP8 ":
            width, height = struct.unpack_from("<HH", data, 26)
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            (bits,) = struct.unpack_from("<I", data, 21)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            low_w, high_w, low_h, high_h = struct.unpack_from("<HBHB", data, 24)
            return (high_w << 16 | low_w) + 1, (high_h << 16 | low_h) + 1
        case _:
            return None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    offset = 2
    while offset + 4 <= len(data):
        if data[offset] != 0xFF:
            return None
        marker = data[offset + 1]
        if marker == 0xFF:  # padding
            offset += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, offset + 5)
            return width, height
        else:
            (length,) = struct.unpack_from(">H", data, offset + 2)
            offset += 2 + length
    return None


def _decode_base64(data: str, param: str) -> bytes:
    try:
        return binascii.a2b_base64(data, strict_mode=True)
    except ValueError:
        raise fields.invalid(param, "this is not valid base64.", "invalid_base64") from None
