"""Unknown members of a stream's chunks, added up for a whole reply."""

import copy
import json
from typing import Any

import pytest

from tests.protocol.build import CHAT, FALLBACK, chunk, count, counted, finish, role, say, stream, words
from tests.table import table
from welldone.protocol import collect
from welldone.protocol.pipeline import BufferedPipeline
from welldone.protocol.request_facts import RequestFacts


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


def folded(*chunks: object) -> dict[str, Any]:
    fold = BufferedPipeline(CHAT, fallback=FALLBACK)
    fold.feed(stream(*chunks))
    fold.close()
    reply: dict[str, Any] = json.loads(fold.body())
    return reply


SITES = ["https://a.example", "https://b.example", "https://c.example"]


@table("place", ["chunk", "choice", "delta"])
@table(
    ("lists", "whole"),
    [
        ([SITES] * 41, SITES),
        ([SITES[:1], SITES[:2], SITES, SITES], SITES),
        ([SITES[:1], SITES[1:]], SITES),
        ([[{"url": "a"}], [{"url": "a"}, {"url": "b"}]], [{"url": "a"}, {"url": "b"}]),
        ([[220], [220], [220, 7]], [220, 220, 220, 7]),
        ([[], SITES[:1], []], SITES[:1]),
    ],
)
def test_a_list_that_repeats_or_extends_the_one_before_replaces_it(
    place: str, lists: list[list[object]], whole: list[object]
) -> None:
    chunks: dict[str, list[object]] = {
        "chunk": [chunk({"index": 0, "delta": {"content": "x"}, "finish_reason": None}, listed=one) for one in lists],
        "choice": [say({"content": "x"}, listed=one) for one in lists],
        "delta": [say({"content": "x", "listed": one}) for one in lists],
    }
    reply = folded(role(), *chunks[place], finish())
    holder = {"chunk": reply, "choice": reply["choices"][0], "delta": reply["choices"][0]["message"]}[place]
    assert holder["listed"] == whole


def test_a_signed_block_of_reasoning_comes_in_pieces_and_is_whole() -> None:
    form = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}
    secret = {"type": "reasoning.encrypted", "data": "b64", "id": "rs_1", "format": "anthropic-claude-v1", "index": 0}
    pieces = [
        {**form, "text": "The ", "signature": None},
        {**form, "text": "user", "signature": None},
        {**form, "signature": "s1g"},
        secret,
    ]
    reply = folded(role(), *(say({"reasoning_details": [piece]}) for piece in pieces), say({"content": "Hi"}), finish())
    assert reply["choices"][0]["message"]["reasoning_details"] == [
        {**form, "text": "The user", "signature": "s1g"},
        secret,
    ]


def test_blocks_of_reasoning_without_an_index_end_at_their_signature_or_type() -> None:
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


def test_parts_of_content_are_never_taken_for_repeated_ones() -> None:
    part = {"type": "reference", "reference_ids": [1]}
    reply = folded(role(), say({"content": [part]}), say({"content": [part]}), finish())
    assert reply["choices"][0]["message"]["content_parts"] == [part, part]


def test_a_delta_s_objects_are_merged_and_its_strings_joined() -> None:
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


def test_of_other_members_the_last_value_counts() -> None:
    assert last({"a": "x", "b": {"c": "d"}}, {"a": "y", "b": {"e": "f"}}, {"a": None, "z": None}) == {
        "a": "y",
        "b": {"e": "f"},
        "z": None,
    }
    assert last({"a": [1]}, {"a": "x"}, {"a": [2]}) == {"a": [2]}


def test_what_is_added_is_not_changed() -> None:
    fields = {"a": [{"index": 0, "t": "x"}], "b": {"c": "d"}, "e": [1]}
    before = copy.deepcopy(fields)
    assert added(fields, fields) == {"a": [{"index": 0, "t": "xx"}], "b": {"c": "dd"}, "e": [1, 1]}
    assert fields == before


def test_members_of_a_tool_call_are_added_too() -> None:
    first = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}, "sign": "x"}
    later = {"index": 0, "function": {"arguments": "}"}, "sign": "y"}
    reply = folded(role(), say({"tool_calls": [first]}), say({"tool_calls": [later]}), finish("tool_calls"))
    assert reply["choices"][0]["message"]["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}, "sign": "xy"}
    ]


@pytest.mark.no_cover
def test_many_pieces_cost_no_more_than_they_are_long() -> None:
    pieces = [{"audio": {"data": "x" * 10}, "notes": [{"index": number, "t": "y"}]} for number in range(50_000)]
    total = added(*pieces)
    assert total["audio"] == {"data": "x" * 500_000}
    assert len(total["notes"]) == 50_000


def test_counts_on_each_chunk_do_not_replace_those_of_the_whole_reply() -> None:
    fold = BufferedPipeline(CHAT, fallback=FALLBACK, facts=RequestFacts(include_usage=True, continuous_usage=True))
    fold.feed(stream(role(), *words("Hi"), finish() | {"usage": count(5, 0)}, counted(count(5, 3))))
    fold.close()
    assert json.loads(fold.body())["usage"] == count(5, 3)
