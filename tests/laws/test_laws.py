"""The first four laws of chat and completions as property tests."""

import re
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from tests.laws.strategies import ENVELOPES, any_bytes, any_events, damaged, legal_events
from welldone.core.catalog import RULES, Repairability
from welldone.core.collect import CollectedReply, collect
from welldone.core.envelope import Endpoint
from welldone.core.events import Event, Failure, Finish, Reasoning, Text, ToolArguments, ToolCall, Usage
from welldone.core.repair import EventRepairer
from welldone.core.repair_log import RepairLog
from welldone.core.request_facts import RepairOptions, RequestFacts, read_request_facts
from welldone.core.text_filters import ThinkMode
from welldone.dialects.chat.reader import EventReader
from welldone.dialects.chat.writer import ChunkFormat
from welldone.rules.judge import judge
from welldone.rules.trace import Trace
from welldone.stream.pipeline import StreamPipeline

WITH_USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}, "tools": [{}], "n": 3}
WITHOUT_USAGE: dict[str, Any] = {"stream": True, "tools": [{}], "n": 3}
requests = st.sampled_from([None, WITH_USAGE, WITHOUT_USAGE, {"stream": True}, {"stream": True, "functions": [{}]}])
endpoints = pytest.mark.parametrize("endpoint", [Endpoint.CHAT, Endpoint.COMPLETIONS])


def write(events: list[Event], endpoint: Endpoint, *, usage_is_null: bool = False) -> bytes:
    """Write a stream of `events`."""
    writer = ChunkFormat(RequestFacts(include_usage=usage_is_null), endpoint).make_writer(ENVELOPES[endpoint])
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
    """Repair `data`, split at `cuts`."""
    facts = (
        RequestFacts(stop_strings=stops)
        if request is None
        else msgspec.structs.replace(read_request_facts(request), stop_strings=stops)
    )
    pipeline = StreamPipeline(
        endpoint, fallback=ENVELOPES[endpoint], facts=facts, options=RepairOptions(think=think, strict=strict)
    )
    ends = [*sorted(cut for cut in cuts or [] if cut < len(data)), len(data)]
    pieces = [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return b"".join([*(pipeline.feed(piece) for piece in pieces), pipeline.close()])


def read(data: bytes, endpoint: Endpoint) -> CollectedReply:
    """Read a stream."""
    reader = EventReader(endpoint, fallback=ENVELOPES[endpoint], facts=RequestFacts(), repair_log=RepairLog())
    return collect(reader.feed(data) + reader.close())


def is_cumulative(events: list[Event], index: int) -> bool:
    """Whether each text of a choice extends the previous one: the judge reports that, and repair does not change it."""
    texts = [event.text for event in events if isinstance(event, Text) and event.index == index]
    return len(texts) > 3 and all(after != before and after.startswith(before) for before, after in pairwise(texts))


def violated_rules(data: bytes, endpoint: Endpoint, request: dict[str, Any] | None) -> set[str]:
    """Rules that a stream violates, except those without a repair."""
    judged = judge(Trace(body=data, endpoint=endpoint.value, request=request))
    return {rule for rule in judged.counts if RULES[rule].repairability is not Repairability.REPORT_ONLY}


@endpoints
@given(data=st.data())
def test_law_1_written_streams_are_correct(endpoint: Endpoint, data: st.DataObject) -> None:
    events = data.draw(legal_events(endpoint))
    assume(not any(is_cumulative(events, index) for index in range(3)))
    is_counted = any(isinstance(event, Usage) for event in events)
    is_requested = is_counted or isinstance(events[-1], Failure)
    written = write(events, endpoint, usage_is_null=is_requested)
    for request in (None, WITH_USAGE if is_requested else WITHOUT_USAGE):
        report = judge(Trace(body=written, endpoint=endpoint.value, request=request))
        allowed = {"ext-reasoning-before-content", "ext-logprobs-align"}
        assert {finding.rule for finding in report.findings} <= allowed


@endpoints
@given(data=any_bytes, request=requests)
def test_law_2_any_bytes_give_a_correct_stream(endpoint: Endpoint, data: bytes, request: dict[str, Any] | None) -> None:
    assert violated_rules(fix(data, endpoint, request), endpoint, request) <= UNKNOWABLE


@given(stream=damaged(), request=requests)
def test_law_2_a_damaged_stream_gives_a_correct_stream(
    stream: tuple[Endpoint, bytes], request: dict[str, Any] | None
) -> None:
    endpoint, data = stream
    fixed = fix(data, endpoint, request)
    event("failed" if b'data: {"error"' in fixed else "complete")
    assert violated_rules(fixed, endpoint, request) <= UNKNOWABLE


FAILED = re.compile(rb'data: \{"error":[^\n]*\n\ndata: \[DONE\]\n\n$')
UNKNOWABLE = {"use-final-chunk", "cmpl-usage-chunk"}
"""Missing usage is not invented."""


@given(events=any_events, is_done=st.booleans())
def test_law_2_any_events_are_repaired_to_legal_ones(events: list[Event], is_done: bool) -> None:
    repair = EventRepairer(
        Endpoint.CHAT,
        facts=RequestFacts(),
        repair_log=RepairLog(),
        new_call_id=iter(f"call_{n}" for n in range(99)).__next__,
    )
    repaired = repair.feed(events) + repair.close(is_done=is_done)
    assert violated_rules(write(repaired, Endpoint.CHAT), Endpoint.CHAT, None) == set()


@endpoints
@given(data=st.data())
def test_law_3_repair_keeps_the_content_of_a_legal_stream(endpoint: Endpoint, data: st.DataObject) -> None:
    events = data.draw(legal_events(endpoint))
    written = write(events, endpoint)
    fixed = fix(written, endpoint)
    assert read(fixed, endpoint) == read(written, endpoint)


@given(stream=st.one_of(damaged(), any_bytes.map(lambda data: (Endpoint.CHAT, data))), request=requests)
def test_law_3_repair_is_idempotent(stream: tuple[Endpoint, bytes], request: dict[str, Any] | None) -> None:
    endpoint, data = stream
    once = fix(data, endpoint, request)
    twice = fix(once, endpoint, request)
    if FAILED.search(once):
        # Content that was held back before a failure may be sent in another order; nothing else may change.
        assert read(twice, endpoint) == read(once, endpoint)
    else:
        assert twice == once


@given(
    stream=st.one_of(damaged(), any_bytes.map(lambda data: (Endpoint.CHAT, data))), cuts=st.lists(st.integers(1, 3000))
)
def test_law_4_byte_boundaries_do_not_matter(stream: tuple[Endpoint, bytes], cuts: list[int]) -> None:
    endpoint, data = stream
    assert fix(data, endpoint, cuts=cuts) == fix(data, endpoint)


THINKING = st.one_of(
    st.sampled_from(["<think>", "</think>", "<th", "ink>", "</", "\n", " ", "a", "b", "Hello"]).map(
        lambda text: [Text(0, text)]
    ),
    st.sampled_from([[Reasoning(0, "why")], [ToolCall(0, 0, "a", "get"), ToolArguments(0, 0, "{}")]]),
)


@given(texts=st.lists(THINKING, max_size=8), think=st.sampled_from(["no", "tags", "open"]), size=st.integers(1, 200))
def test_laws_2_and_4_hold_with_think_tags(texts: list[list[Event]], think: ThinkMode, size: int) -> None:
    events = EventRepairer(
        Endpoint.CHAT, facts=RequestFacts(), repair_log=RepairLog(), new_call_id=iter("xyz").__next__
    )
    repaired_events = events.feed([event for some in texts for event in some] + [Finish(0, "stop")])
    data = write(repaired_events + events.close(is_done=True), Endpoint.CHAT)
    fixed = fix(data, Endpoint.CHAT, think=think)
    assert violated_rules(fixed, Endpoint.CHAT, None) == set()
    assert fix(data, Endpoint.CHAT, cuts=list(range(size, len(data), size)), think=think) == fixed


@given(
    stream=st.one_of(damaged(), any_bytes.map(lambda data: (Endpoint.CHAT, data))),
    request=requests,
    stops=st.sampled_from([("e",), (" ",), ("lo", "he", "e t"), (", ", "1, 2, 3"), ("never said",)]),
    cuts=st.lists(st.integers(1, 3000)),
)
def test_laws_2_and_4_hold_with_stop_strings(
    stream: tuple[Endpoint, bytes], request: dict[str, Any] | None, stops: tuple[str, ...], cuts: list[int]
) -> None:
    endpoint, data = stream
    fixed = fix(data, endpoint, request, stops=stops)
    assert violated_rules(fixed, endpoint, request) <= UNKNOWABLE
    assert fix(data, endpoint, request, cuts, stops=stops) == fixed


@given(
    stream=damaged(),
    rules=st.one_of(st.just({"all"}), st.sets(st.sampled_from(sorted(RULES)))),
    cuts=st.lists(st.integers(1, 3000)),
)
def test_laws_2_and_4_hold_with_strict_rules(stream: tuple[Endpoint, bytes], rules: set[str], cuts: list[int]) -> None:
    endpoint, data = stream
    fixed = fix(data, endpoint, strict=frozenset(rules))
    assert violated_rules(fixed, endpoint, None) <= UNKNOWABLE
    assert fix(data, endpoint, cuts=cuts, strict=frozenset(rules)) == fixed
