"""Accumulation of unknown members of chunks for a reply."""

import copy
import json
from typing import Any

import pytest

from tests.protocol.build import (
    CHAT,
    FALLBACK,
    chunk,
    content_chunks,
    count,
    delta_chunk,
    finish,
    role,
    stream,
    usage_chunk,
)
from tests.table import table
from welldone.core import collect
from welldone.core.request_facts import RequestFacts
from welldone.stream.pipeline import BufferedPipeline


def added(*deltas: dict[str, Any]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for delta in deltas:
        collect.accumulate_delta(total, delta)
    return collect.join_accumulated(total)


def last(*fields: dict[str, Any]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for one in fields:
        collect.accumulate_latest(total, one)
    return collect.join_accumulated(total)


def buffered_reply(*chunks: object) -> dict[str, Any]:
    buffered = BufferedPipeline(CHAT, fallback=FALLBACK)
    buffered.feed(stream(*chunks))
    buffered.close()
    reply: dict[str, Any] = json.loads(buffered.body())
    return reply


SITES = ["https://a.example", "https://b.example", "https://c.example"]


@table("location", ["chunk", "choice", "delta"])
@table(
    ("lists", "joined"),
    [
        ([SITES] * 41, SITES),
        ([SITES[:1], SITES[:2], SITES, SITES], SITES),
        ([SITES[:1], SITES[1:]], SITES),
        ([[{"url": "a"}], [{"url": "a"}, {"url": "b"}]], [{"url": "a"}, {"url": "b"}]),
        ([[220], [220], [220, 7]], [220, 220, 220, 7]),
        ([[], SITES[:1], []], SITES[:1]),
    ],
)
def test_a_list_that_repeats_or_extends_the_previous_one_replaces_it(
    location: str, lists: list[list[object]], joined: list[object]
) -> None:
    chunks: dict[str, list[object]] = {
        "chunk": [chunk({"index": 0, "delta": {"content": "x"}, "finish_reason": None}, listed=one) for one in lists],
        "choice": [delta_chunk({"content": "x"}, listed=one) for one in lists],
        "delta": [delta_chunk({"content": "x", "listed": one}) for one in lists],
    }
    reply = buffered_reply(role(), *chunks[location], finish())
    holder = {"chunk": reply, "choice": reply["choices"][0], "delta": reply["choices"][0]["message"]}[location]
    assert holder["listed"] == joined


def test_the_pieces_of_a_signed_reasoning_block_are_joined() -> None:
    form = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}
    secret = {"type": "reasoning.encrypted", "data": "b64", "id": "rs_1", "format": "anthropic-claude-v1", "index": 0}
    pieces = [
        {**form, "text": "The ", "signature": None},
        {**form, "text": "user", "signature": None},
        {**form, "signature": "s1g"},
        secret,
    ]
    reply = buffered_reply(
        role(),
        *(delta_chunk({"reasoning_details": [piece]}) for piece in pieces),
        delta_chunk({"content": "Hi"}),
        finish(),
    )
    assert reply["choices"][0]["message"]["reasoning_details"] == [
        {**form, "text": "The user", "signature": "s1g"},
        secret,
    ]


def test_reasoning_blocks_without_an_index_end_at_their_signature_or_type() -> None:
    text, summary = {"type": "reasoning.text"}, {"type": "reasoning.summary"}
    pieces = [
        [{**summary, "summary": "a"}, {**summary, "summary": "b"}],
        [{**text, "text": "c", "id": "1"}],
        [{**text, "text": "d"}, {"type": "reasoning.text", "signature": "s"}],
        [{**text, "text": "e"}],
        [{**text, "text": "f", "id": "2"}],
        [{"type": "reasoning.encrypted", "data": "x"}],
        [{"type": "reasoning.encrypted", "data": "y"}],
        ["odd"],
        [{**text, "text": "g"}],
    ]
    assert added(*({"reasoning_details": piece} for piece in pieces))["reasoning_details"] == [
        {**summary, "summary": "ab"},
        {**text, "text": "cd", "id": "1", "signature": "s"},
        {**text, "text": "e"},
        {**text, "text": "f", "id": "2"},
        {"type": "reasoning.encrypted", "data": "x"},
        {"type": "reasoning.encrypted", "data": "y"},
        "odd",
        {**text, "text": "g"},
    ]


def test_entries_with_an_index_are_merged_in_the_order_of_their_first_piece() -> None:
    assert added(
        {"notes": [{"index": 1, "type": "a", "text": "x", "at": {"url": "u"}}, "plain"]},
        {"notes": [{"index": 0, "type": "a", "text": "y"}, {"index": 1, "text": "z", "at": {"url": "v", "n": 1}}]},
        {"notes": [{"index": 1, "type": "b", "text": "w"}, {"no": "index"}, {"index": 7, "type": []}]},
    ) == {
        "notes": [
            {"index": 1, "type": "a", "text": "xz", "at": {"url": "uv", "n": 1}},
            "plain",
            {"index": 0, "type": "a", "text": "y"},
            {"index": 1, "type": "b", "text": "w"},
            {"no": "index"},
            {"index": 7, "type": []},
        ]
    }


def test_equal_content_parts_are_kept() -> None:
    part = {"type": "reference", "reference_ids": [1]}
    reply = buffered_reply(role(), delta_chunk({"content": [part]}), delta_chunk({"content": [part]}), finish())
    assert reply["choices"][0]["message"]["content_parts"] == [part, part]


def test_objects_of_deltas_are_merged_and_strings_joined() -> None:
    audio: list[dict[str, Any]] = [
        {"audio": {"id": "audio_1", "transcript": "He"}},
        {"audio": {"transcript": "l", "data": "AAAA"}},
        {"audio": {"id": "audio_1", "transcript": "lo", "data": "BBBB", "expires_at": 7}, "seed": 1, "note": None},
        {"audio": None, "seed": 2, "note": "n"},
    ]
    assert added(*audio) == {
        "audio": {"id": "audio_1", "transcript": "Hello", "data": "AAAABBBB", "expires_at": 7},
        "seed": 2,
        "note": "n",
    }
    assert added({"x": "a"}, {"x": {"y": "b"}}, {"x": 3}) == {"x": 3}


def test_the_last_value_of_chunk_members_counts() -> None:
    assert last({"a": "x", "b": {"c": "d"}}, {"a": "y", "b": {"e": "f"}}, {"a": None, "z": None}) == {
        "a": "y",
        "b": {"e": "f"},
        "z": None,
    }
    assert last({"a": [1]}, {"a": "x"}, {"a": [2]}) == {"a": [2]}


def test_accumulated_values_are_not_modified() -> None:
    fields = {"a": [{"index": 0, "t": "x"}], "b": {"c": "d"}, "e": [1]}
    before = copy.deepcopy(fields)
    assert added(fields, fields) == {"a": [{"index": 0, "t": "xx"}], "b": {"c": "dd"}, "e": [1, 1]}
    assert fields == before


def test_members_of_a_tool_call_are_accumulated() -> None:
    first = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}, "sign": "x"}
    later = {"index": 0, "function": {"arguments": "}"}, "sign": "y"}
    reply = buffered_reply(
        role(), delta_chunk({"tool_calls": [first]}), delta_chunk({"tool_calls": [later]}), finish("tool_calls")
    )
    assert reply["choices"][0]["message"]["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}, "sign": "xy"}
    ]


@pytest.mark.no_cover
def test_many_pieces_are_joined_in_linear_time() -> None:
    pieces = [{"audio": {"data": "x" * 10}, "notes": [{"index": number, "t": "y"}]} for number in range(50_000)]
    total = added(*pieces)
    assert total["audio"] == {"data": "x" * 500_000}
    assert len(total["notes"]) == 50_000


def test_continuous_usage_does_not_replace_the_usage_of_the_reply() -> None:
    buffered = BufferedPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts(include_usage=True, continuous_usage=True))
    buffered.feed(stream(role(), *content_chunks("Hi"), finish() | {"usage": count(5, 0)}, usage_chunk(count(5, 3))))
    buffered.close()
    assert json.loads(buffered.body())["usage"] == count(5, 3)
