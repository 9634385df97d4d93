"""Images in messages, as data URLs."""

from typing import Any

import pytest

from tests.models.picture import data_url, png
from tests.support.raw import CHAT, STREAM, Json, ParsedReply, chat, fetch
from tests.support.server import Running

RED, BLUE = data_url(png(32, 32, (250, 10, 10))), data_url(png(32, 32, (10, 10, 250)))
FIELDS: dict[str, Any] = {"temperature": 0, "max_tokens": 40, "cache_prompt": False}


def image_message(*urls: str) -> list[Json]:
    """A user message with images."""
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, *images]}]


def chat_with_images(server: Running, *urls: str, stream: bool = False) -> ParsedReply:
    """Request an answer of the vision model about these images."""
    return chat(server, image_message(*urls), model="seeing", stream=stream, **FIELDS)


@STREAM
def test_the_answer_depends_on_the_image(zoo: Running, stream: bool) -> None:
    red, blue = chat_with_images(zoo, RED, stream=stream), chat_with_images(zoo, BLUE, stream=stream)
    assert red.text != blue.text
    assert red.counts[0] > chat(zoo, "What is this?", model="seeing", **FIELDS).counts[0]


def test_streamed_and_whole_answers_about_an_image_are_equal(zoo: Running) -> None:
    assert chat_with_images(zoo, RED, stream=True) == chat_with_images(zoo, RED)


@STREAM
def test_a_message_can_have_several_images(zoo: Running, stream: bool) -> None:
    assert (
        chat_with_images(zoo, RED, BLUE, stream=stream).counts[0] > chat_with_images(zoo, RED, stream=stream).counts[0]
    )


@STREAM
@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9/cat.png",
        "https://example.com/cat.png",
        "file:///etc/passwd",
        "data:image/png;base64,!!!!",
        "data:image/png;base64,aGVsbG8=",
        "data:image/png,hello",
    ],
)
def test_remote_urls_and_invalid_images_are_rejected(zoo: Running, url: str, stream: bool) -> None:
    reply = fetch(zoo, CHAT, {"model": "seeing", "messages": image_message(url), "stream": stream})
    assert reply.status == 400
    assert reply.error()["param"] == "messages[0].content[1].image_url.url"


@STREAM
def test_a_truncated_image_is_rejected_and_the_model_still_works(zoo: Running, stream: bool) -> None:
    image = png(32, 32, (1, 2, 3))
    reply = fetch(zoo, CHAT, {"model": "seeing", "messages": image_message(data_url(image[:-30])), "stream": stream})
    assert reply.status == 400
    reply.error()
    assert chat_with_images(zoo, RED, stream=stream).text


@STREAM
def test_a_model_without_vision_rejects_images(tiny_server: Running, stream: bool) -> None:
    reply = fetch(tiny_server, CHAT, {"model": "tiny", "messages": image_message(RED), "stream": stream})
    assert reply.status == 400
    assert reply.error()["code"] == "unsupported_value"
