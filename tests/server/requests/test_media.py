"""Validation of images and audio: inline data, known formats, limited size."""

import base64
import struct

import pytest

from tests.server.requests.builders import rejection
from tests.table import table
from welldone.gateway.errors import ApiError
from welldone.schemas.messages import ImagePart
from welldone.server.requests.tools import image_format, image_size, read_image

PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
JPEG = b"\xff\xd8\xff\xe0\x00\x04ab\xff\xff\xc2\x00\x11\x08"


def png(width: int, height: int) -> bytes:
    """Return the header of a PNG."""
    return PNG + struct.pack(">II", width, height)


HEADS = {
    "png": png(3, 5),
    "jpeg": JPEG + struct.pack(">HH", 5, 3),
    "gif": b"GIF89a" + struct.pack("<HH", 3, 5),
    "bmp": b"BM" + bytes(16) + struct.pack("<ii", 3, -5),
    "webp": b"RIFF1234WEBPVP8X" + bytes(8) + struct.pack("<HBHB", 2, 0, 4, 0),
}


def url(data: bytes, kind: str = "png") -> str:
    """Return a data URL."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def read(address: object) -> object:
    """Validate an image URL."""
    return read_image(ImagePart({"url": address, "detail": "low"}), "p")


@table("kind", HEADS)
def test_format_and_size_are_read_from_the_header(kind: str) -> None:
    assert image_format(HEADS[kind]) == kind
    assert image_size(HEADS[kind], kind) == (3, 5)
    found = read(url(HEADS[kind], "wrong"))
    assert found == {"type": "image_url", "image_url": {"url": url(HEADS[kind], kind)}}


@table(
    ("data", "size"),
    [
        (b"RIFF1234WEBPVP8 " + bytes(10) + struct.pack("<HH", 3, 5), (3, 5)),
        (b"RIFF1234WEBPVP8L" + bytes(5) + struct.pack("<I", 2 | 4 << 14), (3, 5)),
        (b"RIFF1234WEBPXXXX" + bytes(20), None),
        (b"RIFF1234WEBP", None),
    ],
)
def test_the_size_of_each_kind_of_webp_is_read(data: bytes, size: tuple[int, int] | None) -> None:
    assert image_size(data, "webp") == size


@table("kind", HEADS)
def test_a_truncated_header_has_no_size(kind: str) -> None:
    assert image_size(HEADS[kind][:-1], kind) is None
    with pytest.raises(ApiError, match="damaged"):
        read(url(HEADS[kind][:-1]))


def test_a_jpeg_without_a_frame_has_no_size() -> None:
    assert image_size(b"\xff\xd8\xff\xe0\x00\x02\x00", "jpeg") is None
    assert image_size(b"\xff\xd8\xff" + b"\xff" * 10_000, "jpeg") is None


@table(
    ("address", "why"),
    [
        (None, "expected a string"),
        (5, "expected a string"),
        ("http://127.0.0.1/x.png", "does not fetch images"),
        ("https://example.com/x.png", "does not fetch images"),
        ("file:///etc/passwd", "does not fetch images"),
        ("//host/x", "does not fetch images"),
        ("", "does not fetch images"),
        ("data:image/png", "does not fetch images"),
        ("data:image/png,abc", "base64"),
        ("data:image/png;base64,%%%%", "base64"),
        ("data:image/png;base64,abc", "base64"),
        ("data:image/png;base64,YQ==YQ==", "base64"),
        ("data:image/png;base64,é", "base64"),
        ("data:image/png;base64,", "expected a PNG"),
        (url(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "svg+xml"), "expected a PNG"),
        (url(png(0, 5)), "pixels"),
        (url(png(8000, 8001)), "pixels"),
        (url(png(2**31, 2**31)), "pixels"),
        (url(png(70_000, 1)), "pixels"),
    ],
)
def test_invalid_images_are_rejected(address: object, why: str) -> None:
    with pytest.raises(ApiError, match=why) as caught:
        read(address)
    assert caught.value.status == 400
    assert caught.value.param == "p.image_url.url"


def test_the_largest_image_is_accepted() -> None:
    assert read(url(png(8000, 8000)))


@table(
    ("part", "param"),
    [
        ({}, "input_audio"),
        ({"input_audio": "x"}, "input_audio"),
        ({"input_audio": {"format": "ogg", "data": "YQ=="}}, "input_audio.format"),
        ({"input_audio": {"format": "wav"}}, "input_audio.data"),
        ({"input_audio": {"format": "wav", "data": ""}}, "input_audio.data"),
        ({"input_audio": {"format": "wav", "data": "!"}}, "input_audio.data"),
    ],
)
def test_invalid_audio_is_named(part: dict[str, object], param: str) -> None:
    error = rejection(messages=[{"role": "user", "content": [{"type": "input_audio", **part}]}])
    assert error.param == f"messages[0].content[0].{param}"
