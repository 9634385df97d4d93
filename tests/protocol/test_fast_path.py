"""The short way of a text: it gives what the long way gives, or nothing."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.table import table
from welldone.protocol.fast_path import FastPath, learn_fast_path

SENT = b'data: {"ours":1,"choices":[{"delta":{"content":"first"}}]}\n\n'


def frame(text: str, *, is_ascii: bool = False, spaces: tuple[str, str] = (",", ":"), **more: Any) -> bytes:  # noqa: ANN401 - any field
    chunk = {"id": "x", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more}
    return b"data: " + json.dumps(chunk, ensure_ascii=is_ascii, separators=spaces).encode() + b"\n\n"


def lane(data: bytes) -> FastPath:
    found = learn_fast_path(data, SENT, {})
    assert found is not None
    return found


def heard(sent: bytes | None) -> Any:  # noqa: ANN401 - whatever was sent
    assert sent is not None
    chunk = json.loads(sent[6:])
    assert chunk["ours"] == 1
    return chunk["choices"][0]["delta"]["content"]


@table("spaces", [(",", ":"), (", ", ": ")])
@table("text", [" Hello", "a\nb", 'say "x"', "back\\slash", "tab\t", "é", "漢字", "😀", "}]}"])
def test_a_text_goes_the_short_way_and_stays_what_it_was(text: str, spaces: tuple[str, str]) -> None:
    assert heard(lane(frame("first", spaces=spaces)).rewrite(frame(text, spaces=spaces))) == text


@given(st.text())
def test_whatever_goes_the_short_way_is_the_text_that_was_said(text: str) -> None:
    for data in (frame(text.encode(errors="replace").decode()), frame(text, is_ascii=True)):
        sent = lane(frame("first")).rewrite(data)
        if sent is not None:
            assert heard(sent) == json.loads(data[6:])["choices"][0]["delta"]["content"]
            assert not set(heard(sent)) & set("\u2028\u2029\x85\ufffd\x00")


@table(
    "data",
    [
        frame(""),
        frame("a") + frame("b"),
        frame("a")[:-1],
        frame("a")[1:],
        frame("a", usage=None),
        frame("\u2028"),
        frame("\ufffd"),
        frame("\x85"),
        frame("\x7f"),
        frame("\x00", is_ascii=True),
        frame("\ud83d", is_ascii=True),
        frame("😀", is_ascii=True),
        frame("a").replace(b'"a"', b'"\xff"'),
        frame("a").replace(b'"a"', b'"a\nb"'),
        frame("a").replace(b'"a"', b"null"),
        frame("a").replace(b'"a"', b'"a","role":"assistant"'),
        frame("a").replace(b"null", b'"stop"'),
        frame("a").replace(b"\n\n", b"\r\n\r\n"),
        b"data: [DONE]\n\n",
        b": comment\n\n",
        b"",
    ],
)
def test_all_else_takes_the_long_way(data: bytes) -> None:
    assert lane(frame("first")).rewrite(data) is None


def test_a_lane_counts_what_it_took() -> None:
    short = lane(frame("first"))
    short.rewrite(frame("a"))
    short.rewrite(frame("bc"))
    short.rewrite(b"data: [DONE]\n\n")
    assert (short.frames, short.bytes) == (2, len(frame("a") + frame("bc")))


def test_a_lane_is_of_use_when_it_has_taken_more_than_it_cost() -> None:
    short = lane(frame("first"))
    for _ in range(4):
        short.rewrite(frame("a"))
    short.reset_counts()
    assert (short.frames, short.bytes, short.is_worthwhile) == (0, 0, False)
    for _ in range(4):
        short.rewrite(frame("a"))
    assert short.is_worthwhile


def test_a_frame_is_of_a_lane_also_where_its_text_is_not_plain() -> None:
    assert lane(frame("first")).matches(frame("\u2028"))
    assert not lane(frame("first")).matches(frame("a", usage=None))


def test_the_text_is_found_where_it_stands_and_not_where_it_seems_to() -> None:
    data = frame("first", note='"content":"x"', more={"content": "y"})
    assert heard(lane(data).rewrite(data.replace(b"first", b"second"))) == "second"
    early = data.replace(b'{"id"', b'{"content":"z","id"')
    assert heard(lane(early).rewrite(early.replace(b"first", b"second"))) == "second"


@table(
    "data",
    [
        b"data: [DONE]\n\n",
        frame("a") * 2,
        b'data: {"choices":[{"delta":{"content":null}}]}\n\n',
        b'data: {"choices":[{"delta":{"content":"a"}},{"delta":{"content":"b"}}]}\n\n',
        b'data: {"content":"a"}\n\n',
        b'data: {"choices":[{"delta":{"content":"a","content":"b"}}]}\n\n',
        b'data: {"choices":[{"delta":{"content"  :"a"}}]}\n\n',
    ],
)
def test_nothing_is_learnt_of_a_chunk_whose_text_cannot_be_found(data: bytes) -> None:
    found = learn_fast_path(data, SENT, {})
    assert (found is None) == (learn_fast_path(SENT, data, {}) is None)
    assert found is None or heard(found.rewrite(data)) == json.loads(data[6:])["choices"][0]["delta"]["content"]
