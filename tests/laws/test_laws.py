"""The four laws, tried on whatever hypothesis can think of."""

import re
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from tests.laws.strategies import HEAD, any_bytes, legal, odd_events, spoiled
from welldone.protocol.catalog import RULES_BY_ID
from welldone.protocol.catalog.rule import Repairability
from welldone.protocol.collect import CollectedReply, collect
from welldone.protocol.dialects.chat import ChatWriter, ChunkWriter, CompletionsWriter
from welldone.protocol.envelope import Endpoint
from welldone.protocol.events import Event, Failure, Finish, Reasoning, Text, ToolArguments, ToolCall, Usage
from welldone.protocol.pipeline import StreamPipeline
from welldone.protocol.reader import EventReader
from welldone.protocol.repair import EventRepairer
from welldone.protocol.repair_log import RepairLog
from welldone.protocol.request_facts import RequestFacts, read_request_facts
from welldone.protocol.text_filters import ThinkMode
from welldone.rules.judge import judge
from welldone.rules.trace import Trace

WRITERS: dict[Endpoint, type[ChunkWriter]] = {Endpoint.CHAT: ChatWriter, Endpoint.COMPLETIONS: CompletionsWriter}
ASKED: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}, "tools": [{}], "n": 3}
NOT_ASKED: dict[str, Any] = {"stream": True, "tools": [{}], "n": 3}
requests = st.sampled_from([None, ASKED, NOT_ASKED, {"stream": True}, {"stream": True, "functions": [{}]}])
endpoints = pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS])


def write(events: list[Event], endpoint: Endpoint, *, usage_is_null: bool = False) -> bytes:
    """The stream that `events` make."""
    writer = WRITERS[endpoint](HEAD[endpoint], usage_is_null=usage_is_null)
    return b"".join([*(writer.send(event) for event in events), writer.end()])


def fix(
    data: bytes,
    endpoint: Endpoint,
    request: dict[str, Any] | None = None,
    cuts: list[int] | None = None,
    *,
    think: ThinkMode = "no",
    strict: frozenset[str] = frozenset(),
    stops: tuple[str, ...] = (),
) -> bytes:
    """The stream that repair makes of `data`, fed in pieces."""
    asked = (
        RequestFacts(stop_strings=stops)
        if request is None
        else msgspec.structs.replace(read_request_facts(request), stop_strings=stops)
    )
    pipe = StreamPipeline(endpoint, fallback=HEAD[endpoint], facts=asked, think=think, strict=strict)
    ends = [*sorted(cut for cut in cuts or [] if cut < len(data)), len(data)]
    pieces = [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return b"".join([*(pipe.feed(piece) for piece in pieces), pipe.close()])


def read(data: bytes, endpoint: Endpoint) -> CollectedReply:
    """What a stream says."""
    reader = EventReader(endpoint, fallback=HEAD[endpoint], facts=RequestFacts(), repair_log=RepairLog())
    return collect(reader.feed(data) + reader.close())


def is_cumulative(events: list[Event], index: int) -> bool:
    """Whether a choice's texts each repeat the one before: the judge reports them, and repair changes nothing."""
    said = [event.text for event in events if isinstance(event, Text) and event.index == index]
    return len(said) > 3 and all(after != before and after.startswith(before) for before, after in pairwise(said))


def broken(data: bytes, endpoint: Endpoint, request: dict[str, Any] | None) -> set[str]:
    """The rules that a stream breaks, less those that repair can only report."""
    judged = judge(Trace(body=data, endpoint=endpoint.value, request=request))
    return {rule for rule in judged.counts if RULES_BY_ID[rule].repairability is not Repairability.REPORT_ONLY}


@endpoints
@given(data=st.data())
def test_law_1_what_is_written_is_right(endpoint: Endpoint, data: st.DataObject) -> None:
    events = data.draw(legal(endpoint))
    assume(not any(is_cumulative(events, index) for index in range(3)))
    is_counted = any(isinstance(event, Usage) for event in events)
    is_asked = is_counted or isinstance(events[-1], Failure)
    written = write(events, endpoint, usage_is_null=is_asked)
    for request in (None, ASKED if is_asked else NOT_ASKED):
        judgement = judge(Trace(body=written, endpoint=endpoint.value, request=request))
        allowed = {"ext-reasoning-before-content", "ext-logprobs-align"}
        assert {finding.rule for finding in judgement.findings} <= allowed


@endpoints
@given(data=any_bytes, request=requests)
def test_law_2_whatever_the_bytes_what_is_repaired_is_right(
    endpoint: Endpoint, data: bytes, request: dict[str, Any] | None
) -> None:
    assert broken(fix(data, endpoint, request), endpoint, request) <= UNKNOWABLE


@given(stream=spoiled(), request=requests)
def test_law_2_whatever_a_server_got_wrong_what_is_repaired_is_right(
    stream: tuple[Endpoint, bytes], request: dict[str, Any] | None
) -> None:
    endpoint, data = stream
    fixed = fix(data, endpoint, request)
    event("failed" if b'data: {"error"' in fixed else "whole")
    assert broken(fixed, endpoint, request) <= UNKNOWABLE


FAILED = re.compile(rb'data: \{"error":[^\n]*\n\ndata: \[DONE\]\n\n$')
UNKNOWABLE = {"use-final-chunk", "cmpl-usage-chunk"}
"""Counts that the server never gave are not invented."""


@given(events=odd_events, is_done=st.booleans())
def test_law_2_whatever_the_events_their_repair_is_legal(events: list[Event], is_done: bool) -> None:
    repair = EventRepairer(
        Endpoint.CHAT,
        facts=RequestFacts(),
        repair_log=RepairLog(),
        new_call_id=iter(f"call_{n}" for n in range(99)).__next__,
    )
    repaired = repair.feed(events) + repair.close(is_done=is_done)
    assert broken(write(repaired, Endpoint.CHAT), Endpoint.CHAT, None) == set()


@endpoints
@given(data=st.data())
def test_law_3_repair_keeps_all_that_a_right_stream_says(endpoint: Endpoint, data: st.DataObject) -> None:
    events = data.draw(legal(endpoint))
    written = write(events, endpoint)
    fixed = fix(written, endpoint)
    assert read(fixed, endpoint) == read(written, endpoint)


@given(stream=st.one_of(spoiled(), any_bytes.map(lambda data: (Endpoint.CHAT, data))), request=requests)
def test_law_3_repairing_twice_is_repairing_once(
    stream: tuple[Endpoint, bytes], request: dict[str, Any] | None
) -> None:
    endpoint, data = stream
    once = fix(data, endpoint, request)
    twice = fix(once, endpoint, request)
    if FAILED.search(once):
        # What was held back when an answer broke off may come in another order; nothing else may change.
        assert read(twice, endpoint) == read(once, endpoint)
    else:
        assert twice == once


@given(
    stream=st.one_of(spoiled(), any_bytes.map(lambda data: (Endpoint.CHAT, data))), cuts=st.lists(st.integers(1, 3000))
)
def test_law_4_where_the_bytes_are_cut_never_matters(stream: tuple[Endpoint, bytes], cuts: list[int]) -> None:
    endpoint, data = stream
    assert fix(data, endpoint, cuts=cuts) == fix(data, endpoint)


THINKING = st.one_of(
    st.sampled_from(["<think>", "</think>", "<th", "ink>", "</", "\n", " ", "a", "b", "Hello"]).map(
        lambda text: [Text(0, text)]
    ),
    st.sampled_from([[Reasoning(0, "why")], [ToolCall(0, 0, "a", "get"), ToolArguments(0, 0, "{}")]]),
)


@given(said=st.lists(THINKING, max_size=8), think=st.sampled_from(["no", "tags", "open"]), size=st.integers(1, 200))
def test_laws_2_and_4_hold_where_thoughts_are_taken_out(said: list[list[Event]], think: ThinkMode, size: int) -> None:
    events = EventRepairer(
        Endpoint.CHAT, facts=RequestFacts(), repair_log=RepairLog(), new_call_id=iter("xyz").__next__
    )
    legal_events = events.feed([event for some in said for event in some] + [Finish(0, "stop")])
    data = write(legal_events + events.close(is_done=True), Endpoint.CHAT)
    fixed = fix(data, Endpoint.CHAT, think=think)
    assert broken(fixed, Endpoint.CHAT, None) == set()
    assert fix(data, Endpoint.CHAT, cuts=list(range(size, len(data), size)), think=think) == fixed


@given(
    stream=st.one_of(spoiled(), any_bytes.map(lambda data: (Endpoint.CHAT, data))),
    request=requests,
    stops=st.sampled_from([("e",), (" ",), ("lo", "he", "e t"), (", ", "1, 2, 3"), ("never said",)]),
    cuts=st.lists(st.integers(1, 3000)),
)
def test_laws_2_and_4_hold_where_stop_strings_are_looked_for(
    stream: tuple[Endpoint, bytes], request: dict[str, Any] | None, stops: tuple[str, ...], cuts: list[int]
) -> None:
    endpoint, data = stream
    fixed = fix(data, endpoint, request, stops=stops)
    assert broken(fixed, endpoint, request) <= UNKNOWABLE
    assert fix(data, endpoint, request, cuts, stops=stops) == fixed


@given(
    stream=spoiled(),
    rules=st.one_of(st.just({"all"}), st.sets(st.sampled_from(sorted(RULES_BY_ID)))),
    cuts=st.lists(st.integers(1, 3000)),
)
def test_laws_2_and_4_hold_where_rules_are_strict(
    stream: tuple[Endpoint, bytes], rules: set[str], cuts: list[int]
) -> None:
    endpoint, data = stream
    fixed = fix(data, endpoint, strict=frozenset(rules))
    assert broken(fixed, endpoint, None) <= UNKNOWABLE
    assert fix(data, endpoint, cuts=cuts, strict=frozenset(rules)) == fixed
