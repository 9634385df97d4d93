"""Fast path: the result equals that of the slow path, or there is none."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.table import table
from welldone.core.envelope import Endpoint
from welldone.core.template import ChunkTemplate, learn_chunk
from welldone.dialects.chat.writer import split_chunk

SENT = b'data: {"ours":1,"choices":[{"delta":{"content":"', b'"}}]}\n\n'


def frame(text: str, *, is_ascii: bool = False, spaces: tuple[str, str] = (",", ":"), **more: Any) -> bytes:  # noqa: ANN401 - any field
    chunk = {"id": "x", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more}
    return b"data: " + json.dumps(chunk, ensure_ascii=is_ascii, separators=spaces).encode() + b"\n\n"


def learn(data: bytes) -> ChunkTemplate:
    found = learn_chunk(split_chunk(data), SENT)
    assert found is not None
    return found


def sent_text(sent: bytes | None) -> Any:  # noqa: ANN401 - whatever was sent
    assert sent is not None
    chunk = json.loads(sent[6:])
    assert chunk["ours"] == 1
    return chunk["choices"][0]["delta"]["content"]


@table("spaces", [(",", ":"), (", ", ": ")])
@table("text", [" Hello", "a\nb", 'say "x"', "back\\slash", "tab\t", "é", "漢字", "😀", "}]}"])
def test_a_text_passes_the_fast_path_unchanged(text: str, spaces: tuple[str, str]) -> None:
    assert sent_text(learn(frame("first", spaces=spaces)).rewrite(frame(text, spaces=spaces))) == text


@given(st.text())
def test_any_text_that_passes_the_fast_path_is_unchanged(text: str) -> None:
    for data in (frame(text.encode(errors="replace").decode()), frame(text, is_ascii=True)):
        sent = learn(frame("first")).rewrite(data)
        if sent is not None:
            assert sent_text(sent) == json.loads(data[6:])["choices"][0]["delta"]["content"]
            assert not set(sent_text(sent)) & set("\u2028\u2029\x85\ufffd\x00")


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
def test_other_chunks_take_the_slow_path(data: bytes) -> None:
    assert learn(frame("first")).rewrite(data) is None


def test_the_fast_path_counts_frames_and_bytes() -> None:
    path = learn(frame("first"))
    path.rewrite(frame("a"))
    path.rewrite(frame("bc"))
    path.rewrite(b"data: [DONE]\n\n")
    assert (path.frames, path.bytes) == (2, len(frame("a") + frame("bc")))


@pytest.mark.parametrize(
    ("endpoint", "choice"), [(Endpoint.CHAT, {"text": "x"}), (Endpoint.COMPLETIONS, {"delta": {"content": "x"}})]
)
def test_the_text_of_a_chunk_is_where_its_endpoint_has_it(endpoint: Endpoint, choice: dict[str, Any]) -> None:
    assert split_chunk(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n", endpoint) is None


def test_a_frame_with_a_text_that_cannot_be_copied_still_matches() -> None:
    assert learn(frame("first")).matches(frame("\u2028"))
    assert not learn(frame("first")).matches(frame("a", usage=None))


def test_the_content_of_the_delta_is_found_among_similar_fields() -> None:
    data = frame("first", note='"content":"x"', more={"content": "y"})
    assert sent_text(learn(data).rewrite(data.replace(b"first", b"second"))) == "second"
    early = data.replace(b'{"id"', b'{"content":"z","id"')
    assert sent_text(learn(early).rewrite(early.replace(b"first", b"second"))) == "second"


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
def test_no_fast_path_is_learnt_from_a_chunk_without_one_plain_text(data: bytes) -> None:
    found = learn_chunk(split_chunk(data), SENT)
    assert found is None or sent_text(found.rewrite(data)) == json.loads(data[6:])["choices"][0]["delta"]["content"]
