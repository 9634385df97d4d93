"""Pictures in a message, as data in the request."""

from typing import Any

import pytest

from tests.live.raw import CHAT, STREAM, Json, Said, ask, chat
from tests.live.server import Running
from tests.models.picture import data_url, png

RED, BLUE = data_url(png(32, 32, (250, 10, 10))), data_url(png(32, 32, (10, 10, 250)))
FIELDS: dict[str, Any] = {"temperature": 0, "max_tokens": 40, "cache_prompt": False}


def message(*urls: str) -> list[Json]:
    """A question with pictures."""
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, *pictures]}]


def see(server: Running, *urls: str, stream: bool = False) -> Said:
    """What a model that sees says to them."""
    return chat(server, message(*urls), model="seeing", stream=stream, **FIELDS)


@STREAM
def test_what_is_said_depends_on_the_picture(zoo: Running, stream: bool) -> None:
    red, blue = see(zoo, RED, stream=stream), see(zoo, BLUE, stream=stream)
    assert red.text != blue.text
    assert red.counts[0] > chat(zoo, "What is this?", model="seeing", **FIELDS).counts[0]


def test_stream_and_whole_see_the_same(zoo: Running) -> None:
    assert see(zoo, RED, stream=True) == see(zoo, RED)


@STREAM
def test_several_pictures_may_be_shown(zoo: Running, stream: bool) -> None:
    assert see(zoo, RED, BLUE, stream=stream).counts[0] > see(zoo, RED, stream=stream).counts[0]


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
def test_no_address_is_fetched_and_no_rubbish_is_read(zoo: Running, url: str, stream: bool) -> None:
    reply = ask(zoo, CHAT, {"model": "seeing", "messages": message(url), "stream": stream})
    assert reply.status == 400
    assert reply.error()["param"] == "messages[0].content[1].image_url.url"


@STREAM
def test_a_picture_that_is_damaged_is_refused_and_hurts_nobody(zoo: Running, stream: bool) -> None:
    whole = png(32, 32, (1, 2, 3))
    reply = ask(zoo, CHAT, {"model": "seeing", "messages": message(data_url(whole[:-30])), "stream": stream})
    assert reply.status == 400
    reply.error()
    assert see(zoo, RED, stream=stream).text


@STREAM
def test_a_model_that_does_not_see_says_so(tiny_server: Running, stream: bool) -> None:
    reply = ask(tiny_server, CHAT, {"model": "tiny", "messages": message(RED), "stream": stream})
    assert reply.status == 400
    assert reply.error()["code"] == "unsupported_value"
