"""Hostile bodies of four megabytes cost little: a reader stands in the way of every other client."""

import json
import time
from contextlib import suppress

import pytest

from tests.serve.requests.build import ABLE, MODEL
from welldone.serve.errors import ApiError
from welldone.serve.requests import read_body, read_chat, read_completions

SIZE = 4 * 2**20
# A body of this size takes 0.1 to 0.5 s on the slowest machine that was tried. What grows with the square takes hours.
LIMIT_S = 10.0


def fill(head: str, piece: str, tail: str) -> bytes:
    """A body of four megabytes."""
    return (head + piece * ((SIZE - len(head) - len(tail)) // len(piece)) + tail).encode()


def schema(text: str) -> str:
    """The head of a body with this schema."""
    return '{"messages":[{"role":"user","content":"x"}],"json_schema":' + text


@pytest.mark.parametrize(
    "data",
    [
        fill("{", "[", ""),
        fill('{"a":', "[", ""),
        fill('{"a":[', "[],", "1]}"),
        fill('{"a":[', "[" * 60 + "]" * 60 + ",", "1]}"),
        fill('{"a":"', '\\"', '"}'),
        fill('{"a":"', "[\\\\", '"}'),
        fill("{", '"[', ""),
        fill('{"messages":[', '{"role":"user","content":"x"},', "{}]}"),
        fill('{"messages":[{"role":"user","content":[', '{"type":"text","text":""},', "{}]}]}"),
        fill('{"messages":[{"role":"user","content":"', "é", '"}]}'),
        fill(
            '{"messages":[{"role":"assistant","tool_calls":[{"id":"x","function":{"name":"f","arguments":"',
            "{",
            '"}}]}]}',
        ),
        fill(
            '{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:x;base64,',
            "/9j/",
            '"}}]}]}',
        ),
        fill('{"prompt":[', "1,", "1]}"),
        fill('{"prompt":[', '"x",', '"x"]}'),
        fill('{"stop":[', '"x",', '"x"]}'),
        fill(schema('{"enum":['), '"x",', '"x"]}}'),
        fill(schema('{"anyOf":['), "{},", "{}]}}"),
        fill(schema('{"required":['), '"x",', '"x"]}}'),
        fill(schema('{"pattern":"'), "(", '"}}'),
        fill(schema('{"description":"'), "x", '"}}'),
        fill(schema('{"$ref":"#'), "/a", '"}}'),
        json.dumps({"logit_bias": {str(number): 1 for number in range(300_000)}}).encode(),
    ],
    ids=range(22),
)
def test_it_is_read_or_refused_in_linear_time(data: bytes) -> None:
    before = time.perf_counter()
    for read in (read_chat, read_completions):
        with suppress(ApiError):
            read(read_body(data, "application/json"), MODEL, ABLE)
    assert time.perf_counter() - before < LIMIT_S
